/* http.c - the daemon: libmicrohttpd's threads (epoll) read requests and write answers; one
 * watcher of ours sees clients that leave while they wait (libmicrohttpd does not while a
 * connection sleeps), sends pings, and cuts sockets that take too long to say what they want. */
#include "core/arena.h"
#include "core/clock.h"
#include "serve/http_priv.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SOCK_IDLE, SOCK_BODY, SOCK_ANSWER };
enum { TICK_MS = 1000, BACKLOG = 511, HEAD_ROOM = 4 };

/* ---- references ------------------------------------------------------------------------------ */

serve__conn *serve__conn_keep(serve__conn *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void serve__conn_release(serve__conn *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
    for (size_t i = 0; i < c->n_headers; i++) ht_mem_free(c->name[i]);
    ht_buf_done(&c->body);
    ht_buf_done(&c->out);
    ht_mem_free(c->path);
    pthread_cond_destroy(&c->told);
    pthread_mutex_destroy(&c->mu);
    ht_mem_free(c);
}

static serve__conn *conn_new(serve__http *h, struct MHD_Connection *mc, const char *url,
                             const char *method)
{
    serve__conn *c = ht_mem_alloc(sizeof *c);
    const size_t n = strlen(url);
    char *path = c ? ht_mem_alloc(n + 1) : NULL;
    if (!path) {
        ht_mem_free(c);
        return NULL;
    }
    memcpy(path, url, n + 1);
    c->path = path;
    c->h = h;
    c->mc = mc;
    atomic_init(&c->refs, 1);
    c->fd = -1;
    c->kind = HTTP_NOTHING;
    (void)snprintf(c->method, sizeof c->method, "%s", method);
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->told, NULL);
    ht_buf_init(&c->body, h->p.max_body + 1);
    ht_buf_init(&c->out, 0);
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *ctx =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (fd) c->fd = fd->connect_fd;
    c->sock = ctx ? ctx->socket_context : NULL;
    return c;
}

static void sock_state(serve__http *h, http_sock *s, int state)
{
    if (!s) return;
    pthread_mutex_lock(&h->mu);
    s->state = state;
    s->since_ns = ht_now_ns();
    pthread_mutex_unlock(&h->mu);
}

/* ---- who waits for an answer ----------------------------------------------------------------- */

static void poke(serve__http *h)
{
    const uint64_t one = 1;
    (void)(write(h->event_fd, &one, sizeof one) < 0);
}

/* From now on the watcher sees it when the client leaves. The connection's lock is held. */
static void list(serve__conn *c)
{
    serve__http *h = c->h;
    if (c->listed) return;
    c->listed = true;
    c->wrote_ns = ht_now_ns();
    pthread_mutex_lock(&h->mu);
    c->id = ++h->next_id;
    c->prev = NULL;
    c->next = h->conns;
    if (h->conns) h->conns->prev = c;
    h->conns = c;
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLONESHOT, .data.u64 = c->id};
    if (c->fd >= 0) (void)epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev);
    pthread_mutex_unlock(&h->mu);
}

/* The connection's lock is held. */
static void unlist(serve__conn *c)
{
    serve__http *h = c->h;
    if (!c->listed) return;
    c->listed = false;
    pthread_mutex_lock(&h->mu);
    if (c->fd >= 0) (void)epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->prev) c->prev->next = c->next;
    else h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    pthread_mutex_unlock(&h->mu);
}

/* Tell whoever watches the request, without the lock. */
static void tell(serve__conn *c)
{
    void (*fn)(void *) = c->on_gone;
    void *arg = c->on_gone_arg;
    c->on_gone = NULL;
    if (!fn) return;
    c->telling = true;
    pthread_mutex_unlock(&c->mu);
    fn(arg);
    pthread_mutex_lock(&c->mu);
    c->telling = false;
    pthread_cond_broadcast(&c->told);
}

static void http_left(serve__conn *c)
{
    pthread_mutex_lock(&c->mu);
    if (!c->gone) {
        c->gone = true;
        if (c->suspended && c->mc) {
            c->suspended = false;
            MHD_resume_connection(c->mc);
        }
        tell(c);
    }
    pthread_mutex_unlock(&c->mu);
}

