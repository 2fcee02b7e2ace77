/* open.c - from options to models, texts and engines. */
#include "cli/samples.h"
#include "cli/store.h"
#include "core/arena.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MODEL "tale-9m-f16.gguf"

/* ---- the model's path ---- */

/* Folder of the running program into out, without the last slash; "" when the system does not
 * say. */
static void program_dir(char out[CLI_PATH])
{
    ssize_t n = readlink("/proc/self/exe", out, CLI_PATH - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
    else out[0] = 0;
}

/* The embedded default model: beside the program, in the tree it was built in (the program lies in
 * the tree's root or in a build folder of it, or the tree is the current folder), or in the
 * installation the program belongs to. */
static bool find_default_model(char out[CLI_PATH])
{
    static const char *const at[] = {"/", "/models/", "/../models/", "/../share/hetero/",
                                     "/../share/hetero/models/"};
    char dir[CLI_PATH];
    program_dir(dir);
    for (size_t i = 0; *dir && i < sizeof at / sizeof *at; i++) {
        int n = snprintf(out, CLI_PATH, "%s%s" DEFAULT_MODEL, dir, at[i]);
        if (n > 0 && n < CLI_PATH && access(out, R_OK) == 0) return true;
    }
    snprintf(out, CLI_PATH, "models/" DEFAULT_MODEL);
    return access(out, R_OK) == 0;
}

/* The same, named from the current folder when it lies below it: what a user would type. */
static bool default_model(char out[CLI_PATH])
{
    _Static_assert(CLI_PATH >= PATH_MAX, "realpath() writes up to PATH_MAX bytes");
    char here[CLI_PATH], found[CLI_PATH];
    if (!find_default_model(found)) return false;
    /* "build/../models" is not what anybody would type. */
    if (!realpath(found, out)) memcpy(out, found, sizeof found);
    size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
    if (n > 1 && strncmp(out, here, n) == 0 && out[n] == '/')
        memmove(out, out + n + 1, strlen(out + n + 1) + 1);
    return true;
}

/* Which word is the model where one is: qualify's first word says what to measure. */
static size_t model_word(const cli__ctx *c)
{
    const char *first = ht_opts_arg(c->o, 0);
    if (ht_opts_cmd(c->o) != HT_CMD_QUALIFY || ht_opt_given(c->o, HT_OPT_CANARY)) return 0;
    return !ht_opt_on(c->o, HT_OPT_REFERENCE) || (first && strcmp(first, "scheduler") == 0);
}

/* Words that may follow the model: these two commands read a text. */
static size_t words_after(const cli__ctx *c)
{
    return ht_opts_cmd(c->o) == HT_CMD_PPL || ht_opts_cmd(c->o) == HT_CMD_KV_PROBE;
}

int cli__file_word(const cli__ctx *c, const char **file, ht_err *e)
{
    const bool model = ht_opt_source(c->o, HT_OPT_MODEL) != HT_FROM_CLI && ht_opts_n_args(c->o) > 0;
    const char *f = ht_opt_str(c->o, HT_OPT_FILE), *word = ht_opts_arg(c->o, model);
    if (f && word)
        return HT_FAIL(e, HT_EARG, "two texts: '%s' as a word and '%s' with -f; give one", word, f);
    *file = f ? f : word;
    return 0;
}

int cli__model(cli__ctx *c, bool may_default, ht_err *e)
{
    const size_t at = model_word(c), n_args = ht_opts_n_args(c->o);
    const bool typed = ht_opt_source(c->o, HT_OPT_MODEL) == HT_FROM_CLI;
    const size_t most = at + !typed + words_after(c);
    const char *word = typed ? NULL : ht_opts_arg(c->o, at);
    const char *opt = ht_opt_str(c->o, HT_OPT_MODEL);
    if (n_args > most && typed)
        return HT_FAIL(e, HT_EARG, "two models: '%s' as a word and '%s' with -m; give one",
                       ht_opts_arg(c->o, at), opt);
    if (n_args > most)
        return HT_FAIL(e, HT_EARG, "'%s' is one word too many; see 'hetero %s --help'",
                       ht_opts_arg(c->o, most), c->cmd);
    if (word) opt = word; /* the command line wins over HETERO_MODEL */
    if (opt) {
        size_t n = strlen(opt);
        if (n >= sizeof c->model)
            return HT_FAIL(e, HT_EARG, "model path of %zu bytes is longer than %d", n,
                           CLI_PATH - 1);
        memcpy(c->model, opt, n + 1);
        return 0;
    }
    if (!may_default)
        return HT_FAIL(e, HT_EARG,
                       "no model: give a GGUF file, a Hugging Face folder or a pack as the "
                       "first word or with -m");
    if (!default_model(c->model))
        return HT_FAIL(e, HT_EIO,
                       "no model given, and the default " DEFAULT_MODEL " is neither beside "
                       "the program, in ./models nor in share/hetero: give one with -m");
    c->is_default_model = true;
    return 0;
}

/* ---- texts ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The escapes of -e, in place; the text only gets shorter. Unknown escapes stay as they are. */
static size_t unescape(char *s, size_t n)
{
    static const char from[] = "ntr\\'\"", to[] = "\n\t\r\\'\"";
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        const char *k = s[i] == '\\' && i + 1 < n ? memchr(from, s[i + 1], sizeof from - 1) : NULL;
        if (k) {
            s[out++] = to[k - from];
            i++;
        } else if (s[i] == '\\' && i + 3 < n && s[i + 1] == 'x' && hex(s[i + 2]) >= 0 &&
                   hex(s[i + 3]) >= 0) {
            s[out++] = (char)(hex(s[i + 2]) * 16 + hex(s[i + 3]));
            i += 3;
        } else {
            s[out++] = s[i];
        }
    }
    s[out] = 0;
    return out;
}

