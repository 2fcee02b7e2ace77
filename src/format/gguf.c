/* gguf.c - GGUF version 2 and 3, one file or shards, and the accessors of its metadata.
 *
 * The header is parsed from a copy whose length is not known beforehand: the parser runs on a
 * growing prefix of the file and asks for more when it meets its end. Every length is compared with
 * what the file can still hold before anything is allocated for it, so a header of k bytes costs
 * O(k) memory. */
#include "format/priv.h"
#include <stdio.h>
#include <string.h>

enum {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STR,
    T_ARR,
    T_U64,
    T_I64,
    T_F64,
    T_COUNT
};
static const uint8_t width[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const uint8_t meta_type[T_COUNT] = {
    HT_META_U64,  HT_META_I64, HT_META_U64, HT_META_I64, HT_META_U64, HT_META_I64, HT_META_F64,
    HT_META_BOOL, HT_META_STR, HT_META_ARR, HT_META_U64, HT_META_I64, HT_META_F64};

enum {
    FIRST_READ = 1 << 20, /* a header without vocabulary fits; others double a few times */
    MAX_HEADER = 1 << 30,
    MAX_KEY = 65535,
    MAX_NAME = 63,
    MIN_KV = 8 + 1 + 4 + 1, /* least bytes of a key and its value */
    MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8,
    MAX_ALIGN = 1 << 20,
    NEED_MORE = 1, /* not an error: the copied prefix ends before the header does */
};

/* ---- cursor over the copied prefix ----------------------------------------------------------- */

typedef struct {
    const uint8_t *p;
    uint64_t n, size, at; /* bytes copied, bytes of the file, position */
    const char *label;
    ht_err *e;
} cursor;

/* Step over k bytes; *out is where they begin. What they are is for the message. */
static int take(cursor *c, uint64_t k, const uint8_t **out, const char *what)
{
    if (k > c->size - c->at)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: ends inside %s: %llu bytes wanted at offset %llu of %llu", c->label,
                       what, (unsigned long long)k, (unsigned long long)c->at,
                       (unsigned long long)c->size);
    if (k > c->n - c->at) return NEED_MORE;
    *out = c->p + c->at;
    c->at += k;
    return 0;
}
static int take_u32(cursor *c, uint32_t *out, const char *what)
{
    const uint8_t *p;
    HT_TRY(take(c, 4, &p, what));
    *out = (uint32_t)format__little(p, 4);
    return 0;
}
static int take_u64(cursor *c, uint64_t *out, const char *what)
{
    const uint8_t *p;
    HT_TRY(take(c, 8, &p, what));
    *out = format__little(p, 8);
    return 0;
}
static int take_str(cursor *c, const char **s, uint64_t *n, const char *what)
{
    const uint8_t *p;
    HT_TRY(take_u64(c, n, what));
    HT_TRY(take(c, *n, &p, what));
    *s = (const char *)p;
    return 0;
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Widen the number at p of GGUF type t. */
static void widen(ht_meta *m, unsigned t, const uint8_t *p)
{
    uint64_t raw = format__little(p, width[t]);
    unsigned bits = 8u * width[t];
    m->type = meta_type[t];
    switch (meta_type[t]) {
    case HT_META_U64:
        m->u = raw;
        m->i = raw > INT64_MAX ? INT64_MAX : (int64_t)raw;
        break;
    case HT_META_I64:
        m->i = (int64_t)(raw << (64 - bits)) >> (64 - bits);
        m->u = m->i < 0 ? 0 : (uint64_t)m->i;
        break;
    case HT_META_F64:
        if (t == T_F32) {
            float f;
            memcpy(&f, p, sizeof f);
            m->f = (double)f;
        } else {
            memcpy(&m->f, p, sizeof m->f);
        }
        break;
    default: m->b = raw != 0;
    }
}

/* The elements of an array of strings: note where each begins. */
static int take_strings(cursor *c, format__gguf *g, format__array *a, uint64_t n, const char *key)
{
    const uint8_t **at = ht_arena_array(g->arena, n, sizeof *at);
    if (!at)
        return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for the %llu strings of key %s", c->label,
                       (unsigned long long)n, key);
    for (uint64_t i = 0; i < n; i++) {
        const char *s;
        uint64_t len;
        at[i] = c->p + c->at;
        HT_TRY(take_str(c, &s, &len, "a string of an array"));
    }
    a->str = at;
    return 0;
}

