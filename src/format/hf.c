/* hf.c - a Hugging Face folder: configuration, safetensors by index or single, tokenizer, chat
 * template; and a tokenizer.json by itself. */
#include "format/priv.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *const format__hf_names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "model.safetensors.index.json",
                                        NULL};

/* Path of a file of the folder; *there tells whether it is a file. */
static int member(ht_file *f, const char *name, const char **path, bool *there, ht_err *e)
{
    struct stat st;
    size_t n = strlen(f->path);
    *path = ht_arena_printf(f->arena, "%s%s%s", f->path, f->path[n - 1] == '/' ? "" : "/", name);
    if (!*path) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for a path", f->label);
    *there = stat(*path, &st) == 0;
    return 0;
}

static int optional_json(ht_file *f, const char *name, const ht_json **out, ht_err *e)
{
    const char *path;
    bool there;
    HT_TRY(member(f, name, &path, &there, e));
    return there ? format__json(f, path, out, e) : 0;
}

/* The template: chat_template.jinja, else chat_template.json, else tokenizer_config.json. */
static int read_template(ht_file *f, ht_err *e)
{
    const char *path;
    bool there;
    const ht_json *doc = NULL;
    HT_TRY(member(f, "chat_template.jinja", &path, &there, e));
    if (there) {
        char *text;
        size_t n;
        HT_TRY(ht_file_read(path, FORMAT_MAX_TEMPLATE, &text, &n, e));
        f->tmpl = ht_arena_strndup(f->arena, text, n);
        f->tmpl_n = n;
        ht_mem_free(text);
        return f->tmpl ? 0 : HT_FAIL(e, HT_ENOMEM, "%s: no memory for the chat template", f->label);
    }
    HT_TRY(optional_json(f, "chat_template.json", &doc, e));
    format__template_of(doc, &f->tmpl, &f->tmpl_n);
    if (!f->tmpl) format__template_of(f->tokenizer_config, &f->tmpl, &f->tmpl_n);
    return 0;
}

/* One more safetensors file; its header is kept in the list for the second pass. */
typedef struct {
    const char *name;
    const ht_json *header;
    uint64_t data;
} shard;

static int map_shard(ht_file *f, shard *s, const char *name, ht_err *e)
{
    const char *path;
    bool there;
    HT_TRY(member(f, name, &path, &there, e));
    if (!there)
        return HT_FAIL(e, HT_EIO, "%s: holds no %s, which the index names", f->label,
                       format__show(name, strlen(name)).s);
    HT_TRY(format__add_part(f, path, e));
    s->name = name;
    return format__st_header(f, f->n_parts - 1, &s->header, &s->data, e);
}

/* A file's name from an index must be a name, not a path that leads elsewhere. */
static bool plain_name(const ht_json *v)
{
    return v->type == HT_JSTR && v->n > 0 && v->n < 256 && strlen(v->s) == v->n &&
           !strchr(v->s, '/') && v->s[0] != '.';
}

/* The files an index names, each once; *n counts up from 0. */
static int list_shards(ht_file *f, const ht_json *map, const char *label, shard *list, size_t *n,
                       ht_err *e)
{
    format__names seen;
    if (!format__names_init(&seen, f->arena, FORMAT_MAX_PARTS))
        return HT_FAIL(e, HT_ENOMEM, "%s: no memory for the list of files", label);
    for (size_t i = 0; i < map->n; i++) {
        const ht_json *v = &map->at[i];
        if (!plain_name(v))
            return HT_FAIL(e, HT_EFORMAT,
                           "%s: tensor %s: the file is not a plain name in this folder", label,
                           format__show(v->key, v->key_n).s);
        if (format__names_find(&seen, v->s, v->n) != SIZE_MAX) continue;
        if (*n == FORMAT_MAX_PARTS)
            return HT_FAIL(e, HT_EFORMAT, "%s: names more than %d files", label, FORMAT_MAX_PARTS);
        (void)format__names_add(&seen, v->s, v->n, *n);
        list[(*n)++].name = v->s;
    }
    return 0;
}

