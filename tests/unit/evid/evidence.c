/* evidence.c - what the inputs of a bundle may say (evidence.md 8, Design 24-31 and Time
 * 32-35): each case breaks one rule in memory, with every digest mended, and must meet that
 * rule's refusal. */
#include "fixture.h"

/* Read and judge; the twin of every mutation below. */
static void judge(fx *f, ht_evidence *v, ht_analysis *x)
{
    ht_err e = {0};
    fx_build(f);
    T_OK(fx_read(f, v, &e), e);
    T_OK(ht_analyze(f->a, v, x, &e), e);
}

static void expect_class(fx *f, int cls, unsigned gate, const char *why)
{
    ht_evidence v;
    ht_analysis x;
    judge(f, &v, &x);
    T_EQ_STR(ht_class_names[x.cell[0].cls], ht_class_names[cls]);
    if (gate < HT_GATES) T_EQ_STR(x.cell[0].why[gate], why);
    T_CHECK(x.n_routes == 0 || cls == HT_QUALIFIED, "a cell qualifies beside %s",
            ht_class_names[cls]);
    /* Every cell is in the cost map, as an entry or as a negative. */
    ht_buf b;
    ht_err e = {0};
    ht_buf_init(&b, 0);
    T_OK(ht_analysis_write(&v, &x, 4, &b, &e), e);
    for (size_t i = 0; i < v.design.n_cells; i++)
        T_CHECK(strstr(b.p, v.design.cell[i].scope_sha), "cell %zu is not in the cost map", i);
    T_CHECK((strstr(b.p, "\"negatives\":[]") != NULL) == (cls == HT_QUALIFIED), "negatives");
    ht_buf_done(&b);
    fx_done(f);
}

T_CASE(evidence, documents_are_canonical)
{
    fx f;
    ht_evidence v;
    ht_analysis x;
    ht_err e = {0};
    fx_init(&f);
    judge(&f, &v, &x);
    for (size_t i = 0; ht_bundle_outputs[i]; i++) {
        ht_buf b, again;
        ht_json *j;
        ht_buf_init(&b, 0);
        ht_buf_init(&again, 0);
        T_OK(ht_analysis_write(&v, &x, i, &b, &e), e);
        T_OK(ht_json_parse(f.a, b.p, b.n, HT_JSON_CANON, ht_bundle_outputs[i], &j, &e), e);
        T_OK(ht_analysis_write(&v, &x, i, &again, &e), e);
        T_CHECK(b.n == again.n && memcmp(b.p, again.p, b.n) == 0, "two writings differ");
        ht_buf_done(&b);
        ht_buf_done(&again);
    }
    T_CHECK(ht_analysis_write(&v, &x, 6, &(ht_buf){0}, &e) == HT_EARG, "a seventh output");
    fx_done(&f);
}

T_CASE(evidence, qualified)
{
    fx f;
    fx_init(&f);
    expect_class(&f, HT_QUALIFIED, HT_GATE_PERF, "OK");
    fx_init(&f);
    f.void_block = 5; /* one void block of eight, run again: allowed */
    f.void_tries = 1;
    expect_class(&f, HT_QUALIFIED, HT_GATE_VOIDS, "OK");
}

/* How many of n made-up tables end QUALIFIED, each with noise of its own, through everything that
 * lies between samples and verdict. */
static uint32_t qualified(uint32_t n, const fx *like, const char *policy_from,
                          const char *policy_to, uint32_t class_of_rest[HT_CLASSES])
{
    uint32_t good = 0;
    for (uint32_t i = 0; i < n; i++) {
        fx f;
        ht_evidence v;
        ht_analysis x;
        fx_init(&f);
        f.cells = 1;
        f.pairs = like->pairs;
        f.null_pairs = like->null_pairs;
        f.requests = like->requests;
        f.gain_ppm = like->gain_ppm;
        f.slow_pair = like->slow_pair;
        f.jitter_ppm = like->jitter_ppm;
        f.seed = i;
        f.rng = 7919 * (uint64_t)i + 1;
        f.policy = fx_swap(&f, fx_policy(&f), policy_from, policy_to);
        judge(&f, &v, &x);
        good += x.cls == HT_QUALIFIED;
        class_of_rest[x.cls]++;
        fx_done(&f);
    }
    return good;
}

