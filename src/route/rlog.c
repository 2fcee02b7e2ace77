/* rlog.c - writing the receipt log; checking it is rlog_check.c. See rlog.h. */
#include "route/rlog.h"
#include "core/clock.h"
#include "core/path.h"
#include "evid/schema.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 4096 };
struct ht_rlog {
    char log_path[PATH], heads_path[PATH];
    int log, heads; /* descriptors; heads -1 without a key */
    ht_key *key;    /* NULL: nothing is signed */
    uint32_t batch, seconds;
    char proc[33]; /* of this writer */
    uint64_t end;  /* bytes of the log when `seq` and `sha` were true; UINT64_MAX: never yet */
    uint64_t seq;  /* of the last line */
    char sha[HT_SHA256_HEX];
    uint64_t unsigned_n; /* lines of ours behind the last head of ours */
    uint64_t since_ns;   /* when the first of them came */
};

static int io(const char *path, ht_err *e)
{
    return HT_FAIL(e, HT_EIO, "%.180s: %s", path, strerror(errno));
}

/* ---- reading ends of files ------------------------------------------------------------------- */

/* n bytes at off into an owned, NUL-terminated buffer. */
static int read_at(int fd, const char *path, uint64_t off, size_t n, char **out, ht_err *e)
{
    char *p = ht_mem_alloc(n + 1);
    if (!p) return HT_FAIL(e, HT_ENOMEM, "receipt log: no memory for %zu bytes", n);
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(fd, p + got, n - got, (off_t)(off + got));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            int rc = k < 0 ? io(path, e)
                           : HT_FAIL(e, HT_EIO, "%.180s: shorter than it was a moment ago", path);
            ht_mem_free(p);
            return rc;
        }
        got += (size_t)k;
    }
    *out = p;
    return 0;
}

static int size_of(int fd, const char *path, uint64_t *n, ht_err *e)
{
    struct stat st;
    *n = 0;
    if (fstat(fd, &st) != 0) return io(path, e);
    *n = (uint64_t)st.st_size;
    return 0;
}

/* The last whole line before `size`: its text (owned) and length; *torn: bytes after it that end
 * with no newline. *n 0 and *text NULL: there is no whole line. */
static int last_line(int fd, const char *path, uint64_t size, char **text, size_t *n,
                     uint64_t *torn, ht_err *e)
{
    /* A torn line and a whole one fit into twice the longest line. */
    uint64_t from = size > 2 * (uint64_t)HT_RLOG_LINE ? size - 2 * (uint64_t)HT_RLOG_LINE : 0;
    char *p = NULL;
    *text = NULL;
    *n = 0;
    *torn = 0;
    if (size == 0) return 0;
    HT_TRY(read_at(fd, path, from, (size_t)(size - from), &p, e));
    size_t len = (size_t)(size - from), end = len;
    while (end > 0 && p[end - 1] != '\n') end--;
    *torn = len - end;
    size_t start = end ? end - 1 : 0;
    while (start > 0 && p[start - 1] != '\n') start--;
    if (end == 0 || (start == 0 && from > 0)) {
        ht_mem_free(p);
        if (from == 0) return 0; /* one torn line and nothing else */
        return HT_FAIL(e, HT_EFORMAT, "%.180s: no line end in its last %d bytes", path,
                       2 * (int)HT_RLOG_LINE);
    }
    *n = end - 1 - start;
    memmove(p, p + start, *n);
    p[*n] = 0;
    *text = p;
    return 0;
}

static int sha_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p, n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

static int number_in(const char *text, size_t n, const char *key, uint64_t *out, ht_err *e)
{
    ht_arena *a = NULL;
    ht_json *doc;
    HT_TRY(ht_arena_new(&a, 0, e));
    int rc = ht_json_parse(a, text, n, HT_JSON_CANON, "receipt log line", &doc, e);
    const ht_json *v = rc ? NULL : ht_json_get(doc, key);
    if (!rc && (!v || v->type != HT_JINT || v->i < 1))
        rc = HT_FAIL(e, HT_EFORMAT, "receipt log: a line has no %s; see hetero receipts", key);
    if (!rc) *out = (uint64_t)v->i;
    ht_arena_free(a);
    return rc;
}

