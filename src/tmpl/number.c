/* number.c - Python's arithmetic on 64-bit integers and doubles, + and * on sequences, and reading
 * and rounding of numbers. A result that needs more than 64 bits is refused, never wrapped. */
#include "core/utf8.h"
#include "tmpl/eval.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int too_big(tctx *cx)
{
    return T_FAIL(cx, HT_EUNSUPPORTED, "integers beyond 64 bits");
}
static int div_zero(tctx *cx)
{
    return T_TYPE(cx, "division by zero");
}

/* ---- integers -------------------------------------------------------------------------------- */

static int int_pow(tctx *cx, int64_t a, int64_t b, tval *out)
{
    int64_t r = 1;
    if (b < 0) {
        if (!a) return div_zero(cx);
        *out = tmpl__float(pow((double)a, (double)b));
        return 0;
    }
    if (a == 0 || a == 1 || a == -1) {
        *out = tmpl__int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
        return 0;
    }
    for (; b > 0; b--) { /* |a| >= 2: overflows within 63 rounds */
        if (__builtin_mul_overflow(r, a, &r)) return too_big(cx);
    }
    *out = tmpl__int(r);
    return 0;
}

/* Floor division and modulo with the divisor's sign. b is not 0. */
static int int_divmod(tctx *cx, int64_t a, int64_t b, bool want_mod, tval *out)
{
    if (b == -1) { /* INT64_MIN / -1 traps */
        int64_t q;
        if (want_mod) {
            *out = tmpl__int(0);
            return 0;
        }
        if (__builtin_sub_overflow((int64_t)0, a, &q)) return too_big(cx);
        *out = tmpl__int(q);
        return 0;
    }
    int64_t q = a / b, r = a % b;
    if (r && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    *out = tmpl__int(want_mod ? r : q);
    return 0;
}

static int int_op(tctx *cx, int op, int64_t a, int64_t b, tval *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_POW: return int_pow(cx, a, b, out);
    case OP_DIV:
        if (!b) return div_zero(cx);
        *out = tmpl__float((double)a / (double)b);
        return 0;
    default:
        if (!b) return div_zero(cx);
        return int_divmod(cx, a, b, op == OP_MOD, out);
    }
    if (over) return too_big(cx);
    *out = tmpl__int(r);
    return 0;
}

/* ---- floats ---------------------------------------------------------------------------------- */

static int float_divmod(tctx *cx, double a, double b, bool want_mod, tval *out)
{
    if (b == 0) return div_zero(cx);
    double r = fmod(a, b), q = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) {
        r += b;
        q -= 1;
    } else if (r == 0) {
        r = copysign(0.0, b);
    }
    if (want_mod) {
        *out = tmpl__float(r);
        return 0;
    }
    double f = floor(q);
    if (q - f > 0.5) f += 1; /* (a - r) / b is integral up to rounding */
    *out = tmpl__float(q == 0 ? copysign(0.0, a / b) : f);
    return 0;
}

