/* run.c - hetero run: one generation. Standard output carries the completion as it is made, or with
 * --json one document at the end. */
#include "cli/cli.h"
#include "cli/samples.h"
#include "cli/store.h"
#include "core/arena.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the model is asked when the user says nothing: the work of `make run`. */
#define STORY_REQUEST                                                                              \
    "Write a short story about a brave fox who finds a blue kite. Give it a happy ending."

typedef struct {
    cli__ctx *c;
    ht_engine *engine;
    ht_session *session;
    cli__sampler sampler;
    cli__spec spec;
    cli__constraint grammar;
    cli__chat_source chat;
    char *text, *messages; /* what -p, -f or --messages gave                             */
    size_t text_n;
    int32_t *ids;
    size_t n_ids;
    ht_gen_result result;
    bool ends_line;   /* the last byte written was a newline                        */
    ht_receipts *log; /* NULL: none is kept here */
    char *receipt;    /* as it was kept, or NULL                                       */
    ht_err out_err;   /* why writing failed, from inside a callback                 */
} work;

/* [{"role":"system",...},{"role":"user",...}] */
static int make_messages(work *w, const char *text, size_t n, ht_err *e)
{
    const char *system = ht_opt_str(w->c->o, HT_OPT_SYSTEM);
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_arr(&j);
    for (int user = system ? 0 : 1; user < 2; user++) {
        ht_jw_obj(&j);
        ht_jw_kstr(&j, "role", user ? "user" : "system");
        ht_jw_key(&j, "content");
        if (user) ht_jw_strn(&j, text, n);
        else ht_jw_str(&j, system);
        ht_jw_end(&j, '}');
    }
    ht_jw_end(&j, ']');
    int rc = ht_buf_ok(&b, "messages", e);
    if (!rc) w->messages = ht_buf_take(&b, NULL);
    ht_buf_done(&b);
    return rc;
}

static int chat_prompt(work *w, ht_err *e)
{
    HT_TRY(cli__chat_source_open(w->c, ht_engine_template(w->engine), &w->chat, e));
    return cli__chat_ids(&w->chat, ht_engine_vocab(w->engine), w->messages, &w->ids, &w->n_ids, e);
}

/* A raw prompt that brings its own BOS to a model that adds one would have two: say so. */
static void warn_two_bos(work *w)
{
    int32_t bos = ht_vocab_bos(ht_engine_vocab(w->engine));
    if (bos >= 0 && w->n_ids > 1 && w->ids[0] == bos && w->ids[1] == bos)
        cli__say(w->c, CLI_WARN,
                 "warning: the prompt starts with the BOS text and the model adds BOS "
                 "itself: leave it out of the prompt");
}

static int raw_prompt(work *w, ht_err *e)
{
    HT_TRY(ht_vocab_encode(ht_engine_vocab(w->engine), w->text, w->text_n,
                           HT_TOK_SPECIAL | HT_TOK_BOS, &w->ids, &w->n_ids, e));
    if (w->n_ids == 0)
        return HT_FAIL(e, HT_EARG,
                       "the prompt is empty, and this model adds no BOS: there is nothing to "
                       "continue");
    warn_two_bos(w);
    if (ht_engine_template(w->engine))
        cli__say(w->c, CLI_DEBUG,
                 "the text is continued as it stands; -cnv makes it a chat message");
    return 0;
}

/* What a template would read, where none is rendered. */
static void warn_no_template(cli__ctx *c)
{
    static const enum ht_opt of[] = {HT_OPT_SYSTEM, HT_OPT_TEMPLATE, HT_OPT_KWARGS, HT_OPT_TOOLS,
                                     HT_OPT_NOW};
    char name[64];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (!ht_opt_given(c->o, of[i])) continue;
        ht_opt_name(of[i], name, sizeof name);
        cli__say(c, CLI_WARN, "warning: %s is used only with -cnv, --messages or without a text",
                 name);
    }
}

