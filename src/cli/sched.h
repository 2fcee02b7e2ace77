/* sched.h - scheduler scopes as the command line sees them: made from a server's settings, for
 * measuring (qualify scheduler) and for asking whether they are promoted (serve). */
#ifndef HT_CLI_SCHED_H
#define HT_CLI_SCHED_H
#include "cli/subject.h"
#include "evid/sched.h"
#include "serve/serve.h"

/* Everything of the scope but lengths and objectives, from an open engine and the options of the
 * server; strings live in the arena. */
HT_MUST_USE int cli__sched_scope(cli__ctx *, ht_arena *, ht_engine *, const cli__subject *,
                                 const cli__machine *, ht_sched_scope *, ht_err *);
/* ht_serve_params.schedule; user is the cli__ctx. Without a store, or one that knows no scheduler,
 * nothing is read of the model. */
void cli__schedule(void *user, ht_engine *, ht_serve_schedule *);
/* hetero qualify scheduler. */
HT_MUST_USE int cli__qualify_scheduler(cli__ctx *, ht_err *);
#endif
