/* html.c - escaping, numbers, the frame of a page, tables; reading documents. */
#include "core/utf8.h"
#include "evid/manifest.h"
#include "report/priv.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOC_MAX = 16 << 20 };

static bool shown(uint32_t cp)
{
    if (cp < 0x20) return cp == '\n' || cp == '\t';
    if (cp >= 0x7F && cp < 0xA0) return false;
    if (cp >= 0x200E && cp <= 0x200F) return false; /* marks and overrides of direction */
    if (cp >= 0x202A && cp <= 0x202E) return false;
    if (cp >= 0x2066 && cp <= 0x2069) return false;
    return cp < 0xFFFE || cp > 0xFFFF; /* not characters in XML */
}

static void text_n(ht_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned len = ht_utf8_next(s + i, n - i, &cp);
        if (!len || !shown(cp)) ht_buf_str(b, "\xEF\xBF\xBD");
        else if (cp == '&') ht_buf_str(b, "&amp;");
        else if (cp == '<') ht_buf_str(b, "&lt;");
        else if (cp == '>') ht_buf_str(b, "&gt;");
        else if (cp == '"') ht_buf_str(b, "&quot;");
        else if (cp == '\'') ht_buf_str(b, "&#39;");
        else ht_buf_add(b, s + i, len);
        i += len ? len : 1;
    }
}

void report__text(ht_buf *b, const char *s)
{
    text_n(b, s, strlen(s));
}

void report__fmt(ht_buf *b, const char *fmt, ...)
{
    char text[1000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    report__text(b, text);
}

void report__fixed(ht_buf *b, double v, int decimals)
{
    static const double scale[] = {1, 10, 100, 1000, 10000, 100000, 1000000};
    if (!isfinite(v) || fabs(v) > 1e12) {
        ht_buf_str(b, isfinite(v) ? "beyond 10^12" : "-");
        return;
    }
    long long k = llround(fabs(v) * scale[decimals]), whole = k / (long long)scale[decimals];
    ht_buf_fmt(b, "%s%lld", v < 0 && k ? "-" : "", whole);
    if (decimals) ht_buf_fmt(b, ".%0*lld", decimals, k - whole * (long long)scale[decimals]);
}

void report__ns(ht_buf *b, double ns)
{
    static const struct {
        double per;
        const char *unit;
    } step[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "\xC2\xB5s"}, {1, "ns"}};
    size_t i = 0;
    while (i < 3 && fabs(ns) < step[i].per) i++;
    report__fixed(b, ns / step[i].per, i == 3 ? 0 : 2);
    ht_buf_fmt(b, " %s", step[i].unit);
}

void report__bytes(ht_buf *b, double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    for (; i < 4 && bytes >= 1024; i++) bytes /= 1024;
    report__fixed(b, bytes, i ? 1 : 0);
    ht_buf_fmt(b, " %s", unit[i]);
}

void report__ratio(ht_buf *b, double ppm)
{
    report__fixed(b, ppm / 1e6, 4);
}

/* ---- the frame ------------------------------------------------------------------------------ */

static const char style[] =
    ":root{color-scheme:light dark;--fg:#1c2024;--bg:#fff;--dim:#5a646e;--line:#c9d0d6;"
    "--a:#4269d0;--b:#c2410c;--n:#6b7280;--ok:#15803d;--bad:#b91c1c;--warn:#a16207;--box:#f4f6f8}"
    "@media(prefers-color-scheme:dark){:root{--fg:#e6e9ec;--bg:#14171a;--dim:#9aa5af;--line:#"
    "3a434b;"
    "--a:#8aa8ff;--b:#fb923c;--n:#9ca3af;--ok:#4ade80;--bad:#f87171;--warn:#facc15;--box:#1d2226}}"
    "body{font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:60rem;"
    "margin:0 auto;padding:1rem}h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;"
    "border-bottom:1px solid var(--line)}h3{font-size:1rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.2rem .7rem .2rem 0;text-align:left;vertical-align:top;"
    "border-bottom:1px solid var(--line)}"
    ".scroll{overflow-x:auto}td.num{text-align:right}.facts th{font-weight:600;white-space:nowrap}"
    ".facts td{overflow-wrap:anywhere}"
    ".pass{color:var(--ok)}.fail{color:var(--bad);font-weight:700}.dim{color:var(--dim)}"
    ".box{border:2px solid var(--line);background:var(--box);padding:.6rem "
    "1rem;border-radius:.4rem}"
    ".box.bad{border-color:var(--bad)}.box.good{border-color:var(--ok)}"
    ".banner{border:3px dashed var(--warn);padding:.8rem 1rem;font-weight:700}"
    "svg{width:100%;max-width:36rem;height:auto;display:block;margin:.8rem 0}"
    "svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg .dim{fill:var(--dim)}"
    ".axis{stroke:var(--line)}.mark{stroke:var(--fg);stroke-dasharray:4 3}"
    ".a{fill:var(--a);stroke:var(--a)}.b{fill:var(--b);stroke:var(--b)}"
    ".n{fill:var(--n);stroke:var(--n)}circle{fill-opacity:.55;stroke:none}"
    ".iv{stroke-width:2;fill-opacity:.2}.ok{fill:var(--ok)}.void{fill:var(--warn)}"
    "rect.fail{fill:var(--bad)}.unknown{fill:var(--n)}"
    "body.simulated svg{outline:2px dashed var(--warn)}"
    "@media(max-width:40rem){.facts,.facts tbody,.facts tr,.facts th,.facts td{display:block}"
    ".facts th{border:0;padding-bottom:0}}";

