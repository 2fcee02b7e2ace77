/* whole.c - see whole.h. */
#include "api/whole.h"
#include "core/map.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 8,            /* buckets of an engine */
    CANCEL_MS = 50,      /* that a cancel may take where nobody has declared more */
    TEXT_MAX = 64 << 20, /* bytes of a text to calibrate on */
    PADDING_MAX = 4
}; /* rows run for each row of a prompt whose own bucket has no memory */

struct api__whole {
    api__phase base[API_PHASES]; /* as opened */
    api__phase fallback;         /* prefill of prompts that it does not take */
    const api__unit *unit;       /* NULL: no phase has such an engine */
    char opts[1200];
    char device[48];
    char calibrate[1024]; /* text that ranges of activations are measured on; "": none */
    bool given;           /* settings, whichever, by the caller */
    bool strict, cold, approximate;
    bool lane;       /* taken by routes only, not named by the user */
    uint8_t act;     /* enum ht_act */
    uint32_t cancel; /* milliseconds that a cancel may take on a route */
    uint64_t memory; /* given budget in bytes; 0: half of what is available */
    uint64_t budget; /* the one in force */
    uint32_t rows[MOST];
    uint64_t bytes[MOST];        /* of a plan as long as it is there */
    uint64_t making_bytes[MOST]; /* beyond that while it is compiled; one at a time */
    bool taken[MOST], failed[MOST];
    size_t n;
    /* cold start: one compilation at a time, in a thread of its own */
    pthread_t thread;
    bool running;
    atomic_bool done;
    api__plan *making;
    ht_engine *e;
    int rc;
    ht_err err;
    char why[API_WHY]; /* what went wrong last */
};

/* ---- settings -------------------------------------------------------------------------------- */

/* 0 or 1, nothing else. */
static int flag(const char *key, const char *value, bool *on, ht_err *err)
{
    *on = !strcmp(value, "1");
    if (*on || !strcmp(value, "0")) return 0;
    return HT_FAIL(err, HT_EARG, "graph setting %s=%.40s: need 0 or 1", key, value);
}

/* A whole number without sign, from 1 to most. */
static int number(const char *key, const char *value, uint64_t most, const char *unit,
                  uint64_t *out, ht_err *err)
{
    char *end;
    errno = 0;
    const unsigned long long v = strtoull(value, &end, 10);
    *out = v;
    if (value[0] >= '0' && value[0] <= '9' && !*end && !errno && v >= 1 && v <= most) return 0;
    return HT_FAIL(err, HT_EARG, "graph setting %s=%.40s: need 1 to %llu %s", key, value,
                   (unsigned long long)most, unit);
}

/* Whether the key at `at` stands in the settings before it. A key that came twice would have to
 * mean the same to all who read it. */
static bool was_given(const char *settings, const char *at, size_t n)
{
    for (const char *p = settings; p < at; p += strcspn(p, ","), p += *p == ',')
        if (!strncmp(p, at, n) && p[n] == '=') return true;
    return false;
}

