/* kv.c - KV pages on the device. A pool's planes are one block from kv_alloc(), so pointers into it
 * are told from host memory by its range; only such a pool attaches. In a group the block is cut
 * into a part a rank (cuda_range), and a page into as many pieces, one behind another. */
#include "backend/cuda/cuda.h"

#include <string.h>

enum { PART_ALIGN = 256 }; /* bytes */

cuda_ptr cuda__kv_at(const ht_dev *dev, uint32_t rank, const uint8_t *p)
{
    for (size_t i = 0; i < sizeof dev->range / sizeof *dev->range; i++) {
        const cuda_range *r = &dev->range[i];
        if (!r->p || (uintptr_t)p < (uintptr_t)r->p || (uintptr_t)p - (uintptr_t)r->p >= r->n)
            continue;
        const size_t o = (uintptr_t)p - (uintptr_t)r->p;
        return (cuda_ptr)(uintptr_t)r->p + rank * (r->n / dev->size) + o / dev->size;
    }
    return 0;
}

/* Device memory, zeroed: an unwritten key must be a number. */
int cuda__kv_alloc(ht_dev *dev, size_t bytes, void **mem, ht_err *e)
{
    cuda_range *free_one = NULL;
    cuda_ptr p = 0;
    *mem = NULL;
    HT_TRY(cuda__enter(dev, e));
    for (size_t i = 0; i < sizeof dev->range / sizeof *dev->range && !free_one; i++)
        if (!dev->range[i].p) free_one = &dev->range[i];
    if (!free_one)
        return HT_FAIL(e, HT_EFULL, "cuda: more KV pools on one device than it keeps track of");
    const size_t unit = PART_ALIGN * (size_t)dev->size, n = (bytes + unit - 1) / unit * unit;
    /* A refusal is no failure of the device: there is just not so much memory. */
    if (dev->api.alloc(&p, n) != CUDA_OK)
        return HT_FAIL(e, HT_ENOMEM,
                       "cuda: %zu MiB for the KV cache refused; use a smaller context",
                       bytes >> 20);
    int rc = cuda__check(dev, dev->api.set32(p, 0, n / 4, dev->stream), "clearing the KV cache",
                         NULL, e);
    if (!rc) rc = cuda__sync(dev, e);
    if (rc) {
        (void)dev->api.free_mem(p);
        return rc;
    }
    *mem = (void *)(uintptr_t)p;
    *free_one = (cuda_range){*mem, n};
    return 0;
}

void cuda__kv_free(ht_dev *dev, void *mem, size_t bytes)
{
    (void)bytes;
    for (size_t i = 0; mem && i < sizeof dev->range / sizeof *dev->range; i++) {
        if (dev->range[i].p != mem) continue;
        (void)dev->api.current(dev->ctx);
        (void)dev->api.free_mem((cuda_ptr)(uintptr_t)mem);
        dev->range[i] = (cuda_range){NULL, 0};
    }
}

int cuda__kv_attach(ht_dev *dev, ht_kv *kv, ht_err *e)
{
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        for (int v = 0; v < 2; v++) {
            if (kv->type[i][v] != kv->type[i][0] || kv->type[i][v] > HT_KV_F16)
                return HT_FAIL(e, HT_EUNSUPPORTED,
                               "cuda reads K and V of one type, f32 or f16, not %s and %s",
                               ht_kvtype_name(kv->type[i][0]), ht_kvtype_name(kv->type[i][1]));
            if (!cuda__kv_at(dev, 0, kv->plane[i][v]))
                return HT_FAIL(e, HT_EUNSUPPORTED,
                               "cuda cannot address a KV cache in host memory; its pages must come "
                               "from cuda's kv_alloc");
        }
    }
    return 0;
}

static int check_page(const ht_kv *kv, int kv_class, uint32_t page, ht_err *e)
{
    if (kv_class < 0 || kv_class >= HT_KV_CLASSES || page >= kv->n_pages[kv_class])
        return HT_FAIL(e, HT_EARG, "cuda: page %u of KV class %d does not exist", page, kv_class);
    return 0;
}

/* A rank's pieces of n pages of `bytes` each that begin at p. */
static cuda_rows pieces_at(const ht_dev *dev, uint32_t rank, const uint8_t *p, size_t bytes)
{
    const size_t piece = bytes / dev->size;
    const cuda_ptr at = cuda__kv_at(dev, rank, p);
    return at ? cuda__rows_on_device(at, piece) : cuda__rows_on_host(p + rank * piece, bytes);
}

/* n pages of `bytes` each between any two places; queued on the stream unless both are on the
 * host. */
