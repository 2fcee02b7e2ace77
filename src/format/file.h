/* file.h - one view of a model on disk: named tensors with dtype, shape and bytes, plus the
 * metadata of its kind. Kinds: GGUF v2/v3 (one file or -00001-of-N shards), a Hugging Face folder
 * (config.json + safetensors), a HeteroPack (.htpack), a lone tokenizer.json. Parsing never trusts
 * a length: import-rules.md 7 is the checklist. Data stays mapped until close. */
#ifndef HT_FORMAT_FILE_H
#define HT_FORMAT_FILE_H
#include "core/json.h"
#include "core/map.h"
#include "quant/quant.h"

enum ht_file_kind { HT_FILE_GGUF, HT_FILE_HF, HT_FILE_PACK, HT_FILE_TOKJSON };
typedef struct {
    const char *name;                /* as in the file                                            */
    uint8_t type, layout, n_dims;    /* enum ht_type, enum ht_layout                              */
    uint64_t dim[4];                 /* slowest first: a matrix is [rows, cols]; unused = 1       */
    const void *data; uint64_t bytes;
    const uint8_t *sha256;           /* [32] when the pack states it, else NULL                   */
} ht_tensor;
typedef struct ht_file ht_file;

typedef struct {
    int vocab_only;                  /* 1: tensors are not looked at (a GGUF may have none)       */
} ht_file_opts;
/* opts may be NULL. */
HT_MUST_USE int ht_file_open(ht_file **, const char *path, const ht_file_opts *opts, ht_err *);
void ht_file_close(ht_file *);
/* HT_EIO when a part has another size than when it was opened, or was found cut short under
 * ht_map_guard(): to be asked before a pass over weights and after one whose result counts. */
HT_MUST_USE int ht_file_unchanged(const ht_file *, ht_err *);
enum ht_file_kind ht_file_kind(const ht_file *);
const char *ht_file_path(const ht_file *);
uint64_t ht_file_bytes(const ht_file *);               /* on disk, all parts                      */
size_t ht_file_n_parts(const ht_file *);
/* Mapped parts: GGUF shards, safetensors files, the pack, the lone tokenizer.json. */
const ht_map *ht_file_part(const ht_file *, size_t i);
size_t ht_file_n_tensors(const ht_file *);
const ht_tensor *ht_file_tensor(const ht_file *, size_t i);            /* file order              */
const ht_tensor *ht_file_find(const ht_file *, const char *name);      /* NULL: none; hashed      */

/* ---- GGUF metadata: NULL/false on other kinds or absent keys ---- */
enum ht_meta_type { HT_META_U64, HT_META_I64, HT_META_F64, HT_META_BOOL, HT_META_STR, HT_META_ARR };
typedef struct {
    uint8_t type;                    /* enum ht_meta_type; file widths are widened                */
    uint8_t elem;                    /* HT_META_ARR: type of the elements                         */
    uint64_t u; int64_t i; double f; bool b;
    const char *s; size_t n;         /* HT_META_STR: bytes, not NUL-terminated ; HT_META_ARR: n   */
    const void *priv;                /* array storage; use the accessors                          */
} ht_meta;
const ht_meta *ht_file_meta(const ht_file *, const char *key);
size_t ht_file_n_meta(const ht_file *);
const ht_meta *ht_file_meta_at(const ht_file *, size_t i, const char **key);
/* Array element i, checked; false on wrong type or range. */
bool ht_meta_arr_str(const ht_meta *, size_t i, const char **s, size_t *n);
bool ht_meta_arr_i64(const ht_meta *, size_t i, int64_t *);
bool ht_meta_arr_f64(const ht_meta *, size_t i, double *);
/* Typed reads for required and optional keys (a `%s.` prefix is the caller's business). Wrong type
 * is an error naming the key; absent gives def, or an error when required. */
HT_MUST_USE int ht_file_meta_u32(const ht_file *, const char *key, bool required, uint32_t def,
                                 uint32_t *out, ht_err *);
HT_MUST_USE int ht_file_meta_f32(const ht_file *, const char *key, bool required, float def,
                                 float *out, ht_err *);
HT_MUST_USE int ht_file_meta_str(const ht_file *, const char *key, bool required, const char **s,
                                 size_t *n, ht_err *);

/* ---- Hugging Face folder: parsed documents, NULL when the folder lacks them ---- */
const ht_json *ht_file_config(const ht_file *);               /* config.json                      */
const ht_json *ht_file_generation_config(const ht_file *);
const ht_json *ht_file_tokenizer(const ht_file *);            /* tokenizer.json                   */
const ht_json *ht_file_tokenizer_config(const ht_file *);
/* Chat template text of any kind of file (GGUF key, chat_template.jinja, tokenizer_config.json,
 * pack); NULL when there is none. *n its length. */
const char *ht_file_template(const ht_file *, size_t *n);

/* ---- pack: header and named blobs ("tokenizer", "template") ---- */
const ht_json *ht_file_header(const ht_file *);
const void *ht_file_blob(const ht_file *, const char *name, size_t *n);
/* The pack's own digest, over its header, which holds those of all items; NULL on other kinds. */
const uint8_t *ht_file_sha256(const ht_file *);
/* Read everything once. Pack: every item's SHA-256, the header's, and that padding is zero; hex_out
 * is ht_file_sha256. Others: hex_out is the SHA-256 of the parts, one after another. All kinds:
 * weights stored by rows are finite numbers. Reads with pread: a file cut short is an error. */
HT_MUST_USE int ht_file_verify(const ht_file *, ht_progress_fn, void *user, char hex_out[65],
                               ht_err *);
#endif
