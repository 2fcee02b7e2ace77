/* store.h - what the commands about evidence and routes share. */
#ifndef HT_CLI_STORE_H
#define HT_CLI_STORE_H
#include "cli/cli.h"
#include "route/store.h"

enum { CLI_KEYS = 16 };
/* The store's folder: --store, HETERO_STORE, or the user's data directory. HT_EARG when none is
 * known. */
HT_MUST_USE int cli__store_dir(cli__ctx *, char out[CLI_PATH], ht_err *);
/* Opens it; everything lives in the arena. */
HT_MUST_USE int cli__store_open(cli__ctx *, ht_arena *, ht_store *, ht_err *);
/* The private keys of --key; cli__keys_free() frees them, also after an error. */
typedef struct { ht_key *key[CLI_KEYS]; size_t n; } cli__keyring;
HT_MUST_USE int cli__keys_open(cli__ctx *, cli__keyring *, ht_err *);
void cli__keys_free(cli__keyring *);
#endif
