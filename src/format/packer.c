/* packer.c - writing a HeteroPack. Sizes decide offsets, so the header's length is known once all
 * is declared: item data goes straight to its place in a temporary file, hashed on the way, and the
 * header with the digests is written last. */
#include "core/hash.h"
#include "core/path.h"
#include "format/pack.h"
#include "format/priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    ht_tensor t;     /* name and bytes for a blob */
    const char *rep; /* NULL: a blob */
    const void *blob;
    uint64_t offset; /* from the data's start */
    uint8_t sha256[32];
} item;

struct ht_packer {
    ht_arena *arena;
    const char *path, *tmp;
    char label[FORMAT_LABEL];
    int fd;
    ht_buf model; /* canonical text */
    item *item;
    size_t n, cap, n_blobs;
    bool started;       /* declarations are over */
    uint64_t data, end; /* data section: where it begins, its length */
    size_t header_bytes;
    size_t at;
    uint64_t done; /* item being written, its bytes so far */
    ht_sha256 *hash;
};

static int sys_fail(const ht_packer *p, const char *what, int err, ht_err *e)
{
    return HT_FAIL(e, HT_EIO, "%s: %s: %s%s", p->label, what, strerror(err),
                   err == ENOSPC ? "; free some space or write elsewhere" : "");
}
static int no_memory(const ht_packer *p, ht_err *e)
{
    return HT_FAIL(e, HT_ENOMEM, "%s: no memory to write the pack", p->label);
}
/* Whether path is the file with this identity. */
static bool is_file(const char *path, const ht_path_target *t)
{
    struct stat st;
    return stat(path, &st) == 0 && (uint64_t)st.st_dev == t->dev && (uint64_t)st.st_ino == t->ino;
}

int ht_packer_check(const char *path, const ht_file *src, ht_err *e)
{
    ht_path_target t;
    HT_TRY(ht_path_target_of(&t, path, e));
    if (!t.there) return 0;
    bool own = false;
    for (size_t i = 0; i < src->n_parts && !own; i++)
        own = src->part[i].dev == t.dev && src->part[i].ino == t.ino;
    for (size_t i = 0; src->kind == HT_FILE_HF && format__hf_names[i] && !own; i++) {
        char file[HT_PATH_MAX];
        const int n = snprintf(file, sizeof file, "%s/%s", src->path, format__hf_names[i]);
        own = n > 0 && n < (int)sizeof file && is_file(file, &t);
    }
    if (!own) return 0;
    char label[FORMAT_LABEL];
    format__label(label, path);
    return HT_FAIL(e, HT_EARG, "%s: is a file of the source itself; write the pack elsewhere",
                   label);
}

int ht_packer_new(ht_packer **out, const char *path, ht_err *e)
{
    ht_path_target target;
    *out = NULL;
    HT_TRY(ht_path_target_of(&target, path, e));
    ht_packer *p = ht_mem_alloc(sizeof *p);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "no memory to write a pack");
    p->fd = -1;
    ht_buf_init(&p->model, FORMAT_MAX_JSON);
    format__label(p->label, path);
    int rc = ht_arena_new(&p->arena, 0, e);
    if (!rc) {
        p->path = ht_arena_strndup(p->arena, target.path, strlen(target.path));
        const char *tmp = ht_arena_printf(p->arena, "%s.%ld.tmp", target.path, (long)getpid());
        if (!p->path || !tmp) {
            rc = no_memory(p, e);
        } else {
            p->fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
            if (p->fd < 0) rc = sys_fail(p, "cannot create a temporary file beside it", errno, e);
            else p->tmp = tmp;
        }
    }
    if (rc) {
        ht_packer_abort(p);
        return rc;
    }
    *out = p;
    return 0;
}

void ht_packer_abort(ht_packer *p)
{
    if (!p) return;
    if (p->fd >= 0) close(p->fd);
    if (p->tmp) unlink(p->tmp);
    ht_sha256_free(p->hash);
    ht_buf_done(&p->model);
    ht_mem_free(p->item);
    ht_arena_free(p->arena);
    ht_mem_free(p);
}

/* ---- declarations ---------------------------------------------------------------------------- */

int ht_packer_header(ht_packer *p, const ht_json *model, ht_err *e)
{
    if (p->started || p->model.p)
        return HT_FAIL(e, HT_EARG, "%s: the model header was given twice or after data", p->label);
    if (!model || model->type != HT_JOBJ)
        return HT_FAIL(e, HT_EARG, "%s: the model header is not an object", p->label);
    int rc = ht_json_write(model, HT_JSON_CANON, &p->model, e);
    if (!rc) rc = ht_buf_ok(&p->model, "the model header", e);
    if (rc) ht_buf_done(&p->model);
    return rc;
}

/* A short printable word. */
static bool word(const char *s, size_t min, size_t max)
{
    size_t n = s ? strlen(s) : 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < 33 || s[i] > 126) return false;
    return s && n >= min && n <= max;
}

