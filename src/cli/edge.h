/* edge.h - the price of handing a prompt's pages from one engine to another, measured. */
#ifndef HT_CLI_EDGE_H
#define HT_CLI_EDGE_H
#include "core/buf.h"
#include "hetero.h"

typedef struct {
    ht_engine *ref, *cand;           /* decode on one engine, prefill on two                      */
    const char *from, *to;           /* backend texts of the candidate's prefill and of decoding  */
    uint32_t min_tokens, max_tokens; /* lengths of prompts to measure at                          */
} cli__edge;
/* Document "hetero/edges/1" (docs/bundle.md) of one edge; the caller frees *text with ht_mem_free.
 * Takes 2 * 16 prefills a length. */
HT_MUST_USE int cli__edge_measure(const cli__edge *, char **text, size_t *n, ht_err *);
#endif
