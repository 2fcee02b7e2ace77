/* chat.c - hetero chat: a conversation. Every turn renders the whole conversation through the
 * template; the session keeps the common prefix, so only what is new is computed. */
#include "cli/cli.h"
#include "cli/edit.h"
#include "cli/store.h"
#include "core/arena.h"
#include "core/map.h"
#include <stdio.h>
#include <string.h>

enum { MAX_FORKS = 32 };

typedef struct {
    bool assistant;
    char *text; /* owned                                                      */
    size_t n;
} turn;

typedef struct {
    char *system; /* owned or NULL                                              */
    turn *turns;
    size_t n_turns, cap;
} talk;

typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    ht_session *session;
    cli__sampler sampler;
    cli__spec spec;
    cli__chat_source chat;
    cli__edit *edit;
    talk talk;
    size_t fork[MAX_FORKS],
        n_forks; /* numbers of turns to go back to                             */
    ht_buf line, message;
    bool quit;
    ht_receipts *log; /* NULL: none is kept here */
    char *receipt;    /* of the last answer as it was kept, or NULL */
    ht_err out_err;
} work;

/* ---- the conversation ---- */

static int set_text(char **to, const char *text, size_t n, ht_err *e)
{
    char *copy = ht_mem_alloc(n + 1);
    if (!copy) return HT_FAIL(e, HT_ENOMEM, "chat: out of memory");
    memcpy(copy, text, n);
    ht_mem_free(*to);
    *to = copy;
    return 0;
}

static int add_turn(talk *k, bool assistant, const char *text, size_t n, ht_err *e)
{
    if (k->n_turns == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 16;
        turn *bigger = ht_mem_resize(k->turns, cap * sizeof *bigger);
        if (!bigger) return HT_FAIL(e, HT_ENOMEM, "chat: out of memory");
        k->turns = bigger;
        k->cap = cap;
    }
    turn t = {.assistant = assistant, .n = n};
    HT_TRY(set_text(&t.text, text, n, e));
    k->turns[k->n_turns++] = t;
    return 0;
}

static void talk_done(talk *k)
{
    for (size_t i = 0; i < k->n_turns; i++) ht_mem_free(k->turns[i].text);
    ht_mem_free(k->turns);
    ht_mem_free(k->system);
    *k = (talk){0};
}

static void drop_turns(work *w, size_t keep)
{
    talk *k = &w->talk;
    while (k->n_turns > keep) ht_mem_free(k->turns[--k->n_turns].text);
    while (w->n_forks && w->fork[w->n_forks - 1] > keep) w->n_forks--;
}

static void put_message(ht_jw *j, const char *role, const char *text, size_t n)
{
    ht_jw_obj(j);
    ht_jw_kstr(j, "role", role);
    ht_jw_key(j, "content");
    ht_jw_strn(j, text, n);
    ht_jw_end(j, '}');
}

/* The conversation as the array that templates and --messages take. */
static int messages(const talk *w, ht_buf *b, ht_err *e)
{
    ht_jw j;
    ht_jw_init(&j, b, 0);
    ht_jw_arr(&j);
    if (w->system) put_message(&j, "system", w->system, strlen(w->system));
    for (size_t i = 0; i < w->n_turns; i++)
        put_message(&j, w->turns[i].assistant ? "assistant" : "user", w->turns[i].text,
                    w->turns[i].n);
    ht_jw_end(&j, ']');
    return ht_buf_ok(b, "conversation", e);
}

/* ---- answering ---- */

static int on_token(void *user, const ht_token_event *t)
{
    work *w = user;
    cli__progress_end(w->c);
    if (!w->c->json && cli__out(t->text, t->len, &w->out_err)) return 1;
    return cli__interrupted();
}

static int on_prefill(void *user, const char *what, uint64_t done, uint64_t total)
{
    work *w = user;
    return cli__progress(w->c, what, done, total);
}

