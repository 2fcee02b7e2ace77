/* nfa.c - the builder of nfa.h, and what is checked of a finished grammar. */
#include "grammar/nfa.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int grammar__nfa_init(grammar__nfa *g, ht_err *e)
{
    *g = (grammar__nfa){.e = e};
    HT_TRY(ht_arena_new(&g->arena, (size_t)64 << 20, e));
    g->n_nodes = 1; /* node 0: G_RET */
    g->node_cap = 64;
    g->node = ht_mem_array(g->node_cap, sizeof *g->node);
    if (g->node) return 0;
    grammar__nfa_done(g);
    return HT_FAIL(e, HT_ENOMEM, "no memory for a grammar");
}

void grammar__nfa_done(grammar__nfa *g)
{
    ht_mem_free(g->node);
    ht_mem_free(g->rule);
    ht_mem_free(g->set);
    ht_arena_free(g->arena);
    *g = (grammar__nfa){0};
}

void grammar__fail(grammar__nfa *g, int code, const char *fmt, ...)
{
    char text[sizeof g->e->msg];
    va_list ap;
    if (g->rc) return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->rc = HT_FAIL(g->e, code, "%s", text);
}

bool grammar__ok(const grammar__nfa *g)
{
    return g->rc == 0;
}

/* Room for one more item of an array of *cap; false when the build failed. */
static bool grow(grammar__nfa *g, void **p, uint32_t n, uint32_t *cap, uint32_t max, size_t size,
                 const char *what)
{
    if (g->rc) return false;
    if (n < *cap) return true;
    if (n >= max) {
        grammar__fail(g, HT_EUNSUPPORTED,
                      "the grammar needs more than %u %s; make the schema or grammar smaller", max,
                      what);
        return false;
    }
    const uint32_t want = *cap ? *cap * 2 : 64;
    void *q = ht_mem_resize(*p, (size_t)want * size);
    if (!q) {
        grammar__fail(g, HT_ENOMEM, "no memory for %u %s of a grammar", want, what);
        return false;
    }
    *p = q;
    *cap = want;
    return true;
}

static uint32_t node(grammar__nfa *g, grammar__node n)
{
    void *p = g->node;
    if (!grow(g, &p, g->n_nodes, &g->node_cap, G_NODES, sizeof n, "nodes")) return 0;
    g->node = p;
    g->node[g->n_nodes] = n;
    return g->n_nodes++;
}

/* ---- rules ----------------------------------------------------------------------------------- */

uint32_t grammar__rule_new(grammar__nfa *g, const char *name)
{
    void *p = g->rule;
    if (!grow(g, &p, g->n_rules, &g->rule_cap, G_RULES, sizeof *g->rule, "rules")) return 0;
    g->rule = p;
    const char *copy = ht_arena_strndup(g->arena, name, strlen(name));
    if (!copy) grammar__fail(g, HT_ENOMEM, "no memory for the name of a rule");
    g->rule[g->n_rules] = (grammar__rule){.name = copy ? copy : ""};
    return g->n_rules++;
}

void grammar__rule_set(grammar__nfa *g, uint32_t rule, uint32_t start)
{
    if (g->rc) return;
    g->rule[rule].start = start;
    g->rule[rule].defined = true;
}

uint32_t grammar__call(grammar__nfa *g, uint32_t rule, bool nest, uint32_t next)
{
    return node(g, (grammar__node){.op = G_CALL, .nest = nest, .a = next, .b = rule});
}

uint32_t grammar__repeat(grammar__nfa *g, uint32_t rule, uint32_t min, uint32_t max, uint32_t next)
{
    if (max == 0) return next;
    return node(g, (grammar__node){.op = G_REP, .a = next, .b = rule, .min = min, .max = max});
}

/* ---- pieces ---------------------------------------------------------------------------------- */

uint32_t grammar__bytes(grammar__nfa *g, const grammar__set *s, uint32_t next)
{
    uint32_t at = g->n_sets;
    /* The newest are the likeliest: a class and its neighbours come together. */
    while (at > 0 && memcmp(&g->set[at - 1], s, sizeof *s) != 0) at--;
    if (at == 0) {
        void *p = g->set;
        if (!grow(g, &p, g->n_sets, &g->set_cap, G_SETS, sizeof *s, "distinct byte sets")) return 0;
        g->set = p;
        g->set[g->n_sets] = *s;
        at = ++g->n_sets;
    }
    return node(g, (grammar__node){.op = G_SET, .a = next, .b = at - 1});
}

