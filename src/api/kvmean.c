/* kvmean.c - see kvmean.h. Keys are read where the engine keeps them: an F32 cache holds them as
 * they are behind the positional rotation, which is the place where they are centred later. */
#include "api/kvmean.h"
#include "api/session.h"
#include <math.h>
#include <string.h>

enum {
    CHUNK = 512,        /* tokens of one sequence */
    MOST = 32768,       /* tokens of the text that are used */
    LEAST = 256,        /* below, a mean says nothing */
    SINKS = 4,          /* first positions: unlike all others, and never stored packed */
    TEXT_MAX = 1 << 28, /* bytes of the text */
    HEAD = 16 + 8 + HT_SHA256_BYTES,
};

typedef struct {
    ht_engine *e;
    ht_session *s;
    double *sum;     /* [layers][kv heads][head_dim] */
    uint64_t *count; /* [layers] positions summed */
    uint64_t tokens;
} work;

/* ---- measuring ------------------------------------------------------------------------------- */

/* Add the keys of a layer's page, the first n positions from `from` on. */
static void add_page(work *w, uint32_t layer, uint32_t id, uint32_t from, uint32_t n)
{
    const ht_kv *kv = ht_pool_kv(w->e->pool);
    for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
        double *sum = w->sum + ((size_t)layer * kv->n_kv_heads + h) * kv->head_dim;
        const float *rows = (const float *)(const void *)ht_kv_head(kv, layer, 0, id, h, false);
        for (uint32_t i = from; i < n; i++)
            for (uint32_t d = 0; d < kv->head_dim; d++)
                sum[d] += (double)rows[(size_t)i * kv->head_dim + d];
    }
    w->count[layer] += n > from ? n - from : 0;
}

/* One sequence of the text: run, and its keys added up. */
static int chunk(work *w, const int32_t *ids, uint32_t n, ht_err *err)
{
    const ht_kv *kv = ht_pool_kv(w->e->pool);
    HT_TRY(ht_session_truncate(w->s, 0, err));
    HT_TRY(ht_session_eval(w->s, ids, n, NULL, 0, NULL, NULL, err));
    for (uint32_t l = 0; l < kv->n_layers; l++) {
        const uint32_t *page = ht_seq_pages(w->s->seq, kv->layer_class[l]);
        for (uint32_t k = 0; k * HT_PAGE < n; k++) {
            if (page[k] == HT_NOPAGE) continue; /* a windowed layer has given it up */
            const uint32_t left = n - k * HT_PAGE;
            add_page(w, l, page[k], k ? 0 : SINKS, left < HT_PAGE ? left : HT_PAGE);
        }
    }
    w->tokens += n;
    return 0;
}

static int measure(work *w, const ht_pack_params *p, const int32_t *ids, size_t n, ht_err *err)
{
    if (n > MOST) n = MOST;
    if (n < LEAST)
        return HT_FAIL(err, HT_EARG, "%s has %zu tokens; a calibration needs at least %d",
                       p->calibrate, n, (int)LEAST);
    for (size_t at = 0; at < n; at += CHUNK) {
        const uint32_t rows = n - at < CHUNK ? (uint32_t)(n - at) : CHUNK;
        if (rows <= SINKS) break;
        HT_TRY(chunk(w, ids + at, rows, err));
        if (p->progress && p->progress(p->user, "calibrating", at + rows, n))
            return HT_FAIL(err, HT_ECANCELLED, "the calibration was stopped");
    }
    return 0;
}

