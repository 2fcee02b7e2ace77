/* engine.c - open: file -> (pack: trust) -> model -> tokenizer -> devices -> memory check ->
 * weights on the devices -> KV pool -> attach. Nothing large is taken before the check has passed.
 * Without evidence both phases run on `cpu`, the reference of routing (product.md 1); `ref` and
 * others run only when the user names them. */
#include "api/api.h"
#include "api/kvmean.h"
#include "api/kvtype.h"
#include "api/route.h"
#include "api/whole.h"
#include "core/team.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char reference_engine[] = "cpu";

/* ---- parameters ------------------------------------------------------------------------------ */

static int read_act(const char *name, uint8_t *out, ht_err *err)
{
    if (!name || !strcmp(name, "f32")) {
        *out = HT_ACT_F32;
    } else if (!strcmp(name, "q8")) {
        *out = HT_ACT_Q8;
    } else if (!strcmp(name, "f16")) {
        *out = HT_ACT_F16;
    } else {
        return HT_FAIL(err, HT_EARG,
                       "act \"%s\" is unknown; use f32 (exact), q8 or f16 (approximate)", name);
    }
    return 0;
}

static int read_numbers(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    e->ubatch = p->ubatch ? p->ubatch : API_UBATCH;
    if (e->ubatch > UINT16_MAX)
        return HT_FAIL(err, HT_EARG, "ubatch %u is too large; at most %u", e->ubatch,
                       (unsigned)UINT16_MAX);
    e->max_sessions = p->max_sessions ? p->max_sessions : 1;
    if (e->max_sessions > UINT16_MAX)
        return HT_FAIL(err, HT_EARG, "%u sessions are too many; at most %u", e->max_sessions,
                       (unsigned)UINT16_MAX);
    if (p->threads < 0 || p->threads > HT_TEAM_MAX)
        return HT_FAIL(err, HT_EARG,
                       "%d threads are not possible; use 1 to %d, or 0 for the default", p->threads,
                       HT_TEAM_MAX);
    ht_cpu_threads_get(&e->cpu);
    e->threads = p->threads ? p->threads : e->cpu.threads;
    if (p->threads)
        (void)snprintf(e->cpu.why, sizeof e->cpu.why, "%d: given by the caller", p->threads);
    const char *isa = p->isa ? p->isa : "";
    if (strlen(isa) >= sizeof e->isa || strchr(isa, ','))
        return HT_FAIL(err, HT_EARG, "isa \"%s\" is unknown; use generic, avx2 or avx512", isa);
    (void)snprintf(e->isa, sizeof e->isa, "%s", isa);
    HT_TRY(read_act(p->act, &e->act, err));
    e->kv_positions = p->kv_positions;
    return api__evict_read(e, p, err);
}

/* ---- what is loaded -------------------------------------------------------------------------- */

static int hex_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t sha[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, sha, err));
    ht_hex(sha, sizeof sha, hex);
    return 0;
}

static int load_file(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    HT_TRY(ht_file_open(&e->file, p->model, NULL, err));
    if (ht_file_kind(e->file) == HT_FILE_PACK)
        HT_TRY(
            api__trust(e->file, p->verify, p->progress, p->user, e->pack_sha, &e->verified, err));
    HT_TRY(ht_model_open(&e->model, e->file, p->progress, p->user, err));
    HT_TRY(api__kv_read(&e->kv, p->ctk, p->ctv, e->model->spec.n_layers, e->arena, err));
    if (e->kv.mean)
        HT_TRY(api__kvmean_read(e->file, &e->model->spec, e->arena, &e->kv.k_mean, err));
    e->contract = ht_model_contract(e->model, &e->n_proj, &e->n_quantised);
    HT_TRY(ht_tok_from_file(&e->tok, e->file, p->pre_override, err));
    size_t n = 0;
    const char *t = ht_file_template(e->file, &n);
    if (t) {
        e->tmpl = ht_arena_strndup(e->arena, t, n);
        if (!e->tmpl)
            return HT_FAIL(err, HT_ENOMEM, "no memory for a chat template of %zu bytes", n);
        HT_TRY(hex_of(t, n, e->tmpl_sha, err));
    }
    e->n_tape = ht_tape(e->model, NULL, 0);
    e->tape = ht_arena_array(e->arena, e->n_tape + 1, sizeof *e->tape);
    if (!e->tape) return HT_FAIL(err, HT_ENOMEM, "no memory for a tape of %zu stages", e->n_tape);
    (void)ht_tape(e->model, e->tape, e->n_tape);
    e->tape[e->n_tape] = (ht_stage){HT_SAMPLE, 0, -1};
    return api__kv_admit(e, p, err);
}

