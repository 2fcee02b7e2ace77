/* pack.c - a HeteroPack from any model file: what type every tensor gets, then header, blobs and
 * data in a fixed order. Projections take the contract's type; other matrices keep a float type,
 * the smallest that loses nothing, so that the same weights give the same pack whatever file they
 * came in. Quantised tensors of a source that already has the contract are moved, not quantised
 * again. */
#include "api/kvmean.h"
#include "api/packjob.h"
#include "quant/r16.h"
#include <stdio.h>
#include <string.h>

/* Contracts by how much they keep. */
static int rank_of(const char *contract)
{
    return !strcmp(contract, "f16") ? 0 : !strcmp(contract, "q8") ? 1 : 2;
}

static bool is_float(int type)
{
    return type == HT_F32 || type == HT_F16 || type == HT_BF16;
}

/* ---- what was asked -------------------------------------------------------------------------- */

static int check_contract(const api__packjob *j, const char *name, const char *which, ht_err *err)
{
    if (strcmp(name, "f16") != 0 && strcmp(name, "q8") != 0 && strcmp(name, "q4") != 0)
        return HT_FAIL(err, HT_EARG, "%s \"%s\" is unknown; use f16, q8 or q4", which, name);
    if (rank_of(name) < rank_of(j->src_contract) && !(j->p->requantise && rank_of(name)))
        return HT_FAIL(
            err, HT_EARG,
            "%s %s: the source's weights are %s already, and what quantising lost does not come "
            "back; use %s, or pack the float original%s",
            which, name, j->src_contract, j->src_contract,
            rank_of(name) ? ", or insist with --requantise" : "");
    return 0;
}

static int check_type(const char *name, const char *which, ht_err *err)
{
    int t = name ? ht_type_by_name(name) : HT_Q4_0;
    if (t < 0 || is_float(t) || !ht_types[t].encode)
        return HT_FAIL(err, HT_EARG, "%s \"%s\" cannot be written; use q4_0, q4_k, q6_k or q8_0",
                       which, name);
    return 0;
}

static int check_params(const api__packjob *j, ht_err *err)
{
    const ht_pack_params *p = j->p;
    HT_TRY(check_contract(j, p->precision, "precision", err));
    if (p->also) {
        HT_TRY(check_contract(j, p->also, "second representation", err));
        if (!strcmp(p->also, "f16") || !strcmp(p->also, p->precision))
            return HT_FAIL(
                err, HT_EARG,
                "second representation %s beside %s makes no sense; use q8 or q4, another than "
                "the first",
                p->also, p->precision);
    }
    bool q4 = !strcmp(p->precision, "q4") || (p->also && !strcmp(p->also, "q4"));
    if (!q4 && (p->q4_type || p->head_type))
        return HT_FAIL(err, HT_EARG, "q4_type and head_type belong to a q4 pack; precision is %s",
                       p->precision);
    HT_TRY(check_type(p->q4_type, "q4_type", err));
    if (p->q4_type && strcmp(p->q4_type, "q4_0") != 0 && strcmp(p->q4_type, "q4_k") != 0)
        return HT_FAIL(err, HT_EARG, "q4_type \"%s\" is not a q4 body; use q4_0 or q4_k",
                       p->q4_type);
    return check_type(p->head_type, "head_type", err);
}

/* ---- the type of every tensor ---------------------------------------------------------------- */

static bool is_head(const api__packjob *j, const ht_named *n)
{
    return !strcmp(n->name, j->model->spec.tied ? "token_embd" : "output");
}

/* Type a contract gives a projection; falls back within the contract where the columns do not fit
 * the block, and counts that. */
