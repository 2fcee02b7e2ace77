/* report.c - pages of bundles, records and simulations: what they must say, that they escape, and
 * that equal documents give equal bytes. That a page is well-formed is checked by
 * tests/e2e/report.py with a parser of its own. */
#include "report/report.h"
#include "unit/evid/fixture.h"

static ht_buf html;

static const char *page_of(const char *dir)
{
    ht_err e = {0};
    ht_buf_init(&html, 0);
    T_OK(ht_report_bundle(dir, &html, &e), e);
    return html.p;
}

/* A sealed bundle of a fixture in a folder of this case's own. */
static const char *bundle(fx *f)
{
    static char dir[600];
    ht_err e = {0};
    char id[HT_SHA256_HEX];
    ht_key *k = fx_key(1);
    fx_build(f);
    ht_bundle_file *list = ht_arena_array(f->a, f->n, sizeof *list);
    T_CHECK(list, "no memory");
    for (size_t i = 0; i < f->n; i++)
        list[i] = (ht_bundle_file){f->file[i].path, f->file[i].data, f->file[i].bytes};
    snprintf(dir, sizeof dir, "%s/bundle", t_tmp());
    T_OK(ht_bundle_write(dir, list, f->n, k, id, &e), e);
    ht_key_free(k);
    return dir;
}

static void has(const char *text)
{
    T_SOFT(strstr(html.p, text), "the page does not say \"%s\"", text);
}

static void lacks(const char *text)
{
    T_SOFT(!strstr(html.p, text), "the page says \"%s\"", text);
}

static size_t count(const char *text)
{
    size_t n = 0;
    for (const char *p = html.p; (p = strstr(p, text)); p++) n++;
    return n;
}

T_CASE(report, bundle_says_what_it_must)
{
    fx f;
    fx_init(&f);
    f.void_block = 2;
    f.void_tries = 1;
    page_of(bundle(&f));
    has("Verdict: <strong>QUALIFIED</strong>");
    has("Hardware evidence: <strong>no</strong>");
    has("This bundle is synthetic");
    has("d512: gate tail: NOT_APPLICABLE (TOO_FEW)");
    has("arch synthetic-test-host");
    has("sha256 1111111111111111");
    has("weights f16, activations f32, accumulation f32, KV f16");
    has("a fresh process for each slot");
    has("8 pairs in blocks of ABBA_BAAB, 8 pairs of the null run");
    has("exact on the corpus: 1 of 1 prompts");
    has("cpu;threads=2");
    has("prefill, 129 to 512 tokens, judged by ttftNs");
    has("decode, 129 to 512 tokens, judged by tpotNs");
    has("of 8 pairs 8 won, 0 tied, 0 lost");
    has("It verified no signature");
    lacks("<script");
    lacks("http://w3"); /* no address but the two name spaces */
    T_EQ_INT(count("://"), 1);
    T_EQ_INT(count("<h2>Cell "), 2);
    T_EQ_INT(count("<svg "), 2 * 2 + 2); /* pairs and latency a cell, phases, guards */
    T_EQ_INT(count("<h1>"), 1);
    /* 8 blocks of 4 slots, 2 cells, and the slots of the block that was run again. */
    T_CHECK(count("attempt 2: ok") == 8 && count("attempt 1: voidGuard") >= 1, "attempts: %zu, %zu",
            count("attempt 2: ok"), count("attempt 1: voidGuard"));
    ht_buf_done(&html);
    fx_done(&f);
}

T_CASE(report, failed_gates_come_first)
{
    fx f;
    fx_init(&f);
    f.gain_ppm = 900000;
    f.wrong_output = true;
    page_of(bundle(&f));
    const char *gate = strstr(html.p, "gate quality: FAIL"), *plot = strstr(html.p, "<svg ");
    T_CHECK(gate && plot && gate < plot, "the failed gate does not stand before the drawings");
    has("p512: gate perf: FAIL");
    has("approximate: 0 of 1 prompts");
    has(">FAIL_QUALITY<");
    lacks("Verdict: <strong>QUALIFIED");
    T_CHECK(strstr(html.p, "class=\"fail\">FAIL</td>"), "a failed gate is not marked");
    ht_buf_done(&html);
    fx_done(&f);
}

T_CASE(report, equal_bundles_give_equal_pages)
{
    fx f;
    ht_err e = {0};
    ht_buf again;
    fx_init(&f);
    const char *dir = bundle(&f);
    page_of(dir);
    ht_buf_init(&again, 0);
    T_OK(ht_report_bundle(dir, &again, &e), e);
    T_EQ_INT(again.n, html.n);
    T_EQ_MEM(again.p, html.p, html.n);
    ht_buf_done(&again);
    ht_buf_done(&html);
    fx_done(&f);
}

