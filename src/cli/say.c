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

/* ---- where a setting that an error speaks of came from ---- */

static bool is_word(char ch)
{
    return isalnum((unsigned char)ch) || ch == '-' || ch == '_';
}

/* Whether the message has the word, no part of another; "a.gguf" is none of "a.gguf.part". */
static bool has_word(const char *msg, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = msg; (at = strstr(at, word)) != NULL; at++) {
        const bool begins = at == msg || (!is_word(at[-1]) && at[-1] != '/');
        if (begins && !is_word(at[n]) && (at[n] != '.' || !is_word(at[n + 1]))) return true;
    }
    return false;
}

/* Whether the message names the option, by whichever of its names or as a "NAME setting". */
static bool names_option(const char *msg, enum ht_opt id)
{
    char name[80], setting[80];
    for (size_t i = 0; ht_opt_name_at(id, i, name, sizeof name); i++)
        if (has_word(msg, name)) return true;
    ht_opt_name(id, name, sizeof name);
    (void)snprintf(setting, sizeof setting, "%s setting ", name + strspn(name, "-"));
    return strstr(msg, setting) != NULL;
}

/* Whether the message repeats what the option is set to: a name or a path, which may be cut. */
static bool repeats_value(const char *msg, const ht_opts *o, enum ht_opt id)
{
    enum { LEAST = 2, CUT = 40 };
    char head[CUT + 1];
    const char *value = ht_opt_table[id].type == HT_OPT_STR ? ht_opt_str(o, id) : "";
    const size_t n = strlen(value);
    if (n < LEAST) return false;
    if (n <= CUT) return has_word(msg, value);
    memcpy(head, value, CUT);
    head[CUT] = 0;
    return strstr(msg, head) || strstr(msg, value + n - CUT);
}

/* The message into out, and behind it which of the options that it speaks of nobody typed. */
static void tell_source(const cli__ctx *c, const char *msg, char *out, size_t cap)
{
    char name[80], var[80];
    size_t n = (size_t)snprintf(out, cap, "%s", msg);
    for (unsigned id = 0; c->o && id < HT_OPTS && n < cap; id++) {
        if (ht_opt_source(c->o, id) != HT_FROM_ENV || !ht_opt_env_name(id, var, sizeof var))
            continue;
        if (!names_option(msg, id) && !repeats_value(msg, c->o, id)) continue;
        ht_opt_name(id, name, sizeof name);
        n += (size_t)snprintf(out + n, cap - n, " (%s is set by %s in the environment)", name, var);
    }
}

int cli__fail(cli__ctx *c, const ht_err *e)
{
    ht_err none;
    char msg[sizeof e->msg + 400];
    int status = cli__exit_status(e->code);
    tell_source(c, e->msg, msg, sizeof msg);
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
