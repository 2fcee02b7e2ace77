/* draft.h - a draft model's session as a source of logits: it holds a view of another session's
 * tokens, positions [base, base + its length), and follows them. It starts with the last VIEW
 * tokens and starts again when its context is full, so that a small context serves any length.
 * One thread at a time. */
#ifndef HT_API_DRAFT_H
#define HT_API_DRAFT_H
#include "api/api.h"

typedef struct {
    ht_session *d;         /* NULL: none */
    uint32_t vocab;        /* of the target */
    uint32_t base, agreed; /* first position of the view; its tokens known to be the sequence's */
    bool seen_prompt;      /* it has been brought up to date once */
} api__draft;
/* Begun by setting d and vocab, all else zero. */
void api__draft_end(api__draft *);
/* Positions that a view may fill. */
uint32_t api__draft_cap(const api__draft *);
/* How many of the first len tokens would have to be evaluated now. Before the first view: those
 * of it. */
uint32_t api__draft_behind(const api__draft *, const int32_t *tokens, uint32_t len);
/* Whether the model has all the tokens it would read: ids of the target's padding it has not. */
bool api__draft_reads(const api__draft *, const int32_t *tokens, uint32_t len);
/* Ids that can be guessed now: the first so many of the target's. */
uint32_t api__draft_ids(const api__draft *);
/* Evaluate what is missing of tokens[0..len), of which the first `known` stay as they are, and
 * leave room for `room` more before the view starts again. *logits behind the last one, of
 * api__draft_ids ids, valid until the next call; *rows (added to): tokens evaluated. */
HT_MUST_USE int api__draft_logits(api__draft *, const int32_t *tokens, uint32_t known,
                                  uint32_t len, uint32_t room, const float **logits,
                                  uint32_t *rows, ht_err *);
#endif