static int set(struct api__whole *w, const char *key, const char *value, ht_err *err)
{
    static const char *const pass[] = {"device", "cache",    "weights",
                                       "ints",   "openvino", "approximate"};
    size_t n = strlen(w->opts);
    uint64_t v = 0;
    if (!strcmp(key, "strict")) return flag(key, value, &w->strict, err);
    if (!strcmp(key, "cold")) return flag(key, value, &w->cold, err);
    if (!strcmp(key, "cancel")) {
        HT_TRY(number(key, value, 60000, "milliseconds", &v, err));
        return w->cancel = (uint32_t)v, 0;
    }
    if (!strcmp(key, "memory")) {
        HT_TRY(number(key, value, (uint64_t)1 << 24, "MiB", &v, err));
        return w->memory = v << 20, 0;
    }
    for (uint8_t i = HT_ACT_F32; !strcmp(key, "act") && i <= HT_ACT_INT8; i++)
        if (!strcmp(value, api__act_name(i))) return w->act = i, 0;
    if (!strcmp(key, "act"))
        return HT_FAIL(err, HT_EARG, "graph setting act=%.40s: there are f32, q8, bf16, int8",
                       value);
    if ((!strcmp(key, "device") || !strcmp(key, "cache")) && !*value)
        return HT_FAIL(err, HT_EARG, "graph setting %s= is empty: name one, or leave it out", key);
    if (!strcmp(key, "calibrate") && strlen(value) < sizeof w->calibrate)
        return (void)snprintf(w->calibrate, sizeof w->calibrate, "%s", value), 0;
    if (!strcmp(key, "device") && value[strcspn(value, "abcdefghijklmnopqrstuvwxyz")])
        return HT_FAIL(err, HT_EARG,
                       "graph setting device=%.40s: OpenVINO's names are in capitals: CPU, GPU, "
                       "GPU.1, NPU, AUTO, HETERO:GPU+CPU",
                       value);
    if (!strcmp(key, "device")) (void)snprintf(w->device, sizeof w->device, "%s", value);
    if (!strcmp(key, "approximate")) HT_TRY(flag(key, value, &w->approximate, err));
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
        if (strcmp(key, pass[i]) != 0) continue;
        const int k = snprintf(w->opts + n, sizeof w->opts - n, ",%s=%s", key, value);
        if (k > 0 && (size_t)k < sizeof w->opts - n) return 0;
        return HT_FAIL(err, HT_EARG, "the graph setting %s is too long", key);
    }
    return HT_FAIL(
        err, HT_EARG,
        "graph setting \"%.40s=%.40s\" is unknown; there are device, cache, memory (MiB), "
        "cancel (ms), cold, strict, act, approximate, calibrate, weights, ints, openvino",
        key, value);
}

/* Arithmetic that is approximate by itself, on whatever device. */
static bool rounds(const struct api__whole *w)
{
    return w->act == HT_ACT_BF16 || w->act == HT_ACT_INT8;
}

static int read_settings(struct api__whole *w, const char *settings, ht_err *err)
{
    for (const char *p = settings; *p;) {
        char word[1100];
        const size_t n = strcspn(p, ",");
        if (n >= sizeof word) return HT_FAIL(err, HT_EARG, "a graph setting is too long");
        memcpy(word, p, n);
        word[n] = 0;
        char *value = strchr(word, '=');
        if (n && !value)
            return HT_FAIL(err, HT_EARG, "graph setting \"%.60s\" is not KEY=VALUE", word);
        if (n) {
            if (was_given(settings, p, (size_t)(value - word)))
                return HT_FAIL(err, HT_EARG, "graph setting %.*s is given twice; give it once",
                               (int)(value - word), word);
            *value++ = 0;
            HT_TRY(set(w, word, value, err));
        }
        p += n;
        p += *p == ',';
    }
    if (w->cold && w->strict)
        return HT_FAIL(
            err, HT_EARG,
            "cold=1 and strict=1 in --graph contradict each other: a cold start serves "
            "from the reference until the graph is compiled, strict allows no stand-in; "
            "leave one out, or add strict=0 for logits, ppl and kv-probe, strict unless told");
    if (rounds(w) && !w->approximate)
        return HT_FAIL(
            err, HT_EUNSUPPORTED,
            "act=%s in --graph rounds what the exact contract keeps: no substitute for it; "
            "declare it with approximate=1",
            api__act_name(w->act));
    if ((w->act == HT_ACT_INT8) == (w->calibrate[0] != 0)) return 0;
    return HT_FAIL(err, HT_EARG,
                   "act=int8 and calibrate=FILE in --graph belong together: the ranges of "
                   "activations are measured on that text when the engine opens");
}

