/* load.h - an open-loop client: requests at set times to one server, whatever became of those
 * before (no coordinated omission), and the server's own process around them. */
#ifndef HT_CLI_LOAD_H
#define HT_CLI_LOAD_H
#include "core/arena.h"
#include "core/buf.h"
#include "evid/client.h"

typedef struct {
    /* what to ask: a body for /v1/completions that streams and returns its tokens */
    uint64_t at_ns;                  /* intended start, from the origin                           */
    const char *body; size_t n_body;
    uint32_t max_new;                /* room in t_ns and tok                                      */
    /* what came, times from the origin */
    uint64_t *t_ns; int32_t *tok; uint32_t n;
    uint64_t sent_ns, end_ns;
    int end, status;                 /* enum ht_http_end; HTTP status                             */
    bool done;                       /* the stream's last line came                               */
    ht_buf raw;                      /* every byte; cli__load_done()                              */
} cli__load_item;
/* Send all of them, a thread each; *origin_ns: their time zero, on the monotonic clock. Items that
 * fail say so; an error is ours. */
HT_MUST_USE int cli__load_run(const ht_url *, cli__load_item *, uint32_t n, uint64_t timeout_ns,
                              uint64_t *origin_ns, ht_err *);
void cli__load_done(cli__load_item *, uint32_t n);

typedef struct { int pid, log_fd; ht_url url; } cli__server_child;
/* `hetero serve ARGS...` (NULL-terminated) as a child on a free port of the loopback; returns when
 * it is ready. A server that ends before is an error with the end of its log. */
HT_MUST_USE int cli__child_start(const char *const *args, uint64_t timeout_ns, cli__server_child *,
                                 ht_err *);
/* SIGTERM, then its exit status (128 + n: by signal n); killed after timeout_ns. */
int cli__child_stop(cli__server_child *, uint64_t timeout_ns);
#endif
