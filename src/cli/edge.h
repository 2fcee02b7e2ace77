/* edge.h - the price of handing a prompt's pages from one engine to another, measured. */
#ifndef HT_CLI_EDGE_H
#define HT_CLI_EDGE_H
#include "cli/suite.h"

typedef struct {
    const char *engine, *backend;    /* "cuda"; with its settings, as in the scope                */
    uint32_t min_tokens, max_tokens; /* lengths of prompts of its cells; max 0: it has none       */
} cli__side;
typedef struct {
    ht_engine *ref, *cand;
    const char *spec;                /* --candidate                                               */
    uint32_t ctx;
    cli__side prefill, decode;       /* of the candidate; the reference is "cpu" in both          */
} cli__edges;
/* Document "hetero/edges/1" (docs/bundle.md) of the hand-offs that cells of the candidate need
 * beside the reference's phases and, where both phases have cells, beside each other; *text is NULL
 * where no prompt changes engines. One that cannot be had is said and left out: the planner then
 * has no price for it. The caller frees *text with ht_mem_free. Opens engines of its own; takes up
 * to 2 * 9 prefills by each of three engines an edge. */
HT_MUST_USE int cli__edges_measure(cli__ctx *, const cli__edges *, char **text, size_t *n,
                                   ht_err *);
#endif
