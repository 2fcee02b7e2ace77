/* session.c - a sequence of positions and what is done with it: kept prefix, evaluation,
 * generation.
 *
 * longrope (import-rules 9.2): a sequence is long when prompt plus requested new tokens exceed
 * rope_orig_ctx (without a limit on new tokens: when the prompt alone does). Cached keys carry the
 * rotation they were written with, so a sequence never changes its mind: a prefix of the other kind
 * is not kept, and a generation that reaches the switch ends there with finish "length". */
#include "api/session.h"
#include "api/route.h"
#include "api/whole.h"
#include "core/clock.h"
#include <string.h>

bool api__is_long(const ht_spec *spec, uint64_t total)
{
    return spec->rope_orig_ctx && total > spec->rope_orig_ctx;
}

int api__session_make(ht_session **out, ht_engine *e, ht_err *err)
{
    ht_arena *arena = NULL;
    *out = NULL;
    HT_TRY(ht_arena_new(&arena, 0, err));
    ht_session *s = ht_arena_alloc(arena, sizeof *s);
    int rc = 0;
    if (s) {
        s->e = e;
        s->arena = arena;
        ht_adapt_init(&s->adapt);
        s->hist = ht_arena_array(arena, (size_t)e->ctx + 1, sizeof *s->hist);
        const uint32_t whole = api__whole_most(e), rows = whole > e->ubatch ? whole : e->ubatch;
        s->pos = ht_arena_array(arena, rows, sizeof *s->pos);
        s->owner = ht_arena_array(arena, rows, sizeof *s->owner);
        s->want = ht_arena_array(arena, rows, sizeof *s->want);
        s->page_class = ht_arena_array(arena, (size_t)e->ctx / HT_PAGE + 1, 1);
    }
    if (!s || !s->page_class || !s->hist || !s->pos || !s->owner || !s->want)
        rc = HT_FAIL(err, HT_ENOMEM, "no memory for a session of %u positions", e->ctx);
    if (!rc) rc = api__evict_make(s, err);
    if (!rc) rc = ht_seq_new(&s->seq, e->pool, e->ctx, err);
    if (rc) ht_arena_free(arena);
    else *out = s;
    return rc;
}

void api__session_drop(ht_session *s)
{
    if (!s) return;
    ht_seq_free(s->seq);
    ht_mem_free(s->considered);
    ht_arena_free(s->arena);
}

/* Inside the engine: room for one more, counted. */
static int add(ht_session **out, ht_engine *e, ht_err *err)
{
    if (e->n_sessions == e->max_sessions)
        return HT_FAIL(
            err, HT_EFULL,
            "the engine was opened for %u session(s) and has as many; free one, or open it "
            "with max_sessions %u",
            e->max_sessions, e->max_sessions + 1);
    HT_TRY(api__session_make(out, e, err));
    e->n_sessions++;
    return 0;
}

int ht_session_new(ht_session **out, ht_engine *e, ht_err *err)
{
    if (!out || !e) return HT_FAIL(err, HT_EARG, "ht_session_new: out and engine must be given");
    *out = NULL;
    HT_TRY(api__enter(e, err));
    const int rc = add(out, e, err);
    api__leave(e);
    return rc;
}

void ht_session_free(ht_session *s)
{
    if (!s) return;
    s->e->n_sessions--;
    api__session_drop(s);
}

uint32_t ht_session_len(const ht_session *s)
{
    return s ? ht_seq_len(s->seq) : 0;
}

/* HT_EBUSY while a generation is under way in the session. Inside the engine. */
static int check_free(const ht_session *s, ht_err *err)
{
    if (!s->gen) return 0;
    return HT_FAIL(err, HT_EBUSY,
                   "the session is in a generation; end that one, or use another session");
}

int ht_session_truncate(ht_session *s, uint32_t len, ht_err *err)
{
    if (!s) return HT_FAIL(err, HT_EARG, "ht_session_truncate: no session");
    if (len > ht_seq_len(s->seq))
        return HT_FAIL(err, HT_EARG, "cannot truncate to %u positions: the session holds %u", len,
                       ht_seq_len(s->seq));
    HT_TRY(api__enter(s->e, err));
    int rc = check_free(s, err);
    if (!rc) rc = ht_seq_truncate(s->seq, len, err);
    api__leave(s->e);
    return rc;
}

