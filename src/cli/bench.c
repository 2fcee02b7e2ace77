/* bench.c - hetero bench: prefill (pp) and decode (tg) rates, named as other tools name them, each
 * beside what this machine can do at most, measured in the same run.
 *
 * What is timed: the library's own wall time of the phase, from its receipt. pp: evaluating P
 * tokens behind D held ones, logits of the last. tg: N decode steps behind D+1 held tokens, each
 * with its greedy choice. A share of the read bandwidth is taken with a buffer as large as what a
 * token reads, so that a model that stays in the caches is compared with the caches. A second share
 * is that of the rate which the machine kept up while the row was timed (ht_pace). */
#include "cli/cli.h"
#include "cli/inject.h"
#include "core/arena.h"
#include "core/measure.h"
#include "core/rng.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 256, WARM_TOKENS = 16, CHECK_CTX = 32 }; /* the check takes 20 positions */
#define MEMORY_BYTES                                                                               \
    ((uint64_t)1 << 30) /* a buffer no cache holds                                  */

/* Where an engine's time went: what it counts since load, by kind of stage. */
enum { MAX_STAGES = 16 };
typedef struct {
    char name[16];
    double ns, bytes, flops;
} stage_cost;
typedef struct {
    char test[48];
    uint32_t n, depth;
    bool decode;
    double mean, sd;     /* tokens per second                                          */
    double *samples;     /* [reps], in the arena                                       */
    double bytes, flops; /* per token                                                  */
    char engine[32];
    double device_ns, dispatches; /* per token, by the device's own events; 0: none            */
    double device_rate;           /* bytes a second of the device's own memory; 0: the host's  */
    ht_read_rate read;            /* with a buffer of `bytes`                                   */
    ht_pace_rates pace;           /* bytes of the same buffer (decode) or operations, between
                                     the repetitions                                            */
    stage_cost stage[MAX_STAGES]; /* of the timed repetitions, where the engine says */
    size_t n_stages;
    double wait_ns;
} row;

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_engine *engine;
    ht_session *session;
    int32_t *ids;     /* [ctx] random tokens                                        */
    int64_t *list[3]; /* -p, -n, -d                                                 */
    size_t n_list[3];
    row *rows;
    size_t n_rows;
    uint32_t reps, ctx;
    int threads;
    const char *isa;
    double n_layers, device_rate[2]; /* of the model; by phase, see row */
    ht_read_rate memory;
    ht_fma_rate fma;
    ht_int8_rate int8; /* measured where `ints` */
    char *checks, *inspected;
    bool reduced; /* prompts run in other arithmetic than the check's and the multiply-add rate's */
    bool ints;    /* act q8 on quantised weights: products are of integers, in all rows */
} work;

/* ---- what to run ---- */

static int read_lists(work *w, ht_err *e)
{
    static const enum ht_opt id[3] = {HT_OPT_BENCH_P, HT_OPT_BENCH_N, HT_OPT_BENCH_D};
    static const char *const name[3] = {"-p", "-n", "-d"};
    for (int i = 0; i < 3; i++)
        HT_TRY(ht_parse_ints(ht_opt_str(w->c->o, id[i]), name[i], 0, 1 << 24, &w->list[i],
                             &w->n_list[i], e));
    return 0;
}

static int add_row(work *w, bool decode, int64_t n, int64_t depth, ht_err *e)
{
    if (n == 0) return 0;
    if (w->n_rows == MAX_ROWS)
        return HT_FAIL(e, HT_EARG, "more than %d rows to time", (int)MAX_ROWS);
    row *r = &w->rows[w->n_rows++];
    r->decode = decode;
    r->n = (uint32_t)n;
    r->depth = (uint32_t)depth;
    r->samples = ht_arena_array(w->arena, w->reps, sizeof *r->samples);
    if (!r->samples) return HT_FAIL(e, HT_ENOMEM, "bench: out of memory");
    int k = snprintf(r->test, sizeof r->test, "%s%u", decode ? "tg" : "pp", r->n);
    if (depth) snprintf(r->test + k, sizeof r->test - (size_t)k, " @ d%u", r->depth);
    uint32_t need =
        r->depth + r->n + 2; /* tg: one token before the first step, one after the last  */
    need = cli__ctx_for(w->c, need, decode ? r->depth + 1 : r->n);
    if (need < CHECK_CTX) need = CHECK_CTX;
    if (need > w->ctx) w->ctx = need;
    return 0;
}

