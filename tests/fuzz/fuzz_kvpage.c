/* fuzz_kvpage.c - a page file of the prefix cache, as it comes and with its digests made good. */
#include "core/hash.h"
#include "kv/pagefile.h"
#include "memfile.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const uint8_t *data, size_t size, int good)
{
    char path[64];
    ht_pagefile f;
    ht_err e = {0};
    const int fd = memfile(data, size, path), rc = ht_pagefile_head(path, true, &f, &e);
    if (rc == 0 && f.bytes[0] + f.bytes[1] + HT_PAGEFILE_HEAD != size) abort();
    if (rc != 0 && !e.msg[0]) abort();
    /* Sealed, of this version and size: there is no reason left to refuse it. */
    if (good && rc != 0) abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    look(data, size, 0);
    if (size < HT_PAGEFILE_HEAD) return 0;
    uint8_t *b = malloc(size);
    const uint32_t version = 1, tokens = HT_PAGE;
    const uint64_t bytes[2] = {size - HT_PAGEFILE_HEAD, 0};
    ht_err e;
    if (!b) abort();
    memcpy(b, data, size);
    if (ht_sha256_of(b + HT_PAGEFILE_HEAD, size - HT_PAGEFILE_HEAD, b + 352, &e) ||
        ht_sha256_of(b, 384, b + 384, &e))
        abort();
    look(b, size, 0);
    memcpy(b, "HTKVPAGE", 8);
    memcpy(b + 8, &version, sizeof version);
    memcpy(b + 12, &tokens, sizeof tokens);
    memcpy(b + 240, bytes, sizeof bytes);
    if (ht_sha256_of(b, 384, b + 384, &e)) abort();
    look(b, size, 1);
    free(b);
    return 0;
}
