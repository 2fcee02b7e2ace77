/* card_tensor.c - the kernels of tensor.cu on the emulated card: tiles, inputs rounded to f16, each
 * element's line of wgmma over K upwards, quarters of residual products, attention over blocks of
 * 64 keys, and what follows a product, block by block of the launch.
 *
 * Modelled: which products an element adds, in which instructions, in what order, from which
 * place in memory, and all arithmetic outside of them; of that the exponential is the host
 * library's. Not modelled: what one wgmma does inside, how it lines 16 products up with the sum so
 * far and where it cuts. Here they are added in f64 and rounded once. A card's bits are therefore
 * others; that a row's line of instructions does not depend on what is computed beside it is the
 * same. */
#include "card_in.h"

#include <stdlib.h>

enum { ROWS = CUDA_TC_ROWS, COLS = 128, KEYS = 64, TILE = 64, HD_MAX = 128, LANES = 4 };

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Bytes from the start of tiles of `rows` rows to column c of row t. */
static uint64_t tile_at(uint32_t rows, uint32_t t, uint32_t c)
{
    return ((uint64_t)(c / 64) * rows + t) * 128 + ((c % 64 / 8) ^ (t % 8)) * 16 + c % 8 * 2;
}
static float half_at(const uint8_t *p)
{
    static float of[1 << 16]; /* a table: most of the time would go here */
    if (of[1] == 0)
        for (uint32_t h = 0; h < 1 << 16; h++) of[h] = ht_f16_to_f32((uint16_t)h);
    return of[card_u16(p)];
}
/* n columns of row t, a multiple of 64. */
static void get_row(const uint8_t *tiles, uint32_t rows, uint32_t t, uint32_t n, float *v)
{
    for (uint32_t c = 0; c < n; c++) v[c] = half_at(tiles + tile_at(rows, t, c));
}
/* What is no number in f16 becomes the largest one. */
static void put_half(uint8_t *tiles, uint32_t rows, uint32_t t, uint32_t c, float v)
{
    const uint16_t h = ht_f32_to_f16(fminf(fmaxf(v, -65504.0F), 65504.0F));
    memcpy(tiles + tile_at(rows, t, c), &h, sizeof h);
}
static float rounded(float v)
{
    return ht_f16_to_f32(ht_f32_to_f16(v));
}

/* One instruction's sum for one element: 16 products and the sum so far. */
static float wgmma(const float *a, const float *b, float d)
{
    double even = (double)d, odd = 0;
    for (int k = 0; k < 16; k += 2) {
        even += (double)a[k] * (double)b[k];
        odd += (double)a[k + 1] * (double)b[k + 1];
    }
    return (float)(even + odd);
}

/* ---- weights --------------------------------------------------------------------------------- */

static void run_widen(const cuda_tc_widen *a, const uint32_t grid[3])
{
    const cuda_mat *m = &a->m;
    for (uint32_t g = 0; g < grid[1]; g++)
        for (uint32_t row = 0; row < 32 * grid[0] && row < a->tile_rows; row++)
            for (uint32_t j = 0; j < 8; j++) {
                float v[8] = {0}, s[2] = {0};
                if (row < m->rows) {
                    const uint32_t r = row % m->per_block % m->unit_rows;
                    const uint8_t *u = card_unit(m, card_at(m->w), row, g);
                    card_levels(m, u, r, j, v);
                    card_scale(m, u, r, j, s);
                }
                for (uint32_t e = 0; e < 8; e++)
                    put_half(card_at(a->dst), a->tile_rows, row, g * 64 + j * 8 + e,
                             fmaf(s[0], v[e], -s[1]));
            }
}

/* ---- residual and norm ----------------------------------------------------------------------- */

/* Sum of squares of n numbers: 256 threads take four in turn, lanes and warps meet pairwise. */
static float squares(const float *v, uint32_t n)
{
    float thread[CUDA_THREADS] = {0};
    for (uint32_t k = 0; k < n; k += 4) {
        float *sq = &thread[k / 4 % CUDA_THREADS];
        for (uint32_t i = 4; i-- > 0;) *sq = fmaf(v[k + i], v[k + i], *sq);
    }
    return card_meet(thread, CUDA_THREADS);
}