static void put(const char *dir, const char *path, const char *text)
{
    char full[800];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    t_spit(full, text, strlen(text));
}

T_CASE(report, other_documents_are_refused)
{
    static const struct {
        const char *path, *text, *message;
    } bad[] = {
        {"verdict.json", "{\"schema\":\"hetero/sim/1\"}", "UNKNOWN_TYPE: verdict.json"},
        {"verdict.json", "{\"schema\":1}", "UNKNOWN_TYPE: verdict.json"},
        {"verdict.json", "{ }", "canonical"},
        {"design.json", "{\"cells\":[],\"schema\":\"hetero/design/1\"}", "no cells"},
        {"samples.jsonl", "{}\n", "samples.jsonl line 1"},
        {"samples.jsonl", "{\"schema\":\"hetero/sample/1\"}", "cut off"},
        {"samples.jsonl", "{\"block\":5000,\"schema\":\"hetero/sample/1\"}\n", "block 5000"},
    };
    fx f;
    ht_err e = {0};
    fx_init(&f);
    const char *dir = bundle(&f);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char full[800];
        size_t n;
        snprintf(full, sizeof full, "%s/%s", dir, bad[i].path);
        char *good = t_slurp(full, &n);
        put(dir, bad[i].path, bad[i].text);
        ht_buf_init(&html, 0);
        T_ERR(ht_report_bundle(dir, &html, &e), HT_EFORMAT, e, bad[i].message);
        ht_buf_done(&html);
        t_spit(full, good, n);
        free(good);
    }
    page_of(dir); /* and the twin that was not touched */
    ht_buf_done(&html);
    ht_buf_init(&html, 0);
    T_ERR(ht_report_bundle("/nonexistent", &html, &e), HT_EIO, e, "nonexistent");
    ht_buf_done(&html);
    fx_done(&f);
}

/* Documents of the right schema that hold nothing, or the wrong types: a page, no crash. */
T_CASE(report, hollow_documents)
{
    static const char *const path[] = {"verdict.json",        "costmap.json",
                                       "analysis/pairs.json", "analysis/stats.json",
                                       "analysis/tails.json", "analysis/quality.json",
                                       "machine/before.json", "subject/modelpack.json"};
    static const char *const schema[] = {"verdict", "costmap", "pairs",   "stats",
                                         "tails",   "quality", "machine", "modelpack"};
    fx f;
    fx_init(&f);
    const char *dir = bundle(&f);
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
        put(dir, path[i], fx_fmt(&f, "{\"schema\":\"hetero/%s/1\"}", schema[i]));
        page_of(dir);
        T_CHECK(strstr(html.p, "</html>"), "%s", path[i]);
        ht_buf_done(&html);
        put(dir, path[i],
            fx_fmt(
                &f,
                "{\"cells\":[[],7,{\"gates\":[1],\"id\":\"p512\",\"pairs\":[1,{\"ratioPpm\":"
                "9007199254740991}]}],\"counts\":[],\"edges\":[1],\"entries\":[2],\"files\":[3],"
                "\"negatives\":[4],\"record\":[5],\"reject\":{\"a\":1},\"schema\":\"hetero/%s/1\"}",
                schema[i]));
        page_of(dir);
        T_CHECK(strstr(html.p, "</html>"), "%s", path[i]);
        ht_buf_done(&html);
    }
    fx_done(&f);
}

/* ---- one document --------------------------------------------------------------------------- */

static int file(const char *text, ht_err *e)
{
    ht_buf_init(&html, 0);
    return ht_report_file(text, strlen(text), "a<b>.json", &html, e);
}

static const char *const record =
    "{\"schema\":\"hetero/bench/"
    "1\",\"utc\":\"2026-11-29T12:00:00Z\",\"threads\":2,\"loadBefore\":[1.5,2,3],"
    "\"machine\":{\"model\":\"CPU <script>alert(1)</script> & "
    "\\\"X\\\"\",\"isa\":[\"avx2\"],\"cpus\":2,"
    "\"kernel\":\"6.1\"},\"cells\":[{\"type\":\"q8_0\",\"cell\":\"tg32@32\",\"samples\":{\"hetero "
    "q8\":[30.5,31,31.5],\"llama.cpp\":[20,21,22],\"hetero odd\":[1e300,\"x\",null]},\"facts\":{},"
    "\"failed\":{\"ik "
    "-rtr\":\"exit 1 \\u202e \\u0007\"}}]}";

