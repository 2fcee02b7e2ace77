/* err.h - how library code fails: fill the caller's ht_err (hetero.h) and return the negative code.
 * Only the layer that knows the facts writes the text; upper layers pass it through. */
#ifndef HT_CORE_ERR_H
#define HT_CORE_ERR_H
#include "hetero.h"

/* Fill *e (may be NULL) and return code. fmt is printf's; long messages are cut with "...". */
int ht_err_set(ht_err *e, int code, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define HT_STR2(x) #x
#define HT_STR(x) HT_STR2(x)
#define HT_FAIL(e, code, ...) ht_err_set((e), (code), __FILE__ ":" HT_STR(__LINE__), __VA_ARGS__)
/* Return the callee's code, its message already in place. */
#define HT_TRY(call)                                                                               \
    do {                                                                                           \
        int try_rc_ = (call);                                                                      \
        if (try_rc_) return try_rc_;                                                               \
    } while (0)
#endif
