/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

static const double bound[METRIC_BUCKETS] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                             1,     3,     10,   30,   100, 300};

void serve__observe(serve__histogram *h, double seconds)
{
    int i = 0;
    while (i < METRIC_BUCKETS && seconds > bound[i]) i++;
    h->count[i]++;
    h->sum += seconds;
}

void serve__write_histogram(ht_buf *b, const char *name, const char *help,
                            const serve__histogram *h)
{
    uint64_t n = 0;
    ht_buf_fmt(b, "# HELP hetero_%s %s\n# TYPE hetero_%s histogram\n", name, help, name);
    for (int i = 0; i < METRIC_BUCKETS; i++) {
        n += h->count[i];
        ht_buf_fmt(b, "hetero_%s_bucket{le=\"%g\"} %llu\n", name, bound[i], (unsigned long long)n);
    }
    n += h->count[METRIC_BUCKETS];
    ht_buf_fmt(b, "hetero_%s_bucket{le=\"+Inf\"} %llu\nhetero_%s_sum %.9g\nhetero_%s_count %llu\n",
               name, (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}
