/* fuzz_safetensors.c - a Hugging Face folder whose model.safetensors is the input, as it comes and
 * with a header length that fits the file. */
#include "memfile.h"
#include "walk.h"
#include <fcntl.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];

static void put(const char *name, const void *p, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

static void cleanup(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!folder[0]) {
        struct stat st;
        const char *where = stat("/dev/shm", &st) ? "/tmp" : "/dev/shm";
        snprintf(folder, sizeof folder, "%s/fuzz_st_XXXXXX", where);
        if (!mkdtemp(folder)) abort();
        atexit(cleanup);
        put("config.json", "{}", 2);
    }
    put("model.safetensors", data, size);
    try_open(folder, 0);
    uint64_t n = 0;
    if (size < 8) return 0;
    memcpy(&n, data, 8);
    if (n <= size - 8) return 0;
    uint8_t *b = malloc(size);
    must(b != NULL);
    memcpy(b, data, size);
    n %= size - 7;
    memcpy(b, &n, 8);
    put("model.safetensors", b, size);
    try_open(folder, 0);
    free(b);
    return 0;
}
