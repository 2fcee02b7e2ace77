/* pair.c - see pair.h. */
#include "pair.h"
#include "hetero.h"

const uint16_t pair_rows[PAIR_BUCKETS] = {32, 128, 512, 2048};

static ht_bucket bucket_of(const pair *d, uint32_t rows, uint32_t want, bool graph)
{
    return (ht_bucket){.rows = (uint16_t)rows,
                       .seqs = 1,
                       .want = (uint16_t)want,
                       .steps = 1,
                       .ctx = d->p.ctx,
                       .past = graph ? 0 : d->p.ctx,
                       .kv_fmt = (uint16_t)(d->p.type_k | d->p.type_v << 8),
                       .act = graph ? d->p.act : HT_ACT_F32};
}

static void open_pool(pair *d)
{
    ht_err e = {0};
    const ht_spec *s = &d->model->spec;
    uint8_t *cls = calloc(s->n_layers, 1);
    for (uint32_t i = 0; i < s->n_layers; i++)
        cls[i] = s->layer[i].window ? HT_KV_WINDOW : HT_KV_FULL;
    ht_pool_params pp = {.n_layers = s->n_layers,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = s->head_dim,
                         .window = s->window,
                         .layer_class = cls,
                         .type_k = d->p.type_k,
                         .type_v = d->p.type_v};
    ht_pool_size(d->p.ctx, 2, s->window, 2048, pp.n_pages);
    T_OK(ht_pool_new(&d->pool, &pp, &e), e);
    T_OK(d->graph->kv_attach(d->gdev, ht_pool_kv(d->pool), &e), e);
    T_OK(d->cpu->kv_attach(d->cdev, ht_pool_kv(d->pool), &e), e);
    free(cls);
}

static bool make(pair *d, const ht_backend *be, ht_dev *dev, const ht_bucket *b, ht_plan **out)
{
    ht_err e = {0};
    ht_cut *cut = calloc(d->n_tape, sizeof *cut);
    const size_t n = ht_cover(be, dev, d->model, d->tape, d->n_tape, b, NULL, NULL, cut, &e);
    if (n) T_OK(be->plan(out, dev, ht_pool_kv(d->pool), d->tape, cut, n, b, &e), e);
    else T_EQ_INT(e.code, HT_EUNSUPPORTED);
    free(cut);
    return n != 0;
}

bool pair_open(pair *d, const char *path, const pair_params *p)
{
    ht_err e = {0};
    memset(d, 0, sizeof *d);
    d->p = *p;
    d->graph = ht_backend_find("graph");
    d->cpu = ht_backend_find("cpu");
    if (d->graph->open(&d->gdev, p->opts ? p->opts : "threads=2", &e)) {
        T_EQ_INT(e.code, HT_EUNSUPPORTED);
        T_SKIP("%s", e.msg);
    }
    T_OK(d->cpu->open(&d->cdev, "threads=2", &e), e);
    T_OK(ht_file_open(&d->file, path, NULL, &e), e);
    T_OK(ht_model_open(&d->model, d->file, NULL, NULL, &e), e);
    T_OK(d->graph->load(d->gdev, d->model, &e), e);
    T_OK(d->cpu->load(d->cdev, d->model, &e), e);
    open_pool(d);
    d->n_tape = ht_tape(d->model, NULL, 0);
    d->tape = calloc(d->n_tape, sizeof *d->tape);
    (void)ht_tape(d->model, d->tape, d->n_tape);
    const ht_bucket one = bucket_of(d, 1, 1, false), b = bucket_of(d, 32, 1, true);
    ht_cut *cut = calloc(d->n_tape, sizeof *cut);
    const size_t n =
        ht_cover(d->graph, d->gdev, d->model, d->tape, d->n_tape, &b, NULL, NULL, cut, &e);
    free(cut);
    if (n == 0) {
        T_EQ_INT(e.code, HT_EUNSUPPORTED);
        pair_close(d);
        return false;
    }
    T_EQ_INT(n, 1);
    T_CHECK(make(d, d->cpu, d->cdev, &one, &d->decode), "cpu covers every model");
    return true;
}

