/* harness.c - whole experiments on a made-up clock: what the harness writes is what the bundle's
 * reader takes; voids, retries, failures and guards end as evidence.md 3 and 7 say. */
#include "evid/harness.h"
#include "fixture.h"
#include <unistd.h>

typedef struct { /* a machine and a program that exist only here                 */
    uint64_t now;
    const char *machine;
    uint32_t cand_ppm; /* of the reference's time                                     */
    uint32_t slots, red_slot, red_count, fail_slot, broken_slot, cancel_slot;
    char fail_arm;
    bool no_clocks, short_output, stall;
    uint32_t unplugged; /* in this slot the mains were off for a second           */
    ht_telemetry second[3];
    const char *selection, *const *used;
} world;

static uint64_t w_now(void *user)
{
    return ((world *)user)->now;
}

static void w_rest(void *user, uint64_t ns)
{
    ((world *)user)->now += ns;
}

static void w_counters(void *user, ht_telemetry *t)
{
    world *w = user;
    int64_t ticks = (int64_t)(w->now / 10000000);
    *t = (ht_telemetry){.mono_ns = w->now,
                        .boot_ns = w->now,
                        .cpu_total = 8 * ticks,
                        .cpu_busy = ticks,
                        .ticks_per_s = 100,
                        .own_ns = w->now,
                        .ac_online = 1,
                        .has_clocks = !w->no_clocks};
    uint32_t red = w->slots > w->red_slot ? w->slots - w->red_slot : 0;
    t->swap_ins = red < w->red_count ? red : w->red_count;
}

/* Three seconds of every slot; between its first and its last counters all is well again. */
static size_t w_seconds(void *user, const ht_telemetry **list)
{
    world *w = user;
    for (int i = 0; i < 3; i++) w_counters(w, &w->second[i]);
    if (w->slots == w->unplugged) w->second[1].ac_online = 0;
    *list = w->second;
    return 3;
}

static int w_machine(void *user, ht_arena *a, ht_json **doc, ht_err *e)
{
    const char *m = ((world *)user)->machine;
    return ht_json_parse(a, m, strlen(m), HT_JSON_CANON, "machine", doc, e);
}

static void answer(world *w, ht_arena *a, char arm, uint32_t noise, const ht_bench_request *q,
                   ht_bench_answer *x)
{
    uint64_t token = 2000000 + (noise * 7919u % 1000), prefill = q->n_prompt * (uint64_t)10000;
    if (arm == 'B') {
        token = token * w->cand_ppm / 1000000;
        prefill = prefill * w->cand_ppm / 1000000;
    }
    ht_bench_chunk *c = ht_arena_array(a, q->max_new, sizeof *c);
    int32_t *ids = ht_arena_array(a, q->max_new, sizeof *ids);
    char *text = ht_arena_alloc(a, q->max_new + 1);
    x->intended_ns = w->now;
    x->sent_ns = w->now + 100;
    w->now += prefill + noise % 97;
    for (uint32_t i = 0; i < q->max_new; i++) {
        w->now += token;
        ids[i] = (int32_t)(q->prompt[0] + (int32_t)i);
        text[i] = 'a';
        c[i] = (ht_bench_chunk){w->now, 1, 1, &ids[i]};
    }
    x->chunk = c;
    x->n_chunks = q->max_new;
    x->response = text;
    x->n_response = q->max_new;
    x->end = "LENGTH_MET";
    x->receipt = "{\"executed\":\"cpu\"}";
}

