/* residency.c - which share of requests would cross devices? Requests join several objects (cached
 * prefixes, adapters, experts) that live in the memory of two devices; a request runs where most of
 * its objects are, and whatever lies only on the other device has to cross.
 *
 * Each device keeps its most recently used objects. A crossing copies the object (the other device
 * keeps its own); an object that is nowhere is loaded from storage, which is a miss and no
 * crossing. Popularity: a hot set that is asked for with hotPpm, uniform inside it. */
#include "evid/sim/priv.h"
#include <string.h>

enum { MAX_OBJECTS = 4096, MAX_JOINS = 32 };

static const ht_sim_input inputs[] = {
    {"capacityA", 96, 1, MAX_OBJECTS, "objects that fit on device A"},
    {"capacityB", 48, 1, MAX_OBJECTS, "objects that fit on device B"},
    {"draws", 200, 1, 100000, "draws"},
    {"hotObjects", 32, 1, MAX_OBJECTS, "size of the hot set"},
    {"hotPpm", 700000, 0, 1000000, "chance that an object is asked from the hot set"},
    {"joins", 2, 1, MAX_JOINS, "objects a request joins"},
    {"objectBytes", 16777216, 1, 1000000000000, "bytes of an object"},
    {"objects", 256, 1, MAX_OBJECTS, "objects in all"},
    {"requests", 400, 1, 100000, "counted requests of one draw"},
    {"tieToAPpm", 500000, 0, 1000000, "chance that a tie between the devices goes to A"},
    {"warmup", 200, 0, 100000, "requests before counting starts"},
    {NULL, 0, 0, 0, NULL},
};

typedef struct {
    uint32_t capacity[2], objects, hot, joins, requests, warmup;
    double hot_p, tie;
} params;

typedef struct {
    uint32_t used[2][MAX_OBJECTS]; /* when used last, 1..; 0: not here                            */
    uint32_t n[2], now;
    uint64_t crossed_requests, crossed_objects, missed_requests;
} state;

/* Different objects: a repeated pick becomes the next one that is still free. */
static void pick(sim__rng *g, const params *p, uint32_t *want)
{
    for (uint32_t k = 0; k < p->joins; k++) {
        bool hot = sim__uniform(g) < p->hot_p;
        want[k] = sim__below(g, hot ? p->hot : p->objects);
        for (uint32_t i = 0; i < k;) {
            if (want[i] != want[k]) {
                i++;
                continue;
            }
            want[k] = (want[k] + 1) % p->objects;
            i = 0;
        }
    }
}

static void hold(state *s, const params *p, uint32_t d, uint32_t object)
{
    if (!s->used[d][object] && s->n[d] == p->capacity[d]) {
        uint32_t oldest = UINT32_MAX, at = 0;
        for (uint32_t i = 0; i < p->objects; i++)
            if (s->used[d][i] && s->used[d][i] < oldest) oldest = s->used[d][at = i];
        s->used[d][at] = 0;
        s->n[d]--;
    }
    if (!s->used[d][object]) s->n[d]++;
    s->used[d][object] = ++s->now;
}

static void request(sim__rng *g, const params *p, state *s, bool counted)
{
    uint32_t want[MAX_JOINS], here[2] = {0, 0}, crossed = 0, missed = 0;
    pick(g, p, want);
    for (uint32_t k = 0; k < p->joins; k++)
        for (uint32_t d = 0; d < 2; d++) here[d] += s->used[d][want[k]] != 0;
    double coin = sim__uniform(g);
    uint32_t d = here[0] == here[1] ? coin >= p->tie : here[1] > here[0];
    for (uint32_t k = 0; k < p->joins; k++) {
        if (!s->used[d][want[k]]) {
            if (s->used[1 - d][want[k]]) crossed++;
            else missed++;
        }
        hold(s, p, d, want[k]);
    }
    if (!counted) return;
    s->crossed_requests += crossed != 0;
    s->crossed_objects += crossed;
    s->missed_requests += missed != 0;
}

static int check(const params *p, ht_err *e)
{
    if (p->hot > p->objects || p->joins > p->objects)
        return HT_FAIL(e, HT_EARG, "sim: hotObjects %u and joins %u must not exceed objects %u",
                       p->hot, p->joins, p->objects);
    if (p->capacity[0] < p->joins || p->capacity[1] < p->joins)
        return HT_FAIL(e, HT_EARG, "sim: a device must hold the %u objects that a request joins",
                       p->joins);
    return 0;
}

static int run(sim__run *r, ht_err *e)
{
    const params p = {{(uint32_t)sim__in(r, "capacityA"), (uint32_t)sim__in(r, "capacityB")},
                      (uint32_t)sim__in(r, "objects"),
                      (uint32_t)sim__in(r, "hotObjects"),
                      (uint32_t)sim__in(r, "joins"),
                      (uint32_t)sim__in(r, "requests"),
                      (uint32_t)sim__in(r, "warmup"),
                      (double)sim__in(r, "hotPpm") / 1e6,
                      (double)sim__in(r, "tieToAPpm") / 1e6};
    double bytes = (double)sim__in(r, "objectBytes");
    uint32_t draws = (uint32_t)sim__in(r, "draws");
    HT_TRY(check(&p, e));
    HT_TRY(sim__bound((double)draws * (p.requests + p.warmup) * p.joins * (p.objects + 60.0), e));
    int64_t *moved = sim__series_new(r, "crossBytesPerRequest", draws);
    int64_t *cross = sim__series_new(r, "crossPpm", draws);
    int64_t *miss = sim__series_new(r, "missPpm", draws);
    state *s = ht_arena_alloc(r->a, sizeof *s);
    if (!moved || !cross || !miss || !s)
        return HT_FAIL(e, HT_ENOMEM, "sim: no memory for %u draws", draws);
    for (uint32_t i = 0; i < draws; i++) {
        sim__rng g = sim__draw(r, i);
        memset(s, 0, sizeof *s);
        for (uint32_t k = 0; k < p.warmup + p.requests; k++) request(&g, &p, s, k >= p.warmup);
        moved[i] = (int64_t)(bytes * (double)s->crossed_objects / p.requests);
        cross[i] = (int64_t)(1e6 * (double)s->crossed_requests / p.requests);
        miss[i] = (int64_t)(1e6 * (double)s->missed_requests / p.requests);
    }
    return 0;
}

const sim__kind sim__residency = {
    "residency",
    "crossPpm is the share of requests that cross devices under an assumed popularity, placement "
    "and capacity; no request was served and no link was timed.",
    inputs, run};
