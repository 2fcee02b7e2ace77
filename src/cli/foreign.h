/* foreign.h - asking a foreign server for one streamed completion and judging what came: the
 * adapters of hetero compare. Nothing is filtered: whatever a server does wrong is an answer
 * with its status. */
#ifndef HT_CLI_FOREIGN_H
#define HT_CLI_FOREIGN_H
#include "cli/cli.h"
#include "evid/client.h"
#include "evid/harness.h"

enum cli__api { CLI_API_LLAMA, CLI_API_OPENAI, CLI_API_OLLAMA, CLI_APIS };
typedef struct {
    ht_url url;
    uint8_t api;                     /* enum cli__api */
    const char *model;               /* the server's name for it; NULL: none is sent */
    uint32_t ctx;                    /* Ollama's num_ctx */
    uint64_t timeout_ns;
} cli__server;
typedef struct {
    ht_bench_answer a; /* end, status, chunks with token ids where the server gives any */
    uint32_t n_out;                  /* tokens, counted from ids, else what the server reports */
    int64_t said_prompt, said_out;   /* the server's own counts; -1: it gave none */
    const char *request; size_t n_request;             /* the body as it was sent */
    /* bytes behind the last token-bearing event, and when they came */
    size_t tail; uint64_t last_ns;
    char why[120];                   /* of a status that is not ok */
} cli__foreign;
/* prompt: ids (llama, openai) and their text (ollama). Everything of *out is in the arena. */
HT_MUST_USE int cli__foreign_ask(ht_arena *, const cli__server *, const int32_t *ids, uint32_t n,
                                 const char *text, size_t n_text, uint32_t max_new, cli__foreign *,
                                 ht_err *);
/* Body of GET /props, /v1/models or /api/ps; NULL when the server has none. */
HT_MUST_USE int cli__foreign_props(ht_arena *, const cli__server *, const char **body, ht_err *);
#endif
