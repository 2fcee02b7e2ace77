/* weights.c - weights as constants of a graph. Where the compiler knows a layout it gets a view of
 * the model's own bytes; blocks of eight and four bits are taken apart into integers and scales,
 * since the compiler wants each as a tensor of its own; everything else is widened to f32, which
 * every type and layout allows without a loss. */
#include "backend/graph/graph.h"
#include "quant/blocks.h"
#include "quant/r16.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { GROUP = 32 }; /* elements of a block of q8_0 and q4_0 */

typedef struct piece {
    struct piece *next;
    void *p;
    size_t n;
} piece;
struct graph_stage_mem {
    piece *list;
    uint64_t bytes;
};

int graph__mem_new(graph_stage_mem **out, ht_err *e)
{
    *out = ht_mem_alloc(sizeof **out);
    return *out ? 0 : HT_FAIL(e, HT_ENOMEM, "graph: out of memory");
}

void graph__mem_free(graph_stage_mem *m)
{
    if (!m) return;
    for (piece *p = m->list, *next; p; p = next) {
        next = p->next;
        ht_page_free(p->p, p->n);
        ht_mem_free(p);
    }
    ht_mem_free(m);
}

void graph__mem_drop(graph_stage_mem *m)
{
    for (piece *p = m->list; p; p = p->next) (void)madvise(p->p, p->n, MADV_DONTNEED);
}

uint64_t graph__mem_bytes(const graph_stage_mem *m)
{
    return m ? m->bytes : 0;
}

static void *take(graph_stage_mem *m, size_t n, ht_err *e)
{
    piece *p = ht_mem_alloc(sizeof *p);
    void *mem = p ? ht_page_alloc(n) : NULL;
    if (!mem) {
        ht_mem_free(p);
        (void)HT_FAIL(e, HT_ENOMEM, "graph: %zu MiB for a weight refused; free memory", n >> 20);
        return NULL;
    }
    *p = (piece){m->list, mem, n};
    m->list = p;
    m->bytes += n;
    return mem;
}

/* ---- filling, shared out by rows ------------------------------------------------------------- */

typedef struct {
    const ht_weight *w;
    void (*row)(const ht_weight *, uint32_t r, const graph_const *, float *room);
    const graph_const *c;
    float *room; /* [threads,cols] */
} fill;

static void fill_rank(void *arg, int rank, int size)
{
    const fill *f = arg;
    uint32_t from, to;
    ht_team_share(f->w->rows, 1, rank, size, &from, &to);
    for (uint32_t r = from; r < to; r++) f->row(f->w, r, f->c, f->room + (size_t)rank * f->w->cols);
}

static void widen_row(const ht_weight *w, uint32_t r, const graph_const *c, float *room)
{
    (void)room;
    ht_weight_row(w, 0, r, (float *)(uintptr_t)c->data + (size_t)r * w->cols);
}

/* One scale a row: its greatest magnitude is 127. */
static void narrow_row(const ht_weight *w, uint32_t r, const graph_const *c, float *room)
{
    int8_t *to = (int8_t *)(uintptr_t)c->data + (size_t)r * w->cols;
    float top = 0;
    ht_weight_row(w, 0, r, room);
    for (uint32_t i = 0; i < w->cols; i++) top = fmaxf(top, fabsf(room[i]));
    const float step = top > 0 ? top / 127 : 1;
    ((float *)(uintptr_t)c->scale)[r] = step;
    for (uint32_t i = 0; i < w->cols; i++) to[i] = (int8_t)lrintf(room[i] / step);
}

/* Scale and levels (signed, or nibbles 0..15) of group g of row r, from either layout. */
static float read_group(const ht_weight *w, uint32_t r, uint32_t g, uint8_t level[GROUP])
{
    const uint32_t n = w->cols / GROUP;
    const uint8_t *base = w->data;
    const bool q8 = w->type == HT_Q8_0;
    if (w->layout == HT_LAYOUT_R16) { /* drawn in quant/r16.c */
        const size_t bytes = q8 ? 544 : 288, lane = r % HT_R16_ROWS;
        const uint8_t *p = base + ((size_t)(r / HT_R16_ROWS) * n + g) * bytes;
        for (uint32_t c = 0; c < (q8 ? 8u : 4u); c++)
            for (uint32_t j = 0; j < 4; j++) {
                const uint8_t b = p[32 + 64 * c + 4 * lane + j];
                if (q8) level[4 * c + j] = b ^ 0x80;
                else level[8 * c + j] = b & 15, level[8 * c + 4 + j] = b >> 4;
            }
        return ht_load_f16(p + 2 * lane);
    }
    const uint8_t *row = base + (size_t)r * w->row_bytes;
    if (q8) {
        const uint8_t *b = row + (size_t)g * sizeof(ht_block_q8_0);
        memcpy(level, b + 2, GROUP);
        return ht_load_f16(b);
    }
    const uint8_t *b = row + (size_t)g * sizeof(ht_block_q4_0);
    for (uint32_t j = 0; j < GROUP / 2; j++) {
        level[j] = b[2 + j] & 15;
        level[j + 16] = b[2 + j] >> 4;
    }
    return ht_load_f16(b);
}