static int type_for(api__packjob *j, const ht_named *n, const char *contract, uint8_t *out,
                    ht_err *err)
{
    const uint32_t cols = n->w->cols;
    int want = HT_Q8_0, instead = HT_Q8_0;
    if (!strcmp(contract, "q4")) {
        want = j->p->q4_type ? ht_type_by_name(j->p->q4_type) : HT_Q4_0;
        instead = HT_Q4_0;
        if (is_head(j, n)) {
            want = j->p->head_type ? ht_type_by_name(j->p->head_type) : HT_Q6_K;
            instead = HT_Q8_0;
        }
    }
    if (cols % ht_types[want].block) {
        want = instead;
        j->n_fallback++;
    }
    if (cols % ht_types[want].block)
        return HT_FAIL(
            err, HT_EUNSUPPORTED,
            "tensor %s has %u columns, not a multiple of %u: it cannot be stored as %s; pack it "
            "as f16",
            n->name, cols, (unsigned)ht_types[want].block, ht_types[want].name);
    *out = (uint8_t)want;
    return 0;
}

static int add_item(api__packjob *j, const ht_named *n, const char *contract, const char *rep,
                    ht_err *err)
{
    api__item *it = &j->item[j->n_items++];
    const ht_weight *w = n->w;
    *it = (api__item){.named = n, .w = w, .rep = rep, .type = HT_F32, .layout = HT_LAYOUT_ROWS};
    if (!w) {
        it->bytes = 4u * (uint64_t)n->n;
        j->total += it->bytes;
        return 0;
    }
    bool quantise = n->projection && strcmp(contract, "f16") != 0;
    if (!is_float(w->type) && (!quantise || !strcmp(j->src_contract, contract))) {
        it->type = w->type;
        it->as_is = true;
    } else if (quantise) {
        HT_TRY(type_for(j, n, contract, &it->type, err));
        if (!is_float(w->type)) j->n_requantised++;
    } else {
        HT_TRY(api__float_type(j, w, &it->type, err));
        it->as_is = it->type == w->type;
    }
    if (n->projection && !rep[0]) {
        j->n_proj++;
        j->n_quantised += !is_float(it->type);
    }
    /* A type without a form of its own in r16 stays in rows: widening it would cost the memory that
     * quantising saved, and lose the contract's name. */
    if (ht_r16_type(it->type) == it->type) it->layout = HT_LAYOUT_R16;
    uint64_t bytes = 0;
    bool ok = it->layout == HT_LAYOUT_R16 ? ht_r16_bytes(it->type, w->rows, w->cols, &bytes)
                                          : ht_row_bytes(it->type, w->cols, &bytes);
    if (!ok)
        return HT_FAIL(err, HT_EUNSUPPORTED, "tensor %s [%u, %u] does not fit type %s", n->name,
                       w->rows, w->cols, ht_types[it->type].name);
    it->bytes = bytes * w->n_mats * (it->layout == HT_LAYOUT_R16 ? 1 : w->rows);
    j->total += it->bytes;
    return 0;
}

