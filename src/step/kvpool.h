/* kvpool.h - plain description of a KV pool: planes, codecs, page bytes. The pool is made and owned
 * by kv/; engines attach to it and read it. A page id stands for HT_PAGE positions in all layers of
 * its class: page bytes at plane[layer][kv] + id * page_bytes[layer][kv], inside a page
 * [kv_head][position][head_dim]. */
#ifndef HT_STEP_KVPOOL_H
#define HT_STEP_KVPOOL_H
#include <stdbool.h>
#include <stdint.h>

enum { HT_KV_FULL, HT_KV_WINDOW, HT_KV_CLASSES };
enum ht_kvtype { HT_KV_F32, HT_KV_F16, HT_KVTYPES };
typedef struct ht_kv {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t n_pages[HT_KV_CLASSES];
    uint32_t window;                 /* keys a windowed layer sees; 0 when no layer is windowed   */
    uint8_t *layer_class;            /* [n_layers]                                                */
    uint8_t (*type)[2];              /* [n_layers][K,V] enum ht_kvtype                            */
    uint64_t (*page_bytes)[2];       /* [n_layers][K,V]                                           */
    uint8_t *(*plane)[2];            /* [n_layers][K,V]                                           */
} ht_kv;
uint64_t ht_kv_page_bytes(int type, uint32_t n_kv_heads, uint32_t head_dim);
/* Are K (and Q) rotated before K is stored? K of every type but F32 is, when a head is a power of
 * two of at least 16 elements: H k * 2^-floor(m/2) goes into the page and H q * 2^-ceil(m/2) into
 * Q, H the Walsh-Hadamard matrix of 2^m = head_dim in natural order (strides 1, 2, 4, ...). The two
 * factors make the map orthogonal and are powers of two, so scores do not change; rounding errors
 * do: a few large elements no longer carry all of them (QuaRot, arXiv:2404.00456). It is part of
 * the page layout: engines that share pages all follow it. */
bool ht_kv_rotates(int type_k, uint32_t head_dim);
/* floor(m/2) and ceil(m/2) as factors 2^-x; head_dim as above. */
void ht_kv_rotation(uint32_t head_dim, float *scale_k, float *scale_q);
const char *ht_kvtype_name(int type);                  /* "f16"                                   */
int ht_kvtype_by_name(const char *);                   /* -1: unknown                             */
#endif
