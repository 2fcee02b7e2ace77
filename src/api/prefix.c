/* prefix.c - pages of earlier prompts, used again: what a page depends on, which pages of a session
 * may be entered, and the folder of files as people see it.
 *
 * Class rule (product.md 4): what computes a position of a prompt is a function of the prompt and
 * the plan, never of what happens to be cached. Each page of a session therefore remembers the
 * class that wrote it (none when two did), and a page is kept or taken over only where prefill of
 * this very prompt would write the same class. */
#include "kv/prefix.h"
#include "api/whole.h"
#include "core/clock.h"
#include "core/path.h"
#include "kv/pagefile.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- classes --------------------------------------------------------------------------------- */

void api__class_text(const ht_engine *e, int phase, char out[API_CLASS])
{
    const api__phase *p = &e->phase[phase];
    char how[64];
    api__whole_class(e, p, how, sizeof how);
    (void)snprintf(out, API_CLASS, "%s%s rep=%s act=%s kv=%s,%s", p->unit->be->name, how, p->rep,
                   api__act_name(api__whole_act(e, phase)), e->kv.name[0], e->kv.name[1]);
}

/* Number of a class, from 1; 0: the table is full, which makes its pages nobody's. */
static uint8_t class_id(ht_engine *e, const char *text)
{
    for (uint8_t i = 0; i < e->n_classes; i++)
        if (!strcmp(e->class_text[i], text)) return (uint8_t)(i + 1);
    if (e->n_classes == API_CLASSES) return 0;
    (void)snprintf(e->class_text[e->n_classes], API_CLASS, "%s", text);
    return ++e->n_classes;
}

void api__class_mark(ht_session *s, uint32_t pos, uint32_t n, const char *cls)
{
    const uint8_t id = class_id(s->e, cls);
    for (uint32_t k = pos / HT_PAGE; n && k <= (pos + n - 1) / HT_PAGE; k++)
        if (pos <= k * HT_PAGE) s->page_class[k] = id;
        else if (s->page_class[k] != id) s->page_class[k] = 0;
}

uint32_t api__class_keep(ht_session *s, uint32_t keep)
{
    char text[API_CLASS];
    api__class_text(s->e, API_PREFILL, text);
    const uint8_t id = class_id(s->e, text);
    for (uint32_t k = 0; k * HT_PAGE < keep; k++)
        if (!id || s->page_class[k] != id) return k * HT_PAGE;
    return keep;
}

/* ---- opening --------------------------------------------------------------------------------- */

uint32_t api__prefix_pages(const ht_engine *e, const ht_engine_params *p)
{
    const ht_spec *s = &e->model->spec;
    uint64_t bytes = 0;
    if (e->keep_pages || e->kv.packs) return 0; /* there will be none */
    for (int v = 0; v < 2; v++)
        bytes += s->n_layers * ht_kv_page_bytes(e->kv.base[v], s->n_kv_heads, s->head_dim);
    const uint64_t n = bytes ? p->prefix_bytes / bytes : 0;
    return n < HT_NOPAGE / 4 ? (uint32_t)n : HT_NOPAGE / 4;
}

static int page_io(void *dev, ht_kv *kv, int kv_class, uint32_t page, void *host, int write,
                   ht_err *err)
{
    const api__unit *u = dev;
    return u->be->page_io(u->dev, kv, kv_class, page, host, write, err);
}

/* Everything that the bytes of a page depend on beside class, salt and tokens. A folder outlives
 * the process, so there it is the content of the model and the build; in memory they cannot
 * change. */
static int identity(ht_engine *e, const ht_engine_params *p, uint8_t out[32], ht_err *err)
{
    const ht_kv *kv = ht_pool_kv(e->pool);
    ht_buf b;
    ht_buf_init(&b, 1u << 20);
    ht_buf_fmt(&b, "hetero prefix 1\n%s\nlayers %u heads %u dim %u window %u page %d\n",
               ht_version(), kv->n_layers, kv->n_kv_heads, kv->head_dim, kv->window, HT_PAGE);
    for (uint32_t l = 0; l < kv->n_layers; l++)
        ht_buf_fmt(&b, "%u %s %s\n", kv->layer_class[l], ht_kvtype_name(kv->type[l][0]),
                   ht_kvtype_name(kv->type[l][1]));
    int rc = 0;
    if (p->prefix_dir) {
        char hex[HT_SHA256_HEX];
        bool hashed;
        rc = api__trust(e->file, 0, p->progress, p->user, hex, &hashed, err);
        if (!rc) ht_buf_str(&b, hex);
    }
    if (!rc) rc = ht_buf_ok(&b, "the prefix cache's identity", err);
    if (!rc) rc = ht_sha256_of(b.p, b.n, out, err);
    ht_buf_done(&b);
    return rc;
}

