/* fuzz_evid.c - the documents of evidence: scopes, policies, journals, indexes, high-water
 * marks, schedulers' scopes. The first byte says which reader gets the rest; what a reader accepts
 * is written back byte for byte. */
#include "evid/journal.h"
#include "evid/policy.h"
#include "evid/sched.h"
#include "route/index.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static int read_scope(ht_arena *a, const char *text, size_t n, ht_err *e)
{
    ht_scope s;
    ht_buf b;
    HT_TRY(ht_scope_parse(a, text, n, &s, e));
    ht_buf_init(&b, 0);
    int rc = ht_scope_write(&s, &b, e);
    /* A text member that holds a NUL is cut: it cannot come from us, and has another digest. */
    must(rc || b.n > n || memcmp(b.p, text, b.n < n ? 0 : n) == 0);
    ht_buf_done(&b);
    return 0;
}

static int read_schedule(ht_arena *a, const char *text, size_t n, ht_err *e)
{
    ht_sched_scope s;
    ht_buf b;
    HT_TRY(ht_sched_scope_parse(a, text, n, &s, e));
    must(ht_sched_scope_differs(&s, &s) == NULL);
    ht_buf_init(&b, 0);
    must(ht_sched_scope_write(&s, &b, e) == 0 && b.n <= n);
    ht_buf_done(&b);
    return 0;
}

static int read_index(ht_arena *a, const char *text, size_t n, ht_err *e)
{
    ht_index x;
    ht_buf b;
    const ht_highwater none = {0};
    HT_TRY(ht_index_parse(a, text, n, &x, e));
    ht_buf_init(&b, 0);
    must(ht_index_write(&x, &b, e) == 0 && b.n <= n);
    (void)!!ht_index_check(&x, &none, 1795900000, e);
    ht_buf_done(&b);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ht_arena *a;
    ht_err e = {0};
    ht_policy policy;
    ht_highwater high;
    ht_json **lines;
    size_t n;
    int rc = 0;
    if (size == 0 || ht_arena_new(&a, (size_t)256 << 20, &e)) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 5) {
    case 0: /* no text is a scope of both kinds */
        rc = read_scope(a, text, size - 1, &e);
        if (rc) rc = read_schedule(a, text, size - 1, &e);
        break;
    case 1: rc = ht_policy_parse(a, text, size - 1, &policy, &e); break;
    case 2: rc = ht_journal_check(a, text, size - 1, true, &lines, &n, &e); break;
    case 3: rc = read_index(a, text, size - 1, &e); break;
    default: rc = ht_highwater_parse(a, text, size - 1, &high, &e); break;
    }
    must(rc == 0 || (e.code == rc && e.msg[0]));
    ht_arena_free(a);
    return 0;
}
