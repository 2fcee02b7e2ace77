/* evict.c - which pages a session gives up when it holds more than it may (R23): "heavy hitters" of
 * H2O (arXiv:2306.14048) between the sinks of StreamingLLM (arXiv:2309.17453) and a recent window,
 * by whole pages of all full layers. Positions keep their rotation.
 *
 * Everything is a rule of positions, so that chunks, batches, threads, drafts and a prompt computed
 * anew change no bit. A session decides where its length is a multiple of HT_KV_STRIDE, before the
 * first row behind it runs, and runs never cross such a place. The observing queries are those of
 * the page before it (SnapKV's window, arXiv:2404.14469); what they gave to a page, summed over
 * layers and query heads and divided by their number, is added to the page's score after that has
 * been multiplied by DECAY. Then, down to keep_pages, the lowest scores go, of equal ones the
 * oldest page; never the first page, nor the newest half of what is kept. */
#include "api/whole.h"
#include <string.h>

static const float DECAY = 0.75f; /* old merits halve in 2.4 strides: 617 positions */
enum {
    LEAST = 256, /* positions that must be kept */
    STRIDE_PAGES = HT_KV_STRIDE / HT_PAGE
};

int api__evict_read(ht_engine *e, const ht_engine_params *p, ht_err *err)
{
    if (!p->evict) return 0;
    if (p->evict < LEAST)
        return HT_FAIL(err, HT_EARG, "eviction that keeps %u positions: at least %d must be kept",
                       p->evict, (int)LEAST);
    e->keep_pages = p->evict / HT_PAGE + (p->evict % HT_PAGE != 0);
    return 0;
}

/* What is kept, and the stride that may come before the next decision. */
uint32_t api__evict_held(const ht_engine *e)
{
    const uint32_t all = e->ctx / HT_PAGE + (e->ctx % HT_PAGE != 0);
    const uint32_t held = e->keep_pages + STRIDE_PAGES;
    return held < all ? held : all;
}

int api__evict_make(ht_session *s, ht_err *err)
{
    const ht_engine *e = s->e;
    if (!e->keep_pages) return 0;
    const uint32_t held = api__evict_held(e);
    const size_t row = (size_t)e->model->spec.n_kv_heads * held;
    s->evict.mass = ht_arena_array(s->arena, HT_PAGE * row, sizeof *s->evict.mass);
    s->evict.score = ht_arena_array(s->arena, (size_t)e->ctx / HT_PAGE + 1, sizeof *s->evict.score);
    s->evict.entry = ht_arena_array(s->arena, held, sizeof *s->evict.entry);
    if (s->evict.mass && s->evict.score && s->evict.entry) return 0;
    return HT_FAIL(err, HT_ENOMEM, "no memory for the scores of %u pages", held);
}

void api__evict_fork(ht_session *s, const ht_session *from)
{
    const ht_engine *e = s->e;
    if (!e->keep_pages) return;
    const size_t row = (size_t)e->model->spec.n_kv_heads * api__evict_held(e);
    memcpy(s->evict.mass, from->evict.mass, HT_PAGE * row * sizeof *s->evict.mass);
    memcpy(s->evict.score, from->evict.score,
           ((size_t)e->ctx / HT_PAGE + 1) * sizeof *s->evict.score);
    s->evict.done = from->evict.done;
}

uint32_t api__evict_room(const ht_session *s)
{
    return s->evict.mass ? HT_KV_STRIDE - ht_seq_len(s->seq) % HT_KV_STRIDE : UINT32_MAX;
}

/* Fill entry[] with the pages that are held; their number. */
static uint32_t list_held(ht_session *s, uint32_t len)
{
    const uint32_t *table = ht_seq_pages(s->seq, HT_KV_FULL), most = api__evict_held(s->e);
    uint32_t n = 0;
    for (uint32_t k = 0; k < len / HT_PAGE && n < most; k++)
        if (table[k] != HT_NOPAGE) s->evict.entry[n++] = k;
    return n;
}

/* Mean share of attention that the n-th held page got from an observing query in one layer's head:
 * added up query by query, so in one order. */
