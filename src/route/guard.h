/* guard.h - live guards (evidence.md 5, 3.7): may a measured route be taken at this moment? What
 * voids a slot while a route is measured keeps it from being taken while it serves: the counters
 * since the last look, judged by the policy in force. Pressure is left out (it would count our own
 * threads), and so are GPU counters where there is no GPU. A guard that the policy requires and
 * that is not known here is red. */
#ifndef HT_ROUTE_GUARD_H
#define HT_ROUTE_GUARD_H
#include "evid/policy.h"
#include "evid/telemetry.h"

enum { HT_LIVE_PERIOD_MS = 100 };    /* counters closer than this say nothing                     */
typedef struct {
    const char *root;                /* "": this machine; else a tree as in evid/env.h            */
    const ht_policy *policy;
    uint32_t cpus;
    bool gpu;                        /* look at GPUs too                                          */
    ht_gpus *gpus;                   /* where to; NULL unless gpu                                 */
    ht_telemetry last;
    const char *red;                 /* what the last look said; NULL: clear                      */
} ht_live;
/* The first counters; what they show by themselves (AC, temperature) counts at once. */
void ht_live_begin(ht_live *, const char *root, const ht_policy *, uint32_t cpus, ht_gpus *gpus);
/* The guard that is red now, by its name ("foreignCpuPpm", "tooHot"), or NULL. Static. Looks that
 * come sooner than the period after the last give its answer again. */
const char *ht_live_look(ht_live *);
/* Is a sensor of the tree at or above its passive, hot or critical trip point? -1: no sensor has
 * one (thermal/sysfs-api.rst). */
int ht_live_hot(const char *root);
#endif
