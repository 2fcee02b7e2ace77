/* load.c - weights onto the device: as rows of kern.h into a place to wait, then into units by a
 * kernel. Plain numbers in rows go as they lie; all else takes the way through a tile of r16/1,
 * which has a lossless form of every type, so that one converter a device type serves every source
 * type and layout. */
#include "backend/cuda/cuda.h"
#include "quant/r16.h"

#include <string.h>

enum { TILE = HT_R16_ROWS, PIECE = 32 << 20 }; /* PIECE: bytes converted before they are sent */

int cuda__type_of(const ht_weight *w)
{
    static const int8_t of[HT_TYPES] = {
        [HT_F32] = CUDA_F32 + 1,   [HT_F16] = CUDA_F16 + 1,   [HT_BF16] = CUDA_BF16 + 1,
        [HT_Q8_0] = CUDA_Q8_0 + 1, [HT_Q4_0] = CUDA_Q4_0 + 1, [HT_Q4_1] = CUDA_Q4_1 + 1,
        [HT_Q4_K] = CUDA_Q4_K + 1, [HT_Q6_K] = CUDA_Q6_K + 1};
    int r16 = ht_r16_type(w->type);
    return r16 < 0 ? -1 : of[r16] - 1;
}

uint32_t cuda__stride(int type, uint32_t cols)
{
    uint64_t n = cols, bytes = 0;
    switch (type) {
    case CUDA_F32: bytes = (n + 7) / 8 * 32; break;
    case CUDA_F16:
    case CUDA_BF16: bytes = (n + 7) / 8 * 16; break;
    case CUDA_Q8_0: bytes = n + n / 32 * 2; break;
    case CUDA_Q4_0: bytes = n / 2 + n / 32 * 2; break;
    case CUDA_Q4_1: bytes = n / 2 + n / 32 * 4; break;
    case CUDA_Q4_K: bytes = n / 2 + n / 32 * 2 + n / 256 * 4; break;
    case CUDA_Q6_K: bytes = n / 2 + n / 4 + n / 16 + n / 256 * 2; break;
    default: break;
    }
    return (uint32_t)((bytes + 15) / 16 * 16);
}

/* ---- one row out of a tile of r16/1 (drawn in quant/r16.c) ----------------------------------- */

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

/* A lane of eight nibbles, byte j: columns j (low) and j+4 (high), as a word of kern.h. */
static uint32_t nibbles(uint32_t lane)
{
    uint32_t v = 0;
    for (uint32_t e = 0; e < 8; e++) {
        uint32_t n = lane >> (8 * (e % 4) + 4 * (e / 4)) & 15;
        v |= n << (4 * (e / 2) + 16 * (e % 2));
    }
    return v;
}

static void row_plain(int type, const uint8_t *tile, uint32_t r, uint32_t cols, uint8_t *out)
{
    for (uint32_t k = 0; k < cols; k++) {
        if (type == CUDA_F32) memcpy(out + 4 * (size_t)k, tile + 64 * (size_t)k + 4 * r, 4);
        else if (type == CUDA_F16) memcpy(out + 2 * (size_t)k, tile + 32 * (size_t)k + 2 * r, 2);
        else memcpy(out + 2 * (size_t)k, tile + 64 * (size_t)(k / 2) + 4 * r + 2 * (k % 2), 2);
    }
}

/* Blocks of 32 columns. */
static void row_blocks(int type, const uint8_t *tile, uint32_t r, uint32_t cols, uint8_t *out)
{
    const uint32_t group = type == CUDA_Q8_0 ? 544 : type == CUDA_Q4_0 ? 288 : 320;
    const uint32_t head = type == CUDA_Q4_1 ? 64 : 32, level = type == CUDA_Q8_0 ? 32 : 16;
    uint8_t *scales = out + (size_t)cols / 32 * level;
    for (uint32_t i = 0; i < cols / 32; i++) {
        const uint8_t *g = tile + (size_t)i * group;
        for (uint32_t c = 0; c < level / 4; c++) {
            uint32_t v = get32(g + head + 64 * c + 4 * r);
            put32(out + (size_t)i * level + 4 * c, type == CUDA_Q8_0 ? v : nibbles(v));
        }
        uint8_t *s = scales + (size_t)i * (head / 16);
        memcpy(s, g + 2 * r, 2);
        if (type == CUDA_Q4_1) memcpy(s + 2, g + 32 + 2 * r, 2);
    }
}