static float merit(const ht_session *s, uint32_t n)
{
    const ht_spec *spec = &s->e->model->spec;
    const size_t rows = (size_t)HT_PAGE * spec->n_kv_heads, held = api__evict_held(s->e);
    float sum = 0;
    for (size_t i = 0; i < rows; i++) sum += s->evict.mass[i * held + n];
    return sum / (float)((uint64_t)HT_PAGE * spec->n_heads);
}

/* Move the `out` worst of entry[1, n) to the front of the list, in ascending order; n is at most
 * keep_pages and a stride, so this is short work. */
static void choose(ht_session *s, uint32_t n, uint32_t out)
{
    const uint32_t recent = s->e->keep_pages / 2, last = n - recent;
    uint32_t *entry = s->evict.entry;
    const float *score = s->evict.score;
    for (uint32_t i = 0; i < out; i++) {
        uint32_t worst = 1 + i;
        for (uint32_t k = worst + 1; k < last; k++)
            if (score[entry[k]] < score[entry[worst]]) worst = k;
        const uint32_t page = entry[worst];
        /* The pages before it keep their order: of equal scores the oldest goes. */
        memmove(entry + i + 2, entry + i + 1, (worst - i - 1) * sizeof *entry);
        entry[i + 1] = page;
    }
    for (uint32_t i = 1; i < out; i++) /* insertion sort */
        for (uint32_t k = i; k > 0 && entry[k + 1] < entry[k]; k--) {
            const uint32_t page = entry[k];
            entry[k] = entry[k + 1];
            entry[k + 1] = page;
        }
}

int api__evict_due(ht_session *s, ht_err *err)
{
    const uint32_t len = ht_seq_len(s->seq), keep = s->e->keep_pages;
    if (!s->evict.mass) return 0;
    if (len < s->evict.done) { /* begun anew */
        memset(s->evict.score, 0, ((size_t)s->e->ctx / HT_PAGE + 1) * sizeof *s->evict.score);
        s->evict.done = 0;
    }
    if (len % HT_KV_STRIDE || len == s->evict.done) return 0;
    const uint32_t n = list_held(s, len);
    for (uint32_t i = 0; i < n; i++) {
        float *score = &s->evict.score[s->evict.entry[i]];
        *score = *score * DECAY + merit(s, i);
    }
    const uint32_t out = n > keep ? n - keep : 0;
    choose(s, n, out);
    HT_TRY(ht_seq_evict(s->seq, s->evict.entry + 1, out, err));
    s->evict.done = len;
    s->rec.evict.rounds += out > 0;
    s->rec.evict.pages += out;
    return 0;
}

/* Positions of full layers that are still there, as [first, end) of what lies together. */
static void write_held(ht_jw *w, const ht_session *s)
{
    const uint32_t *table = ht_seq_pages(s->seq, HT_KV_FULL), len = ht_seq_len(s->seq);
    const uint32_t n = len / HT_PAGE + (len % HT_PAGE != 0);
    ht_jw_arr(w);
    for (uint32_t k = 0, first; k < n; k++) {
        if (table[k] == HT_NOPAGE) continue;
        for (first = k; k < n && table[k] != HT_NOPAGE;) k++;
        ht_jw_arr(w);
        ht_jw_uint(w, (uint64_t)first * HT_PAGE);
        ht_jw_uint(w, k == n ? len : (uint64_t)k * HT_PAGE);
        ht_jw_end(w, ']');
    }
    ht_jw_end(w, ']');
}

void api__write_evict(ht_jw *w, const ht_session *s)
{
    const api__evict_record *r = &s->rec.evict;
    ht_jw_obj(w);
    ht_jw_kstr(w, "class", "lossy");
    ht_jw_kuint(w, "evictedTokens", r->pages * HT_PAGE);
    ht_jw_key(w, "held");
    write_held(w, s);
    ht_jw_kuint(w, "keptTokens", (uint64_t)s->e->keep_pages * HT_PAGE);
    ht_jw_kuint(w, "rounds", r->rounds);
    ht_jw_end(w, '}');
}
