/* arch.c - the table of architectures, and the names that tensors have in each kind of file. Adding
 * an architecture of a known kind is one family file and one line here. */
#include "model/priv.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
#define FAMILIES(X)                                                                                \
    X(llama)                                                                                       \
    X(mistral)                                                                                     \
    X(mixtral)                                                                                     \
    X(smollm3)                                                                                     \
    X(qwen2)                                                                                       \
    X(qwen2moe)                                                                                    \
    X(qwen3)                                                                                       \
    X(qwen3moe)                                                                                    \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(gemma3_vl)                                                                                   \
    X(phi3)
/* clang-format on */
#define DECLARE(name) extern const model__family model__##name;
FAMILIES(DECLARE)
#define ENTRY(name) &model__##name,
static const model__family *const families[] = {FAMILIES(ENTRY) NULL};

/* GGUF names are the same for all families. '#' stands for the layer, '@' for the expert. */
static const char *const gguf_name[MODEL__ROLES] = {
    [MODEL__EMBED] = "token_embd.weight",
    [MODEL__HEAD] = "output.weight",
    [MODEL__FINAL_NORM] = "output_norm.weight",
    [MODEL__ATTN_NORM] = "blk.#.attn_norm.weight",
    [MODEL__FFN_NORM] = "blk.#.ffn_norm.weight",
    [MODEL__POST_ATTN] = "blk.#.post_attention_norm.weight",
    [MODEL__POST_FFN] = "blk.#.post_ffw_norm.weight",
    [MODEL__Q_NORM] = "blk.#.attn_q_norm.weight",
    [MODEL__K_NORM] = "blk.#.attn_k_norm.weight",
    [MODEL__Q_BIAS] = "blk.#.attn_q.bias",
    [MODEL__K_BIAS] = "blk.#.attn_k.bias",
    [MODEL__V_BIAS] = "blk.#.attn_v.bias",
    [MODEL__Q] = "blk.#.attn_q.weight",
    [MODEL__K] = "blk.#.attn_k.weight",
    [MODEL__V] = "blk.#.attn_v.weight",
    [MODEL__O] = "blk.#.attn_output.weight",
    [MODEL__QKV] = "blk.#.attn_qkv.weight",
    [MODEL__GATE] = "blk.#.ffn_gate.weight",
    [MODEL__UP] = "blk.#.ffn_up.weight",
    [MODEL__DOWN] = "blk.#.ffn_down.weight",
    [MODEL__GATE_UP] = "blk.#.ffn_up.weight", /* phi3: gate rows, then up rows */
    [MODEL__ROUTER] = "blk.#.ffn_gate_inp.weight",
    [MODEL__E_GATE] = "blk.#.ffn_gate_exps.weight",
    [MODEL__E_UP] = "blk.#.ffn_up_exps.weight",
    [MODEL__E_DOWN] = "blk.#.ffn_down_exps.weight",
    [MODEL__X_GATE] = "blk.#.ffn_gate.@.weight",
    [MODEL__X_UP] = "blk.#.ffn_up.@.weight",
    [MODEL__X_DOWN] = "blk.#.ffn_down.@.weight",
    [MODEL__S_GATE] = "blk.#.ffn_gate_shexp.weight",
    [MODEL__S_UP] = "blk.#.ffn_up_shexp.weight",
    [MODEL__S_DOWN] = "blk.#.ffn_down_shexp.weight",
    [MODEL__S_ROUTER] = "blk.#.ffn_gate_inp_shexp.weight",
};

/* Hugging Face names, Llama's where families agree, behind the file's prefix. */
static const char *const hf_name[MODEL__ROLES] = {
    [MODEL__EMBED] = "embed_tokens.weight",
    [MODEL__HEAD] = "lm_head.weight",
    [MODEL__FINAL_NORM] = "norm.weight",
    [MODEL__ATTN_NORM] = "layers.#.input_layernorm.weight",
    [MODEL__FFN_NORM] = "layers.#.post_attention_layernorm.weight",
    [MODEL__Q_NORM] = "layers.#.self_attn.q_norm.weight",
    [MODEL__K_NORM] = "layers.#.self_attn.k_norm.weight",
    [MODEL__Q_BIAS] = "layers.#.self_attn.q_proj.bias",
    [MODEL__K_BIAS] = "layers.#.self_attn.k_proj.bias",
    [MODEL__V_BIAS] = "layers.#.self_attn.v_proj.bias",
    [MODEL__Q] = "layers.#.self_attn.q_proj.weight",
    [MODEL__K] = "layers.#.self_attn.k_proj.weight",
    [MODEL__V] = "layers.#.self_attn.v_proj.weight",
    [MODEL__O] = "layers.#.self_attn.o_proj.weight",
    [MODEL__QKV] = "layers.#.self_attn.qkv_proj.weight",
    [MODEL__GATE] = "layers.#.mlp.gate_proj.weight",
    [MODEL__UP] = "layers.#.mlp.up_proj.weight",
    [MODEL__DOWN] = "layers.#.mlp.down_proj.weight",
    [MODEL__GATE_UP] = "layers.#.mlp.gate_up_proj.weight",
    [MODEL__ROUTER] = "layers.#.mlp.gate.weight",
    [MODEL__E_GATE_UP] = "layers.#.mlp.experts.gate_up_proj",
    [MODEL__E_DOWN] = "layers.#.mlp.experts.down_proj",
    [MODEL__X_GATE] = "layers.#.mlp.experts.@.gate_proj.weight",
    [MODEL__X_UP] = "layers.#.mlp.experts.@.up_proj.weight",
    [MODEL__X_DOWN] = "layers.#.mlp.experts.@.down_proj.weight",
    [MODEL__S_GATE] = "layers.#.mlp.shared_expert.gate_proj.weight",
    [MODEL__S_UP] = "layers.#.mlp.shared_expert.up_proj.weight",
    [MODEL__S_DOWN] = "layers.#.mlp.shared_expert.down_proj.weight",
    [MODEL__S_ROUTER] = "layers.#.mlp.shared_expert_gate.weight",
};

