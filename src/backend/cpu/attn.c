/* attn.c - causal attention over the paged cache.
 *
 * A work item is a run of consecutive rows of one sequence and one KV head: its query heads share
 * every key and value that is read. Keys go by splits of CPU_SPLIT at absolute positions. In a
 * split, for a (row, query head) pair:
 *     s_j = chain over head_dim of q k_j;  m = max s_j;  p_j = exp(s_j - m);  l = sum p_j
 *     o   = chain over j ascending of p_j v_j
 * and splits are folded together in ascending order. Keys that a pair does not see have p = 0,
 * which leaves a chain as it is; so neither the rows that share an item nor the number of keys that
 * were there at the time change a bit. Where a sequence has evicted pages, a split is what lies
 * together of it. Both products are the panel kernel of kern.h.
 *
 * With few rows a unit of work is one split: threads take units from each other, put what a split
 * gives into the plan's `part`, and whoever finishes the last one of an item folds them all, in the
 * same order. So one KV head keeps every thread busy, too. Units of one split follow each other;
 * those that a thread takes at once are done together, head after head of a page: that is the order
 * in which they lie in memory. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

enum { LDS = CPU_SPLIT + CPU_PAD };
typedef struct {
    const ht_stage *st;
    uint32_t t0, rows;     /* rows [t0, t0+rows) of the operation                          */
    uint32_t head, heads;  /* KV heads [head, head+heads); more than one: by splits only   */
    uint32_t group, n;     /* query heads per KV head; pairs of a KV head = rows*group     */
    uint32_t lo, hi;       /* keys that some row sees: [lo, hi)                            */
    const uint32_t *table; /* pages of the sequence                                       */
    uint32_t by;           /* packed types: the rows' first position; one page holds all   */
    bool observed;         /* some row's attention is asked for (ht_batch.mass)            */
    const uint8_t *after;  /* keys that this thread reads afterwards; NULL: not known      */
    size_t ldq, ldo;
} item;

/* Keys [from, to) of the split at s0, all of whose pages are held. */
typedef struct {
    uint32_t s0, from, to;
} run;

/* The first run at or behind a key; false: there is none. */
static bool run_at(const item *it, uint32_t key, run *u)
{
    while (key < it->hi && it->table[key / HT_PAGE] == HT_NOPAGE)
        key = (key / HT_PAGE + 1) * HT_PAGE;
    if (key >= it->hi) return false;
    u->s0 = key / CPU_SPLIT * CPU_SPLIT;
    uint32_t end = it->hi - u->s0 < CPU_SPLIT ? it->hi : u->s0 + CPU_SPLIT, to = key;
    do to = (to / HT_PAGE + 1) * HT_PAGE;
    while (to < end && it->table[to / HT_PAGE] != HT_NOPAGE);
    u->from = key - u->s0;
    u->to = (to < end ? to : end) - u->s0;
    return true;
}

/* What a split gives, or several folded: pairs' outputs, maxima and sums. */
typedef struct {
    float *o, *m, *l;
    size_t ldo;
} result;

static uint32_t first_key(const cpu_run *r, const ht_stage *st, uint32_t pos)
{
    uint32_t w = r->p->m->spec.window;
    return (st->flags & HT_WINDOW) && pos + 1 > w ? pos + 1 - w : 0;
}
static uint32_t pos_of(const cpu_run *r, uint32_t t)
{
    return (uint32_t)r->p->batch->pos[cpu__row(r, t)];
}

/* KV head `head` + h of the page that holds a position, as the item's rows read it. */
typedef struct {
    const uint8_t *head; /* NULL: no such page                                       */
    bool packed;
    int type; /* packed: of its page; else HT_KV_F16 or HT_KV_F32         */
} page_head;
static page_head head_at(const cpu_run *r, const item *it, int is_v, uint32_t pos, uint32_t h)
{
    const ht_kv *kv = r->p->kv;
    int layer = it->st->layer;
    uint32_t page = it->table[pos / HT_PAGE];
    page_head o = {NULL, false, kv->type[layer][is_v]};
    if (page == HT_NOPAGE) return o;
    if (ht_kv_packs(o.type)) {
        o.packed = ht_kv_reads_packed(it->by, pos / HT_PAGE);
        if (!o.packed) o.type = HT_KV_F16;
    }
    o.head = ht_kv_head(kv, (uint32_t)layer, is_v, page, it->head + h, !o.packed);
    return o;
}
/* A position's row, not packed; elements of 2 or 4 bytes. */
static const uint8_t *row_of(const cpu_run *r, const page_head *p, uint32_t pos, uint32_t d)
{
    size_t elem = p->type == HT_KV_F16 ? 2 : 4;
    return p->head + ((size_t)(pos % HT_PAGE) * r->p->kv->head_dim + d) * elem;
}