static int take_array(cursor *c, format__gguf *g, ht_meta *m, const char *key)
{
    uint32_t t;
    uint64_t n, least;
    HT_TRY(take_u32(c, &t, "an array's type"));
    HT_TRY(take_u64(c, &n, "an array's length"));
    if (t >= T_COUNT)
        return HT_FAIL(c->e, HT_EFORMAT, "%s: key %s: array elements of unknown type %u", c->label,
                       key, t);
    if (t == T_ARR)
        return HT_FAIL(c->e, HT_EUNSUPPORTED, "%s: key %s: arrays inside arrays are not supported",
                       c->label, key);
    least = t == T_STR ? 8 : width[t];
    if (n > (c->size - c->at) / least)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: key %s: an array of %llu elements cannot fit in the %llu "
                       "bytes that are left",
                       c->label, key, (unsigned long long)n, (unsigned long long)(c->size - c->at));
    format__array *a = ht_arena_alloc(g->arena, sizeof *a);
    if (!a) return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for key %s", c->label, key);
    a->gguf_type = (uint8_t)t;
    m->type = HT_META_ARR;
    m->elem = meta_type[t];
    m->n = (size_t)n;
    m->priv = a;
    if (t == T_STR) {
        /* Ask for the bytes before the table is made: a prefix cut here would make it in vain. */
        if (n * least > c->n - c->at) return NEED_MORE;
        return take_strings(c, g, a, n, key);
    }
    HT_TRY(take(c, n * least, &a->p, "an array"));
    for (uint64_t i = 0; t == T_BOOL && i < n; i++)
        if (a->p[i] > 1)
            return HT_FAIL(c->e, HT_EFORMAT, "%s: key %s: boolean %llu has the value %u", c->label,
                           key, (unsigned long long)i, a->p[i]);
    return 0;
}

static int take_value(cursor *c, format__gguf *g, ht_meta *m, const char *key)
{
    uint32_t t;
    uint64_t n;
    const uint8_t *p;
    HT_TRY(take_u32(c, &t, "a value's type"));
    if (t >= T_COUNT)
        return HT_FAIL(c->e, HT_EFORMAT, "%s: key %s: value of unknown type %u", c->label, key, t);
    if (t == T_ARR) return take_array(c, g, m, key);
    if (t == T_STR) {
        m->type = HT_META_STR;
        HT_TRY(take_str(c, &m->s, &n, "a string value"));
        m->n = (size_t)n;
        return 0;
    }
    HT_TRY(take(c, width[t], &p, "a value"));
    widen(m, t, p);
    if (t == T_BOOL && *p > 1)
        return HT_FAIL(c->e, HT_EFORMAT, "%s: key %s: a boolean has the value %u", c->label, key,
                       *p);
    return 0;
}

static int take_key(cursor *c, format__gguf *g, size_t i)
{
    const char *s;
    uint64_t n;
    uint64_t at = c->at;
    HT_TRY(take_u64(c, &n, "a key"));
    if (n == 0 || n > MAX_KEY)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: key %zu at offset %llu has %llu bytes, 1 to %d are allowed", c->label,
                       i, (unsigned long long)at, (unsigned long long)n, MAX_KEY);
    c->at = at;
    HT_TRY(take_str(c, &s, &n, "a key"));
    for (uint64_t k = 0; k < n; k++)
        if (s[k] < 33 || s[k] > 126)
            return HT_FAIL(c->e, HT_EFORMAT, "%s: key %zu at offset %llu holds byte 0x%02x",
                           c->label, i, (unsigned long long)at, (unsigned char)s[k]);
    g->key[i] = ht_arena_strndup(g->arena, s, (size_t)n);
    if (!g->key[i]) return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for key %zu", c->label, i);
    if (!format__names_add(&g->keys, g->key[i], (size_t)n, i))
        return HT_FAIL(c->e, HT_EFORMAT, "%s: key %s occurs twice", c->label,
                       format__show(g->key[i], (size_t)n).s);
    return 0;
}

