/* chain.h - what the files of the sampler share: its state, and the stages that have files of their
 * own. sample.c is the chain and the draw, select.c the ordering of candidates, dry.c one penalty,
 * params.c checking and describing, reject.c guesses and their verification. */
#ifndef HT_DECODE_CHAIN_H
#define HT_DECODE_CHAIN_H
#include "decode/sample.h"

typedef struct {
    double p;                       /* exp(logit - max), unnormalised; set by decode__softmax     */
    float key, logit;               /* key orders: largest first, ties to the lowest id           */
    int32_t id;
} decode__cand;

/* Streams of ht_uniform at (seed, position): independent numbers for one position. The last three
 * are those of rejection sampling. */
enum { DECODE_STREAM_DRAW, DECODE_STREAM_XTC, DECODE_STREAM_GUESS, DECODE_STREAM_ACCEPT,
       DECODE_STREAM_REST };
/* dry_last_n -1 looks at no more than this many tokens; its scratch is sized for it. */
enum { DECODE_DRY_WINDOW = 1 << 17 };

struct ht_sampler {
    ht_sampling par;                /* pointers inside are our own copies or NULL                 */
    uint32_t n_all;                 /* of the vocabulary: sizes of the scratch                    */
    uint32_t n_vocab;               /* ids that can come now: the first so many                   */
    float *work;                    /* [n_all] logits after bias and penalties                  */
    uint32_t *count;                /* [n_all] all zero between draws                           */
    decode__cand *cand;             /* [n_all] candidates                                         */
    size_t n;                       /* candidates left                                            */
    bool by_id;                     /* candidates still stand in order of id                      */
    bool has_p;                     /* p of the candidates is that of temperature 1               */
    ht_logit_bias *bias;
    const uint32_t *allow;          /* ids that may come, a bit each; NULL: all                   */
    int32_t *breaker_ids;           /* all breaker sequences end to end                           */
    size_t *breaker_n, n_breakers;
    uint32_t *match;                /* DRY: [window] lengths of repeats                           */
    size_t window;
};

/* select.c: expected time O(n), no order promised among what is kept. */
void decode__top_k(ht_sampler *, size_t k);      /* the k first of all, straight from work        */
/* Keep the first candidates in key order whose p add up to mass: the fewest that do. */
void decode__keep_mass(ht_sampler *, double mass);
void decode__order_by_id(ht_sampler *);
/* dry.c */
void decode__dry(ht_sampler *, const int32_t *history, size_t n);
/* sample.c */
/* Bias to temperature: leaves the candidates in order of id with p above 0 that add up to *sum;
 * greedy leaves one. HT_EFORMAT when no token can come. */
HT_MUST_USE int decode__shape(ht_sampler *, const float *logits, const int32_t *history,
                              size_t n_history, uint64_t position, double *sum, ht_err *);
/* The candidate at u of [0,1) of their sum. */
int32_t decode__pick(const ht_sampler *, double sum, double u);
/* Natural logarithm of the softmax of x [n] at id. */
float decode__log_softmax(const float *x, uint32_t n, int32_t id);
/* params.c */
HT_MUST_USE int decode__check(const ht_sampling *, ht_err *);
bool decode__uses_penalties(const ht_sampling *), decode__uses_dry(const ht_sampling *);
#endif
