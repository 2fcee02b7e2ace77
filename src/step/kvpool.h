/* kvpool.h - plain description of a KV pool: planes, codecs, page bytes. The pool is made and owned
 * by kv/; engines attach to it and read it. A page id stands for HT_PAGE positions in all layers of
 * its class: page bytes at plane[layer][kv] + id * page_bytes[layer][kv], inside a page
 * [kv_head][position][head_dim].
 *
 * Packed types (kvcodec.h has their layout) are written raw and packed later. A page of them has,
 * while somebody may still read or write it raw, a slot of F16 rows at
 *     raw[layer][kv] + raw_of[class][id] * raw_bytes,   [kv_head][position][head_dim],
 * and its packed bytes at its place in the plane. Which of the two a query reads is a matter of
 * positions alone, ht_kv_reads_packed(), never of when the packing was done. Packing a page twice
 * writes the same bytes. */
#ifndef HT_STEP_KVPOOL_H
#define HT_STEP_KVPOOL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HT_KV_FULL, HT_KV_WINDOW, HT_KV_CLASSES };
enum ht_kvtype {
    HT_KV_F32, HT_KV_F16,
    HT_KV_Q8_0, HT_KV_Q4_0,          /* a scale per 32 elements of a head, as GGUF's              */
    HT_KV_Q8_0R, HT_KV_Q4_0R,        /* the same after a randomised Hadamard rotation             */
    HT_KV_TQ4, HT_KV_TQ3,            /* rotation, Lloyd-Max levels, one unbiased scale per head   */
    HT_KV_QJL3,                      /* experiment: 2-bit levels and a 1-bit sketch of the rest   */
    HT_KVTYPES
};
typedef struct ht_kv {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t n_pages[HT_KV_CLASSES];
    uint32_t window;                 /* keys a windowed layer sees; 0 when no layer is windowed   */
    bool device;                     /* the planes are memory that the host cannot address        */
    uint8_t *layer_class;            /* [n_layers]                                                */
    uint8_t (*type)[2];              /* [n_layers][K,V] enum ht_kvtype                            */
    uint64_t (*page_bytes)[2];       /* [n_layers][K,V]                                           */
    uint8_t *(*plane)[2];            /* [n_layers][K,V]                                           */
    /* Packed types only; all zero in a pool without them. */
    const float *k_mean;             /* [n_layers][n_kv_heads][head_dim] or NULL: what is taken from
                                        keys of packed layers before they are rotated. A soft-max
                                        of scores does not change when all keys move alike        */
    uint32_t n_raw[HT_KV_CLASSES];   /* raw slots of a class                                      */
    uint64_t raw_bytes;              /* of a slot of one plane                                    */
    uint8_t *(*raw)[2];              /* [n_layers][K,V]; NULL where the type is not packed        */
    uint32_t *raw_of[HT_KV_CLASSES]; /* [n_pages] slot of a page, HT_NOPAGE: none                 */
    uint8_t *packed[HT_KV_CLASSES];  /* [n_pages] its packed bytes are valid; set between runs    */
} ht_kv;
/* Bytes of one page of one plane. 0 for an unknown type. */
uint64_t ht_kv_page_bytes(int type, uint32_t n_kv_heads, uint32_t head_dim);
/* Are K (and Q) rotated before K is stored? K of every type but F32, Q8_0 and Q4_0 is, when a head
 * is a power of two of at least 16 elements: H k * 2^-floor(m/2) goes into the page and
 * H q * 2^-ceil(m/2) into Q, H the Walsh-Hadamard matrix of 2^m = head_dim in natural order
 * (strides 1, 2, 4, ...). The two factors make the map orthogonal and are powers of two, so scores
 * do not change; rounding errors do: a few large elements no longer carry all of them (QuaRot,
 * arXiv:2404.00456). It is part of the page layout: engines that share pages all follow it. */
bool ht_kv_rotates(int type_k, uint32_t head_dim);
/* Is V rotated before it is stored, and attention's output rotated back? Rotated packed types are:
 * the same map, its inverse on the output H a * 2^-ceil(m/2). */
bool ht_kv_rotates_v(int type_v);
/* Rotated packed types turn signs before H: element i of a head times ht_kv_sign(i), a fixed
 * sequence (HT_KV_SIGN_SEED), the same for all heads; back: after H. */
bool ht_kv_signs(int type);
float ht_kv_sign(uint32_t i);
#define HT_KV_SIGN_SEED UINT64_C(0x68657465726f4b56)
/* floor(m/2) and ceil(m/2) as factors 2^-x; head_dim as above. */
void ht_kv_rotation(uint32_t head_dim, float *scale_k, float *scale_q);
const char *ht_kvtype_name(int type);                  /* "f16"                                   */
int ht_kvtype_by_name(const char *);                   /* -1: unknown                             */
/* Can heads of this size be stored so? Rotated packed types need a power of two from 16 on. */
bool ht_kvtype_fits(int type, uint32_t head_dim);
/* The mean of a head's keys where they are stored without it, else NULL. */
const float *ht_kv_mean(const ht_kv *, uint32_t layer, uint32_t head);

static inline bool ht_kv_packs(int type)
{
    return type > HT_KV_F16;
}
/* Some layer has a packed type. */
static inline bool ht_kv_any_packed(const ht_kv *kv)
{
    return kv->raw_bytes != 0;
}
/* Does a query at position pos read entry `page` of its table (positions page*32 ...) packed?
 * The first page and the two newest stay as written; product.md 5.5. */
static inline bool ht_kv_reads_packed(uint32_t pos, uint32_t page)
{
    return page >= 1 && pos / 32 >= page + 2;
}
/* Eviction (kv/kv.h) is a rule of positions too: a sequence gives up pages only where its length is
 * a multiple of HT_KV_STRIDE, and judges them by what the queries of the last page before it saw. A
 * run's rows never lie on both sides of such a place. */
enum { HT_KV_STRIDE = 256 };
static inline bool ht_kv_observes(uint32_t pos)
{
    return pos % HT_KV_STRIDE >= HT_KV_STRIDE - 32;
}
/* Where the rows of a head of page id begin; raw: the F16 rows of a packed type. NULL: no slot. */
uint8_t *ht_kv_head(const ht_kv *, uint32_t layer, int is_v, uint32_t id, uint32_t head, bool raw);
#endif