static void put32(ht_buf *b, uint32_t v)
{
    const uint8_t x[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    ht_buf_add(b, (const char *)x, sizeof x);
}

static int write(const work *w, const uint8_t sha[HT_SHA256_BYTES], ht_buf *out, ht_err *err)
{
    const ht_kv *kv = ht_pool_kv(w->e->pool);
    put32(out, API_KVMEAN_VERSION);
    put32(out, kv->n_layers);
    put32(out, kv->n_kv_heads);
    put32(out, kv->head_dim);
    put32(out, (uint32_t)w->tokens);
    put32(out, (uint32_t)(w->tokens >> 32));
    ht_buf_add(out, (const char *)sha, HT_SHA256_BYTES);
    const size_t per = (size_t)kv->n_kv_heads * kv->head_dim;
    for (size_t i = 0; i < per * kv->n_layers; i++) {
        const float mean = (float)(w->sum[i] / (double)w->count[i / per]);
        uint32_t bits;
        if (!isfinite(mean))
            return HT_FAIL(err, HT_EFORMAT,
                           "a key of layer %zu is not finite: the weights may be damaged", i / per);
        memcpy(&bits, &mean, sizeof bits);
        put32(out, bits);
    }
    return ht_buf_ok(out, "the means of the keys", err);
}

static int run(work *w, const char *src, const ht_pack_params *p, const int32_t *ids, size_t n,
               ht_err *err)
{
    const ht_engine_params ep = {.model = src,
                                 .pre_override = p->pre_override,
                                 .prefill_engine = "cpu",
                                 .decode_engine = "cpu",
                                 .ctk = "f32",
                                 .ctv = "f32",
                                 .ctx = CHUNK,
                                 .threads = p->threads};
    HT_TRY(ht_engine_open(&w->e, &ep, err));
    HT_TRY(ht_session_new(&w->s, w->e, err));
    const ht_spec *s = &w->e->model->spec;
    w->sum = ht_mem_array((size_t)s->n_layers * s->n_kv_heads, s->head_dim * sizeof *w->sum);
    w->count = ht_mem_array(s->n_layers, sizeof *w->count);
    if (!w->sum || !w->count)
        return HT_FAIL(err, HT_ENOMEM, "no memory for the means of %u layers", s->n_layers);
    return measure(w, p, ids, n, err);
}

int api__kvmean_make(const char *src, const ht_pack_params *p, const ht_tok *tok, ht_buf *out,
                     ht_err *err)
{
    char *text = NULL;
    size_t n = 0;
    ht_ids ids = {0};
    work w = {0};
    uint8_t sha[HT_SHA256_BYTES];
    HT_TRY(ht_file_read(p->calibrate, TEXT_MAX, &text, &n, err));
    int rc = ht_sha256_of(text, n, sha, err);
    if (!rc) rc = ht_tok_encode(tok, text, n, 0, &ids, err);
    ht_mem_free(text);
    if (!rc) rc = run(&w, src, p, ids.id, ids.n, err);
    if (!rc) rc = write(&w, sha, out, err);
    ht_ids_done(&ids);
    ht_mem_free(w.sum);
    ht_mem_free(w.count);
    ht_session_free(w.s);
    ht_engine_close(w.e);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Fields before the means: version and shape. */
static int check_head(const uint8_t *p, size_t n, const ht_spec *s, ht_err *err)
{
    if (n < HEAD)
        return HT_FAIL(err, HT_EFORMAT, "the pack's means of the keys end after %zu bytes", n);
    if (get32(p) != API_KVMEAN_VERSION)
        return HT_FAIL(err, HT_EUNSUPPORTED,
                       "the pack's means of the keys are version %u, this program knows %d; make "
                       "the pack again with hetero pack --calibrate",
                       get32(p), (int)API_KVMEAN_VERSION);
    if (get32(p + 4) != s->n_layers || get32(p + 8) != s->n_kv_heads ||
        get32(p + 12) != s->head_dim)
        return HT_FAIL(err, HT_EFORMAT,
                       "the pack's means are of %u layers with %u heads of %u, the model has %u, "
                       "%u and %u",
                       get32(p + 4), get32(p + 8), get32(p + 12), s->n_layers, s->n_kv_heads,
                       s->head_dim);
    return 0;
}

int api__kvmean_read(const ht_file *f, const ht_spec *s, ht_arena *a, const float **out,
                     ht_err *err)
{
    size_t n = 0, want;
    const uint8_t *p = ht_file_blob(f, API_KVMEAN_BLOB, &n);
    if (!p)
        return HT_FAIL(err, HT_EARG,
                       "the model holds no means of its keys; make a pack with hetero pack "
                       "--calibrate TEXT, or leave \",mean\" out");
    HT_TRY(check_head(p, n, s, err));
    if (!ht_mul_ok((size_t)s->n_layers * s->n_kv_heads, s->head_dim, &want) ||
        n - HEAD != want * sizeof(float))
        return HT_FAIL(err, HT_EFORMAT, "the pack's means of the keys are %zu bytes, not %zu",
                       n - HEAD, want * sizeof(float));
    float *mean = ht_arena_array(a, want, sizeof *mean);
    if (!mean) return HT_FAIL(err, HT_ENOMEM, "no memory for %zu means", want);
    for (size_t i = 0; i < want; i++) {
        const uint32_t bits = get32(p + HEAD + i * 4);
        memcpy(&mean[i], &bits, sizeof bits);
        if (!isfinite(mean[i]))
            return HT_FAIL(err, HT_EFORMAT, "mean %zu of the keys is not a number", i);
    }
    *out = mean;
    return 0;
}
