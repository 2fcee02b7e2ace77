/* subject.c - what a bundle says it is about: model file, tokenizer, template, this program, its
 * libraries and its build, each with its digest, as the documents of docs/bundle.md. */
#include "cli/subject.h"
#include "core/clock.h"
#include "core/map.h"
#include "evid/schema.h"
#include "evid/verdict.h"
#include "version.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int hex_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static int file_digest(const char *path, uint64_t *bytes, char hex[HT_SHA256_HEX], ht_err *e)
{
    ht_map m;
    HT_TRY(ht_map_open(&m, path, e));
    int rc = hex_of(m.p, m.n, hex, e);
    *bytes = m.n;
    ht_map_close(&m);
    return rc;
}

/* Adds a finished document to the list. */
static int add(cli__subject *s, const char *path, ht_buf *b, ht_err *e)
{
    HT_TRY(ht_buf_ok(b, path, e));
    char *copy = ht_arena_strndup(s->arena, b->p, b->n);
    if (!copy || s->n_files == CLI_SUBJECT_FILES)
        return HT_FAIL(e, HT_ENOMEM, "subject: out of memory for %s", path);
    s->file[s->n_files++] = (ht_bundle_file){path, copy, b->n};
    ht_buf_clear(b);
    return 0;
}

/* A digest of the library's account of the engine. */
static int take_digest(const ht_json *who, const char *key, char out[HT_SHA256_HEX], ht_err *e)
{
    const char *v = cli__str(who, key, NULL);
    if (!v || !ht_is_sha256(v, strlen(v)))
        return HT_FAIL(e, HT_EFORMAT, "the library's account of the engine names no %s", key);
    memcpy(out, v, HT_SHA256_HEX);
    return 0;
}

