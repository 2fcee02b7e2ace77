/* kvprobe.c - hetero kv-probe: what packed types of the KV cache lose on the user's model.
 *
 * One text, evaluated once with the F16 cache and once with each pair of types. Which form of a
 * page a row reads is a matter of positions, so a row at depth d sees the cache exactly as a
 * decoded token there would: what is measured is the path that is used. At each depth the logits of
 * the 255 positions before it are compared: Kullback-Leibler divergence in nats over the whole
 * vocabulary, perplexity on the text, agreement of the likeliest token (techniques.md 8). */
#include "cli/store.h"
#include "core/arena.h"
#include "core/path.h"
#include "evid/quality.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTHS = 8, WINDOW = 256, ROWS = WINDOW - 1, MAX_TYPES = 16, MADE_DEPTH = 512 };

static const char *const default_k[] = {"f16", "q8_0", "q8_0r", "q4_0r", "tq4", "tq3", NULL};
static const char *const default_v[] = {"f16", "q8_0", "q4_0r", "tq4", "tq3", NULL};

typedef struct {
    double kl, kl_max, nll, nll_ref;
    uint32_t same, rows;
} figures;

typedef struct {
    cli__ctx *c;
    ht_engine_params params;
    uint32_t evict; /* of candidates */
    ht_engine *engine;
    ht_session *session;
    ht_arena *arena;
    char *text;
    int32_t *ids;
    size_t n_ids;
    uint32_t depth[MAX_DEPTHS], n_depths;
    uint32_t *want;
    size_t n_want;
    float *ref; /* [n_want, n_logits] of the F16 cache */
    uint32_t n_logits;
    bool not_finite, reference; /* rows that come are the reference's */
    figures fig[MAX_DEPTHS];
    const char *k[MAX_TYPES], *v[MAX_TYPES];
    size_t n_k, n_v;
    ht_buf rows, table; /* JSON rows; text table */
    size_t n_rows;
} work;

/* ---- comparing rows -------------------------------------------------------------------------- */

static void compare(figures *f, const float *ref, const float *l, uint32_t n, int32_t target)
{
    ht_quality_position p;
    ht_quality_measure(ref, l, n, target, &p);
    f->kl += p.kld;
    if (!(p.kld <= f->kl_max)) f->kl_max = p.kld;
    f->nll_ref += p.nll_ref;
    f->nll += p.nll_cand;
    f->same += p.top_ref == p.top_cand;
    f->rows++;
}

static int on_logits(void *user, uint32_t index, const float *logits, uint32_t n)
{
    work *w = user;
    size_t at = 0; /* which wanted row */
    while (w->want[at] != index) at++;
    float *ref = w->ref + at * n;
    for (uint32_t i = 0; i < n; i++) w->not_finite = w->not_finite || !isfinite(logits[i]);
    if (w->reference) {
        memcpy(ref, logits, n * sizeof *ref);
    } else {
        for (uint32_t d = 0; d < w->n_depths; d++)
            if (index + WINDOW >= w->depth[d] && index + 1 < w->depth[d])
                compare(&w->fig[d], ref, logits, n, w->ids[index + 1]);
    }
    return w->not_finite || cli__interrupted();
}

/* ---- one pair of types ----------------------------------------------------------------------- */

static void close_engine(work *w)
{
    cli__watch(NULL);
    ht_session_free(w->session);
    if (w->engine) ht_engine_close(w->engine);
    w->session = NULL;
    w->engine = NULL;
}

static int open_engine(work *w, const char *k, const char *v, ht_err *e)
{
    close_engine(w);
    w->params.evict = w->reference ? 0 : w->evict;
    w->params.ctk = k;
    w->params.ctv = v;
    int rc = ht_engine_open(&w->engine, &w->params, e);
    cli__progress_end(w->c);
    if (!rc) rc = ht_session_new(&w->session, w->engine, e);
    if (!rc) cli__watch(w->session);
    return rc;
}

