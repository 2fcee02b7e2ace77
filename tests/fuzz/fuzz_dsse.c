/* fuzz_dsse.c - envelopes, trust roots, statements: any bytes end in an error that is told in
 * full; what is accepted signs and verifies again. */
#include "evid/verify.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void told(int rc, const ht_err *e)
{
    must(rc == 0 || (e->code == rc && e->msg[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ht_arena *a;
    ht_dsse d;
    ht_trust t;
    ht_err e = {0};
    const char *text = (const char *)data;
    if (ht_arena_new(&a, (size_t)256 << 20, &e)) return 0;
    int rc = ht_dsse_parse(a, text, size, &d, &e);
    told(rc, &e);
    if (rc == 0) {
        must(d.n_sigs > 0);
        const uint8_t none[HT_ED25519_PUB] = {1};
        for (size_t i = 0; i < d.n_sigs; i++) {
            bool good = true;
            must(!ht_dsse_good(&d, &d.sig[i], none, &good, &e) && !good);
        }
    }
    rc = ht_trust_parse(a, text, size, &t, &e);
    told(rc, &e);
    if (rc == 0) {
        ht_buf b;
        const ht_json *statement;
        ht_buf_init(&b, 0);
        must(ht_trust_write(&t, &b, &e) == 0);
        /* Roles listed twice or in another order are the one thing that the tree does not keep. */
        must(b.n <= size);
        must(ht_statement_open(a, text, size, &t, HT_ROLE_BENCH, HT_PRED_EVIDENCE, 0, &d,
                               &statement, &e) != 0);
        ht_buf_done(&b);
    }
    ht_arena_free(a);
    return 0;
}
