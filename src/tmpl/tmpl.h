/* tmpl.h - chat templates: an engine for the measured subset of Jinja (import-rules.md 6) with
 * Python's semantics where they show. Limits on steps, depth and output. A construct outside the
 * subset is HT_EUNSUPPORTED with line and column, never another template. */
#ifndef HT_TMPL_H
#define HT_TMPL_H
#include "core/json.h"

typedef struct ht_tmpl ht_tmpl;                        /* parsed, immutable: any thread           */
typedef struct { const char *p; size_t n; bool from_input; } ht_tmpl_seg;
typedef struct {
    const ht_json *messages, *tools, *documents;       /* tools, documents NULL: none             */
    const ht_json *kwargs;                             /* object of extra variables, or NULL      */
    const char *bos, *eos;
    int64_t now_unix;                                  /* for strftime_now (UTC)                  */
    bool add_generation_prompt;
    uint64_t max_steps; size_t max_output;             /* 0: 10 million steps, 64 MiB             */
} ht_tmpl_args;
HT_MUST_USE int ht_tmpl_parse(ht_tmpl **, const char *source, size_t n, ht_err *);
void ht_tmpl_free(ht_tmpl *);
/* Append the text to out; segs (may be NULL) receives *n_segs runs covering it, in the arena:
 * from_input marks bytes that stem from message contents, tool results and kwargs. Their p points
 * into out->p as it is on return. A raise_exception() is HT_EARG with the template's own text. */
HT_MUST_USE int ht_tmpl_render(const ht_tmpl *, const ht_tmpl_args *, ht_arena *, ht_buf *out,
                               ht_tmpl_seg **segs, size_t *n_segs, ht_err *);
#endif
