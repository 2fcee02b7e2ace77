/* mul.c - matrix products: inputs made ready once for all their consumers, tiles of weights driven
 * through the kernel that suits the number of tokens. All kernels give equal bits (kern.h). */
#include "backend/cpu/cpu.h"
#include "quant/r16.h"
#include <string.h>

/* Weights of one operation: Q, K and V. */
enum { MOST_WEIGHTS = 3 };

/* Up to this many tokens each group of CPU_NT_ROWS decodes the weights for itself; more tokens
 * share a panel that is widened once. */
enum { ROWS_MAX = 12 };

bool cpu__cancelled(const cpu_run *r)
{
    return atomic_load_explicit(&r->p->cancel, memory_order_relaxed) != 0;
}

uint32_t cpu__row(const cpu_run *r, uint32_t t)
{
    return r->picked ? r->p->batch->want[t] : t;
}

uint32_t cpu__tiles(uint32_t rows)
{
    return (rows + CPU_LANES - 1) / CPU_LANES;
}

void cpu__share(const cpu_run *r, uint32_t n, uint32_t *begin, uint32_t *end)
{
    ht_team_share(n, 1, r->rank, r->size, begin, end);
}

void cpu__loop(cpu_run *r)
{
    r->turn++;
}

uint32_t cpu__loops(uint32_t rows)
{
    return (rows / CPU_BLOCK + 1) * MOST_WEIGHTS;
}

bool cpu__take(const cpu_run *r, uint32_t n, uint32_t least, uint32_t *begin, uint32_t *end)
{
    if (n / least >= UINT16_MAX) least = n / (UINT16_MAX - 1) + 1;
    const uint32_t units = n / least + (n % least != 0);
    for (int i = 0; i < r->size; i++) {
        const int of = (r->rank + i) % r->size;
        _Atomic uint64_t *word = &r->p->left[of].word;
        uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
        for (;;) {
            uint32_t lo = (uint32_t)(old >> 16) & UINT16_MAX, hi = (uint32_t)old & UINT16_MAX;
            /* A later loop began there: nothing of this one was left anywhere. */
            if (old >> 32 > r->turn) break;
            if (old >> 32 != r->turn) ht_team_share(units, 1, of, r->size, &lo, &hi);
            if (lo >= hi) break;
            const uint32_t some = r->size == 1 ? hi - lo : (hi - lo + 1) / 2,
                           at = i ? hi - some : lo;
            if (i) hi -= some;
            else lo += some;
            uint64_t left = (uint64_t)r->turn << 32 | (uint64_t)lo << 16 | hi;
            if (!atomic_compare_exchange_weak_explicit(word, &old, left, memory_order_relaxed,
                                                       memory_order_relaxed))
                continue;
            *begin = at * least;
            *end = (at + some) * least < n ? (at + some) * least : n;
            return true;
        }
    }
    return false;
}

uint32_t cpu__block(const cpu_run *r, uint32_t t, uint32_t n)
{
    uint32_t blocks = (n + CPU_BLOCK - 1) / CPU_BLOCK, nt = r->k->nt_panel;
    uint32_t size = ((n + blocks - 1) / blocks + nt - 1) / nt * nt;
    if (size > CPU_BLOCK) size = CPU_BLOCK;
    return n - t < size ? n - t : size;
}

const cpu_mat *cpu__mat(const cpu_run *r, const ht_weight *w)
{
    if ((r->p->b.flags & HT_ALT_REP) && w->alt) w = w->alt;
    return &r->p->dev->mat[w->id];
}

enum { WANT_INT8 = 1U << CPU_FORMS };

static bool takes_q8(const cpu_run *r, const cpu_mat *m)
{
    return r->p->b.act == HT_ACT_Q8 && r->k->q8[m->type] && !m->act_f32;
}

unsigned cpu__want(const cpu_run *r, const cpu_mat *m)
{
    return takes_q8(r, m) ? (unsigned)WANT_INT8 : 1U << cpu__form(m->type);
}

