/* kvcodec.c - packed KV pages in scalar C. kvcodec.h draws the layout. */
#include "step/kvcodec.h"
#include "core/rng.h"
#include "quant/quant.h"
#include "step/step.h"

#include <math.h>
#include <string.h>

/* Lloyd-Max levels of N(0,1) for 2, 3 and 4 bits, in units of `step` rounded to integers: mean
 * squared error 0.1175, 0.03459 and 0.009514 against 0.11748, 0.03455 and 0.00950 of the exact
 * ones. */
static const int8_t levels2[4] = {-127, -38, 38, 127};
static const int8_t levels3[8] = {-127, -79, -45, -14, 14, 45, 79, 127};
static const int8_t levels4[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                   6,    18,  31,  44,  58,  75,  96,  127};

const ht_kvcodec ht_kvcodecs[HT_KVTYPES] = {
    [HT_KV_F32] = {.name = "f32"},
    [HT_KV_F16] = {.name = "f16"},
    [HT_KV_Q8_0] = {"q8_0", 8, 0, false, NULL, 0},
    [HT_KV_Q4_0] = {"q4_0", 4, 0, false, NULL, 0},
    [HT_KV_Q8_0R] = {"q8_0r", 8, 0, true, NULL, 0},
    [HT_KV_Q4_0R] = {"q4_0r", 4, 0, true, NULL, 0},
    [HT_KV_TQ4] = {"tq4", 4, 1, true, levels4, 0.021516f},
    [HT_KV_TQ3] = {"tq3", 3, 1, true, levels3, 0.016944f},
    [HT_KV_QJL3] = {"qjl3", 3, 2, true, levels2, 0.011893f},
};

/* ---- lines ----------------------------------------------------------------------------------- */

/* Index i of a line, as stored. */
static uint32_t line_get(uint32_t bits, const uint8_t *line, uint32_t i)
{
    if (bits == 8) return line[i];
    if (bits == 4) return i < 16 ? line[i] & 15u : line[i - 16] >> 4;
    return (line[i % 8] >> (2 * (i / 8)) & 3u) | (line[8 + i / 8] >> (i % 8) & 1u) << 2;
}

/* Set index i of a line that was zero. */
static void line_put(uint32_t bits, uint8_t *line, uint32_t i, uint32_t index)
{
    if (bits == 8) {
        line[i] = (uint8_t)index;
    } else if (bits == 4) {
        line[i % 16] |= (uint8_t)(index << (i < 16 ? 0 : 4));
    } else {
        line[i % 8] |= (uint8_t)((index & 3u) << (2 * (i / 8)));
        line[8 + i / 8] |= (uint8_t)((index >> 2) << (i % 8));
    }
}

/* Index of element d of position pos. */
static uint32_t index_at(int type, int is_v, uint32_t hd, const uint8_t *head, uint32_t pos,
                         uint32_t d)
{
    uint32_t bits = ht_kvcodecs[type].bits, lb = ht_kv_line_bytes(type);
    if (!is_v) return line_get(bits, head + (size_t)d * lb, pos);
    return line_get(bits, head + ((size_t)pos * ht_kv_lines(hd) + d / 32) * lb, d % 32);
}

static void index_set(int type, int is_v, uint32_t hd, uint8_t *head, uint32_t pos, uint32_t d,
                      uint32_t index)
{
    uint32_t bits = ht_kvcodecs[type].bits, lb = ht_kv_line_bytes(type);
    if (!is_v) line_put(bits, head + (size_t)d * lb, pos, index);
    else line_put(bits, head + ((size_t)pos * ht_kv_lines(hd) + d / 32) * lb, d % 32, index);
}

static int code_of(int type, uint32_t index)
{
    const ht_kvcodec *c = &ht_kvcodecs[type];
    if (c->levels) return c->levels[index];
    return c->bits == 8 ? (int8_t)(uint8_t)index : (int)index - 8;
}

/* ---- packing a row --------------------------------------------------------------------------- */

typedef struct {
    int type, is_v;
    uint32_t hd, pos;
    uint8_t *head;
    uint16_t *scale; /* [blocks][32] */
} row_out;

static void put(const row_out *o, uint32_t d, uint32_t index)
{
    index_set(o->type, o->is_v, o->hd, o->head, o->pos, d, index);
}

