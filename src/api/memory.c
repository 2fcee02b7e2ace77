/* memory.c - how many bytes an engine takes, worked out before they are taken: by the memory check
 * of ht_engine_open and by ht_inspect. The same code serves both, so that what inspect promises is
 * what open does. */
#include "api/api.h"

uint8_t *api__layer_class(const ht_spec *spec, ht_arena *arena)
{
    uint8_t *cls = ht_arena_array(arena, spec->n_layers, sizeof *cls);
    if (!cls) return NULL;
    for (uint32_t l = 0; l < spec->n_layers; l++)
        cls[l] = spec->layer[l].window && spec->window ? HT_KV_WINDOW : HT_KV_FULL;
    return cls;
}

uint16_t api__kv_fmt(const api__kv *kv)
{
    return (uint16_t)(kv->base[0] | kv->base[1] << 8);
}

void api__pool_params(const ht_spec *spec, const uint8_t *layer_class, const api__kv *kv,
                      uint32_t ctx, uint32_t n_sessions, uint32_t ubatch, ht_pool_params *out)
{
    *out = (ht_pool_params){.n_layers = spec->n_layers,
                            .n_kv_heads = spec->n_kv_heads,
                            .head_dim = spec->head_dim,
                            .layer_class = layer_class,
                            .type_k = kv->base[0],
                            .type_v = kv->base[1],
                            .layer_type = (const uint8_t(*)[2])kv->layer};
    bool seen[HT_KV_CLASSES] = {false, false};
    for (uint32_t l = 0; l < spec->n_layers; l++) seen[layer_class[l]] = true;
    out->window = seen[HT_KV_WINDOW] ? spec->window : 0;
    ht_pool_size(ctx, n_sessions, out->window, ubatch, out->n_pages);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (!seen[c]) out->n_pages[c] = 0;
        if (seen[c] && kv->packs) out->n_raw[c] = ht_pool_raw(n_sessions, ubatch);
    }
}

/* Bytes of the registers of one plan, for a backend that does not state its own: X twice (residual
 * and normed), Q and A, H, R, the wanted rows' logits. f32. */
static uint64_t registers(const ht_spec *s, const ht_bucket *b)
{
    uint64_t ffn = s->ffn;
    uint64_t moe = (uint64_t)s->n_experts_used * s->expert_ffn + s->shared_ffn;
    uint64_t row = 2u * (uint64_t)s->dim + 2u * (uint64_t)s->n_heads * s->head_dim +
                   (ffn > moe ? ffn : moe) + 2u * (uint64_t)s->n_experts_used;
    return 4u * (b->rows * row + (uint64_t)b->want * s->vocab);
}

static bool in_file(const ht_file *f, const void *p)
{
    for (size_t i = 0; i < ht_file_n_parts(f); i++) {
        const ht_map *part = ht_file_part(f, i);
        if ((uintptr_t)p - (uintptr_t)part->p < part->n) return true;
    }
    return false;
}

/* Bytes of the model's tensors where they lie: in the mapped file, or in memory of the model's own
 * (reordered rows, vectors). */
static void place(const ht_file *f, const ht_named *names, size_t n, uint64_t *mapped,
                  uint64_t *owned)
{
    *mapped = *owned = 0;
    for (size_t i = 0; i < n; i++) {
        if (!names[i].w) *owned += 4u * (uint64_t)names[i].n;
        for (const ht_weight *w = names[i].w; w; w = w->alt)
            *(in_file(f, w->data) ? mapped : owned) += w->bytes;
    }
}

int api__memory_of(const api__phase phase[API_PHASES], const ht_file *f, const ht_model *m,
                   const ht_stage *tape, size_t n_tape, const ht_bucket bucket[API_PHASES],
                   const ht_pool_params *pool, api__memory *out, ht_err *err)
{
    *out = (api__memory){0};
    size_t n = ht_model_names(m, NULL, 0);
    ht_named *names = ht_mem_array(n ? n : 1, sizeof *names);
    if (!names) return HT_FAIL(err, HT_ENOMEM, "no memory for the list of %zu tensors", n);
    uint64_t owned = 0, in_place = 0;
    place(f, names, ht_model_names(m, names, n), &out->mapped, &owned);
    ht_mem_free(names);
    for (int p = 0; p < API_PHASES; p++) {
        const api__unit *u = phase[p].unit;
        ht_footprint fp = {.in_place = out->mapped + owned,
                           .scratch = registers(&m->spec, &bucket[p])};
        if (u->be->footprint)
            HT_TRY(u->be->footprint(u->dev, m, tape, n_tape, &bucket[p], &fp, err));
        out->scratch += fp.scratch;
        if (p == API_PREFILL || u != phase[API_PREFILL].unit) out->copied += fp.copied;
        if (fp.in_place > in_place) in_place = fp.in_place;
    }
    /* The model's own memory stays whether it is read or not; mapped pages that nobody reads any
     * more go when the system needs room. */
    const uint64_t mapped_read = in_place > owned ? in_place - owned : 0;
    out->weights = out->copied + owned + mapped_read;
    out->owned = owned;
    out->kv = pool ? ht_pool_estimate(pool) : 0;
    /* A pool that no address space holds is UINT64_MAX; it must not wrap to something small. */
    out->total = out->kv == UINT64_MAX ? UINT64_MAX : out->weights + out->kv + out->scratch;
    return 0;
}

void api__write_memory(ht_jw *w, const api__memory *m)
{
    ht_jw_obj(w);
    ht_jw_kuint(w, "mappedBytes", m->mapped);
    ht_jw_kuint(w, "weightsBytes", m->weights);
    ht_jw_kuint(w, "copiedBytes", m->copied);
    ht_jw_kuint(w, "ownedBytes", m->owned);
    ht_jw_kuint(w, "kvBytes", m->kv);
    ht_jw_kuint(w, "scratchBytes", m->scratch);
    ht_jw_kuint(w, "totalBytes", m->total);
    ht_jw_end(w, '}');
}
