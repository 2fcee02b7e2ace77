/* walk.h - a grammar walked over bytes. A state is a set of stacks; stacks share their tails and
 * are interned, states too, so that equal situations are one number and what follows a byte is
 * worked out once. Everything worked out is a cache: when it grows past its limit it is dropped and
 * only the states that matchers stand in are made again. */
#ifndef HT_GRAMMAR_WALK_H
#define HT_GRAMMAR_WALK_H
#include "grammar/nfa.h"

enum {
    WALK_DEAD = 0,                /* the state without a way on */
    WALK_CACHE = 48 << 20,        /* bytes of cache after which it is dropped between two calls */
    WALK_LIMIT = 128 << 20,       /* bytes at which a call fails */
    WALK_STACKS = 1024,           /* stacks of one state */
    WALK_FRAMES = 512,            /* calls inside each other */
    WALK_NEST = 60,               /* of those, levels of nesting; core/json reads 63 */
    WALK_STEPS = 20 * 1000 * 1000 /* steps of one call */
};

/* A place in the grammar and what comes after its rule. */
typedef struct {
    uint32_t pos, count, parent; /* node, passes of a G_REP so far, stack below (0: none) */
    uint32_t stamp;              /* of the closure that saw it last */
    uint16_t frames;             /* stacks below */
    uint16_t nest;               /* levels of nesting entered below and here */
} grammar__stack;
typedef struct {
    uint32_t first, n;  /* its stacks in `item`, ascending */
    bool accept;        /* the text may end here */
    uint32_t *bits;     /* mask, or NULL: not asked for yet */
} grammar__state;

typedef struct {
    grammar__nfa nfa;
    uint32_t root, start; /* rule; state, WALK_DEAD: not made yet */
    uint8_t cls[256];
    uint16_t n_cls;
    uint8_t rep[256]; /* a byte of each class */

    grammar__stack *stack;
    uint32_t n_stacks, stack_cap, *stack_slot, stack_slots;
    grammar__state *state;
    uint32_t n_states, state_cap, *state_slot, state_slots;
    uint32_t *next; /* [state_cap * n_cls] */
    uint32_t *item, n_items, item_cap;
    size_t bytes; /* of all this and of the masks */
    uint32_t epoch;
    uint64_t steps; /* left in this call */
    uint32_t *work; /* [work_cap] places still to be looked at */
    uint32_t work_cap, n_work;
    uint32_t *found, n_found; /* [WALK_STACKS] */
    bool found_end;
    ht_err *e;
    int rc; /* sticky within a call */
} grammar__walk;

/* Takes over nfa (finished and checked). */
HT_MUST_USE int grammar__walk_init(grammar__walk *, grammar__nfa *, uint32_t root, ht_err *);
void grammar__walk_done(grammar__walk *);
/* A call begins: errors go to e, and the steps are counted from here. */
HT_MUST_USE int grammar__walk_begin(grammar__walk *, ht_err *);
/* The state after a byte. WALK_DEAD too when the call failed: see rc. */
uint32_t grammar__walk_byte(grammar__walk *, uint32_t state, uint8_t byte);
/* Drop the cache when it is large; states[0..n) are those to keep, and get their new numbers. */
HT_MUST_USE int grammar__walk_trim(grammar__walk *, uint32_t *const *states, size_t n, ht_err *);
#endif
