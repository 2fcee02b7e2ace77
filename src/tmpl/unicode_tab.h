/* unicode_tab.h - shape of the generated tables in unicode_tab.c; unicode.c reads them. */
#ifndef HT_TMPL_UNICODE_TAB_H
#define HT_TMPL_UNICODE_TAB_H
#include <stdint.h>

typedef struct { uint32_t lo, hi, step; int32_t delta; } tmpl__caserange;   /* every step-th cp   */
typedef struct { uint32_t cp, to[3]; } tmpl__casefull;                     /* zero-ended          */
typedef struct { uint32_t lo, hi; } tmpl__cprange;
extern const tmpl__caserange tmpl__upper[], tmpl__lower[], tmpl__title[];
extern const unsigned tmpl__n_upper, tmpl__n_lower, tmpl__n_title;
extern const tmpl__casefull tmpl__upper_full[], tmpl__lower_full[], tmpl__title_full[];
extern const unsigned tmpl__n_upper_full, tmpl__n_lower_full, tmpl__n_title_full;
extern const tmpl__cprange tmpl__unprintable[];                            /* from 0x80 on        */
extern const unsigned tmpl__n_unprintable;
#endif
