/* sim.c - the simulations against closed forms, bounds and limiting cases; records, signatures, and
 * that nothing of the evidence layer takes a record. */
#include "evid/sim/sim.h"
#include "evid/env.h"
#include "evid/verify.h"
#include "test.h"

static const char *keep(ht_arena *a, int kind, const char *inputs, uint64_t seed)
{
    ht_buf b;
    ht_err e = {0};
    ht_buf_init(&b, 0);
    T_OK(ht_sim_run((enum ht_sim)kind, inputs, inputs ? strlen(inputs) : 0, seed, &b, &e), e);
    const char *text = ht_arena_strndup(a, b.p, b.n);
    T_CHECK(text, "no memory for a record");
    ht_buf_done(&b);
    return text;
}

static const ht_json *run(ht_arena *a, int kind, const char *inputs, uint64_t seed)
{
    const char *text = keep(a, kind, inputs, seed);
    ht_err e = {0};
    ht_json *j;
    T_OK(ht_json_parse(a, text, strlen(text), HT_JSON_CANON, "record", &j, &e), e);
    return j;
}

static int64_t number(const ht_json *j, const char *path)
{
    const ht_json *v = ht_json_path(j, path);
    T_CHECK(v && v->type == HT_JINT, "no integer at %s", path);
    return v->i;
}

static ht_arena *arena(void)
{
    ht_arena *a;
    ht_err e = {0};
    T_OK(ht_arena_new(&a, 0, &e), e);
    return a;
}

/* Few draws, so that all inputs of all kinds can be tried. */
static const char *const few[HT_SIMS] = {"\"draws\":9,\"rounds\":16", "\"draws\":5,\"requests\":60",
                                         ("\"draws\":3,\"dim\":32,\"kvDim\":16,\"rank\":6,"
                                          "\"trueRank\":12,\"activations\":8"),
                                         "\"draws\":7"};

static const char *with(ht_arena *a, int kind, const char *key, int64_t v)
{
    char member[64];
    snprintf(member, sizeof member, "\"%s\":", key);
    const char *base = few[kind], *at = strstr(base, member);
    if (!at) return ht_arena_printf(a, "{%s,%s%lld}", base, member, (long long)v);
    const char *rest = at + strcspn(at, ",");
    return ht_arena_printf(a, "{%.*s%s%lld%s}", (int)(at - base), base, member, (long long)v, rest);
}

T_CASE(sim, record_says_what_it_is)
{
    ht_arena *a = arena();
    for (int k = 0; k < HT_SIMS; k++) {
        const ht_json *j = run(a, k, ht_arena_printf(a, "{%s}", few[k]), 3);
        T_EQ_STR(ht_json_get(j, "schema")->s, "hetero/sim/1");
        T_EQ_STR(ht_json_get(j, "kind")->s, ht_sim_name(k));
        T_EQ_INT(ht_sim_by_name(ht_sim_name(k)), k);
        T_EQ_STR(ht_json_get(j, "origin")->s, "simulated");
        T_CHECK(!ht_json_get(j, "hardwareEvidence")->b, "%s claims hardware", ht_sim_name(k));
        T_CHECK(!ht_json_get(j, "productionEligible")->b, "%s claims to be fit", ht_sim_name(k));
        T_CHECK(ht_json_get(j, "caveat")->n > 60, "%s has no caveat", ht_sim_name(k));
        T_CHECK(strncmp(ht_json_get(j, "id")->s, "sim-", 4) == 0, "%s", ht_json_get(j, "id")->s);
        T_EQ_INT(ht_json_get(j, "id")->n, 68);
        T_EQ_INT(number(j, "seed"), 3);
        const ht_json *res = ht_json_get(j, "results");
        T_CHECK(res && res->n >= 2, "%s has no results", ht_sim_name(k));
        for (size_t i = 0; i < res->n; i++) {
            const ht_json *s = &res->at[i];
            int64_t lo = number(s, "min"), p25 = number(s, "p25"), mid = number(s, "median");
            int64_t p75 = number(s, "p75"), p95 = number(s, "p95"), hi = number(s, "max");
            T_CHECK(lo <= p25 && p25 <= mid && mid <= p75 && p75 <= p95 && p95 <= hi, "%s", s->key);
            T_CHECK(lo <= number(s, "mean") && number(s, "mean") <= hi, "mean of %s", s->key);
            T_EQ_INT(number(s, "n"), number(j, "inputs.draws"));
        }
    }
    T_EQ_INT(ht_sim_by_name("nothing"), -1);
    ht_arena_free(a);
}

