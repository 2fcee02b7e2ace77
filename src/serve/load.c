/* load.c - opening and closing what the server runs on, on the engine thread. Everything that can
 * be too large is taken here, before the server says it is ready. */
#include "core/arena.h"
#include "core/clock.h"
#include "serve/server.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    serve__server *s = user;
    pthread_mutex_lock(&s->mu);
    (void)snprintf(s->load_what, sizeof s->load_what, "%s", what);
    s->load_done = done;
    s->load_total = total;
    const bool stop = s->phase != PHASE_LOADING;
    pthread_mutex_unlock(&s->mu);
    return stop;
}

/* "SmolLM2-135M-Instruct.Q4_1" from its path: what clients see as the model's name. */
static void name_model(serve__server *s, const char *path)
{
    static const char *const drop[] = {".gguf", ".htpack", ".json"};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from && path[from - 1] != '/') from--;
    (void)snprintf(s->model_id, sizeof s->model_id, "%.*s", (int)(n - from), path + from);
    n = strlen(s->model_id);
    for (size_t i = 0; i < sizeof drop / sizeof *drop; i++) {
        const size_t k = strlen(drop[i]);
        if (n > k && !strcmp(s->model_id + n - k, drop[i])) s->model_id[n -= k] = 0;
    }
    unsigned part, of;
    int used = 0;
    /* "-00001-of-00003" */
    if (n > 15 && sscanf(s->model_id + n - 15, "-%5u-of-%5u%n", &part, &of, &used) == 2 &&
        used == 15)
        s->model_id[n - 15] = 0;
}

static void digits_of(const ht_json *v, char out[9])
{
    (void)snprintf(out, 9, "%.8s", v && v->type == HT_JSTR ? v->s : "none");
}

/* What the bits of an answer depend on in one line: build, model, contract, arithmetic, types of
 * the cache, and the covers of both phases. Equal lines promise equal bits. */
static int fingerprint(serve__server *s, ht_err *err)
{
    ht_arena *a = NULL;
    ht_json *info = NULL, *plan = NULL;
    const char *model = "", *contract = "", *act = "", *k = "", *v = "";
    char version[16] = "", commit[24] = "", cover[2][9];
    HT_TRY(ht_arena_new(&a, 0, err));
    int rc = ht_json_parse(a, s->info, strlen(s->info), 0, "engine info", &info, err);
    if (!rc) rc = ht_json_parse(a, s->explain, strlen(s->explain), 0, "plan", &plan, err);
    if (!rc) rc = ht_json_str(ht_json_get(info, "model"), "sha256", "", &model, err);
    if (!rc) rc = ht_json_str(ht_json_get(info, "model"), "contract", "", &contract, err);
    if (!rc) rc = ht_json_str(info, "act", "", &act, err);
    if (!rc) rc = ht_json_str(ht_json_get(info, "kv"), "k", "", &k, err);
    if (!rc) rc = ht_json_str(ht_json_get(info, "kv"), "v", "", &v, err);
    if (!rc) {
        const ht_json *phases = ht_json_get(plan, "phases");
        for (size_t i = 0; i < 2; i++)
            digits_of(phases && i < phases->n ? ht_json_path(&phases->at[i], "cover.sha256") : NULL,
                      cover[i]);
        (void)snprintf(s->digest, sizeof s->digest, "%s", model);
        (void)sscanf(ht_version(), "%15s (commit %23[^)]", version, commit);
        (void)snprintf(s->fingerprint, sizeof s->fingerprint,
                       "hetero-%s%s%s-%.8s-%s-%s-%s.%s-%s.%s", version, *commit ? "-" : "", commit,
                       s->digest, contract, act, k, v, cover[0], cover[1]);
    }
    ht_arena_free(a);
    return rc;
}

static int open_engine(serve__server *s, ht_err *err)
{
    ht_engine_params p = s->p.engine;
    p.max_sessions = s->n_slots;
    p.progress = progress;
    p.user = s;
    HT_TRY(ht_engine_open(&s->engine, &p, err));
    s->vocab = ht_engine_vocab(s->engine);
    s->ctx = ht_engine_ctx(s->engine);
    if (!s->p.draft_model) return 0;
    ht_engine_params d = p;
    d.model = s->p.draft_model;
    d.pre_override = NULL;
    HT_TRY(ht_engine_open(&s->draft, &d, err));
    return ht_draft_check(s->engine, s->draft, err);
}

