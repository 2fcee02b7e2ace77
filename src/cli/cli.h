/* cli.h - what the files of the command line share. main.c is a table of commands, one file each; a
 * command reads its options from core/opt.h and calls hetero.h, nothing below it.
 *
 * Standard output carries results only and is written through cli__out, so that a full disk or a
 * closed pipe is noticed. Everything else goes to standard error through cli__say. */
#ifndef HT_CLI_CLI_H
#define HT_CLI_CLI_H
#include "core/json.h"
#include "core/opt.h"

/* Exit status (docs/cli.md). */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_FILE = 3, CLI_UNSUPPORTED = 4, CLI_FULL = 5,
       CLI_GATE = 6, CLI_CANCELLED = 130 };
enum { CLI_ERROR, CLI_WARN, CLI_INFO, CLI_DEBUG };      /* --log-level                            */
enum { CLI_PATH = 4096, CLI_TEXT_MAX = 256 << 20, CLI_JSON_MAX = 64 << 20 };

typedef struct {
    const ht_opts *o;
    const char *cmd;                 /* "run"                                                     */
    int level;
    bool json, progress;
    char model[CLI_PATH];            /* set by cli__model                                         */
    bool is_default_model;
    char store[CLI_PATH];            /* folder of admitted routes; set by cli__engine_params      */
    char kv_gates[CLI_PATH];         /* measured losses of KV types; as store                     */
    uint64_t bar_ns;                 /* when the progress bar was last drawn; 0: none is shown    */
} cli__ctx;

/* A command: 0, an exit status > 0 (all said already), or a negative ht_code with *e filled. */
typedef int cli__command(cli__ctx *, ht_err *e);
cli__command cli__run, cli__chat, cli__serve, cli__pack, cli__inspect, cli__tokenize, cli__template,
    cli__explain, cli__bench, cli__ppl, cli__logits, cli__doctor, cli__qualify, cli__quality,
    cli__compare, cli__bench_slot, cli__sim, cli__report, cli__keys, cli__verify, cli__promote,
    cli__revoke, cli__routes, cli__receipts, cli__prefix, cli__kv_probe,
    cli__version, cli__help;

