/* file.c - opening a model by what it is, its tensors by name, and what the readers share. */
#include "core/hash.h"
#include "format/pack.h"
#include "format/priv.h"
#include "quant/r16.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */

bool format__names_init(format__names *t, ht_arena *a, size_t count)
{
    size_t cap = 16;
    while (cap < count * 2) cap *= 2;
    t->slot = ht_arena_array(a, cap, sizeof *t->slot);
    t->mask = cap - 1;
    return t->slot != NULL;
}

/* The slot of a name, or the free one where it would go. */
static struct format__slot *slot_of(const format__names *t, const char *name, size_t n)
{
    size_t i = (size_t)ht_hash64(name, n) & t->mask;
    while (t->slot[i].at && (t->slot[i].n != n || memcmp(t->slot[i].name, name, n) != 0))
        i = (i + 1) & t->mask;
    return &t->slot[i];
}

bool format__names_add(format__names *t, const char *name, size_t n, size_t at)
{
    struct format__slot *s = slot_of(t, name, n);
    if (s->at) return false;
    s->name = name;
    s->n = (uint32_t)n;
    s->at = (uint32_t)at + 1;
    return true;
}

size_t format__names_find(const format__names *t, const char *name, size_t n)
{
    if (!t->slot) return SIZE_MAX;
    const struct format__slot *s = slot_of(t, name, n);
    return s->at ? s->at - 1 : SIZE_MAX;
}

/* ---- reading --------------------------------------------------------------------------------- */

void format__label(char out[FORMAT_LABEL], const char *path)
{
    size_t n = strlen(path), room = 72;
    if (n <= room) snprintf(out, FORMAT_LABEL, "%s", path);
    else snprintf(out, FORMAT_LABEL, "...%s", path + n - room);
}

format__shown format__show(const char *name, size_t n)
{
    format__shown out;
    size_t i = 0;
    for (; i < n && i < sizeof out.s - 1; i++)
        out.s[i] = name[i] >= 32 && name[i] < 127 ? name[i] : '?';
    out.s[i] = 0;
    return out;
}

int format__pread(int fd, void *buf, size_t n, uint64_t offset, const char *label, ht_err *e)
{
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(fd, (char *)buf + got, n - got, (off_t)(offset + got));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0)
            return HT_FAIL(e, HT_EIO, "%s: reading at offset %llu: %s", label,
                           (unsigned long long)(offset + got), strerror(errno));
        if (k == 0)
            return HT_FAIL(e, HT_EIO,
                           "%s: ends at offset %llu while it is read; something has cut it short",
                           label, (unsigned long long)(offset + got));
        got += (size_t)k;
    }
    return 0;
}

int format__add_part(ht_file *f, const char *path, ht_err *e)
{
    if (f->n_parts == f->parts_cap) {
        size_t cap = f->parts_cap ? f->parts_cap * 2 : 1;
        ht_map *part = ht_mem_resize(f->part, cap * sizeof *part);
        if (part) f->part = part;
        void *label = part ? ht_mem_resize(f->part_label, cap * sizeof *f->part_label) : NULL;
        if (!label) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %zu parts", f->label, cap);
        f->part_label = label;
        f->parts_cap = cap;
    }
    HT_TRY(ht_map_open(&f->part[f->n_parts], path, e));
    format__label(f->part_label[f->n_parts], path);
    f->bytes += f->part[f->n_parts].n;
    f->n_parts++;
    return 0;
}

/* The file still has the size it was mapped with. */
static int same_size(const ht_map *m, const char *label, ht_err *e)
{
    struct stat st;
    if (fstat(m->fd, &st)) return HT_FAIL(e, HT_EIO, "%s: %s", label, strerror(errno));
    if ((uint64_t)st.st_size != m->n)
        return HT_FAIL(e, HT_EIO, "%s: had %zu bytes when it was opened and has %llu now", label,
                       m->n, (unsigned long long)st.st_size);
    return 0;
}

int ht_file_unchanged(const ht_file *f, ht_err *e)
{
    for (size_t i = 0; i < f->n_parts; i++) {
        HT_TRY(same_size(&f->part[i], f->part_label[i], e));
        if (ht_map_broken(&f->part[i]))
            return HT_FAIL(e, HT_EIO, "%s: was cut short while in use; results since then are void",
                           f->part_label[i]);
    }
    return 0;
}

int format__json(ht_file *f, const char *path, const ht_json **out, ht_err *e)
{
    char *text, label[FORMAT_LABEL];
    size_t n;
    ht_json *tree;
    format__label(label, path);
    HT_TRY(ht_file_read(path, FORMAT_MAX_JSON, &text, &n, e));
    int rc = ht_json_parse(f->arena, text, n, 0, label, &tree, e);
    ht_mem_free(text);
    if (rc) return rc;
    if (tree->type != HT_JOBJ) return HT_FAIL(e, HT_EFORMAT, "%s: is not a JSON object", label);
    *out = tree;
    return 0;
}

