/* number.c - JSON numbers within bounds, as languages of digits. A magnitude is compared digit by
 * digit with its bounds: as long as the digits so far equal a bound's, the next is limited by it;
 * after the first that differs anything goes. */
#include "grammar/grammar.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 16, FRACTION = 16, TEXT = 48 };
static const uint64_t LIMIT = 9999999999999999u; /* DIGITS nines */

static uint32_t digits(grammar__nfa *g, unsigned min, unsigned max, uint32_t next)
{
    grammar__set s = {{0}};
    for (unsigned c = '0'; c <= '9'; c++) grammar__set_add(&s, c);
    return grammar__run(g, &s, min, max, next);
}

static uint32_t digit(grammar__nfa *g, int lo, int hi, uint32_t next)
{
    return grammar__range(g, (uint8_t)lo, (uint8_t)hi, next);
}

/* One more alternative. */
static void also(grammar__nfa *g, uint32_t *at, bool *any, uint32_t one)
{
    *at = *any ? grammar__alt(g, one, *at) : one;
    *any = true;
}

/* ---- whole numbers --------------------------------------------------------------------------- */

/* Digits i.. of numbers of n digits from lo to hi (texts); tight: still equal to that bound. */
static uint32_t between(grammar__nfa *g, const char *lo, const char *hi, unsigned n, unsigned i,
                        bool tight_lo, bool tight_hi, uint32_t next)
{
    if (i == n) return next;
    if (!tight_lo && !tight_hi) return digits(g, n - i, n - i, next);
    const char a = tight_lo ? lo[i] : '0', b = tight_hi ? hi[i] : '9';
    uint32_t at = 0;
    bool any = false;
    if (a == b) return digit(g, a, b, between(g, lo, hi, n, i + 1, tight_lo, tight_hi, next));
    int from = a, to = b;
    if (tight_lo)
        also(g, &at, &any, digit(g, from, from, between(g, lo, hi, n, i + 1, true, false, next)));
    if (tight_hi)
        also(g, &at, &any, digit(g, to, to, between(g, lo, hi, n, i + 1, false, true, next)));
    from += tight_lo;
    to -= tight_hi;
    if (from <= to) also(g, &at, &any, digit(g, from, to, digits(g, n - i - 1, n - i - 1, next)));
    return at;
}

/* Whole numbers from lo to hi <= LIMIT without leading zeros. */
static uint32_t whole(grammar__nfa *g, uint64_t lo, uint64_t hi, uint32_t next)
{
    uint32_t at = 0;
    bool any = false;
    uint64_t least = 0, most = 9;
    for (unsigned n = 1; n <= DIGITS; n++, least = most + 1, most = most * 10 + 9) {
        const uint64_t a = lo > least ? lo : least, b = hi < most ? hi : most;
        char from[TEXT], to[TEXT];
        if (a > b) continue;
        (void)snprintf(from, sizeof from, "%llu", (unsigned long long)a);
        (void)snprintf(to, sizeof to, "%llu", (unsigned long long)b);
        also(g, &at, &any, between(g, from, to, n, 0, true, true, next));
    }
    return at;
}

/* ---- fractions ------------------------------------------------------------------------------- */

typedef struct {
    grammar__nfa *g;
    const char *lo, *hi; /* digits after the point, no zeros at the end; NULL: no bound */
    bool open_lo, open_hi;
    uint32_t next;
} frac;

/* May the number end at digit i, while equal to lo or hi so far? */
static bool may_end(const frac *f, unsigned i, bool tight_lo, bool tight_hi)
{
    if (tight_lo && (i < strlen(f->lo) || f->open_lo)) return false;
    return !tight_hi || i < strlen(f->hi) || !f->open_hi;
}

/* Digits i.. of a fraction; end: it may end here. False: nothing can come. */
static bool fraction(const frac *f, unsigned i, bool tight_lo, bool tight_hi, bool end,
                     uint32_t *out)
{
    grammar__nfa *g = f->g;
    uint32_t at = 0, sub;
    bool any = false;
    if (end && may_end(f, i, tight_lo, tight_hi)) also(g, &at, &any, f->next);
    if (i < FRACTION && !tight_lo && !tight_hi) {
        also(g, &at, &any, digits(g, 1, FRACTION - i, f->next));
    } else if (i < FRACTION) {
        int a = '0', b = '9';
        if (tight_lo && i < strlen(f->lo)) a = f->lo[i];
        if (tight_hi) b = i < strlen(f->hi) ? f->hi[i] : '0';
        for (int c = a; c <= b; c++) {
            const bool still_lo = tight_lo && c == a, still_hi = tight_hi && c == b;
            if (fraction(f, i + 1, still_lo, still_hi, true, &sub))
                also(g, &at, &any, digit(g, c, c, sub));
        }
    }
    *out = at;
    return any;
}

/* Nothing, or a point and digits, within the bounds of f. */
static bool point(const frac *f, uint32_t *out)
{
    uint32_t at = 0, sub;
    bool any = false;
    const bool lo = f->lo != NULL, hi = f->hi != NULL;
    if (may_end(f, 0, lo, hi)) also(f->g, &at, &any, f->next);
    if (fraction(f, 0, lo, hi, false, &sub)) also(f->g, &at, &any, grammar__str(f->g, ".", sub));
    *out = at;
    return any;
}

/* ---- decimal numbers ------------------------------------------------------------------------- */