static int fork_from(ht_session **out, const ht_session *from, ht_err *err)
{
    ht_seq *seq = NULL;
    HT_TRY(ht_seq_fork(&seq, from->seq, err));
    const int rc = add(out, from->e, err);
    if (rc) {
        ht_seq_free(seq);
        return rc;
    }
    ht_session *s = *out;
    ht_seq_free(s->seq);
    s->seq = seq;
    s->rope_long = from->rope_long;
    memcpy(s->hist, from->hist, ht_seq_len(seq) * sizeof *s->hist);
    memcpy(s->page_class, from->page_class, (ht_seq_len(seq) + HT_PAGE - 1) / HT_PAGE);
    api__evict_fork(s, from);
    return 0;
}

int ht_session_fork(ht_session **out, const ht_session *from, ht_err *err)
{
    if (!out || !from)
        return HT_FAIL(err, HT_EARG, "ht_session_fork: out and session must be given");
    *out = NULL;
    HT_TRY(api__enter(from->e, err));
    const int rc = fork_from(out, from, err);
    api__leave(from->e);
    return rc;
}

int api__check_ids(const ht_session *s, const int32_t *ids, size_t n, ht_err *err)
{
    if (!ids || n == 0) return HT_FAIL(err, HT_EARG, "no tokens were given; give at least one");
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->e->model->spec.vocab)
            return HT_FAIL(err, HT_EARG,
                           "token id %d at index %zu is outside the model's vocabulary of %u",
                           (int)ids[i], i, s->e->model->spec.vocab);
    return 0;
}

