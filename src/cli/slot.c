/* slot.c - hetero bench-slot: the fresh process of one slot of an experiment. Reads one request
 * document on standard input, opens the engine, warms up, answers the requests one after the
 * other and writes what came, with the times at which it came, on standard output. Nothing is
 * written while a request runs. Started by hetero qualify and hetero compare (worker.c), which
 * reads the lines. */
#include "cli/suite.h"
#include "core/clock.h"
#include "core/map.h"
#include <string.h>
#include <sys/resource.h>

enum { REQUEST_MAX = 64 << 20 };

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    ht_engine *engine;
    ht_session *session;
    ht_buf out;
    size_t request, offset;
    bool quiet; /* warming up */
} work;

/* {"len":N,"r":K,"t":NS,"tok":[ID],"x":"hex of the bytes"} */
static int on_token(void *user, const ht_token_event *ev)
{
    static const char digit[] = "0123456789abcdef";
    work *w = user;
    uint64_t t = ht_now_ns();
    if (w->quiet) return 0;
    ht_buf_fmt(&w->out, "{\"len\":%zu,\"r\":%zu,\"t\":%llu,\"tok\":[", ev->len, w->request,
               (unsigned long long)t);
    if (ev->id >= 0) ht_buf_fmt(&w->out, "%d", ev->id);
    ht_buf_str(&w->out, "],\"x\":\"");
    for (size_t i = 0; i < ev->len; i++) {
        uint8_t b = (uint8_t)ev->text[i];
        ht_buf_char(&w->out, digit[b >> 4]);
        ht_buf_char(&w->out, digit[b & 15]);
    }
    ht_buf_str(&w->out, "\"}\n");
    return 0;
}

/* Did any phase that ran run elsewhere than planned? */
static bool mismatch(work *w, const char *receipt)
{
    ht_json *doc;
    if (ht_json_parse(w->arena, receipt, strlen(receipt), 0, "receipt", &doc, NULL)) return true;
    const ht_json *phases = ht_json_get(doc, "phases");
    for (size_t i = 0; phases && phases->type == HT_JARR && i < phases->n; i++)
        if (cli__num(&phases->at[i], "tokens", 0) > 0 &&
            strcmp(cli__str(&phases->at[i], "planned", "?"),
                   cli__str(&phases->at[i], "executed", "!")) != 0)
            return true;
    return !phases;
}

static const char *status_of(work *w, int rc, int finish, const char *receipt)
{
    if (rc == HT_ENOMEM || rc == HT_EFULL) return "oom";
    if (rc || finish == HT_FINISH_CANCEL) return "sutError";
    return mismatch(w, receipt) ? "routeMismatch" : "ok";
}