static int w_slot(void *user, char arm, const ht_bench_request *q, size_t n, ht_arena *a,
                  ht_bench_slot *out, ht_err *e)
{
    world *w = user;
    uint32_t slot = w->slots++;
    if (slot + 1 == w->broken_slot) return HT_FAIL(e, HT_EIO, "no process could be started");
    *out = (ht_bench_slot){.answer = ht_arena_array(a, n, sizeof *out->answer),
                           .peak_bytes = 1000,
                           .warmup_ns = 5,
                           .diagnostics = "loaded\n"};
    for (size_t k = 0; k < n; k++) {
        ht_bench_answer *x = &out->answer[k];
        answer(w, a, arm, slot * 13 + (uint32_t)k, &q[k], x);
        if (slot + 1 == w->fail_slot || (w->fail_arm == arm && slot > 20 && k == 0)) {
            x->end = "RESET";
            x->status = HT_SM_SUT_ERROR;
        }
        if (w->short_output && arm == 'B') x->n_chunks = x->n_response = 0;
        if (w->stall && arm == 'B') ((ht_bench_chunk *)(uintptr_t)x->chunk)[0].t_ns = 1;
    }
    return 0;
}

static bool w_cancelled(void *user)
{
    const world *w = user;
    return w->cancel_slot && w->slots >= w->cancel_slot;
}

/* A fixture machine in the closed form of env.h. */
static const char *machine_doc(fx *f)
{
    ht_json *doc, *part;
    ht_err e = {0};
    ht_buf b;
    const ht_machine_source src = {.root = "/nowhere"};
    T_OK(ht_machine_read(f->a, &src, &doc, &e), e);
    for (int p = 0; p < HT_MP_PARTS; p++) {
        part = (ht_json *)(uintptr_t)ht_json_get(doc, ht_machine_part_names[p]);
        T_CHECK(part->n > 0, "empty part");
    }
    ht_buf_init(&b, 0);
    T_OK(ht_json_write(doc, HT_JSON_CANON, &b, &e), e);
    char *text = fx_fmt(f, "%s", b.p);
    ht_buf_done(&b);
    return text;
}

static world ordinary(void)
{
    return (world){.now = 1000000000, .cand_ppm = 900000};
}

static int run(fx *f, world *w, const char *policy, const char *dir, ht_err *e)
{
    static ht_bundle_file extra[64];
    static ht_cell cell[2];
    size_t n = 0;
    w->machine = f->machine = machine_doc(f);
    fx_build(f);
    for (size_t i = 0; i < f->n; i++) {
        const char *p = f->file[i].path;
        if (strncmp(p, "subject/", 8) == 0 || strncmp(p, "build/", 6) == 0 ||
            strncmp(p, "quality/", 8) == 0)
            extra[n++] = (ht_bundle_file){p, f->file[i].data, f->file[i].bytes};
    }
    for (uint32_t c = 0; c < 2; c++) {
        cell[c] = (ht_cell){.id = fx_cell_id(c),
                            .metric = c ? HT_M_TTFT : HT_M_TPOT,
                            .scope = f->scope[c],
                            .ref = f->scope[c]};
        cell[c].ref.backend = "cpu";
    }
    const ht_bench_plan plan = {.cell = cell,
                                .n_cells = 2,
                                .pairs = 8,
                                .null_pairs = 8,
                                .requests = 1,
                                .warmups = 1,
                                .cpus = 8,
                                .n_vocab = 4000,
                                .seed = 3,
                                .gap_ns = 1000000,
                                .synthetic = true,
                                .started_unix = FX_NOW,
                                .policy = policy,
                                .n_policy = strlen(policy),
                                .selection = w->selection,
                                .used = w->used,
                                .n_used = w->used ? 1 : 0,
                                .extra = extra,
                                .n_extra = n};
    const ht_bench_ops ops = {.user = w,
                              .now_ns = w_now,
                              .rest = w_rest,
                              .counters = w_counters,
                              .machine = w_machine,
                              .slot = w_slot,
                              .seconds = w_seconds,
                              .cancelled = w_cancelled};
    return ht_bench_run(&plan, &ops, dir, e);
}

