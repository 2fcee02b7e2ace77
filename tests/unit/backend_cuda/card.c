/* card.c - see card.h. Every function bears the driver's own name for the linker, so the same file
 * is also a library that stands in for libcuda.so.1. */
#include "card_in.h"

#include <stdio.h>
#include <stdlib.h>

#define X(field, symbol, args) int card_##field args __asm__(symbol);
CUDA_CALLS(X)
#undef X

card_counts card = {.sms = 132};

struct cuda_graph_ {
    card_launched *op;
    size_t n;
};
static struct cuda_graph_ *capturing;

/* ---- numbers --------------------------------------------------------------------------------- */

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static float as_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
float card_gated(float g, float u, bool gelu)
{
    const float k = 0.79788456F; /* sqrt(2/pi) */
    if (gelu) return 0.5F * g * (1 + tanhf(k * (g + 0.044715F * g * g * g))) * u;
    return g * (1 / (1 + card_expo(-g))) * u;
}

/* ---- units of weights (kern.h) --------------------------------------------------------------- */

static uint32_t groups_of(uint32_t groups, uint32_t w)
{
    return groups / CUDA_WARPS + (w < groups % CUDA_WARPS);
}
uint8_t *card_unit(const cuda_mat *m, uint8_t *base, uint32_t row, uint32_t g)
{
    const uint32_t w = g % CUDA_WARPS, in = row % m->per_block, rest = m->groups % CUDA_WARPS;
    const uint32_t before = m->groups / CUDA_WARPS * w + (w < rest ? w : rest);
    const uint64_t block =
        (uint64_t)(row / m->per_block * m->groups + before) * m->layers * m->unit_bytes;
    const uint64_t unit = (uint64_t)(in / m->unit_rows) * groups_of(m->groups, w) + g / CUDA_WARPS;
    return base + block + unit * m->unit_bytes;
}

/* Chunk j of row r of a unit: 8 levels. */
void card_levels(const cuda_mat *m, const uint8_t *u, uint32_t r, uint32_t j, float w[8])
{
    const uint32_t n = m->unit_rows, i = r * 8 + j;
    for (uint32_t e = 0; e < 8; e++) {
        const uint32_t bit = 4 * (e / 2) + 16 * (e % 2);
        switch (m->type) {
        case CUDA_F32: w[e] = as_float(u32(u + (e < 4 ? 0 : n * 128) + i * 16 + e % 4 * 4)); break;
        case CUDA_F16:
            w[e] = ht_f16_to_f32(card_u16(u + r * 128 + (j ^ (r & 7)) * 16 + 2 * e));
            break;
        case CUDA_BF16:
            w[e] = ht_bf16_to_f32(card_u16(u + r * 128 + (j ^ (r & 7)) * 16 + 2 * e));
            break;
        case CUDA_Q8_0: w[e] = (float)(u[i * 8 + e] - 128); break;
        case CUDA_Q6_K: {
            const uint32_t high = card_u16(u + n * 32 + i * 2), at_bit = 2 * (e / 2) + 8 * (e % 2);
            w[e] = (float)(int)((u32(u + i * 4) >> bit & 15) | (high >> at_bit & 3) << 4) - 32;
            break;
        }
        default: w[e] = (float)(u32(u + i * 4) >> bit & 15) - (m->type == CUDA_Q4_0 ? 8.0F : 0.0F);
        }
    }
}
/* weight = s[0] * level - s[1] */
void card_scale(const cuda_mat *m, const uint8_t *u, uint32_t r, uint32_t j, float s[2])
{
    static const uint8_t level_bytes[CUDA_TYPES] = {0, 0, 0, 64, 32, 32, 32, 48};
    const uint8_t *p = u + m->unit_rows * level_bytes[m->type];
    s[0] = 1, s[1] = 0;
    switch (m->type) {
    case CUDA_Q8_0:
    case CUDA_Q4_0: s[0] = ht_f16_to_f32(card_u16(p + r * 4 + j / 4 * 2)); break;
    case CUDA_Q4_1:
        s[0] = ht_f16_to_f32(card_u16(p + r * 8 + j / 4 * 4));
        s[1] = -ht_f16_to_f32(card_u16(p + r * 8 + j / 4 * 4 + 2));
        break;
    case CUDA_Q4_K:
        s[0] = ht_f16_to_f32(card_u16(p + r * 8 + 4)) * (float)p[r * 8 + j / 4 * 2];
        s[1] = ht_f16_to_f32(card_u16(p + r * 8 + 6)) * (float)p[r * 8 + j / 4 * 2 + 1];
        break;
    case CUDA_Q6_K: s[0] = ht_f16_to_f32(card_u16(p + r * 8 + 4)) * (float)(int8_t)p[r * 8 + j / 2];
    default: break;
    }
}

