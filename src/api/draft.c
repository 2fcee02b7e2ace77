/* draft.c - see draft.h. */
#include "api/draft.h"
#include <string.h>

enum {
    VIEW = 256,      /* tokens a draft model starts with */
    VIEW_AGAIN = 64, /* and with which it comes back after a pause */
    /* A small model's step is mostly its head: 80 % of 0.9 ms for 15 M parameters and 49,152 ids.
     * Ids of merged vocabularies begin with the most frequent pieces, so of a large one only these
     * are guessed, as long as the text keeps to them (Zhao et al. 2025, FR-Spec). */
    FREQUENT = 16384,
    RARE_ONE_IN = 8, /* of the tokens that a view starts with at most */
};

void api__draft_end(api__draft *x)
{
    if (x->d) x->d->n_ids = 0;
    *x = (api__draft){0};
}

uint32_t api__draft_cap(const api__draft *x)
{
    const uint32_t ctx = x->d->e->ctx, orig = x->d->e->model->spec.rope_orig_ctx;
    return orig && orig < ctx ? orig : ctx;
}

/* Tokens a view of this many starts with: half of what there is at most, to have room to go on. */
static uint32_t view_of(const api__draft *x, uint32_t view)
{
    const uint32_t cap = api__draft_cap(x) / 2;
    return view <= cap ? view : cap ? cap : 1;
}

/* The ids that are guessed behind these tokens: the frequent ones of a large vocabulary, if nearly
 * all tokens of the view are among them, else all (0). */
static uint32_t guessed(const api__draft *x, const int32_t *tokens, uint32_t n)
{
    uint32_t rare = 0;
    if (x->d->e->model->spec.vocab < 2 * FREQUENT) return 0;
    for (uint32_t i = 0; i < n; i++) rare += (uint32_t)tokens[i] >= FREQUENT;
    return rare * RARE_ONE_IN <= n ? FREQUENT : 0;
}

static int start_view(api__draft *x, const int32_t *tokens, uint32_t len, uint32_t view,
                      ht_err *err)
{
    view = view_of(x, view);
    x->base = len > view ? len - view : 0;
    x->d->n_ids = guessed(x, tokens + x->base, len - x->base);
    x->agreed = 0;
    x->seen_prompt = true;
    x->d->rope_long = false;
    return ht_seq_truncate(x->d->seq, 0, err);
}

/* How many of the view's tokens stand in tokens[0..len) too; never the last one, whose logits are
 * wanted. */
static uint32_t in_common(const api__draft *x, const int32_t *tokens, uint32_t len)
{
    const uint32_t held = ht_seq_len(x->d->seq);
    uint32_t n = x->agreed;
    while (n < held && x->base + n + 1 < len && x->d->hist[n] == tokens[x->base + n]) n++;
    return n;
}

uint32_t api__draft_behind(const api__draft *x, const int32_t *tokens, uint32_t len)
{
    if (!x->seen_prompt) return len < view_of(x, VIEW) ? len : view_of(x, VIEW);
    const uint32_t n = len - x->base - in_common(x, tokens, len);
    return n < VIEW_AGAIN ? n : VIEW_AGAIN;
}

bool api__draft_reads(const api__draft *x, const int32_t *tokens, uint32_t len)
{
    const uint32_t vocab = x->d->e->model->spec.vocab;
    uint32_t from = x->seen_prompt ? x->base + x->agreed : len > VIEW ? len - VIEW : 0;
    for (; from < len; from++)
        if ((uint32_t)tokens[from] >= vocab) return false;
    return true;
}

uint32_t api__draft_ids(const api__draft *x)
{
    const uint32_t have = x->d->e->model->spec.vocab, n = x->d->n_ids ? x->d->n_ids : have;
    return n < x->vocab ? n : x->vocab;
}

/* Make the view a beginning of tokens[0..len): cut, or started again. */
static int settle(api__draft *x, const int32_t *tokens, uint32_t len, uint32_t room, ht_err *err)
{
    if (!x->seen_prompt) return start_view(x, tokens, len, VIEW, err);
    x->agreed = in_common(x, tokens, len);
    if (len - x->base - x->agreed > VIEW_AGAIN) return start_view(x, tokens, len, VIEW_AGAIN, err);
    if (len - x->base + room > api__draft_cap(x)) return start_view(x, tokens, len, VIEW, err);
    if (x->agreed < ht_seq_len(x->d->seq) && ht_seq_truncate(x->d->seq, x->agreed, NULL) != 0)
        return start_view(x, tokens, len, VIEW, err);
    return 0;
}

int api__draft_logits(api__draft *x, const int32_t *tokens, uint32_t known, uint32_t len,
                      uint32_t room, const float **logits, uint32_t *done, ht_err *err)
{
    ht_session *d = x->d;
    HT_TRY(settle(x, tokens, len, room, err));
    for (uint32_t at = x->base + x->agreed, rows; at < len; at += rows) {
        const api__plan *plan = NULL;
        rows = len - at < d->e->ubatch ? len - at : d->e->ubatch;
        const int phase = rows == 1 ? API_DECODE : API_PREFILL;
        HT_TRY(api__plan_get(d->e, phase, rows == 1 ? 1 : d->e->ubatch, 1, &plan, err));
        d->want[0] = rows - 1;
        *done += rows;
        HT_TRY(api__run(d, phase, plan, tokens + at, rows, d->want, at + rows == len, logits, err));
    }
    if (known > len) known = len;
    x->agreed = known > x->base ? known - x->base : 0;
    return 0;
}
