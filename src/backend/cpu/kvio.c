/* kvio.c - what QKV and attention have to do with the KV cache: the rotations of its types, where
 * rows are written, and packing the pages that the rows of a batch read packed. */
#include "backend/cpu/cpu.h"
#include <string.h>

static uint32_t n_table(const ht_plan *p)
{
    return (p->b.ctx + HT_PAGE - 1) / HT_PAGE;
}

static void turn_signs(const ht_plan *p, float *x)
{
    for (uint32_t i = 0; i < p->m->spec.head_dim; i++) x[i] *= p->kv_sign[i];
}

void cpu__kv_centre(cpu_run *r, int layer, uint32_t head, float *k)
{
    const float *mean = ht_kv_mean(r->p->kv, (uint32_t)layer, head);
    for (uint32_t i = 0; mean && i < r->p->m->spec.head_dim; i++) k[i] -= mean[i];
}

void cpu__kv_turn(cpu_run *r, int layer, int which, float *v)
{
    const ht_plan *p = r->p;
    const uint8_t *type = p->kv->type[layer];
    const uint32_t hd = p->m->spec.head_dim;
    if (which == 2 ? !ht_kv_rotates_v(type[1]) : !ht_kv_rotates(type[0], hd)) return;
    float scale[2]; /* K and V, Q */
    ht_kv_rotation(hd, &scale[0], &scale[1]);
    if (ht_kv_signs(type[which == 2])) turn_signs(p, v);
    r->k->hadamard(v, hd, scale[which == 0]);
}

void cpu__kv_turn_back(cpu_run *r, int layer, float *a)
{
    const ht_plan *p = r->p;
    const uint32_t hd = p->m->spec.head_dim;
    if (!ht_kv_rotates_v(p->kv->type[layer][1])) return;
    float scale[2];
    ht_kv_rotation(hd, &scale[0], &scale[1]);
    r->k->hadamard(a, hd, scale[1]);
    turn_signs(p, a);
}

void cpu__kv_put(cpu_run *r, int layer, int is_v, uint32_t row, uint32_t head, const float *v)
{
    const ht_kv *kv = r->p->kv;
    const ht_batch *b = r->p->batch;
    uint32_t pos = (uint32_t)b->pos[row];
    uint32_t page =
        b->page[kv->layer_class[layer]][(size_t)b->seq[row] * n_table(r->p) + pos / HT_PAGE];
    int as = kv->type[layer][is_v] == HT_KV_F32 ? HT_KV_F32 : HT_KV_F16;
    uint8_t *rows = ht_kv_head(kv, (uint32_t)layer, is_v, page, head, true);
    size_t elem = as == HT_KV_F32 ? 4 : 2;
    r->k->kv_put[as](v, kv->head_dim, rows + (size_t)(pos % HT_PAGE) * kv->head_dim * elem);
}

void cpu__kv_todo(ht_plan *p)
{
    const ht_batch *b = p->batch;
    struct ht_batch_view v = {b->rows, n_table(p), b->pos, b->seq, b->page};
    p->n_todo = p->kv ? ht_kv_todo_of(p->kv, &v, p->todo, p->cap_todo) : 0;
}

/* A unit is a page's head, K or V. */
void cpu__kv_pack(cpu_run *r, const ht_stage *st)
{
    const ht_plan *p = r->p;
    const ht_kv *kv = p->kv;
    uint32_t u0, u1;
    if (!p->n_todo) return;
    cpu__share(r, p->n_todo * kv->n_kv_heads * 2, &u0, &u1);
    for (uint32_t u = u0; u < u1 && !cpu__cancelled(r); u++) {
        const ht_kv_todo *t = &p->todo[u / 2 / kv->n_kv_heads];
        int is_v = (int)(u % 2);
        if (t->kv_class == kv->layer_class[st->layer] && ht_kv_packs(kv->type[st->layer][is_v]))
            ht_kv_pack_head(kv, (uint32_t)st->layer, is_v, t->id, u / 2 % kv->n_kv_heads);
    }
}

bool cpu__kv_layer_packs(const ht_kv *kv, int layer)
{
    return kv && (ht_kv_packs(kv->type[layer][0]) || ht_kv_packs(kv->type[layer][1]));
}
