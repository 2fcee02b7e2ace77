/* kvdepth.c - decode at a depth with packed KV types against the F16 cache, in turns.
 *
 * usage: kvdepth MODEL DEPTH REPS K,V [K,V ...]        e.g. kvdepth qwen3-q4_0.gguf 4096 6 q8_0,tq4
 *
 * Both engines stand in one process over one mapped file. The cache is filled to DEPTH without a
 * prefill: every page holds the same random rows, packed by the rule of positions as a prefill
 * would have left them, since a decode step's time depends on how much it reads and not on what. A
 * repetition is STEPS single steps on F16 and STEPS on each pair, at the same positions, the order
 * turned by one each time. Prints one JSON object: milliseconds a step of every repetition, and the
 * least bytes of a step, whose ratio is the bound on what a smaller cache can win. */
#include "api/api.h"
#include "core/clock.h"
#include "step/kvcodec.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8, MOST = 8, MOST_REPS = 64 };
static ht_err err;

static void must(int rc, const char *what)
{
    if (!rc) return;
    (void)fprintf(stderr, "kvdepth: %s: %s\n", what, err.msg);
    exit(1);
}

typedef struct {
    char k[24], v[24];
    ht_engine *e;
    ht_session *s;
    const api__plan *plan;
    double ms[MOST_REPS];
    uint64_t bytes;
} arm;

/* Random rows of one page, raw and packed, of every layer; then the same bytes in all pages. */
static void fill_planes(ht_kv *kv)
{
    uint64_t seed = 1;
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (int v = 0; v < 2; v++) {
            const bool packs = ht_kv_packs(kv->type[l][v]);
            const int c = kv->layer_class[l];
            const size_t n = (size_t)HT_PAGE * kv->head_dim;
            uint16_t *rows = ht_mem_array(n, sizeof *rows);
            uint8_t *page = kv->plane[l][v];
            const size_t bytes = (size_t)kv->page_bytes[l][v];
            if (!rows) must(HT_ENOMEM, "rows");
            for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
                for (size_t i = 0; i < n; i++) { /* F16 in (-1, 1) */
                    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                    rows[i] = (uint16_t)((seed >> 40 & 0x83ff) | 0x3800);
                }
                uint8_t *to = page + h * (bytes / kv->n_kv_heads);
                if (packs) ht_kv_pack(kv->type[l][v], v, kv->head_dim, rows, to);
                else memcpy(to, rows, n * sizeof *rows);
                for (uint32_t i = 0; packs && i < kv->n_raw[c]; i++)
                    memcpy(kv->raw[l][v] + i * kv->raw_bytes + h * n * sizeof *rows, rows,
                           n * sizeof *rows);
            }
            for (uint32_t i = 1; i < kv->n_pages[c]; i++) memcpy(page + i * bytes, page, bytes);
            ht_mem_free(rows);
        }
}

static void open_arm(arm *a, const char *model, uint32_t depth)
{
    const ht_engine_params p = {.model = model,
                                .ctk = a->k,
                                .ctv = a->v,
                                .kv_force = 1,
                                .kv_pack = HT_KV_PACK_STEP,
                                .ctx = depth + STEPS + HT_PAGE};
    must(ht_engine_open(&a->e, &p, &err), "open");
    must(ht_session_new(&a->s, a->e, &err), "session");
    fill_planes(ht_pool_kv(a->e->pool));
    while (ht_seq_len(a->s->seq) < depth) {
        uint32_t n = depth - ht_seq_len(a->s->seq);
        if (n > a->e->ubatch) n = a->e->ubatch;
        must(ht_seq_reserve(a->s->seq, n, &err), "reserve");
        ht_seq_advance(a->s->seq, n);
    }
    must(api__plan_get(a->e, API_DECODE, 1, 1, &a->plan, &err), "plan");
}

/* Milliseconds a step of STEPS from the depth on, which is where the session is left. */
static double measure(arm *a, uint32_t depth)
{
    const uint32_t want = 0;
    const float *logits;
    const int32_t token = 17;
    const uint64_t t0 = ht_now_ns();
    for (int i = 0; i < STEPS; i++)
        must(api__run(a->s, API_DECODE, a->plan, &token, 1, &want, 1, &logits, &err), "step");
    const double ms = (double)(ht_now_ns() - t0) * 1e-6 / STEPS;
    ht_run_stats st;
    must(a->plan->be->stats(a->plan->plan, &st), "stats");
    a->bytes = st.bytes;
    must(ht_seq_truncate(a->s->seq, depth, &err), "truncate");
    return ms;
}

static void print(const arm *a, int reps, bool last)
{
    (void)printf("{\"k\":\"%s\",\"v\":\"%s\",\"bytes\":%" PRIu64 ",\"ms\":[", a->k, a->v, a->bytes);
    for (int r = 0; r < reps; r++) (void)printf("%s%.4f", r ? "," : "", a->ms[r]);
    (void)printf("]}%s", last ? "" : ",");
}

int main(int argc, char **argv)
{
    static arm arms[MOST + 1] = {{.k = "f16", .v = "f16"}};
    int n = 1;
    if (argc < 5 || argc > 4 + MOST) {
        (void)fprintf(stderr, "usage: kvdepth MODEL DEPTH REPS K,V [K,V ...]\n");
        return 2;
    }
    const uint32_t depth = (uint32_t)strtoul(argv[2], NULL, 10);
    const int reps = (int)strtol(argv[3], NULL, 10);
    bool ok = true;
    for (int i = 4; i < argc; i++, n++)
        ok = ok && sscanf(argv[i], "%23[^,],%23s", arms[n].k, arms[n].v) == 2;
    if (!ok || reps < 1 || reps > MOST_REPS || depth < 4 * HT_PAGE) {
        (void)fprintf(stderr, "kvdepth: K,V by name, 1 to %d repetitions, depth 128 or more\n",
                      MOST_REPS);
        return 2;
    }
    for (int i = 0; i < n; i++) open_arm(&arms[i], argv[1], depth);
    for (int i = 0; i < n; i++) (void)measure(&arms[i], depth); /* warm */
    for (int r = 0; r < reps; r++)
        for (int i = 0; i < n; i++) {
            arm *a = &arms[(i + r) % n];
            a->ms[r] = measure(a, depth);
        }
    (void)printf("{\"model\":\"%s\",\"depth\":%u,\"threads\":%d,\"arms\":[", argv[1], depth,
                 arms[0].e->threads);
    for (int i = 0; i < n; i++) print(&arms[i], reps, i + 1 == n);
    (void)printf("]}\n");
    for (int i = 0; i < n; i++) {
        ht_session_free(arms[i].s);
        ht_engine_close(arms[i].e);
    }
    return 0;
}
