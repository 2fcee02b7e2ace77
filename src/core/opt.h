/* opt.h - the one table of the program's commands and options, and every look at the environment.
 * From the table come the parser, --help, the man pages, the shell completions and the HETERO_*
 * variables, so that they cannot disagree. A row is a name list, a type, a default, a range and a
 * sentence; adding an option is one line in opt_table.c and one in the enum below.
 *
 * Order of precedence: command line, then environment, then the default named in the table. */
#ifndef HT_CORE_OPT_H
#define HT_CORE_OPT_H
#include "core/buf.h"

/* clang-format off */
enum ht_cmd {
    HT_CMD_RUN, HT_CMD_CHAT, HT_CMD_SERVE,
    HT_CMD_PACK, HT_CMD_INSPECT, HT_CMD_TOKENIZE, HT_CMD_TEMPLATE,
    HT_CMD_EXPLAIN, HT_CMD_BENCH, HT_CMD_PPL, HT_CMD_LOGITS, HT_CMD_DOCTOR, HT_CMD_QUALIFY,
    HT_CMD_QUALITY, HT_CMD_COMPARE, HT_CMD_SIM, HT_CMD_REPORT, HT_CMD_SLOT,
    HT_CMD_KEYS, HT_CMD_VERIFY, HT_CMD_PROMOTE, HT_CMD_REVOKE, HT_CMD_ROUTES,
    HT_CMD_RECEIPTS, HT_CMD_PREFIX, HT_CMD_KV_PROBE,
    HT_CMD_VERSION, HT_CMD_HELP,
    HT_CMDS
};
/* Rows of the table, in the order in which help lists them. */
enum ht_opt {
    /* the model */
    HT_OPT_MODEL, HT_OPT_MODEL_DRAFT, HT_OPT_PRE,
    /* what to work on */
    HT_OPT_PROMPT, HT_OPT_FILE, HT_OPT_IDS, HT_OPT_ESCAPE, HT_OPT_CHAT, HT_OPT_SYSTEM,
    HT_OPT_MESSAGES, HT_OPT_TEMPLATE, HT_OPT_TOOLS, HT_OPT_KWARGS, HT_OPT_NO_GEN_PROMPT,
    HT_OPT_BOS, HT_OPT_EOS, HT_OPT_NOW, HT_OPT_DETOKENIZE, HT_OPT_ADD_BOS, HT_OPT_AT, HT_OPT_CHUNKS,
    HT_OPT_OUT, HT_OPT_PRECISION, HT_OPT_ALSO, HT_OPT_Q4_TYPE, HT_OPT_CALIBRATE,
    HT_OPT_REQUANTISE, HT_OPT_HEAD_TYPE,
    HT_OPT_TENSORS, HT_OPT_BENCH_P, HT_OPT_BENCH_N, HT_OPT_BENCH_D, HT_OPT_REPS, HT_OPT_INJECT,
    HT_OPT_EXPLAIN_P, HT_OPT_EXPLAIN_D, HT_OPT_REFERENCE, HT_OPT_CANDIDATE, HT_OPT_POLICY,
    HT_OPT_TEXT, HT_OPT_ITEMS, HT_OPT_TASKS, HT_OPT_IN, HT_OPT_SIGN, HT_OPT_TRUST, HT_OPT_PAIRS,
    HT_OPT_REQUESTS, HT_OPT_KEY, HT_OPT_SERVER, HT_OPT_API, HT_OPT_SERVER_MODEL,
    HT_OPT_SERVER_BINARY, HT_OPT_CONTEXTS, HT_OPT_SPACING, HT_OPT_SELECTION,
    HT_OPT_CANARY, HT_OPT_AMENDMENT,
    HT_OPT_REQUIRE_DEVICE,
    HT_OPT_STORE, HT_OPT_GRANT, HT_OPT_REASON, HT_OPT_QUARANTINE, HT_OPT_RENEW,
    HT_OPT_LAST, HT_OPT_ROUTE, HT_OPT_ROUTE_N,
    HT_OPT_MAN, HT_OPT_COMPLETION,
    /* generating */
    HT_OPT_PREDICT, HT_OPT_N_SAMPLES, HT_OPT_STOP, HT_OPT_IGNORE_EOS, HT_OPT_SPECIAL,
    HT_OPT_GRAMMAR, HT_OPT_JSON_SCHEMA, HT_OPT_JSON_MODE,
    HT_OPT_LOOKUP, HT_OPT_NO_LOOKUP, HT_OPT_DRAFT_MAX, HT_OPT_DRAFT_MIN, HT_OPT_DRAFT_ALWAYS,
    HT_OPT_DRAFT_ACCEPT, HT_OPT_DRAFT_PARALLEL, HT_OPT_DRAFT_THREADS, HT_OPT_DRAFT_ENGINE,
    /* sampling */
    HT_OPT_SEED, HT_OPT_TEMP, HT_OPT_TOP_K, HT_OPT_TOP_P, HT_OPT_MIN_P, HT_OPT_TYPICAL,
    HT_OPT_REPEAT_PENALTY, HT_OPT_REPEAT_LAST_N, HT_OPT_PRESENCE_PENALTY, HT_OPT_FREQUENCY_PENALTY,
    HT_OPT_DRY_MULTIPLIER, HT_OPT_DRY_BASE, HT_OPT_DRY_ALLOWED_LENGTH, HT_OPT_DRY_LAST_N,
    HT_OPT_DRY_BREAKER, HT_OPT_XTC_PROBABILITY, HT_OPT_XTC_THRESHOLD, HT_OPT_LOGIT_BIAS,
    /* engine and memory */
    HT_OPT_ENGINE, HT_OPT_PREFILL_ENGINE, HT_OPT_GRAPH, HT_OPT_CUDA, HT_OPT_DECODE_ENGINE,
    HT_OPT_ACT, HT_OPT_CTK, HT_OPT_CTV,
    HT_OPT_KV_FORCE, HT_OPT_EVICT, HT_OPT_KV_PACK, HT_OPT_KV_DEPTHS, HT_OPT_SAVE,
    HT_OPT_PREFILL_REP, HT_OPT_DECODE_REP, HT_OPT_ISA, HT_OPT_CTX, HT_OPT_THREADS, HT_OPT_UBATCH,
    HT_OPT_VERIFY, HT_OPT_PREFIX_CACHE, HT_OPT_PREFIX_CACHE_SIZE, HT_OPT_UNUSED,
    /* server */
    HT_OPT_HOST, HT_OPT_PORT, HT_OPT_API_KEY, HT_OPT_API_KEY_FILE, HT_OPT_ALLOW_OPEN, HT_OPT_CORS,
    HT_OPT_ALIAS, HT_OPT_PARALLEL, HT_OPT_KV_POSITIONS, HT_OPT_CACHE_RAM, HT_OPT_QUEUE,
    HT_OPT_QUEUE_TIMEOUT, HT_OPT_DEADLINE, HT_OPT_DRAIN, HT_OPT_TPOT, HT_OPT_TTFT, HT_OPT_OVERLAP,
    HT_OPT_NO_OVERLAP, HT_OPT_RECORD_TRACE, HT_OPT_TRACE,
    HT_OPT_MAX_BODY,
    HT_OPT_MAX_CONNECTIONS, HT_OPT_IDLE_TIMEOUT, HT_OPT_RECEIPTS, HT_OPT_RECEIPTS_KEY,
    HT_OPT_NO_SLOTS, HT_OPT_NO_METRICS,
    /* output */
    HT_OPT_JSON, HT_OPT_PRINT_CONFIG, HT_OPT_VERBOSE, HT_OPT_LOG_LEVEL, HT_OPT_NO_PROGRESS,
    HT_OPT_HELP,
    HT_OPTS
};
/* clang-format on */
enum ht_opt_type {
    HT_OPT_FLAG,                     /* present or not; in the environment 1/0, true/false        */
    HT_OPT_INT, HT_OPT_REAL,         /* within [min, max]                                         */
    HT_OPT_STR,
    HT_OPT_ENUM,                     /* one of `choices`, separated by '|'                        */
    HT_OPT_COMMAS,                   /* a string of items separated by commas, none of them empty */
    HT_OPT_LIST                      /* a string that may be given several times                  */
};
enum ht_opt_group { HT_GROUP_MODEL, HT_GROUP_INPUT, HT_GROUP_GENERATE, HT_GROUP_SAMPLE,
                    HT_GROUP_ENGINE, HT_GROUP_SERVE, HT_GROUP_OUTPUT, HT_GROUPS };
