/* stage.c - every (kind, flags) x weight type and layout x KV type x arithmetic x class of rows:
 * each backend of ht_backends against ref, one stage at a time through the registers. All tables; a
 * new backend, type or flag is tested by being in its table. A stage that a backend does not cover
 * is counted and shown (-v), not failed: refusing is allowed, computing something else is not. */
#include "fixture.h"
#include "step/kvcodec.h"

static const ht_stage stages[] = {
    {HT_EMBED, 0, -1},
    {HT_QKV, 0, 0},
    {HT_QKV, HT_BIAS, 0},
    {HT_QKV, HT_QKNORM, 0},
    {HT_QKV, HT_BIAS | HT_QKNORM, 0},
    {HT_ATTN, 0, 0},
    {HT_ATTN, HT_WINDOW, 0},
    {HT_ATTN, HT_CAP, 0},
    {HT_ATTN, HT_WINDOW | HT_CAP, 0},
    {HT_ATTN_OUT, 0, 0},
    {HT_ATTN_OUT, HT_POSTNORM, 0},
    {HT_FFN_UP, 0, 0},
    {HT_FFN_UP, HT_GELU, 0},
    {HT_FFN_DOWN, 0, 0},
    {HT_FFN_DOWN, HT_POSTNORM, 0},
    {HT_ROUTE, 0, 0},
    {HT_ROUTE, HT_RENORM, 0},
    {HT_EXPERTS, 0, 0},
    {HT_EXPERTS, HT_SHARED, 0},
    {HT_EXPERTS, HT_GELU | HT_POSTNORM, 0},
    {HT_EXPERTS, HT_SHARED | HT_GELU, 0},
    {HT_PICK, 0, -1},
    {HT_HEAD, 0, -1},
    {HT_HEAD, HT_CAP, -1},
};

enum { MAX_ROWS = 75, MAX_SEQS = 3, TABLE = FX_CTX / HT_PAGE };
static const struct {
    uint32_t seqs, rows[MAX_SEQS], past[MAX_SEQS];
} row_class[] = {
    {1, {1}, {0}},               /* the first token */
    {1, {1}, {100}},             /* decode */
    {3, {1, 1, 1}, {5, 64, 31}}, /* decode of three, at page edges */
    {1, {7}, {61}},              /* a chunk across a page */
    {2, {33, 40}, {0, 50}},      /* two prefills */
    {3, {1, 70, 4}, {200, 0, 130}},
};

/* What one case compares: a plan's inputs and outputs on one backend. */
typedef struct {
    const ht_backend *be;
    ht_dev *dev;
    ht_pool *pool;
    ht_plan *plan;
} side;

typedef struct {
    fixture *f;
    ht_stage st;
    int type, layout, kv, act;
    uint8_t flags;
    size_t rows_i;
} test_case;

static ht_bucket bucket_of(const test_case *c)
{
    return (ht_bucket){.rows = MAX_ROWS,
                       .seqs = MAX_SEQS,
                       .want = MAX_ROWS,
                       .steps = 1,
                       .ctx = FX_CTX,
                       .kv_fmt = (uint16_t)(c->kv | c->kv << 8),
                       .act = (uint8_t)c->act,
                       .flags = c->flags,
                       .held = c->flags & HT_WANT_MASS ? TABLE : 0};
}

static int pool_alloc(void *of, size_t bytes, void **mem, ht_err *e)
{
    const side *s = of;
    return s->be->kv_alloc(s->dev, bytes, mem, e);
}
static void pool_release(void *of, void *mem, size_t bytes)
{
    const side *s = of;
    if (s->be->kv_free) s->be->kv_free(s->dev, mem, bytes);
    else ht_page_free(mem, bytes);
}