/* ---- tensor directory ------------------------------------------------------------------------ */

static int take_name(cursor *c, format__gguf *g, size_t i)
{
    ht_tensor *t = &g->tensor[i];
    const char *s;
    uint64_t n, at = c->at;
    HT_TRY(take_u64(c, &n, "a tensor's name"));
    if (n == 0 || n > MAX_NAME)
        return HT_FAIL(
            c->e, HT_EFORMAT,
            "%s: the name of tensor %zu at offset %llu has %llu bytes, 1 to %d are allowed",
            c->label, i, (unsigned long long)at, (unsigned long long)n, MAX_NAME);
    c->at = at;
    HT_TRY(take_str(c, &s, &n, "a tensor's name"));
    if (memchr(s, 0, (size_t)n))
        return HT_FAIL(c->e, HT_EFORMAT, "%s: the name of tensor %zu holds a zero byte", c->label,
                       i);
    t->name = ht_arena_strndup(g->arena, s, (size_t)n);
    if (!t->name) return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for tensor %zu", c->label, i);
    return 0;
}

static int take_tensor(cursor *c, format__gguf *g, size_t i, uint64_t align)
{
    ht_tensor *t = &g->tensor[i];
    uint32_t dims, type;
    uint64_t ne[4];
    HT_TRY(take_name(c, g, i));
    format__shown name = format__show(t->name, strlen(t->name));
    HT_TRY(take_u32(c, &dims, "a tensor's shape"));
    if (dims < 1 || dims > 4)
        return HT_FAIL(c->e, HT_EFORMAT, "%s: tensor %s: %u dimensions, 1 to 4 are allowed",
                       c->label, name.s, dims);
    for (uint32_t k = 0; k < dims; k++) HT_TRY(take_u64(c, &ne[k], "a tensor's shape"));
    HT_TRY(take_u32(c, &type, "a tensor's type"));
    HT_TRY(take_u64(c, &g->offset[i], "a tensor's offset"));
    int known = ht_type_by_ggml(type);
    if (known < 0)
        return HT_FAIL(
            c->e, HT_EUNSUPPORTED,
            "%s: tensor %s: unsupported tensor type %s (%u); convert "
            "the model to one of F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K..Q6_K IQ4_NL "
            "MXFP4",
            c->label, name.s, ht_ggml_name(type), type);
    t->type = (uint8_t)known;
    t->layout = HT_LAYOUT_ROWS;
    t->n_dims = (uint8_t)dims;
    for (uint32_t k = 0; k < 4; k++)
        t->dim[k] = k < dims ? ne[dims - 1 - k] : 1; /* slowest first */
    HT_TRY(format__size(t, c->label, c->e));
    if (g->offset[i] % align)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: tensor %s: offset %llu is no multiple of the alignment "
                       "%llu",
                       c->label, name.s, (unsigned long long)g->offset[i],
                       (unsigned long long)align);
    return 0;
}

static int check_alignment(const format__gguf *g, const char *label, uint64_t *align, ht_err *e)
{
    size_t i = format__names_find(&g->keys, "general.alignment", strlen("general.alignment"));
    *align = 32;
    if (i == SIZE_MAX) return 0;
    const ht_meta *m = &g->meta[i];
    if (m->type != HT_META_U64)
        return HT_FAIL(e, HT_EFORMAT, "%s: general.alignment is not an unsigned integer", label);
    if (m->u < 8 || m->u > MAX_ALIGN || (m->u & (m->u - 1)))
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: general.alignment is %llu, not a power of two from 8 to %d", label,
                       (unsigned long long)m->u, MAX_ALIGN);
    *align = m->u;
    return 0;
}

/* ---- header ---------------------------------------------------------------------------------- */