int api__whole_read(ht_engine *e, const char *settings, bool strict, ht_err *err)
{
    struct api__whole *w = ht_arena_alloc(e->arena, sizeof *w);
    if (!w) return HT_FAIL(err, HT_ENOMEM, "no memory for the graph engine's settings");
    e->whole = w;
    w->e = e;
    w->act = HT_ACT_F32;
    w->cancel = CANCEL_MS;
    w->strict = strict;
    w->given = settings && *settings;
    return read_settings(w, settings ? settings : "", err);
}

int api__whole_set(ht_engine *e, const char *settings, ht_err *err)
{
    struct api__whole *w = e->whole;
    if (w->unit)
        return HT_FAIL(err, HT_EUNSUPPORTED, "one engine of whole prompts is open already");
    w->opts[0] = w->device[0] = w->calibrate[0] = 0;
    w->strict = w->cold = w->approximate = false;
    w->memory = 0;
    w->act = HT_ACT_F32;
    w->cancel = CANCEL_MS;
    return read_settings(w, settings, err);
}

const char *api__whole_opts(const ht_engine *e)
{
    return e->whole->opts;
}

bool api__is_whole(const api__phase *p)
{
    return p->unit && p->unit->be->buckets;
}

uint8_t api__whole_act(const ht_engine *e, int phase)
{
    if (api__is_whole(&e->phase[phase]) && e->whole->act) return e->whole->act;
    /* act f16 rounds what goes into the products of prompts; decode is act f32 everywhere, and an
     * engine that only decodes what another has computed so needs no such prompts of its own. */
    const bool other = e->phase[API_DECODE].unit != e->phase[API_PREFILL].unit;
    return phase == API_DECODE && e->act == HT_ACT_F16 && other ? HT_ACT_F32 : e->act;
}

void api__whole_class(const ht_engine *e, const api__phase *p, char *out, size_t cap)
{
    const struct api__whole *w = e->whole;
    out[0] = 0;
    if (!api__is_whole(p) || (!w->device[0] && !rounds(w))) return;
    (void)snprintf(out, cap, "@%s%s", w->device[0] ? w->device : "CPU",
                   w->approximate ? " approximate" : "");
}

/* ---- buckets --------------------------------------------------------------------------------- */

/* Bytes of the plan of a bucket. */
static int price(ht_engine *e, uint32_t rows, uint64_t *bytes, uint64_t *making, ht_err *err)
{
    const api__unit *u = e->whole->unit;
    ht_bucket b;
    ht_footprint fp = {0};
    api__bucket(e, API_PREFILL, rows, 1, &b);
    b.rows = (uint16_t)rows;
    if (u->be->footprint)
        HT_TRY(u->be->footprint(u->dev, e->model, e->tape, e->n_tape, &b, &fp, err));
    *bytes = fp.scratch;
    *making = fp.making;
    return 0;
}

/* Compiled plans share nothing, so each bucket costs the model's weights again, and whichever is
 * compiled last needs its own peak beside all others. In the order in which they are worth it: the
 * most usual prompts, then downwards, where padding to a larger bucket costs most of the work, then
 * the longest. One that the context cannot hold is left out. */
static void admit(struct api__whole *w, uint64_t budget, uint32_t ctx)
{
    uint64_t sum = 0, peak = 0;
    for (size_t k = 0; k < w->n; k++) {
        /* 512 128 32 2048 for four: the last one at the end. */
        const size_t i = w->n < 2 || k == w->n - 1 ? w->n - 1 : w->n - 2 - k;
        const uint64_t most = w->making_bytes[i] > peak ? w->making_bytes[i] : peak;
        w->taken[i] = (!ctx || w->rows[i] <= ctx) && sum + w->bytes[i] + most <= budget;
        if (!w->taken[i]) continue;
        sum += w->bytes[i];
        peak = most;
    }
}

