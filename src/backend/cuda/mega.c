/* mega.c - host side of the persistent kernel (mega.cu): which models it takes, its schedule, its
 * launches and its watchdog. */
#include "backend/cuda/cuda.h"

#include <string.h>

enum { LEAST_SLOTS = 3, FIRST_EPOCH = 1 };

/* ---- coverage -------------------------------------------------------------------------------- */

/* Bytes of shared memory in front of schedule and rings; a mirror of mega_shared in mega.cu. */
static uint32_t fixed_bytes(uint32_t g)
{
    uint32_t attn = CUDA_WARPS * (g > 1 ? g : 2) * (128 + 2);
    uint32_t floats = 2 * CUDA_WARPS + 2 * CUDA_TILE * CUDA_PART_ROW + CUDA_TILE + 2 * CUDA_WARPS +
                      2 * 128 + 256 + 4 * 128 + attn + 2 * (CUDA_CLOCKS + 2);
    return CUDA_WARPS * CUDA_MAX_SLOTS * 8 + 4 * floats;
}

static uint32_t log_heads(const ht_spec *s)
{
    uint32_t group = s->n_heads / s->n_kv_heads;
    return group >= 3 ? 2 : group - 1;
}

static uint32_t input_floats(const ht_spec *s)
{
    uint32_t nq = s->n_heads * s->head_dim, n = s->ffn > nq ? s->ffn : nq;
    if (s->dim > n) n = s->dim;
    return (n + CUDA_GROUP - 1) / CUDA_GROUP * CUDA_GROUP;
}

static uint32_t mats_at(const ht_spec *s)
{
    return fixed_bytes(1U << log_heads(s)) + 4 * input_floats(s);
}
static uint32_t layers_at(const ht_spec *s, uint32_t mats)
{
    return mats_at(s) + mats * (uint32_t)sizeof(cuda_mega_mat);
}
static uint32_t ring_at(const ht_spec *s, uint32_t mats)
{
    uint32_t n = layers_at(s, mats) + s->n_layers * (uint32_t)sizeof(cuda_mega_layer);
    return (n + 127) / 128 * 128;
}

static uint32_t slots_for(const ht_dev *d, const ht_spec *s, uint32_t mats)
{
    uint32_t at = ring_at(s, mats), max = (uint32_t)d->shared_max;
    uint32_t n = at < max ? (max - at) / (CUDA_WARPS * CUDA_PIECE) : 0;
    return n < CUDA_MAX_SLOTS ? n : CUDA_MAX_SLOTS;
}

static uint32_t most_mats(const ht_spec *s)
{
    return 6 * s->n_layers + 1;
}

bool cuda__mega_deals(uint32_t blocks, const ht_spec *s)
{
    if (!s->ffn) return false; /* experts only: no gate to deal out */
    cuda_mat up = cuda__mat(CUDA_F16, 2 * s->ffn, s->dim, blocks);
    cuda_mat out = cuda__mat(CUDA_F16, s->dim, s->dim, blocks);
    return (up.rows + up.per_block - 1) / up.per_block == blocks && out.per_block <= CUDA_TILE;
}

/* The whole tape of a lone row of a dense model with F16 cache, from embed to sample. */
static size_t covers(const ht_dev *d, const ht_model *m, const ht_stage *at, size_t left,
                     const ht_bucket *b)
{
    const ht_spec *s = &m->spec;
    enum { FLAGS = HT_BIAS | HT_QKNORM | HT_GELU, CTX_MAX = 256 * CUDA_CLASSES * HT_PAGE };
    if (!d || d->model != m || !d->dependent || d->level1 || d->sync || left < 3 ||
        at->kind != HT_EMBED || at[left - 1].kind != HT_SAMPLE || at[left - 1].flags)
        return 0;
    if (b->rows != 1 || b->seqs != 1 || b->want != 1 || b->ctx > CTX_MAX || s->head_dim > 128 ||
        s->head_dim % 16 || b->kv_fmt != (HT_KV_F16 | HT_KV_F16 << 8) || s->dim % 8 ||
        s->n_kv_heads * CUDA_CLASSES > d->blocks || s->n_heads / s->n_kv_heads > 4 ||
        s->rope[0].inv_freq_long || !cuda__mega_deals(d->blocks, s) ||
        slots_for(d, s, most_mats(s)) < LEAST_SLOTS || (!d->level2 && cuda__level1_first(d, m, b)))
        return 0;
    for (size_t i = 0; i + 1 < left; i++) {
        const ht_layer *l = at[i].layer >= 0 ? &m->layer[at[i].layer] : NULL;
        if ((at[i].flags & ~(unsigned)FLAGS) || !cuda__takes(d, m, &at[i], left - i, b)) return 0;
        if (!l) continue;
        if (s->layer[at[i].layer].rope != 0 || s->layer[at[i].layer].window) return 0;
        const ht_weight *w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++)
            if (cuda__type_of(cuda__rep(w[k], b)) == CUDA_F32) return 0;
    }
    return cuda__type_of(cuda__rep(&m->head, b)) == CUDA_F32 ? 0 : left;
}

