/* ref.c - what golden models do not reach: refusals, cancelling, batches of several sequences,
 * chunks, attention mass, evicted pages, long factors, counters. A tiny random model in memory. */
#include "backend/ref/ref.h"
#include "test.h"

#include <pthread.h>

enum {
    L = 2,
    DIM = 32,
    HEADS = 4,
    KV = 2,
    HD = 16,
    FFN = 64,
    VOCAB = 40,
    CTX = 288,
    TABLE = CTX / HT_PAGE
};

typedef struct {
    ht_model m;
    ht_layer layer[L];
    ht_layer_spec ls[L];
    float freq[2][HD / 2];
    uint64_t rng;
    void *mem[64];
    int n;
    ht_dev *dev;
    ht_kv kv;
    uint8_t cls[L], type[L][2], *plane[L][2];
    uint64_t page_bytes[L][2];
} world;

static float *floats(world *w, size_t n, float mean, float scale)
{
    float *p = w->mem[w->n++] = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = mean + scale * t_randf(&w->rng);
    return p;
}

static ht_weight weight(world *w, uint32_t rows, uint32_t cols)
{
    return (ht_weight){.data = floats(w, (size_t)rows * cols, 0, 0.3F),
                       .rows = rows,
                       .cols = cols,
                       .n_mats = 1,
                       .type = HT_F32,
                       .row_bytes = cols * 4ULL,
                       .mat_bytes = 4ULL * rows * cols,
                       .bytes = 4ULL * rows * cols,
                       .id = w->m.n_weights++};
}

static world *new_world(void)
{
    ht_err e = {0};
    world *w = calloc(1, sizeof *w);
    w->rng = 4;
    w->m.layer = w->layer;
    w->m.spec = (ht_spec){.n_layers = L,
                          .dim = DIM,
                          .n_heads = HEADS,
                          .n_kv_heads = KV,
                          .head_dim = HD,
                          .ffn = FFN,
                          .vocab = VOCAB,
                          .ctx_train = CTX,
                          .rms_eps = 1e-5F,
                          .embed_scale = 1,
                          .attn_scale = 0.25F,
                          .layer = w->ls};
    for (int i = 0; i < HD / 2; i++) w->freq[0][i] = powf(10, -(float)i), w->freq[1][i] = 0.01F;
    w->m.spec.rope[0] = (ht_rope){HD, 1, w->freq[0], w->freq[1]};
    w->m.embed = weight(w, VOCAB, DIM);
    w->m.head = weight(w, VOCAB, DIM);
    w->m.final_norm = floats(w, DIM, 1, 0.1F);
    for (int i = 0; i < L; i++) {
        ht_layer *l = &w->layer[i];
        l->attn_norm = floats(w, DIM, 1, 0.1F);
        l->ffn_norm = floats(w, DIM, 1, 0.1F);
        l->q = weight(w, HEADS * HD, DIM);
        l->k = weight(w, KV * HD, DIM);
        l->v = weight(w, KV * HD, DIM);
        l->o = weight(w, DIM, HEADS * HD);
        l->gate = weight(w, FFN, DIM);
        l->up = weight(w, FFN, DIM);
        l->down = weight(w, DIM, FFN);
        for (int v = 0; v < 2; v++) {
            w->page_bytes[i][v] = ht_kv_page_bytes(HT_KV_F32, KV, HD);
            w->plane[i][v] = (uint8_t *)floats(w, (size_t)4 * TABLE * HT_PAGE * KV * HD, 0, 0);
        }
    }
    w->kv = (ht_kv){.n_layers = L,
                    .n_kv_heads = KV,
                    .head_dim = HD,
                    .n_pages = {4 * TABLE, 0},
                    .layer_class = w->cls,
                    .type = w->type,
                    .page_bytes = w->page_bytes,
                    .plane = w->plane};
    T_OK(ht_backend_ref.open(&w->dev, "", &e), e);
    T_OK(ht_backend_ref.load(w->dev, &w->m, &e), e);
    return w;
}

static void free_world(world *w)
{
    ht_backend_ref.close(w->dev);
    for (int i = 0; i < w->n; i++) free(w->mem[i]);
    free(w);
}

