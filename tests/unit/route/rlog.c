/* rlog.c - the receipt log (evidence.md 8, group 42): written by several handles, signed in
 * batches; every way of editing, dropping, moving, repeating or cutting them is found. */
#include "route/rlog.h"
#include "../evid/fixture.h"
#include <unistd.h>

typedef struct {
    fx f;
    ht_trust t;
    const char *dir, *key;
    char *log, *heads; /* as written */
    size_t n_log, n_heads;
} world;

static ht_json *receipt(fx *f, int k)
{
    ht_json *doc;
    ht_err e = {0};
    const char *text = fx_fmt(f, "{\"nOut\":%d,\"schema\":\"hetero/receipt/1\"}", k);
    T_OK(ht_json_parse(f->a, text, strlen(text), 0, "receipt", &doc, &e), e);
    return doc;
}

static void slurp(world *w)
{
    w->log = t_slurp(fx_fmt(&w->f, "%s/log.jsonl", w->dir), &w->n_log);
    w->heads = t_slurp(fx_fmt(&w->f, "%s/heads.jsonl", w->dir), &w->n_heads);
}

static void add(world *w, ht_rlog *r, int from, int n)
{
    ht_err e = {0};
    for (int k = 0; k < n; k++) {
        uint64_t seq = 0;
        T_OK(ht_rlog_add(r, receipt(&w->f, from + k), &seq, NULL, &e), e);
        T_EQ_INT(seq, from + k);
    }
}

/* Ten lines in batches of four by two writers: heads at 4, 8 and, on closing, 10. */
static void begin(world *w)
{
    ht_rlog *r, *other;
    ht_err e = {0};
    fx_init(&w->f);
    fx_trust(&w->f, &w->t);
    w->dir = fx_fmt(&w->f, "%s/deep/receipts", t_tmp());
    w->key = fx_fmt(&w->f, "%s/receipt.pem", t_tmp());
    ht_key *k = fx_key(6);
    T_OK(ht_key_save(k, w->key, &e), e);
    ht_key_free(k);
    T_OK(ht_rlog_open(&r, w->dir, w->key, 4, 3600, &e), e);
    add(w, r, 1, 4);
    T_OK(ht_rlog_open(&other, w->dir, w->key, 4, 3600, &e), e);
    add(w, other, 5, 4);
    add(w, r, 9, 2);
    ht_rlog_close(r);
    ht_rlog_close(other);
    slurp(w);
}

static void end(world *w)
{
    free(w->log);
    free(w->heads);
    fx_done(&w->f);
}

static ht_rlog_report judge(world *w, const char *log, size_t n, const char *heads, size_t n_heads)
{
    ht_rlog_report r;
    ht_err e = {0};
    T_OK(ht_rlog_check_text(log, n, heads, n_heads, &w->t, FX_NOW, NULL, NULL, &r, &e), e);
    return r;
}

static bool has(const ht_rlog_report *r, int fault)
{
    for (size_t i = 0; i < r->n_faults && i < HT_RLOG_REPORTED; i++)
        if (r->fault[i].fault == fault) return true;
    return false;
}

/* Start of line k (from 0) and its length with the newline. */
static const char *line(const char *text, int k, size_t *n)
{
    while (k--) text = strchr(text, '\n') + 1;
    *n = (size_t)(strchr(text, '\n') - text) + 1;
    return text;
}

T_CASE(rlog, whole)
{
    world w;
    char *text;
    ht_err e = {0};
    ht_rlog *r;
    begin(&w);
    ht_rlog_report rep = judge(&w, w.log, w.n_log, w.heads, w.n_heads);
    T_EQ_INT(rep.n_faults, 0);
    T_EQ_INT(rep.lines, 10);
    T_EQ_INT(rep.heads, 3);
    T_EQ_INT(rep.last_seq, 10);
    T_EQ_INT(rep.signed_seq, 10);
    T_OK(ht_rlog_check(w.dir, &w.t, FX_NOW, NULL, NULL, &rep, &e), e);
    T_EQ_INT(rep.n_faults, 0);
    T_OK(ht_rlog_open(&r, w.dir, NULL, 0, 0, &e), e); /* without a key: chained, not signed */
    for (uint64_t k = 1; k <= 10; k++) {
        size_t n;
        const char *want = line(w.log, (int)k - 1, &n);
        T_OK(ht_rlog_get(r, k, &text, &e), e);
        T_EQ_INT(strlen(text), n - 1);
        T_EQ_MEM(text, want, n - 1);
        ht_mem_free(text);
    }
    T_ERR(ht_rlog_get(r, 0, &text, &e), HT_EARG, e, "no receipt 0");
    T_ERR(ht_rlog_get(r, 11, &text, &e), HT_EARG, e, "no receipt 11");
    add(&w, r, 11, 1);
    T_ERR(ht_rlog_sign(r, &e), HT_EARG, e, "no key");
    ht_rlog_close(r);
    T_OK(ht_rlog_check(w.dir, &w.t, FX_NOW, NULL, NULL, &rep, &e), e);
    T_EQ_INT(rep.n_faults, 0);
    T_EQ_INT(rep.last_seq, 11);
    T_EQ_INT(rep.signed_seq, 10);
    end(&w);
}

