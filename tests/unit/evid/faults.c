/* faults.c - what can go wrong below a bundle: every system call of sealing and verifying fails in
 * turn, is interrupted or does half its work; files change between two calls; every allocation
 * fails in turn. An interruption changes nothing, everything else is a refusal with a message, and
 * what a half-written folder holds never verifies. */
#include "core/arena.h"
#include "evid/harness.h"
#include "evid/journal.h"
#include "fixture.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the system, with a fault in it: these definitions come before libc's ---- */

enum fault { F_NONE, F_EINTR, F_SHORT, F_FAIL, F_KINDS };
static struct {
    enum fault kind;
    int code;        /* errno of F_FAIL */
    unsigned at, n;  /* the at-th call of those that count */
    unsigned calls;  /* bit per enum call that counts */
    const char *end; /* files whose path ends so are changed behind our back */
    void (*touch)(const char *path);
    bool on_close;
} sys;
enum call { C_OPEN = 1, C_READ = 2, C_WRITE = 4, C_STAT = 8, C_SYNC = 16, C_DIR = 32, C_ALL = 63 };

static enum fault trip(enum call c)
{
    if (!sys.kind || !(sys.calls & (unsigned)c) || ++sys.n != sys.at) return F_NONE;
    errno = sys.kind == F_EINTR ? EINTR : sys.code;
    return sys.kind;
}

static void touch(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    size_t k = sys.end ? strlen(sys.end) : 0;
    if (n < 0 || !k || (size_t)n < k) return;
    path[n] = 0;
    void (*what)(const char *) = sys.touch;
    if (strcmp(path + (size_t)n - k, sys.end) != 0) return;
    sys.end = NULL; /* once */
    what(path);
}

ssize_t read(int fd, void *p, size_t n)
{
    enum fault f = trip(C_READ);
    if (f == F_EINTR || f == F_FAIL) return -1;
    return syscall(SYS_read, fd, p, f == F_SHORT ? (n + 1) / 2 : n);
}

ssize_t write(int fd, const void *p, size_t n)
{
    enum fault f = trip(C_WRITE);
    if (f == F_EINTR || f == F_FAIL) return -1;
    return syscall(SYS_write, fd, p, f == F_SHORT ? (n + 1) / 2 : n);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (trip(C_OPEN) == F_FAIL) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (trip(C_OPEN) == F_FAIL) return -1;
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

int fstat(int fd, struct stat *st)
{
    if (trip(C_STAT) == F_FAIL) return -1;
    int rc = (int)syscall(SYS_fstat, fd, st);
    if (!sys.on_close) touch(fd);
    return rc;
}

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
    if (trip(C_STAT) == F_FAIL) return -1;
    return (int)syscall(SYS_newfstatat, dir, path, st, flags);
}

