/* client.h - a small HTTP/1.1 client for streamed answers of a foreign server: one request a
 * connection, every piece stamped when it arrived, events of text/event-stream or lines of JSON
 * handed on with the time of the piece that completed them. It measures, so it is fussy: what a
 * server does wrong is reported as what it is and never repaired. Plain TCP; for servers of this
 * machine or a trusted net. */
#ifndef HT_EVID_CLIENT_H
#define HT_EVID_CLIENT_H
#include "core/buf.h"

enum { HT_HTTP_HEAD_MAX = 64 << 10, HT_HTTP_BODY_MAX = 64 << 20, HT_HTTP_EVENT_MAX = 4 << 20 };
enum ht_framing { HT_BODY_WHOLE, HT_BODY_SSE, HT_BODY_LINES };
/* One event's data (SSE: its data lines joined by newlines; comments and other fields are left
 * out) or one line. Non-zero ends the reading with HT_ECANCELLED. */
typedef int (*ht_event_fn)(void *user, const char *data, size_t n, uint64_t t_ns);

typedef struct {                     /* a response being read; feed it pieces of any size */
    uint8_t framing, state, transfer;
    int status;                      /* of the status line; 0 until it is there */
    uint64_t left;                   /* of the chunk or of content-length */
    bool ended;                      /* the body is complete as its headers promised */
    bool after_end;                  /* bytes came after that */
    ht_buf head, body, line, data;
    bool has_data;
    ht_event_fn fn; void *user;
} ht_response;
void ht_response_init(ht_response *, enum ht_framing, ht_event_fn, void *user);
void ht_response_done(ht_response *);
/* HT_EFORMAT: not HTTP, a chunk that is none, a header or an event too large. */
HT_MUST_USE int ht_response_feed(ht_response *, const char *p, size_t n, uint64_t t_ns, ht_err *);
/* The connection was closed: a body that its end delimits is complete now. */
void ht_response_close(ht_response *);

enum ht_http_end { HT_HTTP_COMPLETE, HT_HTTP_EOF, HT_HTTP_RESET, HT_HTTP_TIMEOUT, HT_HTTP_REFUSED,
                   HT_HTTP_BROKEN /* not HTTP */, HT_HTTP_ENDS };
typedef struct { char host[256]; uint16_t port; char path[256]; } ht_url;
/* "http://HOST[:PORT][/PATH]"; anything else is HT_EARG. */
HT_MUST_USE int ht_url_parse(const char *text, ht_url *, ht_err *);

typedef struct {
    int end, status;                 /* enum ht_http_end; HTTP status */
    uint64_t intended_ns, sent_ns, first_ns, last_ns;  /* before connecting; request out; pieces */
    ht_buf raw;                      /* every byte of the response as it came */
    ht_buf body;                     /* HT_BODY_WHOLE: the body */
    char message[160];               /* what went wrong, in words */
} ht_http_result;
/* method "POST" with a body of JSON, or "GET" with none. An error is ours (memory, a cancelling
 * fn); what goes wrong with the server is in the result, which ht_http_result_done() frees. */
HT_MUST_USE int ht_http_run(const ht_url *, const char *method, const char *path, const char *body,
                            size_t n, enum ht_framing, ht_event_fn, void *user, uint64_t timeout_ns,
                            ht_http_result *, ht_err *);
void ht_http_result_done(ht_http_result *);
#endif
