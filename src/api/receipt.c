/* receipt.c - what ran, for whom, why and at what cost, as JSON: evidence.md 7.9 with the phase
 * objects of product.md 3.1 and 5.6. Canonical value kinds only: integers with the unit in the
 * name, strings, digests. Hashes stand for text; a receipt never holds any. */
#include "api/whole.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const phase_name[API_PHASES] = {"prefill", "decode"};

const char *api__act_name(int act)
{
    static const char *const name[] = {"f32", "q8", "f16", "bf16"};
    return act >= HT_ACT_F32 && act <= HT_ACT_BF16 ? name[act] : "?";
}

void api__record_begin(ht_session *s, const char *call)
{
    s->rec = (api__record){.seq = ++s->e->receipts,
                           .call = call,
                           .status = "error",
                           .finish = ht_finish_name(HT_FINISH_NONE)};
    memcpy(s->rec.phase, s->e->phase, sizeof s->rec.phase);
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

static void write_cost(ht_jw *w, uint64_t tokens, uint64_t ns, const ht_run_stats *s)
{
    ht_jw_kuint(w, "tokens", tokens);
    ht_jw_kuint(w, "ns", ns);
    ht_jw_kuint(w, "bytes", s->bytes);
    ht_jw_kuint(w, "flops", s->flops);
    ht_jw_kuint(w, "dispatches", s->dispatches);
    ht_jw_kuint(w, "barriers", s->barriers);
    ht_jw_kuint(w, "hostCopyBytes", s->host_copy_bytes);
    ht_jw_kuint(w, "deviceCopyBytes", s->device_copy_bytes);
}

/* What the plan turned out to be, in the engine's own words. */
static void write_facts(ht_jw *w, const api__plan *p)
{
    char text[1024];
    const int rc = p->plan && p->be->plan_describe
                       ? p->be->plan_describe(p->plan, text, sizeof text)
                       : HT_EUNSUPPORTED;
    if (rc) return;
    ht_jw_key(w, "facts");
    ht_jw_raw(w, text, strlen(text));
}

static void write_segment(ht_jw *w, const api__record *r, const api__segment *g)
{
    const api__phase *p = &r->phase[g->phase];
    ht_jw_obj(w);
    ht_jw_kstr(w, "engine", g->plan->be->name);
    ht_jw_kstr(w, "planned", p->unit->be->name);
    ht_jw_kstr(w, "executed", g->plan->be->name);
    ht_jw_kstr(w, "cover", g->plan->cover);
    ht_jw_key(w, "spans");
    api__write_spans(w, g->plan->cuts, g->plan->n_cuts);
    ht_jw_kstr(w, "class", g->plan->cls);
    write_facts(w, g->plan);
    ht_jw_kuint(w, "rowsMax", g->plan->bucket.rows);
    ht_jw_kuint(w, "firstPosition", g->pos0);
    ht_jw_kuint(w, "runs", g->runs);
    ht_jw_kuint(w, "foreignRows", g->foreign);
    write_cost(w, g->tokens, g->sum.ns, &g->sum);
    ht_jw_kuint(w, "drafted", g->drafted);
    ht_jw_kuint(w, "accepted", g->accepted);
    ht_jw_kstr(w, "costSource", "unmeasured");
    ht_jw_end(w, '}');
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
    ht_jw_kuint(w, "rounds", r->rounds);
    ht_jw_kuint(w, "lookupDrafted", r->drafted[HT_ADAPT_LOOKUP]);
    ht_jw_kuint(w, "lookupAccepted", r->accepted[HT_ADAPT_LOOKUP]);
    ht_jw_kuint(w, "modelDrafted", r->drafted[HT_ADAPT_MODEL]);
    ht_jw_kuint(w, "modelAccepted", r->accepted[HT_ADAPT_MODEL]);
    ht_jw_kuint(w, "draftNs", r->draft_ns);
    ht_jw_kint(w, "millisecondsSaved", r->saved_ns / 1000000);
    if (r->failed.code) ht_jw_kstr(w, "draftGivenUp", ht_code_name(r->failed.code));
    ht_jw_end(w, '}');
}

/* One phase: the sums over its segments, then the segments. One that did not run has no token. */
static void write_phase(ht_jw *w, const ht_session *s, int phase)
{
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
    if (!api__whole_write(w, p)) {
        ht_jw_kstr(w, "decision", p->forced ? "forced" : p->entry ? "promoted" : "reference");
        ht_jw_kstr(w, "reason", p->forced ? "USER" : ht_reason_name(p->reason));
    }
    if (p->entry) {
        ht_jw_kstr(w, "backend", p->entry->scope.backend);
        ht_jw_kstr(w, "scopeSha256", p->entry->scope_sha);
        ht_jw_kstr(w, "bundleId", p->entry->bundle_id);
    }
    ht_jw_kstr(w, "engine", p->unit->be->name);
    ht_jw_kstr(w, "planned", p->unit->be->name);
    ht_jw_kstr(w, "executed", last ? last->plan->be->name : "none");
    ht_jw_kstr(w, "cover", last ? last->plan->cover : "");
    ht_jw_kstr(w, "class", last ? last->plan->cls : "");
    ht_jw_kstr(w, "representation", p->rep);
    ht_jw_kuint(w, "cacheHitTokens", phase == API_PREFILL ? s->rec.n_kept : 0);
    if (phase == API_PREFILL && s->rec.prefix.on) {
        ht_jw_key(w, "prefixCache");
        api__write_prefix(w, &s->rec.prefix);
    }
    write_cost(w, tokens, wall, &sum);
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
    ht_jw_kstr(w, "costSource", "unmeasured");
    ht_jw_key(w, "segments");
    ht_jw_arr(w);
    for (size_t i = 0; i < s->rec.n_segments; i++)
        if (s->rec.segment[i].phase == phase) write_segment(w, &s->rec, &s->rec.segment[i]);
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
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
    ht_jw_kuint(w, "ubatch", e->ubatch);
    ht_jw_kuint(w, "maxSessions", e->max_sessions);
    ht_jw_kint(w, "threads", e->threads);
    ht_jw_kbool(w, "verify", e->verified);
    ht_jw_end(w, '}');
}

static void write_identity(ht_jw *w, const ht_engine *e)
{
    khex(w, "modelShapeSha256", e->model->sha256);
    kdigest(w, "modelPackSha256", e->pack_sha, "NOT_A_PACK");
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

int ht_session_receipt(const ht_session *s, char **json, ht_err *err)
{
    if (!s || !json)
        return HT_FAIL(err, HT_EARG, "ht_session_receipt: session and json must be given");
    *json = NULL;
    const api__record *r = &s->rec;
    if (!r->seq) return HT_FAIL(err, HT_EARG, "nothing ran in this session yet: no receipt");
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_jw w;
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "schema", "hetero/receipt/1");
    ht_jw_kuint(&w, "seq", r->seq);
    ht_jw_kstr(&w, "call", r->call);
    ht_jw_kstr(&w, "status", r->status);
    write_identity(&w, s->e);
    ht_jw_kuint(&w, "nPrompt", r->n_prompt);
    khex(&w, "promptTokSha256", r->prompt_sha);
    ht_jw_kuint(&w, "nOut", r->n_out);
    if (r->sampled) {
        khex(&w, "outTokSha256", r->out_sha);
        ht_jw_key(&w, "sampling");
        write_sampling(&w, r);
    }
    ht_jw_key(&w, "phases");
    ht_jw_arr(&w);
    for (int p = 0; p < API_PHASES; p++)
        if (p == API_PREFILL || r->sampled) write_phase(&w, s, p);
    ht_jw_end(&w, ']');
    ht_jw_kuint(&w, "copyOnWriteBytes", r->cow_bytes);
    ht_jw_kstr(&w, "finish", r->finish);
    ht_jw_key(&w, "notes");
    ht_jw_arr(&w);
    if (r->note) ht_jw_str(&w, r->note);
    ht_jw_end(&w, ']');
    ht_jw_key(&w, "options");
    write_options(&w, s->e);
    ht_jw_kbool(&w, "simulated", false);
    ht_jw_end(&w, '}');
    return api__take_json(&b, json, err);
}