int fsync(int fd)
{
    if (trip(C_SYNC) == F_FAIL) return -1;
    return (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode)
{
    if (trip(C_DIR) == F_FAIL) return -1;
    return (int)syscall(SYS_mkdir, path, mode);
}

int close(int fd)
{
    if (sys.on_close) touch(fd);
    return (int)syscall(SYS_close, fd);
}

static void arm(enum fault kind, int code, unsigned calls, unsigned at)
{
    sys.kind = kind;
    sys.code = code;
    sys.calls = calls;
    sys.at = at;
    sys.n = 0;
}

/* ---- the subject ---- */

typedef struct {
    fx f;
    ht_trust t;
    const char *dir;
    char id[HT_SHA256_HEX];
} subject;

static int verify(const subject *s, ht_err *e)
{
    ht_arena *a;
    ht_verified v;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ht_bundle_verify(a, s->dir, &s->t, FX_NOW, &v, e);
    T_CHECK(rc || strcmp(v.id, s->id) == 0, "another bundle was verified");
    ht_arena_free(a);
    return rc;
}

static void make(subject *s)
{
    ht_err e = {0};
    fx_init(&s->f);
    s->f.cells = 1;
    fx_build(&s->f);
    fx_trust(&s->f, &s->t);
    s->dir = fx_fmt(&s->f, "%s/bundle", t_tmp());
    fx_seal(&s->f, s->dir, s->id);
    T_OK(verify(s, &e), e);
}

/* Open descriptors of this process: none may stay behind an error. */
static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

/* evidence.md 8, Bytes 5 and Trust 40. A step that is prime to the number of calls a file takes
 * meets every kind of call early and late. */
T_CASE_SECONDS(faults, verify_walks_all_calls, 300)
{
    subject s;
    ht_err e = {0};
    make(&s);
    const unsigned open_before = descriptors();
    arm(F_EINTR, 0, C_ALL, UINT32_MAX);
    T_OK(verify(&s, &e), e);
    const unsigned all = sys.n;
    T_CHECK(all > 900, "only %u calls were counted", all);
    unsigned refused = 0, passed = 0;
    for (int kind = F_EINTR; kind < F_KINDS; kind++)
        for (unsigned n = 1; n <= all; n += n < 40 ? 1 : 23) {
            e = (ht_err){0};
            arm((enum fault)kind, EIO, C_ALL, n);
            int rc = verify(&s, &e);
            bool hit = sys.n >= n;
            arm(F_NONE, 0, 0, 0);
            T_CHECK(hit, "call %u was not reached", n);
            if (kind != F_FAIL) {
                T_CHECK(rc == 0, "kind %d at call %u of %u: %s", kind, n, all, e.msg);
                passed++;
            } else if (rc) {
                T_CHECK(e.msg[0], "call %u is refused without a word", n);
                refused++;
            }
            T_EQ_INT(descriptors(), open_before);
        }
    T_CHECK(refused > 60 && passed > 150, "%u refused, %u passed", refused, passed);
    T_OK(verify(&s, &e), e);
    fx_done(&s.f);
}

static void grow(const char *path)
{
    FILE *f = fopen(path, "a");
    if (f) fputc(' ', f), fclose(f);
}

static void replace(const char *path)
{
    char other[4200];
    snprintf(other, sizeof other, "%s.new", path);
    t_spit(other, "{}", 2);
    T_EQ_INT(rename(other, path), 0);
}

static void shrink(const char *path)
{
    T_EQ_INT(truncate(path, 3), 0);
}

/* A file that changes after its length was asked for is refused; one that changes after it was read
 * changes nothing, because what was hashed is what is used. */
T_CASE_SECONDS(faults, files_change_meanwhile, 120)
{
    static const char *const name[] = {"/design.json",  "/samples.jsonl",        "/journal.jsonl",
                                       "/verdict.json", "/inputs.manifest.json", "/costmap.json",
                                       "/proc.json",    "/statement.dsse.json"};
    static void (*const change[])(const char *) = {grow, shrink};
    subject s;
    ht_err e = {0};
    make(&s);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        for (int k = 0; k < 2; k++) {
            s.dir = fx_fmt(&s.f, "%s/race-%zu-%d", t_tmp(), i, k);
            fx_seal(&s.f, s.dir, s.id);
            sys.end = name[i];
            sys.touch = change[k];
            sys.on_close = false;
            T_ERR(verify(&s, &e), HT_EIO, e, "size changed while it was read");
        }
        s.dir = fx_fmt(&s.f, "%s/after-%zu", t_tmp(), i);
        fx_seal(&s.f, s.dir, s.id);
        sys.end = name[i];
        sys.touch = replace;
        sys.on_close = true;
        T_OK(verify(&s, &e), e);
        T_CHECK(!sys.end, "%s was never closed", name[i]);
        sys.on_close = false;
        T_CHECK(verify(&s, &e) != 0, "%s: the next verification sees the change", name[i]);
    }
    fx_done(&s.f);
}

/* The first, samples, and each of the last 30, among them the statement's. */
static unsigned next_call(unsigned n, unsigned all)
{
    const unsigned last = all > 30 ? all - 30 : 0;
    if (!n || n >= last) return n + 1;
    return n + 211 < last ? n + 211 : last;
}

/* No space, a device that fails, a call cut short: while the bundle is written. What is left has no
 * statement, or is whole. */
T_CASE_SECONDS(faults, seal_walks_all_calls, 300)
{
    static const int code[] = {ENOSPC, EIO};
    subject s;
    ht_err e = {0};
    ht_key *k = fx_key(1);
    make(&s);
    ht_bundle_file *list = ht_arena_array(s.f.a, s.f.n, sizeof *list);
    for (size_t i = 0; i < s.f.n; i++)
        list[i] = (ht_bundle_file){s.f.file[i].path, s.f.file[i].data, s.f.file[i].bytes};
    unsigned all = 0, refused = 0, runs = 0;
    for (int kind = F_EINTR; kind < F_KINDS; kind++)
        for (unsigned n = 0; n <= all; n = next_call(n, all), runs++) {
            char id[HT_SHA256_HEX];
            const unsigned open_before = descriptors();
            e = (ht_err){0};
            s.dir = fx_fmt(&s.f, "%s/seal-%d-%u", t_tmp(), kind, n);
            arm((enum fault)kind, code[n & 1], C_WRITE | C_OPEN | C_SYNC | C_DIR,
                n ? n : UINT32_MAX);
            int rc = ht_bundle_write(s.dir, list, s.f.n, k, id, &e);
            if (!n) all = sys.n;
            arm(F_NONE, 0, 0, 0);
            T_EQ_INT(descriptors(), open_before);
            T_CHECK(rc == 0 || (kind == F_FAIL && e.msg[0]), "kind %d at %u: %d %s", kind, n, rc,
                    e.msg);
            T_CHECK(rc == 0 || strcmp(e.msg, "") != 0, "no word");
            refused += rc != 0;
            int good = verify(&s, &e);
            T_CHECK(rc ? good != 0 : good == 0, "call %u: written %d, verified %d: %s", n, rc, good,
                    e.msg);
        }
    T_CHECK(all > 200 && refused > 25 && runs > 90, "%u calls, %u refused, %u runs", all, refused,
            runs);
    ht_key_free(k);
    fx_done(&s.f);
}