static void row_q4_k(const uint8_t *tile, uint32_t r, uint32_t cols, uint8_t *out)
{
    uint8_t *sc = out + cols / 2, *d = sc + cols / 16;
    for (uint32_t i = 0; i < cols / 256; i++) {
        const uint8_t *g = tile + (size_t)i * 2304;
        uint32_t s0 = get32(g + 64 + 4 * r), s1 = get32(g + 128 + 4 * r),
                 s2 = get32(g + 192 + 4 * r);
        for (uint32_t c = 0; c < 32; c++)
            put32(out + (size_t)i * 128 + 4 * c, nibbles(get32(g + 256 + 64 * c + 4 * r)));
        for (uint32_t j = 0; j < 8; j++) {
            sc[16 * i + 2 * j] = (uint8_t)((s0 >> 4 * j & 15) | (s2 >> 2 * j & 3) << 4);
            sc[16 * i + 2 * j + 1] = (uint8_t)((s1 >> 4 * j & 15) | (s2 >> (16 + 2 * j) & 3) << 4);
        }
        memcpy(d + (size_t)4 * i, g + 2 * r, 2);
        memcpy(d + (size_t)4 * i + 2, g + 32 + 2 * r, 2);
    }
}

static void row_q6_k(const uint8_t *tile, uint32_t r, uint32_t cols, uint8_t *out)
{
    uint8_t *hi = out + cols / 2, *sc = hi + cols / 4, *d = sc + cols / 16;
    for (uint32_t i = 0; i < cols / 256; i++) {
        const uint8_t *g = tile + (size_t)i * 3360;
        for (uint32_t c = 0; c < 16; c++) {
            uint32_t low[2] = {0, 0}, high = 0;
            for (uint32_t e = 0; e < 16; e++) {
                uint32_t level = (uint32_t)ht_r16_q6_level(g, (int)r, (int)(16 * c + e));
                low[e / 8] |= (level & 15) << (4 * (e % 8 / 2) + 16 * (e % 2));
                high |= level >> 4 << (2 * (e / 2) + 16 * (e % 2));
            }
            put32(out + (size_t)i * 128 + 8 * c, low[0]);
            put32(out + (size_t)i * 128 + 8 * c + 4, low[1]);
            put32(hi + (size_t)i * 64 + 4 * c, high);
        }
        for (uint32_t j = 0; j < 16; j++) sc[16 * i + j] = g[32 + 16 * j + r];
        memcpy(d + (size_t)2 * i, g + 2 * r, 2);
    }
}

void cuda__rows_of_tile(int type, const uint8_t *tile, uint32_t n, uint32_t cols, uint32_t stride,
                        uint8_t *out)
{
    for (uint32_t r = 0; r < n; r++, out += stride) {
        memset(out, 0, stride);
        if (type <= CUDA_BF16) row_plain(type, tile, r, cols, out);
        else if (type == CUDA_Q4_K) row_q4_k(tile, r, cols, out);
        else if (type == CUDA_Q6_K) row_q6_k(tile, r, cols, out);
        else row_blocks(type, tile, r, cols, out);
    }
}

/* ---- sending --------------------------------------------------------------------------------- */

static int send(ht_dev *dev, cuda_ptr to, const void *from, size_t n, ht_err *e)
{
    HT_TRY(
        cuda__check(dev, dev->api.to_device(to, from, n, dev->stream), "copy of weights", NULL, e));
    return cuda__sync(dev, e);
}

