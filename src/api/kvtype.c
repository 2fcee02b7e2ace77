/* kvtype.c - the types of the KV cache by name and layer, and the gate of those that lose something
 * (product.md 4): a measurement on this very model, by hetero kv-probe, must show that the loss is
 * small, or the user must insist. */
#include "api/kvtype.h"
#include "core/map.h"
#include "step/kvcodec.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KV_GATE_VERSION = 1, KV_GATE_MAX = 1 << 16 }; /* of codecs and rule; bytes of a file */

/* ---- names ----------------------------------------------------------------------------------- */

static int type_of(const char *name, size_t n, const char *which, int *out, ht_err *err)
{
    char word[24];
    if (n < sizeof word) {
        memcpy(word, name, n);
        word[n] = 0;
        if ((*out = ht_kvtype_by_name(word)) >= 0) return 0;
    }
    return HT_FAIL(
        err, HT_EARG,
        "KV type \"%.*s\" for %s is unknown; this build has f16, f32, q8_0, q4_0, q8_0r, "
        "q4_0r, tq4, tq3 and, as an experiment, qjl3",
        n < 40 ? (int)n : 40, name, which);
}

/* "A=TYPE" or "A-B=TYPE": layers A to B, counted from 0. */
static int read_layers(const char *at, const char *end, const char *which, uint32_t n_layers,
                       uint8_t (*layer)[2], int is_v, ht_err *err)
{
    unsigned a = 0, b = 0;
    int used = 0, type = 0;
    if (!isdigit((unsigned char)*at) || sscanf(at, "%5u%n", &a, &used) != 1) used = 0;
    b = a;
    if (used && at[used] == '-') {
        int more = 0;
        if (!isdigit((unsigned char)at[used + 1]) || sscanf(at + used + 1, "%5u%n", &b, &more) != 1)
            used = 0;
        else used += more + 1;
    }
    if (!used || at[used] != '=' || at + used >= end)
        return HT_FAIL(err, HT_EARG,
                       "\"%.*s\" in the KV types for %s is not LAYER=TYPE or FIRST-LAST=TYPE",
                       end - at < 40 ? (int)(end - at) : 40, at, which);
    if (a > b || b >= n_layers)
        return HT_FAIL(err, HT_EARG, "KV types for %s: layers %u to %u; the model has 0 to %u",
                       which, a, b, n_layers - 1);
    HT_TRY(type_of(at + used + 1, (size_t)(end - at - used - 1), which, &type, err));
    for (; a <= b; a++) layer[a][is_v] = (uint8_t)type;
    return 0;
}

/* One of K and V: "TYPE[,LAYERS=TYPE...]", for K also ",mean"; NULL is f16. */
static int read_one(api__kv *kv, const char *text, int is_v, uint32_t n_layers, ht_err *err)
{
    const char *which = is_v ? "V (-ctv)" : "K (-ctk)", *at = text ? text : "f16",
               *end = strchr(at, ',');
    HT_TRY(type_of(at, end ? (size_t)(end - at) : strlen(at), which, &kv->base[is_v], err));
    for (uint32_t l = 0; l < n_layers; l++) kv->layer[l][is_v] = (uint8_t)kv->base[is_v];
    while (end) {
        at = end + 1;
        end = strchr(at, ',');
        if (!is_v && (end ? (size_t)(end - at) : strlen(at)) == 4 && !strncmp(at, "mean", 4)) {
            kv->mean = true;
            continue;
        }
        HT_TRY(read_layers(at, end ? end : at + strlen(at), which, n_layers, kv->layer, is_v, err));
    }
    return 0;
}