static int take_counts(cursor *c, format__gguf *g)
{
    const uint8_t *p;
    uint32_t version;
    uint64_t n_tensors, n_keys;
    HT_TRY(take(c, 4, &p, "the magic"));
    if (memcmp(p, "GGUF", 4)) return HT_FAIL(c->e, HT_EFORMAT, "%s: is no GGUF file", c->label);
    HT_TRY(take_u32(c, &version, "the version"));
    if (version == 0x02000000 || version == 0x03000000)
        return HT_FAIL(c->e, HT_EUNSUPPORTED,
                       "%s: is a GGUF file of a big-endian machine; convert it "
                       "to little-endian",
                       c->label);
    if (version != 2 && version != 3)
        return HT_FAIL(c->e, HT_EUNSUPPORTED, "%s: GGUF version %u; 2 and 3 are read", c->label,
                       version);
    HT_TRY(take_u64(c, &n_tensors, "the tensor count"));
    HT_TRY(take_u64(c, &n_keys, "the key count"));
    if (n_keys > FORMAT_MAX_KEYS || n_keys > (c->size - c->at) / MIN_KV)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: says it has %llu keys, which a file of %llu bytes cannot "
                       "hold (or more than %d)",
                       c->label, (unsigned long long)n_keys, (unsigned long long)c->size,
                       FORMAT_MAX_KEYS);
    if (n_tensors > FORMAT_MAX_TENSORS || n_tensors > (c->size - c->at) / MIN_TENSOR)
        return HT_FAIL(c->e, HT_EFORMAT,
                       "%s: says it has %llu tensors, which a file of %llu bytes "
                       "cannot hold (or more than %d)",
                       c->label, (unsigned long long)n_tensors, (unsigned long long)c->size,
                       FORMAT_MAX_TENSORS);
    g->n_meta = (size_t)n_keys;
    g->n_tensors = (size_t)n_tensors;
    g->key = ht_arena_array(g->arena, g->n_meta, sizeof *g->key);
    g->meta = ht_arena_array(g->arena, g->n_meta, sizeof *g->meta);
    if (!g->key || !g->meta || !format__names_init(&g->keys, g->arena, g->n_meta))
        return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for %zu keys", c->label, g->n_meta);
    return 0;
}

static int parse_prefix(cursor *c, format__gguf *g, bool vocab_only)
{
    uint64_t align;
    HT_TRY(take_counts(c, g));
    for (size_t i = 0; i < g->n_meta; i++) {
        HT_TRY(take_key(c, g, i));
        format__shown key = format__show(g->key[i], strlen(g->key[i]));
        HT_TRY(take_value(c, g, &g->meta[i], key.s));
    }
    HT_TRY(check_alignment(g, c->label, &align, c->e));
    if (vocab_only) g->n_tensors = 0;
    g->tensor = ht_arena_array(g->arena, g->n_tensors, sizeof *g->tensor);
    g->offset = ht_arena_array(g->arena, g->n_tensors, sizeof *g->offset);
    if (!g->tensor || !g->offset)
        return HT_FAIL(c->e, HT_ENOMEM, "%s: no memory for %zu tensors", c->label, g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++) HT_TRY(take_tensor(c, g, i, align));
    g->data_start = (c->at + align - 1) / align * align;
    if (g->n_tensors && g->data_start > c->size)
        return HT_FAIL(c->e, HT_EFORMAT, "%s: ends at offset %llu, before its tensor data",
                       c->label, (unsigned long long)c->size);
    return 0;
}

void format__gguf_done(format__gguf *g)
{
    ht_arena_free(g->arena);
    ht_mem_free(g->copy);
    *g = (format__gguf){0};
}

