/* kvmean.h - the means of a model's keys, measured when a pack is made (hetero pack --calibrate)
 * and taken away from what packed KV types store ("TYPE,mean"). Keys of one head often have a large
 * part in common, which no query can see in the soft-max and every code pays for: effective bits
 * are b - log2(1 + |mean|^2/|rest|^2) / 2. docs/pack.md has the blob. */
#ifndef HT_API_KVMEAN_H
#define HT_API_KVMEAN_H
#include "api/api.h"

#define API_KVMEAN_BLOB "kv-mean"
enum { API_KVMEAN_VERSION = 1 };
/* Run the text p->calibrate through the model src and append the blob. tok: its tokenizer. */
HT_MUST_USE int api__kvmean_make(const char *src, const ht_pack_params *p, const ht_tok *tok,
                                 ht_buf *out, ht_err *);
/* The means that a file holds, [layers][kv heads][head_dim] in the arena. HT_EARG: none;
 * HT_EUNSUPPORTED: another version; HT_EFORMAT: not those of this model, or no numbers. */
HT_MUST_USE int api__kvmean_read(const ht_file *, const ht_spec *, ht_arena *, const float **out,
                                 ht_err *);
#endif
