/* walk.c - the lazily built automaton of walk.h. */
#include "grammar/walk.h"
#include <stdlib.h>
#include <string.h>

enum { UNKNOWN = UINT32_MAX, FIRST_SLOTS = 256 };

static void fail(grammar__walk *w, int code, const char *text)
{
    if (!w->rc) w->rc = HT_FAIL(w->e, code, "%s", text);
}

static void *bigger(grammar__walk *w, void *p, uint32_t *cap, uint32_t n, size_t size)
{
    if (w->rc || n < *cap) return p;
    const uint32_t want = *cap ? *cap * 2 : 64;
    if (w->bytes + (size_t)(want - *cap) * size > WALK_LIMIT) {
        fail(w, HT_EUNSUPPORTED,
             "the grammar has too many ways to go on (more than 128 MiB of states); make it less "
             "ambiguous");
        return p;
    }
    void *q = ht_mem_resize(p, (size_t)want * size);
    if (!q) {
        fail(w, HT_ENOMEM, "no memory for the states of a grammar");
        return p;
    }
    w->bytes += (size_t)(want - *cap) * size;
    *cap = want;
    return q;
}

/* ---- classes of bytes that no set tells apart ------------------------------------------------ */

static void classes(grammar__walk *w)
{
    const grammar__nfa *g = &w->nfa;
    uint16_t n = 1;
    for (uint32_t s = 0; s < g->n_sets && n < 256; s++) {
        uint8_t split[256];
        bool made[256] = {false}, in[256] = {false}, out[256] = {false};
        for (unsigned b = 0; b < 256; b++) {
            if (grammar__set_has(&g->set[s], b)) in[w->cls[b]] = true;
            else out[w->cls[b]] = true;
        }
        for (unsigned b = 0; b < 256; b++) {
            const uint8_t c = w->cls[b];
            if (!in[c] || !out[c] || !grammar__set_has(&g->set[s], b)) continue;
            if (!made[c]) {
                made[c] = true;
                split[c] = (uint8_t)n++;
            }
            w->cls[b] = split[c];
            /* `in` and `out` of the new class stay false: it is whole. */
        }
    }
    w->n_cls = n;
    for (unsigned b = 256; b-- > 0;) w->rep[w->cls[b]] = (uint8_t)b;
}

/* ---- interning ------------------------------------------------------------------------------- */

static uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x9e3779b1u;
    return h ^ h >> 15;
}