static int make_rows(work *w, ht_err *e)
{
    w->rows = ht_arena_array(w->arena, MAX_ROWS, sizeof *w->rows);
    if (!w->rows) return HT_FAIL(e, HT_ENOMEM, "bench: out of memory");
    for (size_t d = 0; d < w->n_list[2]; d++) {
        for (size_t i = 0; i < w->n_list[0]; i++)
            HT_TRY(add_row(w, false, w->list[0][i], w->list[2][d], e));
        for (size_t i = 0; i < w->n_list[1]; i++)
            HT_TRY(add_row(w, true, w->list[1][i], w->list[2][d], e));
    }
    return w->n_rows ? 0 : HT_FAIL(e, HT_EARG, "nothing to time: -p and -n are both 0");
}

/* The same tokens in every run: uniform over the vocabulary, from a fixed seed. */
static int make_ids(work *w, ht_err *e)
{
    uint32_t n_vocab = ht_vocab_size(ht_engine_vocab(w->engine));
    w->ids = ht_arena_array(w->arena, w->ctx, sizeof *w->ids);
    if (!w->ids) return HT_FAIL(e, HT_ENOMEM, "bench: out of memory for %u tokens", w->ctx);
    for (uint32_t i = 0; i < w->ctx; i++)
        w->ids[i] = (int32_t)(ht_uniform(1, i, 0) * (double)n_vocab);
    return 0;
}

/* ---- running ---- */

/* Facts of a phase from the session's last receipt. */
static int read_phase(work *w, const char *phase, row *r, double *tokens, double *ns, ht_err *e)
{
    ht_arena *arena = NULL;
    ht_json *doc = NULL;
    char *json;
    HT_TRY(ht_session_receipt(w->session, &json, e));
    int rc = ht_arena_new(&arena, 0, e);
    if (!rc) rc = ht_json_parse(arena, json, strlen(json), 0, "receipt", &doc, e);
    const ht_json *list = rc ? NULL : ht_json_get(doc, "phases");
    *tokens = 0;
    for (size_t i = 0; list && list->type == HT_JARR && i < list->n; i++) {
        const ht_json *p = &list->at[i];
        if (strcmp(cli__str(p, "phase", ""), phase) != 0) continue;
        *tokens = cli__num(p, "tokens", 0);
        *ns = cli__num(p, "ns", 0);
        if (*tokens > 0) {
            r->bytes = cli__num(p, "bytes", 0) / *tokens;
            r->flops = cli__num(p, "flops", 0) / *tokens;
            r->device_ns = cli__num(p, "deviceNs", 0) / *tokens;
            r->dispatches = cli__num(p, "dispatches", 0) / *tokens;
        }
        snprintf(r->engine, sizeof r->engine, "%s", cli__str(p, "executed", "?"));
    }
    if (!rc && (*tokens <= 0 || *ns <= 0))
        rc = HT_FAIL(e, HT_EDEVICE, "bench: the receipt of %s reports no work of the %s phase",
                     r->test, phase);
    ht_arena_free(arena);
    ht_free(json);
    return rc;
}

static int no_logits(void *user, uint32_t index, const float *logits, uint32_t n_vocab)
{
    (void)user, (void)index, (void)logits, (void)n_vocab;
    return cli__interrupted();
}

/* The session holds exactly the first `depth` tokens. */
static int set_depth(work *w, uint32_t depth, ht_err *e)
{
    uint32_t have = ht_session_len(w->session);
    if (have > depth) return ht_session_truncate(w->session, depth, e);
    if (have == depth) return 0;
    return ht_session_eval(w->session, w->ids + have, depth - have, NULL, 0, no_logits, NULL, e);
}

