/* seq.c - one sequence's page tables, one per KV class. Pages [0, ceil(len/HT_PAGE)) hold positions
 * (holes in the windowed class where nothing can be read any more, and in the full class where a
 * page was evicted); pages behind them are reserved
 * and never shared. A shared page is copied before its first write. */
#include "kv/priv.h"

#include <string.h>

struct ht_seq {
    ht_pool *pool;
    uint32_t len, ctx_max, n_table;
    uint32_t *table[HT_KV_CLASSES];
    uint32_t live; /* windowed class: entries before this one are holes */
    /* Packed types. Entries 0 and [raw, ...) hold their raw slots; entries [1, done) are packed as
     * far as this sequence has read them; began: where the last reservation began. */
    uint32_t raw, done, began;
    uint32_t settled; /* length at the last eviction; there is no way back behind it */
    int place;        /* of runs, ht_seq_bring() */
};

static uint32_t pages_for(uint32_t len)
{
    return len / HT_PAGE + (len % HT_PAGE != 0);
}

/* Row p reads keys from p + 1 - window on. */
uint32_t kv__dead_pages(const ht_pool *pool, uint32_t len)
{
    uint32_t w = kv__window(pool);
    return w && len + 1 > w ? (len + 1 - w) / HT_PAGE : 0;
}

/* A sequence of up to ctx_max positions, empty. Allocates its tables; holds no pages. The pool must
 * outlive it. */
int ht_seq_new(ht_seq **out, ht_pool *pool, uint32_t ctx_max, ht_err *e)
{
    *out = NULL;
    if (ctx_max == 0 || ctx_max > INT32_MAX)
        return HT_FAIL(e, HT_EARG, "a sequence of %u positions: 1 to 2^31-1 are possible", ctx_max);
    uint32_t n = pages_for(ctx_max);
    size_t bytes = sizeof(ht_seq) + (size_t)HT_KV_CLASSES * n * sizeof(uint32_t);
    ht_seq *s = ht_mem_alloc(bytes);
    if (!s) return HT_FAIL(e, HT_ENOMEM, "page table of %u positions: out of memory", ctx_max);
    s->pool = pool;
    s->ctx_max = ctx_max;
    s->n_table = n;
    s->raw = s->done = 1;
    for (int c = 0; c < HT_KV_CLASSES; c++) s->table[c] = (uint32_t *)(s + 1) + (size_t)c * n;
    memset(s->table[0], 0xff, (size_t)HT_KV_CLASSES * n * sizeof(uint32_t)); /* HT_NOPAGE */
    *out = s;
    return 0;
}

static bool holds_raw(const ht_seq *s, uint32_t entry)
{
    return entry == 0 || entry >= s->raw;
}

/* Give back entries [from, to) of a class. */
static void drop(ht_seq *s, int c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        if (s->table[c][i] == HT_NOPAGE) continue;
        if (holds_raw(s, i)) kv__raw_give(kv__raw_of(s->pool), c, s->table[c][i]);
        kv__give(s->pool, c, s->table[c][i]);
        s->table[c][i] = HT_NOPAGE;
    }
}

void ht_seq_free(ht_seq *s)
{
    if (!s) return;
    for (int c = 0; c < HT_KV_CLASSES; c++) drop(s, c, 0, s->n_table);
    ht_mem_free(s);
}

uint32_t ht_seq_len(const ht_seq *s)
{
    return s->len;
}

/* What a reservation takes from one class. */
typedef struct {
    uint32_t first, last; /* entries that will be written */
    uint32_t fresh;       /* of those, entries without a page */
    uint32_t dead;        /* windowed class: entries before this one can go */
    uint32_t freed;       /* pages that their going gives back */
    bool cow;             /* entry `first` is shared and partly filled */
} need;

static need need_of(const ht_seq *s, int c, uint32_t n)
{
    const uint32_t *t = s->table[c];
    need r = {s->len / HT_PAGE, (s->len + n - 1) / HT_PAGE, 0, 0, 0, false};
    for (uint32_t i = r.first; i <= r.last; i++) r.fresh += t[i] == HT_NOPAGE;
    r.cow = t[r.first] != HT_NOPAGE && kv__refs(s->pool, c, t[r.first]) > 1;
    if (c == HT_KV_WINDOW) {
        r.dead = kv__dead_pages(s->pool, s->len);
        for (uint32_t i = s->live; i < r.dead; i++)
            r.freed += t[i] != HT_NOPAGE && kv__refs(s->pool, c, t[i]) == 1;
    }
    return r;
}

