/* http_priv.h - what http.c (the daemon and the life of a connection) and http_answer.c (answers)
 * share. */
#ifndef HT_SERVE_HTTP_PRIV_H
#define HT_SERVE_HTTP_PRIV_H
#include "serve/http.h"
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    HTTP_HEADERS = 12,       /* of an answer, beyond the ones HTTP itself needs */
    HTTP_NOTHING, HTTP_WHOLE, HTTP_STREAM, /* what the answer is so far */
};
typedef struct http_sock {   /* an open socket */
    struct http_sock *next, *prev;
    int fd;
    uint64_t since_ns;       /* of the last change of state */
    int state;               /* 0: no request; 1: body comes; 2: answer is owed or goes out */
    bool cut;                /* shut down by us */
} http_sock;

struct serve__http {
    serve__http_params p;
    struct MHD_Daemon *daemon;
    int listen_fd, epoll_fd, event_fd;
    uint16_t port;
    char *unix_path;         /* to unlink at the end; NULL: TCP */
    pthread_t watcher;
    bool watching;
    pthread_mutex_t mu;      /* the lists and counters below; taken after a connection's own */
    serve__conn *conns;      /* with an answer owed */
    http_sock *socks;
    uint32_t n_socks;
    uint64_t next_id;
    bool stop, quiet;
};

struct serve__conn {
    serve__http *h;
    struct MHD_Connection *mc; /* NULL: HTTP is done with it */
    http_sock *sock;
    pthread_mutex_t mu;
    serve__conn *next, *prev; /* of h->conns */
    uint64_t id;
    atomic_int refs;
    int fd;
    bool listed;             /* in h->conns and watched */
    bool suspended, gone, headers_only;
    ht_buf body;
    bool too_big;
    size_t thrown;           /* bytes of a body that is too large */
    char method[16], peer[64];
    char *path;
    /* the answer */
    int kind;                /* HTTP_NOTHING ... */
    bool queued;             /* handed to libmicrohttpd */
    bool ended, failed;
    unsigned status;
    const char *type, *ping;
    const char *expected;    /* type of the stream to come; NULL: it has, or is no stream */
    ht_buf out;
    size_t out_at;
    uint64_t wrote_ns;
    char *name[HTTP_HEADERS], *value[HTTP_HEADERS];
    size_t n_headers;
    void (*on_gone)(void *);
    void *on_gone_arg;
    bool telling;            /* on_gone is running */
    pthread_cond_t told;
};

/* http_answer.c: serve__conn_stream; the connection's lock is held. */
void serve__conn_begin(serve__conn *, const char *type, const char *ping);
/* Give libmicrohttpd the answer that is there; the connection's lock is held. */
enum MHD_Result serve__http_queue(serve__conn *);
#endif