static int run_once(work *w, row *r, uint32_t n, double *rate, ht_err *e)
{
    double tokens, ns = 0;
    HT_TRY(set_depth(w, r->depth, e));
    if (r->decode) {
        ht_sampling greedy;
        ht_gen_result out = {0};
        ht_sampling_init(&greedy);
        greedy.temp = 0;
        const ht_gen_params p = {
            .max_new = n + 1, .sampling = &greedy, .ignore_eos = 1, .tokens_only = 1};
        int rc = ht_session_generate(w->session, w->ids, r->depth + 1, &p, &out, e);
        int finish = out.finish;
        ht_gen_result_done(&out);
        HT_TRY(rc);
        if (finish == HT_FINISH_CANCEL)
            return HT_FAIL(e, HT_ECANCELLED, "cancelled in %s", r->test);
    } else {
        const uint32_t last = n - 1;
        HT_TRY(ht_session_eval(w->session, w->ids + r->depth, n, &last, 1, no_logits, NULL, e));
    }
    HT_TRY(read_phase(w, r->decode ? "decode" : "prefill", r, &tokens, &ns, e));
    *rate = tokens * 1e9 / ns;
    return 0;
}

/* The engine's costs so far times sign are added to the row's. */
static int add_stages(work *w, row *r, double sign, ht_err *e)
{
    ht_arena *arena = NULL;
    ht_json *doc = NULL;
    char *json = NULL;
    HT_TRY(ht_engine_info(w->engine, &json, e));
    int rc = ht_arena_new(&arena, 0, e);
    if (!rc) rc = ht_json_parse(arena, json, strlen(json), 0, "engine description", &doc, e);
    const char *phase = r->decode ? "engines.decode.device" : "engines.prefill.device";
    const ht_json *dev = rc ? NULL : ht_json_path(doc, phase);
    const ht_json *all = dev ? ht_json_get(dev, "stages") : NULL;
    for (size_t i = 0; all && all->type == HT_JOBJ && i < all->n; i++) {
        const ht_json *v = &all->at[i];
        size_t k = 0;
        while (k < r->n_stages && strcmp(r->stage[k].name, v->key) != 0) k++;
        if (k == MAX_STAGES || v->type != HT_JARR || v->n != 3) continue;
        stage_cost *c = &r->stage[k];
        if (k == r->n_stages) snprintf(r->stage[r->n_stages++].name, sizeof c->name, "%s", v->key);
        c->ns += sign * v->at[0].d, c->bytes += sign * v->at[1].d;
        c->flops += sign * v->at[2].d;
    }
    if (dev) r->wait_ns += sign * cli__num(dev, "waitNs", 0);
    ht_arena_free(arena);
    ht_free(json);
    return rc;
}

/* The repetitions, a window of the machine's own pace in front of each and behind the last. */
static int repeat(work *w, row *r, ht_pace *pace, ht_err *e)
{
    for (uint32_t i = 0; i < w->reps; i++) {
        if (pace) ht_pace_take(pace);
        HT_TRY(run_once(w, r, r->n, &r->samples[i], e));
        if (cli__progress(w->c, r->test, i + 1, w->reps))
            return HT_FAIL(e, HT_ECANCELLED, "cancelled in %s", r->test);
    }
    if (!pace) return 0;
    ht_pace_take(pace);
    r->pace = ht_pace_get(pace);
    return 0;
}

static int run_row(work *w, row *r, ht_err *e)
{
    double rate, sum = 0, sq = 0;
    ht_pace *pace = NULL;
    HT_TRY(run_once(w, r, r->decode && r->n > WARM_TOKENS ? WARM_TOKENS : r->n, &rate, e));
    HT_TRY(set_depth(w, r->depth, e));
    if (r->device_rate <= 0) {
        const uint64_t read = r->bytes < (double)MEMORY_BYTES ? (uint64_t)r->bytes : MEMORY_BYTES;
        HT_TRY(ht_pace_new(&pace, w->threads, r->decode ? read : 0, w->isa, e));
    }
    int rc = add_stages(w, r, -1, e);
    if (!rc) rc = repeat(w, r, pace, e);
    ht_pace_free(pace);
    HT_TRY(rc);
    HT_TRY(add_stages(w, r, 1, e));
    for (uint32_t i = 0; i < w->reps; i++) sum += r->samples[i];
    r->mean = sum / w->reps;
    for (uint32_t i = 0; i < w->reps; i++)
        sq += (r->samples[i] - r->mean) * (r->samples[i] - r->mean);
    r->sd = w->reps > 1 ? sqrt(sq / (w->reps - 1)) : 0;
    return 0;
}

/* ---- the machine ---- */

static void keep_best(ht_read_rate *best, const ht_read_rate *now)
{
    if (now->bytes_per_s > best->bytes_per_s) *best = *now;
}

