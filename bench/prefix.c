/* prefix.c - what a known beginning of a prompt saves: time to the first token of 2,000 shared and
 * 32 new tokens, cold, from memory and from files, in turns; and what forks of it cost.
 *
 * usage: prefix MODEL FOLDER [shared 2000] [repetitions 6] [forks 8]
 * FOLDER is emptied of page files first. Prints one JSON object, as bench/results keeps it: medians
 * in ms, how many times less than cold, and all samples. */
#include "hetero.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAIL = 32, MOST_REPS = 50, MOST_FORKS = 64 };
static ht_err err;

static void must(int rc, const char *what)
{
    if (!rc) return;
    (void)fprintf(stderr, "prefix: %s: %s\n", what, err.msg);
    exit(1);
}
static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

typedef struct {
    const char *model, *dir;
    uint32_t shared, forks;
    int32_t *ids; /* [shared + TAIL] */
} job;

static ht_engine *open_engine(const job *j, const char *dir, uint64_t bytes)
{
    ht_engine *e = NULL;
    const ht_engine_params p = {.model = j->model,
                                .ctx = j->shared + TAIL + 64,
                                .max_sessions = 1 + j->forks,
                                .kv_positions = 2 * (j->shared + TAIL + 64) + 64 * j->forks,
                                .prefix_bytes = bytes,
                                .prefix_dir = dir};
    must(ht_engine_open(&e, &p, &err), "open");
    return e;
}

static void fill(int32_t *at, uint32_t n, uint64_t seed, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        at[i] = (int32_t)((seed >> 33) % (vocab < 1000 ? vocab : vocab - 500));
    }
}