static const ht_bucket whole = {.rows = 100, .seqs = 3, .want = 100, .steps = 1, .ctx = CTX};

static ht_plan *new_plan(world *w, const ht_bucket *b)
{
    ht_err e = {0};
    ht_stage tape[5 * L + 3];
    ht_cut cut[5 * L + 3];
    ht_plan *p;
    size_t n = ht_tape(&w->m, tape, 5 * L + 3);
    size_t k = ht_cover(&ht_backend_ref, w->dev, &w->m, tape, n, b, NULL, NULL, cut, &e);
    T_EQ_INT(k, n);
    T_OK(ht_backend_ref.plan(&p, w->dev, &w->kv, tape, cut, k, b, &e), e);
    return p;
}

typedef struct {
    ht_batch b;
    int32_t token[100], pos[100];
    uint16_t seq[100];
    uint32_t want[100], page[3 * TABLE];
} batch;

/* Rows of one sequence, positions from `past` on, all wanted; sequence s uses pages from s*TABLE
 * on. */
static void rows_of(batch *x, uint32_t seq, uint32_t past, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = x->b.rows++;
        x->token[r] = (int32_t)((past + i) * 7 + seq * 3) % VOCAB;
        x->pos[r] = (int32_t)(past + i);
        x->seq[r] = (uint16_t)seq;
        x->want[x->b.n_want++] = r;
    }
    if (x->b.seqs <= seq) x->b.seqs = seq + 1;
    for (uint32_t i = 0; i < 3 * TABLE; i++) x->page[i] = i;
    x->b.token = x->token, x->b.pos = x->pos, x->b.seq = x->seq, x->b.want = x->want;
    x->b.page[0] = x->page;
}

static const float *run(ht_plan *p, const batch *x)
{
    ht_err e = {0};
    const float *l;
    T_OK(ht_backend_ref.run(p, &x->b, &e), e);
    T_OK(ht_backend_ref.wait(p, &l, &e), e);
    return l;
}

/* The same tokens alone, in chunks, one by one and beside other sequences: the same bits. */
T_CASE(ref, batching_does_not_change_bits)
{
    world *w = new_world();
    ht_plan *p = new_plan(w, &whole);
    batch all = {0}, mixed = {0};
    rows_of(&all, 0, 0, 50);
    float *want = malloc(50 * VOCAB * sizeof *want);
    memcpy(want, run(p, &all), 50 * VOCAB * sizeof *want);
    for (uint32_t at = 0, n; at < 50; at += n) {
        batch x = {0};
        n = at % 7 + 1 > 50 - at ? 50 - at : at % 7 + 1;
        rows_of(&x, 0, at, n);
        T_EQ_MEM(run(p, &x), want + at * VOCAB, n * VOCAB * sizeof *want);
    }
    rows_of(&mixed, 2, 0, 20);
    rows_of(&mixed, 0, 0, 50);
    rows_of(&mixed, 1, 0, 1);
    T_EQ_MEM(run(p, &mixed) + 20 * VOCAB, want, 50 * VOCAB * sizeof *want);
    /* Only some rows are wanted, in any order. */
    uint32_t some[3] = {49, 3, 17};
    all.b.want = some, all.b.n_want = 3;
    const float *l = run(p, &all);
    for (int i = 0; i < 3; i++)
        T_EQ_MEM(l + i * VOCAB, want + some[i] * VOCAB, VOCAB * sizeof *want);
    free(want);
    ht_backend_ref.plan_free(p);
    free_world(w);
}

