/* group.c - a device of several ranks: how a model is dealt out over them, what is refused, and the
 * copies by which each rank gets what the others have written.
 *
 * Q, K and V go by heads; the other matrices by rows, gate and up by pairs of them; the embedding
 * is on rank 0 alone. A sum is one row's or one head's, so its order, and with it its bits, does
 * not see the group. Between stages every rank has all of X, A and H:
 *
 *   embed                X from rank 0
 *   attn                 A, each rank its heads' columns
 *   attn_out, ffn_down   X, each rank its rows' columns
 *   ffn_up               H, the same */
#include "backend/cuda/cuda.h"
#include "quant/quant.h"

enum { TILE_ROWS = 16 }; /* of layout r16/1 */

/* ---- dealing --------------------------------------------------------------------------------- */

cuda_share cuda__share(uint32_t size, uint32_t rank, uint32_t rows, enum cuda_deal deal)
{
    if (deal == CUDA_ALL) return (cuda_share){0, rows};
    uint32_t per = (rows + size - 1) / size;
    if (deal == CUDA_TILES) per = (per + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const uint32_t first = rank * per < rows ? rank * per : rows;
    return (cuda_share){first, rows - first < per ? rows - first : per};
}

/* Heads of layer y begin within a tile of this weight. */
static bool within_tile(const ht_dev *dev, const ht_weight *w)
{
    for (; w; w = w->alt)
        if (w->layout != HT_LAYOUT_ROWS && w->rows / dev->size % TILE_ROWS) return true;
    return false;
}

static int check_layer(const ht_dev *dev, const ht_model *m, uint32_t y, ht_err *e)
{
    const ht_layer *l = &m->layer[y];
    if (m->spec.layer[y].moe)
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "cuda: ranks=%u: layer %u has experts, which are not dealt out; leave ranks= "
            "away, or use another engine",
            dev->size, y);
    if (within_tile(dev, &l->q) || within_tile(dev, &l->k) || within_tile(dev, &l->v))
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "cuda: ranks=%u: a rank's heads of layer %u begin inside a tile of 16 rows of "
            "layout r16/1; use fewer ranks, or the file the pack was made of",
            dev->size, y);
    return 0;
}

int cuda__group_model(const ht_dev *dev, const ht_model *m, ht_err *e)
{
    const ht_spec *s = &m->spec;
    const struct {
        const char *what;
        uint32_t rows;
    } by_rows[] = {{"width", s->dim}, {"hidden width", s->ffn}, {"vocabulary", s->vocab}};
    if (dev->size == 1) return 0;
    if (s->n_heads % dev->size || s->n_kv_heads % dev->size)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cuda: ranks=%u does not divide the model's %u heads and %u KV heads; use a "
                       "number that divides both",
                       dev->size, s->n_heads, s->n_kv_heads);
    if (s->post_norm)
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "cuda: ranks=%u: the model norms outputs of attention and feed-forward, which "
            "needs whole rows before they are exchanged; leave ranks= away",
            dev->size);
    for (uint32_t y = 0; y < s->n_layers; y++) HT_TRY(check_layer(dev, m, y, e));
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
        if (cuda__share(dev->size, dev->size - 1, by_rows[i].rows, CUDA_TILES).rows == 0)
            return HT_FAIL(
                e, HT_EUNSUPPORTED,
                "cuda: ranks=%u: a %s of %u leaves a rank without one of its tiles of 16; "
                "use fewer ranks",
                dev->size, by_rows[i].what, by_rows[i].rows);
    return 0;
}

int cuda__group_plan(const ht_dev *dev, const ht_stage *tape, const ht_cut *cut, size_t n_cuts,
                     const ht_bucket *b, ht_err *e)
{
    if (dev->size == 1) return 0;
    if (b->act != HT_ACT_F32)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cuda: ranks=%u: a group computes in act f32 only; use --act f32, or leave "
                       "ranks= away",
                       dev->size);
    for (size_t i = 0; i < n_cuts; i++)
        if (tape[cut[i].at + cut[i].n - 1].kind == HT_SAMPLE)
            return HT_FAIL(e, HT_EUNSUPPORTED,
                           "cuda: ranks=%u: no rank has all logits to pick a token from; sample on "
                           "the host, or leave ranks= away",
                           dev->size);
    return 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

