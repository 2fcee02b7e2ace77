/* host.c - what engines whose memory the host addresses have in common: the KV members of
 * ht_backend, and the check that stands before every run. */
#include "core/arena.h"
#include "model/model.h"
#include "step/kvpool.h"
#include "step/step.h"

#include <string.h>

int ht_host_kv_alloc(ht_dev *dev, size_t bytes, void **mem, ht_err *e)
{
    (void)dev;
    *mem = ht_page_alloc(bytes);
    return *mem ? 0 : HT_FAIL(e, HT_ENOMEM, "%zu MiB for the KV cache refused", bytes >> 20);
}

/* Checked because a pool may come with a type that is younger than the engine. */
int ht_host_kv_attach(ht_dev *dev, ht_kv *kv, ht_err *e)
{
    (void)dev;
    if (kv->device)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "this engine cannot address a KV cache in a device's memory");
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2; v++)
            if (kv->type[i][v] >= HT_KVTYPES || !ht_kvtype_fits(kv->type[i][v], kv->head_dim))
                return HT_FAIL(e, HT_EUNSUPPORTED, "this engine does not read KV type %s",
                               ht_kvtype_name(kv->type[i][v]));
    return 0;
}

static int check_page(const ht_kv *kv, int kv_class, uint32_t page, ht_err *e)
{
    if (kv_class < 0 || kv_class >= HT_KV_CLASSES || page >= kv->n_pages[kv_class])
        return HT_FAIL(e, HT_EARG, "page %u of KV class %d does not exist", page, kv_class);
    return 0;
}

