/* kvmean.c - keys without their mean: a pack with means gives the same bits until they are asked
 * for, asked for they change what is stored and not what is meant, both engines agree, and means of
 * another version or model are refused. */
#include "api/kvmean.h"
#include "format/pack.h"
#include "util.h"
#include <math.h>

enum { N = 160, LAST = 8, CTX = 192 };

static const char *file(const char *name)
{
    static char path[4][300];
    static int at;
    char *p = path[at++ % 4];
    snprintf(p, 300, "%s/%s", t_tmp(), name);
    return p;
}

/* A text to calibrate with, 600 to 1,000 tokens. */
static const char *text(void)
{
    const char *path = file("text.txt");
    FILE *f = fopen(path, "w");
    T_TRUE(f);
    for (int i = 0; i < 60; i++) fprintf(f, "Once there was a cat number %d who slept.\n", i);
    fclose(f);
    return path;
}

static void make(const char *src, const char *to, const char *calibrate)
{
    const ht_pack_params p = {.precision = "f16", .threads = 2, .calibrate = calibrate};
    ht_err err = {0};
    T_OK(ht_pack_make(src, to, &p, NULL, &err), err);
}

/* Logits of the last rows of a fixed text. */
static float *eval(const char *model, const char *k, const char *engine_name)
{
    const ht_engine_params p = {.model = model,
                                .ctx = CTX,
                                .ctk = k,
                                .kv_force = 1,
                                .threads = 2,
                                .prefill_engine = engine_name,
                                .decode_engine = engine_name};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    int32_t ids[N];
    uint32_t want[LAST];
    uint64_t seed = 17;
    ht_err err = {0};
    logits l = {.cap = LAST};
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(5 + t_rand(&seed) % 400);
    for (uint32_t i = 0; i < LAST; i++) want[i] = N - LAST + i;
    l.rows = calloc((size_t)LAST * ht_engine_n_logits(e), sizeof *l.rows);
    T_OK(ht_session_eval(s, ids, N, want, LAST, keep_logits, &l, &err), err);
    ht_session_free(s);
    ht_engine_close(e);
    return l.rows;
}

