/* safetensors.c - one safetensors file: eight bytes of length, a JSON header, data without
 * holes. */
#include "format/priv.h"
#include <string.h>

enum { MAX_HEADER = 100 << 20 }; /* the limit of the format's own reference reader */

static int type_of(const char *dtype)
{
    static const struct {
        const char *name;
        int type;
    } table[] = {{"F32", HT_F32}, {"F16", HT_F16}, {"BF16", HT_BF16}, {"I32", HT_I32}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, dtype)) return table[i].type;
    return -1;
}

int format__st_header(ht_file *f, size_t part, const ht_json **header, uint64_t *data, ht_err *e)
{
    const ht_map *m = &f->part[part];
    const char *label = f->part_label[part];
    uint8_t len[8];
    ht_json *tree;
    if (m->n < sizeof len)
        return HT_FAIL(e, HT_EFORMAT, "%s: has %zu bytes, too short for a safetensors file", label,
                       m->n);
    HT_TRY(format__pread(m->fd, len, sizeof len, 0, label, e));
    uint64_t n = format__little(len, sizeof len);
    if (n > MAX_HEADER || n > m->n - sizeof len)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: the header's length is given as %llu, the file has %zu bytes "
                       "and at most %d are read",
                       label, (unsigned long long)n, m->n, MAX_HEADER);
    char *text = ht_mem_alloc((size_t)n + 1);
    if (!text)
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a header of %llu bytes", label,
                       (unsigned long long)n);
    int rc = format__pread(m->fd, text, (size_t)n, sizeof len, label, e);
    if (!rc) rc = ht_json_parse(f->arena, text, (size_t)n, 0, label, &tree, e);
    ht_mem_free(text);
    if (rc) return rc;
    if (tree->type != HT_JOBJ)
        return HT_FAIL(e, HT_EFORMAT, "%s: the safetensors header is not a JSON object", label);
    if (tree->n > FORMAT_MAX_TENSORS)
        return HT_FAIL(e, HT_EFORMAT, "%s: %zu tensors, at most %d are read", label, tree->n,
                       FORMAT_MAX_TENSORS);
    *header = tree;
    *data = sizeof len + n;
    return 0;
}

static int parse_shape(ht_tensor *t, const ht_json *shape, const char *label, const char *name,
                       ht_err *e)
{
    if (!shape || shape->type != HT_JARR)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: \"shape\" is not an array", label, name);
    if (shape->n > 4)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: %zu dimensions, at most 4 are allowed", label,
                       name, shape->n);
    for (int i = 0; i < 4; i++) t->dim[i] = 1;
    t->n_dims = shape->n ? (uint8_t)shape->n : 1; /* a scalar counts as a vector of one */
    for (size_t i = 0; i < shape->n; i++) {
        if (shape->at[i].type != HT_JINT || shape->at[i].i < 0)
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: dimension %zu is not a count", label,
                           name, i);
        t->dim[i] = (uint64_t)shape->at[i].i;
    }
    return 0;
}

static int parse_tensor(const ht_json *v, ht_tensor *t, uint64_t *begin, const char *label,
                        ht_err *e)
{
    format__shown name = format__show(v->key, v->key_n);
    const ht_json *dtype = ht_json_get(v, "dtype"), *at = ht_json_get(v, "data_offsets");
    if (v->key_n == 0 || v->key_n > 255 || strlen(v->key) != v->key_n)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: a tensor's name has %zu bytes or holds a zero byte; 1 to 255 "
                       "are allowed",
                       label, v->key_n);
    if (v->type != HT_JOBJ || !dtype || dtype->type != HT_JSTR)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s has no \"dtype\"", label, name.s);
    int type = type_of(dtype->s);
    if (type < 0)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s: tensor %s: unsupported tensor type %s; convert the model "
                       "to F32, F16 or BF16",
                       label, name.s, format__show(dtype->s, dtype->n).s);
    *t = (ht_tensor){.name = v->key, .type = (uint8_t)type, .layout = HT_LAYOUT_ROWS};
    HT_TRY(parse_shape(t, ht_json_get(v, "shape"), label, name.s, e));
    HT_TRY(format__size(t, label, e));
    if (!at || at->type != HT_JARR || at->n != 2 || at->at[0].type != HT_JINT ||
        at->at[1].type != HT_JINT || at->at[0].i < 0 || at->at[1].i < at->at[0].i)
        return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s: \"data_offsets\" are not begin and end",
                       label, name.s);
    *begin = (uint64_t)at->at[0].i;
    if ((uint64_t)at->at[1].i - *begin != t->bytes)
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: tensor %s: %llu bytes between its offsets, its shape needs "
                       "%llu",
                       label, name.s, (unsigned long long)at->at[1].i - *begin,
                       (unsigned long long)t->bytes);
    return 0;
}

int format__st_tensors(ht_file *f, size_t part, const ht_json *header, uint64_t data, ht_err *e)
{
    const char *label = f->part_label[part];
    size_t n = 0;
    format__range *range = ht_mem_array(header->n, sizeof *range);
    if (!range) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for %zu tensors", label, header->n);
    int rc = 0;
    for (size_t i = 0; !rc && i < header->n; i++) {
        const ht_json *v = &header->at[i];
        size_t at = f->n_tensors;
        ht_tensor *t = &f->tensor[at];
        uint64_t begin = 0;
        if (!strcmp(v->key, "__metadata__")) continue;
        rc = parse_tensor(v, t, &begin, label, e);
        if (rc) break;
        range[n++] = (format__range){begin, t->bytes, t->name};
        f->place[at] = (format__place){data + begin, (uint32_t)part};
        if ((data + begin) % (ht_types[t->type].bytes))
            rc = HT_FAIL(e, HT_EUNSUPPORTED,
                         "%s: tensor %s: at offset %llu its elements are not aligned; "
                         "write the file again with a current safetensors library",
                         label, format__show(t->name, v->key_n).s,
                         (unsigned long long)(data + begin));
        else if (!format__names_add(&f->names, t->name, v->key_n, at))
            rc = HT_FAIL(e, HT_EFORMAT, "%s: tensor %s occurs in two files", label,
                         format__show(t->name, v->key_n).s);
        else f->n_tensors++;
    }
    if (!rc) rc = format__ranges(range, n, f->part[part].n - data, true, label, e);
    ht_mem_free(range);
    return rc;
}