static void bound(const ht_dev *dev, const ht_model *m, const ht_stage *at, size_t n,
                  const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    (void)dev;
    *bytes = *flops = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t more = 0, work = 0;
        ht_stage_bound(m, at + i, b, &more, &work);
        *bytes += more, *flops += work;
    }
}

/* ---- schedule -------------------------------------------------------------------------------- */

typedef struct {
    cuda_mega_mat *mat;
    uint32_t n;
} schedule;

static void put(const ht_plan *p, schedule *s, const ht_weight *w)
{
    const cuda_weight *c = &p->dev->weight[cuda__rep(w, &p->b)->id];
    if (c->members) s->mat[s->n++] = (cuda_mega_mat){c->m, cuda__upp(&c->m), 0};
}
static void end_phase(schedule *s)
{
    s->mat[s->n - 1].last = 1;
}

static void fill_schedule(const ht_plan *p, schedule *s)
{
    for (uint32_t i = 0; i < p->m->spec.n_layers; i++) {
        const ht_layer *l = &p->m->layer[i];
        put(p, s, &l->q), put(p, s, &l->k), put(p, s, &l->v), end_phase(s);
        put(p, s, &l->o), end_phase(s);
        put(p, s, &l->gate), end_phase(s);
        put(p, s, &l->down), end_phase(s);
    }
    put(p, s, &p->m->head), end_phase(s);
}

/* A warp's list of pieces (mega.cu); out NULL: only count them. */
static uint32_t list_pieces(const ht_plan *p, const schedule *s, uint32_t block, uint32_t warp,
                            uint64_t *out)
{
    uint32_t n = 0;
    (void)p;
    for (uint32_t i = 0; i < s->n; i++) {
        const cuda_mat *m = &s->mat[i].m;
        const uint32_t whole = m->groups / CUDA_WARPS, rest = m->groups % CUDA_WARPS;
        const uint32_t before = whole * warp + (warp < rest ? warp : rest);
        const uint32_t units = m->layers * (whole + (warp < rest));
        uint64_t at = m->w + (uint64_t)(block * m->groups + before) * m->layers * m->unit_bytes;
        if (block * m->per_block >= m->rows) continue;
        for (uint32_t u = 0; u < units; u += s->mat[i].upp) {
            uint32_t k = units - u < s->mat[i].upp ? units - u : s->mat[i].upp;
            uint64_t bytes = (uint64_t)k * m->unit_bytes;
            if (out) out[1 + n] = bytes / 16 << 48 | at;
            at += bytes;
            n++;
        }
    }
    if (out) out[0] = n;
    return n;
}

/* All lists, as one array for the device. */
static uint64_t *make_lists(const ht_plan *p, const schedule *s, uint32_t *words)
{
    uint32_t most = 0, blocks = p->dev->blocks;
    for (uint32_t w = 0; w < CUDA_WARPS; w++) {
        uint32_t n = list_pieces(p, s, 0, w, NULL);
        if (n > most) most = n;
    }
    *words = most + 1;
    uint64_t *out = ht_arena_array(p->arena, (size_t)blocks * CUDA_WARPS * *words, sizeof *out);
    for (uint32_t i = 0; out && i < blocks * CUDA_WARPS; i++)
        (void)list_pieces(p, s, i / CUDA_WARPS, i % CUDA_WARPS, out + (size_t)i * *words);
    return out;
}

