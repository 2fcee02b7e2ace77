/* session.h - what session.c lends to generate.c and qualify_ref.c. */
#ifndef HT_API_SESSION_H
#define HT_API_SESSION_H
#include "api/api.h"

/* A session that the engine does not count; its pages come from the engine's pool. */
HT_MUST_USE int api__session_make(ht_session **, ht_engine *, ht_err *);
void api__session_drop(ht_session *);
/* HT_EARG unless there are ids and each is in the model's vocabulary. */
HT_MUST_USE int api__check_ids(const ht_session *, const int32_t *ids, size_t n, ht_err *);
/* Cut the session to what it has in common with ids[0..n-1), n >= 1; nothing when the rotation
 * differs. Sets the record's n_kept. */
HT_MUST_USE int api__keep_prefix(ht_session *, const int32_t *ids, uint32_t n, bool is_long,
                                 ht_err *);
#endif
