/* client.c - see client.h. RFC 9112 (HTTP/1.1 message syntax), WHATWG HTML "Server-sent events". */
#include "evid/client.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { S_HEAD, S_BODY, S_CHUNK_SIZE, S_CHUNK_DATA, S_CHUNK_END, S_TRAILER, S_DONE };
enum { T_UNTIL_CLOSE, T_LENGTH, T_CHUNKED };

/* ---- the response ---- */

void ht_response_init(ht_response *r, enum ht_framing framing, ht_event_fn fn, void *user)
{
    memset(r, 0, sizeof *r);
    r->framing = (uint8_t)framing;
    r->fn = fn;
    r->user = user;
    ht_buf_init(&r->head, HT_HTTP_HEAD_MAX);
    ht_buf_init(&r->body, HT_HTTP_BODY_MAX);
    ht_buf_init(&r->line, HT_HTTP_EVENT_MAX);
    ht_buf_init(&r->data, HT_HTTP_EVENT_MAX);
}

void ht_response_done(ht_response *r)
{
    ht_buf_done(&r->head);
    ht_buf_done(&r->body);
    ht_buf_done(&r->line);
    ht_buf_done(&r->data);
}

/* The value of a header, in place; NULL when it is not there. Names compare without case. */
static const char *header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strchr(head, '\n'); p; p = strchr(p, '\n')) {
        p++;
        if (strncasecmp(p, name, n) == 0 && p[n] == ':') {
            p += n + 1;
            return p + strspn(p, " \t");
        }
    }
    return NULL;
}

static int take_head(ht_response *r, ht_err *e)
{
    const char *h = r->head.p, *v;
    char *end;
    if (strncmp(h, "HTTP/1.", 7) != 0 || (h[7] != '0' && h[7] != '1') || h[8] != ' ')
        return HT_FAIL(e, HT_EFORMAT, "the answer is not HTTP/1.x: \"%.20s\"", h);
    long status = strtol(h + 9, &end, 10);
    if (end != h + 12 || status < 100 || status > 599)
        return HT_FAIL(e, HT_EFORMAT, "the answer has no status: \"%.20s\"", h);
    r->status = (int)status;
    if ((v = header(h, "transfer-encoding"))) {
        if (strncasecmp(v, "chunked", 7) != 0)
            return HT_FAIL(e, HT_EFORMAT, "transfer-encoding \"%.20s\" is not supported", v);
        r->transfer = T_CHUNKED;
        r->state = S_CHUNK_SIZE;
    } else if ((v = header(h, "content-length"))) {
        errno = 0;
        unsigned long long n = strtoull(v, &end, 10);
        if (end == v || *v == '-' || errno || (*end != '\r' && *end != '\n'))
            return HT_FAIL(e, HT_EFORMAT, "content-length \"%.20s\" is no number", v);
        r->transfer = T_LENGTH;
        r->left = n;
        r->state = n ? S_BODY : S_DONE;
        r->ended = n == 0;
    } else {
        r->transfer = T_UNTIL_CLOSE;
        r->state = S_BODY;
    }
    return 0;
}

static int event(ht_response *r, const ht_buf *b, uint64_t t, ht_err *e)
{
    HT_TRY(ht_buf_ok(b, "event of the server", e));
    if (r->fn(r->user, b->p ? b->p : "", b->n, t)) return HT_FAIL(e, HT_ECANCELLED, "cancelled");
    return 0;
}

/* A whole line of the body, without its end. */
static int body_line(ht_response *r, uint64_t t, ht_err *e)
{
    ht_buf *l = &r->line;
    if (l->bad)
        return HT_FAIL(e, HT_EFORMAT, "an event is larger than %d bytes", (int)HT_HTTP_EVENT_MAX);
    if (l->n && l->p[l->n - 1] == '\r') l->p[--l->n] = 0;
    int rc = 0;
    if (r->framing == HT_BODY_LINES) {
        if (l->n) rc = event(r, l, t, e);
    } else if (l->n == 0) {
        if (r->has_data) rc = event(r, &r->data, t, e);
        ht_buf_clear(&r->data);
        r->has_data = false;
    } else if (l->n >= 5 && memcmp(l->p, "data:", 5) == 0) {
        size_t skip = l->n > 5 && l->p[5] == ' ' ? 6 : 5;
        if (r->has_data) ht_buf_char(&r->data, '\n');
        ht_buf_add(&r->data, l->p + skip, l->n - skip);
        r->has_data = true;
    }
    ht_buf_clear(l);
    return rc;
}

static int body_bytes(ht_response *r, const char *p, size_t n, uint64_t t, ht_err *e)
{
    if (r->framing == HT_BODY_WHOLE) {
        ht_buf_add(&r->body, p, n);
        return r->body.bad ? HT_FAIL(e, HT_EFORMAT, "the body is larger than %d bytes",
                                     (int)HT_HTTP_BODY_MAX)
                           : 0;
    }
    while (n) {
        const char *nl = memchr(p, '\n', n);
        size_t k = nl ? (size_t)(nl - p) : n;
        ht_buf_add(&r->line, p, k);
        if (!nl) return r->line.bad ? body_line(r, t, e) : 0;
        HT_TRY(body_line(r, t, e));
        p += k + 1;
        n -= k + 1;
    }
    return 0;
}

