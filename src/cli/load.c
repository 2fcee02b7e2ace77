/* load.c - see load.h. */
#include "cli/load.h"
#include "cli/cli.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 512 << 10, ARGS_MAX = 64, LOG_MAX = 1 << 16, POLL_NS = 2000000 };

/* ---- one request ----------------------------------------------------------------------------- */

typedef struct {
    const ht_url *url;
    cli__load_item *item;
    uint64_t origin, timeout;
    pthread_t thread;
    bool started;
    int rc;
    ht_err err;
} sender;

static void take_tokens(cli__load_item *x, const ht_json *event, uint64_t t)
{
    const ht_json *choices = ht_json_get(event, "choices");
    const ht_json *tok = choices && choices->type == HT_JARR && choices->n
                             ? ht_json_get(choices->at, "tokens")
                             : NULL;
    for (size_t i = 0; tok && tok->type == HT_JARR && i < tok->n && x->n < x->max_new; i++) {
        x->t_ns[x->n] = t;
        x->tok[x->n++] = (int32_t)tok->at[i].i;
    }
}

static int on_event(void *user, const char *data, size_t n, uint64_t t_ns)
{
    sender *s = user;
    ht_arena *a;
    ht_json *j = NULL;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->item->done = true;
        return 0;
    }
    if (ht_arena_new(&a, 0, NULL)) return 1;
    /* What is no JSON bears no token: the answer is too short then, and failed. */
    if (!ht_json_parse(a, data, n, 0, "event", &j, NULL)) take_tokens(s->item, j, t_ns - s->origin);
    ht_arena_free(a);
    return 0;
}

static void sleep_until(uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static void *run_one(void *arg)
{
    sender *s = arg;
    cli__load_item *x = s->item;
    ht_http_result r;
    sleep_until(s->origin + x->at_ns);
    s->rc = ht_http_run(s->url, "POST", "/v1/completions", x->body, x->n_body, HT_BODY_SSE,
                        on_event, s, s->timeout, &r, &s->err);
    const uint64_t now = ht_now_ns();
    x->sent_ns = r.sent_ns ? r.sent_ns - s->origin : x->at_ns;
    x->end_ns = now - s->origin;
    x->end = r.end;
    x->status = r.status;
    x->raw = r.raw;
    ht_buf_init(&r.raw, 0);
    ht_http_result_done(&r);
    return NULL;
}

int cli__load_run(const ht_url *url, cli__load_item *item, uint32_t n, uint64_t timeout_ns,
                  uint64_t *origin_ns, ht_err *e)
{
    enum { HEAD_START_NS = 20000000 }; /* for the threads to be there */
    sender *list = ht_mem_array(n, sizeof *list);
    pthread_attr_t attr;
    int rc = 0;
    if (!list) return HT_FAIL(e, HT_ENOMEM, "load: no memory for %u requests", n);
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK);
    *origin_ns = ht_now_ns() + HEAD_START_NS;
    for (uint32_t i = 0; i < n && !rc; i++) {
        list[i] =
            (sender){.url = url, .item = &item[i], .origin = *origin_ns, .timeout = timeout_ns};
        list[i].started = !pthread_create(&list[i].thread, &attr, run_one, &list[i]);
        if (!list[i].started) rc = HT_FAIL(e, HT_ENOMEM, "load: no thread for request %u", i);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!list[i].started) continue;
        pthread_join(list[i].thread, NULL);
        if (!rc && list[i].rc) rc = HT_FAIL(e, list[i].rc, "%s", list[i].err.msg);
    }
    pthread_attr_destroy(&attr);
    ht_mem_free(list);
    return rc;
}

void cli__load_done(cli__load_item *item, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) ht_buf_done(&item[i].raw);
}

/* ---- the server's process -------------------------------------------------------------------- */

static size_t read_log(const cli__server_child *c, char out[LOG_MAX])
{
    const off_t end = lseek(c->log_fd, 0, SEEK_END);
    const off_t from = end > LOG_MAX - 1 ? end - (LOG_MAX - 1) : 0;
    const ssize_t n = pread(c->log_fd, out, LOG_MAX - 1, from);
    out[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

/* Its exit status once it has ended, -1 before. */
static int ended(cli__server_child *c)
{
    int status;
    if (!c->pid) return 0;
    if (waitpid(c->pid, &status, WNOHANG) != c->pid) return -1;
    c->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int wait_ready(cli__server_child *c, uint64_t until, ht_err *e)
{
    static const char mark[] = "ready on http://127.0.0.1:";
    char *log = ht_mem_alloc(LOG_MAX);
    int rc = 0;
    if (!log) return HT_FAIL(e, HT_ENOMEM, "load: no memory for a log");
    for (;;) {
        size_t n = read_log(c, log);
        const char *at = strstr(log, mark);
        unsigned port = 0;
        if (at && sscanf(at + sizeof mark - 1, "%u", &port) == 1 && port) {
            c->url = (ht_url){.host = "127.0.0.1", .port = (uint16_t)port};
            break;
        }
        while (n && log[n - 1] == '\n') log[--n] = 0;
        const char *last = strrchr(log, '\n') ? strrchr(log, '\n') + 1 : log;
        if (ended(c) >= 0) rc = HT_FAIL(e, HT_EIO, "the server did not start: %.300s", last);
        else if (cli__interrupted()) rc = HT_FAIL(e, HT_ECANCELLED, "cancelled");
        else if (ht_now_ns() > until)
            rc = HT_FAIL(e, HT_EIO, "the server is not ready: %.300s", last);
        if (rc) break;
        sleep_until(ht_now_ns() + POLL_NS);
    }
    ht_mem_free(log);
    return rc;
}

int cli__child_start(const char *const *args, uint64_t timeout_ns, cli__server_child *c, ht_err *e)
{
    char *argv[ARGS_MAX] = {(char[]){"hetero"}, (char[]){"serve"}};
    size_t n = 2;
    for (; args[n - 2] && n < ARGS_MAX - 1; n++)
        argv[n] = (char *)(uintptr_t)args[n - 2]; /* execv(3) changes none of them */
    *c = (cli__server_child){.log_fd = memfd_create("hetero-serve", MFD_CLOEXEC)};
    if (c->log_fd < 0) return HT_FAIL(e, HT_EIO, "the server's log: %s", strerror(errno));
    c->pid = fork();
    if (c->pid == 0) {
        const int null = open("/dev/null", O_RDWR);
        if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(c->log_fd, 2) < 0)
            _exit(126);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int rc = c->pid < 0 ? HT_FAIL(e, HT_EIO, "no process for a server: %s", strerror(errno)) : 0;
    if (c->pid < 0) c->pid = 0;
    if (!rc) rc = wait_ready(c, ht_now_ns() + timeout_ns, e);
    if (rc) (void)cli__child_stop(c, 0);
    return rc;
}

int cli__child_stop(cli__server_child *c, uint64_t timeout_ns)
{
    const uint64_t until = ht_now_ns() + timeout_ns;
    int status = 0;
    if (c->pid) kill(c->pid, timeout_ns ? SIGTERM : SIGKILL);
    while (c->pid && (status = ended(c)) < 0) {
        if (ht_now_ns() > until) kill(c->pid, SIGKILL);
        sleep_until(ht_now_ns() + POLL_NS);
    }
    if (c->log_fd >= 0) close(c->log_fd);
    c->log_fd = -1;
    return status;
}
