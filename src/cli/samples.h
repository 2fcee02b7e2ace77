/* samples.h - several completions of one prompt (hetero run --n-samples). */
#ifndef HT_CLI_SAMPLES_H
#define HT_CLI_SAMPLES_H
#include "cli/store.h"

uint32_t cli__n_samples(const cli__ctx *);  /* 1 for other commands than run */
void cli__samples_params(const cli__ctx *, ht_engine_params *); /* a session for each */
/* What was asked and where receipts are kept (log may be NULL); borrowed. */
typedef struct { ht_receipts *log; const char *request; size_t n_request; } cli__asked;
/* Generate and print them: text one after the other, or one document with --json. Sample i draws
 * with seed + i, and has a receipt of its own. An exit status, or a negative code. */
HT_MUST_USE int cli__samples(cli__ctx *, ht_engine *, const int32_t *ids, size_t n_ids,
                             const ht_gen_params *, const cli__asked *, ht_err *);
#endif