/* The last head's number and the digest of its payload; 0 and zeros when there is none. */
static int last_head(const ht_rlog *r, uint64_t *seq, char sha[HT_SHA256_HEX], ht_err *e)
{
    uint64_t size, torn;
    char *text = NULL;
    size_t n;
    *seq = 0;
    memset(sha, '0', HT_SHA256_HEX - 1);
    sha[HT_SHA256_HEX - 1] = 0;
    int fd = open(r->heads_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return 0;
    if (fd < 0) return io(r->heads_path, e);
    int rc = size_of(fd, r->heads_path, &size, e);
    if (!rc) rc = last_line(fd, r->heads_path, size, &text, &n, &torn, e);
    close(fd);
    if (!rc && torn)
        rc = HT_FAIL(e, HT_EFORMAT, "%.180s: its last line is cut off; move the log aside",
                     r->heads_path);
    if (!rc && text) {
        ht_arena *a = NULL;
        ht_dsse d;
        rc = ht_arena_new(&a, 0, e);
        if (!rc) rc = ht_dsse_parse(a, text, n, &d, e);
        if (!rc) rc = sha_of(d.payload, d.n, sha, e);
        if (!rc) rc = number_in((const char *)d.payload, d.n, "lines", seq, e);
        ht_arena_free(a);
    }
    ht_mem_free(text);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int lock(const ht_rlog *r, ht_err *e)
{
    while (flock(r->log, LOCK_EX) != 0)
        if (errno != EINTR) return io(r->log_path, e);
    return 0;
}

static void unlock(const ht_rlog *r)
{
    (void)flock(r->log, LOCK_UN); /* closing the descriptor would do it too */
}

static int put(int fd, const char *path, const char *p, size_t n, ht_err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(fd, p + done, n - done);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return io(path, e);
        done += (size_t)k;
    }
    return 0;
}

/* Under the lock. Writes {members of doc, proc, prevSha256, seq, utc}. */
static int append(ht_rlog *r, ht_arena *a, const ht_json *doc, ht_buf *line, ht_err *e)
{
    static const char *const ours[] = {"prevSha256", "proc", "seq", "utc"};
    char utc[21], sha[HT_SHA256_HEX];
    ht_json *all = ht_json_new(a, HT_JOBJ);
    for (size_t i = 0; i < doc->n; i++) {
        bool skip = false;
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++)
            skip = skip || strcmp(doc->at[i].key, ours[k]) == 0;
        ht_json *copy = skip ? NULL : ht_json_new(a, HT_JNULL);
        if (skip) continue;
        if (copy) *copy = doc->at[i];
        ht_json_add(a, all, doc->at[i].key, copy);
    }
    ht_utc_format(ht_now_unix(), utc);
    ht_json_add(a, all, "prevSha256", ht_json_new_str(a, r->sha, HT_SHA256_HEX - 1));
    ht_json_add(a, all, "proc", ht_json_new_str(a, r->proc, strlen(r->proc)));
    ht_json_add(a, all, "seq", ht_json_new_int(a, (int64_t)(r->seq + 1)));
    ht_json_add(a, all, "utc", ht_json_new_str(a, utc, strlen(utc)));
    if (!all) return HT_FAIL(e, HT_ENOMEM, "receipt log: no memory for a line");
    HT_TRY(ht_json_write(all, HT_JSON_CANON, line, e));
    HT_TRY(ht_buf_ok(line, "receipt", e));
    HT_TRY(sha_of(line->p, line->n, sha, e));
    ht_buf_char(line, '\n');
    HT_TRY(ht_buf_ok(line, "receipt", e));
    int rc = put(r->log, r->log_path, line->p, line->n, e);
    if (rc) {
        r->end = UINT64_MAX; /* how much is there is not known */
        return rc;
    }
    line->p[--line->n] = 0;
    r->end += line->n + 1;
    r->seq++;
    memcpy(r->sha, sha, sizeof sha);
    if (r->unsigned_n++ == 0) r->since_ns = ht_now_ns();
    return 0;
}

/* What a crash has cut off goes, and the chain says that it did. */
static int mend(ht_rlog *r, uint64_t size, uint64_t torn, ht_err *e)
{
    char *text = NULL, sha[HT_SHA256_HEX];
    HT_TRY(read_at(r->log, r->log_path, size - torn, (size_t)torn, &text, e));
    int rc = sha_of(text, (size_t)torn, sha, e);
    ht_mem_free(text);
    if (rc) return rc;
    if (ftruncate(r->log, (off_t)(size - torn)) != 0) return io(r->log_path, e);
    r->end = size - torn;
    ht_arena *a = NULL;
    ht_buf line;
    ht_buf_init(&line, HT_RLOG_LINE);
    rc = ht_arena_new(&a, 0, e);
    ht_json *doc = rc ? NULL : ht_json_new(a, HT_JOBJ);
    if (doc) {
        ht_json_add(a, doc, "event", ht_json_new_str(a, "TORN", 4));
        ht_json_add(a, doc, "schema", ht_json_new_str(a, "hetero/receiptevent/1", 21));
        ht_json_add(a, doc, "tornBytes", ht_json_new_int(a, (int64_t)torn));
        ht_json_add(a, doc, "tornSha256", ht_json_new_str(a, sha, HT_SHA256_HEX - 1));
        rc = append(r, a, doc, &line, e);
    } else if (!rc) {
        rc = HT_FAIL(e, HT_ENOMEM, "receipt log: no memory for an event");
    }
    ht_arena_free(a);
    ht_buf_done(&line);
    return rc;
}

