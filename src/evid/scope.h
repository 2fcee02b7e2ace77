/* scope.h - the exact thing a route is admitted for (evidence.md 7.4): phase, bucket, batch,
 * context, digests of pack, tokenizer, template, binary and assets, precision, sampler class,
 * machine, OS. Two scopes are the same when their canonical bytes are; there is no nearest and no
 * wildcard. */
#ifndef HT_EVID_SCOPE_H
#define HT_EVID_SCOPE_H
#include "core/buf.h"
#include "core/hash.h"
#include "core/json.h"

/* Two that a plan has, and complete compute: a prompt and its max_new tokens, which is measured and
 * judged like them and is no route by itself. */
enum ht_phase { HT_PREFILL, HT_DECODE, HT_PHASES, HT_COMPLETE = HT_PHASES };
typedef struct {
    uint8_t phase;                   /* enum ht_phase                                             */
    /* Closed interval: prompt tokens, or context length at the first decoded token (decode). */
    uint32_t min_tokens, max_tokens;
    uint32_t max_new;                /* decode: largest number of new tokens; complete: exactly so
                                        many; prefill: 0                                          */
    uint32_t batch_min, batch_max, ctx_max;
    const char *acc, *act, *kv, *weights;              /* precision                               */
    const char *sampler;             /* "greedy" or "sampled"                                     */
    const char *spec;                /* "off", or the speculation in force                        */
    const char *backend;
    const char *model_sha, *tok_sha, *tmpl_sha, *binary_sha, *assets_sha;  /* 64 hex digits       */
    const char *class_sha;           /* machine class                                             */
    const char *instance;            /* "hmac:..."                                                */
    const char *os;                  /* "linux-6"                                                 */
} ht_scope;
const char *ht_phase_name(int phase);                  /* "prefill"                               */
/* Canonical bytes, appended; HT_EARG when a member is missing. */
HT_MUST_USE int ht_scope_write(const ht_scope *, ht_buf *out, ht_err *);
HT_MUST_USE int ht_scope_parse(ht_arena *, const char *text, size_t n, ht_scope *out, ht_err *);
HT_MUST_USE int ht_scope_sha256(const ht_scope *, char hex[HT_SHA256_HEX], ht_err *);
/* The member in which two scopes differ first, buckets apart, in the order a user can act on:
 * "model", "tokenizer", "template", "precision", "sampler", "spec", "backend", "binary", "assets",
 * "machine", "instance", "os"; NULL when they agree. */
const char *ht_scope_differs(const ht_scope *, const ht_scope *);
#endif