/* Convert to rows of kern.h and send in pieces. */
static int send_tiles(ht_dev *dev, const ht_weight *w, int type, cuda_ptr to, ht_err *e)
{
    uint64_t tile_bytes = ht_r16_tile_bytes(ht_r16_type(w->type), w->cols);
    size_t stride = cuda__stride(type, w->cols), per = PIECE / (stride * TILE) * TILE;
    if (per == 0) per = TILE;
    uint8_t *tile = ht_mem_alloc(tile_bytes), *buf = ht_mem_array(per, stride);
    int rc = tile && buf ? 0 : HT_FAIL(e, HT_ENOMEM, "cuda: no memory to convert weights");
    for (size_t at = 0; at < w->rows && !rc; at += per) {
        size_t n = w->rows - at < per ? w->rows - at : per;
        for (size_t r = 0; r < n; r += TILE) {
            const uint8_t *t = (const uint8_t *)w->data + (at + r) / TILE * tile_bytes;
            uint32_t k = (uint32_t)(n - r < TILE ? n - r : TILE);
            if (w->layout == HT_LAYOUT_ROWS) {
                ht_r16_pack(w->type, (const uint8_t *)w->data + (at + r) * w->row_bytes,
                            w->rows - at - r, w->cols, 0, 1, tile);
                t = tile;
            }
            cuda__rows_of_tile(type, t, k, w->cols, (uint32_t)stride, buf + r * stride);
        }
        rc = send(dev, to + at * stride, buf, n * stride, e);
    }
    ht_mem_free(tile);
    ht_mem_free(buf);
    return rc;
}

static int send_rows(ht_dev *dev, const ht_weight *w, int type, cuda_ptr to, ht_err *e)
{
    uint32_t stride = cuda__stride(type, w->cols);
    if (type <= CUDA_BF16 && w->layout == HT_LAYOUT_ROWS && w->row_bytes == stride)
        return send(dev, to, w->data, (size_t)w->rows * stride, e);
    return send_tiles(dev, w, type, to, e);
}

/* ---- units------------------------------------------------------------------------------------ */

cuda_mat cuda__mat(int type, uint32_t rows, uint32_t cols, uint32_t blocks)
{
    static const uint16_t row_bytes[CUDA_TYPES] = {256, 128, 128, 68, 36, 40, 40, 56};
    uint32_t per = (rows + blocks - 1) / blocks, p8 = (per + 7) / 8 * 8, p16 = (per + 15) / 16 * 16;
    cuda_mat m = {.rows = rows, .type = (uint32_t)type};
    m.unit_rows = p8 == p16 || per >= CUDA_TILE ? 16 : 8;
    m.per_block = m.unit_rows == 16 ? p16 : p8;
    m.groups = (cols + CUDA_GROUP - 1) / CUDA_GROUP;
    m.unit_bytes = m.unit_rows * row_bytes[type];
    m.layers = m.per_block / m.unit_rows;
    return m;
}
uint64_t cuda__mat_bytes(const cuda_mat *m)
{
    uint64_t blocks = (m->rows + m->per_block - 1) / m->per_block;
    return blocks * m->groups * m->layers * m->unit_bytes;
}

/* Blocks for a model: those that leave the busiest with the least work, of these the fewest; a few
 * idle multiprocessors cost less than a ragged last row of units. */
static uint32_t choose_blocks(const ht_dev *dev, const ht_spec *s)
{
    const uint32_t hd = s->head_dim, dim = cuda__share(dev->size, 0, s->dim, CUDA_TILES).rows,
                   ffn = cuda__share(dev->size, 0, s->ffn, CUDA_TILES).rows,
                   qkv = (s->n_heads + 2 * s->n_kv_heads) / dev->size * hd,
                   rows[4] = {qkv, dim, 2 * ffn, dim};
    const uint32_t cols[4] = {s->dim, s->n_heads * hd, s->dim, s->ffn};
    uint32_t found = (uint32_t)dev->sms;
    uint64_t least = UINT64_MAX;
    for (uint32_t n = (uint32_t)dev->sms; n > 0 && 4 * n >= 3 * (uint32_t)dev->sms; n--) {
        uint64_t work = 0;
        for (int i = 0; i < 4; i++)
            work += (uint64_t)cuda__mat(CUDA_F16, rows[i], 64, n).per_block * cols[i];
        if (work <= least) found = n, least = work;
    }
    /* A model too small for so many still gets the persistent kernel on half of them. */
    for (uint32_t n = found; dev->size == 1 && 2 * n >= (uint32_t)dev->sms && n > 0; n--)
        if (cuda__mega_deals(n, s)) return n;
    return found;
}