ht_plan *pair_plan(pair *d, int bucket)
{
    const ht_bucket b = bucket_of(d, pair_rows[bucket], PAIR_WANT, true);
    if (!d->prefill[bucket])
        T_CHECK(make(d, d->graph, d->gdev, &b, &d->prefill[bucket]), "bucket %d is not covered",
                bucket);
    return d->prefill[bucket];
}

void pair_close(pair *d)
{
    for (int i = 0; i < PAIR_BUCKETS; i++)
        if (d->prefill[i]) d->graph->plan_free(d->prefill[i]);
    if (d->decode) d->cpu->plan_free(d->decode);
    ht_pool_free(d->pool);
    if (d->gdev) d->graph->close(d->gdev);
    if (d->cdev) d->cpu->close(d->cdev);
    ht_model_free(d->model);
    ht_file_close(d->file);
    free(d->tape);
}

int pair_bucket(uint32_t n)
{
    int b = 0;
    while (b + 1 < PAIR_BUCKETS && pair_rows[b] < n) b++;
    return b;
}

/* Reserve `room` positions, run n rows, keep n. */
static void run(pair *d, const ht_backend *be, ht_plan *plan, ht_seq *seq, uint32_t room,
                const int32_t *ids, uint32_t n, const uint32_t *want, uint32_t n_want,
                bool rope_long, float *logits)
{
    ht_err e = {0};
    const uint32_t len = ht_seq_len(seq);
    int32_t *pos = calloc(n, sizeof *pos);
    uint16_t *owner = calloc(n, sizeof *owner);
    const uint8_t lengthy = rope_long;
    const float *l = NULL;
    ht_run_stats st = {0};
    T_OK(ht_seq_reserve(seq, room, &e), e);
    for (uint32_t i = 0; i < n; i++) pos[i] = (int32_t)(len + i);
    ht_batch b = {.rows = n,
                  .seqs = 1,
                  .n_want = n_want,
                  .token = ids,
                  .pos = pos,
                  .seq = owner,
                  .page = {ht_seq_pages(seq, 0), ht_seq_pages(seq, 1)},
                  .want = want,
                  .rope_long = &lengthy};
    T_OK(be->run(plan, &b, &e), e);
    T_OK(be->wait(plan, &l, &e), e);
    ht_seq_advance(seq, n);
    T_OK(ht_seq_truncate(seq, len + n, &e), e); /* gives the padding's pages back */
    T_EQ_INT(be->stats(plan, &st), 0);
    T_EQ_INT(st.host_copy_bytes + st.device_copy_bytes, 0);
    if (n_want) memcpy(logits, l, (size_t)n_want * d->model->spec.vocab * sizeof *l);
    free(pos);
    free(owner);
}

void pair_prefill(pair *d, int bucket, ht_seq *seq, const int32_t *ids, uint32_t n,
                  const uint32_t *want, uint32_t n_want, bool rope_long, float *logits)
{
    run(d, d->graph, pair_plan(d, bucket), seq, pair_rows[bucket], ids, n, want, n_want, rope_long,
        logits);
}

void pair_step(pair *d, ht_seq *seq, int32_t id, bool rope_long, float *logits)
{
    const uint32_t zero = 0;
    run(d, d->cpu, d->decode, seq, 1, &id, 1, &zero, 1, rope_long, logits);
}

const char *pair_packed(const char *precision)
{
    static char path[300];
    ht_err err = {0};
    const ht_pack_params p = {.precision = precision};
    (void)snprintf(path, sizeof path, "%s/%s.heteropack", t_tmp(), precision);
    T_OK(ht_pack_make("models/tale-9m-f16.gguf", path, &p, NULL, &err), err);
    return path;
}
