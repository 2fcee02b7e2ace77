/* seconds.h - counters of the machine once a second while a slot runs (evidence.md 3.7), on a
 * thread of its own that sleeps in between. */
#ifndef HT_CLI_SECONDS_H
#define HT_CLI_SECONDS_H
#include "core/buf.h"
#include "evid/telemetry.h"
#include <pthread.h>

typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop, gpus;
    ht_buf taken;                    /* ht_telemetry, one after the other                         */
} cli__seconds;
/* gpus: read them too. Without a thread (the system gives none) nothing is sampled: no error. */
void cli__seconds_start(cli__seconds *, bool gpus);
/* Ends the thread; *list [returned] is borrowed until cli__seconds_done(). */
size_t cli__seconds_stop(cli__seconds *, const ht_telemetry **list);
void cli__seconds_done(cli__seconds *);
#endif
