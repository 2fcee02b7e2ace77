/* drive.c - see drive.h. */
#include "drive.h"
#include <limits.h>
#include <unistd.h>

static ht_bucket bucket(const drive *d)
{
    const drive_params *p = &d->p;
    uint16_t rows = (uint16_t)p->ubatch;
    return (ht_bucket){.rows = rows,
                       .seqs = (uint16_t)(p->seqs ? p->seqs : 1),
                       .want = rows,
                       .steps = 1,
                       .ctx = p->ctx,
                       .past = 0,
                       .kv_fmt = (uint16_t)(p->type_k | p->type_v << 8),
                       .act = (uint8_t)p->act,
                       .flags = p->flags};
}

static int pool_alloc(void *of, size_t bytes, void **mem, ht_err *e)
{
    const drive *d = of;
    return d->p.be->kv_alloc(d->dev, bytes, mem, e);
}
static void pool_release(void *of, void *mem, size_t bytes)
{
    const drive *d = of;
    if (d->p.be->kv_free) d->p.be->kv_free(d->dev, mem, bytes);
    else ht_page_free(mem, bytes);
}

static void open_pool(drive *d, ht_err *e)
{
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
                         .type_v = d->p.type_v,
                         .alloc = pool_alloc,
                         .release = pool_release,
                         .dev = d};
    ht_pool_size(d->p.ctx, d->p.seqs ? d->p.seqs : 1, s->window, d->p.ubatch, pp.n_pages);
    T_OK(ht_pool_new(&d->pool, &pp, e), *e);
    T_OK(d->p.be->kv_attach(d->dev, ht_pool_kv(d->pool), e), *e);
    free(cls);
}

/* A refusal is allowed, for its reason; any other failure is none. */
static bool refused(drive *d, const ht_err *e)
{
    T_EQ_INT(e->code, HT_EUNSUPPORTED);
    printf("  %s is left out: %s\n", d->p.be->name, e->msg);
    drive_close(d);
    return false;
}

const char *drive_golden(const char *name, const char *file)
{
    static char path[PATH_MAX + 200];
    char self[PATH_MAX], rel[200];
    (void)snprintf(path, sizeof path, "tests/data/golden/arch/%s/%s", name, file);
    if (access(path, R_OK) == 0) return path;
    (void)snprintf(path, sizeof path, "tests/data/golden/own/%s", name);
    if (access(path, R_OK) == 0) {
        const ssize_t n = readlink("/proc/self/exe", self, sizeof self); /* B/test/golden */
        for (int up = 0, i = (int)n; i-- > 0 && up < 2;)
            if (self[i] == '/' && ++up == 2)
                (void)snprintf(path, sizeof path, "%.*s/golden/own/%s/%s", i, self, name, file);
        T_CHECK(access(path, R_OK) == 0, "%s is absent; `make own-models` writes it", path);
        return path;
    }
    (void)snprintf(rel, sizeof rel, "golden/arch/%s/%s", name, file);
    return t_shared(rel);
}

bool drive_open(drive *d, const char *path, const drive_params *p)
{
    ht_err e = {0};
    memset(d, 0, sizeof *d);
    d->p = *p;
    d->n_table = (p->ctx + HT_PAGE - 1) / HT_PAGE;
    T_OK(ht_file_open(&d->file, path, NULL, &e), e);
    T_OK(ht_model_open(&d->model, d->file, NULL, NULL, &e), e);
    if (p->be->open(&d->dev, "threads=2", &e)) return refused(d, &e);
    T_OK(p->be->load(d->dev, d->model, &e), e);
    open_pool(d, &e);
    d->n_tape = ht_tape(d->model, NULL, 0);
    d->tape = calloc(d->n_tape, sizeof *d->tape);
    d->cut = calloc(d->n_tape, sizeof *d->cut);
    (void)ht_tape(d->model, d->tape, d->n_tape);
    ht_bucket b = bucket(d);
    d->n_cuts = ht_cover(p->be, d->dev, d->model, d->tape, d->n_tape, &b, NULL, NULL, d->cut, &e);
    if (d->n_cuts == 0) return refused(d, &e);
    T_OK(p->be->plan(&d->plan, d->dev, ht_pool_kv(d->pool), d->tape, d->cut, d->n_cuts, &b, &e), e);
    return true;
}

