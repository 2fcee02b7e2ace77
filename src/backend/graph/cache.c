/* cache.c - the folder of compiled models. A file is named by the digest of all that decides what
 * is in it: the graph's text, the model's bytes, the library's version, the device, the properties
 * and the processor. Anything else is a miss, and so is a file whose bytes are not those that were
 * written: a flipped weight would be numbers of another model. The digest beside a file guards
 * against damage, not against somebody who may write to the folder. */
#include "backend/graph/graph.h"
#include "core/cpu.h"
#include "core/json.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SIDE_MAX = 256 };

static bool path_of(const ht_plan *p, const char *key, const char *suffix, char *out, size_t cap)
{
    const int n = snprintf(out, cap, "%s/%s%s", p->dev->cache, key, suffix);
    return n > 0 && (size_t)n < cap;
}

/* ---- key ------------------------------------------------------------------------------------- */

static int add_text(ht_sha256 *h, const char *s, ht_err *e)
{
    return ht_sha256_add(h, s, strlen(s) + 1, e);
}

/* Digest of every tensor's bytes, in the model's own order. */
static int hash_model(const ht_model *m, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t sha[HT_SHA256_BYTES];
    ht_sha256 *h = NULL;
    const size_t n = ht_model_names(m, NULL, 0);
    ht_named *t = ht_mem_array(n ? n : 1, sizeof *t);
    if (!t) return HT_FAIL(e, HT_ENOMEM, "graph: list of %zu tensors: out of memory", n);
    (void)ht_model_names(m, t, n);
    int rc = ht_sha256_new(&h, e);
    for (size_t i = 0; i < n && !rc; i++) {
        if (t[i].vec) rc = ht_sha256_add(h, t[i].vec, t[i].n * sizeof(float), e);
        for (const ht_weight *w = t[i].w; w && !rc; w = w->alt)
            rc = ht_sha256_add(h, w->data, w->bytes, e);
    }
    ht_mem_free(t);
    if (!rc) rc = ht_sha256_end(h, sha, e);
    else ht_sha256_free(h);
    if (!rc) ht_hex(sha, sizeof sha, hex);
    return rc;
}

int graph__cache_key(const ht_plan *p, const char *text, size_t n, char key[HT_SHA256_HEX],
                     ht_err *e)
{
    ht_dev *dev = p->dev;
    uint8_t sha[HT_SHA256_BYTES];
    char facts[600];
    ht_sha256 *h = NULL;
    if (!dev->pack[0]) HT_TRY(hash_model(p->m, dev->pack, e));
    (void)snprintf(facts, sizeof facts, "%s|%s|%s|threads=%d|act=%u|weights=%u,%u|isa=%x|%s",
                   dev->pack, dev->version, dev->device, dev->threads, (unsigned)p->b.act,
                   (unsigned)dev->weights, (unsigned)dev->ints, ht_cpu_features(), ht_cpu_name());
    HT_TRY(ht_sha256_new(&h, e));
    int rc = ht_sha256_add(h, text, n, e);
    if (!rc) rc = ht_sha256_add(h, p->m->sha256, sizeof p->m->sha256, e);
    if (!rc) rc = add_text(h, facts, e);
    if (rc) {
        ht_sha256_free(h);
        return rc;
    }
    HT_TRY(ht_sha256_end(h, sha, e));
    ht_hex(sha, sizeof sha, key);
    return 0;
}

/* ---- get ------------------------------------------------------------------------------------- */

/* Are these the bytes that were written? */
static bool intact(const ht_plan *p, const char *key, const ht_map *blob)
{
    char path[1400], want[SIDE_MAX], *side = NULL, hex[HT_SHA256_HEX];
    uint8_t sha[HT_SHA256_BYTES];
    size_t n = 0;
    if (!path_of(p, key, ".sha256", path, sizeof path)) return false;
    if (ht_file_read(path, SIDE_MAX, &side, &n, NULL)) return false;
    if (ht_sha256_of(blob->p, blob->n, sha, NULL)) sha[0] = 0;
    ht_hex(sha, sizeof sha, hex);
    (void)snprintf(want, sizeof want, "%s %zu\n", hex, blob->n);
    const bool same = !strcmp(side, want);
    ht_mem_free(side);
    return same;
}

void graph__cache_get(ht_plan *p, const char key[HT_SHA256_HEX], bool *hit)
{
    const ov_api *api = &p->dev->api;
    char path[1400], value[2][16];
    ov_prop prop[GRAPH_PROPS];
    *hit = false;
    if (!path_of(p, key, ".blob", path, sizeof path) || ht_map_open(&p->blob, path, NULL)) return;
    /* An import forgets the precision and takes the core's. */
    const size_t n = graph__properties(p, value, prop);
    *hit = intact(p, key, &p->blob) &&
           api->set_props(p->dev->core, p->dev->device, n, prop) == OV_OK &&
           api->import(p->dev->core, (const char *)p->blob.p, p->blob.n, p->dev->device,
                       &p->compiled) == OV_OK;
    if (*hit) {
        p->facts.blob_bytes = p->blob.n;
        return;
    }
    ht_map_close(&p->blob);
    /* What is not usable would be read again at every start. */
    (void)unlink(path);
    if (path_of(p, key, ".sha256", path, sizeof path)) (void)unlink(path);
}

/* ---- put ------------------------------------------------------------------------------------- */

static bool write_side(const ht_plan *p, const char *key, const ht_map *blob)
{
    char path[1400], hex[HT_SHA256_HEX];
    uint8_t sha[HT_SHA256_BYTES];
    if (!path_of(p, key, ".sha256", path, sizeof path)) return false;
    if (ht_sha256_of(blob->p, blob->n, sha, NULL)) return false;
    ht_hex(sha, sizeof sha, hex);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    bool ok = fprintf(f, "%s %zu\n", hex, blob->n) > 0;
    ok = fclose(f) == 0 && ok;
    if (!ok) (void)unlink(path);
    return ok;
}

/* Under a name of its own first: another process may be writing the same model. Failing is no
 * error: the next start compiles again. */
void graph__cache_put(ht_plan *p, const char key[HT_SHA256_HEX])
{
    char part[1400], path[1400], suffix[40];
    ht_map blob = {0};
    (void)snprintf(suffix, sizeof suffix, ".%ld.part", (long)getpid());
    if (!path_of(p, key, suffix, part, sizeof part)) return;
    if (!path_of(p, key, ".blob", path, sizeof path)) return;
    bool ok = p->dev->api.export(p->compiled, part) == OV_OK && !ht_map_open(&blob, part, NULL);
    if (ok) {
        p->facts.blob_bytes = blob.n;
        ok = write_side(p, key, &blob) && rename(part, path) == 0;
        ht_map_close(&blob);
    }
    if (!ok) (void)unlink(part);
}