/* ---- devices --------------------------------------------------------------------------------- */

static bool is_cuda(const char *engine)
{
    return engine && !strcmp(engine, "cuda");
}

/* What is of the whole engine stands behind it in the options of a device. */
static int check_host_keys(const char *text, ht_err *err)
{
    static const char *const key[] = {"threads", "isa"};
    for (const char *p = text; *p; p += strcspn(p, ","), p += *p == ',')
        for (size_t i = 0; i < sizeof key / sizeof *key; i++)
            if (!strncmp(p, key[i], strlen(key[i])) && p[strlen(key[i])] == '=')
                return HT_FAIL(err, HT_EARG,
                               "cuda setting %.*s: it is of the processor, and none of the card's; "
                               "use --%s",
                               (int)(strcspn(p, ",") < 60 ? strcspn(p, ",") : 60), p, key[i]);
    return 0;
}

/* Settings that no engine reads would let somebody believe in a group that there is not. */
static int read_cuda(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    const char *text = p->cuda ? p->cuda : "";
    if (strlen(text) >= sizeof e->cuda)
        return HT_FAIL(err, HT_EARG, "the settings of engine cuda are too long: %zu bytes",
                       strlen(text));
    if (text[0] && !is_cuda(p->prefill_engine) && !is_cuda(p->decode_engine))
        return HT_FAIL(
            err, HT_EARG,
            "--cuda %.60s has no effect here: no phase runs on engine cuda; add --engine "
            "cuda, or leave it out",
            text);
    HT_TRY(check_host_keys(text, err));
    (void)snprintf(e->cuda, sizeof e->cuda, "%s", text);
    return 0;
}

static int unknown_engine(const char *name, ht_err *err)
{
    char have[120] = "";
    size_t n = 0;
    for (const ht_backend *const *b = ht_backends; *b && n < sizeof have; b++)
        n += (size_t)snprintf(have + n, sizeof have - n, "%s%s", n ? ", " : "", (*b)->name);
    return HT_FAIL(err, HT_EARG, "engine \"%s\" is unknown; this build has: %s", name, have);
}

static int open_unit(ht_engine *e, const char *name, api__unit **out, ht_err *err)
{
    for (size_t i = 0; i < e->n_units; i++) {
        if (strcmp(e->unit[i].be->name, name) != 0) continue;
        *out = &e->unit[i]; /* both phases on one engine share the device and its weights */
        return 0;
    }
    const ht_backend *be = ht_backend_find(name);
    if (!be) return unknown_engine(name, err);
    char opts[1400];
    const char *cuda = is_cuda(name) && e->cuda[0] ? e->cuda : NULL;
    (void)snprintf(opts, sizeof opts, "threads=%d%s%s%s%s%s", e->threads, e->isa[0] ? ",isa=" : "",
                   e->isa, be->buckets ? api__whole_opts(e) : "", cuda ? "," : "",
                   cuda ? cuda : "");
    ht_dev *dev = NULL;
    HT_TRY(be->open(&dev, opts, err));
    e->unit[e->n_units] = (api__unit){.be = be, .dev = dev};
    *out = &e->unit[e->n_units++];
    return 0;
}

static int open_phase(ht_engine *e, int phase, const char *engine, const char *rep, ht_err *err)
{
    api__phase *p = &e->phase[phase];
    const ht_model *m = e->model;
    p->forced = engine != NULL;
    p->reason = HT_R_NO_EVIDENCE;
    HT_TRY(open_unit(e, engine ? engine : reference_engine, &p->unit, err));
    if (phase == API_DECODE && api__is_whole(p))
        return HT_FAIL(err, HT_EUNSUPPORTED,
                       "engine %s runs whole prompts only and does not decode; use it as "
                       "--prefill-engine %s",
                       engine, engine);
    p->rep = m->rep[0];
    if (!rep || !strcmp(rep, m->rep[0])) return 0;
    if (m->rep[1][0] && !strcmp(rep, m->rep[1])) {
        p->rep = m->rep[1];
        p->flags = HT_ALT_REP;
        return 0;
    }
    return HT_FAIL(err, HT_EARG, "the model has no representation \"%s\"; it holds %s%s%s", rep,
                   m->rep[0], m->rep[1][0] ? " and " : "", m->rep[1]);
}

