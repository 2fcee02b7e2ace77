/* unicode.h - what the pre-tokenizers ask of a code point. Tables are generated (Unicode 16, the
 * version Hugging Face tokenizers' regex engine has); see tools/gen_unicode.py. */
#ifndef HT_TOK_UNICODE_H
#define HT_TOK_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General category, as coarse as the patterns need it. SPACE is White_Space (no U+180E). */
enum tok_class {
    UC_OTHER,
    UC_LU,
    UC_LL,
    UC_LT,
    UC_LM,
    UC_LO,
    UC_MARK,
    UC_ND,
    UC_NL,
    UC_NO,
    UC_PC,
    UC_PUNCT,
    UC_SYMBOL,
    UC_SPACE
};
/* Sets of classes, one bit each. */
#define UC_BIT(c) (1u << (c))
#define UC_L      (UC_BIT(UC_LU) | UC_BIT(UC_LL) | UC_BIT(UC_LT) | UC_BIT(UC_LM) | UC_BIT(UC_LO))
#define UC_M      UC_BIT(UC_MARK)
#define UC_N      (UC_BIT(UC_ND) | UC_BIT(UC_NL) | UC_BIT(UC_NO))
#define UC_S      UC_BIT(UC_SPACE)
#define UC_P      (UC_BIT(UC_PC) | UC_BIT(UC_PUNCT))
#define UC_WORD   (UC_L | UC_M | UC_BIT(UC_ND) | UC_BIT(UC_NL) | UC_BIT(UC_PC)) /* \w of regex  */

extern const uint32_t tok__uni_range[];
extern const uint16_t tok__uni_page[];
extern const uint8_t tok__uni_ascii[];

/* Bit of cp's class; a value past U+10FFFF is UC_OTHER. */
uint32_t tok__uni_bit(uint32_t cp);
/* False when text with this code point may need normalising (never a false "no"). */
bool tok__nfc_inert(uint32_t cp);

/* Decode at s[0..n), n > 0: length 1..4 and the class bit. A byte that begins no well-formed
 * sequence counts as one character of class OTHER with *cp = 0xFFFD. */
unsigned tok__next(const char *s, size_t n, uint32_t *cp, uint32_t *bit);
#endif
