/* pack.c - hetero pack: a HeteroPack from a GGUF or a Hugging Face folder. */
#include "cli/cli.h"

int cli__pack(cli__ctx *c, ht_err *e)
{
    const ht_opts *o = c->o;
    const char *out = ht_opt_str(o, HT_OPT_OUT);
    char *json = NULL;
    if (!out) return HT_FAIL(e, HT_EARG, "no file to write: usage: hetero pack SRC -o OUT");
    const ht_pack_params p = {.precision = ht_opt_str(o, HT_OPT_PRECISION),
                              .also = ht_opt_str(o, HT_OPT_ALSO),
                              .q4_type = ht_opt_str(o, HT_OPT_Q4_TYPE),
                              .head_type = ht_opt_str(o, HT_OPT_HEAD_TYPE),
                              .pre_override = ht_opt_str(o, HT_OPT_PRE),
                              .calibrate = ht_opt_str(o, HT_OPT_CALIBRATE),
                              .requantise = ht_opt_on(o, HT_OPT_REQUANTISE),
                              .threads = (int)ht_opt_int(o, HT_OPT_THREADS),
                              .progress = cli__progress,
                              .user = c};
    cli__watch(NULL);
    int rc = ht_pack_make(ht_opts_arg(o, 0), out, &p, &json, e);
    cli__progress_end(c);
    if (!rc) rc = cli__out_doc(c, json, e);
    ht_free(json);
    return rc;
}
