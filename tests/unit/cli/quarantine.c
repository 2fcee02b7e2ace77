/* quarantine.c - a simulation's envelope or record, put wherever the router reads: refused, even
 * when the key that signed it holds every role. Here, because only cli/ may reach both sides. */
#include "evid/sim/sim.h"
#include "route/store.h"
#include "test.h"

enum { NOW = 1800000000 };

typedef struct {
    ht_arena *a;
    ht_key *key;
    ht_trust_key tk;
    ht_trust t;
    ht_buf record, env;
    char dir[512];
} site;

static void put(const site *s, const char *path, const ht_buf *b)
{
    char full[600];
    snprintf(full, sizeof full, "%s/%s", s->dir, path);
    t_spit(full, b->p, b->n);
}

/* A store whose only key signed a simulation while it had one role, and now has them all. */
static void site_open(site *s)
{
    static const uint8_t seed[32] = {7};
    ht_err e = {0};
    ht_buf root;
    T_OK(ht_arena_new(&s->a, 0, &e), e);
    T_OK(ht_key_from_seed(&s->key, seed, &e), e);
    ht_key_public(s->key, s->tk.pub);
    T_OK(ht_key_id(s->tk.pub, s->tk.id, &e), e);
    s->tk.roles = 1u << HT_ROLE_SIMULATE;
    s->t = (ht_trust){.version = 1,
                      .expires_unix = NOW + 1000,
                      .key = &s->tk,
                      .n_keys = 1,
                      .threshold = {1, 2, 1, 1, 1}};
    ht_buf_init(&s->record, 0);
    ht_buf_init(&s->env, 0);
    ht_buf_init(&root, 0);
    T_OK(ht_sim_run(HT_SIM_DAG, NULL, 0, 1, &s->record, &e), e);
    T_OK(ht_sim_sign(s->record.p, s->record.n, s->key, &s->t, &s->env, &e), e);
    s->tk.roles = (1u << HT_ROLES) - 1;
    snprintf(s->dir, sizeof s->dir, "%s", t_tmp());
    T_OK(ht_trust_write(&s->t, &root, &e), e);
    put(s, "trust.json", &root);
    ht_buf_done(&root);
}

static void site_close(site *s)
{
    ht_buf_done(&s->record);
    ht_buf_done(&s->env);
    ht_key_free(s->key);
    ht_arena_free(s->a);
}

T_CASE(quarantine, a_simulation_is_no_index)
{
    site s;
    ht_store st;
    ht_err e = {0};
    ht_index x;
    ht_highwater h;
    site_open(&s);
    T_OK(ht_store_open(s.a, s.dir, NOW, &st, &e), e);
    T_TRUE(!st.has_index);
    put(&s, "index.dsse.json", &s.env);
    T_ERR(ht_store_open(s.a, s.dir, NOW, &st, &e), HT_EGATE, e, "UNKNOWN_TYPE");
    T_TRUE(ht_index_parse(s.a, s.record.p, s.record.n, &x, &e) == HT_EFORMAT);
    T_TRUE(ht_highwater_parse(s.a, s.record.p, s.record.n, &h, &e) == HT_EFORMAT);
    site_close(&s);
}

T_CASE(quarantine, a_simulation_is_not_promoted)
{
    site s;
    ht_store st;
    ht_err e = {0};
    char id[HT_SHA256_HEX];
    site_open(&s);
    T_OK(ht_store_open(s.a, s.dir, NOW, &st, &e), e);
    put(&s, "statement.dsse.json", &s.env);
    put(&s, "inputs.manifest.json", &s.record);
    put(&s, "outputs.manifest.json", &s.record);
    const ht_key *keys[1] = {s.key};
    int rc = ht_store_promote(&st, s.dir, keys, 1, id, &e);
    T_CHECK(rc == HT_EFORMAT || rc == HT_EGATE, "promoting a simulation returned %d: %s", rc,
            e.msg);
    T_EQ_INT(st.index.n_entries, 0);
    site_close(&s);
}