static void run_join(const cuda_tc_join *a, uint32_t rows)
{
    float v[CUDA_TC_DIM_MAX], s[CUDA_TC_DIM_MAX];
    for (uint32_t t = 0; t < rows && t < card_rows(&a->f, 0); t++) {
        float *x = (float *)card_at(a->x) + (uint64_t)t * a->dim;
        const float *post = card_at(a->post), *gain = card_at(a->gain);
        for (uint32_t k = 0; k < a->dim; k++) {
            s[k] = 0;
            for (uint32_t z = 0; z < a->parts; z++) {
                const float *p = card_at(a->part);
                const float more = p[((uint64_t)z * a->part_rows + t) * a->dim + k];
                s[k] = z ? s[k] + more : more;
            }
        }
        const float f = post ? card_norm_factor(squares(s, a->dim), a->dim, a->eps) : 1;
        for (uint32_t k = 0; k < a->dim; k++) {
            v[k] = x[k] + (post ? s[k] * (f * post[k]) : s[k]);
            if (a->parts) x[k] = v[k];
        }
        if (!gain) continue;
        const float h = card_norm_factor(squares(v, a->dim), a->dim, a->eps);
        for (uint32_t k = 0; k < a->dim; k++)
            put_half(card_at(a->xh), a->tile_rows, t, k, v[k] * h * gain[k]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* A block's share: its rows of the batch and of the weights as numbers. */
typedef struct {
    const cuda_tc *a;
    uint32_t row0, n_rows, col0, n_cols;
    float *x, *w;     /* [n_rows][groups * 64], [n_cols][groups * 64] */
    float (*d)[COLS]; /* [ROWS] sums */
} block;

/* Sums over groups g0 .. g1-1, from nothing. */
static void multiply(block *b, uint32_t g0, uint32_t g1)
{
    const uint32_t width = b->a->groups * TILE;
    for (uint32_t t = 0; t < b->n_rows; t++)
        for (uint32_t c = 0; c < b->n_cols; c++) {
            const float *x = b->x + (size_t)t * width, *w = b->w + (size_t)c * width;
            float d = 0;
            for (uint32_t k = g0 * TILE; k < g1 * TILE; k += 16) d = wgmma(x + k, w + k, d);
            b->d[t][c] = d;
        }
}

/* A residual product: z of its quarters, or all of them added upwards. */
static void put_parts(block *b, bool all, uint32_t z)
{
    const cuda_tc *a = b->a;
    const uint32_t from = all ? 0 : z, to = all ? CUDA_TC_PARTS : z + 1;
    for (uint32_t q = from; q < to; q++) {
        multiply(b, a->groups * q / CUDA_TC_PARTS, a->groups * (q + 1) / CUDA_TC_PARTS);
        for (uint32_t t = 0; t < b->n_rows; t++) {
            float *y = (float *)card_at(a->y) +
                       ((uint64_t)(all ? 0 : z) * a->part_rows + b->row0 + t) * a->rows + b->col0;
            for (uint32_t c = 0; c < b->n_cols; c++)
                y[c] = q > from ? y[c] + b->d[t][c] : b->d[t][c];
        }
    }
}

static void put_hidden(block *b)
{
    const cuda_tc *a = b->a;
    multiply(b, 0, a->groups);
    for (uint32_t t = 0; t < b->n_rows; t++)
        for (uint32_t c = 0; c < b->n_cols; c += 2)
            put_half(card_at(a->h_out), a->tile_rows, b->row0 + t, (b->col0 + c) / 2,
                     card_gated(b->d[t][c], b->d[t][c + 1], (a->flags & CUDA_MUL_GELU) != 0));
}

/* Heads: K and V into their pages, Q as tiles or as numbers. */
static void put_heads(block *b)
{
    const cuda_tc *a = b->a;
    const cuda_heads *h = &a->h;
    const uint32_t hd = h->head_dim, nh = h->n_heads, nkv = h->n_kv_heads;
    multiply(b, 0, a->groups);
    for (uint32_t t = 0; t < b->n_rows; t++)
        for (uint32_t c = 0; c < b->n_cols; c += hd) {
            const uint32_t row = b->row0 + t, all = (a->row0 + b->col0 + c) / hd;
            const int seg = all < nh ? 0 : all < nh + nkv ? 1 : 2;
            const uint32_t head = all - (seg ? nh : 0) - (seg == 2 ? nkv : 0);
            const float *turns = (float *)card_at(a->rope.table) + (uint64_t)row * a->rope.row;
            const uint32_t half = card_half(h, &a->rope, &turns);
            float *v = b->d[t] + c;
            card_finish_head(h, half, turns, seg, head, 2, LANES, v);
            if (seg) {
                const uint32_t pos = card_word(&a->f, a->f.pos + row);
                const uint32_t *pages =
                    card_pages(&a->f, h->kv_class, card_word(&a->f, a->f.seq + row));
                card_put_cached(h, card_cached(h, seg - 1, pages, head, pos), v);
            } else if (a->q32)
                memcpy((float *)card_at(a->q32) + ((uint64_t)row * nh + head) * hd, v,
                       hd * sizeof *v);
            else
                for (uint32_t d = 0; d < hd; d++)
                    put_half(card_at(a->h_out), a->tile_rows, row, head * hd + d, v[d]);
        }
}

static void run_product(const cuda_tc *a, int kind, const uint32_t grid[3])
{
    const uint32_t width = a->groups * TILE, n = card_rows(&a->f, 0);
    float *mem = malloc((size_t)(ROWS + COLS) * width * sizeof *mem);
    block b = {.a = a, .x = mem, .w = mem + (size_t)ROWS * width};
    b.d = malloc(ROWS * sizeof *b.d);
    for (uint32_t i = 0; i < grid[0] * grid[1]; i++) {
        b.col0 = i / grid[1] * COLS, b.row0 = i % grid[1] * ROWS;
        if (b.row0 >= n || b.col0 >= a->rows) continue;
        b.n_rows = n - b.row0 < ROWS ? n - b.row0 : (uint32_t)ROWS;
        b.n_cols = a->rows - b.col0 < COLS ? a->rows - b.col0 : (uint32_t)COLS;
        for (uint32_t t = 0; t < b.n_rows; t++)
            get_row(card_at(a->x), a->tile_rows, b.row0 + t, width, b.x + (size_t)t * width);
        for (uint32_t c = 0; c < b.n_cols; c++)
            get_row(card_at(a->w), a->w_rows, b.col0 + c, width, b.w + (size_t)c * width);
        for (uint32_t z = 0; z < grid[2]; z++) {
            if (kind == CARD_TC_GATE) put_hidden(&b);
            else if (kind == CARD_TC_HEADS) put_heads(&b);
            else put_parts(&b, kind == CARD_TC_ALL, z);
        }
    }
    free(b.d);
    free(mem);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* 64 keys and values of a KV head; zeros where there are none. */
typedef struct {
    float k[KEYS][HD_MAX], v[HD_MAX][KEYS]; /* values by element */
    bool hole[2];                           /* pages that are not there */
} keys;
/* A row of a query head. l: of its four lanes. */
typedef struct {
    float m, l[LANES], o[HD_MAX];
    int32_t last; /* position; -1: of another sequence */
} row_sums;

static void get_keys(const cuda_heads *h, const uint32_t *pages, uint32_t kv, uint32_t first,
                     int32_t most, keys *b)
{
    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint32_t pos = first + i;
        if ((int32_t)(pos / 32 * 32) > most || pages[pos / 32] == 0xffffffffU)
            b->hole[i / 32] = true;
        if (b->hole[i / 32] || (int32_t)pos > most) continue;
        const uint8_t *k = card_cached(h, 0, pages, kv, pos),
                      *v = card_cached(h, 1, pages, kv, pos);
        for (uint32_t d = 0; d < h->head_dim; d++) {
            b->k[i][d] = half_at(k + 2 * d);
            b->v[d][i] = half_at(v + 2 * d);
        }
    }
}

static void add_keys(row_sums *s, const float *q, const keys *b, uint32_t first, uint32_t hd,
                     float scale)
{
    float d[KEYS], top = s->m;
    for (uint32_t i = 0; i < KEYS; i++) {
        d[i] = 0;
        for (uint32_t k = 0; k < hd; k += 16) d[i] = wgmma(q + k, b->k[i] + k, d[i]);
        if ((int32_t)(first + i) > s->last || b->hole[i / 32]) d[i] = -INFINITY;
        top = fmaxf(top, d[i]);
    }
    const float at0 = top == -INFINITY ? 0 : top * scale;
    const float c = s->m == top ? 1 : exp2f(fmaf(s->m, scale, -at0));
    s->m = top;
    for (uint32_t q4 = 0; q4 < LANES; q4++) {
        s->l[q4] *= c;
        for (uint32_t i = 2 * q4; i < KEYS; i += 8) {
            const float x = exp2f(fmaf(d[i], scale, -at0)), y = exp2f(fmaf(d[i + 1], scale, -at0));
            d[i] = rounded(x), d[i + 1] = rounded(y);
            s->l[q4] += x + y;
        }
    }
    for (uint32_t e = 0; e < hd; e++) {
        s->o[e] *= c;
        for (uint32_t k = 0; k < KEYS; k += 16) s->o[e] = wgmma(d + k, b->v[e] + k, s->o[e]);
    }
}

/* All keys that rows first .. end-1 of a tile read, which are of one sequence: every row of the
 * tile takes part, as a warpgroup's do. */
static void attend_run(const cuda_tc_attn *a, uint32_t t0, uint32_t n, uint32_t first, uint32_t end,
                       uint32_t kv, const float (*q)[HD_MAX], row_sums *s)
{
    static keys b;
    const uint32_t *pages =
        card_pages(&a->f, a->h.kv_class, card_word(&a->f, a->f.seq + t0 + first));
    int32_t most = 0;
    for (uint32_t t = 0; t < n; t++) {
        const bool in = t >= first && t < end;
        s[t].last = in ? (int32_t)card_word(&a->f, a->f.pos + t0 + t) : -1;
        if (s[t].last > most) most = s[t].last;
    }
    for (uint32_t at = 0; (int32_t)at <= most; at += KEYS) {
        get_keys(&a->h, pages, kv, at, most, &b);
        for (uint32_t t = 0; t < n; t++) add_keys(&s[t], q[t], &b, at, a->h.head_dim, a->scale);
    }
}

/* 64 rows of a query head. */
static void attend(const cuda_tc_attn *a, uint32_t t0, uint32_t n, uint32_t head, uint32_t kv)
{
    static float q[TILE][HD_MAX];
    static row_sums s[TILE];
    const uint32_t hd = a->h.head_dim;
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *tiles = card_at(a->q);
        get_row(tiles + (uint64_t)(head * (hd / 64)) * a->tile_rows * 128, a->tile_rows, t0 + t, hd,
                q[t]);
        s[t] = (row_sums){.m = -INFINITY};
    }
    for (uint32_t first = 0, end; first < n; first = end) {
        const uint32_t *seq = (const uint32_t *)card_at(a->f.word) + a->f.seq + t0;
        for (end = first; end < n && seq[end] == seq[first];) end++;
        attend_run(a, t0, n, first, end, kv, (const float(*)[HD_MAX])q, s);
    }
    for (uint32_t t = 0; t < n; t++) {
        const float l = card_meet(s[t].l, LANES), f = l > 0 ? 1 / l : 0;
        for (uint32_t d = 0; d < hd; d++)
            put_half(card_at(a->out), a->tile_rows, t0 + t, head * hd + d, s[t].o[d] * f);
    }
}

static void run_attention(const cuda_tc_attn *a, const uint32_t grid[3], uint32_t threads)
{
    const uint32_t groups = threads / 128, per = a->h.n_heads / a->h.n_kv_heads;
    const uint32_t chunks = (per + groups - 1) / groups, n = card_rows(&a->f, 0);
    for (uint32_t x = 0; x < grid[0] && x * TILE < n; x++)
        for (uint32_t y = 0; y < grid[1]; y++)
            for (uint32_t g = 0; g < groups; g++) {
                const uint32_t kv = y / chunks, in = y % chunks * groups + g;
                if (in >= per) continue;
                attend(a, x * TILE, n - x * TILE < TILE ? n - x * TILE : (uint32_t)TILE,
                       kv * per + in, kv);
            }
}

void card_run_tensor(const card_launched *op)
{
    switch (op->fn->kind) {
    case CARD_TC_WIDEN: run_widen(&op->a.widen, op->grid); break;
    case CARD_TC_JOIN: run_join(&op->a.step.tc_join, op->grid[0]); break;
    case CARD_TC_ATTN: run_attention(&op->a.step.tc_attn, op->grid, op->threads); break;
    default: run_product(&op->a.step.tc, op->fn->kind, op->grid);
    }
}