/* A row's sum with x [groups * 64]: 128 slots of their own, pairwise at the end. */
static float dot(const cuda_mat *m, uint32_t row, const float *x)
{
    float warp[CUDA_WARPS];
    const bool has_min = m->type == CUDA_Q4_1 || m->type == CUDA_Q4_K;
    for (uint32_t w = 0; w < CUDA_WARPS; w++) {
        float slot[8] = {0};
        for (uint32_t g = w; g < m->groups; g += CUDA_WARPS) {
            const uint8_t *u = card_unit(m, card_at(m->w), row, g);
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t r = row % m->per_block % m->unit_rows;
                const float *v = x + g * CUDA_GROUP + 8 * j;
                float level[8], s[2], sum = m->type <= CUDA_BF16 ? slot[j] : 0, all = 0;
                card_levels(m, u, r, j, level);
                for (int e = 0; e < 8; e++) sum = fmaf(level[e], v[e], sum);
                if (m->type <= CUDA_BF16) {
                    slot[j] = sum;
                    continue;
                }
                card_scale(m, u, r, j, s);
                slot[j] = fmaf(s[0], sum, slot[j]);
                for (int e = 0; has_min && e < 8; e++) all += v[e];
                if (has_min) slot[j] = fmaf(-s[1], all, slot[j]);
            }
        }
        warp[w] = card_meet(slot, 8);
    }
    return card_meet(warp, CUDA_WARPS);
}

/* n numbers times gain (or NULL) into xs, zeros behind them; the factor of their norm. */
static float take_input(const float *x, uint32_t n, uint32_t groups, const float *gain, float eps,
                        float *xs)
{
    float warp[CUDA_WARPS];
    for (uint32_t w = 0; w < CUDA_WARPS; w++) {
        float lane[32] = {0};
        for (uint32_t g = w; g < groups; g += CUDA_WARPS)
            for (uint32_t i = 0; i < CUDA_GROUP; i++) {
                const uint32_t k = g * CUDA_GROUP + i;
                const float v = k < n ? x[k] : 0;
                lane[i / 2] = fmaf(v, v, lane[i / 2]);
                xs[k] = v * (gain && k < n ? gain[k] : 1);
            }
        warp[w] = card_meet(lane, 32);
    }
    return gain ? card_norm_factor(card_meet(warp, CUDA_WARPS), n, eps) : 1;
}

static float embedding(const cuda_mat *m, uint32_t row, uint32_t k)
{
    float w[8], s[2];
    const uint8_t *u = card_unit(m, card_at(m->w), row, k / CUDA_GROUP);
    const uint32_t r = row % m->per_block % m->unit_rows, j = k % CUDA_GROUP / 8;
    card_levels(m, u, r, j, w);
    card_scale(m, u, r, j, s);
    return m->type <= CUDA_BF16 ? w[k % 8] : s[0] * w[k % 8] - s[1];
}

/* ---- laying out ------------------------------------------------------------------------------ */

static void pack_chunk(const cuda_pack *a, const uint8_t *row, uint32_t g, uint32_t j, uint8_t *u,
                       uint32_t r)
{
    const uint32_t n = a->m.unit_rows, c = g * 8 + j, i = r * 8 + j, half = a->cols / 2;
    switch (a->m.type) {
    case CUDA_F32:
        memcpy(u + i * 16, row + 32 * c, 16);
        memcpy(u + n * 128 + i * 16, row + 32 * c + 16, 16);
        break;
    case CUDA_F16:
    case CUDA_BF16: memcpy(u + r * 128 + (j ^ (r & 7)) * 16, row + 16 * c, 16); break;
    case CUDA_Q8_0: memcpy(u + i * 8, row + 8 * c, 8); break;
    default:
        memcpy(u + i * 4, row + 4 * c, 4);
        if (a->m.type != CUDA_Q6_K) break;
        u[n * 32 + i * 2] = row[half + c / 2 * 4 + c % 2];
        u[n * 32 + i * 2 + 1] = row[half + c / 2 * 4 + c % 2 + 2];
    }
}
static void pack_scale(const cuda_pack *a, const uint8_t *row, uint32_t g, uint32_t h, uint8_t *u,
                       uint32_t r)
{
    const uint32_t n = a->m.unit_rows, b = g * 2 + h, cols = a->cols;
    switch (a->m.type) {
    case CUDA_Q8_0: memcpy(u + n * 64 + r * 4 + h * 2, row + cols + 2 * b, 2); break;
    case CUDA_Q4_0: memcpy(u + n * 32 + r * 4 + h * 2, row + cols / 2 + 2 * b, 2); break;
    case CUDA_Q4_1: memcpy(u + n * 32 + r * 8 + h * 4, row + cols / 2 + 4 * b, 4); break;
    case CUDA_Q4_K:
        memcpy(u + n * 32 + r * 8 + h * 2, row + cols / 2 + 2 * b, 2);
        memcpy(u + n * 32 + r * 8 + 4, row + cols / 2 + cols / 16 + b / 8 * 4, 4);
        break;
    case CUDA_Q6_K:
        memcpy(u + n * 48 + r * 8 + h * 2, row + cols / 2 + cols / 4 + 2 * b, 2);
        memcpy(u + n * 48 + r * 8 + 4, row + cols / 2 + cols / 4 + cols / 16 + b / 8 * 2, 2);
    default: break;
    }
}
static void run_pack(const cuda_pack *a, uint32_t blocks)
{
    const cuda_mat *m = &a->m;
    memset(card_at(a->dst), 0, (size_t)blocks * m->groups * m->layers * m->unit_bytes);
    for (uint32_t row = 0; row < m->rows; row++)
        for (uint32_t g = 0; g < m->groups; g++) {
            uint32_t from = row, part = 0;
            if (a->turns) part = row % 2, from = row / 2;
            else
                while (part < 2 && from >= a->src_rows[part]) from -= a->src_rows[part++];
            const uint8_t *src = (uint8_t *)card_at(a->src[part]) + (uint64_t)from * a->stride;
            uint8_t *u = card_unit(m, card_at(a->dst), row, g);
            const uint32_t r = row % m->per_block % m->unit_rows;
            for (uint32_t j = 0; j < 8 && g * 64 + j * 8 < a->cols; j++)
                pack_chunk(a, src, g, j, u, r);
            for (uint32_t h = 0; m->type > CUDA_BF16 && h < 2 && g * 64 + h * 32 < a->cols; h++)
                pack_scale(a, src, g, h, u, r);
        }
}

