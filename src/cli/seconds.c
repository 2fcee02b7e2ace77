/* seconds.c - see seconds.h. */
#include "cli/seconds.h"
#include <time.h>

enum { SAMPLES_MAX = 100000 };

static void *work(void *arg)
{
    cli__seconds *s = arg;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        at.tv_sec++;
        while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &at) == 0) continue;
        if (s->stop) break;
        ht_telemetry t;
        ht_gpus gpus;
        if (s->gpus) ht_gpus_read(&gpus);
        ht_telemetry_take("", s->gpus ? &gpus : NULL, &t);
        ht_buf_add(&s->taken, &t, sizeof t);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void cli__seconds_start(cli__seconds *s, bool gpus)
{
    pthread_condattr_t attr;
    *s = (cli__seconds){.gpus = gpus};
    ht_buf_init(&s->taken, SAMPLES_MAX * sizeof(ht_telemetry));
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    s->running = pthread_create(&s->thread, NULL, work, s) == 0;
}

size_t cli__seconds_stop(cli__seconds *s, const ht_telemetry **list)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->running) pthread_join(s->thread, NULL);
    s->running = false;
    *list = (const ht_telemetry *)(const void *)s->taken.p;
    return s->taken.bad ? 0 : s->taken.n / sizeof(ht_telemetry);
}

void cli__seconds_done(cli__seconds *s)
{
    const ht_telemetry *list;
    if (s->running) (void)cli__seconds_stop(s, &list);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    ht_buf_done(&s->taken);
}