static int evaluate(work *w, const char *k, const char *v, ht_err *e)
{
    for (uint32_t d = 0; d < w->n_depths; d++) w->fig[d] = (figures){.kl_max = 0};
    int rc = ht_session_eval(w->session, w->ids, w->n_ids, w->want, w->n_want, on_logits, w, e);
    if (w->not_finite)
        return HT_FAIL(e, HT_EFORMAT, "-ctk %s -ctv %s: a logit is not finite", k, v);
    return rc;
}

/* Into the store, for engines that are asked to use these types. */
static int save(work *w, const ht_kv_gate *g, ht_err *e)
{
    char dir[CLI_PATH], path[CLI_PATH], *name = NULL, *json = NULL;
    HT_TRY(cli__store_dir(w->c, dir, e));
    HT_TRY(ht_engine_kv_gate(w->engine, g, &name, &json, e));
    int rc = 0;
    if (snprintf(path, sizeof path, "%s/kv/%s", dir, name) >= (int)sizeof path)
        rc = HT_FAIL(e, HT_EARG, "--store: the path is too long");
    if (!rc) rc = ht_path_make_parents(path, 0700, e);
    if (!rc) rc = cli__write_file(path, json, strlen(json), e);
    ht_free(name);
    ht_free(json);
    return rc;
}

static void write_row(work *w, const char *k, const char *v, uint32_t depth, const figures *f)
{
    ht_jw j;
    const double n = f->rows, ratio = exp((f->nll - f->nll_ref) / n);
    if (w->n_rows++) ht_buf_fmt(&w->rows, ",");
    ht_jw_init(&j, &w->rows, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "k", k);
    ht_jw_kstr(&j, "v", v);
    ht_jw_kuint(&j, "depth", depth);
    ht_jw_kreal(&j, "meanKl", f->kl / n);
    ht_jw_kreal(&j, "maxKl", f->kl_max);
    ht_jw_kreal(&j, "sameTop", f->same / n);
    ht_jw_kreal(&j, "ppl", exp(f->nll / n));
    ht_jw_kreal(&j, "pplRatio", ratio);
    ht_jw_kbool(&j, "admitted", f->kl / n <= HT_KV_GATE_KL && ratio - 1 <= HT_KV_GATE_PPL);
    ht_jw_end(&j, '}');
}

static int probe(work *w, const char *k, const char *v, ht_err *e)
{
    ht_kv_gate worst = {0};
    HT_TRY(open_engine(w, k, v, e));
    HT_TRY(evaluate(w, k, v, e));
    for (uint32_t d = 0; d < w->n_depths; d++) {
        const figures *f = &w->fig[d];
        double kl = f->kl / f->rows, ratio = exp((f->nll - f->nll_ref) / f->rows);
        write_row(w, k, v, w->depth[d], f);
        if (kl >= worst.mean_kl) worst.mean_kl = kl, worst.depth = w->depth[d];
        if (ratio > worst.ppl_ratio) worst.ppl_ratio = ratio;
        worst.positions += f->rows;
    }
    ht_buf_fmt(&w->table, " %9.5f%s", worst.mean_kl,
               worst.mean_kl <= HT_KV_GATE_KL && worst.ppl_ratio - 1 <= HT_KV_GATE_PPL ? "*" : " ");
    if (ht_opt_on(w->c->o, HT_OPT_SAVE)) HT_TRY(save(w, &worst, e));
    return 0;
}

/* ---- text and depths ------------------------------------------------------------------------- */

static int read_depths(work *w, uint32_t ctx, ht_err *e)
{
    const char *list = ht_opt_str(w->c->o, HT_OPT_KV_DEPTHS), *at = list;
    w->n_depths = 0;
    while (*at) {
        unsigned d = 0;
        int used = 0;
        if (sscanf(at, "%8u%n", &d, &used) != 1 || d < WINDOW || w->n_depths == MAX_DEPTHS)
            return HT_FAIL(e, HT_EARG, "--depths %.40s: up to %d numbers from %d on, e.g. 512,4096",
                           list, MAX_DEPTHS, WINDOW);
        if (d <= ctx) w->depth[w->n_depths++] = d;
        at += used;
        if (*at == ',') at++;
        else if (*at) return HT_FAIL(e, HT_EARG, "--depths %.40s: not a list of numbers", list);
    }
    if (w->n_depths == 0) w->depth[w->n_depths++] = ctx;
    return 0;
}

