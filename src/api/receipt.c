/* receipt.c - what ran, for whom, why and at what cost, as JSON: evidence.md 7.9 with the phase
 * objects of product.md 3.1 and 5.6. Canonical value kinds only: integers with the unit in the
 * name, strings, digests. Hashes stand for text; a receipt never holds any. */
#include "api/route.h"
#include "api/subject.h"
#include "api/whole.h"
#include "core/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const phase_name[API_PHASES] = {"prefill", "decode"};

const char *api__act_name(int act)
{
    static const char *const name[] = {"f32", "q8", "f16", "bf16", "int8"};
    return act >= HT_ACT_F32 && act <= HT_ACT_INT8 ? name[act] : "?";
}

void api__record_begin(ht_session *s, const char *call)
{
    s->rec = (api__record){.seq = ++s->e->receipts,
                           .call = call,
                           .status = "error",
                           .finish = ht_finish_name(HT_FINISH_NONE)};
    memcpy(s->rec.phase, s->e->phase, sizeof s->rec.phase);
    s->rec.begin_ns = ht_now_ns();
    ht_mem_free(s->considered);
    s->considered = NULL;
}

void api__attempt_end(api__record *r, int rc)
{
    if (r->n_attempts == sizeof r->attempt / sizeof *r->attempt) return;
    api__attempt *a = &r->attempt[r->n_attempts];
    a->t0_ns = r->n_attempts ? a[-1].t1_ns : 0;
    a->t1_ns = ht_now_ns() - r->begin_ns;
    a->outcome = rc ? ht_code_name(rc) : "ok";
    r->n_attempts++;
}

int api__ids_sha256(const int32_t *ids, size_t n, uint8_t out[HT_SHA256_BYTES], ht_err *err)
{
    ht_sha256 *h = NULL;
    HT_TRY(ht_sha256_new(&h, err));
    uint8_t chunk[1024];
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        size_t k = 0;
        for (; k < sizeof chunk && i < n; k += 4, i++)
            for (unsigned b = 0; b < 4; b++) chunk[k + b] = (uint8_t)((uint32_t)ids[i] >> (8 * b));
        rc = ht_sha256_add(h, chunk, k, err);
    }
    if (!rc) return ht_sha256_end(h, out, err);
    ht_sha256_free(h);
    return rc;
}

int api__take_json(ht_buf *b, char **json, ht_err *err)
{
    size_t n = 0;
    int rc = ht_buf_ok(b, "JSON text", err);
    if (!rc) *json = ht_buf_take(b, &n);
    if (!rc && !*json) rc = HT_FAIL(err, HT_ENOMEM, "no memory for JSON text");
    ht_buf_done(b);
    return rc;
}

void api__write_spans(ht_jw *w, const ht_cut *cuts, size_t n)
{
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) {
        size_t count = 0, first = i;
        for (size_t j = 0; j < n; j++) {
            if (cuts[j].span != cuts[i].span) continue;
            if (j < first) first = j;
            count++;
        }
        if (first != i) continue;
        ht_jw_obj(w);
        ht_jw_kstr(w, "span", cuts[i].span->name);
        ht_jw_kuint(w, "cuts", count);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

static void kf(ht_jw *w, const char *key, double v)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.9g", v);
    ht_jw_kstr(w, key, text);
}

static void khex(ht_jw *w, const char *key, const uint8_t sha[HT_SHA256_BYTES])
{
    char hex[HT_SHA256_HEX];
    ht_hex(sha, HT_SHA256_BYTES, hex);
    ht_jw_kstr(w, key, hex);
}

/* A digest, or the form of evidence.md 7.1 for what is not known. */
static void kdigest(ht_jw *w, const char *key, const char *hex, const char *reason)
{
    if (hex[0]) {
        ht_jw_kstr(w, key, hex);
        return;
    }
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kbool(w, "known", false);
    ht_jw_kstr(w, "reason", reason);
    ht_jw_end(w, '}');
}