int cli__text(cli__ctx *c, char **text, size_t *n, ht_err *e)
{
    const char *p = ht_opts_cmd(c->o) == HT_CMD_PPL ? NULL : ht_opt_str(c->o, HT_OPT_PROMPT);
    const char *f = ht_opt_str(c->o, HT_OPT_FILE);
    *text = NULL;
    *n = 0;
    if (p && f) return HT_FAIL(e, HT_EARG, "both -p and -f give a text; give one");
    if (f) return cli__read_file(f, CLI_TEXT_MAX, text, n, e);
    if (!p) return 0;
    *n = strlen(p);
    *text = ht_mem_alloc(*n + 1);
    if (!*text) return HT_FAIL(e, HT_ENOMEM, "text of -p: out of memory for %zu bytes", *n);
    memcpy(*text, p, *n + 1);
    if (ht_opt_on(c->o, HT_OPT_ESCAPE)) *n = unescape(*text, *n);
    return 0;
}

int cli__ids(cli__ctx *c, uint32_t n_vocab, int32_t **ids, size_t *n, ht_err *e)
{
    int64_t *wide;
    *ids = NULL;
    int64_t last = n_vocab ? (int64_t)n_vocab - 1 : INT32_MAX;
    HT_TRY(ht_parse_ints(ht_opt_str(c->o, HT_OPT_IDS), "--ids", 0, last, &wide, n, e));
    *ids = ht_mem_array(*n, sizeof **ids);
    for (size_t i = 0; *ids && i < *n; i++) (*ids)[i] = (int32_t)wide[i];
    ht_mem_free(wide);
    return *ids ? 0 : HT_FAIL(e, HT_ENOMEM, "--ids: out of memory for %zu tokens", *n);
}

/* Days from 1970-01-01 to a date of the proleptic Gregorian calendar: years are counted from March,
 * so that the leap day is a year's last. */
static int64_t days_from_civil(int64_t y, int m, int d)
{
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

int cli__time(const char *text, int64_t *unix_s, ht_err *e)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, mo, d, h = 0, mi = 0, s = 0, used = 0;
    bool ok = sscanf(text, "%4d-%2d-%2d%n", &y, &mo, &d, &used) == 3 && used == 10;
    if (ok && text[10] == 'T') {
        int more = 0;
        ok = sscanf(text + 10, "T%2d:%2d:%2d%n", &h, &mi, &s, &more) == 3 && more == 9;
        used += more;
    }
    if (ok && text[used] == 'Z') used++;
    ok = ok && !text[used] && y >= 1970 && mo >= 1 && mo <= 12 && d >= 1 && d <= days[mo - 1] &&
         h >= 0 && h < 24 && mi >= 0 && mi < 60 && s >= 0 && s <= 60;
    bool leap = ok && (y % 4 == 0 && (y % 100 != 0 || y % 400 == 0));
    if (ok && mo == 2 && d == 29 && !leap) ok = false;
    if (ok) *unix_s = days_from_civil(y, mo, d) * 86400 + h * 3600 + mi * 60 + s;
    /* 0 means "the clock" in the library */
    if (!ok || *unix_s == 0)
        return HT_FAIL(e, HT_EARG,
                       "--now %.40s: need a UTC time after 1970-01-01 as "
                       "YYYY-MM-DDTHH:MM:SS",
                       text);
    return 0;
}

/* ---- the engine ---- */

static bool is(const char *name, const char *engine)
{
    return name && strcmp(name, engine) == 0;
}

/* What the environment says of an engine that does not run is for other commands; what was typed is
 * the library's to refuse, unless a draft model has that engine. */
