/* malformed.c - one crafted file per rule (tests/data/make_malformed.py): each is refused with the
 * code and the words given here, and the base files open. import-rules.md 7 is the checklist. */
#include "format/file.h"
#include "test.h"

typedef struct {
    const char *path;
    int code;
    const char *words;
} row;

static void check(const char *folder, const char *ext, const row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char path[256];
        ht_file *f = (ht_file *)1;
        ht_err e = {0};
        snprintf(path, sizeof path, "tests/data/malformed/%s/%s%s", folder, rows[i].path, ext);
        int rc = ht_file_open(&f, path, NULL, &e);
        T_SOFT(rc == rows[i].code, "%s: %d, want %d: %s", path, rc, rows[i].code, e.msg);
        if (rc == 0) {
            ht_file_close(f);
            continue;
        }
        T_SOFT(!f, "%s: a handle was left behind", path);
        T_SOFT(e.code == rc && e.where, "%s: the error is not filled in", path);
        T_SOFT(rows[i].words && strstr(e.msg, rows[i].words), "%s: message lacks \"%s\": %s", path,
               rows[i].words, e.msg);
        /* The message names the file (or, for a folder, the folder or a file in it). */
        T_SOFT(strstr(e.msg, rows[i].path) || strstr(e.msg, "..."), "%s: not named: %s", path,
               e.msg);
        ht_err none; /* the error is optional */
        memset(&none, 0, sizeof none);
        T_SOFT(ht_file_open(&f, path, NULL, NULL) == rc, "%s: another code without ht_err", path);
    }
}
#define CHECK(folder, ext, ...)                                                                    \
    do {                                                                                           \
        static const row rows[] = {__VA_ARGS__};                                                   \
        check(folder, ext, rows, sizeof rows / sizeof *rows);                                      \
    } while (0)

enum { FMT = HT_EFORMAT, UNS = HT_EUNSUPPORTED };

T_CASE(malformed, gguf_structure)
{
    CHECK("gguf", ".gguf", {"good_v3", 0, 0}, {"good_v2", 0, 0}, {"good_vocab_only", 0, 0},
          {"good_align_64", 0, 0}, {"magic_big_endian", UNS, "big-endian"},
          {"version_big_endian", UNS, "big-endian"},
          {"version_1", UNS, "GGUF version 1; 2 and 3 are read"},
          {"version_4", UNS, "GGUF version 4; 2 and 3 are read"},
          {"cut_magic", FMT, "ends inside the tensor count: 8 bytes wanted at offset 8 of 12"},
          {"cut_counts", FMT, "ends inside the key count"}, {"cut_key", FMT, "cannot hold"},
          {"cut_tensors", FMT, "ends inside a tensor's"},
          {"cut_before_data", FMT, "before its tensor data"},
          {"cut_data", FMT, "tensor y: bytes 32..+18 lie beyond the data of 32 bytes"},
          {"n_keys_huge", FMT, "says it has 1152921504606846976 keys"},
          {"n_tensors_huge", FMT, "says it has 1152921504606846976 tensors"},
          {"n_keys_more", FMT, "key 11 at offset 570 has 0 bytes"},
          {"key_empty", FMT, "key 0 at offset 24 has 0 bytes, 1 to 65535 are allowed"},
          {"key_long", FMT, "key 0 at offset 24 has 65536 bytes"},
          {"key_length_huge", FMT, "key 0 at offset 24 has 9223372036854775813 bytes"},
          {"key_binary", FMT, "key 0 at offset 24 holds byte 0x00"},
          {"key_twice", FMT, "key a.b occurs twice"},
          {"value_type", FMT, "key a.b: value of unknown type 13"},
          {"value_bool", FMT, "key a.b: a boolean has the value 2"},
          {"string_huge", FMT, "ends inside a string value: 4611686018427387904 bytes wanted"},
          {"array_huge", FMT, "key a.b: an array of 4611686018427387904 elements cannot fit"},
          {"array_strings_huge", FMT, "key a.b: an array of 2305843009213693952 elements"},
          {"array_string_cut", FMT, "ends inside a string of an array"},
          {"array_nested", UNS, "key a.b: arrays inside arrays"},
          {"array_type", FMT, "key a.b: array elements of unknown type 99"},
          {"array_bool", FMT, "key a.b: boolean 2 has the value 7"},
          {"align_zero", FMT, "general.alignment is 0, not a power of two from 8"},
          {"align_not_power", FMT, "general.alignment is 48, not a power of two"},
          {"align_small", FMT, "general.alignment is 4, not a power of two from 8"},
          {"align_large", FMT, "general.alignment is 2097152, not a power of two"},
          {"align_type", FMT, "general.alignment is not an unsigned integer"});
}

