/* packjob.h - what pack.c decides and packdata.c carries out: every tensor of a new pack with the
 * type and layout it will have. */
#ifndef HT_API_PACKJOB_H
#define HT_API_PACKJOB_H
#include "api/api.h"
#include "core/team.h"
#include "format/pack.h"

typedef struct {
    const ht_named *named;
    const ht_weight *w;   /* NULL: the vector named->vec, stored as F32 */
    const char *rep;      /* "" main, else the alternate's name */
    uint8_t type, layout; /* as stored */
    bool as_is;           /* the source's blocks are moved, not computed from values */
    uint64_t bytes;
} api__item;

typedef struct {
    const ht_pack_params *p;
    ht_arena *arena;
    ht_file *file;
    ht_model *model;
    ht_tok *tok;
    ht_team *team;
    ht_buf mean; /* blob of the keys' means; empty: none asked for */
    const char *src_contract; /* of the source: "f16", "q8", "q4" */
    ht_named *named;
    size_t n_named;
    api__item *item; /* [n_items], in the order of the file */
    size_t n_items;
    uint32_t n_proj, n_quantised, n_requantised, n_fallback;
    uint64_t total, done; /* bytes of all items, written so far: progress */
} api__packjob;

/* Smallest float type that holds every value of w bit for bit: F16, else BF16, else F32. */
HT_MUST_USE int api__float_type(api__packjob *, const ht_weight *, uint8_t *type, ht_err *);
/* Write an item's bytes to the packer, a bounded number of tiles at a time. */
HT_MUST_USE int api__item_write(api__packjob *, const api__item *, ht_packer *, ht_err *);
#endif
