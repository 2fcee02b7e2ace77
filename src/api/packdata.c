/* packdata.c - the bytes of a pack's tensors, made by the team a few megabytes at a time, so that
 * packing a model takes the memory of one batch whatever its size. A byte depends on the source's
 * values alone: not on threads, batches or the kind of file they came from. */
#include "api/packjob.h"
#include "quant/r16.h"
#include <stdatomic.h>
#include <string.h>

enum { BATCH_BYTES = 8 << 20, SCAN_ROWS = 64 };

/* ---- smallest lossless float type ------------------------------------------------------------ */

typedef struct {
    const ht_weight *w;
    float *row; /* [ranks, cols]                                                       */
    ht_team *team;
    atomic_bool f16, bf16; /* still possible                                                      */
} scan;

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static void scan_row(const float *x, uint32_t n, bool *f16, bool *bf16)
{
    bool a = true, b = true;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = bits_of(x[i]);
        a = a && bits_of(ht_f16_to_f32(ht_f32_to_f16(x[i]))) == u;
        b = b && (u & 0xffff) == 0;
    }
    *f16 = a;
    *bf16 = b;
}

static void scan_rank(void *arg, int rank, int size)
{
    scan *s = arg;
    const ht_weight *w = s->w;
    const uint64_t rows = (uint64_t)w->rows * w->n_mats;
    const uint32_t n = (uint32_t)((rows + SCAN_ROWS - 1) / SCAN_ROWS);
    float *row = s->row + (size_t)rank * w->cols;
    (void)size;
    for (uint32_t c = ht_team_next(s->team, n); c < n; c = ht_team_next(s->team, n)) {
        for (uint64_t r = (uint64_t)c * SCAN_ROWS; r < rows && r < (uint64_t)(c + 1) * SCAN_ROWS;
             r++) {
            bool f16 = false, bf16 = false;
            if (!atomic_load(&s->f16) && !atomic_load(&s->bf16)) return;
            ht_weight_row(w, (uint32_t)(r / w->rows), (uint32_t)(r % w->rows), row);
            scan_row(row, w->cols, &f16, &bf16);
            if (!f16) atomic_store(&s->f16, false);
            if (!bf16) atomic_store(&s->bf16, false);
        }
    }
}

