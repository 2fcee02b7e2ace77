/* server.c - the life of the server: parameters checked, HTTP up (so that /health can say that the
 * model loads), engine thread, signals, drain. */
#include "serve/server.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/map.h"
#include "core/opt.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    HTTP_THREADS = 3,
    HEAD_BYTES = 32 << 10,
    BODY_S = 300,
    PING_S = 15,
    LAST_BYTES_MS = 3000, /* for answers on their way out when everything else is done */
};

void ht_serve_params_init(ht_serve_params *p)
{
    memset(p, 0, sizeof *p);
    ht_sampling_init(&p->sampling);
    p->host = "127.0.0.1";
    p->port = 8080;
    p->slots = 4;
    p->queue = 512;
    p->queue_s = 600;
    p->drain_s = 30;
    p->max_body_mib = 32;
    p->max_conns = 10240;
    p->idle_s = 75;
    p->slots_route = p->metrics_route = true;
}

void serve__log(serve__server *s, int level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!s->p.log) return;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    s->p.log(s->p.user, level, line);
}

/* ---- who asks -------------------------------------------------------------------------------- */

static int add_key(serve__server *s, const char *key, size_t n, int priority, const char *name,
                   ht_err *err)
{
    if (n == 0 || n >= sizeof *s->key)
        return HT_FAIL(err, HT_EARG, "an API key must have 1 to %zu characters, this one has %zu",
                       sizeof *s->key - 1, n);
    void *more = ht_mem_resize(s->key, (s->n_keys + 1) * sizeof *s->key);
    if (!more) return HT_FAIL(err, HT_ENOMEM, "no memory for API keys");
    s->key = more;
    void *clients = ht_mem_resize(s->client, (s->n_keys + 1) * sizeof *s->client);
    if (!clients) return HT_FAIL(err, HT_ENOMEM, "no memory for API keys");
    s->client = clients;
    memset(s->key[s->n_keys], 0, sizeof *s->key);
    memcpy(s->key[s->n_keys], key, n);
    serve__client *c = &s->client[s->n_keys];
    *c = (serve__client){.priority = priority};
    if (name) (void)snprintf(c->name, sizeof c->name, "%s", name);
    else (void)snprintf(c->name, sizeof c->name, "key %u", s->n_keys + 1);
    s->n_keys++;
    return 0;
}

/* "KEY [priority=N] [name=TEXT]" */
static int key_line(serve__server *s, char *line, unsigned number, ht_err *err)
{
    char *save = NULL, *key = strtok_r(line, " \t\r", &save), *name = NULL;
    int priority = 0;
    if (!key || *key == '#') return 0;
    for (char *w; (w = strtok_r(NULL, " \t\r", &save));) {
        int used = 0;
        if (sscanf(w, "priority=%9d%n", &priority, &used) == 1 && !w[used]) continue;
        if (strncmp(w, "name=", 5) != 0)
            return HT_FAIL(err, HT_EFORMAT,
                           "%.100s, line %u: '%.20s' is neither priority=N nor name=TEXT",
                           s->p.key_file, number, w);
        name = w + 5;
    }
    return add_key(s, key, strlen(key), priority, name, err);
}

static int read_keys(serve__server *s, ht_err *err)
{
    char *text = NULL;
    size_t n = 0;
    for (size_t i = 0; i < s->p.n_keys; i++)
        HT_TRY(add_key(s, s->p.keys[i], strlen(s->p.keys[i]), 0, NULL, err));
    if (!s->p.key_file) return 0;
    HT_TRY(ht_file_read(s->p.key_file, 1 << 20, &text, &n, err));
    int rc = 0;
    unsigned number = 0;
    for (char *l = text, *end; l && !rc; l = end ? end + 1 : NULL) {
        end = strchr(l, '\n');
        if (end) *end = 0;
        rc = key_line(s, l, ++number, err);
    }
    ht_mem_free(text);
    if (!rc && !s->n_keys)
        return HT_FAIL(err, HT_EARG, "%.100s holds no key; one a line", s->p.key_file);
    return rc;
}

/* Behind the keys' come those of addresses without a key: a fixed number that addresses share. */
static int make_clients(serve__server *s, ht_err *err)
{
    s->n_clients = s->n_keys + ANY_CLIENTS;
    void *more = ht_mem_resize(s->client, s->n_clients * sizeof *s->client);
    if (!more) return HT_FAIL(err, HT_ENOMEM, "no memory for clients");
    s->client = more;
    for (uint32_t i = s->n_keys; i < s->n_clients; i++) {
        s->client[i] = (serve__client){0};
        (void)snprintf(s->client[i].name, sizeof s->client[i].name, "group %u", i - s->n_keys);
    }
    return 0;
}

