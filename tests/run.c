/* run.c - the one test runner (see test.h). Linked into every C test program.
 * usage: PROGRAM [-l] [-v] [FILTER...]   runs the cases whose "group.name" contains a filter.
 * Each case runs in a forked child in its own process group; the child tells its checks, failures
 * and skip reason through a shared page, so that nothing it does can falsify another case. */
#include "test.h"
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct shared {
    unsigned long checks, failed;
    char skip[400], tmp[64];
} * sh;
static t_case *cases;

void t_register(t_case *c)
{
    t_case **p = &cases;
    /* By file, then in order of registration: output does not depend on link order. */
    while (*p && strcmp((*p)->file, c->file) <= 0) p = &(*p)->next;
    c->next = *p;
    *p = c;
}

bool t_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

bool t_full(void)
{
    const char *s = getenv("HETERO_TEST_FULL");
    return s && *s && *s != '0';
}

bool t_note(bool cond)
{
    __atomic_fetch_add(&sh->checks, 1, __ATOMIC_RELAXED);
    return cond;
}

static _Noreturn void case_over(int code)
{
    fflush(NULL);
    _exit(code);
}

static void say_failure(const char *file, int line, const char *expr, const char *fmt, va_list ap)
{
    char msg[1024];
    vsnprintf(msg, sizeof msg, fmt, ap);
    unsigned long n = __atomic_add_fetch(&sh->failed, 1, __ATOMIC_RELAXED);
    if (n <= 20) fprintf(stderr, "  %s:%d: %s%s%s\n", file, line, expr, *msg ? ": " : "", msg);
    if (n == 21) fprintf(stderr, "  more failures of this case are not shown\n");
}

void t_fail(const char *file, int line, const char *expr, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_failure(file, line, expr, fmt, ap);
    va_end(ap);
}

void t_die(const char *file, int line, const char *expr, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_failure(file, line, expr, fmt, ap);
    va_end(ap);
    case_over(1);
}

void t_eq_int(const char *file, int line, const char *expr, long long got, long long want)
{
    if (!t_note(got == want)) t_die(file, line, expr, "got %lld, want %lld", got, want);
}

void t_eq_str(const char *file, int line, const char *expr, const char *got, const char *want)
{
    bool same = got && want ? !strcmp(got, want) : got == want;
    if (!t_note(same))
        t_die(file, line, expr, "got \"%s\", want \"%s\"", got ? got : "(null)",
              want ? want : "(null)");
}

void t_eq_mem(const char *file, int line, const char *expr, const void *got, const void *want,
              size_t n)
{
    const unsigned char *a = got, *b = want;
    size_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    if (!t_note(i == n))
        t_die(file, line, expr, "byte %zu of %zu is 0x%02x, want 0x%02x", i, n, a[i], b[i]);
}

void t_near(const char *file, int line, const char *expr, double got, double want, double tol)
{
    if (!t_note(fabs(got - want) <= tol))
        t_die(file, line, expr, "got %.9g, want %.9g within %.3g (off by %.3g)", got, want, tol,
              fabs(got - want));
}

void t_skip(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sh->skip, sizeof sh->skip, fmt, ap);
    va_end(ap);
    case_over(0);
}

const char *t_shared(const char *rel)
{
    static char path[8][1024];
    static unsigned turn;
    char *p = path[turn++ % 8];
    const char *root = getenv("HETERO_SHARED");
    if (!root || !*root) root = "../shared";
    snprintf(p, sizeof path[0], "%s/data/%s", root, rel);
    if (access(p, R_OK)) t_skip("needs %s (set HETERO_SHARED to the folder of shared data)", p);
    return p;
}

const char *t_tmp(void)
{
    if (!*sh->tmp) {
        strcpy(sh->tmp, "/tmp/hetero-test-XXXXXX");
        if (!mkdtemp(sh->tmp)) {
            *sh->tmp = 0;
            t_die(__FILE__, __LINE__, "mkdtemp", "%s", strerror(errno));
        }
    }
    return sh->tmp;
}

char *t_slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    T_CHECK(f, "open %s: %s", path, strerror(errno));
    size_t cap = 1 << 16, len = 0;
    char *p = malloc(cap + 1);
    T_CHECK(p, "malloc %zu", cap);
    for (size_t got; (got = fread(p + len, 1, cap - len, f)) > 0;) {
        len += got;
        if (len == cap) {
            p = realloc(p, (cap *= 2) + 1);
            T_CHECK(p, "malloc %zu", cap);
        }
    }
    T_CHECK(!ferror(f), "read %s: %s", path, strerror(errno));
    fclose(f);
    p[len] = 0;
    if (n) *n = len;
    return p;
}