/* The canonical form has no larger integer (evidence.md 7.1). */
static void kmost(ht_jw *w, const char *key, uint64_t v)
{
    const uint64_t most = ((uint64_t)1 << 53) - 1;
    ht_jw_kuint(w, key, v < most ? v : most);
}

static void write_cost(ht_jw *w, uint64_t tokens, uint64_t ns, const ht_run_stats *s)
{
    ht_jw_kuint(w, "tokens", tokens);
    ht_jw_kuint(w, "ns", ns);
    kmost(w, "bytes", s->bytes);
    kmost(w, "flops", s->flops);
    ht_jw_kuint(w, "dispatches", s->dispatches);
    ht_jw_kuint(w, "barriers", s->barriers);
    if (s->device_ns) kmost(w, "deviceNs", s->device_ns); /* by the device's own events */
    ht_jw_kuint(w, "hostCopyBytes", s->host_copy_bytes);
    ht_jw_kuint(w, "deviceCopyBytes", s->device_copy_bytes);
}

/* What the engine says it ran, as one digest: of the canonical {"cover","cuts","dispatches",
 * "executed","fold","runs"}, where fold is ht_exec_add() over the runs' own folds, in hex. */
static int exec_proof(const api__segment *g, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t sha[HT_SHA256_BYTES];
    char fold[24];
    ht_buf b;
    ht_jw w;
    hex[0] = 0;
    if (!g->executed) return 0;
    (void)snprintf(fold, sizeof fold, "%016" PRIx64, g->exec);
    ht_buf_init(&b, 1 << 12);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "cover", g->plan->cover);
    kmost(&w, "cuts", g->exec_cuts);
    ht_jw_kuint(&w, "dispatches", g->sum.dispatches);
    ht_jw_kstr(&w, "executed", g->executed);
    ht_jw_kstr(&w, "fold", fold);
    ht_jw_kuint(&w, "runs", g->runs);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "execution proof", err);
    if (!rc) rc = ht_sha256_of(b.p, b.n, sha, err);
    if (!rc) ht_hex(sha, sizeof sha, hex);
    ht_buf_done(&b);
    return rc;
}

/* That of a phase: of its only segment, or of the text of all their digests in order. */
static int phase_proof(const api__record *r, int phase, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t sha[HT_SHA256_BYTES];
    size_t n = 0;
    ht_buf b;
    ht_buf_init(&b, 1 << 12);
    int rc = 0;
    hex[0] = 0;
    for (size_t i = 0; i < r->n_segments && !rc; i++) {
        if (r->segment[i].phase != phase) continue;
        rc = exec_proof(&r->segment[i], hex, err);
        ht_buf_str(&b, hex);
        n++;
    }
    if (!rc && n > 1) rc = ht_buf_ok(&b, "execution proof", err);
    if (!rc && n > 1) rc = ht_sha256_of(b.p, b.n, sha, err);
    if (!rc && n > 1) ht_hex(sha, sizeof sha, hex);
    ht_buf_done(&b);
    return rc;
}

void api__write_facts(ht_jw *w, const ht_backend *be, const ht_plan *plan)
{
    char text[1024];
    if (!plan || !be->plan_describe || be->plan_describe(plan, text, sizeof text)) return;
    ht_jw_key(w, "facts");
    ht_jw_raw(w, text, strlen(text));
}

