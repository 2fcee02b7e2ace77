/* fuzz_serve_http.c - any bytes on a connection of the server's HTTP layer, libmicrohttpd included:
 * what comes back is HTTP or nothing, and the next connection is served. The daemon lives as long
 * as the process; the first byte chooses where the bytes are cut in two. */
#include "serve/http.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A request that is cut off has no answer: the client does not wait for it for long. */
enum { BODY_MAX = 4096, HEAD_MAX = 4096, IDLE_S = 5, WAIT_US = 100000 };
static serve__http *server;
static char folder[32], path[48];

static void head(void *user, serve__conn *c)
{
    ht_buf b;
    (void)user;
    if (strcmp(serve__conn_path(c), "/refuse") != 0) return;
    ht_buf_init(&b, 0);
    ht_buf_str(&b, serve__conn_method(c));
    serve__conn_answer(c, 404, "text/plain", &b);
}

/* Quotes what it was asked, whole or as a stream. */
static void body(void *user, serve__conn *c)
{
    size_t n;
    const char *p = serve__conn_body(c, &n), *type = serve__conn_header(c, "Content-Type");
    ht_buf b;
    (void)user;
    if (n > BODY_MAX) abort();
    if (type) serve__conn_add_header(c, "X-Type", type);
    if (strcmp(serve__conn_path(c), "/stream") == 0) {
        serve__conn_stream(c, "text/plain", NULL);
        serve__conn_write(c, p, n / 2);
        serve__conn_write(c, p + n / 2, n - n / 2);
        serve__conn_end(c, false);
        return;
    }
    ht_buf_init(&b, 0);
    ht_buf_add(&b, p, n);
    serve__conn_answer(c, 200, "text/plain", &b);
}

static void refuse(void *user, serve__conn *c, unsigned status, const char *code,
                   const char *message)
{
    ht_buf b;
    (void)user;
    ht_buf_init(&b, 0);
    ht_buf_fmt(&b, "%s: %s", code, message);
    serve__conn_answer(c, status, "text/plain", &b);
}

static void stop(void)
{
    serve__http_close(server);
    (void)rmdir(folder);
}

static void start(void)
{
    const serve__http_params p = {.host = path,
                                  .threads = 1,
                                  .max_conns = 16,
                                  .max_body = BODY_MAX,
                                  .max_head = HEAD_MAX,
                                  .idle_s = IDLE_S,
                                  .body_s = IDLE_S,
                                  .head = head,
                                  .body = body,
                                  .refuse = refuse};
    (void)snprintf(folder, sizeof folder, "/tmp/hetero-fuzz-XXXXXX");
    if (!mkdtemp(folder)) abort();
    (void)snprintf(path, sizeof path, "%s/s", folder);
    if (serve__http_open(&server, &p, NULL) || atexit(stop)) abort();
}

/* Everything that comes back until the server closes; the sending side is closed by us. */
static size_t talk(const void *p, size_t n, size_t cut, char *got, size_t max)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const struct timeval wait = {.tv_usec = WAIT_US};
    size_t have = 0;
    memcpy(a.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)(void *)&a, sizeof a)) abort();
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    (void)(send(fd, p, cut, MSG_NOSIGNAL) < 0);
    (void)(send(fd, (const char *)p + cut, n - cut, MSG_NOSIGNAL) < 0);
    (void)shutdown(fd, SHUT_WR);
    for (ssize_t k; have < max && (k = recv(fd, got + have, max - have, 0)) > 0;) have += (size_t)k;
    close(fd);
    return have;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sound[] = "GET /sound HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    static char got[1 << 16];
    if (size < 2 || size > 1 << 15) return 0;
    if (!server) start();
    const size_t n = size - 1;
    size_t have = talk(data + 1, n, data[0] % n, got, sizeof got);
    if (have >= 7 && memcmp(got, "HTTP/1.", 7) != 0) abort();
    have = talk(sound, sizeof sound - 1, 0, got, sizeof got);
    if (have && memcmp(got, "HTTP/1.1 200", 12) != 0) abort();
    return 0;
}
