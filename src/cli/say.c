/* say.c - everything the program writes: results, messages, errors, progress. */
#include "cli/cli.h"
#include "core/clock.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 30, BAR_EVERY_NS = 100000000 };

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Names from files and prompts reach messages: an escape sequence in one must not reach a
 * terminal. */
static void clean(char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 32 && *s != '\n' && *s != '\t') || *s == 127) *s = '?';
}

/* One message in one write, so that lines of several processes stay whole. */
static void say_line(const char *prefix, const char *fmt, va_list ap)
{
    char line[2048];
    int k = snprintf(line, sizeof line, "%s", prefix);
    int n = vsnprintf(line + k, sizeof line - (size_t)k - 1, fmt, ap);
    if (n < 0) return;
    clean(line);
    size_t len = strlen(line);
    line[len++] = '\n';
    (void)!write_all(STDERR_FILENO, line, len);
}

void cli__say(cli__ctx *c, int level, const char *fmt, ...)
{
    va_list ap;
    if (level > c->level) return;
    cli__progress_end(c);
    va_start(ap, fmt);
    say_line("", fmt, ap);
    va_end(ap);
}

int cli__out(const char *p, size_t n, ht_err *e)
{
    if (write_all(STDOUT_FILENO, p, n))
        return HT_FAIL(e, HT_EIO, "standard output: cannot write: %s", strerror(errno));
    return 0;
}

int cli__out_json(const char *json, size_t n, ht_err *e)
{
    HT_TRY(cli__out(json, n, e));
    return cli__out("\n", 1, e);
}

int cli__out_pretty(const char *json, ht_err *e)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = cli__pretty(json, &b, e);
    if (!rc) rc = cli__out(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

int cli__out_doc(cli__ctx *c, const char *json, ht_err *e)
{
    return c->json ? cli__out_json(json, strlen(json), e) : cli__out_pretty(json, e);
}

int cli__out_text(cli__ctx *c, const char *p, size_t n, ht_err *e)
{
    ht_buf b;
    ht_jw w;
    if (!c->json) return cli__out(p, n, e);
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "text");
    ht_jw_strn(&w, p, n);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "text", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

int cli__exit_status(int code)
{
    switch (code) {
    case HT_OK: return CLI_OK;
    case HT_EARG: return CLI_USAGE;
    case HT_EIO:
    case HT_EFORMAT: return CLI_FILE;
    case HT_EUNSUPPORTED: return CLI_UNSUPPORTED;
    case HT_ENOMEM:
    case HT_EFULL: return CLI_FULL;
    case HT_EGATE: return CLI_GATE;
    case HT_ECANCELLED: return CLI_CANCELLED;
    default: return CLI_FAILED;
    }
}

/* Does the message speak of --NAME, or of a "NAME setting"? */
static bool names_option(const char *msg, const char *name)
{
    char setting[80];
    const char *at = strstr(msg, name), *end = at ? at + strlen(name) : "";
    (void)snprintf(setting, sizeof setting, "%s setting ", name + strspn(name, "-"));
    return (at && !isalnum((unsigned char)*end) && *end != '-') || strstr(msg, setting);
}

/* The variable behind an option that the message names and the user did not type; NULL: none. */
static const char *from_env(const cli__ctx *c, const char *msg, char *name, char *var, size_t cap)
{
    for (unsigned id = 0; c->o && id < HT_OPTS; id++) {
        if (ht_opt_source(c->o, id) != HT_FROM_ENV || !ht_opt_env_name(id, var, cap)) continue;
        ht_opt_name(id, name, cap);
        if (names_option(msg, name)) return var;
    }
    return NULL;
}

int cli__fail(cli__ctx *c, const ht_err *e)
{
    ht_err none;
    char name[80], var[80], msg[sizeof e->msg + 200];
    int status = cli__exit_status(e->code);
    if (from_env(c, e->msg, name, var, sizeof var))
        (void)snprintf(msg, sizeof msg, "%s (%s is set by %s in the environment)", e->msg, name,
                       var);
    else (void)snprintf(msg, sizeof msg, "%s", e->msg);
    cli__say(c, CLI_ERROR, "hetero%s%s: error: %s", *c->cmd ? " " : "", c->cmd, msg);
    cli__say(c, CLI_DEBUG, "  (%s, raised at %s, exit status %d)", ht_code_name(e->code),
             e->where ? e->where : "?", status);
    if (!c->json) return status;
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "error");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "code", ht_code_name(e->code));
    ht_jw_kstr(&w, "message", msg);
    ht_jw_kstr(&w, "command", c->cmd);
    ht_jw_kint(&w, "status", status);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, '}');
    if (ht_buf_ok(&b, "error", &none) == 0 && cli__out_json(b.p, b.n, &none) != 0)
        cli__say(c, CLI_ERROR, "hetero: %s", none.msg);
    ht_buf_done(&b);
    return status;
}

void cli__bytes(double bytes, char out[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned u = 0;
    while (bytes >= 1024 && u < 4) bytes /= 1024, u++;
    snprintf(out, 32, u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

/* ---- progress ---- */

int cli__progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    cli__ctx *c = user;
    char line[160];
    uint64_t now = ht_now_ns();
    if (c->progress && (c->bar_ns == 0 || now - c->bar_ns > BAR_EVERY_NS)) {
        int n, full = total ? (int)((double)done / (double)total * BAR_WIDTH) : 0;
        if (full > BAR_WIDTH) full = BAR_WIDTH;
        if (total)
            n = snprintf(line, sizeof line, "\r\033[K%-20.40s [%.*s%*s] %3.0f %%", what, full,
                         "##############################", BAR_WIDTH - full, "",
                         100 * (double)done / (double)total);
        else
            n = snprintf(line, sizeof line, "\r\033[K%-20.40s %llu", what,
                         (unsigned long long)done);
        (void)!write_all(STDERR_FILENO, line, (size_t)n);
        c->bar_ns = now;
    }
    return cli__interrupted();
}

void cli__progress_end(cli__ctx *c)
{
    if (!c->bar_ns) return;
    (void)!write_all(STDERR_FILENO, "\r\033[K", 4);
    c->bar_ns = 0;
}

/* ---- reading documents ---- */

double cli__num(const ht_json *doc, const char *path, double def)
{
    const ht_json *v = ht_json_path(doc, path);
    return v && (v->type == HT_JINT || v->type == HT_JREAL) ? v->d : def;
}

const char *cli__str(const ht_json *doc, const char *path, const char *def)
{
    const ht_json *v = ht_json_path(doc, path);
    return v && v->type == HT_JSTR ? v->s : def;
}