/* Rounded as everywhere in quant/: half away from zero for Q8_0, down after adding for Q4_0. */
static void pack_blocks(const row_out *o, const float *x)
{
    for (uint32_t b = 0; b * 32 < o->hd; b++) {
        uint32_t n = o->hd - b * 32 < 32 ? o->hd - b * 32 : 32;
        float top = 0, amax = 0;
        for (uint32_t i = 0; i < n; i++)
            if (fabsf(x[b * 32 + i]) > amax) {
                top = x[b * 32 + i];
                amax = fabsf(top);
            }
        bool wide = ht_kvcodecs[o->type].bits == 8;
        float d = wide ? amax / 127 : top / -8, id = d != 0 ? 1 / d : 0;
        o->scale[b * 32 + o->pos] = ht_f32_to_f16(d);
        for (uint32_t i = 0; i < n; i++) {
            float v = x[b * 32 + i] * id;
            int q = wide ? (int)roundf(v) : (int)fminf(v + 8.5f, 15.0f);
            put(o, b * 32 + i, wide ? (uint8_t)(int8_t)q : (uint32_t)q);
        }
    }
}

/* Index of the nearest of n ascending levels; thresholds lie in the middle, the upper one takes a
 * tie. */
static uint32_t nearest(const int8_t *levels, uint32_t n, float v)
{
    uint32_t i = 0;
    while (i + 1 < n && 2 * v >= (float)(levels[i] + levels[i + 1])) i++;
    return i;
}

static double norm2(const float *x, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}

static void pack_levels(const row_out *o, const float *x)
{
    const ht_kvcodec *c = &ht_kvcodecs[o->type];
    double n2 = norm2(x, o->hd), dot = 0;
    float scale = n2 > 0 ? (float)(sqrt((double)o->hd / n2) / (double)c->step) : 0;
    for (uint32_t i = 0; i < o->hd; i++) {
        uint32_t k = nearest(c->levels, 1u << c->bits, x[i] * scale);
        dot += (double)c->levels[k] * (double)x[i];
        put(o, i, k);
    }
    o->scale[o->pos] = ht_f32_to_f16(dot > 0 ? (float)(n2 / dot) : 0);
}

/* x times the second randomised Hadamard matrix, without its factor 1/sqrt(n): signs behind those
 * of the first, then H. */
static void sketch(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] *= ht_kv_sign(n + i);
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

enum { MAX_SKETCH = 1024 }; /* head_dim that QJL3 takes: its rest lies on the stack */

/* s = |x| step / sqrt(n); g = sqrt(pi/2)/sqrt(n) |r| |x| / sqrt(n): the last factor is that of
 * S^T. */
static void pack_sketch(const row_out *o, const float *x)
{
    const ht_kvcodec *c = &ht_kvcodecs[o->type];
    double n = (double)o->hd, size = sqrt(norm2(x, o->hd));
    float rest[MAX_SKETCH];
    float scale = size > 0 ? (float)(sqrt(n) / size / (double)c->step) : 0;
    float s = (float)(size * (double)c->step / sqrt(n));
    uint32_t index[MAX_SKETCH];
    for (uint32_t i = 0; i < o->hd; i++) {
        index[i] = nearest(c->levels, 4, x[i] * scale);
        rest[i] = x[i] - s * (float)c->levels[index[i]];
    }
    double left = sqrt(norm2(rest, o->hd));
    sketch(rest, o->hd);
    for (uint32_t i = 0; i < o->hd; i++) put(o, i, index[i] | (rest[i] < 0 ? 4u : 0u));
    o->scale[o->pos] = ht_f32_to_f16(s);
    o->scale[32 + o->pos] = ht_f32_to_f16((float)(sqrt(M_PI_2) / n * left));
}