static serve__client *client_of(serve__server *s, const char *peer)
{
    uint32_t h = 2166136261U;
    for (; *peer; peer++) h = (h ^ (uint8_t)*peer) * 16777619U;
    return &s->client[s->n_keys + h % ANY_CLIENTS];
}

/* In a time that does not depend on where the two differ. */
static bool same_key(const char *key, const char *given, size_t n)
{
    unsigned diff = 0;
    for (size_t i = 0; i < sizeof *((serve__server *)0)->key; i++)
        diff |= (unsigned)((uint8_t)key[i] ^ (i < n ? (uint8_t)given[i] : 0U));
    return diff == 0 && n < sizeof *((serve__server *)0)->key;
}

bool serve__authorised(serve__server *s, const serve__conn *c, serve__client **client)
{
    *client = client_of(s, serve__conn_peer(c));
    if (!s->n_keys) return true;
    const char *bearer = serve__conn_header(c, "Authorization");
    const char *key = serve__conn_header(c, "x-api-key");
    if (bearer && !strncasecmp(bearer, "Bearer ", 7)) key = bearer + 7;
    if (!key) return false;
    bool found = false;
    for (uint32_t i = 0; i < s->n_keys; i++) {
        if (!same_key(s->key[i], key, strlen(key))) continue;
        *client = &s->client[i];
        found = true;
    }
    return found;
}

/* ---- systemd --------------------------------------------------------------------------------- */

/* One message to the service manager, where there is one (sd_notify(3)). */
static void notify(const char *text)
{
    const char *path = ht_env_get(HT_ENV_NOTIFY_SOCKET);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof a.sun_path) return;
    memcpy(a.sun_path, path, n);
    if (a.sun_path[0] == '@') a.sun_path[0] = 0; /* the abstract name space */
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)(sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)(void *)&a,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0);
    close(fd);
}

/* Half of the time in which the service manager wants to hear from us, in ms; -1: it does not. */
static int watchdog_ms(void)
{
    const char *usec = ht_env_get(HT_ENV_WATCHDOG_USEC);
    const long long v = usec ? atoll(usec) : 0;
    return v >= 2000 ? (int)(v / 2000) : -1;
}

void serve__loaded(serve__server *s, int rc)
{
    if (rc) return;
    char where[128];
    if (serve__http_port(s->http))
        (void)snprintf(where, sizeof where, "http://%s%s%s:%u", strchr(s->p.host, ':') ? "[" : "",
                       s->p.host, strchr(s->p.host, ':') ? "]" : "",
                       (unsigned)serve__http_port(s->http));
    else (void)snprintf(where, sizeof where, "unix:%.100s", s->p.host);
    serve__log(s, HT_SERVE_INFO, "%s: %u slots of %u positions, %s", s->model_id, s->n_slots,
               s->ctx, s->fingerprint);
    if (!s->tmpl)
        serve__log(s, HT_SERVE_WARN, "the model has no chat template: only /v1/completions works");
    serve__log(s, HT_SERVE_INFO, "ready on %s", where);
    notify("READY=1\nSTATUS=ready");
}

/* ---- signals --------------------------------------------------------------------------------- */

static void begin_drain(serve__server *s)
{
    pthread_mutex_lock(&s->mu);
    const bool again = s->phase == PHASE_DRAINING, loading = s->phase == PHASE_LOADING;
    if (again) s->stop = true;
    s->phase = PHASE_DRAINING;
    if (!again) s->drain_until_ns = ht_now_ns() + s->p.drain_s * UINT64_C(1000000000);
    const uint32_t running = s->n_running, waiting = s->n_queued;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
    serve__log(s, HT_SERVE_INFO,
               again ? "second signal: ending %u answers now, %u waiting"
                     : "stopping: %u answers run, %u wait; a second signal ends them",
               running, waiting);
    notify("STOPPING=1");
    if (!loading) return;
    serve__http_quiesce(s->http);
    if (s->p.abandon) s->p.abandon(s->p.user);
}

/* Until the engine thread has ended. */
static void attend(serve__server *s, int signal_fd)
{
    struct pollfd p[2] = {{.fd = signal_fd, .events = POLLIN}, {.fd = s->end_fd, .events = POLLIN}};
    for (;;) {
        const int n = poll(p, 2, watchdog_ms());
        if (n == 0) notify("WATCHDOG=1");
        if (n <= 0) continue;
        if (p[1].revents) return;
        struct signalfd_siginfo info;
        if (read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info) continue;
        if (info.ssi_signo == SIGHUP)
            serve__log(s, HT_SERVE_INFO,
                       "SIGHUP: the log goes to standard error, nothing to reopen");
        else begin_drain(s);
    }
}

