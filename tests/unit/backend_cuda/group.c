/* group.c - a device of several ranks on the emulated card: the same bits as one rank, whatever the
 * pieces and the number of rows, in logits and in the whole cache; registers; pages to and from a
 * cache that is cut in parts; and each refusal by its name. */
#include "passes.h"

/* ---- bits ------------------------------------------------------------------------------------ */

static void same(world *w, ht_dev *dev, const passes *want, uint32_t n, uint16_t rows, bool beside)
{
    passes *got = passes_new(w, dev, HT_ACT_F32, n, rows, beside);
    T_SOFT(!memcmp(got->logits, want->logits, sizeof got->logits),
           "%u ranks, %u at a time of %u%s: logits", dev->size, n, (unsigned)rows,
           beside ? ", beside others" : "");
    T_SOFT(!memcmp(got->cache, want->cache, w->cache_bytes),
           "%u ranks, %u at a time of %u%s: cache", dev->size, n, (unsigned)rows,
           beside ? ", beside others" : "");
    passes_free(got);
}

static ht_dev *open_ranks(uint32_t size)
{
    char opts[40];
    ht_err e = {0};
    ht_dev *dev;
    (void)snprintf(opts, sizeof opts, "ranks=%u", size);
    T_OK(card_open(&dev, opts, &e), e);
    T_EQ_INT(dev->size, size);
    return dev;
}

/* A prompt whole, its pieces, and 1 to 8 rows at a time, for each number of ranks, against one
 * device that is no group. beside: pieces of two sequences in one batch. */
static void check_shape(const world_shape *shape, const uint32_t *sizes, bool beside)
{
    ht_err e = {0};
    ht_dev *dev;
    T_OK(card_open(&dev, "", &e), e);
    world *w = world_new(dev, shape);
    passes *want = passes_new(w, dev, HT_ACT_F32, PASSES_N, 160, false);
    T_CHECK(want->logits[PASSES_SEQS - 1][PASSES_WANTED - 1][0] != 0, "a logit is there");
    world_leave(w, dev);
    ht_backend_cuda.close(dev);
    for (; *sizes; sizes++) {
        dev = open_ranks(*sizes);
        world_load(w, dev);
        same(w, dev, want, PASSES_N, 512, beside);
        if (*sizes > 1) same(w, dev, want, beside ? 100 : 20, beside ? 208 : 32, beside);
        same(w, dev, want, 0, 0, false);
        world_leave(w, dev);
        ht_backend_cuda.close(dev);
    }
    passes_free(want);
    world_free(w);
}

/* Heads, biases and rows that begin in the middle of everything: ranks of unequal shares, separate
 * products of Q and V, tiles of r16/1. */
T_CASE_SECONDS(cuda, a_group_gives_the_bits_of_one_rank, 240)
{
    check_shape(&(world_shape){HT_F16, 2, 96, 4, 2, 64, 200, true, false}, (uint32_t[]){1, 2, 0},
                true);
    check_shape(&(world_shape){HT_Q4_0, 2, 160, 8, 4, 32, 224, true, true}, (uint32_t[]){2, 4, 0},
                false);
}

/* ---- parts of a tape ------------------------------------------------------------------------- */

enum { ROWS = 5 };

/* One stage alone over ROWS rows: numbers into register `in`, those of register `out` [*n]. */
static void stage(world *w, ht_dev *dev, int kind, int in, int out, float *result, size_t *n)
{
    static const int32_t token[ROWS], pos[ROWS] = {0, 1, 2, 3, 4};
    static const uint16_t seq[ROWS];
    uint32_t page[WORLD_PAGES] = {7};
    ht_stage st = {(uint16_t)kind, 0, 0};
    ht_bucket b = {.rows = ROWS, .seqs = 1, .want = 1, .ctx = WORLD_CTX};
    ht_cut cut;
    ht_plan *p;
    ht_err e = {0};
    void *from, *to;
    size_t bytes;
    if (kind == HT_QKV) st.flags = HT_BIAS | HT_QKNORM;
    b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    T_EQ_INT(ht_cover(&ht_backend_cuda, dev, &w->m, &st, 1, &b, NULL, NULL, &cut, &e), 1);
    T_OK(ht_backend_cuda.plan(&p, dev, &w->kv, &st, &cut, 1, &b, &e), e);
    T_OK(ht_backend_cuda.reg(p, out, &to, n, &e), e);
    memset(to, 0, *n);
    T_OK(ht_backend_cuda.reg(p, in, &from, &bytes, &e), e);
    for (size_t i = 0; i < bytes / 4; i++) ((float *)from)[i] = (float)(int)(i * 7 % 31) / 16 - 1;
    ht_batch x = {
        .rows = ROWS, .seqs = 1, .token = token, .pos = pos, .seq = seq, .page = {page, NULL}};
    T_OK(ht_backend_cuda.run(p, &x, &e), e);
    T_OK(ht_backend_cuda.wait(p, NULL, &e), e);
    memcpy(result, to, *n);
    ht_backend_cuda.plan_free(p);
}

