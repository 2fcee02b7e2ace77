/* priv.h - what the readers of src/format share: the opened file, bounded reading, name tables.
 *
 * Headers are copied with pread and parsed from memory of our own; only tensor data is looked at
 * through the mapping. A file that shrinks while it is read therefore ends as an error here, never
 * as a signal (docs/pack.md, "Files that change"). */
#ifndef HT_FORMAT_PRIV_H
#define HT_FORMAT_PRIV_H
#include "core/arena.h"
#include "format/pack.h"

enum {
    FORMAT_MAX_PARTS = 4096,          /* shards of one model; each holds a file descriptor        */
    FORMAT_MAX_TENSORS = 1 << 20,     /* DeepSeek-V3 with split experts has about 47,000          */
    FORMAT_MAX_KEYS = 1 << 16,        /* GGUF files have about 40                                 */
    FORMAT_MAX_JSON = 128 << 20,      /* bytes of a JSON document; tokenizer.json has 11 MB       */
    FORMAT_MAX_TEMPLATE = 4 << 20,    /* bytes of a chat template; the longest known has 0.02 MB  */
    FORMAT_LABEL = 96,                /* room for a file's name in messages                       */
};
/* Trees and tables of one file. A byte of JSON can cost forty of tree; Qwen3's 11 MB take 51. */
#define FORMAT_MAX_ARENA ((size_t)2 << 30)

/* Names to positions, without duplicates: open addressing, at most half full. */
typedef struct {
    struct format__slot { const char *name; uint32_t n, at; } *slot; /* at: position + 1, 0: free */
    size_t mask;
} format__names;
/* Room for count names. false: no memory. */
bool format__names_init(format__names *, ht_arena *, size_t count);
/* false when the name is there already. The name is kept, not copied. */
bool format__names_add(format__names *, const char *name, size_t n, size_t at);
/* Position, or SIZE_MAX. */
size_t format__names_find(const format__names *, const char *name, size_t n);

/* Where a tensor's or blob's bytes lie. */
typedef struct { uint64_t offset; uint32_t part; } format__place;

/* Numbers or strings of a GGUF array; ht_meta.priv. */
typedef struct {
    const uint8_t *p;                 /* first element in the header copy                         */
    const uint8_t *const *str;        /* strings: each one's length prefix                        */
    uint8_t gguf_type;                /* of the elements                                          */
} format__array;

/* The parsed header of one GGUF file. */
typedef struct {
    uint8_t *copy;                    /* ht_mem: bytes [0, header) and a little more              */
    ht_arena *arena;
    size_t n_meta, n_tensors;
    const char **key;
    ht_meta *meta;
    format__names keys;
    ht_tensor *tensor;                /* data not yet set                                         */
    uint64_t *offset;                 /* of each tensor, from data_start                          */
    uint64_t data_start;
} format__gguf;

typedef struct {
    const char *name; const void *p; size_t n;
    const uint8_t *sha256; format__place at;
} format__blob;

struct ht_file {
    enum ht_file_kind kind;
    ht_arena *arena;
    const char *path;
    char label[FORMAT_LABEL];         /* the path, or its end, for messages                       */
    uint64_t bytes;
    ht_map *part; char (*part_label)[FORMAT_LABEL]; size_t n_parts, parts_cap;   /* ht_mem      */
    size_t n_tensors;
    ht_tensor *tensor; format__place *place;      /* [n_tensors]                                  */
    format__names names;              /* main representations                                     */
    format__gguf gguf;                /* first shard                                              */
    const ht_json *config, *generation_config, *tokenizer, *tokenizer_config, *header;
    const char *tmpl; size_t tmpl_n;
    format__blob *blob; size_t n_blobs;           /* pack                                         */
    const char **rep;                 /* pack: representation of each tensor                      */
    format__names reps;               /* pack: name NUL rep                                       */
    uint8_t pack_sha256[32];
    uint64_t pack_data;               /* pack: where the data section begins                      */
};

/* The little-endian number of k bytes at p, k <= 8. */
static inline uint64_t format__little(const uint8_t *p, unsigned k)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < k; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}
/* Where the next item of a pack begins. */
static inline uint64_t format__pack_align(uint64_t v)
{
    return (v + HT_PACK_ALIGN - 1) / HT_PACK_ALIGN * HT_PACK_ALIGN;
}
/* Name of a path for messages: all of it, or "..." and its end. */
void format__label(char out[FORMAT_LABEL], const char *path);
/* Exactly n bytes at offset; a shorter file is HT_EIO. */
HT_MUST_USE int format__pread(int fd, void *buf, size_t n, uint64_t offset, const char *label,
                              ht_err *);
/* Map one more part; its index is f->n_parts - 1. */
HT_MUST_USE int format__add_part(ht_file *, const char *path, ht_err *);
/* Room for n tensors in f->tensor, f->place and f->names. */
HT_MUST_USE int format__tensors(ht_file *, size_t n, ht_err *);
/* Bytes of a tensor: product of dims in blocks of its type and layout. Sets t->bytes; label and the
 * tensor's name are for the message. */
HT_MUST_USE int format__size(ht_tensor *, const char *label, ht_err *);
/* Every tensor's range lies in [0, end) and no two overlap; exact: nor is any byte left over.
 * Sorts. */
typedef struct { uint64_t offset, bytes; const char *name; } format__range;
HT_MUST_USE int format__ranges(format__range *, size_t n, uint64_t end, bool exact,
                               const char *label, ht_err *);
/* A name fit for a message: at most 63 bytes of it, unprintable ones as '?'. Used as show(..).s. */
typedef struct { char s[64]; } format__shown;
format__shown format__show(const char *name, size_t n);
/* Read and parse a JSON document of at most FORMAT_MAX_JSON bytes. */
HT_MUST_USE int format__json(ht_file *, const char *path, const ht_json **out, ht_err *);
/* Chat template of a tokenizer_config.json's tree: a string, or the "default" of a list. */
void format__template_of(const ht_json *tokenizer_config, const char **s, size_t *n);

HT_MUST_USE int format__open_gguf(ht_file *, const ht_file_opts *, ht_err *);
void format__gguf_done(format__gguf *);
/* Values that other code would divide by, allocate by or index by (import-rules.md 7). */
HT_MUST_USE int format__gguf_check(const ht_file *, ht_err *);
HT_MUST_USE int format__open_hf(ht_file *, const ht_file_opts *, ht_err *);
/* Files that are read from a Hugging Face folder beside its weights; NULL ends. */
extern const char *const format__hf_names[];
/* The checked header of a mapped safetensors file: an object of tensors, and where their data
 * begins. */
HT_MUST_USE int format__st_header(ht_file *, size_t part, const ht_json **header, uint64_t *data,
                                  ht_err *);
/* Append the header's tensors to f->tensor (room is the caller's business); n_tensors grows. */
HT_MUST_USE int format__st_tensors(ht_file *, size_t part, const ht_json *header, uint64_t data,
                                   ht_err *);
HT_MUST_USE int format__open_pack(ht_file *, ht_err *);
HT_MUST_USE int format__pack_digest(const uint8_t prefix[32], const void *header, size_t n,
                                    uint8_t out[32], ht_err *);
HT_MUST_USE int format__open_tokjson(ht_file *, ht_err *);
#endif
