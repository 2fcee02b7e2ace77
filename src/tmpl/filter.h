/* filter.h - what filter.c, seqfilter.c and method.c share: argument helpers and the sequence
 * filters that filter.c's table names. */
#ifndef HT_TMPL_FILTER_H
#define HT_TMPL_FILTER_H
#include "tmpl/eval.h"

bool tmpl__given(tval);                                   /* not TV_MISSING                       */
/* Truth of an optional argument; `dflt` when it is not given. */
HT_MUST_USE int tmpl__flag(tctx *, tval, bool dflt, bool *out);
/* An optional integer argument; another type is an error that names `what`. */
HT_MUST_USE int tmpl__int_arg(tctx *, tval, const char *what, int64_t dflt, int64_t *out);

typedef int tmpl__filter_fn(tctx *, tval self, const tcall *, const tval *p, tval *out);
tmpl__filter_fn tmpl__f_dictsort, tmpl__f_first, tmpl__f_items, tmpl__f_join, tmpl__f_last,
    tmpl__f_list, tmpl__f_map, tmpl__f_max, tmpl__f_min, tmpl__f_reject, tmpl__f_rejectattr,
    tmpl__f_reverse, tmpl__f_select, tmpl__f_selectattr, tmpl__f_sort, tmpl__f_sum, tmpl__f_unique;
#endif