static int write_segment(ht_jw *w, const api__record *r, const api__segment *g, ht_err *err)
{
    const api__phase *p = &r->phase[g->phase];
    char proof[HT_SHA256_HEX];
    HT_TRY(exec_proof(g, proof, err));
    ht_jw_obj(w);
    ht_jw_kstr(w, "engine", g->plan->be->name);
    ht_jw_kstr(w, "planned", p->unit->be->name);
    ht_jw_kstr(w, "executed", g->executed ? g->executed : "not said");
    kdigest(w, "execProofSha256", proof, "NOT_SAID");
    ht_jw_kstr(w, "cover", g->plan->cover);
    ht_jw_key(w, "spans");
    api__write_spans(w, g->plan->cuts, g->plan->n_cuts);
    ht_jw_kstr(w, "class", g->plan->cls);
    api__write_facts(w, g->plan->be, g->plan->plan);
    ht_jw_kuint(w, "rowsMax", g->plan->bucket.rows);
    ht_jw_kuint(w, "firstPosition", g->pos0);
    ht_jw_kuint(w, "runs", g->runs);
    ht_jw_kuint(w, "foreignRows", g->foreign);
    write_cost(w, g->tokens, g->sum.ns, &g->sum);
    ht_jw_kuint(w, "drafted", g->drafted);
    ht_jw_kuint(w, "accepted", g->accepted);
    ht_jw_kstr(w, "costSource", p->entry ? "costmap" : "unmeasured");
    ht_jw_end(w, '}');
    return 0;
}

/* What guessing did in the decode phase, and with what. */
static void write_speculation(ht_jw *w, const api__spec_record *r)
{
    ht_jw_obj(w);
    ht_jw_kbool(w, "lookup", r->lookup);
    if (r->draft) khex(w, "draftModelShapeSha256", r->draft);
    ht_jw_kuint(w, "draftMax", r->draft_max);
    ht_jw_kuint(w, "draftMin", r->draft_min);
    ht_jw_kstr(w, "mode", r->always ? "always" : "adaptive");
    ht_jw_kstr(w, "accept", r->reject ? "reject" : "match");
    ht_jw_kuint(w, "rounds", r->rounds);
    ht_jw_kuint(w, "lookupDrafted", r->drafted[HT_ADAPT_LOOKUP]);
    ht_jw_kuint(w, "lookupAccepted", r->accepted[HT_ADAPT_LOOKUP]);
    ht_jw_kuint(w, "modelDrafted", r->drafted[HT_ADAPT_MODEL]);
    ht_jw_kuint(w, "modelAccepted", r->accepted[HT_ADAPT_MODEL]);
    ht_jw_kuint(w, "draftNs", r->draft_ns);
    ht_jw_kint(w, "millisecondsSaved", r->saved_ns / 1000000);
    if (r->parallel) {
        ht_jw_key(w, "parallel");
        ht_jw_obj(w);
        ht_jw_kuint(w, "epochs", r->ahead.epochs);
        ht_jw_kuint(w, "guessed", r->ahead.guessed);
        ht_jw_kuint(w, "discarded", r->ahead.discarded);
        ht_jw_kuint(w, "busyNs", r->ahead.busy_ns);
        ht_jw_end(w, '}');
    }
    if (r->failed.code) ht_jw_kstr(w, "draftGivenUp", ht_code_name(r->failed.code));
    ht_jw_end(w, '}');
}

/* The tries of a phase: a prompt that failed on its route is tried again on the reference; a decode
 * is not. */
