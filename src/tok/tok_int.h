/* tok_int.h - the normal form of a vocabulary and what the files of src/tok share. */
#ifndef HT_TOK_INT_H
#define HT_TOK_INT_H
#include "tok/split.h"
#include "tok/tok.h"

/* As in GGUF; stored in blobs. */
enum tok_type {
    TOK_NORMAL = 1,
    TOK_UNKNOWN,
    TOK_CONTROL,
    TOK_USER, /* matched in any text, before merging */
    TOK_UNUSED,
    TOK_BYTE
};
/* ht_vocab.flags; stored in blobs. */
enum tok_flag {
    TOK_F_SPM = 1,
    TOK_F_NFC = 2,
    TOK_F_IGNORE_MERGES = 4, /* a word that is a token is taken whole */
    TOK_F_ADD_BOS = 8,
    TOK_F_ADD_EOS = 16,
    TOK_F_PREFIX_FIRST = 32,   /* a space before the text */
    TOK_F_PREFIX_ALWAYS = 64,  /* a space before every piece between special tokens */
    TOK_F_PREFIX_ABSENT = 128, /* ... only where the piece does not begin with one */
    TOK_F_SQUEEZE = 256,       /* SPM: trim spaces, runs of them become one */
    TOK_F_ALL = 511
};
/* ht_vocab.added; stored in blobs. */
enum tok_option {
    TOK_A_LSTRIP = 1,
    TOK_A_RSTRIP = 2,
    TOK_A_WORD = 4,
    TOK_A_NORMALIZED = 8, /* matched after NFC; kept only where the model normalises */
    TOK_A_ALL = 15
};
enum {
    TOK_MAX_TOKENS = 1 << 22,
    TOK_MAX_MERGES = 1 << 23,
    TOK_MAX_TEXT = 65535,
    TOK_MAX_INPUT = 1 << 30
};
#define TOK_NO_RANK   UINT32_MAX
#define TOK_MAX_PIECE ((size_t)INT32_MAX) /* bytes after normalisation: positions are 32 bits */
#define TOK_SPM_SPACE "\xe2\x96\x81"      /* U+2581 stands for a space in SPM texts */

typedef struct {
    const char *s;
    size_t n;
} tok_text;

typedef struct {
    enum tok_stage_kind kind;
    tok_text pattern; /* TOK_ST_RX* */
    tok_rx *rx;
} tok_stage;

/* Candidates of special-token matching, sorted by text: those starting with byte b are
 * id[first[b] .. first[b+1]). */
typedef struct {
    uint32_t *id, n, first[257];
} tok_specials;

struct ht_vocab {
    ht_arena *arena;
    uint32_t n, n_merges, n_eog, flags;
    int32_t bos, eos, unk; /* -1: none; unk matters to SPM only, and to BPE lacking bytes */
    tok_text *text;        /* [n] stored form: byte-mapped for BPE, U+2581 for SPM */
    uint8_t *type, *added; /* [n] */
    uint32_t (*merge)[2];  /* [n_merges] BPE: ids, best first */
    uint32_t *merge_out;   /* [n_merges] id of the joined text; TOK_NO_RANK: not applied */
    uint32_t *rank;        /* [n] SPM: order in which a text is joined; TOK_NO_RANK: never */
    int32_t *eog;          /* [n_eog] ascending */
    tok_stage stage[TOK_MAX_STAGES];
    unsigned n_stages;
    const char *pre_name;
    /* derived */
    uint32_t *text_tab, text_mask; /* open addressing: id + 1 */
    uint32_t *pair_tab, pair_mask; /* merge + 1 */
    uint32_t max_text;             /* longest text */
    bool duplicates;               /* two tokens have one text */
    char *cat;                     /* [max_text] scratch while building */
    int32_t byte_id[256];          /* BPE: token of a byte; SPM: its fallback; -1: none */
    tok_specials raw, norm;
    uint8_t sha[32];
};

