/* split.c - a row's logits do not depend on what is computed beside it: tale-9m one token at a
 * time, in chunks of 5 and of 64, to the bit, on every backend but ref (whose own tests say so). */
#include "drive.h"

enum { TOKENS = 64, CTX = 256 };

/* Prompts: 50 where the hardware is quick, else a few. */
static void check_backend(const ht_backend *be, uint32_t prompts)
{
    static const uint32_t ubatch[] = {1, 5, 64};
    drive d[3];
    ht_err e = {0};
    for (int i = 0; i < 3; i++) {
        drive_params p = {
            .be = be, .ctx = CTX, .ubatch = ubatch[i], .type_k = HT_KV_F16, .type_v = HT_KV_F16};
        if (!drive_open(&d[i], "models/tale-9m-f16.gguf", &p)) return;
    }
    uint32_t vocab = d[0].model->spec.vocab, want[TOKENS];
    float *l[2] = {malloc(sizeof(float) * TOKENS * vocab), malloc(sizeof(float) * TOKENS * vocab)};
    int32_t ids[TOKENS];
    uint64_t seed = 5;
    for (uint32_t i = 0; i < TOKENS; i++) want[i] = i;
    for (uint32_t k = 0; k < prompts; k++) {
        for (uint32_t i = 0; i < TOKENS; i++) ids[i] = (int32_t)(t_rand(&seed) % vocab);
        for (int i = 0; i < 3; i++) {
            ht_seq *seq;
            T_OK(ht_seq_new(&seq, d[i].pool, CTX, &e), e);
            drive_eval(&d[i], seq, ids, TOKENS, want, TOKENS, false, l[i > 0]);
            ht_seq_free(seq);
            T_SOFT(i == 0 || !memcmp(l[0], l[1], sizeof(float) * TOKENS * vocab),
                   "%s: prompt %u in chunks of %u differs from token by token", be->name, k,
                   ubatch[i]);
        }
    }
    for (int i = 0; i < 3; i++) drive_close(&d[i]);
    free(l[0]);
    free(l[1]);
}

T_CASE_SECONDS(split, tale_9m_to_the_bit, 120)
{
    unsigned others = 0;
    for (size_t k = 0; ht_backends[k]; k++) {
        if (!strcmp(ht_backends[k]->name, "ref")) continue;
        others++;
        check_backend(ht_backends[k], strcmp(ht_backends[k]->name, "cpu") ? 50 : 2);
    }
    T_CHECK(others > 0, "a backend beside ref");
}
