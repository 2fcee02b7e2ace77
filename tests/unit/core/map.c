/* map.c - mapped files and small files read whole. */
#include "core/map.h"
#include "core/arena.h"
#include "test.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static ht_err e;

static const char *file(const char *name, const void *p, size_t n)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", t_tmp(), name);
    t_spit(path, p, n);
    return path;
}

/* Dropped pages come back from the file; memory that is no map, or reaches out of one, is left
 * alone. */
T_CASE(map, drop_keeps_the_bytes)
{
    enum { N = 1 << 20 };
    ht_map m;
    char *big = malloc(N), *own = malloc(N);
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) own[i] = big[i] = (char)t_rand(&seed);
    T_OK(ht_map_open(&m, file("big", big, N), &e), e);
    T_EQ_MEM(m.p, big, N);
    ht_map_drop(m.p, N);
    ht_map_drop(m.p + 4095, 1);
    ht_map_drop(m.p + N - 8192, (size_t)1 << 40);
    ht_map_drop(own, N);
    T_EQ_MEM(m.p, big, N);
    T_EQ_MEM(own, big, N);
    ht_map_close(&m);
    free(big);
    free(own);
}

T_CASE(map, bytes_and_identity)
{
    struct stat st;
    ht_map m;
    const char *path = file("a", "hello", 5);
    T_OK(ht_map_open(&m, path, &e), e);
    T_TRUE(!stat(path, &st));
    T_EQ_INT(m.n, 5);
    T_EQ_MEM(m.p, "hello", 5);
    T_TRUE(m.dev == st.st_dev && m.ino == st.st_ino);
    T_TRUE(m.mtime_ns == (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    T_TRUE(!ht_map_broken(&m));
    ht_map_close(&m);
    T_TRUE(!m.p && m.fd < 0);
    ht_map_close(&m);
    ht_map zero = {0};
    T_TRUE(dup2(1, 0) == 0);
    ht_map_close(&zero); /* must not close descriptor 0 */
    T_TRUE(fcntl(0, F_GETFD) != -1);
    T_OK(ht_map_open(&m, file("empty", "", 0), &e), e);
    T_TRUE(!m.p && !m.n);
    ht_map_close(&m);
}

T_CASE(map, refusals)
{
    ht_map m;
    char path[600];
    T_ERR(ht_map_open(&m, "/nonexistent/x", &e), HT_EIO, e, "/nonexistent/x: No such file");
    T_ERR(ht_map_open(&m, t_tmp(), &e), HT_EIO, e, "is a folder");
    snprintf(path, sizeof path, "%s/fifo", t_tmp());
    T_TRUE(!mkfifo(path, 0600));
    T_ERR(ht_map_open(&m, path, &e), HT_EIO, e, "is a pipe"); /* and does not wait for a writer */
    T_ERR(ht_map_open(&m, "/dev/null", &e), HT_EIO, e, "not a regular file");
    ht_map_close(&m);
}

T_CASE(map, truncation_gives_zeros_under_guard)
{
    if (t_sanitized()) T_SKIP("sanitizers take SIGBUS for themselves");
    enum { N = 5 * 4096 + 100 };
    static char data[N];
    memset(data, 'x', N);
    const char *path = file("cut", data, N);
    ht_map m, other;
    T_OK(ht_map_open(&m, path, &e), e);
    T_OK(ht_map_guard(&e), e);
    T_OK(ht_map_guard(&e), e);
    T_EQ_INT(m.p[4 * 4096], 'x');
    T_TRUE(!truncate(path, 4096 + 10));
    T_TRUE(!ht_map_broken(&m));
    T_EQ_INT(m.p[0], 'x');
    T_EQ_INT(((volatile const uint8_t *)m.p)[3 * 4096 + 5], 0);
    T_TRUE(ht_map_broken(&m));
    T_EQ_INT(((volatile const uint8_t *)m.p)[N - 1], 0);
    T_OK(ht_map_open(&other, path, &e), e);
    T_TRUE(!ht_map_broken(&other));
    ht_map_close(&other);
    ht_map_close(&m);
}

T_CASE(map, other_faults_still_kill)
{
    if (t_sanitized()) T_SKIP("sanitizers take SIGBUS for themselves");
    pid_t pid = fork();
    if (!pid) {
        if (ht_map_guard(&e)) _exit(1);
        raise(SIGBUS);
        raise(SIGBUS);
        _exit(0);
    }
    int st;
    T_TRUE(waitpid(pid, &st, 0) == pid);
    T_TRUE(WIFSIGNALED(st) && WTERMSIG(st) == SIGBUS);
}

T_CASE(file, read_whole)
{
    char *p;
    size_t n;
    enum { N = 100000 };
    static char data[N];
    for (int i = 0; i < N; i++) data[i] = (char)(i * 7);
    const char *path = file("big", data, N);
    T_OK(ht_file_read(path, 0x7fffffff, &p, &n, &e), e);
    T_EQ_INT(n, N);
    T_EQ_MEM(p, data, N);
    T_EQ_INT(p[N], 0);
    ht_mem_free(p);
    T_OK(ht_file_read(path, N, &p, &n, &e), e); /* exactly the limit */
    T_EQ_INT(n, N);
    ht_mem_free(p);
    T_ERR(ht_file_read(path, N - 1, &p, &n, &e), HT_ENOMEM, e, "larger than the limit of 99999");
    T_TRUE(!p);
    T_OK(ht_file_read(file("none", "", 0), 0, &p, &n, &e), e);
    T_TRUE(n == 0 && p && !*p);
    ht_mem_free(p);
    T_ERR(ht_file_read("/nonexistent/x", 10, &p, &n, &e), HT_EIO, e, "cannot open");
    T_ERR(ht_file_read(t_tmp(), 10, &p, &n, &e), HT_EIO, e, "cannot read");
}

T_CASE(file, read_standard_input)
{
    int fd[2];
    char *p;
    size_t n;
    T_TRUE(!pipe(fd) && dup2(fd[0], 0) == 0);
    T_TRUE(write(fd[1], "from a pipe", 11) == 11);
    close(fd[1]);
    T_OK(ht_file_read("-", 100, &p, &n, &e), e);
    T_EQ_STR(p, "from a pipe");
    ht_mem_free(p);
}

T_CASE(file, nth_allocation_fails)
{
    enum { N = 50000 };
    static char data[N];
    const char *path = file("big", data, N);
    for (uint64_t k = 1;; k++) {
        char *p;
        size_t n;
        ht_alloc_fail_at(k);
        int rc = ht_file_read(path, N, &p, &n, &e);
        ht_alloc_fail_at(0);
        if (!rc) {
            T_CHECK(k > 2, "only %d allocations", (int)k);
            ht_mem_free(p);
            break;
        }
        T_TRUE(rc == HT_ENOMEM && !p);
    }
}
