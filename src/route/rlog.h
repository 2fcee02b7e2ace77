/* rlog.h - the receipt log (evidence.md 7.9): one canonical JSON object a line, each with `seq`,
 * `proc` (a nonce of the writing process), `utc` and `prevSha256`, the digest of the line before
 * (64 zeros first). heads.jsonl beside it holds signed heads, one DSSE envelope a line: number and
 * digest of a line, and the digest of the head before. So an edited, dropped, moved or repeated
 * line breaks the chain, and a log that was cut short ends before its last head. A tail that no
 * head covers is chained but not signed: a crash leaves one, and it is reported as such.
 *
 * All processes of a store write one chain; an exclusive lock on the log is held for each line. */
#ifndef HT_ROUTE_RLOG_H
#define HT_ROUTE_RLOG_H
#include "core/json.h"
#include "evid/trust.h"

#define HT_RLOG_HEAD_TYPE "application/vnd.hetero.receipts+json"
enum { HT_RLOG_LINE = 1 << 20 };     /* longest line                                              */
typedef struct ht_rlog ht_rlog;
/* dir is made when missing. key: a private key file, NULL: no heads are written. batch lines to a
 * signature (0: 64), seconds at most between two while lines come (0: 60). A line that a crash has
 * cut off is taken out and an event that says so follows in the chain. HT_EGATE TRUNCATED: the log
 * ends before its last head. */
HT_MUST_USE int ht_rlog_open(ht_rlog **, const char *dir, const char *key, uint32_t batch,
                             uint32_t seconds, ht_err *);
/* Append an object's members (its own seq, proc, utc, prevSha256 are replaced). *line (NULL
 * allowed): as written, ht_mem_free. */
HT_MUST_USE int ht_rlog_add(ht_rlog *, const ht_json *receipt, uint64_t *seq, char **line,
                            ht_err *);
HT_MUST_USE int ht_rlog_get(ht_rlog *, uint64_t seq, char **line, ht_err *);
HT_MUST_USE int ht_rlog_sign(ht_rlog *, ht_err *);
void ht_rlog_close(ht_rlog *);

/* ---- checking -------------------------------------------------------------------------------- */
enum ht_rlog_fault {
    HT_RLOG_BAD_LINE,                /* not canonical JSON, or without the chain's members        */
    HT_RLOG_CHAIN,                   /* prevSha256 is not the digest of the line before           */
    HT_RLOG_GAP,                     /* a number is missing                                       */
    HT_RLOG_REPLAY,                  /* a number comes again or runs backwards                    */
    HT_RLOG_TORN,                    /* the last line has no end                                  */
    HT_RLOG_TRUNCATED,               /* the log ends before a signed head                         */
    HT_RLOG_BAD_HEAD,                /* a head is not of the form, or not signed by the role      */
    HT_RLOG_HEAD_DIFFERS,            /* a signed head names another digest than its line has      */
    HT_RLOG_HEAD_CHAIN,              /* a head was dropped, moved or repeated                     */
    HT_RLOG_FAULTS
};
extern const char *const ht_rlog_fault_names[HT_RLOG_FAULTS];
enum { HT_RLOG_REPORTED = 64 };
typedef struct {
    uint64_t lines, heads, last_seq, signed_seq;       /* signed_seq 0: nothing is signed         */
    char head_sha[HT_SHA256_HEX];                      /* of the last line; "" when there is none */
    uint64_t n_faults;                                 /* of all, not only of those listed        */
    struct { uint8_t fault; uint64_t line; } fault[HT_RLOG_REPORTED]; /* enum, line from 1        */
} ht_rlog_report;
/* doc: a whole line that parsed. Non-zero ends the check with that value. */
typedef int (*ht_rlog_fn)(void *user, const ht_json *doc, const char *text, size_t n, ht_err *);
/* Walk the log and its heads. trust NULL: signatures are not judged, which is no fault. A log with
 * faults is no error: they are in the report. HT_EIO when there is no log. */
HT_MUST_USE int ht_rlog_check(const char *dir, const ht_trust *trust, int64_t now_unix, ht_rlog_fn,
                              void *user, ht_rlog_report *, ht_err *);
/* The same over texts in memory (heads NULL: none), for tests and fuzzing. */
HT_MUST_USE int ht_rlog_check_text(const char *log, size_t n_log, const char *heads, size_t n_heads,
                                   const ht_trust *trust, int64_t now_unix, ht_rlog_fn, void *user,
                                   ht_rlog_report *, ht_err *);
#endif
