/* measure.c - the measuring kernels: that they ran, on what, and that limits are kept. Never how
 * fast. */
#include "core/measure.h"
#include "core/cpu.h"
#include "test.h"

T_CASE(measure, reads_the_buffer_it_reports)
{
    ht_read_rate r;
    ht_err e;
    static const char *const isa[] = {"generic", "avx2", NULL};
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < 3; i++) {
            T_OK(ht_measure_read(threads, 1 << 20, isa[i], &r, &e), e);
            T_EQ_INT(r.bytes, 1 << 20);
            T_CHECK(r.bytes_per_s > 0 && isfinite(r.bytes_per_s), "%g bytes/s", r.bytes_per_s);
            T_CHECK(r.kernel && *r.kernel, "no kernel named");
        }
    T_OK(ht_measure_read(2, 1, NULL, &r, &e), e);
    T_EQ_INT(r.bytes,
             2 * 65536); /* one unit for each thread                                        */
    T_ERR(ht_measure_read(0, 1, NULL, &r, &e), HT_EARG, e, "0 threads");
}

T_CASE(measure, multiply_adds_on_the_named_set)
{
    ht_fma_rate r;
    ht_err e;
    T_OK(ht_measure_fma(1, "generic", &r, &e), e);
    T_EQ_STR(r.isa, "generic");
    T_CHECK(r.flops_per_s > 0 && isfinite(r.flops_per_s), "%g flop/s", r.flops_per_s);
    T_OK(ht_measure_fma(2, NULL, &r, &e), e);
    if (ht_cpu_features() & HT_CPU_AVX2) T_CHECK(strcmp(r.isa, "generic") != 0, "%s", r.isa);
    T_ERR(ht_measure_fma(-1, NULL, &r, &e), HT_EARG, e, "-1 threads");
}

T_CASE(measure, products_of_bytes_on_the_named_set)
{
    ht_int8_rate r;
    ht_err e;
    const unsigned feat = ht_cpu_features();
    static const char *const isa[] = {"generic", "avx2", NULL};
    for (size_t i = 0; i < 3; i++) {
        T_OK(ht_measure_int8(2, isa[i], &r, &e), e);
        T_CHECK(r.ops_per_s > 0 && isfinite(r.ops_per_s), "%g op/s", r.ops_per_s);
        const bool vnni = !isa[i] && (feat & HT_CPU_AVX512) && (feat & HT_CPU_VNNI);
        const bool avx2 = i > 0 && !vnni && (feat & HT_CPU_AVX2);
        T_EQ_STR(r.isa, vnni ? "avx512+vnni" : avx2 ? "avx2" : "generic");
        T_CHECK((r.summed_ops_per_s > 0) == avx2, "%s: %g op/s", r.isa, r.summed_ops_per_s);
    }
    T_ERR(ht_measure_int8(0, NULL, &r, &e), HT_EARG, e, "0 threads");
}

T_CASE(measure, pace_adds_up_windows)
{
    ht_pace *p;
    ht_err e;
    for (int reads = 0; reads < 2; reads++) {
        T_OK(ht_pace_new(&p, 2, reads ? 1 << 20 : 0, NULL, &e), e);
        ht_pace_rates none = ht_pace_get(p);
        T_CHECK(none.windows == 0 && none.bytes_per_s == 0 && none.flops_per_s == 0,
                "nothing was measured yet");
        ht_pace_take(p);
        ht_pace_take(p);
        ht_pace_rates r = ht_pace_get(p);
        T_EQ_INT(r.windows, 2);
        T_CHECK((r.bytes_per_s > 0) == reads && (r.flops_per_s > 0) == !reads,
                "%g bytes/s, %g flop/s", r.bytes_per_s, r.flops_per_s);
        ht_pace_free(p);
    }
    T_ERR(ht_pace_new(&p, 0, 0, NULL, &e), HT_EARG, e, "0 threads");
    T_CHECK(!p, "nothing to free after an error");
    ht_pace_free(NULL);
}