typedef struct {
    const char *names;              /* "-n --predict --n-predict": the first long one is its name */
    const char *arg;                 /* what help calls the value; NULL for a flag                */
    const char *def;                 /* default as text, parsed like a given value; NULL: none    */
    const char *choices;             /* HT_OPT_ENUM                                               */
    const char *help;                /* one or two sentences, no full stop at the end             */
    double min, max;                 /* HT_OPT_INT, HT_OPT_REAL; min == max: no limit             */
    uint32_t cmds;                   /* bit per ht_cmd                                            */
    uint8_t type, group, env;        /* env 1: also read from HETERO_<NAME>                       */
} ht_opt_def;
typedef struct {
    const char *name, *args;         /* "run", "[MODEL]"                                          */
    const char *summary;             /* one line                                                  */
    const char *detail;              /* paragraphs separated by blank lines                       */
    const char *const *examples;     /* command lines, NULL-terminated                            */
    uint8_t min_args, max_args;
} ht_cmd_def;
extern const ht_opt_def ht_opt_table[HT_OPTS];
extern const ht_cmd_def ht_cmd_table[HT_CMDS];
extern const char *const ht_opt_group_names[HT_GROUPS];

/* ---- parsing ---- */
typedef struct ht_opts ht_opts;
/* argv[0 .. argc) are the words after the command's name; they and the environment are borrowed
 * until ht_opts_free(). HT_EARG names the word that is off and, for an unknown option, the nearest
 * one this command has. An option that takes one value is given once: of two nobody could tell
 * which was meant. A flag says the same however often. --help ends parsing successfully at once. */