/* ---- start, choice of rows ------------------------------------------------------------------- */

static void turns_at(const cuda_rope *r, int k, uint32_t pos, bool lengthy, float *out)
{
    const float *freq = card_at(r->freq[k]), *far = card_at(r->freq_long[k]);
    for (uint32_t i = 0; i < r->half[k]; i++) {
        const double x = (double)pos * (double)(lengthy && far ? far[i] : freq[i]);
        out[2 * i] = (float)(cos(x) * (double)r->mscale[k]);
        out[2 * i + 1] = (float)(sin(x) * (double)r->mscale[k]);
    }
}
static void run_start(const cuda_start *a, uint32_t rows)
{
    const cuda_feed *f = &a->f;
    if (a->host) memcpy(card_at(f->word), card_at(a->host), (size_t)f->n_words * 4);
    for (uint32_t t = 0; t < rows && t < card_word(f, CUDA_N_ROWS); t++) {
        const uint32_t seq = card_word(f, f->seq + t), pos = card_word(f, f->pos + t);
        const uint32_t token = card_word(f, f->token + t), far = card_word(f, f->lengthy + seq);
        float *table = (float *)card_at(a->rope.table) + (uint64_t)t * a->rope.row;
        turns_at(&a->rope, 0, pos, far, table);
        turns_at(&a->rope, 1, pos, far, table + 2 * a->rope.half[0]);
        for (uint32_t k = 0; a->embed.w && k < a->dim; k++)
            ((float *)card_at(a->x))[(uint64_t)t * a->dim + k] =
                embedding(&a->embed, token, k) * a->scale;
    }
}
static void run_pick(const cuda_pick *a)
{
    for (uint32_t t = 0; t < card_word(&a->f, CUDA_N_WANT); t++) {
        const uint64_t from = card_word(&a->f, a->f.want + t);
        memcpy((float *)card_at(a->x_out) + (uint64_t)t * a->dim,
               (float *)card_at(a->x) + from * a->dim, a->dim * sizeof(float));
        memcpy((float *)card_at(a->q_out) + (uint64_t)t * a->nq,
               (float *)card_at(a->q) + from * a->nq, a->nq * sizeof(float));
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static void post_norm(const cuda_mul *a, uint32_t t)
{
    const float *y = (float *)card_at(a->raw) + (uint64_t)t * a->y_row, *gain = card_at(a->post);
    float *x = (float *)card_at(a->y) + (uint64_t)t * a->y_row, warp[CUDA_WARPS];
    for (uint32_t w = 0; w < CUDA_WARPS; w++) {
        float lane[32] = {0};
        for (uint32_t i = 0; i < a->y_row; i++)
            if (i % CUDA_WIDE / 32 == w) lane[i % 32] = fmaf(y[i], y[i], lane[i % 32]);
        warp[w] = card_meet(lane, 32);
    }
    const float f = card_norm_factor(card_meet(warp, CUDA_WARPS), a->y_row, a->eps);
    for (uint32_t i = 0; i < a->y_row; i++) x[i] = x[i] + y[i] * f * gain[i];
}

static void put_sums(const cuda_mul *a, uint32_t t, const float *sum)
{
    float *y = (float *)card_at(a->y) + (uint64_t)t * a->y_row, best = -INFINITY;
    uint32_t best_id = 0;
    bool found = false;
    for (uint32_t r = 0; r < a->m.rows; r++) {
        float v = sum[r];
        switch (a->epi) {
        case CUDA_EPI_STORE: y[a->m.row0 + r] = v; break;
        case CUDA_EPI_RESIDUAL:
            if (a->post) ((float *)card_at(a->raw))[(uint64_t)t * a->y_row + r] = v;
            else y[r] += v;
            break;
        case CUDA_EPI_GATE:
            if (r % 2 == 0) y[r / 2] = card_gated(v, sum[r + 1], (a->flags & CUDA_MUL_GELU) != 0);
            break;
        default:
            if (a->cap > 0) v = a->cap * tanhf(v / a->cap);
            if (!(a->flags & CUDA_MUL_BEST)) y[r] = v;
            else if (v > best || (v == best && !found)) best = v, best_id = r, found = true;
        }
    }
    if (a->epi == CUDA_EPI_RESIDUAL && a->post) post_norm(a, t);
    if (!(a->flags & CUDA_MUL_BEST)) return;
    uint32_t *word = card_at(a->f.word), row = word[a->f.want + t];
    word[a->f.token + row] = best_id;
    word[a->f.pos + row]++;
    ((int32_t *)card_at(a->ids))[(uint64_t)a->step * a->rows_cap + t] = (int32_t)best_id;
}

static void run_mul(const cuda_mul *a)
{
    float *xs = malloc((size_t)a->m.groups * CUDA_GROUP * sizeof *xs);
    float *sum = malloc(a->m.rows * sizeof *sum);
    for (uint32_t t = 0; t < card_rows(&a->f, a->flags); t++) {
        const uint64_t from = (a->flags & CUDA_MUL_PICK) ? card_word(&a->f, a->f.want + t) : t;
        const float f = take_input((float *)card_at(a->x) + from * a->cols, a->cols, a->m.groups,
                                   card_at(a->gain), a->eps, xs);
        for (uint32_t r = 0; r < a->m.rows; r++) sum[r] = dot(&a->m, r, xs) * f;
        put_sums(a, t, sum);
    }
    free(xs);
    free(sum);
}

/* ---- heads ----------------------------------------------------------------------------------- */

void card_finish_head(const cuda_heads *h, uint32_t half, const float *turns, int seg,
                      uint32_t head, uint32_t run, uint32_t lanes, float *v)
{
    const uint32_t hd = h->head_dim;
    const float *bias = card_at(h->bias[seg]), *gain = seg < 2 ? card_at(h->norm[seg]) : NULL;
    float lane[16] = {0}, w[CUDA_HEAD_MAX];
    for (uint32_t d = 0; bias && d < hd; d++) v[d] += bias[head * hd + d];
    if (gain) {
        for (uint32_t d = 0; d < hd; d++) {
            float *l = &lane[d / run % lanes];
            *l = fmaf(v[d], v[d], *l);
        }
        const float f = card_norm_factor(card_meet(lane, lanes), hd, h->eps);
        for (uint32_t d = 0; d < hd; d++) v[d] *= f * gain[d];
    }
    memcpy(w, v, hd * sizeof *w);
    for (uint32_t d = 0; seg < 2 && d < 2 * half; d++) {
        const uint32_t i = d < half ? d : d - half;
        const float other = w[d < half ? d + half : i] * turns[2 * i + 1];
        v[d] = w[d] * turns[2 * i] + (d < half ? -1.0F : 1.0F) * other;
    }
    if (h->spin[0] == 0 || seg == 2) return;
    for (uint32_t s = 1; s < hd; s *= 2)
        for (uint32_t d = 0; d < hd; d++) {
            if (d & s) continue;
            const float x = v[d], y = v[d + s];
            v[d] = x + y, v[d + s] = x - y;
        }
    for (uint32_t d = 0; d < hd; d++) v[d] *= h->spin[seg];
}

uint8_t *card_cached(const cuda_heads *h, int v, const uint32_t *pages, uint32_t kv_head,
                     uint32_t pos)
{
    return (uint8_t *)card_at(h->plane[v]) + pages[pos / 32] * h->page_bytes[v] +
           (size_t)(kv_head * 32 + pos % 32) * h->head_dim * (h->kv_half ? 2 : 4);
}
void card_put_cached(const cuda_heads *h, uint8_t *to, const float *v)
{
    for (uint32_t d = 0; d < h->head_dim; d++) {
        const uint16_t half = ht_f32_to_f16(v[d]);
        if (h->kv_half) memcpy(to + 2 * d, &half, 2);
        else memcpy(to + 4 * d, &v[d], 4);
    }
}
static void get_cache(const cuda_heads *h, const uint8_t *from, float *v)
{
    for (uint32_t d = 0; d < h->head_dim; d++)
        v[d] = h->kv_half ? ht_f16_to_f32(card_u16(from + 2 * d)) : as_float(u32(from + 4 * d));
}

/* All heads of a row from its products: queries to q, keys and values to their pages. */
static void finish_row(const cuda_heads *h, const cuda_rope *r, const float *turns,
                       const uint32_t *pages, uint32_t pos, uint32_t e, const float *raw, float *q)
{
    const uint32_t half = card_half(h, r, &turns), hd = h->head_dim;
    for (uint32_t i = 0; i < h->n_heads + 2 * h->n_kv_heads; i++) {
        const int seg = i < h->n_heads ? 0 : i < h->n_heads + h->n_kv_heads ? 1 : 2;
        const uint32_t head = i - (seg ? h->n_heads : 0) - (seg == 2 ? h->n_kv_heads : 0);
        float v[CUDA_HEAD_MAX];
        memcpy(v, raw + (size_t)i * hd, hd * sizeof *v);
        card_finish_head(h, half, turns, seg, head, e, 16, v);
        if (seg == 0) memcpy(q + (size_t)head * hd, v, hd * sizeof *v);
        else card_put_cached(h, card_cached(h, seg - 1, pages, head, pos), v);
    }
}

const uint32_t *card_pages(const cuda_feed *f, uint32_t cls, uint32_t seq)
{
    return (uint32_t *)card_at(f->word) + f->page[cls ? 1 : 0] + (size_t)seq * f->n_table;
}
static uint32_t batch_row(const cuda_feed *f, uint32_t flags, uint32_t t)
{
    return (flags & CUDA_MUL_MAPPED) ? card_word(f, f->want + t) : t;
}
static void run_finish(const cuda_finish *a, uint32_t e)
{
    const cuda_heads *h = &a->h;
    const uint32_t all = (h->n_heads + 2 * h->n_kv_heads) * h->head_dim;
    for (uint32_t t = 0; t < card_rows(&a->f, a->flags); t++) {
        const uint32_t b = batch_row(&a->f, a->flags, t), pos = card_word(&a->f, a->f.pos + b);
        const uint32_t *pages = card_pages(&a->f, h->kv_class, card_word(&a->f, a->f.seq + b));
        finish_row(h, &a->rope, (float *)card_at(a->rope.table) + (uint64_t)b * a->rope.row, pages,
                   pos, e, (float *)card_at(a->raw) + (uint64_t)t * all,
                   (float *)card_at(a->q) + (uint64_t)t * h->n_heads * h->head_dim);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct {
    float m, l, o[CUDA_HEAD_MAX];
} sums;
typedef struct {
    const cuda_heads *h;
    const uint32_t *pages;
    uint32_t from, to, e;
    float scale, cap;
} span;

static void add_key(const span *a, sums *s, const float *q, uint32_t kv_head, uint32_t pos)
{
    const uint32_t hd = a->h->head_dim;
    float k[CUDA_HEAD_MAX], v[CUDA_HEAD_MAX], lane[16] = {0};
    get_cache(a->h, card_cached(a->h, 0, a->pages, kv_head, pos), k);
    get_cache(a->h, card_cached(a->h, 1, a->pages, kv_head, pos), v);
    for (uint32_t d = 0; d < hd; d++) lane[d / a->e] = fmaf(q[d], k[d], lane[d / a->e]);
    float x = card_meet(lane, 16) * a->scale;
    if (a->cap > 0) x = a->cap * tanhf(x / a->cap);
    const float top = fmaxf(s->m, x), c = card_expo(s->m - top), p = card_expo(x - top);
    s->m = top;
    s->l = fmaf(s->l, c, p);
    for (uint32_t d = 0; d < hd; d++) s->o[d] = fmaf(p, v[d], s->o[d] * c);
}

/* The 32 streams of a class: each upwards, two halves of a warp, then the warps upwards. */
static sums class_sum(const span *a, uint32_t cls, const float *q, uint32_t kv_head)
{
    static sums stream[32];
    const uint32_t hd = a->h->head_dim;
    for (int i = 0; i < 32; i++) {
        stream[i].m = -INFINITY, stream[i].l = 0;
        memset(stream[i].o, 0, sizeof stream[i].o);
    }
    for (uint32_t p = a->from; p <= a->to; p++)
        if (p / 32 % CUDA_CLASSES == cls && a->pages[p / 32] != 0xffffffffU)
            add_key(a, &stream[p % 32], q, kv_head, p);
    for (int i = 0; i < 32; i += 2) {
        sums *x = &stream[i], *y = x + 1;
        const float top = fmaxf(x->m, y->m);
        const float c = x->m == -INFINITY ? 0 : card_expo(x->m - top);
        const float d = y->m == -INFINITY ? 0 : card_expo(y->m - top);
        x->m = top;
        x->l = x->l * c + y->l * d;
        for (uint32_t k = 0; k < hd; k++) x->o[k] = x->o[k] * c + y->o[k] * d;
    }
    sums s = {.m = -INFINITY};
    for (int i = 0; i < 32; i += 2) s.m = fmaxf(s.m, stream[i].m);
    for (int i = 0; i < 32 && s.m != -INFINITY; i += 2) {
        const float c = card_expo(stream[i].m - s.m);
        s.l = fmaf(stream[i].l, c, s.l);
        for (uint32_t k = 0; k < hd; k++) s.o[k] = fmaf(stream[i].o[k], c, s.o[k]);
    }
    return s;
}

/* One head: the 16 classes pairwise. lone: a kernel that takes a single page as it is. */
static void attend(const span *a, const float *q, uint32_t kv_head, bool lone, float *out)
{
    static sums s[CUDA_CLASSES];
    const uint32_t hd = a->h->head_dim, p0 = a->from / 32, n = a->to / 32 - p0 + 1;
    float m = -INFINITY, l[CUDA_CLASSES] = {0}, o[CUDA_CLASSES], f[CUDA_CLASSES] = {0};
    for (uint32_t c = 0; c < CUDA_CLASSES; c++) {
        if ((c + CUDA_CLASSES - p0 % CUDA_CLASSES) % CUDA_CLASSES >= n) continue;
        s[c] = class_sum(a, c, q, kv_head);
        m = fmaxf(m, s[c].m);
        f[c] = 1;
    }
    for (uint32_t c = 0; c < CUDA_CLASSES; c++)
        if (f[c] > 0) f[c] = m == -INFINITY ? 0 : card_expo(s[c].m - m), l[c] = s[c].l * f[c];
    const float all = card_meet(l, CUDA_CLASSES);
    for (uint32_t d = 0; d < hd; d++) {
        for (uint32_t c = 0; c < CUDA_CLASSES; c++) o[c] = f[c] > 0 ? s[c].o[d] * f[c] : 0;
        const float sum = lone && n == 1 ? s[p0 % CUDA_CLASSES].o[d] : card_meet(o, CUDA_CLASSES);
        out[d] = all > 0 ? sum / all : 0;
    }
}

static void run_attn(const cuda_attn *a, uint32_t e)
{
    const cuda_heads *h = &a->h;
    const uint32_t hd = h->head_dim, group = h->n_heads / h->n_kv_heads;
    float *own = malloc((size_t)h->n_heads * hd * sizeof *own);
    for (uint32_t t = 0; t < card_rows(&a->f, a->flags); t++) {
        const uint32_t b = batch_row(&a->f, a->flags, t), to = card_word(&a->f, a->f.pos + b);
        const span s = {.h = h,
                        .pages = card_pages(&a->f, h->kv_class, card_word(&a->f, a->f.seq + b)),
                        .from = a->window && to + 1 > a->window ? to + 1 - a->window : 0,
                        .to = to,
                        .e = e,
                        .scale = a->scale,
                        .cap = a->cap};
        const float *q = (float *)card_at(a->q) + (uint64_t)t * h->n_heads * hd;
        if (a->raw) {
            finish_row(h, &a->rope, (float *)card_at(a->rope.table) + (uint64_t)b * a->rope.row,
                       s.pages, to, e, card_at(a->q), own);
            q = own;
        }
        for (uint32_t i = 0; i < h->n_heads; i++)
            attend(&s, q + (size_t)i * hd, i / group, a->part != 0,
                   (float *)card_at(a->a) + ((uint64_t)t * h->n_heads + i) * hd);
    }
    free(own);
}

/* ---- the persistent kernel ------------------------------------------------------------------- */

typedef struct {
    const cuda_mega *a;
    const cuda_mega_mat *mat; /* the next in order of use */
    float *x, *xs, *raw, *q, *att, *hid, turn[CUDA_HEAD_MAX];
    uint32_t pos, token;
} mega;

/* One phase: n inputs, and what becomes of each row. */
static void phase(mega *k, int which, const float *in, uint32_t n, const float *gain)
{
    const uint32_t groups = (n + CUDA_GROUP - 1) / CUDA_GROUP;
    const float f = take_input(in, n, groups, gain, k->a->eps, k->xs);
    float best = -INFINITY, gate = 0;
    uint32_t id = 0;
    for (bool last = false; !last; k->mat++) {
        const cuda_mat *m = &k->mat->m;
        last = k->mat->last;
        for (uint32_t r = 0; r < m->rows; r++) {
            const float v = dot(m, r, k->xs) * f;
            if (which == CUDA_PH_QKV) k->raw[m->row0 + r] = v;
            else if (which == CUDA_PH_OUT || which == CUDA_PH_DOWN) k->x[r] += v;
            else if (which == CUDA_PH_HEAD && (v > best)) best = v, id = r;
            else if (which == CUDA_PH_UP && r % 2 == 0) gate = v;
            else if (which == CUDA_PH_UP) k->hid[r / 2] = card_gated(gate, v, k->a->gelu);
        }
    }
    if (which == CUDA_PH_HEAD) k->token = id;
}

static void mega_token(mega *k)
{
    const cuda_mega *a = k->a;
    const cuda_mega_layer *l = card_at(a->layer);
    const uint32_t *pages = (const uint32_t *)card_at(a->host) + a->f.page[0];
    k->mat = card_at(a->mat);
    for (uint32_t i = 0; i < a->dim; i++)
        k->x[i] = embedding(&a->embed, k->token, i) * a->embed_scale;
    turns_at(&a->rope, 0, k->pos, false, k->turn);
    for (uint32_t y = 0; y < a->n_layers; y++, l++) {
        const cuda_heads *h = &l->h;
        const uint32_t hd = h->head_dim;
        const span s = {.h = h, .pages = pages, .to = k->pos, .e = 8, .scale = a->scale};
        phase(k, CUDA_PH_QKV, k->x, a->dim, card_at(l->attn_norm));
        finish_row(h, &a->rope, k->turn, pages, k->pos, 8, k->raw, k->q);
        for (uint32_t i = 0; i < h->n_heads; i++)
            attend(&s, k->q + (size_t)i * hd, i / (h->n_heads / h->n_kv_heads), true,
                   k->att + (size_t)i * hd);
        phase(k, CUDA_PH_OUT, k->att, h->n_heads * hd, NULL);
        phase(k, CUDA_PH_UP, k->x, a->dim, card_at(l->ffn_norm));
        phase(k, CUDA_PH_DOWN, k->hid, a->ffn, NULL);
    }
    phase(k, CUDA_PH_HEAD, k->x, a->dim, card_at(a->final_norm));
    for (int i = 0; i < CUDA_CLOCKS; i++) ((uint64_t *)card_at(a->clocks))[i] += CARD_CLOCK;
}

static void run_mega(const cuda_mega *a)
{
    const cuda_mega_layer *l = card_at(a->layer);
    const uint32_t hd = l->h.head_dim, nq = l->h.n_heads * hd, nkv = l->h.n_kv_heads * hd;
    const uint32_t most = a->ffn > nq ? a->ffn : nq, *host = card_at(a->host);
    const size_t n_xs = (most > a->dim ? most : a->dim) + CUDA_GROUP;
    float *mem = calloc(a->dim + n_xs + 3 * (size_t)nq + 2 * (size_t)nkv + a->ffn, sizeof *mem);
    mega k = {.a = a, .x = mem};
    k.xs = k.x + a->dim, k.raw = k.xs + n_xs, k.q = k.raw + nq + 2 * nkv;
    k.att = k.q + nq, k.hid = k.att + nq;
    k.pos = host[a->f.pos], k.token = host[a->f.token];
    for (uint32_t i = 0; i < a->steps; i++, k.pos++) {
        mega_token(&k);
        ((int32_t *)card_at(a->ids))[i] = (int32_t)k.token;
        if (*(uint32_t *)card_at(a->f.stop)) break;
    }
    free(mem);
}

/* ---- launches -------------------------------------------------------------------------------- */

static uint8_t *row_of(const cuda_rows *r, size_t i)
{
    uint8_t *at = r->kind == CUDA_HOST ? (uint8_t *)(uintptr_t)r->host : card_at(r->dev);
    return at + (r->y + i) * r->pitch + r->x;
}
static void run_copy(const cuda_copy2d *c)
{
    const size_t n = c->width * c->rows;
    for (size_t i = 0; i < c->rows; i++) memcpy(row_of(&c->to, i), row_of(&c->from, i), c->width);
    card.moves++;
    *(c->to.kind == CUDA_HOST     ? &card.to_host
      : c->from.kind == CUDA_HOST ? &card.to_device
                                  : &card.within) += n;
}

static void run_one(const card_launched *op)
{
    if (!op->fn) {
        run_copy(&op->a.copy);
        return;
    }
    switch (op->fn->kind) {
    case CARD_START: run_start(&op->a.step.start, op->grid[0]); break;
    case CARD_PICK: run_pick(&op->a.step.pick); break;
    case CARD_PACK: run_pack(&op->a.pack, op->grid[0]); break;
    case CARD_FINISH: run_finish(&op->a.step.finish, (uint32_t)op->fn->e); break;
    case CARD_MUL: run_mul(&op->a.step.mul); break;
    case CARD_ATTN: run_attn(&op->a.step.attn, (uint32_t)op->fn->e); break;
    case CARD_LONE: run_attn(&op->a.step.attn, 8); break;
    case CARD_MEGA: run_mega(&op->a.step.mega); break;
    default: card_run_tensor(op);
    }
}

int card_function(cuda_fn *out, cuda_module module, const char *name)
{
    static struct cuda_fn_ fn[128];
    static char names[128][40];
    static const struct {
        const char *start;
        int kind;
        size_t bytes;
    } of[] = {{"cuda_start_step", CARD_START, sizeof(cuda_start)},
              {"cuda_pick_rows", CARD_PICK, sizeof(cuda_pick)},
              {"cuda_pack_units", CARD_PACK, sizeof(cuda_pack)},
              {"cuda_finish_", CARD_FINISH, sizeof(cuda_finish)},
              {"cuda_mul_", CARD_MUL, sizeof(cuda_mul)},
              {"cuda_row_", CARD_MUL, sizeof(cuda_mul)},
              {"cuda_lone_", CARD_LONE, sizeof(cuda_attn)},
              {"cuda_attn_", CARD_ATTN, sizeof(cuda_attn)},
              {"cuda_mega_", CARD_MEGA, sizeof(cuda_mega)},
              {"cuda_tc_widen_units", CARD_TC_WIDEN, sizeof(cuda_tc_widen)},
              {"cuda_tc_join_rows", CARD_TC_JOIN, sizeof(cuda_tc_join)},
              {"cuda_tc_one_", CARD_TC_ONE, sizeof(cuda_tc)},
              {"cuda_tc_all_", CARD_TC_ALL, sizeof(cuda_tc)},
              {"cuda_tc_gate_", CARD_TC_GATE, sizeof(cuda_tc)},
              {"cuda_tc_heads_", CARD_TC_HEADS, sizeof(cuda_tc)},
              {"cuda_tc_attn_", CARD_TC_ATTN, sizeof(cuda_tc_attn)}};
    (void)module;
    for (int i = 0; i < 128; i++) {
        if (!strcmp(names[i], name)) return *out = &fn[i], CUDA_OK;
        if (names[i][0]) continue;
        for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
            const size_t n = strlen(of[k].start);
            if (strncmp(name, of[k].start, n) != 0) continue;
            (void)snprintf(names[i], sizeof names[i], "%s", name);
            fn[i] = (struct cuda_fn_){of[k].kind, atoi(name + n), of[k].bytes};
            *out = &fn[i];
            return CUDA_OK;
        }
        break;
    }
    return 500; /* no kernel of that name */
}
/* At once, or when the graph that is captured runs. */
static int take(const card_launched *op)
{
    if (!capturing) {
        run_one(op);
        return CUDA_OK;
    }
    card_launched *more = realloc(capturing->op, (capturing->n + 1) * sizeof *more);
    if (!more) return 2;
    capturing->op = more;
    more[capturing->n++] = *op;
    return CUDA_OK;
}
int card_launch(const cuda_launch *l, cuda_fn fn, void **params, void **extra)
{
    card_launched op = {.fn = fn};
    (void)extra;
    memcpy(op.grid, l->grid, sizeof op.grid);
    op.threads = l->block[0];
    memcpy(&op.a, params[0], fn->bytes);
    card.launches++;
    return take(&op);
}
int card_capture_begin(cuda_stream s, int mode)
{
    (void)s, (void)mode;
    capturing = calloc(1, sizeof *capturing);
    return capturing ? CUDA_OK : 2;
}
int card_capture_end(cuda_stream s, cuda_graph *out)
{
    (void)s;
    *out = capturing;
    capturing = NULL;
    return CUDA_OK;
}
int card_graph_make(cuda_exec *out, cuda_graph g, uint64_t flags)
{
    (void)flags;
    *out = (cuda_exec)(void *)g;
    card.graphs++;
    return CUDA_OK;
}
int card_graph_run(cuda_exec x, cuda_stream s)
{
    const struct cuda_graph_ *g = (const struct cuda_graph_ *)(const void *)x;
    (void)s;
    for (size_t i = 0; i < g->n; i++) run_one(&g->op[i]);
    return CUDA_OK;
}
int card_graph_free(cuda_graph g)
{
    free(g->op);
    free(g);
    return CUDA_OK;
}
int card_exec_free(cuda_exec x)
{
    (void)x;
    return CUDA_OK;
}

/* ---- the rest of the driver ------------------------------------------------------------------ */

static int handle(void **h)
{
    static char some;
    *h = &some;
    return CUDA_OK;
}
int card_init(unsigned flags)
{
    return flags ? 1 : CUDA_OK;
}
int card_version(int *v)
{
    *v = 13000;
    return CUDA_OK;
}
int card_error_text(int rc, const char **text)
{
    *text = rc ? "an error of the emulated card" : "none";
    return CUDA_OK;
}
int card_count(int *n)
{
    *n = 1;
    return CUDA_OK;
}
int card_device(int *id, int index)
{
    *id = index;
    return CUDA_OK;
}
int card_name(char *text, int cap, int id)
{
    (void)id;
    (void)snprintf(text, (size_t)cap, "emulated card");
    return CUDA_OK;
}
int card_attr(int *v, int attr, int id)
{
    (void)id;
    *v = attr == CUDA_ATTR_SMS            ? card.sms
         : attr == CUDA_ATTR_SHARED_OPTIN ? 232448
         : attr == CUDA_ATTR_MEMORY_KHZ   ? 3201000
         : attr == CUDA_ATTR_MEMORY_BITS  ? 6144
         : attr == CUDA_ATTR_MINOR        ? 0
                                          : 9;
    return CUDA_OK;
}
int card_retain(cuda_ctx *c, int id)
{
    (void)id;
    return handle((void **)c);
}
int card_release(int id)
{
    (void)id;
    return CUDA_OK;
}
int card_current(cuda_ctx c)
{
    (void)c;
    return CUDA_OK;
}
int card_mem_info(size_t *avail, size_t *all)
{
    *avail = *all = (size_t)8 << 30;
    return CUDA_OK;
}
int card_module(cuda_module *m, const void *image)
{
    (void)image;
    return handle((void **)m);
}
int card_module_unload(cuda_module m)
{
    (void)m;
    return CUDA_OK;
}
int card_fn_attr(int *v, int attr, cuda_fn fn)
{
    (void)fn;
    *v = attr == CUDA_FN_BINARY ? 90 : 0;
    return CUDA_OK;
}
int card_fn_set(cuda_fn fn, int attr, int v)
{
    (void)fn, (void)attr, (void)v;
    return CUDA_OK;
}
int card_alloc(cuda_ptr *p, size_t n)
{
    void *mem = calloc(1, n);
    *p = (cuda_ptr)(uintptr_t)mem;
    return mem ? CUDA_OK : 2;
}
int card_free_mem(cuda_ptr p)
{
    free(card_at(p));
    return CUDA_OK;
}
int card_host_alloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    *p = calloc(1, n);
    return *p ? CUDA_OK : 2;
}
int card_host_free(void *p)
{
    free(p);
    return CUDA_OK;
}
/* CARD_NO_PIN in the environment: a system that locks no memory. */
int card_host_lock(void *p, size_t n, unsigned flags)
{
    (void)p, (void)n, (void)flags;
    if (getenv("CARD_NO_PIN")) return 801;
    card.locked++;
    return CUDA_OK;
}
int card_host_unlock(void *p)
{
    (void)p;
    card.locked--;
    return CUDA_OK;
}
int card_host_ptr(cuda_ptr *d, void *h, unsigned flags)
{
    (void)flags;
    *d = (cuda_ptr)(uintptr_t)h;
    return CUDA_OK;
}
int card_set32(cuda_ptr p, unsigned v, size_t n, cuda_stream s)
{
    (void)s;
    for (size_t i = 0; i < n; i++) ((uint32_t *)card_at(p))[i] = v;
    return CUDA_OK;
}
int card_to_device(cuda_ptr d, const void *h, size_t n, cuda_stream s)
{
    (void)s;
    memcpy(card_at(d), h, n);
    card.moves++, card.to_device += n;
    return CUDA_OK;
}
int card_to_host(void *h, cuda_ptr d, size_t n, cuda_stream s)
{
    (void)s;
    memcpy(h, card_at(d), n);
    card.moves++, card.to_host += n;
    return CUDA_OK;
}
int card_copy2d(const cuda_copy2d *c, cuda_stream s)
{
    const card_launched op = {.a.copy = *c};
    (void)s;
    if (c->width > c->to.pitch || c->width > c->from.pitch) return 1;
    return take(&op);
}
int card_within(cuda_ptr d, cuda_ptr from, size_t n, cuda_stream s)
{
    return card_copy2d(&(cuda_copy2d){.to = {.kind = CUDA_DEVICE, .dev = d, .pitch = n},
                                      .from = {.kind = CUDA_DEVICE, .dev = from, .pitch = n},
                                      .width = n,
                                      .rows = 1},
                       s);
}
int card_stream_new(cuda_stream *s, unsigned flags)
{
    (void)flags;
    return handle((void **)s);
}
int card_stream_free(cuda_stream s)
{
    (void)s;
    return CUDA_OK;
}
int card_stream_sync(cuda_stream s)
{
    (void)s;
    return CUDA_OK;
}
int card_event_new(cuda_event *e, unsigned flags)
{
    (void)flags;
    return handle((void **)e);
}
int card_event_free(cuda_event e)
{
    (void)e;
    return CUDA_OK;
}
int card_event_set(cuda_event e, cuda_stream s)
{
    (void)e, (void)s;
    return CUDA_OK;
}
int card_event_query(cuda_event e)
{
    (void)e;
    return CUDA_OK;
}
int card_event_ms(float *ms, cuda_event a, cuda_event b)
{
    (void)a, (void)b;
    *ms = 0.5F;
    return CUDA_OK;
}

void card_api(cuda_api *api)
{
    *api = (cuda_api){
#define X(field, symbol, args) .field = card_##field,
        CUDA_CALLS(X)
#undef X
    };
}