static uint32_t deepest(const work *w)
{
    uint32_t d = 0;
    for (uint32_t i = 0; i < w->n_depths; i++) d = w->depth[i] > d ? w->depth[i] : d;
    return d;
}

/* Without a text the model writes one: what it finds likely, from its own beginning, seed 1. */
static int make_text(work *w, ht_err *e)
{
    const int32_t bos = ht_vocab_bos(ht_engine_vocab(w->engine)), first = bos >= 0 ? bos : 0;
    ht_sampling s;
    ht_gen_result r = {0};
    ht_sampling_init(&s);
    s.temp = 1;
    s.top_k = 0;
    s.top_p = 1;
    s.min_p = 0;
    s.seed = 1;
    ht_gen_params p = {.sampling = &s, .ignore_eos = 1, .max_new = deepest(w) - 1};
    HT_TRY(ht_session_generate(w->session, &first, 1, &p, &r, e));
    int rc = ht_session_truncate(w->session, 0, e);
    w->ids = ht_mem_array(r.n_ids + 1, sizeof *w->ids);
    if (!rc && !w->ids) rc = HT_FAIL(e, HT_ENOMEM, "kv-probe: no memory for %zu tokens", r.n_ids);
    if (!rc) {
        w->ids[0] = first;
        memcpy(w->ids + 1, r.ids, r.n_ids * sizeof *r.ids);
        w->n_ids = r.n_ids + 1;
    }
    ht_gen_result_done(&r);
    return rc;
}

static int read_text(work *w, const char *file, ht_err *e)
{
    size_t n, have;
    int32_t *ids;
    HT_TRY(cli__read_file(file, CLI_TEXT_MAX, &w->text, &n, e));
    HT_TRY(ht_vocab_encode(ht_engine_vocab(w->engine), w->text, n, HT_TOK_BOS, &ids, &have, e));
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n_depths; i++)
        if (w->depth[i] <= have) w->depth[kept++] = w->depth[i];
    if (kept == 0 && have >= WINDOW) w->depth[kept++] = (uint32_t)have;
    w->n_depths = kept;
    w->n_ids = kept ? deepest(w) : 0;
    w->ids = ht_mem_array(w->n_ids + 1, sizeof *w->ids);
    if (w->ids) memcpy(w->ids, ids, w->n_ids * sizeof *ids);
    ht_free(ids);
    if (!w->ids) return HT_FAIL(e, HT_ENOMEM, "kv-probe: no memory for %zu tokens", have);
    if (kept) return 0;
    return HT_FAIL(e, HT_EARG, "%s: %zu tokens; at least %d are needed", file, have, WINDOW);
}

