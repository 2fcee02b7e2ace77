/* batch.c - steps of several generations: who shares a pass over the weights, and what each makes
 * of its rows. A row's result does not depend on the rows beside it (product.md 4), so how passes
 * are put together is free. */
#include "api/gen.h"
#include "api/route.h"
#include "api/whole.h"
#include "core/clock.h"
#include <string.h>

/* One pass being put together. */
typedef struct {
    ht_engine *e;
    ht_gen *gen[API_BATCH_SEQS];
    api__part part[API_BATCH_SEQS];
    uint32_t n, rows, n_want, n_prompt;
    const api__plan *plan;
} pass;

/* What a step still has to do. */
typedef struct {
    ht_engine *e;
    ht_gen *const *gen;
    size_t n;
    uint32_t prompt_rows; /* rows of prompts that may still be run */
    ht_step_info info;
    uint64_t t0;
} step;

static int phase_of(const ht_gen *g)
{
    return g->state == HT_GEN_PROMPT ? API_PREFILL : API_DECODE;
}

/* Guesses of those that decode: together they have the rows of one pass. */
static void draft(step *st)
{
    uint32_t n = 0;
    for (size_t i = 0; i < st->n; i++) n += st->gen[i]->state == HT_GEN_DECODE;
    const uint32_t rows = st->e->batch.rows;
    for (size_t i = 0; i < st->n; i++) {
        ht_gen *g = st->gen[i];
        ht_err err = {0};
        g->pending = g->state != HT_GEN_DONE;
        g->k = 0;
        if (g->state != HT_GEN_DECODE) continue;
        /* The last token needs no row of its own, so no guess reaches it. */
        uint32_t most = g->room - g->n_out - 1;
        if (n > 1 && most > rows / n - 1) most = rows > n ? rows / n - 1 : 0;
        if (most > api__evict_room(g->s) - 1) most = api__evict_room(g->s) - 1;
        g->draft0 = ht_now_ns();
        const int rc = g->spec ? api__spec_draft(g->spec, most, &g->k, &err) : 0;
        g->draft1 = ht_now_ns();
        if (rc) api__gen_end(g, rc, &err);
    }
}

/* ---- putting a pass together ----------------------------------------------------------------- */

static bool same_place(const ht_gen *a, const ht_gen *b)
{
    const api__phase *p = &a->phase[phase_of(a)], *q = &b->phase[phase_of(b)];
    return p->unit == q->unit && p->flags == q->flags;
}

/* Rows that g may bring beside what is in the pass; 0: none. */
static uint32_t rows_for(const step *st, const pass *p, const ht_gen *g)
{
    const api__batch *b = &st->e->batch;
    const bool prompt = g->state == HT_GEN_PROMPT;
    const uint32_t own = g->phase[API_PREFILL].ubatch, chunk = own ? own : st->e->ubatch;
    uint32_t rows = prompt ? g->n - g->at : g->k + 1;
    if (prompt && api__is_whole(&g->phase[API_PREFILL])) return p->n || !st->prompt_rows ? 0 : rows;
    if (prompt && rows > st->prompt_rows) rows = st->prompt_rows;
    if (prompt && rows > chunk) rows = chunk;
    if (rows > api__evict_room(g->s)) rows = api__evict_room(g->s);
    if (!p->n) return rows;
    if (p->n_prompt && api__is_whole(&p->gen[0]->phase[API_PREFILL])) return 0;
    const uint32_t want = prompt ? 1 : rows;
    if (b->seqs < 2 || p->n == b->seqs || !same_place(p->gen[0], g)) return 0;
    if (p->n_want + want > b->rows) return 0;
    /* Prompts, alone or beside decode rows, use the long plan; decode rows alone the short one. */
    const uint32_t cap = prompt || p->n_prompt ? st->e->ubatch : b->rows;
    if (p->rows >= cap) return 0;
    if (prompt && rows > cap - p->rows) rows = cap - p->rows;
    return p->rows + rows <= cap ? rows : 0;
}

static void add(step *st, pass *p, ht_gen *g, uint32_t rows)
{
    ht_session *s = g->s;
    const bool prompt = g->state == HT_GEN_PROMPT;
    api__part *part = &p->part[p->n];
    *part = (api__part){.s = s,
                        .phase = phase_of(g),
                        .ids = prompt ? g->ids + g->at : s->hist + ht_seq_len(s->seq),
                        .n = rows,
                        .want = s->want};
    if (!prompt) {
        for (uint32_t i = 0; i < rows; i++) s->want[i] = i;
        part->n_want = rows;
    } else {
        s->want[0] = rows - 1;
        part->n_want = g->at + rows == g->n;
        st->prompt_rows -= rows < st->prompt_rows ? rows : st->prompt_rows;
        p->n_prompt++;
    }
    p->gen[p->n++] = g;
    p->rows += rows;
    p->n_want += part->n_want;
    g->pending = false;
}

