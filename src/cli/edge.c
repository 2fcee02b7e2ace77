/* edge.c - what handing a prompt from one engine to another costs: the first step of decoding
 * behind the candidate's prefill against the same step behind the reference's own. K and V lie in
 * pages that both engines use, so nothing is copied; what is left is caches that hold other lines
 * and threads that were another engine's. */
#include "cli/edge.h"
#include "core/json.h"
#include <stdlib.h>

enum { REPEATS = 7 };

/* Nanoseconds of the step behind a prompt of n tokens. */
static int step_ns(ht_engine *engine, uint32_t n, uint64_t *ns, ht_err *e)
{
    ht_session *s;
    ht_sampling greedy;
    ht_gen_result r = {0};
    const uint32_t vocab = ht_vocab_size(ht_engine_vocab(engine));
    int32_t *ids = ht_mem_array(n, sizeof *ids);
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "hand-off: no memory for %u tokens", n);
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 7919 + 13) % vocab);
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = 2, .sampling = &greedy, .ignore_eos = 1, .no_prefix = 1};
    int rc = ht_session_new(&s, engine, e);
    if (!rc) {
        rc = ht_session_generate(s, ids, n, &p, &r, e);
        *ns = r.decode_ns;
        ht_gen_result_done(&r);
        ht_session_free(s);
    }
    ht_mem_free(ids);
    return rc;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median of what the step takes longer behind the candidate's prefill, 0 if it does not. */
static int extra_ns(ht_engine *ref, ht_engine *cand, uint32_t n, uint64_t *ns, ht_err *e)
{
    uint64_t t[2][REPEATS], first;
    ht_engine *const arm[2] = {ref, cand};
    for (int a = 0; a < 2; a++) HT_TRY(step_ns(arm[a], n, &first, e));
    for (int i = 0; i < REPEATS; i++)
        for (int k = 0; k < 2; k++) {
            const int a = (i + k) % 2;
            HT_TRY(step_ns(arm[a], n, &t[a][i], e));
        }
    for (int a = 0; a < 2; a++) qsort(t[a], REPEATS, sizeof t[a][0], by_size);
    const uint64_t own = t[0][REPEATS / 2], behind = t[1][REPEATS / 2];
    *ns = behind > own ? behind - own : 0;
    return 0;
}

int cli__edge_measure(const cli__edge *x, char **text, size_t *n, ht_err *e)
{
    uint64_t low = 0, high = 0;
    ht_buf b;
    ht_jw w;
    HT_TRY(extra_ns(x->ref, x->cand, x->min_tokens, &low, e));
    if (x->max_tokens > x->min_tokens) HT_TRY(extra_ns(x->ref, x->cand, x->max_tokens, &high, e));
    const uint64_t more = high > low ? high - low : 0, over = x->max_tokens - x->min_tokens;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "edges");
    ht_jw_arr(&w);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "fixedNs", low);
    ht_jw_kstr(&w, "from", x->from);
    ht_jw_kstr(&w, "kind", "kvHandoff");
    ht_jw_kuint(&w, "nsPerToken", over ? more / over + (more % over != 0) : 0);
    ht_jw_kstr(&w, "to", x->to);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "schema", "hetero/edges/1");
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "hand-off costs", e);
    if (!rc) *text = ht_buf_take(&b, n);
    ht_buf_done(&b);
    return rc;
}
