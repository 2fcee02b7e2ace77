/* tok.h - text to token ids and back: byte-level BPE and SPM, special tokens, end-of-generation
 * set. Built from GGUF keys, tokenizer.json or a pack's blob into one normal form, whose bytes
 * (ht_tok_save) are equal whichever source they came from. Immutable once made: any thread. */
#ifndef HT_TOK_H
#define HT_TOK_H
#include "core/arena.h"
#include "core/buf.h"
#include "format/file.h"

typedef struct ht_vocab ht_tok; /* hetero.h's name for the same object */
/* pre_override: NULL, or a tokenizer.ggml.pre name. An unknown pre-tokenizer is HT_EUNSUPPORTED. */
HT_MUST_USE int ht_tok_from_file(ht_tok **, const ht_file *, const char *pre_override, ht_err *);
/* From a pack's blob; HT_EFORMAT for anything that ht_tok_save would not have written. */
HT_MUST_USE int ht_tok_load(ht_tok **, const void *blob, size_t n, ht_err *);
HT_MUST_USE int ht_tok_save(const ht_tok *, ht_buf *, ht_err *);
void ht_tok_free(ht_tok *);

uint32_t ht_tok_size(const ht_tok *);
const char *ht_tok_pre(const ht_tok *);                         /* "qwen2", "spm", ... */
int32_t ht_tok_bos(const ht_tok *), ht_tok_eos(const ht_tok *); /* -1: none */
bool ht_tok_add_bos(const ht_tok *), ht_tok_add_eos(const ht_tok *);
bool ht_tok_is_eog(const ht_tok *, int32_t id);
bool ht_tok_is_special(const ht_tok *, int32_t id); /* control or unknown */
size_t ht_tok_eog(const ht_tok *, const int32_t **ids);
/* The token's stored text, for listings ("Ġthe", "<|im_end|>"). */
const char *ht_tok_text(const ht_tok *, int32_t id, size_t *n);
int32_t ht_tok_find(const ht_tok *, const char *text, size_t n); /* -1: none */
/* The bytes a token stands for; special tokens give their text when special, else nothing. */
HT_MUST_USE int ht_tok_bytes(const ht_tok *, int32_t id, bool special, ht_buf *out, ht_err *);
/* The same for a whole text: SPM's space before the first word is taken away; bytes as they are. */
HT_MUST_USE int ht_tok_decode(const ht_tok *, const int32_t *ids, size_t n, bool special,
                              ht_buf *out, ht_err *);
uint8_t const *ht_tok_sha256(const ht_tok *); /* [32] of the saved form */

/* Zero to start; ht_ids_done frees. */
typedef struct {
    int32_t *id;
    size_t n, cap;
} ht_ids;
void ht_ids_done(ht_ids *);
HT_MUST_USE int ht_ids_push(ht_ids *, int32_t, ht_err *);
/* Append the tokens of text. flags: HT_TOK_SPECIAL, HT_TOK_BOS (hetero.h). */
HT_MUST_USE int ht_tok_encode(const ht_tok *, const char *text, size_t n, unsigned flags,
                              ht_ids *out, ht_err *);
/* A rendered chat: pieces whose text came from the template (special tokens recognised) or from the
 * user (never). Equal to encoding the whole, except that user text cannot become a control token.
 * */
typedef struct {
    const char *p;
    size_t n;
    bool from_input;
} ht_segment;
HT_MUST_USE int ht_tok_encode_segments(const ht_tok *, const ht_segment *, size_t n, unsigned flags,
                                       ht_ids *out, ht_err *);

/* Streaming: feed ids, take text in whole code points; a code point split over tokens is held.
 * Malformed bytes come as U+FFFD. Set `started` after init when the ids continue a text: else SPM's
 * leading space is taken away. Nothing is allocated while out has
 * room. */
typedef struct {
    char held[16];
    size_t n_held;
    bool special, started;
} ht_detok;
void ht_detok_init(ht_detok *, bool special);
HT_MUST_USE int ht_detok_push(ht_detok *, const ht_tok *, int32_t id, ht_buf *out, ht_err *);
void ht_detok_flush(ht_detok *, ht_buf *out); /* what is held, malformed as U+FFFD */
#endif
