/* pack.h - writing a HeteroPack (docs/pack.md): magic, canonical JSON header, blobs,
 * 64-byte-aligned tensors, SHA-256 per item and over the whole. The writer streams: declare
 * everything, then write the items in the declared order; the header's digests are patched at the
 * end. The bytes are a function of what is declared and written, nothing else (no time, no
 * path). */
#ifndef HT_FORMAT_PACK_H
#define HT_FORMAT_PACK_H
#include "format/file.h"

/* What a pack begins with; the line ends and the ^Z show damage by text-mode transfers. */
#define HT_PACK_MAGIC "HTPK\r\n\x1a\n"
enum { HT_PACK_VERSION = 1, HT_PACK_ALIGN = 64, HT_PACK_PREFIX = 64 };

typedef struct ht_packer ht_packer;
/* Whether a pack of src may be written to path: nothing is there, or a regular file that is no part
 * of src (of a Hugging Face folder: none of the files that are read). HT_EARG otherwise. */
HT_MUST_USE int ht_packer_check(const char *path, const ht_file *src, ht_err *);
/* Opens a temporary file beside path. A symbolic link is followed: the file it leads to is
 * replaced. HT_EARG when something other than a regular file is there. */
HT_MUST_USE int ht_packer_new(ht_packer **, const char *path, ht_err *);
/* model: the header's "model" object (canonical: integers, strings, arrays, objects); copied. */
HT_MUST_USE int ht_packer_header(ht_packer *, const ht_json *model, ht_err *);
HT_MUST_USE int ht_packer_blob(ht_packer *, const char *name, const void *p, size_t n, ht_err *);
/* rep: "" for the main representation, else its name ("q8"). Data is written by ht_packer_write. */
HT_MUST_USE int ht_packer_tensor(ht_packer *, const char *name, const char *rep, int type,
                                 int layout, unsigned n_dims, const uint64_t *dim, ht_err *);
/* Append bytes of the next tensor in declaration order; a tensor may come in several calls. */
HT_MUST_USE int ht_packer_write(ht_packer *, const void *p, size_t n, ht_err *);
/* Checks completeness, writes header and digests, fsyncs, renames. Frees. */
HT_MUST_USE int ht_packer_end(ht_packer *, char sha256_hex[65], ht_err *);
void ht_packer_abort(ht_packer *);                     /* removes the temporary; NULL allowed     */
/* In a pack, representation rep of tensor name; rep "" is the main one. NULL: none. */
const ht_tensor *ht_pack_find(const ht_file *, const char *name, const char *rep);
#endif
