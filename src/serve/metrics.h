/* metrics.h - counters of the server and their Prometheus text. All under the server's lock. */
#ifndef HT_SERVE_METRICS_H
#define HT_SERVE_METRICS_H
#include "core/buf.h"

enum { METRIC_BUCKETS = 12, METRIC_ROUTES = 12, METRIC_STATUS = 6 };
enum { CANCEL_QUEUE, CANCEL_PREFILL, CANCEL_DECODE, CANCEL_PHASES };
typedef struct {
    uint64_t count[METRIC_BUCKETS + 1];
    double sum;
} serve__histogram;
typedef struct {
    uint64_t accepted, finished, failed, cancelled[CANCEL_PHASES], refused_full, expired;
    uint64_t answers[METRIC_STATUS]; /* HTTP answers by first digit of the status */
    uint64_t prompt_tokens, cached_tokens, output_tokens, drafted, accepted_drafts;
    uint64_t passes, busy_ns, prompt_rows, decode_rows, overlap_passes, serialised;
    uint64_t bounds, bound_misses; /* shared passes admitted by an upper bound; that took longer */
    uint64_t idle_queued;          /* times the engine slept while a request waited */
    serve__histogram ttft, tpot, queue, total;
} serve__metrics;
/* Seconds into a histogram whose buckets go from 1 ms to 5 minutes. */
void serve__observe(serve__histogram *, double seconds);
void serve__write_histogram(ht_buf *, const char *name, const char *help,
                            const serve__histogram *);
#endif
