/* prefix.h - pages of prompts that were computed once and are found again by what they hold. A page
 * is full, 32 tokens, and known by a chain of hashes: SHA-256 of its parent's key and its tokens,
 * the first one's parent being that of everything else that K and V depend on (model, layout, class
 * of what computed them, the caller's salt). Tokens are kept and compared, a hash alone opens
 * nothing. The index holds a reference to each page of its pool; pages nobody else uses are given
 * back, the longest unused first and children before parents, when a sequence needs them.
 *
 * Behind it there may be a folder with a file per page (pagefile.h), which outlives the process.
 *
 * Belongs to the thread of its pool. */
#ifndef HT_KV_PREFIX_H
#define HT_KV_PREFIX_H
#include "kv/kv.h"

typedef struct ht_prefix ht_prefix;

/* Why a match is not longer. */
enum ht_prefix_why {
    HT_PREFIX_WHOLE,    /* it is as long as it can be: all full pages but the last token's        */
    HT_PREFIX_SHORT,    /* the prompt has no full page before its last token                      */
    HT_PREFIX_COLD,     /* its first page is not known                                            */
    HT_PREFIX_DIVERGED, /* the page behind the match is not known                                 */
    HT_PREFIX_CLASS,    /* its first page is known as another class has computed it               */
    HT_PREFIX_WINDOW,   /* keys that windowed layers need at that length have been given up       */
    HT_PREFIX_FULL,     /* the next page is in the folder, but the pool has no room               */
    HT_PREFIX_DAMAGED,  /* the next page's file is not what was written: refused, see the error   */
    HT_PREFIX_PACKED,   /* no cache: the KV types are packed, see docs/kv.md                      */
    HT_PREFIX_EVICTS,   /* no cache: sequences evict, and their pages are their own               */
    HT_PREFIX_WHYS
};
const char *ht_prefix_why_name(int);                   /* "DIVERGED"; "?" out of range            */

typedef struct {
    uint8_t identity[32];            /* SHA-256 of what fixes K and V beside class, salt, tokens  */
    uint32_t max_pages;              /* of the index; 0: none are kept in memory                  */
    const char *dir;                 /* folder of page files, exists; NULL: none                  */
    uint64_t dir_bytes;              /* its budget; 0: no limit                                   */
    const char *what;                /* a line for people in each file: model and KV type         */
    /* A page's bytes in and out, as ht_backend.page_io; NULL: the planes are ordinary memory. */
    int (*io)(void *dev, ht_kv *, int kv_class, uint32_t page, void *host, int write, ht_err *);
    void *dev;
} ht_prefix_params;
/* HT_EUNSUPPORTED: the pool's types are packed, whose newest pages exist in two forms. The pool
 * must outlive the index and has at most one. */
HT_MUST_USE int ht_prefix_new(ht_prefix **, ht_pool *, const ht_prefix_params *, ht_err *);
void ht_prefix_free(ht_prefix *);                      /* NULL allowed; gives its pages back      */

typedef struct {
    uint32_t tokens;                 /* held by the sequence now, a multiple of HT_PAGE           */
    uint32_t disk_tokens;            /* of these read from files                                  */
    int why;                         /* enum ht_prefix_why                                        */
    ht_err damaged;                  /* code 0: no file was refused                               */
} ht_prefix_hit;
/* Let the empty sequence share the longest known chain of pages that equals ids[0,n); n leaves out
 * the last token of a prompt, whose logits are wanted. cls: class of what would compute them; salt:
 * keeps tenants apart, or NULL. A file that is damaged or of something else is never used. */
HT_MUST_USE int ht_prefix_find(ht_prefix *, ht_seq *, const int32_t *ids, uint32_t n,
                               const char *cls, const char *salt, ht_prefix_hit *, ht_err *);
/* Enter the sequence's first n_pages pages (fewer when the index is full of pages in use). All
 * their positions were computed by cls and hold ids. */
HT_MUST_USE int ht_prefix_add(ht_prefix *, const ht_seq *, const int32_t *ids, uint32_t n_pages,
                              const char *cls, const char *salt, ht_err *);
/* Write up to max_pages pages that have no file yet (0: all), then flush the folder; *left: those
 * still without. Nothing happens without a folder. HT_EIO: the disk; the index is as good as
 * before. */
HT_MUST_USE int ht_prefix_save(ht_prefix *, uint32_t max_pages, uint32_t *left, ht_err *);

typedef struct {
    uint64_t lookups, hits, tokens, disk_tokens, added, dropped, saved, refused;
    uint32_t pages;                  /* held now                                                  */
} ht_prefix_stats;
void ht_prefix_count(const ht_prefix *, ht_prefix_stats *);
#endif