int ht_host_page_copy(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t dst, uint32_t src, ht_err *e)
{
    (void)dev;
    HT_TRY(check_page(kv, kv_class, dst, e));
    HT_TRY(check_page(kv, kv_class, src, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            memcpy(kv->plane[i][v] + dst * n, kv->plane[i][v] + src * n, n);
        }
    return 0;
}

/* A page of all layers of its class as one run of bytes: layer by layer, K before V. */
int ht_host_page_io(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t page, void *host, int write,
                    ht_err *e)
{
    uint8_t *h = host;
    (void)dev;
    HT_TRY(check_page(kv, kv_class, page, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            uint8_t *at = kv->plane[i][v] + page * n;
            memcpy(write ? at : h, write ? h : at, n);
            h += n;
        }
    return 0;
}

/* Pages of equal ids from one pool to another of the same shape, for layers [layer0, layer0+n). */
int ht_host_kv_move(ht_dev *dev, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                    const uint32_t *pages, size_t n, ht_err *e)
{
    (void)dev;
    if (layer0 < 0 || n_layers < 0 || (uint32_t)layer0 + (uint32_t)n_layers > src->n_layers ||
        dst->n_layers != src->n_layers)
        return HT_FAIL(e, HT_EARG, "layers %d to %d of %u", layer0, layer0 + n_layers,
                       src->n_layers);
    for (int i = layer0; i < layer0 + n_layers; i++) {
        for (size_t k = 0; k < n; k++) {
            HT_TRY(check_page(src, src->layer_class[i], pages[k], e));
            HT_TRY(check_page(dst, dst->layer_class[i], pages[k], e));
            for (int v = 0; v < 2; v++) {
                size_t bytes = (size_t)src->page_bytes[i][v];
                if (bytes != dst->page_bytes[i][v])
                    return HT_FAIL(e, HT_EARG, "pools of different page sizes at layer %d", i);
                memcpy(dst->plane[i][v] + pages[k] * bytes, src->plane[i][v] + pages[k] * bytes,
                       bytes);
            }
        }
    }
    return 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct {
    const ht_model *m;
    const ht_kv *kv;
    const ht_bucket *k;
    const ht_batch *b;
    bool used[HT_KV_CLASSES]; /* classes that some layer has */
    bool holes;
} check;

/* Pages that row i reads or writes: from its window's first key to its own position. */
static int check_pages(const check *c, uint32_t i, int kv_class, ht_err *e)
{
    uint32_t n_table = (c->k->ctx + HT_PAGE - 1) / HT_PAGE;
    uint32_t pos = (uint32_t)c->b->pos[i], from = 0, own = pos / HT_PAGE;
    const uint32_t *table = c->b->page[kv_class];
    if (table) table += (size_t)c->b->seq[i] * n_table;
    if (kv_class == HT_KV_WINDOW && pos + 1 > c->kv->window)
        from = (pos + 1 - c->kv->window) / HT_PAGE;
    for (uint32_t k = from; k <= own; k++) {
        if (table && k < own && c->holes && kv_class == HT_KV_FULL && table[k] == HT_NOPAGE)
            continue;
        if (!table || table[k] >= c->kv->n_pages[kv_class])
            return HT_FAIL(e, HT_EARG, "row %u: position %u has no page of class %d", i,
                           k == own ? pos : k * HT_PAGE, kv_class);
    }
    return 0;
}

static int check_row(const check *c, uint32_t i, ht_err *e)
{
    const ht_batch *b = c->b;
    if (b->token && (b->token[i] < 0 || (uint32_t)b->token[i] >= c->m->spec.vocab))
        return HT_FAIL(e, HT_EARG, "row %u: token %d is not in the vocabulary of %u", i,
                       b->token[i], c->m->spec.vocab);
    if (b->seq[i] >= b->seqs)
        return HT_FAIL(e, HT_EARG, "row %u: sequence %u of %u", i, (unsigned)b->seq[i], b->seqs);
    if (b->pos[i] < 0 || (uint32_t)b->pos[i] >= c->k->ctx)
        return HT_FAIL(e, HT_EARG, "row %u: position %d is outside the context of %u", i, b->pos[i],
                       c->k->ctx);
    /* Rows of a run of positions share pages: the first reads furthest back, the last furthest
     * on. */
    bool last = i + 1 == b->rows || b->seq[i + 1] != b->seq[i] || b->pos[i + 1] != b->pos[i] + 1;
    bool first = i == 0 || b->seq[i - 1] != b->seq[i] || b->pos[i - 1] + 1 != b->pos[i];
    for (int k = 0; k < HT_KV_CLASSES && (first || last); k++)
        if (c->used[k]) HT_TRY(check_pages(c, i, k, e));
    return 0;
}

int ht_batch_check(const ht_model *m, const ht_kv *kv, const ht_bucket *k, const ht_stage *first,
                   const ht_batch *b, int holes, ht_err *e)
{
    check c = {.m = m, .kv = kv, .k = k, .b = b, .holes = holes != 0};
    if (b->rows == 0 || b->rows > k->rows || b->seqs > k->seqs || b->n_want > k->want)
        return HT_FAIL(
            e, HT_EARG, "batch of %u rows, %u sequences, %u wanted exceeds the plan's %u, %u, %u",
            b->rows, b->seqs, b->n_want, (unsigned)k->rows, (unsigned)k->seqs, (unsigned)k->want);
    if (b->slot || b->parent || b->adapter)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "this engine runs causal batches only: no draft trees, no adapters");
    if (first && first->kind == HT_EMBED && !b->token)
        return HT_FAIL(e, HT_EARG, "batch without tokens for a tape that begins with embed");
    for (uint32_t i = 0; kv && i < kv->n_layers; i++) c.used[kv->layer_class[i]] = true;
    for (uint32_t i = 0; i < b->rows; i++) HT_TRY(check_row(&c, i, e));
    for (uint32_t i = 0; i < b->n_want; i++)
        if (b->want[i] >= b->rows)
            return HT_FAIL(e, HT_EARG, "wanted row %u of %u", b->want[i], b->rows);
    return 0;
}

float *ht_batch_mass(const ht_bucket *k, const ht_batch *b, uint32_t seq, uint32_t pos,
                     uint32_t n_kv_heads, uint32_t head)
{
    if (!(k->flags & HT_WANT_MASS) || !b->mass || !b->mass[seq] || !ht_kv_observes(pos))
        return NULL;
    return b->mass[seq] + ((size_t)(pos % HT_PAGE) * n_kv_heads + head) * k->held;
}

void ht_batch_mass_clear(const ht_bucket *k, const ht_batch *b, uint32_t n_kv_heads)
{
    for (uint32_t i = 0; i < b->rows && b->mass; i++) {
        float *m = ht_batch_mass(k, b, b->seq[i], (uint32_t)b->pos[i], n_kv_heads, 0);
        if (m) memset(m, 0, (size_t)n_kv_heads * k->held * sizeof *m);
    }
}

/* Positions before `last` that a sequence has evicted. */
static uint32_t evicted(const ht_bucket *k, const ht_batch *b, uint32_t seq, uint32_t last)
{
    const uint32_t *table = b->page[HT_KV_FULL];
    uint32_t n = 0;
    if (!table) return 0;
    table += (size_t)seq * ((k->ctx + HT_PAGE - 1) / HT_PAGE);
    for (uint32_t i = 0; i < last / HT_PAGE; i++) n += table[i] == HT_NOPAGE;
    return n * HT_PAGE;
}

ht_bucket ht_batch_bucket(const ht_bucket *plan, const ht_batch *b)
{
    ht_bucket k = *plan;
    uint32_t last = 0, deepest = 0, per = (b->rows + b->seqs - 1) / (b->seqs ? b->seqs : 1);
    for (uint32_t i = 0; i < b->rows; i++)
        if ((uint32_t)b->pos[i] + 1 > last) last = (uint32_t)b->pos[i] + 1, deepest = i;
    if (k.flags & HT_WANT_MASS) k.gone = evicted(plan, b, b->seq[deepest], last);
    k.rows = (uint16_t)b->rows;
    k.seqs = (uint16_t)b->seqs;
    k.want = (uint16_t)b->n_want;
    k.past = last > per ? last - per : 0;
    return k;
}