static int choose(api__packjob *j, ht_err *err)
{
    j->n_named = ht_model_names(j->model, NULL, 0);
    j->named = ht_arena_array(j->arena, j->n_named, sizeof *j->named);
    j->item = ht_arena_array(j->arena, 2 * j->n_named, sizeof *j->item);
    if (!j->named || !j->item)
        return HT_FAIL(err, HT_ENOMEM, "no memory for the list of %zu tensors", j->n_named);
    (void)ht_model_names(j->model, j->named, j->n_named);
    for (size_t i = 0; i < j->n_named; i++) {
        HT_TRY(add_item(j, &j->named[i], j->p->precision, "", err));
        if (j->p->also && j->named[i].projection)
            HT_TRY(add_item(j, &j->named[i], j->p->also, j->p->also, err));
    }
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_header(api__packjob *j, ht_packer *pk, ht_err *err)
{
    ht_json *spec = NULL, *model = ht_json_new(j->arena, HT_JOBJ);
    HT_TRY(ht_spec_to_json(&j->model->spec, j->arena, &spec, err));
    if (!model) return HT_FAIL(err, HT_ENOMEM, "no memory for a pack's header");
    ht_json_add(j->arena, model, "spec", spec);
    ht_json_add(j->arena, model, "contract",
                ht_json_new_str(j->arena, j->p->precision, strlen(j->p->precision)));
    if (j->p->also)
        ht_json_add(j->arena, model, "alternate",
                    ht_json_new_str(j->arena, j->p->also, strlen(j->p->also)));
    return ht_packer_header(pk, model, err);
}

static int write_blobs(api__packjob *j, ht_packer *pk, ht_err *err)
{
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = ht_tok_save(j->tok, &b, err);
    if (!rc) rc = ht_buf_ok(&b, "the tokenizer", err);
    if (!rc) rc = ht_packer_blob(pk, "tokenizer", b.p, b.n, err);
    ht_buf_done(&b);
    size_t n = 0;
    const char *t = ht_file_template(j->file, &n);
    if (!rc && t) rc = ht_packer_blob(pk, "template", t, n, err);
    if (!rc && j->mean.n) rc = ht_packer_blob(pk, API_KVMEAN_BLOB, j->mean.p, j->mean.n, err);
    return rc;
}

static int declare(const api__item *it, ht_packer *pk, ht_err *err)
{
    if (!it->w) {
        const uint64_t dim[1] = {it->named->n};
        return ht_packer_tensor(pk, it->named->name, it->rep, it->type, it->layout, 1, dim, err);
    }
    const uint64_t dim[3] = {it->w->n_mats, it->w->rows, it->w->cols};
    const unsigned stacked = it->w->n_mats > 1;
    return ht_packer_tensor(pk, it->named->name, it->rep, it->type, it->layout, 2 + stacked,
                            dim + !stacked, err);
}

static int write_all(api__packjob *j, ht_packer *pk, ht_err *err)
{
    HT_TRY(write_header(j, pk, err));
    HT_TRY(write_blobs(j, pk, err));
    for (size_t i = 0; i < j->n_items; i++) HT_TRY(declare(&j->item[i], pk, err));
    for (size_t i = 0; i < j->n_items; i++) HT_TRY(api__item_write(j, &j->item[i], pk, err));
    /* What was read from a source that has been cut short since may have been zeros. */
    return ht_file_unchanged(j->file, err);
}

/* ---- the summary ----------------------------------------------------------------------------- */

static void write_types(ht_jw *w, const api__packjob *j)
{
    uint64_t count[HT_TYPES] = {0}, bytes[HT_TYPES] = {0};
    for (size_t i = 0; i < j->n_items; i++) {
        count[j->item[i].type]++;
        bytes[j->item[i].type] += j->item[i].bytes;
    }
    ht_jw_arr(w);
    for (int t = 0; t < HT_TYPES; t++) {
        if (!count[t]) continue;
        ht_jw_obj(w);
        ht_jw_kstr(w, "type", ht_types[t].name);
        ht_jw_kuint(w, "tensors", count[t]);
        ht_jw_kuint(w, "bytes", bytes[t]);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* What a reader should know and did not ask for. */
static void write_notes(ht_jw *w, const api__packjob *j)
{
    char text[200];
    ht_jw_arr(w);
    if (j->n_requantised) {
        (void)snprintf(
            text, sizeof text,
            "%u tensors were quantised again from %s values: further from the original than "
            "quantising it once",
            j->n_requantised, j->src_contract);
        ht_jw_str(w, text);
    }
    if (rank_of(j->src_contract) > 0 && !strcmp(j->src_contract, j->p->precision))
        ht_jw_str(
            w, "the source has this contract already: its quantised tensors were kept as they are");
    if (j->n_fallback) {
        (void)snprintf(
            text, sizeof text,
            "%u tensors have columns that do not fill the type's block and took q4_0 or q8_0 "
            "instead",
            j->n_fallback);
        ht_jw_str(w, text);
    }
    if (j->model->rep[1][0]) {
        (void)snprintf(text, sizeof text, "the source's second representation (%s) was not used",
                       j->model->rep[1]);
        ht_jw_str(w, text);
    }
    ht_jw_end(w, ']');
}

static int summary(const api__packjob *j, const char *out, const char *sha, char **json,
                   ht_err *err)
{
    api__sizes z;
    uint64_t main_bytes = 0;
    char text[40];
    api__sizes_of(j->named, j->n_named, &z);
    for (size_t i = 0; i < j->n_items; i++)
        if (!j->item[i].rep[0]) main_bytes += j->item[i].bytes;
    (void)snprintf(text, sizeof text, "%u of %u", j->n_quantised, j->n_proj);
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_jw w;
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "path", out);
    ht_jw_kstr(&w, "sha256", sha);
    ht_jw_kstr(&w, "arch", j->model->spec.arch);
    ht_jw_kstr(&w, "contract", j->p->precision);
    ht_jw_key(&w, "alternate");
    if (j->p->also) ht_jw_str(&w, j->p->also);
    else ht_jw_null(&w);
    ht_jw_kstr(&w, "layout", ht_layout_name(HT_LAYOUT_R16, HT_F32));
    ht_jw_kuint(&w, "tensors", j->n_items);
    ht_jw_kuint(&w, "parameters", z.parameters);
    ht_jw_kuint(&w, "projections", j->n_proj);
    ht_jw_kuint(&w, "quantised", j->n_quantised);
    ht_jw_kstr(&w, "quantisedText", text);
    ht_jw_key(&w, "types");
    write_types(&w, j);
    ht_jw_kuint(&w, "tensorBytes", main_bytes);
    ht_jw_kuint(&w, "alternateBytes", j->total - main_bytes);
    ht_jw_kuint(&w, "f16Bytes", z.f16_bytes);
    ht_jw_kreal(&w, "f16Ratio", main_bytes ? (double)z.f16_bytes / (double)main_bytes : 0);
    ht_jw_key(&w, "notes");
    write_notes(&w, j);
    ht_jw_end(&w, '}');
    return api__take_json(&b, json, err);
}

static int open_source(api__packjob *j, const char *src, const char *out, ht_err *err)
{
    HT_TRY(ht_arena_new(&j->arena, 0, err));
    HT_TRY(ht_file_open(&j->file, src, NULL, err));
    HT_TRY(ht_packer_check(out, j->file, err)); /* before hours of work, not after */
    HT_TRY(ht_model_open(&j->model, j->file, j->p->progress, j->p->user, err));
    HT_TRY(ht_tok_from_file(&j->tok, j->file, j->p->pre_override, err));
    j->src_contract = ht_model_contract(j->model, &j->n_proj, &j->n_quantised);
    j->n_proj = j->n_quantised = 0; /* counted anew for what is written */
    HT_TRY(check_params(j, err));
    ht_cpu_threads t;
    ht_cpu_threads_get(&t);
    return ht_team_new(&j->team, j->p->threads > 0 ? j->p->threads : t.threads, err);
}

int ht_pack_make(const char *src, const char *out, const ht_pack_params *p, char **json,
                 ht_err *err)
{
    if (!src || !out || !p || !p->precision)
        return HT_FAIL(err, HT_EARG, "ht_pack_make: source, output and a precision must be given");
    if (json) *json = NULL;
    api__packjob j = {.p = p};
    ht_buf_init(&j.mean, 0);
    ht_packer *pk = NULL;
    char sha[HT_SHA256_HEX];
    int rc = open_source(&j, src, out, err);
    if (!rc) rc = choose(&j, err);
    if (!rc && p->calibrate) rc = api__kvmean_make(src, p, j.tok, &j.mean, err);
    if (!rc) rc = ht_packer_new(&pk, out, err);
    if (!rc) {
        rc = write_all(&j, pk, err);
        if (rc) ht_packer_abort(pk);
        else rc = ht_packer_end(pk, sha, err);
    }
    if (!rc && json) rc = summary(&j, out, sha, json, err);
    ht_buf_done(&j.mean);
    ht_team_free(j.team);
    ht_tok_free(j.tok);
    ht_model_free(j.model);
    ht_file_close(j.file);
    ht_arena_free(j.arena);
    return rc;
}