/* Under the lock: bring end, seq and sha up to what other processes have written. */
static int catch_up(ht_rlog *r, ht_err *e)
{
    uint64_t size, torn, head;
    char *text = NULL, head_sha[HT_SHA256_HEX];
    size_t n;
    HT_TRY(size_of(r->log, r->log_path, &size, e));
    if (size == r->end) return 0;
    HT_TRY(last_line(r->log, r->log_path, size, &text, &n, &torn, e));
    uint64_t seq = 0;
    int rc = text ? number_in(text, n, "seq", &seq, e) : 0;
    memset(r->sha, '0', HT_SHA256_HEX - 1);
    if (!rc && text) rc = sha_of(text, n, r->sha, e);
    ht_mem_free(text);
    if (!rc) rc = last_head(r, &head, head_sha, e);
    if (rc) return rc;
    if (head > seq)
        return HT_FAIL(e, HT_EGATE,
                       "TRUNCATED: %.120s ends at %llu and is signed up to %llu; move the folder "
                       "aside and keep it",
                       r->log_path, (unsigned long long)seq, (unsigned long long)head);
    r->seq = seq;
    r->end = size;
    return torn ? mend(r, size, torn, e) : 0;
}

/* Under the lock: a head for the last line, unless the last head is one already. */
static int sign_now(ht_rlog *r, ht_err *e)
{
    uint64_t head;
    char prev[HT_SHA256_HEX], utc[21];
    ht_buf body, env;
    ht_jw w;
    HT_TRY(catch_up(r, e));
    HT_TRY(last_head(r, &head, prev, e));
    if (head == r->seq) {
        r->unsigned_n = 0;
        return 0;
    }
    ht_utc_format(ht_now_unix(), utc);
    ht_buf_init(&body, 1 << 12);
    ht_buf_init(&env, 1 << 16);
    ht_jw_init(&w, &body, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "headSha256", r->sha);
    ht_jw_kuint(&w, "lines", r->seq);
    ht_jw_kstr(&w, "prevHeadSha256", prev);
    ht_jw_kstr(&w, "schema", "hetero/receipthead/1");
    ht_jw_kstr(&w, "utc", utc);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&body, "receipt head", e);
    const ht_key *key = r->key;
    if (!rc) rc = ht_dsse_sign(body.p, body.n, HT_RLOG_HEAD_TYPE, &key, 1, &env, e);
    ht_buf_char(&env, '\n');
    if (!rc) rc = ht_buf_ok(&env, "receipt head", e);
    /* What a head names must be on the disk before the head is. */
    if (!rc && fsync(r->log) != 0) rc = io(r->log_path, e);
    if (!rc) rc = put(r->heads, r->heads_path, env.p, env.n, e);
    if (!rc && fsync(r->heads) != 0) rc = io(r->heads_path, e);
    if (!rc) r->unsigned_n = 0;
    ht_buf_done(&body);
    ht_buf_done(&env);
    return rc;
}

/* ---- the handle ------------------------------------------------------------------------------ */

