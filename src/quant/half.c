/* half.c - float16 (IEEE 754 binary16) and bfloat16 to float32 and back, and the codecs of the
 * unblocked types. Results equal those of the F16C instructions, so that kernels may use either. */
#include "quant/blocks.h"

float ht_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) { /* infinity, or NaN made quiet with its payload kept */
        uint32_t quiet = mag > 0x7c00 ? 0x400000 : 0;
        return ht_bits_f32(sign | 0x7f800000 | (mag & 0x3ff) << 13 | quiet);
    }
    /* With the mantissa moved into place the value is short by the difference of the exponent
     * biases, 127-15; multiplying by 2^112 is exact, for subnormal halves too. */
    return ht_bits_f32(sign | ht_f32_bits(ht_bits_f32(mag << 13) * 0x1p112f));
}

uint16_t ht_f32_to_f16(float f)
{
    uint32_t u = ht_f32_bits(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff, h;
    if (mag > 0x7f800000) {
        h = 0x7e00 | (mag >> 13 & 0x3ff);
    } else if (mag >= 0x47800000) { /* 65536 and more */
        h = 0x7c00;
    } else if (mag >= 0x38800000) { /* 2^-14 and more: rebias, round; 65520 carries into infinity */
        mag -= (uint32_t)112 << 23;
        h = (mag + 0xfff + (mag >> 13 & 1)) >> 13;
    } else { /* beside 0.5 a float's last place is 2^-24, the smallest half: the sum rounds */
        h = ht_f32_bits(ht_bits_f32(mag) + 0.5f) - 0x3f000000;
    }
    return (uint16_t)(sign | h);
}

float ht_bf16_to_f32(uint16_t h)
{
    return ht_bits_f32((uint32_t)h << 16);
}

uint16_t ht_f32_to_bf16(float f)
{
    uint32_t u = ht_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void quant__dec_f32(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}
void quant__enc_f32(const float *src, void *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}

void quant__dec_f16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++) dst[i] = ht_load_f16(p + 2 * i);
}

void quant__enc_f16(const float *src, void *dst, size_t n)
{
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i++) (void)ht_store_f16(p + 2 * i, src[i]);
}

void quant__dec_bf16(const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++)
        dst[i] = ht_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
}

void quant__enc_bf16(const float *src, void *dst, size_t n)
{
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = ht_f32_to_bf16(src[i]);
        p[2 * i] = (uint8_t)(h & 0xff);
        p[2 * i + 1] = (uint8_t)(h >> 8);
    }
}

void quant__dec_i32(const void *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, (const uint8_t *)src + 4 * i, sizeof v);
        dst[i] = (float)v;
    }
}