void t_spit(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    T_CHECK(f, "create %s: %s", path, strerror(errno));
    T_CHECK(fwrite(p, 1, n, f) == n && !fclose(f), "write %s: %s", path, strerror(errno));
}

uint64_t t_rand(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float t_randf(uint64_t *state)
{
    return (float)(t_rand(state) >> 40) * 0x1p-23f - 1.0f;
}

/* ---- the runner ------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wait for pid until the deadline. False: it ran over and was killed with all its children. */
static bool wait_child(pid_t pid, double deadline, int *status)
{
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    for (;;) {
        pid_t r = waitpid(pid, status, WNOHANG);
        if (r == pid) {
            kill(-pid, SIGKILL); /* what it left running */
            return true;
        }
        double left = deadline - now();
        if (left <= 0) {
            kill(-pid, SIGKILL);
            waitpid(pid, status, 0);
            return false;
        }
        struct timespec t = {(time_t)left, (long)(1e9 * (left - floor(left)))};
        sigtimedwait(&chld, NULL, &t);
    }
}

static void child(const t_case *c)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    c->fn();
    fflush(NULL);
    exit(sh->failed ? 1 : 0); /* exit, not _exit: the leak checker runs here */
}

static void remove_tmp(void)
{
    if (!*sh->tmp) return;
    pid_t pid = fork();
    if (!pid) {
        execlp("rm", "rm", "-rf", sh->tmp, (char *)NULL);
        _exit(127);
    }
    if (pid > 0) waitpid(pid, NULL, 0);
}

enum verdict { PASS, FAIL, SKIP };

static enum verdict run_case(const t_case *c, bool verbose)
{
    char why[500] = "";
    double t0 = now();
    memset(sh, 0, sizeof *sh);
    if (c->full && !t_full()) {
        printf("SKIP %s.%s: full tier only (make test-full)\n", c->group, c->name);
        return SKIP;
    }
    fflush(NULL);
    unsigned limit = c->seconds * (t_sanitized() ? 12 : 1);
    pid_t pid = fork();
    if (!pid) child(c);
    if (pid < 0) {
        snprintf(why, sizeof why, "fork: %s", strerror(errno));
    } else {
        setpgid(pid, pid); /* both sides, whoever is first */
        int st = 0;
        if (!wait_child(pid, t0 + limit, &st))
            snprintf(why, sizeof why, "ran over its limit of %u s", limit);
        else if (WIFSIGNALED(st))
            snprintf(why, sizeof why, "killed by signal %d (%s)", WTERMSIG(st),
                     strsignal(WTERMSIG(st)));
        else if (WEXITSTATUS(st)) snprintf(why, sizeof why, "exit status %d", WEXITSTATUS(st));
        else if (sh->failed) snprintf(why, sizeof why, "%lu checks failed", sh->failed);
        else if (!*sh->skip && !sh->checks) snprintf(why, sizeof why, "it checked nothing");
        remove_tmp();
    }
    if (*why) {
        printf("FAIL %s.%s (%s): %s\n", c->group, c->name, c->file, why);
        return FAIL;
    }
    if (*sh->skip) {
        printf("SKIP %s.%s: %s\n", c->group, c->name, sh->skip);
        return SKIP;
    }
    if (verbose)
        printf("ok   %s.%s (%lu checks, %.2f s)\n", c->group, c->name, sh->checks, now() - t0);
    return PASS;
}

static bool wanted(const t_case *c, int argc, char **argv)
{
    char full[256];
    bool any = false;
    snprintf(full, sizeof full, "%s.%s", c->group, c->name);
    for (int i = 1; i < argc; i++) {
        if (*argv[i] == '-') continue;
        any = true;
        if (strstr(full, argv[i])) return true;
    }
    return !any;
}

int main(int argc, char **argv)
{
    unsigned long count[3] = {0, 0, 0};
    bool list = false, verbose = false;
    for (int i = 1; i < argc; i++) {
        if (*argv[i] != '-') continue;
        if (!strcmp(argv[i], "-l")) list = true;
        else if (!strcmp(argv[i], "-v")) verbose = true;
        else {
            fprintf(stderr, "usage: %s [-l] [-v] [FILTER...]\n", argv[0]);
            return 2;
        }
    }
    sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, NULL);
    for (const t_case *c = cases; c; c = c->next) {
        if (!wanted(c, argc, argv)) continue;
        if (list) printf("%s.%s\n", c->group, c->name);
        else count[run_case(c, verbose)]++;
    }
    if (list) return 0;
    printf("%lu passed, %lu failed, %lu skipped\n", count[PASS], count[FAIL], count[SKIP]);
    return count[FAIL] || count[PASS] + count[SKIP] == 0;
}
