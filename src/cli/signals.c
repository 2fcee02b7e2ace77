/* signals.c - Ctrl-C: the first one asks the running work to stop, the second one ends the program.
 * The handler does nothing but what is allowed in one: atomics, ht_cancel (which is atomics too)
 * and _exit. */
#include "cli/cli.h"
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int asked;
static atomic_bool waiting;
static _Atomic(ht_session *) watched;

static void on_signal(int sig)
{
    (void)sig;
    if (atomic_fetch_add(&asked, 1) > 0 || atomic_load(&waiting)) _exit(CLI_CANCELLED);
    ht_session *s = atomic_load(&watched);
    if (s) ht_cancel(s);
}

void cli__watch(ht_session *s)
{
    struct sigaction sa = {.sa_handler = on_signal};
    atomic_store(&watched, s);
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa,
              NULL); /* no SA_RESTART: a read that waits for a line returns             */
    sigaction(SIGTERM, &sa, NULL);
}

bool cli__wait_begin(void)
{
    atomic_store(&waiting, true);
    return !cli__interrupted();
}

void cli__wait_end(void)
{
    atomic_store(&waiting, false);
}

bool cli__interrupted(void)
{
    return atomic_load(&asked) > 0;
}

void cli__interrupt_clear(void)
{
    atomic_store(&asked, 0);
}