typedef struct {
    uint64_t whole;
    char frac[TEXT];
    bool open, none; /* none: no such bound */
} bound;

/* The decimal digits of v >= 0, as few as give it back. */
static bool decimal(grammar__nfa *g, double v, bound *out)
{
    char text[TEXT];
    for (int p = 0; p <= FRACTION - 1; p++) {
        (void)snprintf(text, sizeof text, "%.*f", p, v);
        if (strtod(text, NULL) != v) continue;
        char *end;
        out->whole = strtoull(text, &end, 10);
        (void)snprintf(out->frac, sizeof out->frac, "%s", *end ? end + 1 : "");
        return true;
    }
    grammar__fail(g, HT_EUNSUPPORTED, "a bound of %g has more than %d digits after the point", v,
                  FRACTION - 1);
    return false;
}

/* Magnitudes from a to b. */
static bool magnitude(grammar__nfa *g, const bound *a, const bound *b, uint32_t next, uint32_t *out)
{
    uint32_t at = 0, sub;
    bool any = false;
    const uint64_t top = b->none ? LIMIT : b->whole;
    const frac free_ = {.g = g, .next = next};
    frac f = {.g = g, .lo = a->frac, .open_lo = a->open, .next = next};
    if (!b->none && b->whole == a->whole) {
        f.hi = b->frac;
        f.open_hi = b->open;
    }
    if (a->whole > top) return false;
    if (point(&f, &sub)) also(g, &at, &any, whole(g, a->whole, a->whole, sub));
    if (!b->none && b->whole > a->whole) {
        const frac h = {.g = g, .hi = b->frac, .open_hi = b->open, .next = next};
        if (point(&h, &sub)) also(g, &at, &any, whole(g, b->whole, b->whole, sub));
    }
    const uint64_t lo = a->whole + 1, hi = b->none ? LIMIT : b->whole ? b->whole - 1 : 0;
    if (lo <= hi && point(&free_, &sub)) also(g, &at, &any, whole(g, lo, hi, sub));
    *out = at;
    return any;
}

/* Both signs. Zero is written without a minus. */
static bool real_within(grammar__nfa *g, const grammar__range_of *r, uint32_t next, uint32_t *out)
{
    uint32_t at = 0, sub;
    bool any = false;
    bound a = {.none = !r->has_lo, .open = r->open_lo},
          b = {.none = !r->has_hi, .open = r->open_hi};
    if ((r->has_lo && !decimal(g, fabs(r->lo), &a)) || (r->has_hi && !decimal(g, fabs(r->hi), &b)))
        return false;
    const bool lo_neg = !r->has_lo || r->lo < 0, hi_neg = r->has_hi && r->hi < 0;
    const bound zero = {0}, above_zero = {.open = true};
    if (!hi_neg && magnitude(g, lo_neg ? &zero : &a, &b, next, &sub)) also(g, &at, &any, sub);
    if (lo_neg && magnitude(g, hi_neg ? &b : &above_zero, &a, next, &sub))
        also(g, &at, &any, grammar__str(g, "-", sub));
    *out = at;
    return any;
}

static bool integer_within(grammar__nfa *g, const grammar__range_of *r, uint32_t next,
                           uint32_t *out)
{
    int64_t lo = -(int64_t)LIMIT, hi = (int64_t)LIMIT;
    uint32_t at = 0;
    bool any = false;
    if (r->has_lo) {
        lo = (int64_t)ceil(r->lo);
        if (r->open_lo && (double)lo == r->lo) lo++;
    }
    if (r->has_hi) {
        hi = (int64_t)floor(r->hi);
        if (r->open_hi && (double)hi == r->hi) hi--;
    }
    if (hi >= 0 && lo <= hi)
        also(g, &at, &any, whole(g, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, next));
    if (lo < 0 && lo <= hi)
        also(g, &at, &any,
             grammar__str(g, "-", whole(g, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo, next)));
    *out = at;
    return any;
}

/* Any number: sign, digits, fraction, exponent of two digits. */
static uint32_t any_number(grammar__nfa *g, bool integer, uint32_t next)
{
    uint32_t at = next;
    if (!integer) {
        grammar__set e = {{0}}, sign = {{0}};
        grammar__set_add(&e, 'e');
        grammar__set_add(&e, 'E');
        grammar__set_add(&sign, '+');
        grammar__set_add(&sign, '-');
        const uint32_t exp =
            grammar__bytes(g, &e, grammar__run(g, &sign, 0, 1, digits(g, 1, 2, next)));
        at = grammar__alt(g, next, exp);
        at = grammar__alt(g, at, grammar__str(g, ".", digits(g, 1, FRACTION, at)));
    }
    at = whole(g, 0, LIMIT, at);
    return grammar__alt(g, at, grammar__str(g, "-", at));
}

bool grammar__number(grammar__nfa *g, const grammar__range_of *r, bool integer, uint32_t next,
                     uint32_t *out)
{
    if ((r->has_lo && !(fabs(r->lo) < 1e15)) || (r->has_hi && !(fabs(r->hi) < 1e15))) {
        grammar__fail(g, HT_EUNSUPPORTED, "a bound of a number must lie within 1e15 of 0");
        return false;
    }
    if (r->has_lo && r->has_hi && r->lo > r->hi) return false;
    if (!r->has_lo && !r->has_hi) {
        *out = any_number(g, integer, next);
        return true;
    }
    return integer ? integer_within(g, r, next, out) : real_within(g, r, next, out);
}
