/* verify.c - reading everything once: digests, zero padding, finite weights. Through pread and one
 * buffer, so that a file cut short meanwhile is an error and the page cache is all that is
 * touched. */
#include "core/hash.h"
#include "format/pack.h"
#include "format/priv.h"
#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 20, ELEMENTS = 1 << 16 };

typedef struct {
    const ht_file *f;
    ht_progress_fn progress;
    void *user;
    uint64_t done, total;
    uint8_t *chunk; /* [CHUNK] */
    float *value;   /* [ELEMENTS] */
    ht_err *e;
} pass;

static int advance(pass *v, uint64_t n)
{
    v->done += n;
    if (v->progress && v->progress(v->user, "verify", v->done, v->total))
        return HT_FAIL(v->e, HT_ECANCELLED, "%s: verifying was cancelled", v->f->label);
    return 0;
}

/* Hash n bytes of a part into h. */
static int hash_range(pass *v, size_t part, uint64_t offset, uint64_t n, ht_sha256 *h)
{
    while (n) {
        size_t k = n < CHUNK ? (size_t)n : CHUNK;
        HT_TRY(
            format__pread(v->f->part[part].fd, v->chunk, k, offset, v->f->part_label[part], v->e));
        HT_TRY(ht_sha256_add(h, v->chunk, k, v->e));
        HT_TRY(advance(v, k));
        offset += k;
        n -= k;
    }
    return 0;
}

static int check_item(pass *v, const char *what, const char *name, uint64_t offset, uint64_t n,
                      const uint8_t want[32])
{
    ht_sha256 *h;
    uint8_t got[32];
    HT_TRY(ht_sha256_new(&h, v->e));
    int rc = hash_range(v, 0, offset, n, h);
    if (rc) {
        ht_sha256_free(h);
        return rc;
    }
    HT_TRY(ht_sha256_end(h, got, v->e));
    if (memcmp(got, want, 32))
        return HT_FAIL(v->e, HT_EFORMAT,
                       "%s: %s %s (offset %llu, %llu bytes) does not have its SHA-256; "
                       "the file is damaged, copy or make it again",
                       v->f->label, what, name, (unsigned long long)offset, (unsigned long long)n);
    return 0;
}

/* Bytes [from, to), fewer than HT_PACK_ALIGN, are zero. */
static int check_padding(pass *v, uint64_t from, uint64_t to)
{
    uint8_t pad[HT_PACK_ALIGN];
    HT_TRY(format__pread(v->f->part[0].fd, pad, (size_t)(to - from), from, v->f->label, v->e));
    for (uint64_t i = 0; i < to - from; i++)
        if (pad[i])
            return HT_FAIL(v->e, HT_EFORMAT,
                           "%s: the padding at offset %llu is not zero; the file is "
                           "damaged, copy or make it again",
                           v->f->label, (unsigned long long)(from + i));
    return advance(v, to - from);
}

/* Prefix and header again: they may have changed since the file was opened. */
static int check_header(pass *v, uint64_t n)
{
    uint8_t prefix[HT_PACK_PREFIX], got[32];
    int fd = v->f->part[0].fd;
    HT_TRY(format__pread(fd, prefix, sizeof prefix, 0, v->f->label, v->e));
    char *text = ht_mem_alloc((size_t)n);
    if (!text) return HT_FAIL(v->e, HT_ENOMEM, "%s: no memory for the header", v->f->label);
    int rc = format__pread(fd, text, (size_t)n, HT_PACK_PREFIX, v->f->label, v->e);
    if (!rc) rc = format__pack_digest(prefix, text, (size_t)n, got, v->e);
    ht_mem_free(text);
    if (rc) return rc;
    if (memcmp(got, v->f->pack_sha256, 32) || memcmp(prefix + 32, got, 32))
        return HT_FAIL(v->e, HT_EFORMAT, "%s: the header has changed since the pack was opened",
                       v->f->label);
    return advance(v, HT_PACK_PREFIX + n);
}

