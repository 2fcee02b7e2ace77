/* worker.h - the parent's side of hetero bench-slot: a fresh process per slot, its lines as
 * answers. */
#ifndef HT_CLI_WORKER_H
#define HT_CLI_WORKER_H
#include "cli/suite.h"
#include "evid/harness.h"

/* Run the requests in a fresh process of this program with the engine settings of arm
 * ("KEY=VALUE,...", a model among them). A process that dies or takes longer than timeout_ns
 * gives failed answers; only one that could not be started is an error. Everything of *out is in
 * the arena. */
HT_MUST_USE int cli__worker_run(ht_arena *, const char *arm, uint32_t ctx, uint32_t warmups,
                                const ht_bench_request *, size_t n, uint64_t timeout_ns,
                                ht_bench_slot *out, ht_err *);
#endif