/* Run, seal, and give the class of the verdict. */
static const char *verdict(world *w, const char *policy)
{
    static char cls[64];
    static unsigned count;
    char dir[300], path[400], id[HT_SHA256_HEX];
    size_t n;
    fx f;
    ht_err e = {0};
    ht_json *doc;
    ht_key *k = fx_key(1);
    fx_init(&f);
    snprintf(dir, sizeof dir, "%s/run%u", t_tmp(), count++);
    T_OK(run(&f, w, policy ? policy : fx_policy(&f), dir, &e), e);
    T_OK(ht_bundle_seal(dir, k, id, &e), e);
    snprintf(path, sizeof path, "%s/verdict.json", dir);
    char *text = t_slurp(path, &n);
    T_OK(ht_json_parse(f.a, text, n, HT_JSON_CANON, "verdict", &doc, &e), e);
    snprintf(cls, sizeof cls, "%s", ht_json_get(doc, "class")->s);
    ht_key_free(k);
    free(text);
    fx_done(&f);
    return cls;
}

T_CASE_SECONDS(harness, a_gain_is_found, 120)
{
    world w = ordinary();
    T_EQ_STR(verdict(&w, NULL), "QUALIFIED");
    T_EQ_INT(w.slots, 32);
}

T_CASE_SECONDS(harness, no_gain_is_refused, 120)
{
    world w = ordinary();
    w.cand_ppm = 1000000;
    T_EQ_STR(verdict(&w, NULL), "FAIL_PERF");
}

/* A block with a red guard is run again whole, and both attempts are in the bundle. */
T_CASE_SECONDS(harness, void_block_is_retried, 120)
{
    world w = ordinary();
    w.red_slot = 22;
    w.red_count = 1;
    T_EQ_STR(verdict(&w, NULL), "QUALIFIED");
    T_CHECK(w.slots > 32 && w.slots <= 36, "%u slots", w.slots);
}

/* evidence.md 3.7: what happened between the counters around a slot is seen by those inside it, and
 * they are in the bundle. */
T_CASE_SECONDS(harness, a_second_inside_a_slot, 120)
{
    world w = ordinary();
    w.unplugged = 22;
    T_EQ_STR(verdict(&w, NULL), "QUALIFIED");
    T_CHECK(w.slots > 32 && w.slots <= 36, "%u slots: the block was not run again", w.slots);
    char path[400];
    size_t n, lines = 0;
    snprintf(path, sizeof path, "%s/run0/machine/telemetry.jsonl", t_tmp());
    char *text = t_slurp(path, &n);
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    T_EQ_INT(lines, w.slots * 5);
    free(text);
}

/* Selection and confirmation share no sample (evidence.md 3.2): the bundle that a candidate was
 * chosen by is named in the sealed design, and its prompts are refused. */
T_CASE_SECONDS(harness, selection_apart_from_confirmation, 120)
{
    static const char other[] = FX_SHA("c");
    const char *const list[1] = {other};
    char dir[300], path[400];
    fx f;
    ht_err e = {0};
    world w = ordinary();
    fx_init(&f);
    w.selection = other;
    w.used = list;
    snprintf(dir, sizeof dir, "%s/fresh", t_tmp());
    T_OK(run(&f, &w, fx_policy(&f), dir, &e), e);
    size_t n;
    ht_json *j;
    snprintf(path, sizeof path, "%s/design.json", dir);
    char *text = t_slurp(path, &n);
    T_OK(ht_json_parse(f.a, text, n, HT_JSON_CANON, path, &j, &e), e);
    T_EQ_STR(ht_json_get(j, "selectionBundle")->s, other);
    free(text);
    snprintf(path, sizeof path, "%s/prompts.jsonl", dir);
    text = t_slurp(path, &n);
    const char *at = strstr(text, "\"promptTokSha256\":\"");
    T_CHECK(at, "no prompt");
    const char *used[1] = {fx_fmt(&f, "%.64s", at + 19)};
    free(text);
    w = ordinary();
    w.selection = other;
    w.used = used;
    snprintf(dir, sizeof dir, "%s/again", t_tmp());
    T_ERR(run(&f, &w, fx_policy(&f), dir, &e), HT_EARG, e, "was used for selection already");
    T_EQ_INT(w.slots, 0);
    fx_done(&f);
}