/* One byte of what stands between chunks. */
static int chunk_byte(ht_response *r, char c, ht_err *e)
{
    ht_buf *h = &r->head; /* reused for the line being gathered */
    if (c != '\n') {
        ht_buf_char(h, c);
        return h->bad ? HT_FAIL(e, HT_EFORMAT, "a chunk's line is too long") : 0;
    }
    if (h->n && h->p[h->n - 1] == '\r') h->p[--h->n] = 0;
    char *end = NULL;
    if (r->state == S_CHUNK_END) {
        if (h->n) return HT_FAIL(e, HT_EFORMAT, "a chunk is longer than it says");
        r->state = S_CHUNK_SIZE;
    } else if (r->state == S_TRAILER) {
        if (h->n == 0) {
            r->state = S_DONE;
            r->ended = true;
        }
    } else {
        size_t digits = h->p ? strspn(h->p, "0123456789abcdefABCDEF") : 0;
        if (digits == 0 || digits > 8 || (h->p[digits] && h->p[digits] != ';'))
            return HT_FAIL(e, HT_EFORMAT, "a chunk's size is no number: \"%.20s\"",
                           h->p ? h->p : "");
        r->left = strtoull(h->p, &end, 16);
        r->state = r->left ? S_CHUNK_DATA : S_TRAILER;
    }
    ht_buf_clear(h);
    return 0;
}

/* Takes up to the end of the headers; how many bytes were used. */
static int head_bytes(ht_response *r, const char *p, size_t n, size_t *used, ht_err *e)
{
    for (*used = 0; *used < n && r->state == S_HEAD;) {
        ht_buf_char(&r->head, p[(*used)++]);
        ht_buf *h = &r->head;
        if (h->bad)
            return HT_FAIL(e, HT_EFORMAT, "headers of more than %d bytes", (int)HT_HTTP_HEAD_MAX);
        bool end = (h->n >= 4 && memcmp(h->p + h->n - 4, "\r\n\r\n", 4) == 0) ||
                   (h->n >= 2 && memcmp(h->p + h->n - 2, "\n\n", 2) == 0);
        if (!end) continue;
        HT_TRY(take_head(r, e));
        ht_buf_clear(h);
    }
    return 0;
}

int ht_response_feed(ht_response *r, const char *p, size_t n, uint64_t t, ht_err *e)
{
    while (n) {
        size_t k = n;
        if (r->state == S_HEAD) {
            HT_TRY(head_bytes(r, p, n, &k, e));
        } else if (r->state == S_BODY || r->state == S_CHUNK_DATA) {
            if (r->transfer != T_UNTIL_CLOSE && k > r->left) k = (size_t)r->left;
            HT_TRY(body_bytes(r, p, k, t, e));
            if (r->transfer != T_UNTIL_CLOSE) r->left -= k;
            if (r->transfer != T_UNTIL_CLOSE && r->left == 0) {
                r->ended = r->state == S_BODY;
                r->state = r->state == S_BODY ? S_DONE : S_CHUNK_END;
            }
        } else if (r->state == S_DONE) {
            r->after_end = true;
        } else {
            k = 1;
            HT_TRY(chunk_byte(r, *p, e));
        }
        p += k;
        n -= k;
    }
    return 0;
}

void ht_response_close(ht_response *r)
{
    if (r->state == S_BODY && r->transfer == T_UNTIL_CLOSE) {
        r->ended = true;
        r->state = S_DONE;
    }
}

/* ---- the connection ---- */

int ht_url_parse(const char *text, ht_url *u, ht_err *e)
{
    static const char scheme[] = "http://";
    memset(u, 0, sizeof *u);
    const char *p = text + (strncmp(text, scheme, sizeof scheme - 1) == 0 ? sizeof scheme - 1 : 0);
    size_t n = strcspn(p, ":/");
    unsigned long port = 80;
    char *end;
    if (p == text || n == 0 || n >= sizeof u->host)
        return HT_FAIL(e, HT_EARG, "\"%.100s\" is not http://HOST[:PORT][/PATH]", text);
    memcpy(u->host, p, n);
    p += n;
    if (*p == ':') {
        port = strtoul(p + 1, &end, 10);
        if (end == p + 1 || port < 1 || port > 65535 || (*end && *end != '/'))
            return HT_FAIL(e, HT_EARG, "\"%.100s\": the port is no number from 1 to 65535", text);
        p = end;
    }
    u->port = (uint16_t)port;
    n = strlen(p);
    while (n && p[n - 1] == '/') n--;
    if (n >= sizeof u->path) return HT_FAIL(e, HT_EARG, "\"%.100s\": the path is too long", text);
    memcpy(u->path, p, n);
    return 0;
}

typedef struct {
    int fd;
    uint64_t deadline;
    ht_http_result *out;
} conn;

