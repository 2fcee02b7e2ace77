/* fuzz_gguf.c - GGUF, read whole and for its vocabulary only. */
#include "memfile.h"
#include "walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfile(data, size, path);
    try_open(path, 0);
    try_open(path, 1);
    close(fd);
    return 0;
}