void serve__conn_watch(serve__conn *c, void (*fn)(void *), void *arg)
{
    pthread_mutex_lock(&c->mu);
    if (!fn) {
        c->on_gone = NULL;
        while (c->telling) pthread_cond_wait(&c->told, &c->mu);
    } else if (c->gone || !c->mc) {
        pthread_mutex_unlock(&c->mu);
        fn(arg);
        return;
    } else {
        c->on_gone = fn;
        c->on_gone_arg = arg;
    }
    pthread_mutex_unlock(&c->mu);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

typedef struct {
    unsigned lengths, codings;
    bool
        blank; /* in a name: "Transfer-Encoding : chunked" is a coding to some and none to others */
    bool other; /* a coding that is not chunked: where the body ends is anybody's guess */
} framing;

static enum MHD_Result note_framing(void *cls, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    framing *f = cls;
    (void)kind;
    if (strpbrk(key, " \t")) f->blank = true;
    if (!strcasecmp(key, "Content-Length")) f->lengths++;
    if (!strcasecmp(key, "Transfer-Encoding")) {
        f->codings++;
        f->other = f->other || !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

static void refuse(serve__conn *c, unsigned status, const char *code, const char *message)
{
    c->h->p.refuse(c->h->p.user, c, status, code, message);
}

/* What no route has to know about: lengths. libmicrohttpd has room for a longer head than may be
 * sent (HEAD_ROOM), so that one of up to that length is refused here, in JSON. */
static void check_head(serve__conn *c)
{
    framing f = {0};
    char text[120];
    const union MHD_ConnectionInfo *head =
        MHD_get_connection_info(c->mc, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (head && head->header_size > c->h->p.max_head) {
        (void)snprintf(text, sizeof text, "a head of %zu bytes is larger than the %zu allowed",
                       head->header_size, c->h->p.max_head);
        refuse(c, 431, "head_too_large", text);
        return;
    }
    (void)MHD_get_connection_values(c->mc, MHD_HEADER_KIND, note_framing, &f);
    const char *len = serve__conn_header(c, "Content-Length");
    if (f.lengths + f.codings > 1) {
        refuse(c, 400, "invalid_header", "more than one length of the body is given");
        return;
    }
    if (f.blank || f.other) {
        refuse(c, 400, "invalid_header",
               f.blank ? "a blank in the name of a header"
                       : "the only Transfer-Encoding known here is chunked");
        return;
    }
    if (!len) return;
    unsigned long long n = 0;
    char end;
    if (len[0] < '0' || len[0] > '9' || sscanf(len, "%llu%c", &n, &end) != 1) {
        refuse(c, 400, "invalid_header", "Content-Length is not a number");
    } else if (n > c->h->p.max_body) {
        (void)snprintf(text, sizeof text, "a body of %llu bytes is larger than the %zu allowed", n,
                       c->h->p.max_body);
        refuse(c, 413, "body_too_large", text);
    }
}

static void find_peer(serve__conn *c)
{
    const union MHD_ConnectionInfo *a =
        MHD_get_connection_info(c->mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *sa = a ? a->client_addr : NULL;
    (void)snprintf(c->peer, sizeof c->peer, "unix");
    if (sa && sa->sa_family == AF_INET)
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, c->peer,
                        sizeof c->peer);
    if (sa && sa->sa_family == AF_INET6)
        (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr,
                        c->peer, sizeof c->peer);
}

static enum MHD_Result begin(serve__http *h, struct MHD_Connection *mc, const char *url,
                             const char *method, void **con_cls)
{
    serve__conn *c = conn_new(h, mc, url, method);
    if (!c) return MHD_NO;
    *con_cls = c;
    sock_state(h, c->sock, SOCK_BODY);
    find_peer(c);
    check_head(c);
    if (c->kind == HTTP_NOTHING) h->p.head(h->p.user, c);
    if (c->kind == HTTP_NOTHING) return MHD_YES;
    pthread_mutex_lock(&c->mu);
    c->headers_only =
        serve__conn_header(c, "Content-Length") || serve__conn_header(c, "Transfer-Encoding");
    list(c);
    const enum MHD_Result ok = serve__http_queue(c);
    pthread_mutex_unlock(&c->mu);
    sock_state(h, c->sock, SOCK_ANSWER);
    return ok;
}

/* A piece of the body. One that is too large is read to its end and thrown away, so that the client
 * gets to see why; far beyond that the connection is cut. */
static enum MHD_Result upload(serve__conn *c, const char *data, size_t *n)
{
    const size_t max = c->h->p.max_body;
    if (c->too_big || c->body.n + *n > max) {
        c->too_big = true;
        c->thrown += *n;
        if (c->thrown > 2 * max + (1 << 20)) return MHD_NO;
    } else {
        ht_buf_add(&c->body, data, *n);
    }
    *n = 0;
    return MHD_YES;
}

/* The body is complete, or the connection was woken: queue the answer, or sleep until there is
 * one. */
static enum MHD_Result advance(serve__conn *c)
{
    enum MHD_Result ok = MHD_YES;
    pthread_mutex_lock(&c->mu);
    if (!c->listed) {
        list(c);
        pthread_mutex_unlock(&c->mu);
        sock_state(c->h, c->sock, SOCK_ANSWER);
        if (c->too_big) refuse(c, 413, "body_too_large", "the body is larger than allowed");
        else if (c->body.bad) refuse(c, 503, "out_of_memory", "no memory for the request's body");
        else c->h->p.body(c->h->p.user, c);
        pthread_mutex_lock(&c->mu);
    }
    if (c->gone) {
        ok = MHD_NO;
    } else if (c->kind == HTTP_NOTHING) {
        c->suspended = true;
        MHD_suspend_connection(c->mc);
    } else if (!c->queued) {
        ok = serve__http_queue(c);
    }
    pthread_mutex_unlock(&c->mu);
    return ok;
}

/* A path is a C string from here on: a NUL in it would hide the rest, so such a one stays as it was
 * written and is not found. */
static size_t unescape(void *cls, struct MHD_Connection *mc, char *text)
{
    (void)cls;
    (void)mc;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **con_cls)
{
    serve__conn *c = *con_cls;
    (void)version;
    if (!c) return begin(cls, mc, url, method, con_cls);
    if (c->queued) {
        *n = 0;
        return MHD_YES;
    }
    return *n ? upload(c, data, n) : advance(c);
}

static void on_completed(void *cls, struct MHD_Connection *mc, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    serve__conn *c = *con_cls;
    (void)cls;
    (void)mc;
    if (!c) return;
    *con_cls = NULL;
    sock_state(c->h, c->sock, SOCK_IDLE);
    pthread_mutex_lock(&c->mu);
    unlist(c);
    c->mc = NULL;
    c->suspended = false;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK || !c->ended) c->gone = true;
    if (c->gone) tell(c);
    c->on_gone = NULL;
    pthread_mutex_unlock(&c->mu);
    serve__conn_release(c);
}

static void on_socket(void *cls, struct MHD_Connection *mc, void **ctx,
                      enum MHD_ConnectionNotificationCode code)
{
    serve__http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        http_sock *s = *ctx;
        *ctx = NULL;
        if (!s) return;
        pthread_mutex_lock(&h->mu);
        if (s->prev) s->prev->next = s->next;
        else h->socks = s->next;
        if (s->next) s->next->prev = s->prev;
        h->n_socks--;
        pthread_mutex_unlock(&h->mu);
        ht_mem_free(s);
        return;
    }
    http_sock *s = ht_mem_alloc(sizeof *s);
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
    *ctx = NULL;
    if (!s || !fd) {
        ht_mem_free(s);
        return;
    }
    *ctx = s;
    s->fd = fd->connect_fd;
    s->since_ns = ht_now_ns();
    pthread_mutex_lock(&h->mu);
    s->next = h->socks;
    if (h->socks) h->socks->prev = s;
    h->socks = s;
    const bool first = h->n_socks++ == 0;
    pthread_mutex_unlock(&h->mu);
    if (first) poke(h);
}

/* ---- the watcher ----------------------------------------------------------------------------- */

/* The waiting connection with this id, kept; NULL: there is none any more. */
static serve__conn *find(serve__http *h, uint64_t id)
{
    serve__conn *c;
    pthread_mutex_lock(&h->mu);
    for (c = h->conns; c && c->id != id; c = c->next) continue;
    if (c) atomic_fetch_add(&c->refs, 1);
    pthread_mutex_unlock(&h->mu);
    return c;
}

static void ping_one(serve__conn *c, uint64_t now)
{
    const char *ping = NULL;
    pthread_mutex_lock(&c->mu);
    const bool silent = c->kind == HTTP_STREAM ? !c->ended : c->expected != NULL;
    if (silent && c->ping && c->suspended && c->wrote_ns < now &&
        now - c->wrote_ns >= c->h->p.ping_s * UINT64_C(1000000000)) {
        ping = c->ping;
        if (c->expected) serve__conn_begin(c, c->expected, ping);
    }
    pthread_mutex_unlock(&c->mu);
    if (ping) serve__conn_write(c, ping, strlen(ping));
}

/* Pings, one connection after the other without holding the list. */
static void ping_all(serve__http *h, uint64_t now)
{
    uint64_t below = UINT64_MAX; /* ids fall along the list */
    for (;;) {
        serve__conn *c;
        pthread_mutex_lock(&h->mu);
        for (c = h->conns; c && c->id >= below; c = c->next) continue;
        if (c) {
            below = c->id;
            atomic_fetch_add(&c->refs, 1);
        }
        pthread_mutex_unlock(&h->mu);
        if (!c) return;
        ping_one(c, now);
        serve__conn_release(c);
    }
}

/* Cut sockets that have had no request, or only part of one, for too long: a timer of libmicrohttpd
 * starts again with every byte. */
static void cut_slow(serve__http *h)
{
    pthread_mutex_lock(&h->mu);
    const uint64_t now = ht_now_ns(); /* under the lock: no socket in the list began after it */
    for (http_sock *s = h->socks; s; s = s->next) {
        const uint64_t limit = s->state == SOCK_IDLE ? h->p.idle_s : h->p.body_s;
        if (s->cut || s->state == SOCK_ANSWER) continue;
        if (now - s->since_ns < limit * UINT64_C(1000000000)) continue;
        s->cut = true;
        (void)shutdown(s->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->mu);
}

static void *watch(void *arg)
{
    serve__http *h = arg;
    uint64_t ticked = ht_now_ns();
    for (;;) {
        struct epoll_event ev[32];
        pthread_mutex_lock(&h->mu);
        const bool stop = h->stop, any = h->n_socks > 0;
        pthread_mutex_unlock(&h->mu);
        if (stop) return NULL;
        const int n = epoll_wait(h->epoll_fd, ev, 32, any ? TICK_MS : -1);
        for (int i = 0; i < n; i++) {
            uint64_t seen;
            if (ev[i].data.u64 == 0) {
                (void)(read(h->event_fd, &seen, sizeof seen) < 0);
                continue;
            }
            serve__conn *c = find(h, ev[i].data.u64);
            if (!c) continue;
            http_left(c);
            serve__conn_release(c);
        }
        const uint64_t now = ht_now_ns();
        if (now - ticked < TICK_MS * UINT64_C(900000)) continue;
        ticked = now;
        if (h->p.ping_s) ping_all(h, now);
        cut_slow(h);
    }
}

/* ---- listening ------------------------------------------------------------------------------- */

static int listen_unix(serve__http *h, ht_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(h->p.host);
    if (n >= sizeof a.sun_path)
        return HT_FAIL(err, HT_EARG, "socket path %.60s is longer than %zu bytes", h->p.host,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, h->p.host, n + 1);
    h->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* A socket that nobody listens on is left over from a server that was killed. */
    if (connect(h->listen_fd, (struct sockaddr *)(void *)&a, sizeof a) == 0)
        return HT_FAIL(err, HT_EBUSY, "a server listens on %.100s already", h->p.host);
    struct stat st;
    if (!stat(h->p.host, &st) && S_ISSOCK(st.st_mode)) (void)unlink(h->p.host);
    close(h->listen_fd);
    h->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Its owner's only, before anybody can connect: that takes listen(2). */
    if (bind(h->listen_fd, (struct sockaddr *)(void *)&a, sizeof a) || chmod(h->p.host, 0600) ||
        listen(h->listen_fd, BACKLOG))
        return HT_FAIL(err, HT_EIO, "cannot listen on %.100s: %s", h->p.host, strerror(errno));
    h->unix_path = ht_mem_alloc(n + 1);
    if (!h->unix_path) return HT_FAIL(err, HT_ENOMEM, "no memory for a path");
    memcpy(h->unix_path, h->p.host, n + 1);
    return 0;
}

static int listen_tcp(serve__http *h, ht_err *err)
{
    char port[8];
    struct addrinfo hint = {.ai_family = AF_UNSPEC,
                            .ai_socktype = SOCK_STREAM,
                            .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    (void)snprintf(port, sizeof port, "%u", (unsigned)h->p.port);
    const int rc = getaddrinfo(h->p.host, port, &hint, &list);
    if (rc) return HT_FAIL(err, HT_EARG, "--host %.100s: %s", h->p.host, gai_strerror(rc));
    int why = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && h->listen_fd < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), on = 1;
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG)) {
            h->listen_fd = fd;
            continue;
        }
        why = errno;
        close(fd);
    }
    freeaddrinfo(list);
    if (h->listen_fd < 0)
        return HT_FAIL(err, HT_EIO, "cannot listen on %.100s port %s: %s; choose another --port",
                       h->p.host, port, strerror(why));
    struct sockaddr_storage got;
    socklen_t n = sizeof got;
    if (!getsockname(h->listen_fd, (struct sockaddr *)(void *)&got, &n))
        h->port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&got)->sin6_port
                                                  : ((struct sockaddr_in *)(void *)&got)->sin_port);
    return 0;
}