static int move(ht_dev *dev, cuda_stream stream, uint8_t *dst, const uint8_t *src, size_t n,
                size_t bytes, ht_err *e)
{
    if (!cuda__kv_at(dev, 0, dst) && !cuda__kv_at(dev, 0, src)) {
        memcpy(dst, src, n * bytes);
        return 0;
    }
    for (uint32_t r = 0; r < dev->size; r++) {
        const cuda_copy2d c = {.to = pieces_at(dev, r, dst, bytes),
                               .from = pieces_at(dev, r, src, bytes),
                               .width = bytes / dev->size,
                               .rows = n};
        HT_TRY(cuda__check(dev, cuda__copy_rows(dev, &c, stream), "copy of KV pages", NULL, e));
    }
    return 0;
}

int cuda__page_copy(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t dst, uint32_t src, ht_err *e)
{
    HT_TRY(cuda__enter(dev, e));
    HT_TRY(check_page(kv, kv_class, dst, e));
    HT_TRY(check_page(kv, kv_class, src, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            HT_TRY(move(dev, dev->stream, kv->plane[i][v] + dst * n, kv->plane[i][v] + src * n, 1,
                        n, e));
        }
    return cuda__sync(dev, e);
}

/* A page of all layers of its class as one run of bytes: layer by layer, K before V. */
int cuda__page_io(ht_dev *dev, ht_kv *kv, int kv_class, uint32_t page, void *host, int write,
                  ht_err *e)
{
    uint8_t *h = host;
    HT_TRY(cuda__enter(dev, e));
    HT_TRY(check_page(kv, kv_class, page, e));
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (int v = 0; v < 2 && kv->layer_class[i] == kv_class; v++) {
            size_t n = (size_t)kv->page_bytes[i][v];
            uint8_t *at = kv->plane[i][v] + page * n;
            HT_TRY(move(dev, dev->stream, write ? at : h, write ? h : at, 1, n, e));
            h += n;
        }
    return cuda__sync(dev, e);
}

/* Ids that follow one another travel as one copy. Either pool may be in host memory. Nothing writes
 * these pages of these layers any more: their run was waited for, or has told that the layer is
 * complete. So the copies take the side stream, past whatever a run still computes; any thread may
 * ask for them, one at a time. */
int cuda__kv_move(ht_dev *dev, ht_kv *dst, ht_kv *src, int layer0, int n_layers,
                  const uint32_t *pages, size_t n, ht_err *e)
{
    HT_TRY(cuda__enter(dev, e));
    if (layer0 < 0 || n_layers < 0 || (uint32_t)layer0 + (uint32_t)n_layers > src->n_layers ||
        dst->n_layers != src->n_layers)
        return HT_FAIL(e, HT_EARG, "cuda: layers %d to %d of %u", layer0, layer0 + n_layers,
                       src->n_layers);
    for (int i = layer0; i < layer0 + n_layers; i++) {
        for (int v = 0; v < 2; v++)
            if (src->page_bytes[i][v] != dst->page_bytes[i][v] ||
                src->type[i][v] != dst->type[i][v])
                return HT_FAIL(e, HT_EARG, "cuda: pools of different pages at layer %d", i);
        for (size_t k = 0, run; k < n; k += run) {
            HT_TRY(check_page(src, src->layer_class[i], pages[k], e));
            HT_TRY(check_page(dst, dst->layer_class[i], pages[k], e));
            for (run = 1; k + run < n && pages[k + run] == pages[k] + run; run++) {
                HT_TRY(check_page(src, src->layer_class[i], pages[k + run], e));
                HT_TRY(check_page(dst, dst->layer_class[i], pages[k + run], e));
            }
            for (int v = 0; v < 2; v++) {
                size_t b = (size_t)src->page_bytes[i][v];
                HT_TRY(move(dev, dev->side, dst->plane[i][v] + pages[k] * b,
                            src->plane[i][v] + pages[k] * b, run, b, e));
            }
        }
    }
    return cuda__check(dev, dev->api.stream_sync(dev->side), "moving KV pages", NULL, e);
}

/* From memory that is not locked the driver copies through a buffer of its own, piece by piece, on
 * the processor. A refusal (a limit on locked memory, a system that has none) is no failure of the
 * device. */
int cuda__kv_pin(ht_dev *dev, void *mem, size_t bytes, ht_err *e)
{
    const char *text = NULL;
    HT_TRY(cuda__enter(dev, e));
    const int rc = dev->api.host_lock(mem, bytes, 0);
    if (rc == CUDA_OK) return 0;
    (void)dev->api.error_text(rc, &text);
    return HT_FAIL(e, HT_EUNSUPPORTED,
                   "the driver does not lock %zu MiB of host memory (CUDA error %d, %.80s); see "
                   "'ulimit -l' and the container's limits",
                   bytes >> 20, rc, text ? text : "unknown");
}

void cuda__kv_unpin(ht_dev *dev, void *mem)
{
    (void)dev->api.current(dev->ctx);
    (void)dev->api.host_unlock(mem);
}
