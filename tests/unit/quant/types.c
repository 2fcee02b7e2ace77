/* types.c - the type table, half precision and the activation quantiser. */
#include "quant/blocks.h"
#include "test.h"

T_CASE(types, table)
{
    for (int t = 0; t < HT_TYPES; t++) {
        const ht_type_info *i = ht_type_of(t);
        T_CHECK(i && i->name && i->decode, "type %d has no row", t);
        T_EQ_INT(ht_type_by_name(i->name), t);
        T_EQ_INT(ht_type_by_ggml(i->ggml), t);
        T_CHECK(strncmp(ht_ggml_name(i->ggml), "of a", 4) != 0, "%s has no GGUF name", i->name);
    }
    T_CHECK(!ht_type_of(-1) && !ht_type_of(HT_TYPES), "out of range");
    T_EQ_INT(ht_type_by_name("q9_9"), -1);
    T_EQ_INT(ht_type_by_name(NULL), -1);
    T_EQ_INT(ht_type_by_ggml(16), -1);
    T_EQ_STR(ht_ggml_name(16), "IQ2_XXS");
    T_EQ_STR(ht_ggml_name(4000000000u), "of a number unknown to this build");
    T_EQ_INT(ht_layout_by_name("r16/1", HT_Q4_K), HT_LAYOUT_R16);
    T_EQ_INT(ht_layout_by_name("r16/2", HT_Q4_K), -1);
    /* The bytes of q6_k have moved: a pack of the first order must not be read as the second. */
    T_EQ_INT(ht_layout_by_name("r16/1", HT_Q6_K), -1);
    T_EQ_INT(ht_layout_by_name("r16/2", HT_Q6_K), HT_LAYOUT_R16);
    T_EQ_INT(ht_layout_by_name("rows/1", HT_Q6_K), HT_LAYOUT_ROWS);
    T_EQ_STR(ht_layout_name(HT_LAYOUT_ROWS, HT_F32), "rows/1");
    T_EQ_STR(ht_layout_name(HT_LAYOUT_R16, HT_Q6_K), "r16/2");
}

T_CASE(types, row_bytes)
{
    uint64_t n = 0;
    T_CHECK(ht_row_bytes(HT_Q4_K, 512, &n) && n == 288, "q4_k: %llu", (unsigned long long)n);
    T_CHECK(ht_row_bytes(HT_F32, 3, &n) && n == 12, "f32");
    T_CHECK(!ht_row_bytes(HT_Q4_K, 576, &n), "576 is no multiple of 256");
    T_CHECK(!ht_row_bytes(HT_F32, UINT64_MAX / 2, &n), "overflow");
    T_CHECK(!ht_row_bytes(HT_TYPES, 32, &n), "no such type");
    T_CHECK(ht_row_bytes(HT_Q8_0, 0, &n) && n == 0, "empty row");
}

/* Every half, against its definition by exponent and fraction, and back. */
T_CASE(half, all_halves)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        float f = ht_f16_to_f32((uint16_t)h);
        if (e == 31) {
            T_CHECK(m ? isnan(f) : isinf(f), "half %04x is %a", h, (double)f);
            T_EQ_INT(ht_f32_to_f16(f) | (m ? 0x200 : 0), h | (m ? 0x200u : 0));
            continue;
        }
        double want = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        T_CHECK((double)f == (h & 0x8000 ? -want : want), "half %04x is %a", h, (double)f);
        T_CHECK(!signbit(f) == !(h & 0x8000), "sign of half %04x", h);
        T_EQ_INT(ht_f32_to_f16(f), h);
    }
}

/* Between every two neighbouring halves: the middle goes to the even one, and the floats beside the
 * middle to their own side. The step after the largest half leads to infinity. */
T_CASE(half, rounding)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float lo = ht_f16_to_f32((uint16_t)h);
        float hi = h == 0x7bff ? 65536.0f : ht_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)(((double)lo + (double)hi) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        T_EQ_INT(ht_f32_to_f16(mid), even);
        T_EQ_INT(ht_f32_to_f16(nextafterf(mid, 0)), h);
        T_EQ_INT(ht_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        T_EQ_INT(ht_f32_to_f16(-mid), even | 0x8000);
    }
    T_EQ_INT(ht_f32_to_f16(1e-45f), 0);
    T_EQ_INT(ht_f32_to_f16(-0.0f), 0x8000);
    T_EQ_INT(ht_f32_to_f16(3.4e38f), 0x7c00);
}

T_CASE(half, bf16)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = ht_bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            T_EQ_INT(ht_f32_to_bf16(f), h | 64);
            continue;
        }
        T_EQ_INT(ht_f32_to_bf16(f), h);
    }
    T_EQ_INT(ht_f32_to_bf16(ht_bits_f32(0x3f808000)), 0x3f80); /* tie to even, down */
    T_EQ_INT(ht_f32_to_bf16(ht_bits_f32(0x3f818000)), 0x3f82); /* tie to even, up */
    T_EQ_INT(ht_f32_to_bf16(ht_bits_f32(0x3f808001)), 0x3f81);
    T_EQ_INT(ht_f32_to_bf16(ht_bits_f32(0x7f7fffff)), 0x7f80);
    T_CHECK(isnan(ht_bf16_to_f32(ht_f32_to_bf16(ht_bits_f32(0x7f800001)))), "NaN kept");
}

T_CASE(act, q8)
{
    float x[96] = {0}, d[3];
    int8_t q[96];
    int32_t sum[3];
    for (int i = 0; i < 32; i++) x[i] = (float)(i - 16) * 0.5f;
    x[0] = -127;                                 /* scale exactly 1: ties show */
    for (int i = 64; i < 96; i++) x[i] = 1e-44f; /* no reciprocal */
    ht_act_q8(x, 96, q, d, sum);
    T_CHECK(d[0] == 1.0f && d[1] == 0 && d[2] == 0, "scales %g %g %g", (double)d[0], (double)d[1],
            (double)d[2]);
    int32_t total = 0;
    for (int i = 0; i < 32; i++) {
        T_EQ_INT(q[i], (int)nearbyintf(x[i]));
        total += q[i];
    }
    T_EQ_INT(sum[0], total);
    T_EQ_INT(sum[1], 0);
    for (int i = 32; i < 96; i++) T_EQ_INT(q[i], 0);
}

T_CASE(act, q8_error)
{
    float x[1024], d[32];
    int8_t q[1024];
    int32_t sum[32];
    uint64_t seed = 9;
    for (int i = 0; i < 1024; i++) x[i] = t_randf(&seed) * (float)(1 + i / 32);
    ht_act_q8(x, 1024, q, d, sum);
    for (int i = 0; i < 1024; i++) {
        double back = (double)d[i / 32] * q[i];
        T_NEAR(back, x[i], (double)d[i / 32] * 0.5001);
        T_CHECK(q[i] >= -127, "q[%d] = %d", i, q[i]);
    }
}