/* Before and after the rows, since neighbours come and go: the better figure is the bound. */
static int measure(work *w, ht_err *e)
{
    ht_read_rate read;
    ht_fma_rate fma;
    ht_int8_rate int8;
    cli__say(w->c, CLI_DEBUG, "measuring read bandwidth and rates of products with %d threads",
             w->threads);
    HT_TRY(ht_measure_read(w->threads, MEMORY_BYTES, w->isa, &read, e));
    keep_best(&w->memory, &read);
    HT_TRY(ht_measure_fma(w->threads, w->isa, &fma, e));
    if (fma.flops_per_s > w->fma.flops_per_s) w->fma = fma;
    if (w->ints) {
        HT_TRY(ht_measure_int8(w->threads, w->isa, &int8, e));
        if (int8.summed_ops_per_s < w->int8.summed_ops_per_s)
            int8.summed_ops_per_s = w->int8.summed_ops_per_s;
        if (int8.ops_per_s < w->int8.ops_per_s) int8.ops_per_s = w->int8.ops_per_s;
        w->int8 = int8;
    }
    for (size_t i = 0; i < w->n_rows; i++) {
        row *r = &w->rows[i];
        if (r->bytes <= 0) continue;
        if (r->bytes >= (double)MEMORY_BYTES) read = w->memory;
        else HT_TRY(ht_measure_read(w->threads, (uint64_t)r->bytes, w->isa, &read, e));
        keep_best(&r->read, &read);
    }
    return cli__interrupted() ? HT_FAIL(e, HT_ECANCELLED, "cancelled while measuring the machine")
                              : 0;
}

/* Share of what the machine can do, in percent; negative: not meaningful for this row. */
static double share_read(const row *r)
{
    if (r->device_rate > 0) return r->decode ? 100 * r->mean * r->bytes / r->device_rate : -1;
    return r->decode && r->read.bytes_per_s > 0 ? 100 * r->mean * r->bytes / r->read.bytes_per_s
                                                : -1;
}

/* Products below f32 have rates of their own; that of f32 is no bound of theirs. */
static bool below_f32(const work *w, const row *r)
{
    return w->ints || (w->reduced && !r->decode);
}

/* The stage that computes in f32 under act q8 too. */
static bool is_attn(const stage_cost *c)
{
    return strcmp(c->name, "attn") == 0;
}

static double share_fma(const work *w, const row *r)
{
    if (r->device_rate > 0) return -1; /* what the host can do is no bound for it */
    if (below_f32(w, r)) return -1;
    return w->fma.flops_per_s > 0 ? 100 * r->mean * r->flops / w->fma.flops_per_s : -1;
}

/* The same of the rate that was kept up; may exceed 100, since it was measured in between. */
static double share_pace(const work *w, const row *r)
{
    if (r->pace.bytes_per_s > 0) return 100 * r->mean * r->bytes / r->pace.bytes_per_s;
    if (below_f32(w, r)) return -1;
    return r->pace.flops_per_s > 0 ? 100 * r->mean * r->flops / r->pace.flops_per_s : -1;
}

/* A prompt of act q8: its products at the rate of those of bytes, attention at that of
 * multiply-adds, which it is made of. rate: one of w->int8. */
static double share_int8(const work *w, const row *r, double rate)
{
    double attn = 0, all = 0;
    for (size_t i = 0; i < r->n_stages; i++) {
        all += r->stage[i].flops;
        if (is_attn(&r->stage[i])) attn += r->stage[i].flops;
    }
    if (r->decode || !w->ints || r->device_rate > 0 || all <= 0 || rate <= 0) return -1;
    return 100 * r->mean * r->flops * (attn / w->fma.flops_per_s + (all - attn) / rate) / all;
}

/* A rate above what was measured as possible means that a measurement is wrong. Kernels of avx2 add
 * some products in 16 bits, so their bound is the greater of the two rates. */
static bool is_impossible(const work *w, const row *r)
{
    const ht_int8_rate *i = &w->int8;
    const double most = i->ops_per_s > i->summed_ops_per_s ? i->ops_per_s : i->summed_ops_per_s;
    return share_read(r) > 100 || share_fma(w, r) > 100 || share_int8(w, r, most) > 100;
}