/* One more item; the name is copied. */
static int add_item(ht_packer *p, const char *name, item **out, ht_err *e)
{
    if (p->started) return HT_FAIL(e, HT_EARG, "%s: %.64s was declared after data", p->label, name);
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        item *more = ht_mem_resize(p->item, cap * sizeof *more);
        if (!more) return no_memory(p, e);
        p->item = more;
        p->cap = cap;
    }
    item *it = &p->item[p->n];
    memset(it, 0, sizeof *it);
    it->t.name = ht_arena_strndup(p->arena, name, strlen(name));
    if (!it->t.name) return no_memory(p, e);
    *out = it;
    return 0;
}

int ht_packer_blob(ht_packer *p, const char *name, const void *data, size_t n, ht_err *e)
{
    item *it;
    if (!word(name, 1, 127)) return HT_FAIL(e, HT_EARG, "%s: a blob's name is no word", p->label);
    if (p->n != p->n_blobs || p->n_blobs == 64)
        return HT_FAIL(e, HT_EARG, "%s: blob %s after a tensor, or more than 64 blobs", p->label,
                       name);
    HT_TRY(add_item(p, name, &it, e));
    it->blob = ht_arena_strndup(p->arena, data, n);
    if (!it->blob) return no_memory(p, e);
    it->t.bytes = n;
    p->n++;
    p->n_blobs++;
    return 0;
}

int ht_packer_tensor(ht_packer *p, const char *name, const char *rep, int type, int layout,
                     unsigned n_dims, const uint64_t *dim, ht_err *e)
{
    item *it;
    if (!word(name, 1, 127) || !word(rep, 0, 15))
        return HT_FAIL(e, HT_EARG, "%s: a tensor's name or representation is no word", p->label);
    if (!ht_type_of(type) || layout < 0 || layout >= HT_LAYOUTS || n_dims < 1 || n_dims > 4)
        return HT_FAIL(e, HT_EARG, "%s: tensor %s: type %d, layout %d, %u dimensions", p->label,
                       name, type, layout, n_dims);
    HT_TRY(add_item(p, name, &it, e));
    it->rep = ht_arena_strndup(p->arena, rep, strlen(rep));
    if (!it->rep) return no_memory(p, e);
    it->t.type = (uint8_t)type;
    it->t.layout = (uint8_t)layout;
    it->t.n_dims = (uint8_t)n_dims;
    for (unsigned i = 0; i < 4; i++) it->t.dim[i] = i < n_dims ? dim[i] : 1;
    HT_TRY(format__size(&it->t, p->label, e));
    p->n++;
    return 0;
}

/* ---- header ---------------------------------------------------------------------------------- */

/* Members in the order of the canonical form: by name. */
static void write_item(ht_jw *w, const item *it)
{
    char hex[65];
    ht_hex(it->sha256, 32, hex);
    ht_jw_obj(w);
    ht_jw_kuint(w, "bytes", it->t.bytes);
    if (it->rep) {
        ht_jw_key(w, "dims");
        ht_jw_arr(w);
        for (unsigned i = 0; i < it->t.n_dims; i++) ht_jw_uint(w, it->t.dim[i]);
        ht_jw_end(w, ']');
        ht_jw_kstr(w, "layout", ht_layout_name(it->t.layout, it->t.type));
    }
    ht_jw_kstr(w, "name", it->t.name);
    ht_jw_kuint(w, "offset", it->offset);
    if (it->rep) ht_jw_kstr(w, "rep", it->rep);
    ht_jw_kstr(w, "sha256", hex);
    if (it->rep) ht_jw_kstr(w, "type", ht_types[it->t.type].name);
    ht_jw_end(w, '}');
}

/* The header as text; digests not yet known are zeros, so that its length is the same both
 * times. */
static int write_header(const ht_packer *p, ht_buf *b, ht_err *e)
{
    ht_jw w;
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "blobs");
    ht_jw_arr(&w);
    for (size_t i = 0; i < p->n_blobs; i++) write_item(&w, &p->item[i]);
    ht_jw_end(&w, ']');
    ht_jw_kstr(&w, "format", "heteropack");
    ht_jw_key(&w, "model");
    ht_jw_raw(&w, p->model.p, p->model.n);
    ht_jw_key(&w, "tensors");
    ht_jw_arr(&w);
    for (size_t i = p->n_blobs; i < p->n; i++) write_item(&w, &p->item[i]);
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    return ht_buf_ok(b, "the pack's header", e);
}

/* ---- data ------------------------------------------------------------------------------------ */

static int put(const ht_packer *p, const void *data, size_t n, uint64_t offset, ht_err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(p->fd, (const char *)data + done, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return sys_fail(p, "writing", errno, e);
        done += (size_t)k;
    }
    return 0;
}

