/* pack.c - reading a HeteroPack: the prefix, the canonical JSON header, and where items lie. The
 * format is docs/pack.md. The order and the offsets of items are a function of their sizes, so the
 * reader computes them and accepts nothing else. */
#include "format/pack.h"
#include "core/hash.h"
#include "format/priv.h"
#include <string.h>

/* Digest of the prefix's first half and the header: it stands for the whole, as the header holds
 * the digest of every item and the padding between them must be zero. */
int format__pack_digest(const uint8_t prefix[32], const void *header, size_t n, uint8_t out[32],
                        ht_err *e)
{
    ht_sha256 *h;
    HT_TRY(ht_sha256_new(&h, e));
    int rc = ht_sha256_add(h, prefix, 32, e);
    if (!rc) rc = ht_sha256_add(h, header, n, e);
    if (!rc) return ht_sha256_end(h, out, e);
    ht_sha256_free(h);
    return rc;
}

static bool from_hex(const ht_json *v, uint8_t out[32])
{
    if (!v || v->type != HT_JSTR || v->n != 64) return false;
    for (size_t i = 0; i < 64; i++) {
        char c = v->s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0) return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | d : d << 4);
    }
    return true;
}

/* A member that is a non-empty printable string of at most max bytes. */
static const char *text_of(const ht_json *item, const char *key, size_t min, size_t max)
{
    const ht_json *v = ht_json_get(item, key);
    if (!v || v->type != HT_JSTR || v->n < min || v->n > max) return NULL;
    for (size_t i = 0; i < v->n; i++)
        if (v->s[i] < 33 || v->s[i] > 126) return NULL;
    return v->s;
}

/* What blobs and tensors have in common. *at: where the next item must begin, from the data's
 * start. */
static int read_item(ht_file *f, const ht_json *item, const char *what, size_t i, size_t n_members,
                     uint64_t *at, format__place *place, uint64_t *bytes, const char **name,
                     const uint8_t **sha256, ht_err *e)
{
    const ht_json *offset = ht_json_get(item, "offset"), *size = ht_json_get(item, "bytes");
    uint8_t *digest = ht_arena_alloc(f->arena, 32);
    if (!digest) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %s %zu", f->label, what, i);
    *name = text_of(item, "name", 1, 127);
    if (!*name)
        return HT_FAIL(e, HT_EFORMAT, "%s: %s %zu has no printable \"name\" of 1 to 127 bytes",
                       f->label, what, i);
    if (item->n != n_members)
        return HT_FAIL(e, HT_EFORMAT, "%s: %s %s has %zu members, not %zu", f->label, what, *name,
                       item->n, n_members);
    if (!from_hex(ht_json_get(item, "sha256"), digest))
        return HT_FAIL(e, HT_EFORMAT, "%s: %s %s: \"sha256\" is not 64 hexadecimal digits",
                       f->label, what, *name);
    if (!offset || offset->type != HT_JINT || !size || size->type != HT_JINT || size->i < 0)
        return HT_FAIL(e, HT_EFORMAT, "%s: %s %s: \"offset\" and \"bytes\" are not counts",
                       f->label, what, *name);
    if (offset->i < 0 || (uint64_t)offset->i != *at)
        return HT_FAIL(e, HT_EFORMAT, "%s: %s %s: offset %lld, but the item before it ends at %llu",
                       f->label, what, *name, (long long)offset->i, (unsigned long long)*at);
    *bytes = (uint64_t)size->i;
    uint64_t room = f->part[0].n - f->pack_data;
    if (*bytes > room || *at > room - *bytes)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: %s %s: %llu bytes at offset %llu lie beyond the end of the "
                       "file",
                       f->label, what, *name, (unsigned long long)*bytes, (unsigned long long)*at);
    *place = (format__place){f->pack_data + *at, 0};
    *sha256 = digest;
    *at = format__pack_align(*at + *bytes);
    return 0;
}

static int read_blobs(ht_file *f, const ht_json *list, uint64_t *at, ht_err *e)
{
    if (!list || list->type != HT_JARR || list->n > 64)
        return HT_FAIL(e, HT_EFORMAT, "%s: \"blobs\" is not a list of at most 64", f->label);
    f->blob = ht_arena_array(f->arena, list->n, sizeof *f->blob);
    if (!f->blob) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %zu blobs", f->label, list->n);
    for (size_t i = 0; i < list->n; i++) {
        format__blob *b = &f->blob[i];
        uint64_t bytes;
        HT_TRY(
            read_item(f, &list->at[i], "blob", i, 4, at, &b->at, &bytes, &b->name, &b->sha256, e));
        for (size_t k = 0; k < i; k++)
            if (!strcmp(f->blob[k].name, b->name))
                return HT_FAIL(e, HT_EFORMAT, "%s: blob %s occurs twice", f->label, b->name);
        b->n = (size_t)bytes;
        b->p = f->part[0].p + b->at.offset;
        f->n_blobs++;
    }
    return 0;
}

