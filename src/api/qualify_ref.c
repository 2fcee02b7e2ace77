/* qualify_ref.c - reference qualification on the spot (product.md 1): the engines of both phases
 * against the scalar oracle `ref` on the loaded weights, and against themselves under other
 * chunkings. Correctness only; a time measured here would say nothing. */
#include "api/route.h"
#include "api/session.h"
#include "api/subject.h"
#include "api/whole.h"
#include "decode/sample.h"
#include "route/seen.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { Q_PROMPT = 16, Q_DECODE = 4, Q_ROWS = Q_PROMPT + Q_DECODE };
enum { Q_PASSES = 4 }; /* ref, the engine whole, in chunks of 1 and of 7 */

typedef struct {
    ht_engine *e;        /* under test                                                          */
    ht_engine oracle;    /* the same model on ref, with a small pool and plans of its own        */
    int32_t ids[Q_ROWS]; /* prompt, then ref's greedy continuation                              */
    uint32_t n_prompt;
    ht_progress_fn progress; /* NULL: none */
    void *user;
    uint64_t done;     /* rows run so far, of Q_PASSES times the sequence */
    float *want, *got; /* [Q_ROWS, vocab] logits of ref and of the engine                     */
    ht_jw *w;
    bool ok, sound; /* sound: finite, and the same bits when run again */
} qual;

/* Largest difference allowed, as a share of the spread (max - min) of ref's logits. Both sides
 * round the cache alike and differ in the order of f32 sums only: a sum over K = 4096 moves by
 * about sqrt(K) * 2^-24 = 4e-6, some 30 layers and the head by 1e-4. An F16 cache can turn such a
 * difference into one rounding step (2^-11) of single keys; 8-bit activations into one level
 * (1/127) of single inputs, and the levels of what is computed from them: 2.7 % of the spread were
 * seen on SmolLM2-135M, whose activations have large outliers. A wrong feature moves logits by
 * tenths of the spread. */
static double share_of(const ht_engine *e)
{
    if (e->act != HT_ACT_F32) return 5e-2;
    return e->kv.base[0] == HT_KV_F32 && e->kv.base[1] == HT_KV_F32 ? 2e-4 : 1e-3;
}

static void check(qual *q, const char *name, bool ok, const char *detail)
{
    ht_jw_obj(q->w);
    ht_jw_kstr(q->w, "name", name);
    ht_jw_kbool(q->w, "ok", ok);
    ht_jw_kstr(q->w, "detail", detail);
    ht_jw_end(q->w, '}');
    q->ok = q->ok && ok;
}

/* Run ids from an empty session: the prompt in chunks of `chunk` on the prefill engine, the rest
 * one by one on the decode engine; logits of every row. greedy: ids behind the prompt are chosen
 * here. */
static int run_all(ht_engine *e, qual *q, uint32_t chunk, bool greedy, float *out, ht_err *err)
{
    const uint32_t vocab = e->model->spec.vocab;
    const api__plan *pre = NULL, *dec = NULL;
    ht_session *s = NULL;
    HT_TRY(api__plan_get(e, API_PREFILL, q->n_prompt, q->n_prompt, &pre, err));
    HT_TRY(api__plan_get(e, API_DECODE, 1, 1, &dec, err));
    HT_TRY(api__session_make(&s, e, err));
    int rc = 0;
    s->rope_long = api__is_long(&e->model->spec, q->n_prompt + Q_DECODE);
    for (uint32_t at = 0; !rc && at < q->n_prompt + Q_DECODE;) {
        const bool prompt = at < q->n_prompt;
        uint32_t rows = prompt ? q->n_prompt - at : 1;
        const float *logits = NULL;
        if (rows > chunk) rows = chunk;
        if (!prompt && greedy) q->ids[at] = ht_argmax(out + (size_t)(at - 1) * vocab, vocab);
        for (uint32_t i = 0; i < rows; i++) s->want[i] = i;
        rc = api__run(s, prompt ? API_PREFILL : API_DECODE, prompt ? pre : dec, q->ids + at, rows,
                      s->want, rows, &logits, err);
        if (!rc) memcpy(out + (size_t)at * vocab, logits, (size_t)rows * vocab * sizeof *out);
        at += rows;
        q->done += rows;
        if (!rc && q->progress &&
            q->progress(q->user, "checking against ref, tokens", q->done,
                        (uint64_t)Q_PASSES * (q->n_prompt + Q_DECODE)))
            rc = HT_FAIL(err, HT_ECANCELLED, "reference check cancelled after %llu rows",
                         (unsigned long long)q->done);
    }
    api__session_drop(s);
    return rc;
}

