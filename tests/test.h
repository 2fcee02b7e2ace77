/* test.h - one test case is one function that registers itself; tests/run.c runs each in a forked
 * child with a time limit, so that a crash or hang is one failed case.
 *
 *     T_CASE(json, empty_object) { ... T_EQ_INT(n, 3); T_CHECK(p, "lookup of %s", key); }
 *
 * The first failed check ends the case; T_SOFT lets it go on. A case that checks nothing fails.
 * Tests run with the repository root as working directory. */
#ifndef HT_TEST_H
#define HT_TEST_H
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct t_case {
    const char *group, *name, *file;
    void (*fn)(void);
    unsigned seconds; /* limit; multiplied under sanitizers */
    bool full;        /* skipped in the short tier */
    struct t_case *next;
} t_case;
void t_register(t_case *);

#define T_DEFINE(grp, nam, secs, full_)                                                            \
    static void t_fn_##grp##_##nam(void);                                                          \
    static t_case t_case_##grp##_##nam = {                                                         \
        #grp, #nam, __FILE__, t_fn_##grp##_##nam, secs, full_, 0};                                 \
    __attribute__((constructor)) static void t_reg_##grp##_##nam(void)                             \
    {                                                                                              \
        t_register(&t_case_##grp##_##nam);                                                         \
    }                                                                                              \
    static void t_fn_##grp##_##nam(void)
/* A case of the short tier; with its own time limit; of the full tier only (`make test-full`). */
#define T_CASE(group, name)               T_DEFINE(group, name, 60, false)
#define T_CASE_SECONDS(group, name, secs) T_DEFINE(group, name, secs, false)
#define T_CASE_FULL(group, name, secs)    T_DEFINE(group, name, secs, true)

/* The flow is spelled out so that compilers know what holds after a check. */
#define T_CHECK(cond, ...)                                                                         \
    do {                                                                                           \
        bool t_holds = (cond);                                                                     \
        t_note(t_holds);                                                                           \
        if (!t_holds) t_die(__FILE__, __LINE__, #cond, __VA_ARGS__);                               \
    } while (0)
#define T_SOFT(cond, ...)                                                                          \
    do {                                                                                           \
        if (!t_note(cond)) t_fail(__FILE__, __LINE__, #cond, __VA_ARGS__);                         \
    } while (0)
#define T_TRUE(cond)           T_CHECK(cond, "%s", "")
#define T_EQ_INT(got, want)                                                                        \
    t_eq_int(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
#define T_EQ_STR(got, want)    t_eq_str(__FILE__, __LINE__, #got, (got), (want))
#define T_EQ_MEM(got, want, n) t_eq_mem(__FILE__, __LINE__, #got, (got), (want), (n))
/* |got - want| <= tol; NaN never passes. */
#define T_NEAR(got, want, tol)                                                                     \
    t_near(__FILE__, __LINE__, #got, (double)(got), (double)(want), (tol))
/* The call returns 0; prints the message of the ht_err `e` otherwise. */
#define T_OK(call, e)                                                                              \
    do {                                                                                           \
        int t_rc = (call);                                                                         \
        t_note(t_rc == 0);                                                                         \
        if (t_rc) t_die(__FILE__, __LINE__, #call, "returned %d: %s", t_rc, (e).msg);              \
    } while (0)
/* The call returns `want` (a negative ht_code) and the message of e contains `text`. */
#define T_ERR(call, want, e, text)                                                                 \
    do {                                                                                           \
        int t_rc = (call);                                                                         \
        T_CHECK(t_rc == (int)(want), "%s returned %d, want %d: %s", #call, t_rc, (int)(want),      \
                (e).msg);                                                                          \
        T_CHECK(strstr((e).msg, (text)), "message of %s lacks \"%s\": %s", #call, (text),          \
                (e).msg);                                                                          \
    } while (0)
#define T_SKIP(...) t_skip(__VA_ARGS__)

bool t_note(bool cond); /* counts a check, hands cond through */
void t_fail(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void t_die(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5), noreturn));
void t_eq_int(const char *file, int line, const char *expr, long long got, long long want);
void t_eq_str(const char *file, int line, const char *expr, const char *got, const char *want);
void t_eq_mem(const char *file, int line, const char *expr, const void *got, const void *want,
              size_t n);
void t_near(const char *file, int line, const char *expr, double got, double want, double tol);
void t_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Path of a file of the given data (HETERO_SHARED or ../shared, then data/rel); skips the case with
 * the reason when it is not there. Static storage, eight calls deep. */
const char *t_shared(const char *rel);
/* A directory of this case's own, removed afterwards. */
const char *t_tmp(void);
/* Whole file in malloc'd memory, NUL-terminated; fails the case when it cannot be read. */
char *t_slurp(const char *path, size_t *n);
void t_spit(const char *path, const void *p, size_t n);
/* Deterministic noise for shapes and values: SplitMix64. */
uint64_t t_rand(uint64_t *state);
float t_randf(uint64_t *state); /* uniform in [-1, 1) */
bool t_full(void);              /* the full tier runs */
bool t_sanitized(void);         /* built with a sanitizer: things are slow, limits are wider */
#endif
