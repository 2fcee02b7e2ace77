/* edge.c - what it costs that a prompt computed by one engine is decoded by another: the pair of
 * both against the engine that the prompt's price was measured with and against the decoding engine
 * alone. Where both engines address the same pages nothing is copied, and what is left is caches
 * that hold other lines and threads that were another engine's; else it is the copies that no
 * computing hides. */
#include "cli/edge.h"
#include "core/json.h"
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 8, EDGES = 3, OPENED = 2 };
static const char reference[] = "cpu";

/* ---- engines --------------------------------------------------------------------------------- */

/* Opened for one edge beside those of the experiment. */
typedef struct {
    cli__ctx *c;
    const cli__edges *x;
    ht_arena *arena;
    ht_engine *own[OPENED];
    int n;
} opened;

/* Does --candidate name engines and nothing else, so that the reference has its settings? */
static bool bare(const char *spec)
{
    static const char *const key[] = {"engine=", "prefill-engine=", "decode-engine="};
    while (*spec) {
        bool known = false;
        for (size_t i = 0; i < sizeof key / sizeof *key; i++)
            known = known || strncmp(spec, key[i], strlen(key[i])) == 0;
        if (!known) return false;
        spec += strcspn(spec, ",");
        spec += *spec == ',';
    }
    return true;
}

/* Prefill on one engine and decode on another, under the candidate's settings: between any two of
 * these arms the engines are all that differs. */
static int arm(opened *o, const char *prefill, const char *decode, ht_engine **out, ht_err *e)
{
    const cli__edges *x = o->x;
    ht_engine_params p;
    if (!strcmp(prefill, x->prefill.engine) && !strcmp(decode, x->decode.engine)) {
        *out = x->cand;
        return 0;
    }
    if (!strcmp(prefill, reference) && !strcmp(decode, reference) && bare(x->spec)) {
        *out = x->ref;
        return 0;
    }
    cli__engine_params(o->c, x->ctx, &p);
    HT_TRY(cli__arm(o->arena, x->spec, &p, e));
    p.prefill_engine = prefill;
    p.decode_engine = decode;
    /* Under act f16 only prompts are computed so, and the reference's are not. */
    if (p.act && !strcmp(p.act, "f16") && !strcmp(prefill, reference) && !strcmp(decode, reference))
        p.act = "f32";
    if (strcmp(prefill, x->prefill.engine) != 0) p.graph = NULL; /* settings of that engine alone */
    HT_TRY(ht_engine_open(out, &p, e));
    o->own[o->n++] = *out;
    return 0;
}

/* ---- one edge -------------------------------------------------------------------------------- */

/* Nanoseconds of a prompt of n tokens and of the step behind it. */
typedef struct {
    uint64_t prompt, step;
} took;
static int one_run(ht_engine *engine, const int32_t *ids, uint32_t n, took *t, ht_err *e)
{
    ht_session *s;
    ht_sampling greedy;
    ht_gen_result r = {0};
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = 2, .sampling = &greedy, .ignore_eos = 1, .no_prefix = 1};
    HT_TRY(ht_session_new(&s, engine, e));
    const int rc = ht_session_generate(s, ids, n, &p, &r, e);
    *t = (took){r.prompt_ns, r.decode_ns};
    ht_gen_result_done(&r);
    ht_session_free(s);
    return rc;
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* pair: both engines. priced: where prompts of the first were measured, the pair itself where that
 * was the candidate. alone: the second engine by itself. */
enum { PAIR, PRICED, ALONE, ARMS };

/* Upper bound of what the pair takes longer than the parts that cells have measured: of eight
 * differences the second greatest, above the median with 96 % (1 - 9/256). */
static int extra_ns(ht_engine *const engine[ARMS], const int32_t *ids, uint32_t n, uint64_t *ns,
                    ht_err *e)
{
    int64_t more[REPEATS];
    took t[ARMS] = {{0, 0}};
    for (int i = -1; i < REPEATS; i++) { /* the first time warms up */
        for (int k = 0; k < ARMS; k++) {
            const int a = (i + 1 + k) % ARMS;
            if (a == PRICED && engine[a] == engine[PAIR]) continue;
            HT_TRY(one_run(engine[a], ids, n, &t[a], e));
        }
        if (engine[PRICED] == engine[PAIR]) t[PRICED] = t[PAIR];
        if (i < 0) continue;
        more[i] =
            (int64_t)(t[PAIR].prompt + t[PAIR].step) - (int64_t)(t[PRICED].prompt + t[ALONE].step);
    }
    qsort(more, REPEATS, sizeof *more, by_size);
    *ns = more[REPEATS - 2] > 0 ? (uint64_t)more[REPEATS - 2] : 0;
    return 0;
}

typedef struct {
    const char *from, *to;        /* backends */
    const char *prefill, *decode; /* engines */
    uint32_t min, max;            /* lengths of prompts */
    uint64_t fixed_ns, token_ns;
} edge;