void report__open(ht_buf *b, const char *title, const char *kind)
{
    ht_buf_str(b, "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>"
                  "<meta charset=\"utf-8\"/>"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "style-src 'unsafe-inline'\"/><title>");
    report__text(b, title);
    ht_buf_fmt(b, "</title><style>%s</style></head>\n<body class=\"%s\"><h1>", style, kind);
    report__text(b, title);
    ht_buf_str(b, "</h1>\n");
}

void report__close(ht_buf *b)
{
    ht_buf_str(b, "</body></html>\n");
}

void report__h2(ht_buf *b, const char *text)
{
    ht_buf_str(b, "<h2>");
    report__text(b, text);
    ht_buf_str(b, "</h2>\n");
}

void report__p(ht_buf *b, const char *cls, const char *text)
{
    ht_buf_fmt(b, "<p class=\"%s\">", cls);
    report__text(b, text);
    ht_buf_str(b, "</p>\n");
}

void report__table(ht_buf *b, const char *heads)
{
    ht_buf_str(b, "<div class=\"scroll\"><table><thead><tr>");
    for (const char *p = heads; *p;) {
        size_t n = strcspn(p, "|");
        ht_buf_str(b, "<th>");
        text_n(b, p, n);
        ht_buf_str(b, "</th>");
        p += n + (p[n] == '|');
    }
    ht_buf_str(b, "</tr></thead><tbody>\n");
}

void report__table_end(ht_buf *b)
{
    ht_buf_str(b, "</tbody></table></div>\n");
}

void report__tr(ht_buf *b)
{
    ht_buf_str(b, "<tr>");
}

void report__tr_end(ht_buf *b)
{
    ht_buf_str(b, "</tr>\n");
}

void report__cell(ht_buf *b, const char *cls)
{
    ht_buf_fmt(b, "<td class=\"%s\">", cls);
}

void report__cell_end(ht_buf *b)
{
    ht_buf_str(b, "</td>");
}

void report__td(ht_buf *b, const char *cls, const char *text)
{
    report__cell(b, cls);
    report__text(b, text);
    report__cell_end(b);
}

void report__facts(ht_buf *b)
{
    ht_buf_str(b, "<table class=\"facts\"><tbody>\n");
}

void report__facts_end(ht_buf *b)
{
    ht_buf_str(b, "</tbody></table>\n");
}

void report__fact(ht_buf *b, const char *name)
{
    ht_buf_str(b, "<tr><th>");
    report__text(b, name);
    ht_buf_str(b, "</th><td>");
}

void report__fact_end(ht_buf *b)
{
    ht_buf_str(b, "</td></tr>\n");
}

/* ---- json ----------------------------------------------------------------------------------- */

const char *report__str(const ht_json *j, const char *path, const char *def)
{
    const ht_json *v = ht_json_path(j, path);
    return v && v->type == HT_JSTR ? v->s : def;
}

double report__num(const ht_json *j, const char *path, double def)
{
    const ht_json *v = ht_json_path(j, path);
    return v && (v->type == HT_JINT || v->type == HT_JREAL) ? v->d : def;
}

bool report__true(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    return v && v->type == HT_JBOOL && v->b;
}

const ht_json *report__list(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    return v && v->type == HT_JARR ? v : NULL;
}

void report__words(ht_buf *b, const ht_json *list)
{
    for (size_t i = 0; list && i < list->n; i++) {
        ht_buf_str(b, i ? ", " : "");
        if (list->at[i].type == HT_JSTR) report__text(b, list->at[i].s);
    }
    if (!list || !list->n) ht_buf_str(b, "none");
}

int report__docs(ht_arena *a, const char *dir, const report__doc *want, size_t n,
                 const ht_json **doc, ht_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *text;
        uint64_t bytes;
        ht_json *j;
        HT_TRY(ht_read_under(a, dir, want[i].path, DOC_MAX, &text, &bytes, e));
        HT_TRY(ht_json_parse(a, text, bytes, HT_JSON_CANON, want[i].path, &j, e));
        const char *schema = report__str(j, "schema", "none");
        if (strcmp(schema, want[i].schema) != 0)
            return HT_FAIL(e, HT_EFORMAT, "UNKNOWN_TYPE: %s has schema %.60s, need %s",
                           want[i].path, schema, want[i].schema);
        doc[i] = j;
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double report__quantile(double *v, size_t n, unsigned percent)
{
    size_t rank = (n * percent + 99) / 100;
    qsort(v, n, sizeof *v, by_value);
    return v[rank ? rank - 1 : 0];
}