/* Registers of a part of the tape go to all ranks and come back whole. */
T_CASE(cuda, a_group_has_the_registers_of_one_rank)
{
    static const int part[][3] = {{HT_QKV, HT_REG_X, HT_REG_Q},
                                  {HT_ATTN, HT_REG_Q, HT_REG_A},
                                  {HT_ATTN_OUT, HT_REG_A, HT_REG_X},
                                  {HT_FFN_UP, HT_REG_X, HT_REG_H},
                                  {HT_FFN_DOWN, HT_REG_H, HT_REG_X}};
    enum { N = sizeof part / sizeof *part, MOST = ROWS * 256 };
    static float want[N][MOST], got[N][MOST];
    world *w = NULL;
    for (uint32_t size = 1; size <= 4; size *= 2) {
        ht_dev *dev = open_ranks(size);
        if (w) world_load(w, dev);
        else w = world_new(dev, &(world_shape){HT_Q8_0, 1, 160, 8, 4, 32, 224, true, true});
        for (int i = 0; i < N; i++) {
            size_t n = 0;
            stage(w, dev, part[i][0], part[i][1], part[i][2], size > 1 ? got[i] : want[i], &n);
            T_CHECK(n > 0 && n <= sizeof want[i] && want[i][n / 4 - 1] != 0, "%zu bytes", n);
            if (size > 1)
                T_SOFT(!memcmp(got[i], want[i], n), "%u ranks, stage %d", size, part[i][0]);
        }
        world_leave(w, dev);
        ht_backend_cuda.close(dev);
    }
    world_free(w);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Each rank has its heads of a page, in the pool's order; reading, writing, copying and moving them
 * to a pool of the host and back give the whole page. */
T_CASE(cuda, a_page_is_cut_by_ranks)
{
    enum { RUN = 3, FIRST = 4, SPARE = 20 };
    static const uint32_t list[] = {FIRST, FIRST + 1, FIRST + 2, 9};
    ht_err e = {0};
    ht_dev *dev = open_ranks(2);
    world *w = world_new(dev, &(world_shape){HT_F16, 2, 64, 4, 2, 64, 64, true, false});
    const size_t layers = w->s.layers, page = (size_t)w->page_bytes[0][0], all = 2 * layers * page;
    uint8_t *sent = malloc(all), *back = malloc(all), *block = calloc(1, w->cache_bytes);
    uint8_t *plane[WORLD_LAYERS][2];
    ht_kv host = w->kv;
    host.plane = plane;
    for (size_t i = 0; i < layers; i++)
        for (size_t v = 0; v < 2; v++)
            plane[i][v] = block + ((uint8_t *)w->plane[i][v] - (uint8_t *)w->block);
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < all; i++) sent[i] = (uint8_t)(i * 31 + i / page * 7 + k);
        T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, list[k], sent, 1, &e), e);
    }
    for (uint32_t r = 0; r < 2; r++) /* what page 9 is in each rank's memory */
        for (size_t i = 0; i < 2 * layers; i++) {
            const cuda_ptr at =
                cuda__kv_at(dev, r, w->plane[i / 2][i % 2]) + list[3] * (uint64_t)page / 2;
            T_CHECK(!memcmp((void *)(uintptr_t)at, sent + i * page + r * page / 2, page / 2),
                    "rank %u plane %zu", r, i);
        }
    T_OK(ht_backend_cuda.page_copy(dev, &w->kv, 0, SPARE, list[3], &e), e);
    T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, SPARE, back, 0, &e), e);
    T_CHECK(!memcmp(back, sent, all), "a copied page");
    const int moves = card.moves;
    T_OK(ht_backend_cuda.kv_move(dev, &host, &w->kv, 0, (int)layers, list, 4, &e), e);
    T_EQ_INT(card.moves - moves, (int)(2 * layers * 2 * 2)); /* two runs of pages, two ranks */
    for (size_t i = 0; i < 2 * layers; i++)
        T_CHECK(!memcmp(plane[i / 2][i % 2] + list[3] * page, sent + i * page, page), "plane %zu",
                i);
    for (size_t k = 0; k < RUN; k++) { /* a run of pages, which lies apart on the host only */
        T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, list[k], sent, 0, &e), e);
        for (size_t i = 0; i < 2 * layers; i++)
            T_CHECK(!memcmp(plane[i / 2][i % 2] + list[k] * page, sent + i * page, page),
                    "page %u plane %zu", list[k], i);
    }
    memset(back, 0, all);
    T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, FIRST + 2, back, 1, &e), e);
    T_OK(ht_backend_cuda.kv_move(dev, &w->kv, &host, 0, (int)layers, list, 4, &e), e);
    T_OK(ht_backend_cuda.page_io(dev, &w->kv, 0, FIRST + 2, back, 0, &e), e);
    T_CHECK(!memcmp(back, sent, all), "there and back");
    free(sent);
    free(back);
    free(block);
    world_leave(w, dev);
    world_free(w);
    ht_backend_cuda.close(dev);
}

