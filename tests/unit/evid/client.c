/* client.c - the HTTP reader against answers good and bad, whole and cut at every byte; the client
 * against a server of one connection in a thread. */
#include "evid/client.h"
#include "test.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    char text[1024];
    unsigned n;
    uint64_t last;
} log_;

static int on_event(void *user, const char *data, size_t n, uint64_t t)
{
    log_ *l = user;
    size_t at = strlen(l->text);
    snprintf(l->text + at, sizeof l->text - at, "[%.*s]", (int)n, data);
    l->n++;
    l->last = t;
    return 0;
}

/* Feed text cut in two at `cut`, then close. */
static int feed(ht_response *r, enum ht_framing f, log_ *l, const char *text, size_t n, size_t cut,
                ht_err *e)
{
    memset(l, 0, sizeof *l);
    ht_response_init(r, f, on_event, l);
    int rc = ht_response_feed(r, text, cut, 1, e);
    if (!rc) rc = ht_response_feed(r, text + cut, n - cut, 2, e);
    if (!rc) ht_response_close(r);
    return rc;
}

#define HEAD    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
#define CHUNKED HEAD "Transfer-Encoding: chunked\r\n\r\n"

T_CASE(client, good_answers_cut_anywhere)
{
    static const struct {
        const char *text, *events;
        enum ht_framing framing;
    } good[] = {
        {HEAD "\r\ndata: {\"a\":1}\n\ndata: [DONE]\n\n", "[{\"a\":1}][[DONE]]", HT_BODY_SSE},
        {HEAD "\r\n: ping\n\nevent: x\ndata:one\ndata: two\nid: 7\n\n", "[one\ntwo]", HT_BODY_SSE},
        {HEAD "\r\ndata: a\r\n\r\ndata: b\r\n\r\n", "[a][b]", HT_BODY_SSE},
        {CHUNKED "9\r\ndata: a\n\n\r\n5;x=1\r\ndata:\r\n4\r\n b\n\n\r\n0\r\n\r\n", "[a][b]",
         HT_BODY_SSE},
        {CHUNKED "a\r\n{\"x\":1}\n{\"\r\n6\r\ny\":2}\n\r\n0\r\nTrailer: t\r\n\r\n",
         "[{\"x\":1}][{\"y\":2}]", HT_BODY_LINES},
        {"HTTP/1.0 404 Not Found\r\ncontent-LENGTH: 4\r\n\r\nnone", "", HT_BODY_WHOLE},
        {HEAD "Content-Length: 0\r\n\r\n", "", HT_BODY_SSE},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t n = strlen(good[i].text);
        for (size_t cut = 0; cut <= n; cut++) {
            ht_response r;
            log_ l;
            ht_err e = {0};
            T_OK(feed(&r, good[i].framing, &l, good[i].text, n, cut, &e), e);
            T_EQ_STR(l.text, good[i].events);
            T_CHECK(r.ended && !r.after_end, "answer %zu cut at %zu is not complete", i, cut);
            if (good[i].framing == HT_BODY_WHOLE) {
                T_EQ_INT(r.status, 404);
                T_EQ_STR(r.body.p, "none");
            }
            ht_response_done(&r);
        }
    }
}

T_CASE(client, bad_answers)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"SSH-2.0-x\r\n\r\n", "not HTTP"},
        {"HTTP/2.0 200 OK\r\n\r\n", "not HTTP"},
        {"HTTP/1.1 abc\r\n\r\n", "no status"},
        {HEAD "Content-Length: -4\r\n\r\n", "is no number"},
        {HEAD "Content-Length: 99999999999999999999999\r\n\r\n", "is no number"},
        {HEAD "Transfer-Encoding: gzip\r\n\r\n", "not supported"},
        {CHUNKED "zz\r\n", "size is no number"},
        {CHUNKED "123456789\r\n", "size is no number"},
        {CHUNKED "1\r\nab\r\n", "longer than it says"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ht_response r;
        log_ l;
        ht_err e = {0};
        T_ERR(feed(&r, HT_BODY_SSE, &l, bad[i].text, strlen(bad[i].text), 0, &e), HT_EFORMAT, e,
              bad[i].why);
        ht_response_done(&r);
    }
}

T_CASE(client, early_ends_and_extra_bytes)
{
    static const struct {
        const char *text;
        bool ended, after;
    } c[] = {
        {HEAD "Content-Length: 50\r\n\r\ndata: a\n\n", false, false},
        {CHUNKED "9\r\ndata: a\n\n\r\n", false, false},
        {CHUNKED "ff\r\ndata: a\n\n", false, false},
        {"HTTP/1.1 200 OK\r\nConte", false, false},
        {HEAD "Content-Length: 9\r\n\r\ndata: a\n\nextra", true, true},
        {CHUNKED "9\r\ndata: a\n\n\r\n0\r\n\r\nmore", true, true},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ht_response r;
        log_ l;
        ht_err e = {0};
        T_OK(feed(&r, HT_BODY_SSE, &l, c[i].text, strlen(c[i].text), 0, &e), e);
        T_CHECK(r.ended == c[i].ended && r.after_end == c[i].after, "answer %zu", i);
        ht_response_done(&r);
    }
}