static int float_op(tctx *cx, int op, double a, double b, tval *out)
{
    double r = 0;
    switch (op) {
    case OP_ADD: r = a + b; break;
    case OP_SUB: r = a - b; break;
    case OP_MUL: r = a * b; break;
    case OP_DIV:
        if (b == 0) return div_zero(cx);
        r = a / b;
        break;
    case OP_POW:
        if (a == 0 && b < 0) return div_zero(cx);
        if (a < 0 && b != floor(b)) return T_FAIL(cx, HT_EUNSUPPORTED, "complex numbers");
        r = pow(a, b);
        if (isinf(r) && !isinf(a) && !isinf(b)) return T_TYPE(cx, "the power is too large");
        break;
    default: return float_divmod(cx, a, b, op == OP_MOD, out);
    }
    *out = tmpl__float(r);
    return 0;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static int repeat(tctx *cx, tval seq, int64_t times, tval *out)
{
    if (times < 0) times = 0;
    if (seq.t == TV_STR) {
        tsb b = {0};
        for (int64_t i = 0; i < times && seq.u.s->n; i++) {
            HT_TRY(tmpl__cost(cx, 1));
            HT_TRY(tmpl__sb_val(cx, &b, seq));
        }
        return tmpl__sb_done(cx, &b, out);
    }
    tlist *l;
    HT_TRY(tmpl__list_new(cx, 0, &l));
    for (int64_t i = 0; i < times && seq.u.l->n; i++) {
        for (size_t k = 0; k < seq.u.l->n; k++) HT_TRY(tmpl__list_push(cx, l, seq.u.l->at[k]));
    }
    *out = seq;
    out->u.l = l;
    return 0;
}

static int add_sequences(tctx *cx, tval a, tval b, tval *out)
{
    if (a.t == TV_STR) {
        tsb sb = {0};
        HT_TRY(tmpl__markup_ok(cx, a, b));
        HT_TRY(tmpl__sb_val(cx, &sb, a));
        HT_TRY(tmpl__sb_val(cx, &sb, b));
        HT_TRY(tmpl__sb_done(cx, &sb, out));
        out->safe = a.safe || b.safe;
        return 0;
    }
    tlist *l;
    HT_TRY(tmpl__list_new(cx, a.u.l->n + b.u.l->n, &l));
    for (size_t i = 0; i < a.u.l->n; i++) HT_TRY(tmpl__list_push(cx, l, a.u.l->at[i]));
    for (size_t i = 0; i < b.u.l->n; i++) HT_TRY(tmpl__list_push(cx, l, b.u.l->at[i]));
    *out = a;
    out->u.l = l;
    return 0;
}

static bool is_sequence(tval v)
{
    return v.t == TV_STR || v.t == TV_LIST || v.t == TV_TUPLE;
}

static const char *op_text(int op)
{
    static const char *const text[] = {
        [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/",
        [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**"};
    return text[op];
}

int tmpl__binary(tctx *cx, int op, tval a, tval b, tval *out)
{
    if (op == OP_MOD && a.t == TV_STR)
        return T_FAIL(cx, HT_EUNSUPPORTED, "formatting with the %% operator");
    if (a.t == TV_UNDEF || b.t == TV_UNDEF) {
        const char *hint = a.t == TV_UNDEF ? a.u.hint : b.u.hint;
        return T_TYPE(cx, "operator %s on an undefined value%s%s", op_text(op), hint ? ": " : "",
                      hint ? hint : "");
    }
    if (tmpl__is_number(a) && tmpl__is_number(b)) {
        HT_TRY(a.t == TV_FLOAT || b.t == TV_FLOAT
                   ? float_op(cx, op, tmpl__as_double(a), tmpl__as_double(b), out)
                   : int_op(cx, op, tmpl__as_int(a), tmpl__as_int(b), out));
        out->in = a.in || b.in;
        return 0;
    }
    if (op == OP_ADD && a.t == b.t && is_sequence(a)) return add_sequences(cx, a, b, out);
    if (op == OP_MUL && is_sequence(a) && tmpl__is_int(b))
        return repeat(cx, a, tmpl__as_int(b), out);
    if (op == OP_MUL && is_sequence(b) && tmpl__is_int(a))
        return repeat(cx, b, tmpl__as_int(a), out);
    return T_TYPE(cx, "operator %s between %s and %s", op_text(op), tmpl__type_name(a),
                  tmpl__type_name(b));
}

/* ---- reading and rounding -------------------------------------------------------------------- */

static tstr stripped(const tstr *s)
{
    tstr r = *s;
    uint32_t cp;
    while (r.n) {
        unsigned k = ht_utf8_next(r.p, r.n, &cp);
        if (!k || !tmpl__is_space(cp)) break;
        r.p += k;
        r.n -= k;
    }
    while (r.n) {
        size_t i = r.n - 1;
        while (i && ((unsigned char)r.p[i] & 0xC0) == 0x80) i--;
        if (!ht_utf8_next(r.p + i, r.n - i, &cp) || !tmpl__is_space(cp)) break;
        r.n = i;
    }
    return r;
}

static unsigned digit_value(char c)
{
    if (c >= '0' && c <= '9') return (unsigned)(c - '0');
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return (unsigned)((c | 32) - 'a' + 10);
    return 99;
}

/* int(text, base): white space around, a sign, an optional 0x/0o/0b that fits the base, digits with
 * single underscores. *ok false: not a number. */
int tmpl__parse_int(tctx *cx, const tstr *text, int base, bool *ok, int64_t *out)
{
    tstr s = stripped(text);
    size_t i = 0;
    uint64_t v = 0;
    *ok = false;
    if (s.n > 4096) return T_FAIL(cx, HT_EUNSUPPORTED, "numbers of %zu characters", s.n);
    bool neg = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) i++;
    bool digit_before = false;
    if (i + 2 < s.n && s.p[i] == '0') {
        char x = (char)(s.p[i + 1] | 32);
        int b = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
        if (b && (base == b || base == 0)) {
            base = b;
            i += 2;
            digit_before = true; /* an underscore may follow the prefix */
        }
    }
    if (base == 0) return T_FAIL(cx, HT_EUNSUPPORTED, "int() with base 0");
    if (i == s.n) return 0;
    for (; i < s.n; i++) {
        unsigned d = digit_value(s.p[i]);
        if (s.p[i] == '_' && digit_before) {
            digit_before = false;
            continue;
        }
        if ((unsigned char)s.p[i] >= 0x80)
            return T_FAIL(cx, HT_EUNSUPPORTED, "reading a number from non-ASCII text");
        if (d >= (unsigned)base) return 0;
        if (v > ((uint64_t)INT64_MAX - d) / (unsigned)base) return too_big(cx);
        v = v * (unsigned)base + d;
        digit_before = true;
    }
    if (!digit_before) return 0;
    *ok = true;
    *out = neg ? -(int64_t)v : (int64_t)v;
    return 0;
}

/* Copy s without underscores between digits into buf when it has the form of a decimal number. */
static bool float_shape(const tstr *s, char *buf, size_t cap)
{
    size_t i = 0, n = 0, digits = 0;
    bool dot = false, exp = false;
    if (s->n + 1 > cap) return false;
    if (i < s->n && (s->p[i] == '-' || s->p[i] == '+')) buf[n++] = s->p[i++];
    for (; i < s->n; i++) {
        char c = s->p[i];
        bool prev_digit = n && buf[n - 1] >= '0' && buf[n - 1] <= '9';
        if (c >= '0' && c <= '9') {
            digits++;
        } else if (c == '_' && prev_digit && i + 1 < s->n && s->p[i + 1] >= '0' &&
                   s->p[i + 1] <= '9') {
            continue;
        } else if (c == '.' && !dot && !exp) {
            dot = true;
        } else if ((c == 'e' || c == 'E') && digits && !exp) {
            exp = true;
            digits = 0;
        } else if (!((c == '-' || c == '+') && n && (buf[n - 1] == 'e' || buf[n - 1] == 'E'))) {
            return false;
        }
        buf[n++] = c;
    }
    buf[n] = 0;
    return digits > 0;
}

static bool word_is(const tstr *s, const char *word)
{
    if (s->n != strlen(word)) return false;
    for (size_t i = 0; i < s->n; i++) {
        if ((s->p[i] | 32) != word[i]) return false;
    }
    return true;
}

int tmpl__parse_float(tctx *cx, const tstr *text, bool *ok, double *out)
{
    char buf[512];
    tstr s = stripped(text), t = s;
    *ok = true;
    if (t.n && (t.p[0] == '-' || t.p[0] == '+')) {
        t.p++;
        t.n--;
    }
    double sign = s.n && s.p[0] == '-' ? -1 : 1;
    if (word_is(&t, "inf") || word_is(&t, "infinity")) {
        *out = sign * HUGE_VAL;
    } else if (word_is(&t, "nan")) {
        *out = NAN;
    } else if (s.n >= sizeof buf) {
        return T_FAIL(cx, HT_EUNSUPPORTED, "numbers of %zu characters", s.n);
    } else {
        *ok = float_shape(&s, buf, sizeof buf);
        *out = *ok ? strtod(buf, NULL) : 0;
    }
    return 0;
}

/* round(v, digits) of Python for floats: decimal rounding of the exact value, ties to even. printf
 * rounds the exact binary value that way, so it does the work. */
int tmpl__round(tctx *cx, tval v, int64_t digits, tval *out)
{
    char buf[400];
    if (!tmpl__is_number(v)) return T_TYPE(cx, "rounding a %s", tmpl__type_name(v));
    double d = tmpl__as_double(v);
    *out = v;
    if (v.t != TV_FLOAT) {
        if (digits < 0) return T_FAIL(cx, HT_EUNSUPPORTED, "rounding integers to tens");
        *out = tmpl__int(tmpl__as_int(v));
        return 0;
    }
    if (isnan(d) || isinf(d) || digits > 22) return 0;
    if (digits < 0) return T_FAIL(cx, HT_EUNSUPPORTED, "rounding to a negative precision");
    snprintf(buf, sizeof buf, "%.*f", (int)digits, d);
    *out = tmpl__float(strtod(buf, NULL));
    out->in = v.in;
    return 0;
}
