/* quality.h - is a candidate as good as the reference? Counts of a quality run and the three
 * files a bundle keeps of it (evidence.md 7.2, 7.6; definitions techniques.md 8). Knows no
 * model: the caller brings token ids and logits of both arms. Quality is decided apart from
 * speed: neither makes up for the other. */
#ifndef HT_EVID_QUALITY_H
#define HT_EVID_QUALITY_H
#include "evid/bundle.h"

/* A flip to a token that the reference itself gives almost the same probability is a near-tie: its
 * log-probability there is at most this many nats below the reference's own choice. */
#define HT_QUALITY_NEAR_TIE 0.1
/* And one that rounding of the exact contract may decide: docs/graph.md counts these. */
#define HT_QUALITY_TIE 0.01

typedef struct {                     /* one position, both arms */
    double kld;                      /* nats: sum p_ref (log p_ref - log p_cand), log p_ref > -16 */
    double nll_ref, nll_cand;        /* of the target token; 0 without one */
    double gap; /* nats the reference puts between its choice and the other's */
    uint32_t top_ref, top_cand;      /* arg max, lowest id first */
} ht_quality_position;
/* Logits [n_vocab] of both arms after the same tokens. target -1: none. Logits that are no numbers
 * give the largest divergence there is, so that they can never pass. */
void ht_quality_measure(const float *ref, const float *cand, uint32_t n_vocab, int32_t target,
                        ht_quality_position *out);
/* Log-probability of id, natural; -infinity when the logits are no numbers. */
double ht_quality_logprob(const float *logits, uint32_t n_vocab, uint32_t id);

typedef struct {
    ht_buf file[3];                  /* quality/prompts.jsonl, ref.jsonl, cand.jsonl */
    ht_buf kld;                      /* doubles, one a position */
    ht_quality_counts n;
    uint64_t items, near_greedy, real_greedy;          /* first differences of continuations */
    uint64_t near_text, real_text;   /* top-1 flips */
    uint64_t tie_greedy, tie_text;   /* of the near ones those within HT_QUALITY_TIE */
    uint64_t first_diff_sum; /* tokens before the first difference, over those that differ */
    uint64_t ref_right, cand_right;
    double nll_ref, nll_cand, nll_diff_sq;             /* sums; squares of the paired differences */
} ht_quality;
void ht_quality_init(ht_quality *);
void ht_quality_done(ht_quality *);
/* A greedy continuation of both arms; gap: as above at the first difference (anything when equal).
 * prompt [n_prompt] names the item. HT_EARG when the reference wrote nothing. */
HT_MUST_USE int ht_quality_greedy(ht_quality *, const int32_t *prompt, size_t n_prompt,
                                  const int32_t *ref, size_t n_ref, const int32_t *cand,
                                  size_t n_cand, double gap, ht_err *);
HT_MUST_USE int ht_quality_text(ht_quality *, const int32_t *prompt, size_t n_prompt,
                                const ht_quality_position *, size_t n, ht_err *);
HT_MUST_USE int ht_quality_task(ht_quality *, const int32_t *prompt, size_t n_prompt,
                                bool ref_right, bool cand_right, ht_err *);

/* The choices of item i among n: choice[0] = i itself, then three others, all different, drawn from
 * the seed; *at: the place (0..3) at which the true one is shown. n >= 4. */
void ht_quality_choices(uint64_t seed, uint32_t i, uint32_t n, uint32_t choice[4], uint32_t *at);
/* One-sided exact sign test: P(at least `lost` of lost + won | even odds). */
double ht_quality_sign_p(uint64_t lost, uint64_t won);

/* The gate of 7.6: NULL when it holds, else the word of what failed ("TOP1", "KLD_MEAN", ...).
 * Bit-equal continuations of the whole corpus pass by themselves; anything else must be near in
 * every measure. */
const char *ht_quality_gate(const ht_policy *, const ht_quality_counts *);
/* Everything measured as an object, into w: counts, rates, divergences, flips, task, gate. Sorts
 * the divergences. */
HT_MUST_USE int ht_quality_report(ht_quality *, const ht_policy *, ht_jw *w, ht_err *);
/* SHA-256 over ids as little-endian 32-bit words (product.md 5.6). */
HT_MUST_USE int ht_ids_sha256(const int32_t *ids, size_t n, char hex[HT_SHA256_HEX], ht_err *);
#endif