static int read_dims(const ht_file *f, const ht_json *list, ht_tensor *t, ht_err *e)
{
    if (!list || list->type != HT_JARR || list->n < 1 || list->n > 4)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: \"dims\" is not a list of 1 to 4", f->label,
                       t->name);
    t->n_dims = (uint8_t)list->n;
    for (size_t i = 0; i < 4; i++) {
        const ht_json *v = i < list->n ? &list->at[i] : NULL;
        if (v && (v->type != HT_JINT || v->i < 1))
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: dimension %zu is no positive integer",
                           f->label, t->name, i);
        t->dim[i] = v ? (uint64_t)v->i : 1;
    }
    return 0;
}

/* Enter a tensor under its name, or under its name and representation. */
static int enter(ht_file *f, size_t i, ht_err *e)
{
    const char *name = f->tensor[i].name, *rep = f->rep[i];
    size_t n = strlen(name), n_rep = strlen(rep);
    char *both = ht_arena_alloc(f->arena, n + n_rep + 2);
    if (!both) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a name", f->label);
    memcpy(both, name, n);
    memcpy(both + n + 1, rep, n_rep);
    bool fresh = format__names_add(&f->reps, both, n + 1 + n_rep, i);
    if (fresh && !n_rep) fresh = format__names_add(&f->names, name, n, i);
    if (!fresh)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s occurs twice in representation \"%s\"",
                       f->label, name, rep);
    return 0;
}

static int read_tensor(ht_file *f, const ht_json *item, size_t i, uint64_t *at, ht_err *e)
{
    ht_tensor *t = &f->tensor[i];
    uint64_t bytes;
    HT_TRY(read_item(f, item, "tensor", i, 8, at, &f->place[i], &bytes, &t->name, &t->sha256, e));
    const char *type = text_of(item, "type", 1, 31), *layout = text_of(item, "layout", 1, 31);
    f->rep[i] = text_of(item, "rep", 0, 15);
    if (!type || !layout || !f->rep[i])
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: tensor %s: \"type\", \"layout\" or \"rep\" is missing or no "
                       "short word",
                       f->label, t->name);
    int type_id = ht_type_by_name(type), layout_id = ht_layout_by_name(layout, type_id);
    if (type_id < 0)
        return HT_FAIL(e, HT_EUNSUPPORTED, "%s: tensor %s: unsupported tensor type %s", f->label,
                       t->name, type);
    if (layout_id < 0)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s: tensor %s: unsupported layout %s of %s; make the pack again with "
                       "this version, or update hetero if a newer one made it",
                       f->label, t->name, layout, type);
    t->type = (uint8_t)type_id;
    t->layout = (uint8_t)layout_id;
    HT_TRY(read_dims(f, ht_json_get(item, "dims"), t, e));
    HT_TRY(format__size(t, f->label, e));
    if (t->bytes != bytes)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: %llu bytes, its shape needs %llu", f->label,
                       t->name, (unsigned long long)bytes, (unsigned long long)t->bytes);
    return enter(f, i, e);
}

static int read_tensors(ht_file *f, const ht_json *list, uint64_t *at, ht_err *e)
{
    if (!list || list->type != HT_JARR || list->n > FORMAT_MAX_TENSORS)
        return HT_FAIL(e, HT_EFORMAT, "%s: \"tensors\" is not a list of at most %d", f->label,
                       FORMAT_MAX_TENSORS);
    HT_TRY(format__tensors(f, list->n, e));
    f->rep = ht_arena_array(f->arena, list->n, sizeof *f->rep);
    if (!f->rep || !format__names_init(&f->reps, f->arena, list->n))
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %zu tensors", f->label, list->n);
    for (size_t i = 0; i < list->n; i++) {
        HT_TRY(read_tensor(f, &list->at[i], i, at, e));
        f->n_tensors++;
    }
    for (size_t i = 0; i < list->n; i++)
        if (f->rep[i][0] && !ht_file_find(f, f->tensor[i].name))
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: representation \"%s\" of no main tensor",
                           f->label, f->tensor[i].name, f->rep[i]);
    return 0;
}

