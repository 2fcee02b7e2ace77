/* graph.c - prompts on `cpu` and on `graph` in one process, turn by turn, with a few tokens decoded
 * behind each: MODEL ROWS,... REPETITIONS ARM,... [GRAPH SETTINGS] [TOKENS]. An arm is one of
 * `kinds`; SETTINGS are those that all graphs have. One JSON document: all samples, what the
 * engines say of their work, tokens in common with the first arm, and what the machine's
 * multiply-add rate was meanwhile, at its best and in the mean of windows between the samples.
 * Random token ids: arithmetic costs the same for all. */
#include "core/arena.h"
#include "core/json.h"
#include "core/measure.h"
#include "hetero.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPS = 64, MAX_NEW = 64, THREADS = 2 };

/* What is timed: an engine, the act of its products, and what a graph's settings say beyond those
 * given. */
typedef struct {
    const char *name, *engine, *act, *more;
} arm_kind;

static const arm_kind kinds[] = {
    {"cpu", "cpu", NULL, NULL},
    {"cpu-q8", "cpu", "q8", NULL},
    {"graph", "graph", NULL, ""},
    {"graph-q8", "graph", NULL, ",act=q8"},
    {"graph-bf16", "graph", NULL, ",act=bf16,approximate=1"},
};
enum { MAX_ARMS = sizeof kinds / sizeof *kinds };

typedef struct {
    const char *name;
    ht_engine *engine;
    ht_session *session;
    double ts[MAX_REPS], ms[MAX_REPS]; /* prompt: tokens a second; prompt and answer: ms */
    int32_t id[MAX_NEW];
} arm;

static ht_fma_rate best_fma;
static uint32_t n_new = 2;

static void must(int rc, const char *what, const ht_err *e)
{
    if (!rc) return;
    fprintf(stderr, "graph: %s: %s\n", what, e->msg);
    exit(1);
}

static void measure_fma(void)
{
    ht_err e = {0};
    ht_fma_rate now;
    must(ht_measure_fma(THREADS, NULL, &now, &e), "multiply-add rate", &e);
    if (now.flops_per_s > best_fma.flops_per_s) best_fma = now;
}

static double number(const ht_json *o, const char *path)
{
    const ht_json *v = ht_json_path(o, path);
    return v && (v->type == HT_JINT || v->type == HT_JREAL) ? v->d : 0;
}

/* What the receipt says of the prompt: who ran it, least work of a token, the plan's facts. */
static void write_receipt(ht_jw *w, const arm *a)
{
    ht_err e = {0};
    ht_arena *arena = NULL;
    ht_json *doc = NULL;
    char *json = NULL;
    must(ht_session_receipt(a->session, &json, &e), "receipt", &e);
    must(ht_arena_new(&arena, 0, &e), "receipt", &e);
    must(ht_json_parse(arena, json, strlen(json), 0, "receipt", &doc, &e), "receipt", &e);
    const ht_json *p = &ht_json_get(doc, "phases")->at[0], *ran = ht_json_get(p, "executed");
    const ht_json *parts = ht_json_get(p, "segments");
    const ht_json *facts = parts && parts->n ? ht_json_get(&parts->at[0], "facts") : NULL;
    const double tokens = number(p, "tokens");
    ht_jw_kstr(w, "executed", ran ? ran->s : "?");
    ht_jw_kreal(w, "bytesPerToken", number(p, "bytes") / tokens);
    ht_jw_kreal(w, "flopsPerToken", number(p, "flops") / tokens);
    ht_jw_key(w, "facts");
    if (facts) ht_jw_json(w, facts);
    else ht_jw_null(w);
    ht_arena_free(arena);
    ht_free(json);
}

static void once(arm *a, const int32_t *ids, size_t n, int rep)
{
    ht_err e = {0};
    ht_gen_result r = {0};
    ht_sampling greedy;
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = n_new, .sampling = &greedy, .ignore_eos = 1};
    must(ht_session_truncate(a->session, 0, &e), "truncate", &e);
    must(ht_session_generate(a->session, ids, n, &p, &r, &e), "generate", &e);
    if (rep >= 0) {
        a->ts[rep] = 1e9 * (double)n / (double)r.prompt_ns;
        a->ms[rep] = (double)(r.prompt_ns + r.decode_ns) / 1e6;
    }
    for (size_t i = 0; i < n_new; i++) a->id[i] = i < r.n_ids ? r.ids[i] : -1;
    ht_gen_result_done(&r);
}

static void samples(ht_jw *w, const char *key, const double *v, int n)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (int i = 0; i < n; i++) ht_jw_real(w, v[i]);
    ht_jw_end(w, ']');
}

