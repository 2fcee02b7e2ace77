/* rng.c - Philox4x32-10 against the known answers published with Random123 (kat_vectors). */
#include "core/rng.h"
#include "test.h"

T_CASE(rng, known_answers)
{
    static const struct {
        uint64_t seed, counter, stream;
        uint32_t want[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t got[4];
        ht_philox(kat[i].seed, kat[i].counter, kat[i].stream, got);
        T_EQ_MEM(got, kat[i].want, sizeof got);
    }
}

T_CASE(rng, uniform_range_and_moments)
{
    double sum = 0, square = 0, least = 1, most = 0;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        double u = ht_uniform(42, i, 3);
        T_CHECK(u >= 0 && u < 1, "draw %d is %g", (int)i, u);
        T_TRUE(ht_uniform(42, i, 3) - u == 0); /* no state */
        sum += u;
        square += u * u;
        if (u < least) least = u;
        if (u > most) most = u;
    }
    /* Five standard deviations of the mean of N uniform draws, and of their squares. */
    T_NEAR(sum / N, 0.5, 5 * sqrt(1.0 / 12 / N));
    T_NEAR(square / N, 1.0 / 3, 5 * sqrt(4.0 / 45 / N));
    T_TRUE(least < 1e-3 && most > 1 - 1e-3);
}

T_CASE(rng, every_input_matters)
{
    uint32_t a[4], b[4];
    ht_philox(1, 2, 3, a);
    for (int bit = 0; bit < 64; bit++)
        for (int which = 0; which < 3; which++) {
            uint64_t in[3] = {1, 2, 3};
            in[which] ^= (uint64_t)1 << bit;
            ht_philox(in[0], in[1], in[2], b);
            int flips = 0;
            for (int k = 0; k < 4; k++) flips += __builtin_popcount(a[k] ^ b[k]);
            T_CHECK(flips > 32 && flips < 96, "input %d bit %d flips %d of 128", which, bit, flips);
        }
}
