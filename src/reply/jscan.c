/* jscan.c - see jscan.h. */
#include "reply/jscan.h"
#include <string.h>

enum {
    START,
    VALUE,
    FIRST_ITEM, /* a value, or ] */
    FIRST_KEY,  /* a key, or } */
    KEY,
    COLON,
    NEXT, /* a comma, or the end of the container */
    STRING,
    KEY_STRING,
    MINUS,
    ZERO,
    WHOLE,
    POINT,
    FRACTION,
    EXP,
    EXP_SIGN,
    EXP_DIGITS,
    WORD
};
enum { ESCAPE = 32, HEX = 64 }; /* flags on STRING and KEY_STRING */

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static enum jscan_result opened(jscan *s, bool object)
{
    if (s->depth == JSCAN_DEPTH) return JSCAN_BAD;
    const uint64_t bit = (uint64_t)1 << s->depth++;
    s->is_object = object ? s->is_object | bit : s->is_object & ~bit;
    s->state = object ? FIRST_KEY : FIRST_ITEM;
    return JSCAN_MORE;
}

static enum jscan_result closed(jscan *s, bool object)
{
    if ((s->is_object >> (s->depth - 1) & 1) != object) return JSCAN_BAD;
    s->state = NEXT;
    return --s->depth == 0 ? JSCAN_DONE : JSCAN_MORE;
}

static enum jscan_result value(jscan *s, char c)
{
    static const char *const words[] = {"true", "false", "null"};
    if (c == '{' || c == '[') return opened(s, c == '{');
    if (s->state == START) return JSCAN_BAD;
    if (c == '"') s->state = STRING;
    else if (c == '-') s->state = MINUS;
    else if (c == '0') s->state = ZERO;
    else if (digit(c)) s->state = WHOLE;
    else {
        s->word = NULL;
        for (unsigned i = 0; i < 3; i++)
            if (c == words[i][0]) s->word = words[i] + 1;
        if (!s->word) return JSCAN_BAD;
        s->state = WORD;
    }
    return JSCAN_MORE;
}

static enum jscan_result in_string(jscan *s, char c)
{
    const uint8_t kind = s->state & (ESCAPE - 1);
    if (s->state & HEX) {
        const bool hex = digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (--s->left == 0) s->state = kind;
        return hex ? JSCAN_MORE : JSCAN_BAD;
    }
    if (s->state & ESCAPE) {
        s->state = kind;
        if (c == 'u') {
            s->state = kind | HEX;
            s->left = 4;
            return JSCAN_MORE;
        }
        return c && strchr("\"\\/bfnrt", c) ? JSCAN_MORE : JSCAN_BAD;
    }
    if (c == '\\') s->state = kind | ESCAPE;
    else if (c == '"') s->state = kind == KEY_STRING ? COLON : NEXT;
    else if ((unsigned char)c < 0x20) return JSCAN_BAD;
    return JSCAN_MORE;
}

/* A byte of a number; *over: it is none, and the number is complete. */
static enum jscan_result in_number(jscan *s, char c, bool *over)
{
    const uint8_t st = s->state;
    *over = false;
    if (digit(c)) {
        if (st == ZERO) return JSCAN_BAD;
        if (st == MINUS) s->state = c == '0' ? ZERO : WHOLE;
        if (st == POINT) s->state = FRACTION;
        if (st == EXP || st == EXP_SIGN) s->state = EXP_DIGITS;
        return JSCAN_MORE;
    }
    if (c == '.' && (st == ZERO || st == WHOLE)) s->state = POINT;
    else if ((c == 'e' || c == 'E') && (st == ZERO || st == WHOLE || st == FRACTION))
        s->state = EXP;
    else if ((c == '+' || c == '-') && st == EXP) s->state = EXP_SIGN;
    else if (st == MINUS || st == POINT || st == EXP || st == EXP_SIGN) return JSCAN_BAD;
    else *over = true;
    return JSCAN_MORE;
}

/* Between tokens. */
static enum jscan_result between(jscan *s, char c)
{
    if (blank(c)) return JSCAN_MORE;
    switch (s->state) {
    case FIRST_ITEM:
        if (c == ']') return closed(s, false);
        s->state = VALUE;
        return value(s, c);
    case FIRST_KEY:
    case KEY:
        if (c == '}' && s->state == FIRST_KEY) return closed(s, true);
        s->state = KEY_STRING;
        return c == '"' ? JSCAN_MORE : JSCAN_BAD;
    case COLON: s->state = VALUE; return c == ':' ? JSCAN_MORE : JSCAN_BAD;
    case NEXT:
        if (c == '}' || c == ']') return closed(s, c == '}');
        s->state = s->is_object >> (s->depth - 1) & 1 ? KEY : VALUE;
        return c == ',' ? JSCAN_MORE : JSCAN_BAD;
    default: return value(s, c);
    }
}

enum jscan_result reply__jscan_byte(jscan *s, char c)
{
    const uint8_t kind = s->state & (ESCAPE - 1);
    bool over;
    if (kind == STRING || kind == KEY_STRING) return in_string(s, c);
    if (kind == WORD) {
        if (*s->word != c) return JSCAN_BAD;
        if (!*++s->word) s->state = NEXT;
        return JSCAN_MORE;
    }
    if (kind >= MINUS && kind <= EXP_DIGITS) {
        const enum jscan_result r = in_number(s, c, &over);
        if (!over) return r;
        s->state = NEXT;
    }
    return between(s, c);
}
