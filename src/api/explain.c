/* explain.c - what would run: the tape, its cover per phase, least bytes and operations of every
 * cut, and what a step costs in dispatches and barriers, for the chosen cover and for the plain one
 * (a cut per stage), so that fusion can be counted. */
#include "api/session.h"
#include "api/whole.h"

static const char *const phase_name[API_PHASES] = {"prefill", "decode"};

static void write_tape(ht_jw *w, const ht_engine *e)
{
    ht_jw_arr(w);
    for (size_t i = 0; i < e->n_tape; i++) {
        char text[80];
        ht_stage_text(&e->tape[i], text);
        ht_jw_str(w, text);
    }
    ht_jw_end(w, ']');
}

static void write_cuts(ht_jw *w, const ht_engine *e, const api__unit *u, const ht_cut *cuts,
                       size_t n, const ht_bucket *b, uint64_t *bytes, uint64_t *flops)
{
    *bytes = *flops = 0;
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) {
        uint64_t cb = 0, cf = 0;
        cuts[i].span->bound(u->dev, e->model, e->tape + cuts[i].at, cuts[i].n, b, &cb, &cf);
        *bytes += cb;
        *flops += cf;
        ht_jw_obj(w);
        ht_jw_kstr(w, "span", cuts[i].span->name);
        ht_jw_kuint(w, "at", cuts[i].at);
        ht_jw_kuint(w, "stages", cuts[i].n);
        ht_jw_kuint(w, "bytes", cb);
        ht_jw_kuint(w, "flops", cf);
        ht_jw_kstr(w, "costSource", "unmeasured");
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* Dispatches and barriers of one step: a cover is planned for one row and run once on a sequence of
 * its own. They are counts of the cover's structure; rows and depth do not change them. Spans of
 * act f16 are made for many rows and are planned for as many. What the engine says of that plan is
 * written as "facts". */
static int count_step(const ht_engine *e, const api__unit *u, const ht_cut *cuts, size_t n,
                      const ht_bucket *of, ht_jw *w, ht_run_stats *out, ht_err *err)
{
    ht_bucket b = {.rows = of->act == HT_ACT_F16 ? of->rows : 1,
                   .seqs = 1,
                   .want = 1,
                   .steps = 1,
                   .ctx = e->ctx,
                   .past = e->ctx,
                   .kv_fmt = api__kv_fmt(&e->kv),
                   .act = of->act,
                   .flags = of->flags};
    ht_plan *plan = NULL;
    ht_seq *seq = NULL;
    HT_TRY(u->be->plan(&plan, u->dev, api__kv_of(e, u), e->tape, cuts, n, &b, err));
    int rc = ht_seq_new(&seq, e->pool, e->ctx, err);
    if (!rc) rc = ht_seq_reserve(seq, 1, err);
    if (!rc) {
        const int32_t zero = 0;
        const uint16_t owner = 0;
        const uint32_t want = 0;
        const float *logits = NULL;
        const ht_batch batch = {
            .rows = 1,
            .seqs = 1,
            .n_want = 1,
            .token = &zero,
            .pos = &zero,
            .seq = &owner,
            .want = &want,
            .page = {ht_seq_pages(seq, HT_KV_FULL), ht_seq_pages(seq, HT_KV_WINDOW)}};
        rc = u->be->run(plan, &batch, err);
        if (!rc) rc = u->be->wait(plan, &logits, err);
        if (!rc && u->be->stats(plan, out))
            rc = HT_FAIL(err, HT_EDEVICE, "engine %s gives no figures for its last run",
                         u->be->name);
    }
    if (!rc) api__write_facts(w, u->be, plan);
    ht_seq_free(seq);
    u->be->plan_free(plan);
    return rc;
}

/* A prompt of n tokens on an engine of whole prompts, run WHOLE_RUNS times: what it dispatches, and
 * what the engine has found out of its plan then. */
static int run_whole(ht_engine *e, const api__plan *p, uint32_t n, ht_run_stats *out, ht_err *err)
{
    enum { WHOLE_RUNS = 2 }; /* the first one also puts weights in order */
    int32_t *ids = ht_mem_array(n, sizeof *ids);
    int rc = ids ? 0 : HT_FAIL(err, HT_ENOMEM, "no memory for a prompt of %u tokens", n);
    const uint32_t last = n - 1;
    for (uint32_t i = 0; ids && i < n; i++) ids[i] = 0;
    for (int i = 0; i < WHOLE_RUNS && !rc; i++) {
        ht_session *s = NULL;
        const float *logits;
        rc = api__session_make(&s, e, err);
        if (!rc) rc = api__run(s, API_PREFILL, p, ids, n, &last, 1, &logits, err);
        if (s) api__session_drop(s);
    }
    ht_mem_free(ids);
    if (!rc && p->be->stats(p->plan, out))
        rc = HT_FAIL(err, HT_EDEVICE, "engine %s gives no figures for its last run", p->be->name);
    return rc;
}

/* The plan of a prompt as one dispatch: its cover, what it took to make, and all buckets. */
static int write_whole(ht_jw *w, ht_engine *e, uint32_t n, ht_err *err)
{
    const api__plan *p = NULL;
    ht_run_stats st = {0};
    uint64_t bytes = 0, flops = 0;
    HT_TRY(api__plan_get(e, API_PREFILL, n, 1, &p, err));
    HT_TRY(run_whole(e, p, n, &st, err));
    ht_jw_key(w, "cover");
    ht_jw_obj(w);
    ht_jw_kstr(w, "sha256", p->cover);
    ht_jw_kuint(w, "n", p->n_cuts);
    ht_jw_kuint(w, "dispatchesPerStep", st.dispatches);
    ht_jw_kuint(w, "barriersPerStep", st.barriers);
    ht_jw_key(w, "spans");
    api__write_spans(w, p->cuts, p->n_cuts);
    ht_jw_key(w, "cuts");
    write_cuts(w, e, p->unit, p->cuts, p->n_cuts, &p->bucket, &bytes, &flops);
    ht_jw_kuint(w, "bytes", bytes);
    ht_jw_kuint(w, "flops", flops);
    ht_jw_end(w, '}');
    ht_jw_kuint(w, "rowsMax", p->bucket.rows);
    api__write_facts(w, p->be, p->plan);
    api__whole_info(w, e);
    return 0;
}

/* A cover as JSON: identity, spans, cuts (when asked), sums and counts. */
static int write_cover(ht_jw *w, const ht_engine *e, int phase, const ht_bucket *b, bool single,
                       ht_arena *arena, ht_err *err)
{
    const api__unit *u = e->phase[phase].unit;
    const ht_cut *cuts = NULL;
    size_t n = 0;
    char hash[HT_SHA256_HEX];
    ht_run_stats st = {0};
    uint64_t bytes = 0, flops = 0;
    HT_TRY(
        api__cover(arena, u->be, u->dev, e->model, e->tape, e->n_tape, b, single, &cuts, &n, err));
    HT_TRY(ht_cover_hash(e->tape, cuts, n, hash, err));
    ht_jw_obj(w);
    ht_jw_kstr(w, "sha256", hash);
    ht_jw_kuint(w, "n", n);
    HT_TRY(count_step(e, u, cuts, n, b, w, &st, err));
    ht_jw_kuint(w, "dispatchesPerStep", st.dispatches);
    ht_jw_kuint(w, "barriersPerStep", st.barriers);
    ht_jw_key(w, "spans");
    api__write_spans(w, cuts, n);
    ht_jw_key(w, "cuts");
    write_cuts(w, e, u, cuts, n, b, &bytes, &flops);
    ht_jw_kuint(w, "bytes", bytes);
    ht_jw_kuint(w, "flops", flops);
    ht_jw_end(w, '}');
    return 0;
}

static int write_phase(ht_jw *w, ht_engine *e, int phase, uint32_t rows, uint32_t past,
                       ht_arena *arena, ht_err *err)
{
    const bool whole = api__is_whole(&e->phase[phase]);
    const uint32_t steps = phase == API_DECODE || whole ? 1 : (rows + e->ubatch - 1) / e->ubatch;
    const api__phase *p = &e->phase[phase];
    ht_bucket b;
    api__bucket(e, phase, rows, 1, &b);
    b.past = past;
    b.ctx = past + rows;
    ht_jw_obj(w);
    ht_jw_kstr(w, "phase", phase_name[phase]);
    ht_jw_kstr(w, "engine", p->unit->be->name);
    if (!api__whole_write(w, p)) {
        ht_jw_kstr(w, "decision", p->forced ? "forced" : "reference");
        ht_jw_kstr(w, "reason", p->forced ? "USER" : "NO_EVIDENCE");
    }
    ht_jw_kstr(w, "representation", p->rep);
    ht_jw_kstr(w, "act", api__act_name(api__whole_act(e, phase)));
    ht_jw_kuint(w, "rows", rows);
    ht_jw_kuint(w, "depth", past);
    ht_jw_kuint(w, "steps", steps);
    if (whole) {
        HT_TRY(write_whole(w, e, rows, err));
    } else {
        ht_jw_key(w, "cover");
        HT_TRY(write_cover(w, e, phase, &b, false, arena, err));
        ht_jw_key(w, "plainCover");
        HT_TRY(write_cover(w, e, phase, &b, true, arena, err));
    }
    ht_jw_end(w, '}');
    return 0;
}

static int explain(ht_jw *w, ht_engine *e, uint32_t n_prompt, uint32_t depth, ht_arena *arena,
                   ht_err *err)
{
    HT_TRY(api__whole_choose(e, n_prompt, 1, err)); /* compiles its bucket, or says why not */
    ht_jw_obj(w);
    ht_jw_kstr(w, "schema", "hetero/explain/1");
    ht_jw_kstr(w, "arch", e->model->spec.arch);
    ht_jw_kstr(w, "contract", e->contract);
    ht_jw_kuint(w, "stages", e->n_tape);
    ht_jw_key(w, "tape");
    write_tape(w, e);
    ht_jw_key(w, "phases");
    ht_jw_arr(w);
    HT_TRY(write_phase(w, e, API_PREFILL, n_prompt, 0, arena, err));
    HT_TRY(write_phase(w, e, API_DECODE, 1, depth, arena, err));
    ht_jw_end(w, ']');
    api__write_hand(w, e, n_prompt);
    ht_jw_end(w, '}');
    return 0;
}

int ht_engine_explain(const ht_engine *e, uint32_t n_prompt, uint32_t depth, char **json,
                      ht_err *err)
{
    if (!e || !json)
        return HT_FAIL(err, HT_EARG, "ht_engine_explain: engine and json must be given");
    *json = NULL;
    if (n_prompt == 0 || n_prompt > UINT16_MAX || depth > INT32_MAX - n_prompt)
        return HT_FAIL(err, HT_EARG, "a prompt of %u tokens at depth %u: use 1 to %u tokens",
                       n_prompt, depth, (unsigned)UINT16_MAX);
    ht_engine *own =
        (ht_engine *)e; /* busy flag, plans and the pool's free list are not the engine's value */
    HT_TRY(api__enter(own, err));
    ht_arena *arena = NULL;
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_arena_new(&arena, 0, err);
    if (!rc) {
        ht_jw w;
        ht_jw_init(&w, &b, 0);
        rc = explain(&w, own, n_prompt, depth, arena, err);
    }
    ht_arena_free(arena);
    api__leave(own);
    if (!rc) return api__take_json(&b, json, err);
    ht_buf_done(&b);
    return rc;
}