HT_MUST_USE int ht_opts_parse(ht_opts **, enum ht_cmd, int argc, char *const *argv, ht_err *);
void ht_opts_free(ht_opts *);        /* NULL allowed                                              */
enum ht_cmd ht_opts_cmd(const ht_opts *);
size_t ht_opts_n_args(const ht_opts *);
const char *ht_opts_arg(const ht_opts *, size_t i);          /* positional; NULL past the end     */
enum ht_opt_source { HT_FROM_DEFAULT, HT_FROM_ENV, HT_FROM_CLI };
enum ht_opt_source ht_opt_source(const ht_opts *, enum ht_opt);
bool ht_opt_given(const ht_opts *, enum ht_opt);             /* from the line or the environment  */
/* The value in force. Numbers are checked already. A row without default and value gives 0 /
 * NULL. */
bool ht_opt_on(const ht_opts *, enum ht_opt);
int64_t ht_opt_int(const ht_opts *, enum ht_opt);
double ht_opt_real(const ht_opts *, enum ht_opt);
const char *ht_opt_str(const ht_opts *, enum ht_opt);
size_t ht_opt_list(const ht_opts *, enum ht_opt, const char *const **values);
/* The words of the environment that begin with HETERO_ and that no row knows; NULL past the
 * last. */
const char *ht_opts_unknown_env(const ht_opts *, size_t i);

/* Name to command; HT_EARG with a suggestion otherwise. */
HT_MUST_USE int ht_cmd_find(const char *name, enum ht_cmd *, ht_err *);
/* The row's own name, "--top-k": its first long one; cut to cap. */
void ht_opt_name(enum ht_opt, char *out, size_t cap);
/* The i-th name of a row ("-n", "--predict", ...) into out; false past the last. */
bool ht_opt_name_at(enum ht_opt, size_t i, char *out, size_t cap);
/* "HETERO_TOP_K" into out; false when the row is not read from the environment. */
bool ht_opt_env_name(enum ht_opt, char *out, size_t cap);
/* Items separated by commas, none of them empty; HT_EARG names `what` and the item's place. */
HT_MUST_USE int ht_items_check(const char *text, const char *what, ht_err *);
/* Comma-separated integers ("5,17,3") in [min, max] into an array from ht_mem_array (the caller
 * frees with ht_mem_free). `what` names the option in errors. An empty list is an error. */
HT_MUST_USE int ht_parse_ints(const char *text, const char *what, int64_t min, int64_t max,
                              int64_t **out, size_t *n, ht_err *);
/* Optimal string alignment distance (Damerau-Levenshtein without repeated edits), capped at 99. */
unsigned ht_edit_distance(const char *a, const char *b);

/* ---- the rest of the environment ---- */
enum ht_env { HT_ENV_OPENVINO, HT_ENV_VIRTUAL_ENV,
              HT_ENV_HOME, HT_ENV_XDG_STATE_HOME, HT_ENV_XDG_CACHE_HOME, HT_ENV_XDG_DATA_HOME,
              HT_ENV_TERM, HT_ENV_SHARED, HT_ENV_NOTIFY_SOCKET, HT_ENV_WATCHDOG_USEC,
              HT_ENVS };
const char *ht_env_get(enum ht_env); /* NULL when unset or empty                                  */

/* ---- documents made from the table ---- */
void ht_opt_usage(ht_buf *);                                 /* the commands                      */
void ht_opt_help(ht_buf *, enum ht_cmd);                     /* hetero CMD --help                 */
void ht_opt_man(ht_buf *, int cmd /* -1: hetero(1) itself */);
enum ht_shell { HT_SHELL_BASH, HT_SHELL_ZSH, HT_SHELL_FISH };
void ht_opt_completion(ht_buf *, enum ht_shell);
#endif