static int send(ht_plan *p, cuda_ptr to, const void *from, size_t n, ht_err *e)
{
    HT_TRY(cuda__check(p->dev, p->dev->api.to_device(to, from, n, p->dev->stream),
                       "copy of a schedule", NULL, e));
    return cuda__sync(p->dev, e);
}

/* Places of the exchanged vectors, one behind another; all words start with epoch 0. */
static int place(ht_plan *p, cuda_mega *a, const schedule *s, const cuda_mega_layer *layer,
                 ht_err *e)
{
    uint64_t *lists = make_lists(p, s, &a->list_words);
    if (!lists) return HT_FAIL(e, HT_ENOMEM, "cuda: no memory for a schedule");
    const uint64_t list_bytes = 8 * (uint64_t)p->dev->blocks * CUDA_WARPS * a->list_words;
    const ht_spec *sp = &p->m->spec;
    const uint64_t nq = (uint64_t)sp->n_heads * sp->head_dim,
                   nkv = (uint64_t)sp->n_kv_heads * sp->head_dim;
    const struct {
        uint64_t *at, bytes;
    } part[] = {{&a->mat, s->n * sizeof *s->mat},
                {&a->pieces, list_bytes},
                {&a->layer, sp->n_layers * sizeof *layer},
                {&a->x1, 8 * (uint64_t)sp->dim},
                {&a->x2, 8 * (uint64_t)sp->dim},
                {&a->qkv, 8 * (nq + 2 * nkv)},
                {&a->part, 8 * nq * CUDA_CLASSES},
                {&a->part_ml, 16 * (uint64_t)sp->n_heads * CUDA_CLASSES},
                {&a->a, 8 * nq},
                {&a->hid, 16 * (uint64_t)sp->ffn},
                {&a->best, 32 * (uint64_t)p->dev->blocks}};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        total += (part[i].bytes + 255) / 256 * 256;
    HT_TRY(cuda__check(p->dev, p->dev->api.alloc(&p->mega_memory, total), "memory for a schedule",
                       NULL, e));
    HT_TRY(cuda__check(p->dev, p->dev->api.set32(p->mega_memory, 0, total / 4, p->dev->stream),
                       "clearing a schedule", NULL, e));
    uint64_t at = p->mega_memory;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].at = at;
        at += (part[i].bytes + 255) / 256 * 256;
    }
    HT_TRY(send(p, a->pieces, lists, list_bytes, e));
    HT_TRY(send(p, a->mat, s->mat, s->n * sizeof *s->mat, e));
    return send(p, a->layer, layer, sp->n_layers * sizeof *layer, e);
}

static int encode(ht_plan *p, const ht_stage *at, size_t n, ht_err *e)
{
    const ht_spec *sp = &p->m->spec;
    ht_dev *dev = p->dev;
    schedule s = {ht_arena_array(p->arena, most_mats(sp), sizeof *s.mat), 0};
    cuda_mega_layer *layer = ht_arena_array(p->arena, sp->n_layers, sizeof *layer);
    if (!s.mat || !layer) return HT_FAIL(e, HT_ENOMEM, "cuda: no memory for a schedule");
    fill_schedule(p, &s);
    for (size_t i = 0; i < n; i++) {
        if (at[i].kind != HT_QKV) continue;
        const ht_layer *l = &p->m->layer[at[i].layer];
        layer[at[i].layer] =
            (cuda_mega_layer){cuda__vector(dev, l->attn_norm), cuda__vector(dev, l->ffn_norm),
                              cuda__heads(p, &at[i])};
    }
    cuda_mega a = {.f = p->r->feed,
                   .host = p->words_dev,
                   .embed = dev->weight[cuda__rep(&p->m->embed, &p->b)->id].m,
                   .final_norm = cuda__vector(dev, p->m->final_norm),
                   .ids = p->ids_dev,
                   .n_mats = s.n,
                   .n_layers = sp->n_layers,
                   .dim = sp->dim,
                   .ffn = sp->ffn,
                   .vocab = sp->vocab,
                   .steps = p->b.steps ? p->b.steps : 1,
                   .mats_at = mats_at(sp),
                   .layers_at = layers_at(sp, s.n),
                   .ring_at = ring_at(sp, s.n),
                   .slots = slots_for(dev, sp, s.n),
                   .eps = sp->rms_eps,
                   .scale = sp->attn_scale,
                   .embed_scale = sp->embed_scale};
    cuda__rope(p, &a.rope);
    for (size_t i = 0; i < n; i++) a.gelu |= at[i].kind == HT_FFN_UP && (at[i].flags & HT_GELU);
    HT_TRY(place(p, &a, &s, layer, e));
    HT_TRY(cuda__host_memory(p, (void **)&p->state, &a.state, sizeof *p->state, e));
    HT_TRY(
        cuda__host_memory(p, (void **)&p->clocks, &a.clocks, CUDA_CLOCKS * sizeof *p->clocks, e));
    cuda_op *op = cuda__op(p, at, dev->mega[log_heads(sp)], CUDA_WIDE, dev->blocks, 1, 1, e);
    if (!op) return e ? e->code : HT_EARG;
    op->args.mega = a;
    op->shared = a.ring_at + a.slots * CUDA_WARPS * CUDA_PIECE;
    p->embedded = p->picked = p->headed = p->sampled = true;
    p->epoch = FIRST_EPOCH;
    return 0;
}
const ht_span cuda__span_mega = {"decode.cuda", covers, bound, encode};

