/* files.h - what the files of this directory share about a store. */
#ifndef HT_ROUTE_FILES_H
#define HT_ROUTE_FILES_H
#include "route/store.h"

bool route__exists(const char *dir, const char *path);
/* Write dir/path through a temporary file and a rename, making folders. */
HT_MUST_USE int route__put(const char *dir, const char *path, const void *data, size_t n, ht_err *);
/* The keys that hold a role, in their order; *n of them; NULL: no memory. */
const ht_key **route__with_role(ht_store *, enum ht_role, const ht_key *const *keys, size_t n_keys,
                                size_t *n);
/* A new index with these entries added, all promoted. */
HT_MUST_USE int route__admit(ht_store *, const ht_index_entry *, size_t n,
                             const ht_key *const *keys,
                             size_t n_keys, ht_err *);
/* A promotion's predicate against its closed schema. */
HT_MUST_USE int route__promotion_check(const ht_json *predicate, ht_err *);
#endif
