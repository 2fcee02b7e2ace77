/* body_q8.h - what the kernels of --act q8 share that are written by hand for an instruction set;
 * included once by each, which defines INL. */
#include "backend/cpu/unroll.h"

/* Bytes that weights are asked for before their use: decoding fills the core's window. */
enum { AHEAD = 8192 };

/* Ask for the bytes of a group of 32 columns that come AHEAD of group g. */
INL void fetch(const int type, const uint8_t *w, uint32_t g)
{
    const uint32_t bytes = type == HT_Q8_0   ? 544
                           : type == HT_Q4_1 ? 320
                           : type == HT_Q6_K ? 420
                                             : 288;
    const uint8_t *p = w + (size_t)g * bytes + AHEAD;
    UNROLL(9)
    for (uint32_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}