/* Each tensor is in the file that the index says, and the files hold no others. */
static int check_index(const ht_file *f, const ht_json *map, const shard *list, const char *label,
                       ht_err *e)
{
    for (size_t i = 0; i < map->n; i++) {
        const ht_json *v = &map->at[i];
        size_t at = format__names_find(&f->names, v->key, v->key_n);
        if (at == SIZE_MAX || strcmp(list[f->place[at].part].name, v->s))
            return HT_FAIL(e, HT_EFORMAT, "%s: tensor %s is not in %s, where the index puts it",
                           label, format__show(v->key, v->key_n).s, format__show(v->s, v->n).s);
    }
    if (map->n != f->n_tensors)
        return HT_FAIL(e, HT_EFORMAT, "%s: names %zu tensors, the files hold %zu", label, map->n,
                       f->n_tensors);
    return 0;
}

static int open_shards(ht_file *f, shard *list, size_t n, ht_err *e)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        HT_TRY(map_shard(f, &list[i], list[i].name, e));
        total += list[i].header->n;
    }
    if (total > FORMAT_MAX_TENSORS)
        return HT_FAIL(e, HT_EFORMAT, "%s: %zu tensors, at most %d are read", f->label, total,
                       FORMAT_MAX_TENSORS);
    HT_TRY(format__tensors(f, total, e));
    for (size_t i = 0; i < n; i++)
        HT_TRY(format__st_tensors(f, i, list[i].header, list[i].data, e));
    return 0;
}

static int open_weights(ht_file *f, ht_err *e)
{
    const char *path, *pickle;
    bool there;
    HT_TRY(member(f, "model.safetensors", &path, &there, e));
    if (there) {
        shard one = {.name = "model.safetensors"};
        return open_shards(f, &one, 1, e);
    }
    const ht_json *index = NULL;
    HT_TRY(optional_json(f, "model.safetensors.index.json", &index, e));
    if (!index) {
        HT_TRY(member(f, "pytorch_model.bin", &pickle, &there, e));
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "%s: holds no model.safetensors and no model.safetensors.index"
                       ".json%s",
                       f->label,
                       there ? "; pytorch_model.bin is not read, convert it to "
                               "safetensors"
                             : "");
    }
    char label[FORMAT_LABEL];
    HT_TRY(member(f, "model.safetensors.index.json", &path, &there, e));
    format__label(label, path);
    const ht_json *map = ht_json_get(index, "weight_map");
    if (!map || map->type != HT_JOBJ || !map->n)
        return HT_FAIL(e, HT_EFORMAT, "%s: has no \"weight_map\"", label);
    size_t n = 0, cap = map->n < FORMAT_MAX_PARTS ? map->n : FORMAT_MAX_PARTS;
    shard *list = ht_arena_array(f->arena, cap, sizeof *list);
    if (!list) return HT_FAIL(e, HT_ENOMEM, "%s: no memory for the list of files", label);
    HT_TRY(list_shards(f, map, label, list, &n, e));
    HT_TRY(open_shards(f, list, n, e));
    return check_index(f, map, list, label, e);
}

int format__open_hf(ht_file *f, const ht_file_opts *opts, ht_err *e)
{
    f->kind = HT_FILE_HF;
    HT_TRY(optional_json(f, "config.json", &f->config, e));
    HT_TRY(optional_json(f, "generation_config.json", &f->generation_config, e));
    HT_TRY(optional_json(f, "tokenizer.json", &f->tokenizer, e));
    HT_TRY(optional_json(f, "tokenizer_config.json", &f->tokenizer_config, e));
    if (f->tokenizer && !ht_json_get(f->tokenizer, "model"))
        return HT_FAIL(e, HT_EFORMAT, "%s: its tokenizer.json has no \"model\"", f->label);
    HT_TRY(read_template(f, e));
    if (opts->vocab_only) {
        if (!f->config && !f->tokenizer)
            return HT_FAIL(e, HT_EFORMAT,
                           "%s: holds neither config.json nor tokenizer.json: no Hugging Face "
                           "folder",
                           f->label);
        return 0;
    }
    if (!f->config)
        return HT_FAIL(e, HT_EFORMAT, "%s: holds no config.json: no Hugging Face folder", f->label);
    return open_weights(f, e);
}

int format__open_tokjson(ht_file *f, ht_err *e)
{
    f->kind = HT_FILE_TOKJSON;
    HT_TRY(format__add_part(f, f->path, e));
    HT_TRY(format__json(f, f->path, &f->tokenizer, e));
    const ht_json *model = ht_json_get(f->tokenizer, "model");
    if (!model || model->type != HT_JOBJ || !ht_json_get(model, "vocab"))
        return HT_FAIL(e, HT_EFORMAT,
                       "%s: is JSON but no tokenizer.json: it has no \"model\" with a "
                       "\"vocab\"",
                       f->label);
    return 0;
}
