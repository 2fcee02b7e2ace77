/* fuzz_http.c - the reader of foreign servers' answers: any bytes, cut anywhere. The first byte
 * chooses the framing and where the cut is; both ways of feeding must agree. */
#include "evid/client.h"
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    uint64_t bytes, events;
} seen;

static int on_event(void *user, const char *data, size_t n, uint64_t t)
{
    seen *s = user;
    (void)t;
    for (size_t i = 0; i < n; i++) s->bytes = s->bytes * 31 + (uint8_t)data[i];
    s->events++;
    return 0;
}

static int feed(const char *p, size_t n, size_t cut, int framing, seen *s, bool *ended)
{
    ht_response r;
    ht_response_init(&r, (enum ht_framing)framing, on_event, s);
    int rc = ht_response_feed(&r, p, cut, 1, NULL);
    if (!rc) rc = ht_response_feed(&r, p + cut, n - cut, 2, NULL);
    if (!rc) ht_response_close(&r);
    *ended = r.ended;
    ht_response_done(&r);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    seen a = {0, 0}, b = {0, 0};
    bool ended[2];
    if (size < 2) return 0;
    const char *p = (const char *)data + 1;
    size_t n = size - 1;
    int framing = data[0] % 3;
    int whole = feed(p, n, 0, framing, &a, &ended[0]);
    int cut = feed(p, n, data[0] % n, framing, &b, &ended[1]);
    if (whole != cut || ended[0] != ended[1] || a.events != b.events || a.bytes != b.bytes) abort();
    return 0;
}