static void compare(ht_jw *w, arm *a, int n, size_t rows, int reps, uint32_t vocab)
{
    int32_t *ids = ht_mem_array(rows, sizeof *ids);
    if (!ids) exit(1);
    for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)((i * 7919 + 13) % (vocab - 1000));
    ht_err e = {0};
    ht_pace *pace;
    must(ht_pace_new(&pace, THREADS, 0, NULL, &e), "sustained rate", &e);
    measure_fma();
    for (int k = 0; k < n; k++) once(&a[k], ids, rows, -1);
    for (int r = 0; r < reps; r++)
        for (int k = 0; k < n; k++) {
            ht_pace_take(pace);
            once(&a[(k + r) % n], ids, rows, r);
        }
    measure_fma();
    ht_jw_obj(w);
    ht_jw_kuint(w, "rows", rows);
    ht_jw_kreal(w, "sustainedFmaFlopsPerS", ht_pace_get(pace).flops_per_s);
    ht_pace_free(pace);
    ht_jw_key(w, "arms");
    ht_jw_arr(w);
    for (int k = 0; k < n; k++) {
        uint32_t same = 0;
        while (same < n_new && a[k].id[same] == a[0].id[same]) same++;
        ht_jw_obj(w);
        ht_jw_kstr(w, "arm", a[k].name);
        write_receipt(w, &a[k]);
        ht_jw_kuint(w, "sameTokens", same);
        samples(w, "tokensPerS", a[k].ts, reps);
        samples(w, "completeMs", a[k].ms, reps);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
    ht_mem_free(ids);
}

static const arm_kind *find_kind(const char *name, size_t len)
{
    for (size_t i = 0; i < MAX_ARMS; i++)
        if (strlen(kinds[i].name) == len && !strncmp(kinds[i].name, name, len)) return &kinds[i];
    fprintf(stderr, "graph: no arm \"%.*s\"; there are", (int)len, name);
    for (size_t i = 0; i < MAX_ARMS; i++) fprintf(stderr, "%s %s", i ? "," : "", kinds[i].name);
    fprintf(stderr, "\n");
    exit(2);
}

static int open_arms(arm a[MAX_ARMS], const char *model, const char *list, const char *settings,
                     uint32_t ctx)
{
    int n = 0;
    for (const char *p = list; *p; n++) {
        ht_err e = {0};
        char graph[2048];
        const size_t len = strcspn(p, ",");
        const arm_kind *k = find_kind(p, len);
        const int w = snprintf(graph, sizeof graph, "%s%s", settings, k->more ? k->more : "");
        if (n == MAX_ARMS || w < 0 || (size_t)w >= sizeof graph) {
            fprintf(stderr, "graph: at most %d arms, and settings of %zu characters\n",
                    (int)MAX_ARMS, sizeof graph - 1);
            exit(2);
        }
        const ht_engine_params params = {.model = model,
                                         .prefill_engine = k->engine,
                                         .decode_engine = "cpu",
                                         .act = k->act,
                                         .graph = k->more ? graph : NULL,
                                         .ctx = ctx,
                                         .threads = THREADS};
        a[n].name = k->name;
        must(ht_engine_open(&a[n].engine, &params, &e), k->name, &e);
        must(ht_session_new(&a[n].session, a[n].engine, &e), k->name, &e);
        p += len + (p[len] == ',');
    }
    return n;
}

/* The longest of "32,128". */
static uint32_t longest(const char *list)
{
    uint32_t most = 0;
    for (const char *p = list; *p; p += *p == ',') {
        char *end;
        const unsigned long rows = strtoul(p, &end, 10);
        if (end == p) return 0;
        if (rows > most) most = (uint32_t)rows;
        p = end;
    }
    return most;
}

int main(int argc, char **argv)
{
    arm a[MAX_ARMS] = {0};
    ht_buf b;
    ht_jw w;
    const int reps = argc > 4 ? atoi(argv[3]) : 0;
    if (argc > 6) n_new = (uint32_t)atoi(argv[6]);
    const uint32_t most = argc > 4 ? longest(argv[2]) : 0;
    if (!most || reps < 1 || reps > MAX_REPS || n_new < 1 || n_new > MAX_NEW) {
        fprintf(stderr,
                "usage: graph MODEL ROWS,... REPETITIONS ARM,... [GRAPH SETTINGS] [TOKENS]\n");
        return 2;
    }
    const int n = open_arms(a, argv[1], argv[4], argc > 5 ? argv[5] : "strict=1", most + n_new);
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "version", ht_version());
    ht_jw_kuint(&w, "threads", THREADS);
    ht_jw_key(&w, "rows");
    ht_jw_arr(&w);
    for (const char *p = argv[2]; *p; p += *p == ',') {
        char *end;
        const unsigned long rows = strtoul(p, &end, 10);
        compare(&w, a, n, rows, reps, ht_vocab_size(ht_engine_vocab(a[0].engine)));
        p = end;
    }
    ht_jw_end(&w, ']');
    ht_jw_kreal(&w, "fmaFlopsPerS", best_fma.flops_per_s);
    ht_jw_end(&w, '}');
    printf("%s\n", b.p);
    ht_buf_done(&b);
    for (int k = 0; k < n; k++) {
        ht_session_free(a[k].session);
        ht_engine_close(a[k].engine);
    }
    return 0;
}
