/* seen.h - facts that were once worked out on this machine and are dear to work out again: the
 * digest of a model's file, the qualification of a reference. A text file of lines "KEY VALUE",
 * newest first, in the user's own folders. It is advice to save time: a list that others may write,
 * or that cannot be read, knows nothing; one that cannot be written costs the work again. */
#ifndef HT_ROUTE_SEEN_H
#define HT_ROUTE_SEEN_H
#include "core/hash.h"
#include <stdbool.h>

enum { HT_SEEN_KEY = 160, HT_SEEN_LINES = 512 };
/* key: printable, without spaces, shorter than HT_SEEN_KEY. value: 64 hex digits. */
bool ht_seen_get(const char *path, const char *key, char value[HT_SHA256_HEX]);
/* The key's new value, first in the list; folders are made. */
HT_MUST_USE int ht_seen_put(const char *path, const char *key, const char *value, ht_err *);
#endif
