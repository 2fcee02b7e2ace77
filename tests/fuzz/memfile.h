/* memfile.h - the input of a fuzz target as a file in memory with a path. */
#ifndef HT_FUZZ_MEMFILE_H
#define HT_FUZZ_MEMFILE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file descriptor whose path is written to path; the file lives until it is closed. */
static inline int memfile(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
#endif