T_CASE(malformed, gguf_tensors)
{
    CHECK("gguf", ".gguf", {"dims_0", FMT, "tensor x: 0 dimensions, 1 to 4 are allowed"},
          {"dims_5", FMT, "tensor x: 5 dimensions, 1 to 4 are allowed"},
          {"dim_zero", FMT, "tensor x: dimension 0 is 0"},
          {"dim_overflow", FMT, "tensor x: the product of its dimensions overflows"},
          {"bytes_overflow", FMT, "tensor x: its size in bytes overflows"},
          {"row_block", FMT, "tensor y: rows of 33 elements, q4_0 needs a multiple of 32"},
          {"type_unsupported", UNS, "tensor blk.0.w: unsupported tensor type IQ2_XXS (16)"},
          {"type_unknown", UNS, "tensor x: unsupported tensor type of a number unknown"},
          {"offset_unaligned", FMT, "tensor x: offset 4 is no multiple of the alignment 32"},
          {"offset_outside", FMT, "tensor x: bytes 1099511627776..+32 lie beyond"},
          {"offset_end", FMT, "tensor x: bytes 64..+32 lie beyond the data of 64 bytes"},
          {"overlap", FMT, "tensor y at offset 32 overlaps x"},
          {"name_long", FMT, "the name of tensor 0 at offset 570 has 64 bytes, 1 to 63"},
          {"name_empty", FMT, "the name of tensor 0 at offset 570 has 0 bytes"},
          {"name_zero_byte", FMT, "the name of tensor 0 holds a zero byte"},
          {"name_twice", FMT, "tensor x occurs twice"});
}

T_CASE(malformed, gguf_values)
{
    CHECK("gguf", ".gguf", {"arch_type", FMT, "key general.architecture is not a string"},
          {"blocks_huge", FMT, "key llama.block_count is 1073741824, must be 1 to 1024"},
          {"blocks_zero", FMT, "key llama.block_count is 0, must be 1 to 1024"},
          {"blocks_string", FMT, "key llama.block_count is not an integer"},
          {"blocks_array", FMT, "key llama.block_count is an array, not one integer"},
          {"heads_zero", FMT, "key llama.attention.head_count is 0, must be 1 to 65536"},
          {"heads_huge", FMT, "key llama.attention.head_count is 1099511627776, must be"},
          {"heads_array_short", FMT, "llama.attention.head_count has 1 elements for 2 blocks"},
          {"heads_array_zero", FMT, "key llama.attention.head_count is 0, must be"},
          {"heads_array_float", FMT, "llama.attention.head_count: element 0 is not an integer"},
          {"kv_heads_zero", FMT, "key llama.attention.head_count_kv is 0"},
          {"experts_huge", FMT, "key llama.expert_count is 1048576, must be 0 to 4096"},
          {"experts_used", FMT, "key llama.expert_used_count is 9 of 8 experts"},
          {"tokens_type", FMT, "key tokenizer.ggml.tokens is not an array of strings"},
          {"scores_length", FMT, "key tokenizer.ggml.scores has 3 elements for 4 tokens"},
          {"scores_type", FMT, "key tokenizer.ggml.scores is not an array of real numbers"},
          {"token_type_length", FMT, "key tokenizer.ggml.token_type has 5 elements for 4"},
          {"token_type_type", FMT, "key tokenizer.ggml.token_type is not an array of integers"},
          {"merge_no_space", FMT, "tokenizer.ggml.merges: merge 0 (\"ab\") is not two tokens"},
          {"merge_type", FMT, "key tokenizer.ggml.merges is not an array of strings"},
          {"eos_range", FMT, "tokenizer.ggml.eos_token_id is 4, but there are 4 tokens"},
          {"eos_type", FMT, "key tokenizer.ggml.eos_token_id is not an integer"},
          {"split_name", FMT, "is not called ...-00001-of-00002.gguf"},
          {"split_count_huge", FMT, "split.count is 65535, at most 4096 parts"},
          {"split_not_first", HT_EARG, "is part 2 of 2; give the first part"},
          {"split_count_type", FMT, "key split.count is not a count"});
}