int api__kv_read(api__kv *kv, const char *ctk, const char *ctv, uint32_t n_layers, ht_arena *arena,
                 ht_err *err)
{
    const char *text[2] = {ctk ? ctk : "f16", ctv ? ctv : "f16"};
    *kv = (api__kv){.gate = "exact"};
    kv->layer = ht_arena_array(arena, n_layers, sizeof *kv->layer);
    for (int v = 0; v < 2; v++) kv->name[v] = ht_arena_strndup(arena, text[v], strlen(text[v]));
    if (!kv->layer || !kv->name[0] || !kv->name[1])
        return HT_FAIL(err, HT_ENOMEM, "no memory for the KV types of %u layers", n_layers);
    for (int v = 0; v < 2; v++) HT_TRY(read_one(kv, text[v], v, n_layers, err));
    bool keys = false;
    for (uint32_t l = 0; l < n_layers; l++) keys = keys || ht_kv_packs(kv->layer[l][0]);
    if (kv->mean && !keys)
        return HT_FAIL(err, HT_EARG,
                       "-ctk %s: only packed types of keys are stored without their mean; use "
                       "q8_0, q4_0, tq4 ... with it",
                       text[0]);
    for (uint32_t l = 0; l < n_layers; l++)
        kv->packs = kv->packs || ht_kv_packs(kv->layer[l][0]) || ht_kv_packs(kv->layer[l][1]);
    return 0;
}

/* ---- the gate -------------------------------------------------------------------------------- */