static int price(ht_engine *const engine[ARMS], edge *x, ht_err *e)
{
    uint64_t low = 0, high = 0;
    const uint32_t vocab = ht_vocab_size(ht_engine_vocab(engine[PAIR])), over = x->max - x->min;
    int32_t *ids = ht_mem_array(x->max, sizeof *ids);
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "hand-off: no memory for %u tokens", x->max);
    for (uint32_t i = 0; i < x->max; i++) ids[i] = (int32_t)((i * 7919 + 13) % vocab);
    int rc = extra_ns(engine, ids, x->min, &low, e);
    if (!rc && over) rc = extra_ns(engine, ids, x->max, &high, e);
    ht_mem_free(ids);
    const uint64_t more = high > low ? high - low : 0;
    x->fixed_ns = low;
    x->token_ns = over ? more / over + (more % over != 0) : 0;
    return rc;
}

/* *known false: this build or machine cannot pair the two, as said. */
static int measure(cli__ctx *c, const cli__edges *x, edge *g, bool *known, ht_err *e)
{
    opened o = {.c = c, .x = x};
    ht_engine *engine[ARMS];
    const bool own = strcmp(g->prefill, x->prefill.engine) == 0;
    cli__say(c, CLI_INFO, "measuring the hand-off from %s to %s", g->from, g->to);
    HT_TRY(ht_arena_new(&o.arena, 0, e));
    int rc = arm(&o, g->prefill, g->decode, &engine[PAIR], e);
    if (!rc) rc = arm(&o, g->decode, g->decode, &engine[ALONE], e);
    if (!rc && own) engine[PRICED] = x->cand;
    else if (!rc) rc = arm(&o, reference, reference, &engine[PRICED], e);
    *known = rc != HT_EUNSUPPORTED;
    if (!rc) rc = price(engine, g, e);
    while (o.n) ht_engine_close(o.own[--o.n]);
    ht_arena_free(o.arena);
    if (*known) return rc;
    cli__say(c, CLI_WARN, "warning: no hand-off from %s to %s, so no route will pair them: %s",
             g->from, g->to, e ? e->msg : "not supported");
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int by_names(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    const int c = strcmp(x->from, y->from);
    return c ? c : strcmp(x->to, y->to);
}

/* Prompts of the candidate before the reference's decode, prompts of the reference before the
 * candidate's, and the candidate's own two phases; never between settings of one engine. */
static size_t wanted(const cli__edges *x, edge list[EDGES])
{
    const cli__side *p = &x->prefill, *d = &x->decode;
    const bool other_p = strcmp(p->engine, reference) != 0,
               other_d = strcmp(d->engine, reference) != 0;
    size_t n = 0;
    if (p->max_tokens && other_p)
        list[n++] =
            (edge){p->backend, reference, p->engine, reference, p->min_tokens, p->max_tokens, 0, 0};
    if (d->max_tokens && other_d)
        list[n++] =
            (edge){reference, d->backend, reference, d->engine, d->min_tokens, d->max_tokens, 0, 0};
    if (p->max_tokens && d->max_tokens && other_p && other_d && strcmp(p->engine, d->engine) != 0)
        list[n++] = (edge){p->backend,
                           d->backend,
                           p->engine,
                           d->engine,
                           p->min_tokens < d->min_tokens ? p->min_tokens : d->min_tokens,
                           p->max_tokens > d->max_tokens ? p->max_tokens : d->max_tokens,
                           0,
                           0};
    qsort(list, n, sizeof *list, by_names);
    return n;
}

static int write_edges(const edge *list, size_t n_edges, char **text, size_t *n, ht_err *e)
{
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "edges");
    ht_jw_arr(&w);
    for (size_t i = 0; i < n_edges; i++) {
        ht_jw_obj(&w);
        ht_jw_kuint(&w, "fixedNs", list[i].fixed_ns);
        ht_jw_kstr(&w, "from", list[i].from);
        ht_jw_kstr(&w, "kind", "kvHandoff");
        ht_jw_kuint(&w, "nsPerToken", list[i].token_ns);
        ht_jw_kstr(&w, "to", list[i].to);
        ht_jw_end(&w, '}');
    }
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/edges/1");
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "hand-off costs", e);
    if (!rc) *text = ht_buf_take(&b, n);
    ht_buf_done(&b);
    return rc;
}

int cli__edges_measure(cli__ctx *c, const cli__edges *x, char **text, size_t *n, ht_err *e)
{
    edge list[EDGES];
    const size_t all = wanted(x, list);
    size_t kept = 0;
    *text = NULL;
    for (size_t i = 0; i < all; i++) {
        bool known = true;
        HT_TRY(measure(c, x, &list[i], &known, e));
        if (known) list[kept++] = list[i];
    }
    return kept ? write_edges(list, kept, text, n, e) : 0;
}
