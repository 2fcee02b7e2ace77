/* kvpool.h - plain description of a KV pool: planes, codecs, page bytes. The pool is made and owned
 * by kv/; engines attach to it and read it. A page id stands for HT_PAGE positions in all layers of
 * its class: page bytes at plane[layer][kv] + id * page_bytes[layer][kv], inside a page
 * [kv_head][position][head_dim]. */
#ifndef HT_STEP_KVPOOL_H
#define HT_STEP_KVPOOL_H
#include <stdint.h>

enum { HT_KV_FULL, HT_KV_WINDOW, HT_KV_CLASSES };
enum ht_kvtype { HT_KV_F32, HT_KV_F16, HT_KVTYPES };
typedef struct ht_kv {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t n_pages[HT_KV_CLASSES];
    uint32_t window;                 /* keys a windowed layer sees; 0 when no layer is windowed      */
    uint8_t *layer_class;            /* [n_layers]                                                  */
    uint8_t (*type)[2];              /* [n_layers][K,V] enum ht_kvtype                              */
    uint64_t (*page_bytes)[2];       /* [n_layers][K,V]                                             */
    uint8_t *(*plane)[2];            /* [n_layers][K,V]                                             */
} ht_kv;
uint64_t ht_kv_page_bytes(int type, uint32_t n_kv_heads, uint32_t head_dim);
const char *ht_kvtype_name(int type);                  /* "f16"                                     */
int ht_kvtype_by_name(const char *);                   /* -1: unknown                               */
#endif