/* Nanoseconds to the first token, in a fresh session; *kept: tokens taken over. */
static uint64_t first_token(ht_engine *e, const job *j, int no_prefix, uint32_t *kept)
{
    ht_session *s = NULL;
    ht_gen_result r = {0};
    ht_sampling g;
    ht_sampling_init(&g);
    g.temp = 0;
    const ht_gen_params p = {.max_new = 1, .sampling = &g, .ignore_eos = 1, .no_prefix = no_prefix};
    must(ht_session_new(&s, e, &err), "session");
    const uint64_t t0 = now_ns();
    must(ht_session_generate(s, j->ids, j->shared + TAIL, &p, &r, &err), "generate");
    const uint64_t t = now_ns() - t0;
    *kept = r.n_kept;
    ht_gen_result_done(&r);
    ht_session_free(s);
    return t;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median(const uint64_t *v, uint32_t n)
{
    uint64_t s[MOST_REPS];
    memcpy(s, v, n * sizeof *s);
    qsort(s, n, sizeof *s, by_size);
    return ((double)s[(n - 1) / 2] + (double)s[n / 2]) / 2;
}

static void summary(const job *j, const uint64_t *cold, const uint64_t *ram, const uint64_t *disk,
                    uint32_t reps)
{
    const double c = median(cold, reps), r = median(ram, reps), d = median(disk, reps);
    const char *name = strrchr(j->model, '/');
    printf("{\"schema\":\"hetero/prefix-bench/1\",\"version\":\"%s\",\"model\":\"%s\","
           "\"shared\":%u,\"tail\":%d,\"n\":%u,",
           ht_version(), name ? name + 1 : j->model, j->shared, TAIL, reps);
    printf("\"coldMs\":%.2f,\"ramMs\":%.2f,\"diskMs\":%.2f,\"ramTimes\":%.2f,"
           "\"diskTimes\":%.2f,",
           c / 1e6, r / 1e6, d / 1e6, c / r, c / d);
}

static void list(const char *name, const uint64_t *v, uint32_t n, const char *tail)
{
    printf("\"%s\":[", name);
    for (uint32_t i = 0; i < n; i++) printf("%s%" PRIu64, i ? "," : "", v[i]);
    printf("]%s", tail);
}

/* Forks of a session that holds everything: time for all of them, and pages before and after each
 * has run one token of its own. */
static void forks(ht_engine *e, const job *j)
{
    ht_session *s = NULL, *f[MOST_FORKS];
    ht_gen_result r = {0};
    uint32_t total, before, after, ran;
    const ht_gen_params p = {.max_new = 1, .ignore_eos = 1, .no_prefix = 1};
    must(ht_session_new(&s, e, &err), "session");
    must(ht_session_generate(s, j->ids, j->shared + TAIL, &p, &r, &err), "generate");
    ht_gen_result_done(&r);
    ht_engine_pages(e, &total, &before);
    const uint64_t t0 = now_ns();
    for (uint32_t i = 0; i < j->forks; i++) must(ht_session_fork(&f[i], s, &err), "fork");
    const uint64_t t = now_ns() - t0;
    ht_engine_pages(e, &total, &after);
    for (uint32_t i = 0; i < j->forks; i++) {
        int32_t id = (int32_t)(100 + i);
        must(ht_session_eval(f[i], &id, 1, NULL, 0, NULL, NULL, &err), "eval");
    }
    ht_engine_pages(e, &total, &ran);
    printf("\"forks\":%u,\"forkNs\":%" PRIu64 ",\"forkPages\":%u,\"tailPages\":%u,"
           "\"sharedPages\":%u",
           j->forks, t, before - after, after - ran, total - before);
    for (uint32_t i = 0; i < j->forks; i++) ht_session_free(f[i]);
    ht_session_free(s);
}

int main(int argc, char **argv)
{
    job j = {.shared = 2000, .forks = 8};
    uint32_t reps = 6, kept;
    uint64_t cold[MOST_REPS], ram[MOST_REPS], disk[MOST_REPS], files, bytes;
    if (argc < 3) {
        (void)fprintf(stderr, "usage: prefix MODEL FOLDER [shared] [repetitions] [forks]\n");
        return 2;
    }
    j.model = argv[1];
    j.dir = argv[2];
    if (argc > 3) j.shared = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 4) reps = (uint32_t)strtoul(argv[4], NULL, 10);
    if (argc > 5) j.forks = (uint32_t)strtoul(argv[5], NULL, 10);
    if (!reps || reps > MOST_REPS || !j.forks || j.forks > MOST_FORKS || !j.shared) return 2;
    j.ids = calloc(j.shared + TAIL, sizeof *j.ids);
    if (!j.ids) return 1;
    ht_engine *e = open_engine(&j, j.dir, (uint64_t)1 << 30);
    must(ht_prefix_folder_prune(j.dir, 0, -1, &files, &bytes, &err), "empty the folder");
    const uint32_t vocab = ht_vocab_size(ht_engine_vocab(e));
    fill(j.ids, j.shared, 1, vocab);
    fill(j.ids + j.shared, TAIL, 2, vocab);
    (void)first_token(e, &j, 0, &kept);
    must(ht_engine_prefix_save(e, 0, NULL, &err), "save");
    for (uint32_t i = 0; i < reps; i++) {
        /* Another tail each time: only the shared part is known. */
        fill(j.ids + j.shared, TAIL, 10 + 3 * i, vocab);
        ram[i] = first_token(e, &j, 0, &kept);
        const uint32_t from_ram = kept;
        fill(j.ids + j.shared, TAIL, 11 + 3 * i, vocab);
        ht_engine *d = open_engine(&j, j.dir, 0);
        disk[i] = first_token(d, &j, 0, &kept);
        ht_engine_close(d);
        if (from_ram != kept || kept != j.shared / 32 * 32) {
            (void)fprintf(stderr, "prefix: %u and %u tokens kept of %u\n", from_ram, kept,
                          j.shared);
            return 1;
        }
        cold[i] = first_token(e, &j, 1, &kept);
    }
    summary(&j, cold, ram, disk, reps);
    list("coldNs", cold, reps, ",");
    list("ramNs", ram, reps, ",");
    list("diskNs", disk, reps, ",");
    forks(e, &j);
    printf("}\n");
    ht_engine_close(e);
    free(j.ids);
    return 0;
}