static void gather(step *st, pass *p)
{
    *p = (pass){.e = st->e};
    for (size_t i = 0; i < st->n; i++) {
        ht_gen *g = st->gen[i];
        if (!g->pending) continue;
        const uint32_t rows = rows_for(st, p, g);
        if (rows) add(st, p, g, rows);
        else if (!p->n) g->pending = false; /* a prompt, and no rows for prompts are left */
    }
}

static int choose_plan(pass *p, ht_err *err)
{
    ht_gen *g = p->gen[0];
    ht_engine *e = p->e;
    memcpy(e->phase, g->phase, sizeof e->phase);
    if (p->n > 1) return api__plan_shared(e, p->n_prompt ? API_PREFILL : API_DECODE, &p->plan, err);
    if (g->state == HT_GEN_PROMPT) {
        const uint32_t own = g->phase[API_PREFILL].ubatch;
        return api__plan_get(e, API_PREFILL, own ? own : e->ubatch, 1, &p->plan, err);
    }
    if (!g->k) return api__plan_get(e, API_DECODE, 1, 1, &p->plan, err);
    p->plan = api__spec_plan(g->spec);
    return 0;
}

/* ---- running it ------------------------------------------------------------------------------ */

/* Without part i. */
static void leave_out(pass *p, uint32_t i)
{
    p->rows -= p->part[i].n;
    p->n_want -= p->part[i].n_want;
    p->n_prompt -= p->gen[i]->state == HT_GEN_PROMPT;
    p->n--;
    memmove(p->gen + i, p->gen + i + 1, (p->n - i) * sizeof *p->gen);
    memmove(p->part + i, p->part + i + 1, (p->n - i) * sizeof *p->part);
}

/* Before its first token a generation whose route broke is begun once more, on the reference; then
 * and for any other fault it ends. */
static void end_or_retry(ht_gen *g, int rc, const ht_err *err)
{
    const bool broke = rc == HT_EDEVICE || rc == HT_ENOMEM || rc == HT_EUNSUPPORTED ||
                       (rc == HT_EFULL && api__is_whole(&g->phase[API_PREFILL]));
    ht_session *s = g->s;
    ht_err why = {0};
    if (broke && g->n_out == 0 && !s->rec.n_attempts &&
        (api__route_retry(s) || api__whole_retry(s, rc, err)) &&
        ht_seq_truncate(s->seq, 0, &why) == 0) {
        api__attempt_end(&s->rec, rc);
        memcpy(g->phase, s->e->phase, sizeof g->phase);
        memcpy(s->rec.phase, s->e->phase, sizeof s->rec.phase);
        g->state = HT_GEN_PROMPT;
        g->at = s->rec.n_kept = 0;
        g->k = 0;
        g->pending = true;
        return;
    }
    api__gen_end(g, rc, err);
}

/* End whoever made the run fail; the others are run again. Nobody in particular: all. */
static void sort_out(pass *p, int rc, uint32_t culprit, const ht_err *err)
{
    bool any = false;
    for (uint32_t i = p->n; i-- > 0;) {
        const bool gone = atomic_load(&p->gen[i]->s->cancel) != 0;
        if (rc == HT_ECANCELLED ? !gone : i != culprit) continue;
        end_or_retry(p->gen[i], rc, err);
        leave_out(p, i);
        any = true;
    }
    if (any) return;
    for (uint32_t i = p->n; i-- > 0;) end_or_retry(p->gen[i], rc, err);
    p->n = 0;
}

/* A part of a prompt was run; behind the last one comes the first token. */
static int prompt_done(ht_gen *g, uint32_t rows, const float *logits, ht_err *err)
{
    const uint32_t kept = g->s->rec.n_kept;
    g->at += rows;
    if (g->p.on_prefill && g->p.on_prefill(g->p.user, "prompt tokens", g->at - kept, g->n - kept)) {
        g->finish = HT_FINISH_CANCEL;
        return 0;
    }
    if (g->at < g->n) return 0;
    const uint64_t t0 = ht_now_ns();
    g->state = HT_GEN_DECODE;
    const int rc = api__gen_take_first(g, logits, err);
    g->s->rec.wall_ns[API_DECODE] += ht_now_ns() - t0;
    return rc;
}