/* ---- context and memory ---------------------------------------------------------------------- */

/* How many sessions and decode rows a shared pass takes. */
static void batch_size(ht_engine *e)
{
    const uint32_t ubatch = e->ubatch < e->ctx ? e->ubatch : e->ctx;
    uint32_t seqs = e->max_sessions < API_BATCH_SEQS ? e->max_sessions : API_BATCH_SEQS;
    uint32_t rows = (seqs + API_BATCH_ROWS - 1) / API_BATCH_ROWS * API_BATCH_ROWS;
    if (rows > ubatch) rows = ubatch;
    if (seqs > rows) seqs = rows;
    e->batch.seqs = seqs;
    e->batch.rows = rows;
    e->batch.cap = ubatch > rows ? ubatch : rows;
}

static int make_batch(ht_engine *e, ht_err *err)
{
    api__batch *m = &e->batch;
    const size_t n_table = (e->ctx + HT_PAGE - 1) / HT_PAGE;
    bool ok = true;
    batch_size(e);
    if (m->seqs < 2) return 0;
    m->token = ht_arena_array(e->arena, m->cap, sizeof *m->token);
    m->pos = ht_arena_array(e->arena, m->cap, sizeof *m->pos);
    m->owner = ht_arena_array(e->arena, m->cap, sizeof *m->owner);
    m->want = ht_arena_array(e->arena, m->cap, sizeof *m->want);
    m->rope_long = ht_arena_array(e->arena, m->seqs, sizeof *m->rope_long);
    m->mass = ht_arena_array(e->arena, m->seqs, sizeof *m->mass);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        m->table[c] = ht_arena_array(e->arena, m->seqs * n_table, sizeof *m->table[c]);
        ok = ok && m->table[c];
    }
    if (ok && m->mass && m->token && m->pos && m->owner && m->want && m->rope_long) return 0;
    return HT_FAIL(err, HT_ENOMEM, "no memory for passes of %u sessions", m->seqs);
}

static int estimate(ht_engine *e, const uint8_t *cls, uint32_t ctx, api__memory *m,
                    ht_pool_params *pool, ht_err *err)
{
    ht_bucket b[API_PHASES];
    e->ctx = ctx;
    api__bucket(e, API_PREFILL, e->ubatch, 1, &b[API_PREFILL]);
    api__bucket(e, API_DECODE, 1, 1, &b[API_DECODE]);
    const uint32_t whole = api__whole_most(e), most = whole < ctx ? whole : ctx;
    api__pool_params(&e->model->spec, cls, &e->kv, ctx, e->max_sessions,
                     most > e->ubatch ? most : e->ubatch, pool);
    /* Sessions share what they do not all fill; each may leave one page half filled. */
    const uint64_t pages = (e->kv_positions + HT_PAGE - 1) / HT_PAGE + e->max_sessions;
    if (e->kv_positions && pages < pool->n_pages[HT_KV_FULL])
        pool->n_pages[HT_KV_FULL] = (uint32_t)pages;
    const uint64_t held = (uint64_t)api__evict_held(e) * e->max_sessions;
    if (e->keep_pages && held < pool->n_pages[HT_KV_FULL])
        pool->n_pages[HT_KV_FULL] = (uint32_t)held;
    for (int c = 0; c < HT_KV_CLASSES; c++)
        if (pool->n_pages[c]) pool->n_pages[c] += e->prefix_pages;
    batch_size(e);
    if (e->batch.seqs > 1) {
        api__bucket_shared(e, API_PREFILL, &b[API_PREFILL]);
        api__bucket_shared(e, API_DECODE, &b[API_DECODE]);
    }
    HT_TRY(api__memory_of(e->phase, e->file, e->model, e->tape, e->n_tape, b, pool, m, err));
    const uint64_t again = m->kv == UINT64_MAX ? 0 : m->kv * (uint64_t)(api__places(e) - 1);
    const uint64_t extra = api__whole_extra(e);
    m->kv += again;
    m->scratch += extra;
    if (m->total <= UINT64_MAX - extra - again) m->total += extra + again;
    return 0;
}