static const char *setting_of(const ht_opts *o, enum ht_opt id, const char *engine,
                              const ht_engine_params *p, bool draft)
{
    const bool runs = is(p->prefill_engine, engine) || is(p->decode_engine, engine);
    const bool spare = draft || ht_opt_source(o, id) == HT_FROM_ENV ||
                       is(ht_opt_str(o, HT_OPT_DRAFT_ENGINE), engine);
    return runs || !spare ? ht_opt_str(o, id) : NULL;
}

void cli__engine_settings(const cli__ctx *c, bool draft, ht_engine_params *p)
{
    p->graph = setting_of(c->o, HT_OPT_GRAPH, "graph", p, draft);
    p->cuda = setting_of(c->o, HT_OPT_CUDA, "cuda", p, draft);
}

void cli__engine_params(cli__ctx *c, uint32_t ctx_default, ht_engine_params *p)
{
    const ht_opts *o = c->o;
    const char *engine = ht_opt_str(o, HT_OPT_ENGINE);
    const enum ht_cmd cmd = ht_opts_cmd(o);
    ht_err none; /* no place for a store is no error here: there are no routes then */
    const bool routed = (cmd == HT_CMD_RUN || cmd == HT_CMD_CHAT ||
                         (cmd == HT_CMD_EXPLAIN && ht_opt_on(o, HT_OPT_ROUTE))) &&
                        cli__store_dir(c, c->store, &none) == 0;
    *p = (ht_engine_params){
        .model = c->model,
        .pre_override = ht_opt_str(o, HT_OPT_PRE),
        .prefill_engine = ht_opt_str(o, HT_OPT_PREFILL_ENGINE),
        .decode_engine = ht_opt_str(o, HT_OPT_DECODE_ENGINE),
        .graph_strict = cmd == HT_CMD_LOGITS || cmd == HT_CMD_PPL || cmd == HT_CMD_KV_PROBE,
        .store = routed ? c->store : NULL,
        .act = ht_opt_str(o, HT_OPT_ACT),
        .ctk = ht_opt_str(o, HT_OPT_CTK),
        .ctv = ht_opt_str(o, HT_OPT_CTV),
        /* Commands that measure take any type; those that serve a user ask for its measurement. */
        .kv_force = ht_opt_on(o, HT_OPT_KV_FORCE) ||
                    !(cmd == HT_CMD_RUN || cmd == HT_CMD_CHAT || cmd == HT_CMD_SERVE),
        .prefill_rep = ht_opt_str(o, HT_OPT_PREFILL_REP),
        .decode_rep = ht_opt_str(o, HT_OPT_DECODE_REP),
        .isa = ht_opt_str(o, HT_OPT_ISA),
        .ctx = ht_opt_given(o, HT_OPT_CTX) ? (uint32_t)ht_opt_int(o, HT_OPT_CTX) : ctx_default,
        .evict = ht_opt_given(o, HT_OPT_EVICT) ? (uint32_t)ht_opt_int(o, HT_OPT_EVICT) : 0,
        .max_sessions = 1,
        .ubatch = (uint32_t)ht_opt_int(o, HT_OPT_UBATCH),
        .threads = (int)ht_opt_int(o, HT_OPT_THREADS),
        .verify = ht_opt_on(o, HT_OPT_VERIFY),
        .progress = cli__progress,
        .user = c,
    };
    const char *pack = ht_opt_str(o, HT_OPT_KV_PACK);
    p->kv_pack = !strcmp(pack, "step")     ? HT_KV_PACK_STEP
                 : !strcmp(pack, "thread") ? HT_KV_PACK_THREAD
                                           : HT_KV_PACK_AUTO;
    if (!cli__store_dir(c, c->kv_gates, &none)) {
        size_t n = strlen(c->kv_gates);
        if (snprintf(c->kv_gates + n, sizeof c->kv_gates - n, "/kv") <
            (int)(sizeof c->kv_gates - n))
            p->kv_gates = c->kv_gates;
    }
    cli__prefix_params(c, p);
    cli__samples_params(c, p);
    if (!p->prefill_engine) p->prefill_engine = engine;
    if (!p->decode_engine) p->decode_engine = engine;
    cli__engine_settings(c, false, p);
}

uint32_t cli__ctx_for(const cli__ctx *c, uint32_t ctx, uint32_t n_prompt)
{
    enum { PADDED = 4, FEWEST = 32 };
    const bool named = ht_opt_str(c->o, HT_OPT_PREFILL_ENGINE) != NULL;
    if (!named || n_prompt > UINT16_MAX) return ctx;
    const uint32_t rows = PADDED * n_prompt < FEWEST ? FEWEST : PADDED * n_prompt;
    return rows <= ctx ? ctx : rows;
}

