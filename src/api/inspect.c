/* inspect.c - a model file in facts, and what it would take to run it. Whatever can be read is
 * told: a file without weights still has a tokenizer, an unknown family still has tensors; the part
 * that cannot be told carries its error. */
#include "api/api.h"
#include "api/kvtype.h"
#include "backend/list.h"
#include <stdio.h>
#include <string.h>

/* One look at a file. model, tok NULL: their error says why. */
typedef struct {
    const ht_inspect_params *p;
    ht_arena *arena;
    ht_file *file;
    ht_model *model;
    ht_tok *tok;
    ht_err model_err, tok_err;
    ht_named *names;
    size_t n_names;
    api__kv kv;
} look;

static const char *kind_name(enum ht_file_kind k)
{
    switch (k) {
    case HT_FILE_GGUF: return "gguf";
    case HT_FILE_HF: return "huggingface";
    case HT_FILE_PACK: return "pack";
    case HT_FILE_TOKJSON: return "tokenizer.json";
    }
    return "?";
}

static void write_error(ht_jw *w, const ht_err *e)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "error", e->msg);
    ht_jw_kstr(w, "code", ht_code_name(e->code));
    ht_jw_end(w, '}');
}

static uint64_t elements(const ht_tensor *t)
{
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

/* Tensor types of the file with counts: [{"type","tensors","elements","bytes"}], in the table's
 * order. */
static void write_types(ht_jw *w, const ht_file *f)
{
    uint64_t count[HT_TYPES] = {0}, elems[HT_TYPES] = {0}, bytes[HT_TYPES] = {0};
    for (size_t i = 0; i < ht_file_n_tensors(f); i++) {
        const ht_tensor *t = ht_file_tensor(f, i);
        if (t->type >= HT_TYPES) continue;
        count[t->type]++;
        elems[t->type] += elements(t);
        bytes[t->type] += t->bytes;
    }
    ht_jw_arr(w);
    for (int i = 0; i < HT_TYPES; i++) {
        if (!count[i]) continue;
        ht_jw_obj(w);
        ht_jw_kstr(w, "type", ht_types[i].name);
        ht_jw_kuint(w, "tensors", count[i]);
        ht_jw_kuint(w, "elements", elems[i]);
        ht_jw_kuint(w, "bytes", bytes[i]);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

static void write_tensors(ht_jw *w, const ht_file *f)
{
    ht_jw_arr(w);
    for (size_t i = 0; i < ht_file_n_tensors(f); i++) {
        const ht_tensor *t = ht_file_tensor(f, i);
        ht_jw_obj(w);
        ht_jw_kstr(w, "name", t->name);
        ht_jw_kstr(w, "type", ht_types[t->type].name);
        ht_jw_kstr(w, "layout", ht_layout_name(t->layout, t->type));
        ht_jw_key(w, "shape");
        ht_jw_arr(w);
        for (int d = 0; d < t->n_dims; d++) ht_jw_uint(w, t->dim[d]);
        ht_jw_end(w, ']');
        ht_jw_kuint(w, "bytes", t->bytes);
        if (t->sha256) {
            char hex[HT_SHA256_HEX];
            ht_hex(t->sha256, HT_SHA256_BYTES, hex);
            ht_jw_kstr(w, "sha256", hex);
        }
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

void api__sizes_of(const ht_named *names, size_t n, api__sizes *out)
{
    *out = (api__sizes){0};
    for (size_t i = 0; i < n; i++) {
        const ht_weight *m = names[i].w;
        if (!m) {
            out->parameters += names[i].n;
            out->bytes += 4u * (uint64_t)names[i].n;
            out->f16_bytes +=
                4u * (uint64_t)names[i].n; /* norms and biases are F32 in every pack */
            continue;
        }
        const uint64_t e = (uint64_t)m->rows * m->cols * m->n_mats;
        out->parameters += e;
        out->bytes += m->bytes;
        out->f16_bytes += 2 * e;
        out->alt_bytes += m->alt ? m->alt->bytes : 0;
    }
}

static void write_model(ht_jw *w, look *k)
{
    const ht_model *m = k->model;
    api__sizes z;
    uint32_t n_proj = 0, n_quant = 0;
    const char *contract = ht_model_contract(m, &n_proj, &n_quant);
    api__sizes_of(k->names, k->n_names, &z);
    char text[40];
    (void)snprintf(text, sizeof text, "%u of %u", n_quant, n_proj);
    ht_jw_obj(w);
    ht_jw_kstr(w, "arch", m->spec.arch);
    ht_jw_kstr(w, "contract", contract);
    ht_jw_kuint(w, "parameters", z.parameters);
    ht_jw_kuint(w, "projections", n_proj);
    ht_jw_kuint(w, "quantised", n_quant);
    ht_jw_kstr(w, "quantisedText", text);
    ht_jw_kuint(w, "tensorBytes", z.bytes);
    ht_jw_kuint(w, "alternateBytes", z.alt_bytes);
    ht_jw_kuint(w, "f16Bytes", z.f16_bytes);
    ht_jw_kreal(w, "f16Ratio", z.bytes ? (double)z.f16_bytes / (double)z.bytes : 0);
    ht_jw_key(w, "representations");
    ht_jw_arr(w);
    for (int i = 0; i < 2; i++)
        if (m->rep[i][0]) ht_jw_str(w, m->rep[i]);
    ht_jw_end(w, ']');
    ht_jw_kstr(w, "layout", ht_layout_name(m->embed.layout, HT_F32));
    ht_jw_key(w, "spec");
    ht_spec_describe(&m->spec, w);
    ht_jw_end(w, '}');
}

/* What each bucket of the engines of whole prompts would take, where there are such engines. */
static void write_buckets(ht_jw *w, const look *k, const ht_stage *tape, size_t n, ht_bucket b)
{
    ht_jw_arr(w);
    for (const ht_backend *const *be = ht_backends; *be; be++) {
        ht_dev *dev = NULL;
        if (!(*be)->buckets || !(*be)->footprint || (*be)->open(&dev, "", NULL)) continue;
        for (const uint16_t *rows = (*be)->buckets; *rows; rows++) {
            ht_footprint fp = {0};
            b.rows = *rows;
            b.past = 0;
            if ((*be)->footprint(dev, k->model, tape, n, &b, &fp, NULL)) continue;
            ht_jw_obj(w);
            ht_jw_kstr(w, "engine", (*be)->name);
            ht_jw_kuint(w, "rows", *rows);
            ht_jw_kuint(w, "planBytes", fp.scratch);
            ht_jw_kuint(w, "compileBytes", fp.making);
            ht_jw_end(w, '}');
        }
        (*be)->close(dev);
    }
    ht_jw_end(w, ']');
}

/* What ht_engine_open with default engines would take for the context. */
static int write_memory(ht_jw *w, look *k, ht_err *err)
{
    const ht_model *m = k->model;
    const ht_backend *be = ht_backend_find("cpu");
    if (!be) return HT_FAIL(err, HT_EUNSUPPORTED, "this build has no cpu engine");
    const uint32_t ctx = k->p->ctx ? k->p->ctx : m->spec.ctx_train ? m->spec.ctx_train : 2048;
    const uint32_t ubatch = API_UBATCH < ctx ? API_UBATCH : ctx;
    uint8_t *cls = api__layer_class(&m->spec, k->arena);
    size_t n = ht_tape(m, NULL, 0);
    ht_stage *tape = ht_arena_array(k->arena, n, sizeof *tape);
    if (!cls || !tape)
        return HT_FAIL(err, HT_ENOMEM, "no memory for an estimate over %zu stages", n);
    (void)ht_tape(m, tape, n);
    ht_bucket b[API_PHASES];
    for (int i = 0; i < API_PHASES; i++)
        b[i] = (ht_bucket){.rows = (uint16_t)(i == API_PREFILL ? ubatch : 1),
                           .seqs = 1,
                           .want = 1,
                           .steps = 1,
                           .ctx = ctx,
                           .past = ctx,
                           .kv_fmt = api__kv_fmt(&k->kv)};
    ht_pool_params pool;
    api__pool_params(&m->spec, cls, &k->kv, ctx, 1, ubatch, &pool);
    ht_dev *dev = NULL;
    ht_cpu_threads t;
    ht_cpu_threads_get(&t);
    char opts[32];
    (void)snprintf(opts, sizeof opts, "threads=%d", t.threads);
    HT_TRY(be->open(&dev, opts, err));
    api__unit unit = {.be = be, .dev = dev};
    const api__phase phase[API_PHASES] = {{.unit = &unit}, {.unit = &unit}};
    api__memory mem;
    int rc = api__memory_of(phase, k->file, m, tape, n, b, &pool, &mem, err);
    be->close(dev);
    if (rc) return rc;
    ht_jw_obj(w);
    ht_jw_kuint(w, "ctx", ctx);
    ht_jw_kuint(w, "ubatch", ubatch);
    ht_jw_kstr(w, "engine", be->name);
    ht_jw_kstr(w, "ctk", k->kv.name[0]);
    ht_jw_kstr(w, "ctv", k->kv.name[1]);
    ht_jw_key(w, "bytes");
    api__write_memory(w, &mem);
    ht_jw_kuint(w, "availableBytes", ht_mem_available());
    ht_jw_key(w, "wholePromptBuckets");
    write_buckets(w, k, tape, n, b[API_PREFILL]);
    ht_jw_end(w, '}');
    return 0;
}

static int write_all(ht_jw *w, look *k, const char *path, ht_err *err)
{
    int rc = 0;
    ht_jw_obj(w);
    ht_jw_kstr(w, "path", path);
    ht_jw_kstr(w, "kind", kind_name(ht_file_kind(k->file)));
    ht_jw_kuint(w, "fileBytes", ht_file_bytes(k->file));
    ht_jw_kuint(w, "parts", ht_file_n_parts(k->file));
    ht_jw_kuint(w, "tensors", ht_file_n_tensors(k->file));
    if (ht_file_n_tensors(k->file)) {
        ht_jw_key(w, "types");
        write_types(w, k->file);
    }
    ht_jw_key(w, "model");
    if (k->model) write_model(w, k);
    else write_error(w, &k->model_err);
    ht_jw_key(w, "tokenizer");
    if (k->tok) api__write_tokenizer(w, k->tok);
    else write_error(w, &k->tok_err);
    size_t n = 0;
    ht_jw_kbool(w, "template", ht_file_template(k->file, &n) != NULL);
    ht_jw_key(w, "memory");
    if (!rc && k->model) rc = write_memory(w, k, err);
    else ht_jw_null(w);
    if (!rc && k->p->verify) {
        char hex[HT_SHA256_HEX];
        rc = ht_file_verify(k->file, NULL, NULL, hex, err);
        if (!rc) ht_jw_kstr(w, "verifiedSha256", hex);
    }
    if (k->p->tensors) {
        ht_jw_key(w, "tensorList");
        write_tensors(w, k->file);
    }
    ht_jw_end(w, '}');
    return rc;
}

/* Out of memory is an error of the whole; anything else is told in its place. */
static int open_parts(look *k, ht_err *err)
{
    int rc = ht_file_kind(k->file) == HT_FILE_TOKJSON
                 ? HT_FAIL(&k->model_err, HT_EUNSUPPORTED, "a tokenizer file has no model")
                 : ht_model_open(&k->model, k->file, NULL, NULL, &k->model_err);
    if (rc == HT_ENOMEM) {
        if (err) *err = k->model_err;
        return rc;
    }
    rc = ht_tok_from_file(&k->tok, k->file, NULL, &k->tok_err);
    if (rc == HT_ENOMEM) {
        if (err) *err = k->tok_err;
        return rc;
    }
    if (!k->model) return 0;
    size_t n = ht_model_names(k->model, NULL, 0);
    k->names = ht_arena_array(k->arena, n, sizeof *k->names);
    if (!k->names) return HT_FAIL(err, HT_ENOMEM, "no memory for the list of %zu tensors", n);
    k->n_names = ht_model_names(k->model, k->names, n);
    return 0;
}

int ht_inspect(const char *path, const ht_inspect_params *p, char **json, ht_err *err)
{
    static const ht_inspect_params none = {0};
    if (!path || !json) return HT_FAIL(err, HT_EARG, "ht_inspect: path and json must be given");
    *json = NULL;
    look k = {.p = p ? p : &none};
    HT_TRY(ht_arena_new(&k.arena, 0, err));
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_file_open(&k.file, path, NULL, err);
    if (!rc) rc = open_parts(&k, err);
    if (!rc && k.model)
        rc = api__kv_read(&k.kv, k.p->ctk, k.p->ctv, k.model->spec.n_layers, k.arena, err);
    if (!rc) {
        ht_jw w;
        ht_jw_init(&w, &b, 0);
        rc = write_all(&w, &k, path, err);
    }
    ht_tok_free(k.tok);
    ht_model_free(k.model);
    ht_file_close(k.file);
    ht_arena_free(k.arena);
    if (!rc) return api__take_json(&b, json, err);
    ht_buf_done(&b);
    return rc;
}
