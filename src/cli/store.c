/* store.c - the store and the keys from the options; hetero keys. */
#include "cli/store.h"
#include "core/clock.h"
#include "core/map.h"
#include "core/path.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cli__store_dir(cli__ctx *c, char out[CLI_PATH], ht_err *e)
{
    const char *dir = ht_opt_str(c->o, HT_OPT_STORE), *data = ht_env_get(HT_ENV_XDG_DATA_HOME);
    const char *home = ht_env_get(HT_ENV_HOME);
    int n;
    if (dir) n = snprintf(out, CLI_PATH, "%s", dir);
    else if (data) n = snprintf(out, CLI_PATH, "%s/hetero/store", data);
    else if (home) n = snprintf(out, CLI_PATH, "%s/.local/share/hetero/store", home);
    else return HT_FAIL(e, HT_EARG, "no store: give --store DIR (HOME is not set)");
    if (n > 0 && n < CLI_PATH) return 0;
    return HT_FAIL(e, HT_EARG, "--store: the path is too long");
}

int cli__store_open(cli__ctx *c, ht_arena *a, ht_store *s, ht_err *e)
{
    char dir[CLI_PATH];
    HT_TRY(cli__store_dir(c, dir, e));
    char *keep = ht_arena_strndup(a, dir, strlen(dir));
    if (!keep) return HT_FAIL(e, HT_ENOMEM, "store: no memory");
    return ht_store_open(a, keep, ht_now_unix(), s, e);
}

int cli__keys_open(cli__ctx *c, cli__keyring *k, ht_err *e)
{
    const char *const *path;
    size_t n = ht_opt_list(c->o, HT_OPT_KEY, &path);
    *k = (cli__keyring){.n = 0};
    if (n > CLI_KEYS) return HT_FAIL(e, HT_EARG, "--key: %zu keys, at most %d", n, (int)CLI_KEYS);
    if (n == 0) return HT_FAIL(e, HT_EARG, "a private key is needed: --key FILE");
    for (; k->n < n; k->n++) {
        int rc = ht_key_load(&k->key[k->n], path[k->n], e);
        if (rc == 0) continue;
        cli__keys_free(k);
        return rc;
    }
    return 0;
}

void cli__keys_free(cli__keyring *k)
{
    for (size_t i = 0; i < k->n; i++) ht_key_free(k->key[i]);
    k->n = 0;
}

/* ---- hetero keys ----------------------------------------------------------------------------- */

