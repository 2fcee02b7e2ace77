/* worker.c - see worker.h. */
#include "cli/worker.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUT_MAX = 256 << 20, ERR_MAX = 1 << 16, CHUNK = 1 << 16 };

typedef struct {
    pid_t pid;
    int fd[3]; /* to its input, from its output, from its errors               */
    ht_buf out, err;
    bool late;
    int exit;
} child;

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int start(child *c, ht_err *e)
{
    int in[2], out[2], err[2];
    char *const argv[] = {(char[]){"hetero"}, (char[]){"bench-slot"}, (char[]){"--no-progress"},
                          NULL};
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        return HT_FAIL(e, HT_EIO, "worker: no pipe: %s", strerror(errno));
    signal(SIGPIPE,
           SIG_IGN); /* a worker that dies before it has read all is an answer, not our end */
    c->pid = fork();
    if (c->pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        if (dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0) _exit(126);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    c->fd[0] = in[1];
    c->fd[1] = out[0];
    c->fd[2] = err[0];
    if (c->pid > 0) return 0;
    for (int i = 0; i < 3; i++) close_fd(&c->fd[i]);
    return HT_FAIL(e, HT_EIO, "worker: no process: %s", strerror(errno));
}

/* Read what is there; closes at the end. */
static void take(int *fd, ht_buf *b, size_t max)
{
    char room[CHUNK];
    ssize_t n = read(*fd, room, sizeof room);
    if (n > 0 && b->n + (size_t)n <= max) ht_buf_add(b, room, (size_t)n);
    else if (n == 0 || (n < 0 && errno != EINTR)) close_fd(fd);
}

/* Feed the request and gather both outputs until they close or the time is up. */
static void talk(child *c, const ht_buf *request, uint64_t deadline)
{
    size_t sent = 0;
    fcntl(c->fd[0], F_SETFL, O_NONBLOCK);
    while (c->fd[1] >= 0 || c->fd[2] >= 0) {
        uint64_t now = ht_now_ns();
        if (now >= deadline || cli__interrupted()) {
            c->late = true;
            kill(c->pid, SIGKILL);
            break;
        }
        struct pollfd p[3] = {{c->fd[0], POLLOUT, 0}, {c->fd[1], POLLIN, 0}, {c->fd[2], POLLIN, 0}};
        uint64_t left = (deadline - now) / 1000000 + 1;
        if (poll(p, 3, left < 1000 ? (int)left : 1000) <= 0) continue;
        if (c->fd[0] >= 0 && p[0].revents) {
            ssize_t k = write(c->fd[0], request->p + sent, request->n - sent);
            if (k > 0) sent += (size_t)k;
            if (sent == request->n || (k < 0 && errno != EAGAIN && errno != EINTR))
                close_fd(&c->fd[0]);
        }
        if (c->fd[1] >= 0 && p[1].revents) take(&c->fd[1], &c->out, OUT_MAX);
        if (c->fd[2] >= 0 && p[2].revents) take(&c->fd[2], &c->err, ERR_MAX);
    }
    for (int i = 0; i < 3; i++) close_fd(&c->fd[i]);
    int status = 0;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) continue;
    c->exit = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- the lines ---- */

typedef struct {
    ht_arena *a;
    ht_bench_slot *slot;
    size_t n;
    ht_bench_chunk **room; /* [n] growing lists                                           */
    size_t *cap;
    ht_buf *text; /* [n] response bytes                                          */
} reader;

static int add_chunk(reader *r, size_t k, const ht_json *j, ht_err *e)
{
    ht_bench_answer *x = &r->slot->answer[k];
    const ht_json *tok = ht_json_get(j, "tok"), *hex = ht_json_get(j, "x");
    if (!tok || tok->type != HT_JARR || !hex || hex->type != HT_JSTR || hex->n % 2)
        return HT_FAIL(e, HT_EFORMAT, "worker: a chunk without tok or x");
    if (x->n_chunks == r->cap[k]) {
        size_t cap = r->cap[k] ? 2 * r->cap[k] : 64;
        ht_bench_chunk *more = ht_arena_array(r->a, cap, sizeof *more);
        if (!more) return HT_FAIL(e, HT_ENOMEM, "worker: out of memory for chunks");
        if (x->n_chunks) memcpy(more, r->room[k], x->n_chunks * sizeof *more);
        r->room[k] = more;
        r->cap[k] = cap;
        x->chunk = more;
    }
    int32_t *ids = ht_arena_array(r->a, tok->n, sizeof *ids);
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "worker: out of memory for tokens");
    for (size_t i = 0; i < tok->n; i++) ids[i] = (int32_t)tok->at[i].i;
    for (size_t i = 0; i < hex->n; i += 2) {
        const char two[3] = {hex->s[i], hex->s[i + 1], 0};
        ht_buf_char(&r->text[k], (char)strtoul(two, NULL, 16));
    }
    r->room[k][x->n_chunks++] = (ht_bench_chunk){(uint64_t)cli__num(j, "t", 0),
                                                 (uint32_t)(hex->n / 2), (uint32_t)tok->n, ids};
    return 0;
}

