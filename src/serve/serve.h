/* serve.h - the server: OpenAI, Anthropic and Ollama protocols over one engine thread. */
#ifndef HT_SERVE_SERVE_H
#define HT_SERVE_SERVE_H
#include "hetero.h"
#include <stdbool.h>

/* What a promoted scheduler scope (evidence.md 6) lets this server do. */
typedef struct {
    bool promoted;
    char reason[48];              /* why not: "OVERLAP_UNMANAGED", "OTHER_MODEL", "STALE", ... */
    char bundle_id[65];           /* "": none */
    uint32_t max_prompt;          /* longest prompt that may share a pass with answers */
    uint32_t tpot_ms;             /* the objective it was measured for */
} ht_serve_schedule;

enum { HT_SERVE_ERROR, HT_SERVE_WARN, HT_SERVE_INFO, HT_SERVE_DEBUG };
typedef struct {
    ht_engine_params engine;      /* max_sessions is set from slots */
    const char *draft_model;      /* NULL: none */
    bool lookup;                  /* guess from the text itself */
    ht_sampling sampling;         /* what a request that says nothing gets */
    bool seed_given;              /* else each request without a seed gets a new one, reported */
    const char *chat_template; size_t chat_template_n; /* NULL: the model's */
    const char *kwargs;           /* template variables, or NULL */
    uint32_t max_new;             /* for requests that name no limit; 0: context */

    const char *host;             /* address, or a path of a Unix socket */
    uint16_t port;
    bool open;                    /* a non-loopback address without a key is allowed */
    const char *const *keys; size_t n_keys;
    const char *key_file;         /* lines "KEY [priority=N] [name=TEXT]"; NULL: none */
    const char *const *cors; size_t n_cors;      /* allowed origins; "*": any */
    const char *const *aliases; size_t n_aliases; /* more names of the model; "*": any */
    uint32_t slots;               /* generations at once */
    uint32_t queue;               /* requests that may wait */
    uint32_t queue_s;             /* how long each may wait */
    uint32_t deadline_s;          /* and take in all; 0: no limit */
    uint32_t drain_s;             /* for running requests after SIGTERM */
    uint32_t tpot_ms;             /* objective: time per token of running answers; 0: none */
    bool overlap;                 /* prompts beside running answers within tpot_ms (forced) */
    /* Asked once the engine is open, on the engine thread: what does the evidence admit? NULL, or
     * an answer that is not promoted: prompts are serialised. */
    void (*schedule)(void *user, ht_engine *, ht_serve_schedule *);
    const char *record_trace;     /* file that arrivals are appended to; NULL: none */
    uint32_t max_body_mib, max_conns, idle_s;
    const char *receipts, *receipts_key; /* folder of the receipt log, and its key; or NULL */
    bool slots_route, metrics_route;
    /* Called when a signal comes while the model is loaded, which nothing can stop: a program ends
     * here, nothing is lost. NULL, or it returns: the end comes when the load is over. */
    void (*abandon)(void *user);
    void (*log)(void *user, int level, const char *line);
    void *user;
} ht_serve_params;
void ht_serve_params_init(ht_serve_params *);

/* Serve until SIGTERM or SIGINT, then drain; a second signal ends what still runs. 0 after a clean
 * end. The signals are handled while this runs. */
HT_MUST_USE int ht_serve_run(const ht_serve_params *, ht_err *);
#endif