/* Compare rows [first, last) of got with ref's. */
static void compare(qual *q, const char *phase, const char *engine, uint32_t first, uint32_t last)
{
    const uint32_t vocab = q->e->model->spec.vocab;
    const double share = share_of(q->e);
    double worst = 0, worst_bound = 0;
    uint32_t agree = 0, ties = 0;
    bool ok = true;
    for (uint32_t r = first; r < last; r++) {
        const float *a = q->want + (size_t)r * vocab, *b = q->got + (size_t)r * vocab;
        double lo = INFINITY, hi = -INFINITY, diff = 0;
        bool finite = true;
        for (uint32_t i = 0; i < vocab; i++) {
            lo = fmin(lo, a[i]);
            hi = fmax(hi, a[i]);
            diff = fmax(diff, fabs((double)a[i] - b[i]));
            finite = finite && isfinite(a[i]) && isfinite(b[i]);
        }
        const double bound = share * (hi - lo);
        const int32_t ma = ht_argmax(a, vocab), mb = ht_argmax(b, vocab);
        /* Another arg-max is right only where ref itself cannot tell the two apart. */
        const bool tie = ma != mb && (double)a[ma] - a[mb] <= 2 * bound;
        agree += ma == mb;
        ties += tie;
        ok = ok && finite && diff <= bound && (ma == mb || tie);
        q->sound = q->sound && finite;
        if (diff >= worst) {
            worst = diff;
            worst_bound = bound;
        }
    }
    char name[64], detail[160];
    (void)snprintf(name, sizeof name, "%s: %s against ref", phase, engine);
    (void)snprintf(
        detail, sizeof detail,
        "arg-max equal at %u of %u positions (%u within the bound); largest logit difference "
        "%.3g, bound %.3g",
        agree, last - first, ties, worst, worst_bound);
    check(q, name, ok, detail);
}

/* The engine against itself: other chunks of the prompt must give the same bits, and so must the
 * whole prompt when it is run again. */
static int compare_chunks(qual *q, uint32_t chunk, ht_err *err)
{
    const size_t n = (size_t)(q->n_prompt + Q_DECODE) * q->e->model->spec.vocab;
    char name[64], detail[96];
    const bool whole = chunk >= q->n_prompt;
    HT_TRY(run_all(q->e, q, chunk, false, q->want, err));
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) differ += memcmp(&q->want[i], &q->got[i], sizeof *q->got) != 0;
    if (whole) (void)snprintf(name, sizeof name, "whole prompt once more");
    else (void)snprintf(name, sizeof name, "prompt in chunks of %u", chunk);
    (void)snprintf(detail, sizeof detail, "%zu of %zu logits differ in any bit from the whole %s",
                   differ, n, whole ? "prompt's first run" : "prompt at once");
    check(q, name, differ == 0, detail);
    q->sound = q->sound && differ == 0;
    return 0;
}

static int run_checks(qual *q, ht_err *err)
{
    /* Row by row: ref gives the same numbers in any chunk, and each row is a chance to stop. */
    HT_TRY(run_all(&q->oracle, q, 1, true, q->want, err));
    HT_TRY(run_all(q->e, q, q->n_prompt, false, q->got, err));
    compare(q, "prefill", q->e->phase[API_PREFILL].unit->be->name, 0, q->n_prompt);
    compare(q, "decode", q->e->phase[API_DECODE].unit->be->name, q->n_prompt,
            q->n_prompt + Q_DECODE);
    if (api__is_whole(&q->e->phase[API_PREFILL])) return compare_chunks(q, q->n_prompt, err);
    HT_TRY(compare_chunks(q, 1, err));
    return compare_chunks(q, 7, err);
}

/* A short prompt: real text where the tokenizer gives enough tokens, else ids spread over the
 * vocabulary. */
static int make_prompt(qual *q, ht_err *err)
{
    static const char text[] =
        "Once upon a time there was a small fox who lived at the edge of a wood, and "
        "every morning it counted 12 birds.";
    const uint32_t vocab = q->e->model->spec.vocab, room = q->e->ctx - Q_DECODE;
    ht_ids got = {0};
    int rc = ht_tok_encode(q->e->tok, text, sizeof text - 1, HT_TOK_BOS, &got, err);
    q->n_prompt = room < Q_PROMPT ? room : Q_PROMPT;
    if (q->n_prompt > q->e->ubatch) q->n_prompt = q->e->ubatch;
    for (uint32_t i = 0; !rc && i < q->n_prompt; i++)
        q->ids[i] = got.n >= Q_PROMPT && (uint32_t)got.id[i] < vocab
                        ? got.id[i]
                        : (int32_t)((i * 7919ull + 11) % vocab);
    ht_ids_done(&got);
    return rc;
}

/* The oracle: this engine's numbers and pointers with ref as the one device. Nothing that the
 * engine owns is freed through it. */
