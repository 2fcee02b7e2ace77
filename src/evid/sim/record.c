/* record.c - from inputs to a record: the kinds, their inputs, distributions, canonical bytes. */
#include "core/rng.h"
#include "evid/schema.h"
#include "evid/sim/priv.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 24, MAX_RECORD = 1 << 20 };

static const sim__kind *const kinds[HT_SIMS] = {&sim__drafter, &sim__residency, &sim__mla,
                                                &sim__dag};

const char *ht_sim_name(int kind)
{
    return kind >= 0 && kind < HT_SIMS ? kinds[kind]->name : NULL;
}

int ht_sim_by_name(const char *name)
{
    for (int k = 0; k < HT_SIMS; k++)
        if (strcmp(kinds[k]->name, name) == 0) return k;
    return -1;
}

const ht_sim_input *ht_sim_inputs(int kind)
{
    return kind >= 0 && kind < HT_SIMS ? kinds[kind]->input : NULL;
}

/* ---- for the simulators ---- */

int64_t sim__in(const sim__run *r, const char *key)
{
    size_t i = 0;
    while (strcmp(r->input[i].key, key) != 0) i++;
    return r->value[i];
}

int64_t *sim__series_new(sim__run *r, const char *key, uint32_t n)
{
    int64_t *v = r->n_series < SIM_SERIES ? ht_arena_array(r->a, n, sizeof *v) : NULL;
    if (v) r->series[r->n_series++] = (sim__series){key, v, n};
    return v;
}

void sim__fact(sim__run *r, const char *key, int64_t v)
{
    r->fact[r->n_facts].key = key;
    r->fact[r->n_facts++].v = v;
}

int sim__bound(double work, ht_err *e)
{
    if (work <= SIM_MAX_WORK) return 0;
    return HT_FAIL(
        e, HT_EARG,
        "sim: these inputs ask for %.1e steps, the limit is %.1e; lower \"draws\" or the "
        "sizes",
        work, SIM_MAX_WORK);
}

sim__rng sim__draw(const sim__run *r, uint32_t draw)
{
    return (sim__rng){r->seed, draw, 0};
}

double sim__uniform(sim__rng *g)
{
    return ht_uniform(g->seed, g->at++, g->stream);
}

uint32_t sim__below(sim__rng *g, uint32_t n)
{
    return (uint32_t)(sim__uniform(g) * n);
}

double sim__noise(sim__rng *g)
{
    uint32_t w[4];
    ht_philox(g->seed, g->at++, g->stream, w);
    double sum = ((double)w[0] + (double)w[1]) + ((double)w[2] + (double)w[3]);
    return (sum / 4294967296.0 - 2.0) * 1.7320508075688772; /* variance of the sum: 4/12 */
}

double sim__jitter(sim__rng *g, double v, int64_t ppm)
{
    return v * (1.0 + (2.0 * sim__uniform(g) - 1.0) * (double)ppm / 1e6);
}

/* ---- inputs ---- */

static int read_inputs(ht_arena *a, const sim__kind *k, const char *text, size_t n, int64_t *value,
                       ht_err *e)
{
    ht_field field[MAX_INPUTS + 1] = {{0}};
    ht_json *j = NULL;
    size_t m = 0;
    for (; k->input[m].key; m++)
        field[m] = (ht_field){.key = k->input[m].key,
                              .type = HT_S_INT,
                              .optional = true,
                              .lo = k->input[m].lo,
                              .hi = k->input[m].hi};
    if (text) {
        HT_TRY(ht_json_parse(a, text, n, 0, "inputs", &j, e));
        HT_TRY(ht_schema_check(j, field, NULL, "inputs", e));
    }
    for (size_t i = 0; i < m; i++)
        HT_TRY(ht_json_i64(j, k->input[i].key, k->input[i].def, &value[i], e));
    return 0;
}

/* ---- the record ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The value of rank ceil(q n), q in percent. */
static int64_t quantile(const sim__series *s, uint32_t percent)
{
    uint64_t rank = ((uint64_t)s->n * percent + 99) / 100;
    return s->v[rank ? rank - 1 : 0];
}

static void write_series(ht_jw *w, sim__series *s)
{
    double sum = 0;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    for (uint32_t i = 0; i < s->n; i++) sum += (double)s->v[i];
    ht_jw_key(w, s->key);
    ht_jw_obj(w);
    ht_jw_kint(w, "max", s->v[s->n - 1]);
    ht_jw_kint(w, "mean", (int64_t)(sum / s->n));
    ht_jw_kint(w, "median", quantile(s, 50));
    ht_jw_kint(w, "min", s->v[0]);
    ht_jw_kuint(w, "n", s->n);
    ht_jw_kint(w, "p25", quantile(s, 25));
    ht_jw_kint(w, "p75", quantile(s, 75));
    ht_jw_kint(w, "p95", quantile(s, 95));
    ht_jw_end(w, '}');
}