T_CASE(ref, a_step_allocates_nothing_and_counts)
{
    world *w = new_world();
    ht_plan *p = new_plan(w, &whole);
    ht_run_stats st;
    batch x = {0};
    rows_of(&x, 0, 0, 9);
    uint64_t before = ht_alloc_count();
    (void)run(p, &x);
    T_EQ_INT(ht_alloc_count(), before);
    T_EQ_INT(ht_backend_ref.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 5 * L + 3);
    T_EQ_INT(st.host_copy_bytes + st.device_copy_bytes, 0);
    T_CHECK(st.flops > 0 && st.bytes > 0 && st.ns > 0, "%llu", (unsigned long long)st.flops);
    ht_backend_ref.plan_free(p);
    /* Nobody wants logits: the step ends behind the last QKV. */
    ht_bucket b = whole;
    b.want = 0;
    p = new_plan(w, &b);
    x.b.n_want = 0;
    (void)run(p, &x);
    T_EQ_INT(ht_backend_ref.stats(p, &st), 0);
    T_EQ_INT(st.dispatches, 5 * (L - 1) + 2);
    ht_backend_ref.plan_free(p);
    free_world(w);
}

T_CASE(ref, bad_batches_are_refused)
{
    ht_err e = {0};
    world *w = new_world();
    ht_plan *p = new_plan(w, &whole);
    batch x = {0};
    rows_of(&x, 0, 0, 4);
    x.token[2] = VOCAB;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "row 2: token 40");
    x.token[2] = -1;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "token -1");
    x.token[2] = 0;
    x.pos[1] = CTX;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "position 288");
    x.pos[1] = 1;
    x.seq[3] = 1;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "sequence 1 of 1");
    x.seq[3] = 0;
    x.want[0] = 4;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "wanted row 4");
    x.want[0] = 0;
    x.page[0] = HT_NOPAGE;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "no page");
    x.page[0] = 4 * TABLE;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "no page");
    x.page[0] = 0;
    x.b.parent = x.pos;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EUNSUPPORTED, e, "draft trees");
    x.b.parent = NULL;
    x.b.rows = 101;
    T_ERR(ht_backend_ref.run(p, &x.b, &e), HT_EARG, e, "101 rows");
    const float *l;
    T_ERR(ht_backend_ref.wait(p, &l, &e), HT_EARG, e, "wait without run");
    ht_backend_ref.plan_free(p);
    free_world(w);
}

/* What an observing query gives to the pages adds up to its heads in every layer but the last; an
 * evicted page gets none and is not read, and the pages behind it move up. Other positions leave
 * what is there alone. */
T_CASE(ref, mass_and_evicted_pages)
{
    world *w = new_world();
    ht_bucket b = whole;
    b.flags = HT_WANT_MASS;
    b.held = TABLE;
    ht_plan *p = new_plan(w, &b);
    float mass[HT_PAGE][KV][TABLE], *list[1] = {&mass[0][0][0]}, before[VOCAB], first[KV][TABLE];
    batch y = {0};
    for (uint32_t at = 0; at < 240; at += 80) {
        batch x = {0};
        rows_of(&x, 0, at, 80);
        (void)run(p, &x);
    }
    rows_of(&y, 0, 240, 1);
    y.b.mass = list;
    for (float *m = &mass[0][0][0]; m < &mass[HT_PAGE - 1][KV - 1][TABLE - 1]; m++) *m = 7;
    memcpy(before, run(p, &y), sizeof before);
    memcpy(first, mass[240 % HT_PAGE], sizeof first);
    T_NEAR(mass[0][0][0], 7, 0);
    for (int h = 0; h < KV; h++) {
        double sum = 0;
        for (int k = 0; k < TABLE; k++) sum += (double)first[h][k];
        T_NEAR(sum, (L - 1) * HEADS / KV, 1e-4);
        T_CHECK(first[h][7] > 0 && !(first[h][8] > 0), "eight pages hold keys");
    }
    y.page[2] = HT_NOPAGE;
    const float *after = run(p, &y);
    T_CHECK(memcmp(before, after, sizeof before) != 0, "keys are missing now");
    for (int h = 0; h < KV; h++) {
        const float *m = mass[240 % HT_PAGE][h];
        double left = (double)(L - 1) * HEADS / KV;
        for (int k = 0; k < TABLE; k++) left -= (double)m[k];
        T_NEAR(left, 0, 1e-4);
        T_CHECK(m[6] > 0 && !(m[7] > 0), "seven pages hold keys");
        T_CHECK(m[2] > first[h][3] && m[1] > first[h][1], "the others share what it got");
    }
    ht_backend_ref.plan_free(p);
    free_world(w);
}

