/* schema.h - what schema.c (schemas to rules) and merge.c (references, allOf, what two schemas
 * allow together) share. */
#ifndef HT_GRAMMAR_SCHEMA_H
#define HT_GRAMMAR_SCHEMA_H
#include "grammar/grammar.h"

typedef struct {
    const ht_json *schema;
    const char *path;
    uint32_t rule;
} grammar__schema_job;
typedef struct {
    grammar__nfa *g;
    grammar__json *j;
    const ht_json *root;
    grammar__schema_job *job; /* a rule for each schema met; those from `done` on are to be built */
    uint32_t n_jobs, job_cap, done;
    unsigned depth;
} grammar__schema_c;
enum { SCHEMA_DEPTH = 64 }; /* merges and references inside each other */

/* bits of "type" */
enum {
    ST_NULL = 1, ST_BOOL = 2, ST_INT = 4, ST_NUM = 8, ST_STR = 16, ST_ARR = 32, ST_OBJ = 64,
    ST_ALL = 127 - ST_INT /* a number may be whole */
};

/* "path/key" with ~ and / escaped, in the arena. */
const char *grammar__schema_at(grammar__schema_c *, const char *path, const char *key);
const char *grammar__schema_at_i(grammar__schema_c *, const char *path, const char *key, size_t i);
/* Fail the build with the pointer in front. */
void grammar__schema_fail(grammar__schema_c *, int code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Says something about a value and does not restrict it. */
bool grammar__schema_annotation(const char *key);
/* Fail on a keyword that is not understood. */
void grammar__schema_check_keywords(grammar__schema_c *, const ht_json *, const char *path);
/* Does the schema restrict anything besides the keyword `except` (may be NULL)? */
bool grammar__schema_constrains(const ht_json *, const char *except);
/* Bits of its type; with none given what its keywords imply, ST_ALL when they imply nothing. 0: the
 * build failed. */
unsigned grammar__schema_types(grammar__schema_c *, const ht_json *, const char *path);
bool grammar__schema_equal(const ht_json *, const ht_json *);

/* The node that a $ref names; path: the reference's own, for errors. */
const ht_json *grammar__schema_resolve(grammar__schema_c *, const ht_json *ref, const char *path);
/* The schema with $ref and allOf at its top worked in, keywords checked; NULL: the build failed.
 * The result may be the same node, or the one that a $ref names. */
const ht_json *grammar__schema_flatten(grammar__schema_c *, const ht_json *, const char **path);
/* What both allow (flat ones). *never: nothing. */
const ht_json *grammar__schema_merge(grammar__schema_c *, const ht_json *a, const ht_json *b,
                                     const char *path, bool *never);
/* Without one keyword. */
const ht_json *grammar__schema_without(grammar__schema_c *, const ht_json *, const char *key);
/* No value belongs to both, as far as types, constants and discriminating properties tell. */
bool grammar__schema_disjoint(grammar__schema_c *, const ht_json *a, const ht_json *b,
                              const char *path, unsigned depth);
#endif