static int verify_pack(pass *v)
{
    const ht_file *f = v->f;
    uint8_t length[8];
    HT_TRY(format__pread(f->part[0].fd, length, sizeof length, 16, f->label, v->e));
    uint64_t at = format__little(length, sizeof length);
    if (at > f->pack_data - HT_PACK_PREFIX)
        return HT_FAIL(v->e, HT_EFORMAT, "%s: the header has changed since the pack was opened",
                       f->label);
    HT_TRY(check_header(v, at));
    at += HT_PACK_PREFIX;
    for (size_t i = 0; i < f->n_blobs; i++) {
        const format__blob *b = &f->blob[i];
        HT_TRY(check_padding(v, at, b->at.offset));
        HT_TRY(check_item(v, "blob", b->name, b->at.offset, b->n, b->sha256));
        at = b->at.offset + b->n;
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        const ht_tensor *t = &f->tensor[i];
        HT_TRY(check_padding(v, at, f->place[i].offset));
        HT_TRY(check_item(v, "tensor", t->name, f->place[i].offset, t->bytes, t->sha256));
        at = f->place[i].offset + t->bytes;
    }
    return check_padding(v, at, f->part[0].n);
}

static int hash_parts(pass *v, uint8_t out[32])
{
    ht_sha256 *h;
    HT_TRY(ht_sha256_new(&h, v->e));
    for (size_t i = 0; i < v->f->n_parts; i++) {
        int rc = hash_range(v, i, 0, v->f->part[i].n, h);
        if (rc) {
            ht_sha256_free(h);
            return rc;
        }
    }
    return ht_sha256_end(h, out, v->e);
}

static int check_finite(pass *v, size_t i)
{
    const ht_tensor *t = &v->f->tensor[i];
    const format__place *at = &v->f->place[i];
    const ht_type_info *type = ht_type_of(t->type);
    uint64_t blocks = t->bytes / type->bytes, per = ELEMENTS / type->block;
    if (t->layout != HT_LAYOUT_ROWS || t->type == HT_I32) return 0;
    for (uint64_t b = 0; b < blocks; b += per) {
        size_t n = (size_t)(blocks - b < per ? blocks - b : per);
        HT_TRY(format__pread(v->f->part[at->part].fd, v->chunk, n * type->bytes,
                             at->offset + b * type->bytes, v->f->part_label[at->part], v->e));
        type->decode(v->chunk, v->value, n * type->block);
        for (size_t k = 0; k < n * type->block; k++)
            if (!isfinite(v->value[k]))
                return HT_FAIL(v->e, HT_EFORMAT,
                               "%s: tensor %s: element %llu is not a finite number",
                               v->f->part_label[at->part], format__show(t->name, strlen(t->name)).s,
                               (unsigned long long)(b * type->block + k));
    }
    return advance(v, t->bytes);
}

int ht_file_verify(const ht_file *f, ht_progress_fn progress, void *user, char hex_out[65],
                   ht_err *e)
{
    pass v = {f, progress, user, 0, f->bytes, NULL, NULL, e};
    uint8_t digest[32];
    HT_TRY(ht_file_unchanged(f, e));
    for (size_t i = 0; i < f->n_tensors; i++)
        if (f->tensor[i].layout == HT_LAYOUT_ROWS && f->tensor[i].type != HT_I32)
            v.total += f->tensor[i].bytes;
    v.chunk = ht_mem_alloc(CHUNK);
    v.value = ht_mem_array(ELEMENTS, sizeof *v.value);
    int rc = v.chunk && v.value ? 0 : HT_FAIL(e, HT_ENOMEM, "%s: no memory to verify it", f->label);
    if (!rc && f->kind == HT_FILE_PACK) {
        memcpy(digest, f->pack_sha256, 32);
        rc = verify_pack(&v);
    } else if (!rc) {
        rc = hash_parts(&v, digest);
    }
    for (size_t i = 0; !rc && i < f->n_tensors; i++) rc = check_finite(&v, i);
    ht_mem_free(v.chunk);
    ht_mem_free(v.value);
    if (!rc && hex_out) ht_hex(digest, 32, hex_out);
    return rc;
}