/* ---- launches -------------------------------------------------------------------------------- */

/* Cooperative: the driver makes sure that all blocks are resident, or refuses. */
int cuda__mega_launch(ht_plan *p, ht_err *e)
{
    cuda_op *op = &p->op[0];
    const cuda_mega *a = &op->args.mega;
    const uint32_t epochs = p->steps * (a->n_layers + 1);
    cuda_launch_attr attr = {.id = CUDA_LAUNCH_COOPERATIVE, .value = 1};
    cuda_launch l = {.grid = {op->grid[0], 1, 1},
                     .block = {op->threads, 1, 1},
                     .shared = op->shared,
                     .stream = p->dev->stream,
                     .attrs = &attr,
                     .n_attrs = 1};
    void *params[] = {&op->args};
    if (p->epoch > UINT32_MAX - epochs) { /* start over; what is left must not look new */
        HT_TRY(cuda__check(p->dev,
                           p->dev->api.set32(a->x1, 0,
                                             (uint32_t)((a->best - a->x1) / 4 + 8 * p->dev->blocks),
                                             p->dev->stream),
                           "clearing exchanged vectors", NULL, e));
        p->epoch = FIRST_EPOCH;
    }
    op->args.mega.epoch = p->epoch;
    op->args.mega.steps = p->steps;
    p->epoch += epochs;
    *p->state = 0;
    return cuda__check(p->dev, p->dev->api.launch(&l, op->fn, params, NULL),
                       "launching the persistent kernel", NULL, e);
}

int cuda__mega_check(ht_plan *p, ht_err *e)
{
    for (int i = 0; i < CUDA_CLOCKS; i++) p->dev->ticks[i] += p->clocks[i];
    memset(p->clocks, 0, CUDA_CLOCKS * sizeof *p->clocks);
    if (*(volatile uint32_t *)p->state == 0) return 0;
    return HT_FAIL(e, HT_EDEVICE,
                   "cuda: the persistent kernel was given up after 2 s without progress; use the "
                   "setting level=1 (--cuda) and report this");
}

/* In the order of tick() in mega.cu. Waiting is for vectors of other blocks. */
const char *cuda__mega_stage(const ht_dev *dev, int i, double *ns)
{
    static const char *const name[] = {"wait_x", "qkv",       "wait_a",   "attn_out",  "wait_x2",
                                       "ffn_up", "wait_h",    "ffn_down", "wait_head", "head",
                                       "attn",   "attn_join", "choose"};
    if (i < 0 || (size_t)i >= sizeof name / sizeof *name) return NULL;
    *ns = dev->clock_khz ? (double)dev->ticks[i] * 1e6 / dev->clock_khz : 0;
    return name[i];
}

int cuda__mega_clock(int kind)
{
    switch (kind) {
    case HT_QKV: return 1;
    case HT_ATTN_OUT: return 3;
    case HT_FFN_UP: return 5;
    case HT_FFN_DOWN: return 7;
    case HT_HEAD: return 9;
    case HT_ATTN: return 10;
    default: return -1;
    }
}