/* The prefill phase is on such an engine: pick its buckets. */
static int pick(ht_engine *e, uint32_t ctx, ht_err *err)
{
    struct api__whole *w = e->whole;
    const api__phase *p = &e->phase[API_PREFILL];
    const uint64_t avail = ht_mem_available();
    const ht_backend *be = p->unit->be;
    w->unit = p->unit;
    uint64_t least = UINT64_MAX;
    for (w->n = 0; w->n < MOST && be->buckets[w->n]; w->n++) {
        w->rows[w->n] = be->buckets[w->n];
        HT_TRY(price(e, w->rows[w->n], &w->bytes[w->n], &w->making_bytes[w->n], err));
        const uint64_t needs = w->bytes[w->n] + w->making_bytes[w->n];
        if (needs < least) least = needs;
    }
    w->budget = w->memory ? w->memory : avail ? avail / 2 : UINT64_MAX;
    admit(w, w->budget, ctx);
    if (ctx && w->n && ctx < w->rows[0]) return 0; /* every prompt will be told so */
    for (size_t i = 0; w && i < w->n; i++)
        if (w->taken[i]) return 0;
    return HT_FAIL(err, HT_ENOMEM,
                   "engine %s needs %llu MiB for its smallest bucket and may take %llu; raise "
                   "memory= in --graph, or use another engine",
                   be->name, (unsigned long long)(least >> 20),
                   (unsigned long long)(w->budget >> 20));
}

/* Settings that no engine reads would let somebody believe in a cache, or in numbers, that there
 * are not. A route brings its own (api__whole_set). */
static int check_unread(const ht_engine *e, ht_err *err)
{
    if (!e->whole->given) return 0;
    return HT_FAIL(
        err, HT_EARG,
        "--graph has no effect here: prompts run on engine %s, and routes bring settings "
        "of their own; add --prefill-engine graph, or leave it out",
        e->phase[API_PREFILL].unit->be->name);
}

int api__whole_open(ht_engine *e, uint32_t ctx, ht_err *err)
{
    struct api__whole *w = e->whole;
    if (!api__is_whole(&e->phase[API_PREFILL])) return check_unread(e, err);
    memcpy(w->base, e->phase, sizeof w->base);
    w->fallback = e->phase[API_DECODE];
    w->fallback.forced = false;
    return pick(e, ctx, err);
}

static bool covered(ht_engine *e, const ht_bucket *b, ht_err *why)
{
    const api__unit *u = e->phase[API_PREFILL].unit;
    const ht_cut *cuts;
    size_t n;
    return !api__cover(e->arena, u->be, u->dev, e->model, e->tape, e->n_tape, b, false, &cuts, &n,
                       why);
}

static bool one_kv_type(const ht_engine *e)
{
    for (uint32_t l = 0; l < e->model->spec.n_layers; l++)
        for (int v = 0; v < 2; v++)
            if (e->kv.layer[l][v] != e->kv.base[v]) return false;
    return true;
}

/* Which setting it is that keeps every prompt off the engine is found by leaving them away. */
int api__whole_check(ht_engine *e, ht_err *err)
{
    struct api__whole *w = e->whole;
    uint32_t rows = 0;
    ht_bucket b;
    ht_err why = {0};
    if (!api__is_whole(&e->phase[API_PREFILL])) return 0;
    const char *name = w->unit->be->name;
    for (size_t i = w->n; i-- > 0;)
        if (w->taken[i] && w->rows[i] <= e->ctx) rows = w->rows[i];
    if (!rows) return 0; /* every prompt will be told so */
    api__bucket(e, API_PREFILL, rows, 1, &b);
    const bool takes = covered(e, &b, &why);
    if (takes && one_kv_type(e)) return 0;
    ht_bucket other = b;
    other.kv_fmt = HT_KV_F16 | HT_KV_F16 << 8;
    if (covered(e, &other, NULL))
        return HT_FAIL(
            err, HT_EUNSUPPORTED,
            "engine %s writes K and V of a prompt in one unpacked type, and the cache is "
            "-ctk %s -ctv %s: it could run no prompt; use -ctk f16 -ctv f16 (or f32), or "
            "leave the prompt to cpu without --prefill-engine %s",
            name, e->kv.name[0], e->kv.name[1], name);
    other = b;
    other.flags &= (uint8_t)~HT_WANT_MASS;
    if (covered(e, &other, NULL))
        return HT_FAIL(err, HT_EUNSUPPORTED,
                       "engine %s does not say what attention looked at, which --evict needs: it "
                       "could run no prompt; leave out --evict or --prefill-engine %s",
                       name, name);
    other = b;
    other.act = HT_ACT_F32;
    if (covered(e, &other, NULL))
        return HT_FAIL(
            err, HT_EUNSUPPORTED,
            "engine %s does not compute with act %s on this processor or with weights of "
            "this type: it could run no prompt; use --act f32 without act= in --graph, or "
            "leave out --prefill-engine %s",
            name, api__act_name(b.act), name);
    if (err) *err = why;
    return why.code;
}