int api__keep_prefix(ht_session *s, const int32_t *ids, uint32_t n, bool is_long, ht_err *err)
{
    uint32_t held = ht_seq_len(s->seq), keep = 0;
    /* The last token is always run again: its logits are not kept. */
    uint32_t most = n - 1 < held ? n - 1 : held;
    while (keep < most && s->hist[keep] == ids[keep]) keep++;
    if (is_long != s->rope_long) keep = 0;
    keep = api__class_keep(s, keep);
    /* Class rule: the rest cannot be computed in the class of what is there. */
    if (api__is_whole(&s->e->phase[API_PREFILL])) keep = 0;
    if (keep < held) {
        ht_err lost;
        /* A windowed cache may no longer hold what the shorter sequence would see. */
        if (ht_seq_truncate(s->seq, keep, &lost)) {
            HT_TRY(ht_seq_truncate(s->seq, 0, err));
            keep = 0;
        }
    }
    s->rope_long = is_long;
    s->rec.n_kept = keep;
    return 0;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* Rows of logits an evaluation chunk may hold: the memory of a plan grows with them. */
static uint32_t eval_want_cap(const ht_engine *e)
{
    uint64_t row = 4u * (uint64_t)e->model->spec.vocab;
    uint64_t cap = API_EVAL_LOGITS / row;
    if (cap < 1) cap = 1;
    return cap < e->ubatch ? (uint32_t)cap : e->ubatch;
}

typedef struct {
    const int32_t *ids;
    uint32_t n;
    const uint32_t *want; /* NULL: all */
    size_t n_want, next;  /* next: index into want of the first one not delivered */
    ht_logits_fn fn;
    void *user;
} eval_job;

static uint32_t wanted(const eval_job *j, size_t i)
{
    return j->want ? j->want[i] : (uint32_t)i;
}

/* Wanted rows of the one run that an engine of whole prompts makes of it. */
static uint32_t whole_want(const ht_engine *e, const eval_job *j)
{
    return j->n_want <= API_EVAL_FEW ? API_EVAL_FEW : eval_want_cap(e);
}

/* Where an evaluation runs: on such an engine only from the beginning and in one piece. What goes
 * on behind a prompt is no prompt, and the engine that decodes runs it. */
static int eval_place(ht_session *s, const eval_job *j, ht_err *err)
{
    ht_engine *e = s->e;
    api__route_reference(e);
    if (ht_seq_len(s->seq)) HT_TRY(api__whole_pass(e, "CONTINUATION", NULL, err));
    else if (j->n_want > whole_want(e, j))
        HT_TRY(api__whole_pass(e, "ROWS", "so many rows of logits at once", err));
    else HT_TRY(api__whole_choose(e, j->n, whole_want(e, j), err));
    memcpy(s->rec.phase, e->phase, sizeof s->rec.phase);
    return 0;
}

/* Rows [at, at+*rows) as the next chunk, cut where it would hold more than cap wanted rows; fills
 * s->want with row numbers in the chunk. */
static uint32_t eval_chunk(ht_session *s, const eval_job *j, uint32_t at, uint32_t cap,
                           uint32_t *rows)
{
    const bool whole = api__is_whole(&s->e->phase[API_PREFILL]);
    uint32_t most = whole || j->n - at < s->e->ubatch ? j->n - at : s->e->ubatch, k = 0;
    const uint32_t room = api__evict_room(s);
    if (most > room) most = room;
    size_t i = j->next;
    while (i < j->n_want && wanted(j, i) < at + most && k < cap) s->want[k++] = wanted(j, i++) - at;
    if (i < j->n_want && wanted(j, i) < at + most) most = wanted(j, i) - at;
    *rows = most;
    return k;
}

static int eval_deliver(eval_job *j, const float *logits, uint32_t k, uint32_t n_vocab, ht_err *err)
{
    for (uint32_t r = 0; r < k; r++) {
        uint32_t index = wanted(j, j->next++);
        if (j->fn(j->user, index, logits + (size_t)r * n_vocab, n_vocab))
            return HT_FAIL(err, HT_ECANCELLED, "cancelled at token %u", index);
    }
    return 0;
}

static int eval_run(ht_session *s, eval_job *j, ht_err *err)
{
    uint32_t cap = j->n_want ? eval_want_cap(s->e) : 1;
    if (j->n_want <= API_EVAL_FEW) cap = 1; /* a few share the plan of prefill: no logits buffer */
    const api__plan *p = NULL;
    const bool whole = api__is_whole(&s->e->phase[API_PREFILL]);
    if (whole) cap = whole_want(s->e, j);
    HT_TRY(api__plan_get(s->e, API_PREFILL, whole ? j->n : s->e->ubatch, cap, &p, err));
    for (uint32_t at = 0; at < j->n;) {
        uint32_t rows = 0, k = eval_chunk(s, j, at, cap, &rows);
        const float *logits = NULL;
        HT_TRY(api__run(s, API_PREFILL, p, j->ids + at, rows, s->want, k, &logits, err));
        HT_TRY(ht_file_unchanged(s->e->file, err)); /* these may come from zeros otherwise */
        HT_TRY(eval_deliver(j, logits, k, s->e->model->spec.vocab, err));
        at += rows;
    }
    return 0;
}

static int eval_check(const ht_session *s, const eval_job *j, ht_err *err)
{
    HT_TRY(api__check_ids(s, j->ids, j->n, err));
    uint32_t held = ht_seq_len(s->seq);
    if ((uint64_t)held + j->n > s->e->ctx)
        return HT_FAIL(
            err, HT_EFULL,
            "%u tokens after the %u held do not fit the context of %u; open with a larger ctx",
            j->n, held, s->e->ctx);
    if (held && api__is_long(&s->e->model->spec, (uint64_t)held + j->n) != s->rope_long)
        return HT_FAIL(
            err, HT_EUNSUPPORTED,
            "evaluating to position %u would cross the model's short-to-long rotation switch "
            "at %u; evaluate the sequence in one call",
            held + j->n, s->e->model->spec.rope_orig_ctx);
    if (j->n_want && !j->fn)
        return HT_FAIL(err, HT_EARG, "logits are asked for without a function");
    for (size_t i = 0; j->want && i < j->n_want; i++)
        if (j->want[i] >= j->n || (i && j->want[i] <= j->want[i - 1]))
            return HT_FAIL(err, HT_EARG,
                           "wanted indices must ascend and be below %u; entry %zu is %u", j->n, i,
                           j->want[i]);
    return 0;
}

int ht_session_eval(ht_session *s, const int32_t *ids, size_t n, const uint32_t *want,
                    size_t n_want, ht_logits_fn fn, void *user, ht_err *err)
{
    if (!s) return HT_FAIL(err, HT_EARG, "ht_session_eval: no session");
    if (n > UINT32_MAX) return HT_FAIL(err, HT_EARG, "%zu tokens in one call are too many", n);
    eval_job j = {.ids = ids, .n = (uint32_t)n, .want = want, .fn = fn, .user = user};
    j.n_want = !want && n_want ? n : n_want;
    HT_TRY(eval_check(s, &j, err));
    HT_TRY(api__enter(s->e, err));
    if (check_free(s, err)) {
        api__leave(s->e);
        return HT_EBUSY;
    }
    atomic_store(&s->cancel, 0);
    api__record_begin(s, "eval");
    if (ht_seq_len(s->seq) == 0) s->rope_long = api__is_long(&s->e->model->spec, n);
    s->rec.n_kept = ht_seq_len(s->seq);
    s->rec.n_prompt = s->rec.n_kept + (uint32_t)n;
    uint64_t t0 = ht_now_ns();
    int rc = eval_place(s, &j, err);
    if (!rc) rc = eval_run(s, &j, err);
    s->rec.wall_ns[API_PREFILL] = ht_now_ns() - t0;
    if (!rc) rc = api__ids_sha256(ids, n, s->rec.prompt_sha, err);
    s->rec.status = !rc ? "ok" : rc == HT_ECANCELLED ? "cancelled" : "error";
    api__leave(s->e);
    return rc;
}