/* ---- results ---- */

/* The least time of a stage on this machine over the time it took, in percent; negative: not known,
 * as of a prompt's products in bf16. Its bytes come again after all others of its row, so they
 * are read at the rate of a buffer of that size. */
static double stage_share(const work *w, const row *r, const stage_cost *c)
{
    if (r->device_rate > 0) return c->ns > 0 ? 100e9 * c->bytes / r->device_rate / c->ns : 0;
    double products = w->fma.flops_per_s;
    if (!r->decode && below_f32(w, r) && !is_attn(c)) {
        if (w->reduced || w->int8.ops_per_s <= 0) return -1;
        products = w->int8.ops_per_s;
    }
    double rate = r->read.bytes_per_s > 0 ? r->read.bytes_per_s : w->memory.bytes_per_s;
    double read = c->bytes / rate, fma = c->flops / products;
    return c->ns > 0 ? 100e9 * (read > fma ? read : fma) / c->ns : 0;
}

static double stages_ns(const row *r)
{
    double ns = 0;
    for (size_t i = 0; i < r->n_stages; i++) ns += r->stage[i].ns;
    return ns;
}

/* null: not meaningful. */
static void json_share(ht_jw *j, const char *key, double percent)
{
    ht_jw_key(j, key);
    if (percent >= 0) ht_jw_real(j, percent);
    else ht_jw_null(j);
}

static void json_stages(ht_jw *j, const work *w, const row *r)
{
    ht_jw_kreal(j, "barrierPercent", stages_ns(r) > 0 ? 100 * r->wait_ns / stages_ns(r) : 0);
    ht_jw_key(j, "stages");
    ht_jw_arr(j);
    for (size_t i = 0; i < r->n_stages; i++) {
        const stage_cost *c = &r->stage[i];
        ht_jw_obj(j);
        ht_jw_kstr(j, "stage", c->name);
        ht_jw_kreal(j, "ns", c->ns);
        ht_jw_kreal(j, "bytes", c->bytes);
        ht_jw_kreal(j, "flops", c->flops);
        json_share(j, "boundPercent", stage_share(w, r, c));
        ht_jw_end(j, '}');
    }
    ht_jw_end(j, ']');
}

/* A device's own share of a row: by its events, in the same runs as the rates. */
static void json_device(ht_jw *j, const work *w, const row *r)
{
    ht_jw_key(j, "device");
    ht_jw_obj(j);
    ht_jw_kreal(j, "nsPerToken", r->device_ns);
    ht_jw_kreal(j, "dispatchesPerToken", r->dispatches);
    ht_jw_kreal(j, "usPerLayer", w->n_layers > 0 ? r->device_ns / w->n_layers / 1e3 : 0);
    ht_jw_kreal(j, "readPercent",
                r->device_ns > 0 ? 100e9 * r->bytes / r->device_rate / r->device_ns : 0);
    ht_jw_end(j, '}');
}

/* null where the row's work is not the host's, or is bound by another rate than those measured. */
static void json_pace(ht_jw *j, const work *w, const row *r)
{
    ht_jw_key(j, "sustained");
    if (share_pace(w, r) < 0) {
        ht_jw_null(j);
        return;
    }
    ht_jw_obj(j);
    if (r->pace.bytes_per_s > 0) ht_jw_kreal(j, "readBytesPerS", r->pace.bytes_per_s);
    else ht_jw_kreal(j, "fmaFlopsPerS", r->pace.flops_per_s);
    ht_jw_kuint(j, "windows", r->pace.windows);
    ht_jw_kreal(j, "percent", share_pace(w, r));
    ht_jw_end(j, '}');
}