static void write_attempts(ht_jw *w, const api__record *r, int phase)
{
    const uint32_t last = r->n_attempts;
    ht_jw_arr(w);
    for (uint32_t i = phase == API_PREFILL || !last ? 0 : last - 1; i < last; i++) {
        const bool done = phase == API_PREFILL && i + 1 == last && r->n_out > 0;
        if (phase == API_DECODE && r->n_out == 0) break;
        ht_jw_obj(w);
        ht_jw_kuint(w, "n", phase == API_PREFILL ? i + 1 : 1);
        ht_jw_kstr(w, "outcome", done ? "ok" : r->attempt[i].outcome);
        kmost(w, "t0Ns", r->attempt[i].t0_ns);
        kmost(w, "t1Ns", r->attempt[i].t1_ns);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* What admits the phase, and where. */
static void write_decision(ht_jw *w, const ht_engine *e, const api__phase *p)
{
    if (!api__whole_write(w, p)) {
        ht_jw_kstr(w, "decision", p->forced ? "forced" : p->entry ? "promoted" : "reference");
        ht_jw_kstr(w, "reason", p->forced ? "USER" : ht_reason_name(p->reason));
    }
    if (p->entry) {
        char bucket[32];
        const ht_scope *x = &p->entry->scope;
        (void)snprintf(bucket, sizeof bucket, "%c%u-%u", x->phase == HT_DECODE ? 'd' : 'p',
                       x->min_tokens, x->max_tokens);
        ht_jw_kstr(w, "backend", x->backend);
        const uint32_t cancel = api__whole_cancel(e, x->backend);
        if (cancel) ht_jw_kuint(w, "cancelMaxMs", cancel);
        ht_jw_kstr(w, "bucket", bucket);
        ht_jw_kstr(w, "scopeSha256", p->entry->scope_sha);
        ht_jw_kstr(w, "bundleId", p->entry->bundle_id);
    } else if (!p->forced) {
        ht_jw_kstr(w, "referenceQualified", api__ref_name(e->ref_state));
    }
}

/* One phase: the sums over its segments, then the segments. One that did not run has no token. */
static int write_phase(ht_jw *w, const ht_session *s, int phase, ht_err *err)
{
    char proof[HT_SHA256_HEX];
    HT_TRY(phase_proof(&s->rec, phase, proof, err));
    const api__phase *p = &s->rec.phase[phase];
    const api__segment *last = NULL;
    ht_run_stats sum = {0};
    uint64_t tokens = 0, dispatches = 0, barriers = 0, drafted = 0, accepted = 0;
    for (size_t i = 0; i < s->rec.n_segments; i++) {
        const api__segment *g = &s->rec.segment[i];
        if (g->phase != phase) continue;
        last = g;
        tokens += g->tokens;
        sum.ns += g->sum.ns;
        sum.device_ns += g->sum.device_ns;
        sum.bytes += g->sum.bytes;
        sum.flops += g->sum.flops;
        dispatches += g->sum.dispatches;
        barriers += g->sum.barriers;
        drafted += g->drafted;
        accepted += g->accepted;
        sum.host_copy_bytes += g->sum.host_copy_bytes;
        sum.device_copy_bytes += g->sum.device_copy_bytes;
    }
    sum.dispatches = (uint32_t)dispatches;
    sum.barriers = (uint32_t)barriers;
    const uint64_t wall = s->rec.wall_ns[phase];
    ht_jw_obj(w);
    ht_jw_kstr(w, "phase", phase_name[phase]);
    write_decision(w, s->e, p);
    ht_jw_kstr(w, "engine", p->unit->be->name);
    ht_jw_kstr(w, "planned", p->unit->be->name);
    ht_jw_kstr(w, "executed", !last ? "none" : last->executed ? last->executed : "not said");
    kdigest(w, "execProofSha256", proof, last ? "NOT_SAID" : "NOT_RUN");
    ht_jw_key(w, "attempts");
    write_attempts(w, &s->rec, phase);
    ht_jw_kstr(w, "cover", last ? last->plan->cover : "");
    ht_jw_kstr(w, "class", last ? last->plan->cls : "");
    ht_jw_kstr(w, "representation", p->rep);
    ht_jw_kuint(w, "cacheHitTokens", phase == API_PREFILL ? s->rec.n_kept : 0);
    if (phase == API_PREFILL && s->rec.prefix.on) {
        ht_jw_key(w, "prefixCache");
        api__write_prefix(w, &s->rec.prefix);
    }
    write_cost(w, tokens, wall, &sum);
    api__write_handed(w, s->e, &s->rec, phase);
    ht_jw_kuint(w, "runNs", sum.ns);
    ht_jw_kuint(w, "milliTokensPerSecond",
                wall ? (uint64_t)((double)tokens * 1e12 / (double)wall + 0.5) : 0);
    ht_jw_kuint(w, "bytesPerToken", tokens ? sum.bytes / tokens : 0);
    ht_jw_kuint(w, "drafted", drafted);
    ht_jw_kuint(w, "accepted", accepted);
    if (phase == API_DECODE && s->rec.spec.on) {
        ht_jw_key(w, "speculation");
        write_speculation(w, &s->rec.spec);
    }
    ht_jw_kstr(w, "costSource", p->entry ? "costmap" : "unmeasured");
    ht_jw_key(w, "segments");
    ht_jw_arr(w);
    for (size_t i = 0; i < s->rec.n_segments; i++)
        if (s->rec.segment[i].phase == phase)
            HT_TRY(write_segment(w, &s->rec, &s->rec.segment[i], err));
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
    return 0;
}

static void write_sampling(ht_jw *w, const api__record *r)
{
    const ht_sampling *s = &r->sampling;
    char seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, s->seed); /* beyond 2^53: not a JSON integer */
    ht_jw_obj(w);
    ht_jw_kstr(w, "chain", r->chain);
    kf(w, "temp", s->temp);
    ht_jw_kint(w, "topK", s->top_k);
    kf(w, "topP", s->top_p);
    kf(w, "minP", s->min_p);
    kf(w, "typicalP", s->typical_p);
    kf(w, "repeatPenalty", s->repeat_penalty);
    kf(w, "presencePenalty", s->presence_penalty);
    kf(w, "frequencyPenalty", s->frequency_penalty);
    ht_jw_kint(w, "penaltyLastN", s->penalty_last_n);
    kf(w, "dryMultiplier", s->dry_multiplier);
    kf(w, "dryBase", s->dry_base);
    ht_jw_kint(w, "dryAllowedLength", s->dry_allowed_length);
    ht_jw_kint(w, "dryLastN", s->dry_last_n);
    kf(w, "xtcProbability", s->xtc_probability);
    kf(w, "xtcThreshold", s->xtc_threshold);
    ht_jw_kuint(w, "logitBiases", s->n_bias);
    ht_jw_kstr(w, "seed", seed);
    ht_jw_end(w, '}');
}

/* Digest of the canonical form of the object just written as `sampling`. */
static int sampling_digest(const api__record *r, char hex[HT_SHA256_HEX], ht_err *err)
{
    uint8_t sha[HT_SHA256_BYTES];
    ht_arena *a = NULL;
    ht_json *doc = NULL;
    ht_buf b, canon;
    ht_jw w;
    HT_TRY(ht_arena_new(&a, 0, err));
    ht_buf_init(&b, 1 << 16);
    ht_buf_init(&canon, 1 << 16);
    ht_jw_init(&w, &b, 0);
    write_sampling(&w, r);
    int rc = ht_buf_ok(&b, "sampling", err);
    if (!rc) rc = ht_json_parse(a, b.p, b.n, 0, "sampling", &doc, err);
    if (!rc) rc = ht_json_write(doc, HT_JSON_CANON, &canon, err);
    if (!rc) rc = ht_sha256_of(canon.p, canon.n, sha, err);
    if (!rc) ht_hex(sha, sizeof sha, hex);
    ht_buf_done(&canon);
    ht_buf_done(&b);
    ht_arena_free(a);
    return rc;
}

/* Options that decide what is computed and how fast: a switch missing here voids a measurement. */
static void write_options(ht_jw *w, const ht_engine *e)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "prefillEngine", e->phase[API_PREFILL].unit->be->name);
    ht_jw_kstr(w, "decodeEngine", e->phase[API_DECODE].unit->be->name);
    ht_jw_kstr(w, "prefillRep", e->phase[API_PREFILL].rep);
    ht_jw_kstr(w, "decodeRep", e->phase[API_DECODE].rep);
    ht_jw_kstr(w, "act", api__act_name(e->act));
    ht_jw_kstr(w, "ctk", e->kv.name[0]);
    ht_jw_kstr(w, "ctv", e->kv.name[1]);
    ht_jw_kstr(w, "isa", e->isa[0] ? e->isa : "best");
    ht_jw_kuint(w, "ctx", e->ctx);
    ht_jw_kuint(w, "evict", e->keep_pages * HT_PAGE);
    ht_jw_kuint(w, "ubatch", e->ubatch);
    ht_jw_kuint(w, "maxSessions", e->max_sessions);
    ht_jw_kint(w, "threads", e->threads);
    ht_jw_kbool(w, "verify", e->verified);
    ht_jw_end(w, '}');
}

