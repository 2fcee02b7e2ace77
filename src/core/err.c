/* err.c - filling an ht_err. The only place that formats error text. */
#include "core/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ht_err_set(ht_err *e, int code, const char *where, const char *fmt, ...)
{
    if (!e) return code;
    e->code = code;
    e->where = where;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (n < 0) e->msg[0] = 0;
    if (n < (int)sizeof e->msg) return code;
    /* Cut before a code point, never inside one, so that the message stays valid UTF-8. */
    size_t end = sizeof e->msg - 4;
    while (end > 0 && ((unsigned char)e->msg[end] & 0xc0) == 0x80) end--;
    memcpy(e->msg + end, "...", 4);
    return code;
}
