/* bind.c - what binding makes of good files: row order, folded norms, fused and stacked matrices,
 * packs of both layouts, names, contract, identity. */
#include "core/arena.h"
#include "format/pack.h"
#include "model/model.h"
#include "quant/r16.h"
#include "test.h"

typedef struct {
    ht_file *f;
    ht_model *m;
} opened;

static opened open_model(const char *path)
{
    ht_err e = {0};
    opened o;
    T_OK(ht_file_open(&o.f, path, NULL, &e), e);
    T_OK(ht_model_open(&o.m, o.f, NULL, NULL, &e), e);
    return o;
}

static void close_model(opened o)
{
    ht_model_free(o.m);
    ht_file_close(o.f);
}

static ht_named *names(const ht_model *m, size_t *n)
{
    *n = ht_model_names(m, NULL, 0);
    ht_named *l = calloc(*n, sizeof *l);
    T_EQ_INT(ht_model_names(m, l, *n), *n);
    return l;
}

/* Two models hold the same numbers under the same names; ids are dense. */
static void same_values(const ht_model *a, const ht_model *b)
{
    size_t na, nb;
    ht_named *x = names(a, &na), *y = names(b, &nb);
    T_EQ_INT(na, nb);
    for (size_t i = 0; i < na; i++) {
        T_EQ_STR(x[i].name, y[i].name);
        T_EQ_INT(x[i].n, y[i].n);
        if (x[i].vec) T_EQ_MEM(x[i].vec, y[i].vec, x[i].n * sizeof(float));
        if (!x[i].w) continue;
        const ht_weight *v = x[i].w, *w = y[i].w;
        T_CHECK(v->rows == w->rows && v->cols == w->cols && v->n_mats == w->n_mats, "%s",
                x[i].name);
        T_CHECK(v->id < a->n_weights && w->id < b->n_weights, "%s: ids", x[i].name);
        float *p = malloc(v->cols * sizeof *p), *q = malloc(v->cols * sizeof *q);
        for (uint32_t m = 0; m < v->n_mats; m++)
            for (uint32_t r = 0; r < v->rows; r++) {
                ht_weight_row(v, m, r, p);
                ht_weight_row(w, m, r, q);
                T_CHECK(!memcmp(p, q, v->cols * sizeof *p), "%s [%u,%u]", x[i].name, m, r);
            }
        free(p);
        free(q);
    }
    free(x);
    free(y);
}

static void both_sources(const char *name)
{
    char rel[200], gguf[400];
    (void)snprintf(rel, sizeof rel, "golden/arch/%s/model.gguf", name);
    (void)snprintf(gguf, sizeof gguf, "%s", t_shared(rel));
    opened a = open_model(gguf);
    *strrchr(gguf, '/') = 0;
    opened b = open_model(gguf);
    same_values(a.m, b.m);
    close_model(a);
    close_model(b);
}

/* The GGUF of these has permuted rows (llama), 1+w norms (gemma3), fused matrices (phi3), stacks of
 * experts (mixtral, qwen3_moe): all must come out as the folder's. */
T_CASE(bind, llama_rows_as_in_the_folder)
{
    both_sources("llama");
}
T_CASE(bind, gemma3_norms_as_in_the_folder)
{
    both_sources("gemma3");
}
T_CASE(bind, phi3_views_as_in_the_folder)
{
    both_sources("phi3");
}
T_CASE(bind, mixtral_experts_as_in_the_folder)
{
    both_sources("mixtral");
}
T_CASE(bind, qwen3_moe_experts_as_in_the_folder)
{
    both_sources("qwen3_moe");
}
T_CASE(bind, qwen2_biases_as_in_the_folder)
{
    both_sources("qwen2");
}