/* Parse the header of a mapped file. On failure *g is empty; otherwise format__gguf_done frees. */
static int parse(format__gguf *g, const ht_map *m, const char *label, bool vocab_only, ht_err *e)
{
    size_t have = 0, want = m->n < FIRST_READ ? m->n : FIRST_READ;
    uint8_t *copy = NULL;
    int rc;
    for (;;) {
        *g = (format__gguf){0};
        uint8_t *bigger = ht_mem_resize(copy, want);
        if (!bigger) {
            ht_mem_free(copy);
            return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a header of %zu bytes", label, want);
        }
        copy = bigger;
        rc = format__pread(m->fd, copy + have, want - have, have, label, e);
        have = want;
        if (!rc) rc = ht_arena_new(&g->arena, FORMAT_MAX_ARENA, e);
        cursor c = {copy, have, m->n, 0, label, e};
        if (!rc) rc = parse_prefix(&c, g, vocab_only);
        if (rc != NEED_MORE) break;
        ht_arena_free(g->arena);
        if (have >= MAX_HEADER) {
            g->arena = NULL;
            rc = HT_FAIL(e, HT_EUNSUPPORTED, "%s: the header has more than %d bytes", label,
                         MAX_HEADER);
            break;
        }
        want = have > m->n / 2 ? m->n : have * 2;
    }
    g->copy = copy;
    if (rc) format__gguf_done(g);
    return rc;
}

/* ---- shards ---------------------------------------------------------------------------------- */

static int shard_u16(const format__gguf *g, const char *key, uint64_t def, const char *label,
                     uint64_t *out, ht_err *e)
{
    size_t i = format__names_find(&g->keys, key, strlen(key));
    *out = def;
    if (i == SIZE_MAX) return 0;
    if (g->meta[i].type == HT_META_U64) {
        *out = g->meta[i].u;
        return 0;
    }
    if (g->meta[i].type == HT_META_I64 && g->meta[i].i >= 0) {
        *out = g->meta[i].u;
        return 0;
    }
    return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not a count", label, key);
}

/* Path of shard i (from 0) of n, from the path of the first: PREFIX-00001-of-000NN.gguf. */
static int shard_path(ht_file *f, size_t i, size_t n, const char **out, ht_err *e)
{
    char tail[32];
    size_t len = strlen(f->path),
           tail_len = (size_t)snprintf(tail, sizeof tail, "-%05d-of-%05zu.gguf", 1, n);
    if (len < tail_len || strcmp(f->path + len - tail_len, tail))
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: holds part 1 of %zu but is not called ...%s, so the others "
                       "cannot be found",
                       f->label, n, tail);
    *out = ht_arena_printf(f->arena, "%.*s-%05zu-of-%05zu.gguf", (int)(len - tail_len), f->path,
                           i + 1, n);
    return *out ? 0 : HT_FAIL(e, HT_ENOMEM, "%s: no memory for a path", f->label);
}

/* Take over the tensors of a parsed shard: check ranges, copy names. */
static int adopt(ht_file *f, const format__gguf *g, size_t part, ht_err *e)
{
    const ht_map *m = &f->part[part];
    const char *label = f->part_label[part];
    format__range *range = ht_mem_array(g->n_tensors, sizeof *range);
    if (!range)
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory to check %zu tensors", label, g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++)
        range[i] = (format__range){g->offset[i], g->tensor[i].bytes, g->tensor[i].name};
    uint64_t room = g->n_tensors ? m->n - g->data_start : 0;
    int rc = format__ranges(range, g->n_tensors, room, false, label, e);
    ht_mem_free(range);
    if (rc) return rc;
    for (size_t i = 0; i < g->n_tensors; i++) {
        size_t at = f->n_tensors, len = strlen(g->tensor[i].name);
        f->tensor[at] = g->tensor[i];
        f->tensor[at].name = ht_arena_strndup(f->arena, g->tensor[i].name, len);
        if (!f->tensor[at].name) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a name", label);
        f->place[at] = (format__place){g->data_start + g->offset[i], (uint32_t)part};
        if (!format__names_add(&f->names, f->tensor[at].name, len, at))
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s occurs twice", label,
                           format__show(f->tensor[at].name, len).s);
        f->n_tensors++;
    }
    return 0;
}