static double apart(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* Off, nothing is different; on, other bits and the same meaning: as near to the F16 cache as
 * without, rotated or not, although pages that are still read raw stand beside packed ones. */
T_CASE_SECONDS(kvmean, off_is_off_and_on_is_on, 300)
{
    const size_t n = (size_t)LAST * 4096;
    const char *with = file("with.htpack"), *without = file("without.htpack");
    make(TALE, with, text());
    make(TALE, without, NULL);
    float *exact = eval(with, "f16", NULL), *same = eval(without, "f16", NULL);
    T_EQ_MEM(exact, same, n * sizeof *exact);
    free(same);
    static const char *const type[] = {"q8_0", "tq4"};
    for (size_t i = 0; i < sizeof type / sizeof *type; i++) {
        char centred[24];
        snprintf(centred, sizeof centred, "%s,mean", type[i]);
        float *off = eval(with, type[i], NULL), *ref = eval(without, type[i], NULL);
        float *on = eval(with, centred, NULL);
        T_EQ_MEM(off, ref, n * sizeof *off);
        T_CHECK(memcmp(on, off, n * sizeof *on), "%s does nothing", centred);
        const double a = apart(on, exact, n), b = apart(off, exact, n);
        T_CHECK(a < 3 * b + 1e-3, "%s is %.3g from the exact cache, %s %.3g", centred, a, type[i],
                b);
        free(off);
        free(ref);
        free(on);
    }
    free(exact);
}

/* The oracle does the same, page by page the same codes: what is left are its own rounding. */
T_CASE_SECONDS(kvmean, both_engines, 300)
{
    const size_t n = (size_t)LAST * 4096;
    const char *with = file("with.htpack");
    make(TALE, with, text());
    float *cpu = eval(with, "q8_0r,mean", "cpu"), *ref = eval(with, "q8_0r,mean", "ref");
    float *plain = eval(with, "q8_0r", "ref");
    T_CHECK(apart(cpu, ref, n) < 0.02, "%.3g apart", apart(cpu, ref, n));
    T_TRUE(memcmp(plain, ref, n * sizeof *ref));
    free(cpu);
    free(ref);
    free(plain);
}

/* The blob is the mean over the text's keys: of those behind the first four positions, computed
 * here from an F32 cache in one piece. */
T_CASE_SECONDS(kvmean, is_the_mean, 120)
{
    const char *with = file("with.htpack");
    const char *small = text();
    make(TALE, with, small);
    const ht_engine_params p = {
        .model = with, .ctx = 512, .ctk = "f32", .ctv = "f32", .threads = 2, .ubatch = 512};
    ht_engine *e = engine(&p);
    ht_session *s = session(e);
    const float *mean = NULL;
    ht_ids ids = {0};
    ht_err err = {0};
    size_t n = 0;
    char *t = t_slurp(small, &n);
    T_OK(ht_tok_encode(e->tok, t, n, 0, &ids, &err), err);
    T_TRUE(ids.n >= 512);
    T_OK(api__kvmean_read(e->file, &e->model->spec, e->arena, &mean, &err), err);
    const ht_kv *kv = ht_pool_kv(e->pool);
    const uint32_t hd = kv->head_dim, heads = kv->n_kv_heads, last = kv->n_layers - 1;
    double *sum = calloc((size_t)heads * hd, sizeof *sum);
    uint32_t count = 0;
    for (size_t at = 0; at < ids.n; at += 512) {
        const uint32_t rows = ids.n - at < 512 ? (uint32_t)(ids.n - at) : 512;
        if (rows <= 4) break;
        T_OK(ht_session_truncate(s, 0, &err), err);
        T_OK(ht_session_eval(s, ids.id + at, rows, NULL, 0, NULL, NULL, &err), err);
        const uint32_t *page = ht_seq_pages(s->seq, kv->layer_class[last]);
        for (uint32_t i = 4; i < rows; i++, count++)
            for (uint32_t h = 0; h < heads; h++) {
                const float *k =
                    (const float *)(const void *)ht_kv_head(kv, last, 0, page[i / 32], h, false);
                for (uint32_t d = 0; d < hd; d++)
                    sum[h * hd + d] += (double)k[(size_t)(i % 32) * hd + d];
            }
    }
    for (uint32_t i = 0; i < heads * hd; i++) {
        const double want = sum[i] / count, got = (double)mean[(size_t)last * heads * hd + i];
        T_CHECK(fabs(got - want) < 1e-5 * (1 + fabs(want)), "element %u: %.7g, not %.7g", i, got,
                want);
    }
    free(sum);
    free(t);
    ht_ids_done(&ids);
    ht_session_free(s);
    ht_engine_close(e);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

/* A pack with nothing in it but this blob. */
static ht_file *pack_of(ht_arena *a, const void *blob, size_t n)
{
    const char *path = file("blob.htpack");
    ht_packer *pk = NULL;
    ht_file *f = NULL;
    ht_err err = {0};
    char sha[65];
    T_OK(ht_packer_new(&pk, path, &err), err);
    T_OK(ht_packer_header(pk, ht_json_new(a, HT_JOBJ), &err), err);
    T_OK(ht_packer_blob(pk, API_KVMEAN_BLOB, blob, n, &err), err);
    T_OK(ht_packer_end(pk, sha, &err), err);
    T_OK(ht_file_open(&f, path, NULL, &err), err);
    return f;
}

T_CASE_SECONDS(kvmean, refusals, 120)
{
    enum { HEAD = 56, LAYERS = 2, HEADS = 1, DIM = 16, BYTES = HEAD + 4 * LAYERS * HEADS * DIM };
    const ht_spec spec = {.n_layers = LAYERS, .n_kv_heads = HEADS, .head_dim = DIM};
    ht_arena *a = arena();
    const struct {
        uint32_t at, value;
        size_t n;
        int code;
        const char *what;
    } bad[] = {
        {0, 2, BYTES, HT_EUNSUPPORTED, "version 2"},
        {4, 3, BYTES, HT_EFORMAT, "3 layers"},
        {12, 32, BYTES, HT_EFORMAT, "heads of 32"},
        {HEAD + 4, 0x7fc00000, BYTES, HT_EFORMAT, "mean 1"},
        {0, 1, BYTES - 4, HT_EFORMAT, "bytes, not"},
        {0, 1, 20, HT_EFORMAT, "end after 20"},
    };
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        uint8_t blob[BYTES] = {0};
        const float *mean = NULL;
        ht_err err = {0};
        const bool good = i == sizeof bad / sizeof *bad;
        put32(blob, API_KVMEAN_VERSION);
        put32(blob + 4, LAYERS);
        put32(blob + 8, HEADS);
        put32(blob + 12, DIM);
        put32(blob + HEAD, 0x3f800000);
        if (!good) put32(blob + bad[i].at, bad[i].value);
        ht_file *f = pack_of(a, blob, good ? BYTES : bad[i].n);
        const int rc = api__kvmean_read(f, &spec, a, &mean, &err);
        if (good) {
            T_OK(rc, err);
            T_TRUE(mean[0] == 1 && mean[1] == 0);
        } else {
            T_ERR(rc, bad[i].code, err, bad[i].what);
        }
        ht_file_close(f);
    }
    const struct {
        const char *k, *v, *what;
    } no[] = {{"tq4,mean", NULL, "holds no means"},
              {"f16,mean", NULL, "only packed types"},
              {NULL, "tq4,mean", "not LAYER=TYPE"}};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        const ht_engine_params p = {
            .model = TALE, .ctx = 64, .kv_force = 1, .ctk = no[i].k, .ctv = no[i].v};
        ht_engine *e = NULL;
        ht_err err = {0};
        T_ERR(ht_engine_open(&e, &p, &err), HT_EARG, err, no[i].what);
    }
    const char *small = file("small.txt");
    FILE *f = fopen(small, "w");
    T_TRUE(f);
    fputs("Too short.", f);
    fclose(f);
    const ht_pack_params p = {.precision = "f16", .threads = 1, .calibrate = small};
    ht_err err = {0};
    T_ERR(ht_pack_make(TALE, file("no.htpack"), &p, NULL, &err), HT_EARG, err, "at least 256");
    ht_arena_free(a);
}
