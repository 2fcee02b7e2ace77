/* fuzz_rlog.c - a receipt log and its heads: the first byte says how many 16ths of the rest are the
 * log. Any text gives a report, whose counts agree with each other. */
#include "route/rlog.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int count(void *user, const ht_json *doc, const char *text, size_t n, ht_err *e)
{
    (void)e;
    if (!doc || !text || !n) abort();
    ++*(uint64_t *)user;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ht_rlog_report r;
    ht_err e = {0};
    uint64_t seen = 0;
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    const size_t n = size - 1, n_log = n * (data[0] & 15u) / 15;
    if (ht_rlog_check_text(text, n_log, text + n_log, n - n_log, NULL, 1795900000, count, &seen, &r,
                           &e))
        return 0;
    if (seen > r.lines || r.signed_seq > r.last_seq) abort();
    if (r.n_faults == 0 && (seen != r.lines || r.last_seq != r.lines)) abort();
    return 0;
}