/* From the options to token ids. */
static int make_prompt(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    const char *messages = ht_opt_str(c->o, HT_OPT_MESSAGES);
    HT_TRY(cli__text(c, &w->text, &w->text_n, e));
    bool has_ids = ht_opt_str(c->o, HT_OPT_IDS) != NULL;
    if ((w->text != NULL) + has_ids + (messages != NULL) > 1)
        return HT_FAIL(e, HT_EARG, "-p, -f, --ids and --messages exclude each other; give one");
    if (has_ids) warn_no_template(c);
    if (has_ids)
        return cli__ids(c, ht_vocab_size(ht_engine_vocab(w->engine)), &w->ids, &w->n_ids, e);
    if (messages) {
        HT_TRY(cli__read_array(messages, "messages", &w->messages, e));
        return chat_prompt(w, e);
    }
    if (w->text && !ht_opt_on(c->o, HT_OPT_CHAT)) {
        warn_no_template(c);
        return raw_prompt(w, e);
    }
    if (w->text) HT_TRY(make_messages(w, w->text, w->text_n, e));
    else HT_TRY(make_messages(w, STORY_REQUEST, strlen(STORY_REQUEST), e));
    if (!w->text) cli__say(c, CLI_INFO, "no text given; asking: " STORY_REQUEST);
    return chat_prompt(w, e);
}

static int on_token(void *user, const ht_token_event *t)
{
    work *w = user;
    cli__progress_end(w->c);
    if (t->len == 0) return cli__interrupted();
    w->ends_line = t->text[t->len - 1] == '\n';
    if (cli__out(t->text, t->len, &w->out_err)) return 1;
    return cli__interrupted();
}

static int on_prefill(void *user, const char *what, uint64_t done, uint64_t total)
{
    work *w = user;
    return cli__progress(w->c, what, done, total);
}

enum { UNSAID = 256 }; /* tokens of an answer that a context is proposed for where -n says none */

/* Say it before the run when the request cannot be met in full. */
static int check_room(work *w, uint32_t max_new, ht_err *e)
{
    uint32_t ctx = ht_engine_ctx(w->engine), room = max_new ? max_new : UNSAID;
    /* The last token needs no position: nothing is computed from it. */
    if (w->n_ids > ctx)
        return HT_FAIL(e, HT_EFULL,
                       "the prompt has %zu tokens and the context %u: shorten it or set -c %zu, "
                       "which has room for an answer of %u, or more",
                       w->n_ids, ctx, w->n_ids + room - 1, room);
    if (max_new > ctx - w->n_ids + 1)
        cli__say(w->c, CLI_WARN,
                 "warning: -n %u is more than the %zu tokens that fit after the prompt: "
                 "generation ends there (length); -c sets a larger context",
                 max_new, ctx - w->n_ids + 1);
    return 0;
}

/* The receipt starts on a line of its own where both outputs are one file, as with 2>&1 | tee. */
static void end_line(const work *w)
{
    struct stat out, msg;
    if (w->ends_line || w->c->level < CLI_INFO) return;
    if (fstat(STDOUT_FILENO, &out) || fstat(STDERR_FILENO, &msg)) return;
    if (out.st_dev == msg.st_dev && out.st_ino == msg.st_ino) (void)!write(STDERR_FILENO, "\n", 1);
}

static int out_result(work *w, ht_err *e)
{
    char *receipt = NULL;
    ht_buf b;
    ht_jw j;
    if (!w->receipt) HT_TRY(ht_session_receipt(w->session, &receipt, e));
    const char *shown = w->receipt ? w->receipt : receipt;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_key(&j, "text");
    ht_jw_strn(&j, w->result.text ? w->result.text : "", w->result.len);
    ht_jw_key(&j, "ids");
    ht_jw_arr(&j);
    for (size_t i = 0; i < w->result.n_ids; i++) ht_jw_int(&j, w->result.ids[i]);
    ht_jw_end(&j, ']');
    ht_jw_kstr(&j, "finish", ht_finish_name(w->result.finish));
    ht_jw_kuint(&j, "promptTokens", w->n_ids);
    ht_jw_kuint(&j, "seed", w->sampler.s.seed);
    ht_jw_key(&j, "receipt");
    ht_jw_raw(&j, shown, strlen(shown));
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "result", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    ht_free(receipt);
    return rc;
}

/* Messages or text, else the ids. */
static cli__asked asked(const work *w)
{
    const char *in = w->messages ? w->messages : w->text ? w->text : (const char *)w->ids;
    const size_t n = w->messages ? strlen(w->messages)
                     : w->text   ? w->text_n
                                 : w->n_ids * sizeof *w->ids;
    return (cli__asked){w->log, in, n};
}