/* The panel kernel over all pairs and k columns in chains of CPU_KC. */
static void multiply(cpu_run *r, const item *it, const float *panel, uint32_t k, const float *x,
                     size_t ldx, float *c, size_t ldc)
{
    for (uint32_t k0 = 0; k0 < k; k0 += CPU_KC) {
        uint32_t kn = k - k0 < CPU_KC ? k - k0 : CPU_KC;
        for (uint32_t t = 0, nt; t < it->n; t += nt) {
            uint32_t left = it->n - t, parts = (left + r->k->nt_panel - 1) / r->k->nt_panel;
            nt = (left + parts - 1) / parts;
            r->k->panel(panel + (size_t)k0 * CPU_LANES, kn, x + t * ldx + k0, ldx, nt, c + t * ldc,
                        ldc, k0 != 0);
        }
    }
}

/* Whether n positions of a page from pos on go to the kernels for a few pairs. */
static bool takes_few(const cpu_run *r, const item *it, const page_head *p, uint32_t pos,
                      uint32_t n)
{
    const ht_kv *kv = r->p->kv;
    if (!p->head || it->n > CPU_FEW || kv->head_dim % 32 || kv->head_dim > CPU_KC) return false;
    if (p->packed) return r->k->few_k_page[p->type] && pos % HT_PAGE == 0 && n == HT_PAGE;
    return r->k->few_scores && p->type == HT_KV_F16;
}

/* Where head h of pos is read: its row, or its packed page; NULL: no such page. */
static const uint8_t *place_of(const cpu_run *r, const item *it, int is_v, uint32_t pos, uint32_t h)
{
    page_head p = head_at(r, it, is_v, pos, h);
    return p.head && !p.packed ? row_of(r, &p, pos, 0) : p.head;
}

/* The positions of a run that lie in one page: n from the j-th of the split on. */
typedef struct {
    uint32_t j, n;
} piece;
static piece piece_at(const run *u, uint32_t j)
{
    const uint32_t n = HT_PAGE - (u->s0 + j) % HT_PAGE;
    return (piece){j, n < u->to - j ? n : u->to - j};
}

/* What is read after head h of a piece of keys or values: the next head of it, the next piece, the
 * values after the keys, and then what comes after the run. */
static const uint8_t *place_after(const cpu_run *r, const item *it, int is_v, const run *u,
                                  const piece *at, uint32_t h)
{
    if (h + 1 < it->heads) return place_of(r, it, is_v, u->s0 + at->j, h + 1);
    if (at->j + at->n < u->to) return place_of(r, it, is_v, u->s0 + at->j + at->n, 0);
    return is_v ? it->after : place_of(r, it, 1, u->s0 + u->from, 0);
}

/* Ask for the rows of n values from pos on. */
static void fetch_values(const cpu_run *r, const item *it, uint32_t pos, uint32_t n, uint32_t h)
{
    page_head p = head_at(r, it, 1, pos, h);
    const uint8_t *v = p.head && !p.packed ? row_of(r, &p, pos, 0) : NULL;
    const size_t elem = r->p->kv->type[it->st->layer][1] == HT_KV_F32 ? 4 : 2;
    for (size_t i = 0; v && i < (size_t)n * r->p->kv->head_dim * elem; i += 64)
        __builtin_prefetch(v + i, 0, 2);
}

/* Scores of a piece for head h, by panels. Values of the same positions are asked for meanwhile:
 * their turn comes when the split's scores are all there. */