static int show_key(cli__ctx *c, const ht_key *k, const char *path, ht_err *e)
{
    uint8_t pub[HT_ED25519_PUB];
    char id[HT_SHA256_HEX], hex[HT_SHA256_HEX];
    ht_buf b;
    ht_jw w;
    ht_key_public(k, pub);
    ht_hex(pub, sizeof pub, hex);
    HT_TRY(ht_key_id(pub, id, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "file", path);
    ht_jw_kstr(&w, "keyId", id);
    ht_jw_kstr(&w, "publicKey", hex);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "key", e);
    if (rc == 0) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

static int new_or_show(cli__ctx *c, bool make, const char *path, ht_err *e)
{
    ht_key *k = NULL;
    if (!path) return HT_FAIL(e, HT_EARG, "hetero keys %s needs a FILE", make ? "new" : "show");
    int rc = make ? ht_key_new(&k, e) : ht_key_load(&k, path, e);
    if (rc == 0 && make) rc = ht_key_save(k, path, e);
    if (rc == 0) rc = show_key(c, k, path, e);
    ht_key_free(k);
    return rc;
}

/* Public half from 64 hex digits or a private key file. */
static int read_public(const char *text, uint8_t pub[HT_ED25519_PUB], ht_err *e)
{
    if (ht_is_sha256(text, strlen(text))) { /* 32 bytes in hex look like a digest */
        for (int i = 0; i < HT_ED25519_PUB; i++) {
            unsigned v = 0;
            if (sscanf(text + 2 * i, "%2x", &v) != 1)
                return HT_FAIL(e, HT_EARG, "--grant: not a public key");
            pub[i] = (uint8_t)v;
        }
        return 0;
    }
    ht_key *k = NULL;
    HT_TRY(ht_key_load(&k, text, e));
    ht_key_public(k, pub);
    ht_key_free(k);
    return 0;
}

/* ROLE=KEY: a new key of the root, or one more role of a key that is there. */
static int grant(ht_trust_key *key, size_t *n, const char *text, ht_err *e)
{
    const char *eq = strchr(text, '=');
    int role = eq ? ht_role_by_name(text, (size_t)(eq - text)) : -1;
    uint8_t pub[HT_ED25519_PUB];
    if (role < 0)
        return HT_FAIL(e, HT_EARG,
                       "--grant %.40s: need ROLE=KEY, ROLE one of bench, promote, index, receipt, "
                       "simulate; KEY a private key file or the 64 hex digits of a public key",
                       text);
    HT_TRY(read_public(eq + 1, pub, e));
    for (size_t i = 0; i < *n; i++) {
        if (memcmp(key[i].pub, pub, sizeof pub) != 0) continue;
        key[i].roles |= 1u << role;
        return 0;
    }
    memcpy(key[*n].pub, pub, sizeof pub);
    key[*n].roles = 1u << role;
    return ht_key_id(pub, key[(*n)++].id, e);
}

/* A machine signs its receipts by itself: unless a key for that is granted, the one in the user's
 * state folder gets the role, made when it is not there yet. */
static int own_receipt_key(cli__ctx *c, ht_trust_key *key, size_t *n, ht_err *e)
{
    char path[CLI_PATH], word[CLI_PATH + 16];
    ht_key *k = NULL;
    if (!cli__receipt_key(path)) return 0;
    if (access(path, F_OK) != 0) {
        HT_TRY(ht_path_make_parents(path, 0700, e));
        HT_TRY(ht_key_new(&k, e));
        const int rc = ht_key_save(k, path, e);
        ht_key_free(k);
        HT_TRY(rc);
        cli__say(c, CLI_INFO, "a new key that signs receipts: %s", path);
    }
    (void)snprintf(word, sizeof word, "receipt=%s", path);
    return grant(key, n, word, e);
}

/* hetero keys init: a store with a trust root. Every role needs as many keys as its threshold. */
static int init_store(cli__ctx *c, ht_err *e)
{
    const char *const *text, *policy_path = ht_opt_str(c->o, HT_OPT_POLICY);
    ht_trust_key key[CLI_KEYS] = {{{0}, {0}, 0}};
    ht_trust t = {.version = 1,
                  .key = key,
                  .threshold = {1, 2, 1, 1, 1},
                  .expires_unix = ht_now_unix() + 365 * (int64_t)86400};
    char dir[CLI_PATH], *policy = NULL;
    size_t n = ht_opt_list(c->o, HT_OPT_GRANT, &text), len, have[HT_ROLES] = {0};
    HT_TRY(cli__store_dir(c, dir, e));
    if (n > CLI_KEYS) return HT_FAIL(e, HT_EARG, "--grant: %zu keys, at most %d", n, (int)CLI_KEYS);
    bool receipts = false;
    for (size_t i = 0; i < n; i++) {
        HT_TRY(grant(key, &t.n_keys, text[i], e));
        receipts = receipts || strncmp(text[i], "receipt=", 8) == 0;
    }
    if (!receipts && n < CLI_KEYS) HT_TRY(own_receipt_key(c, key, &t.n_keys, e));
    for (size_t i = 0; i < t.n_keys; i++)
        for (int r = 0; r < HT_ROLES; r++) have[r] += key[i].roles >> r & 1;
    for (int r = 0; r < HT_ROLES; r++)
        if (have[r] < t.threshold[r] && r != HT_ROLE_SIMULATE && r != HT_ROLE_RECEIPT)
            return HT_FAIL(e, HT_EARG, "role %s needs %u key(s), %zu granted: --grant %s=FILE",
                           ht_role_name(r), t.threshold[r], have[r], ht_role_name(r));
    if (policy_path) HT_TRY(ht_file_read(policy_path, 1 << 20, &policy, &len, e));
    ht_arena *a = NULL;
    int rc = ht_arena_new(&a, 0, e);
    ht_policy parsed;
    if (rc == 0 && policy) rc = ht_policy_parse(a, policy, len, &parsed, e);
    if (rc == 0) rc = ht_store_init(dir, &t, policy, e);
    ht_arena_free(a);
    ht_mem_free(policy);
    if (rc == 0) cli__say(c, CLI_INFO, "store: %s, %zu keys", dir, t.n_keys);
    return rc;
}

int cli__keys(cli__ctx *c, ht_err *e)
{
    const char *what = ht_opts_arg(c->o, 0), *path = ht_opts_arg(c->o, 1);
    if (strcmp(what, "init") == 0 && !path) return init_store(c, e);
    if (strcmp(what, "new") == 0) return new_or_show(c, true, path, e);
    if (strcmp(what, "show") == 0) return new_or_show(c, false, path, e);
    return HT_FAIL(e, HT_EARG, "hetero keys: need new FILE, show FILE or init, got '%.40s'", what);
}