/* The call's receipt into the log, of a failed call too. */
static void keep_receipt(work *w)
{
    const cli__asked in = asked(w);
    (void)cli__receipts_add(w->c, in.log, w->session, in.request, in.n_request, w->result.text,
                            w->result.len, &w->receipt);
}

static int generate(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    const char *const *stop;
    int64_t n = ht_opt_int(c->o, HT_OPT_PREDICT);
    if (n == 0)
        return HT_FAIL(e, HT_EARG, "-n 0: nothing to generate; use at least 1, or -1 for no limit");
    ht_gen_params p = {.max_new = n < 0 ? 0 : (uint32_t)n,
                       .sampling = &w->sampler.s,
                       .ignore_eos = ht_opt_on(c->o, HT_OPT_IGNORE_EOS),
                       .special = ht_opt_on(c->o, HT_OPT_SPECIAL),
                       .on_token = c->json ? NULL : on_token,
                       .on_prefill = on_prefill,
                       .user = w,
                       .speculation = w->spec.on ? &w->spec.p : NULL,
                       .constraint = w->grammar.on ? &w->grammar.p : NULL,
                       .tokens_only = 1};
    p.n_stop = ht_opt_list(c->o, HT_OPT_STOP, &stop);
    p.stop = stop;
    HT_TRY(check_room(w, p.max_new, e));
    if (cli__n_samples(c) > 1) {
        const cli__asked in = asked(w);
        const int status = cli__samples(c, w->engine, w->ids, w->n_ids, &p, &in, e);
        cli__prefix_save(c, w->engine);
        return status;
    }
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    cli__watch(w->session);
    int rc = ht_session_generate(w->session, w->ids, w->n_ids, &p, &w->result, e);
    cli__watch(NULL);
    cli__progress_end(c);
    keep_receipt(w);
    if (w->out_err.code) {
        *e = w->out_err;
        return e->code;
    }
    if (rc == HT_ECANCELLED) {
        w->result.finish = HT_FINISH_CANCEL;
        rc = 0;
    }
    if (rc) return rc;
    HT_TRY(cli__constrain_end(c, &w->grammar, &w->result, e));
    if (c->json) rc = out_result(w, e);
    else if (!w->ends_line && isatty(STDOUT_FILENO)) rc = cli__out("\n", 1, e);
    else end_line(w);
    if (!rc) rc = cli__say_receipt(c, w->session, &w->sampler, w->result.finish, e);
    cli__prefix_save(c, w->engine); /* when the answer is out already */
    return rc ? rc : w->result.finish == HT_FINISH_CANCEL ? CLI_CANCELLED : 0;
}

static int run(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    int64_t unused;
    HT_TRY(cli__model(c, true, e));
    HT_TRY(cli__spec_check(c, e));
    if (ht_opt_str(c->o, HT_OPT_NOW)) HT_TRY(cli__time(ht_opt_str(c->o, HT_OPT_NOW), &unused, e));
    cli__watch(NULL);
    HT_TRY(cli__engine_open(c, 0, &w->engine, e));
    HT_TRY(cli__sampler_open(c, ht_vocab_size(ht_engine_vocab(w->engine)), &w->sampler, e));
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG))
        return cli__print_config(c, w->engine, &w->sampler.s, e);
    HT_TRY(make_prompt(w, e));
    HT_TRY(cli__spec_open(c, w->engine, &w->spec, e));
    HT_TRY(cli__constrain_open(c, w->engine, &w->grammar, e));
    HT_TRY(cli__receipts_open(c, &w->log, e));
    return generate(w, e);
}

int cli__run(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    int rc = run(&w, e);
    ht_gen_result_done(&w.result);
    ht_receipts_close(w.log);
    ht_free(w.receipt);
    ht_session_free(w.session);
    cli__spec_done(&w.spec);
    cli__constrain_done(&w.grammar);
    cli__chat_source_done(&w.chat);
    cli__sampler_done(&w.sampler);
    ht_mem_free(w.text);
    ht_mem_free(w.messages);
    ht_free(w.ids);
    if (w.engine) ht_engine_close(w.engine);
    return rc;
}