/* ---- say.c: standard output and standard error ---- */
/* A line on standard error at a level; control characters in it are shown as '?'. */
void cli__say(cli__ctx *, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Bytes to standard output, unbuffered beyond this call. HT_EIO when the system refuses. */
HT_MUST_USE int cli__out(const char *p, size_t n, ht_err *);
/* A finished JSON document and a newline. */
HT_MUST_USE int cli__out_json(const char *json, size_t n, ht_err *);
/* A JSON document as text a person reads: nested names indented, arrays of objects as tables. */
HT_MUST_USE int cli__out_pretty(const char *json, ht_err *);
HT_MUST_USE int cli__pretty(const char *json, ht_buf *out, ht_err *);
/* With --json the document itself, else its text form. */
HT_MUST_USE int cli__out_doc(cli__ctx *, const char *json, ht_err *);
/* Plain text as it is, or with --json as {"text":...}. */
HT_MUST_USE int cli__out_text(cli__ctx *, const char *p, size_t n, ht_err *);
/* Print *e for a person, and with --json as an object on standard output. Returns the exit
 * status. */
int cli__fail(cli__ctx *, const ht_err *e);
int cli__exit_status(int code);
/* "1.2 GiB" / "17.9 MB" into out. */
void cli__bytes(double bytes, char out[32]);
/* Progress of the library's long work; user is the cli__ctx. Cancels after Ctrl-C. */
int cli__progress(void *user, const char *what, uint64_t done, uint64_t total);
void cli__progress_end(cli__ctx *);

/* ---- file.c ---- */
/* The bytes into path, replacing the regular file that is there or that a link there leads to:
 * through a file beside it that is renamed, so that a full disk leaves the old one. */
HT_MUST_USE int cli__write_file(const char *path, const char *p, size_t n, ht_err *);

/* ht_file_read() that Ctrl-C ends: "-" may wait for ever. */
HT_MUST_USE int cli__read_file(const char *path, size_t max, char **out, size_t *n, ht_err *);
/* The text of a JSON array (or null); what is wrong in it is told with the file's name. what:
 * "messages". */
HT_MUST_USE int cli__read_array(const char *path, const char *what, char **out, ht_err *);

/* ---- signals.c: Ctrl-C ---- */
/* From now on Ctrl-C (and SIGTERM) sets a flag and cancels `s` (may be NULL) instead of ending the
 * program; a second one ends it at once with status 130. */
void cli__watch(ht_session *s);
bool cli__interrupted(void);
/* Around work that nothing can stop and that has nothing to clean up, such as reading standard
 * input to its end or loading a model: a Ctrl-C in between ends the program at once. false: there
 * was one before. */
bool cli__wait_begin(void);
void cli__wait_end(void);
void cli__interrupt_clear(void);

/* ---- open.c: models, texts, engines from options ---- */
/* The model path in force into c->model: the command's word for it (of qualify the second one), -m,
 * HETERO_MODEL, or the default model when may_default. HT_EARG when there is none, two, or a word
 * too many. */
HT_MUST_USE int cli__model(cli__ctx *, bool may_default, ht_err *);
/* The text's file of ppl and kv-probe: -f or the word after the model; *file NULL when neither is
 * given, HT_EARG when both are. */
HT_MUST_USE int cli__file_word(const cli__ctx *, const char **file, ht_err *);
/* Engine parameters from the options; ctx as given, or ctx_default when none is. */
void cli__engine_params(cli__ctx *, uint32_t ctx_default, ht_engine_params *);
/* --graph and --cuda for the engines that p names; draft: of a draft model, whose engines need not
 * be those that the settings were given for. */
void cli__engine_settings(const cli__ctx *, bool draft, ht_engine_params *);
/* A context for a prompt of n tokens where the user named no context: with a prefill engine named
 * by the user room for padding, since one that runs whole prompts at numbers of rows of its own
 * takes up to four times as many rows as there are tokens. */
uint32_t cli__ctx_for(const cli__ctx *, uint32_t ctx, uint32_t n_prompt);
/* Model and engine; says what was loaded. */
HT_MUST_USE int cli__engine_open(cli__ctx *, uint32_t ctx_default, ht_engine **, ht_err *);
/* Whether act q8 has nothing to round: by ht_engine_info(). What to say then; one %s, the model. */
bool cli__act_idle(const ht_json *info);
#define CLI_ACT_IDLE                                                                               \
    "act q8 changes nothing here: it rounds what is multiplied with quantised weights, and this "  \
    "file has none; make a pack that has: hetero pack %s -o FILE --precision q8"
/* --print-config: what is in force, on standard output. s NULL: no sampling in this command. */
HT_MUST_USE int cli__print_config(cli__ctx *, const ht_engine *, const ht_sampling *s, ht_err *);
/* The text of -p or -f into memory from ht_mem_alloc; *text NULL when neither is given. */
HT_MUST_USE int cli__text(cli__ctx *, char **text, size_t *n, ht_err *);
/* --ids as tokens below n_vocab; ht_mem_free. */
HT_MUST_USE int cli__ids(cli__ctx *, uint32_t n_vocab, int32_t **ids, size_t *n, ht_err *);
/* YYYY-MM-DDTHH:MM:SS[Z] in UTC to seconds since 1970. */
HT_MUST_USE int cli__time(const char *text, int64_t *unix_s, ht_err *);

/* ---- prefix.c: the prefix cache ---- */
/* What the options say of it into the parameters. */
void cli__prefix_params(const cli__ctx *, ht_engine_params *);
/* After a generation: new pages into their files. A disk that refuses is a warning. */
void cli__prefix_save(cli__ctx *, ht_engine *);

/* ---- speculate.c: guessing ahead ---- */
typedef struct {
    ht_speculation p;
    ht_engine *engine;               /* of the draft model, or NULL */
    bool on;
} cli__spec;
/* Before a model is loaded: HT_EARG for an option of guessing that was typed and that nothing
 * reads. */
HT_MUST_USE int cli__spec_check(const cli__ctx *, ht_err *);
/* From the options: opens the draft model of -md and a session of it. */
HT_MUST_USE int cli__spec_open(cli__ctx *, const ht_engine *target, cli__spec *, ht_err *);
/* After the session that was generated with. */
void cli__spec_done(cli__spec *);

/* ---- constrain.c: grammars ---- */
typedef struct {
    ht_lexicon *lexicon;
    ht_grammar *grammar;
    ht_matcher *matcher;
    ht_constraint p;
    bool on;
} cli__constraint;
/* From the options; `on` stays false when they name none. Free it after the generation. */
HT_MUST_USE int cli__constrain_open(cli__ctx *, const ht_engine *, cli__constraint *, ht_err *);
void cli__constrain_done(cli__constraint *);
/* After the generation: a text that claims to be complete is checked as a whole; one that was cut
 * is said to be. */
HT_MUST_USE int cli__constrain_end(cli__ctx *, cli__constraint *, const ht_gen_result *, ht_err *);

/* ---- converse.c: rendering conversations ---- */
typedef struct {
    char *source;                    /* template text, from --template or the model; owned        */
    size_t source_n;
    int64_t now;
    const char *kwargs;
    char *tools;                     /* owned or NULL                                             */
} cli__chat_source;
/* model_template: what the loaded engine carries, or NULL. HT_EUNSUPPORTED when there is none. */
HT_MUST_USE int cli__chat_source_open(cli__ctx *, const char *model_template, cli__chat_source *,
                                      ht_err *);
void cli__chat_source_done(cli__chat_source *);
HT_MUST_USE int cli__chat_ids(const cli__chat_source *, const ht_vocab *, const char *messages,
                              int32_t **ids, size_t *n, ht_err *);

/* ---- generate.c: sampling options and the receipt ---- */
typedef struct {
    ht_sampling s;
    ht_logit_bias *bias;             /* owned                                                     */
    bool seed_is_random;
} cli__sampler;
/* From the options; says what is larger than the vocabulary. */
HT_MUST_USE int cli__sampler_open(cli__ctx *, uint32_t n_vocab, cli__sampler *, ht_err *);
void cli__sampler_done(cli__sampler *);
/* The lines after a generation, from the session's receipt. */
HT_MUST_USE int cli__say_receipt(cli__ctx *, const ht_session *, const cli__sampler *, int finish,
                                 ht_err *);

/* ---- json helpers ---- */
/* Integer or real at a dotted path, or def. */
double cli__num(const ht_json *, const char *path, double def);
const char *cli__str(const ht_json *, const char *path, const char *def);
#endif