/* ---- build.c: importers fill text, type, added, flags, ids, stages in order ---- */
HT_MUST_USE int tok__new(ht_tok **, uint32_t n, ht_err *);        /* arrays of n, all ids -1 */
HT_MUST_USE int tok__index(ht_tok *, ht_err *);                   /* texts checked, text_tab made */
int32_t tok__find_joined(const ht_tok *, tok_text a, tok_text b); /* uses t->cat */
HT_MUST_USE int tok__finish(ht_tok *, ht_err *); /* everything else, then the digest */
HT_MUST_USE int tok__derive(ht_tok *, ht_err *); /* tables only; for blob.c */
HT_MUST_USE int tok__alloc_merges(ht_tok *, size_t n, ht_err *);
/* EOG set: the ids given (others are dropped) and the tokens of the table of texts. */
HT_MUST_USE int tok__set_eog(ht_tok *, const int64_t *ids, size_t n, ht_err *);
/* SPM: ranks from scores (GGUF); equal scores keep equal rank. */
HT_MUST_USE int tok__rank_scores(ht_tok *, const double *score, ht_err *);
bool tok__byte_text(tok_text, uint8_t *byte); /* "<0xNN>" */

/* ---- importers, blob ---- */
HT_MUST_USE int tok__from_hf(ht_tok **, const ht_json *tokenizer, const ht_json *tokenizer_config,
                             const ht_json *config, const ht_json *generation, const char *pre,
                             ht_err *);

/* ---- pre.c: names ---- */
/* Stages, NFC and ignore_merges of a tokenizer.ggml.pre name; *add_bos: its default. */
HT_MUST_USE int tok__pre_by_name(ht_tok *, const char *name, size_t n, bool *add_bos, ht_err *);
const char *tok__pre_name(const ht_tok *);
HT_MUST_USE int tok__add_stage(ht_tok *, enum tok_stage_kind, tok_text pattern, ht_err *);
/* The hand-written kind of a pattern, or rx (TOK_ST_RX, TOK_ST_RX_DROP) as given. */
enum tok_stage_kind tok__stage_of_pattern(const char *s, size_t n, enum tok_stage_kind rx);

/* ---- bytes.c: GPT-2's map of bytes to printable code points ---- */
uint32_t tok__byte_to_cp(uint8_t);
int tok__cp_to_byte(uint32_t cp); /* -1: not in the map */

/* ---- merge.c: joining the symbols of one piece ---- */
typedef struct {
    uint32_t id, len; /* BPE: token; SPM: start in the text, length in bytes; len 0: joined away */
    uint32_t prev, next;
} tok_sym;
typedef struct {
    uint64_t key; /* rank << 32 | position: best rank first, then leftmost */
    uint32_t len; /* SPM: bytes of the joined text, to see that the entry is still meant */
} tok_join;
typedef struct {
    tok_sym *sym;
    size_t n_sym, cap_sym;
    tok_join *heap;
    size_t n_heap, cap_heap;
    uint64_t ops; /* heap pushes and pops so far */
} tok_merger;
void tok__merger_done(tok_merger *);
uint32_t *tok__pair_slot(const ht_tok *, uint32_t a, uint32_t b);
HT_MUST_USE int tok__bpe(const ht_tok *, tok_merger *, const char *s, size_t n, ht_ids *, ht_err *);
HT_MUST_USE int tok__spm(const ht_tok *, tok_merger *, const char *s, size_t n, ht_ids *, ht_err *);

/* ---- nfc.c ---- */
typedef struct {
    ht_buf out; /* the result; the caller sets its maximum */
    int32_t *cp, *tmp;
    size_t cap_cp, cap_tmp;
} tok_nfc;
bool tok__needs_nfc(const char *s, size_t n); /* quick check: false means it is in NFC */
HT_MUST_USE int tok__nfc(tok_nfc *, const char *s, size_t n, ht_err *);
void tok__nfc_done(tok_nfc *);

/* ---- special.c ---- */
/* Longest candidate at s[0..n) that is of type USER, or any type when it fits in n_control bytes;
 * its length, 0: none. */
size_t tok__special_at(const ht_tok *, const tok_specials *, const char *s, size_t n,
                       size_t n_control, uint32_t *id);
HT_MUST_USE int tok__special_index(ht_tok *, ht_err *);

/* ht_tok_encode_segments that also counts heap operations (ops may be NULL). */
HT_MUST_USE int tok__encode(const ht_tok *, const ht_segment *, size_t n, unsigned flags, ht_ids *,
                            uint64_t *ops, ht_err *);
#endif
