/* opt.c - reading the command line and the environment by the table of opt_table.c. The only file
 * of the program that calls getenv. Values are checked while parsing, so the readers cannot
 * fail. */
#include "core/opt.h"
#include "core/arena.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_CAP = 64, MAX_WORDS = 65536, MAX_UNKNOWN_ENV = 8, MAX_DISTANCE = 99 };

typedef struct {
    const char **value; /* texts in the order given; several for a list              */
    size_t n;
    int64_t i;
    double d;
    enum ht_opt_source source;
} slot;
struct ht_opts {
    ht_arena *arena;
    enum ht_cmd cmd;
    slot slot[HT_OPTS];
    const char **args;
    size_t n_args;
    const char *unknown_env[MAX_UNKNOWN_ENV + 1];
};

extern char **environ;

static const char *const env_names[HT_ENVS] = {
    [HT_ENV_OPENVINO] =
        "HETERO_OPENVINO", /* the graph engine's library: file, folder, Python package; none */
    [HT_ENV_VIRTUAL_ENV] = "VIRTUAL_ENV",
    [HT_ENV_HOME] = "HOME",
    [HT_ENV_XDG_STATE_HOME] = "XDG_STATE_HOME",
    [HT_ENV_XDG_CACHE_HOME] = "XDG_CACHE_HOME",
    [HT_ENV_XDG_DATA_HOME] = "XDG_DATA_HOME",
    [HT_ENV_TERM] = "TERM",
    [HT_ENV_NOTIFY_SOCKET] = "NOTIFY_SOCKET", /* of the service manager: sd_notify(3) */
    [HT_ENV_WATCHDOG_USEC] = "WATCHDOG_USEC",
    [HT_ENV_SHARED] =
        "HETERO_SHARED", /* where tests look for data that is not in the tree          */
};

const char *ht_env_get(enum ht_env which)
{
    const char *v = getenv(env_names[which]);
    return v && *v ? v : NULL;
}

/* ---- names ---- */

bool ht_opt_name_at(enum ht_opt id, size_t i, char *out, size_t cap)
{
    const char *s = ht_opt_table[id].names;
    for (;; i--) {
        size_t n = strcspn(s, " ");
        if (n == 0 || cap == 0) return false;
        if (i == 0) {
            if (n >= cap) n = cap - 1;
            memcpy(out, s, n);
            out[n] = 0;
            return true;
        }
        s += n + strspn(s + n, " ");
    }
}

void ht_opt_name(enum ht_opt id, char *out, size_t cap)
{
    for (size_t i = 0; ht_opt_name_at(id, i, out, cap); i++)
        if (strncmp(out, "--", 2) == 0) return;
    (void)ht_opt_name_at(id, 0, out, cap);
}

bool ht_opt_env_name(enum ht_opt id, char *out, size_t cap)
{
    char name[NAME_CAP];
    if (!ht_opt_table[id].env) return false;
    ht_opt_name(id, name, sizeof name);
    const char *s = name + strspn(name, "-");
    int n = snprintf(out, cap, "HETERO_%s", s);
    if (n < 0 || (size_t)n >= cap) return false;
    for (out += strlen("HETERO_"); *s; s++)
        *out++ = *s == '-' ? '_' : (char)(*s >= 'a' && *s <= 'z' ? *s - 'a' + 'A' : *s);
    *out = 0;
    return true;
}