/* The model file's digest, and the file name of the measurement of these types on it. */
static int gate_name(const ht_engine *e, char name[API_KV_NAME], char model[HT_SHA256_HEX],
                     ht_err *err)
{
    bool hashed = false;
    ht_buf b;
    uint8_t sha[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    HT_TRY(api__trust(e->file, 0, NULL, NULL, model, &hashed, err));
    ht_buf_init(&b, 4096);
    ht_buf_fmt(&b, "kv %d\n%s\n%s\n%s\n", KV_GATE_VERSION, model, e->kv.name[0], e->kv.name[1]);
    int rc = b.bad ? HT_FAIL(err, HT_ENOMEM, "no memory for the KV types' names")
                   : ht_sha256_of(b.p, b.n, sha, err);
    ht_buf_done(&b);
    if (rc) return rc;
    ht_hex(sha, sizeof sha, hex);
    (void)snprintf(name, API_KV_NAME, "kv-%.32s.json", hex);
    return 0;
}

int ht_engine_kv_gate(ht_engine *e, const ht_kv_gate *g, char **name, char **json, ht_err *err)
{
    char file[API_KV_NAME], model[HT_SHA256_HEX];
    if (!e || !g || !name || !json)
        return HT_FAIL(err, HT_EARG,
                       "ht_engine_kv_gate: engine, figures, name and json are needed");
    *name = *json = NULL;
    HT_TRY(gate_name(e, file, model, err));
    ht_buf b;
    ht_jw w;
    ht_buf_init(&b, KV_GATE_MAX);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kint(&w, "version", KV_GATE_VERSION);
    ht_jw_kstr(&w, "model", model);
    ht_jw_kstr(&w, "k", e->kv.name[0]);
    ht_jw_kstr(&w, "v", e->kv.name[1]);
    ht_jw_kreal(&w, "meanKl", g->mean_kl);
    ht_jw_kreal(&w, "pplRatio", g->ppl_ratio);
    ht_jw_kuint(&w, "depth", g->depth);
    ht_jw_kuint(&w, "positions", g->positions);
    ht_jw_end(&w, '}');
    HT_TRY(api__take_json(&b, json, err));
    ht_buf n;
    ht_buf_init(&n, API_KV_NAME);
    ht_buf_fmt(&n, "%s", file);
    int rc = api__take_json(&n, name, err);
    if (rc) {
        ht_free(*json);
        *json = NULL;
    }
    return rc;
}

static int read_gate(const ht_engine *e, const char *path, const char *model, ht_kv_gate *g,
                     ht_arena *a, ht_err *err)
{
    char *text = NULL;
    size_t n = 0;
    ht_json *o = NULL;
    const char *is[3] = {NULL, NULL, NULL};
    uint32_t positions = 0;
    HT_TRY(ht_file_read(path, KV_GATE_MAX, &text, &n, err));
    int rc = ht_json_parse(a, text, n, 0, path, &o, err);
    ht_mem_free(text);
    if (!rc) rc = ht_json_str(o, "model", "", &is[0], err);
    if (!rc) rc = ht_json_str(o, "k", "", &is[1], err);
    if (!rc) rc = ht_json_str(o, "v", "", &is[2], err);
    if (!rc) rc = ht_json_f64(o, "meanKl", NAN, &g->mean_kl, err);
    if (!rc) rc = ht_json_f64(o, "pplRatio", NAN, &g->ppl_ratio, err);
    if (!rc) rc = ht_json_u32(o, "depth", 0, &g->depth, err);
    if (!rc) rc = ht_json_u32(o, "positions", 0, &positions, err);
    if (rc) return rc;
    g->positions = positions;
    if (strcmp(is[0], model) != 0 || strcmp(is[1], e->kv.name[0]) != 0 ||
        strcmp(is[2], e->kv.name[1]) != 0)
        return HT_FAIL(err, HT_EFORMAT, "%s is of another model or of other types", path);
    return 0;
}

/* HT_EGATE unless the measured loss is within bounds; NaN is not. */
static int judge(ht_engine *e, const ht_kv_gate *g, ht_err *err)
{
    e->kv.measured = *g;
    const double ppl = g->ppl_ratio - 1;
    if (g->mean_kl <= HT_KV_GATE_KL && ppl <= HT_KV_GATE_PPL && g->positions > 0) {
        e->kv.gate = "measured";
        return 0;
    }
    return HT_FAIL(err, HT_EGATE,
                   "-ctk %s -ctv %s fails its gate on this model: mean KL %.4g (at most %.2g), "
                   "perplexity %+.2f %% (at most %.1f %%) at depth %u; use other types, or insist "
                   "with --kv-force",
                   e->kv.name[0], e->kv.name[1], g->mean_kl, HT_KV_GATE_KL, 100 * ppl,
                   100 * HT_KV_GATE_PPL, g->depth);
}

int api__kv_admit(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    if (!e->kv.packs) return 0;
    e->kv.gate = "forced";
    if (p->kv_force) return 0;
    char file[API_KV_NAME], path[1024], model[HT_SHA256_HEX];
    ht_kv_gate g = {0};
    ht_err why = {0};
    if (p->kv_gates) {
        ht_arena *a = NULL;
        HT_TRY(gate_name(e, file, model, err));
        (void)snprintf(path, sizeof path, "%s/%s", p->kv_gates, file);
        HT_TRY(ht_arena_new(&a, 0, err));
        int rc = read_gate(e, path, model, &g, a, &why);
        ht_arena_free(a);
        if (!rc) return judge(e, &g, err);
    }
    return HT_FAIL(err, HT_EGATE,
                   "-ctk %s -ctv %s lose something and nobody has measured how much on this model; "
                   "run hetero kv-probe MODEL -ctk %s -ctv %s --save, or insist with --kv-force",
                   e->kv.name[0], e->kv.name[1], e->kv.name[0], e->kv.name[1]);
}

void api__write_kv(ht_jw *w, const ht_engine *e)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "k", e->kv.name[0]);
    ht_jw_kstr(w, "v", e->kv.name[1]);
    if (e->kv.packs) {
        const ht_pack_stats s = ht_pool_packing(e->pool);
        ht_jw_kstr(w, "gate", e->kv.gate);
        if (e->kv.measured.positions) {
            /* Receipts hold integers: millionths. */
            ht_jw_kint(w, "meanKlPpm", llround(e->kv.measured.mean_kl * 1e6));
            ht_jw_kint(w, "pplRatioPpm", llround(e->kv.measured.ppl_ratio * 1e6));
            ht_jw_kuint(w, "depth", e->kv.measured.depth);
        }
        ht_jw_kuint(w, "packedByThread", s.early_pages);
        ht_jw_kuint(w, "packedBySteps", s.step_pages);
        ht_jw_kuint(w, "waits", s.waits);
        ht_jw_kuint(w, "waitNs", s.wait_ns);
    }
    ht_jw_end(w, '}');
}
