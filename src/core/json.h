/* json.h - one JSON for everything: config.json and tokenizer.json (general form), messages, pack
 * headers and evidence (canonical form). Strict RFC 8259: UTF-8 checked, duplicate keys refused, no
 * NaN/Infinity, no trailing bytes, depth limited. Errors carry line and column.
 *
 * Canonical form (RFC 8785 restricted): keys sorted by bytes, no white space, integers only with
 * |x| <= 2^53-1, ASCII keys. ht_json_parse with HT_JSON_CANON accepts exactly what ht_json_write
 * with HT_JSON_CANON emits, byte for byte. */
#ifndef HT_CORE_JSON_H
#define HT_CORE_JSON_H
#include "core/arena.h"
#include "core/buf.h"

enum ht_jtype { HT_JNULL, HT_JBOOL, HT_JINT, HT_JREAL, HT_JSTR, HT_JARR, HT_JOBJ };
typedef struct ht_json ht_json;
struct ht_json {
    uint8_t type;                   /* enum ht_jtype                                             */
    bool b;
    bool lost;                      /* private: an add ran out of memory; writing then fails      */
    uint32_t cap;                   /* private: room in at                                        */
    int64_t i;                      /* HT_JINT: integers without fraction or exponent that fit    */
    double d;                       /* HT_JREAL, and HT_JINT as double                            */
    const char *s; size_t n;        /* HT_JSTR: bytes (NUL-terminated) ; HT_JARR/HT_JOBJ: n items */
    ht_json *at;                    /* items [n], in document order                               */
    const char *key; size_t key_n;  /* set when this is a member of an object                     */
    const uint32_t *order;          /* private: members sorted by key, for large objects          */
};
enum { HT_JSON_CANON = 1, HT_JSON_PRETTY = 2, HT_JSON_ASCII = 4 };
enum { HT_JSON_DEPTH = 63 };        /* arrays and objects inside each other                       */
/* Everything lives in the arena; text is not kept. */
HT_MUST_USE int ht_json_parse(ht_arena *, const char *text, size_t n, unsigned flags,
                              const char *what, ht_json **out, ht_err *);
/* Lookups return NULL when absent or when obj is NULL / not an object: chains are safe. */
const ht_json *ht_json_get(const ht_json *obj, const char *key);
const ht_json *ht_json_path(const ht_json *obj, const char *dotted);      /* "a.b.c"              */
/* Typed reads: absent or null gives `def`, a wrong type is an error naming the key. */
HT_MUST_USE int ht_json_u32(const ht_json *obj, const char *key, uint32_t def, uint32_t *out,
                            ht_err *);
HT_MUST_USE int ht_json_i64(const ht_json *obj, const char *key, int64_t def, int64_t *out,
                            ht_err *);
HT_MUST_USE int ht_json_f64(const ht_json *obj, const char *key, double def, double *out, ht_err *);
HT_MUST_USE int ht_json_bool(const ht_json *obj, const char *key, bool def, bool *out, ht_err *);
HT_MUST_USE int ht_json_str(const ht_json *obj, const char *key, const char *def, const char **out,
                            ht_err *);
/* Building: nodes come from the arena; NULL when memory ran out: adders take that and ht_json_write
 * reports it, so only the end needs a check. A value is copied into its parent: finish a container
 * before adding it. */
ht_json *ht_json_new(ht_arena *, enum ht_jtype);
ht_json *ht_json_new_str(ht_arena *, const char *s, size_t n);
ht_json *ht_json_new_int(ht_arena *, int64_t);
ht_json *ht_json_new_bool(ht_arena *, bool);
void ht_json_add(ht_arena *, ht_json *obj, const char *key, ht_json *value);   /* key copied      */
void ht_json_push(ht_arena *, ht_json *arr, ht_json *value);
/* Write a tree. HT_JSON_CANON refuses reals and non-ASCII keys. */
HT_MUST_USE int ht_json_write(const ht_json *, unsigned flags, ht_buf *, ht_err *);

/* Streaming writer for results: commas and escapes are its business, order is the caller's. */
typedef struct { ht_buf *b; unsigned depth, flags; uint64_t has_item; bool after_key; } ht_jw;
void ht_jw_init(ht_jw *, ht_buf *, unsigned flags);
void ht_jw_obj(ht_jw *), ht_jw_arr(ht_jw *), ht_jw_end(ht_jw *, char closer /* '}' or ']' */);
void ht_jw_key(ht_jw *, const char *key);
void ht_jw_str(ht_jw *, const char *s), ht_jw_strn(ht_jw *, const char *s, size_t n);
void ht_jw_int(ht_jw *, int64_t), ht_jw_uint(ht_jw *, uint64_t), ht_jw_bool(ht_jw *, bool);
void ht_jw_null(ht_jw *);
void ht_jw_real(ht_jw *, double);     /* 17 digits, round-trips; non-finite as null               */
void ht_jw_f32(ht_jw *, float);       /* 9 digits, round-trips; non-finite as null                */
void ht_jw_raw(ht_jw *, const char *json, size_t n);              /* an already encoded value     */
void ht_jw_json(ht_jw *, const ht_json *);
#define ht_jw_kstr(w, k, v) (ht_jw_key((w), (k)), ht_jw_str((w), (v)))
#define ht_jw_kint(w, k, v) (ht_jw_key((w), (k)), ht_jw_int((w), (int64_t)(v)))
#define ht_jw_kuint(w, k, v) (ht_jw_key((w), (k)), ht_jw_uint((w), (v)))
#define ht_jw_kbool(w, k, v) (ht_jw_key((w), (k)), ht_jw_bool((w), (v)))
#define ht_jw_kreal(w, k, v) (ht_jw_key((w), (k)), ht_jw_real((w), (v)))
#endif
