/* fuzz_bundle.c - the inputs of a whole bundle or of a comparison, or an amendment's predicate,
 * behind the digests that a manifest would have checked. The first byte chooses; files follow as
 * "= PATH SHA256 BYTES\n" and so many bytes. What is accepted is analysed and written out. */
#include "evid/amend.h"
#include "evid/compare.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum { FILES_MAX = 4096, PATH_LEN = 200 };

static void must(bool ok)
{
    if (!ok) abort();
}

static int by_path(const void *x, const void *y)
{
    return strcmp(((const ht_mfile *)x)->path, ((const ht_mfile *)y)->path);
}

/* Files as far as they can be read; a header that is none ends them. */
static void read_files(ht_arena *a, const char *p, size_t n, ht_manifest *m)
{
    const char *end = p + n;
    memset(m->sha256, 'a', HT_SHA256_HEX - 1);
    m->file = ht_arena_array(a, FILES_MAX, sizeof *m->file);
    while (m->file && m->n < FILES_MAX && p < end) {
        char head[PATH_LEN + 100] = "", path[PATH_LEN + 1], sha[HT_SHA256_HEX];
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t bytes;
        if (!nl || (size_t)(nl - p) >= sizeof head) return;
        memcpy(head, p, (size_t)(nl - p));
        if (sscanf(head, "= %200s %64s %zu", path, sha, &bytes) != 3) return;
        p = nl + 1;
        if (strlen(sha) != HT_SHA256_HEX - 1 || !ht_manifest_path_ok(path)) return;
        if (bytes > (size_t)(end - p)) bytes = (size_t)(end - p);
        ht_mfile *f = &m->file[m->n++];
        *f = (ht_mfile){.path = ht_arena_strndup(a, path, strlen(path)),
                        .role = "raw",
                        .bytes = bytes,
                        .data = ht_arena_strndup(a, p, bytes)};
        memcpy(f->sha256, sha, HT_SHA256_HEX);
        must(f->path && f->data);
        p += bytes;
    }
    if (m->n) qsort(m->file, m->n, sizeof *m->file, by_path);
}

static int read_bundle(ht_arena *a, const ht_manifest *m, ht_err *e)
{
    ht_evidence v;
    ht_analysis x;
    ht_buf b;
    HT_TRY(ht_evidence_read(a, m, &v, e));
    HT_TRY(ht_analyze(a, &v, &x, e));
    ht_buf_init(&b, 0);
    for (size_t i = 0; ht_bundle_outputs[i]; i++) {
        ht_buf_clear(&b);
        must(ht_analysis_write(&v, &x, i, &b, e) == 0 && b.n > 2);
    }
    ht_buf_done(&b);
    return 0;
}

static int read_comparison(ht_arena *a, const ht_manifest *m, ht_err *e)
{
    ht_comparison v;
    HT_TRY(ht_comparison_read(a, m, &v, e));
    must(v.n_samples == (size_t)2 * ht_cmp_pairs(&v.design));
    return 0;
}

/* Signed by the right key, whatever it says. */
static int read_amendment(ht_arena *a, const char *text, size_t n, ht_err *e)
{
    static const uint8_t seed[32] = {1};
    static ht_key *key;
    ht_trust_key k = {.roles = 1u << HT_ROLE_BENCH};
    const ht_trust t = {.version = 1,
                        .expires_unix = INT64_MAX,
                        .key = &k,
                        .n_keys = 1,
                        .threshold = {1, 1, 1, 1, 1}};
    ht_amendment x;
    ht_buf env;
    if (!key) must(ht_key_from_seed(&key, seed, e) == 0);
    ht_key_public(key, k.pub);
    must(ht_key_id(k.pub, k.id, e) == 0);
    ht_buf_init(&env, 0);
    must(ht_dsse_sign(text, n, HT_PAYLOAD_TYPE, (const ht_key *const[]){key}, 1, &env, e) == 0);
    int rc = ht_amendment_open(a, env.p, env.n, &t, 1795900000, &x, e);
    must(rc || (x.result < HT_CANARY_RESULTS && x.expires_unix > 1795900000));
    ht_buf_done(&env);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ht_arena *a;
    ht_err e = {0};
    ht_manifest m = {0};
    if (size < 2 || ht_arena_new(&a, (size_t)256 << 20, &e)) return 0;
    const char *text = (const char *)data + 1;
    int rc;
    if (data[0] % 3 < 2) read_files(a, text, size - 1, &m);
    switch (data[0] % 3) {
    case 0: rc = read_bundle(a, &m, &e); break;
    case 1: rc = read_comparison(a, &m, &e); break;
    default: rc = read_amendment(a, text, size - 1, &e); break;
    }
    must(rc == 0 || (e.code == rc && e.msg[0]));
    ht_arena_free(a);
    return 0;
}