void cpu__prepare(cpu_run *r, const float *src, size_t lds, const uint32_t *list, uint32_t n,
                  uint32_t k, const float *norm, unsigned want, cpu_in *out)
{
    cpu_scratch *s = r->s;
    const float eps = r->p->m->spec.rms_eps;
    const float *x = s->in;
    size_t ldx = (size_t)k + CPU_PAD;
    out->n = n;
    if (!norm && !list && (n <= ROWS_MAX || !(want & 1U << CPU_FLOATS))) {
        x = src;
        ldx = lds;
    } else {
        for (uint32_t i = 0; i < n; i++) {
            const float *from = src + (size_t)(list ? list[i] : i) * lds;
            float *to = s->in + (size_t)i * ldx;
            if (norm) r->k->rmsnorm(from, norm, k, eps, to);
            else memcpy(to, from, k * sizeof *to);
        }
    }
    out->x[CPU_FLOATS] = x;
    out->ldx[CPU_FLOATS] = ldx;
    for (int f = CPU_BYTES; f < CPU_FORMS; f++) {
        out->x[f] = s->z[f];
        out->ldx[f] = (size_t)k + k / 16 + CPU_PAD;
        if (!(want & 1U << f)) continue;
        for (uint32_t i = 0; i < n; i++)
            r->k->spread[f](x + (size_t)i * ldx, k, s->z[f] + (size_t)i * out->ldx[f]);
    }
    if (!(want & WANT_INT8)) return;
    for (uint32_t i = 0; i < n; i++) r->k->act_q8(x + (size_t)i * ldx, k, n, i, s->q, s->d, s->sum);
    out->q8 = (cpu_q8){s->q, s->d, s->sum, n};
}

/* Tokens in groups of at most `most`, as equal as can be. */
static uint32_t group(uint32_t t, uint32_t n, uint32_t most)
{
    uint32_t left = n - t, parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* c [n][ldc] from the thread's tile. */
static void store_tile(const cpu_run *r, uint32_t n, float *c, size_t ldc)
{
    for (uint32_t t = 0; t < n; t++)
        memcpy(c + t * ldc, r->s->tile + (size_t)t * CPU_LANES, CPU_LANES * sizeof *c);
}

static void product_panel(cpu_run *r, const cpu_mat *m, const uint8_t *w, const cpu_in *in,
                          float *c, size_t ldc)
{
    const enum cpu_form form = cpu__form(m->type);
    const size_t ldx = in->ldx[form];
    uint32_t gc, gb;
    ht_r16_group(m->type, &gc, &gb);
    for (uint32_t k0 = 0; k0 < m->cols; k0 += CPU_KC) {
        uint32_t kn = m->cols - k0 < CPU_KC ? m->cols - k0 : CPU_KC;
        r->k->widen[m->type](w + (size_t)(k0 / gc) * gb, kn, r->s->panel, r->s->scale);
        for (uint32_t t = 0, nt; t < in->n; t += nt) {
            const float *x = in->x[form] + t * ldx;
            nt = group(t, in->n, r->k->nt_panel);
            if (form == CPU_FLOATS)
                r->k->panel(r->s->panel, kn, x + k0, ldx, nt, c + t * ldc, ldc, k0 != 0);
            else
                r->k->fold[form](r->s->panel, r->s->scale, kn, x + k0,
                                 x + m->cols + k0 / CPU_GROUP(form), ldx, nt,
                                 r->s->tile + (size_t)t * CPU_LANES, k0 != 0);
        }
    }
    if (form != CPU_FLOATS) store_tile(r, in->n, c, ldc);
}

void cpu__product(cpu_run *r, const cpu_mat *m, uint32_t mat, uint32_t t0, uint32_t t1,
                  const cpu_in *in, float *c, size_t ldc)
{
    const uint8_t *w = m->p + mat * m->mat_bytes + t0 * m->tile_bytes;
    const enum cpu_form form = cpu__form(m->type);
    const float *x = in->x[form];
    bool q8 = takes_q8(r, m);
    if (in->n == 1 && !q8) {
        r->k->gemv[m->type](w, m->tile_bytes, t1 - t0, m->cols, x, c);
        return;
    }
    for (uint32_t i = t0; i < t1; i++, w += m->tile_bytes, c += CPU_LANES) {
        if (q8) {
            r->k->q8[m->type](w, m->cols, &in->q8, 0, in->n, r->s->tile);
            store_tile(r, in->n, c, ldc);
        } else if (in->n <= ROWS_MAX) {
            for (uint32_t t = 0, nt; t < in->n; t += nt) {
                nt = group(t, in->n, CPU_NT_ROWS);
                r->k->rows[m->type](w, m->cols, x + t * in->ldx[form], in->ldx[form], nt,
                                    c + t * ldc, ldc);
            }
        } else {
            product_panel(r, m, w, in, c, ldc);
        }
    }
}