uint32_t grammar__range(grammar__nfa *g, uint8_t lo, uint8_t hi, uint32_t next)
{
    grammar__set s = {{0}};
    for (unsigned b = lo; b <= hi; b++) grammar__set_add(&s, b);
    return grammar__bytes(g, &s, next);
}

uint32_t grammar__lit(grammar__nfa *g, const char *s, size_t n, uint32_t next)
{
    while (n > 0) {
        const uint8_t b = (uint8_t)s[--n];
        next = grammar__range(g, b, b, next);
    }
    return next;
}

uint32_t grammar__str(grammar__nfa *g, const char *s, uint32_t next)
{
    return grammar__lit(g, s, strlen(s), next);
}

uint32_t grammar__alt(grammar__nfa *g, uint32_t a, uint32_t b)
{
    return node(g, (grammar__node){.op = G_SPLIT, .a = a, .b = b});
}

uint32_t grammar__loop_open(grammar__nfa *g)
{
    return node(g, (grammar__node){.op = G_SPLIT});
}

void grammar__loop_close(grammar__nfa *g, uint32_t loop, uint32_t body, uint32_t next)
{
    if (g->rc) return;
    g->node[loop].a = body;
    g->node[loop].b = next;
}

uint32_t grammar__run(grammar__nfa *g, const grammar__set *s, unsigned min, unsigned max,
                      uint32_t next)
{
    uint32_t at = next;
    for (unsigned i = min; i < max; i++) at = grammar__alt(g, grammar__bytes(g, s, at), next);
    for (unsigned i = 0; i < min; i++) at = grammar__bytes(g, s, at);
    return at;
}

/* ---- checks of a finished grammar ------------------------------------------------------------ */

/* Walk the nodes of a rule that are reachable from its start. through: how far a walk goes. */
typedef struct {
    grammar__nfa *g;
    uint32_t *stack, *seen; /* [n_nodes]; seen holds the number of the walk */
    uint32_t walk;
} walker;

/* May the text of this node be empty, as far as is known? */
static bool skips(const grammar__nfa *g, const grammar__node *n)
{
    if (n->op == G_CALL) return g->rule[n->b].nullable;
    return n->op == G_REP && (n->min == 0 || g->rule[n->b].nullable);
}

static bool passes(const grammar__nfa *g, const grammar__node *n)
{
    if (n->op == G_CALL) return g->rule[n->b].ends;
    if (n->op == G_REP) return n->min == 0 || g->rule[n->b].ends;
    return true;
}

/* Is the end of the rule reached: over empty text only, or over any text that can end. */
static bool reaches_end(walker *w, uint32_t rule, bool empty)
{
    const grammar__nfa *g = w->g;
    uint32_t n = 0;
    w->walk++;
    w->stack[n++] = g->rule[rule].start;
    while (n > 0) {
        const uint32_t at = w->stack[--n];
        if (w->seen[at] == w->walk) continue;
        w->seen[at] = w->walk;
        const grammar__node *x = &g->node[at];
        if (x->op == G_RET) return true;
        if (x->op == G_SPLIT) w->stack[n++] = x->b;
        if (x->op == G_SPLIT || (empty ? skips(g, x) : passes(g, x))) w->stack[n++] = x->a;
    }
    return false;
}

/* Rules in both directions by turns: chains of references mostly run one way. Only a grammar made
 * to be slow needs many passes. */
enum { PASSES = 256 };

static uint32_t turn(const grammar__nfa *g, unsigned pass, uint32_t i)
{
    return pass & 1 ? i : g->n_rules - 1 - i;
}

static int too_tangled(ht_err *e)
{
    return HT_FAIL(e, HT_EUNSUPPORTED,
                   "the rules of the grammar refer to each other in chains that need more than %d "
                   "passes to check; put rules after those they use",
                   PASSES);
}

static int fixpoint(walker *w, bool empty, ht_err *e)
{
    grammar__nfa *g = w->g;
    bool more = true;
    for (unsigned pass = 0; more; pass++) {
        if (pass == PASSES) return too_tangled(e);
        more = false;
        for (uint32_t k = 0; k < g->n_rules; k++) {
            const uint32_t i = turn(g, pass, k);
            bool *known = empty ? &g->rule[i].nullable : &g->rule[i].ends;
            if (*known || !reaches_end(w, i, empty)) continue;
            *known = more = true;
        }
    }
    return 0;
}