/* As many descriptors as connections may need. */
static void raise_files(uint32_t conns)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r)) return;
    const rlim_t want = (rlim_t)conns + 256;
    if (r.rlim_cur >= want) return;
    r.rlim_cur = want < r.rlim_max ? want : r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

static int start(serve__http *h, ht_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->event_fd < 0 ||
        epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->event_fd, &ev))
        return HT_FAIL(err, HT_EIO, "cannot make a watcher of connections: %s", strerror(errno));
    HT_TRY(strchr(h->p.host, '/') ? listen_unix(h, err) : listen_tcp(h, err));
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, h,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)h->p.threads,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->p.max_conns, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        h->p.max_head * HEAD_ROOM, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->p.idle_s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_socket, h,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_END);
    if (!h->daemon)
        return HT_FAIL(err, HT_EIO,
                       "cannot start the HTTP threads for %u connections; lower "
                       "--max-connections or raise the limit of open files",
                       h->p.max_conns);
    if (pthread_create(&h->watcher, NULL, watch, h))
        return HT_FAIL(err, HT_ENOMEM, "cannot start the watcher of connections");
    h->watching = true;
    return 0;
}

int serve__http_open(serve__http **out, const serve__http_params *p, ht_err *err)
{
    *out = NULL;
    serve__http *h = ht_mem_alloc(sizeof *h);
    if (!h) return HT_FAIL(err, HT_ENOMEM, "no memory for an HTTP server");
    h->p = *p;
    h->listen_fd = h->epoll_fd = h->event_fd = -1;
    pthread_mutex_init(&h->mu, NULL);
    raise_files(p->max_conns);
    const int rc = start(h, err);
    if (rc) serve__http_close(h);
    else *out = h;
    return rc;
}