/* Equal weight types make equal identities: llama is F32 in both files. */
T_CASE(bind, identity_is_of_the_model_not_of_the_file)
{
    char gguf[400];
    (void)snprintf(gguf, sizeof gguf, "%s", t_shared("golden/arch/llama/model.gguf"));
    opened a = open_model(gguf);
    *strrchr(gguf, '/') = 0;
    opened b = open_model(gguf);
    T_EQ_MEM(a.m->sha256, b.m->sha256, 32);
    opened c = open_model("models/tale-9m-f16.gguf");
    T_CHECK(memcmp(a.m->sha256, c.m->sha256, 32) != 0, "another model has another");
    close_model(a);
    close_model(b);
    close_model(c);
}

T_CASE(bind, tale_9m)
{
    opened o = open_model("models/tale-9m-f16.gguf");
    uint32_t n_proj, n_quant;
    T_EQ_STR(ht_model_contract(o.m, &n_proj, &n_quant), "f16");
    T_EQ_INT(n_proj, 8 * 7 + 1);
    T_EQ_INT(n_quant, 0);
    T_CHECK(o.m->spec.tied && o.m->head.data == o.m->embed.data, "the head is the embedding");
    size_t n, projections = 0;
    ht_named *l = names(o.m, &n);
    T_EQ_INT(n, 1 + 8 * 11 + 1);
    T_EQ_STR(l[0].name, "token_embd");
    T_EQ_STR(l[1].name, "blk.0.attn_norm");
    T_EQ_STR(l[2].name, "blk.0.attn_q");
    T_EQ_STR(l[n - 1].name, "output_norm");
    for (size_t i = 0; i < n; i++) projections += l[i].projection;
    T_EQ_INT(projections, n_proj);
    free(l);
    /* Nothing but vectors is copied: rows of qwen3 are in order. */
    const ht_map *map = ht_file_part(o.f, 0);
    const uint8_t *q = o.m->layer[3].q.data;
    T_CHECK(q > map->p && q < map->p + map->n, "a view of the mapped file");
    close_model(o);
}

static int stop_at_2(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    *(uint64_t *)user = total;
    return done == 2;
}

T_CASE(bind, progress_can_cancel)
{
    ht_err e = {0};
    ht_file *f;
    ht_model *m;
    uint64_t total = 0;
    T_OK(ht_file_open(&f, "models/tale-9m-f16.gguf", NULL, &e), e);
    T_ERR(ht_model_open(&m, f, stop_at_2, &total, &e), HT_ECANCELLED, e, "layer 2");
    T_EQ_INT(total, 8);
    ht_file_close(f);
}

T_CASE(bind, nth_allocation_fails)
{
    static const char *const path[] = {"tests/data/golden/arch/llama/model.gguf",
                                       "tests/data/golden/arch/qwen3_moe"};
    int failures = 0;
    for (int k = 0; k < 2; k++) {
        ht_err e = {0};
        ht_file *f;
        T_OK(ht_file_open(&f, path[k], NULL, &e), e);
        for (uint64_t n = 1, done = 0; !done; n++) {
            ht_model *m = NULL;
            ht_alloc_fail_at(n);
            int rc = ht_model_open(&m, f, NULL, NULL, &e);
            ht_alloc_fail_at(0);
            T_CHECK(rc == 0 || rc == HT_ENOMEM, "allocation %d: %d %s", (int)n, rc, e.msg);
            failures += rc != 0;
            done = rc == 0;
            ht_model_free(m);
        }
        ht_file_close(f);
    }
    T_CHECK(failures > 10, "%d allocations failed", failures);
}

/* ---- fused experts --------------------------------------------------------------------------- */

typedef struct {
    char *head;
    size_t head_n, data_n;
    uint8_t *data;
} writer;

static void add_f32(writer *w, const char *name, const char *shape, const void *p, size_t n)
{
    w->head = realloc(w->head, w->head_n + strlen(name) + 200);
    w->head_n += (size_t)sprintf(
        w->head + w->head_n, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
        w->head_n ? "," : "{", name, shape, w->data_n, w->data_n + n);
    w->data = realloc(w->data, w->data_n + n);
    memcpy(w->data + w->data_n, p, n);
    w->data_n += n;
}