static void write_identity(ht_jw *w, const ht_engine *e)
{
    khex(w, "modelShapeSha256", e->model->sha256);
    kdigest(w, "modelPackSha256", e->subject ? e->subject->model : "", "NOT_HASHED");
    kdigest(w, "packSha256", e->pack_sha, "NOT_A_PACK");
    kdigest(w, "binarySha256", e->subject ? e->subject->binary : "", "NOT_HASHED");
    khex(w, "tokenizerSha256", ht_tok_sha256(e->tok));
    kdigest(w, "templateSha256", e->tmpl_sha, "NO_TEMPLATE");
    ht_jw_kstr(w, "version", ht_version());
    ht_jw_kstr(w, "contract", e->contract);
    ht_jw_kstr(w, "act", api__act_name(e->act));
    ht_jw_key(w, "kv");
    api__write_kv(w, e);
    ht_jw_kint(w, "threads", e->threads);
    ht_jw_kstr(w, "threadsWhy", e->cpu.why);
}

/* What only a log or the server knows: ht_receipts_add() puts it in place of these. */
static void write_open_ends(ht_jw *w)
{
    kdigest(w, "prevSha256", "", "NOT_LOGGED");
    kdigest(w, "requestSha256", "", "NOT_GIVEN");
    kdigest(w, "streamSha256", "", "NOT_GIVEN");
}