static int make_folder(const char *dir, ht_err *err)
{
    char inside[HT_PATH_MAX];
    struct stat st;
    const int n = snprintf(inside, sizeof inside, "%s/x", dir);
    if (n < 0 || (size_t)n >= sizeof inside)
        return HT_FAIL(err, HT_EARG, "the prefix folder's path is too long: %.80s...", dir);
    HT_TRY(ht_path_make_parents(inside, 0700, err));
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode)) return 0;
    return HT_FAIL(err, HT_EIO, "prefix folder %s cannot be used: %s", dir,
                   errno ? strerror(errno) : "it is no folder");
}

int api__prefix_open(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    if (!p->prefix_dir && !p->prefix_bytes) return 0;
    e->prefix_why = e->keep_pages ? HT_PREFIX_EVICTS : e->kv.packs ? HT_PREFIX_PACKED : 0;
    if (e->prefix_why && p->prefix_dir)
        return HT_FAIL(err, HT_EUNSUPPORTED, "no prefix cache %s; leave it out, or %s",
                       e->keep_pages ? "with eviction: a session's pages are its own"
                                     : "with packed KV types: a prompt that goes on from a page "
                                       "reads that page as it was written, and it is packed by "
                                       "then",
                       e->keep_pages ? "do not evict" : "use f16 or f32");
    if (e->prefix_why) return 0;
    api__unit *u = e->phase[API_DECODE].unit;
    const ht_kv *kv = ht_pool_kv(e->pool);
    const char *name = strrchr(e->path, '/');
    ht_prefix_params pp = {.dir_bytes = p->prefix_dir_bytes};
    for (int c = 0; c < HT_KV_CLASSES; c++)
        if (kv->n_pages[c] > pp.max_pages) pp.max_pages = kv->n_pages[c];
    if (p->prefix_dir) {
        HT_TRY(make_folder(p->prefix_dir, err));
        pp.dir = ht_arena_strndup(e->arena, p->prefix_dir, strlen(p->prefix_dir));
        pp.what = ht_arena_printf(e->arena, "%s kv=%s,%s", name ? name + 1 : e->path, e->kv.name[0],
                                  e->kv.name[1]);
        if (!pp.dir || !pp.what)
            return HT_FAIL(err, HT_ENOMEM, "no memory for the prefix folder's path");
        if (u->be->kv_alloc && u->be->page_io) pp.io = page_io, pp.dev = u;
    }
    HT_TRY(identity(e, p, pp.identity, err));
    return ht_prefix_new(&e->prefix, e->pool, &pp, err);
}

/* ---- using ----------------------------------------------------------------------------------- */

/* The class and, where the model has two rotations, which one. */
static void class_of(const ht_session *s, char out[API_CLASS])
{
    api__class_text(s->e, API_PREFILL, out);
    const size_t n = strlen(out);
    if (s->rope_long) (void)snprintf(out + n, API_CLASS - n, " long");
}

/* The session's pages from now on. */
static void take_over(ht_session *s, ht_seq *seq, const int32_t *ids)
{
    char text[API_CLASS];
    const uint32_t n = ht_seq_len(seq);
    ht_seq_free(s->seq);
    s->seq = seq;
    memcpy(s->hist, ids, n * sizeof *ids);
    api__class_text(s->e, API_PREFILL, text);
    api__class_mark(s, 0, n, text);
    s->rec.n_kept = n;
}