void format__template_of(const ht_json *config, const char **s, size_t *n)
{
    const ht_json *t = ht_json_get(config, "chat_template");
    if (t && t->type == HT_JARR) { /* [{"name": "default", "template": "..."}, ...] */
        const ht_json *list = t;
        t = NULL;
        for (size_t i = 0; i < list->n && !t; i++) {
            const ht_json *name = ht_json_get(&list->at[i], "name");
            if (name && name->type == HT_JSTR && !strcmp(name->s, "default"))
                t = ht_json_get(&list->at[i], "template");
        }
    }
    if (!t || t->type != HT_JSTR) return;
    *s = t->s;
    *n = t->n;
}

/* ---- tensors --------------------------------------------------------------------------------- */

int format__tensors(ht_file *f, size_t n, ht_err *e)
{
    f->tensor = ht_arena_array(f->arena, n, sizeof *f->tensor);
    f->place = ht_arena_array(f->arena, n, sizeof *f->place);
    if (!f->tensor || !f->place || !format__names_init(&f->names, f->arena, n))
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a directory of %zu tensors", f->label, n);
    return 0;
}

int format__size(ht_tensor *t, const char *label, ht_err *e)
{
    const ht_type_info *type = ht_type_of(t->type);
    format__shown name = format__show(t->name, strlen(t->name));
    uint64_t cols = t->dim[t->n_dims - 1], total = 1, rows, mats, bytes;
    for (unsigned i = 0; i < t->n_dims; i++) {
        if (t->dim[i] == 0)
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: dimension %u is 0", label, name.s, i);
        if (__builtin_mul_overflow(total, t->dim[i], &total) || total > INT64_MAX)
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: the product of its dimensions overflows",
                           label, name.s);
    }
    if (t->layout == HT_LAYOUT_R16) {
        if (t->n_dims < 2)
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: layout r16/1 needs rows and columns",
                           label, name.s);
        rows = t->dim[t->n_dims - 2];
        mats = total / (rows * cols);
        if (!ht_r16_bytes(t->type, rows, cols, &bytes) ||
            __builtin_mul_overflow(bytes, mats, &bytes))
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: %llu columns of %s have no r16/1 form",
                           label, name.s, (unsigned long long)cols, type->name);
        t->bytes = bytes;
        return 0;
    }
    if (cols % type->block)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: tensor %s: rows of %llu elements, %s needs a multiple of %u", label,
                       name.s, (unsigned long long)cols, type->name, type->block);
    if (!ht_row_bytes(t->type, cols, &bytes) ||
        __builtin_mul_overflow(bytes, total / cols, &t->bytes) || t->bytes > INT64_MAX)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: its size in bytes overflows", label, name.s);
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const format__range *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

int format__ranges(format__range *r, size_t n, uint64_t end, bool exact, const char *label,
                   ht_err *e)
{
    uint64_t at = 0; /* where the previous one ended */
    const char *before = "the header";
    for (size_t i = 0; i < n; i++)
        if (r[i].offset > end || r[i].bytes > end - r[i].offset)
            return HT_FAIL(e, HT_EFORMAT,
                           "%s: tensor %s: bytes %llu..+%llu lie beyond the data of %llu bytes",
                           label, format__show(r[i].name, strlen(r[i].name)).s,
                           (unsigned long long)r[i].offset, (unsigned long long)r[i].bytes,
                           (unsigned long long)end);
    qsort(r, n, sizeof *r, by_offset);
    for (size_t i = 0; i < n; i++) {
        format__shown name = format__show(r[i].name, strlen(r[i].name));
        if (r[i].offset < at)
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s at offset %llu overlaps %s", label, name.s,
                           (unsigned long long)r[i].offset, format__show(before, strlen(before)).s);
        if (exact && r[i].offset != at)
            return HT_FAIL(e, HT_EFORMAT, "%s: a hole of bytes before tensor %s at offset %llu",
                           label, name.s, (unsigned long long)r[i].offset);
        at = r[i].offset + r[i].bytes;
        before = r[i].name;
    }
    if (exact && at != end)
        return HT_FAIL(e, HT_EFORMAT, "%s: %llu bytes of data, but the tensors end at %llu", label,
                       (unsigned long long)end, (unsigned long long)at);
    return 0;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int dispatch(ht_file *f, const ht_file_opts *opts, ht_err *e)
{
    struct stat st;
    char head[12] = {0};
    if (stat(f->path, &st)) {
        int err = errno;
        return HT_FAIL(e, HT_EIO, "%s: %s", f->label, strerror(err));
    }
    if (S_ISDIR(st.st_mode)) return format__open_hf(f, opts, e);
    ht_map m;
    HT_TRY(ht_map_open(&m, f->path, e)); /* refuses pipes and devices */
    int rc = m.n < sizeof head ? 0 : format__pread(m.fd, head, sizeof head, 0, f->label, e);
    size_t size = m.n;
    ht_map_close(&m);
    if (rc) return rc;
    if (!memcmp(head, "GGUF", 4)) return format__open_gguf(f, opts, e);
    if (!memcmp(head, HT_PACK_MAGIC, 8)) return format__open_pack(f, e);
    if (size < sizeof head)
        return HT_FAIL(e, HT_EFORMAT, "%s: has %zu bytes: too short for any model file", f->label,
                       size);
    size_t i = 0;
    while (i < sizeof head &&
           (head[i] == ' ' || head[i] == '\n' || head[i] == '\r' || head[i] == '\t'))
        i++;
    if (i < sizeof head && head[i] == '{') return format__open_tokjson(f, e);
    if (!memcmp(head, "FUGG", 4))
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s: is a GGUF file of a big-endian machine; convert it to "
                       "little-endian",
                       f->label);
    if (head[8] == '{')
        return HT_FAIL(e, HT_EARG,
                       "%s: is one safetensors file; give the folder that holds it and its "
                       "config.json",
                       f->label);
    return HT_FAIL(e, HT_EFORMAT,
                   "%s: is no GGUF, no HeteroPack and no tokenizer.json (first bytes "
                   "%02x %02x %02x %02x)",
                   f->label, (unsigned char)head[0], (unsigned char)head[1], (unsigned char)head[2],
                   (unsigned char)head[3]);
}