static int make_room(work *w, ht_err *e)
{
    w->n_logits = ht_engine_n_logits(w->engine);
    w->want = ht_mem_array((size_t)w->n_depths * ROWS, sizeof *w->want);
    w->ref = ht_mem_array((size_t)w->n_depths * ROWS * w->n_logits, sizeof *w->ref);
    if (!w->want || !w->ref) return HT_FAIL(e, HT_ENOMEM, "kv-probe: no memory for the logits");
    for (uint32_t i = 0; i + 1 < w->n_ids; i++) {
        bool wanted = false;
        for (uint32_t d = 0; d < w->n_depths; d++)
            wanted = wanted || (i + WINDOW >= w->depth[d] && i + 1 < w->depth[d]);
        if (wanted) w->want[w->n_want++] = i;
    }
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static size_t types(const char *given, const char *const *by_default, const char *out[MAX_TYPES])
{
    size_t n = 0;
    if (given) out[n++] = given;
    for (; !given && by_default[n]; n++) out[n] = by_default[n];
    return n;
}

static int out_result(work *w, const char *file, ht_err *e)
{
    ht_buf b;
    ht_jw j;
    ht_buf_init(&b, 0);
    if (w->c->json) {
        ht_jw_init(&j, &b, 0);
        ht_jw_obj(&j);
        ht_jw_kstr(&j, "model", w->c->model);
        ht_jw_kstr(&j, "text", file ? file : "written by the model, seed 1");
        ht_jw_kuint(&j, "tokens", w->n_ids);
        ht_jw_kreal(&j, "gateMeanKl", HT_KV_GATE_KL);
        ht_jw_kreal(&j, "gatePpl", HT_KV_GATE_PPL);
        ht_jw_key(&j, "rows");
        ht_jw_raw(&j, w->rows.p, w->rows.n);
        ht_jw_end(&j, '}');
    } else {
        ht_buf_fmt(&b, "mean KL from the F16 cache in nats, worst of depth");
        for (uint32_t d = 0; d < w->n_depths; d++) ht_buf_fmt(&b, " %u", w->depth[d]);
        ht_buf_fmt(&b, "; * passes the gate (KL %.2g, perplexity +%.1f %%)\nK \\ V     ",
                   HT_KV_GATE_KL, 100 * HT_KV_GATE_PPL);
        for (size_t v = 0; v < w->n_v; v++) ht_buf_fmt(&b, " %9s ", w->v[v]);
        ht_buf_fmt(&b, "\n%.*s", (int)w->table.n, w->table.p ? w->table.p : "");
    }
    int rc = ht_buf_ok(&b, "kv-probe", e);
    if (!rc) rc = w->c->json ? cli__out_json(b.p, b.n, e) : cli__out(b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}

static int run(work *w, ht_err *e)
{
    cli__ctx *c = w->c;
    const ht_opts *o = c->o;
    HT_TRY(cli__model(c, false, e));
    const char *file;
    HT_TRY(cli__file_word(c, &file, e));
    w->n_k = types(ht_opt_given(o, HT_OPT_CTK) ? ht_opt_str(o, HT_OPT_CTK) : NULL, default_k, w->k);
    w->n_v = types(ht_opt_given(o, HT_OPT_CTV) ? ht_opt_str(o, HT_OPT_CTV) : NULL, default_v, w->v);
    cli__engine_params(c, 0, &w->params);
    w->params.kv_force = 1;
    w->evict = w->params.evict;
    if (w->evict && ht_opt_on(o, HT_OPT_SAVE))
        return HT_FAIL(e, HT_EARG, "--save with --evict: what the store keeps is for whole caches");
    HT_TRY(read_depths(w, UINT32_MAX, e));
    if (!file && !ht_opt_given(o, HT_OPT_KV_DEPTHS)) w->n_depths = 1, w->depth[0] = MADE_DEPTH;
    if (!w->params.ctx) w->params.ctx = cli__ctx_for(c, deepest(w), deepest(w));
    w->reference = true;
    HT_TRY(open_engine(w, "f16", "f16", e));
    HT_TRY(file ? read_text(w, file, e) : make_text(w, e));
    HT_TRY(make_room(w, e));
    HT_TRY(evaluate(w, "f16", "f16", e));
    w->reference = false;
    ht_buf_fmt(&w->rows, "[");
    for (size_t k = 0; k < w->n_k; k++) {
        ht_buf_fmt(&w->table, "%-9s", w->k[k]);
        for (size_t v = 0; v < w->n_v; v++) {
            HT_TRY(probe(w, w->k[k], w->v[v], e));
            if (cli__progress(c, "pairs of types", k * w->n_v + v + 1, w->n_k * w->n_v))
                return HT_FAIL(e, HT_ECANCELLED, "cancelled");
        }
        ht_buf_fmt(&w->table, "\n");
    }
    ht_buf_fmt(&w->rows, "]");
    cli__progress_end(c);
    return out_result(w, file, e);
}

int cli__kv_probe(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    ht_buf_init(&w.rows, 0);
    ht_buf_init(&w.table, 0);
    int rc = run(&w, e);
    close_engine(&w);
    ht_buf_done(&w.rows);
    ht_buf_done(&w.table);
    ht_mem_free(w.text);
    ht_mem_free(w.ids);
    ht_mem_free(w.want);
    ht_mem_free(w.ref);
    return rc;
}
