/* rng.c - Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011, section 3.3. Ten rounds of two 32x32 multiplications; the
 * key moves on by the golden ratio and sqrt(3)-1 each round. */
#include "core/rng.h"

void ht_philox(uint64_t seed, uint64_t counter, uint64_t stream, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53 * c0, p1 = (uint64_t)0xcd9e8d57 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double ht_uniform(uint64_t seed, uint64_t counter, uint64_t stream)
{
    uint32_t r[4];
    ht_philox(seed, counter, stream, r);
    /* 27 + 26 bits: every value is a multiple of 2^-53, so none rounds up to 1. */
    return ((double)(r[0] >> 5) * 67108864.0 + (double)(r[1] >> 6)) * 0x1p-53;
}
