/* split.h - pre-tokenizers: cutting text into the pieces inside which BPE merges.
 *
 * A pre-tokenizer is a list of stages; each stage cuts every piece of the stage before. The
 * frequent patterns are hand-written (no recursion, no backtracking beyond one run, linear time);
 * any other pattern of a tokenizer.json is a TOK_ST_RX stage run by pcre2 under limits. */
#ifndef HT_TOK_SPLIT_H
#define HT_TOK_SPLIT_H
#include "core/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are stored in blobs: append only. */
enum tok_stage_kind {
    TOK_ST_NONE,
    TOK_ST_GPT2,
    TOK_ST_LLAMA3,
    TOK_ST_QWEN2,
    TOK_ST_QWEN35,
    TOK_ST_TEKKEN,
    TOK_ST_GPT4O,
    TOK_ST_DIGIT,   /* every \p{N} by itself */
    TOK_ST_DIGITS,  /* runs of \p{N} */
    TOK_ST_RX,      /* a pattern: matches and the gaps between them are pieces */
    TOK_ST_RX_DROP, /* a pattern: matches are pieces, gaps vanish (Split, Removed, invert) */
    TOK_ST_COUNT
};
enum { TOK_MAX_STAGES = 8, TOK_MAX_PATTERN = 4096 };

/* Length of the first piece of s[0..n), n > 0, of a hand-written kind. Look-ahead ends at n. */
size_t tok__split(enum tok_stage_kind kind, const char *s, size_t n);
/* The pattern a hand-written kind implements, as tokenizer.json files spell it; NULL for others. */
const char *tok__split_pattern(enum tok_stage_kind kind);

/* A compiled pattern of another kind; immutable. */
typedef struct tok_rx tok_rx;
HT_MUST_USE int tok__rx_new(tok_rx **, const char *pattern, size_t n, ht_err *);
void tok__rx_free(tok_rx *);
/* Room for one matching thread. */
typedef struct tok_rx_work tok_rx_work;
HT_MUST_USE int tok__rx_work_new(tok_rx_work **, const tok_rx *, ht_err *);
void tok__rx_work_free(tok_rx_work *);
/* Next match in s[0..n) at or after `from` that is not empty: [*a, *b); *a == n: none. */
HT_MUST_USE int tok__rx_next(const tok_rx *, tok_rx_work *, const char *s, size_t n, size_t from,
                             size_t *a, size_t *b, ht_err *);
#endif