static int out_json_answer(work *w, const ht_gen_result *r, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    char *receipt = NULL;
    if (!w->receipt) HT_TRY(ht_session_receipt(w->session, &receipt, e));
    const char *shown = w->receipt ? w->receipt : receipt;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_key(&j, "text");
    ht_jw_strn(&j, r->text ? r->text : "", r->len);
    ht_jw_kstr(&j, "finish", ht_finish_name(r->finish));
    ht_jw_key(&j, "receipt");
    ht_jw_raw(&j, shown, strlen(shown));
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "answer", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    ht_free(receipt);
    return rc;
}

/* After the last token: the end of the line, why it ended when that is not the usual way, the
 * turn. */
static int finish_answer(work *w, const ht_gen_result *r, ht_err *e)
{
    cli__ctx *c = w->c;
    if (c->json) HT_TRY(out_json_answer(w, r, e));
    else HT_TRY(cli__out("\n", 1, e));
    if (r->finish == HT_FINISH_CANCEL) cli__say(c, CLI_INFO, "[stopped]");
    if (r->finish == HT_FINISH_LENGTH)
        cli__say(c, CLI_WARN,
                 "[ended at the limit: %u of %u positions used; -n and -c set the limits, /clear "
                 "starts anew]",
                 ht_session_len(w->session), ht_engine_ctx(w->engine));
    if (c->level >= CLI_DEBUG) HT_TRY(cli__say_receipt(c, w->session, &w->sampler, r->finish, e));
    cli__prefix_save(c, w->engine);
    return add_turn(&w->talk, true, r->text ? r->text : "", r->len, e);
}

static int generate(work *w, const int32_t *ids, size_t n, ht_err *e)
{
    const ht_opts *o = w->c->o;
    int64_t max = ht_opt_int(o, HT_OPT_PREDICT);
    ht_gen_result r = {0};
    ht_gen_params p = {.max_new = max < 0 ? 0 : (uint32_t)max,
                       .sampling = &w->sampler.s,
                       .ignore_eos = ht_opt_on(o, HT_OPT_IGNORE_EOS),
                       .special = ht_opt_on(o, HT_OPT_SPECIAL),
                       .on_token = on_token,
                       .on_prefill = on_prefill,
                       .user = w,
                       .speculation = w->spec.on ? &w->spec.p : NULL,
                       .tokens_only = 1};
    p.n_stop = ht_opt_list(o, HT_OPT_STOP, &p.stop);
    cli__interrupt_clear();
    cli__watch(w->session);
    int rc = ht_session_generate(w->session, ids, n, &p, &r, e);
    cli__progress_end(w->c);
    ht_free(w->receipt);
    (void)cli__receipts_add(w->c, w->log, w->session, (const char *)ids, n * sizeof *ids, r.text,
                            r.len, &w->receipt);
    if (w->out_err.code) {
        *e = w->out_err;
        rc = e->code;
    }
    if (!rc) rc = finish_answer(w, &r, e);
    cli__interrupt_clear();
    ht_gen_result_done(&r);
    return rc;
}

/* Answer the last user turn. */
static int answer(work *w, ht_err *e)
{
    ht_buf b;
    int32_t *ids = NULL;
    size_t n;
    ht_buf_init(&b, 0);
    int rc = messages(&w->talk, &b, e);
    if (!rc) rc = cli__chat_ids(&w->chat, ht_engine_vocab(w->engine), b.p, &ids, &n, e);
    if (!rc && n >= ht_engine_ctx(w->engine))
        rc = HT_FAIL(e, HT_EFULL,
                     "the conversation has %zu tokens and the context %u: /clear, or start with a "
                     "larger -c",
                     n, ht_engine_ctx(w->engine));
    if (!rc) rc = generate(w, ids, n, e);
    ht_free(ids);
    ht_buf_done(&b);
    return rc;
}

/* ---- commands of the conversation ---- */

typedef int (*slash_fn)(work *, const char *arg, ht_err *e);

static int slash_clear(work *w, const char *arg, ht_err *e)
{
    (void)arg;
    drop_turns(w, 0);
    return ht_session_truncate(w->session, 0, e);
}

