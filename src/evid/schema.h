/* schema.h - closed schemas: a document has exactly the members its table lists, of the listed
 * types. Unknown, missing and null members are errors that name the path; so is a wrong-case
 * enum. */
#ifndef HT_EVID_SCHEMA_H
#define HT_EVID_SCHEMA_H
#include "core/json.h"

enum ht_stype {
    HT_S_INT,         /* an integer within [lo, hi]                                               */
    HT_S_BOOL,
    HT_S_STR,         /* any string                                                               */
    HT_S_ENUM,        /* one of `names`                                                           */
    HT_S_SHA256,      /* 64 lower-case hex digits                                                 */
    HT_S_UTC,         /* "2026-11-29T12:00:00Z"                                                   */
    HT_S_OBJ,         /* an object of table `sub`; sub NULL: any object                           */
    HT_S_ARR,         /* an array; items of `item` (and sub, names, lo, hi)                       */
    HT_S_MAYBE_INT,   /* an integer, or {"known":false,"reason":ENUM-like upper-case word}        */
    HT_S_MAYBE_SHA256,/* a digest, or the same unknown                                            */
    HT_S_MAYBE_BOOL,  /* true or false, or the same unknown                                       */
    HT_S_ANY
};
typedef struct ht_field {
    const char *key;                 /* NULL ends the table                                       */
    uint8_t type, item;              /* enum ht_stype                                             */
    bool optional;
    const struct ht_field *sub;
    const char *const *names;        /* NULL-terminated                                           */
    int64_t lo, hi;                  /* both 0: 0 .. 2^53-1                                       */
} ht_field;
/* obj against table; `schema` (may be NULL) is what its member "schema" must say, not listed in the
 * table. Messages start with `what`. HT_EFORMAT. */
HT_MUST_USE int ht_schema_check(const ht_json *obj, const ht_field *table, const char *schema,
                                const char *what, ht_err *);
/* The form of what is not known: {"known":false,"reason":WORD}. */
void ht_jw_unknown(ht_jw *, const char *key, const char *reason);
bool ht_is_sha256(const char *s, size_t n);
/* Seconds since 1970 of "YYYY-MM-DDTHH:MM:SSZ" (proleptic Gregorian, no leap second); false when it
 * is not a time of that form. */
bool ht_utc_parse(const char *s, int64_t *unix_s);
void ht_utc_format(int64_t unix_s, char out[21]);
#endif
