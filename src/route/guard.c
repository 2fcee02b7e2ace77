/* guard.c - see guard.h. */
#include "route/guard.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they are named when several are red. */
static const uint8_t watched[] = {HT_G_AC,    HT_G_CLOCKS,     HT_G_THROTTLE,  HT_G_CGROUP,
                                  HT_G_ECC,   HT_G_GPU_EVENTS, HT_G_GPU_PROCS, HT_G_FOREIGN,
                                  HT_G_STEAL, HT_G_SWAP};

static bool number(const char *root, const char *path, long *out)
{
    char text[64], *end;
    if (evid__text(root, path, text, sizeof text) <= 0) return false;
    *out = strtol(text, &end, 10);
    return end != text;
}

/* Trip points of one zone: 1 hot, 0 below all, -1 it has none that counts. */
static int zone_hot(const char *root, const char *zone)
{
    char path[320], kind[32];
    long temp, trip;
    int hot = -1;
    (void)snprintf(path, sizeof path, "/sys/class/thermal/%.100s/temp", zone);
    if (!number(root, path, &temp)) return -1;
    for (int i = 0; i < 32; i++) {
        (void)snprintf(path, sizeof path, "/sys/class/thermal/%.100s/trip_point_%d_type", zone, i);
        if (evid__text(root, path, kind, sizeof kind) <= 0) break;
        if (strcmp(kind, "passive") && strcmp(kind, "hot") && strcmp(kind, "critical")) continue;
        (void)snprintf(path, sizeof path, "/sys/class/thermal/%.100s/trip_point_%d_temp", zone, i);
        /* Zero and below are "not set" in many tables. */
        if (!number(root, path, &trip) || trip <= 0) continue;
        if (hot < 0) hot = 0;
        if (temp >= trip) hot = 1;
    }
    return hot;
}

int ht_live_hot(const char *root)
{
    char path[4096 + 64];
    int hot = -1;
    (void)snprintf(path, sizeof path, "%s/sys/class/thermal", root);
    DIR *d = opendir(path);
    if (!d) return -1;
    for (struct dirent *it; (it = readdir(d));) {
        if (strncmp(it->d_name, "thermal_zone", 12) != 0) continue;
        const int z = zone_hot(root, it->d_name);
        if (z > hot) hot = z;
    }
    closedir(d);
    return hot;
}

static void take(ht_live *g, ht_telemetry *t)
{
    if (g->gpu) ht_gpus_read(g->gpus);
    ht_telemetry_take(g->root, g->gpu ? g->gpus : NULL, t);
}

/* What is to be seen without a difference. */
static const char *at_once(const ht_live *g, const ht_telemetry *t)
{
    if (ht_live_hot(g->root) == 1) return "tooHot";
    if (t->ac_online == 0) return ht_guard_names[HT_G_AC];
    return NULL;
}

void ht_live_begin(ht_live *g, const char *root, const ht_policy *policy, uint32_t cpus,
                   ht_gpus *gpus)
{
    *g = (ht_live){.root = root, .policy = policy, .cpus = cpus, .gpu = gpus != NULL, .gpus = gpus};
    take(g, &g->last);
    g->red = at_once(g, &g->last);
}

/* The guards of the time between two looks; "unknown" when even that cannot be said. */
static const char *judge(const ht_live *g, const ht_telemetry span[2])
{
    ht_arena *a = NULL;
    ht_guard_state s = {0};
    const char *red = NULL;
    if (ht_arena_new(&a, 0, NULL)) return "unknown";
    ht_json *doc = ht_telemetry_guards(a, span, span);
    if (!doc || ht_guards_read(doc, g->policy, g->cpus, &s, NULL)) red = "unknown";
    const uint32_t bad = s.red | (s.unknown & g->policy->required);
    for (size_t i = 0; i < sizeof watched && !red; i++)
        if (bad >> watched[i] & 1) red = ht_guard_names[watched[i]];
    ht_arena_free(a);
    return red;
}

const char *ht_live_look(ht_live *g)
{
    ht_telemetry span[2] = {g->last};
    take(g, &span[1]);
    if (span[1].mono_ns - span[0].mono_ns < (uint64_t)HT_LIVE_PERIOD_MS * 1000000u) return g->red;
    g->red = at_once(g, &span[1]);
    if (!g->red) g->red = judge(g, span);
    g->last = span[1];
    return g->red;
}