static int slash_system(work *w, const char *arg, ht_err *e)
{
    if (*arg) return set_text(&w->talk.system, arg, strlen(arg), e);
    cli__say(w->c, CLI_ERROR, "%s", w->talk.system ? w->talk.system : "(no system message)");
    return 0;
}

static int slash_save(work *w, const char *arg, ht_err *e)
{
    ht_buf b;
    if (!*arg) return HT_FAIL(e, HT_EARG, "usage: /save FILE");
    ht_buf_init(&b, 0);
    int rc = messages(&w->talk, &b, e);
    ht_buf_char(&b, '\n');
    if (!rc) rc = ht_buf_ok(&b, "conversation", e);
    if (!rc) rc = cli__write_file(arg, b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

/* One message of a file into the conversation. */
static int load_message(talk *k, const ht_json *m, const char *file, size_t i, ht_err *e)
{
    const ht_json *content = ht_json_get(m, "content");
    const char *role = cli__str(m, "role", "");
    if (!content || content->type != HT_JSTR)
        return HT_FAIL(e, HT_EFORMAT, "%s: message %zu has no text in \"content\"", file, i);
    if (strcmp(role, "system") == 0) return set_text(&k->system, content->s, content->n, e);
    if (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: message %zu has role \"%.20s\"; need system, user or assistant", file,
                       i, role);
    return add_turn(k, *role == 'a', content->s, content->n, e);
}

/* The file's conversation in place of the one there is, system message and all: without one in the
 * file there is none afterwards. A file with an error changes nothing. */
static int slash_load(work *w, const char *arg, ht_err *e)
{
    talk loaded = {0};
    ht_arena *arena = NULL;
    ht_json *doc = NULL;
    char *text = NULL;
    size_t n;
    if (!*arg) return HT_FAIL(e, HT_EARG, "usage: /load FILE");
    int rc = ht_file_read(arg, CLI_JSON_MAX, &text, &n, e);
    if (!rc) rc = ht_arena_new(&arena, 0, e);
    if (!rc) rc = ht_json_parse(arena, text, n, 0, arg, &doc, e);
    if (!rc && doc->type != HT_JARR)
        rc = HT_FAIL(e, HT_EFORMAT, "%s: need an array of messages", arg);
    for (size_t i = 0; !rc && i < doc->n; i++) rc = load_message(&loaded, &doc->at[i], arg, i, e);
    ht_arena_free(arena);
    ht_mem_free(text);
    if (rc) {
        talk_done(&loaded);
        return rc;
    }
    drop_turns(w, 0); /* and the forks into it */
    talk_done(&w->talk);
    w->talk = loaded;
    cli__say(w->c, CLI_INFO, "[%zu messages%s]", loaded.n_turns,
             loaded.system ? ", a system message" : "");
    return 0;
}

/* The draw of a token depends on seed and position alone, so another answer needs another seed.
 * When there is none, the message stays, to be answered again. */
static int slash_regen(work *w, const char *arg, ht_err *e)
{
    (void)arg;
    const talk *k = &w->talk;
    if (k->n_turns && k->turns[k->n_turns - 1].assistant) drop_turns(w, k->n_turns - 1);
    if (!k->n_turns) return HT_FAIL(e, HT_EARG, "there is no message to answer again");
    w->sampler.s.seed++;
    return answer(w, e);
}

static int slash_fork(work *w, const char *arg, ht_err *e)
{
    (void)arg;
    if (w->n_forks == MAX_FORKS)
        return HT_FAIL(e, HT_EFULL, "at most %d forks at once", (int)MAX_FORKS);
    w->fork[w->n_forks++] = w->talk.n_turns;
    cli__say(w->c, CLI_INFO, "[fork %zu at message %zu; /back returns here]", w->n_forks,
             w->talk.n_turns);
    return 0;
}

static int slash_back(work *w, const char *arg, ht_err *e)
{
    (void)arg;
    if (!w->n_forks) return HT_FAIL(e, HT_EARG, "no fork to go back to; /fork makes one");
    size_t keep = w->fork[--w->n_forks];
    drop_turns(w, keep);
    cli__say(w->c, CLI_INFO, "[back at message %zu; what it holds is still in the cache]", keep);
    return 0;
}

static int slash_receipt(work *w, const char *arg, ht_err *e)
{
    char *json;
    ht_buf b;
    (void)arg;
    HT_TRY(ht_session_receipt(w->session, &json, e));
    ht_buf_init(&b, 0);
    int rc = cli__pretty(json, &b, e);
    for (char *s = b.p; !rc && s && *s;) {
        size_t n = strcspn(s, "\n");
        cli__say(w->c, CLI_ERROR, "%.*s", (int)n, s);
        s += n + (s[n] == '\n');
    }
    ht_buf_done(&b);
    ht_free(json);
    return rc;
}

static int slash_quit(work *w, const char *arg, ht_err *e)
{
    (void)arg, (void)e;
    w->quit = true;
    return 0;
}

static int slash_help(work *w, const char *arg, ht_err *e);
static const struct {
    const char *name, *help;
    slash_fn fn;
} slashes[] = {
    {"/help", "this list", slash_help},
    {"/clear", "forget the conversation, keep the system message", slash_clear},
    {"/system", "TEXT: set the system message; alone: show it", slash_system},
    {"/save", "FILE: write the conversation as JSON (what --messages reads)", slash_save},
    {"/load", "FILE: take conversation and system message from such a file", slash_load},
    {"/regen", "answer the last message again, with the next seed", slash_regen},
    {"/fork", "remember this point", slash_fork},
    {"/back", "return to the last remembered point", slash_back},
    {"/receipt", "which engine ran the last answer, why, and how fast", slash_receipt},
    {"/quit", "leave (also /exit, /bye, Ctrl-D)", slash_quit},
    {"/exit", NULL, slash_quit},
    {"/bye", NULL, slash_quit},
};
enum { N_SLASHES = sizeof slashes / sizeof *slashes };

static int slash_help(work *w, const char *arg, ht_err *e)
{
    (void)arg, (void)e;
    for (size_t i = 0; i < N_SLASHES; i++)
        if (slashes[i].help)
            cli__say(w->c, CLI_ERROR, "  %-9s %s", slashes[i].name, slashes[i].help);
    cli__say(w->c, CLI_ERROR,
             "  \"\"\" starts a message of several lines and ends it; a \\ at the end of a line "
             "goes on; Ctrl-C stops an answer");
    return 0;
}

static int slash(work *w, char *text, ht_err *e)
{
    size_t n = strcspn(text, " ");
    const char *arg = text + n + strspn(text + n, " "), *best = NULL;
    unsigned best_d = 3;
    text[n] = 0;
    for (size_t i = 0; i < N_SLASHES; i++) {
        unsigned d = ht_edit_distance(text, slashes[i].name);
        if (d == 0) return slashes[i].fn(w, arg, e);
        if (d < best_d) best_d = d, best = slashes[i].name;
    }
    return HT_FAIL(e, HT_EARG, "unknown command %.40s%s%s%s; /help lists them all", text,
                   best ? "; did you mean " : "", best ? best : "", best ? "?" : "");
}

/* ---- the loop ---- */

static bool ends_with(const ht_buf *b, const char *tail)
{
    size_t n = strlen(tail);
    return b->n >= n && memcmp(b->p + b->n - n, tail, n) == 0;
}

static void chop(ht_buf *b, size_t n)
{
    b->n -= n;
    b->p[b->n] = 0;
}

/* A message of one or several lines into w->message. */
static int read_message(work *w)
{
    int got = cli__edit_line(w->edit, "> ", &w->line);
    ht_buf_clear(&w->message);
    if (got != CLI_LINE_OK) return got;
    bool quoted = w->line.n >= 3 && memcmp(w->line.p, "\"\"\"", 3) == 0;
    if (w->line.n)
        ht_buf_add(&w->message, w->line.p + (quoted ? 3 : 0), w->line.n - (quoted ? 3 : 0));
    for (;;) {
        bool ended = quoted && ends_with(&w->message, "\"\"\"");
        bool more = quoted ? !ended : ends_with(&w->message, "\\");
        if (ended) chop(&w->message, 3);
        if (!more) return CLI_LINE_OK;
        if (!quoted) chop(&w->message, 1);
        got = cli__edit_line(w->edit, ". ", &w->line);
        if (got == CLI_LINE_INTERRUPTED) return got;
        if (got == CLI_LINE_EOF) return CLI_LINE_OK;
        if (w->message.n || quoted) ht_buf_char(&w->message, '\n');
        if (w->line.n) ht_buf_add(&w->message, w->line.p, w->line.n);
    }
}

static int take_message(work *w, ht_err *e)
{
    HT_TRY(ht_buf_ok(&w->message, "message", e));
    if (w->message.n == 0) return 0;
    if (w->message.p[0] == '/') return slash(w, w->message.p, e);
    HT_TRY(add_turn(&w->talk, false, w->message.p, w->message.n, e));
    int rc = answer(w, e);
    if (rc) drop_turns(w, w->talk.n_turns - 1); /* a message without answer is taken back */
    return rc;
}

/* At a terminal an error is said and the conversation goes on; in a script it ends the program. */
static int converse(work *w, ht_err *e)
{
    bool terminal = cli__edit_is_terminal(w->edit);
    if (terminal) cli__say(w->c, CLI_INFO, "%s; /help lists the commands", w->c->model);
    while (!w->quit) {
        int got = read_message(w);
        if (got == CLI_LINE_EOF) break;
        if (got == CLI_LINE_INTERRUPTED && !terminal) return CLI_CANCELLED;
        if (got == CLI_LINE_INTERRUPTED) {
            cli__interrupt_clear();
            continue;
        }
        int rc = take_message(w, e);
        if (rc && (!terminal || w->out_err.code)) return rc;
        if (rc) cli__say(w->c, CLI_ERROR, "error: %s", e->msg);
    }
    return 0;
}

static int run(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    const char *system = ht_opt_str(c->o, HT_OPT_SYSTEM);
    if (ht_opt_int(c->o, HT_OPT_PREDICT) == 0)
        return HT_FAIL(e, HT_EARG, "-n 0: nothing to generate; use at least 1, or -1 for no limit");
    HT_TRY(cli__model(c, true, e));
    HT_TRY(cli__spec_check(c, e));
    cli__watch(NULL);
    HT_TRY(cli__engine_open(c, 0, &w->engine, e));
    HT_TRY(cli__sampler_open(c, ht_vocab_size(ht_engine_vocab(w->engine)), &w->sampler, e));
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG))
        return cli__print_config(c, w->engine, &w->sampler.s, e);
    HT_TRY(cli__chat_source_open(c, ht_engine_template(w->engine), &w->chat, e));
    if (system) HT_TRY(set_text(&w->talk.system, system, strlen(system), e));
    HT_TRY(cli__spec_open(c, w->engine, &w->spec, e));
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    HT_TRY(cli__edit_open(&w->edit, c, e));
    HT_TRY(cli__receipts_open(c, &w->log, e));
    return converse(w, e);
}

int cli__chat(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    ht_buf_init(&w.line, 0);
    ht_buf_init(&w.message, 0);
    int rc = run(&w, e);
    cli__watch(NULL);
    cli__edit_close(w.edit);
    talk_done(&w.talk);
    ht_buf_done(&w.line);
    ht_buf_done(&w.message);
    ht_receipts_close(w.log);
    ht_free(w.receipt);
    ht_session_free(w.session);
    cli__spec_done(&w.spec);
    cli__chat_source_done(&w.chat);
    cli__sampler_done(&w.sampler);
    if (w.engine) ht_engine_close(w.engine);
    return rc;
}
