/* verdict_write.c - the documents of a verdict, canonical: members are written in byte order. */
#include "evid/bundle_read.h"
#include "evid/verdict.h"
#include <string.h>

const char *const ht_bundle_outputs[] = {"analysis/pairs.json",
                                         "analysis/quality.json",
                                         "analysis/stats.json",
                                         "analysis/tails.json",
                                         "costmap.json",
                                         "verdict.json",
                                         NULL};

static void known_or(ht_jw *w, const char *key, uint64_t v, const char *reason)
{
    if (v) ht_jw_kuint(w, key, v);
    else ht_jw_unknown(w, key, reason);
}

static void write_pair_list(ht_jw *w, const char *key, const ht_pairs *p)
{
    ht_jw_key(w, key);
    ht_jw_arr(w);
    for (uint32_t i = 0; i < p->n; i++) {
        ht_jw_obj(w);
        known_or(w, "candNs", p->pair[i].cand_ns, "FAILED");
        ht_jw_kuint(w, "pairId", p->pair[i].pair);
        ht_jw_kuint(w, "ratioPpm", p->pair[i].ratio_ppm);
        known_or(w, "refNs", p->pair[i].ref_ns, "FAILED");
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* A statistic as an object, its members in the order of canonical JSON; tests: with the counts of
 * its tests, as in a verdict's reasons. */
static void stat_object(ht_jw *w, const char *key, const ht_stat *s, bool tests)
{
    ht_jw_key(w, key);
    ht_jw_obj(w);
    ht_jw_kuint(w, "hiPpm", s->hi);
    ht_jw_kuint(w, "hlPpm", s->hl);
    ht_jw_kuint(w, "loPpm", s->lo);
    ht_jw_kuint(w, "losses", s->losses);
    ht_jw_kuint(w, "maxPpm", s->max);
    ht_jw_kuint(w, "minPpm", s->min);
    ht_jw_kuint(w, "n", s->n);
    if (tests) ht_jw_kuint(w, "signNum", s->sign.num);
    ht_jw_kuint(w, "ties", s->ties);
    if (tests) ht_jw_kuint(w, "wilcoxonNum", s->wilcoxon.num);
    ht_jw_kuint(w, "wins", s->wins);
    ht_jw_end(w, '}');
}

void evid__write_stat(ht_jw *w, const char *key, const ht_stat *s, bool known, const char *reason)
{
    if (known) stat_object(w, key, s, false);
    else ht_jw_unknown(w, key, reason);
}

static void write_stat(ht_jw *w, const char *key, const ht_pairs *p)
{
    if (p->has_stat) stat_object(w, key, &p->stat, true);
    else ht_jw_unknown(w, key, p->ref_failed ? "REFERENCE_FAILED" : "TOO_FEW");
}

static const char *tail_name(int tail)
{
    return tail == HT_TAIL_PASS ? "PASS" : tail == HT_TAIL_FAIL ? "FAIL" : "TOO_FEW";
}

static void write_cell(ht_jw *w, const ht_evidence *v, const ht_analysis *x, size_t i, size_t doc)
{
    const ht_cell *c = &v->design.cell[i];
    const ht_cell_result *r = &x->cell[i];
    ht_jw_obj(w);
    if (doc == 2) ht_jw_kbool(w, "holm", r->holm);
    ht_jw_kstr(w, "id", c->id);
    if (doc == 0) {
        ht_jw_kstr(w, "metric", ht_metric_names[c->metric]);
        write_pair_list(w, "nullPairs", &r->null_run);
        write_pair_list(w, "pairs", &r->main);
    } else if (doc == 2) {
        write_stat(w, "main", &r->main);
        write_stat(w, "nullRun", &r->null_run);
    } else {
        ht_jw_kuint(w, "misses", r->misses);
        known_or(w, "p95UcbNs", r->p95_ucb, "TOO_FEW");
        ht_jw_kuint(w, "requests", r->requests);
        ht_jw_kstr(w, "result", tail_name(r->tail));
        ht_jw_kuint(w, "sloNs", r->slo_ns);
        ht_jw_kuint(w, "worstPair", r->worst_pair);
    }
    ht_jw_end(w, '}');
}

static void write_cells(ht_jw *w, const ht_evidence *v, const ht_analysis *x, size_t doc,
                        const char *schema)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "bundleId", v->in->sha256);
    ht_jw_key(w, "cells");
    ht_jw_arr(w);
    for (size_t i = 0; i < v->design.n_cells; i++) write_cell(w, v, x, i, doc);
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "policySha256", v->policy.sha256);
    ht_jw_kstr(w, "schema", schema);
    ht_jw_end(w, '}');
}