static int open_shard(ht_file *f, size_t i, size_t n, uint64_t total, ht_err *e)
{
    format__gguf g;
    const char *path;
    uint64_t no, count;
    HT_TRY(shard_path(f, i, n, &path, e));
    HT_TRY(format__add_part(f, path, e));
    const char *label = f->part_label[i];
    HT_TRY(parse(&g, &f->part[i], label, false, e));
    int rc = shard_u16(&g, "split.no", UINT64_MAX, label, &no, e);
    if (!rc) rc = shard_u16(&g, "split.count", 0, label, &count, e);
    if (!rc && (no != i || count != n))
        rc = HT_FAIL(e, HT_EFORMAT,
                     "%s: says split.no %lld of %llu, but its name and the first part say "
                     "%zu of %zu",
                     label, (long long)no, (unsigned long long)count, i, n);
    if (!rc && g.n_tensors > total - f->n_tensors)
        rc = HT_FAIL(e, HT_EFORMAT,
                     "%s: with its %zu tensors the parts hold more than the "
                     "split.tensors.count %llu of the first",
                     label, g.n_tensors, (unsigned long long)total);
    if (!rc) rc = adopt(f, &g, i, e);
    format__gguf_done(&g);
    return rc;
}

int format__open_gguf(ht_file *f, const ht_file_opts *opts, ht_err *e)
{
    uint64_t n, no, total;
    f->kind = HT_FILE_GGUF;
    HT_TRY(format__add_part(f, f->path, e));
    HT_TRY(parse(&f->gguf, &f->part[0], f->label, opts->vocab_only, e));
    HT_TRY(shard_u16(&f->gguf, "split.count", 1, f->label, &n, e));
    HT_TRY(shard_u16(&f->gguf, "split.no", 0, f->label, &no, e));
    HT_TRY(shard_u16(&f->gguf, "split.tensors.count", f->gguf.n_tensors, f->label, &total, e));
    if (n == 0) n = 1;
    if (n > FORMAT_MAX_PARTS)
        return HT_FAIL(e, HT_EFORMAT, "%s: split.count is %llu, at most %d parts are read",
                       f->label, (unsigned long long)n, FORMAT_MAX_PARTS);
    if (no != 0)
        return HT_FAIL(e, HT_EARG,
                       "%s: is part %llu of %llu; give the first part (...-00001-of-%05llu"
                       ".gguf)",
                       f->label, (unsigned long long)no + 1, (unsigned long long)n,
                       (unsigned long long)n);
    bool split = n > 1 && !opts->vocab_only;
    if (!split) total = f->gguf.n_tensors;
    if (total > FORMAT_MAX_TENSORS || total < f->gguf.n_tensors)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: split.tensors.count is %llu, the first part alone has %zu", f->label,
                       (unsigned long long)total, f->gguf.n_tensors);
    HT_TRY(format__tensors(f, (size_t)total, e));
    HT_TRY(adopt(f, &f->gguf, 0, e));
    for (size_t i = 1; split && i < n; i++) HT_TRY(open_shard(f, i, (size_t)n, total, e));
    if (f->n_tensors != total)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: the parts hold %zu tensors, split.tensors.count says %llu", f->label,
                       f->n_tensors, (unsigned long long)total);
    HT_TRY(format__gguf_check(f, e));
    const ht_meta *t = ht_file_meta(f, "tokenizer.chat_template");
    if (t && t->type == HT_META_STR) {
        f->tmpl = t->s;
        f->tmpl_n = t->n;
    }
    return 0;
}

/* ---- accessors ------------------------------------------------------------------------------- */

const ht_meta *ht_file_meta(const ht_file *f, const char *key)
{
    size_t i = key ? format__names_find(&f->gguf.keys, key, strlen(key)) : SIZE_MAX;
    return i == SIZE_MAX ? NULL : &f->gguf.meta[i];
}

size_t ht_file_n_meta(const ht_file *f)
{
    return f->gguf.n_meta;
}

const ht_meta *ht_file_meta_at(const ht_file *f, size_t i, const char **key)
{
    if (i >= f->gguf.n_meta) return NULL;
    if (key) *key = f->gguf.key[i];
    return &f->gguf.meta[i];
}