/* evidence.md 8, Design 31. The policy asks for a lower bound of 1 and no more, so that nothing but
 * the error of the first kind stands between identical arms and promotion. */
T_CASE_SECONDS(evidence, a_thousand_tables, 900)
{
    enum { TABLES = 1000, ALPHA_PPM = 50000 };
    const fx same = {.pairs = 12,
                     .null_pairs = 12,
                     .requests = 1,
                     .gain_ppm = 1000000,
                     .slow_pair = UINT32_MAX,
                     .jitter_ppm = 10000};
    uint32_t cls[HT_CLASSES] = {0};
    uint32_t n = qualified(TABLES, &same, "\"minLowerRatioPpm\":1030000",
                           "\"minLowerRatioPpm\":1000000", cls);
    /* Three standard deviations of a binomial count: sqrt(1000 * 0.05 * 0.95) = 6.9. */
    T_CHECK(n <= TABLES * (uint64_t)ALPHA_PPM / 1000000 + 21, "%u of %d identical arms promoted", n,
            TABLES);
    T_CHECK(cls[HT_INCONCLUSIVE_ENV] > 10 && cls[HT_INCONCLUSIVE_ENV] < 100,
            "the null run of identical arms fails in %u tables, 5 %% are expected",
            cls[HT_INCONCLUSIVE_ENV]);
    /* The default margin of 3 % admits none of them. */
    fx some = same;
    memset(cls, 0, sizeof cls);
    T_EQ_INT(qualified(200, &some, "fixture-1", "fixture-1", cls), 0);
    /* A gain of 10 % is found wherever the null run holds. */
    some.gain_ppm = 1100000;
    memset(cls, 0, sizeof cls);
    n = qualified(200, &some, "fixture-1", "fixture-1", cls);
    T_EQ_INT(n + cls[HT_INCONCLUSIVE_ENV], 200);
    T_CHECK(n > 170, "a gain of 10 %% is found in %u of 200 tables", n);
    /* A better median with a pair three times as slow: enough requests to see the tail. */
    some.pairs = some.null_pairs = 8;
    some.requests = 12;
    some.slow_pair = 9;
    memset(cls, 0, sizeof cls);
    T_EQ_INT(qualified(30, &some, "fixture-1", "fixture-1", cls), 0);
    T_CHECK(cls[HT_FAIL_TAIL] > 20, "%u of 30 refused for the tail", cls[HT_FAIL_TAIL]);
}

T_CASE(evidence, classes)
{
    fx f;
    fx_init(&f);
    f.gain_ppm = 1000000; /* identical arms */
    expect_class(&f, HT_FAIL_PERF, HT_GATE_PERF, "TOO_SLOW");
    fx_init(&f);
    f.gain_ppm = 800000;
    expect_class(&f, HT_FAIL_PERF, HT_GATE_PERF, "TOO_SLOW");
    fx_init(&f);
    f.gain_ppm = 1031000;
    f.jitter_ppm = 6000;
    expect_class(&f, HT_INCONCLUSIVE_STATS, HT_GATE_PERF, "UNDECIDED");
    fx_init(&f);
    f.null_gain_ppm = 1020000; /* the harness sees a difference where there is none */
    expect_class(&f, HT_INCONCLUSIVE_ENV, HT_GATE_NULL_RUN, "NOT_ONE");
    fx_init(&f);
    f.jitter_ppm = 60000;
    expect_class(&f, HT_INCONCLUSIVE_ENV, HT_GATE_NULL_RUN, "TOO_WIDE");
    fx_init(&f);
    f.wrong_output = true; /* fast and wrong: the poisoned model */
    expect_class(&f, HT_FAIL_QUALITY, HT_GATE_QUALITY, "EXACT_TOKENS");
    fx_init(&f);
    f.no_edges_prompts = true;
    expect_class(&f, HT_INCONCLUSIVE_STATS, HT_GATE_COVERAGE, "BUCKET_EDGES");
    fx_init(&f);
    f.policy = "";
    f.policy = fx_swap(&f, fx_policy(&f), "\"mayNotApply\":[\"tail\"]", "\"mayNotApply\":[]");
    expect_class(&f, HT_INCONCLUSIVE_STATS, HT_GATE_TAIL, "TOO_FEW");
}

