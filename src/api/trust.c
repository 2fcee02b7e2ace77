/* trust.c - the first use of a pack hashes every byte of it. */
#include "api/api.h"

int api__trust(const ht_file *file, int verify, ht_progress_fn progress, void *user,
               char hex[HT_SHA256_HEX], bool *hashed, ht_err *err)
{
    (void)verify;
    *hashed = true;
    return ht_file_verify(file, progress, user, hex, err);
}