/* Hand the rows out, in the order of the parts. run_ns: of the run; its cost is shared by rows. */
static void hand_out(step *st, pass *p, const float *logits, uint64_t run_ns)
{
    const uint32_t vocab = st->e->model->spec.vocab;
    for (uint32_t i = 0; i < p->n; i++) {
        ht_gen *g = p->gen[i];
        const api__part *part = &p->part[i];
        const uint32_t pos = ht_seq_len(g->s->seq), before = g->n_out;
        const bool prompt = g->state == HT_GEN_PROMPT;
        ht_err err = {0};
        int rc;
        if (prompt) {
            g->s->rec.wall_ns[API_PREFILL] += run_ns;
            st->info.prompt_rows += part->n;
            rc = prompt_done(g, part->n, logits, &err);
        } else {
            st->info.decode_rows += part->n;
            rc = api__gen_take_rows(g, p->plan, logits, pos - part->n + 1, g->k,
                                    run_ns * part->n / p->rows, &err);
            g->s->rec.wall_ns[API_DECODE] += ht_now_ns() - st->t0;
        }
        st->info.keys += (uint64_t)part->n * pos - (uint64_t)part->n * (part->n - 1) / 2;
        st->info.tokens += g->n_out - before;
        logits += (size_t)part->n_want * vocab;
        if (rc || g->finish) api__gen_end(g, rc, &err);
    }
}

/* ---- several tokens a run -------------------------------------------------------------------- */

/* Tokens that the pass may make in one run on the device; 0: it is a plain step. A lone answer's
 * only: beside others each token shares its pass over the weights. */
static uint32_t chain_steps(const step *st, const pass *p)
{
    const ht_gen *g = p->gen[0];
    uint32_t live = 0, steps = API_CHAIN;
    for (size_t i = 0; i < st->n; i++) live += st->gen[i]->state != HT_GEN_DONE;
    if (live != 1 || !g->chain || g->state != HT_GEN_DECODE || g->k) return 0;
    /* The text comes in pieces as long as a run, and so does a caller's chance to end it. */
    const uint64_t most = (uint64_t)API_CHAIN_MS * 1000000;
    if (g->s->step_ns && most / g->s->step_ns < steps) steps = (uint32_t)(most / g->s->step_ns);
    if (steps > g->room - g->n_out) steps = g->room - g->n_out;
    if (g->spec && steps > api__spec_plain(g->spec)) steps = api__spec_plain(g->spec);
    return steps;
}

/* Run it so and take what came. *ran: it was run, to its end or an error; else nothing has changed
 * and a plain step is due. */
static int chain(step *st, pass *p, bool *ran, ht_err *err)
{
    ht_gen *g = p->gen[0];
    const uint32_t steps = chain_steps(st, p), pos = ht_seq_len(g->s->seq), before = g->n_out;
    const int32_t *ids = NULL, *end = NULL;
    const size_t n_end = g->p.ignore_eos ? 0 : ht_tok_eog(st->e->tok, &end);
    uint32_t n = 0;
    *ran = false;
    if (steps < 2) return 0;
    memcpy(st->e->phase, g->phase, sizeof g->phase);
    HT_TRY(api__plan_chain(st->e, &p->plan, err));
    if (!p->plan) return 0;
    int rc = api__run_chain(g->s, p->plan, steps, end, n_end, &ids, &n, err);
    if (rc == HT_EFULL) return 0; /* one position may be left */
    *ran = true;
    if (rc) return rc;
    st->info.passes += n;
    st->info.decode_rows += n;
    st->info.keys += (uint64_t)n * (pos + 1) + (uint64_t)n * (n - 1) / 2;
    rc = api__gen_take_ids(g, p->plan, ids, n, pos + 1, err);
    g->s->rec.wall_ns[API_DECODE] += ht_now_ns() - st->t0;
    st->info.tokens += g->n_out - before;
    if (rc || g->finish) api__gen_end(g, rc, err);
    return 0;
}

static void run(step *st, pass *p)
{
    while (p->n) {
        const float *logits = NULL;
        ht_err err = {0};
        uint32_t culprit = p->n;
        bool ran = false;
        int rc = chain(st, p, &ran, &err);
        if (ran && !rc) return;
        if (!rc) rc = choose_plan(p, &err);
        const uint64_t t0 = ht_now_ns();
        if (!rc) rc = api__run_parts(st->e, p->plan, p->part, p->n, &logits, &culprit, &err);
        if (!rc) {
            st->info.passes++;
            hand_out(st, p, logits, ht_now_ns() - t0);
            return;
        }
        sort_out(p, rc, culprit, &err);
    }
}

void api__gen_step(ht_engine *e, ht_gen *const *gen, size_t n, uint32_t prompt_rows,
                   ht_step_info *info)
{
    step st = {.e = e, .gen = gen, .n = n, .prompt_rows = prompt_rows, .t0 = ht_now_ns()};
    if (!prompt_rows) st.prompt_rows = e->ubatch;
    for (size_t i = 0; i < n; i++)
        if (gen[i]->state != HT_GEN_DONE && atomic_load(&gen[i]->s->cancel))
            api__gen_end(gen[i], HT_ECANCELLED, NULL);
    draft(&st);
    for (pass p;;) {
        gather(&st, &p);
        if (!p.n) break;
        run(&st, &p);
    }
    st.info.ns = ht_now_ns() - st.t0;
    if (info) *info = st.info;
}