static void end_with(conn *c, int end, const char *what)
{
    c->out->end = end;
    snprintf(c->out->message, sizeof c->out->message, "%.150s", what);
}

/* false: the time is up. */
static bool wait_for(const conn *c, short events)
{
    for (;;) {
        uint64_t now = ht_now_ns();
        if (now >= c->deadline) return false;
        uint64_t ms = (c->deadline - now) / 1000000 + 1;
        struct pollfd p = {c->fd, events, 0};
        int rc = poll(&p, 1, ms < 1000 ? (int)ms : 1000);
        if (rc > 0) return true;
        if (rc < 0 && errno != EINTR) return false;
    }
}

static bool connect_to(conn *c, const ht_url *u)
{
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    char port[8];
    snprintf(port, sizeof port, "%u", u->port);
    if (getaddrinfo(u->host, port, &hint, &list) != 0) {
        end_with(c, HT_HTTP_REFUSED, "no such host");
        return false;
    }
    int one = 1, why = 0;
    for (struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        socklen_t n = sizeof why;
        c->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (c->fd < 0) continue;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        bool ok = connect(c->fd, a->ai_addr, a->ai_addrlen) == 0;
        if (!ok && errno == EINPROGRESS)
            ok = wait_for(c, POLLOUT) && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &why, &n) == 0 &&
                 why == 0;
        if (ok) break;
        close(c->fd);
        c->fd = -1;
    }
    freeaddrinfo(list);
    if (c->fd < 0) end_with(c, HT_HTTP_REFUSED, "no connection");
    return c->fd >= 0;
}

static bool send_all(conn *c, const char *p, size_t n)
{
    while (n) {
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
            continue;
        }
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (wait_for(c, POLLOUT)) continue;
            end_with(c, HT_HTTP_TIMEOUT, "the request could not be sent in time");
            return false;
        }
        end_with(c, HT_HTTP_RESET, strerror(errno));
        return false;
    }
    return true;
}

/* Read until the server closes: what it sends after its own end counts too. */
static int receive(conn *c, ht_response *r, ht_err *e)
{
    char room[1 << 16];
    for (;;) {
        ssize_t k = recv(c->fd, room, sizeof room, 0);
        uint64_t t = ht_now_ns();
        if (k > 0) {
            ht_err why = {0};
            ht_buf_add(&c->out->raw, room, (size_t)k);
            if (!c->out->first_ns) c->out->first_ns = t;
            c->out->last_ns = t;
            int rc = ht_response_feed(r, room, (size_t)k, t, &why);
            if (rc == HT_EFORMAT) {
                end_with(c, HT_HTTP_BROKEN, why.msg);
                return 0;
            }
            if (rc) return HT_FAIL(e, rc, "%s", why.msg);
        } else if (k == 0) {
            ht_response_close(r);
            if (r->ended && !r->after_end) c->out->end = HT_HTTP_COMPLETE;
            else if (r->after_end) end_with(c, HT_HTTP_BROKEN, "bytes after the end of the answer");
            else end_with(c, HT_HTTP_EOF, "the connection was closed before the answer's end");
            return 0;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (wait_for(c, POLLIN)) continue;
            end_with(c, HT_HTTP_TIMEOUT, "no answer in time");
            return 0;
        } else if (errno != EINTR) {
            end_with(c, HT_HTTP_RESET, strerror(errno));
            return 0;
        }
    }
}

int ht_http_run(const ht_url *u, const char *method, const char *path, const char *body, size_t n,
                enum ht_framing framing, ht_event_fn fn, void *user, uint64_t timeout_ns,
                ht_http_result *out, ht_err *e)
{
    ht_response r;
    ht_buf request;
    memset(out, 0, sizeof *out);
    ht_buf_init(&out->raw, HT_HTTP_BODY_MAX);
    ht_buf_init(&out->body, HT_HTTP_BODY_MAX);
    ht_response_init(&r, framing, fn, user);
    ht_buf_init(&request, 0);
    ht_buf_fmt(&request,
               "%s %s%s HTTP/1.1\r\nHost: %s:%u\r\nConnection: close\r\nAccept: */*\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               method, u->path, path, u->host, u->port, n);
    if (n) ht_buf_add(&request, body, n);
    int rc = ht_buf_ok(&request, "request", e);
    out->intended_ns = ht_now_ns();
    conn c = {.fd = -1, .deadline = out->intended_ns + timeout_ns, .out = out};
    if (!rc && connect_to(&c, u)) {
        out->sent_ns = ht_now_ns();
        if (send_all(&c, request.p, request.n)) rc = receive(&c, &r, e);
    }
    out->status = r.status;
    if (!rc) rc = ht_buf_ok(&out->raw, "answer", e);
    if (c.fd >= 0) close(c.fd);
    out->body = r.body;
    ht_buf_init(&r.body, 0);
    ht_buf_done(&request);
    ht_response_done(&r);
    return rc;
}

void ht_http_result_done(ht_http_result *r)
{
    ht_buf_done(&r->raw);
    ht_buf_done(&r->body);
}