/* Largest multiple of a page in [HT_PAGE, most] whose total fits `room`; 0: not even one page. */
static int fit_ctx(ht_engine *e, const uint8_t *cls, uint32_t most, uint64_t room, uint32_t *out,
                   ht_err *err)
{
    uint32_t lo = 0, hi = (most + HT_PAGE - 1) / HT_PAGE;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        api__memory m;
        ht_pool_params pool;
        HT_TRY(estimate(e, cls, mid * HT_PAGE, &m, &pool, err));
        if (m.total <= room) lo = mid;
        else hi = mid - 1;
    }
    *out = lo * HT_PAGE < most ? lo * HT_PAGE : most;
    return 0;
}

static int choose_ctx(ht_engine *e, const uint8_t *cls, uint32_t asked, uint64_t avail,
                      uint32_t *ctx, ht_err *err)
{
    const uint32_t train = e->model->spec.ctx_train ? e->model->spec.ctx_train : 2048;
    *ctx = asked ? asked : train;
    if (asked) {
        (void)snprintf(e->ctx_why, sizeof e->ctx_why, "given by the caller%s",
                       asked > train ? "; beyond the context the model was trained for" : "");
        return 0;
    }
    (void)snprintf(e->ctx_why, sizeof e->ctx_why, "the model's own");
    if (!avail) return 0;
    /* A fifth of the memory stays free for what else runs, and for the caller's own. */
    HT_TRY(fit_ctx(e, cls, train, avail - avail / 5, ctx, err));
    if (*ctx < train)
        (void)snprintf(e->ctx_why, sizeof e->ctx_why, "what fits the memory; the model's own is %u",
                       train);
    if (*ctx == 0) *ctx = HT_PAGE; /* the check below says by how much it fails */
    return 0;
}

static int check_memory(const ht_engine *e, uint64_t avail, ht_err *err)
{
    if (!avail || e->mem.total <= avail) return 0;
    return HT_FAIL(err, HT_ENOMEM,
                   "the engine needs %" PRIu64 " MiB (weights %" PRIu64
                   ", KV for %u positions %" PRIu64 ", scratch %" PRIu64 ") and %" PRIu64
                   " MiB are available; use a smaller context (-c) or model",
                   e->mem.total >> 20, e->mem.weights >> 20, e->ctx, e->mem.kv >> 20,
                   e->mem.scratch >> 20, avail >> 20);
}

/* A packer of its own where the machine has threads to spare for it. */
static int make_pool(ht_engine *e, const ht_engine_params *p, ht_pool_params *params, ht_err *err)
{
    HT_TRY(api__pool_make(e, params, err));
    if (p->kv_pack == HT_KV_PACK_THREAD ||
        (p->kv_pack == HT_KV_PACK_AUTO && e->cpu.affinity > e->threads))
        HT_TRY(ht_pool_async(e->pool, err));
    return 0;
}

static int load_devices(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    if (p->cover && strcmp(p->cover, "fused") != 0 && strcmp(p->cover, "plain") != 0)
        return HT_FAIL(err, HT_EARG, "cover \"%.40s\" is unknown; use fused or plain", p->cover);
    for (int i = 0; i < API_PHASES; i++)
        e->phase[i].plain = p->cover && strcmp(p->cover, "plain") == 0;
    HT_TRY(read_cuda(e, p, err));
    HT_TRY(open_phase(e, API_PREFILL, p->prefill_engine, p->prefill_rep, err));
    HT_TRY(open_phase(e, API_DECODE, p->decode_engine, p->decode_rep, err));
    uint8_t *cls = api__layer_class(&e->model->spec, e->arena);
    if (!cls) return HT_FAIL(err, HT_ENOMEM, "no memory for the layers' KV classes");
    const uint64_t avail = ht_mem_available();
    ht_pool_params pool;
    uint32_t ctx = 0;
    HT_TRY(api__whole_open(e, p->ctx, err));
    e->prefix_pages = api__prefix_pages(e, p);
    HT_TRY(choose_ctx(e, cls, p->ctx, avail, &ctx, err));
    if (e->ubatch > ctx) e->ubatch = ctx; /* no chunk is longer than the context */
    HT_TRY(estimate(e, cls, ctx, &e->mem, &pool, err));
    HT_TRY(check_memory(e, avail, err));
    for (size_t i = 0; i < e->n_units; i++)
        HT_TRY(e->unit[i].be->load(e->unit[i].dev, e->model, err));
    /* A user who names an engine, or what loses something, has decided: nothing is routed then. */
    if (!p->prefill_engine && !p->decode_engine && !e->kv.packs && !e->keep_pages)
        HT_TRY(api__route_open(e, p->store, err));
    if (e->route && api__whole_most(e)) { /* a route runs whole prompts: room for them */
        HT_TRY(estimate(e, cls, ctx, &e->mem, &pool, err));
        HT_TRY(check_memory(e, avail, err));
    }
    return make_pool(e, p, &pool, err);
}