int api__whole_calibrate(ht_engine *e, ht_err *err)
{
    const struct api__whole *w = e->whole;
    const api__unit *u = w->unit;
    char *text = NULL;
    size_t n = 0;
    ht_ids ids = {0};
    if (!u || w->act != HT_ACT_INT8) return 0;
    if (!u->be->calibrate)
        return HT_FAIL(err, HT_EUNSUPPORTED, "engine %s has no act int8", u->be->name);
    HT_TRY(ht_file_read(w->calibrate, TEXT_MAX, &text, &n, err));
    int rc = ht_tok_encode(e->tok, text, n, HT_TOK_BOS | HT_TOK_SPECIAL, &ids, err);
    ht_mem_free(text);
    if (!rc) rc = u->be->calibrate(u->dev, ids.id, ids.n, err);
    ht_ids_done(&ids);
    return rc;
}

int api__whole_lane(ht_engine *e, const api__phase *p, ht_err *err)
{
    struct api__whole *w = e->whole;
    const api__phase own = e->phase[API_PREFILL];
    memcpy(w->base, e->phase, sizeof w->base);
    w->fallback = own;
    w->lane = true;
    w->strict = false; /* what a route cannot run is the reference's, whoever measured it */
    e->phase[API_PREFILL] = *p;
    int rc = pick(e, e->ctx, err);
    if (!rc) rc = api__whole_calibrate(e, err);
    e->phase[API_PREFILL] = own;
    if (rc) w->n = 0;
    return rc;
}

uint32_t api__whole_rows(const ht_engine *e, uint32_t n)
{
    const struct api__whole *w = e->whole;
    for (size_t i = 0; w && i < w->n; i++)
        if (w->taken[i] && w->rows[i] >= n && w->rows[i] <= e->ctx) return w->rows[i];
    return 0;
}

/* Rows that most of a run would be padding: what is beyond the next larger bucket's step. Better
 * left to another engine than computed sixteen times. */
static bool mostly_padding(const struct api__whole *w, uint32_t n, uint32_t rows)
{
    size_t own = 0;
    while (own < w->n && w->rows[own] < n) own++;
    return own < w->n && w->rows[own] != rows && rows > PADDING_MAX * n;
}

uint32_t api__whole_most(const ht_engine *e)
{
    const struct api__whole *w = e->whole;
    uint32_t most = 0;
    for (size_t i = 0; w && i < w->n; i++)
        if (w->taken[i] && w->rows[i] > most) most = w->rows[i];
    return most;
}

uint64_t api__whole_extra(const ht_engine *e)
{
    const struct api__whole *w = e->whole;
    uint64_t sum = 0, most = 0, peak = 0;
    for (size_t i = 0; w && i < w->n; i++) {
        if (!w->taken[i] || w->rows[i] > e->ctx) continue;
        sum += w->bytes[i];
        if (w->bytes[i] > most) most = w->bytes[i];
        if (w->making_bytes[i] > peak) peak = w->making_bytes[i];
    }
    /* Where a route may take it, the engine's estimate holds another prefill. */
    return peak + (w && w->lane ? sum : sum - most);
}

/* ---- cold start ------------------------------------------------------------------------------ */