T_CASE(malformed, gguf_shards)
{
    CHECK("split", "-00001-of-00002.gguf", {"good", 0, 0},
          {"missing", HT_EIO, "missing-00002-of-00002.gguf: No such file"},
          {"number", FMT, "says split.no 0 of 2"}, {"count", FMT, "says split.no 1 of 3"},
          {"same_tensor", FMT, "00002-of-00002.gguf: tensor x occurs twice"},
          {"total_low", FMT, "more than the split.tensors.count 1 of the first"},
          {"total_high", FMT, "the parts hold 2 tensors, split.tensors.count says 3"});
}

T_CASE(malformed, safetensors)
{
    CHECK("safetensors", "/", {"good", 0, 0}, {"good_scalar", 0, 0},
          {"short", FMT, "has 3 bytes, too short for a safetensors file"},
          {"header_huge", FMT, "the header's length is given as 4611686018427387904"},
          {"header_beyond", FMT, "the header's length is given as 100000"},
          {"header_list", FMT, "header is not a JSON object"}, {"header_json", FMT, "line 1"},
          {"twice", FMT, "same key twice"}, {"no_dtype", FMT, "tensor a has no \"dtype\""},
          {"dtype_unsupported", UNS, "tensor a: unsupported tensor type F64"},
          {"shape_none", FMT, "tensor a: \"shape\" is not an array"},
          {"shape_negative", FMT, "tensor a: dimension 0 is not a count"},
          {"shape_real", FMT, "tensor a: dimension 0 is not a count"},
          {"shape_5", FMT, "tensor a: 5 dimensions"},
          {"shape_zero", FMT, "tensor a: dimension 0 is 0"},
          {"shape_overflow", FMT, "tensor a: the product of its dimensions overflows"},
          {"offsets_none", FMT, "tensor a: \"data_offsets\" are not begin and end"},
          {"offsets_back", FMT, "tensor a: \"data_offsets\" are not begin and end"},
          {"offsets_size", FMT, "tensor a: 12 bytes between its offsets, its shape needs 16"},
          {"offsets_beyond", FMT, "tensor a: bytes 0..+16 lie beyond the data of 12 bytes"},
          {"overlap", FMT, "tensor b at offset 8 overlaps a"},
          {"hole", FMT, "a hole of bytes before tensor b at offset 20"},
          {"trailing", FMT, "20 bytes of data, but the tensors end at 16"},
          {"unaligned", UNS, "its elements are not aligned"});
}

T_CASE(malformed, hf_folder)
{
    CHECK("hf", "", {"good", 0, 0}, {"good_sharded", 0, 0}, {"good_template_json", 0, 0},
          {"empty", HT_EFORMAT, "holds no config.json"},
          {"no_weights", UNS, "holds no model.safetensors and no model.safetensors.index.json"},
          {"pickle", UNS, "pytorch_model.bin is not read, convert it to safetensors"},
          {"config_broken", FMT, "line 1"},
          {"config_list", FMT, "config.json: is not a JSON object"},
          {"tokenizer_no_model", FMT, "its tokenizer.json has no \"model\""},
          {"index_no_map", FMT, "has no \"weight_map\""},
          {"index_path", FMT, "tensor a: the file is not a plain name in this folder"},
          {"index_missing_file", HT_EIO, "holds no three.safetensors, which the index names"},
          {"index_wrong_file", FMT, "tensor a is not in two.safetensors, where the index puts it"},
          {"index_missing_tensor", FMT, "tensor c is not in two.safetensors"},
          {"index_fewer", FMT, "names 1 tensors, the files hold 2"},
          {"index_tensor_twice", FMT, "tensor a occurs in two files"});
}