/* false: the backend does not read this packed type. */
static bool open_side(side *s, const ht_backend *be, fixture *f, int kv)
{
    ht_err e = {0};
    uint8_t cls[FX_LAYERS];
    for (int i = 0; i < FX_LAYERS; i++)
        cls[i] = f->layer_spec[i].window ? HT_KV_WINDOW : HT_KV_FULL;
    ht_pool_params p = {.n_layers = FX_LAYERS,
                        .n_kv_heads = FX_KV_HEADS,
                        .head_dim = FX_HEAD_DIM,
                        .window = f->m.spec.window,
                        .layer_class = cls,
                        .type_k = kv,
                        .type_v = kv,
                        .n_pages = {MAX_SEQS * TABLE, MAX_SEQS * TABLE},
                        .n_raw = {MAX_SEQS * TABLE, MAX_SEQS * TABLE},
                        .alloc = pool_alloc,
                        .release = pool_release,
                        .dev = s};
    s->be = be;
    s->plan = NULL;
    T_OK(be->open(&s->dev, "threads=2", &e), e);
    T_OK(be->load(s->dev, &f->m, &e), e);
    T_OK(ht_pool_new(&s->pool, &p, &e), e);
    int rc = be->kv_attach(s->dev, ht_pool_kv(s->pool), &e);
    if (rc == HT_EUNSUPPORTED && ht_kv_packs(kv)) return false;
    T_OK(rc, e);
    ht_kv *pool = ht_pool_kv(s->pool);
    for (int c = 0; c < HT_KV_CLASSES && pool->raw_bytes; c++) /* slot i is page i's */
        for (uint32_t i = 0; i < pool->n_pages[c]; i++) pool->raw_of[c][i] = i;
    return true;
}

static void close_side(side *s)
{
    if (s->plan) s->be->plan_free(s->plan);
    ht_pool_free(s->pool);
    s->be->close(s->dev);
}