static void scores_panel(cpu_run *r, const item *it, const run *u, const piece *at, uint32_t h,
                         const page_head *p)
{
    const uint32_t hd = r->p->kv->head_dim, end = at->j + at->n;
    float *s = r->s->as + (size_t)h * it->n * LDS;
    for (uint32_t j = at->j; j < end; j += CPU_LANES) {
        const uint32_t pos = u->s0 + j, left = end - j < CPU_LANES ? end - j : CPU_LANES;
        fetch_values(r, it, pos, CPU_LANES, h);
        if (p->packed) r->k->k_page[p->type](p->head, hd, pos % HT_PAGE, r->s->panel);
        else
            r->k->k_panel[p->type == HT_KV_F16](p->head ? row_of(r, p, pos, 0) : NULL, hd,
                                                p->head ? left : 0, r->s->panel);
        multiply(r, it, r->s->panel, hd, r->s->aq + h * it->n * it->ldq, it->ldq, s + j, LDS);
    }
}

/* Scores of the run's keys, page by page, head by head; u->from is a multiple of 16. */
static void scores(cpu_run *r, const item *it, const run *u)
{
    const uint32_t hd = r->p->kv->head_dim;
    piece at;
    for (uint32_t j = u->from; j < u->to; j += at.n) {
        at = piece_at(u, j);
        for (uint32_t h = 0; h < it->heads; h++) {
            const page_head p = head_at(r, it, 0, u->s0 + j, h);
            const float *q = r->s->aq + h * it->n * it->ldq;
            float *s = r->s->as + (size_t)h * it->n * LDS + j;
            if (!takes_few(r, it, &p, u->s0 + j, at.n)) {
                scores_panel(r, it, u, &at, h, &p);
                continue;
            }
            const void *next = place_after(r, it, 0, u, &at, h);
            if (p.packed) r->k->few_k_page[p.type](p.head, hd, q, it->ldq, it->n, s, LDS, next);
            else
                r->k->few_scores((const uint16_t *)(const void *)row_of(r, &p, u->s0 + j, 0), hd,
                                 at.n, q, it->ldq, it->n, s, LDS, next);
        }
    }
}

/* Whether the values of all pages go to the kernels for a few pairs. */
static bool all_few(const cpu_run *r, const item *it, const run *u)
{
    piece at;
    for (uint32_t j = u->from; j < u->to; j += at.n) {
        at = piece_at(u, j);
        const page_head p = head_at(r, it, 1, u->s0 + j, 0);
        if (!takes_few(r, it, &p, u->s0 + j, at.n)) return false;
    }
    return true;
}

/* ap = P V over the run, page by page, head by head. */
static void values_few(cpu_run *r, const item *it, const run *u)
{
    const uint32_t hd = r->p->kv->head_dim;
    piece at;
    for (uint32_t j = u->from; j < u->to; j += at.n) {
        at = piece_at(u, j);
        for (uint32_t h = 0; h < it->heads; h++) {
            const page_head p = head_at(r, it, 1, u->s0 + j, h);
            const float *weight = r->s->as + (size_t)h * it->n * LDS + j;
            float *o = r->s->ap + h * it->n * it->ldo;
            const void *next = place_after(r, it, 1, u, &at, h);
            const int add = j != u->from;
            if (p.packed)
                r->k->few_v_page[p.type](p.head, hd, weight, LDS, it->n, o, it->ldo, add, next);
            else
                r->k->few_values((const uint16_t *)(const void *)row_of(r, &p, u->s0 + j, 0), hd,
                                 at.n, weight, LDS, it->n, o, it->ldo, add, next);
        }
    }
}

/* ap = P V of head h over the run, 16 columns after the other. */
static void values_panel(cpu_run *r, const item *it, const run *u, uint32_t h)
{
    const uint32_t hd = r->p->kv->head_dim;
    const float *weight = r->s->as + (size_t)h * it->n * LDS + u->from;
    for (uint32_t d = 0; d < hd; d += CPU_LANES) {
        const uint32_t w = hd - d < CPU_LANES ? hd - d : CPU_LANES;
        piece at;
        for (uint32_t j = u->from; j < u->to; j += at.n) {
            at = piece_at(u, j);
            const page_head p = head_at(r, it, 1, u->s0 + j, h);
            float *panel = r->s->panel + (size_t)(j - u->from) * CPU_LANES;
            if (p.packed) r->k->v_page[p.type](p.head, hd, d, (u->s0 + j) % HT_PAGE, at.n, panel);
            else if (p.head)
                r->k->v_panel[p.type == HT_KV_F16](row_of(r, &p, u->s0 + j, d), hd, at.n, w, panel);
            else memset(panel, 0, (size_t)at.n * CPU_LANES * sizeof *panel);
        }
        multiply(r, it, r->s->panel, u->to - u->from, weight, LDS,
                 r->s->ap + h * it->n * it->ldo + d, it->ldo);
    }
}

