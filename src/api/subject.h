/* subject.h - who an engine is, by digests: what a scope names and a bundle is about. Worked out
 * when somebody asks, once per engine. The one place where modelPackSha256 and the digest of the
 * mapped libraries are made. */
#ifndef HT_API_SUBJECT_H
#define HT_API_SUBJECT_H
#include "api/api.h"
#include "evid/env.h"

typedef struct {
    const char *path;                /* without folders */
    uint64_t bytes;
    char sha256[HT_SHA256_HEX];
} api__digest_of;
typedef struct api__subject {
    api__digest_of *file;
    size_t n_files; /* of the model, sorted by path */
    /* model: of the canonical [{bytes,path,sha256}] of the files (evidence.md 2.1); tmpl of ""
     * where there is no template. */
    char model[HT_SHA256_HEX], tok[HT_SHA256_HEX], tmpl[HT_SHA256_HEX], binary[HT_SHA256_HEX];
} api__subject;
/* The digests; hash_all: read every byte again, whatever was remembered of these files. Files are
 * hashed through the very maps that the engine computes from. */
HT_MUST_USE int api__subject_get(ht_engine *, bool hash_all, const api__subject **, ht_err *);

/* Shared libraries that this process has mapped now, by name and digest, each once. */
typedef struct {
    api__digest_of *lib;
    size_t n;
} api__libs;
HT_MUST_USE int api__libs_read(ht_arena *, api__libs *, ht_err *);
/* assetsSha256: of the canonical document hetero/assets/1, which is appended to *doc when that is
 * not NULL. */
HT_MUST_USE int api__libs_sha256(const api__libs *, ht_buf *doc, char hex[HT_SHA256_HEX], ht_err *);

/* The machine as scopes name it. HT_EGATE: a part of the fingerprint cannot be read, so nothing can
 * match; HT_EARG: no place for the installation's secret. */
typedef struct {
    char class_sha[HT_SHA256_HEX], state_sha[HT_SHA256_HEX], instance[HT_INSTANCE], os[64];
} api__machine;
HT_MUST_USE int api__machine_read(api__machine *, ht_err *);

/* "STATE/hetero/NAME" in the user's state folder ($XDG_STATE_HOME or ~/.local/state); false when
 * there is none. */
bool api__state_path(const char *name, char *out, size_t cap);
#endif
