/* gguf_check.c - metadata that later code divides by, allocates by or indexes by is bounded here,
 * before any of it happens. Keys that are absent are the reader's business; shapes against metadata
 * are checked where tensors are bound (model/bind.c), merges against tokens where the table is
 * built. */
#include "format/priv.h"
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 65536,
    MAX_EXPERTS = 4096,
    MAX_WIDTH = 1 << 20,
    MAX_CTX = 1 << 30
};

/* The value of ARCH.name, or NULL; key receives the full name. */
static const ht_meta *arch_key(const ht_file *f, const ht_meta *arch, const char *name,
                               char key[96])
{
    snprintf(key, 96, "%.*s.%s", (int)(arch->n < 40 ? arch->n : 40), arch->s, name);
    return ht_file_meta(f, key);
}

/* An integer, or each integer of an array, in [lo, hi]. */
static int bounded(const ht_file *f, const char *key, const ht_meta *m, int64_t lo, int64_t hi,
                   ht_err *e)
{
    size_t n = m->type == HT_META_ARR ? m->n : 1;
    if (m->type != HT_META_U64 && m->type != HT_META_I64 && m->type != HT_META_ARR)
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not an integer", f->label, key);
    for (size_t i = 0; i < n; i++) {
        int64_t v = m->i;
        if (m->type == HT_META_ARR && !ht_meta_arr_i64(m, i, &v))
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s: element %zu is not an integer", f->label,
                           key, i);
        if (v < lo || v > hi)
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s is %lld, must be %lld to %lld", f->label, key,
                           (long long)v, (long long)lo, (long long)hi);
    }
    return 0;
}

static int check_counts(const ht_file *f, const ht_meta *arch, ht_err *e)
{
    static const struct {
        const char *name;
        int64_t lo, hi;
        bool per_layer;
    } rule[] = {
        {"block_count", 1, MAX_LAYERS, false},
        {"embedding_length", 1, MAX_WIDTH, false},
        {"feed_forward_length", 0, MAX_WIDTH * 4, true},
        {"context_length", 1, MAX_CTX, false},
        {"attention.head_count", 1, MAX_HEADS, true},
        {"attention.head_count_kv", 1, MAX_HEADS, true},
        {"attention.key_length", 1, MAX_WIDTH, false},
        {"attention.value_length", 1, MAX_WIDTH, false},
        {"rope.dimension_count", 0, MAX_WIDTH, false},
        {"expert_count", 0, MAX_EXPERTS, false},
        {"expert_used_count", 0, MAX_EXPERTS, false},
        {"expert_feed_forward_length", 0, MAX_WIDTH * 4, false},
    };
    char key[96], other[96];
    const ht_meta *layers = arch_key(f, arch, "block_count", key);
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        const ht_meta *m = arch_key(f, arch, rule[i].name, key);
        if (!m) continue;
        if (m->type == HT_META_ARR && !rule[i].per_layer)
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s is an array, not one integer", f->label, key);
        HT_TRY(bounded(f, key, m, rule[i].lo, rule[i].hi, e));
        if (m->type == HT_META_ARR && layers && m->n != layers->u)
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s has %zu elements for %llu blocks", f->label,
                           key, m->n, (unsigned long long)layers->u);
    }
    const ht_meta *used = arch_key(f, arch, "expert_used_count", key);
    const ht_meta *experts = arch_key(f, arch, "expert_count", other);
    if (used && used->u > (experts ? experts->u : 0))
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is %llu of %llu experts", f->label, key,
                       (unsigned long long)used->u, experts ? (unsigned long long)experts->u : 0);
    return 0;
}

/* An array of the vocabulary: its element type, and as many elements as there are tokens. */
static int check_list(const ht_file *f, const char *key, size_t n, int elem, const char *what,
                      ht_err *e)
{
    const ht_meta *m = ht_file_meta(f, key);
    if (!m) return 0;
    bool integers = m->elem == HT_META_I64 || m->elem == HT_META_U64;
    if (m->type != HT_META_ARR || (elem == HT_META_I64 ? !integers : m->elem != elem))
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not an array of %s", f->label, key, what);
    if (m->n != n)
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s has %zu elements for %zu tokens", f->label, key,
                       m->n, n);
    return 0;
}

static int check_merges(const ht_file *f, ht_err *e)
{
    static const char key[] = "tokenizer.ggml.merges";
    const ht_meta *m = ht_file_meta(f, key);
    if (!m) return 0;
    if (m->type != HT_META_ARR || m->elem != HT_META_STR)
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not an array of strings", f->label, key);
    for (size_t i = 0; i < m->n; i++) {
        const char *s;
        size_t n;
        if (!ht_meta_arr_str(m, i, &s, &n)) break;
        const char *gap = n > 2 ? memchr(s + 1, ' ', n - 2) : NULL;
        if (!gap)
            return HT_FAIL(e, HT_EFORMAT,
                           "%s: key %s: merge %zu (\"%s\") is not two tokens with a space "
                           "between",
                           f->label, key, i, format__show(s, n).s);
    }
    return 0;
}

static int check_vocab(const ht_file *f, ht_err *e)
{
    static const char *const ids[] = {"bos",     "eos", "eot",  "eom",     "unknown", "seperator",
                                      "padding", "cls", "mask", "fim_pre", "fim_suf", "fim_mid"};
    const ht_meta *tokens = ht_file_meta(f, "tokenizer.ggml.tokens");
    if (!tokens) return 0;
    if (tokens->type != HT_META_ARR || tokens->elem != HT_META_STR)
        return HT_FAIL(e, HT_EFORMAT, "%s: key tokenizer.ggml.tokens is not an array of strings",
                       f->label);
    size_t n = tokens->n;
    if (n > INT32_MAX)
        return HT_FAIL(e, HT_EFORMAT, "%s: key tokenizer.ggml.tokens has %zu elements", f->label,
                       n);
    HT_TRY(check_list(f, "tokenizer.ggml.scores", n, HT_META_F64, "real numbers", e));
    HT_TRY(check_list(f, "tokenizer.ggml.token_type", n, HT_META_I64, "integers", e));
    HT_TRY(check_merges(f, e));
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        const ht_meta *m = ht_file_meta(f, key);
        if (!m || (m->type == HT_META_U64 && m->u == UINT32_MAX)) continue; /* -1: none */
        if (m->type == HT_META_I64 && m->i == -1) continue;
        if (m->type != HT_META_U64 && m->type != HT_META_I64)
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not an integer", f->label, key);
        if (m->i < 0 || (uint64_t)m->i >= n)
            return HT_FAIL(e, HT_EFORMAT, "%s: key %s is %lld, but there are %zu tokens", f->label,
                           key, (long long)m->i, n);
    }
    return 0;
}

int format__gguf_check(const ht_file *f, ht_err *e)
{
    const ht_meta *arch = ht_file_meta(f, "general.architecture");
    if (arch && arch->type != HT_META_STR)
        return HT_FAIL(e, HT_EFORMAT, "%s: key general.architecture is not a string", f->label);
    if (arch) HT_TRY(check_counts(f, arch, e));
    return check_vocab(f, e);
}
