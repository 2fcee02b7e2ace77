/* journal.c - the hash chain; see journal.h. */
#include "evid/journal.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char zeros[HT_SHA256_HEX] =
    "0000000000000000000000000000000000000000000000000000000000000000";

int ht_journal_new(ht_journal *j, const char *path, ht_err *e)
{
    *j = (ht_journal){.fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644),
                      .start_ns = ht_now_ns()};
    memcpy(j->prev, zeros, sizeof zeros);
    if (j->fd < 0) return HT_FAIL(e, HT_EIO, "journal %s: %s", path, strerror(errno));
    return 0;
}

static int put(ht_journal *j, const char *p, size_t n, ht_err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(j->fd, p + done, n - done);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return HT_FAIL(e, HT_EIO, "journal: %s", strerror(errno));
        done += (size_t)k;
    }
    return fsync(j->fd) == 0 ? 0 : HT_FAIL(e, HT_EIO, "journal: %s", strerror(errno));
}

int ht_journal_add(ht_journal *j, ht_arena *a, const char *event, const ht_json *more, ht_err *e)
{
    if (j->fd < 0 || j->closed)
        return HT_FAIL(e, HT_EARG, "journal: event %s after its end", event);
    ht_json *line = ht_json_new(a, HT_JOBJ);
    for (size_t i = 0; more && i < more->n; i++) {
        ht_json *copy = ht_json_new(a, HT_JNULL);
        if (copy) *copy = more->at[i];
        ht_json_add(a, line, more->at[i].key, copy);
    }
    ht_json_add(a, line, "event", ht_json_new_str(a, event, strlen(event)));
    ht_json_add(a, line, "monoNs", ht_json_new_int(a, (int64_t)(ht_now_ns() - j->start_ns)));
    ht_json_add(a, line, "prev", ht_json_new_str(a, j->prev, HT_SHA256_HEX - 1));
    ht_json_add(a, line, "seq", ht_json_new_int(a, (int64_t)j->seq));
    uint8_t digest[HT_SHA256_BYTES];
    ht_buf b;
    ht_buf_init(&b, 0);
    int rc = line ? ht_json_write(line, HT_JSON_CANON, &b, e)
                  : HT_FAIL(e, HT_ENOMEM, "journal: no memory for event %s", event);
    ht_buf_char(&b, '\n');
    if (rc == 0) rc = ht_buf_ok(&b, "journal line", e);
    if (rc == 0) rc = ht_sha256_of(b.p, b.n - 1, digest, e);
    if (rc == 0) rc = put(j, b.p, b.n, e);
    if (rc == 0) {
        ht_hex(digest, sizeof digest, j->prev);
        j->seq++;
    }
    ht_buf_done(&b);
    return rc;
}

int ht_journal_close(ht_journal *j, ht_arena *a, const ht_json *more, ht_err *e)
{
    HT_TRY(ht_journal_add(j, a, "close", more, e));
    j->closed = true;
    int rc = close(j->fd);
    j->fd = -1;
    return rc == 0 ? 0 : HT_FAIL(e, HT_EIO, "journal: %s", strerror(errno));
}

void ht_journal_abort(ht_journal *j)
{
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

static bool says(const ht_json *v, const char *text)
{
    return v && v->type == HT_JSTR && v->n == strlen(text) && memcmp(v->s, text, v->n) == 0;
}

int ht_journal_check(ht_arena *a, const char *text, size_t n, bool complete, ht_json ***lines,
                     size_t *n_lines, ht_err *e)
{
    char prev[HT_SHA256_HEX];
    uint8_t digest[HT_SHA256_BYTES];
    size_t count = 0, k = 0;
    int64_t last_ns = 0;
    memcpy(prev, zeros, sizeof zeros);
    for (size_t i = 0; i < n; i++) count += text[i] == '\n';
    if (n == 0 || text[n - 1] != '\n')
        return HT_FAIL(e, HT_EFORMAT, "journal: the last line is cut off");
    ht_json **at = ht_arena_array(a, count, sizeof *at);
    if (!at) return HT_FAIL(e, HT_ENOMEM, "journal: no memory for %zu lines", count);
    for (const char *p = text; p < text + n; k++) {
        size_t len = (size_t)((const char *)memchr(p, '\n', (size_t)(text + n - p)) - p);
        HT_TRY(ht_json_parse(a, p, len, HT_JSON_CANON, "journal line", &at[k], e));
        const ht_json *seq = ht_json_get(at[k], "seq"), *ns = ht_json_get(at[k], "monoNs");
        if (!seq || seq->type != HT_JINT || seq->i != (int64_t)k ||
            !says(ht_json_get(at[k], "prev"), prev))
            return HT_FAIL(e, HT_EFORMAT, "journal: the chain breaks at line %zu", k + 1);
        if (!ns || ns->type != HT_JINT || ns->i < last_ns)
            return HT_FAIL(e, HT_EFORMAT, "journal: time runs backwards at line %zu", k + 1);
        last_ns = ns->i;
        if (complete && ((k == 0) != says(ht_json_get(at[k], "event"), "design") ||
                         (k + 1 == count) != says(ht_json_get(at[k], "event"), "close")))
            return HT_FAIL(e, HT_EFORMAT,
                           "journal: line %zu: \"design\" must be first, \"close\" last", k + 1);
        HT_TRY(ht_sha256_of(p, len, digest, e));
        ht_hex(digest, sizeof digest, prev);
        p += len + 1;
    }
    *lines = at;
    *n_lines = count;
    return 0;
}