T_CASE(evidence, failures_are_scored)
{
    fx f;
    fx_init(
        &f); /* block 4 is the first of arms A and B; seed 7: BAAB, so slot 1 is the candidate */
    f.fail_block = 4;
    f.fail_slot = 1; /* the worst rank: the interval reaches down to nothing */
    expect_class(&f, HT_INCONCLUSIVE_STATS, HT_GATE_PERF, "UNDECIDED");
    fx_init(&f);
    f.fail_block = 4;
    f.fail_slot = 2; /* the reference */
    expect_class(&f, HT_INVALID_EVIDENCE, HT_GATE_COMPLETE, "REFERENCE_FAILED");
    fx_init(&f);
    f.fail_block = 0;
    f.fail_slot = 1;
    expect_class(&f, HT_INCONCLUSIVE_ENV, HT_GATE_NULL_RUN, "REFERENCE_FAILED");
}

T_CASE(evidence, environment)
{
    fx f;
    fx_init(&f); /* both tries of a block void: a pair is missing, and two voids are too many */
    f.void_block = 5;
    f.void_tries = 2;
    expect_class(&f, HT_NOT_ADMISSIBLE_ENV, HT_GATE_VOIDS, "VOID_acOnline");
    fx_init(&f);
    f.guards =
        "{\"acOnline\":{\"known\":false,\"reason\":\"NO_SYSFS\"},\"clocksSteady\":true,"
        "\"eccDelta\":0,"
        "\"foreignCpuPpm\":0,\"gpuEvents\":0,\"gpuProcs\":0,\"nrThrottledDelta\":0,\"psiPpm\":0,"
        "\"stealPpm\":0,\"suspendNs\":0,\"swapIns\":0,\"throttleDelta\":0}";
    expect_class(&f, HT_NOT_ADMISSIBLE_ENV, HT_GATE_ENVIRONMENT, "UNKNOWN_acOnline");
    /* A processor without a counter of thermal throttling (AMD): not admissible under the default
     * list of guards, and the verdict says for want of what. */
    fx_init(&f);
    f.guards = "{\"acOnline\":true,\"clocksSteady\":true,\"eccDelta\":0,\"foreignCpuPpm\":0,"
               "\"gpuEvents\":0,\"gpuProcs\":0,\"nrThrottledDelta\":0,\"psiPpm\":0,\"stealPpm\":0,"
               "\"suspendNs\":0,\"swapIns\":0,\"throttleDelta\":{\"known\":false,\"reason\":"
               "\"NO_COUNTER\"}}";
    expect_class(&f, HT_NOT_ADMISSIBLE_ENV, HT_GATE_ENVIRONMENT, "UNKNOWN_throttleDelta");
    fx_init(&f);
    f.machine = "{\"live\":{},\"record\":{},\"reject\":{\"arch\":{\"v\":\"x\"}},\"schema\":"
                "\"hetero/machine/1\",\"stale\":{\"vbios\":{\"unreadable\":\"EACCES\"}}}";
    expect_class(&f, HT_NOT_ADMISSIBLE_ENV, HT_GATE_ENVIRONMENT, "UNREADABLE_FIELD");
}