bool ht_meta_arr_str(const ht_meta *m, size_t i, const char **s, size_t *n)
{
    if (!m || m->type != HT_META_ARR || m->elem != HT_META_STR || i >= m->n) return false;
    const uint8_t *p = ((const format__array *)m->priv)->str[i];
    *n = (size_t)format__little(p, 8);
    *s = (const char *)p + 8;
    return true;
}

/* Element i of an array of numbers, widened. */
static bool element(const ht_meta *m, size_t i, ht_meta *out)
{
    if (!m || m->type != HT_META_ARR || m->elem == HT_META_STR || i >= m->n) return false;
    const format__array *a = m->priv;
    *out = (ht_meta){0};
    widen(out, a->gguf_type, a->p + i * width[a->gguf_type]);
    return true;
}

bool ht_meta_arr_i64(const ht_meta *m, size_t i, int64_t *v)
{
    ht_meta x;
    if (!element(m, i, &x)) return false;
    if (x.type == HT_META_F64 || (x.type == HT_META_U64 && x.u > INT64_MAX)) return false;
    *v = x.type == HT_META_BOOL ? x.b : x.i;
    return true;
}

bool ht_meta_arr_f64(const ht_meta *m, size_t i, double *v)
{
    ht_meta x;
    if (!element(m, i, &x) || x.type == HT_META_BOOL) return false;
    *v = x.type == HT_META_F64 ? x.f : x.type == HT_META_U64 ? (double)x.u : (double)x.i;
    return true;
}

static const char *meta_name(const ht_meta *m)
{
    static const char *const name[] = {"an unsigned integer", "an integer", "a real number",
                                       "true or false",       "a string",   "an array"};
    return name[m->type];
}

/* *m NULL when the key is absent and need not be there. */
static int lookup(const ht_file *f, const char *key, bool required, const ht_meta **m, ht_err *e)
{
    *m = ht_file_meta(f, key);
    if (!*m && required)
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is missing; the file is incomplete", f->label,
                       key);
    return 0;
}
static int wrong(const ht_file *f, const char *key, const ht_meta *m, const char *want, ht_err *e)
{
    return HT_FAIL(e, HT_EFORMAT, "%s: key %s is %s, not %s", f->label, key, meta_name(m), want);
}

int ht_file_meta_u32(const ht_file *f, const char *key, bool required, uint32_t def, uint32_t *out,
                     ht_err *e)
{
    const ht_meta *m;
    HT_TRY(lookup(f, key, required, &m, e));
    *out = def;
    if (!m) return 0;
    if (m->type != HT_META_U64 && m->type != HT_META_I64) return wrong(f, key, m, "an integer", e);
    if (m->u > UINT32_MAX || (m->type == HT_META_I64 && m->i < 0))
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is out of range (0 to %u)", f->label, key,
                       UINT32_MAX);
    *out = (uint32_t)m->u;
    return 0;
}

int ht_file_meta_f32(const ht_file *f, const char *key, bool required, float def, float *out,
                     ht_err *e)
{
    const ht_meta *m;
    HT_TRY(lookup(f, key, required, &m, e));
    *out = def;
    if (!m) return 0;
    if (m->type == HT_META_F64) *out = (float)m->f;
    else if (m->type == HT_META_U64) *out = (float)m->u;
    else if (m->type == HT_META_I64) *out = (float)m->i;
    else return wrong(f, key, m, "a number", e);
    if (!(*out - *out == 0)) /* infinite or NaN */
        return HT_FAIL(e, HT_EFORMAT, "%s: key %s is not a finite number", f->label, key);
    return 0;
}

int ht_file_meta_str(const ht_file *f, const char *key, bool required, const char **s, size_t *n,
                     ht_err *e)
{
    const ht_meta *m;
    HT_TRY(lookup(f, key, required, &m, e));
    *s = NULL;
    *n = 0;
    if (!m) return 0;
    if (m->type != HT_META_STR) return wrong(f, key, m, "a string", e);
    *s = m->s;
    *n = m->n;
    return 0;
}
