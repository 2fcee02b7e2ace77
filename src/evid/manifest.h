/* manifest.h - the list of files a digest stands for: sorted [{path,bytes,sha256,role}], nothing
 * extra, nothing missing, no links, no devices. Files are opened once and hashed from the same
 * descriptor that is read, so a file cannot be exchanged between its check and its use. */
#ifndef HT_EVID_MANIFEST_H
#define HT_EVID_MANIFEST_H
#include "core/arena.h"
#include "core/buf.h"
#include "core/hash.h"

typedef struct {
    const char *path;                /* relative, "/" separated                                   */
    const char *role;
    uint64_t bytes;
    char sha256[HT_SHA256_HEX];
    const char *data;                /* the very bytes that were hashed (bundle files are small)  */
} ht_mfile;
typedef struct {
    ht_mfile *file;
    size_t n;
    char sha256[HT_SHA256_HEX]; /* of the document itself */
} ht_manifest;

/* A path a manifest may name: relative, no "..", "." or empty part, no backslash, control byte or
 * non-ASCII, at most 200 bytes. */
bool ht_manifest_path_ok(const char *path);
/* Hash the named files (paths sorted by the caller or not; written sorted) under dir and append the
 * document. `schema`: "hetero/inputs/1" or "hetero/outputs/1"; inputs_sha256 NULL except for
 * outputs. */
HT_MUST_USE int ht_manifest_write(ht_arena *, const char *dir, const char *schema,
                                  const char *const *paths, const char *const *roles, size_t n,
                                  const char *inputs_sha256, ht_buf *out, ht_err *);
/* Parse text, read every listed file under dir and check its length and digest. max_bytes bounds
 * the sum of all files. */
HT_MUST_USE int ht_manifest_read(ht_arena *, const char *dir, const char *text, size_t n,
                                 const char *schema, const char **inputs_sha256, uint64_t max_bytes,
                                 ht_manifest *out, ht_err *);
const ht_mfile *ht_manifest_find(const ht_manifest *, const char *path);   /* NULL: not listed    */
/* Every regular file under dir is in one of the manifests or in `also` (NULL-terminated names), and
 * nothing under dir is anything but a directory or a regular file with one link. */
HT_MUST_USE int ht_manifest_closed(const char *dir, const ht_manifest *const *m, size_t n_m,
                                   const char *const *also, ht_err *);
/* Read one regular file under dir whole, without following links; NUL-terminated in the arena. */
HT_MUST_USE int ht_read_under(ht_arena *, const char *dir, const char *path, uint64_t max_bytes,
                              const char **data, uint64_t *n, ht_err *);
#endif
