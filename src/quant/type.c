/* type.c - the table of tensor types and layouts: names, GGUF numbers, block shapes, codecs. */
#include "quant/blocks.h"
#include <string.h>

#define ROW(name, ggml, block, bytes, t)                                                           \
    {                                                                                              \
        name, ggml, block, bytes, quant__dec_##t, quant__enc_##t                                   \
    }
const ht_type_info ht_types[HT_TYPES] = {
    [HT_F32] = ROW("f32", 0, 1, 4, f32),
    [HT_F16] = ROW("f16", 1, 1, 2, f16),
    [HT_BF16] = ROW("bf16", 30, 1, 2, bf16),
    [HT_Q8_0] = ROW("q8_0", 8, 32, sizeof(ht_block_q8_0), q8_0),
    [HT_Q4_0] = ROW("q4_0", 2, 32, sizeof(ht_block_q4_0), q4_0),
    [HT_Q4_1] = ROW("q4_1", 3, 32, sizeof(ht_block_q4_1), q4_1),
    [HT_Q5_0] = ROW("q5_0", 6, 32, sizeof(ht_block_q5_0), q5_0),
    [HT_Q5_1] = ROW("q5_1", 7, 32, sizeof(ht_block_q5_1), q5_1),
    [HT_Q2_K] = ROW("q2_k", 10, 256, sizeof(ht_block_q2_k), q2_k),
    [HT_Q3_K] = ROW("q3_k", 11, 256, sizeof(ht_block_q3_k), q3_k),
    [HT_Q4_K] = ROW("q4_k", 12, 256, sizeof(ht_block_q4_k), q4_k),
    [HT_Q5_K] = ROW("q5_k", 13, 256, sizeof(ht_block_q5_k), q5_k),
    [HT_Q6_K] = ROW("q6_k", 14, 256, sizeof(ht_block_q6_k), q6_k),
    [HT_IQ4_NL] = ROW("iq4_nl", 20, 32, sizeof(ht_block_iq4_nl), iq4_nl),
    [HT_MXFP4] = ROW("mxfp4", 39, 32, sizeof(ht_block_mxfp4), mxfp4),
    [HT_I32] = {"i32", 26, 1, 4, quant__dec_i32, NULL},
};
#undef ROW

/* Every number GGUF has given to a type, for messages about the ones this build cannot read. */
static const char *const ggml_names[] = {
    [0] = "F32",
    [1] = "F16",
    [2] = "Q4_0",
    [3] = "Q4_1",
    [4] = "Q4_2 (withdrawn)",
    [6] = "Q5_0",
    [7] = "Q5_1",
    [8] = "Q8_0",
    [9] = "Q8_1",
    [5] = "Q4_3 (withdrawn)",
    [10] = "Q2_K",
    [11] = "Q3_K",
    [12] = "Q4_K",
    [13] = "Q5_K",
    [14] = "Q6_K",
    [15] = "Q8_K",
    [16] = "IQ2_XXS",
    [17] = "IQ2_XS",
    [18] = "IQ3_XXS",
    [19] = "IQ1_S",
    [20] = "IQ4_NL",
    [21] = "IQ3_S",
    [22] = "IQ2_S",
    [23] = "IQ4_XS",
    [24] = "I8",
    [25] = "I16",
    [26] = "I32",
    [27] = "I64",
    [28] = "F64",
    [29] = "IQ1_M",
    [30] = "BF16",
    [31] = "Q4_0_4_4 (withdrawn)",
    [32] = "Q4_0_4_8 (withdrawn)",
    [33] = "Q4_0_8_8 (withdrawn)",
    [34] = "TQ1_0",
    [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4 (withdrawn)",
    [37] = "IQ4_NL_4_8 (withdrawn)",
    [38] = "IQ4_NL_8_8 (withdrawn)",
    [39] = "MXFP4",
    [40] = "NVFP4",
    [41] = "Q1_0",
    [42] = "Q2_0",
};

static const char *const layout_names[HT_LAYOUTS] = {
    [HT_LAYOUT_ROWS] = "rows/1",
    [HT_LAYOUT_R16] = "r16/1",
};

const ht_type_info *ht_type_of(int type)
{
    return type >= 0 && type < HT_TYPES ? &ht_types[type] : NULL;
}

int ht_type_by_name(const char *name)
{
    for (int t = 0; name && t < HT_TYPES; t++)
        if (!strcmp(ht_types[t].name, name)) return t;
    return -1;
}

int ht_type_by_ggml(uint32_t ggml)
{
    for (int t = 0; t < HT_TYPES; t++)
        if (ht_types[t].ggml == ggml) return t;
    return -1;
}

const char *ht_ggml_name(uint32_t ggml)
{
    if (ggml < sizeof ggml_names / sizeof *ggml_names && ggml_names[ggml]) return ggml_names[ggml];
    return "of a number unknown to this build";
}

const char *ht_layout_name(int layout, int type)
{
    if (layout == HT_LAYOUT_R16 && type == HT_Q6_K) return "r16/2";
    return layout >= 0 && layout < HT_LAYOUTS ? layout_names[layout] : "unknown";
}

int ht_layout_by_name(const char *name, int type)
{
    for (int l = 0; name && l < HT_LAYOUTS; l++)
        if (!strcmp(ht_layout_name(l, type), name)) return l;
    return -1;
}

bool ht_row_bytes(int type, uint64_t cols, uint64_t *out)
{
    const ht_type_info *t = ht_type_of(type);
    if (!t || cols % t->block) return false;
    if (cols / t->block > UINT64_MAX / t->bytes) return false;
    *out = cols / t->block * t->bytes;
    return true;
}
