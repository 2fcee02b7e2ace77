/* http_answer.c - answers of a connection: whole, or in pieces that libmicrohttpd's thread takes
 * out of a buffer. While there is nothing to take the connection sleeps (suspended) and costs
 * nothing; whoever writes wakes it. */
#include "core/arena.h"
#include "core/clock.h"
#include "serve/http_priv.h"
#include <string.h>

/* The lock is held. */
static void wake(serve__conn *c)
{
    c->wrote_ns = ht_now_ns();
    if (!c->suspended || !c->mc) return;
    c->suspended = false;
    MHD_resume_connection(c->mc);
}

void serve__conn_add_header(serve__conn *c, const char *name, const char *value)
{
    const size_t n = strlen(name), v = strlen(value);
    char *text = ht_mem_alloc(n + v + 2);
    if (!text) return;
    memcpy(text, name, n);
    memcpy(text + n + 1, value, v);
    /* What a client sent may be quoted here: no line of its own making. */
    for (char *p = text + n + 1; *p; p++)
        if ((unsigned char)*p < 32 || (unsigned char)*p > 126) *p = '?';
    pthread_mutex_lock(&c->mu);
    if (c->n_headers < HTTP_HEADERS && c->kind == HTTP_NOTHING) {
        c->name[c->n_headers] = text;
        c->value[c->n_headers++] = text + n + 1;
        text = NULL;
    }
    pthread_mutex_unlock(&c->mu);
    ht_mem_free(text);
}

void serve__conn_answer(serve__conn *c, unsigned status, const char *type, ht_buf *body)
{
    static const char no_memory[] = "{\"error\":{\"message\":\"no memory for the answer\","
                                    "\"type\":\"server_error\",\"param\":null,"
                                    "\"code\":\"out_of_memory\"}}";
    pthread_mutex_lock(&c->mu);
    if (c->kind == HTTP_NOTHING) {
        const bool bad = body->bad;
        c->kind = HTTP_WHOLE;
        c->status = bad ? 500 : status;
        c->type = bad ? "application/json" : type;
        ht_buf_done(&c->out);
        c->out = *body;
        ht_buf_init(body, 0);
        if (bad) {
            ht_buf_clear(&c->out);
            ht_buf_str(&c->out, no_memory);
        }
        c->ended = true;
        wake(c);
    }
    pthread_mutex_unlock(&c->mu);
    ht_buf_done(body);
}

void serve__conn_begin(serve__conn *c, const char *type, const char *ping)
{
    if (c->kind != HTTP_NOTHING) return;
    c->kind = HTTP_STREAM;
    c->status = 200;
    c->type = type;
    c->ping = ping;
    c->expected = NULL;
    wake(c);
}

void serve__conn_stream(serve__conn *c, const char *type, const char *ping)
{
    pthread_mutex_lock(&c->mu);
    serve__conn_begin(c, type, ping);
    pthread_mutex_unlock(&c->mu);
}

void serve__conn_expect(serve__conn *c, const char *type, const char *ping)
{
    pthread_mutex_lock(&c->mu);
    if (c->kind == HTTP_NOTHING) {
        c->expected = type;
        c->ping = ping;
    }
    pthread_mutex_unlock(&c->mu);
}

bool serve__conn_settle(serve__conn *c)
{
    pthread_mutex_lock(&c->mu);
    c->expected = NULL;
    const bool begun = c->kind == HTTP_STREAM;
    pthread_mutex_unlock(&c->mu);
    return begun;
}

void serve__conn_write(serve__conn *c, const char *p, size_t n)
{
    pthread_mutex_lock(&c->mu);
    if (c->kind == HTTP_STREAM && !c->ended && !c->gone && n) {
        ht_buf_add(&c->out, p, n);
        /* A stream with a piece missing must not look whole. */
        if (c->out.bad) c->ended = c->failed = true;
        wake(c);
    }
    pthread_mutex_unlock(&c->mu);
}

void serve__conn_end(serve__conn *c, bool failed)
{
    pthread_mutex_lock(&c->mu);
    if (c->kind == HTTP_STREAM && !c->ended) {
        c->ended = true;
        c->failed = failed;
        wake(c);
    }
    pthread_mutex_unlock(&c->mu);
}

/* libmicrohttpd asks for bytes of a stream. */
static ssize_t read_out(void *cls, uint64_t pos, char *buf, size_t max)
{
    serve__conn *c = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&c->mu);
    const size_t left = c->out.n - c->out_at;
    if (c->gone || (c->ended && c->failed && !left)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(buf, c->out.p + c->out_at, (size_t)n);
        c->out_at += (size_t)n;
        if (c->out_at == c->out.n) { /* all taken: the buffer does not grow with the answer */
            ht_buf_clear(&c->out);
            c->out_at = 0;
        }
    } else if (c->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        c->suspended = true;
        MHD_suspend_connection(c->mc);
    }
    pthread_mutex_unlock(&c->mu);
    return n;
}

static void release(void *c)
{
    serve__conn_release(c);
}

static struct MHD_Response *response(serve__conn *c)
{
    if (c->kind == HTTP_STREAM) {
        serve__conn_keep(c);
        struct MHD_Response *r =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1 << 14, read_out, c, release);
        if (!r) serve__conn_release(c);
        return r;
    }
    size_t n = 0;
    char *p = c->out.n ? ht_buf_take(&c->out, &n) : NULL;
    if (!p) return MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(n, p, ht_mem_free);
    if (!r) ht_mem_free(p);
    return r;
}

enum MHD_Result serve__http_queue(serve__conn *c)
{
    struct MHD_Response *r = response(c);
    enum MHD_Result ok = MHD_NO;
    if (!r) return MHD_NO;
    /* A response has a lock of libmicrohttpd's, which read_out is called under: ours is never held
     * when that one is taken. Nobody else queues, and what is read here is settled. */
    pthread_mutex_unlock(&c->mu);
    ok = MHD_add_response_header(r, "Content-Type", c->type);
    for (size_t i = 0; i < c->n_headers && ok == MHD_YES; i++)
        ok = MHD_add_response_header(r, c->name[i], c->value[i]);
    if (ok == MHD_YES && c->kind == HTTP_STREAM) {
        ok = MHD_add_response_header(r, "Cache-Control", "no-cache");
        if (ok == MHD_YES) ok = MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    /* What was not read of a body would be taken for the next request. */
    if (c->headers_only) (void)MHD_add_response_header(r, "Connection", "close");
    if (ok == MHD_YES) ok = MHD_queue_response(c->mc, c->status, r);
    MHD_destroy_response(r);
    pthread_mutex_lock(&c->mu);
    c->queued = ok == MHD_YES;
    return ok;
}
