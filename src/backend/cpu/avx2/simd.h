/* simd.h - the names of generic/simd.h on 8 lanes of AVX2, FMA and F16C. */
#ifndef HT_CPU_AVX2_SIMD_H
#define HT_CPU_AVX2_SIMD_H
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { VL = 8, NV = 2 };
#define INL static inline __attribute__((always_inline))
typedef __m256 vf;
typedef __m256i vi;

INL vf vf_set1(float a) { return _mm256_set1_ps(a); }
INL vf vf_zero(void) { return _mm256_setzero_ps(); }
INL vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INL void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INL vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INL vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INL vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INL vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INL vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INL vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INL vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INL vf vf_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INL void vf_put_f16(void *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INL vf vf_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* Walsh-Hadamard transform of the 8 lanes: stride s adds the neighbour at distance s, with the sign
 * of the upper one turned. */
INL vf vf_hadamard(vf a)
{
    const __m256 s1 = _mm256_setr_ps(0, -0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f);
    const __m256 s2 = _mm256_setr_ps(0, 0, -0.0f, -0.0f, 0, 0, -0.0f, -0.0f);
    const __m256 s4 = _mm256_setr_ps(0, 0, 0, 0, -0.0f, -0.0f, -0.0f, -0.0f);
    a = _mm256_add_ps(_mm256_permute_ps(a, 0xb1), _mm256_xor_ps(a, s1));
    a = _mm256_add_ps(_mm256_permute_ps(a, 0x4e), _mm256_xor_ps(a, s2));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, a, 1), _mm256_xor_ps(a, s4));
}
INL vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INL vi vi_set1(uint32_t a) { return _mm256_set1_epi32((int)a); }
INL vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INL vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INL vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
INL vi vi_srl(vi a, int n) { return _mm256_srli_epi32(a, n); }
INL vi vi_sll(vi a, int n) { return _mm256_slli_epi32(a, n); }
INL vf vf_of_vi(vi a) { return _mm256_cvtepi32_ps(a); }
INL vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
INL vi vi_bits(vf a) { return _mm256_castps_si256(a); }
#endif