/* Replace a shared entry by an own copy. The table changes only after the copy has succeeded. */
static int unshare(ht_seq *s, int c, uint32_t entry, ht_err *e)
{
    uint32_t old = s->table[c][entry], page;
    kv__raw *raw = kv__raw_of(s->pool);
    kv__take(s->pool, c, HT_NOPAGE, 1, &page);
    kv__raw_take(raw, c, page);
    int rc = kv__copy(s->pool, c, page, old, e);
    kv__raw_give(raw, c, rc ? page : old);
    kv__give(s->pool, c, rc ? page : old);
    if (!rc) s->table[c][entry] = page;
    return rc;
}

static int fill(ht_seq *s, int c, const need *r, ht_err *e)
{
    if (c == HT_KV_WINDOW && r->dead > s->live) {
        drop(s, c, s->live, r->dead);
        s->live = r->dead;
    }
    if (r->cow) HT_TRY(unshare(s, c, r->first, e));
    else if (s->table[c][r->first] != HT_NOPAGE)
        kv__raw_dirty(kv__raw_of(s->pool), c, s->table[c][r->first]);
    if (r->fresh) { /* the entries without a page are the last ones */
        uint32_t at = r->last + 1 - r->fresh;
        uint32_t after = at ? s->table[c][at - 1] : HT_NOPAGE;
        kv__take(s->pool, c, after, r->fresh, s->table[c] + at);
        for (uint32_t i = at; i <= r->last; i++)
            kv__raw_take(kv__raw_of(s->pool), c, s->table[c][i]);
    }
    return 0;
}

/* Give up raw slots of entries that no row from `from` on reads raw and that are packed. */
static void release_raw(ht_seq *s, uint32_t from)
{
    kv__raw *raw = kv__raw_of(s->pool);
    for (; ht_kv_reads_packed(from, s->raw) && s->raw < s->done; s->raw++)
        for (int c = 0; c < HT_KV_CLASSES; c++)
            if (s->table[c][s->raw] != HT_NOPAGE) kv__raw_give(raw, c, s->table[c][s->raw]);
}

/* The rows up to position last read these entries packed: before the run, and after it. */
static void each_packed(ht_seq *s, uint32_t last, void (*fn)(kv__raw *, int, uint32_t),
                        uint32_t *done)
{
    kv__raw *raw = kv__raw_of(s->pool);
    uint32_t at = s->done;
    for (; ht_kv_reads_packed(last, at); at++)
        for (int c = 0; c < HT_KV_CLASSES; c++)
            if (s->table[c][at] != HT_NOPAGE) fn(raw, c, s->table[c][at]);
    if (done) *done = at;
}

/* HT_EFULL when class c has not enough raw slots; the bound of ht_pool_raw() keeps it from
 * happening to as many sequences as it was made for. */
static int check_raw(const ht_seq *s, int c, const need *r, ht_err *e)
{
    uint64_t want = (uint64_t)r->fresh + r->cow, have = kv__raw_free(kv__raw_of(s->pool), c);
    if (want <= have) return 0;
    return HT_FAIL(e, HT_EFULL, "KV pool full: %llu raw slots of class %d needed, %llu free",
                   (unsigned long long)want, c, (unsigned long long)have);
}