/* One character of every line. */
T_CASE(rlog, edited)
{
    world w;
    begin(&w);
    for (int k = 0; k < 10; k++) {
        size_t n;
        char *at = (char *)line(w.log, k, &n), *num = strstr(at, "\"nOut\":") + 7, was = *num;
        *num = was == '7' ? '8' : '7';
        ht_rlog_report r = judge(&w, w.log, w.n_log, w.heads, w.n_heads);
        T_CHECK(has(&r, k == 9 ? HT_RLOG_HEAD_DIFFERS : HT_RLOG_CHAIN), "line %d edited unseen", k);
        *num = was;
        at[0] = ' ';
        r = judge(&w, w.log, w.n_log, w.heads, w.n_heads);
        T_CHECK(has(&r, HT_RLOG_BAD_LINE), "line %d is no JSON, unseen", k);
        at[0] = '{';
    }
    T_EQ_INT(judge(&w, w.log, w.n_log, w.heads, w.n_heads).n_faults, 0);
    end(&w);
}

T_CASE(rlog, dropped_moved_repeated)
{
    world w;
    begin(&w);
    char *text = malloc(2 * w.n_log);
    for (int k = 0; k < 10; k++) {
        size_t n, n2;
        const char *at = line(w.log, k, &n);
        size_t before = (size_t)(at - w.log);
        memcpy(text, w.log, before);
        memcpy(text + before, at + n, w.n_log - before - n);
        ht_rlog_report r = judge(&w, text, w.n_log - n, w.heads, w.n_heads);
        T_CHECK(has(&r, k == 9 ? HT_RLOG_TRUNCATED : HT_RLOG_GAP), "line %d dropped unseen", k);
        memcpy(text, w.log, before + n); /* the same line twice */
        memcpy(text + before + n, at, w.n_log - before);
        r = judge(&w, text, w.n_log + n, w.heads, w.n_heads);
        T_CHECK(has(&r, HT_RLOG_REPLAY) && has(&r, HT_RLOG_CHAIN), "line %d replayed unseen", k);
        if (k == 9) break;
        const char *next = line(w.log, k + 1, &n2); /* two lines change places */
        memcpy(text, w.log, w.n_log);
        memcpy(text + before, next, n2);
        memcpy(text + before + n2, at, n);
        r = judge(&w, text, w.n_log, w.heads, w.n_heads);
        T_CHECK(has(&r, HT_RLOG_CHAIN) && has(&r, HT_RLOG_REPLAY), "lines %d and next moved", k);
    }
    free(text);
    end(&w);
}

/* Cut at every byte: a torn line, or an end below the last head. */
T_CASE_SECONDS(rlog, truncated, 120)
{
    world w;
    begin(&w);
    for (size_t n = 0; n < w.n_log; n++) {
        ht_rlog_report r = judge(&w, w.log, n, w.heads, w.n_heads);
        T_CHECK(has(&r, HT_RLOG_TRUNCATED), "cut to %zu bytes unseen", n);
        if (n && w.log[n - 1] != '\n') T_CHECK(has(&r, HT_RLOG_TORN), "cut to %zu: not torn", n);
    }
    for (size_t n = 1; n < w.n_heads; n++) { /* heads cut: fewer of them, or a torn one */
        ht_rlog_report r = judge(&w, w.log, w.n_log, w.heads, n);
        if (w.heads[n - 1] != '\n') T_CHECK(has(&r, HT_RLOG_BAD_HEAD), "heads cut to %zu", n);
        else T_CHECK(r.signed_seq < 10, "heads cut to %zu: still signed to the end", n);
    }
    end(&w);
}

