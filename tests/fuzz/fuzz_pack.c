/* fuzz_pack.c - HeteroPack, as it comes and with length and digest made good: no mutation would
 * meet a SHA-256, so without that nothing behind the check would be reached. */
#include "core/hash.h"
#include "memfile.h"
#include "walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void seal(uint8_t *b, size_t size)
{
    uint64_t header = 0, whole = size;
    ht_sha256 *h;
    ht_err e;
    for (int i = 7; i >= 0; i--) header = header << 8 | b[16 + i];
    if (header > size - HT_PACK_PREFIX) header = (size - HT_PACK_PREFIX) / 2;
    memcpy(b, HT_PACK_MAGIC, 8);
    memcpy(b + 16, &header, 8);
    memcpy(b + 24, &whole, 8);
    must(!ht_sha256_new(&h, &e) && !ht_sha256_add(h, b, 32, &e) &&
         !ht_sha256_add(h, b + HT_PACK_PREFIX, header, &e) && !ht_sha256_end(h, b + 32, &e));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfile(data, size, path);
    try_open(path, 0);
    close(fd);
    if (size < HT_PACK_PREFIX) return 0;
    uint8_t *b = malloc(size);
    must(b != NULL);
    memcpy(b, data, size);
    seal(b, size);
    fd = memfile(b, size, path);
    try_open(path, 0);
    close(fd);
    free(b);
    return 0;
}
