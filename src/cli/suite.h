/* suite.h - the quality suite of two engines, for `hetero quality` and `hetero qualify`. */
#ifndef HT_CLI_SUITE_H
#define HT_CLI_SUITE_H
#include "cli/cli.h"
#include "evid/quality.h"

typedef struct {
    const char *prompts;             /* JSON lines of {"prompt","response"} */
    const char *text;                /* for divergence and perplexity; NULL: left out */
    size_t items, chunks, tasks;     /* how many greedy prompts, chunks of text, task items */
    uint32_t n_new, ctx;             /* tokens of a continuation; tokens of a chunk */
    uint64_t seed;                   /* of the task's foreign responses */
} cli__suite;
HT_MUST_USE int cli__suite_run(cli__ctx *, const cli__suite *, ht_engine *ref, ht_engine *cand,
                               ht_quality *, ht_err *);
/* The options of a suite, and the policy in force (--policy FILE, else the default). */
HT_MUST_USE int cli__suite_options(cli__ctx *, cli__suite *, ht_err *);
HT_MUST_USE int cli__policy(cli__ctx *, ht_arena *, ht_policy *, const char **text, size_t *n,
                            ht_err *);
/* Engine parameters of an arm: *p as the usual options give it, changed by "KEY=VALUE,...". */
HT_MUST_USE int cli__arm(ht_arena *, const char *spec, ht_engine_params *p, ht_err *);
/* HT_EARG when nothing of the spec makes a difference: by what ht_engine_info() says of the
 * reference and of the candidate that was opened with it. */
HT_MUST_USE int cli__arm_differs(const char *spec, const char *model, const ht_json *ref,
                                 const ht_json *cand, ht_err *);
#endif
