/* receipts.c - the log of receipts: what run, chat and serve add to it, and hetero receipts, which
 * checks it whole and lists its end. */
#include "cli/store.h"
#include "cli/subject.h"
#include "core/clock.h"
#include "core/map.h"
#include "route/rlog.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- adding ---------------------------------------------------------------------------------- */

bool cli__receipt_key(char out[CLI_PATH])
{
    ht_err none;
    return cli__state_path("receipt.pem", out, &none) == 0;
}

/* Folder of the log: --receipts, or in the store where there is one. */
static bool log_dir(cli__ctx *c, char out[CLI_PATH])
{
    const char *given = ht_opt_str(c->o, HT_OPT_RECEIPTS);
    char root[CLI_PATH + 16], store[CLI_PATH];
    ht_err none;
    if (given) return snprintf(out, CLI_PATH, "%s", given) < CLI_PATH;
    if (cli__store_dir(c, store, &none)) return false;
    (void)snprintf(root, sizeof root, "%s/trust.json", store);
    return access(root, F_OK) == 0 && snprintf(out, CLI_PATH, "%s/receipts", store) < CLI_PATH;
}

int cli__receipts_open(cli__ctx *c, ht_receipts **out, ht_err *e)
{
    char dir[CLI_PATH], own[CLI_PATH];
    const char *key = ht_opt_str(c->o, HT_OPT_RECEIPTS_KEY);
    *out = NULL;
    if (!log_dir(c, dir)) return 0;
    if (!key && cli__receipt_key(own) && access(own, R_OK) == 0) key = own;
    const ht_receipts_params p = {.dir = dir, .key = key};
    return ht_receipts_open(out, &p, e);
}

static int hex_of(const char *p, size_t n, char hex[HT_SHA256_HEX], ht_err *e)
{
    uint8_t digest[HT_SHA256_BYTES];
    HT_TRY(ht_sha256_of(p ? p : "", n, digest, e));
    ht_hex(digest, sizeof digest, hex);
    return 0;
}

int cli__receipts_add(cli__ctx *c, ht_receipts *log, const ht_session *s, const char *request,
                      size_t n_request, const char *stream, size_t n_stream, char **json)
{
    char in[HT_SHA256_HEX], out[HT_SHA256_HEX];
    ht_err e = {0};
    if (json) *json = NULL;
    if (!log) return 0;
    int rc = hex_of(request, n_request, in, &e);
    if (!rc) rc = hex_of(stream, n_stream, out, &e);
    if (!rc) rc = ht_receipts_add(log, s, in, out, NULL, json, &e);
    /* The answer was given; what is missing is its record, and that is said. */
    if (rc) cli__say(c, CLI_WARN, "warning: this receipt was not kept: %s", e.msg);
    return rc;
}

/* ---- hetero receipts ------------------------------------------------------------------------- */

typedef struct {
    ht_arena *arena;
    const char **line; /* the last `keep` ones, a ring */
    uint64_t keep, n;
    uint64_t want; /* one number, or 0 */
    const char *found;
} collected;

static int collect(void *user, const ht_json *doc, const char *text, size_t n, ht_err *e)
{
    collected *k = user;
    const bool hit = k->want && (uint64_t)ht_json_get(doc, "seq")->i == k->want;
    if (k->want && !hit) return 0;
    char *copy = ht_arena_strndup(k->arena, text, n);
    if (!copy) return HT_FAIL(e, HT_ENOMEM, "receipts: no memory");
    if (hit) k->found = copy;
    else if (k->keep) k->line[k->n++ % k->keep] = copy;
    return 0;
}

static void write_faults(ht_jw *w, const ht_rlog_report *r)
{
    ht_jw_kuint(w, "faults", r->n_faults);
    ht_jw_key(w, "found");
    ht_jw_arr(w);
    for (size_t i = 0; i < r->n_faults && i < HT_RLOG_REPORTED; i++) {
        ht_jw_obj(w);
        ht_jw_kstr(w, "fault", ht_rlog_fault_names[r->fault[i].fault]);
        ht_jw_kuint(w, "line", r->fault[i].line);
        ht_jw_end(w, '}');
    }
    ht_jw_end(w, ']');
}

/* A row of the list: what a person looks for. */
static void write_row(ht_jw *w, const ht_json *doc)
{
    static const char *const copy[] = {"seq", "utc", "call", "event", "status", "nPrompt", "nOut"};
    ht_jw_obj(w);
    for (size_t i = 0; i < sizeof copy / sizeof *copy; i++) {
        const ht_json *v = ht_json_get(doc, copy[i]);
        if (!v) continue;
        ht_jw_key(w, copy[i]);
        ht_jw_json(w, v);
    }
    const ht_json *phases = ht_json_get(doc, "phases");
    for (size_t i = 0; phases && phases->type == HT_JARR && i < phases->n; i++) {
        char text[160];
        const ht_json *p = &phases->at[i];
        (void)snprintf(text, sizeof text, "%s on %s (%s)", cli__str(p, "decision", "?"),
                       cli__str(p, "backend", cli__str(p, "executed", "?")),
                       cli__str(p, "reason", "?"));
        ht_jw_kstr(w, cli__str(p, "phase", "phase"), text);
    }
    ht_jw_end(w, '}');
}