/* The id is the digest of the record without it. */
T_CASE(sim, id_is_recomputable)
{
    ht_arena *a = arena();
    const char *text = keep(a, HT_SIM_DAG, "{\"draws\":3}", 1), *at = strstr(text, "\"id\":\"sim-");
    uint8_t sha[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    ht_err e = {0};
    T_CHECK(at, "no id");
    const char *rest = strchr(at, ',') + 1;
    const char *bare = ht_arena_printf(a, "%.*s%s", (int)(at - text), text, rest);
    T_OK(ht_sha256_of(bare, strlen(bare), sha, &e), e);
    ht_hex(sha, sizeof sha, hex);
    T_CHECK(strncmp(at + 10, hex, 64) == 0, "%.74s is not %s", at, hex);
    ht_arena_free(a);
}

T_CASE(sim, equal_inputs_give_equal_bytes)
{
    ht_arena *a = arena();
    for (int k = 0; k < HT_SIMS; k++) {
        const char *in = ht_arena_printf(a, "{%s}", few[k]), *one = keep(a, k, in, 5);
        T_EQ_STR(keep(a, k, in, 5), one);
        T_EQ_STR(keep(a, k, ht_arena_printf(a, " { %s }\n", few[k]), 5), one);
        T_CHECK(strcmp(keep(a, k, in, 6), one) != 0, "%s ignores the seed", ht_sim_name(k));
    }
    ht_arena_free(a);
}

/* Results, not only the echo of the inputs, follow every single input. */
T_CASE(sim, every_input_counts)
{
    ht_arena *a = arena();
    ht_err e = {0};
    for (int k = 0; k < HT_SIMS; k++) {
        const ht_json *base = run(a, k, ht_arena_printf(a, "{%s}", few[k]), 2);
        ht_buf was, is;
        ht_buf_init(&was, 0);
        ht_buf_init(&is, 0);
        T_OK(ht_json_write(ht_json_get(base, "results"), HT_JSON_CANON, &was, &e), e);
        for (const ht_sim_input *i = ht_sim_inputs(k); i->key; i++) {
            char path[64];
            snprintf(path, sizeof path, "inputs.%s", i->key);
            int64_t v = number(base, path), other = v + v / 2 + 1;
            if (other > i->hi) other = v / 2;
            if (strcmp(i->key, "capacityA") == 0 || strcmp(i->key, "capacityB") == 0) other = 8;
            const ht_json *j = run(a, k, with(a, k, i->key, other), 2);
            T_EQ_INT(number(j, path), other);
            ht_buf_clear(&is);
            T_OK(ht_json_write(ht_json_get(j, "results"), HT_JSON_CANON, &is, &e), e);
            T_CHECK(was.n != is.n || memcmp(was.p, is.p, is.n) != 0, "%s: %s = %lld has no effect",
                    ht_sim_name(k), i->key, (long long)other);
        }
        ht_buf_done(&was);
        ht_buf_done(&is);
    }
    ht_arena_free(a);
}

static void refuse(int kind, const char *inputs, int code, const char *text)
{
    ht_buf b;
    ht_err e = {0};
    ht_buf_init(&b, 0);
    T_ERR(ht_sim_run((enum ht_sim)kind, inputs, strlen(inputs), 1, &b, &e), code, e, text);
    T_EQ_INT(b.n, 0);
    ht_buf_done(&b);
}

T_CASE(sim, bad_inputs_are_named)
{
    refuse(HT_SIM_DRAFTER, "{\"acceptPPM\":1}", HT_EFORMAT, "acceptPPM");
    refuse(HT_SIM_DRAFTER, "{\"acceptPpm\":1000001}", HT_EFORMAT, "acceptPpm");
    refuse(HT_SIM_DRAFTER, "{\"acceptPpm\":0.5}", HT_EFORMAT, "acceptPpm");
    refuse(HT_SIM_DRAFTER, "{\"acceptPpm\":null}", HT_EFORMAT, "acceptPpm");
    refuse(HT_SIM_DRAFTER, "{\"draws\":0}", HT_EFORMAT, "draws");
    refuse(HT_SIM_DRAFTER, "[]", HT_EFORMAT, "inputs");
    refuse(HT_SIM_DRAFTER, "{\"acceptPpm\":1", HT_EFORMAT, "inputs");
    refuse(HT_SIM_DRAFTER, "{\"draws\":100000,\"rounds\":100000}", HT_EARG, "draws");
    refuse(HT_SIM_RESIDENCY, "{\"objects\":16}", HT_EARG, "hotObjects");
    refuse(HT_SIM_RESIDENCY, "{\"capacityB\":1}", HT_EARG, "a device must hold");
    refuse(HT_SIM_MLA, "{\"rank\":129}", HT_EARG, "rank");
    refuse(HT_SIM_MLA, "{\"dim\":1024,\"kvDim\":512,\"draws\":10000}", HT_EARG, "steps");
    refuse(HT_SIM_DAG, "{\"layers\":145}", HT_EFORMAT, "layers");
    refuse(HT_SIM_DAG, "{\"hardwareEvidence\":true}", HT_EFORMAT, "hardwareEvidence");
}

/* E[tokens] = (1 - a^(g+1)) / (1 - a) and S = E T / (g Td + Tv), techniques.md 4; their example for
 * two devices: a = 0.7, g = 3, Td = 0.35 T gives 1.24 serial and 1.40 overlapped. */
T_CASE(sim, drafter_meets_its_closed_form)
{
    ht_arena *a = arena();
    const char *fmt =
        "{\"acceptPpm\":700000,\"acceptSpreadPpm\":0,\"jitterPpm\":0,\"draftTokens\":3,"
        "\"draftNsPerToken\":3500000,\"targetNsPerToken\":10000000,"
        "\"verifyExtraNsPerToken\":0,\"draws\":400,\"rounds\":400,\"twoDevices\":%d}";
    for (int two = 0; two < 2; two++) {
        const ht_json *j = run(a, HT_SIM_DRAFTER, ht_arena_printf(a, fmt, two), 1);
        T_NEAR(number(j, "derived.tokensPerRoundPpm"), 2533000, 1);
        T_NEAR(number(j, "derived.speedupPpm"), two ? 1399530 : 1235600, 100);
        /* 160,000 rounds; sd of a round's tokens 1.26, so 6 standard errors are 0.019. */
        T_NEAR(number(j, "results.tokensPerRoundPpm.mean"), 2533000, 19000);
        T_NEAR(number(j, "results.speedupPpm.mean"), number(j, "derived.speedupPpm"), 15000);
    }
    ht_arena_free(a);
}

T_CASE(sim, drafter_at_its_limits)
{
    ht_arena *a = arena();
    const char *fmt = "{\"acceptPpm\":%d,\"acceptSpreadPpm\":0,\"jitterPpm\":0,\"draftTokens\":4,"
                      "\"draftNsPerToken\":1000000,\"targetNsPerToken\":10000000,"
                      "\"verifyExtraNsPerToken\":0,\"draws\":3,\"rounds\":10}";
    const ht_json *all = run(a, HT_SIM_DRAFTER, ht_arena_printf(a, fmt, 1000000), 1);
    T_EQ_INT(number(all, "results.tokensPerRoundPpm.min"), 5000000);
    T_NEAR(number(all, "results.speedupPpm.max"), 5e6 / 1.4, 2);
    const ht_json *none = run(a, HT_SIM_DRAFTER, ht_arena_printf(a, fmt, 0), 1);
    T_EQ_INT(number(none, "results.acceptedPpm.max"), 0);
    T_NEAR(number(none, "results.speedupPpm.min"), 1e6 / 1.4, 2);
    ht_arena_free(a);
}

T_CASE(sim, residency_at_its_limits)
{
    ht_arena *a = arena();
    /* Ties always go to A, and everything fits there: after the warm-up nothing is elsewhere. */
    const ht_json *one =
        run(a, HT_SIM_RESIDENCY,
            "{\"objects\":64,\"hotObjects\":8,\"capacityA\":64,\"tieToAPpm\":1000000,"
            "\"warmup\":2000,\"draws\":5}",
            1);
    T_EQ_INT(number(one, "results.crossPpm.max"), 0);
    T_EQ_INT(number(one, "results.missPpm.max"), 0);
    /* One object a request: it runs where the object is, so nothing ever crosses. */
    const ht_json *single = run(a, HT_SIM_RESIDENCY, "{\"joins\":1,\"draws\":5}", 1);
    T_EQ_INT(number(single, "results.crossPpm.max"), 0);
    T_CHECK(number(single, "results.missPpm.min") > 0, "256 objects cannot all fit in 144 places");
    /* More objects to join: more crossings. */
    const ht_json *two = run(a, HT_SIM_RESIDENCY, "{\"joins\":2,\"draws\":20}", 1);
    const ht_json *six = run(a, HT_SIM_RESIDENCY, "{\"joins\":6,\"draws\":20}", 1);
    int64_t c2 = number(two, "results.crossPpm.mean"), c6 = number(six, "results.crossPpm.mean");
    T_CHECK(0 < c2 && c2 < c6 && c6 < 1000000, "crossings %lld, %lld", (long long)c2,
            (long long)c6);
    T_EQ_INT(number(two, "results.crossBytesPerRequest.max") > 0, 1);
    ht_arena_free(a);
}

/* A fit of the true rank or more is exact to rounding; less rank, more error; noise has a floor. */
T_CASE(sim, mla_fit)
{
    ht_arena *a = arena();
    const char *fmt =
        "{\"dim\":48,\"kvDim\":24,\"trueRank\":%d,\"noisePpm\":%d,\"rank\":%d,\"draws\":4,"
        "\"iterations\":30}";
    const ht_json *exact = run(a, HT_SIM_MLA, ht_arena_printf(a, fmt, 12, 0, 12), 1);
    T_EQ_INT(number(exact, "results.activationRmsePpmOfRms.max"), 0);
    const ht_json *full = run(a, HT_SIM_MLA, ht_arena_printf(a, fmt, 48, 500000, 48), 1);
    T_EQ_INT(number(full, "results.activationRmsePpmOfRms.max"), 0);
    T_EQ_INT(number(full, "derived.cachePpmOfKv"), 1000000);
    int64_t last = 1000000;
    for (int rank = 2; rank <= 12; rank += 2) {
        const ht_json *j = run(a, HT_SIM_MLA, ht_arena_printf(a, fmt, 48, 0, rank), 1);
        int64_t now = number(j, "results.activationRmsePpmOfRms.mean");
        T_CHECK(now > 0 && now < last, "rank %d: error %lld after %lld", rank, (long long)now,
                (long long)last);
        last = now;
    }
    const ht_json *noisy = run(a, HT_SIM_MLA, ht_arena_printf(a, fmt, 12, 100000, 12), 1);
    T_CHECK(number(noisy, "results.activationRmseMicro.min") > 10000, "noise leaves no error");
    ht_arena_free(a);
}

T_CASE(sim, dag_schedule_and_bound)
{
    ht_arena *a = arena();
    const ht_json *j = run(a, HT_SIM_DAG, "{\"draws\":60}", 1);
    T_EQ_INT(number(j, "derived.nodes"), 144);
    T_CHECK(number(j, "results.makespanPpmOfBound.min") >= 1000000, "a schedule beats the bound");
    T_CHECK(number(j, "results.makespanPpmOfBound.max") < 2000000, "a poor schedule");
    T_CHECK(number(j, "results.speedupPpmOverOneDevice.min") > 1000000, "two devices lose");
    /* A chain on equal devices: nothing to share, no crossing pays, the bound is met exactly. */
    const ht_json *chain = run(a, HT_SIM_DAG,
                               "{\"layers\":144,\"parents\":1,\"affinityPpm\":0,\"costNsA\":1000,"
                               "\"costNsB\":1000,\"draws\":3}",
                               1);
    T_EQ_INT(number(chain, "results.makespanNs.max"), 144000);
    T_EQ_INT(number(chain, "results.lowerBoundNs.min"), 144000);
    T_EQ_INT(number(chain, "results.crossEdgePpm.max"), 0);
    /* One layer, equal devices: half each. */
    const ht_json *flat = run(a, HT_SIM_DAG,
                              "{\"layers\":1,\"affinityPpm\":0,\"costNsA\":1000,\"costNsB\":1000,"
                              "\"draws\":2}",
                              1);
    T_EQ_INT(number(flat, "results.makespanNs.max"), 72000);
    T_EQ_INT(number(flat, "results.makespanPpmOfBound.max"), 1000000);
    T_EQ_INT(number(flat, "results.speedupPpmOverOneDevice.min"), 2000000);
    /* One device twice as slow: A takes 96 of 144, the fractional optimum. */
    const ht_json *slow = run(a, HT_SIM_DAG,
                              "{\"layers\":1,\"affinityPpm\":0,\"costNsA\":1000,\"costNsB\":2000,"
                              "\"draws\":1}",
                              1);
    T_EQ_INT(number(slow, "results.lowerBoundNs.max"), 96000);
    T_EQ_INT(number(slow, "results.makespanNs.max"), 96000);
    ht_arena_free(a);
}

/* ---- signatures and the quarantine ---------------------------------------------------------- */

enum { NOW = 1800000000 };
typedef struct {
    ht_arena *a;
    ht_key *key[3];
    ht_trust_key tk[3];
    ht_trust t;
} keys;

/* Keys 0: simulate; 1: bench; 2: simulate and bench. */
static void keys_open(keys *k)
{
    static const unsigned roles[3] = {1u << HT_ROLE_SIMULATE, 1u << HT_ROLE_BENCH,
                                      1u << HT_ROLE_SIMULATE | 1u << HT_ROLE_BENCH};
    ht_err e = {0};
    k->a = arena();
    for (uint8_t i = 0; i < 3; i++) {
        uint8_t seed[32] = {(uint8_t)(i + 1)};
        T_OK(ht_key_from_seed(&k->key[i], seed, &e), e);
        ht_key_public(k->key[i], k->tk[i].pub);
        T_OK(ht_key_id(k->tk[i].pub, k->tk[i].id, &e), e);
        k->tk[i].roles = roles[i];
    }
    k->t = (ht_trust){.version = 1,
                      .expires_unix = NOW + 1,
                      .key = k->tk,
                      .n_keys = 3,
                      .threshold = {1, 2, 1, 1, 1}};
}

static void keys_close(keys *k)
{
    for (int i = 0; i < 3; i++) ht_key_free(k->key[i]);
    ht_arena_free(k->a);
}

static const char *envelope(keys *k, const char *record)
{
    ht_buf b;
    ht_err e = {0};
    ht_buf_init(&b, 0);
    T_OK(ht_sim_sign(record, strlen(record), k->key[0], &k->t, &b, &e), e);
    const char *text = ht_arena_strndup(k->a, b.p, b.n);
    ht_buf_done(&b);
    return text;
}

T_CASE(sim, only_a_simulate_key_signs)
{
    keys k;
    ht_buf b;
    ht_err e = {0};
    ht_dsse d;
    keys_open(&k);
    const char *record = keep(k.a, HT_SIM_DAG, "{\"draws\":2}", 1), *env = envelope(&k, record);
    T_OK(ht_dsse_parse(k.a, env, strlen(env), &d, &e), e);
    T_OK(ht_trust_check(&k.t, &d, HT_ROLE_SIMULATE, "application/vnd.in-toto+json", NOW, &e), e);
    T_CHECK(strstr((const char *)d.payload, "\"predicateType\":\"urn:hetero:simulation:1\""),
            "%.200s", (const char *)d.payload);
    T_CHECK(strstr((const char *)d.payload, record), "the record is not inside, byte for byte");
    ht_buf_init(&b, 0);
    for (int i = 1; i < 3; i++)
        T_ERR(ht_sim_sign(record, strlen(record), k.key[i], &k.t, &b, &e), HT_EGATE, e,
              "simulate and no other");
    k.t.n_keys = 0;
    T_ERR(ht_sim_sign(record, strlen(record), k.key[0], &k.t, &b, &e), HT_EGATE, e, "not in the");
    T_EQ_INT(b.n, 0);
    ht_buf_done(&b);
    keys_close(&k);
}

/* Evidence 38: however a simulation is dressed up, the door for statements stays shut. */
T_CASE(sim, evidence_refuses_a_simulation)
{
    static const struct {
        const char *role_word;
        enum ht_role role;
        const char *predicate;
    } door[] = {{"bench", HT_ROLE_BENCH, HT_PRED_EVIDENCE},
                {"promote", HT_ROLE_PROMOTE, HT_PRED_PROMOTION}};
    keys k;
    ht_err e = {0};
    ht_dsse d;
    const ht_json *statement;
    keys_open(&k);
    const char *record = keep(k.a, HT_SIM_DRAFTER, "{\"draws\":2}", 1), *env = envelope(&k, record);
    for (size_t i = 0; i < sizeof door / sizeof door[0]; i++)
        T_ERR(ht_statement_open(k.a, env, strlen(env), &k.t, door[i].role, door[i].predicate, NOW,
                                &d, &statement, &e),
              HT_EGATE, e, "BAD_SIGNATURE");
    /* The same key given every role: the type is still unknown there. */
    for (int i = 0; i < 3; i++) k.tk[i].roles = (1u << HT_ROLES) - 1;
    k.t.threshold[HT_ROLE_PROMOTE] = 1;
    for (size_t i = 0; i < sizeof door / sizeof door[0]; i++)
        T_ERR(ht_statement_open(k.a, env, strlen(env), &k.t, door[i].role, door[i].predicate, NOW,
                                &d, &statement, &e),
              HT_EGATE, e, "UNKNOWN_TYPE");
    /* Its parsers do not take the record for anything else either. */
    ht_policy p;
    ht_scope s;
    ht_json *j;
    T_ERR(ht_policy_parse(k.a, record, strlen(record), &p, &e), HT_EFORMAT, e, "policy");
    T_ERR(ht_scope_parse(k.a, record, strlen(record), &s, &e), HT_EFORMAT, e, "scope");
    T_OK(ht_json_parse(k.a, record, strlen(record), HT_JSON_CANON, "record", &j, &e), e);
    T_TRUE(ht_machine_check(j, &e) == HT_EFORMAT);
    keys_close(&k);
}

/* A bundle folder that holds a simulation's envelope in place of its statement. */
T_CASE(sim, a_bundle_cannot_be_a_simulation)
{
    keys k;
    ht_err e = {0};
    ht_verified v;
    char path[600];
    keys_open(&k);
    const char *record = keep(k.a, HT_SIM_DAG, "{\"draws\":2}", 1), *env = envelope(&k, record);
    snprintf(path, sizeof path, "%s/statement.dsse.json", t_tmp());
    t_spit(path, env, strlen(env));
    snprintf(path, sizeof path, "%s/inputs.manifest.json", t_tmp());
    t_spit(path, record, strlen(record));
    T_TRUE(ht_bundle_verify(k.a, t_tmp(), &k.t, NOW, &v, &e) == HT_EFORMAT);
    keys_close(&k);
}

/* No allocation that fails may crash or leak. */
T_CASE(sim, every_allocation_may_fail)
{
    for (int k = 0; k < HT_SIMS; k++)
        for (uint64_t n = 1;; n++) {
            char in[160];
            ht_buf b;
            ht_err e = {0};
            snprintf(in, sizeof in, "{%s}", few[k]);
            uint64_t live = ht_alloc_live();
            ht_buf_init(&b, 0);
            ht_alloc_fail_at(n);
            int rc = ht_sim_run((enum ht_sim)k, in, strlen(in), 1, &b, &e);
            ht_alloc_fail_at(0);
            ht_buf_done(&b);
            T_EQ_INT(ht_alloc_live(), live);
            if (rc == 0) break;
            T_CHECK(rc == HT_ENOMEM, "%s, allocation %llu: %d %s", ht_sim_name(k),
                    (unsigned long long)n, rc, e.msg);
            T_CHECK(n < 1000, "%s never succeeds", ht_sim_name(k));
        }
}
