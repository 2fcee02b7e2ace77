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

/* ---- receipts.c: the log of receipts ---- */
/* The log of --receipts, or of the store; *out NULL: there is neither. The private key is that of
 * --receipts-key, or cli__receipt_key() where the file is there. ht_receipts_close(). */
HT_MUST_USE int cli__receipts_open(cli__ctx *, ht_receipts **out, ht_err *);
/* Keep the receipt of the session's last call with the digests of what came in and went out. *json
 * (NULL allowed): the line as kept, or NULL; ht_free. Non-zero: it was not, and that was said. */
int cli__receipts_add(cli__ctx *, ht_receipts *, const ht_session *, const char *request,
                      size_t n_request, const char *stream, size_t n_stream, char **json);
/* Where hetero keys init puts this machine's receipt key; false when there is no such place. */
bool cli__receipt_key(char out[CLI_PATH]);
#endif