/* A table of slots twice as large as what it holds; id 0 marks a free one. */
static bool make_slots(grammar__walk *w, uint32_t **slot, uint32_t *n_slots, uint32_t want)
{
    uint32_t *p = ht_mem_array(want, sizeof *p);
    if (!p) {
        fail(w, HT_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    w->bytes += (size_t)want * sizeof *p;
    w->bytes -= (size_t)*n_slots * sizeof *p;
    ht_mem_free(*slot);
    *slot = p;
    *n_slots = want;
    return true;
}

static uint32_t stack_hash(const grammar__stack *s)
{
    return mix(mix(mix(s->nest, s->pos), s->count), s->parent);
}

static void put_stack(grammar__walk *w, uint32_t id)
{
    uint32_t h = stack_hash(&w->stack[id]) & (w->stack_slots - 1);
    while (w->stack_slot[h]) h = (h + 1) & (w->stack_slots - 1);
    w->stack_slot[h] = id;
}

/* The number of (pos, count, parent, nest); 0 when the call failed. */
static uint32_t intern_stack(grammar__walk *w, grammar__stack s)
{
    if (w->rc) return 0;
    s.frames = (uint16_t)(w->stack[s.parent].frames + 1);
    for (uint32_t h = stack_hash(&s) & (w->stack_slots - 1); w->stack_slot[h];
         h = (h + 1) & (w->stack_slots - 1)) {
        const grammar__stack *t = &w->stack[w->stack_slot[h]];
        if (t->pos == s.pos && t->count == s.count && t->parent == s.parent && t->nest == s.nest)
            return w->stack_slot[h];
    }
    w->stack = bigger(w, w->stack, &w->stack_cap, w->n_stacks, sizeof *w->stack);
    if (w->rc) return 0;
    w->stack[w->n_stacks] = s;
    const uint32_t id = w->n_stacks++;
    if (w->n_stacks * 2 <= w->stack_slots) {
        put_stack(w, id);
        return id;
    }
    if (!make_slots(w, &w->stack_slot, &w->stack_slots, w->stack_slots * 2)) return 0;
    for (uint32_t i = 1; i < w->n_stacks; i++) put_stack(w, i);
    return id;
}

/* Where a state's stacks are; NULL when it has none. */
static const uint32_t *items_of(const grammar__walk *w, const grammar__state *s)
{
    return s->n ? w->item + s->first : NULL;
}

static uint32_t state_hash(const uint32_t *item, uint32_t n, bool accept)
{
    uint32_t h = accept;
    for (uint32_t i = 0; i < n; i++) h = mix(h, item[i]);
    return h;
}

static void put_state(grammar__walk *w, uint32_t id)
{
    const grammar__state *s = &w->state[id];
    uint32_t h = state_hash(items_of(w, s), s->n, s->accept) & (w->state_slots - 1);
    while (w->state_slot[h]) h = (h + 1) & (w->state_slots - 1);
    w->state_slot[h] = id;
}

static uint32_t add_state(grammar__walk *w, const uint32_t *item, uint32_t n, bool accept)
{
    /* One row of `next` for each state there is room for. */
    uint32_t rows = w->state_cap;
    w->next = bigger(w, w->next, &rows, w->n_states, w->n_cls * sizeof *w->next);
    w->state = bigger(w, w->state, &w->state_cap, w->n_states, sizeof *w->state);
    if (w->rc) return WALK_DEAD;
    while (!w->rc && w->n_items + n > w->item_cap)
        w->item = bigger(w, w->item, &w->item_cap, w->item_cap, sizeof *w->item);
    if (w->rc) return WALK_DEAD;
    if (n) memcpy(w->item + w->n_items, item, n * sizeof *item);
    w->state[w->n_states] = (grammar__state){.first = w->n_items, .n = n, .accept = accept};
    for (unsigned c = 0; c < w->n_cls; c++)
        w->next[(size_t)w->n_states * w->n_cls + c] = w->n_states == WALK_DEAD ? 0 : UNKNOWN;
    w->n_items += n;
    return w->n_states++;
}

static uint32_t intern_state(grammar__walk *w, const uint32_t *item, uint32_t n, bool accept)
{
    if (w->rc || (n == 0 && !accept)) return WALK_DEAD;
    for (uint32_t h = state_hash(item, n, accept) & (w->state_slots - 1); w->state_slot[h];
         h = (h + 1) & (w->state_slots - 1)) {
        const grammar__state *s = &w->state[w->state_slot[h]];
        if (s->n == n && s->accept == accept &&
            (!n || memcmp(items_of(w, s), item, n * sizeof *item) == 0))
            return w->state_slot[h];
    }
    const uint32_t id = add_state(w, item, n, accept);
    if (w->rc) return WALK_DEAD;
    if (w->n_states * 2 <= w->state_slots) {
        put_state(w, id);
        return id;
    }
    if (!make_slots(w, &w->state_slot, &w->state_slots, w->state_slots * 2)) return WALK_DEAD;
    for (uint32_t i = 1; i < w->n_states; i++) put_state(w, i);
    return id;
}

/* ---- closure: from places to those that read a byte ------------------------------------------ */

static void look_at(grammar__walk *w, uint32_t pos, uint32_t count, uint32_t parent)
{
    const uint32_t id = intern_stack(
        w, (grammar__stack){
               .pos = pos, .count = count, .parent = parent, .nest = w->stack[parent].nest});
    if (w->rc || w->stack[id].stamp == w->epoch) return;
    w->stack[id].stamp = w->epoch;
    w->work = bigger(w, w->work, &w->work_cap, w->n_work, sizeof *w->work);
    if (!w->rc) w->work[w->n_work++] = id;
}

/* Enter a rule; afterwards go on at (pos, count) above parent. Deeper than the limits there is no
 * way on. */
static void enter(grammar__walk *w, uint32_t rule, bool nest, uint32_t pos, uint32_t count,
                  uint32_t parent)
{
    const uint32_t start = w->nfa.rule[rule].start;
    const grammar__stack below = w->stack[parent];
    /* What ends right after the call needs no frame: lists written as recursion stay flat. */
    if (w->nfa.node[pos].op == G_RET && !nest) {
        look_at(w, start, 0, parent);
        return;
    }
    if (below.frames + 2 >= WALK_FRAMES || (nest && below.nest >= WALK_NEST)) return;
    const uint32_t frame = intern_stack(w, (grammar__stack){.pos = pos,
                                                            .count = count,
                                                            .parent = parent,
                                                            .nest = (uint16_t)(below.nest + nest)});
    if (!w->rc) look_at(w, start, 0, frame);
}

static void expand(grammar__walk *w, uint32_t id)
{
    const grammar__stack s = w->stack[id];
    const grammar__node n = w->nfa.node[s.pos];
    switch ((enum grammar__op)n.op) {
    case G_SET:
        if (w->n_found < WALK_STACKS) w->found[w->n_found++] = id;
        else
            fail(w, HT_EUNSUPPORTED,
                 "the grammar can go on in more than 1024 ways; make it less ambiguous");
        break;
    case G_SPLIT:
        look_at(w, n.a, 0, s.parent);
        look_at(w, n.b, 0, s.parent);
        break;
    case G_CALL: enter(w, n.b, n.nest, n.a, 0, s.parent); break;
    case G_REP:
        if (s.count >= n.min) look_at(w, n.a, 0, s.parent);
        /* Without an upper bound the count matters up to the lower one only. */
        if (n.max == G_INF)
            enter(w, n.b, false, s.pos, s.count < n.min ? s.count + 1 : n.min, s.parent);
        else if (s.count < n.max) enter(w, n.b, false, s.pos, s.count + 1, s.parent);
        break;
    case G_RET:
        if (s.parent == 0) {
            w->found_end = true;
        } else {
            const grammar__stack f = w->stack[s.parent];
            look_at(w, f.pos, f.count, f.parent);
        }
        break;
    }
}

static void closure_begin(grammar__walk *w)
{
    w->epoch++;
    w->n_work = w->n_found = 0;
    w->found_end = false;
}

static void spend(grammar__walk *w, uint64_t steps)
{
    if (w->steps >= steps) {
        w->steps -= steps;
        return;
    }
    w->steps = 0;
    fail(w, HT_EUNSUPPORTED,
         "the grammar takes too long to walk (20 million steps for one token); make it less "
         "ambiguous");
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t closure_end(grammar__walk *w)
{
    while (w->n_work > 0 && !w->rc) {
        spend(w, 1);
        if (!w->rc) expand(w, w->work[--w->n_work]);
    }
    if (w->n_found > 1) qsort(w->found, w->n_found, sizeof *w->found, ascending);
    return intern_state(w, w->found, w->n_found, w->found_end);
}

static uint32_t step(grammar__walk *w, uint32_t state, unsigned cls)
{
    const uint32_t first = w->state[state].first, n = w->state[state].n;
    closure_begin(w);
    spend(w, n + 1);
    for (uint32_t i = 0; i < n && !w->rc; i++) {
        const grammar__stack s = w->stack[w->item[first + i]];
        const grammar__node *x = &w->nfa.node[s.pos];
        if (grammar__set_has(&w->nfa.set[x->b], w->rep[cls])) look_at(w, x->a, 0, s.parent);
    }
    const uint32_t to = closure_end(w);
    if (w->rc) return WALK_DEAD;
    w->next[(size_t)state * w->n_cls + cls] = to;
    return to;
}

uint32_t grammar__walk_byte(grammar__walk *w, uint32_t state, uint8_t byte)
{
    const unsigned c = w->cls[byte];
    const uint32_t to = w->next[(size_t)state * w->n_cls + c];
    if (to != UNKNOWN) return to;
    return w->rc ? WALK_DEAD : step(w, state, c);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Forget the tables; whose they are frees them. */
static void blank(grammar__walk *w)
{
    w->stack = NULL;
    w->state = NULL;
    w->next = w->item = w->stack_slot = w->state_slot = NULL;
    w->n_stacks = w->stack_cap = w->stack_slots = 0;
    w->n_states = w->state_cap = w->state_slots = 0;
    w->n_items = w->item_cap = 0;
    w->bytes = (size_t)w->work_cap * sizeof *w->work;
}

static void clear(grammar__walk *w)
{
    for (uint32_t i = 0; i < w->n_states; i++) ht_mem_free(w->state[i].bits);
    ht_mem_free(w->stack);
    ht_mem_free(w->stack_slot);
    ht_mem_free(w->state);
    ht_mem_free(w->state_slot);
    ht_mem_free(w->next);
    ht_mem_free(w->item);
    blank(w);
}

/* Empty tables with the dead state and the empty stack, and the start state. */
static int start(grammar__walk *w, ht_err *e)
{
    w->e = e;
    w->rc = 0;
    w->steps = WALK_STEPS;
    w->start = WALK_DEAD;
    (void)make_slots(w, &w->stack_slot, &w->stack_slots, FIRST_SLOTS);
    if (!w->rc) (void)make_slots(w, &w->state_slot, &w->state_slots, FIRST_SLOTS);
    w->stack = bigger(w, w->stack, &w->stack_cap, 0, sizeof *w->stack);
    if (w->rc) return w->rc;
    w->stack[0] = (grammar__stack){0};
    w->n_stacks = 1;
    (void)add_state(w, NULL, 0, false);
    closure_begin(w);
    if (!w->rc) look_at(w, w->nfa.rule[w->root].start, 0, 0);
    w->start = closure_end(w);
    return w->rc;
}

int grammar__walk_init(grammar__walk *w, grammar__nfa *nfa, uint32_t root, ht_err *e)
{
    *w = (grammar__walk){.nfa = *nfa, .root = root};
    *nfa = (grammar__nfa){0};
    classes(w);
    w->found = ht_mem_array(WALK_STACKS, sizeof *w->found);
    if (!w->found) return HT_FAIL(e, HT_ENOMEM, "no memory for the states of a grammar");
    return start(w, e);
}

void grammar__walk_done(grammar__walk *w)
{
    clear(w);
    ht_mem_free(w->work);
    ht_mem_free(w->found);
    grammar__nfa_done(&w->nfa);
}

int grammar__walk_begin(grammar__walk *w, ht_err *e)
{
    w->e = e;
    w->rc = 0;
    w->steps = WALK_STEPS;
    if (w->start == WALK_DEAD) { /* the last trim ran out of memory */
        clear(w);
        return start(w, e);
    }
    return 0;
}

/* ---- dropping the cache ---------------------------------------------------------------------- */

/* Stack `id` of the old tables in the new ones. */
static uint32_t move_stack(grammar__walk *w, const grammar__stack *old, uint32_t id)
{
    uint32_t chain[WALK_FRAMES], n = 0, at = 0;
    for (; id != 0; id = old[id].parent) chain[n++] = id;
    while (n > 0) {
        grammar__stack s = old[chain[--n]];
        s.parent = at;
        s.stamp = 0;
        at = intern_stack(w, s);
    }
    return at;
}

static int move_states(grammar__walk *w, const grammar__walk *old, uint32_t *const *states,
                       size_t n, ht_err *e)
{
    HT_TRY(start(w, e));
    for (size_t k = 0; k < n; k++) {
        const grammar__state *s = &old->state[*states[k]];
        if (*states[k] == WALK_DEAD) continue;
        for (uint32_t i = 0; i < s->n; i++)
            w->found[i] = move_stack(w, old->stack, old->item[s->first + i]);
        /* New numbers, new order. */
        w->n_found = s->n;
        w->n_work = 0;
        w->found_end = s->accept;
        *states[k] = closure_end(w);
        if (w->rc) return w->rc;
    }
    return 0;
}

int grammar__walk_trim(grammar__walk *w, uint32_t *const *states, size_t n, ht_err *e)
{
    if (w->bytes <= WALK_CACHE) return 0;
    grammar__walk old = *w;
    blank(w);
    const int rc = move_states(w, &old, states, n, e);
    if (rc) {
        /* States that could not be moved are dead; the start is made again by the next call. */
        for (size_t k = 0; k < n; k++) *states[k] = WALK_DEAD;
        w->start = WALK_DEAD;
    }
    clear(&old); /* not `work` and `found`, which are w's */
    return rc;
}