static int out_list(cli__ctx *c, const collected *k, const ht_rlog_report *r, bool judged,
                    ht_err *e)
{
    ht_buf b;
    ht_jw w;
    int rc = 0;
    ht_buf_init(&b, 0);
    ht_jw_init(&w, &b, 0);
    ht_jw_obj(&w);
    ht_jw_kuint(&w, "lines", r->lines);
    ht_jw_kuint(&w, "lastSeq", r->last_seq);
    ht_jw_kuint(&w, "signedSeq", r->signed_seq);
    ht_jw_kuint(&w, "heads", r->heads);
    ht_jw_kbool(&w, "signaturesJudged", judged);
    ht_jw_kstr(&w, "headSha256", r->head_sha);
    write_faults(&w, r);
    ht_jw_key(&w, "receipts");
    ht_jw_arr(&w);
    const uint64_t from = k->n > k->keep ? k->n - k->keep : 0;
    for (uint64_t i = from; i < k->n && !rc; i++) {
        const char *text = k->line[i % k->keep];
        ht_json *doc;
        rc = ht_json_parse(k->arena, text, strlen(text), 0, "receipt", &doc, e);
        if (!rc) write_row(&w, doc);
    }
    ht_jw_end(&w, ']');
    ht_jw_end(&w, '}');
    if (!rc) rc = ht_buf_ok(&b, "receipts", e);
    if (!rc) rc = cli__out_doc(c, b.p, e);
    ht_buf_done(&b);
    return rc;
}

/* The root that says who may sign heads: --trust, or the store's; false: nobody says. */
static bool open_root(cli__ctx *c, ht_arena *a, ht_trust *t, int *rc, ht_err *e)
{
    const char *path = ht_opt_str(c->o, HT_OPT_TRUST);
    char own[CLI_PATH + 16], dir[CLI_PATH], *text;
    size_t n;
    ht_err none;
    *rc = 0;
    if (!path) {
        if (cli__store_dir(c, dir, &none)) return false;
        (void)snprintf(own, sizeof own, "%s/trust.json", dir);
        if (access(own, F_OK) != 0) return false;
        path = own;
    }
    *rc = ht_file_read(path, 1 << 20, &text, &n, e);
    if (*rc) return false;
    *rc = ht_trust_parse(a, text, n, t, e);
    ht_mem_free(text);
    return *rc == 0;
}

static int read_number(const char *word, uint64_t *out, ht_err *e)
{
    char *end;
    const unsigned long long v = word ? strtoull(word, &end, 10) : 0;
    if (word && (*word < '0' || *word > '9' || *end || v == 0))
        return HT_FAIL(e, HT_EARG, "'%.40s' is no number of a receipt", word);
    *out = v;
    return 0;
}

static int check(cli__ctx *c, ht_arena *a, int *status, ht_err *e)
{
    char dir[CLI_PATH];
    ht_trust t;
    ht_rlog_report *r = ht_arena_alloc(a, sizeof *r);
    collected k = {.arena = a, .keep = (uint64_t)ht_opt_int(c->o, HT_OPT_LAST)};
    int rc;
    HT_TRY(read_number(ht_opts_arg(c->o, 0), &k.want, e));
    k.line = ht_arena_array(a, k.keep + 1, sizeof *k.line);
    if (!r || !k.line) return HT_FAIL(e, HT_ENOMEM, "receipts: no memory");
    if (!log_dir(c, dir))
        return HT_FAIL(e, HT_EIO, "no store, so no receipts are kept; name a log with --receipts");
    const bool judged = open_root(c, a, &t, &rc, e);
    if (rc) return rc;
    HT_TRY(ht_rlog_check(dir, judged ? &t : NULL, ht_now_unix(), collect, &k, r, e));
    if (k.want && !k.found)
        return HT_FAIL(e, HT_EARG, "no receipt %llu; the log has %llu", (unsigned long long)k.want,
                       (unsigned long long)r->last_seq);
    rc = k.want ? cli__out_doc(c, k.found, e) : out_list(c, &k, r, judged, e);
    if (rc) return rc;
    for (size_t i = 0; i < r->n_faults && i < HT_RLOG_REPORTED; i++)
        cli__say(c, CLI_ERROR, "hetero receipts: line %llu: %s",
                 (unsigned long long)r->fault[i].line, ht_rlog_fault_names[r->fault[i].fault]);
    if (!r->n_faults && r->signed_seq < r->last_seq)
        cli__say(c, CLI_INFO, "receipts %llu to %llu are chained and not signed",
                 (unsigned long long)r->signed_seq + 1, (unsigned long long)r->last_seq);
    if (r->n_faults) *status = CLI_GATE;
    return 0;
}

int cli__receipts(cli__ctx *c, ht_err *e)
{
    ht_arena *a;
    int status = 0;
    HT_TRY(ht_arena_new(&a, 0, e));
    const int rc = check(c, a, &status, e);
    ht_arena_free(a);
    return rc ? rc : status;
}
