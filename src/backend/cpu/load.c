/* load.c - weights into the layout that kernels read. A pack in r16/1 is read in place; rows/1
 * (GGUF, Hugging Face folders) is interleaved by the team into memory of the device's own. */
#include "backend/cpu/cpu.h"
#include "core/map.h"
#include "quant/r16.h"
#include <string.h>

enum { WEIGHTS_PER_LAYER = 15, ALIGN = 64 };
typedef void (*weight_fn)(void *, const ht_weight *);

/* fn for every weight that a product reads, alternates included. */
static void each_weight(const ht_model *m, weight_fn fn, void *user)
{
    for (uint32_t i = 0; i < m->spec.n_layers; i++) {
        const ht_layer *l = &m->layer[i];
        const ht_weight *w[WEIGHTS_PER_LAYER] = {&l->q,      &l->k,      &l->v,       &l->o,
                                                 &l->gate,   &l->up,     &l->down,    &l->router,
                                                 &l->e_gate, &l->e_up,   &l->e_down,  &l->s_gate,
                                                 &l->s_up,   &l->s_down, &l->s_router};
        for (int j = 0; j < WEIGHTS_PER_LAYER; j++)
            for (const ht_weight *v = w[j]; v; v = v->alt)
                if (v->data) fn(user, v);
    }
    for (const ht_weight *v = &m->head; v; v = v->alt)
        if (v->data) fn(user, v);
}

typedef struct {
    ht_dev *dev; /* NULL: only add up                                            */
    uint64_t copied, in_place, at;
    int rc;
    ht_err *e;
} loader;

static uint64_t round_up(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Memory a repacked weight takes; 0: it cannot be repacked. */
static uint64_t copy_bytes(const ht_weight *w)
{
    uint64_t one, all;
    int type = ht_r16_type(w->type);
    if (type < 0 || !ht_r16_bytes(type, w->rows, w->cols, &one)) return 0;
    if (__builtin_mul_overflow(round_up(one), (uint64_t)w->n_mats, &all)) return 0;
    return all;
}

static void count(void *user, const ht_weight *w)
{
    loader *l = user;
    if (w->layout == HT_LAYOUT_R16) {
        l->in_place += w->bytes;
        return;
    }
    uint64_t n = copy_bytes(w);
    if (!n && !l->rc)
        l->rc =
            HT_FAIL(l->e, HT_EUNSUPPORTED, "cpu: a weight of %u x %u in type %s has no r16 form",
                    w->rows, w->cols, ht_type_of(w->type) ? ht_types[w->type].name : "?");
    l->copied += n;
}

/* Enter a weight in the table; its copy is filled later, by the team. */
static void enter(void *user, const ht_weight *w)
{
    loader *l = user;
    cpu_mat *m = &l->dev->mat[w->id];
    if (m->p) return;
    int type = w->layout == HT_LAYOUT_R16 ? w->type : ht_r16_type(w->type);
    *m = (cpu_mat){.rows = w->rows,
                   .cols = w->cols,
                   .type = (uint8_t)type,
                   .act_f32 = w->act_f32,
                   .tile_bytes = ht_r16_tile_bytes(type, w->cols)};
    if (w->layout == HT_LAYOUT_R16) {
        m->p = w->data;
        m->mat_bytes = w->mat_bytes;
        l->dev->n_in_place++;
        return;
    }
    m->p = l->dev->copy + l->at;
    m->mat_bytes = round_up(m->tile_bytes * cpu__tiles(w->rows));
    l->at += m->mat_bytes * w->n_mats;
    l->dev->n_copied++;
    l->dev->n_widened += type != w->type;
}

typedef struct {
    ht_dev *dev;
    int rank, size;
} packer;
static void pack_share(void *user, const ht_weight *w)
{
    const packer *k = user;
    const cpu_mat *m = &k->dev->mat[w->id];
    uint32_t t0, t1;
    if (w->layout == HT_LAYOUT_R16) return;
    ht_team_share(cpu__tiles(w->rows), 1, k->rank, k->size, &t0, &t1);
    size_t r0 = (size_t)t0 * CPU_LANES, r1 = (size_t)t1 * CPU_LANES;
    if (r1 > w->rows) r1 = w->rows;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        const uint8_t *src = (const uint8_t *)w->data + i * w->mat_bytes;
        ht_r16_pack(w->type, src, w->rows, w->cols, t0, t1,
                    k->dev->copy + (size_t)(m->p - k->dev->copy) + i * m->mat_bytes);
        /* A file read in place would otherwise stand in memory twice. */
        ht_map_drop(src + r0 * w->row_bytes, (r1 - r0) * w->row_bytes);
    }
}
static void pack_rank(void *arg, int rank, int size)
{
    packer k = {arg, rank, size};
    each_weight(k.dev->model, pack_share, &k);
}

void cpu__unload(ht_dev *dev)
{
    if (dev->copy) ht_page_free(dev->copy, dev->copy_bytes);
    ht_mem_free(dev->mat);
    dev->copy = NULL;
    dev->copy_bytes = 0;
    dev->mat = NULL;
    dev->model = NULL;
    dev->n_copied = dev->n_in_place = dev->n_widened = 0;
}

int cpu__load(ht_dev *dev, const ht_model *m, ht_err *e)
{
    loader l = {.dev = dev, .e = e};
    cpu__unload(dev);
    each_weight(m, count, &l);
    if (l.rc) return l.rc;
    dev->mat = ht_mem_array(m->n_weights ? m->n_weights : 1, sizeof *dev->mat);
    if (!dev->mat)
        return HT_FAIL(e, HT_ENOMEM, "cpu: table of %u weights: out of memory", m->n_weights);
    if (l.copied) {
        dev->copy = l.copied <= SIZE_MAX ? ht_page_alloc((size_t)l.copied) : NULL;
        if (!dev->copy) {
            cpu__unload(dev);
            return HT_FAIL(
                e, HT_ENOMEM,
                "cpu: %llu MiB for interleaved weights refused; make a pack of the model "
                "(read in place), or free memory",
                (unsigned long long)(l.copied >> 20));
        }
        dev->copy_bytes = (size_t)l.copied;
    }
    dev->model = m;
    each_weight(m, enter, &l);
    if (dev->copy) ht_team_run(dev->team, pack_rank, dev);
    return 0;
}

/* What load() copies, what stays where the model has it, and a plan's scratch. */
int cpu__footprint(const ht_dev *dev, const ht_model *m, const ht_stage *tape, size_t n_tape,
                   const ht_bucket *b, ht_footprint *out, ht_err *e)
{
    loader l = {.e = e};
    (void)tape;
    (void)n_tape;
    each_weight(m, count, &l);
    if (l.rc) return l.rc;
    *out = (ht_footprint){
        .copied = l.copied, .in_place = l.in_place, .scratch = cpu__scratch_bytes(dev, m, b)};
    if (m->embed.data != m->head.data) out->in_place += m->embed.bytes;
    return 0;
}