static void *make(void *arg)
{
    struct api__whole *w = arg;
    w->rc = api__plan_encode(w->e, w->making, &w->err);
    atomic_store(&w->done, true);
    return NULL;
}

static void finish(struct api__whole *w)
{
    if (!w->running) return;
    (void)pthread_join(w->thread, NULL);
    w->running = false;
    w->making = NULL;
}

/* Is the plan of these rows there? Else one is being made, by this call or an earlier one. */
static int cold_ready(ht_engine *e, uint32_t rows, uint32_t want, bool *ready, ht_err *err)
{
    struct api__whole *w = e->whole;
    api__plan *p = NULL;
    *ready = false;
    if (w->running && !atomic_load(&w->done)) return 0;
    if (w->running) {
        finish(w);
        if (w->rc) {
            if (err) *err = w->err;
            return w->rc;
        }
    }
    HT_TRY(api__plan_describe(e, API_PREFILL, rows, want, &p, err));
    if (p->plan) {
        *ready = true;
        return 0;
    }
    w->making = p;
    atomic_store(&w->done, false);
    if (pthread_create(&w->thread, NULL, make, w))
        return HT_FAIL(err, HT_ENOMEM, "no thread for compiling a graph");
    w->running = true;
    return 0;
}

void api__whole_close(ht_engine *e)
{
    if (e->whole) finish(e->whole);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static void fall_back(ht_engine *e, const char *reason, bool cold)
{
    e->phase[API_PREFILL] = e->whole->fallback;
    e->phase[API_PREFILL].whole = reason;
    e->phase[API_PREFILL].whole_engine = e->whole->unit->be->name;
    (void)snprintf(e->phase[API_PREFILL].whole_why, sizeof e->whole->why, "%s", e->whole->why);
    e->phase[API_PREFILL].cold = cold;
}

static void reset(ht_engine *e)
{
    if (e->whole->unit && !e->route) memcpy(e->phase, e->whole->base, sizeof e->phase);
}

int api__whole_choose(ht_engine *e, uint32_t n, uint32_t want, ht_err *err)
{
    struct api__whole *w = e->whole;
    const api__plan *plan = NULL;
    ht_err why = {0};
    bool ready = true;
    reset(e);
    if (!api__is_whole(&e->phase[API_PREFILL])) return 0;
    const uint32_t rows = api__whole_rows(e, n);
    size_t at = 0;
    while (at < w->n && w->rows[at] != rows) at++;
    w->why[0] = 0;
    if (!rows) {
        if (w->strict)
            return HT_FAIL(err, HT_EUNSUPPORTED,
                           "engine %s has no bucket for a prompt of %u tokens at context %u, and "
                           "strict forbids another engine; a larger context may have one, and "
                           "strict=0 lets another engine run it",
                           w->unit->be->name, n, e->ctx);
        fall_back(e, "BUCKET", false);
        return 0;
    }
    if (mostly_padding(w, n, rows)) {
        if (w->strict)
            return HT_FAIL(
                err, HT_ENOMEM,
                "engine %s has no memory for the bucket of a prompt of %u tokens, and %u "
                "rows would be mostly padding; raise memory= in --graph",
                w->unit->be->name, n, rows);
        fall_back(e, "MEMORY", false);
        return 0;
    }
    e->phase[API_PREFILL].ubatch = rows;
    int rc = w->failed[at] && !w->strict ? HT_EDEVICE : 0;
    if (rc) (void)HT_FAIL(&why, rc, "failed before in this process");
    if (!rc && w->cold) rc = cold_ready(e, rows, want, &ready, &why);
    if (!rc && ready) rc = api__plan_get(e, API_PREFILL, rows, want, &plan, &why);
    if (!rc && !ready) fall_back(e, "COMPILING", true);
    if (!rc) return 0;
    if (w->strict || rc == HT_ECANCELLED) {
        if (err) *err = why;
        return rc;
    }
    w->failed[at] = true;
    (void)snprintf(w->why, sizeof w->why, "%.150s", why.msg);
    fall_back(e, "ENGINE_FAILED", false);
    return 0;
}

int api__whole_pass(ht_engine *e, const char *reason, const char *what, ht_err *err)
{
    struct api__whole *w = e->whole;
    reset(e);
    if (!api__is_whole(&e->phase[API_PREFILL])) return 0;
    if (what && w->strict)
        return HT_FAIL(err, HT_EUNSUPPORTED,
                       "engine %s does not give %s, and strict forbids another", w->unit->be->name,
                       what);
    w->why[0] = 0;
    fall_back(e, reason, false);
    return 0;
}

bool api__whole_retry(ht_session *s, int rc, const ht_err *why)
{
    ht_engine *e = s->e;
    struct api__whole *w = e->whole;
    if (!api__is_whole(&s->rec.phase[API_PREFILL]) || s->rec.phase[API_PREFILL].entry) return false;
    if (w->strict) return false;
    memcpy(e->phase, s->rec.phase, sizeof e->phase);
    (void)snprintf(w->why, sizeof w->why, "%.150s", why->msg);
    fall_back(e, rc == HT_EUNSUPPORTED || rc == HT_EFULL ? "PAGES" : "ENGINE_FAILED", false);
    return true;
}

/* ---- what is said of it ---------------------------------------------------------------------- */

bool api__whole_write(ht_jw *w, const api__phase *p)
{
    if (!p->whole) return false;
    ht_jw_kstr(w, "decision", p->cold ? "coldStart" : "reference");
    ht_jw_kstr(w, "reason", p->whole);
    ht_jw_kstr(w, "insteadOf", p->whole_engine);
    if (p->whole_why[0]) ht_jw_kstr(w, "why", p->whole_why);
    return true;
}

/* Milliseconds that a cancel of a bucket takes by its plan's last runs; 0: not known yet. */
static uint32_t cancel_ms(const ht_engine *e, uint32_t rows)
{
    uint64_t ns = 0;
    for (const api__plan *p = e->plans; p; p = p->next) {
        ht_run_stats st = {0};
        if (p->unit != e->whole->unit || p->bucket.rows != rows || !p->plan) continue;
        if (!p->be->stats(p->plan, &st) && st.cancel_ns > ns) ns = st.cancel_ns;
    }
    return (uint32_t)((ns + 999999) / 1000000);
}

uint32_t api__whole_cancel(const ht_engine *e, const char *backend)
{
    const struct api__whole *w = e->whole;
    const size_t n = w && w->unit ? strlen(w->unit->be->name) : 0;
    return n && !strncmp(backend, w->unit->be->name, n) && (backend[n] == ';' || !backend[n])
               ? w->cancel
               : 0;
}

void api__whole_info(ht_jw *j, const ht_engine *e)
{
    const struct api__whole *w = e->whole;
    if (!w->unit) return;
    ht_jw_key(j, "wholePrompt");
    ht_jw_obj(j);
    ht_jw_kstr(j, "engine", w->unit->be->name);
    ht_jw_kbool(j, "strict", w->strict);
    ht_jw_kbool(j, "coldStart", w->cold);
    ht_jw_kbool(j, "approximate", w->approximate);
    ht_jw_kuint(j, "budgetBytes", w->budget);
    ht_jw_kuint(j, "cancelMaxMs", w->cancel);
    ht_jw_key(j, "buckets");
    ht_jw_arr(j);
    for (size_t i = 0; w && i < w->n; i++) {
        ht_jw_obj(j);
        ht_jw_kuint(j, "rows", w->rows[i]);
        ht_jw_kuint(j, "planBytes", w->bytes[i]);
        ht_jw_kuint(j, "compileBytes", w->making_bytes[i]);
        ht_jw_kbool(j, "admitted", w->taken[i]);
        if (cancel_ms(e, w->rows[i])) ht_jw_kuint(j, "cancelMs", cancel_ms(e, w->rows[i]));
        ht_jw_end(j, '}');
    }
    ht_jw_end(j, ']');
    ht_jw_end(j, '}');
}