/* Rules that `rule` may call before reading a byte, appended to out at *n. */
static void first_calls(walker *w, uint32_t rule, uint32_t *out, uint32_t *n_out)
{
    const grammar__nfa *g = w->g;
    uint32_t n = 0;
    w->walk++;
    w->stack[n++] = g->rule[rule].start;
    while (n > 0) {
        const uint32_t at = w->stack[--n];
        if (w->seen[at] == w->walk) continue;
        w->seen[at] = w->walk;
        const grammar__node *x = &g->node[at];
        if (x->op == G_CALL || x->op == G_REP) out[(*n_out)++] = x->b;
        if (x->op == G_SPLIT) w->stack[n++] = x->b;
        if (x->op == G_SPLIT || skips(g, x)) w->stack[n++] = x->a;
    }
}

/* Left recursion: remove rules without first calls to others, as a topological sort does; what
 * stays lies on a cycle or leads to one. calls [n_nodes] is scratch for one rule's calls. */
static int left_recursion(walker *w, uint32_t *first, uint32_t *calls, ht_err *e)
{
    grammar__nfa *g = w->g;
    uint8_t *done = ht_arena_array(g->arena, g->n_rules ? g->n_rules : 1, 1);
    if (!done) return HT_FAIL(e, HT_ENOMEM, "no memory to check a grammar");
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        first[i] = n;
        first_calls(w, i, calls, &n);
    }
    first[g->n_rules] = n;
    bool more = true;
    for (unsigned pass = 0; more; pass++) {
        if (pass == PASSES) return too_tangled(e);
        more = false;
        for (uint32_t j = 0; j < g->n_rules; j++) {
            const uint32_t i = turn(g, pass, j);
            bool free_of = !done[i];
            for (uint32_t k = first[i]; free_of && k < first[i + 1]; k++)
                if (!done[calls[k]]) free_of = false;
            if (!free_of) continue;
            done[i] = 1;
            more = true;
        }
    }
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (!done[i])
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "rule \"%.60s\" begins with itself, or with a rule that does (left "
                           "recursion); write the repetition with * or with the rule at the end",
                           g->rule[i].name);
    return 0;
}

static int analyse(walker *w, uint32_t root, uint32_t *first, uint32_t *calls, ht_err *e)
{
    grammar__nfa *g = w->g;
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (!g->rule[i].defined)
            return HT_FAIL(e, HT_EFORMAT, "rule \"%.60s\" is used and not defined",
                           g->rule[i].name);
    HT_TRY(fixpoint(w, true, e));
    HT_TRY(fixpoint(w, false, e));
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->node[i].op == G_REP && g->node[i].max != G_INF && g->node[i].max > 16 &&
            g->rule[g->node[i].b].nullable)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "up to %u repetitions of something that may be empty; let it match at "
                           "least one character",
                           g->node[i].max);
    if (!g->rule[root].ends)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "rule \"%.60s\" can never end: every way through it needs itself again",
                       g->rule[root].name);
    return left_recursion(w, first, calls, e);
}

int grammar__analyse(grammar__nfa *g, uint32_t root, ht_err *e)
{
    if (g->rc) return g->rc;
    /* A walk pushes at most two nodes for each it has not seen. */
    walker w = {.g = g,
                .stack = ht_mem_array((size_t)g->n_nodes * 2 + 2, sizeof *w.stack),
                .seen = ht_mem_array(g->n_nodes, sizeof *w.seen)};
    uint32_t *first = ht_mem_array((size_t)g->n_rules + 1, sizeof *first);
    uint32_t *calls = ht_mem_array(g->n_nodes, sizeof *calls);
    int rc = 0;
    if (!w.stack || !w.seen || !first || !calls)
        rc = HT_FAIL(e, HT_ENOMEM, "no memory to check a grammar of %u nodes", g->n_nodes);
    else rc = analyse(&w, root, first, calls, e);
    ht_mem_free(w.stack);
    ht_mem_free(w.seen);
    ht_mem_free(first);
    ht_mem_free(calls);
    return rc;
}