static bool finite_row(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

void ht_kv_pack(int type, int is_v, uint32_t hd, const uint16_t *rows, void *head)
{
    const uint32_t nb = ht_kv_blocks(type, hd);
    const size_t lines = 32u * (size_t)ht_kv_lines(hd) * ht_kv_line_bytes(type);
    row_out o = {type, is_v, hd, 0, head, (uint16_t *)(void *)((uint8_t *)head + lines)};
    float x[MAX_SKETCH];
    memset(head, 0, lines);
    for (o.pos = 0; o.pos < 32; o.pos++, rows += hd) {
        for (uint32_t i = 0; i < hd; i++) x[i] = ht_f16_to_f32(rows[i]);
        if (!finite_row(x, hd)) {
            for (uint32_t b = 0; b < nb; b++) o.scale[b * 32 + o.pos] = 0x7e00; /* NaN */
        } else if (type == HT_KV_QJL3) {
            pack_sketch(&o, x);
        } else if (ht_kvcodecs[type].levels) {
            pack_levels(&o, x);
        } else {
            pack_blocks(&o, x);
        }
    }
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static void unpack_sketch(int is_v, uint32_t hd, const void *head, uint32_t pos, float *out)
{
    const uint16_t *scale = ht_kv_scales(HT_KV_QJL3, hd, head);
    float s = ht_f16_to_f32(scale[pos]), g = ht_f16_to_f32(scale[32 + pos]), sign[MAX_SKETCH];
    for (uint32_t i = 0; i < hd; i++)
        sign[i] = index_at(HT_KV_QJL3, is_v, hd, head, pos, i) & 4 ? -1.0f : 1.0f;
    /* S^T: H first, its signs after. */
    for (uint32_t h = 1; h < hd; h *= 2)
        for (uint32_t i = 0; i < hd; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = sign[j], b = sign[j + h];
                sign[j] = a + b;
                sign[j + h] = a - b;
            }
    for (uint32_t i = 0; i < hd; i++) {
        uint32_t k = index_at(HT_KV_QJL3, is_v, hd, head, pos, i) & 3;
        out[i] = s * (float)levels2[k] + g * (sign[i] * ht_kv_sign(hd + i));
    }
}

void ht_kv_unpack(int type, int is_v, uint32_t hd, const void *head, uint32_t pos, float *out)
{
    if (type == HT_KV_QJL3) {
        unpack_sketch(is_v, hd, head, pos, out);
        return;
    }
    const uint16_t *scale = ht_kv_scales(type, hd, head);
    const bool one = ht_kvcodecs[type].blocks == 1;
    for (uint32_t i = 0; i < hd; i++) {
        float s = ht_f16_to_f32(scale[(one ? 0 : i / 32) * 32 + pos]);
        out[i] = s * (float)code_of(type, index_at(type, is_v, hd, head, pos, i));
    }
}

/* ---- pages of a pool ------------------------------------------------------------------------- */

void ht_kv_pack_head(const ht_kv *kv, uint32_t layer, int is_v, uint32_t id, uint32_t head)
{
    const uint8_t *rows = ht_kv_head(kv, layer, is_v, id, head, true);
    uint8_t *to = ht_kv_head(kv, layer, is_v, id, head, false);
    if (rows)
        ht_kv_pack(kv->type[layer][is_v], is_v, kv->head_dim, (const uint16_t *)(const void *)rows,
                   to);
}

static bool listed(const ht_kv_todo *list, uint32_t n, int kv_class, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i].id == id && list[i].kv_class == kv_class) return true;
    return false;
}

/* Rows of a sequence ascend, so the last of a run reads most pages packed. */
uint32_t ht_kv_todo_of(const ht_kv *kv, const struct ht_batch_view *b, ht_kv_todo *out,
                       uint32_t cap)
{
    uint32_t n = 0;
    if (!ht_kv_any_packed(kv)) return 0;
    for (uint32_t r = 0; r < b->rows; r++) {
        if (r + 1 < b->rows && b->seq[r + 1] == b->seq[r]) continue;
        uint32_t newest = (uint32_t)b->pos[r] / HT_PAGE;
        for (int c = 0; c < HT_KV_CLASSES; c++) {
            if (!b->page[c] || !kv->n_raw[c]) continue;
            const uint32_t *table = b->page[c] + (size_t)b->seq[r] * b->n_table;
            for (uint32_t j = 1; j + 2 <= newest && n < cap; j++) {
                uint32_t id = table[j];
                if (id == HT_NOPAGE || kv->packed[c][id] || kv->raw_of[c][id] == HT_NOPAGE)
                    continue;
                if (!listed(out, n, c, id)) out[n++] = (ht_kv_todo){id, c};
            }
        }
    }
    return n;
}

float ht_kv_sign(uint32_t i)
{
    uint32_t r[4];
    ht_philox(HT_KV_SIGN_SEED, i / 128, 0, r);
    return r[i / 32 % 4] >> (i % 32) & 1 ? -1.0f : 1.0f;
}