int api__float_type(api__packjob *j, const ht_weight *w, uint8_t *type, ht_err *err)
{
    scan s = {.w = w, .team = j->team};
    atomic_init(&s.f16, true);
    atomic_init(&s.bf16, true);
    s.row = ht_mem_array((size_t)ht_team_size(j->team) * w->cols, sizeof *s.row);
    if (!s.row) return HT_FAIL(err, HT_ENOMEM, "no memory to scan rows of %u columns", w->cols);
    ht_team_reset(j->team);
    ht_team_run(j->team, scan_rank, &s);
    ht_mem_free(s.row);
    *type = atomic_load(&s.f16) ? HT_F16 : atomic_load(&s.bf16) ? HT_BF16 : HT_F32;
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* One batch: tiles [tile0, tile0+n) of matrix m. A tile is 16 rows in either layout. */
typedef struct {
    const api__item *it;
    ht_team *team;
    uint32_t m, n;
    uint64_t tile0, tile_bytes, row_bytes; /* row_bytes: of rows/1 in the stored type             */
    uint8_t *out;                          /* [n, tile_bytes]                                     */
    float *row;                            /* [ranks, cols]                                       */
    uint8_t *rows;                         /* [ranks, 16, row_bytes]                              */
} batch;

/* Rows/1 form of one row of the item in its stored type. */
static void make_row(const batch *b, uint32_t r, float *x, uint8_t *dst)
{
    const ht_weight *w = b->it->w;
    if (b->it->as_is && w->layout == HT_LAYOUT_ROWS) {
        memcpy(dst, (const uint8_t *)w->data + b->m * w->mat_bytes + r * w->row_bytes,
               b->row_bytes);
        return;
    }
    ht_weight_row(w, b->m, r, x);
    if (b->it->type == HT_F32) memcpy(dst, x, b->row_bytes);
    else ht_types[b->it->type].encode(x, dst, w->cols);
}

static void make_tile(const batch *b, uint32_t t, float *x, uint8_t *rows)
{
    const api__item *it = b->it;
    const ht_weight *w = it->w;
    uint8_t *out = b->out + t * b->tile_bytes;
    const uint64_t tile = b->tile0 + t, r0 = tile * HT_R16_ROWS;
    if (it->as_is && w->layout == HT_LAYOUT_R16) {
        memcpy(out, (const uint8_t *)w->data + b->m * w->mat_bytes + tile * b->tile_bytes,
               b->tile_bytes);
        return;
    }
    const uint32_t n = (uint32_t)(w->rows - r0 < HT_R16_ROWS ? w->rows - r0 : HT_R16_ROWS);
    uint8_t *dst = it->layout == HT_LAYOUT_R16 ? rows : out;
    for (uint32_t i = 0; i < n; i++) make_row(b, (uint32_t)r0 + i, x, dst + i * b->row_bytes);
    if (it->layout == HT_LAYOUT_R16) ht_r16_pack(it->type, rows, n, w->cols, 0, 1, out);
}

static void batch_rank(void *arg, int rank, int size)
{
    const batch *b = arg;
    float *x = b->row + (size_t)rank * b->it->w->cols;
    uint8_t *rows = b->rows + (size_t)rank * HT_R16_ROWS * b->row_bytes;
    (void)size;
    for (uint32_t t = ht_team_next(b->team, b->n); t < b->n; t = ht_team_next(b->team, b->n))
        make_tile(b, t, x, rows);
}

static int progress(api__packjob *j, uint64_t bytes, ht_err *err)
{
    j->done += bytes;
    if (j->p->progress && j->p->progress(j->p->user, "packed bytes", j->done, j->total))
        return HT_FAIL(err, HT_ECANCELLED, "packing was cancelled");
    return 0;
}

/* All batches of the item with the buffers in place; cap tiles fit b->out. */
static int write_batches(api__packjob *j, batch *b, uint32_t cap, ht_packer *pk, ht_err *err)
{
    const ht_weight *w = b->it->w;
    const uint64_t tiles = ((uint64_t)w->rows + HT_R16_ROWS - 1) / HT_R16_ROWS;
    for (b->m = 0; b->m < w->n_mats; b->m++) {
        for (b->tile0 = 0; b->tile0 < tiles; b->tile0 += b->n) {
            b->n = tiles - b->tile0 < cap ? (uint32_t)(tiles - b->tile0) : cap;
            ht_team_reset(j->team);
            ht_team_run(j->team, batch_rank, b);
            uint64_t bytes = b->n * b->tile_bytes;
            if (b->it->layout == HT_LAYOUT_ROWS &&
                b->tile0 + b->n == tiles) /* no padding rows there */
                bytes -= (tiles * HT_R16_ROWS - w->rows) * b->row_bytes;
            HT_TRY(ht_packer_write(pk, b->out, bytes, err));
            HT_TRY(progress(j, bytes, err));
        }
    }
    return 0;
}

int api__item_write(api__packjob *j, const api__item *it, ht_packer *pk, ht_err *err)
{
    if (!it->w) {
        HT_TRY(ht_packer_write(pk, it->named->vec, 4u * (size_t)it->named->n, err));
        return progress(j, it->bytes, err);
    }
    const size_t ranks = (size_t)ht_team_size(j->team);
    batch b = {.it = it, .team = j->team};
    if (!ht_row_bytes(it->type, it->w->cols, &b.row_bytes))
        return HT_FAIL(err, HT_EUNSUPPORTED, "tensor %s: %u columns do not fit type %s",
                       it->named->name, it->w->cols, ht_types[it->type].name);
    b.tile_bytes = it->layout == HT_LAYOUT_R16 ? ht_r16_tile_bytes(it->type, it->w->cols)
                                               : HT_R16_ROWS * b.row_bytes;
    const uint64_t tiles = ((uint64_t)it->w->rows + HT_R16_ROWS - 1) / HT_R16_ROWS;
    uint64_t cap = BATCH_BYTES / b.tile_bytes;
    cap = cap < 1 ? 1 : cap > tiles ? tiles : cap;
    b.out = ht_mem_array((size_t)cap, (size_t)b.tile_bytes);
    b.row = ht_mem_array(ranks * it->w->cols, sizeof *b.row);
    b.rows = ht_mem_array(ranks * HT_R16_ROWS, (size_t)b.row_bytes);
    int rc = b.out && b.row && b.rows
                 ? write_batches(j, &b, (uint32_t)cap, pk, err)
                 : HT_FAIL(err, HT_ENOMEM, "no memory to pack tensor %s", it->named->name);
    ht_mem_free(b.out);
    ht_mem_free(b.row);
    ht_mem_free(b.rows);
    return rc;
}