cuda_rows cuda__rows_on_device(cuda_ptr at, size_t pitch)
{
    return (cuda_rows){.kind = CUDA_DEVICE, .dev = at, .pitch = pitch};
}
cuda_rows cuda__rows_on_host(const void *at, size_t pitch)
{
    return (cuda_rows){.kind = CUDA_HOST, .host = at, .pitch = pitch};
}

int cuda__copy_rows(const ht_dev *dev, const cuda_copy2d *c, cuda_stream stream)
{
    const cuda_rows *to = &c->to, *from = &c->from;
    const size_t n = c->width * c->rows;
    if (c->rows > 1 && (to->pitch != c->width || from->pitch != c->width))
        return dev->api.copy2d(c, stream);
    if (to->kind == CUDA_HOST)
        return dev->api.to_host((void *)(uintptr_t)to->host, from->dev, n, stream);
    if (from->kind == CUDA_HOST) return dev->api.to_device(to->dev, from->host, n, stream);
    return dev->api.within(to->dev, from->dev, n, stream);
}

bool cuda__heads_apart(const ht_plan *p)
{
    return p->dev->size > 1 && cuda__rows_now(p) > 1;
}

/* The register whose columns the ranks have written, where a rank has all of it. */
static cuda_ptr whole(const cuda_rank *r, int reg)
{
    return reg == HT_REG_A ? r->a : reg == HT_REG_H ? r->h : r->x_now;
}

/* The columns s of a register of n, which rank `from` has written, to all who lack them. */
static int spread(ht_plan *p, const ht_stage *st, int reg, uint32_t n, uint32_t from, cuda_share s,
                  ht_err *e)
{
    const cuda_rank *r = &p->rank[from];
    const bool apart = reg == HT_REG_A && cuda__heads_apart(p);
    const size_t row = 4 * (size_t)n, width = 4 * (size_t)s.rows, first = 4 * (size_t)s.first;
    const cuda_rows src = apart ? cuda__rows_on_device(r->own_a, width)
                                : cuda__rows_on_device(whole(r, reg) + first, row);
    for (uint32_t to = 0; to < p->dev->size; to++) {
        if (to == from && !apart) continue;
        cuda_op *op = cuda__op(p, st, NULL, 0, 0, 0, 0, e);
        if (!op) return e ? e->code : HT_EARG;
        op->args.copy =
            (cuda_copy2d){.from = src,
                          .to = cuda__rows_on_device(whole(&p->rank[to], reg) + first, row),
                          .width = width,
                          .rows = cuda__rows_now(p)};
        p->n_copies++;
        if (to != from) p->exchanged += (uint64_t)width * op->args.copy.rows;
    }
    return 0;
}

int cuda__group_exchange(ht_plan *p, const ht_stage *st, ht_err *e)
{
    const ht_spec *s = &p->m->spec;
    const uint32_t size = p->dev->size;
    uint32_t n = s->dim;
    int reg = HT_REG_X;
    enum cuda_deal deal = CUDA_TILES;
    if (size == 1) return 0;
    switch (st->kind) {
    case HT_EMBED: return spread(p, st, reg, n, 0, (cuda_share){0, n}, e);
    case HT_ATTN: reg = HT_REG_A, n = s->n_heads * s->head_dim, deal = CUDA_EVEN; break;
    case HT_FFN_UP: reg = HT_REG_H, n = s->ffn; break;
    case HT_ATTN_OUT:
    case HT_FFN_DOWN: break;
    default: return 0; /* Q and the chosen rows stay with their rank */
    }
    for (uint32_t from = 0; from < size; from++)
        HT_TRY(spread(p, st, reg, n, from, cuda__share(size, from, n, deal), e));
    return 0;
}