void drive_close(drive *d)
{
    if (d->plan) d->p.be->plan_free(d->plan);
    ht_pool_free(d->pool);
    if (d->dev) d->p.be->close(d->dev);
    ht_model_free(d->model);
    ht_file_close(d->file);
    free(d->tape);
    free(d->cut);
}

/* One chunk: rows [at, at+n) of ids; wanted ones among want[] go to logits, which advances. */
static uint32_t eval_chunk(drive *d, ht_seq *seq, const int32_t *ids, uint32_t at, uint32_t n,
                           const uint32_t *want, uint32_t n_want, bool rope_long, float *logits)
{
    ht_err e = {0};
    int32_t *pos = calloc(n, sizeof *pos);
    uint16_t *owner = calloc(n, sizeof *owner);
    uint32_t *local = calloc(n, sizeof *local), n_local = 0, len = ht_seq_len(seq);
    uint8_t lengthy = rope_long;
    T_OK(ht_seq_reserve(seq, n, &e), e);
    for (uint32_t i = 0; i < n; i++) pos[i] = (int32_t)(len + i);
    for (uint32_t i = 0; i < n_want; i++)
        if (want[i] >= at && want[i] < at + n) local[n_local++] = want[i] - at;
    ht_batch b = {.rows = n,
                  .seqs = 1,
                  .n_want = n_local,
                  .token = ids + at,
                  .pos = pos,
                  .seq = owner,
                  .page = {ht_seq_pages(seq, 0), ht_seq_pages(seq, 1)},
                  .want = local,
                  .rope_long = &lengthy};
    const float *l = NULL;
    T_OK(d->p.be->run(d->plan, &b, &e), e);
    T_OK(d->p.be->wait(d->plan, &l, &e), e);
    ht_seq_advance(seq, n);
    if (n_local) memcpy(logits, l, (size_t)n_local * d->model->spec.vocab * sizeof *l);
    free(pos);
    free(owner);
    free(local);
    return n_local;
}

void drive_eval(drive *d, ht_seq *seq, const int32_t *ids, uint32_t n, const uint32_t *want,
                uint32_t n_want, bool rope_long, float *logits)
{
    T_CHECK(ht_seq_n_table(seq) == d->n_table, "a sequence of another context");
    for (uint32_t at = 0; at < n; at += d->p.ubatch) {
        uint32_t k = n - at < d->p.ubatch ? n - at : d->p.ubatch;
        uint32_t got = eval_chunk(d, seq, ids, at, k, want, n_want, rope_long, logits);
        logits += (size_t)got * d->model->spec.vocab;
    }
}

uint32_t drive_argmax(const float *l, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (l[i] > l[best]) best = i;
    return best;
}

void drive_greedy(drive *d, ht_seq *seq, const float *logits, uint32_t n, bool rope_long,
                  int32_t *out)
{
    uint32_t vocab = d->model->spec.vocab, zero = 0;
    float *l = malloc(vocab * sizeof *l);
    memcpy(l, logits, vocab * sizeof *l);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int32_t)drive_argmax(l, vocab);
        if (i + 1 < n) drive_eval(d, seq, &out[i], 1, &zero, 1, rope_long, l);
    }
    free(l);
}

int32_t *drive_ids(ht_arena *a, const ht_json *list, uint32_t *n)
{
    T_CHECK(list && list->type == HT_JARR, "a list of ids is missing");
    int32_t *ids = ht_arena_array(a, list->n, sizeof *ids);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->at[i].i;
    *n = (uint32_t)list->n;
    return ids;
}