T_CASE(ref, long_factors_by_sequence)
{
    world *w = new_world();
    ht_plan *p = new_plan(w, &whole);
    batch x = {0}, y = {0};
    rows_of(&x, 0, 0, 20);
    float brief[VOCAB];
    memcpy(brief, run(p, &x) + 19 * VOCAB, sizeof brief);
    uint8_t lengthy[2] = {0, 1};
    rows_of(&y, 0, 0, 20);
    y.b.rope_long = lengthy;
    T_EQ_MEM(run(p, &y) + 19 * VOCAB, brief, sizeof brief);
    lengthy[0] = 1;
    T_CHECK(memcmp(run(p, &y) + 19 * VOCAB, brief, sizeof brief) != 0, "the long set is another");
    ht_backend_ref.plan_free(p);
    free_world(w);
}

typedef struct {
    ht_plan *p;
    atomic_int stop;
} canceller;

static void *keep_cancelling(void *arg)
{
    canceller *c = arg;
    while (!atomic_load(&c->stop)) (void)ht_backend_ref.cancel(c->p);
    return NULL;
}

/* A run in flight ends with HT_ECANCELLED and no logits. A cancel that no run was in flight for is
 * used up by the next one; then the plan works as before. */
T_CASE(ref, cancel_and_go_on)
{
    ht_err e = {0};
    world *w = new_world();
    ht_plan *p = new_plan(w, &whole);
    batch x = {0};
    rows_of(&x, 0, 0, 100);
    float want[VOCAB];
    memcpy(want, run(p, &x) + 99 * VOCAB, sizeof want);
    canceller c = {.p = p};
    pthread_t t;
    T_EQ_INT(pthread_create(&t, NULL, keep_cancelling, &c), 0);
    int cancelled = 0;
    for (int i = 0; i < 200 && !cancelled; i++) {
        const float *l;
        T_OK(ht_backend_ref.run(p, &x.b, &e), e);
        int rc = ht_backend_ref.wait(p, &l, &e);
        T_CHECK(rc == 0 || (rc == HT_ECANCELLED && !l), "%d", rc);
        cancelled = rc != 0;
    }
    atomic_store(&c.stop, 1);
    (void)pthread_join(t, NULL);
    T_CHECK(cancelled, "one of 200 runs was cancelled");
    const float *none;
    T_EQ_INT(ht_backend_ref.cancel(p), 0);
    T_OK(ht_backend_ref.run(p, &x.b, &e), e);
    T_ERR(ht_backend_ref.wait(p, &none, &e), HT_ECANCELLED, e, "cancelled");
    T_EQ_MEM(run(p, &x) + 99 * VOCAB, want, sizeof want);
    ht_backend_ref.plan_free(p);
    free_world(w);
}

T_CASE(ref, footprint_and_allocation_failures)
{
    world *w = new_world();
    ht_footprint fp;
    ht_stage tape[5 * L + 3];
    ht_cut cut[5 * L + 3];
    ht_err e = {0};
    ht_plan *p;
    size_t n = ht_tape(&w->m, tape, 5 * L + 3);
    T_EQ_INT(ht_backend_ref.footprint(w->dev, &w->m, tape, n, &whole, &fp, &e), 0);
    T_EQ_INT(fp.copied, 0);
    T_CHECK(fp.scratch > 100 * VOCAB * 4 && fp.scratch < 1 << 20, "%llu",
            (unsigned long long)fp.scratch);
    size_t k = ht_cover(&ht_backend_ref, w->dev, &w->m, tape, n, &whole, NULL, NULL, cut, &e);
    int failures = 0;
    for (uint64_t at = 1, done = 0; !done; at++) {
        ht_alloc_fail_at(at);
        int rc = ht_backend_ref.plan(&p, w->dev, &w->kv, tape, cut, k, &whole, &e);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || rc == HT_ENOMEM, "%d", rc);
        failures += rc != 0;
        done = rc == 0;
        ht_backend_ref.plan_free(p);
    }
    T_CHECK(failures >= 2, "%d", failures);
    free_world(w);
}