static int end_answer(reader *r, size_t k, const ht_json *j, ht_err *e)
{
    static const struct {
        const char *name;
        uint8_t status;
    } status[] = {{"ok", HT_SM_OK}, {"oom", HT_SM_OOM}, {"routeMismatch", HT_SM_ROUTE_MISMATCH}};
    static const char *const end[] = {"LENGTH_MET", "DONE"};
    ht_bench_answer *x = &r->slot->answer[k];
    const char *said = cli__str(j, "end", ""), *receipt = cli__str(j, "receipt", "");
    const char *word = cli__str(j, "status", "");
    x->status = HT_SM_SUT_ERROR;
    for (size_t i = 0; i < sizeof status / sizeof *status; i++)
        if (strcmp(word, status[i].name) == 0) x->status = status[i].status;
    x->end = "EOF_EARLY";
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (strcmp(said, end[i]) == 0) x->end = end[i];
    x->intended_ns = (uint64_t)cli__num(j, "intended", 0);
    x->sent_ns = (uint64_t)cli__num(j, "sent", 0);
    x->receipt = *receipt ? ht_arena_strndup(r->a, receipt, strlen(receipt)) : NULL;
    return *receipt && !x->receipt ? HT_FAIL(e, HT_ENOMEM, "worker: out of memory") : 0;
}

static int read_line(reader *r, const char *line, size_t n, ht_err *e)
{
    ht_json *j;
    HT_TRY(ht_json_parse(r->a, line, n, 0, "worker line", &j, e));
    const ht_json *k = ht_json_get(j, "r");
    if (!k) {
        double warm = cli__num(j, "warmupNs", -1), peak = cli__num(j, "peakBytes", -1);
        if (warm >= 0) r->slot->warmup_ns = (uint64_t)warm;
        if (peak >= 0) r->slot->peak_bytes = (uint64_t)peak;
        return 0;
    }
    if (k->type != HT_JINT || k->i < 0 || (uint64_t)k->i >= r->n)
        return HT_FAIL(e, HT_EFORMAT, "worker: an answer to no request");
    return ht_json_get(j, "end") ? end_answer(r, (size_t)k->i, j, e)
                                 : add_chunk(r, (size_t)k->i, j, e);
}

/* What cannot be read ends the reading: the requests after it stay failed. */
static int read_answers(reader *r, const child *c, uint64_t started, ht_err *e)
{
    for (size_t k = 0; k < r->n; k++) {
        ht_buf_init(&r->text[k], 0);
        r->slot->answer[k] = (ht_bench_answer){.response = "",
                                               .end = "EOF_EARLY",
                                               .status = c->late ? HT_SM_TIMEOUT : HT_SM_SUT_ERROR,
                                               .intended_ns = started,
                                               .sent_ns = started};
    }
    int rc = 0;
    const char *p = c->out.p, *end = p ? p + c->out.n : p, *nl;
    for (; p < end && (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1) {
        rc = read_line(r, p, (size_t)(nl - p), e);
        if (rc == HT_EFORMAT) rc = 0;
        if (rc) break;
    }
    for (size_t k = 0; k < r->n; k++) {
        ht_bench_answer *x = &r->slot->answer[k];
        char *text = ht_arena_alloc(r->a, r->text[k].n + 1);
        if (!rc && (!text || r->text[k].bad)) rc = HT_FAIL(e, HT_ENOMEM, "worker: out of memory");
        if (!rc && r->text[k].n) memcpy(text, r->text[k].p, r->text[k].n);
        x->response = rc ? "" : text;
        x->n_response = rc ? 0 : r->text[k].n;
        ht_buf_done(&r->text[k]);
    }
    return rc;
}

static void write_request(ht_buf *b, const char *arm, uint32_t ctx, uint32_t warmups,
                          const ht_bench_request *q, size_t n)
{
    ht_jw w;
    ht_jw_init(&w, b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "arm", arm);
    ht_jw_kuint(&w, "ctx", ctx);
    ht_jw_kuint(&w, "warmups", warmups);
    ht_jw_key(&w, "requests");
    ht_jw_arr(&w);
    for (size_t i = 0; i < n; i++) ht_jw_raw(&w, q[i].bytes, q[i].n);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
}

int cli__worker_run(ht_arena *a, const char *arm, uint32_t ctx, uint32_t warmups,
                    const ht_bench_request *q, size_t n, uint64_t timeout_ns, ht_bench_slot *out,
                    ht_err *e)
{
    child c = {.fd = {-1, -1, -1}};
    reader r = {.a = a, .slot = out, .n = n};
    uint64_t started = ht_now_ns();
    ht_buf request;
    memset(out, 0, sizeof *out);
    out->answer = ht_arena_array(a, n, sizeof *out->answer);
    r.room = ht_arena_array(a, n, sizeof *r.room);
    r.cap = ht_arena_array(a, n, sizeof *r.cap);
    r.text = ht_arena_array(a, n, sizeof *r.text);
    if (!out->answer || !r.room || !r.cap || !r.text)
        return HT_FAIL(e, HT_ENOMEM, "worker: out of memory");
    ht_buf_init(&request, 0);
    ht_buf_init(&c.out, OUT_MAX);
    ht_buf_init(&c.err, ERR_MAX);
    write_request(&request, arm, ctx, warmups, q, n);
    int rc = ht_buf_ok(&request, "slot request", e);
    if (!rc) rc = start(&c, e);
    if (!rc) {
        talk(&c, &request, started + timeout_ns);
        rc = read_answers(&r, &c, started, e);
        out->exit = c.exit;
        out->diagnostics = c.err.n ? ht_arena_strndup(a, c.err.p, c.err.n) : NULL;
    }
    if (!rc && cli__interrupted()) rc = HT_FAIL(e, HT_ECANCELLED, "cancelled");
    ht_buf_done(&request);
    ht_buf_done(&c.out);
    ht_buf_done(&c.err);
    return rc;
}