/* false: the backend has no span for it. */
static bool plan_side(side *s, const test_case *c)
{
    ht_err e = {0};
    ht_cut cut;
    ht_bucket b = bucket_of(c);
    if (s->plan) s->be->plan_free(s->plan);
    s->plan = NULL;
    if (!ht_cover(s->be, s->dev, &c->f->m, &c->st, 1, &b, NULL, NULL, &cut, &e)) {
        T_EQ_INT(e.code, HT_EUNSUPPORTED);
        return false;
    }
    T_OK(s->be->plan(&s->plan, s->dev, ht_pool_kv(s->pool), &c->st, &cut, 1, &b, &e), e);
    return true;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void *reg(const side *s, int r, size_t *n)
{
    ht_err e = {0};
    void *p;
    T_OK(s->be->reg(s->plan, r, &p, n, &e), e);
    return p;
}

static void fill_reg(const side *s, int r, uint64_t seed)
{
    size_t n;
    float *p = reg(s, r, &n);
    for (size_t i = 0; i < n / sizeof *p; i++) p[i] = 2 * t_randf(&seed);
}

static void fill_choices(const side *s, uint64_t seed)
{
    size_t n;
    ht_choice *p = reg(s, HT_REG_R, &n);
    for (size_t i = 0; i + FX_USED <= n / sizeof *p; i += FX_USED) {
        uint32_t first = (uint32_t)(t_rand(&seed) % FX_EXPERTS);
        for (uint32_t k = 0; k < FX_USED; k++)
            p[i + k] = (ht_choice){(first + k) % FX_EXPERTS, 0.5F + 0.4F * t_randf(&seed)};
    }
}

/* One page of random keys and values, as page_io takes it: of a packed type, packed from the raw
 * slot, which holds the same numbers. */
static void fill_page(const side *s, int cls, uint32_t page, uint64_t seed)
{
    ht_err e = {0};
    enum { ROW = FX_KV_HEADS * FX_HEAD_DIM };
    ht_kv *kv = ht_pool_kv(s->pool);
    uint8_t buf[FX_LAYERS * 2 * HT_PAGE * ROW * 4], *at = buf;
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        for (int v = 0; v < 2; v++) {
            int type = kv->type[l][v];
            float x[HT_PAGE * ROW];
            uint16_t h[HT_PAGE * ROW];
            for (int i = 0; i < HT_PAGE * ROW; i++) {
                x[i] = 2 * t_randf(&seed);
                h[i] = ht_f32_to_f16(x[i]);
            }
            memcpy(at, type == HT_KV_F32 ? (void *)x : (void *)h,
                   sizeof x / (type == HT_KV_F32 ? 1 : 2));
            for (uint32_t k = 0; k < FX_KV_HEADS && ht_kv_packs(type); k++) {
                size_t head = (size_t)kv->page_bytes[l][v] / FX_KV_HEADS;
                ht_kv_pack(type, v, FX_HEAD_DIM, h + k * HT_PAGE * FX_HEAD_DIM, at + k * head);
            }
            if (kv->raw && kv->raw[l][v]) memcpy(ht_kv_head(kv, l, v, page, 0, true), h, sizeof h);
            at += kv->page_bytes[l][v];
        }
    T_OK(s->be->page_io(s->dev, kv, cls, page, buf, 1, &e), e);
}

typedef struct {
    ht_batch b;
    int32_t token[MAX_ROWS], pos[MAX_ROWS];
    uint16_t seq[MAX_ROWS];
    uint32_t want[MAX_ROWS], page[MAX_SEQS * TABLE];
} batch;

static void make_batch(batch *x, const test_case *c)
{
    uint32_t n = 0, seqs = row_class[c->rows_i].seqs;
    uint64_t seed = 3;
    memset(x, 0, sizeof *x);
    for (uint32_t s = 0; s < seqs; s++)
        for (uint32_t i = 0; i < row_class[c->rows_i].rows[s]; i++, n++) {
            x->token[n] = (int32_t)(t_rand(&seed) % FX_VOCAB);
            x->pos[n] = (int32_t)(row_class[c->rows_i].past[s] + i);
            x->seq[n] = (uint16_t)s;
        }
    for (uint32_t i = 0; i < seqs * TABLE; i++) x->page[i] = (i * 7 + 3) % (MAX_SEQS * TABLE);
    /* Evicted pages, beside each other and alone, of those well before the sequence's rows. */
    for (uint32_t i = 0; (c->flags & HT_WANT_MASS) && i < seqs * TABLE; i++)
        if ((i % TABLE == 2 || i % TABLE == 3 || i % TABLE == 5) &&
            (i % TABLE + 1) * HT_PAGE < row_class[c->rows_i].past[i / TABLE])
            x->page[i] = HT_NOPAGE;
    uint32_t n_want = 0; /* every third row and the last */
    for (uint32_t i = 0; i < n; i++)
        if (i % 3 == 1 || i + 1 == n) x->want[n_want++] = i;
    x->b = (ht_batch){.rows = n,
                      .seqs = seqs,
                      .n_want = n_want,
                      .token = x->token,
                      .pos = x->pos,
                      .seq = x->seq,
                      .page = {x->page, x->page},
                      .want = x->want};
}

static const float *run_side(side *s, const test_case *c, const batch *x)
{
    ht_err e = {0};
    const float *logits = NULL;
    int cls = (c->st.flags & HT_WINDOW) ? HT_KV_WINDOW : HT_KV_FULL;
    fill_reg(s, HT_REG_X, 11);
    fill_reg(s, HT_REG_Q, 12);
    fill_reg(s, HT_REG_A, 13);
    fill_reg(s, HT_REG_H, 14);
    fill_choices(s, 15);
    for (uint32_t i = 0; i < MAX_SEQS * TABLE; i++) fill_page(s, cls, i, 100 + i);
    T_OK(s->be->run(s->plan, &x->b, &e), e);
    T_OK(s->be->wait(s->plan, &logits, &e), e);
    return logits;
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Longest sum of a stage: its rounding error grows with it. */
static double depth(const test_case *c)
{
    switch (c->st.kind) {
    case HT_EMBED:
    case HT_PICK: return 1;
    case HT_ATTN: return FX_CTX + FX_HEAD_DIM;
    case HT_EXPERTS: return FX_DIM + 2 * FX_EXPERT_FFN;
    default: return 2 * FX_DIM;
    }
}

/* Largest difference in units of the tolerance depth * 2^-24 * (largest value). With int8
 * activations an input that lies next to a rounding edge may fall on either side of it: one step of
 * 1/127 in one of `cols` products, of which a few may coincide. */
static double distance(const test_case *c, const float *a, const float *b, size_t n)
{
    double top = 1e-6, worst = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, fabs((double)b[i]));
    double tol = depth(c) * ldexp(1, -24) * top;
    if (c->act == HT_ACT_Q8) tol = top * 4.0 / 127 / sqrt(FX_DIM);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]) / tol;
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static double compare_reg(const test_case *c, const side *a, const side *b, int r, size_t n)
{
    size_t na, nb;
    const float *x = reg(a, r, &na), *y = reg(b, r, &nb);
    T_CHECK(na >= n * sizeof(float) && nb >= n * sizeof(float), "register %d holds the rows", r);
    return distance(c, x, y, n);
}