/* The journal's own writes: an interrupted or short write is carried on, a failed one or a failed
 * fsync is an error, and the lines that are there form a chain. */
T_CASE(faults, journal_walks_all_calls)
{
    ht_arena *a;
    ht_err e = {0};
    T_OK(ht_arena_new(&a, 0, &e), e);
    for (int kind = F_EINTR; kind < F_KINDS; kind++)
        for (unsigned n = 1; n < 10; n++) {
            char path[300];
            ht_journal j;
            int rc = 0;
            size_t len, lines;
            ht_json **line;
            snprintf(path, sizeof path, "%s/j-%d-%u", t_tmp(), kind, n);
            T_OK(ht_journal_new(&j, path, &e), e);
            arm((enum fault)kind, ENOSPC, C_WRITE | C_SYNC, n);
            for (int i = 0; i < 4 && !rc; i++)
                rc = ht_journal_add(&j, a, i ? "note" : "design", NULL, &e);
            if (!rc) rc = ht_journal_close(&j, a, NULL, &e);
            arm(F_NONE, 0, 0, 0);
            T_CHECK(rc == 0 || kind == F_FAIL, "kind %d at %u: %s", kind, n, e.msg);
            ht_journal_abort(&j);
            char *text = t_slurp(path, &len);
            if (len) T_OK(ht_journal_check(a, text, len, rc == 0, &line, &lines, &e), e);
            free(text);
        }
    ht_arena_free(a);
}

/* ---- memory ---- */

typedef struct {
    subject s;
    const ht_key *key;
    ht_bundle_file *list;
    unsigned run;
} job;

static int verify_job(job *j, ht_err *e)
{
    return verify(&j->s, e);
}

static int seal_job(job *j, ht_err *e)
{
    char id[HT_SHA256_HEX], dir[300];
    snprintf(dir, sizeof dir, "%s/mem-%u", t_tmp(), j->run++);
    return ht_bundle_write(dir, j->list, j->s.f.n, j->key, id, e);
}

/* Allocations fail in turn, the first thirty and then some 40 spread over the rest: HT_ENOMEM with
 * a message, nothing stays allocated. How many were made to fail. */
static unsigned walk(job *j, int (*what)(job *, ht_err *))
{
    ht_err e = {0};
    unsigned n = 1, failed = 0;
    const uint64_t first = ht_alloc_count();
    T_OK(what(j, &e), e);
    const unsigned step = (unsigned)((ht_alloc_count() - first) / 40) | 1;
    for (;; n += n < 30 ? 1 : step, failed++) {
        const uint64_t before = ht_alloc_live();
        e = (ht_err){0};
        ht_alloc_fail_at(n);
        int rc = what(j, &e);
        ht_alloc_fail_at(0);
        T_CHECK(ht_alloc_live() == before, "allocation %u: something stays", n);
        if (!rc) break;
        T_CHECK(rc == HT_ENOMEM && e.msg[0], "allocation %u: %d %s", n, rc, e.msg);
    }
    T_OK(what(j, &e), e);
    return failed;
}

T_CASE_SECONDS(faults, every_allocation, 300)
{
    job j = {0};
    ht_key *k = fx_key(1);
    make(&j.s);
    j.key = k;
    j.list = ht_arena_array(j.s.f.a, j.s.f.n, sizeof *j.list);
    for (size_t i = 0; i < j.s.f.n; i++)
        j.list[i] = (ht_bundle_file){j.s.f.file[i].path, j.s.f.file[i].data, j.s.f.file[i].bytes};
    T_CHECK(walk(&j, verify_job) > 20, "hardly any allocation");
    T_CHECK(walk(&j, seal_job) > 20, "hardly any allocation");
    ht_key_free(k);
    fx_done(&j.s.f);
}
