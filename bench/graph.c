/* graph.c - prefill on `cpu` and on `graph` in one process, turn by turn, and a complete request of
 * 16 tokens on both: MODEL [ROWS,...] [REPETITIONS] [GRAPH SETTINGS]. Medians and spreads, tokens
 * in common, and what memory the graphs took. Random token ids: arithmetic costs the same for
 * all. */
#include "hetero.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_REPS = 64, NEW = 16, ENGINES = 2 };
static const char *const engine_name[ENGINES] = {"cpu", "graph"};

typedef struct {
    ht_engine *engine;
    ht_session *session;
    double ms[MAX_REPS], all_ms[MAX_REPS];
    int32_t id[NEW];
} side;

static void fail(const char *what, const ht_err *e)
{
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

/* Resident bytes that are not a mapped file. */
static double private_mb(void)
{
    long all = 0, resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld %ld", &all, &resident, &shared) != 3) resident = shared = 0;
    fclose(f);
    return (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void once(side *s, const int32_t *ids, size_t n, int rep)
{
    ht_err e = {0};
    ht_gen_result r = {0};
    ht_sampling greedy;
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = NEW, .sampling = &greedy, .ignore_eos = 1};
    if (ht_session_truncate(s->session, 0, &e)) fail("truncate", &e);
    if (ht_session_generate(s->session, ids, n, &p, &r, &e)) fail("generate", &e);
    if (rep >= 0) {
        s->ms[rep] = (double)r.prompt_ns / 1e6;
        s->all_ms[rep] = (double)(r.prompt_ns + r.decode_ns) / 1e6;
    }
    for (size_t i = 0; i < NEW; i++) s->id[i] = i < r.n_ids ? r.ids[i] : -1;
    ht_gen_result_done(&r);
}

static void compare(side s[ENGINES], size_t rows, int reps, uint32_t vocab)
{
    int32_t *ids = malloc(rows * sizeof *ids);
    int same = 0;
    if (!ids) exit(1);
    for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)((i * 7919 + 13) % (vocab - 1000));
    const double before = private_mb();
    for (int k = 0; k < ENGINES; k++) once(&s[k], ids, rows, -1);
    const double took = private_mb() - before;
    for (int r = 0; r < reps; r++)
        for (int k = 0; k < ENGINES; k++) once(&s[(k + r) % ENGINES], ids, rows, r);
    while (same < NEW && s[0].id[same] == s[1].id[same]) same++;
    for (int k = 0; k < ENGINES; k++) {
        qsort(s[k].ms, (size_t)reps, sizeof *s[k].ms, by_size);
        qsort(s[k].all_ms, (size_t)reps, sizeof *s[k].all_ms, by_size);
        printf("%5zu %-6s %8.1f t/s  prefill ms min %.1f median %.1f max %.1f  complete ms median "
               "%.1f",
               rows, engine_name[k], 1e3 * (double)rows / s[k].ms[reps / 2], s[k].ms[0],
               s[k].ms[reps / 2], s[k].ms[reps - 1], s[k].all_ms[reps / 2]);
        if (k) printf("  private MB %+.0f  tokens in common %d of %d", took, same, (int)NEW);
        printf("\n");
    }
    fflush(stdout);
    free(ids);
}

int main(int argc, char **argv)
{
    ht_err e = {0};
    side s[ENGINES] = {{0}, {0}};
    if (argc < 2) {
        fprintf(stderr, "usage: graph MODEL [ROWS,...] [REPETITIONS] [GRAPH SETTINGS]\n");
        return 2;
    }
    int reps = argc > 3 ? atoi(argv[3]) : 6;
    if (reps < 1 || reps > MAX_REPS) reps = 6;
    for (int k = 0; k < ENGINES; k++) {
        const ht_engine_params p = {.model = argv[1],
                                    .prefill_engine = engine_name[k],
                                    .decode_engine = "cpu",
                                    .graph = argc > 4 ? argv[4] : "strict=1",
                                    .ctx = 2048 + NEW,
                                    .threads = 2};
        if (ht_engine_open(&s[k].engine, &p, &e)) fail("open", &e);
        if (ht_session_new(&s[k].session, s[k].engine, &e)) fail("session", &e);
    }
    const uint32_t vocab = ht_vocab_size(ht_engine_vocab(s[0].engine));
    printf("%s, %d repetitions, turn by turn, private MB at start %.0f\n", argv[1], reps,
           private_mb());
    for (const char *p = argc > 2 ? argv[2] : "32,128,512"; *p;) {
        char *end;
        const unsigned long rows = strtoul(p, &end, 10);
        if (rows) compare(s, rows, reps, vocab);
        p = *end ? end + 1 : end;
    }
    for (int k = 0; k < ENGINES; k++) {
        ht_session_free(s[k].session);
        ht_engine_close(s[k].engine);
    }
    return 0;
}