T_CASE(report, benchmark_of_record)
{
    ht_err e = {0};
    T_OK(file(record, &e), e);
    has("CPU &lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;X&quot;");
    has("q8_0, tg32@32");
    has(">1.48</td>"); /* 31 / 21 */
    has("ik -rtr: exit 1 \xEF\xBF\xBD \xEF\xBF\xBD");
    has("beyond 10^12");
    has("3 a system and cell");
    has("no gate was applied");
    has("not judged by this record");
    has("a&lt;b&gt;.json");
    lacks("<script");
    ht_buf_done(&html);
}

T_CASE(report, one_bench)
{
    ht_err e = {0};
    T_OK(file("{\"rows\":[{\"test\":\"pp8\",\"ts\":100.5,\"sd\":1,\"n\":2,\"engine\":\"cpu\","
              "\"readPercent\":null,\"fmaPercent\":101.5,\"sustained\":{\"percent\":88.25},"
              "\"impossible\":true,\"samples\":[99.5,101.5]}],"
              "\"machine\":{\"threads\":2},\"reference\":{\"checks\":[{\"name\":\"x\",\"ok\":false}"
              "]},"
              "\"engine\":{\"cpu\":\"C\",\"act\":\"q8\",\"model\":{\"path\":\"m.gguf\"}}}",
              &e),
         e);
    has("a measurement is wrong");
    has("x: FAILED");
    has("m.gguf");
    has("arithmetic q8");
    has("100.50");
    has("88.3"); /* of what was sustained */
    ht_buf_done(&html);
}

static const char *const sim =
    "{\"caveat\":\"only "
    "<assumed>\",\"derived\":{\"nodes\":144},\"hardwareEvidence\":false,\"id\":\"sim-00\","
    "\"inputs\":{\"draws\":3},\"kind\":\"dag\",\"productionEligible\":false,\"results\":{"
    "\"makespanNs\":{"
    "\"max\":9,\"mean\":5,\"median\":5,\"min\":1,\"n\":3,\"p25\":2,\"p75\":7,\"p95\":9}},"
    "\"schema\":"
    "\"hetero/sim/1\",\"seed\":7}";

T_CASE(report, a_simulation_stands_apart)
{
    ht_err e = {0};
    T_OK(file(sim, &e), e);
    has("<p class=\"banner\">SIMULATION. Nothing on this page was measured.");
    has("<body class=\"simulated\">");
    has("only &lt;assumed&gt;");
    has("Simulated: makespanNs");
    T_CHECK(strstr(html.p, "class=\"banner\"") < strstr(html.p, "<svg "), "the banner comes late");
    lacks("Verdict");
    ht_buf_done(&html);
    T_OK(file(record, &e), e);
    lacks("class=\"simulated\"");
    lacks("SIMULATION");
    ht_buf_done(&html);
}

T_CASE(report, forged_or_unknown_documents)
{
    static const struct {
        const char *from, *to;
    } forged[] = {{"\"hardwareEvidence\":false", "\"hardwareEvidence\":true"},
                  {"\"productionEligible\":false", "\"productionEligible\":true"},
                  {"\"hardwareEvidence\":false,", ""},
                  {"\"sim-00\"", "\"00\""},
                  {"hetero/sim/1", "hetero/simulation/1"},
                  {"hetero/sim/1", "hetero/verdict/1"},
                  {"\"results\":{", "\"result\":{"}};
    fx f;
    ht_err e = {0};
    fx_init(&f);
    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        T_CHECK(file(fx_swap(&f, sim, forged[i].from, forged[i].to), &e) == HT_EFORMAT,
                "%s passes: %s", forged[i].to, e.msg);
        T_CHECK(i == 6 || strstr(e.msg, "UNKNOWN_TYPE"), "%s", e.msg);
        T_EQ_INT(html.n, 0);
        ht_buf_done(&html);
    }
    T_ERR(file("[]", &e), HT_EFORMAT, e, "UNKNOWN_TYPE");
    T_ERR(file("{\"schema\":\"hetero/bench/1\"}", &e), HT_EFORMAT, e, "without cells");
    T_ERR(file("{\"schema\":\"hetero/bench/1\",", &e), HT_EFORMAT, e, "line 1");
    fx_done(&f);
}

T_CASE(report, every_allocation_may_fail)
{
    const char *const doc[2] = {record, sim};
    for (int k = 0; k < 2; k++)
        for (uint64_t n = 1;; n++) {
            ht_err e = {0};
            uint64_t live = ht_alloc_live();
            ht_alloc_fail_at(n);
            int rc = file(doc[k], &e);
            ht_alloc_fail_at(0);
            ht_buf_done(&html);
            T_EQ_INT(ht_alloc_live(), live);
            if (rc == 0) break;
            T_CHECK(rc == HT_ENOMEM && n < 1000, "allocation %llu: %d %s", (unsigned long long)n,
                    rc, e.msg);
        }
}
