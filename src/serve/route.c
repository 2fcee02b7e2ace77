/* route.c - from a request line to a handler: who may, what there is, which method. Nothing here
 * waits for the engine. */
#include "serve/server.h"
#include <stdio.h>
#include <string.h>

enum { GET = 1, POST = 2, OPEN = 4, LOADED = 8, REST = 16 };
/* OPEN: without a key. LOADED: only once the model is. REST: a name follows the path. */
static const struct {
    const char *path;
    unsigned flags;
    serve__handler *fn;
} routes[] = {
    {"/v1/chat/completions", POST | LOADED, serve__chat_completions},
    {"/v1/completions", POST | LOADED, serve__completions},
    {"/v1/responses", POST | LOADED, serve__responses},
    {"/v1/messages", POST | LOADED, serve__messages},
    {"/v1/messages/count_tokens", POST | LOADED, serve__count_tokens},
    {"/v1/embeddings", POST | LOADED, serve__embeddings},
    {"/v1/models", GET | LOADED, serve__models},
    {"/v1/models/", GET | LOADED | REST, serve__model},
    {"/api/chat", POST | LOADED, serve__ollama_chat},
    {"/api/generate", POST | LOADED, serve__ollama_generate},
    {"/api/tags", GET | LOADED, serve__ollama_tags},
    {"/api/show", POST | LOADED, serve__ollama_show},
    {"/api/ps", GET | LOADED, serve__ollama_ps},
    {"/api/version", GET, serve__ollama_version},
    {"/api/embed", POST | LOADED, serve__ollama_embed},
    {"/", GET | OPEN, serve__page},
    {"/health", GET | OPEN, serve__health},
    {"/metrics", GET, serve__metrics_page},
    {"/props", GET | LOADED, serve__props},
    {"/slots", GET | LOADED, serve__slots},
    {"/tokenize", POST | LOADED, serve__tokenize},
    {"/detokenize", POST | LOADED, serve__detokenize},
    {"/apply-template", POST | LOADED, serve__apply_template},
    {"/receipts/", GET | LOADED | REST, serve__receipt},
};
enum { ROUTES = sizeof routes / sizeof *routes };

static int find(const char *path)
{
    for (int i = 0; i < ROUTES; i++) {
        const size_t n = strlen(routes[i].path);
        if (routes[i].flags & REST ? !strncmp(path, routes[i].path, n) && path[n]
                                   : !strcmp(path, routes[i].path))
            return i;
    }
    return -1;
}

void serve__list_routes(ht_jw *w)
{
    ht_jw_arr(w);
    for (int i = 0; i < ROUTES; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "%s %s%s", routes[i].flags & GET ? "GET" : "POST",
                       routes[i].path, routes[i].flags & REST ? "*" : "");
        ht_jw_str(w, line);
    }
    ht_jw_end(w, ']');
}

/* Whose errors a client of this path reads; the route need not exist. */
static const serve__proto *proto_of(const char *path)
{
    static const char claude[] = "/v1/messages";
    const size_t n = sizeof claude - 1;
    if (!strncmp(path, claude, n) && (!path[n] || path[n] == '/')) return &serve__proto_messages;
    return strncmp(path, "/api/", 5) ? &serve__proto_chat : &serve__proto_ollama_chat;
}

static void count(serve__server *s, unsigned status)
{
    pthread_mutex_lock(&s->mu);
    if (status / 100 < METRIC_STATUS) s->m.answers[status / 100]++;
    pthread_mutex_unlock(&s->mu);
}

void serve__answer_json(serve__conn *c, unsigned status, ht_buf *b)
{
    serve__conn_answer(c, status, "application/json", b);
}

void serve__answer_fail(serve__server *s, serve__conn *c, const serve__proto *p,
                        const serve__fail *f)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    p->error(f, &b);
    if (f->retry_s) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", f->retry_s);
        serve__conn_add_header(c, "Retry-After", text);
    }
    if (f->status == 401) serve__conn_add_header(c, "WWW-Authenticate", "Bearer");
    count(s, f->status);
    serve__answer_json(c, f->status, &b);
}

/* The entry of --cors that admits this origin, or NULL. */
static const char *admitted(const serve__server *s, const char *origin)
{
    for (size_t i = 0; i < s->p.n_cors; i++)
        if (!strcmp(s->p.cors[i], "*") || !strcasecmp(s->p.cors[i], origin)) return s->p.cors[i];
    return NULL;
}

/* Which pages of the world may read answers: none, unless named. */
static void allow_origin(serve__server *s, serve__conn *c)
{
    const char *origin = serve__conn_header(c, "Origin"), *by = origin ? admitted(s, origin) : NULL;
    if (!by) return;
    serve__conn_add_header(c, "Access-Control-Allow-Origin", strcmp(by, "*") ? origin : "*");
    serve__conn_add_header(c, "Vary", "Origin");
}

/* Browsers let any page post text to any address and only hide the answer; so a page of another
 * site is turned away before it costs a token. Programs send no Origin; "null" is a page that
 * hides its own, and what is not http(s) is an application. */
static bool foreign_page(const serve__server *s, const serve__conn *c)
{
    const char *origin = serve__conn_header(c, "Origin"), *host = serve__conn_header(c, "Host");
    if (!origin || admitted(s, origin)) return false;
    const size_t n = strncasecmp(origin, "http://", 7) == 0    ? 7
                     : strncasecmp(origin, "https://", 8) == 0 ? 8
                                                               : 0;
    return n ? !host || strcasecmp(origin + n, host) != 0 : strcmp(origin, "null") == 0;
}