void serve__http_quiesce(serve__http *h)
{
    if (h->quiet || !h->daemon) return;
    h->quiet = true;
    (void)MHD_quiesce_daemon(h->daemon);
    if (h->unix_path) (void)unlink(h->unix_path);
}

/* Whoever still sleeps is woken with a 503, or its stream cut: the daemon cannot stop before. */
static void wake_all(serve__http *h)
{
    for (uint64_t below = UINT64_MAX;;) {
        serve__conn *c;
        pthread_mutex_lock(&h->mu);
        for (c = h->conns; c && c->id >= below; c = c->next) continue;
        if (c) {
            below = c->id;
            atomic_fetch_add(&c->refs, 1);
        }
        pthread_mutex_unlock(&h->mu);
        if (!c) return;
        refuse(c, 503, "draining", "the server is stopping");
        serve__conn_end(c, true);
        serve__conn_release(c);
    }
}

void serve__http_close(serve__http *h)
{
    if (!h) return;
    if (h->daemon) {
        serve__http_quiesce(h);
        wake_all(h);
        MHD_stop_daemon(h->daemon);
    }
    if (h->watching) {
        pthread_mutex_lock(&h->mu);
        h->stop = true;
        pthread_mutex_unlock(&h->mu);
        poke(h);
        pthread_join(h->watcher, NULL);
    }
    if (h->listen_fd >= 0) close(h->listen_fd);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    if (h->event_fd >= 0) close(h->event_fd);
    if (h->unix_path) (void)unlink(h->unix_path);
    ht_mem_free(h->unix_path);
    pthread_mutex_destroy(&h->mu);
    ht_mem_free(h);
}

uint16_t serve__http_port(const serve__http *h)
{
    return h->port;
}

uint32_t serve__http_conns(const serve__http *h)
{
    serve__http *w = (serve__http *)(uintptr_t)h;
    pthread_mutex_lock(&w->mu);
    const uint32_t n = h->n_socks;
    pthread_mutex_unlock(&w->mu);
    return n;
}

bool serve__http_busy(serve__http *h)
{
    pthread_mutex_lock(&h->mu);
    const bool busy = h->conns != NULL;
    pthread_mutex_unlock(&h->mu);
    return busy;
}

/* ---- the request ----------------------------------------------------------------------------- */

const char *serve__conn_method(const serve__conn *c)
{
    return c->method;
}

const char *serve__conn_path(const serve__conn *c)
{
    return c->path;
}

const char *serve__conn_header(const serve__conn *c, const char *name)
{
    return c->mc ? MHD_lookup_connection_value(c->mc, MHD_HEADER_KIND, name) : NULL;
}

const char *serve__conn_body(const serve__conn *c, size_t *n)
{
    *n = c->body.n;
    return c->body.p ? c->body.p : "";
}

const char *serve__conn_peer(const serve__conn *c)
{
    return c->peer;
}
