/* replay.c - run a fuzz target over files instead of under libFuzzer: every corpus file is one
 * case, in a forked child with a time limit. usage: fuzz_NAME FOLDER_OR_FILE... */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT_S = 60 };
static unsigned long passed, failed;

static uint8_t *load(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    uint8_t *p = NULL;
    if (!f || fstat(fileno(f), &st)) {
        if (f) fclose(f);
        return NULL;
    }
    *n = (size_t)st.st_size;
    p = malloc(*n ? *n : 1); /* exactly n bytes: a read past the end is one past the allocation */
    if (p && fread(p, 1, *n, f) != *n) {
        free(p);
        p = NULL;
    }
    fclose(f);
    return p;
}

static void one(const char *path)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        printf("FAIL %s: fork: %s\n", path, strerror(errno));
        failed++;
        return;
    }
    if (!pid) {
        size_t n;
        uint8_t *p = load(path, &n);
        if (!p) _exit(3);
        alarm(LIMIT_S);
        int rc = LLVMFuzzerTestOneInput(p, n);
        free(p);
        exit(rc ? 4 : 0); /* exit, not _exit: the leak checker runs here */
    }
    int st = 0;
    waitpid(pid, &st, 0);
    if (WIFEXITED(st) && !WEXITSTATUS(st)) {
        passed++;
        return;
    }
    failed++;
    if (WIFSIGNALED(st)) printf("FAIL %s: killed by signal %d\n", path, WTERMSIG(st));
    else printf("FAIL %s: exit status %d\n", path, WEXITSTATUS(st));
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static void folder(const char *path)
{
    struct dirent **item;
    int n = scandir(path, &item, visible, alphasort);
    for (int i = 0; i < n; i++) {
        char full[4096];
        snprintf(full, sizeof full, "%s/%s", path, item[i]->d_name);
        one(full);
        free(item[i]);
    }
    if (n >= 0) free(item);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st)) {
            printf("FAIL %s: %s\n", argv[i], strerror(errno));
            failed++;
        } else if (S_ISDIR(st.st_mode)) {
            folder(argv[i]);
        } else {
            one(argv[i]);
        }
    }
    if (!passed && !failed) {
        printf("FAIL no corpus file was given: a fuzz target needs seeds\n");
        failed++;
    }
    printf("%lu passed, %lu failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