static int open_files(ht_rlog *r, const char *dir, const char *key, ht_err *e)
{
    uint8_t nonce[16];
    int n = snprintf(r->log_path, sizeof r->log_path, "%s/log.jsonl", dir);
    int m = snprintf(r->heads_path, sizeof r->heads_path, "%s/heads.jsonl", dir);
    if (n < 0 || m < 0 || (size_t)m >= sizeof r->heads_path)
        return HT_FAIL(e, HT_EARG, "receipt log: the folder's path is too long");
    if (getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return HT_FAIL(e, HT_EIO, "receipt log: the kernel gives no random bytes");
    ht_hex(nonce, sizeof nonce, r->proc);
    HT_TRY(ht_path_make_parents(r->log_path, 0700, e));
    if (key) HT_TRY(ht_key_load(&r->key, key, e));
    r->log = open(r->log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r->log < 0) return io(r->log_path, e);
    if (!key) return 0;
    r->heads = open(r->heads_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return r->heads < 0 ? io(r->heads_path, e) : 0;
}

int ht_rlog_open(ht_rlog **out, const char *dir, const char *key, uint32_t batch, uint32_t seconds,
                 ht_err *e)
{
    *out = NULL;
    ht_rlog *r = ht_mem_alloc(sizeof *r);
    if (!r) return HT_FAIL(e, HT_ENOMEM, "receipt log: no memory");
    r->log = r->heads = -1;
    r->batch = batch ? batch : 64;
    r->seconds = seconds ? seconds : 60;
    r->end = UINT64_MAX;
    int rc = open_files(r, dir, key, e);
    if (!rc) rc = lock(r, e);
    if (!rc) {
        rc = catch_up(r, e);
        unlock(r);
    }
    if (!rc) {
        *out = r;
        return 0;
    }
    r->unsigned_n = 0;
    ht_rlog_close(r);
    return rc;
}

static bool is_due(const ht_rlog *r)
{
    return r->key && (r->unsigned_n >= r->batch ||
                      ht_now_ns() - r->since_ns >= (uint64_t)r->seconds * 1000000000u);
}

int ht_rlog_add(ht_rlog *r, const ht_json *receipt, uint64_t *seq, char **text, ht_err *e)
{
    ht_arena *a = NULL;
    ht_buf line;
    if (text) *text = NULL;
    if (receipt->type != HT_JOBJ) return HT_FAIL(e, HT_EARG, "receipt log: need an object");
    HT_TRY(ht_arena_new(&a, 0, e));
    ht_buf_init(&line, HT_RLOG_LINE);
    int rc = lock(r, e);
    if (!rc) {
        rc = catch_up(r, e);
        if (!rc) rc = append(r, a, receipt, &line, e);
        if (!rc && seq) *seq = r->seq;
        if (!rc && is_due(r)) rc = sign_now(r, e);
        unlock(r);
    }
    if (!rc && text) *text = ht_buf_take(&line, NULL);
    ht_buf_done(&line);
    ht_arena_free(a);
    return rc;
}

int ht_rlog_sign(ht_rlog *r, ht_err *e)
{
    if (!r->key) return HT_FAIL(e, HT_EARG, "receipt log: no key to sign with");
    HT_TRY(lock(r, e));
    int rc = sign_now(r, e);
    unlock(r);
    return rc;
}

void ht_rlog_close(ht_rlog *r)
{
    if (!r) return;
    ht_err ignored = {0}; /* a tail without a head is what a crash leaves too, and is reported */
    if (r->key && r->unsigned_n) (void)(ht_rlog_sign(r, &ignored) == 0);
    ht_key_free(r->key);
    if (r->log >= 0) close(r->log);
    if (r->heads >= 0) close(r->heads);
    ht_mem_free(r);
}

/* The line that starts at or after `from` and ends before `size`: owned text, *at its start, *n its
 * length; NULL when there is none. */
static int line_from(const ht_rlog *r, uint64_t from, uint64_t size, char **text, uint64_t *at,
                     size_t *n, ht_err *e)
{
    /* From the byte before, which ends a line if one starts at `from`, to the end of the next. */
    const uint64_t start = from ? from - 1 : 0, room = 2 * (uint64_t)HT_RLOG_LINE;
    size_t want = (size_t)(size - start < room ? size - start : room), skip = 0;
    char *p = NULL;
    *text = NULL;
    HT_TRY(read_at(r->log, r->log_path, start, want, &p, e));
    if (from) {
        const char *before = memchr(p, '\n', want);
        skip = before ? (size_t)(before - p) + 1 : want;
    }
    const char *end = skip < want ? memchr(p + skip, '\n', want - skip) : NULL;
    if (!end) {
        ht_mem_free(p);
        return 0;
    }
    *at = start + skip;
    *n = (size_t)(end - p) - skip;
    memmove(p, p + skip, *n);
    p[*n] = 0;
    *text = p;
    return 0;
}

/* Lines are in the order of their numbers: halve the file until the line is there. */
int ht_rlog_get(ht_rlog *r, uint64_t seq, char **line, ht_err *e)
{
    uint64_t size, lo = 0, hi;
    *line = NULL;
    HT_TRY(size_of(r->log, r->log_path, &size, e));
    for (hi = size; lo < hi;) {
        uint64_t mid = lo + (hi - lo) / 2, at = 0, found = 0;
        size_t n = 0;
        char *text = NULL;
        HT_TRY(line_from(r, mid, size, &text, &at, &n, e));
        if (!text || at >= hi) {
            ht_mem_free(text);
            /* No line starts in [mid, hi): what is wanted starts before. */
            hi = mid;
            continue;
        }
        int rc = number_in(text, n, "seq", &found, e);
        if (!rc && found == seq) {
            *line = text;
            return 0;
        }
        ht_mem_free(text);
        if (rc) return rc;
        if (found < seq) lo = at + n + 1;
        else hi = mid;
    }
    return HT_FAIL(e, HT_EARG, "no receipt %llu in %.160s", (unsigned long long)seq, r->log_path);
}