int ht_file_open(ht_file **out, const char *path, const ht_file_opts *opts, ht_err *e)
{
    static const ht_file_opts none;
    *out = NULL;
    if (!path || !*path) return HT_FAIL(e, HT_EARG, "no path of a model was given");
    ht_file *f = ht_mem_alloc(sizeof *f);
    if (!f) return HT_FAIL(e, HT_ENOMEM, "no memory to open %s", path);
    format__label(f->label, path);
    int rc = ht_arena_new(&f->arena, FORMAT_MAX_ARENA, e);
    if (!rc && !(f->path = ht_arena_strndup(f->arena, path, strlen(path))))
        rc = HT_FAIL(e, HT_ENOMEM, "no memory to open %s", f->label);
    if (!rc) rc = dispatch(f, opts ? opts : &none, e);
    for (size_t i = 0; !rc && i < f->n_tensors; i++) {
        f->tensor[i].data = f->part[f->place[i].part].p + f->place[i].offset;
    }
    if (!rc) rc = ht_file_unchanged(f, e);
    if (rc) {
        ht_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void ht_file_close(ht_file *f)
{
    if (!f) return;
    format__gguf_done(&f->gguf);
    for (size_t i = 0; i < f->n_parts; i++) ht_map_close(&f->part[i]);
    ht_mem_free(f->part);
    ht_mem_free(f->part_label);
    ht_arena_free(f->arena);
    ht_mem_free(f);
}

enum ht_file_kind ht_file_kind(const ht_file *f)
{
    return f->kind;
}
const char *ht_file_path(const ht_file *f)
{
    return f->path;
}
uint64_t ht_file_bytes(const ht_file *f)
{
    return f->bytes;
}
size_t ht_file_n_parts(const ht_file *f)
{
    return f->n_parts;
}
const ht_map *ht_file_part(const ht_file *f, size_t i)
{
    return i < f->n_parts ? &f->part[i] : NULL;
}
size_t ht_file_n_tensors(const ht_file *f)
{
    return f->n_tensors;
}
const ht_tensor *ht_file_tensor(const ht_file *f, size_t i)
{
    return i < f->n_tensors ? &f->tensor[i] : NULL;
}
const ht_tensor *ht_file_find(const ht_file *f, const char *name)
{
    size_t i = name ? format__names_find(&f->names, name, strlen(name)) : SIZE_MAX;
    return i == SIZE_MAX ? NULL : &f->tensor[i];
}
const ht_json *ht_file_config(const ht_file *f)
{
    return f->config;
}
const ht_json *ht_file_generation_config(const ht_file *f)
{
    return f->generation_config;
}
const ht_json *ht_file_tokenizer(const ht_file *f)
{
    return f->tokenizer;
}
const ht_json *ht_file_tokenizer_config(const ht_file *f)
{
    return f->tokenizer_config;
}
const ht_json *ht_file_header(const ht_file *f)
{
    return f->header;
}
const char *ht_file_template(const ht_file *f, size_t *n)
{
    if (n) *n = f->tmpl ? f->tmpl_n : 0;
    return f->tmpl;
}