static int open_oracle(qual *q, ht_err *err)
{
    ht_engine *o = &q->oracle;
    const ht_engine *e = q->e;
    *o = (ht_engine){.model = e->model,
                     .tok = e->tok,
                     .contract = e->contract,
                     .tape = e->tape,
                     .n_tape = e->n_tape,
                     .kv = e->kv,
                     .act = e->act == HT_ACT_F16 ? HT_ACT_F32 : e->act, /* what f16 rounds */
                     .threads = 1,
                     .ctx = Q_ROWS,
                     .ubatch = Q_ROWS,
                     .max_sessions = 1};
    atomic_flag_clear(&o->busy);
    const ht_backend *be = ht_backend_find("ref");
    if (!be) return HT_FAIL(err, HT_EUNSUPPORTED, "this build has no ref engine to check against");
    HT_TRY(ht_arena_new(&o->arena, 0, err));
    HT_TRY(be->open(&o->unit[0].dev, "", err));
    o->unit[0].be = be;
    o->n_units = 1;
    for (int p = 0; p < API_PHASES; p++) {
        o->phase[p] = e->phase[p];
        o->phase[p].unit = &o->unit[0];
    }
    HT_TRY(be->load(o->unit[0].dev, o->model, err));
    uint8_t *cls = api__layer_class(&o->model->spec, o->arena);
    if (!cls) return HT_FAIL(err, HT_ENOMEM, "no memory for the layers' KV classes");
    ht_pool_params pool;
    api__pool_params(&o->model->spec, cls, &o->kv, o->ctx, 1, o->ubatch, &pool);
    HT_TRY(ht_pool_new(&o->pool, &pool, err));
    return be->kv_attach(o->unit[0].dev, ht_pool_kv(o->pool), err);
}

static void close_oracle(qual *q)
{
    ht_engine *o = &q->oracle;
    if (!o->arena) return;
    api__plans_free(o);
    ht_pool_free(o->pool);
    for (size_t i = 0; i < o->n_units; i++) o->unit[i].be->close(o->unit[i].dev);
    ht_arena_free(o->arena);
}

static int qualify(qual *q, ht_err *err)
{
    const size_t n = (size_t)Q_ROWS * q->e->model->spec.vocab;
    if (q->e->ctx < Q_DECODE + 2)
        return HT_FAIL(err, HT_EARG,
                       "a context of %u positions is too short to qualify; use %d or more",
                       q->e->ctx, Q_ROWS);
    HT_TRY(open_oracle(q, err));
    q->want = ht_mem_array(n, sizeof *q->want);
    q->got = ht_mem_array(n, sizeof *q->got);
    if (!q->want || !q->got)
        return HT_FAIL(err, HT_ENOMEM, "no memory for logits of %d positions", Q_ROWS);
    HT_TRY(make_prompt(q, err));
    /* Its bucket is compiled, or the engine that is checked is the one that takes its place. */
    HT_TRY(api__whole_choose(q->e, q->n_prompt, q->n_prompt, err));
    return run_checks(q, err);
}

/* How prompts run where that is other arithmetic than the one ref follows: "graph@CPU approximate
 * act=int8"; else "". */
static void reduced(const ht_engine *e, char *out, size_t cap)
{
    const api__phase *p = &e->phase[API_PREFILL];
    const uint8_t act = api__whole_act(e, API_PREFILL);
    char declared[64];
    out[0] = 0;
    api__whole_class(e, p, declared, sizeof declared);
    if (declared[0] || act != e->act)
        (void)snprintf(out, cap, "%s%s act=%s", p->unit->be->name, declared, api__act_name(act));
}

/* Inside the engine. *ok: every check passed; out: the document. */
static int check_now(ht_engine *e, ht_progress_fn progress, void *user, ht_buf *out, bool *ok,
                     ht_err *err)
{
    ht_jw w;
    ht_jw_init(&w, out, 0);
    char how[128];
    qual q = {.e = e, .progress = progress, .user = user, .w = &w, .ok = true, .sound = true};
    reduced(e, how, sizeof how);
    api__route_reference(e); /* routes are qualified by bundles */
    ht_jw_obj(&w);
    ht_jw_key(&w, "checks");
    ht_jw_arr(&w);
    int rc = qualify(&q, err);
    ht_jw_end(&w, ']');
    ht_jw_kbool(&w, "ok", q.ok && !rc);
    ht_jw_key(&w, "reduced");
    if (how[0]) ht_jw_str(&w, how);
    else ht_jw_null(&w);
    ht_jw_kbool(&w, "sound", q.sound && !rc);
    ht_jw_end(&w, '}');
    close_oracle(&q);
    ht_mem_free(q.want);
    ht_mem_free(q.got);
    if (!rc) rc = ht_buf_ok(out, "reference qualification", err);
    *ok = !rc && q.ok;
    return rc;
}

/* ---- remembered ------------------------------------------------------------------------------ */