static int answer(work *w, const ht_json *request, ht_err *e)
{
    const ht_json *prompt = ht_json_get(request, "prompt"), *max = ht_json_get(request, "maxNew");
    ht_sampling greedy;
    ht_gen_result r = {0};
    ht_err why = {0};
    if (!prompt || prompt->type != HT_JARR || prompt->n == 0 || !max || max->type != HT_JINT ||
        max->i < 1 || max->i > 1 << 20)
        return HT_FAIL(e, HT_EARG, "bench-slot: request %zu needs prompt ids and maxNew",
                       w->request);
    int32_t *ids = ht_arena_array(w->arena, prompt->n, sizeof *ids);
    if (!ids) return HT_FAIL(e, HT_ENOMEM, "bench-slot: out of memory");
    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->at[i].type != HT_JINT || prompt->at[i].i < 0 || prompt->at[i].i > INT32_MAX)
            return HT_FAIL(e, HT_EARG, "bench-slot: request %zu: id %zu is no token", w->request,
                           i);
        ids[i] = (int32_t)prompt->at[i].i;
    }
    ht_sampling_init(&greedy);
    greedy.temp = 0;
    const ht_gen_params p = {.max_new = (uint32_t)max->i,
                             .sampling = &greedy,
                             .ignore_eos = 1,
                             .on_token = on_token,
                             .user = w,
                             .tokens_only = 1};
    HT_TRY(ht_session_truncate(w->session, 0, e));
    uint64_t intended = ht_now_ns();
    int rc = ht_session_generate(w->session, ids, prompt->n, &p, &r, &why);
    char *receipt = NULL;
    if (ht_session_receipt(w->session, &receipt, NULL)) receipt = NULL;
    const char *status = status_of(w, rc, r.finish, receipt ? receipt : "");
    bool met = !rc && r.n_ids == p.max_new;
    ht_gen_result_done(&r);
    if (!w->quiet) {
        ht_jw j;
        ht_jw_init(&j, &w->out, 0);
        ht_jw_obj(&j);
        ht_jw_kstr(&j, "end", rc ? "EOF_EARLY" : met ? "LENGTH_MET" : "DONE");
        ht_jw_kuint(&j, "intended", intended);
        ht_jw_kstr(&j, "message", rc ? why.msg : "");
        ht_jw_kuint(&j, "r", w->request);
        ht_jw_kuint(&j, "sent", intended);
        ht_jw_kstr(&j, "status", status);
        ht_jw_kstr(&j, "receipt", receipt ? receipt : "");
        ht_jw_end(&j, '}');
        ht_buf_char(&w->out, '\n');
    }
    ht_free(receipt);
    HT_TRY(ht_buf_ok(&w->out, "answer", e));
    int out = cli__out(w->out.p, w->out.n, e);
    ht_buf_clear(&w->out);
    return out;
}

static int run(work *w, const ht_json *doc, ht_err *e)
{
    const char *spec;
    uint32_t ctx, warmups;
    struct rusage use;
    HT_TRY(ht_json_str(doc, "arm", "", &spec, e));
    HT_TRY(ht_json_u32(doc, "ctx", 0, &ctx, e));
    HT_TRY(ht_json_u32(doc, "warmups", 1, &warmups, e));
    const ht_json *list = ht_json_get(doc, "requests");
    if (!list || list->type != HT_JARR || list->n == 0)
        return HT_FAIL(e, HT_EARG, "bench-slot: no requests");
    ht_engine_params p = {.ctx = ctx, .max_sessions = 1};
    HT_TRY(cli__arm(w->arena, spec, &p, e));
    if (!p.model) return HT_FAIL(e, HT_EARG, "bench-slot: the arm names no model");
    uint64_t start = ht_now_ns();
    HT_TRY(ht_engine_open(&w->engine, &p, e));
    HT_TRY(ht_session_new(&w->session, w->engine, e));
    w->quiet = true;
    for (uint32_t i = 0; i < warmups; i++) HT_TRY(answer(w, &list->at[i % list->n], e));
    w->quiet = false;
    ht_buf_fmt(&w->out, "{\"warmupNs\":%llu}\n", (unsigned long long)(ht_now_ns() - start));
    for (w->request = 0; w->request < list->n; w->request++)
        HT_TRY(answer(w, &list->at[w->request], e));
    if (getrusage(RUSAGE_SELF, &use) != 0) use.ru_maxrss = 0;
    ht_buf_fmt(&w->out, "{\"peakBytes\":%llu}\n", (unsigned long long)use.ru_maxrss * 1024);
    return cli__out(w->out.p, w->out.n, e);
}

int cli__bench_slot(cli__ctx *c, ht_err *e)
{
    work w = {.c = c};
    char *text = NULL;
    size_t n;
    ht_json *doc;
    HT_TRY(ht_arena_new(&w.arena, 0, e));
    ht_buf_init(&w.out, 0);
    int rc = ht_file_read("-", REQUEST_MAX, &text, &n, e);
    if (!rc) rc = ht_json_parse(w.arena, text, n, 0, "slot request", &doc, e);
    if (!rc) rc = run(&w, doc, e);
    ht_session_free(w.session);
    if (w.engine) ht_engine_close(w.engine);
    ht_mem_free(text);
    ht_buf_done(&w.out);
    ht_arena_free(w.arena);
    return rc;
}