/* The plans every generation needs are made at open, so that what can fail fails there. A device
 * that cannot run several sessions in one pass runs them one after the other. */
static int make_plans(ht_engine *e, ht_err *err)
{
    const api__plan *plan = NULL;
    ht_err why = {0};
    /* An engine of whole prompts compiles a bucket when a prompt asks for it. */
    const bool whole = api__is_whole(&e->phase[API_PREFILL]);
    if (whole) HT_TRY(api__whole_check(e, err));
    if (whole) HT_TRY(api__whole_calibrate(e, err));
    else HT_TRY(api__plan_get(e, API_PREFILL, e->ubatch, 1, &plan, err));
    HT_TRY(api__plan_get(e, API_DECODE, 1, 1, &plan, err));
    HT_TRY(api__plan_chain(e, &plan, err));
    if (e->batch.seqs < 2) return 0;
    int rc = api__plan_shared(e, API_DECODE, &plan, &why);
    if (!rc && !whole) rc = api__plan_shared(e, API_PREFILL, &plan, &why);
    if (rc == HT_EUNSUPPORTED) e->batch.seqs = 1;
    else if (rc && err) *err = why;
    return rc == HT_EUNSUPPORTED ? 0 : rc;
}

int ht_engine_open(ht_engine **out, const ht_engine_params *p, ht_err *err)
{
    if (!out || !p || !p->model)
        return HT_FAIL(err, HT_EARG, "ht_engine_open: out and a model path must be given");
    *out = NULL;
    ht_arena *arena = NULL;
    HT_TRY(ht_arena_new(&arena, 0, err));
    ht_engine *e = ht_arena_alloc(arena, sizeof *e);
    if (!e) {
        ht_arena_free(arena);
        return HT_FAIL(err, HT_ENOMEM, "no memory for an engine");
    }
    e->arena = arena;
    atomic_flag_clear(&e->busy);
    e->path = ht_arena_strndup(arena, p->model, strlen(p->model));
    int rc = e->path ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for the model's path");
    if (!rc) rc = read_numbers(e, p, err);
    if (!rc) rc = load_file(e, p, err);
    if (!rc) rc = api__whole_read(e, p->graph, p->graph_strict != 0, err);
    if (!rc) rc = load_devices(e, p, err);
    if (!rc) rc = api__prefix_open(e, p, err);
    if (!rc) rc = make_batch(e, err);
    if (!rc) rc = make_plans(e, err);
    /* Where routes may fall back to the reference, it must have been found right. */
    if (!rc && e->route) rc = api__ref_ensure(e, p->progress, p->user, err);
    if (rc) {
        ht_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void ht_engine_close(ht_engine *e)
{
    if (!e) return;
    api__whole_close(e);
    api__plans_free(e);
    api__route_close(e);
    ht_prefix_free(e->prefix);
    api__hand_free(e->hand);
    api__pool_free(e);
    for (size_t i = 0; i < e->n_units; i++) e->unit[i].be->close(e->unit[i].dev);
    ht_tok_free(e->tok);
    ht_model_free(e->model);
    ht_file_close(e->file);
    ht_arena_free(e->arena);
}

const ht_vocab *ht_engine_vocab(const ht_engine *e)
{
    return e ? e->tok : NULL;
}

const char *ht_engine_template(const ht_engine *e)
{
    return e ? e->tmpl : NULL;
}

void ht_engine_pages(const ht_engine *e, uint32_t *total, uint32_t *free_pages)
{
    const ht_kv *kv = e ? ht_pool_kv(e->pool) : NULL;
    const int c = kv && !kv->n_pages[HT_KV_FULL] ? HT_KV_WINDOW : HT_KV_FULL;
    *total = kv ? kv->n_pages[c] : 0;
    *free_pages = kv ? ht_pool_free_pages(e->pool, c) : 0;
}

uint32_t ht_engine_ctx(const ht_engine *e)
{
    return e ? e->ctx : 0;
}

uint32_t ht_engine_n_logits(const ht_engine *e)
{
    return e ? e->model->spec.vocab : 0;
}
