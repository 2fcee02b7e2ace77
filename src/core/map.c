/* map.c - see map.h. The table of live maps is the one piece of process-wide state in core/: a
 * signal handler has no other way to tell our pages from anybody else's. */
#include "core/map.h"
#include "core/arena.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Maps past these are not guarded; a sharded model has tens of parts. */
enum { SLOTS = 512 };
static struct {
    _Atomic uintptr_t start; /* 0: free */
    _Atomic size_t n;
    _Atomic int broken;
} slots[SLOTS];

static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;
static bool guarded;
static struct sigaction before;

static int slot_take(const void *p, size_t n)
{
    for (int i = 0; i < SLOTS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&slots[i].start, &none, UINTPTR_MAX)) continue;
        atomic_store(&slots[i].n, n);
        atomic_store(&slots[i].broken, 0);
        atomic_store(&slots[i].start, (uintptr_t)p);
        return i + 1;
    }
    return -1;
}

static void slot_give(int slot)
{
    if (slot > 0) atomic_store(&slots[slot - 1].start, 0);
}

/* Put zeros under the faulting page, so that the instruction can go on. mmap is a bare system
 * call. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < SLOTS; i++) {
        uintptr_t start = atomic_load(&slots[i].start);
        if (!start || at < start || at - start >= atomic_load(&slots[i].n)) continue;
        int kept = errno;
        void *zero = mmap((void *)(at & ~(page - 1)), page, PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = kept;
        if (zero == MAP_FAILED) break;
        atomic_store(&slots[i].broken, 1);
        return;
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL); /* the fault repeats at once and ends the process as it would have */
    }
}

int ht_map_guard(ht_err *e)
{
    int rc = 0;
    pthread_mutex_lock(&guard_lock);
    if (!guarded) {
        struct sigaction act;
        memset(&act, 0, sizeof act);
        act.sa_sigaction = on_sigbus;
        act.sa_flags = SA_SIGINFO;
        sigemptyset(&act.sa_mask);
        if (sigaction(SIGBUS, &act, &before))
            rc = HT_FAIL(e, HT_EIO, "cannot install a SIGBUS handler: %s", strerror(errno));
        else guarded = true;
    }
    pthread_mutex_unlock(&guard_lock);
    return rc;
}

void ht_map_drop(const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p;
    uintptr_t lo = (from + page - 1) & ~(page - 1), hi = (from + n) & ~(page - 1);
    for (int i = 0; i < SLOTS && lo < hi; i++) {
        uintptr_t start = atomic_load(&slots[i].start);
        if (!start || from < start || from - start >= atomic_load(&slots[i].n)) continue;
        if (n <= atomic_load(&slots[i].n) - (from - start))
            (void)madvise((void *)lo, hi - lo, MADV_DONTNEED); /* only advice */
        return;
    }
}

bool ht_map_broken(const ht_map *m)
{
    return m->slot > 0 && atomic_load(&slots[m->slot - 1].broken);
}

static uint64_t nanoseconds(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int not_regular(const char *path, mode_t mode, ht_err *e)
{
    const char *what = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a pipe"
                                        : "not a regular file";
    return HT_FAIL(e, HT_EIO, "%.150s is %s; a regular file is needed to map it", path, what);
}

int ht_map_open(ht_map *m, const char *path, ht_err *e)
{
    struct stat st;
    *m = (ht_map){.fd = -1};
    /* O_NONBLOCK: opening a pipe without a writer must not hang; it has no effect on files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "cannot open %.150s: %s", path, strerror(errno));
    int rc = 0;
    if (fstat(fd, &st)) rc = HT_FAIL(e, HT_EIO, "cannot examine %.150s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode)) rc = not_regular(path, st.st_mode, e);
    if (!rc && st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            rc = HT_FAIL(e, HT_EIO, "cannot map %.150s (%lld bytes): %s", path,
                         (long long)st.st_size, strerror(errno));
        else m->p = p;
    }
    if (rc) {
        close(fd);
        return rc;
    }
    m->n = (size_t)st.st_size;
    m->fd = fd;
    m->dev = (uint64_t)st.st_dev;
    m->ino = (uint64_t)st.st_ino;
    m->mtime_ns = nanoseconds(st.st_mtim);
    m->ctime_ns = nanoseconds(st.st_ctim);
    m->slot = m->p ? slot_take(m->p, m->n) : -1;
    return 0;
}

void ht_map_close(ht_map *m)
{
    if (!m->slot) return;
    slot_give(m->slot);
    if (m->p) munmap((void *)(uintptr_t)m->p, m->n);
    close(m->fd);
    *m = (ht_map){.fd = -1};
}

/* Everything fd gives, at most max bytes. */
static int read_all(int fd, const char *name, size_t max, char **out, size_t *n, ht_err *e)
{
    char *p = NULL;
    size_t len = 0, cap = 0;
    for (;;) {
        if (len == cap) {
            size_t more = cap ? cap * 2 : 4096;
            if (more > max + 1) more = max + 1; /* one byte more than allowed: to notice */
            char *q = more > cap ? ht_mem_resize(p, more + 1) : NULL;
            if (!q) {
                ht_mem_free(p);
                if (more > cap) return HT_FAIL(e, HT_ENOMEM, "no memory to read %.150s", name);
                return HT_FAIL(e, HT_ENOMEM, "%.150s is larger than the limit of %zu bytes", name,
                               max);
            }
            p = q;
            cap = more;
        }
        ssize_t got = read(fd, p + len, cap - len);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            ht_mem_free(p);
            return HT_FAIL(e, HT_EIO, "cannot read %.150s: %s", name, strerror(errno));
        }
        if (!got) break;
        len += (size_t)got;
    }
    p[len] = 0;
    *out = p;
    *n = len;
    return 0;
}

int ht_file_read(const char *path, size_t max, char **out, size_t *n, ht_err *e)
{
    *out = NULL;
    *n = 0;
    if (max > SIZE_MAX / 4) max = SIZE_MAX / 4;
    if (!strcmp(path, "-")) return read_all(STDIN_FILENO, "standard input", max, out, n, e);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return HT_FAIL(e, HT_EIO, "cannot open %.150s: %s", path, strerror(errno));
    int rc = read_all(fd, path, max, out, n, e);
    close(fd);
    return rc;
}
