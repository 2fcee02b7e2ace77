/* tokenize.c - hetero tokenize: text to ids and back. */
#include "cli/cli.h"
#include "core/arena.h"
#include <string.h>

static int write_piece(ht_jw *j, const ht_vocab *v, int32_t id, ht_err *e)
{
    char *text;
    size_t n;
    HT_TRY(ht_vocab_decode(v, &id, 1, 1, &text, &n, e));
    ht_jw_strn(j, text, n);
    ht_free(text);
    return 0;
}

/* {"ids":[..],"pieces":[..]}: a piece is the text of one token; bytes that are no UTF-8 by
 * themselves appear as U+FFFD, so pieces are for reading and ids for computing. */
static int out_ids(const ht_vocab *v, const int32_t *ids, size_t n, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    int rc = 0;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_key(&j, "ids");
    ht_jw_arr(&j);
    for (size_t i = 0; i < n; i++) ht_jw_int(&j, ids[i]);
    ht_jw_end(&j, ']');
    ht_jw_key(&j, "pieces");
    ht_jw_arr(&j);
    for (size_t i = 0; i < n && !rc; i++) rc = write_piece(&j, v, ids[i], e);
    ht_jw_end(&j, ']');
    ht_jw_kuint(&j, "n", n);
    ht_jw_end(&j, '}');
    if (!rc) rc = ht_buf_ok(&b, "tokens", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

/* One token a line: its id and its text as a JSON string, so that spaces and newlines show. */
static int out_lines(const ht_vocab *v, const int32_t *ids, size_t n, ht_err *e)
{
    ht_buf b;
    int rc = 0;
    ht_buf_init(&b, 0);
    for (size_t i = 0; i < n && !rc; i++) {
        ht_jw j;
        ht_buf_fmt(&b, "%7d  ", ids[i]);
        ht_jw_init(&j, &b, 0);
        rc = write_piece(&j, v, ids[i], e);
        ht_buf_char(&b, '\n');
    }
    if (!rc) rc = ht_buf_ok(&b, "tokens", e);
    if (!rc) rc = cli__out(b.p ? b.p : "", b.n, e);
    ht_buf_done(&b);
    return rc;
}

static int detokenize(cli__ctx *c, const ht_vocab *v, ht_err *e)
{
    int32_t *ids;
    size_t n, len;
    char *text = NULL;
    HT_TRY(cli__ids(c, ht_vocab_size(v), &ids, &n, e));
    int rc = ht_vocab_decode(v, ids, n, 1, &text, &len, e);
    if (!rc) rc = cli__out_text(c, text, len, e);
    ht_free(text);
    ht_mem_free(ids);
    return rc;
}

static int tokenize(cli__ctx *c, const ht_vocab *v, ht_err *e)
{
    unsigned flags = (ht_opt_on(c->o, HT_OPT_SPECIAL) ? HT_TOK_SPECIAL : 0u) |
                     (ht_opt_on(c->o, HT_OPT_ADD_BOS) ? HT_TOK_BOS : 0u);
    char *text;
    size_t n, n_ids;
    int32_t *ids = NULL;
    HT_TRY(cli__text(c, &text, &n, e));
    if (!text) HT_TRY(cli__read_file("-", CLI_TEXT_MAX, &text, &n, e));
    int rc = ht_vocab_encode(v, text, n, flags, &ids, &n_ids, e);
    ht_mem_free(text);
    if (!rc) rc = c->json ? out_ids(v, ids, n_ids, e) : out_lines(v, ids, n_ids, e);
    ht_free(ids);
    return rc;
}

int cli__tokenize(cli__ctx *c, ht_err *e)
{
    bool back = ht_opt_on(c->o, HT_OPT_DETOKENIZE), has_ids = ht_opt_str(c->o, HT_OPT_IDS) != NULL;
    ht_vocab *v;
    if (back != has_ids)
        return HT_FAIL(e, HT_EARG,
                       "--ids and --detokenize go together: --ids 1,2,3 --detokenize writes the "
                       "text of those tokens");
    if (back && (ht_opt_str(c->o, HT_OPT_PROMPT) || ht_opt_str(c->o, HT_OPT_FILE)))
        return HT_FAIL(e, HT_EARG, "--detokenize takes ids, not a text");
    HT_TRY(cli__model(c, false, e));
    HT_TRY(ht_vocab_open(&v, c->model, ht_opt_str(c->o, HT_OPT_PRE), e));
    int rc = back ? detokenize(c, v, e) : tokenize(c, v, e);
    ht_vocab_close(v);
    return rc;
}