/* Matrices of one type and width into one: one after another, or two in turns, row by row. */
static int put_group(ht_dev *dev, const ht_weight *const *w, uint32_t n, bool turns, cuda_weight *c,
                     ht_err *e)
{
    int type = cuda__type_of(w[0]);
    cuda_pack a = {.stride = cuda__stride(type, w[0]->cols), .cols = w[0]->cols, .turns = turns};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) rows += w[i]->rows;
    uint64_t need = (uint64_t)rows * a.stride, at = 0;
    if (dev->stage_bytes < need) {
        if (dev->stage) (void)dev->api.free_mem(dev->stage);
        dev->stage = dev->stage_bytes = 0;
        HT_TRY(cuda__check(dev, dev->api.alloc(&dev->stage, need), "memory for rows", NULL, e));
        dev->stage_bytes = need;
    }
    for (uint32_t i = 0; i < n; i++) {
        a.src[i] = dev->stage + at;
        a.src_rows[i] = w[i]->rows;
        HT_TRY(send_rows(dev, w[i], type, a.src[i], e));
        at += (uint64_t)w[i]->rows * a.stride;
    }
    a.m = cuda__mat(type, rows, a.cols, dev->blocks);
    uint64_t bytes = cuda__mat_bytes(&a.m);
    HT_TRY(cuda__check(dev, dev->api.alloc(&a.dst, bytes), "memory for weights", NULL, e));
    *c = (cuda_weight){.m = a.m, .bytes = bytes, .cols = a.cols, .members = n};
    c->m.w = a.dst;
    dev->copied += bytes;
    void *params[] = {&a};
    cuda_launch l = {.grid = {(a.m.rows + a.m.per_block - 1) / a.m.per_block, a.m.groups, 1},
                     .block = {CUDA_THREADS, 1, 1},
                     .stream = dev->stream};
    HT_TRY(cuda__check(dev, dev->api.launch(&l, dev->pack, params, NULL), "laying weights out",
                       NULL, e));
    return cuda__sync(dev, e);
}

static bool usable(const ht_weight *w)
{
    return w && w->data && w->n_mats == 1 && cuda__type_of(w) >= 0;
}

/* Which rank's rows a set of matrices is cut down to, and how what is left becomes one. */
typedef struct {
    uint32_t rank;
    enum cuda_deal deal;
    bool turns;
} way;

static cuda_weight *entry(const ht_dev *dev, uint32_t rank, const ht_weight *w)
{
    return &dev->weight[rank * dev->n_weights + w->id];
}

/* The rank's rows; those of a tiled layout begin with a tile. */
static ht_weight slice(const ht_dev *dev, const ht_weight *w, const way *k)
{
    const cuda_share s = cuda__share(dev->size, k->rank, w->rows, k->deal);
    const bool rows = w->layout == HT_LAYOUT_ROWS;
    const uint64_t unit = rows ? w->row_bytes : ht_r16_tile_bytes(ht_r16_type(w->type), w->cols);
    ht_weight own = *w;
    own.data = (const uint8_t *)w->data + (rows ? s.first : s.first / TILE) * unit;
    own.rows = s.rows;
    return own;
}

/* Up to three weights that one product may take together, and their alternates; else each by
 * itself, in the order of their rows. What has no form here is left out: covers() refuses it. */
static int put_set(ht_dev *dev, const ht_weight *const *w0, uint32_t n, const way *k, ht_err *e)
{
    const ht_weight *w[3] = {w0[0], n > 1 ? w0[1] : NULL, n > 2 ? w0[2] : NULL};
    while (w[0]) {
        ht_weight own[3];
        const ht_weight *part[3] = {NULL, NULL, NULL};
        for (uint32_t i = 0; i < n; i++) {
            if (!usable(w[i])) continue;
            own[i] = slice(dev, w[i], k);
            part[i] = &own[i];
        }
        bool one = part[0];
        uint32_t row0 = 0;
        for (uint32_t i = 1; i < n && one; i++)
            one = part[i] && cuda__type_of(part[i]) == cuda__type_of(part[0]) &&
                  part[i]->cols == part[0]->cols && (!k->turns || part[i]->rows == part[0]->rows);
        if (one) HT_TRY(put_group(dev, part, n, k->turns, entry(dev, k->rank, part[0]), e));
        for (uint32_t i = 0; i < n && !one && !k->turns; i++) {
            if (!part[i]) continue;
            cuda_weight *c = entry(dev, k->rank, part[i]);
            HT_TRY(put_group(dev, &part[i], 1, false, c, e));
            c->m.row0 = row0;
            row0 += part[i]->rows;
        }
        for (uint32_t i = 0; i < n; i++) w[i] = w[i] ? w[i]->alt : NULL;
    }
    return 0;
}

