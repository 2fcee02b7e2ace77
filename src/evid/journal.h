/* journal.h - a hash-chained log: one canonical JSON object a line, {"seq","prev","event",...};
 * prev is the SHA-256 of the line before (64 zeros for the first), so a line dropped, edited or
 * moved breaks the chain at that point. The first event of an experiment is "design", the last
 * "close". */
#ifndef HT_EVID_JOURNAL_H
#define HT_EVID_JOURNAL_H
#include "core/json.h"
#include "core/hash.h"

typedef struct {
    int fd;
    uint64_t seq;
    char prev[HT_SHA256_HEX];
    uint64_t start_ns;
    bool closed;
} ht_journal;
/* Creates path (must not exist). */
HT_MUST_USE int ht_journal_new(ht_journal *, const char *path, ht_err *);
/* Append {"event":name, ...members of `more` (an object or NULL)} and fsync. monoNs is added: the
 * offset from the journal's start on the monotonic clock. */
HT_MUST_USE int ht_journal_add(ht_journal *, ht_arena *, const char *event, const ht_json *more,
                               ht_err *);
/* Adds "close" with `more` (counts of attempts, blocks, voids) and closes the file. */
HT_MUST_USE int ht_journal_close(ht_journal *, ht_arena *, const ht_json *more, ht_err *);
void ht_journal_abort(ht_journal *);                   /* after an error; idempotent              */

/* Parse and check the chain of a whole journal; *lines: the objects in order. complete: the last
 * event must be "close" and the first "design". */
HT_MUST_USE int ht_journal_check(ht_arena *, const char *text, size_t n, bool complete,
                                 ht_json ***lines, size_t *n_lines, ht_err *);
#endif