const char *api__ref_name(int state)
{
    return state == API_REF_PASSED ? "PASSED" : state == API_REF_FAILED ? "FAILED" : "NOT_CHECKED";
}

/* Everything that the checks depend on: model, tokenizer, program, machine, and what of the
 * engine's settings changes its numbers or kernels. */
static int cache_key(ht_engine *e, char key[HT_SEEN_KEY], ht_err *err)
{
    const api__subject *who;
    api__machine machine;
    uint8_t digest[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    ht_buf b;
    HT_TRY(api__machine_read(&machine, err));
    HT_TRY(api__subject_get(e, false, &who, err));
    ht_buf_init(&b, 1 << 12);
    ht_buf_fmt(&b, "%s %s %s %s %s %s %d %d %s", who->model, who->tok, who->binary,
               machine.class_sha, machine.os, api__act_name(e->act), e->kv.base[0], e->kv.base[1],
               e->isa);
    for (int p = 0; p < API_PHASES; p++)
        ht_buf_fmt(&b, " %s %s", e->phase[p].unit->be->name, e->phase[p].rep);
    char how[128];
    reduced(e, how, sizeof how);
    ht_buf_fmt(&b, " %s", how);
    int rc = ht_buf_ok(&b, "reference qualification", err);
    if (!rc) rc = ht_sha256_of(b.p, b.n, digest, err);
    ht_buf_done(&b);
    if (rc) return rc;
    ht_hex(digest, sizeof digest, hex);
    (void)snprintf(key, HT_SEEN_KEY, "reference:%s", hex);
    return 0;
}

/* Remember that it passed, with the digest of the result; what cannot be written is checked
 * again. */
static void remember(ht_engine *e, const ht_buf *doc)
{
    char list[4096], key[HT_SEEN_KEY], hex[HT_SHA256_HEX];
    uint8_t digest[HT_SHA256_BYTES];
    ht_err ignored = {0};
    if (!api__state_path("qualified", list, sizeof list) || cache_key(e, key, &ignored) ||
        ht_sha256_of(doc->p, doc->n, digest, &ignored))
        return;
    ht_hex(digest, sizeof digest, hex);
    (void)(ht_seen_put(list, key, hex, &ignored) == 0);
}

/* Work of the oracle, a scalar loop: beyond this it is a matter of minutes and asked for by
 * `hetero qualify --reference`. */
static bool is_short_work(const ht_engine *e)
{
    enum { MOST_GFLOP = 25 };
    uint64_t all = 0;
    ht_bucket b;
    api__bucket(e, API_PREFILL, 1, 1, &b);
    for (size_t i = 0; i < e->n_tape; i++) {
        uint64_t bytes, flops;
        ht_stage_bound(e->model, &e->tape[i], &b, &bytes, &flops);
        all += flops;
    }
    return all * Q_ROWS <= (uint64_t)MOST_GFLOP * 1000000000u;
}

int api__ref_ensure(ht_engine *e, ht_progress_fn progress, void *user, ht_err *err)
{
    char list[4096], key[HT_SEEN_KEY], value[HT_SHA256_HEX];
    ht_err why = {0};
    bool ok = false;
    api__route_reference(e);
    if (api__state_path("qualified", list, sizeof list) && cache_key(e, key, &why) == 0 &&
        ht_seen_get(list, key, value)) {
        e->ref_state = API_REF_PASSED;
        return 0;
    }
    if (e->ctx < Q_DECODE + 2 || !is_short_work(e)) return 0;
    ht_buf b;
    ht_buf_init(&b, 0);
    HT_TRY(api__enter(e, err));
    const int rc = check_now(e, progress, user, &b, &ok, &why);
    api__leave(e);
    if (!rc) e->ref_state = ok ? API_REF_PASSED : API_REF_FAILED;
    if (ok) remember(e, &b);
    ht_buf_done(&b);
    if (rc != HT_ENOMEM && rc != HT_ECANCELLED) return 0;
    if (err) *err = why;
    return rc;
}

int ht_engine_qualify_reference(ht_engine *e, ht_progress_fn progress, void *user, char **json,
                                ht_err *err)
{
    bool ok = false;
    if (!e) return HT_FAIL(err, HT_EARG, "ht_engine_qualify_reference: no engine");
    if (json) *json = NULL;
    HT_TRY(api__enter(e, err));
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = check_now(e, progress, user, &b, &ok, err);
    if (!rc) e->ref_state = ok ? API_REF_PASSED : API_REF_FAILED;
    if (ok) remember(e, &b);
    api__leave(e);
    if (!rc && json) rc = api__take_json(&b, json, err);
    ht_buf_done(&b);
    if (rc || ok) return rc;
    return HT_FAIL(
        err, HT_EGATE,
        "the engine disagrees with ref on this model: do not trust its text; the JSON lists the "
        "checks, and `hetero doctor` the kernels chosen");
}