T_CASE_SECONDS(harness, broken_harness_voids, 120)
{
    world w = ordinary();
    w.broken_slot = 20;
    T_EQ_STR(verdict(&w, NULL), "QUALIFIED");
    T_CHECK(w.slots > 32, "%u slots", w.slots);
}

/* A guard that stays red: too much is void, and nothing is concluded. */
T_CASE_SECONDS(harness, red_guards_conclude_nothing, 120)
{
    world w = ordinary();
    w.red_slot = 16;
    w.red_count = 1000;
    T_EQ_STR(verdict(&w, NULL), "NOT_ADMISSIBLE_ENV");
}

/* Product.md 5.7: a host that does not show its clocks is not admissible under the default policy's
 * guards, whatever the times say. */
T_CASE_SECONDS(harness, host_without_clocks, 120)
{
    world w = ordinary();
    w.no_clocks = true;
    T_EQ_STR(verdict(&w, NULL), "NOT_ADMISSIBLE_ENV");
}

/* A failed candidate is the worst rank, not a missing value; a failed reference proves nothing. */
T_CASE_SECONDS(harness, failures_are_scored, 240)
{
    world w = ordinary();
    w.fail_arm = 'B';
    T_EQ_STR(verdict(&w, NULL), "FAIL_PERF");
    w = ordinary();
    w.fail_arm = 'A';
    T_EQ_STR(verdict(&w, NULL), "INVALID_EVIDENCE");
    w = ordinary();
    w.short_output = true; /* claims success and sends nothing: never 0 ns */
    T_EQ_STR(verdict(&w, NULL), "FAIL_PERF");
    w = ordinary();
    w.stall = true; /* a token before its request */
    T_EQ_STR(verdict(&w, NULL), "FAIL_PERF");
}

T_CASE(harness, cancel_leaves_no_bundle)
{
    world w = ordinary();
    char dir[300], path[400], id[HT_SHA256_HEX];
    fx f;
    ht_err e = {0};
    ht_key *k = fx_key(1);
    w.cancel_slot = 5;
    fx_init(&f);
    snprintf(dir, sizeof dir, "%s/run", t_tmp());
    T_ERR(run(&f, &w, fx_policy(&f), dir, &e), HT_ECANCELLED, e, "cancelled in block");
    snprintf(path, sizeof path, "%s/statement.dsse.json", dir);
    T_CHECK(ht_bundle_seal(dir, k, id, &e) != 0, "an unclosed journal was sealed");
    T_CHECK(access(path, F_OK) != 0, "a statement exists");
    T_ERR(run(&f, &w, fx_policy(&f), dir, &e), HT_EIO, e, "exists");
    ht_key_free(k);
    fx_done(&f);
}

/* The default policy asks for 12 pairs and gets no fewer. */
T_CASE(harness, fewer_pairs_than_policy)
{
    world w = ordinary();
    char dir[300];
    fx f;
    ht_err e = {0};
    fx_init(&f);
    snprintf(dir, sizeof dir, "%s/run", t_tmp());
    T_ERR(run(&f, &w, ht_policy_default, dir, &e), HT_EARG, e, "policy default-2026-1 asks for 12");
    T_CHECK(access(dir, F_OK) != 0, "the folder was made");
    fx_done(&f);
}

T_CASE(harness, lengths_cover_the_bucket)
{
    const ht_scope s = {.min_tokens = 129, .max_tokens = 512};
    T_EQ_INT(ht_bench_length(&s, 0, 0), 129);
    T_EQ_INT(ht_bench_length(&s, 1, 0), 320);
    T_EQ_INT(ht_bench_length(&s, 0, 2), 512);
    T_EQ_INT(ht_bench_length(&s, 3, 0), 129);
}
