/* kvpool.c - the KV element types: names and sizes. */
#include "step/kvpool.h"
#include "step/step.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bytes; /* of one element */
} kvtype[HT_KVTYPES] = {[HT_KV_F32] = {"f32", 4}, [HT_KV_F16] = {"f16", 2}};

/* Bytes of one page of one plane: [n_kv_heads][HT_PAGE][head_dim]. 0 for an unknown type. The
 * product of three values bounded by a spec (heads, head_dim < 2^16) fits 64 bits. */
uint64_t ht_kv_page_bytes(int type, uint32_t n_kv_heads, uint32_t head_dim)
{
    if (type < 0 || type >= HT_KVTYPES) return 0;
    return (uint64_t)n_kv_heads * HT_PAGE * head_dim * kvtype[type].bytes;
}

bool ht_kv_rotates(int type_k, uint32_t head_dim)
{
    return type_k != HT_KV_F32 && head_dim >= 16 && (head_dim & (head_dim - 1)) == 0;
}

void ht_kv_rotation(uint32_t head_dim, float *scale_k, float *scale_q)
{
    int m = 0;
    while (head_dim >> (m + 1)) m++;
    *scale_k = ldexpf(1.0f, -(m / 2));
    *scale_q = ldexpf(1.0f, -((m + 1) / 2));
}

const char *ht_kvtype_name(int type)
{
    return type >= 0 && type < HT_KVTYPES ? kvtype[type].name : "?";
}

int ht_kvtype_by_name(const char *name)
{
    for (int i = 0; i < HT_KVTYPES; i++)
        if (!strcmp(name, kvtype[i].name)) return i;
    return -1;
}