static void finish(writer *w, const char *dir)
{
    char path[400];
    w->head[w->head_n++] = '}';
    uint64_t len = w->head_n;
    uint8_t *all = malloc(8 + w->head_n + w->data_n);
    memcpy(all, &len, 8);
    memcpy(all + 8, w->head, w->head_n);
    memcpy(all + 8 + w->head_n, w->data, w->data_n);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    t_spit(path, all, 8 + w->head_n + w->data_n);
    free(all);
    free(w->head);
    free(w->data);
}

/* qwen3_moe with its experts as two fused tensors a layer, as newer checkpoints have them. */
T_CASE(bind, fused_experts_equal_separate_ones)
{
    static const char *const src = "tests/data/golden/arch/qwen3_moe";
    opened a = open_model(src);
    const ht_spec *s = &a.m->spec;
    writer w = {0};
    char name[200], shape[100], path[400], dir[300];
    for (size_t i = 0; i < ht_file_n_tensors(a.f); i++) {
        const ht_tensor *t = ht_file_tensor(a.f, i);
        if (strstr(t->name, ".experts.")) continue;
        (void)snprintf(shape, sizeof shape, t->n_dims == 1 ? "[%d]" : "[%d,%d]", (int)t->dim[0],
                       (int)t->dim[1]);
        add_f32(&w, t->name, shape, t->data, (size_t)t->bytes);
    }
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const ht_layer *y = &a.m->layer[l];
        uint8_t *both = malloc(2 * (size_t)y->e_gate.bytes);
        for (uint32_t e = 0; e < s->n_experts; e++) {
            size_t m = (size_t)y->e_gate.mat_bytes;
            memcpy(both + 2 * e * m, (const uint8_t *)y->e_gate.data + e * m, m);
            memcpy(both + (2 * e + 1) * m, (const uint8_t *)y->e_up.data + e * m, m);
        }
        (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", l);
        (void)snprintf(shape, sizeof shape, "[%u,%u,%u]", s->n_experts, 2 * s->expert_ffn, s->dim);
        add_f32(&w, name, shape, both, 2 * (size_t)y->e_gate.bytes);
        (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", l);
        (void)snprintf(shape, sizeof shape, "[%u,%u,%u]", s->n_experts, s->dim, s->expert_ffn);
        add_f32(&w, name, shape, y->e_down.data, (size_t)y->e_down.bytes);
        free(both);
    }
    (void)snprintf(dir, sizeof dir, "%s", t_tmp());
    while (w.head_n % 8 != 7) w.head[w.head_n++] = ' ';
    finish(&w, dir);
    size_t n;
    (void)snprintf(path, sizeof path, "%s/config.json", src);
    char *c = t_slurp(path, &n);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    t_spit(path, c, n);
    free(c);
    opened b = open_model(dir);
    same_values(a.m, b.m);
    close_model(a);
    close_model(b);
}

/* ---- packs ----------------------------------------------------------------------------------- */

static void declare(ht_packer *p, const ht_named *x, const char *rep, int type, int layout)
{
    ht_err e = {0};
    uint64_t dim[3];
    unsigned n = 0;
    if (x->vec) {
        dim[n++] = x->n;
    } else {
        if (x->w->n_mats > 1) dim[n++] = x->w->n_mats;
        dim[n++] = x->w->rows;
        dim[n++] = x->w->cols;
    }
    T_OK(ht_packer_tensor(p, x->name, rep, type, layout, n, dim, &e), e);
}

/* A weight as Q8_0 rows/1, encoded from what the model holds. */
static void write_q8(ht_packer *p, const ht_weight *w)
{
    ht_err e = {0};
    uint64_t bytes;
    T_CHECK(ht_row_bytes(HT_Q8_0, w->cols, &bytes), "cols %u", w->cols);
    float *row = malloc(w->cols * sizeof *row);
    uint8_t *q = malloc((size_t)bytes);
    for (uint32_t m = 0; m < w->n_mats; m++)
        for (uint32_t r = 0; r < w->rows; r++) {
            ht_weight_row(w, m, r, row);
            ht_types[HT_Q8_0].encode(row, q, w->cols);
            T_OK(ht_packer_write(p, q, (size_t)bytes, &e), e);
        }
    free(row);
    free(q);
}

/* A weight in r16, matrix by matrix. */
static void write_r16(ht_packer *p, const ht_weight *w)
{
    ht_err e = {0};
    uint64_t bytes;
    T_CHECK(ht_r16_bytes(ht_r16_type(w->type), w->rows, w->cols, &bytes), "r16 of %u", w->rows);
    uint8_t *b = calloc(1, (size_t)bytes);
    for (uint32_t m = 0; m < w->n_mats; m++) {
        ht_r16_pack(w->type, (const uint8_t *)w->data + m * w->mat_bytes, w->rows, w->cols, 0,
                    (w->rows + 15) / 16, b);
        T_OK(ht_packer_write(p, b, (size_t)bytes, &e), e);
    }
    free(b);
}

/* A pack of the model: matrices in r16 (projections) or as they are, Q8_0 beside the
 * projections. */
static void pack_model(const ht_model *m, const char *path, bool r16)
{
    ht_err e = {0};
    ht_arena *a;
    ht_json *spec, *model;
    ht_packer *p;
    size_t n;
    char sha[65];
    ht_named *x = names(m, &n);
    T_OK(ht_arena_new(&a, 0, &e), e);
    T_OK(ht_spec_to_json(&m->spec, a, &spec, &e), e);
    model = ht_json_new(a, HT_JOBJ);
    ht_json_add(a, model, "spec", spec);
    T_OK(ht_packer_new(&p, path, &e), e);
    T_OK(ht_packer_header(p, model, &e), e);
    for (size_t i = 0; i < n; i++) {
        bool inter = r16 && x[i].w && x[i].projection;
        int type = !x[i].w ? HT_F32 : inter ? ht_r16_type(x[i].w->type) : x[i].w->type;
        declare(p, &x[i], "", type, inter ? HT_LAYOUT_R16 : HT_LAYOUT_ROWS);
        if (x[i].w && x[i].projection) declare(p, &x[i], "q8", HT_Q8_0, HT_LAYOUT_ROWS);
    }
    for (size_t i = 0; i < n; i++) {
        if (x[i].vec) T_OK(ht_packer_write(p, x[i].vec, x[i].n * sizeof(float), &e), e);
        if (!x[i].w) continue;
        if (r16 && x[i].projection) write_r16(p, x[i].w);
        else T_OK(ht_packer_write(p, x[i].w->data, (size_t)x[i].w->bytes, &e), e);
        if (x[i].projection) write_q8(p, x[i].w);
    }
    T_OK(ht_packer_end(p, sha, &e), e);
    ht_arena_free(a);
    free(x);
}

static void through_pack(const char *src, bool r16)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/m.htpack", t_tmp());
    opened a = open_model(src);
    pack_model(a.m, path, r16);
    opened b = open_model(path);
    same_values(a.m, b.m);
    T_EQ_STR(b.m->rep[0], "f16");
    T_EQ_STR(b.m->rep[1], "q8");
    const ht_weight *q = &b.m->layer[0].q, *alt = q->alt;
    T_EQ_INT(q->layout, r16 ? HT_LAYOUT_R16 : HT_LAYOUT_ROWS);
    T_CHECK(alt && alt->type == HT_Q8_0 && alt->id != q->id, "an alternate of its own id");
    float *x = malloc(q->cols * sizeof *x), *y = malloc(q->cols * sizeof *y);
    ht_weight_row(q, 0, 1, x);
    ht_weight_row(alt, 0, 1, y);
    for (uint32_t i = 0; i < q->cols; i++) T_NEAR(y[i], x[i], 0.02);
    free(x);
    free(y);
    close_model(a);
    close_model(b);
}