int ht_seq_reserve(ht_seq *s, uint32_t n, ht_err *e)
{
    if (n == 0) return 0;
    if (n > s->ctx_max - s->len)
        return HT_FAIL(
            e, HT_EFULL,
            "context full: %u positions held, %u more do not fit %u; use a larger context "
            "(-c)",
            s->len, n, s->ctx_max);
    need r[HT_KV_CLASSES];
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        if (!kv__class_used(s->pool, c)) continue;
        r[c] = need_of(s, c, n);
        kv__ask(s->pool, c, r[c].fresh + r[c].cow);
        r[c] = need_of(s, c, n); /* a page that was shared may be this sequence's own now */
        uint64_t have = (uint64_t)ht_pool_free_pages(s->pool, c) + r[c].freed;
        uint64_t want = (uint64_t)r[c].fresh + r[c].cow;
        if (want > have)
            return HT_FAIL(e, HT_EFULL, "KV pool full: %llu pages of class %d needed, %llu free",
                           (unsigned long long)want, c, (unsigned long long)have);
        HT_TRY(check_raw(s, c, &r[c], e));
    }
    for (int c = 0; c < HT_KV_CLASSES; c++)
        if (kv__class_used(s->pool, c)) HT_TRY(fill(s, c, &r[c], e));
    s->began = s->len;
    if (kv__raw_of(s->pool)) each_packed(s, s->len + n - 1, kv__raw_claim, NULL);
    return 0;
}

int ht_seq_bring(ht_seq *s, int place, ht_moved *moved, ht_err *e)
{
    kv__place *x = kv__place_of(s->pool);
    s->place = place;
    if (!x) return 0;
    for (int c = 0; c < HT_KV_CLASSES; c++)
        for (uint32_t i = 0; i < pages_for(s->len); i++) {
            const uint32_t held = s->len - i * HT_PAGE;
            if (s->table[c][i] == HT_NOPAGE) continue;
            kv__place_want(x, place, c, s->table[c][i], held < HT_PAGE ? held : HT_PAGE);
        }
    return kv__place_move(x, place, moved, e);
}

void ht_seq_hand(ht_seq *s, uint32_t n)
{
    kv__place *x = kv__place_of(s->pool);
    for (int c = 0; x && c < HT_KV_CLASSES; c++)
        for (uint32_t i = 0; i < pages_for(s->len + n); i++)
            if (s->table[c][i] != HT_NOPAGE)
                kv__place_note(x, !s->place, c, s->table[c][i], (i + 1) * HT_PAGE > s->len);
}

/* Positions [len, len+n) are valid where the run was, and nowhere else. */
static void wrote(ht_seq *s, uint32_t n)
{
    kv__place *x = kv__place_of(s->pool);
    const uint32_t end = s->len + n;
    for (uint32_t at = s->len, to; x && at < end; at = to) {
        const uint32_t i = at / HT_PAGE, from = at % HT_PAGE;
        to = (i + 1) * HT_PAGE < end ? (i + 1) * HT_PAGE : end;
        for (int c = 0; c < HT_KV_CLASSES; c++)
            if (s->table[c][i] != HT_NOPAGE)
                kv__place_wrote(x, s->place, c, s->table[c][i], from, from + (to - at));
    }
}

/* n positions from len on were written; they must have been reserved. */
void ht_seq_advance(ht_seq *s, uint32_t n)
{
    uint32_t full = s->len / HT_PAGE;
    wrote(s, n);
    s->len += n;
    kv__raw *raw = kv__raw_of(s->pool);
    if (!raw || n == 0) return;
    each_packed(s, s->len - 1, kv__raw_done, &s->done);
    for (; full < s->len / HT_PAGE; full++)
        for (int c = 0; c < HT_KV_CLASSES && full > 0; c++)
            if (s->table[c][full] != HT_NOPAGE) kv__raw_full(raw, c, s->table[c][full]);
    uint32_t back = s->len > KV__BACK ? s->len - KV__BACK : 0;
    release_raw(s, back > s->began ? back : s->began);
}

/* Forget positions [len, end). Windowed layers keep only what the newest rows read: going back to
 * where needed keys have been given up is HT_EUNSUPPORTED and changes nothing; truncating to 0 (and
 * computing again) always works. Truncating to where the last reservation began always works
 * too. */