/* Pairs of all heads of the item. */
static uint32_t all_pairs(const item *it)
{
    return it->heads * it->n;
}

/* What the run gives for head h, in scratch: behind the running maxima and sums of n pairs. */
static result split_result(const cpu_run *r, const item *it, uint32_t h)
{
    float *m = r->s->al + 2 * it->n + h * it->n;
    return (result){r->s->ap + h * it->n * it->ldo, m, m + all_pairs(it), it->ldo};
}

/* Soft-max of every pair over the run; maxima and sums go where split_result() has them. */
static void weigh(cpu_run *r, const item *it, const run *u)
{
    const uint32_t s0 = u->s0, to = u->to;
    const ht_spec *s = &r->p->m->spec;
    float cap = it->st->flags & HT_CAP ? s->attn_cap : 0.0f;
    uint32_t n = (to + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
    const result own = split_result(r, it, 0);
    for (uint32_t i = 0; i < all_pairs(it); i++) {
        uint32_t pos = pos_of(r, it->t0 + i % it->n / it->group), a = first_key(r, it->st, pos),
                 b = pos + 1;
        a = a > s0 ? a - s0 : 0;
        b = b > s0 ? b - s0 : 0;
        if (b > to) b = to;
        if (a < u->from) a = u->from;
        if (a > b) a = b;
        own.m[i] =
            r->k->softmax(r->s->as + (size_t)i * LDS, n, a, b, s->attn_scale, cap, &own.l[i]);
    }
}

/* What each observed pair gave to the run's pages, the first of which is the at-th that the
 * sequence holds: sums as they are, beside the maximum that they are relative to. */
static uint32_t note(const cpu_run *r, const item *it, const run *u, uint32_t at)
{
    const uint32_t held = r->p->b.held, n = (u->to + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
    for (uint32_t j = u->from; j < u->to && at < held; j += HT_PAGE, at++) {
        const uint32_t end = n - j < HT_PAGE ? n : j + HT_PAGE;
        for (uint32_t i = 0; i < it->n; i++) {
            const float *p = r->s->as + (size_t)i * LDS;
            float sum = 0;
            for (uint32_t k = j; k < end; k++) sum += p[k];
            r->s->am[(size_t)i * held + at] = sum;
            r->s->at[(size_t)i * held + at] = r->s->al[2 * it->n + i];
        }
    }
    return at;
}

/* The noted sums as shares of each pair's whole, query heads in their order, into ht_batch.mass. */
static void give_mass(const cpu_run *r, const item *it, uint32_t n_pages)
{
    const uint32_t held = r->p->b.held, n_kv = r->p->m->spec.n_kv_heads;
    for (uint32_t i = 0; i < it->n; i++) {
        const uint32_t row = cpu__row(r, it->t0 + i / it->group);
        float *out = ht_batch_mass(&r->p->b, r->p->batch, r->p->batch->seq[row],
                                   (uint32_t)r->p->batch->pos[row], n_kv, it->head);
        const float top = r->s->al[i], inv = 1.0f / r->s->al[it->n + i];
        for (uint32_t k = 0; out && k < n_pages; k++) {
            const size_t at = (size_t)i * held + k;
            if (r->s->at[at] != -INFINITY)
                out[k] += r->s->am[at] * (r->k->exp(r->s->at[at] - top) * inv);
        }
    }
}

static void split(cpu_run *r, const item *it, const run *u)
{
    scores(r, it, u);
    weigh(r, it, u);
    if (all_few(r, it, u)) values_few(r, it, u);
    else
        for (uint32_t h = 0; h < it->heads; h++) values_panel(r, it, u, h);
}

/* Fold a split into the running output, maximum and sum of every pair. */
static void fold(cpu_run *r, const item *it, const result *s)
{
    float *m = r->s->al, *l = m + it->n;
    uint32_t hd = r->p->m->spec.head_dim;
    for (uint32_t i = 0; i < it->n; i++) {
        if (s->m[i] == -INFINITY) continue;
        float top = s->m[i] > m[i] ? s->m[i] : m[i];
        float a = r->k->exp(m[i] - top), b = r->k->exp(s->m[i] - top);
        r->k->merge(r->s->ao + i * it->ldo, a, s->o + i * s->ldo, b, hd);
        l[i] = fmaf(l[i], a, s->l[i] * b);
        m[i] = top;
    }
}

/* Query head of pair i of the item, among those of all rows. */
static size_t head_of(const cpu_run *r, const item *it, uint32_t i)
{
    return (size_t)(it->t0 + i % it->n / it->group) * r->p->m->spec.n_heads +
           (it->head + i / it->n) * it->group + i % it->group;
}

static void take_queries(cpu_run *r, const item *it)
{
    uint32_t hd = r->p->m->spec.head_dim;
    for (uint32_t i = 0; i < all_pairs(it); i++)
        memcpy(r->s->aq + i * it->ldq, r->p->q + head_of(r, it, i) * hd, hd * sizeof(float));
}

/* An empty running result. */
static void reset(cpu_run *r, const item *it)
{
    for (uint32_t i = 0; i < it->n; i++) {
        memset(r->s->ao + i * it->ldo, 0, r->p->m->spec.head_dim * sizeof(float));
        r->s->al[i] = -INFINITY;
        r->s->al[it->n + i] = 0.0f;
    }
}

/* The running result to register A. */
static void finish(cpu_run *r, const item *it)
{
    uint32_t hd = r->p->m->spec.head_dim;
    for (uint32_t i = 0; i < it->n; i++) {
        float *a = r->p->a + head_of(r, it, i) * hd;
        float inv = 1.0f / r->s->al[it->n + i];
        for (uint32_t d = 0; d < hd; d++) a[d] = r->s->ao[i * it->ldo + d] * inv;
        cpu__kv_turn_back(r, it->st->layer, a);
    }
}

/* One KV head, all splits; the thread goes on with the next head. */
static void attend(cpu_run *r, item *it)
{
    const result own = split_result(r, it, 0);
    const uint32_t first = it->lo / CPU_LANES * CPU_LANES;
    const bool last = it->head + 1 >= r->p->m->spec.n_kv_heads;
    uint32_t noted = 0;
    run u, next = {0};
    take_queries(r, it);
    reset(r, it);
    for (bool more = run_at(it, first, &u); more; u = next) {
        if (cpu__cancelled(r)) return;
        more = run_at(it, u.s0 + u.to, &next);
        if (more) it->after = place_of(r, it, 0, next.s0 + next.from, 0);
        else it->after = last ? NULL : place_of(r, it, 0, first, 1);
        split(r, it, &u);
        if (it->observed) noted = note(r, it, &u, noted);
        fold(r, it, &own);
    }
    if (it->observed) give_mass(r, it, noted);
    finish(r, it);
}

/* The run of rows from t0 on that one item takes: one sequence, at most `most` rows. */
static uint32_t run_of_rows(const cpu_run *r, const ht_stage *st, uint32_t t0, uint32_t most,
                            item *it)
{
    const ht_batch *b = r->p->batch;
    uint16_t seq = b->seq[cpu__row(r, t0)];
    uint32_t t = t0;
    bool views = cpu__kv_layer_packs(r->p->kv, st->layer);
    const bool asked = !(st->flags & HT_WINDOW) && (uint32_t)st->layer + 1 < r->p->m->spec.n_layers;
    it->observed = false;
    it->by = pos_of(r, t0);
    it->lo = UINT32_MAX;
    it->hi = 0;
    for (; t < r->rows && t - t0 < most && b->seq[cpu__row(r, t)] == seq; t++) {
        uint32_t pos = pos_of(r, t), a = first_key(r, st, pos);
        /* What is read packed changes with the page that a row lies in. */
        if (views && pos / HT_PAGE != it->by / HT_PAGE) break;
        if (a < it->lo) it->lo = a;
        if (pos + 1 > it->hi) it->hi = pos + 1;
        it->observed = it->observed || (asked && ht_batch_mass(&r->p->b, b, seq, pos, 1, 0));
    }
    uint32_t n_table = (r->p->b.ctx + HT_PAGE - 1) / HT_PAGE;
    it->table = b->page[r->p->kv->layer_class[st->layer]] + (size_t)seq * n_table;
    it->t0 = t0;
    it->rows = t - t0;
    return t;
}

static void run_item(const cpu_run *r, const ht_stage *st, item *it)
{
    const ht_spec *s = &r->p->m->spec;
    *it = (item){.st = st, .heads = 1, .group = s->n_heads / s->n_kv_heads};
    it->ldq = (size_t)s->head_dim + CPU_PAD;
    it->ldo = (size_t)s->head_dim + CPU_PAD;
}

/* Rows of a sequence that share an item at most. */
static uint32_t most_rows(const item *it)
{
    return it->group < CPU_ATTN_ROWS ? CPU_ATTN_ROWS / it->group : 1;
}

/* ---- few rows: a unit is a split ------------------------------------------------------------- */

/* Splits of a run of rows: of one KV head, and in part: floats of one split. */
static uint32_t n_splits(const item *it)
{
    return (it->hi - 1) / CPU_SPLIT - it->lo / CPU_SPLIT + 1;
}
static size_t part_floats(const cpu_run *r, const item *it)
{
    return (size_t)it->rows * it->group * (r->p->m->spec.head_dim + 2);
}

/* Whether an item's splits can be units: all pages held, nobody asks for the mass. */
static bool in_splits(const item *it)
{
    run u;
    for (uint32_t key = it->lo / CPU_LANES * CPU_LANES; key < it->hi; key = u.s0 + u.to)
        if (!run_at(it, key, &u) || u.s0 + u.from != key) return false;
        else if (u.to != CPU_SPLIT && u.s0 + u.to != it->hi) return false;
    return !it->observed;
}

/* Units of all rows; 0: not this way, or their results do not fit. */
static uint32_t count_units(const cpu_run *r, const ht_stage *st)
{
    item it;
    size_t units = 0, floats = 0;
    run_item(r, st, &it);
    for (uint32_t t = 0; t < r->rows;) {
        t = run_of_rows(r, st, t, most_rows(&it), &it);
        if (!in_splits(&it)) return 0;
        size_t n = (size_t)n_splits(&it) * r->p->m->spec.n_kv_heads;
        units += n;
        floats += n * part_floats(r, &it);
    }
    return floats <= r->p->part_cap && units <= UINT32_MAX ? (uint32_t)units : 0;
}

/* The item of unit u, which split it is, and where the splits of its rows lie in part: those of a
 * KV head together. Units of one split are neighbours. */
static uint32_t find_unit(const cpu_run *r, const ht_stage *st, uint32_t u, item *it, float **part)
{
    run_item(r, st, it);
    *part = r->p->part;
    for (uint32_t t = 0;;) {
        t = run_of_rows(r, st, t, most_rows(it), it);
        uint32_t n = n_splits(it), all = n * r->p->m->spec.n_kv_heads;
        if (u < all) {
            it->n = it->rows * it->group;
            it->head = u % r->p->m->spec.n_kv_heads;
            return u / r->p->m->spec.n_kv_heads;
        }
        u -= all;
        *part += all * part_floats(r, it);
    }
}

static result part_result(const cpu_run *r, const item *it, float *part, uint32_t i)
{
    float *o = part + ((size_t)it->head * n_splits(it) + i) * part_floats(r, it);
    size_t hd = r->p->m->spec.head_dim;
    return (result){o, o + it->n * hd, o + it->n * (hd + 1), hd};
}

/* Keep what a split gave for one KV head; the last one of the head folds them all. */
static void keep(cpu_run *r, const item *it, const result *own, float *part, uint32_t i)
{
    const uint32_t n = n_splits(it);
    const result to = part_result(r, it, part, i);
    _Atomic uint32_t *done = &r->p->split_done[it->t0 * r->p->m->spec.n_kv_heads + it->head];
    for (uint32_t j = 0; j < it->n; j++)
        memcpy(to.o + j * to.ldo, own->o + j * own->ldo, to.ldo * sizeof *to.o);
    memcpy(to.m, own->m, it->n * sizeof *to.m);
    memcpy(to.l, own->l, it->n * sizeof *to.l);
    /* Release our result, acquire the others'. */
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < n) return;
    atomic_store_explicit(done, 0, memory_order_relaxed);
    reset(r, it);
    for (uint32_t j = 0; j < n; j++) {
        result s = part_result(r, it, part, j);
        fold(r, it, &s);
    }
    finish(r, it);
}

/* The keys of the i-th split of an item. */
static run split_at(const item *it, uint32_t i)
{
    run u = {0};
    const uint32_t s0 = (it->lo / CPU_SPLIT + i) * CPU_SPLIT;
    /* It is there: in_splits has seen all of them. */
    (void)run_at(it, i ? s0 : it->lo / CPU_LANES * CPU_LANES, &u);
    return u;
}

/* How many of `left` units from the item's on are done together: heads of its split, if their pairs
 * are few. Panels read less memory than they compute, and want the cache for themselves. */
static uint32_t together(const cpu_run *r, const item *it, uint32_t left)
{
    const uint32_t heads = r->p->m->spec.n_kv_heads - it->head;
    if (it->n > CPU_FEW) return 1;
    if (left > heads) left = heads;
    return left < CPU_ATTN_HEADS ? left : CPU_ATTN_HEADS;
}

static void attend_units(cpu_run *r, const ht_stage *st, uint32_t units)
{
    uint32_t u, end;
    cpu__loop(r);
    while (cpu__take(r, units, 1, &u, &end))
        while (u < end) {
            item it, next;
            float *part, *unused;
            const uint32_t i = find_unit(r, st, u, &it, &part);
            const run s = split_at(&it, i);
            it.heads = together(r, &it, end - u);
            u += it.heads;
            if (u < units) { /* most likely ours, also where it is not of this lot */
                const uint32_t k = find_unit(r, st, u, &next, &unused);
                const run n = split_at(&next, k);
                it.after = place_of(r, &next, 0, n.s0 + n.from, 0);
            }
            take_queries(r, &it);
            split(r, &it, &s);
            for (uint32_t h = 0; h < it.heads; h++) {
                const result own = split_result(r, &it, h);
                item one = it;
                one.head += h;
                one.heads = 1;
                keep(r, &one, &own, part, i);
            }
        }
}

/* ---- many rows: a unit is a run of rows and a KV head ---------------------------------------- */

static uint32_t count_runs(const cpu_run *r, const ht_stage *st)
{
    item it;
    uint32_t n = 0;
    run_item(r, st, &it);
    for (uint32_t t = 0; t < r->rows; n++) t = run_of_rows(r, st, t, most_rows(&it), &it);
    return n;
}

/* A unit's time grows with the keys that its rows see. Shares are in order of rows, so the thread
 * of the first rows ends soon and takes from the end of the others'. */
static void attend_runs(cpu_run *r, const ht_stage *st)
{
    const uint32_t heads = r->p->m->spec.n_kv_heads, units = count_runs(r, st) * heads;
    uint32_t u, end;
    cpu__loop(r);
    while (cpu__take(r, units, 1, &u, &end)) {
        item it;
        uint32_t t = 0;
        run_item(r, st, &it);
        for (uint32_t before = 0; before <= u / heads; before++)
            t = run_of_rows(r, st, t, most_rows(&it), &it);
        for (it.head = u % heads; u < end; u++) {
            it.n = it.rows * it.group;
            attend(r, &it);
            if (++it.head < heads || t >= r->rows) continue;
            t = run_of_rows(r, st, t, most_rows(&it), &it);
            it.head = 0;
        }
    }
}

void cpu__attn(cpu_run *r, const ht_stage *st)
{
    const uint32_t units = r->p->part_cap ? count_units(r, st) : 0;
    if (units) attend_units(r, st, units);
    else attend_runs(r, st);
}
