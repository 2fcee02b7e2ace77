/* lookup.h - prompt lookup: guess what comes next from what the sequence itself has said. The last
 * few tokens are looked for earlier in the same sequence, and what followed is the draft.
 * One index serves one sequence; nothing is shared between sequences, so no text can leak. */
#ifndef HT_DECODE_LOOKUP_H
#define HT_DECODE_LOOKUP_H
#include "core/err.h"

enum { HT_LOOKUP_MIN = 2,            /* shortest and longest run of tokens that is indexed        */
       HT_LOOKUP_MAX = 4,
       HT_LOOKUP_LONGEST = 16 };     /* matches are counted no further than this                  */
typedef struct ht_lookup ht_lookup;
/* An empty index for a sequence of up to cap tokens; takes all its memory here (24 to 48 bytes a
 * token). */
HT_MUST_USE int ht_lookup_new(ht_lookup **, uint32_t cap, ht_err *);
void ht_lookup_free(ht_lookup *);    /* NULL allowed                                              */
/* Draft up to k tokens after tokens[0..n), n <= cap. tokens must extend those of the call before.
 * Longer runs are tried first; of equally long ones the latest place counts. Where the draft
 * reaches the end of the tokens it goes on with itself, so a repeating text is continued. out may
 * be tokens + n. Returns how many were drafted; *match: how many tokens before the draft agree, 0
 * when none was made. */
uint32_t ht_lookup_draft(ht_lookup *, const int32_t *tokens, uint32_t n, uint32_t k, int32_t *out,
                         uint32_t *match);
#endif
