/* fuzz_json.c - the JSON reader: what it accepts can be written in every form, reads back as the
 * same tree, and the canonical form is a fixed point. */
#include "core/json.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of json.h broken: make the fuzzer keep the input. */
static void must(bool ok)
{
    if (!ok) abort();
}

static bool same(const ht_json *a, const ht_json *b, bool canon)
{
    if (a->type != b->type || a->b != b->b || a->i != b->i || a->n != b->n) return false;
    if (a->d < b->d || a->d > b->d) return false;
    if (a->type == HT_JSTR) return !memcmp(a->s, b->s, a->n);
    for (size_t i = 0; i < a->n; i++) {
        const ht_json *x = &a->at[i], *y = &b->at[i];
        if (a->type == HT_JOBJ && canon) {
            y = ht_json_get(b, x->key);
            if (strlen(x->key) != x->key_n) continue; /* a NUL in a key: not found by a C string */
            if (!y) return false;
        } else if (a->type == HT_JOBJ) {
            if (x->key_n != y->key_n || memcmp(x->key, y->key, x->key_n)) return false;
        }
        if (!same(x, y, canon)) return false;
    }
    return true;
}

static void rewrite(const ht_json *v, unsigned flags)
{
    ht_buf b, again;
    ht_arena *a;
    ht_json *w;
    ht_err e;
    bool canon = flags & HT_JSON_CANON;
    ht_buf_init(&b, 0);
    ht_buf_init(&again, 0);
    if (ht_arena_new(&a, 0, &e)) abort();
    int rc = ht_json_write(v, flags, &b, &e);
    must(!rc || (canon && rc == HT_EARG)); /* reals, large integers, keys that are not ASCII */
    if (!rc) {
        must(!ht_json_parse(a, b.p, b.n, canon ? HT_JSON_CANON : 0, "again", &w, &e));
        must(same(v, w, canon));
        must(!ht_json_write(w, flags, &again, &e));
        must(again.n == b.n && !memcmp(again.p, b.p, b.n));
    }
    ht_arena_free(a);
    ht_buf_done(&b);
    ht_buf_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ht_arena *a;
    ht_json *v;
    ht_err e;
    if (ht_arena_new(&a, (size_t)256 << 20, &e)) return 0;
    if (!ht_json_parse(a, (const char *)data, size, 0, "fuzz", &v, &e)) {
        rewrite(v, 0);
        rewrite(v, HT_JSON_PRETTY);
        rewrite(v, HT_JSON_ASCII);
        rewrite(v, HT_JSON_CANON);
        (void)!!ht_json_path(v, "a.b.c");
    } else {
        must(e.code == HT_EFORMAT || e.code == HT_ENOMEM);
        must(v == NULL);
    }
    ht_arena_free(a);
    return 0;
}
