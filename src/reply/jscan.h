/* jscan.h - JSON checked byte by byte as it comes (RFC 8259 without the checks of UTF-8 and of
 * surrogates, which parsing the whole makes): has what came so far begun as a value? */
#ifndef HT_REPLY_JSCAN_H
#define HT_REPLY_JSCAN_H
#include <stdbool.h>
#include <stdint.h>

enum { JSCAN_DEPTH = 63 };
enum jscan_result { JSCAN_MORE, JSCAN_DONE, JSCAN_BAD };
typedef struct {
    uint64_t is_object; /* bit d: the container at depth d is an object */
    uint8_t depth;      /* containers open */
    uint8_t state, left;
    const char *word; /* rest of true, false, null */
} jscan;
/* Zero to start: expects an object or an array. DONE at its closing bracket; feed no more then. */
enum jscan_result reply__jscan_byte(jscan *, char c);
#endif
