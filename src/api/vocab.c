/* vocab.c - the vocabulary functions of hetero.h: a thin cover over tok/. A vocabulary is the same
 * object as tok's ht_tok, so an engine can lend its own. */
#include "api/api.h"

int ht_vocab_open(ht_vocab **out, const char *path, const char *pre_override, ht_err *err)
{
    if (!out || !path) return HT_FAIL(err, HT_EARG, "ht_vocab_open: out and path must be given");
    *out = NULL;
    const ht_file_opts opts = {.vocab_only = 1};
    ht_file *file = NULL;
    HT_TRY(ht_file_open(&file, path, &opts, err));
    int rc = ht_tok_from_file(out, file, pre_override, err);
    ht_file_close(file);
    return rc;
}

void ht_vocab_close(ht_vocab *v)
{
    ht_tok_free(v);
}

uint32_t ht_vocab_size(const ht_vocab *v)
{
    return ht_tok_size(v);
}

int32_t ht_vocab_bos(const ht_vocab *v)
{
    return ht_tok_bos(v);
}

int32_t ht_vocab_eos(const ht_vocab *v)
{
    return ht_tok_eos(v);
}

int ht_vocab_is_eog(const ht_vocab *v, int32_t id)
{
    return ht_tok_is_eog(v, id);
}

int ht_vocab_encode(const ht_vocab *v, const char *text, size_t len, unsigned flags, int32_t **ids,
                    size_t *n, ht_err *err)
{
    if (!v || !ids || !n || (!text && len))
        return HT_FAIL(err, HT_EARG, "ht_vocab_encode: vocabulary, text, ids and n must be given");
    *ids = NULL;
    *n = 0;
    if (flags & ~(unsigned)(HT_TOK_SPECIAL | HT_TOK_BOS))
        return HT_FAIL(err, HT_EARG,
                       "ht_vocab_encode: unknown flags %#x; use HT_TOK_SPECIAL and HT_TOK_BOS",
                       flags);
    ht_ids got = {0};
    int rc = ht_tok_encode(v, text ? text : "", len, flags, &got, err);
    if (rc) {
        ht_ids_done(&got);
        return rc;
    }
    *ids = got.id;
    *n = got.n;
    return 0;
}

int ht_vocab_decode(const ht_vocab *v, const int32_t *ids, size_t n, int special, char **text,
                    size_t *len, ht_err *err)
{
    if (!v || !text || !len || (!ids && n))
        return HT_FAIL(err, HT_EARG,
                       "ht_vocab_decode: vocabulary, ids, text and len must be given");
    *text = NULL;
    *len = 0;
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= ht_tok_size(v))
            rc = HT_FAIL(err, HT_EARG, "token id %d at index %zu is outside the vocabulary of %u",
                         (int)ids[i], i, ht_tok_size(v));
    if (!rc) rc = ht_tok_decode(v, ids, n, special != 0, &b, err); /* knows SPM's leading space */
    ht_buf_add(&b, "", 0); /* an empty result is an empty string, not NULL */
    if (!rc) rc = ht_buf_ok(&b, "decoded text", err);
    if (!rc) *text = ht_buf_take(&b, len);
    if (!rc && !*text) rc = HT_FAIL(err, HT_ENOMEM, "no memory for the decoded text");
    ht_buf_done(&b);
    return rc;
}
