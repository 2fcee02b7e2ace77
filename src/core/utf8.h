/* utf8.h - decoding and checking of UTF-8 (RFC 3629: no surrogates, no overlongs). */
#ifndef HT_CORE_UTF8_H
#define HT_CORE_UTF8_H
#include <stddef.h>
#include <stdint.h>
/* Decode one code point from s[0..n); returns its length 1..4, or 0 when malformed or cut short
 * (*cp then 0xFFFD). */
unsigned ht_utf8_next(const char *s, size_t n, uint32_t *cp);
unsigned ht_utf8_put(uint32_t cp, char out[4]);        /* length 1..4                             */
size_t ht_utf8_valid(const char *s, size_t n);         /* length of the longest valid prefix      */
/* Length of the prefix that holds no cut-off code point at its end (malformed bytes count as
 * whole). */
size_t ht_utf8_whole(const char *s, size_t n);
#endif