static int model_doc(cli__subject *s, const ht_json *who, ht_buf *b, ht_err *e)
{
    ht_jw w;
    HT_TRY(take_digest(who, "modelPackSha256", s->model_sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_key(&w, "files");
    ht_jw_json(&w, ht_json_get(who, "files"));
    ht_jw_kstr(&w, "schema", "hetero/modelpack/1");
    ht_jw_kstr(&w, "sha256", s->model_sha);
    ht_jw_end(&w, '}');
    return add(s, "subject/modelpack.json", b, e);
}

static int tokenizer_doc(cli__subject *s, const ht_json *who, ht_buf *b, ht_err *e)
{
    ht_jw w;
    HT_TRY(take_digest(who, "tokenizerSha256", s->tok_sha, e));
    HT_TRY(take_digest(who, "templateSha256", s->tmpl_sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "schema", "hetero/tokenizer/1");
    ht_jw_kstr(&w, "sha256", s->tok_sha);
    ht_jw_kstr(&w, "templateSha256", s->tmpl_sha);
    ht_jw_end(&w, '}');
    return add(s, "subject/tokenizer.json", b, e);
}

static int assets_doc(cli__subject *s, const ht_json *who, ht_buf *b, ht_err *e)
{
    HT_TRY(take_digest(who, "assetsSha256", s->assets_sha, e));
    HT_TRY(ht_json_write(ht_json_get(who, "assets"), HT_JSON_CANON, b, e));
    return add(s, "subject/assets.json", b, e);
}

static int build_docs(cli__subject *s, ht_buf *b, ht_err *e)
{
    uint64_t bytes;
    char commit[64] = "unknown";
    const char *v = strstr(ht_version(), "(commit ");
    ht_jw w;
    if (v) snprintf(commit, sizeof commit, "%.*s", (int)strcspn(v + 8, "-)"), v + 8);
    HT_TRY(file_digest("/proc/self/exe", &bytes, s->binary_sha, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "bytes", bytes);
    ht_jw_kstr(&w, "schema", "hetero/binary/1");
    ht_jw_kstr(&w, "sha256", s->binary_sha);
    ht_jw_end(&w, '}');
    HT_TRY(add(s, "build/binary.json", b, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "commit", commit);
    /* A build outside a checkout cannot say that it is clean. */
    ht_jw_kbool(&w, "dirty", !v || strstr(v, "-dirty") != NULL);
    ht_jw_kstr(&w, "schema", "hetero/source/1");
    ht_jw_kstr(&w, "tree", "not recorded");
    ht_jw_end(&w, '}');
    HT_TRY(add(s, "build/source.json", b, e));
    ht_jw_init(&w, b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "compiler", __VERSION__);
    ht_jw_kstr(&w, "flags", HT_FLAGS);
    ht_jw_kstr(&w, "schema", "hetero/toolchain/1");
    ht_jw_end(&w, '}');
    return add(s, "build/toolchain.json", b, e);
}

int cli__subject_make(ht_arena *a, ht_engine *engine, cli__subject *s, ht_err *e)
{
    char *json = NULL;
    ht_json *who = NULL;
    ht_buf b;
    *s = (cli__subject){.arena = a};
    HT_TRY(ht_engine_subject(engine, &json, e));
    int rc = ht_json_parse(a, json, strlen(json), 0, "engine's account", &who, e);
    ht_free(json);
    ht_buf_init(&b, 0);
    if (!rc) rc = model_doc(s, who, &b, e);
    if (!rc) rc = tokenizer_doc(s, who, &b, e);
    if (!rc) rc = assets_doc(s, who, &b, e);
    if (!rc) rc = build_docs(s, &b, e);
    ht_buf_done(&b);
    return rc;
}

/* ---- what belongs to this installation ---- */

int cli__state_path(const char *name, char out[CLI_PATH], ht_err *e)
{
    const char *state = ht_env_get(HT_ENV_XDG_STATE_HOME), *home = ht_env_get(HT_ENV_HOME);
    int n = state && *state == '/' ? snprintf(out, CLI_PATH, "%s/hetero", state)
            : home                 ? snprintf(out, CLI_PATH, "%s/.local/state/hetero", home)
                                   : -1;
    if (n < 0 || n + (int)strlen(name) + 2 > CLI_PATH)
        return HT_FAIL(e, HT_EIO, "no place for keys: set HOME or XDG_STATE_HOME");
    for (char *p = out + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(out, 0700); /* what cannot be made shows when the file is opened */
        *p = '/';
    }
    mkdir(out, 0700);
    snprintf(out + n, CLI_PATH - (size_t)n, "/%s", name);
    return 0;
}

int cli__bench_key(cli__ctx *c, ht_key **key, ht_err *e)
{
    const char *const *file;
    char path[CLI_PATH];
    size_t n = ht_opt_list(c->o, HT_OPT_KEY, &file);
    if (n > 1) return HT_FAIL(e, HT_EARG, "a bundle is signed by one key: give --key once");
    if (n) return ht_key_load(key, file[0], e);
    HT_TRY(cli__state_path("bench.pem", path, e));
    if (access(path, F_OK) == 0) return ht_key_load(key, path, e);
    cli__say(c, CLI_INFO, "a new bench key: %s", path);
    HT_TRY(ht_key_new(key, e));
    return ht_key_save(*key, path, e);
}

int cli__machine_read(cli__ctx *c, ht_arena *a, const ht_gpus *gpus, cli__machine *m, ht_err *e)
{
    char path[CLI_PATH];
    uint8_t secret[HT_SECRET];
    ht_json *doc;
    ht_err unreadable = {0};
    const ht_machine_source here = {.root = "", .gpus = gpus};
    HT_TRY(ht_machine_read(a, &here, &doc, e));
    for (int part = HT_MP_REJECT; part <= HT_MP_STALE; part++) {
        char *sha = part == HT_MP_REJECT ? m->class_sha : m->state_sha;
        const int rc = ht_machine_sha256(doc, (enum ht_machine_part)part, sha, &unreadable);
        if (rc && rc != HT_EGATE) return HT_FAIL(e, rc, "%s", unreadable.msg);
        if (rc) cli__say(c, CLI_WARN, "warning: %s", unreadable.msg);
    }
    snprintf(m->os, sizeof m->os, "linux-%s",
             ht_machine_leaf_text(a, ht_json_path(doc, "reject.osMajor")));
    HT_TRY(cli__state_path("instance.secret", path, e));
    HT_TRY(ht_machine_secret(path, secret, e));
    return ht_machine_instance(&here, secret, m->instance, e);
}

int cli__out_dir(const cli__ctx *c, const char *def, const char **dir, ht_err *e)
{
    char above[CLI_PATH];
    struct stat st;
    *dir = ht_opt_str(c->o, HT_OPT_OUT) ? ht_opt_str(c->o, HT_OPT_OUT) : def;
    if (stat(*dir, &st) == 0) {
        if (!S_ISDIR(st.st_mode))
            return HT_FAIL(e, HT_EARG,
                           "-o %s is no folder; name one, or a name that is free: it is made",
                           *dir);
        if (access(*dir, W_OK | X_OK) == 0) return 0;
        return HT_FAIL(e, HT_EARG, "-o %s: %s; name a folder to write in", *dir, strerror(errno));
    }
    if (errno != ENOENT || snprintf(above, sizeof above, "%s", *dir) >= CLI_PATH)
        return HT_FAIL(e, HT_EARG, "-o %.200s: %s; name a folder", *dir, strerror(errno));
    size_t n = strlen(above);
    while (n > 1 && above[n - 1] == '/') above[--n] = 0;
    char *slash = strrchr(above, '/');
    if (slash) slash[slash == above] = 0;
    if (access(slash ? above : ".", W_OK | X_OK) == 0) return 0;
    return HT_FAIL(e, HT_EARG, "-o %s: the folder above it: %s; make it first", *dir,
                   strerror(errno));
}

int cli__run_dir(const char *parent, char dir[CLI_PATH], ht_err *e)
{
    if (mkdir(parent, 0777) != 0 && errno != EEXIST)
        return HT_FAIL(e, HT_EIO, "%s: %s", parent, strerror(errno));
    if (snprintf(dir, CLI_PATH, "%s/.run-%lld-%ld", parent, (long long)ht_now_unix(),
                 (long)getpid()) >= CLI_PATH)
        return HT_FAIL(e, HT_EARG, "%s: the path is too long", parent);
    return 0;
}

int cli__bundle_doc(ht_arena *a, const char *dir, const char *name, ht_json **doc, ht_err *e)
{
    char path[CLI_PATH + 128], *text;
    size_t n;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    HT_TRY(ht_file_read(path, CLI_JSON_MAX, &text, &n, e));
    const int rc = ht_json_parse(a, text, n, 0, path, doc, e);
    ht_mem_free(text);
    return rc;
}

/* The first gate that did not pass, of a verdict's cells or of a scheduler's analysis, and its
 * reason; NULL where all passed. */
static const ht_json *failed_gate(const ht_json *doc)
{
    const ht_json *cells = ht_json_get(doc, "cells");
    for (size_t i = 0; i < (cells ? cells->n : 1); i++) {
        const ht_json *gates = ht_json_get(cells ? &cells->at[i] : doc, "gates");
        for (size_t g = 0; gates && g < gates->n; g++) {
            const char *result = cli__str(&gates->at[g], "result", "");
            if (strcmp(result, ht_gate_result_names[HT_PASS]) != 0 &&
                strcmp(result, ht_gate_result_names[HT_NOT_APPLICABLE]) != 0)
                return &gates->at[g];
        }
    }
    return NULL;
}

int cli__out_verdict(cli__ctx *c, ht_arena *a, const char *dir, const char *name, int *status,
                     ht_err *e)
{
    ht_json *doc;
    ht_buf b;
    ht_jw j;
    HT_TRY(cli__bundle_doc(a, dir, name, &doc, e));
    ht_buf_init(&b, 0);
    ht_jw_init(&j, &b, 0);
    ht_jw_obj(&j);
    ht_jw_kstr(&j, "bundle", dir);
    ht_jw_key(&j, "verdict");
    ht_jw_json(&j, doc);
    ht_jw_end(&j, '}');
    int rc = ht_buf_ok(&b, "verdict", e);
    if (!rc) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    const char *cls = cli__str(doc, "class", "?");
    if (!rc && strcmp(cls, ht_class_names[HT_QUALIFIED]) != 0) {
        const ht_json *g = failed_gate(doc);
        const char *why = cli__str(g, "reason", cli__str(g, "why", "?"));
        cli__say(c, CLI_ERROR, "hetero qualify: not qualified: %s (%s: %s)%s", cls,
                 cli__str(g, "gate", "?"), why,
                 strcmp(cls, ht_class_names[HT_NOT_ADMISSIBLE_ENV]) == 0
                     ? "; what each guard sees here, and what to do: hetero doctor"
                     : "");
        *status = CLI_GATE;
    }
    return rc;
}
