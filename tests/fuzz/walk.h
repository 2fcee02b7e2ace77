/* walk.h - use everything that an opened file promises: every byte of every tensor and blob can be
 * read, names lead back to their tensors, and a walk over metadata stays inside it. */
#ifndef HT_FUZZ_WALK_H
#define HT_FUZZ_WALK_H
#include "format/pack.h"
#include <stdlib.h>
#include <string.h>

static inline void must(bool ok)
{
    if (!ok) abort();
}

static inline unsigned touch(const void *p, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((const uint8_t *)p)[i];
    return sum;
}

static inline void walk(const ht_file *f)
{
    static volatile unsigned sink;
    char hex[65];
    ht_err e;
    size_t n;
    for (size_t i = 0; i < ht_file_n_tensors(f); i++) {
        const ht_tensor *t = ht_file_tensor(f, i);
        sink += touch(t->data, t->bytes);
        must(t->n_dims >= 1 && t->n_dims <= 4 && ht_type_of(t->type));
        for (int d = 0; d < 4; d++) must(t->dim[d] >= 1);
        if (ht_file_kind(f) != HT_FILE_PACK) must(ht_file_find(f, t->name) == t);
        else must(ht_file_find(f, t->name) == ht_pack_find(f, t->name, ""));
    }
    for (size_t i = 0; i < ht_file_n_meta(f); i++) {
        const char *key, *s;
        int64_t v;
        double d;
        const ht_meta *m = ht_file_meta_at(f, i, &key);
        must(ht_file_meta(f, key) == m);
        if (m->type == HT_META_STR) sink += touch(m->s, m->n);
        for (size_t k = 0; m->type == HT_META_ARR && k < m->n; k++) {
            if (ht_meta_arr_str(m, k, &s, &n)) sink += touch(s, n);
            sink += ht_meta_arr_i64(m, k, &v) + ht_meta_arr_f64(m, k, &d);
        }
    }
    const char *t = ht_file_template(f, &n);
    if (t) sink += touch(t, n);
    const void *b = ht_file_blob(f, "tokenizer", &n);
    if (b) sink += touch(b, n);
    sink += (unsigned)ht_file_verify(f, NULL, NULL, hex, &e);
    (void)sink;
}

/* Open path; a failure must be told in full. */
static inline void try_open(const char *path, int vocab_only)
{
    const ht_file_opts opts = {.vocab_only = vocab_only};
    ht_file *f = NULL;
    ht_err e = {0};
    int rc = ht_file_open(&f, path, &opts, &e);
    must(rc ? !f && e.code == rc && e.msg[0] && e.where : f != NULL);
    if (!rc) walk(f);
    ht_file_close(f);
}
#endif
