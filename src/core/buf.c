/* buf.c - see buf.h. */
#include "core/buf.h"
#include "core/arena.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ht_buf_init(ht_buf *b, size_t max)
{
    *b = (ht_buf){.max = max ? max : (size_t)1 << 30};
}

void ht_buf_done(ht_buf *b)
{
    ht_mem_free(b->p);
    *b = (ht_buf){.max = b->max};
}

/* Make room for n more bytes and the terminator; marks the buffer bad when that cannot be. */
static bool room(ht_buf *b, size_t n)
{
    if (b->bad) return false;
    if (n > b->max - b->n) {
        b->bad = true;
        return false;
    }
    size_t need = b->n + n + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap + b->cap / 2 : 64;
    if (cap < need) cap = need;
    if (cap > b->max) cap = need > b->max ? need : b->max;
    char *p = ht_mem_resize(b->p, cap);
    if (!p) {
        b->bad = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void ht_buf_add(ht_buf *b, const void *p, size_t n)
{
    if (!room(b, n)) return;
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void ht_buf_str(ht_buf *b, const char *s)
{
    ht_buf_add(b, s, strlen(s));
}

void ht_buf_char(ht_buf *b, char c)
{
    ht_buf_add(b, &c, 1);
}

void ht_buf_fmt(ht_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    if (!room(b, 0)) return;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(b->p + b->n, b->cap - b->n, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->p[b->n] = 0;
        b->bad = true;
    } else if ((size_t)n < b->cap - b->n) {
        b->n += (size_t)n;
        if (b->n > b->max) { /* fitted the slack of the terminator, but not the limit */
            b->n -= (size_t)n;
            b->bad = true;
        }
    } else if (room(b, (size_t)n)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    if (b->p) b->p[b->n] = 0;
}

void ht_buf_clear(ht_buf *b)
{
    b->n = 0;
    b->bad = false;
    if (b->p) b->p[0] = 0;
}

int ht_buf_ok(const ht_buf *b, const char *what, ht_err *e)
{
    if (!b->bad) return 0;
    return HT_FAIL(e, HT_ENOMEM, "%s: cannot grow past %zu bytes (limit %zu, or memory exhausted)",
                   what, b->n, b->max);
}

char *ht_buf_take(ht_buf *b, size_t *n)
{
    if (!room(b, 0)) return NULL; /* bad: the caller was told by ht_buf_ok() */
    char *p = b->p;
    p[b->n] = 0;
    if (n) *n = b->n;
    *b = (ht_buf){.max = b->max};
    return p;
}
