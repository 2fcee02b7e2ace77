/* passes.c - see passes.h. */
#include "passes.h"

enum { N = PASSES_N, SEQS = PASSES_SEQS, EACH = PASSES_EACH, MOST = SEQS * N };

/* A step of the whole model: rows of sequence s are tokens from[s] .. to[s]-1. */
typedef struct {
    uint16_t rows; /* of the bucket */
    uint8_t act;
    uint32_t from[SEQS], to[SEQS];
} step;

typedef struct {
    int32_t token[MOST], pos[MOST];
    uint16_t seq[MOST];
    uint32_t want[MOST], page[SEQS * WORLD_PAGES];
    ht_batch b;
} batch;

static void fill(batch *x, const step *p)
{
    x->b =
        (ht_batch){.seqs = SEQS, .token = x->token, .pos = x->pos, .seq = x->seq, .want = x->want};
    for (uint32_t s = 0; s < SEQS; s++) {
        /* Half of the pool a sequence, in descending order. */
        for (uint32_t i = 0; i < WORLD_PAGES; i++)
            x->page[s * WORLD_PAGES + i] =
                i < WORLD_PAGES / SEQS ? (s + 1) * (WORLD_PAGES / SEQS) - 1 - i : HT_NOPAGE;
        for (uint32_t i = p->from[s]; i < p->to[s]; i++) {
            const uint32_t r = x->b.rows++;
            x->token[r] = (int32_t)((i * 37 + i / 7 * 11 + 5 * s + 3) % WORLD_VOCAB);
            x->pos[r] = (int32_t)i;
            x->seq[r] = (uint16_t)s;
            if (i % EACH == EACH - 1) x->want[x->b.n_want++] = r;
        }
    }
    x->b.page[0] = x->page;
}

static void run_step(world *w, ht_dev *dev, const step *p, passes *out)
{
    static batch x;
    ht_stage tape[5 * WORLD_LAYERS + 3];
    ht_cut cut[5 * WORLD_LAYERS + 3];
    ht_bucket b = {.rows = p->rows, .seqs = SEQS, .want = MOST / EACH, .ctx = WORLD_CTX};
    const float *logits;
    ht_plan *plan;
    ht_err e = {0};
    fill(&x, p);
    b.past = WORLD_CTX, b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8, b.act = p->act;
    if (b.want > b.rows) b.want = b.rows;
    const size_t n = ht_tape(&w->m, tape, sizeof tape / sizeof *tape);
    const size_t k = ht_cover(&ht_backend_cuda, dev, &w->m, tape, n, &b, NULL, NULL, cut, &e);
    T_CHECK(k > 0, "%s", e.msg);
    T_EQ_INT(!strcmp(cut[1].span->name, "layer.tensor.cuda"), p->act == HT_ACT_F16 && p->rows > 8);
    T_OK(ht_backend_cuda.plan(&plan, dev, &w->kv, tape, cut, k, &b, &e), e);
    T_OK(ht_backend_cuda.run(plan, &x.b, &e), e);
    T_OK(ht_backend_cuda.wait(plan, &logits, &e), e);
    for (uint32_t i = 0; i < x.b.n_want; i++) {
        const uint32_t r = x.want[i];
        memcpy(out->logits[x.seq[r]][x.pos[r] / EACH], logits + (size_t)i * WORLD_VOCAB,
               sizeof out->logits[0][0]);
    }
    ht_backend_cuda.plan_free(plan);
}

/* The cache of every page to p, or from it. */
static void move_cache(world *w, ht_dev *dev, uint8_t *p, int write)
{
    ht_err e = {0};
    for (uint32_t i = 0; i < WORLD_PAGES; i++, p += w->cache_bytes / WORLD_PAGES)
        T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, i, p, write, &e), e);
}

passes *passes_new(world *w, ht_dev *dev, uint8_t act, uint32_t n, uint16_t rows, bool beside)
{
    passes *out = calloc(1, sizeof *out);
    out->cache = calloc(1, w->cache_bytes);
    move_cache(w, dev, out->cache, 1);
    for (uint32_t turn = 0; turn < (beside ? 1 : SEQS); turn++)
        for (uint32_t at = 0, k = n; at < N; at += k) {
            if (!n) k = 1 + k % 8;
            step p = {.rows = n ? rows : (uint16_t)k, .act = act};
            for (uint32_t s = 0; s < SEQS; s++) {
                if (!beside && s != turn) continue;
                p.from[s] = at;
                p.to[s] = at + k < N ? at + k : N;
            }
            run_step(w, dev, &p, out);
        }
    move_cache(w, dev, out->cache, 0);
    return out;
}
void passes_free(passes *r)
{
    free(r->cache);
    free(r);
}
