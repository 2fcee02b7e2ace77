/* index.h - routes.index (evidence.md 7.8): the signed, versioned, expiring list of what is
 * admitted. What is not in it is not admitted: revocation is absence, and a tombstone that no
 * later index may leave out. The highest version ever seen is kept beside it, so that an older
 * one is refused. */
#ifndef HT_ROUTE_INDEX_H
#define HT_ROUTE_INDEX_H
#include "evid/trust.h"
#include "route/plan.h"

#define HT_INDEX_TYPE "application/vnd.hetero.index+json"
enum { HT_INDEX_MAX = 100000, HT_INDEX_JUMP = 1000000 /* entries; versions skipped at once */,
       HT_AMENDMENTS = 16 };         /* of one entry: the newest                                  */
typedef struct {
    char scope_sha[HT_SHA256_HEX], bundle_id[HT_SHA256_HEX], costmap_sha[HT_SHA256_HEX];
    char promotion_sha[HT_SHA256_HEX];                 /* of the promotion's payload              */
    char prev[HT_SHA256_HEX];        /* of this entry's former canonical bytes; 64 zeros: new     */
    uint8_t state;                   /* enum ht_route_state                                       */
    const char (*amendment)[HT_SHA256_HEX];            /* payloads of papers that passed          */
    size_t n_amendments;
} ht_index_entry;
typedef struct { char bundle_id[HT_SHA256_HEX]; const char *reason; uint64_t since; } ht_tombstone;
typedef struct {
    uint64_t version;
    char prev[HT_SHA256_HEX], sha256[HT_SHA256_HEX];   /* of the index before; of this payload    */
    int64_t issued_unix, expires_unix;
    ht_index_entry *entry; size_t n_entries;           /* sorted by scope digest, bundle          */
    ht_tombstone *tomb; size_t n_tombs;                /* sorted by bundle                        */
} ht_index;
/* The payload, canonical. */
HT_MUST_USE int ht_index_parse(ht_arena *, const char *text, size_t n, ht_index *out, ht_err *);
/* Appended; sorts nothing: the caller keeps the order (ht_index_sort). */
HT_MUST_USE int ht_index_write(const ht_index *, ht_buf *out, ht_err *);
void ht_index_sort(ht_index *);
const ht_tombstone *ht_index_tomb(const ht_index *, const char *bundle_id);
/* Digest of an entry's canonical bytes: the `prev` of its successor. */
HT_MUST_USE int ht_index_entry_sha256(const ht_index_entry *, char hex[HT_SHA256_HEX], ht_err *);

/* What was seen last: {"schema":"hetero/highwater/1","sha256","tombstones":[...],"version"}. */
typedef struct {
    uint64_t version;                /* 0: nothing yet                                            */
    char sha256[HT_SHA256_HEX];
    const char *const *tomb; size_t n_tombs;
} ht_highwater;
HT_MUST_USE int ht_highwater_parse(ht_arena *, const char *text, size_t n, ht_highwater *,
                                ht_err *);
HT_MUST_USE int ht_highwater_write(const ht_index *, ht_buf *out, ht_err *);
/* HT_EGATE with INDEX_EXPIRED, INDEX_NOT_YET_VALID, INDEX_REPLAYED (older, or the same version with
 * other bytes), INDEX_JUMP (further ahead than any honest history), TOMBSTONE_REMOVED (a tombstone
 * seen before is gone, or its bundle is back). */
HT_MUST_USE int ht_index_check(const ht_index *, const ht_highwater *, int64_t now_unix, ht_err *);
#endif
