/* value.h - the values a template computes with: Python's kinds, by value where small, in the
 * request arena otherwise. Strings carry provenance: which bytes stem from the caller's input.
 *
 * A string is (bytes, marks). marks is NULL when all bytes agree (`in` says how), else one byte per
 * byte of text, 1 = from input. Slices share both pointers, so cutting costs nothing and cannot
 * lose a mark. Strings are immutable and always valid UTF-8. */
#ifndef HT_TMPL_VALUE_H
#define HT_TMPL_VALUE_H
#include "core/arena.h"
#include "core/json.h"

enum tmpl__type {
    TV_MISSING,   /* an argument that was not given; never visible to a template                  */
    TV_UNDEF, TV_NONE, TV_BOOL, TV_INT, TV_FLOAT, TV_STR, TV_LIST, TV_TUPLE, TV_DICT, TV_NS,
    TV_RANGE, TV_GEN,               /* a generator: read once                                     */
    TV_VIEW,                        /* dict.items(), .keys(), .values()                           */
    TV_LOOP, TV_MACRO, TV_METHOD, TV_FUNC
};

typedef struct { const char *p; size_t n; uint64_t hash; } tname;     /* interned identifier      */
typedef struct { const char *p; size_t n; const uint8_t *m; bool in; } tstr;
typedef struct tlist tlist;
typedef struct tdict tdict;
typedef struct tgen tgen;
typedef struct trange trange;
typedef struct tloop tloop;
typedef struct tmacro tmacro;
typedef struct tmethod tmethod;
typedef struct tfunc tfunc;

typedef struct {
    uint8_t t;                      /* enum tmpl__type                                            */
    bool in;                        /* a scalar that came from the caller's input                 */
    bool safe;                      /* a string marked `safe`: see tmpl__markup_ok()              */
    union {
        bool b; int64_t i; double d;
        const tstr *s;
        tlist *l;                   /* list, tuple                                                */
        tdict *o;                   /* dict, namespace                                            */
        tgen *g;                    /* generator, view                                            */
        const trange *r;
        tloop *loop;
        const tmacro *macro;
        const tmethod *method;
        const tfunc *func;
        const char *hint;           /* undefined: why, for the error message; may be NULL         */
    } u;
} tval;

struct tlist { tval *at; size_t n, cap; };
typedef struct { tval k, v; } tpair;
struct tdict { tpair *at; size_t n, cap; };      /* insertion order                               */
struct tgen { tlist *l; size_t pos; const char *kind; };
struct trange { int64_t start, stop, step; size_t n; };
#endif
