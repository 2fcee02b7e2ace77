/* kvpool.c - the KV element types: names, sizes, rotations; addresses inside a pool. */
#include "step/kvpool.h"
#include "step/kvcodec.h"
#include "step/step.h"

#include <math.h>
#include <string.h>

enum { PACKED_HEAD_MAX = 1024 }; /* elements of a head that kvcodec.c packs on its stack */

/* [n_kv_heads][HT_PAGE][head_dim], or kvcodec.h's layout. The product of three values bounded by a
 * spec (heads, head_dim < 2^16) fits 64 bits. */
uint64_t ht_kv_page_bytes(int type, uint32_t n_kv_heads, uint32_t head_dim)
{
    if (type < 0 || type >= HT_KVTYPES) return 0;
    if (!ht_kv_packs(type))
        return (uint64_t)n_kv_heads * HT_PAGE * head_dim * (type == HT_KV_F32 ? 4u : 2u);
    return (uint64_t)n_kv_heads * HT_PAGE *
           ((uint64_t)ht_kv_lines(head_dim) * ht_kv_line_bytes(type) +
            2u * (uint64_t)ht_kv_blocks(type, head_dim));
}

static bool power_of_two_head(uint32_t head_dim)
{
    return head_dim >= 16 && (head_dim & (head_dim - 1)) == 0;
}

bool ht_kv_rotates(int type_k, uint32_t head_dim)
{
    if (type_k != HT_KV_F16 && !ht_kvcodecs[type_k].rotated) return false;
    return power_of_two_head(head_dim);
}

bool ht_kv_rotates_v(int type_v)
{
    return ht_kvcodecs[type_v].rotated;
}

bool ht_kv_signs(int type)
{
    return ht_kvcodecs[type].rotated;
}

void ht_kv_rotation(uint32_t head_dim, float *scale_k, float *scale_q)
{
    int m = 0;
    while (head_dim >> (m + 1)) m++;
    *scale_k = ldexpf(1.0f, -(m / 2));
    *scale_q = ldexpf(1.0f, -((m + 1) / 2));
}

bool ht_kvtype_fits(int type, uint32_t head_dim)
{
    if (!ht_kv_packs(type)) return true;
    return head_dim <= PACKED_HEAD_MAX &&
           (!ht_kvcodecs[type].rotated || power_of_two_head(head_dim));
}

const char *ht_kvtype_name(int type)
{
    return type >= 0 && type < HT_KVTYPES ? ht_kvcodecs[type].name : "?";
}

int ht_kvtype_by_name(const char *name)
{
    for (int i = 0; i < HT_KVTYPES; i++)
        if (!strcmp(name, ht_kvcodecs[i].name)) return i;
    return -1;
}

const float *ht_kv_mean(const ht_kv *kv, uint32_t layer, uint32_t head)
{
    if (!kv->k_mean || !ht_kv_packs(kv->type[layer][0])) return NULL;
    return kv->k_mean + ((size_t)layer * kv->n_kv_heads + head) * kv->head_dim;
}

uint8_t *ht_kv_head(const ht_kv *kv, uint32_t layer, int is_v, uint32_t id, uint32_t head, bool raw)
{
    if (!raw || !kv->raw || !kv->raw[layer][is_v])
        return kv->plane[layer][is_v] + id * kv->page_bytes[layer][is_v] +
               head * (kv->page_bytes[layer][is_v] / kv->n_kv_heads);
    uint32_t slot = kv->raw_of[kv->layer_class[layer]][id];
    if (slot == HT_NOPAGE) return NULL;
    return kv->raw[layer][is_v] + slot * kv->raw_bytes + head * (kv->raw_bytes / kv->n_kv_heads);
}
