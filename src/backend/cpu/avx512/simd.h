/* simd.h - the names of generic/simd.h on 16 lanes of AVX-512 F. */
#ifndef HT_CPU_AVX512_SIMD_H
#define HT_CPU_AVX512_SIMD_H
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { VL = 16, NV = 1 };
#define INL static inline __attribute__((always_inline))
typedef __m512 vf;
typedef __m512i vi;

INL vf vf_set1(float a) { return _mm512_set1_ps(a); }
INL vf vf_zero(void) { return _mm512_setzero_ps(); }
INL vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INL void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INL vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INL vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INL vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INL vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INL vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INL vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INL vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INL vf vf_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INL void vf_put_f16(void *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INL vf vf_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Walsh-Hadamard transform of the 16 lanes; avx2/simd.h says how. */
INL vf vf_negate(vf a, __mmask16 where)
{
    __m512i b = _mm512_castps_si512(a);
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(b, where, b, _mm512_set1_epi32(INT32_MIN)));
}
INL vf vf_hadamard(vf a)
{
    a = _mm512_add_ps(_mm512_permute_ps(a, 0xb1), vf_negate(a, 0xaaaa));
    a = _mm512_add_ps(_mm512_permute_ps(a, 0x4e), vf_negate(a, 0xcccc));
    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, a, 0xb1), vf_negate(a, 0xf0f0));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, a, 0x4e), vf_negate(a, 0xff00));
}
INL vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INL vi vi_set1(uint32_t a) { return _mm512_set1_epi32((int)a); }
INL vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INL vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INL vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INL vi vi_srl(vi a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
INL vi vi_sll(vi a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
INL vf vf_of_vi(vi a) { return _mm512_cvtepi32_ps(a); }
INL vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
INL vi vi_bits(vf a) { return _mm512_castps_si512(a); }
#endif