T_CASE(pack, llama_rows)
{
    through_pack("tests/data/golden/arch/llama/model.gguf", false);
}
T_CASE(pack, llama_r16)
{
    through_pack("tests/data/golden/arch/llama/model.gguf", true);
}
T_CASE(pack, phi3_r16)
{
    through_pack("tests/data/golden/arch/phi3/model.gguf", true);
}
T_CASE(pack, qwen3_moe_r16)
{
    through_pack("tests/data/golden/arch/qwen3_moe", true);
}
T_CASE(pack, gemma3_rows)
{
    through_pack("tests/data/golden/arch/gemma3", false);
}

/* ---- the spec as JSON ------------------------------------------------------------------------ */

/* A pack with a spec of our choosing and no tensors. */
static void refused_spec(const ht_spec *s, const char *key, ht_json *value, ht_arena *a,
                         const char *text)
{
    ht_err e = {0};
    ht_json *spec, *model = ht_json_new(a, HT_JOBJ);
    ht_packer *p;
    ht_file *f;
    ht_spec out;
    char path[400], sha[65];
    T_OK(ht_spec_to_json(s, a, &spec, &e), e);
    for (size_t i = 0; i < spec->n; i++)
        if (!strcmp(spec->at[i].key, key)) {
            ht_json keep = spec->at[i];
            spec->at[i] = *value;
            spec->at[i].key = keep.key, spec->at[i].key_n = keep.key_n;
        }
    ht_json_add(a, model, "spec", spec);
    (void)snprintf(path, sizeof path, "%s/s.htpack", t_tmp());
    T_OK(ht_packer_new(&p, path, &e), e);
    T_OK(ht_packer_header(p, model, &e), e);
    T_OK(ht_packer_end(p, sha, &e), e);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_ERR(ht_spec_read(&out, f, a, &e), HT_EFORMAT, e, text);
    ht_file_close(f);
}

