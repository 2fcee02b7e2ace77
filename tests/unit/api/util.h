/* util.h - what the tests of api/ share: the embedded model, the tiny goldens, JSON of a result. */
#ifndef HT_TEST_API_UTIL_H
#define HT_TEST_API_UTIL_H
#include "core/json.h"
#include "core/opt.h"
#include "hetero.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

#define TALE "models/tale-9m-f16.gguf"

/* Path of golden/arch/rel: the copy in tests/data where there is one, else the shared one. */
static inline const char *golden(const char *rel)
{
    static char own[256];
    struct stat st;
    snprintf(own, sizeof own, "tests/data/golden/arch/%s", rel);
    if (!stat(own, &st)) return own;
    snprintf(own, sizeof own, "golden/arch/%s", rel);
    return t_shared(own);
}

static inline ht_engine *engine(const ht_engine_params *p)
{
    ht_engine *e = NULL;
    ht_err err = {0};
    T_OK(ht_engine_open(&e, p, &err), err);
    return e;
}

/* A one- or more-threaded engine over the embedded model with a context of 256. */
static inline ht_engine *tale(int threads, uint32_t sessions)
{
    const ht_engine_params p = {
        .model = TALE, .ctx = 256, .threads = threads, .max_sessions = sessions};
    return engine(&p);
}

static inline ht_session *session(ht_engine *e)
{
    ht_session *s = NULL;
    ht_err err = {0};
    T_OK(ht_session_new(&s, e, &err), err);
    return s;
}

/* Parse a result; frees the text. The tree lives in the arena. */
static inline const ht_json *parse(ht_arena *arena, char *json)
{
    ht_json *j = NULL;
    ht_err err = {0};
    T_TRUE(json);
    T_OK(ht_json_parse(arena, json, strlen(json), 0, "result", &j, &err), err);
    ht_free(json);
    return j;
}

static inline ht_arena *arena(void)
{
    ht_arena *a = NULL;
    ht_err err = {0};
    T_OK(ht_arena_new(&a, 0, &err), err);
    return a;
}

static inline long long num(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    T_CHECK(v && v->type == HT_JINT, "%s is not an integer", path);
    return (long long)v->i;
}

static inline const char *str(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    T_CHECK(v && v->type == HT_JSTR, "%s is not a string", path);
    return v->s;
}

static inline const ht_json *receipt(ht_arena *a, const ht_session *s)
{
    char *json = NULL;
    ht_err err = {0};
    T_OK(ht_session_receipt(s, &json, &err), err);
    return parse(a, json);
}

/* Greedy continuation of n_new tokens. */
static inline ht_gen_result greedy(ht_session *s, const int32_t *ids, size_t n, uint32_t n_new)
{
    ht_sampling g;
    ht_err err = {0};
    ht_gen_result r = {0};
    ht_sampling_init(&g);
    g.temp = 0;
    const ht_gen_params p = {.max_new = n_new, .sampling = &g, .ignore_eos = 1};
    T_OK(ht_session_generate(s, ids, n, &p, &r, &err), err);
    return r;
}

/* Collects logits of an evaluation: rows in order. */
typedef struct {
    float *rows;
    size_t n, cap;
    uint32_t n_vocab, index[64];
} logits;

static inline int keep_logits(void *user, uint32_t index, const float *row, uint32_t n_vocab)
{
    logits *l = user;
    if (l->n == l->cap) return 1;
    l->n_vocab = n_vocab;
    l->index[l->n] = index;
    memcpy(l->rows + l->n++ * n_vocab, row, n_vocab * sizeof *row);
    return 0;
}

/* All logits of ids in a fresh session of e; free the result. */
static inline float *all_logits(ht_engine *e, const int32_t *ids, size_t n)
{
    ht_session *s = session(e);
    ht_err err = {0};
    logits l = {.cap = n};
    l.rows = calloc(n * ht_vocab_size(ht_engine_vocab(e)) + n * 4096, sizeof *l.rows);
    T_TRUE(l.rows && n <= 64);
    T_OK(ht_session_eval(s, ids, n, NULL, n, keep_logits, &l, &err), err);
    T_EQ_INT(l.n, n);
    ht_session_free(s);
    return l.rows;
}
#endif
