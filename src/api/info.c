/* info.c - what is loaded and where (ht_engine_info), and which engines this build has
 * (ht_engines_describe). */
#include "api/subject.h"
#include "api/whole.h"
#include "core/cpu.h"
#include <string.h>

enum { DESCRIBE_BYTES = 8192 };

/* The backend's own object, or an empty one when it has nothing to say. */
static void write_describe(ht_jw *w, const ht_backend *be, const ht_dev *dev)
{
    char text[DESCRIBE_BYTES];
    text[0] = 0;
    if (!be->describe || be->describe(dev, text, sizeof text) || text[0] != '{')
        ht_jw_raw(w, "{}", 2);
    else ht_jw_raw(w, text, strlen(text));
}

static void write_model(ht_jw *w, const ht_engine *e)
{
    const ht_spec *s = &e->model->spec;
    char hex[HT_SHA256_HEX];
    ht_jw_obj(w);
    ht_jw_kstr(w, "path", e->path);
    ht_jw_kstr(w, "arch", s->arch);
    ht_hex(e->model->sha256, HT_SHA256_BYTES, hex);
    ht_jw_kstr(w, "shapeSha256", hex);
    if (e->pack_sha[0]) ht_jw_kstr(w, "packSha256", e->pack_sha);
    if (e->subject) ht_jw_kstr(w, "sha256", e->subject->model);
    ht_jw_kstr(w, "contract", e->contract);
    ht_jw_kuint(w, "projections", e->n_proj);
    ht_jw_kuint(w, "quantised", e->n_quantised);
    ht_jw_kuint(w, "layers", s->n_layers);
    ht_jw_kuint(w, "dim", s->dim);
    ht_jw_kuint(w, "heads", s->n_heads);
    ht_jw_kuint(w, "kvHeads", s->n_kv_heads);
    ht_jw_kuint(w, "headDim", s->head_dim);
    ht_jw_kuint(w, "vocab", s->vocab);
    ht_jw_kuint(w, "ctxTrain", s->ctx_train);
    ht_jw_kuint(w, "window", s->window);
    ht_jw_key(w, "representations");
    ht_jw_arr(w);
    for (int i = 0; i < 2; i++)
        if (e->model->rep[i][0]) ht_jw_str(w, e->model->rep[i]);
    ht_jw_end(w, ']');
    ht_jw_end(w, '}');
}

void api__write_tokenizer(ht_jw *w, const ht_tok *t)
{
    char hex[HT_SHA256_HEX];
    const int32_t *eog = NULL;
    size_t n = ht_tok_eog(t, &eog);
    ht_jw_obj(w);
    ht_jw_kstr(w, "pre", ht_tok_pre(t));
    ht_jw_kuint(w, "size", ht_tok_size(t));
    ht_jw_kint(w, "bos", ht_tok_bos(t));
    ht_jw_kint(w, "eos", ht_tok_eos(t));
    ht_jw_kbool(w, "addBos", ht_tok_add_bos(t));
    ht_jw_kbool(w, "addEos", ht_tok_add_eos(t));
    ht_jw_key(w, "eog");
    ht_jw_arr(w);
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *text = ht_tok_text(t, eog[i], &len);
        ht_jw_obj(w);
        ht_jw_kint(w, "id", eog[i]);
        ht_jw_key(w, "text");
        ht_jw_strn(w, text ? text : "", text ? len : 0);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_hex(ht_tok_sha256(t), HT_SHA256_BYTES, hex);
    ht_jw_kstr(w, "sha256", hex);
    ht_jw_end(w, '}');
}

static void write_engines(ht_jw *w, const ht_engine *e)
{
    static const char *const name[API_PHASES] = {"prefill", "decode"};
    ht_jw_obj(w);
    for (int i = 0; i < API_PHASES; i++) {
        const api__phase *p = &e->phase[i];
        ht_jw_key(w, name[i]);
        ht_jw_obj(w);
        ht_jw_kstr(w, "engine", p->unit->be->name);
        ht_jw_kstr(w, "decision", p->forced ? "forced" : "reference");
        ht_jw_kstr(w, "reason", p->forced ? "USER" : "NO_EVIDENCE");
        ht_jw_kstr(w, "representation", p->rep);
        ht_jw_key(w, "device");
        write_describe(w, p->unit->be, p->unit->dev);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, '}');
}

int ht_engine_info(const ht_engine *e, char **json, ht_err *err)
{
    if (!e || !json) return HT_FAIL(err, HT_EARG, "ht_engine_info: engine and json must be given");
    *json = NULL;
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_jw w;
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "version", ht_version());
    ht_jw_key(&w, "model");
    write_model(&w, e);
    ht_jw_key(&w, "tokenizer");
    api__write_tokenizer(&w, e->tok);
    ht_jw_key(&w, "template");
    if (e->tmpl) ht_jw_str(&w, e->tmpl_sha);
    else ht_jw_null(&w);
    ht_jw_kstr(&w, "act", api__act_name(e->act));
    ht_jw_key(&w, "kv");
    api__write_kv(&w, e);
    ht_jw_kuint(&w, "ctx", e->ctx);
    ht_jw_kstr(&w, "ctxWhy", e->ctx_why);
    ht_jw_kuint(&w, "ubatch", e->ubatch);
    ht_jw_kuint(&w, "maxSessions", e->max_sessions);
    ht_jw_kint(&w, "threads", e->threads);
    ht_jw_kstr(&w, "threadsWhy", e->cpu.why);
    ht_jw_kstr(&w, "cpu", ht_cpu_name());
    ht_jw_key(&w, "memory");
    api__write_memory(&w, &e->mem);
    ht_jw_kuint(&w, "poolBytes", ht_pool_bytes(e->pool));
    api__whole_info(&w, e);
    ht_jw_key(&w, "engines");
    write_engines(&w, e);
    api__write_hand(&w, e, 0);
    ht_jw_end(&w, '}');
    return api__take_json(&b, json, err);
}

int ht_engines_describe(char **json, ht_err *err)
{
    if (!json) return HT_FAIL(err, HT_EARG, "ht_engines_describe: json must be given");
    *json = NULL;
    ht_buf b;
    ht_buf_init(&b, 0);
    ht_jw w;
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_key(&w, "engines");
    ht_jw_arr(&w);
    for (const ht_backend *const *be = ht_backends; *be; be++) {
        ht_dev *dev = NULL;
        ht_err why = {0};
        int rc = (*be)->open(&dev, "", &why);
        ht_jw_obj(&w);
        ht_jw_kstr(&w, "name", (*be)->name);
        ht_jw_kbool(&w, "available", !rc);
        ht_jw_kstr(&w, "why", rc ? why.msg : "opened");
        if (!rc) {
            ht_jw_key(&w, "describe");
            write_describe(&w, *be, dev);
        }
        ht_jw_end(&w, '}');
        if (!rc) (*be)->close(dev);
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    return api__take_json(&b, json, err);
}
