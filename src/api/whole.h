/* whole.h - engines that run a whole prompt at a fixed number of rows (ht_backend.buckets): which
 * bucket a prompt takes, which of them memory allows, what runs instead when none can, and the cold
 * start. Such an engine never runs a part of a prompt, so nothing cached is kept in front of it. */
#ifndef HT_API_WHOLE_H
#define HT_API_WHOLE_H
#include "api/api.h"

/* Read ht_engine_params.graph, before devices are opened. settings NULL: none; strict: where they
 * do not say. */
HT_MUST_USE int api__whole_read(ht_engine *, const char *settings, bool strict, ht_err *);
/* Options for the device of such an engine: what was given for it, with a leading comma, or "". */
const char *api__whole_opts(const ht_engine *);
/* With devices open: pick the buckets that the memory budget admits, the peak of compiling one of
 * them included. ctx: what the caller asked for, or 0. HT_ENOMEM: not even one. */
HT_MUST_USE int api__whole_open(ht_engine *, uint32_t ctx, ht_err *);
/* With the context chosen: what no prompt whatever could run there under the engine's settings (KV
 * types, activations, eviction, stages of the model) is HT_EUNSUPPORTED here, and names it. */
HT_MUST_USE int api__whole_check(ht_engine *, ht_err *);
/* Ranges of activations for act=int8, from the text of calibrate=; nothing under other acts. */
HT_MUST_USE int api__whole_calibrate(ht_engine *, ht_err *);
/* The settings of a route's lane, before its device is opened; its buckets when it is. One
 * such engine at a time. */
HT_MUST_USE int api__whole_set(ht_engine *, const char *settings, ht_err *);
HT_MUST_USE int api__whole_lane(ht_engine *, const api__phase *prefill, ht_err *);
void api__whole_close(ht_engine *);
bool api__is_whole(const api__phase *);
/* Smallest admitted bucket of at least n rows within the context; 0: none. */
uint32_t api__whole_rows(const ht_engine *, uint32_t n);
/* The largest one, for arrays and pools; 0 without such an engine. */
uint32_t api__whole_most(const ht_engine *);
/* Bytes of the admitted buckets' plans beyond the one that the engine's estimate holds. */
uint64_t api__whole_extra(const ht_engine *);
/* Decide the prefill phase of a prompt of n tokens and up to `want` wanted rows: its plan is there
 * when this returns, or the phase is the reference's and says why. Under strict what fails is an
 * error instead. */
HT_MUST_USE int api__whole_choose(ht_engine *, uint32_t n, uint32_t want, ht_err *);
/* Let the reference run what such an engine does not: `reason` for the receipt. what not NULL:
 * under strict it is an error that it does not give `what`. */
HT_MUST_USE int api__whole_pass(ht_engine *, const char *reason, const char *what, ht_err *);
/* After a run of the session's prompt on such an engine failed with rc: may the prompt begin again
 * on the reference? Then the session's phases are set. */
bool api__whole_retry(ht_session *, int rc, const ht_err *);
uint8_t api__whole_act(const ht_engine *, int phase);  /* enum ht_act of what a phase runs        */
/* The decision of such a phase in a receipt; false: it has none of its own. */
bool api__whole_write(ht_jw *, const api__phase *);
/* "@AUTO approximate" behind an engine's name in a class, or "". */
void api__whole_class(const ht_engine *, const api__phase *, char *out, size_t cap);
/* Milliseconds that a cancel may take on a route of this backend: 50, or what --graph cancel=MS
 * said when the route was measured. 0: it is no engine of whole prompts. */
uint32_t api__whole_cancel(const ht_engine *, const char *backend);
void api__whole_info(ht_jw *, const ht_engine *);      /* a member "wholePrompt", or nothing      */
#endif