/* Put numbers into a pattern; cut to the size of out (table names are far shorter). */
static void expand(const char *prefix, const char *pattern, uint32_t layer, uint32_t expert,
                   char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%s", prefix);
    for (const char *p = pattern; *p && n + 12 < cap; p++) {
        if (*p == '#' || *p == '@')
            n += (size_t)snprintf(out + n, cap - n, "%u", *p == '#' ? layer : expert);
        else out[n++] = *p;
    }
    out[n] = 0;
}

void model__normal_name(int role, uint32_t layer, char out[64])
{
    expand("", gguf_name[role], layer, 0, out, 64);
    size_t n = strlen(out), suffix = strlen(".weight");
    if (n > suffix && !strcmp(out + n - suffix, ".weight")) out[n - suffix] = 0;
}

static const char *hf_pattern(const model__in *in, int role)
{
    for (const model__name *o = in->fam->hf_names; o && o->name; o++)
        if (o->role == role) return o->name;
    return hf_name[role];
}

bool model__tensor_name(const model__in *in, int role, uint32_t layer, uint32_t expert,
                        char out[MODEL__NAME_MAX])
{
    const char *pattern = NULL, *prefix = "";
    switch (ht_file_kind(in->f)) {
    case HT_FILE_GGUF: pattern = gguf_name[role]; break;
    case HT_FILE_HF:
        pattern = hf_pattern(in, role);
        prefix = role == MODEL__HEAD ? in->head_prefix : in->prefix;
        break;
    case HT_FILE_PACK:
        if (!gguf_name[role]) return false;
        model__normal_name(role, layer, out);
        return true;
    case HT_FILE_TOKJSON: break;
    }
    if (!pattern) return false;
    expand(prefix, pattern, layer, expert, out, MODEL__NAME_MAX);
    return true;
}

const ht_tensor *model__find(const model__in *in, int role, uint32_t layer, uint32_t expert)
{
    char name[MODEL__NAME_MAX];
    return model__tensor_name(in, role, layer, expert, name) ? ht_file_find(in->f, name) : NULL;
}

/* "llama, qwen2, ..." without repeats: families of one arch differ in model_type only. */
static void list_names(bool gguf, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; families[i] && n + 1 < cap; i++) {
        const char *name = gguf ? families[i]->arch : families[i]->model_type;
        bool seen = false;
        for (size_t k = 0; k < i && gguf; k++) seen = seen || !strcmp(name, families[k]->arch);
        if (!seen) n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
    }
}

static int unknown(bool gguf, const char *name, size_t n, ht_err *e)
{
    char list[180];
    list_names(gguf, list, sizeof list);
    return HT_FAIL(e, HT_EUNSUPPORTED, "%s \"%.*s\" is not supported; supported: %s",
                   gguf ? "architecture" : "model_type", (int)(n < 40 ? n : 40), name, list);
}

static int identify_gguf(model__in *in, ht_err *e)
{
    const char *s;
    size_t n;
    HT_TRY(ht_file_meta_str(in->f, "general.architecture", true, &s, &n, e));
    for (size_t i = 0; families[i]; i++) {
        const char *a = families[i]->arch;
        if (families[i]->gguf && strlen(a) == n && !memcmp(a, s, n)) {
            in->fam = families[i];
            return 0;
        }
    }
    return unknown(true, s, n, e);
}

/* Where the text model's tensors hang: alone, or inside a model that also sees. */
static int find_prefix(model__in *in, ht_err *e)
{
    static const char *const known[][2] = {{"model.", ""},
                                           {"model.language_model.", ""},
                                           {"language_model.model.", "language_model."},
                                           {"", ""}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        in->prefix = known[i][0];
        in->head_prefix = known[i][1];
        if (model__find(in, MODEL__EMBED, 0, 0)) return 0;
    }
    return HT_FAIL(e, HT_EFORMAT,
                   "%s: no tensor model.embed_tokens.weight; are all safetensors files there?",
                   ht_file_path(in->f));
}

static int identify_hf(model__in *in, ht_err *e)
{
    const char *type;
    in->cfg = ht_file_config(in->f);
    if (!in->cfg)
        return HT_FAIL(e, HT_EFORMAT, "%s: no config.json; a model folder needs one",
                       ht_file_path(in->f));
    HT_TRY(ht_json_str(in->cfg, "model_type", NULL, &type, e));
    if (!type) return HT_FAIL(e, HT_EFORMAT, "config.json: model_type is missing");
    for (size_t i = 0; families[i]; i++)
        if (!strcmp(families[i]->model_type, type)) in->fam = families[i];
    if (!in->fam) return unknown(false, type, strlen(type), e);
    const ht_json *text = ht_json_get(in->cfg, "text_config");
    if (text && text->type == HT_JOBJ) in->cfg = text;
    return find_prefix(in, e);
}

int model__identify(model__in *in, const ht_file *f, ht_arena *arena, ht_err *e)
{
    memset(in, 0, sizeof *in);
    in->f = f;
    in->arena = arena;
    in->prefix = in->head_prefix = "";
    switch (ht_file_kind(f)) {
    case HT_FILE_GGUF: return identify_gguf(in, e);
    case HT_FILE_HF: return identify_hf(in, e);
    case HT_FILE_PACK: return 0;
    case HT_FILE_TOKJSON: break;
    }
    return HT_FAIL(e, HT_EUNSUPPORTED, "%s holds a tokenizer only; give a GGUF, a pack or a folder",
                   ht_file_path(f));
}