int ht_seq_truncate(ht_seq *s, uint32_t len, ht_err *e)
{
    if (len > s->len)
        return HT_FAIL(e, HT_EARG, "truncate to %u: the sequence holds %u positions", len, s->len);
    if (len > 0 && kv__class_used(s->pool, HT_KV_WINDOW) && kv__dead_pages(s->pool, len) < s->live)
        return HT_FAIL(
            e, HT_EUNSUPPORTED,
            "cannot go back to position %u: keys before %u have left the attention window "
            "of %u; truncate to 0 and compute again",
            len, s->live * HT_PAGE, kv__window(s->pool));
    if (len > 0 && len < s->settled)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cannot go back to position %u: pages were evicted at %u; truncate to 0 and "
                       "compute again",
                       len, s->settled);
    /* Rows from len on read the entry before theirs raw, and write into their own. */
    if (kv__raw_of(s->pool) && len > HT_PAGE && s->raw > 1 && len / HT_PAGE - 1 < s->raw)
        return HT_FAIL(e, HT_EUNSUPPORTED,
                       "cannot go back to position %u: the cache is packed up to %u; truncate to 0 "
                       "and compute again",
                       len, s->raw * HT_PAGE);
    for (int c = 0; c < HT_KV_CLASSES; c++) drop(s, c, pages_for(len), s->n_table);
    if (len == 0) s->live = s->settled = 0;
    uint32_t held = pages_for(len) > 1 ? pages_for(len) : 1;
    if (s->raw > held) s->raw = held;
    uint32_t whole = len / HT_PAGE > 1 ? len / HT_PAGE : 1; /* the next entry is written again */
    if (s->done > whole) s->done = whole;
    s->len = len;
    return 0;
}

int ht_seq_evict(ht_seq *s, const uint32_t *entry, uint32_t n, ht_err *e)
{
    const uint32_t full = s->len / HT_PAGE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = entry[i];
        const bool in_order = i == 0 || k > entry[i - 1];
        const bool raw = kv__raw_of(s->pool) && holds_raw(s, k);
        if (!in_order || k == 0 || full < 3 || k > full - 3 || raw ||
            s->table[HT_KV_FULL][k] == HT_NOPAGE)
            return HT_FAIL(e, HT_EARG,
                           "page %u of a sequence of %u positions cannot be evicted: it is the "
                           "first, among the newest, still raw, or not there",
                           k, s->len);
    }
    for (uint32_t i = 0; i < n; i++) drop(s, HT_KV_FULL, entry[i], entry[i] + 1);
    s->settled = s->len;
    return 0;
}

/* A second sequence with the same content: its table is copied, its pages are shared. Reserved
 * pages stay with the first. */
int ht_seq_fork(ht_seq **out, const ht_seq *src, ht_err *e)
{
    ht_seq *s;
    HT_TRY(ht_seq_new(&s, src->pool, src->ctx_max, e));
    s->len = src->len;
    s->live = src->live;
    s->raw = src->raw;
    s->done = src->done;
    s->began = src->len;
    s->settled = src->settled;
    s->place = src->place;
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        for (uint32_t i = 0; i < pages_for(src->len); i++) {
            uint32_t page = src->table[c][i];
            if (page == HT_NOPAGE) continue;
            s->table[c][i] = page;
            kv__share(s->pool, c, page);
            if (holds_raw(s, i)) kv__raw_share(kv__raw_of(s->pool), c, page);
        }
    }
    *out = s;
    return 0;
}

int kv__seq_adopt(ht_seq *s, const uint32_t *const page[HT_KV_CLASSES], uint32_t n_pages, ht_err *e)
{
    if (s->len || n_pages > s->ctx_max / HT_PAGE)
        return HT_FAIL(e, HT_EARG, "a sequence of %u of %u positions cannot take over %u pages",
                       s->len, s->ctx_max, n_pages);
    for (int c = 0; c < HT_KV_CLASSES; c++) drop(s, c, 0, s->n_table);
    s->len = n_pages * HT_PAGE;
    s->live = kv__dead_pages(s->pool, s->len);
    for (int c = 0; c < HT_KV_CLASSES; c++) {
        for (uint32_t i = c == HT_KV_WINDOW ? s->live : 0; i < n_pages; i++) {
            if (page[c][i] == HT_NOPAGE) continue;
            s->table[c][i] = page[c][i];
            kv__share(s->pool, c, page[c][i]);
        }
    }
    return 0;
}

const uint32_t *ht_seq_pages(const ht_seq *s, int kv_class)
{
    return s->table[kv_class];
}

uint32_t ht_seq_n_table(const ht_seq *s)
{
    return s->n_table;
}