/* Stored keys and values of all pages, packed types raw. F16: half a step of rounding on top. */
static double compare_cache(const test_case *c, const side *a, const side *b, const batch *x)
{
    ht_err e = {0};
    enum { N = HT_PAGE * FX_KV_HEADS * FX_HEAD_DIM };
    static float fa[N], fb[N];
    static uint8_t pa[FX_LAYERS * 2 * N * 4], pb[sizeof pa];
    double worst = 0;
    size_t size = c->kv == HT_KV_F32 ? 4 : 2;
    const ht_kv *ka = ht_pool_kv(a->pool), *kb = ht_pool_kv(b->pool);
    for (uint32_t i = 0; i < MAX_SEQS * TABLE; i++) {
        T_OK(a->be->page_io(a->dev, ht_pool_kv(a->pool), HT_KV_FULL, i, pa, 0, &e), e);
        T_OK(b->be->page_io(b->dev, ht_pool_kv(b->pool), HT_KV_FULL, i, pb, 0, &e), e);
        for (int v = 0; v < 2; v++) {
            const uint8_t *at = pa + (size_t)v * N * size, *bt = pb + (size_t)v * N * size;
            if (ht_kv_packs(c->kv)) {
                at = ht_kv_head(ka, 0, v, i, 0, true);
                bt = ht_kv_head(kb, 0, v, i, 0, true);
            }
            ht_types[size == 2 ? HT_F16 : HT_F32].decode(at, fa, N);
            ht_types[size == 2 ? HT_F16 : HT_F32].decode(bt, fb, N);
            double d = distance(c, fa, fb, N);
            worst =
                fmax(worst, size == 2 && d < ldexp(1, -10) / (depth(c) * ldexp(1, -24)) ? 0 : d);
        }
    }
    (void)x;
    return worst;
}

static double compare_choices(const side *a, const side *b, uint32_t rows)
{
    size_t n;
    const ht_choice *x = reg(a, HT_REG_R, &n), *y = reg(b, HT_REG_R, &n);
    double worst = 0;
    for (size_t i = 0; i < (size_t)rows * FX_USED; i++) {
        T_EQ_INT(x[i].id, y[i].id);
        worst = fmax(worst, fabs((double)x[i].w - (double)y[i].w) / 1e-5);
    }
    return worst;
}

static double compare(const test_case *c, const side *a, const side *b, const batch *x,
                      const float *la, const float *lb)
{
    size_t rows = x->b.rows, want = x->b.n_want, q = FX_HEADS * FX_HEAD_DIM;
    switch (c->st.kind) {
    case HT_QKV: return fmax(compare_reg(c, a, b, HT_REG_Q, rows * q), compare_cache(c, a, b, x));
    case HT_ATTN: return compare_reg(c, a, b, HT_REG_A, rows * q);
    case HT_FFN_UP: return compare_reg(c, a, b, HT_REG_H, rows * FX_FFN);
    case HT_ROUTE: return compare_choices(a, b, x->b.rows);
    case HT_PICK:
        return fmax(compare_reg(c, a, b, HT_REG_X, want * FX_DIM),
                    compare_reg(c, a, b, HT_REG_Q, want * q));
    case HT_HEAD: return distance(c, la, lb, want * FX_VOCAB);
    default: return compare_reg(c, a, b, HT_REG_X, rows * FX_DIM);
    }
}

/* ---- the matrix ------------------------------------------------------------------------------ */

typedef struct {
    unsigned ran, refused;
} tally;

static void describe(const test_case *c, const char *be, char out[200])
{
    char st[80];
    ht_stage_text(&c->st, st);
    (void)snprintf(out, 200, "%s %s %s %s kv %s act %d rows %zu flags %u", be, st,
                   ht_types[c->type].name, ht_layout_name(c->layout, c->type),
                   ht_kvtype_name(c->kv), c->act, c->rows_i, c->flags);
}

/* All row classes of one configuration, on one backend. */
static void run_rows(test_case *c, side *ref, side *other, tally *t)
{
    char what[200];
    describe(c, other->be->name, what);
    T_CHECK(plan_side(ref, c), "ref covers everything: %s", what);
    if (!plan_side(other, c)) {
        t->refused++;
        printf("  not covered: %s\n", what);
        return;
    }
    for (c->rows_i = 0; c->rows_i < sizeof row_class / sizeof *row_class; c->rows_i++) {
        batch x;
        make_batch(&x, c);
        const float *lr = run_side(ref, c, &x), *lo = run_side(other, c, &x);
        double d = compare(c, other, ref, &x, lo, lr);
        describe(c, other->be->name, what);
        T_SOFT(d <= 1, "%s: %.2f tolerances off", what, d);
        t->ran++;
    }
}

static bool reads_weights(int kind)
{
    return kind != HT_ATTN && kind != HT_PICK && kind != HT_ROUTE;
}
static bool uses_cache(int kind)
{
    return kind == HT_QKV || kind == HT_ATTN;
}