/* A server without keys that only this machine reaches is open to every page whose name somebody
 * lets point here (DNS rebinding). Such a page's name has a dot and is no loopback address. */
static bool foreign_name(const serve__server *s, const serve__conn *c)
{
    const char *host = serve__conn_header(c, "Host");
    char name[256];
    if (!s->local_names || !host) return false;
    const bool six = *host == '[';
    const size_t n = six ? strcspn(host, "]") - 1 : strcspn(host, ":");
    if (n >= sizeof name) return true;
    memcpy(name, host + six, n);
    name[n] = 0;
    if (serve__is_loopback(name) || (!six && !strchr(name, '.'))) return false;
    if (n > 10 && !strcasecmp(name + n - 10, ".localhost")) return false;
    for (size_t i = 0; i < s->p.n_cors; i++) {
        const char *at = strstr(s->p.cors[i], "://");
        if (!strcmp(s->p.cors[i], "*") || (at && !strcasecmp(at + 3, host))) return false;
    }
    return true;
}

static void preflight(serve__server *s, serve__conn *c)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    if (s->p.n_cors) {
        serve__conn_add_header(c, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        serve__conn_add_header(c, "Access-Control-Allow-Headers",
                               "Authorization, Content-Type, x-api-key, anthropic-version");
        serve__conn_add_header(c, "Access-Control-Max-Age", "600");
    }
    serve__conn_add_header(c, "Allow", "GET, POST, HEAD, OPTIONS");
    count(s, 204);
    serve__conn_answer(c, 204, "text/plain", &b);
}

static bool wrong_type(const serve__conn *c)
{
    const char *type = serve__conn_header(c, "Content-Type");
    return type && strncasecmp(type, "application/json", 16) != 0 &&
           strncasecmp(type, "text/plain", 10) != 0 &&
           strncasecmp(type, "application/x-www-form-urlencoded", 33) != 0;
}

/* What can be said before the body is read. true: *f is why not. */
static bool check(serve__server *s, const serve__conn *c, serve__fail *f)
{
    const char *path = serve__conn_path(c), *method = serve__conn_method(c);
    const int i = find(path);
    serve__client *client;
    const bool get = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    if (!(i >= 0 && (routes[i].flags & OPEN)) && !serve__authorised(s, c, &client))
        return serve__bad(f, 401, "invalid_api_key", NULL,
                          "this server wants a key: Authorization: Bearer KEY, or x-api-key");
    if (foreign_name(s, c))
        return serve__bad(f, 403, "host_refused", NULL,
                          "this server has no key and answers to this machine's own names, not to "
                          "%.100s; start it with --api-key, or with --cors http://%.100s",
                          serve__conn_header(c, "Host"), serve__conn_header(c, "Host"));
    if (i < 0)
        return serve__bad(f, 404, "not_found", NULL,
                          "there is no %.100s here; 'routes' of GET "
                          "/props lists what there is",
                          path);
    if (!(routes[i].flags & (get ? GET : POST)) || (!get && strcmp(method, "POST") != 0))
        return serve__bad(f, 405, "method_not_allowed", NULL, "%.100s wants %s, not %s", path,
                          routes[i].flags & GET ? "GET" : "POST", method);
    if (!get && foreign_page(s, c))
        return serve__bad(f, 403, "origin_refused", NULL,
                          "a page of %.100s may not ask this server; start it with --cors ORIGIN "
                          "to let it",
                          serve__conn_header(c, "Origin"));
    if (!get && wrong_type(c))
        return serve__bad(f, 415, "unsupported_media_type", NULL,
                          "the body must be application/json, not %.60s",
                          serve__conn_header(c, "Content-Type"));
    if (!(routes[i].flags & LOADED)) return false;
    pthread_mutex_lock(&s->mu);
    const enum serve__phase phase = s->phase;
    const double share = s->load_total ? 100.0 * (double)s->load_done / (double)s->load_total : 0;
    pthread_mutex_unlock(&s->mu);
    if (phase == PHASE_READY || (phase == PHASE_DRAINING && get)) return false;
    if (phase == PHASE_DRAINING) serve__bad(f, 503, "draining", NULL, "the server is stopping");
    else serve__bad(f, 503, "loading", NULL, "the model is loading (%.0f%%)", share);
    f->retry_s = phase == PHASE_DRAINING ? 5 : 1;
    return true;
}

void serve__on_head(void *user, serve__conn *c)
{
    serve__server *s = user;
    serve__fail f = {0};
    allow_origin(s, c);
    if (!strcmp(serve__conn_method(c), "OPTIONS")) {
        preflight(s, c);
        return;
    }
    if (!check(s, c, &f)) return;
    if (f.status == 405) {
        const int i = find(serve__conn_path(c));
        serve__conn_add_header(c, "Allow", routes[i].flags & GET ? "GET, HEAD" : "POST");
    }
    serve__answer_fail(s, c, proto_of(serve__conn_path(c)), &f);
}

void serve__on_refuse(void *user, serve__conn *c, unsigned status, const char *code,
                      const char *message)
{
    serve__fail f;
    (void)serve__bad(&f, status, code, NULL, "%s", message);
    f.retry_s = status == 503 ? 1 : 0;
    serve__answer_fail(user, c, proto_of(serve__conn_path(c)), &f);
}

void serve__on_body(void *user, serve__conn *c)
{
    const int i = find(serve__conn_path(c));
    if (i >= 0) routes[i].fn(user, c);
}
