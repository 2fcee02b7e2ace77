/* explain.c - stages and covers as text: what `explain` prints, receipts store and errors name. */
#include "core/buf.h"
#include "core/hash.h"
#include "step/step.h"

#include <stdio.h>
#include <string.h>

static const char *const kind_name[HT_KINDS] = {
    [HT_EMBED] = "embed",       [HT_QKV] = "qkv",         [HT_ATTN] = "attn",
    [HT_ATTN_OUT] = "attn_out", [HT_FFN_UP] = "ffn_up",   [HT_FFN_DOWN] = "ffn_down",
    [HT_ROUTE] = "route",       [HT_EXPERTS] = "experts", [HT_PICK] = "pick",
    [HT_HEAD] = "head",         [HT_SAMPLE] = "sample",
};

static const char *const flag_name[8] = {"bias",     "qknorm", "window", "cap",
                                         "postnorm", "gelu",   "renorm", "shared"};

const char *ht_kind_name(int kind)
{
    return kind >= 0 && kind < HT_KINDS ? kind_name[kind] : "?";
}

void ht_stage_text(const ht_stage *s, char out[80])
{
    size_t n = (size_t)snprintf(out, 80, "%s", ht_kind_name(s->kind));
    for (unsigned i = 0; i < 8; i++)
        if (s->flags & (1U << i)) n += (size_t)snprintf(out + n, 80 - n, "+%s", flag_name[i]);
    if (s->layer >= 0) (void)snprintf(out + n, 80 - n, ".%d", s->layer);
}

/* The text is one line a cut: span name and the stages it runs. Fused spans of another length or
 * other stages therefore give another hash. tape is the whole tape that the cuts' `at` index. */
int ht_cover_hash(const ht_stage *tape, const ht_cut *cut, size_t n_cuts, char hex[65], ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    for (size_t i = 0; i < n_cuts; i++) {
        ht_buf_str(&b, cut[i].span->name);
        for (uint32_t k = 0; k < cut[i].n; k++) {
            char text[80];
            ht_stage_text(&tape[cut[i].at + k], text);
            ht_buf_char(&b, ' ');
            ht_buf_str(&b, text);
        }
        ht_buf_char(&b, '\n');
    }
    uint8_t sha[HT_SHA256_BYTES];
    int rc = ht_buf_ok(&b, "cover text", e);
    if (!rc) rc = ht_sha256_of(b.p, b.n, sha, e);
    if (!rc) ht_hex(sha, sizeof sha, hex);
    ht_buf_done(&b);
    return rc;
}