bool cli__act_idle(const ht_json *info)
{
    const ht_json *reps = ht_json_path(info, "model.representations");
    return !strcmp(cli__str(info, "act", ""), "q8") && (!reps || reps->n < 2) &&
           cli__num(info, "model.quantised", 0) == 0;
}

/* What was opened, and what is unusual about it. Facts come from the library's own description. */
static int say_opened(cli__ctx *c, const ht_engine *engine, ht_err *e)
{
    ht_arena *arena = NULL;
    ht_json *info;
    char *json, mem[32];
    HT_TRY(ht_engine_info(engine, &json, e));
    int rc = ht_arena_new(&arena, 0, e);
    if (!rc) rc = ht_json_parse(arena, json, strlen(json), 0, "engine description", &info, e);
    if (!rc) {
        double trained = cli__num(info, "model.ctxTrain", 0);
        cli__bytes(cli__num(info, "memory.totalBytes", 0), mem);
        cli__say(c, CLI_DEBUG, "model %s; context %u; memory %s; threads %.0f (%s)", c->model,
                 ht_engine_ctx(engine), mem, cli__num(info, "threads", 0),
                 cli__str(info, "threadsWhy", "?"));
        if (trained > 0 && ht_engine_ctx(engine) > trained)
            cli__say(c, CLI_WARN,
                     "warning: %s %u is more than the %.0f positions the model was trained "
                     "for; text past them may be poor",
                     ht_opt_given(c->o, HT_OPT_CTX) ? "-c" : "a context of", ht_engine_ctx(engine),
                     trained);
        if (cli__act_idle(info)) cli__say(c, CLI_WARN, "warning: " CLI_ACT_IDLE, c->model);
        if (cli__str(info, "handOff.notPinned", NULL))
            cli__say(c, CLI_WARN,
                     "warning: pages travel from %s to %s through memory that is not locked, which "
                     "is slower: %s",
                     cli__str(info, "handOff.from", "?"), cli__str(info, "handOff.to", "?"),
                     cli__str(info, "handOff.notPinned", ""));
    }
    ht_arena_free(arena);
    ht_free(json);
    return rc;
}

int cli__engine_open(cli__ctx *c, uint32_t ctx_default, ht_engine **out, ht_err *e)
{
    ht_engine_params p;
    cli__engine_params(c, ctx_default, &p);
    if (c->is_default_model) cli__say(c, CLI_INFO, "model: %s (the default)", c->model);
    /* Packing weights cannot be stopped, and there is nothing yet that an exit would lose. */
    int rc = cli__wait_begin() ? ht_engine_open(out, &p, e)
                               : HT_FAIL(e, HT_ECANCELLED, "cancelled before the model was loaded");
    cli__wait_end();
    cli__progress_end(c);
    if (rc) return rc;
    rc = say_opened(c, *out, e);
    if (rc) {
        ht_engine_close(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- --print-config ---- */

static void write_options(ht_jw *w, const ht_opts *o)
{
    static const char *const from[] = {"default", "environment", "command line"};
    char name[64];
    ht_jw_key(w, "options");
    ht_jw_arr(w);
    for (unsigned id = 0; id < HT_OPTS; id++) {
        const char *value = ht_opt_str(o, id);
        if (!(ht_opt_table[id].cmds >> ht_opts_cmd(o) & 1) || !value) continue;
        ht_opt_name(id, name, sizeof name);
        ht_jw_obj(w);
        ht_jw_kstr(w, "name", name);
        ht_jw_kstr(w, "value", value);
        ht_jw_kstr(w, "from", from[ht_opt_source(o, id)]);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

int cli__print_config(cli__ctx *c, const ht_engine *engine, const ht_sampling *s, ht_err *e)
{
    char *info = NULL, *chain = NULL;
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    int rc = ht_engine_info(engine, &info, e);
    if (!rc && s) rc = ht_sampling_describe(s, &chain, e);
    if (!rc) {
        ht_jw_init(&w, &b, 0);
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "version", ht_version());
        ht_jw_kstr(&w, "command", c->cmd);
        ht_jw_key(&w, "engine");
        ht_jw_raw(&w, info, strlen(info));
        if (s) {
            ht_jw_kstr(&w, "sampler", chain);
            ht_jw_kuint(&w, "seed", s->seed);
        }
        write_options(&w, c->o);
        ht_jw_end(&w, '}');
        rc = ht_buf_ok(&b, "configuration", e);
    }
    bool text = strcmp(ht_opt_str(c->o, HT_OPT_PRINT_CONFIG), "text") == 0 && !c->json;
    if (!rc) rc = text ? cli__out_pretty(b.p, e) : cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    ht_free(chain);
    ht_free(info);
    return rc;
}