static unsigned min2(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned ht_edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned row[3]
                [NAME_CAP + 1]; /* rows i-2, i-1, i of the table, in turn                         */
    if (n > NAME_CAP || m > NAME_CAP) return MAX_DISTANCE;
    for (size_t j = 0; j <= m; j++) row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *cur = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        cur[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned d = up[j - 1] + (a[i - 1] != b[j - 1]);
            d = min2(d, min2(up[j], cur[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = min2(d, up2[j - 2] + 1);
            cur[j] = d;
        }
    }
    return min2(row[n % 3][m], MAX_DISTANCE);
}

/* Options of other runtimes that people type from memory and that mean nothing here: say why. */
static const struct {
    const char *names, *why;
} foreign[] = {
    {"-ngl --n-gpu-layers --gpu-layers -ngld -sm --split-mode -mg --main-gpu -ts --tensor-split",
     "engines are chosen by evidence, or with --engine NAME; leave it out ('hetero doctor' lists "
     "the engines)"},
    {"-fa --flash-attn", "attention is always computed in one pass here; leave it out"},
    {"--mlock --no-mmap --numa -dio", "models are always mapped; leave it out"},
    {"-b --batch-size", "the rows of a prefill step are set with -ub"},
    {"-tb --threads-batch", "both phases use the threads of -t"},
    {"--jinja --no-jinja --chat-template",
     "templates are always rendered; --template FILE names another one"},
    {"-i --interactive -if --interactive-first -st --single-turn -mli --multiline-input",
     "use 'hetero chat', or 'hetero run -cnv' for one turn"},
    {"-no-cnv --no-conversation --no-display-prompt",
     "'hetero run' completes raw text unless -cnv is given, and never echoes it; leave it out"},
    {"-cb --cont-batching -nocb --no-cont-batching",
     "'hetero serve' always computes answers side by side; leave it out"},
    {"-hf --hf-repo -hff --hf-file -mu --model-url",
     "models are read from files and folders; fetch it first, then give its path"},
    {"--slots --metrics",
     "both are answered unless --no-slots or --no-metrics says otherwise; leave it out (answers at "
     "once: -np)"},
    {"--slot-save-path --cache-reuse --no-cache-prompt --cache-prompt",
     "beginnings of prompts are always kept, and with --prefix-cache DIR on disk; leave it out"},
    {"--spec-type --draft-p-min", "guessing adapts itself: --lookup, or -md FILE"},
    {"--context-shift --no-context-shift",
     "an answer ends where the context ends; leave it out (--evict N gives up old positions)"},
    {"--reasoning-format", "it is a field of the server's requests: reasoning_format"},
    {"--lora --mirostat --embedding --embeddings --rerank --mmproj -ot --override-tensor",
     "Hetero does not have that"},
};

static const char *foreign_why(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        for (const char *s = foreign[i].names; *s; s += strspn(s, " ")) {
            size_t k = strcspn(s, " ");
            if (k == n && memcmp(s, name, n) == 0) return foreign[i].why;
            s += k;
        }
    return NULL;
}

/* ---- finding rows ---- */

static bool takes(enum ht_cmd cmd, enum ht_opt id)
{
    return ht_opt_table[id].cmds >> cmd & 1;
}

/* The row of this command that has the name, or HT_OPTS. */
static enum ht_opt find_opt(enum ht_cmd cmd, const char *name)
{
    char have[NAME_CAP];
    for (unsigned id = 0; id < HT_OPTS; id++)
        for (size_t i = 0; takes(cmd, id) && ht_opt_name_at(id, i, have, sizeof have); i++)
            if (strcmp(have, name) == 0) return id;
    return HT_OPTS;
}

/* A guess is offered only when most of the word is right: distance at most a third of its
 * length. */
static bool is_close(unsigned distance, const char *word)
{
    size_t n = strlen(word);
    return distance <= 1 + n / 4 && distance < n;
}

static int unknown_option(enum ht_cmd cmd, const char *name, ht_err *e)
{
    const char *cmd_name = ht_cmd_table[cmd].name, *why = foreign_why(name);
    char have[NAME_CAP], best[NAME_CAP] = "";
    unsigned best_d = MAX_DISTANCE;
    if (why) return HT_FAIL(e, HT_EARG, "option %s is not one of hetero's: %s", name, why);
    for (unsigned c = 0; c < HT_CMDS; c++)
        if (find_opt(c, name) != HT_OPTS)
            return HT_FAIL(e, HT_EARG,
                           "option %s belongs to 'hetero %s', not to 'hetero %s'; see 'hetero %s "
                           "--help'",
                           name, ht_cmd_table[c].name, cmd_name, cmd_name);
    for (unsigned id = 0; id < HT_OPTS; id++)
        for (size_t i = 0; takes(cmd, id) && ht_opt_name_at(id, i, have, sizeof have); i++) {
            unsigned d = ht_edit_distance(name, have);
            if (d < best_d) best_d = d, memcpy(best, have, sizeof best);
        }
    if (is_close(best_d, name))
        return HT_FAIL(e, HT_EARG,
                       "unknown option %s; did you mean %s? 'hetero %s --help' lists all", name,
                       best, cmd_name);
    return HT_FAIL(e, HT_EARG, "unknown option %s; 'hetero %s --help' lists all", name, cmd_name);
}

int ht_cmd_find(const char *name, enum ht_cmd *out, ht_err *e)
{
    unsigned best = 0, best_d = MAX_DISTANCE;
    for (unsigned c = 0; c < HT_CMDS; c++) {
        unsigned d = ht_edit_distance(name, ht_cmd_table[c].name);
        if (d == 0) {
            *out = c;
            return 0;
        }
        if (d < best_d) best_d = d, best = c;
    }
    if (is_close(best_d, name))
        return HT_FAIL(e, HT_EARG,
                       "unknown command '%s'; did you mean '%s'? 'hetero help' lists all", name,
                       ht_cmd_table[best].name);
    return HT_FAIL(e, HT_EARG, "unknown command '%s'; 'hetero help' lists all", name);
}

/* ---- values ---- */

/* One of "a|b|c"? */
static bool in_choices(const char *choices, const char *v)
{
    size_t n = strlen(v);
    for (const char *s = choices;; s++) {
        size_t k = strcspn(s, "|");
        if (k == n && memcmp(s, v, n) == 0) return true;
        s += k;
        if (!*s) return false;
    }
}

static int out_of_range(const ht_opt_def *d, const char *what, const char *v, ht_err *e)
{
    if (!(d->min < d->max)) return HT_FAIL(e, HT_EARG, "%s %s: out of range", what, v);
    if (d->type == HT_OPT_INT) /* all digits of it */
        return HT_FAIL(e, HT_EARG, "%s %s: out of range, need %.0f to %.0f", what, v, d->min,
                       d->max);
    return HT_FAIL(e, HT_EARG, "%s %s: out of range, need %.15g to %.15g", what, v, d->min, d->max);
}

int ht_items_check(const char *text, const char *what, ht_err *e)
{
    size_t item = 1;
    for (const char *p = text;; p++, item++) {
        const size_t n = strcspn(p, ",");
        if (n == 0)
            return HT_FAIL(e, HT_EARG, "%s: item %zu is empty; separate items by one comma", what,
                           item);
        p += n;
        if (!*p) return 0;
    }
}

/* Check text v against the row and store it. what: how the user named it. */
static int store(ht_opts *o, enum ht_opt id, const char *v, const char *what,
                 enum ht_opt_source from, ht_err *e)
{
    const ht_opt_def *d = &ht_opt_table[id];
    slot *s = &o->slot[id];
    char *end = NULL;
    errno = 0;
    switch ((enum ht_opt_type)d->type) {
    case HT_OPT_INT:
        s->i = strtoll(v, &end, 10);
        if (end == v || *end) return HT_FAIL(e, HT_EARG, "%s %s: need a whole number", what, v);
        if (errno == ERANGE ||
            (d->min < d->max && ((double)s->i < d->min || (double)s->i > d->max)))
            return out_of_range(d, what, v, e);
        break;
    case HT_OPT_REAL:
        s->d = strtod(v, &end);
        if (end == v || *end || !isfinite(s->d))
            return HT_FAIL(e, HT_EARG, "%s %s: need a number", what, v);
        if (d->min < d->max && (s->d < d->min || s->d > d->max)) return out_of_range(d, what, v, e);
        break;
    case HT_OPT_ENUM:
        if (!in_choices(d->choices, v))
            return HT_FAIL(e, HT_EARG, "%s %s: need one of %s", what, v, d->choices);
        break;
    case HT_OPT_FLAG:
        if (!in_choices("1|0|true|false", v))
            return HT_FAIL(e, HT_EARG, "%s %s: need 1 or 0", what, v);
        s->i = *v == '1' || *v == 't';
        break;
    case HT_OPT_COMMAS: HT_TRY(ht_items_check(v, what, e)); break;
    case HT_OPT_STR:
    case HT_OPT_LIST: break;
    }
    if (from == HT_FROM_CLI && s->source == HT_FROM_CLI && d->type != HT_OPT_LIST &&
        d->type != HT_OPT_FLAG)
        return HT_FAIL(e, HT_EARG, "%s %.60s: was given before, with %.60s; give it once%s", what,
                       v, s->value[0],
                       d->type == HT_OPT_COMMAS ? ", with commas between its items" : "");
    if (d->type != HT_OPT_LIST) s->n = 0; /* instead of the default */
    s->value[s->n++] = v;
    s->source = from;
    return 0;
}

/* Room for every value an option could get from argc words. */
static int make_slots(ht_opts *o, int argc, ht_err *e)
{
    for (unsigned id = 0; id < HT_OPTS; id++) {
        size_t n = ht_opt_table[id].type == HT_OPT_LIST ? (size_t)argc + 1 : 1;
        o->slot[id].value = ht_arena_array(o->arena, n, sizeof(char *));
        if (!o->slot[id].value) return HT_FAIL(e, HT_ENOMEM, "options: out of memory");
    }
    o->args = ht_arena_array(o->arena, (size_t)argc + 1, sizeof(char *));
    if (!o->args) return HT_FAIL(e, HT_ENOMEM, "options: out of memory");
    return 0;
}

static int read_defaults(ht_opts *o, ht_err *e)
{
    char name[NAME_CAP];
    for (unsigned id = 0; id < HT_OPTS; id++) {
        ht_opt_name(id, name, sizeof name);
        if (ht_opt_table[id].def)
            HT_TRY(store(o, id, ht_opt_table[id].def, name, HT_FROM_DEFAULT, e));
    }
    return 0;
}

/* After the command line, which wins: a variable that is overridden is not even checked. */
static int read_env(ht_opts *o, ht_err *e)
{
    char name[NAME_CAP];
    for (unsigned id = 0; id < HT_OPTS; id++) {
        if (o->slot[id].source == HT_FROM_CLI || !takes(o->cmd, id)) continue;
        const char *v = ht_opt_env_name(id, name, sizeof name) ? getenv(name) : NULL;
        if (v && *v) HT_TRY(store(o, id, v, name, HT_FROM_ENV, e));
    }
    return 0;
}

/* HETERO_ names that nothing reads are most likely typing errors: keep a few for a warning. */
static void read_unknown_env(ht_opts *o)
{
    size_t n = 0;
    char name[NAME_CAP];
    for (char **p = environ; p && *p && n < MAX_UNKNOWN_ENV; p++) {
        size_t k = strcspn(*p, "=");
        bool known = false;
        if (strncmp(*p, "HETERO_", 7) != 0 || strncmp(*p, "HETERO_TEST_", 12) == 0) continue;
        for (unsigned id = 0; id < HT_OPTS && !known; id++)
            known = ht_opt_env_name(id, name, sizeof name) && strlen(name) == k &&
                    memcmp(name, *p, k) == 0;
        for (unsigned i = 0; i < HT_ENVS && !known; i++)
            known = strlen(env_names[i]) == k && memcmp(env_names[i], *p, k) == 0;
        if (!known) o->unknown_env[n++] = *p;
    }
}

/* One "-x", "--name" or "--name=value"; *i moves past a value taken from the next word. */
static int read_option(ht_opts *o, int argc, char *const *argv, int *i, ht_err *e)
{
    const char *word = argv[*i], *value = NULL, *eq = strchr(word, '=');
    char *name =
        ht_arena_strndup(o->arena, word, eq && word[1] == '-' ? (size_t)(eq - word) : strlen(word));
    if (!name) return HT_FAIL(e, HT_ENOMEM, "options: out of memory");
    if (strlen(name) < strlen(word)) value = eq + 1;
    enum ht_opt id = find_opt(o->cmd, name);
    if (id == HT_OPTS) return unknown_option(o->cmd, name, e);
    if (ht_opt_table[id].type == HT_OPT_FLAG) {
        if (value) return HT_FAIL(e, HT_EARG, "%s takes no value", name);
        return store(o, id, "1", name, HT_FROM_CLI, e);
    }
    if (!value) {
        if (*i + 1 >= argc)
            return HT_FAIL(e, HT_EARG, "%s needs a value (%s)", name, ht_opt_table[id].arg);
        value = argv[++*i];
    }
    return store(o, id, value, name, HT_FROM_CLI, e);
}

static int parse(ht_opts *o, int argc, char *const *argv, ht_err *e)
{
    bool only_args = false;
    const ht_cmd_def *c = &ht_cmd_table[o->cmd];
    HT_TRY(make_slots(o, argc, e));
    HT_TRY(read_defaults(o, e));
    for (int i = 0; i < argc; i++) {
        if (!only_args && strcmp(argv[i], "--") == 0) {
            only_args = true;
        } else if (!only_args && argv[i][0] == '-' && argv[i][1]) {
            HT_TRY(read_option(o, argc, argv, &i, e));
            if (ht_opt_on(o, HT_OPT_HELP)) return 0;
        } else if (o->n_args == c->max_args) {
            return HT_FAIL(e, HT_EARG, "'%s' is one word too many; usage: hetero %s %s", argv[i],
                           c->name, c->args);
        } else {
            o->args[o->n_args++] = argv[i];
        }
    }
    HT_TRY(read_env(o, e));
    read_unknown_env(o);
    if (o->n_args < c->min_args)
        return HT_FAIL(e, HT_EARG, "too few words; usage: hetero %s %s", c->name, c->args);
    return 0;
}

int ht_opts_parse(ht_opts **out, enum ht_cmd cmd, int argc, char *const *argv, ht_err *e)
{
    ht_arena *arena;
    *out = NULL;
    if (argc < 0 || argc > MAX_WORDS)
        return HT_FAIL(e, HT_EARG, "%d words on the command line, at most %d", argc,
                       (int)MAX_WORDS);
    HT_TRY(ht_arena_new(&arena, 0, e));
    ht_opts *o = ht_arena_alloc(arena, sizeof *o);
    if (!o) {
        ht_arena_free(arena);
        return HT_FAIL(e, HT_ENOMEM, "options: out of memory");
    }
    o->arena = arena;
    o->cmd = cmd;
    int rc = parse(o, argc, argv, e);
    if (rc) ht_opts_free(o);
    else *out = o;
    return rc;
}

void ht_opts_free(ht_opts *o)
{
    if (o) ht_arena_free(o->arena);
}

enum ht_cmd ht_opts_cmd(const ht_opts *o)
{
    return o->cmd;
}
size_t ht_opts_n_args(const ht_opts *o)
{
    return o->n_args;
}
const char *ht_opts_arg(const ht_opts *o, size_t i)
{
    return i < o->n_args ? o->args[i] : NULL;
}
enum ht_opt_source ht_opt_source(const ht_opts *o, enum ht_opt id)
{
    return o->slot[id].source;
}
bool ht_opt_given(const ht_opts *o, enum ht_opt id)
{
    return o->slot[id].source != HT_FROM_DEFAULT;
}
bool ht_opt_on(const ht_opts *o, enum ht_opt id)
{
    return o->slot[id].i != 0;
}
int64_t ht_opt_int(const ht_opts *o, enum ht_opt id)
{
    return o->slot[id].i;
}
double ht_opt_real(const ht_opts *o, enum ht_opt id)
{
    return o->slot[id].d;
}

const char *ht_opt_str(const ht_opts *o, enum ht_opt id)
{
    const slot *s = &o->slot[id];
    return s->n ? s->value[s->n - 1] : NULL;
}

size_t ht_opt_list(const ht_opts *o, enum ht_opt id, const char *const **values)
{
    *values = o->slot[id].value;
    return o->slot[id].n;
}

const char *ht_opts_unknown_env(const ht_opts *o, size_t i)
{
    return i < MAX_UNKNOWN_ENV ? o->unknown_env[i] : NULL;
}

int ht_parse_ints(const char *text, const char *what, int64_t min, int64_t max, int64_t **out,
                  size_t *n, ht_err *e)
{
    size_t cap = 1, k = 0;
    for (const char *s = text; *s; s++) cap += *s == ',';
    *out = NULL;
    int64_t *v = ht_mem_array(cap, sizeof *v);
    if (!v) return HT_FAIL(e, HT_ENOMEM, "%s: out of memory for %zu numbers", what, cap);
    for (const char *s = text;; s++) {
        char *end;
        errno = 0;
        v[k] = strtoll(s, &end, 10);
        if (end == s || errno || (*end && *end != ',') || v[k] < min || v[k] > max) {
            ht_mem_free(v);
            return HT_FAIL(
                e, HT_EARG,
                "%s: item %zu, '%.20s', is not a whole number from %lld to %lld (items are "
                "separated by commas)",
                what, k + 1, s, (long long)min, (long long)max);
        }
        k++;
        s = end;
        if (!*s) break;
    }
    *out = v;
    *n = k;
    return 0;
}