/* Members in byte order; id NULL leaves it out. */
static void write_record(ht_jw *w, const sim__kind *k, sim__run *r, const char *id)
{
    ht_jw_obj(w);
    ht_jw_kstr(w, "caveat", k->caveat);
    ht_jw_key(w, "derived");
    ht_jw_obj(w);
    for (uint32_t i = 0; i < r->n_facts; i++) ht_jw_kint(w, r->fact[i].key, r->fact[i].v);
    ht_jw_end(w, '}');
    ht_jw_kbool(w, "hardwareEvidence", false);
    if (id) ht_jw_kstr(w, "id", id);
    ht_jw_key(w, "inputs");
    ht_jw_obj(w);
    for (size_t i = 0; r->input[i].key; i++) ht_jw_kint(w, r->input[i].key, r->value[i]);
    ht_jw_end(w, '}');
    ht_jw_kstr(w, "kind", k->name);
    ht_jw_kstr(w, "origin", "simulated");
    ht_jw_kbool(w, "productionEligible", false);
    ht_jw_key(w, "results");
    ht_jw_obj(w);
    for (uint32_t i = 0; i < r->n_series; i++) write_series(w, &r->series[i]);
    ht_jw_end(w, '}');
    ht_jw_kstr(w, "schema", HT_SIM_SCHEMA);
    ht_jw_kuint(w, "seed", r->seed);
    ht_jw_end(w, '}');
}

/* The id is "sim-" and the SHA-256 of the record written without it. */
static int put_record(const sim__kind *k, sim__run *r, ht_buf *bare, ht_buf *out, ht_err *e)
{
    uint8_t sha[HT_SHA256_BYTES];
    char id[4 + HT_SHA256_HEX] = "sim-";
    ht_jw w;
    ht_jw_init(&w, bare, HT_JSON_CANON);
    write_record(&w, k, r, NULL);
    HT_TRY(ht_buf_ok(bare, "record", e));
    HT_TRY(ht_sha256_of(bare->p, bare->n, sha, e));
    ht_hex(sha, sizeof sha, id + 4);
    ht_jw_init(&w, out, HT_JSON_CANON);
    write_record(&w, k, r, id);
    return ht_buf_ok(out, "record", e);
}

int ht_sim_run(enum ht_sim kind, const char *inputs, size_t n, uint64_t seed, ht_buf *out,
               ht_err *e)
{
    if ((int)kind < 0 || kind >= HT_SIMS || seed > (uint64_t)1 << 53)
        return HT_FAIL(e, HT_EARG, "sim: no such kind, or a seed above 2^53");
    const sim__kind *k = kinds[kind];
    int64_t value[MAX_INPUTS] = {0};
    sim__run r = {.input = k->input, .value = value, .seed = seed};
    ht_buf bare;
    HT_TRY(ht_arena_new(&r.a, (size_t)1 << 30, e));
    ht_buf_init(&bare, MAX_RECORD);
    int rc = read_inputs(r.a, k, inputs, n, value, e);
    if (!rc) rc = k->run(&r, e);
    if (!rc) rc = put_record(k, &r, &bare, out, e);
    ht_buf_done(&bare);
    ht_arena_free(r.a);
    return rc;
}

/* ---- signing ---- */

static int check_role(const ht_key *key, const ht_trust *t, ht_err *e)
{
    uint8_t pub[HT_ED25519_PUB];
    char id[HT_SHA256_HEX];
    ht_key_public(key, pub);
    HT_TRY(ht_key_id(pub, id, e));
    for (size_t i = 0; i < t->n_keys; i++) {
        if (memcmp(t->key[i].pub, pub, sizeof pub) != 0) continue;
        if (t->key[i].roles == 1u << HT_ROLE_SIMULATE) return 0;
        return HT_FAIL(e, HT_EGATE,
                       "sim: key %.16s... must have the role simulate and no other in the trust "
                       "root; make one for simulations alone",
                       id);
    }
    return HT_FAIL(
        e, HT_EGATE,
        "sim: key %.16s... is not in the trust root; add it there with the role simulate", id);
}

static int put_statement(ht_arena *a, const char *record, size_t n, ht_buf *out, ht_err *e)
{
    uint8_t sha[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    ht_json *j;
    const char *id;
    ht_jw w;
    HT_TRY(ht_json_parse(a, record, n, HT_JSON_CANON, "record", &j, e));
    HT_TRY(ht_json_str(j, "id", "", &id, e));
    HT_TRY(ht_sha256_of(record, n, sha, e));
    ht_hex(sha, sizeof sha, hex);
    ht_jw_init(&w, out, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "_type", "https://in-toto.io/Statement/v1");
    ht_jw_key(&w, "predicate");
    ht_jw_raw(&w, record, n);
    ht_jw_kstr(&w, "predicateType", HT_SIM_PREDICATE);
    ht_jw_key(&w, "subject");
    ht_jw_arr(&w);
    ht_jw_obj(&w);
    ht_jw_key(&w, "digest");
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "sha256", hex);
    ht_jw_end(&w, '}');
    ht_jw_kstr(&w, "name", id);
    ht_jw_end(&w, '}');
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    return ht_buf_ok(out, "statement", e);
}

int ht_sim_sign(const char *record, size_t n, const ht_key *key, const ht_trust *t, ht_buf *out,
                ht_err *e)
{
    ht_arena *a;
    ht_buf b;
    HT_TRY(check_role(key, t, e));
    HT_TRY(ht_arena_new(&a, 1 << 26, e));
    ht_buf_init(&b, 2 * MAX_RECORD);
    int rc = put_statement(a, record, n, &b, e);
    if (!rc) rc = ht_dsse_sign(b.p, b.n, "application/vnd.in-toto+json", &key, 1, out, e);
    ht_buf_done(&b);
    ht_arena_free(a);
    return rc;
}