/* What --kv-positions leaves to answers, beside the pages that prompts are kept in. */
static int answer_room(serve__server *s, ht_err *err)
{
    const uint64_t positions = s->p.engine.kv_positions;
    uint32_t unused;
    ht_engine_pages(s->engine, &s->answer_pages, &unused);
    if (!positions) return 0;
    if (positions < s->ctx)
        return HT_FAIL(err, HT_EARG,
                       "--kv-positions %llu holds no answer of %u positions; give more, or -c %llu",
                       (unsigned long long)positions, s->ctx, (unsigned long long)positions);
    const uint64_t pages = (positions + HT_PAGE_POSITIONS - 1) / HT_PAGE_POSITIONS + s->n_slots;
    if (pages < s->answer_pages) s->answer_pages = (uint32_t)pages;
    return 0;
}

static void read_template(serve__server *s)
{
    s->tmpl = s->p.chat_template ? s->p.chat_template : ht_engine_template(s->engine);
    s->tmpl_n = s->p.chat_template ? s->p.chat_template_n : s->tmpl ? strlen(s->tmpl) : 0;
    s->form = ht_reply_form_of(s->tmpl, s->tmpl_n);
    if (!s->tmpl) return;
    s->tmpl_tools = ht_reply_knows_tools(s->tmpl, s->tmpl_n);
    s->tmpl_reasons = ht_reply_reasoning_of(s->tmpl, s->tmpl_n, &s->reason_open, &s->reason_close);
}

static int make_slots(serve__server *s, ht_err *err)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        serve__slot *t = &s->slot[i];
        t->held = ht_mem_array((size_t)s->ctx + 1, sizeof *t->held);
        if (!t->held) return HT_FAIL(err, HT_ENOMEM, "no memory for slot %u", i);
        HT_TRY(ht_session_new(&t->session, s->engine, err));
        if (s->draft) HT_TRY(ht_session_new(&t->draft, s->draft, err));
    }
    return 0;
}

/* What the evidence admits, unless the user has decided. */
static void ask_schedule(serve__server *s)
{
    ht_serve_schedule *x = &s->schedule;
    (void)snprintf(x->reason, sizeof x->reason, "OVERLAP_UNMANAGED");
    if (s->p.overlap || !s->p.schedule) return;
    s->p.schedule(s->p.user, s->engine, x);
    if (!x->promoted) {
        serve__log(s, HT_SERVE_INFO, "prompts beside answers are serialised: %s", x->reason);
        return;
    }
    s->p.tpot_ms = x->tpot_ms;
    serve__log(s, HT_SERVE_INFO,
               "prompts of up to %u tokens beside answers, %u ms a token: promoted by bundle %.16s",
               x->max_prompt, x->tpot_ms, x->bundle_id);
}

static int open_trace(serve__server *s, ht_err *err)
{
    if (!s->p.record_trace) return 0;
    s->trace = fopen(s->p.record_trace, "ae");
    if (s->trace) return 0;
    return HT_FAIL(err, HT_EIO, "--record-trace %.100s: %s", s->p.record_trace, strerror(errno));
}

int serve__load(serve__server *s, ht_err *err)
{
    struct stat st;
    name_model(s, s->p.engine.model);
    s->created = (int64_t)ht_now_unix();
    if (!stat(s->p.engine.model, &st)) {
        s->created = (int64_t)st.st_mtime;
        s->model_bytes = (uint64_t)st.st_size;
    }
    HT_TRY(open_engine(s, err));
    HT_TRY(ht_lexicon_open(&s->lexicon, s->vocab, ht_engine_n_logits(s->engine), err));
    HT_TRY(answer_room(s, err));
    HT_TRY(ht_engine_identify(s->engine, err));
    HT_TRY(ht_engine_info(s->engine, &s->info, err));
    HT_TRY(ht_engine_explain(s->engine, 512, 512, &s->explain, err));
    HT_TRY(fingerprint(s, err));
    read_template(s);
    HT_TRY(make_slots(s, err));
    HT_TRY(open_trace(s, err));
    ask_schedule(s);
    ht_engine_pages(s->engine, &s->pages_total, &s->pages_free);
    if (!s->p.receipts) return 0;
    const ht_receipts_params p = {.dir = s->p.receipts, .key = s->p.receipts_key};
    return ht_receipts_open(&s->receipts, &p, err);
}

void serve__unload(serve__server *s)
{
    if (s->trace) fclose(s->trace);
    ht_receipts_close(s->receipts);
    for (size_t i = 0; i < RECEIPTS_KEPT; i++) ht_free(s->receipt[i]);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        ht_session_free(s->slot[i].session); /* before the one that drafts for it */
        ht_session_free(s->slot[i].draft);
        ht_mem_free(s->slot[i].held);
    }
    ht_lexicon_close(s->lexicon);
    ht_engine_close(s->draft);
    ht_engine_close(s->engine);
    ht_free(s->info);
    ht_free(s->explain);
}