static int block_signals(sigset_t *old, ht_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file at its limit is an error of that write */
    if (pthread_sigmask(SIG_BLOCK, &set, old))
        return HT_FAIL(err, HT_EIO, "cannot block signals: %s", strerror(errno));
    return signalfd(-1, &set, SFD_CLOEXEC);
}

/* ---- running --------------------------------------------------------------------------------- */

bool serve__is_loopback(const char *host)
{
    uint8_t ip[4];
    return !strcasecmp(host, "localhost") || !strcmp(host, "::1") ||
           (inet_pton(AF_INET, host, ip) == 1 && ip[0] == 127);
}

static int check(serve__server *s, ht_err *err)
{
    const bool file = strchr(s->p.host, '/'), near = serve__is_loopback(s->p.host);
    s->local_names = near && !s->n_keys;
    if (!file && !near && !s->n_keys && !s->p.open)
        return HT_FAIL(err, HT_EARG,
                       "--host %.60s can be reached by others and there is no API key: give "
                       "--api-key or --api-key-file, or --allow-open if everybody may use this "
                       "server",
                       s->p.host);
    if (s->p.overlap && !s->p.tpot_ms)
        return HT_FAIL(err, HT_EARG, "--overlap needs an objective: give --tpot-ms");
    return 0;
}

/* Answers that are complete get their last bytes out. */
static void last_bytes(serve__server *s)
{
    for (int t = 0; t < LAST_BYTES_MS && serve__http_busy(s->http); t += 10) {
        const struct timespec nap = {.tv_nsec = 10000000};
        (void)nanosleep(&nap, NULL);
    }
}

static int run(serve__server *s, int signal_fd, ht_err *err)
{
    const serve__http_params p = {.host = s->p.host,
                                  .port = s->p.port,
                                  .threads = HTTP_THREADS,
                                  .max_conns = s->p.max_conns,
                                  .max_body = (size_t)s->p.max_body_mib << 20,
                                  .max_head = HEAD_BYTES,
                                  .idle_s = s->p.idle_s,
                                  .body_s = BODY_S,
                                  .ping_s = PING_S,
                                  .head = serve__on_head,
                                  .body = serve__on_body,
                                  .refuse = serve__on_refuse,
                                  .user = s};
    pthread_t engine;
    HT_TRY(serve__http_open(&s->http, &p, err));
    if (pthread_create(&engine, NULL, serve__engine_main, s))
        return HT_FAIL(err, HT_ENOMEM, "cannot start the engine thread");
    attend(s, signal_fd);
    pthread_join(engine, NULL);
    last_bytes(s);
    if (s->phase != PHASE_FAILED || s->load_err.code == HT_ECANCELLED) return 0;
    if (err) *err = s->load_err;
    return s->load_err.code;
}

static int set_up(serve__server *s, const ht_serve_params *p, ht_err *err)
{
    pthread_condattr_t attr;
    s->p = *p;
    s->n_slots = p->slots;
    s->last = &s->first;
    s->end_fd = eventfd(0, EFD_CLOEXEC);
    serve__cost_init(&s->cost);
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->receipts_mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    s->slot = ht_mem_array(s->n_slots, sizeof *s->slot);
    if (!s->slot || s->end_fd < 0) return HT_FAIL(err, HT_ENOMEM, "no memory for a server");
    HT_TRY(read_keys(s, err));
    HT_TRY(make_clients(s, err));
    return check(s, err);
}

int ht_serve_run(const ht_serve_params *p, ht_err *err)
{
    serve__server *s = ht_mem_alloc(sizeof *s);
    sigset_t old;
    if (!s) return HT_FAIL(err, HT_ENOMEM, "no memory for a server");
    int rc = set_up(s, p, err), fd = -1;
    if (!rc) {
        fd = block_signals(&old, err);
        rc = fd < 0 ? HT_FAIL(err, HT_EIO, "cannot wait for signals: %s", strerror(errno)) : 0;
    }
    if (!rc) rc = run(s, fd, err);
    serve__http_close(s->http);
    if (fd >= 0) {
        close(fd);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (s->end_fd >= 0) close(s->end_fd);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->receipts_mu);
    ht_mem_free(s->slot);
    ht_mem_free(s->key);
    ht_mem_free(s->client);
    ht_mem_free(s);
    return rc;
}
