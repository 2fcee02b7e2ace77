/* gen.h - a generation under way, shared by generate.c (its life), take.c (a row of logits becomes
 * a token and its text) and batch.c (passes over the weights for several of them). */
#ifndef HT_API_GEN_H
#define HT_API_GEN_H
#include "api/speculate.h"
#include "decode/stop.h"

struct ht_gen {
    ht_session *s;
    ht_arena *arena;       /* what the parameters hold */
    ht_gen_params p;       /* texts, sampling and speculation are copies */
    ht_sampling sampling;
    ht_speculation speculation;
    api__phase phase[API_PHASES]; /* where this generation runs */
    const int32_t *ids;    /* the prompt, n of them */
    uint32_t n, at;        /* at: tokens of it held or run */
    uint32_t room;         /* tokens that may be produced */
    const char *room_why;  /* receipt note when room ends it before max_new would */
    ht_sampler *sampler;
    ht_stopper *stopper;
    ht_detok detok;
    ht_buf piece, text;    /* text of the last token; all text that may be shown */
    int32_t *out;          /* [n_out] produced ids, capacity room */
    uint32_t n_out;
    ht_top *top;           /* [p.n_top] */
    ht_sha256 *logits;     /* NULL: not asked for */
    int state, finish;     /* enum ht_gen_state, enum ht_finish */
    bool taken;
    bool chain;            /* greedy, and only its tokens are asked for */
    ht_err err;            /* code 0: no error */
    api__spec *spec;       /* NULL: no guessing */
    uint64_t caller_ns;    /* spent in on_token */
    /* of the step under way */
    bool pending;          /* still to be run */
    uint32_t k;            /* guesses behind the pending token */
    uint64_t draft0, draft1; /* clock before and after drafting */
};

/* ---- take.c ---- */
/* Take tokens from position pos on from the logits of a run with k guesses, [k+1, vocab], and cut
 * the session to the last one taken. share_ns: what the run cost of this generation's own. */
HT_MUST_USE int api__gen_take_rows(ht_gen *, const api__plan *, const float *logits, uint32_t pos,
                               uint32_t k, uint64_t share_ns, ht_err *);
/* Take tokens from position pos on, as many of ids [n] as it goes on for, and cut the session to
 * the last one taken. */
HT_MUST_USE int api__gen_take_ids(ht_gen *, const api__plan *, const int32_t *ids, uint32_t n,
                                  uint32_t pos, ht_err *);
/* Take the first token, from the prompt's logits. */
HT_MUST_USE int api__gen_take_first(ht_gen *, const float *logits, ht_err *);
/* The tail that was held back: shown at the end, except behind a stop string. */
HT_MUST_USE int api__gen_flush(ht_gen *, ht_err *);

/* ---- generate.c ---- */
/* Ends a generation that is not done: rc 0 by its finish, HT_ECANCELLED as cancelled, else by
 * err. */
void api__gen_end(ht_gen *, int rc, const ht_err *err);

/* ---- batch.c ---- */
/* ht_engine_step inside the engine. */
void api__gen_step(ht_engine *, ht_gen *const *, size_t n, uint32_t prompt_rows, ht_step_info *);
#endif