/* ---- refusals -------------------------------------------------------------------------------- */

T_CASE(cuda, settings_are_read_or_refused)
{
    static const struct {
        const char *opts;
        int code;
        const char *text;
    } bad[] = {{"ranks=2,level=2", HT_EUNSUPPORTED, "the persistent kernel runs on one rank"},
               {"gpu=0+1", HT_EUNSUPPORTED, "a group over several cards is not built yet"},
               {"ranks=9", HT_EARG, "ranks=9: need a number from 1 to 8"},
               {"ranks=0", HT_EARG, "ranks=0: need a number from 1 to 8"},
               {"ranks=", HT_EARG, "ranks=: need a number"},
               {"ranks=2x", HT_EARG, "ranks=2x: need a number"},
               {"level=3", HT_EARG, "level=3: need a number from 1 to 2"},
               {"ranks=2,ranks=2", HT_EARG, "given twice"},
               {"ranks", HT_EARG, "\"ranks\" is unknown; there are gpu=N"},
               {"rank=2", HT_EARG, "\"rank=2\" is unknown"}};
    ht_err e = {0};
    ht_dev *dev;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        T_ERR(card_open(&dev, bad[i].opts, &e), bad[i].code, e, bad[i].text);
    T_OK(card_open(&dev, "threads=4,isa=avx2,gpu=0,ranks=1,level=2,overlap=1", &e), e);
    T_CHECK(dev->size == 1 && !dev->level1 && dev->overlap && !dev->sync, "as given");
    ht_backend_cuda.close(dev);
}

/* A model that cannot be dealt out: nothing of it stays on the device. */
static void refuse(ht_dev *dev, world *w, const char *text)
{
    ht_err e = {0};
    T_ERR(ht_backend_cuda.load(dev, &w->m, &e), HT_EUNSUPPORTED, e, text);
    T_CHECK(!dev->model && !dev->weight, "nothing is loaded");
}

T_CASE(cuda, what_a_group_cannot_do_is_refused_by_name)
{
    ht_err e = {0};
    ht_dev *dev, *two = open_ranks(2), *four = open_ranks(4);
    ht_stage tape[16];
    ht_cut cut[16];
    ht_plan *p;
    ht_bucket b = {.rows = 1, .seqs = 1, .want = 1, .ctx = WORLD_CTX};
    T_OK(card_open(&dev, "", &e), e);
    b.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    world *w = world_new(dev, &(world_shape){HT_F16, 2, 96, 4, 2, 64, 64, true, false});
    refuse(four, w, "ranks=4 does not divide the model's 4 heads and 2 KV heads");
    w->ls[1].moe = true;
    refuse(two, w, "layer 1 has experts");
    w->ls[1].moe = false, w->m.spec.post_norm = true;
    refuse(two, w, "norms outputs of attention and feed-forward");
    w->m.spec.post_norm = false;
    world_leave(w, dev);
    world_load(w, two);
    size_t n = ht_tape(&w->m, tape, 15);
    b.act = HT_ACT_F16;
    size_t k = ht_cover(&ht_backend_cuda, two, &w->m, tape, n, &b, NULL, NULL, cut, &e);
    T_ERR(ht_backend_cuda.plan(&p, two, &w->kv, tape, cut, k, &b, &e), HT_EUNSUPPORTED, e,
          "a group computes in act f32 only");
    b.act = HT_ACT_F32;
    tape[n++] = (ht_stage){HT_SAMPLE, 0, -1};
    k = ht_cover(&ht_backend_cuda, two, &w->m, tape, n, &b, NULL, NULL, cut, &e);
    T_ERR(ht_backend_cuda.plan(&p, two, &w->kv, tape, cut, k, &b, &e), HT_EUNSUPPORTED, e,
          "no rank has all logits");
    world_leave(w, two);
    world_free(w);
    w = world_new(dev, &(world_shape){HT_F16, 1, 96, 4, 4, 64, 64, true, false});
    refuse(four, w, "a width of 96 leaves a rank without");
    world_leave(w, dev);
    world_free(w);
    w = world_new(dev, &(world_shape){HT_F16, 1, 64, 4, 2, 8, 64, true, true});
    refuse(two, w, "begin inside a tile of 16 rows of layout r16/1");
    world_leave(w, dev);
    world_free(w);
    ht_backend_cuda.close(dev);
    ht_backend_cuda.close(two);
    ht_backend_cuda.close(four);
}