int api__prefix_use(ht_session *s, const int32_t *ids, uint32_t n, const char *salt, ht_err *err)
{
    ht_engine *e = s->e;
    char cls[API_CLASS];
    ht_seq *seq = NULL;
    ht_prefix_hit hit;
    const uint32_t held = ht_seq_len(s->seq);
    s->rec.prefix.on = e->prefix || e->prefix_why;
    s->rec.prefix.why = e->prefix_why ? e->prefix_why
                        : n > HT_PAGE ? HT_PREFIX_WHOLE
                                      : HT_PREFIX_SHORT;
    /* What the session holds itself is as good, when it ends in the last page. */
    if (!e->prefix || (n - 1) / HT_PAGE * HT_PAGE <= held) return 0;
    class_of(s, cls);
    HT_TRY(ht_seq_new(&seq, e->pool, e->ctx, err));
    const int rc = ht_prefix_find(e->prefix, seq, ids, n - 1, cls, salt, &hit, err);
    if (rc || hit.tokens <= held) {
        ht_seq_free(seq);
        seq = NULL;
    }
    if (rc) return rc;
    if (seq) take_over(s, seq, ids);
    s->rec.prefix.why = hit.why;
    s->rec.prefix.tokens = seq ? hit.tokens : 0;
    s->rec.prefix.disk_tokens = seq ? hit.disk_tokens : 0;
    s->rec.prefix.damaged = hit.damaged;
    return 0;
}

int api__prefix_enter(ht_session *s, const char *salt, ht_err *err)
{
    char cls[API_CLASS];
    if (!s->e->prefix) return 0;
    const uint32_t whole = ht_seq_len(s->seq) / HT_PAGE * HT_PAGE;
    const uint32_t n_pages = api__class_keep(s, whole) / HT_PAGE;
    class_of(s, cls);
    return ht_prefix_add(s->e->prefix, s->seq, s->hist, n_pages, cls, salt, err);
}

void api__write_prefix(ht_jw *w, const api__prefix_record *r)
{
    ht_jw_obj(w);
    ht_jw_kuint(w, "tokens", r->tokens);
    ht_jw_kuint(w, "diskTokens", r->disk_tokens);
    ht_jw_kstr(w, "reason", ht_prefix_why_name(r->why));
    if (r->damaged.code) ht_jw_kstr(w, "refused", r->damaged.msg);
    ht_jw_end(w, '}');
}

int ht_engine_prefix_save(ht_engine *e, uint32_t max_pages, uint32_t *left, ht_err *err)
{
    uint32_t none;
    if (!e) return HT_FAIL(err, HT_EARG, "ht_engine_prefix_save: no engine");
    if (!left) left = &none;
    *left = 0;
    if (!e->prefix) return 0;
    HT_TRY(api__enter(e, err));
    const int rc = ht_prefix_save(e->prefix, max_pages, left, err);
    api__leave(e);
    return rc;
}

void ht_engine_prefix_count(const ht_engine *e, ht_prefix_counts *out)
{
    ht_prefix_stats st = {0};
    if (e && e->prefix) ht_prefix_count(e->prefix, &st);
    *out = (ht_prefix_counts){.lookups = st.lookups,
                              .hits = st.hits,
                              .tokens = st.tokens,
                              .disk_tokens = st.disk_tokens,
                              .pages = st.pages,
                              .dropped = st.dropped,
                              .saved = st.saved,
                              .refused = st.refused};
}

/* ---- the folder ------------------------------------------------------------------------------ */

typedef struct {
    uint8_t identity[32];
    char what[HT_PAGEFILE_WHAT];
    uint64_t pages, bytes, ends; /* ends: pages that no other follows */
    int64_t used_s;
} group;

typedef struct {
    ht_pagefile *head;     /* [n] of the readable files */
    uint8_t (*parent)[32]; /* [n] theirs, sorted */
    uint64_t *bytes;
    int64_t *used_s;
    size_t n;
    group *group;
    size_t n_groups;
    uint64_t partial, bad;
    char first_bad[240];
} folder;

static void head_of(const char *dir, const ht_pagefile_entry *f, int check, folder *o)
{
    char path[HT_PATH_MAX];
    ht_err why = {0};
    const int k = snprintf(path, sizeof path, "%s/%s", dir, f->name);
    if (k < 0 || (size_t)k >= sizeof path) return;
    if (ht_pagefile_head(path, check != 0, &o->head[o->n], &why) == 0) {
        o->bytes[o->n] = f->bytes;
        o->used_s[o->n++] = f->used_s;
    } else if (!o->bad++) {
        (void)snprintf(o->first_bad, sizeof o->first_bad, "%s", why.msg);
    }
}