T_CASE(rlog, heads)
{
    world w;
    size_t n[3];
    const char *h[3];
    begin(&w);
    for (int k = 0; k < 3; k++) h[k] = line(w.heads, k, &n[k]);
    char *text = malloc(2 * w.n_heads);
    memcpy(text, h[0], n[0]); /* the middle one is gone */
    memcpy(text + n[0], h[2], n[2]);
    ht_rlog_report r = judge(&w, w.log, w.n_log, text, n[0] + n[2]);
    T_TRUE(has(&r, HT_RLOG_HEAD_CHAIN));
    memcpy(text, w.heads, w.n_heads); /* the last one comes again */
    memcpy(text + w.n_heads, h[2], n[2]);
    r = judge(&w, w.log, w.n_log, text, w.n_heads + n[2]);
    T_TRUE(has(&r, HT_RLOG_HEAD_CHAIN));
    for (size_t i = 0; i < w.n_heads; i += 1 + w.n_heads / 400) { /* any bit */
        memcpy(text, w.heads, w.n_heads);
        text[i] ^= 1;
        r = judge(&w, w.log, w.n_log, text, w.n_heads);
        T_CHECK(r.n_faults, "byte %zu of the heads edited unseen", i);
    }
    ht_trust_key *key = (ht_trust_key *)w.t.key; /* signed, but not by the role */
    key[5].roles = 1u << HT_ROLE_BENCH;
    r = judge(&w, w.log, w.n_log, w.heads, w.n_heads);
    T_TRUE(has(&r, HT_RLOG_BAD_HEAD));
    T_EQ_INT(r.signed_seq, 0);
    free(text);
    end(&w);
}

/* A line of another log, with a number that would fit. */
T_CASE(rlog, from_another_process)
{
    world w;
    ht_rlog *r;
    ht_err e = {0};
    size_t n, n_other;
    begin(&w);
    const char *other = fx_fmt(&w.f, "%s/other", t_tmp());
    T_OK(ht_rlog_open(&r, other, NULL, 0, 0, &e), e);
    add(&w, r, 1, 5);
    ht_rlog_close(r);
    char *text = t_slurp(fx_fmt(&w.f, "%s/log.jsonl", other), &n_other), *all;
    const char *at = line(w.log, 4, &n), *foreign = line(text, 4, &n_other);
    all = malloc(w.n_log + n_other);
    memcpy(all, w.log, (size_t)(at - w.log));
    memcpy(all + (at - w.log), foreign, n_other);
    memcpy(all + (at - w.log) + n_other, at + n, w.n_log - (size_t)(at - w.log) - n);
    ht_rlog_report rep = judge(&w, all, w.n_log - n + n_other, w.heads, w.n_heads);
    T_TRUE(has(&rep, HT_RLOG_CHAIN));
    free(all);
    free(text);
    end(&w);
}

/* What a crash leaves is mended and told; what was cut off behind a head stops the writer. */
T_CASE(rlog, crash_and_cut)
{
    world w;
    ht_rlog *r;
    ht_err e = {0};
    ht_rlog_report rep;
    begin(&w);
    const char *path = fx_fmt(&w.f, "%s/log.jsonl", w.dir);
    t_spit(path, fx_fmt(&w.f, "%s{\"half\":", w.log), w.n_log + 8);
    T_OK(ht_rlog_check(w.dir, &w.t, FX_NOW, NULL, NULL, &rep, &e), e);
    T_TRUE(has(&rep, HT_RLOG_TORN));
    T_OK(ht_rlog_open(&r, w.dir, w.key, 4, 3600, &e), e);
    add(&w, r, 12, 1); /* number 11 is the event */
    ht_rlog_close(r);
    T_OK(ht_rlog_check(w.dir, &w.t, FX_NOW, NULL, NULL, &rep, &e), e);
    T_EQ_INT(rep.n_faults, 0);
    T_EQ_INT(rep.signed_seq, 12);
    free(w.log);
    free(w.heads);
    slurp(&w);
    T_CHECK(strstr(w.log, "\"event\":\"TORN\"") && strstr(w.log, "\"tornBytes\":8"), "no event");
    size_t n;
    t_spit(path, w.log, (size_t)(line(w.log, 11, &n) - w.log));
    T_ERR(ht_rlog_open(&r, w.dir, w.key, 4, 3600, &e), HT_EGATE, e, "TRUNCATED");
    T_CHECK(r == NULL, "a handle on a truncated log");
    end(&w);
}