/* Bytes of the current item; steps to the next when it is complete. */
static int feed(ht_packer *p, const void *data, size_t n, ht_err *e)
{
    item *it = &p->item[p->at];
    if (!p->hash) HT_TRY(ht_sha256_new(&p->hash, e));
    HT_TRY(ht_sha256_add(p->hash, data, n, e));
    HT_TRY(put(p, data, n, p->data + it->offset + p->done, e));
    p->done += n;
    if (p->done < it->t.bytes) return 0;
    ht_sha256 *h = p->hash;
    p->hash = NULL;
    HT_TRY(ht_sha256_end(h, it->sha256, e));
    p->at++;
    p->done = 0;
    return 0;
}

static int check_names(const ht_packer *p, ht_err *e)
{
    ht_arena *a;
    format__names seen;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = format__names_init(&seen, a, p->n) ? 0 : no_memory(p, e);
    for (size_t i = 0; !rc && i < p->n; i++) {
        const item *it = &p->item[i];
        const char *key = ht_arena_printf(a, "%s %s %s", it->rep ? "tensor" : "blob", it->t.name,
                                          it->rep ? it->rep : "");
        if (!key) rc = no_memory(p, e);
        else if (!format__names_add(&seen, key, strlen(key), i))
            rc = HT_FAIL(e, HT_EARG, "%s: %s was declared twice", p->label, key);
    }
    ht_arena_free(a);
    return rc;
}

/* Declarations end: fix offsets and the header's length, write the blobs. */
static int start(ht_packer *p, ht_err *e)
{
    ht_buf b;
    if (!p->model.p) return HT_FAIL(e, HT_EARG, "%s: no model header was given", p->label);
    HT_TRY(check_names(p, e));
    p->end = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->item[i].offset = p->end;
        p->end = format__pack_align(p->end + p->item[i].t.bytes);
    }
    ht_buf_init(&b, FORMAT_MAX_JSON);
    int rc = write_header(p, &b, e);
    p->header_bytes = b.n;
    p->data = format__pack_align(HT_PACK_PREFIX + b.n);
    ht_buf_done(&b);
    if (rc) return rc;
    p->started = true;
    for (size_t i = 0; i < p->n_blobs; i++)
        HT_TRY(feed(p, p->item[i].blob, (size_t)p->item[i].t.bytes, e));
    return 0;
}

int ht_packer_write(ht_packer *p, const void *data, size_t n, ht_err *e)
{
    if (!p->started) HT_TRY(start(p, e));
    if (p->at == p->n) return HT_FAIL(e, HT_EARG, "%s: data after the last tensor", p->label);
    const item *it = &p->item[p->at];
    if (n > it->t.bytes - p->done)
        return HT_FAIL(e, HT_EARG, "%s: tensor %s: %llu bytes were declared, more were given",
                       p->label, it->t.name, (unsigned long long)it->t.bytes);
    return n ? feed(p, data, n, e) : 0;
}

static int finish(ht_packer *p, char hex[65], ht_err *e)
{
    uint8_t prefix[HT_PACK_PREFIX] = HT_PACK_MAGIC;
    ht_buf b;
    if (!p->started) HT_TRY(start(p, e));
    if (p->at < p->n)
        return HT_FAIL(e, HT_EARG, "%s: tensor %s: %llu of %llu bytes were given", p->label,
                       p->item[p->at].t.name, (unsigned long long)p->done,
                       (unsigned long long)p->item[p->at].t.bytes);
    uint64_t size = p->data + p->end;
    prefix[8] = HT_PACK_VERSION;
    for (unsigned i = 0; i < 8; i++) {
        prefix[16 + i] = (uint8_t)(p->header_bytes >> 8 * i);
        prefix[24 + i] = (uint8_t)(size >> 8 * i);
    }
    ht_buf_init(&b, FORMAT_MAX_JSON);
    int rc = write_header(p, &b, e);
    if (!rc) rc = format__pack_digest(prefix, b.p, b.n, prefix + 32, e);
    if (!rc) rc = put(p, prefix, sizeof prefix, 0, e);
    if (!rc) rc = put(p, b.p, b.n, HT_PACK_PREFIX, e);
    ht_buf_done(&b);
    if (rc) return rc;
    if (ftruncate(p->fd, (off_t)size)) return sys_fail(p, "writing", errno, e);
    if (fsync(p->fd)) return sys_fail(p, "writing to the disk", errno, e);
    if (rename(p->tmp, p->path)) return sys_fail(p, "giving the temporary file its name", errno, e);
    p->tmp = NULL;
    if (hex) ht_hex(prefix + 32, 32, hex);
    return 0;
}

int ht_packer_end(ht_packer *p, char sha256_hex[65], ht_err *e)
{
    int rc = finish(p, sha256_hex, e);
    ht_packer_abort(p);
    return rc;
}