/* One stage over KV types and arithmetic. */
static void run_stage(test_case *c, const ht_backend *be, const ht_backend *ref, tally *t)
{
    bool quantised = ht_types[c->type].block > 1;
    /* Packed types differ in how the cache is read: with one type of weights. */
    int kvs = !uses_cache(c->st.kind) ? 1 : c->type == HT_F32 ? HT_KVTYPES : HT_KV_F16 + 1;
    for (c->kv = 0; c->kv < kvs; c->kv++) {
        side a, b;
        fixture_flags(c->f, &c->st);
        T_TRUE(open_side(&a, ref, c->f, c->kv));
        if (!open_side(&b, be, c->f, c->kv)) {
            T_TRUE(be != ref);
            printf("  %s does not read kv %s\n", be->name, ht_kvtype_name(c->kv));
            t->refused++;
            close_side(&a);
            close_side(&b);
            continue;
        }
        for (c->act = HT_ACT_F32; c->act <= HT_ACT_Q8; c->act++)
            if (c->act == HT_ACT_F32 || (quantised && reads_weights(c->st.kind)))
                run_rows(c, &a, &b, t);
        c->act = HT_ACT_F32;
        if (c->st.kind == HT_ATTN && !(c->st.flags & HT_WINDOW)) {
            c->flags |= HT_WANT_MASS;
            run_rows(c, &a, &b, t);
            c->flags &= (uint8_t)~HT_WANT_MASS;
        }
        close_side(&a);
        close_side(&b);
    }
}

/* A device of a backend that can work here, held over many cases so that each need not start the
 * hardware anew; NULL: it cannot, for the reason shown. */
static ht_dev *hold(const ht_backend *be)
{
    ht_err e = {0};
    ht_dev *dev = NULL;
    if (!be->open(&dev, "", &e)) return dev;
    T_EQ_INT(e.code, HT_EUNSUPPORTED);
    printf("  %s cannot work here: %s\n", be->name, e.msg);
    return NULL;
}

/* Every stage of a kind range on every backend but ref, for one weight type, layout and
 * alternate. */
static void run_type(int type, int layout, int alt, bool weightless)
{
    const ht_backend *ref = ht_backend_find("ref");
    fixture *f = fixture_new(type, layout, alt);
    test_case c = {.f = f, .type = type, .layout = layout, .flags = alt >= 0 ? HT_ALT_REP : 0};
    unsigned others = 0;
    T_CHECK(ref != NULL, "ref is in the list");
    for (size_t k = 0; ht_backends[k]; k++) {
        tally t = {0, 0};
        /* Whole prompts only: tests/golden/graph.c has its cases. */
        if (ht_backends[k]->buckets) continue;
        ht_dev *held = ht_backends[k] == ref ? NULL : hold(ht_backends[k]);
        if (!held) continue;
        others++;
        for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
            c.st = stages[i];
            if (reads_weights(c.st.kind) || weightless) run_stage(&c, ht_backends[k], ref, &t);
        }
        T_CHECK(t.ran > 0, "%s ran none of the stages of %s", ht_backends[k]->name,
                ht_types[type].name);
        ht_backends[k]->close(held);
    }
    fixture_free(f);
    if (!others) T_SKIP("this build has no backend beside ref");
}

/* Types by name, so that each is a case of its own; `every_type_has_a_case` keeps the list
 * whole. */
#define TYPES(X)                                                                                   \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(Q8_0)                                                                                        \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(MXFP4)
#define CASE(T)                                                                                    \
    T_CASE_SECONDS(stage, T##_rows, 240)                                                           \
    {                                                                                              \
        run_type(HT_##T, HT_LAYOUT_ROWS, -1, HT_##T == HT_F32);                                    \
    }                                                                                              \
    T_CASE_SECONDS(stage, T##_r16, 240)                                                            \
    {                                                                                              \
        run_type(HT_##T, HT_LAYOUT_R16, -1, false);                                                \
    }
TYPES(CASE)

T_CASE_SECONDS(stage, alternate_representation, 240)
{
    run_type(HT_F16, HT_LAYOUT_R16, HT_Q8_0, false);
}

T_CASE(stage, every_type_has_a_case)
{
    static const int listed[] = {
#define NAME(T) HT_##T,
        TYPES(NAME)
#undef NAME
    };
    for (int t = 0; t < HT_TYPES; t++) {
        bool found = t == HT_I32; /* holds no weights */
        for (size_t i = 0; i < sizeof listed / sizeof *listed; i++) found = found || listed[i] == t;
        T_CHECK(found && (t == HT_I32 || ht_types[t].encode), "%s", ht_types[t].name);
    }
}