static void json_row(ht_jw *j, const work *w, const row *r)
{
    ht_jw_obj(j);
    ht_jw_kstr(j, "test", r->test);
    ht_jw_kreal(j, "ts", r->mean);
    ht_jw_kreal(j, "sd", r->sd);
    ht_jw_kuint(j, "n", w->reps);
    ht_jw_kstr(j, "engine", r->engine);
    ht_jw_kuint(j, "depth", r->depth);
    ht_jw_kreal(j, "bytesPerToken", r->bytes);
    ht_jw_kreal(j, "flopsPerToken", r->flops);
    json_share(j, "readPercent", share_read(r));
    ht_jw_key(j, "readBoundBytesPerS");
    if (r->decode) ht_jw_real(j, r->device_rate > 0 ? r->device_rate : r->read.bytes_per_s);
    else ht_jw_null(j);
    json_share(j, "fmaPercent", share_fma(w, r));
    json_share(j, "int8Percent", share_int8(w, r, w->int8.ops_per_s));
    json_share(j, "int8SummedPercent", share_int8(w, r, w->int8.summed_ops_per_s));
    json_pace(j, w, r);
    if (r->device_rate > 0) json_device(j, w, r);
    ht_jw_kbool(j, "impossible", is_impossible(w, r));
    json_stages(j, w, r);
    ht_jw_key(j, "samples");
    ht_jw_arr(j);
    for (uint32_t i = 0; i < w->reps; i++) ht_jw_real(j, r->samples[i]);
    ht_jw_end(j, ']');
    ht_jw_end(j, '}');
}

