/* server.h - what the files of the server share.
 *
 * HTTP threads read a request, check it, render and tokenise its prompt and put it in the queue
 * (queue.c). One engine thread (loop.c) does all the rest: it gives requests a slot, steps the
 * generations that run, and hands what comes out to the request's protocol, which writes it to the
 * connection. The watcher of http.c only ever marks a request as gone and cancels its sessions. */
#ifndef HT_SERVE_SERVER_H
#define HT_SERVE_SERVER_H
#include "core/json.h"
#include "reply/reply.h"
#include "serve/cost.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/serve.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef struct serve__server serve__server;
typedef struct serve__req serve__req;
typedef struct serve__job serve__job;

/* ---- failures: status, code and text for every protocol -------------------------------------- */
typedef struct {
    unsigned status;               /* 0: none */
    const char *code;              /* "context_length_exceeded"; static */
    char param[64];                /* field that is off, or "" */
    char message[400];
    uint32_t retry_s;              /* Retry-After; 0: none */
    uint32_t n_prompt, n_ctx;      /* exceed_context_size_error; 0: not given */
} serve__fail;
/* Fills and returns true, so that `return serve__bad(...)` ends a check. */
bool serve__bad(serve__fail *, unsigned status, const char *code, const char *param,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* From an error of the library: HT_EARG, HT_EFORMAT, HT_EUNSUPPORTED of a request's own text are
 * 400, the rest is ours. */
bool serve__bad_err(serve__fail *, const char *param, const ht_err *);

/* ---- protocols ------------------------------------------------------------------------------- */
enum serve__piece_kind { PIECE_TEXT, PIECE_REASONING, PIECE_CALL, PIECE_ARGS, PIECE_CALL_END,
                         PIECE_TOKEN }; /* TOKEN: no text, but log-probabilities wait */
typedef struct {
    int kind;
    const char *text; size_t n;
    uint32_t call;                 /* index into the job's calls */
} serve__piece;
typedef struct {
    const char *name;              /* "chat", as in metrics */
    const char *stream_type;       /* of a streamed answer */
    const char *ping;              /* NULL: none can be sent */
    void (*open)(serve__req *, ht_buf *);                       /* before the first piece */
    void (*progress)(serve__job *, uint32_t done, uint32_t total, ht_buf *); /* NULL: none */
    void (*piece)(serve__job *, const serve__piece *, ht_buf *);
    void (*job_end)(serve__job *, ht_buf *);
    void (*close)(serve__req *, ht_buf *);                      /* after the last job */
    void (*whole)(serve__req *, ht_buf *);                      /* the unstreamed answer */
    void (*error)(const serve__fail *, ht_buf *);               /* body of an error */
    void (*stream_error)(serve__req *, const serve__fail *, ht_buf *);
} serve__proto;
extern const serve__proto serve__proto_chat, serve__proto_messages, serve__proto_ollama_chat;

/* ---- requests -------------------------------------------------------------------------------- */
typedef struct {
    char *id, *name;
    ht_buf args;
} serve__call;
enum { JOB_QUEUED, JOB_RUNNING, JOB_DONE };
enum { MAX_JOBS = 128, MAX_STOPS = 16, MAX_CALLS = 128, MAX_TOP = 20 };

/* One answer of a request: one generation. */
struct serve__job {
    serve__req *req;
    uint32_t index;                /* of the choice */
    int state;
    const int32_t *ids; uint32_t n_ids; /* the prompt */
    uint32_t slot;
    ht_gen *gen;
    ht_sampling sampling;          /* with this choice's seed */
    ht_constraint constraint;
    ht_matcher *matcher;
    ht_reply *reply;               /* NULL: all is text */
    ht_buf text, reasoning;
    serve__call *call; uint32_t n_calls;
    ht_buf lp[4], lp_all[4];       /* log-probabilities as JSON items: not handed out yet; all.
                                      chat: [0]; completions: tokens, logprobs, top, offsets */
    size_t shown;                  /* bytes of text so far, for offsets */
    ht_buf ids_out;                /* return_tokens: ids, separated by commas */
    bool expired;                  /* its deadline passed while it ran */
    bool spoke;                    /* a piece has been written */
    size_t broken;                 /* bytes of malformed calls that came back as text */
    int finish, left_in;           /* enum ht_finish; CANCEL_ phase, were the client to leave */
    ht_gen_result res;             /* numbers of the finished generation; text and ids taken */
    uint64_t started_ns, first_ns, last_ns, ended_ns, stepped;
    uint32_t n_out;
    uint64_t receipt;              /* its number, 0: none */
};

typedef struct {                   /* who asks: a key, or an address */
    char name[64];
    int priority;
    uint32_t running;              /* jobs in slots now; server's lock */
} serve__client;

struct serve__req {
    serve__server *s;
    serve__conn *conn;
    const serve__proto *proto;
    ht_arena *arena;
    serve__req *next;              /* in the queue */
    char id[48];
    int64_t created;
    serve__client *client;
    uint64_t seq, arrived_ns, deadline_ns;
    char body_sha[65];
    atomic_bool gone;
    bool queued, watched;          /* in the queue; on_gone is set: server's lock */
    /* what is wanted */
    const char *model;             /* as the client named it */
    bool stream, include_usage, return_progress, timings, return_tokens, want_receipt;
    bool logprobs, echo, cache_prompt, hash_logits;
    uint32_t n_top, n_choices, max_new;
    bool ignore_eos;
    ht_sampling sampling;
    const char *stop[MAX_STOPS]; size_t n_stop;
    ht_grammar *grammar;
    bool is_chat;
    const ht_json *tools;          /* in OpenAI's form */
    ht_tools_params tools_params;
    bool reasoning, in_reasoning;  /* split it off; the prompt ends inside of it */
    bool no_thinking;              /* the template is asked for an answer without */
    ht_buf out;                    /* what a protocol writes, on its way to the connection */
    ht_buf warnings, ignored;      /* announced in headers: what is odd; fields not used */
    size_t n_unlisted;             /* of the latter, beyond what a header holds */
    const ht_json *body;
    /* the answer */
    serve__job *job; uint32_t n_jobs, n_done, next_job;
    bool opened;                   /* the stream has begun */
    bool failed;
    serve__fail fail;
    uint32_t out_index, sequence;  /* the protocol's own counters */
    int block;                     /* and state: what kind of block is open, 0 none */
};

/* ---- the server ------------------------------------------------------------------------------ */
enum serve__phase { PHASE_LOADING, PHASE_READY, PHASE_DRAINING, PHASE_FAILED };
typedef struct {
    ht_session *session;
    serve__job *job;               /* NULL: free */
    int32_t *held; uint32_t n_held; /* tokens the session holds, as far as known */
    uint64_t used_ns;
    ht_session *draft;             /* NULL: none */
    uint32_t pages;                /* the job may need at most */
} serve__slot;
enum { RECEIPTS_KEPT = 256, ANY_CLIENTS = 64 };

struct serve__server {
    ht_serve_params p;
    serve__http *http;
    pthread_mutex_t mu;            /* phase, progress, queue, clients, slots' jobs, metrics */
    pthread_cond_t wake;           /* of the engine thread */
    enum serve__phase phase;
    char load_what[64];
    uint64_t load_done, load_total;
    ht_err load_err;
    bool stop;                     /* end at once */
    uint64_t drain_until_ns;
    int end_fd;                    /* eventfd: the engine thread has ended */

    /* set before PHASE_READY, then constant */
    ht_engine *engine, *draft;
    const ht_vocab *vocab;
    ht_lexicon *lexicon;
    char model_id[128];            /* "SmolLM2-135M-Instruct.Q4_1" */
    char fingerprint[256];
    char *info, *explain;          /* JSON of the engine */
    const char *tmpl; size_t tmpl_n;
    enum ht_reply_form form;
    bool tmpl_tools, tmpl_reasons;
    const char *reason_open, *reason_close;
    int64_t created;
    uint32_t ctx;
    ht_serve_schedule schedule;
    uint64_t model_bytes;
    char digest[65];               /* stands for the model where a protocol wants one */

    bool local_names;              /* only names of this machine are asked for: no keys, loopback */
    serve__client *client; uint32_t n_clients, n_keys;
    char (*key)[160];              /* [n_keys] the secrets; client[i] belongs to key[i] */
    serve__req *first, **last; uint32_t n_queued;
    serve__req *dropped;           /* out of the queue, not yet finished by the engine thread */
    uint64_t next_seq;
    FILE *trace;                   /* of arrivals, or NULL */
    uint64_t trace_from_ns;        /* its first */
    serve__slot *slot; uint32_t n_slots, n_running;
    uint32_t pages_total, pages_free; /* as of the last step */
    uint32_t answer_pages;            /* that all answers together may hold */
    uint64_t step_n;               /* engine thread: number of the step; whose turn it is */
    bool answers_turn;
    bool unsaved;                  /* engine thread: pages of the prefix cache have no file yet */
    serve__cost cost;
    serve__metrics m;
    ht_receipts *receipts;         /* the log, or NULL; receipts_mu */
    char *receipt[RECEIPTS_KEPT];  /* the last ones without a log, by number; receipts_mu */
    uint64_t n_receipts;
    pthread_mutex_t receipts_mu;
};

/* ---- server.c ---- */
void serve__log(serve__server *, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* An address or name of this machine that no other can reach. */
bool serve__is_loopback(const char *host);
/* Whether the request's key is one of ours; *client: who it is. */
bool serve__authorised(serve__server *, const serve__conn *, serve__client **client);

/* The model is loaded, or could not be: says so to whoever waits for it. */
void serve__loaded(serve__server *, int rc);

/* ---- load.c: opening the model, on the engine thread ---- */
HT_MUST_USE int serve__load(serve__server *, ht_err *);
void serve__unload(serve__server *);

/* ---- loop.c: the engine thread ---- */
void *serve__engine_main(void *server);

/* ---- queue.c ---- */
/* Hand a checked request to the engine thread. false: refused, *fail says why. The request belongs
 * to the engine thread afterwards. */
bool serve__submit(serve__req *, serve__fail *);
/* Server's lock held. The request whose next job is to run next, or NULL; not taken out. */
serve__req *serve__next(serve__server *);
void serve__unqueue(serve__server *, serve__req *);  /* lock held */
/* Expired and abandoned requests out of the queue, in a list by `next`. Lock held. */
serve__req *serve__sweep(serve__server *, uint64_t now_ns, uint64_t *next_ns);

/* ---- job.c: what a generation's output becomes ---- */
/* Begin the job in its slot: constraint, reply parser, generation. */
HT_MUST_USE int serve__job_begin(serve__job *, ht_err *);
void serve__job_end(serve__job *);          /* its generation is done: take the result */
void serve__req_fail(serve__req *, const serve__fail *);
/* All jobs are done, or it failed: answer, log, count, free. */
void serve__req_finish(serve__req *);
void serve__req_free(serve__req *);

/* ---- request.c: fields that several protocols share ---- */
serve__req *serve__req_new(serve__server *, serve__conn *, const serve__proto *, serve__fail *);
/* The body as a JSON object, checked against the known fields: unknown ones are listed, those that
 * are known and not supported refused. */
typedef struct {
    const char *name;
    enum { FIELD_OK, FIELD_IGNORED, FIELD_REFUSED } kind;
    const char *why;               /* FIELD_REFUSED */
} serve__field;
bool serve__fields(serve__req *, const ht_json *, const serve__field *, size_t n, serve__fail *);
/* true: wrong, *fail filled. Absent and null leave *out. */
bool serve__get_bool(const ht_json *, const char *key, bool *out, serve__fail *);
bool serve__get_int(const ht_json *, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    serve__fail *);
bool serve__get_str(const ht_json *, const char *key, const char **out, serve__fail *);
/* What was written in the common form, as a tree in the request's arena; the buffer is freed. */
bool serve__tree(serve__req *, ht_buf *, const char *param, const ht_json **out, serve__fail *);
/* temperature, top_p, ... seed: the names all protocols share. */
bool serve__sampling(serve__req *, const ht_json *, serve__fail *);
bool serve__stops(serve__req *, const ht_json *, const char *key, serve__fail *);
bool serve__logit_bias(serve__req *, const ht_json *, serve__fail *);
bool serve__model_name(serve__req *, const ht_json *, serve__fail *);
bool serve__grammar_of(serve__req *, int kind, const char *text, size_t n, const char *param,
                       serve__fail *);
void serve__warn(serve__req *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prompts: ids of jobs, checked against the context. */
bool serve__set_jobs(serve__req *, int32_t *const *ids, const size_t *n, size_t n_prompts,
                     serve__fail *);
/* Submit, or answer with the failure. */
void serve__go(serve__req *, bool bad, serve__fail *);

/* ---- chat.c: messages to a prompt ---- */
/* messages in OpenAI's form, checked; sets the prompt. */
bool serve__chat_prompt(serve__req *, const ht_json *messages, const ht_json *kwargs,
                        int32_t **ids, size_t *n, serve__fail *);
/* The same as text, for people. */
bool serve__chat_text(serve__req *, const ht_json *messages, const ht_json *kwargs, char **text,
                      size_t *n, serve__fail *);
bool serve__tools(serve__req *, const ht_json *tools, const ht_json *choice, bool parallel,
                  serve__fail *);

/* ---- answers ---- */
void serve__answer_fail(serve__server *, serve__conn *, const serve__proto *, const serve__fail *);
void serve__answer_json(serve__conn *, unsigned status, ht_buf *);
void serve__list_routes(ht_jw *); /* route.c: ["POST /v1/messages", ...] */
void serve__usage(const serve__req *, uint64_t *prompt, uint64_t *kept, uint64_t *out);
const char *serve__finish_reason(const serve__job *); /* OpenAI's words */
/* "timings" of a job: an object. */
void serve__write_timings(ht_jw *, const serve__job *);
/* "hetero": receipt, contract, warnings. */
void serve__write_hetero(ht_jw *, const serve__req *);

/* ---- routes ---- */
typedef void serve__handler(serve__server *, serve__conn *);
serve__handler serve__chat_completions, serve__completions, serve__responses, serve__messages,
    serve__count_tokens, serve__embeddings, serve__models, serve__model, serve__ollama_chat,
    serve__ollama_generate, serve__ollama_tags, serve__ollama_show, serve__ollama_ps,
    serve__ollama_version, serve__ollama_embed, serve__health, serve__metrics_page, serve__props,
    serve__slots, serve__tokenize, serve__detokenize, serve__apply_template, serve__receipt,
    serve__page;
/* route.c: the HTTP callbacks. */
void serve__on_head(void *server, serve__conn *), serve__on_body(void *server, serve__conn *);
void serve__on_refuse(void *server, serve__conn *, unsigned status, const char *code,
                      const char *message);
#endif