/* A head and an event that never end are refused, not gathered for ever. */
T_CASE(client, bounds)
{
    ht_response r;
    log_ l = {0};
    ht_err e = {0};
    static char fill[1 << 16];
    memset(fill, 'a', sizeof fill);
    ht_response_init(&r, HT_BODY_SSE, on_event, &l);
    T_OK(ht_response_feed(&r, "HTTP/1.1 200 OK\r\nX: ", 20, 1, &e), e);
    int rc = 0;
    for (int i = 0; i < 4 && !rc; i++) rc = ht_response_feed(&r, fill, sizeof fill, 1, &e);
    T_EQ_INT(rc, HT_EFORMAT);
    ht_response_done(&r);
    ht_response_init(&r, HT_BODY_SSE, on_event, &l);
    T_OK(ht_response_feed(&r, HEAD "\r\ndata: ", strlen(HEAD) + 8, 1, &e), e);
    rc = 0;
    for (int i = 0; i < 200 && !rc; i++) rc = ht_response_feed(&r, fill, sizeof fill, 1, &e);
    T_ERR(rc, HT_EFORMAT, e, "larger than");
    ht_response_done(&r);
}

T_CASE(client, urls)
{
    ht_url u;
    ht_err e = {0};
    T_OK(ht_url_parse("http://127.0.0.1:8080/base/", &u, &e), e);
    T_EQ_STR(u.host, "127.0.0.1");
    T_EQ_INT(u.port, 8080);
    T_EQ_STR(u.path, "/base");
    T_OK(ht_url_parse("http://localhost", &u, &e), e);
    T_EQ_INT(u.port, 80);
    T_ERR(ht_url_parse("https://localhost", &u, &e), HT_EARG, e, "is not http");
    T_ERR(ht_url_parse("http://h:0", &u, &e), HT_EARG, e, "port");
    T_ERR(ht_url_parse("http://h:99999", &u, &e), HT_EARG, e, "port");
    T_ERR(ht_url_parse("http://:80", &u, &e), HT_EARG, e, "is not http");
}

/* ---- the client over a socket ---- */

typedef struct {
    int listener;
    const char *answer;
    bool reset, silent;
    char request[4096];
} server;

static void *serve(void *user)
{
    server *s = user;
    int fd = accept(s->listener, NULL, NULL);
    ssize_t k = recv(fd, s->request, sizeof s->request - 1, 0);
    s->request[k > 0 ? k : 0] = 0;
    if (s->answer && send(fd, s->answer, strlen(s->answer), MSG_NOSIGNAL) < 0) s->answer = NULL;
    if (s->silent) usleep(400000);
    struct linger hard = {1, 0};
    if (s->reset) {
        usleep(50000); /* the bytes shall be read before the reset overtakes them */
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(fd);
    return NULL;
}

static void ask(server *s, log_ *l, ht_http_result *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    pthread_t t;
    ht_url u = {.host = "127.0.0.1"};
    ht_err e = {0};
    memset(l, 0, sizeof *l);
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    T_EQ_INT(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    T_EQ_INT(listen(s->listener, 1), 0);
    getsockname(s->listener, (struct sockaddr *)&a, &n);
    u.port = ntohs(a.sin_port);
    pthread_create(&t, NULL, serve, s);
    T_OK(ht_http_run(&u, "POST", "/completion", "{}", 2, HT_BODY_SSE, on_event, l,
                     s->silent ? 100000000u : 5000000000u, r, &e),
         e);
    pthread_join(t, NULL);
    close(s->listener);
}

T_CASE(client, over_a_socket)
{
    log_ l;
    ht_http_result r;
    server good = {.answer = CHUNKED "9\r\ndata: a\n\n\r\n0\r\n\r\n"};
    ask(&good, &l, &r);
    T_EQ_INT(r.end, HT_HTTP_COMPLETE);
    T_EQ_INT(r.status, 200);
    T_EQ_STR(l.text, "[a]");
    T_CHECK(r.sent_ns >= r.intended_ns && l.last >= r.sent_ns && r.last_ns >= r.first_ns, "times");
    T_CHECK(strstr(good.request, "POST /completion HTTP/1.1\r\n") == good.request, "%s",
            good.request);
    T_CHECK(strstr(good.request, "Content-Length: 2\r\n\r\n{}"), "%s", good.request);
    ht_http_result_done(&r);
    server early = {.answer = CHUNKED "9\r\ndata: a\n\n\r\n"};
    ask(&early, &l, &r);
    T_EQ_INT(r.end, HT_HTTP_EOF);
    T_EQ_STR(l.text, "[a]");
    ht_http_result_done(&r);
    server reset = {.answer = CHUNKED "9\r\ndata: a\n\n\r\n", .reset = true};
    ask(&reset, &l, &r);
    T_EQ_INT(r.end, HT_HTTP_RESET);
    ht_http_result_done(&r);
    server silent = {.silent = true};
    ask(&silent, &l, &r);
    T_EQ_INT(r.end, HT_HTTP_TIMEOUT);
    ht_http_result_done(&r);
    server junk = {.answer = "hello\r\n\r\n"};
    ask(&junk, &l, &r);
    T_EQ_INT(r.end, HT_HTTP_BROKEN);
    ht_http_result_done(&r);
}

T_CASE(client, nobody_there)
{
    ht_http_result r;
    log_ l = {0};
    ht_err e = {0};
    ht_url u = {.host = "127.0.0.1", .port = 1};
    T_OK(
        ht_http_run(&u, "GET", "/props", NULL, 0, HT_BODY_WHOLE, on_event, &l, 1000000000u, &r, &e),
        e);
    T_EQ_INT(r.end, HT_HTTP_REFUSED);
    ht_http_result_done(&r);
}