/* A head that is the embedding shares its copy. */
static int put_head(ht_dev *dev, const ht_model *m, ht_err *e)
{
    const way all = {0, CUDA_ALL, false};
    const ht_weight *twin = &m->embed, *w = &m->head;
    HT_TRY(put_set(dev, &twin, 1, &all, e));
    for (; w; w = w->alt, twin = twin ? twin->alt : NULL) {
        ht_weight alone = *w;
        const ht_weight *one = &alone;
        alone.alt = NULL;
        if (twin && twin->data == w->data && twin->id != w->id && dev->weight[twin->id].m.w) {
            dev->weight[w->id] = dev->weight[twin->id];
            dev->weight[w->id].shared = true;
        } else if (!dev->weight[w->id].m.w) HT_TRY(put_set(dev, &one, 1, &all, e));
    }
    return 0;
}

/* A group looks rows up on one rank and has the head's rows on all: no copy serves both. */
static int put_group_ends(ht_dev *dev, const ht_model *m, ht_err *e)
{
    const ht_weight *w = &m->embed, *head = &m->head;
    for (size_t i = 0; w && i < sizeof dev->embed / sizeof *dev->embed; i++, w = w->alt)
        if (usable(w)) HT_TRY(put_group(dev, &w, 1, false, &dev->embed[i], e));
    for (uint32_t r = 0; r < dev->size; r++)
        HT_TRY(put_set(dev, &head, 1, &(way){r, CUDA_TILES, false}, e));
    return 0;
}

static int put_layer(ht_dev *dev, const ht_layer *l, uint32_t rank, ht_err *e)
{
    const ht_weight *qkv[] = {&l->q, &l->k, &l->v}, *up[] = {&l->gate, &l->up};
    const ht_weight *one[] = {&l->o, &l->down};
    HT_TRY(put_set(dev, qkv, 3, &(way){rank, CUDA_EVEN, false}, e));
    for (size_t k = 0; k < 2; k++)
        HT_TRY(put_set(dev, &one[k], 1, &(way){rank, CUDA_TILES, false}, e));
    return put_set(dev, up, 2, &(way){rank, CUDA_TILES, true}, e);
}

/* All vectors of a model, in one memory; called twice, first to count. */
typedef struct {
    ht_dev *dev;
    float *buf;
    size_t n, floats;
} vectors;
static void put_vector(vectors *v, const float *p, size_t n)
{
    if (!p) return;
    if (v->buf) {
        memcpy(v->buf + v->floats, p, n * sizeof *p);
        v->dev->vector[v->n] = (cuda_vector){p, v->dev->vectors + v->floats * sizeof *p};
    }
    v->n++;
    v->floats += (n + 3) / 4 * 4;
}
static void put_vectors(vectors *v, const ht_model *m)
{
    const ht_spec *s = &m->spec;
    size_t nq = (size_t)s->n_heads * s->head_dim, nkv = (size_t)s->n_kv_heads * s->head_dim;
    v->n = v->floats = 0;
    put_vector(v, m->final_norm, s->dim);
    for (int i = 0; i < HT_ROPES; i++) {
        put_vector(v, s->rope[i].inv_freq, s->rope[i].dims / 2);
        put_vector(v, s->rope[i].inv_freq_long, s->rope[i].dims / 2);
    }
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const ht_layer *l = &m->layer[i];
        const float *dim[] = {l->attn_norm, l->ffn_norm, l->post_attn_norm, l->post_ffn_norm};
        for (size_t k = 0; k < 4; k++) put_vector(v, dim[k], s->dim);
        put_vector(v, l->q_norm, s->head_dim);
        put_vector(v, l->k_norm, s->head_dim);
        put_vector(v, l->q_bias, nq);
        put_vector(v, l->k_bias, nkv);
        put_vector(v, l->v_bias, nkv);
    }
}