static int write_receipt(ht_jw *w, const ht_session *s, ht_err *err)
{
    const api__record *r = &s->rec;
    char sampling[HT_SHA256_HEX];
    HT_TRY(sampling_digest(r, sampling, err));
    ht_jw_obj(w);
    ht_jw_kstr(w, "schema", "hetero/receipt/1");
    ht_jw_kuint(w, "seq", r->seq);
    ht_jw_kstr(w, "call", r->call);
    ht_jw_kstr(w, "status", r->status);
    write_identity(w, s->e);
    write_open_ends(w);
    api__route_write(w, s);
    ht_jw_kuint(w, "nPrompt", r->n_prompt);
    khex(w, "promptTokSha256", r->prompt_sha);
    ht_jw_kuint(w, "nOut", r->n_out);
    if (r->sampled) {
        khex(w, "outTokSha256", r->out_sha);
        ht_jw_key(w, "sampling");
        write_sampling(w, r);
        ht_jw_kstr(w, "samplingSha256", sampling);
    }
    ht_jw_key(w, "phases");
    ht_jw_arr(w);
    for (int p = 0; p < API_PHASES; p++)
        if (p == API_PREFILL || r->sampled) HT_TRY(write_phase(w, s, p, err));
    ht_jw_end(w, ']');
    ht_jw_kuint(w, "copyOnWriteBytes", r->cow_bytes);
    ht_jw_kstr(w, "finish", r->finish);
    ht_jw_key(w, "notes");
    ht_jw_arr(w);
    if (r->note) ht_jw_str(w, r->note);
    ht_jw_end(w, ']');
    if (s->e->keep_pages) {
        ht_jw_key(w, "eviction");
        api__write_evict(w, s);
    }
    ht_jw_key(w, "options");
    write_options(w, s->e);
    ht_jw_kbool(w, "simulated", false);
    ht_jw_end(w, '}');
    return 0;
}

int ht_session_receipt(const ht_session *s, char **json, ht_err *err)
{
    if (!s || !json)
        return HT_FAIL(err, HT_EARG, "ht_session_receipt: session and json must be given");
    *json = NULL;
    if (!s->rec.seq) return HT_FAIL(err, HT_EARG, "nothing ran in this session yet: no receipt");
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    int rc = write_receipt(&w, s, err);
    if (!rc) rc = api__take_json(&b, json, err);
    ht_buf_done(&b);
    return rc;
}
