/* bytes.c - GPT-2's byte-level alphabet: printable Latin-1 bytes are themselves, the other 68 are
 * the code points from U+0100 in byte order. */
#include "tok/tok_int.h"

uint32_t tok__byte_to_cp(uint8_t b)
{
    if (b <= 32) return 256u + b;
    if (b >= 127 && b <= 160) return 256u + 33u + (b - 127u);
    return b == 173 ? 256u + 67u : b;
}

int tok__cp_to_byte(uint32_t cp)
{
    if (cp < 256) return tok__byte_to_cp((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp < 256 + 33) return (int)(cp - 256);
    if (cp < 256 + 67) return (int)(cp - 256 - 33 + 127);
    return cp == 256 + 67 ? 173 : -1;
}
