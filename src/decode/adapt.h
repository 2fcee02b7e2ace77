/* adapt.h - how much to draft, and when not to. Works on measured times and counts alone; every
 * figure is in plain steps, the time of one token without a draft.
 *
 *   worth of k drafted tokens = sum of the chances that 1, 2, ... k of them are right
 *                             - the measured time that k extra rows take - the time to draft them
 *
 * Chances are counted by class: for lookup by the length of the match, for a draft model by how
 * sure it was. Times are medians of the last few: a round that the machine disturbed says nothing
 * about guessing, and is charged what such rounds take. Two rounds in a row that are far slower
 * than expected may mean a slower machine: plain steps are measured again before more is judged.
 * The time of k rows is learned from rounds of k guesses and, as long as these are few, from all.
 * A source whose last rounds took longer than plain decoding would have, or whose next guess would
 * cost more than it brings, is switched off and tried again later, each time after a longer pause;
 * a draft model then with nothing of what was learned.
 * All losses together, in these times, stay within one step (with a draft model five), a
 * hundredth of the tokens made, and one round. */
#ifndef HT_DECODE_ADAPT_H
#define HT_DECODE_ADAPT_H
#include "core/err.h"
#include <stdbool.h>

enum { HT_ADAPT_MOST = 15,           /* drafted tokens of a round at most                         */
       HT_ADAPT_WINDOW = 16,         /* rounds over which a source is judged                      */
       HT_ADAPT_PLAIN = 9,           /* plain steps whose median is the unit                      */
       HT_ADAPT_COSTS = 9 };         /* measurements whose median is a cost                       */
enum ht_adapt_from { HT_ADAPT_LOOKUP, HT_ADAPT_MODEL, HT_ADAPT_SOURCES };
enum { HT_ADAPT_MATCHES = 5,         /* classes of lookup: match of 2, 3, 4-7, 8-15, 16           */
       HT_ADAPT_BINS = 8,            /* classes of a model: eighths of its own probability        */
       HT_ADAPT_ANY = HT_ADAPT_MATCHES + HT_ADAPT_BINS,   /* a model's tokens together            */
       HT_ADAPT_CLASSES };

typedef struct {                     /* a cost in plain steps, as last measured                   */
    double v[HT_ADAPT_COSTS];
    uint32_t n, at;
} ht_adapt_cost;

typedef struct {
    double saved[HT_ADAPT_WINDOW];   /* plain steps saved (lost: negative) by the last rounds     */
    uint32_t n, at;
    uint32_t pause;                  /* tokens of the next pause                                  */
    uint64_t off_until;              /* token count at which it is tried again                    */
} ht_adapt_source;

typedef struct {                     /* by ht_adapt_init; one per sequence                        */
    uint64_t plain[HT_ADAPT_PLAIN];  /* ns of the last plain steps                                */
    uint32_t n_plain, plain_at, since_plain;
    uint32_t slow;                   /* rounds in a row far slower than expected                  */
    bool tried_again;                /* the draft model was off before                            */
    ht_adapt_cost extra[HT_ADAPT_MOST + 1]; /* time of k extra rows                               */
    ht_adapt_cost row;               /* of one of them, in rounds of any k                        */
    ht_adapt_cost draft, sync;       /* of one drafted token; of one the model catches up on      */
    double tested[HT_ADAPT_CLASSES], right[HT_ADAPT_CLASSES];
    ht_adapt_source source[HT_ADAPT_SOURCES];
    uint64_t tokens;                 /* made so far                                               */
    double ledger;                   /* plain steps saved so far                                  */
} ht_adapt;

typedef struct {                     /* a finished round                                          */
    enum ht_adapt_from from;
    uint32_t drafted, tokens;        /* tokens: what it made, at least 1; several without a guess */
    uint32_t made;                   /* guesses that took draft_ns, with the one not worth a row  */
    uint64_t verify_ns, draft_ns;    /* draft_ns: to draft, without sync_ns                       */
    uint64_t sync_ns;                /* to bring the draft model up to date: many tokens at once  */
    uint32_t sync_tokens;
    bool first;                      /* sync_ns is the first view: judged before           */
} ht_adapt_round;

void ht_adapt_init(ht_adapt *);
/* Median of the last plain steps in ns; 0 before the third. */
uint64_t ht_adapt_unit(const ht_adapt *);
/* The next step should be plain, to know what it takes now. */
bool ht_adapt_wants_plain(const ht_adapt *);
/* A run without a guess took ns for so many tokens: one, or several where the engine makes more in
 * a run (a unit is what a token takes in the fastest way that there is without guesses). */
void ht_adapt_plain_done(ht_adapt *, uint64_t ns, uint32_t tokens);
/* Tokens until this source may guess again; 0: now. */
uint32_t ht_adapt_off(const ht_adapt *, enum ht_adapt_from from);
/* Tokens to draft with a lookup match of this length: 0 to most. */
uint32_t ht_adapt_lookup(const ht_adapt *, uint32_t match, uint32_t most);
/* Whether a draft model that is `behind` tokens behind should start a round. */
bool ht_adapt_model(const ht_adapt *, uint32_t behind);
/* Whether a draft model's first view, of this many tokens, may be paid for with `left` tokens to
 * come: what it costs is a small part of what is left to win. */
bool ht_adapt_invest(const ht_adapt *, uint32_t view, uint32_t left);
/* Whether to draft one more after `have`, all of them right with chance `chain`. */
bool ht_adapt_more(const ht_adapt *, uint32_t have, double chain);
/* Whether a drafted token pays its row as number have + 1, all right with chance `chain`. */
bool ht_adapt_keep(const ht_adapt *, uint32_t have, double chain);
/* Whether a draft may be longer than `have`: at most twice what was measured. */
bool ht_adapt_may(const ht_adapt *, uint32_t have);
int ht_adapt_match_class(uint32_t match);
int ht_adapt_bin_class(double p);    /* p: the model's own probability of what it drafted         */
double ht_adapt_chance(const ht_adapt *, int cls);
void ht_adapt_seen(ht_adapt *, int cls, uint32_t tested, uint32_t right);
/* Takes the round's times into account. Returns the ns it saved against plain steps. */
int64_t ht_adapt_round_done(ht_adapt *, const ht_adapt_round *);
#endif
