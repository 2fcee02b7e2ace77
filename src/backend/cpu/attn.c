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
 * same order. So one KV head keeps every thread busy, too. */
#include "backend/cpu/cpu.h"
#include <math.h>
#include <string.h>

enum { LDS = CPU_SPLIT + CPU_PAD };
typedef struct {
    const ht_stage *st;
    uint32_t t0, rows, head; /* rows [t0, t0+rows) of the operation, KV head                 */
    uint32_t group, n;       /* query heads per KV head; pairs = rows*group                  */
    uint32_t lo, hi;         /* keys that some row sees: [lo, hi)                            */
    const uint32_t *table;   /* pages of the sequence                                       */
    uint32_t by;             /* packed types: the rows' first position; one page holds all   */
    bool observed;           /* some row's attention is asked for (ht_batch.mass)            */
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

/* A head of the page that holds a position, as the item's rows read it. */
typedef struct {
    const uint8_t *head; /* NULL: no such page                                       */
    bool packed;
    int type; /* packed: of its page; else HT_KV_F16 or HT_KV_F32         */
} page_head;
static page_head head_at(const cpu_run *r, const item *it, int is_v, uint32_t pos)
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
    o.head = ht_kv_head(kv, (uint32_t)layer, is_v, page, it->head, !o.packed);
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

/* Where the item's head of pos is read: its row, or its packed page; NULL: no such page. */
static const uint8_t *place_of(const cpu_run *r, const item *it, int is_v, uint32_t pos)
{
    page_head p = head_at(r, it, is_v, pos);
    return p.head && !p.packed ? row_of(r, &p, pos, 0) : p.head;
}

/* The keys that this thread reads after the page of pos: of the next page, or of its next head. */
static const uint8_t *next_keys(const cpu_run *r, const item *it, uint32_t pos)
{
    item other = *it;
    if (pos < it->hi) return place_of(r, it, 0, pos);
    if (++other.head >= r->p->m->spec.n_kv_heads) return NULL;
    return place_of(r, &other, 0, it->lo / CPU_LANES * CPU_LANES);
}

/* Ask for the rows of n values from pos on. */
static void fetch_values(const cpu_run *r, const item *it, uint32_t pos, uint32_t n)
{
    page_head p = head_at(r, it, 1, pos);
    const uint8_t *v = p.head && !p.packed ? row_of(r, &p, pos, 0) : NULL;
    const size_t elem = r->p->kv->type[it->st->layer][1] == HT_KV_F32 ? 4 : 2;
    for (size_t i = 0; v && i < (size_t)n * r->p->kv->head_dim * elem; i += 64)
        __builtin_prefetch(v + i, 0, 2);
}

/* Scores of keys [s0+from, s0+to), from and s0 multiples of 16. Values of the same positions are
 * asked for meanwhile: their turn comes when the split's scores are all there. */
static void scores(cpu_run *r, const item *it, uint32_t s0, uint32_t from, uint32_t to)
{
    const ht_kv *kv = r->p->kv;
    for (uint32_t j = from, step; j < to; j += step) {
        page_head p = head_at(r, it, 0, s0 + j);
        step = HT_PAGE - (s0 + j) % HT_PAGE;
        if (step > to - j) step = to - j;
        if (takes_few(r, it, &p, s0 + j, step)) {
            const void *next = next_keys(r, it, s0 + j + step), *v = place_of(r, it, 1, s0 + j);
            const uint64_t n_values = kv->page_bytes[it->st->layer][1] / kv->n_kv_heads;
            if (p.packed)
                r->k->few_k_page[p.type](p.head, kv->head_dim, r->s->aq, it->ldq, it->n,
                                         r->s->as + j, LDS, next, v, (size_t)n_values);
            else
                r->k->few_scores((const uint16_t *)(const void *)row_of(r, &p, s0 + j, 0),
                                 kv->head_dim, step, r->s->aq, it->ldq, it->n, r->s->as + j, LDS,
                                 next, v);
            continue;
        }
        step = CPU_LANES;
        fetch_values(r, it, s0 + j, CPU_LANES);
        uint32_t n = p.head ? (to - j < CPU_LANES ? to - j : CPU_LANES) : 0;
        if (p.packed) r->k->k_page[p.type](p.head, kv->head_dim, (s0 + j) % HT_PAGE, r->s->panel);
        else
            r->k->k_panel[p.type == HT_KV_F16](p.head ? row_of(r, &p, s0 + j, 0) : NULL,
                                               kv->head_dim, n, r->s->panel);
        multiply(r, it, r->s->panel, kv->head_dim, r->s->aq, it->ldq, r->s->as + j, LDS);
    }
}

/* ap = P V over keys [s0+from, s0+to) page by page; false: some page is not for a few pairs. */
static bool values_few(cpu_run *r, const item *it, uint32_t s0, uint32_t from, uint32_t to)
{
    for (int work = 0; work < 2; work++)
        for (uint32_t j = from, n; j < to; j += n) {
            page_head p = head_at(r, it, 1, s0 + j);
            const float *weight = r->s->as + j;
            n = HT_PAGE - (s0 + j) % HT_PAGE;
            if (n > to - j) n = to - j;
            if (!work) {
                if (!takes_few(r, it, &p, s0 + j, n)) return false;
            } else if (p.packed) {
                r->k->few_v_page[p.type](p.head, r->p->kv->head_dim, weight, LDS, it->n, r->s->ap,
                                         it->ldo, j != from);
            } else {
                r->k->few_values((const uint16_t *)(const void *)row_of(r, &p, s0 + j, 0),
                                 r->p->kv->head_dim, n, weight, LDS, it->n, r->s->ap, it->ldo,
                                 j != from);
            }
        }
    return true;
}

/* ap = P V over keys [s0+from, s0+to). */
static void values(cpu_run *r, const item *it, uint32_t s0, uint32_t from, uint32_t to)
{
    const ht_kv *kv = r->p->kv;
    if (values_few(r, it, s0, from, to)) return;
    for (uint32_t d = 0; d < kv->head_dim; d += CPU_LANES) {
        uint32_t w = kv->head_dim - d < CPU_LANES ? kv->head_dim - d : CPU_LANES;
        for (uint32_t j = from; j < to;) {
            uint32_t n = HT_PAGE - (s0 + j) % HT_PAGE;
            if (n > to - j) n = to - j;
            page_head p = head_at(r, it, 1, s0 + j);
            float *panel = r->s->panel + (size_t)(j - from) * CPU_LANES;
            if (p.packed)
                r->k->v_page[p.type](p.head, kv->head_dim, d, (s0 + j) % HT_PAGE, n, panel);
            else if (p.head)
                r->k->v_panel[p.type == HT_KV_F16](row_of(r, &p, s0 + j, d), kv->head_dim, n, w,
                                                   panel);
            else memset(panel, 0, (size_t)n * CPU_LANES * sizeof *panel);
            j += n;
        }
        multiply(r, it, r->s->panel, to - from, r->s->as + from, LDS, r->s->ap + d, it->ldo);
    }
}

/* Soft-max of every pair over the run; its maximum and sum go to al[2n..4n). */
static void weigh(cpu_run *r, const item *it, const run *u)
{
    const uint32_t s0 = u->s0, to = u->to;
    const ht_spec *s = &r->p->m->spec;
    float cap = it->st->flags & HT_CAP ? s->attn_cap : 0.0f;
    uint32_t n = (to + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
    float *m = r->s->al + 2 * it->n, *l = m + it->n;
    for (uint32_t i = 0; i < it->n; i++) {
        uint32_t pos = pos_of(r, it->t0 + i / it->group), a = first_key(r, it->st, pos),
                 b = pos + 1;
        a = a > s0 ? a - s0 : 0;
        b = b > s0 ? b - s0 : 0;
        if (b > to) b = to;
        if (a < u->from) a = u->from;
        if (a > b) a = b;
        m[i] = r->k->softmax(r->s->as + (size_t)i * LDS, n, a, b, s->attn_scale, cap, &l[i]);
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

/* The split's own result, in scratch. */
static result split_result(const cpu_run *r, const item *it)
{
    float *m = r->s->al + 2 * it->n;
    return (result){r->s->ap, m, m + it->n, it->ldo};
}

static void split(cpu_run *r, const item *it, const run *u)
{
    scores(r, it, u->s0, u->from, u->to);
    weigh(r, it, u);
    values(r, it, u->s0, u->from, u->to);
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

/* Query head of pair i, among those of all rows. */
static size_t head_of(const cpu_run *r, const item *it, uint32_t i)
{
    return (size_t)(it->t0 + i / it->group) * r->p->m->spec.n_heads + it->head * it->group +
           i % it->group;
}

static void take_queries(cpu_run *r, const item *it)
{
    uint32_t hd = r->p->m->spec.head_dim;
    for (uint32_t i = 0; i < it->n; i++)
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

static void attend(cpu_run *r, const item *it)
{
    const result own = split_result(r, it);
    uint32_t noted = 0;
    run u;
    take_queries(r, it);
    reset(r, it);
    for (uint32_t key = it->lo / CPU_LANES * CPU_LANES; run_at(it, key, &u); key = u.s0 + u.to) {
        if (cpu__cancelled(r)) return;
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
    *it = (item){.st = st, .group = s->n_heads / s->n_kv_heads};
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

/* The item of unit u; which split it is and where the item's splits lie in part. */
static uint32_t find_unit(const cpu_run *r, const ht_stage *st, uint32_t u, item *it, float **part)
{
    run_item(r, st, it);
    *part = r->p->part;
    for (uint32_t t = 0;;) {
        t = run_of_rows(r, st, t, most_rows(it), it);
        uint32_t n = n_splits(it), all = n * r->p->m->spec.n_kv_heads;
        if (u < all) {
            it->n = it->rows * it->group;
            it->head = u / n;
            *part += (size_t)it->head * n * part_floats(r, it);
            return u % n;
        }
        u -= all;
        *part += all * part_floats(r, it);
    }
}

static result part_result(const cpu_run *r, const item *it, float *part, uint32_t i)
{
    float *o = part + i * part_floats(r, it);
    size_t hd = r->p->m->spec.head_dim;
    return (result){o, o + it->n * hd, o + it->n * (hd + 1), hd};
}

/* Keep a split's result; the last one of the item folds them all. */
static void keep(cpu_run *r, const item *it, float *part, uint32_t i)
{
    const uint32_t n = n_splits(it);
    const result own = split_result(r, it), to = part_result(r, it, part, i);
    _Atomic uint32_t *done = &r->p->split_done[it->t0 * r->p->m->spec.n_kv_heads + it->head];
    for (uint32_t j = 0; j < it->n; j++)
        memcpy(to.o + j * to.ldo, own.o + j * own.ldo, to.ldo * sizeof *to.o);
    memcpy(to.m, own.m, it->n * sizeof *to.m);
    memcpy(to.l, own.l, it->n * sizeof *to.l);
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

static void attend_units(cpu_run *r, const ht_stage *st, uint32_t units)
{
    uint32_t u, end;
    cpu__loop(r);
    while (cpu__take(r, units, 1, &u, &end))
        for (uint32_t head = UINT32_MAX, t0 = 0; u < end; u++) {
            item it;
            float *part;
            uint32_t i = find_unit(r, st, u, &it, &part);
            if (it.head != head || it.t0 != t0) take_queries(r, &it);
            head = it.head;
            t0 = it.t0;
            run s = {0};
            uint32_t s0 = (it.lo / CPU_SPLIT + i) * CPU_SPLIT;
            /* It is there: in_splits has seen all of them. */
            (void)run_at(&it, i ? s0 : it.lo / CPU_LANES * CPU_LANES, &s);
            split(r, &it, &s);
            keep(r, &it, part, i);
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

/* A unit's time grows with the keys that its rows see. Shares are in order of rows, so the thread of
 * the first rows ends soon and takes from the end of the others'. */
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