static void split_row(const ht_weight *w, uint32_t r, const graph_const *c, float *room)
{
    (void)room;
    const uint32_t n = w->cols / GROUP;
    float *scale = (float *)(uintptr_t)c->scale + (size_t)r * n;
    uint8_t *data = (uint8_t *)(uintptr_t)c->data, level[GROUP];
    for (uint32_t g = 0; g < n; g++) {
        scale[g] = read_group(w, r, g, level);
        const size_t at = (size_t)r * w->cols + (size_t)g * GROUP;
        if (w->type == HT_Q8_0) {
            memcpy(data + at, level, GROUP);
        } else { /* the even element is in the low nibble */
            for (uint32_t j = 0; j < GROUP; j += 2)
                data[(at + j) / 2] = (uint8_t)(level[j] | level[j + 1] << 4);
        }
    }
}

/* ---- which form ------------------------------------------------------------------------------ */

static int float_type(int type)
{
    return type == HT_F32 ? IR_F32 : type == HT_F16 ? IR_F16 : type == HT_BF16 ? IR_BF16 : -1;
}

bool graph__narrow(const ht_model *m, const ht_bucket *b, const ht_weight *w)
{
    return b->act == HT_ACT_INT8 && w != &m->head;
}

/* Memory for a constant whose form is known, and its values. */
static int make(const ht_dev *dev, graph_stage_mem *mem, fill *f, graph_const *c, ht_err *e)
{
    c->data = take(mem, c->bytes, e);
    if (!c->data) return HT_ENOMEM;
    if (c->group) {
        c->scale = take(mem, (size_t)f->w->rows * (f->w->cols / c->group) * sizeof(float), e);
        if (!c->scale) return HT_ENOMEM;
    }
    f->room = ht_mem_array((size_t)dev->threads * f->w->cols, sizeof *f->room);
    if (!f->room) return HT_FAIL(e, HT_ENOMEM, "graph: a row of a weight: out of memory");
    ht_team_run(dev->team, fill_rank, f);
    ht_mem_free(f->room);
    return 0;
}

int graph__const(const ht_dev *dev, graph_stage_mem *mem, const ht_weight *w, bool narrow,
                 graph_const *c, ht_err *e)
{
    const int ft = float_type(w->type);
    const bool ints = (w->type == HT_Q8_0 || w->type == HT_Q4_0) && dev->ints == GRAPH_I8_KEEP;
    /* Of r16 only types whose group is one column are a plain transposed matrix. */
    const bool plain = w->layout == HT_LAYOUT_ROWS || (ft != IR_BF16 && w->rows % 16 == 0);
    size_t n = (size_t)w->rows * w->cols;
    *c = (graph_const){0};
    if (!narrow && ft >= 0 && plain && (ft == IR_F32 || dev->weights == GRAPH_W_VIEW)) {
        *c = (graph_const){.data = w->data,
                           .bytes = n * (ft == IR_F32 ? 4 : 2),
                           .type = (uint8_t)ft,
                           .tiles = w->layout == HT_LAYOUT_R16};
        return 0;
    }
    const bool nibbles = ints && !narrow && w->type == HT_Q4_0;
    c->type = (uint8_t)(nibbles ? IR_U4 : ints || narrow ? IR_I8 : IR_F32);
    c->bytes = nibbles ? n / 2 : c->type == IR_I8 ? n : 4 * n;
    c->group = narrow ? w->cols : ints ? GROUP : 0;
    if (!mem) return 0;
    fill f = {.w = w, .row = narrow ? narrow_row : ints ? split_row : widen_row, .c = c};
    return make(dev, mem, &f, c, e);
}