static int by_key(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

static void sort_into_groups(folder *o)
{
    for (size_t i = 0; i < o->n; i++) memcpy(o->parent[i], o->head[i].parent, 32);
    if (o->n) qsort(o->parent, o->n, sizeof *o->parent, by_key);
    for (size_t i = 0; i < o->n; i++) {
        size_t g = 0;
        while (g < o->n_groups && memcmp(o->group[g].identity, o->head[i].identity, 32) != 0) g++;
        group *p = &o->group[g];
        if (g == o->n_groups) {
            o->n_groups++;
            *p = (group){0};
            memcpy(p->identity, o->head[i].identity, 32);
            memcpy(p->what, o->head[i].what, sizeof p->what);
        }
        p->pages++;
        p->bytes += o->bytes[i];
        p->ends += !bsearch(o->head[i].key, o->parent, o->n, sizeof *o->parent, by_key);
        if (o->used_s[i] > p->used_s) p->used_s = o->used_s[i];
    }
}

static void write_folder(ht_jw *w, const char *dir, const folder *o)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < o->n; i++) bytes += o->bytes[i];
    ht_jw_obj(w);
    ht_jw_kuint(w, "bytes", bytes);
    ht_jw_kuint(w, "damaged", o->bad);
    if (o->bad) ht_jw_kstr(w, "firstDamaged", o->first_bad);
    ht_jw_kstr(w, "folder", dir);
    ht_jw_key(w, "models");
    ht_jw_arr(w);
    for (size_t i = 0; i < o->n_groups; i++) {
        const group *g = &o->group[i];
        char hex[HT_SHA256_HEX];
        ht_hex(g->identity, 32, hex);
        ht_jw_obj(w);
        ht_jw_kuint(w, "bytes", g->bytes);
        ht_jw_kstr(w, "identity", hex);
        ht_jw_kint(w, "lastUsed", g->used_s);
        ht_jw_kuint(w, "pages", g->pages);
        ht_jw_kuint(w, "prefixes", g->ends);
        ht_jw_kuint(w, "tokens", g->pages * HT_PAGE);
        ht_jw_kstr(w, "what", g->what);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
    ht_jw_kuint(w, "pages", o->n);
    ht_jw_kuint(w, "unfinished", o->partial);
    ht_jw_end(w, '}');
}

static int read_folder(const char *dir, int check, const ht_pagefile_entry *list, size_t n,
                       char **json, ht_err *err)
{
    folder o = {.head = ht_mem_array(n + 1, sizeof *o.head),
                .parent = ht_mem_array(n + 1, sizeof *o.parent),
                .bytes = ht_mem_array(n + 1, sizeof *o.bytes),
                .used_s = ht_mem_array(n + 1, sizeof *o.used_s),
                .group = ht_mem_array(n + 1, sizeof *o.group)};
    int rc = o.head && o.parent && o.bytes && o.used_s && o.group
                 ? 0
                 : HT_FAIL(err, HT_ENOMEM, "no memory to list %zu prefix pages", n);
    for (size_t i = 0; i < n && !rc; i++) {
        if (list[i].partial) o.partial++;
        else head_of(dir, &list[i], check, &o);
    }
    if (!rc) {
        ht_buf b;
        ht_jw w;
        sort_into_groups(&o);
        ht_buf_init(&b, 0);
        ht_jw_init(&w, &b, 0);
        write_folder(&w, dir, &o);
        rc = api__take_json(&b, json, err);
        ht_buf_done(&b);
    }
    ht_mem_free(o.head);
    ht_mem_free(o.parent);
    ht_mem_free(o.bytes);
    ht_mem_free(o.used_s);
    ht_mem_free(o.group);
    return rc;
}

int ht_prefix_folder_list(const char *dir, int check, char **json, ht_err *err)
{
    ht_pagefile_entry *list;
    size_t n;
    if (!dir || !json) return HT_FAIL(err, HT_EARG, "ht_prefix_folder_list: folder and json");
    *json = NULL;
    HT_TRY(ht_pagefile_list(dir, &list, &n, err));
    const int rc = read_folder(dir, check, list, n, json, err);
    ht_mem_free(list);
    return rc;
}

int ht_prefix_folder_prune(const char *dir, uint64_t max_bytes, int64_t unused_s, uint64_t *files,
                           uint64_t *bytes, ht_err *err)
{
    if (!dir || !files || !bytes)
        return HT_FAIL(err, HT_EARG, "ht_prefix_folder_prune: folder, files and bytes");
    /* Times are whole seconds: 0 means all that is there now. */
    const int64_t before = unused_s < 0 ? 0 : ht_now_unix() - unused_s + 1;
    return ht_pagefile_prune(dir, max_bytes, before, files, bytes, err);
}