T_CASE(malformed, pack)
{
    CHECK("pack", ".htpack", {"good", 0, 0},
          {"version", UNS, "pack version 2; this program reads version 1"},
          {"reserved", FMT, "bytes 12 to 15 are not zero"},
          {"short", FMT, "has 40 bytes, too short for a pack"},
          {"cut", FMT, "it was not copied completely"},
          {"long", FMT, "the 64 behind its end are none of the pack"},
          {"header_length", FMT, "a header of 1099511627776 bytes in a file of"},
          {"digest", FMT, "the header does not have the SHA-256 stored at offset 32"},
          {"not_canonical", FMT, "line 1"}, {"format", FMT, "\"format\" is not \"heteropack\""},
          {"no_model", FMT, "no object \"model\""},
          {"extra_member", FMT, "the header has 5 members"},
          {"blobs_type", FMT, "\"blobs\" is not a list"},
          {"tensors_type", FMT, "\"tensors\" is not a list"},
          {"blob_twice", FMT, "blob template occurs twice"},
          {"name", FMT, "tensor 0 has no printable \"name\""},
          {"name_space", FMT, "tensor 0 has no printable \"name\""},
          {"member", FMT, "tensor w has 9 members, not 8"},
          {"sha256", FMT, "tensor w: \"sha256\" is not 64 hexadecimal digits"},
          {"offset_type", FMT, "tensor w: \"offset\" and \"bytes\" are not counts"},
          {"offset_overlap", FMT, "tensor n: offset 64, but the item before it ends at 128"},
          {"offset_hole", FMT, "tensor n: offset 256, but the item before it ends at 128"},
          {"bytes_beyond", FMT, "tensor w: 1099511627776 bytes at offset 192 lie beyond"},
          {"bytes_shape", FMT, "tensor w: 32 bytes, its shape needs 40"},
          {"type", UNS, "tensor w: unsupported tensor type q9_9"},
          {"layout", UNS,
           "layout tile/7 of f32; make the pack again with this version, or "
           "update hetero if a newer one made it"},
          {"layout_old", UNS, "tensor w: unsupported layout r16/1 of q6_k; make the pack again"},
          {"layout_vector", FMT, "tensor n: layout r16/1 needs rows and columns"},
          {"rep", FMT, "tensor w: \"type\", \"layout\" or \"rep\" is missing"},
          {"dims", FMT, "tensor w: \"dims\" is not a list of 1 to 4"},
          {"dims_zero", FMT, "tensor w: dimension 0 is no positive integer"},
          {"dims_overflow", FMT, "tensor w: the product of its dimensions overflows"},
          {"twice", FMT, "tensor w occurs twice in representation \"\""},
          {"rep_alone", FMT, "tensor q: representation \"q8\" of no main tensor"},
          {"trailing", FMT, "the items end at offset"});
}

T_CASE(malformed, tokenizer_json)
{
    CHECK("tokjson", ".json", {"good", 0, 0},
          {"no_model", FMT, "it has no \"model\" with a \"vocab\""},
          {"no_vocab", FMT, "it has no \"model\" with a \"vocab\""}, {"broken", FMT, "line 1"},
          {"cut", FMT, "line 1"}, {"twice", FMT, "same key twice"}, {"utf8", FMT, "UTF-8"},
          {"deep", FMT, "line 1"});
}

T_CASE(malformed, other)
{
    CHECK("other", "", {"text.txt", FMT, "is no GGUF, no HeteroPack and no tokenizer.json"},
          {"tiny", FMT, "too short for any model file"},
          {"one.safetensors", HT_EARG, "give the folder that holds it"},
          {"not-there", HT_EIO, "No such file"});
    ht_file *f;
    ht_err e = {0};
    T_ERR(ht_file_open(&f, "", NULL, &e), HT_EARG, e, "no path");
    T_ERR(ht_file_open(&f, NULL, NULL, &e), HT_EARG, e, "no path");
    T_ERR(ht_file_open(&f, "/dev/null", NULL, &e), HT_EIO, e, "regular file");
}

/* What opening does not read, verifying finds. */
static void check_verify(const char *path, int code, const char *words)
{
    ht_file *f;
    ht_err e = {0};
    char hex[65] = "";
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    int rc = ht_file_verify(f, NULL, NULL, hex, &e);
    T_CHECK(rc == code, "%s: %d: %s", path, rc, e.msg);
    T_CHECK(strstr(e.msg, words), "%s: %s", path, e.msg);
    ht_file_close(f);
}

T_CASE(malformed, verify)
{
    const char *dir = "tests/data/malformed";
    char path[128];
    static const row packs[] = {
        {"verify_tensor", FMT, "tensor w (offset"},
        {"verify_blob", FMT, "blob template (offset"},
        {"verify_padding", FMT, "the padding at offset"},
        {"verify_padding_end", FMT, "the padding at offset"},
    };
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++) {
        snprintf(path, sizeof path, "%s/pack/%s.htpack", dir, packs[i].path);
        check_verify(path, packs[i].code, packs[i].words);
    }
    snprintf(path, sizeof path, "%s/gguf/nan_value.gguf", dir);
    check_verify(path, FMT, "tensor x: element 7 is not a finite number");
    snprintf(path, sizeof path, "%s/gguf/inf_scale.gguf", dir);
    check_verify(path, FMT, "tensor y: element 0 is not a finite number");
}