static int out_json(work *w, const char *info, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_key(&j, "rows");
    ht_jw_arr(&j);
    for (size_t i = 0; i < w->n_rows; i++) json_row(&j, w, &w->rows[i]);
    ht_jw_end(&j, ']');
    ht_jw_key(&j, "machine");
    ht_jw_obj(&j);
    ht_jw_kint(&j, "threads", w->threads);
    ht_jw_kreal(&j, "readBytesPerS", w->memory.bytes_per_s);
    ht_jw_kuint(&j, "readBufferBytes", w->memory.bytes);
    ht_jw_kstr(&j, "readKernel", w->memory.kernel);
    ht_jw_kreal(&j, "fmaFlopsPerS", w->fma.flops_per_s);
    ht_jw_kstr(&j, "fmaIsa", w->fma.isa);
    if (w->ints) {
        ht_jw_kreal(&j, "int8OpsPerS", w->int8.ops_per_s);
        if (w->int8.summed_ops_per_s > 0)
            ht_jw_kreal(&j, "int8SummedOpsPerS", w->int8.summed_ops_per_s);
        ht_jw_kstr(&j, "int8Isa", w->int8.isa);
    }
    ht_jw_end(&j, '}');
    ht_jw_key(&j, "reference");
    ht_jw_raw(&j, w->checks, strlen(w->checks));
    ht_jw_key(&j, "engine");
    ht_jw_raw(&j, info, strlen(info));
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "benchmark", e);
    if (!rc) rc = cli__out_json(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static void percent(char out[16], double p)
{
    if (p < 0) snprintf(out, 16, "%s", "");
    else snprintf(out, 16, "%.1f", p);
}

/* Against either rate where there are two. */
static void percent_int8(char out[40], const work *w, const row *r)
{
    char one[16], two[16];
    percent(one, share_int8(w, r, w->int8.ops_per_s));
    percent(two, share_int8(w, r, w->int8.summed_ops_per_s));
    snprintf(out, 40, "%s%s%s", one, *two ? " / " : "", two);
}

/* Where the time went; the last column is the least time of the stage over the time it took. */
static void table_stages(ht_buf *b, const work *w)
{
    bool any = false;
    char share[16];
    for (size_t i = 0; i < w->n_rows; i++) {
        const row *r = &w->rows[i];
        double all = stages_ns(r);
        for (size_t k = 0; k < r->n_stages; k++) {
            const stage_cost *c = &r->stage[k];
            if (c->ns < all / 1000) continue;
            if (!any)
                ht_buf_str(b, "\n| test | stage | % of time | GB/s | GFLOP/s | % of limit |\n"
                              "| --- | --- | ---: | ---: | ---: | ---: |\n");
            any = true;
            percent(share, stage_share(w, r, c));
            ht_buf_fmt(b, "| %s | %s | %.1f | %.2f | %.1f | %s |\n", r->test, c->name,
                       100 * c->ns / all, c->bytes / c->ns, c->flops / c->ns, share);
        }
        if (all > 0)
            ht_buf_fmt(b, "| %s | (waiting at barriers) | %.1f | | | |\n", r->test,
                       100 * r->wait_ns / all);
    }
}

/* What a device with clocks of its own says; head and embedding are within the layers' figure. */
static void table_device(ht_buf *b, const work *w)
{
    bool any = false;
    for (size_t i = 0; i < w->n_rows; i++) {
        const row *r = &w->rows[i];
        if (r->device_rate <= 0) continue;
        if (!any)
            ht_buf_str(b, "\n| test | device us/token | % of device's read rate | us/layer | "
                          "dispatches/token |\n| --- | ---: | ---: | ---: | ---: |\n");
        any = true;
        ht_buf_fmt(b, "| %s | %.2f | %.1f (of %.2f TB/s) | %.2f | %.2f |\n", r->test,
                   r->device_ns / 1e3,
                   r->device_ns > 0 ? 100e9 * r->bytes / r->device_rate / r->device_ns : 0,
                   r->device_rate / 1e12, w->n_layers > 0 ? r->device_ns / w->n_layers / 1e3 : 0,
                   r->dispatches);
    }
}

static int out_table(work *w, ht_err *e)
{
    ht_buf b;
    ht_json *doc;
    char size[32], per[32], read[16], fma[16], int8[40], pace[16];
    const char *name = strrchr(w->c->model, '/');
    HT_TRY(ht_json_parse(w->arena, w->inspected, strlen(w->inspected), 0, "inspect", &doc, e));
    cli__bytes(cli__num(doc, "model.tensorBytes", 0), size);
    ht_buf_init(&b, 0);
    ht_buf_str(
        &b,
        "| model | size | params | engine | threads | test | t/s | bytes/token | % read | % FMA "
        "| % int8 | % sustained |\n"
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for (size_t i = 0; i < w->n_rows; i++) {
        const row *r = &w->rows[i];
        cli__bytes(r->bytes, per);
        percent(read, share_read(r));
        percent(fma, share_fma(w, r));
        percent_int8(int8, w, r);
        percent(pace, share_pace(w, r));
        ht_buf_fmt(&b,
                   "| %s | %s | %.2f M | %s | %d | %s | %.2f ± %.2f | %s | %s | %s | %s | %s |\n",
                   name ? name + 1 : w->c->model, size, cli__num(doc, "model.parameters", 0) / 1e6,
                   r->engine, w->threads, r->test, r->mean, r->sd, per, read, fma, int8, pace);
    }
    ht_buf_fmt(
        &b,
        "\n%u repetitions; this machine now: read %.1f GB/s (1 GiB buffer, %s), multiply-add %.1f "
        "GFLOP/s (%s)",
        w->reps, w->memory.bytes_per_s / 1e9, w->memory.kernel, w->fma.flops_per_s / 1e9,
        w->fma.isa);
    if (w->ints)
        ht_buf_fmt(&b, ", 8-bit products %.1f GOP/s (%s)", w->int8.ops_per_s / 1e9, w->int8.isa);
    if (w->int8.summed_ops_per_s > 0)
        ht_buf_fmt(&b, ", %.1f when four are added in 16 bits", w->int8.summed_ops_per_s / 1e9);
    ht_buf_str(&b, "\n");
    table_device(&b, w);
    table_stages(&b, w);
    int rc = ht_buf_ok(&b, "benchmark", e);
    if (!rc) rc = cli__out(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

/* Stages are too short to fail a row for: the machine's rates were taken before and after them. */
static void warn_stages(const work *w)
{
    for (size_t i = 0; i < w->n_rows; i++) {
        const row *r = &w->rows[i];
        for (size_t k = 0; k < r->n_stages; k++)
            if (r->stage[k].ns >= stages_ns(r) / 1000 && stage_share(w, r, &r->stage[k]) > 100)
                cli__say(w->c, CLI_WARN,
                         "%s, stage %s: above 100 %% of its limit; the machine's rates changed "
                         "meanwhile, so do not publish this stage's share",
                         r->test, r->stage[k].name);
    }
}

static int report(work *w, const char *info, ht_err *e)
{
    int status = 0;
    HT_TRY(w->c->json ? out_json(w, info, e) : out_table(w, e));
    for (size_t i = 0; i < w->n_rows; i++) {
        if (!is_impossible(w, &w->rows[i])) continue;
        cli__say(w->c, CLI_ERROR,
                 "hetero bench: error: %s is above what this machine was measured to do: one "
                 "of the two figures is wrong; do not publish it, run again on a quiet machine",
                 w->rows[i].test);
        status = CLI_FAILED;
    }
    warn_stages(w);
    return status;
}

/* ---- the command ---- */

static int open_engine(work *w, char **info, ht_err *e)
{
    cli__ctx *c = w->c;
    ht_json *doc;
    HT_TRY(cli__model(c, true, e));
    cli__watch(NULL);
    HT_TRY(cli__engine_open(c, w->ctx, &w->engine, e));
    if (ht_engine_ctx(w->engine) < w->ctx)
        return HT_FAIL(e, HT_EFULL,
                       "the rows, and the check before them, need %u positions and the context has "
                       "%u: set -c or shorten them",
                       w->ctx, ht_engine_ctx(w->engine));
    HT_TRY(ht_engine_info(w->engine, info, e));
    HT_TRY(ht_json_parse(w->arena, *info, strlen(*info), 0, "engine description", &doc, e));
    w->threads = (int)cli__num(doc, "threads", 1);
    w->isa = ht_opt_str(c->o, HT_OPT_ISA);
    w->n_layers = cli__num(doc, "model.layers", 0);
    w->ints = !strcmp(cli__str(doc, "act", ""), "q8") && cli__num(doc, "model.quantised", 0) > 0;
    w->device_rate[0] = cli__num(doc, "engines.prefill.device.readBytesPerS", 0);
    w->device_rate[1] = cli__num(doc, "engines.decode.device.readBytesPerS", 0);
    const ht_inspect_params p = {.ctx = w->ctx};
    return ht_inspect(c->model, &p, &w->inspected, e);
}

/* The engine against ref. One whose prompts run in other arithmetic, because the user said so, is
 * timed all the same, with the check's figures beside: only numbers that are none, or others in
 * each run, are an error then. */
static int check_engine(work *w, ht_err *e)
{
    ht_json *doc;
    const int rc = ht_engine_qualify_reference(w->engine, cli__progress, w->c, &w->checks, e);
    if (!w->checks) return rc;
    HT_TRY(ht_json_parse(w->arena, w->checks, strlen(w->checks), 0, "reference check", &doc, e));
    const char *how = cli__str(doc, "reduced", NULL);
    const ht_json *sound = ht_json_get(doc, "sound");
    w->reduced = how != NULL;
    if (rc != HT_EGATE || !how || !sound || !sound->b) return rc;
    *e = (ht_err){0};
    cli__say(w->c, CLI_WARN,
             "warning: prompts run on %s, not in the arithmetic of ref: the check says how far off "
             "that is and judges nothing; `hetero quality` does",
             how);
    return 0;
}

static int run(work *w, char **info, ht_err *e)
{
    cli__ctx *c = w->c;
    HT_TRY(ht_arena_new(&w->arena, 0, e));
    w->reps = (uint32_t)ht_opt_int(c->o, HT_OPT_REPS);
    HT_TRY(read_lists(w, e));
    HT_TRY(make_rows(w, e));
    HT_TRY(open_engine(w, info, e));
    if (ht_opt_given(c->o, HT_OPT_PRINT_CONFIG)) return cli__print_config(c, w->engine, NULL, e);
    cli__watch(NULL); /* Ctrl-C reaches the check through its progress */
    cli__say(c, CLI_INFO, "checking the engine against the oracle before timing it");
    HT_TRY(check_engine(w, e));
    cli__progress_end(c);
    HT_TRY(make_ids(w, e));
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    cli__watch(w->session);
    HT_TRY(measure(w, e));
    for (size_t i = 0; i < w->n_rows; i++)
        w->rows[i].device_rate = w->device_rate[w->rows[i].decode];
    for (size_t i = 0; i < w->n_rows; i++) HT_TRY(run_row(w, &w->rows[i], e));
    cli__progress_end(c);
    HT_TRY(measure(w, e));
    return report(w, *info, e);
}

int cli__bench(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    char *info = NULL;
    if (ht_opt_int(c->o, HT_OPT_INJECT) > 0) return cli__inject(c, e);
    int rc = run(&w, &info, e);
    cli__watch(NULL);
    ht_session_free(w.session);
    for (int i = 0; i < 3; i++) ht_mem_free(w.list[i]);
    ht_free(w.checks);
    ht_free(w.inspected);
    ht_free(info);
    if (w.engine) ht_engine_close(w.engine);
    ht_arena_free(w.arena);
    return rc;
}
