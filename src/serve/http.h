/* http.h - HTTP/1.1 over libmicrohttpd, reduced to what a server of long answers needs: a request
 * with its whole body, an answer at once or in pieces from any thread, and word of a client that
 * left, in whatever state its request is. Everything about sockets, limits and time-outs is here.
 */
#ifndef HT_SERVE_HTTP_H
#define HT_SERVE_HTTP_H
#include "core/buf.h"

typedef struct serve__http serve__http;
/* One request and its answer. Reference-counted: HTTP holds one until the answer is sent. */
typedef struct serve__conn serve__conn;

typedef struct {
    const char *host;          /* address to bind, or a path (contains '/') of a Unix socket */
    uint16_t port;             /* 0: any free one */
    uint32_t threads;          /* that read requests and write answers */
    uint32_t max_conns;
    size_t max_body, max_head; /* bytes */
    uint32_t idle_s;           /* without a request, and without progress of an answer */
    uint32_t body_s;           /* for a request's body */
    uint32_t ping_s;           /* silence of a stream after which its ping is sent; 0: never */
    /* After the headers: may answer (401, 404, 413 ...), then the body is not read. */
    void (*head)(void *user, serve__conn *);
    /* With the body: answers now, or keeps the connection (serve__conn_keep) and answers later. */
    void (*body)(void *user, serve__conn *);
    /* Answers a request that is refused here (lengths, memory, the end), in its protocol's form. */
    void (*refuse)(void *user, serve__conn *, unsigned status, const char *code,
                   const char *message);
    void *user;
} serve__http_params;
HT_MUST_USE int serve__http_open(serve__http **, const serve__http_params *, ht_err *);
/* No new connections; a Unix socket's file is gone. */
void serve__http_quiesce(serve__http *);
/* Closes everything. Answers that are still owed get 503. */
void serve__http_close(serve__http *);
uint16_t serve__http_port(const serve__http *);   /* 0: a Unix socket */
uint32_t serve__http_conns(const serve__http *);  /* open now */
bool serve__http_busy(serve__http *);             /* an answer is owed or on its way */

/* ---- the request ---- */
const char *serve__conn_method(const serve__conn *);
const char *serve__conn_path(const serve__conn *);                 /* without the query */
const char *serve__conn_header(const serve__conn *, const char *name); /* any case; NULL: absent */
const char *serve__conn_body(const serve__conn *, size_t *n);
const char *serve__conn_peer(const serve__conn *);                 /* "127.0.0.1", "unix" */

/* ---- the answer; from any thread ---- */
/* Before the answer begins; both copied. More than 12 are left out. */
void serve__conn_add_header(serve__conn *, const char *name, const char *value);
/* A whole answer; type is static; takes the buffer's content. */
void serve__conn_answer(serve__conn *, unsigned status, const char *type, ht_buf *body);
/* An answer in pieces. ping (static, or NULL): sent after ping_s of silence. */
void serve__conn_stream(serve__conn *, const char *type, const char *ping);
/* A stream is to come: when nothing has after ping_s, it begins with its ping. */
void serve__conn_expect(serve__conn *, const char *type, const char *ping);
/* From now on nobody but the caller begins the answer. true: it has begun, as a stream. */
bool serve__conn_settle(serve__conn *);
void serve__conn_write(serve__conn *, const char *p, size_t n);
/* The stream's end; failed: the connection is cut instead, so that the client cannot take what it
 * has for the whole. */
void serve__conn_end(serve__conn *, bool failed);
/* fn(arg) once, from another thread, when the client leaves before the answer is out; at once when
 * it has already. fn NULL: no longer, and it is not running when this returns. */
void serve__conn_watch(serve__conn *, void (*fn)(void *), void *arg);
serve__conn *serve__conn_keep(serve__conn *);
void serve__conn_release(serve__conn *);
#endif