/* A better median with a worse tail: 96 requests, one pair of which takes three times as long. */
T_CASE_SECONDS(evidence, tail_regression, 120)
{
    for (int slow = 0; slow < 2; slow++) {
        fx f;
        fx_init(&f);
        f.requests = 12;
        f.cells = 1;
        f.policy = "";
        f.policy = fx_swap(&f, fx_policy(&f), "\"mayNotApply\":[\"tail\"]", "\"mayNotApply\":[]");
        if (slow) f.slow_pair = 12;
        expect_class(&f, slow ? HT_FAIL_TAIL : HT_QUALIFIED, HT_GATE_TAIL, slow ? "MISSES" : "OK");
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

typedef void mutation(fx *);
static void refuse(mutation *m, const char *says)
{
    fx f;
    ht_evidence v;
    ht_err e = {0};
    fx_init(&f);
    fx_build(&f);
    m(&f);
    T_CHECK(fx_read(&f, &v, &e) == HT_EFORMAT, "not refused for \"%s\": %s", says, e.msg);
    T_CHECK(strstr(e.msg, says), "\"%s\" lacks \"%s\"", e.msg, says);
    fx_done(&f);
}

/* Everything again from the design on: an edited design that was sealed from the start. */
static void rerun(fx *f)
{
    fx_run(f);
}

static void m_design_edited(fx *f)
{
    fx_edit(f, "design.json", "\"spacingNs\":0", "\"spacingNs\":1");
}
static void m_seed(fx *f)
{
    fx_edit(f, "design.json", "\"seed\":7", "\"seed\":8");
    rerun(f);
}
static void m_aaaa(fx *f)
{
    fx_edit(f, "design.json", "\"ABBA\"", "\"AAAA\"");
    rerun(f);
}
static void m_odd_pairs(fx *f)
{
    fx_edit(f, "design.json", "\"pairs\":8", "\"pairs\":10");
    rerun(f);
}
static void m_fewer_blocks(fx *f)
{
    fx_edit(f, "design.json", "\"pairs\":8", "\"pairs\":12");
    rerun(f);
}
static void m_policy(fx *f)
{
    fx_edit(f, "policy.json", "\"minPairs\":8", "\"minPairs\":12");
}
static void m_prompts(fx *f)
{
    fx_edit(f, "prompts.jsonl", "\"nPrompt\":129", "\"nPrompt\":130");
}
static void m_prompt_twice(fx *f)
{
    const char *id = "0/0/0", *other = "1/0/0";
    fx_edit(f, "prompts.jsonl", fx_sha(f, other, 5), fx_sha(f, id, 5));
    fx_edit(f, "design.json", "\"promptsSha256\":\"",
            fx_fmt(f, "\"promptsSha256\":\"%s\",\"x\":\"", fx_find(f, "prompts.jsonl")->sha256));
    const char *d = fx_find(f, "design.json")->data, *x = strstr(d, ",\"x\":\"");
    fx_text(f, "design.json", fx_fmt(f, "%.*s%s", (int)(x - d), d, x + 6 + 65));
    rerun(f);
}
static void m_unknown_member(fx *f)
{
    fx_edit(f, "design.json", "\"blocks\":", "\"bias\":1,\"blocks\":");
    rerun(f);
}
static void m_version(fx *f)
{
    fx_edit(f, "design.json", "hetero/design/1", "hetero/design/2");
    rerun(f);
}
static void m_ref_other_model(fx *f)
{
    fx_edit(f, "design.json", FX_SHA("1"), FX_SHA("9"));
    rerun(f);
}
static void m_pack(fx *f)
{
    fx_edit(f, "subject/modelpack.json", FX_SHA("1"), FX_SHA("9"));
}
static void m_tokenizer(fx *f)
{
    fx_edit(f, "subject/tokenizer.json", FX_SHA("2"), FX_SHA("9"));
}
static void m_template(fx *f)
{
    fx_edit(f, "subject/tokenizer.json", FX_SHA("3"), FX_SHA("9"));
}
static void m_binary(fx *f)
{
    fx_edit(f, "build/binary.json", FX_SHA("4"), FX_SHA("9"));
}
static void m_assets(fx *f)
{
    fx_edit(f, "subject/assets.json", "\"files\":[]",
            "\"files\":[{\"bytes\":1,\"path\":\"g.so\",\"sha256\":\"" FX_SHA("c") "\"}]");
}
static void m_machine_after(fx *f)
{
    fx_edit(f, "machine/after.json", "\"v\":8", "\"v\":4");
}
static void m_machine_state(fx *f)
{
    fx_edit(f, "machine/after.json", "0x1", "0x2");
}
static void m_machine_both(fx *f)
{
    fx_edit(f, "machine/after.json", "\"v\":8", "\"v\":4");
    fx_edit(f, "machine/before.json", "\"v\":8", "\"v\":4");
}

/* The last or the n-th line of a text left out. */
static void drop_line(fx *f, const char *path, size_t n)
{
    const ht_mfile *m = fx_find(f, path);
    const char *p = m->data;
    for (; n; n--) p = strchr(p, '\n') + 1;
    fx_text(f, path, fx_fmt(f, "%.*s%s", (int)(p - m->data), m->data, strchr(p, '\n') + 1));
}
static void m_journal_middle(fx *f)
{
    drop_line(f, "journal.jsonl", 5);
}
static void m_journal_first(fx *f)
{
    drop_line(f, "journal.jsonl", 0);
}
static void m_journal_last(fx *f)
{
    drop_line(f, "journal.jsonl", 4 * 3 * 8 + 1);
}
static void m_journal_cut(fx *f)
{
    ht_mfile *m = fx_find(f, "journal.jsonl");
    fx_put(f, m->path, m->data, m->bytes - 1);
}
static void m_sample_dropped(fx *f)
{
    drop_line(f, "samples.jsonl", 3);
}
static void m_sample_edited(fx *f)
{
    fx_edit(f, "samples.jsonl", "\"status\":\"ok\"", "\"status\":\"oom\"");
}
static void m_sample_swapped(fx *f)
{
    ht_mfile *m = fx_find(f, "samples.jsonl");
    const char *b = strchr(m->data, '\n') + 1, *c = strchr(b, '\n') + 1;
    fx_text(f, m->path, fx_fmt(f, "%.*s%.*s%s", (int)(c - b), b, (int)(b - m->data), m->data, c));
}

T_CASE_SECONDS(evidence, refusals, 180)
{
    static const struct {
        mutation *m;
        const char *says;
    } all[] = {
        {m_design_edited, "DESIGN: design.json is not what the journal sealed"},
        {m_seed, "the seed gives"},
        {m_aaaa, "order[5] must be one of"},
        {m_odd_pairs, "multiple of 4"},
        {m_fewer_blocks, "DESIGN: order has"},
        {m_policy, "DESIGN: sealed for policy"},
        {m_prompts, "DESIGN: prompts.jsonl is not what was sealed"},
        {m_prompt_twice, "is used by two requests"},
        {m_unknown_member, "unknown member bias"},
        {m_version, "schema is hetero/design/2"},
        {m_ref_other_model, "the reference has another model"},
        {m_pack, "another modelPackSha256"},
        {m_tokenizer, "another tokenizerSha256"},
        {m_template, "another templateSha256"},
        {m_binary, "another binarySha256"},
        {m_assets, "another assetsSha256"},
        {m_machine_after, "MACHINE: the machine changed"},
        {m_machine_state, "MACHINE: the machine changed"},
        {m_machine_both, "for another machine"},
        {m_journal_middle, "chain breaks"},
        {m_journal_first, "chain breaks"},
        {m_journal_last, "\"close\" last"},
        {m_journal_cut, "cut off"},
        {m_sample_dropped, "SAMPLE"},
        {m_sample_edited, "SAMPLE"},
        {m_sample_swapped, "SAMPLE"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) refuse(all[i].m, all[i].says);
}

/* Sample lines edited and the journal's digest of them mended: rules of the lines themselves. */
static void relog(fx *f, const char *from, const char *to)
{
    ht_mfile *m = fx_find(f, "samples.jsonl"), *j = fx_find(f, "journal.jsonl");
    const char *text = fx_swap(f, m->data, from, to), *p = j->data, *at = text;
    fx_text(f, "samples.jsonl", text);
    ht_buf b;
    char prev[HT_SHA256_HEX] = FX_SHA("0");
    ht_buf_init(&b, 0);
    for (size_t len; *p; p += len + 1) {
        len = strcspn(p, "\n");
        char *line = fx_fmt(f, "%.*s", (int)len, p), *lines = strstr(line, "\"lines\":");
        memcpy(strstr(line, "\"prev\":\"") + 8, prev, 64);
        if (lines) {
            const char *end = at;
            for (unsigned long n = strtoul(lines + 8, NULL, 10); n; n--)
                end = strchr(end, '\n') + 1;
            memcpy(strstr(line, "\"sha256\":\"") + 10, fx_sha(f, at, (size_t)(end - at)), 64);
            at = end;
        }
        memcpy(prev, fx_sha(f, line, len), 65);
        ht_buf_fmt(&b, "%s\n", line);
    }
    fx_put(f, "journal.jsonl", fx_fmt(f, "%s", b.p), b.n);
    ht_buf_done(&b);
}

T_CASE_SECONDS(evidence, sample_lines, 180)
{
    static const struct {
        const char *from, *to, *says;
    } all[] = {
        {"\"sendLagNs\":1200", "\"sendLagNs\":1300",
         ""}, /* allowed: the twin of the mending itself */
        {"\"acOnline\":true", "\"acOnline\":false", "does not follow from the guards"},
        {"\"stealPpm\":0", "\"stealPpm\":2000", "does not follow from the guards"},
        {"\"status\":\"ok\"", "\"status\":\"voidGuard\"", "does not follow from the guards"},
        {"\"status\":\"ok\"", "\"status\":\"harnessError\"", "does not follow from the guards"},
        {"\"voidReason\":null", "\"voidReason\":\"AC\"", "does not follow from the guards"},
        {"\"status\":\"ok\"", "\"status\":\"timeout\"", "is not what the chunks give"},
        {"\"status\":\"ok\"", "\"status\":\"OK\"", "one of the listed words"},
        {"\"ttftNs\":", "\"ttftNs\":1", "ttftNs is not what the chunks give"},
        {"\"tpotNs\":", "\"tpotNs\":1", "tpotNs is not what the chunks give"},
        {"\"e2eNs\":", "\"e2eNs\":1", "e2eNs is not what the chunks give"},
        {"\"e2eNs\":", "\"e2eNs\":-", "integer in range"},
        {"\"endState\":\"DONE\"", "\"endState\":\"EOF_EARLY\"", "the sample says EOF_EARLY"},
        {"\"nOut\":4", "\"nOut\":5", "other tokens"},
        {"\"nPrompt\":129", "\"nPrompt\":128", "not the sealed prompt"},
        {"\"pairId\":0", "\"pairId\":1", "not the one the design has"},
        {"\"arm\":\"M\"", "\"arm\":\"N\"", "not the one the design has"},
        {"\"bucket\":\"d512\"", "\"bucket\":\"p512\"", "not the one the design has"},
        {"\"attempt\":1", "\"attempt\":2", "not the one the design has"},
        {"\"sendLagNs\":1200", "\"sendLagNs\":999999999", "before the request was sent"},
        {"\"chunksSha256\":\"", "\"chunksSha256\":\"" FX_SHA("d") "\",\"e\":\"",
         "unknown member e"},
        {"\"receiptSha256\":{\"known\":false,\"reason\":\"NONE\"}",
         "\"receiptSha256\":\"" FX_SHA("d") "\"", "no /receipts.jsonl"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fx f;
        ht_evidence v;
        ht_err e = {0};
        fx_init(&f);
        fx_build(&f);
        relog(&f, all[i].from, all[i].to);
        int rc = fx_read(&f, &v, &e);
        if (!*all[i].says) T_OK(rc, e);
        else
            T_CHECK(rc == HT_EFORMAT && strstr(e.msg, all[i].says), "%s -> %s: %d \"%s\"",
                    all[i].from, all[i].to, rc, e.msg);
        fx_done(&f);
    }
}

/* Design 25: the streams of one pair handed in as another. */
T_CASE(evidence, copied_pair)
{
    fx f;
    ht_evidence v;
    ht_err e = {0};
    fx_init(&f);
    f.copy_pair = true;
    fx_build(&f);
    T_CHECK(fx_read(&f, &v, &e) == HT_EFORMAT, "a copied pair is read");
    T_CHECK(strstr(e.msg, "SAMPLE"), "%s", e.msg);
    fx_done(&f);
}

/* Bytes 6, 7 and Time 33: chunk lists that do not describe a stream. The first request's chunks are
 * replaced, with its digest mended in the sample line. */
T_CASE_SECONDS(evidence, chunk_streams, 180)
{
    static const char path[] = "raw/b00/s1-M/a1/d512-0/chunks.jsonl";
    static const struct {
        const char *from, *to, *says;
    } all[] = {
        {"{\"end\":\"DONE\"}\n", "", "cut off"},
        {"{\"end\":\"DONE\"}\n", "{\"end\":\"DONE\"}", "cut off"},
        {"{\"end\":\"DONE\"}\n", "{\"end\":\"EOF_EARLY\"}\n", "the sample says DONE"},
        {"{\"end\":\"DONE\"}\n", "{\"end\":\"DONE\"}\n{\"end\":\"DONE\"}\n",
         "a line after the end"},
        {"\"off\":2", "\"off\":3", "not where it should be"},
        {"\"i\":2", "\"i\":3", "not where it should be"},
        {"\"len\":2,\"off\":6", "\"len\":3,\"off\":6", "the response has 8"},
        {"\"tok\":[4]", "\"tok\":[5]", "other tokens"},
        {"\"tok\":[4]", "\"tok\":[4,4]", "other tokens"},
        {"\"tok\":[1]", "\"tok\":[-1]", "integer in range"},
        {"\"i\":1,\"len\":2,\"off\":2,\"tNs\":", "\"i\":1,\"len\":2,\"off\":2,\"tNs\":9",
         "runs backwards"},
        {"{\"i\":0", "{\"a\":1,\"i\":0", "unknown member a"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fx f;
        ht_evidence v;
        ht_err e = {0};
        fx_init(&f);
        fx_build(&f);
        char old[HT_SHA256_HEX];
        memcpy(old, fx_find(&f, path)->sha256, sizeof old);
        fx_edit(&f, path, all[i].from, all[i].to);
        relog(&f, old, fx_find(&f, path)->sha256);
        T_CHECK(fx_read(&f, &v, &e) == HT_EFORMAT && strstr(e.msg, all[i].says), "%s -> %s: \"%s\"",
                all[i].from, all[i].to, e.msg);
        fx_done(&f);
    }
}

/* Bytes 6: the stream cut at every byte is never a whole one. */
T_CASE_SECONDS(evidence, chunks_cut_anywhere, 120)
{
    static const char path[] = "raw/b00/s1-M/a1/d512-0/chunks.jsonl";
    fx f;
    fx_init(&f);
    fx_build(&f);
    ht_mfile *m = fx_find(&f, path);
    size_t whole = m->bytes;
    const char *text = m->data;
    char old[HT_SHA256_HEX];
    memcpy(old, m->sha256, sizeof old);
    const char *journal = fx_find(&f, "journal.jsonl")->data,
               *samples = fx_find(&f, "samples.jsonl")->data;
    for (size_t n = 0; n < whole; n += 7) {
        ht_evidence v;
        ht_err e = {0};
        fx_put(&f, path, fx_fmt(&f, "%.*s", (int)n, text), n);
        fx_text(&f, "journal.jsonl", journal);
        fx_text(&f, "samples.jsonl", samples);
        relog(&f, old, fx_find(&f, path)->sha256);
        T_CHECK(fx_read(&f, &v, &e) == HT_EFORMAT, "a stream of %zu bytes of %zu passes", n, whole);
    }
    fx_done(&f);
}

/* Gate lists that pass without having been run (evidence.md 8, Trust 40). */
T_CASE(evidence, gate_lists)
{
    uint8_t g[HT_GATES] = {0};
    T_TRUE(ht_gates_pass(g, HT_GATES, 0));
    T_TRUE(!ht_gates_pass(g, 0, 0));
    T_TRUE(!ht_gates_pass(g, HT_GATES - 1, 0));
    for (unsigned i = 0; i < HT_GATES; i++) {
        for (unsigned r = HT_FAILED; r < HT_GATE_RESULTS; r++) {
            g[i] = (uint8_t)r;
            T_CHECK(!ht_gates_pass(g, HT_GATES, 0), "gate %u with %s passes", i,
                    ht_gate_result_names[r]);
        }
        T_TRUE(ht_gates_pass(g, HT_GATES, 1u << i)); /* last: not applicable, and allowed */
        T_TRUE(!ht_gates_pass(g, HT_GATES, ~(1u << i)));
        g[i] = HT_PASS;
    }
}
