/* trust.c - the first use of a pack hashes every byte of it; later ones trust the file's identity
 * (format/trust.h) until it changes, or until the caller asks to verify. The digest of other files
 * is found the same way, when somebody needs it. */
#include "format/trust.h"
#include "api/api.h"
#include "core/opt.h"

/* The list of packs verified before, in the user's cache directory; false when there is none. */
static bool list_path(ht_buf *b)
{
    const char *cache = ht_env_get(HT_ENV_XDG_CACHE_HOME);
    const char *home = ht_env_get(HT_ENV_HOME);
    if (cache) ht_buf_fmt(b, "%s/hetero/packs", cache);
    else if (home) ht_buf_fmt(b, "%s/.cache/hetero/packs", home);
    return b->n && !b->bad;
}

int api__trust(const ht_file *file, int verify, ht_progress_fn progress, void *user,
               char hex[HT_SHA256_HEX], bool *hashed, ht_err *err)
{
    ht_buf b;
    ht_buf_init(&b, 4096);
    const char *list = list_path(&b) ? b.p : NULL;
    int rc = 0;
    const bool pack = ht_file_kind(file) == HT_FILE_PACK;
    *hashed = verify || !(pack ? ht_pack_trusted(file, list) : ht_file_recorded(file, list, hex));
    if (*hashed) {
        rc = ht_file_verify(file, progress, user, hex, err);
        ht_err ignored; /* a list that cannot be written costs a hash next time, nothing else */
        if (!rc && list) (void)(ht_file_record(file, list, hex, &ignored) == 0);
    } else if (pack) {
        ht_hex(ht_file_sha256(file), HT_SHA256_BYTES, hex);
    }
    ht_buf_done(&b);
    return rc;
}