static void write_quality(ht_jw *w, const ht_evidence *v)
{
    const ht_quality_counts *q = &v->quality;
    ht_jw_obj(w);
    ht_jw_kstr(w, "bundleId", v->in->sha256);
    if (!q->present) {
        ht_jw_unknown(w, "counts", "NOT_RUN");
    } else {
        ht_jw_key(w, "counts");
        ht_jw_obj(w);
        ht_jw_kuint(w, "exactPrompts", q->exact);
        ht_jw_kuint(w, "kldP999Nano", q->kld_p999_nano);
        ht_jw_kuint(w, "kldSumNano", q->kld_sum_nano);
        ht_jw_kuint(w, "lenCand", q->len_cand);
        ht_jw_kuint(w, "lenRef", q->len_ref);
        ht_jw_kuint(w, "positions", q->positions);
        ht_jw_kuint(w, "prompts", q->prompts);
        ht_jw_kuint(w, "tasks", q->tasks);
        ht_jw_kuint(w, "tasksLost", q->lost);
        ht_jw_kuint(w, "tasksWon", q->won);
        ht_jw_kuint(w, "tokens", q->tokens);
        ht_jw_kuint(w, "tokensAgree", q->agree);
        ht_jw_kuint(w, "top1", q->top1);
        ht_jw_end(w, '}');
    }
    ht_jw_kstr(w, "policySha256", v->policy.sha256);
    ht_jw_kstr(w, "schema", "hetero/quality/1");
    ht_jw_end(w, '}');
}

static void write_verdict(ht_jw *w, const ht_evidence *v, const ht_analysis *x)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "bundleId", v->in->sha256);
    ht_jw_key(w, "cells");
    ht_jw_arr(w);
    for (size_t i = 0; i < v->design.n_cells; i++) {
        const ht_cell_result *r = &x->cell[i];
        ht_jw_obj(w);
        ht_jw_kstr(w, "class", ht_class_names[r->cls]);
        ht_jw_key(w, "gates");
        ht_jw_arr(w);
        for (unsigned g = 0; g < HT_GATES; g++) {
            ht_jw_obj(w);
            ht_jw_kstr(w, "gate", ht_gate_names[g]);
            ht_jw_kstr(w, "reason", r->why[g]);
            ht_jw_kstr(w, "result", ht_gate_result_names[r->gate[g]]);
            ht_jw_end(w, '}');
        }
        ht_jw_end(w, ']');
        ht_jw_kstr(w, "id", v->design.cell[i].id);
        ht_jw_kstr(w, "scopeSha256", v->design.cell[i].scope_sha);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "class", ht_class_names[x->cls]);
    ht_jw_kbool(w, "hardwareEvidence", x->hardware_evidence);
    ht_jw_kstr(w, "policySha256", v->policy.sha256);
    ht_jw_kbool(w, "productionEligible", x->production_eligible);
    ht_jw_kstr(w, "schema", "hetero/verdict/1");
    ht_jw_end(w, '}');
}

/* ---- cost map -------------------------------------------------------------------------------- */

static void write_ratio(ht_jw *w, const ht_pairs *p)
{
    if (!p->has_stat) {
        ht_jw_unknown(w, "ratioPpm", "NO_STATISTICS");
        return;
    }
    ht_jw_key(w, "ratioPpm");
    ht_jw_obj(w);
    ht_jw_kuint(w, "hi", p->stat.hi);
    ht_jw_kuint(w, "hl", p->stat.hl);
    ht_jw_kuint(w, "lo", p->stat.lo);
    ht_jw_end(w, '}');
}