static int read_prefix(ht_file *f, uint8_t prefix[HT_PACK_PREFIX], size_t *header_bytes, ht_err *e)
{
    const ht_map *m = &f->part[0];
    if (m->n < HT_PACK_PREFIX)
        return HT_FAIL(e, HT_EFORMAT, "%s: has %zu bytes, too short for a pack", f->label, m->n);
    HT_TRY(format__pread(m->fd, prefix, HT_PACK_PREFIX, 0, f->label, e));
    uint32_t version = (uint32_t)format__little(prefix + 8, 4);
    uint32_t zero = (uint32_t)format__little(prefix + 12, 4);
    uint64_t header = format__little(prefix + 16, 8), size = format__little(prefix + 24, 8);
    if (memcmp(prefix, HT_PACK_MAGIC, 8)) return HT_FAIL(e, HT_EFORMAT, "%s: is no pack", f->label);
    if (version != HT_PACK_VERSION)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s: pack version %u; this program reads version %d: make the "
                       "pack again or update",
                       f->label, version, HT_PACK_VERSION);
    if (zero) return HT_FAIL(e, HT_EFORMAT, "%s: bytes 12 to 15 are not zero", f->label);
    if (size < m->n)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: has %zu bytes and says %llu: the %llu behind its end are none of the "
                       "pack; copy or make it again",
                       f->label, m->n, (unsigned long long)size, (unsigned long long)(m->n - size));
    if (size != m->n)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: has %zu bytes and says %llu: it was not copied completely", f->label,
                       m->n, (unsigned long long)size);
    if (header > FORMAT_MAX_JSON || format__pack_align(HT_PACK_PREFIX + header) > size)
        return HT_FAIL(e, HT_EFORMAT, "%s: a header of %llu bytes in a file of %llu", f->label,
                       (unsigned long long)header, (unsigned long long)size);
    *header_bytes = (size_t)header;
    return 0;
}

/* The header's tree, its digest checked first: what follows may trust that a writer made it, not
 * that the writer was honest. */
static int read_header(ht_file *f, ht_err *e)
{
    uint8_t prefix[HT_PACK_PREFIX];
    size_t n = 0;
    ht_json *tree = NULL;
    HT_TRY(read_prefix(f, prefix, &n, e));
    char *text = ht_mem_alloc(n);
    if (!text) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a header of %zu bytes", f->label, n);
    int rc = format__pread(f->part[0].fd, text, n, HT_PACK_PREFIX, f->label, e);
    if (!rc) rc = format__pack_digest(prefix, text, n, f->pack_sha256, e);
    if (!rc && memcmp(f->pack_sha256, prefix + 32, 32))
        rc = HT_FAIL(e, HT_EFORMAT,
                     "%s: the header does not have the SHA-256 stored at offset 32; the "
                     "file is damaged, copy or make it again",
                     f->label);
    if (!rc) rc = ht_json_parse(f->arena, text, n, HT_JSON_CANON, f->label, &tree, e);
    ht_mem_free(text);
    if (rc) return rc;
    f->header = tree;
    f->pack_data = format__pack_align(HT_PACK_PREFIX + n);
    return 0;
}

int format__open_pack(ht_file *f, ht_err *e)
{
    uint64_t at = 0;
    f->kind = HT_FILE_PACK;
    HT_TRY(format__add_part(f, f->path, e));
    HT_TRY(read_header(f, e));
    const ht_json *h = f->header, *format = ht_json_get(h, "format"),
                  *model = ht_json_get(h, "model");
    if (h->type != HT_JOBJ || !format || format->type != HT_JSTR || strcmp(format->s, "heteropack"))
        return HT_FAIL(e, HT_EFORMAT, "%s: the header's \"format\" is not \"heteropack\"",
                       f->label);
    if (!model || model->type != HT_JOBJ)
        return HT_FAIL(e, HT_EFORMAT, "%s: the header has no object \"model\"", f->label);
    if (h->n != 4)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: the header has %zu members, not blobs, format, model and "
                       "tensors",
                       f->label, h->n);
    HT_TRY(read_blobs(f, ht_json_get(h, "blobs"), &at, e));
    HT_TRY(read_tensors(f, ht_json_get(h, "tensors"), &at, e));
    if (f->pack_data + at != f->part[0].n)
        return HT_FAIL(e, HT_EFORMAT, "%s: the items end at offset %llu of %zu", f->label,
                       (unsigned long long)(f->pack_data + at), f->part[0].n);
    f->tmpl = ht_file_blob(f, "template", &f->tmpl_n);
    return 0;
}

const void *ht_file_blob(const ht_file *f, const char *name, size_t *n)
{
    for (size_t i = 0; name && i < f->n_blobs; i++)
        if (!strcmp(f->blob[i].name, name)) {
            if (n) *n = f->blob[i].n;
            return f->blob[i].p;
        }
    if (n) *n = 0;
    return NULL;
}

const ht_tensor *ht_pack_find(const ht_file *f, const char *name, const char *rep)
{
    char both[160];
    if (!name || !rep || f->kind != HT_FILE_PACK) return NULL;
    size_t n = strlen(name), n_rep = strlen(rep);
    if (n > 127 || n_rep > 15) return NULL;
    memcpy(both, name, n + 1);
    memcpy(both + n + 1, rep, n_rep);
    size_t i = format__names_find(&f->reps, both, n + 1 + n_rep);
    return i == SIZE_MAX ? NULL : &f->tensor[i];
}

const uint8_t *ht_file_sha256(const ht_file *f)
{
    return f->kind == HT_FILE_PACK ? f->pack_sha256 : NULL;
}