static int load_vectors(ht_dev *dev, ht_err *e)
{
    vectors v = {.dev = dev};
    put_vectors(&v, dev->model);
    dev->n_vectors = v.n;
    dev->vector = ht_arena_array(dev->arena, v.n, sizeof *dev->vector);
    size_t bytes = v.floats * sizeof *v.buf;
    float *buf = ht_mem_alloc(bytes);
    int rc = dev->vector && buf ? 0 : HT_FAIL(e, HT_ENOMEM, "cuda: no memory for norms and biases");
    if (!rc)
        rc = cuda__check(dev, dev->api.alloc(&dev->vectors, bytes), "memory for norms", NULL, e);
    v.buf = buf;
    if (!rc) put_vectors(&v, dev->model);
    if (!rc) rc = send(dev, dev->vectors, buf, bytes, e);
    dev->copied += bytes;
    ht_mem_free(buf);
    return rc;
}

/* A device holds one model; what an earlier call has loaded is freed. */
int cuda__load(ht_dev *dev, const ht_model *m, ht_err *e)
{
    HT_TRY(cuda__enter(dev, e));
    cuda__unload(dev);
    HT_TRY(cuda__group_model(dev, m, e));
    HT_TRY(ht_arena_new(&dev->arena, 0, e));
    dev->weight = ht_arena_array(dev->arena, (size_t)dev->size * m->n_weights, sizeof *dev->weight);
    if (!dev->weight) return HT_FAIL(e, HT_ENOMEM, "cuda: no memory for %u weights", m->n_weights);
    dev->n_weights = m->n_weights;
    dev->model = m;
    dev->blocks = choose_blocks(dev, &m->spec);
    int rc = load_vectors(dev, e);
    if (!rc) rc = dev->size > 1 ? put_group_ends(dev, m, e) : put_head(dev, m, e);
    for (uint32_t i = 0; i < m->spec.n_layers * dev->size && !rc; i++)
        rc = put_layer(dev, &m->layer[i / dev->size], i % dev->size, e);
    if (dev->stage) (void)dev->api.free_mem(dev->stage);
    dev->stage = dev->stage_bytes = 0;
    if (rc) cuda__unload(dev);
    return rc;
}

void cuda__unload(ht_dev *dev)
{
    for (size_t i = 0; i < sizeof dev->embed / sizeof *dev->embed; i++)
        if (dev->embed[i].m.w) (void)dev->api.free_mem(dev->embed[i].m.w);
    memset(dev->embed, 0, sizeof dev->embed);
    for (uint32_t i = 0; dev->weight && i < dev->size * dev->n_weights; i++) {
        if (dev->weight[i].m.w && !dev->weight[i].shared)
            (void)dev->api.free_mem(dev->weight[i].m.w);
        if (dev->weight[i].tiles) (void)dev->api.free_mem(dev->weight[i].tiles);
    }
    if (dev->vectors) (void)dev->api.free_mem(dev->vectors);
    ht_arena_free(dev->arena);
    dev->arena = NULL;
    dev->weight = NULL;
    dev->n_weights = 0;
    dev->vector = NULL;
    dev->n_vectors = 0;
    dev->vectors = 0;
    dev->copied = 0;
    memset(dev->ticks, 0, sizeof dev->ticks);
    memset(dev->least_bytes, 0, sizeof dev->least_bytes);
    memset(dev->least_flops, 0, sizeof dev->least_flops);
    dev->model = NULL;
}

cuda_ptr cuda__vector(const ht_dev *dev, const float *host)
{
    for (size_t i = 0; host && i < dev->n_vectors; i++)
        if (dev->vector[i].host == host) return dev->vector[i].dev;
    return 0;
}

/* The device's own memory, which the host's check does not hold against the machine's: a plan's
 * scratch counts as copied bytes only where it lies on the host. */
int cuda__footprint(const ht_dev *dev, const ht_model *m, const ht_stage *tape, size_t n,
                    const ht_bucket *b, ht_footprint *out, ht_err *e)
{
    (void)dev;
    (void)tape;
    (void)n;
    *out = (ht_footprint){0};
    size_t k = ht_model_names(m, NULL, 0);
    ht_named *list = ht_mem_array(k, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "cuda: list of %zu tensors: out of memory", k);
    (void)ht_model_names(m, list, k);
    for (size_t i = 0; i < k; i++)
        for (const ht_weight *w = list[i].w; w; w = w->alt) out->in_place += w->bytes;
    ht_mem_free(list);
    /* host side of a plan: the wanted logits and the batch */
    out->scratch = 4 * ((uint64_t)b->want * m->spec.vocab + 8 * (uint64_t)b->rows);
    return 0;
}