static void write_entry(ht_jw *w, const ht_evidence *v, const ht_cell *c, const ht_cell_result *r)
{
    ht_jw_obj(w);
    ht_jw_key(w, "costNs");
    ht_jw_obj(w);
    known_or(w, "p50", r->p50, "FAILED");
    known_or(w, "p50Ucb", r->p50_ucb, "FAILED");
    known_or(w, "p95Ucb", r->p95_ucb, "TOO_FEW");
    known_or(w, "refP50Lcb", r->ref_p50_lcb, "FAILED");
    ht_jw_end(w, '}');
    ht_jw_kuint(w, "memPeakBytes", v->mem_peak);
    ht_jw_kuint(w, "n", r->main.stat.n);
    ht_jw_kbool(w, "negative", false);
    ht_jw_key(w, "quality");
    ht_jw_obj(w);
    ht_jw_kstr(w, "gate", ht_gate_result_names[r->gate[HT_GATE_QUALITY]]);
    ht_jw_kstr(w, "sha256", v->quality.sha256);
    ht_jw_end(w, '}');
    write_ratio(w, &r->main);
    ht_jw_kstr(w, "refScopeSha256", c->ref_sha);
    ht_jw_kstr(w, "scopeSha256", c->scope_sha);
    ht_jw_kuint(w, "warmupNs", v->warmup_ns);
    ht_jw_end(w, '}');
}

static void write_negative(ht_jw *w, const ht_cell *c, const ht_cell_result *r)
{
    ht_jw_obj(w);
    write_ratio(w, &r->main);
    ht_jw_kstr(w, "scopeSha256", c->scope_sha);
    ht_jw_kstr(w, "verdict", ht_class_names[r->cls]);
    ht_jw_end(w, '}');
}

static void write_costmap(ht_jw *w, const ht_evidence *v, const ht_analysis *x)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "bundleId", v->in->sha256);
    ht_jw_key(w, "edges");
    ht_jw_arr(w);
    for (size_t i = 0; i < v->n_edges; i++) {
        ht_jw_obj(w);
        ht_jw_kuint(w, "fixedNs", v->edge[i].fixed_ns);
        ht_jw_kstr(w, "from", v->edge[i].from);
        ht_jw_kstr(w, "kind", v->edge[i].kind);
        ht_jw_kuint(w, "nsPerToken", v->edge[i].ns_per_token);
        ht_jw_kstr(w, "to", v->edge[i].to);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_key(w, "entries");
    ht_jw_arr(w);
    for (size_t i = 0; i < v->design.n_cells; i++)
        if (x->cell[i].cls == HT_QUALIFIED) write_entry(w, v, &v->design.cell[i], &x->cell[i]);
    ht_jw_end(w, ']');
    ht_jw_key(w, "negatives"); /* every cell is an entry or a negative: none disappears */
    ht_jw_arr(w);
    for (size_t i = 0; i < v->design.n_cells; i++)
        if (x->cell[i].cls != HT_QUALIFIED) write_negative(w, &v->design.cell[i], &x->cell[i]);
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "policySha256", v->policy.sha256);
    ht_jw_kstr(w, "schema", "hetero/costmap/1");
    ht_jw_end(w, '}');
}

int ht_analysis_write(const ht_evidence *v, const ht_analysis *x, size_t i, ht_buf *out, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, out, HT_JSON_CANON);
    switch (i) {
    case 0: write_cells(&w, v, x, 0, "hetero/pairs/1"); break;
    case 1: write_quality(&w, v); break;
    case 2: write_cells(&w, v, x, 2, "hetero/stats/1"); break;
    case 3: write_cells(&w, v, x, 3, "hetero/tails/1"); break;
    case 4: write_costmap(&w, v, x); break;
    case 5: write_verdict(&w, v, x); break;
    default: return HT_FAIL(e, HT_EARG, "there is no output %zu", i);
    }
    return ht_buf_ok(out, "analysis", e);
}