T_CASE(pack, a_lying_spec_is_refused)
{
    ht_err e = {0};
    ht_arena *a;
    opened o = open_model("tests/data/golden/arch/llama/model.gguf");
    const ht_spec *s = &o.m->spec;
    T_OK(ht_arena_new(&a, 0, &e), e);
    refused_spec(s, "n_layers", ht_json_new_int(a, 5000), a, "n_layers");
    refused_spec(s, "n_layers", ht_json_new_int(a, 5), a, "one digit a layer");
    refused_spec(s, "dim", ht_json_new_int(a, -1), a, "dim");
    refused_spec(s, "dim", ht_json_new_str(a, "64", 2), a, "dim");
    refused_spec(s, "head_dim", ht_json_new_int(a, 8), a, "rope.dims");
    refused_spec(s, "n_kv_heads", ht_json_new_int(a, 3), a, "4 heads cannot share 3");
    refused_spec(s, "rms_eps", ht_json_new_str(a, "00000000", 8), a, "epsilon");
    refused_spec(s, "rms_eps", ht_json_new_str(a, "7fc00000", 8), a, "epsilon");
    refused_spec(s, "rms_eps", ht_json_new_str(a, "0000", 4), a, "rms_eps");
    refused_spec(s, "rms_eps", ht_json_new_str(a, "0000000G", 8), a, "rms_eps");
    refused_spec(s, "layer_rope", ht_json_new_str(a, "0001", 4), a, "rotation 1");
    refused_spec(s, "layer_rope", ht_json_new_str(a, "0009", 4), a, "layer_rope");
    refused_spec(s, "layer_window", ht_json_new_str(a, "1000", 4), a, "window");
    refused_spec(s, "layer_moe", ht_json_new_str(a, "1000", 4), a, "experts");
    refused_spec(s, "rope", ht_json_new_int(a, 1), a, "rope");
    refused_spec(s, "arch", ht_json_new_int(a, 1), a, "arch");
    ht_arena_free(a);
    close_model(o);
}
