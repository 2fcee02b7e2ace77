/* store.c - opening a store and changing its index; loading rows for the planner is routes.c. */
#include "route/store.h"
#include "core/path.h"
#include "evid/amend.h"
#include "evid/schema.h"
#include "route/files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char zeros[HT_SHA256_HEX] =
    "0000000000000000000000000000000000000000000000000000000000000000";

bool route__exists(const char *dir, const char *path)
{
    struct stat st;
    char full[4096];
    int n = snprintf(full, sizeof full, "%s/%s", dir, path);
    return n > 0 && (size_t)n < sizeof full && lstat(full, &st) == 0;
}

int route__put(const char *dir, const char *path, const void *data, size_t n, ht_err *e)
{
    char full[4096], part[4200];
    int k = snprintf(full, sizeof full, "%s/%s", dir, path);
    if (k < 0 || (size_t)k >= sizeof full) return HT_FAIL(e, HT_EARG, "path %s is too long", dir);
    HT_TRY(ht_path_make_parents(full, 0755, e));
    snprintf(part, sizeof part, "%s.%ld", full, (long)getpid());
    FILE *f = fopen(part, "wxe");
    if (!f) return HT_FAIL(e, HT_EIO, "%s: %s", part, strerror(errno));
    bool good = fwrite(data, 1, n, f) == n && fflush(f) == 0 && fsync(fileno(f)) == 0;
    good = fclose(f) == 0 && good && rename(part, full) == 0; /* readers see the old or the new */
    if (good) return 0;
    int why = errno;
    unlink(part);
    return HT_FAIL(e, HT_EIO, "%s: %s", full, strerror(why));
}

int ht_store_init(const char *dir, const ht_trust *t, const char *policy, ht_err *e)
{
    ht_buf b;
    if (route__exists(dir, "trust.json"))
        return HT_FAIL(e, HT_EARG, "%s has a trust.json already; choose another --store", dir);
    ht_buf_init(&b, HT_STORE_FILE);
    int rc = ht_trust_write(t, &b, e);
    if (rc == 0) rc = route__put(dir, "trust.json", b.p, b.n, e);
    if (rc == 0 && policy) rc = route__put(dir, "policy.json", policy, strlen(policy), e);
    ht_buf_done(&b);
    return rc;
}

/* One writer of index and high-water mark at a time: a lock on the folder itself, released by
 * close(). */
static int lock(const char *dir, int *fd, ht_err *e)
{
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (*fd >= 0 && flock(*fd, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(*fd);
            *fd = -1;
        }
    return *fd >= 0 ? 0 : HT_FAIL(e, HT_EIO, "%s: %s", dir, strerror(errno));
}

static int read_high(ht_store *s, ht_highwater *high, ht_err *e)
{
    const char *text;
    uint64_t n;
    *high = (ht_highwater){0};
    if (!route__exists(s->dir, "highwater.json")) return 0;
    HT_TRY(ht_read_under(s->a, s->dir, "highwater.json", HT_STORE_FILE, &text, &n, e));
    return ht_highwater_parse(s->a, text, n, high, e);
}

/* Under the lock, and only upwards: another process may have seen a newer index meanwhile. */
static int raise_high(ht_store *s, ht_err *e)
{
    ht_highwater high;
    ht_buf b;
    int fd;
    HT_TRY(lock(s->dir, &fd, e));
    ht_buf_init(&b, HT_STORE_FILE);
    int rc = read_high(s, &high, e);
    const bool newer = !rc && s->index.version > high.version;
    if (newer) rc = ht_highwater_write(&s->index, &b, e);
    const bool kept = !newer || rc || !(rc = route__put(s->dir, "highwater.json", b.p, b.n, e));
    ht_buf_done(&b);
    close(fd);
    if (kept) return rc;
    const ht_err why = *e;
    return HT_FAIL(
        e, rc, /* without the mark an old index could pass for a new one */
        "%s; the version of this index must be noted there before it is used: run hetero routes "
        "--store %s once as the folder's owner, or let this user write there",
        why.msg, s->dir);
}

static int load_index(ht_store *s, ht_err *e)
{
    const char *text;
    uint64_t n;
    ht_dsse env;
    ht_highwater high;
    HT_TRY(read_high(s, &high, e));
    if (!route__exists(s->dir, "index.dsse.json")) {
        if (high.version == 0) return 0;
        return HT_FAIL(e, HT_EGATE, "INDEX_REPLAYED: the index of version %llu is gone",
                       (unsigned long long)high.version);
    }
    HT_TRY(ht_read_under(s->a, s->dir, "index.dsse.json", HT_STORE_FILE, &text, &n, e));
    HT_TRY(ht_dsse_parse(s->a, text, n, &env, e));
    HT_TRY(ht_trust_check(&s->trust, &env, HT_ROLE_INDEX, HT_INDEX_TYPE, s->now_unix, e));
    HT_TRY(ht_index_parse(s->a, (const char *)env.payload, env.n, &s->index, e));
    HT_TRY(ht_index_check(&s->index, &high, s->now_unix, e));
    s->has_index = true;
    return s->index.version == high.version ? 0 : raise_high(s, e);
}

int ht_store_open(ht_arena *a, const char *dir, int64_t now, ht_store *s, ht_err *e)
{
    const char *text;
    uint64_t n;
    *s = (ht_store){.a = a, .dir = dir, .now_unix = now};
    if (!route__exists(dir, "trust.json"))
        return HT_FAIL(e, HT_EIO, "%s has no trust.json; make one with: hetero keys init", dir);
    HT_TRY(ht_read_under(a, dir, "trust.json", HT_STORE_FILE, &text, &n, e));
    HT_TRY(ht_trust_parse(a, text, n, &s->trust, e));
    if (route__exists(dir, "policy.json")) {
        HT_TRY(ht_read_under(a, dir, "policy.json", HT_STORE_FILE, &text, &n, e));
    } else {
        text = ht_policy_default;
        n = strlen(text);
    }
    HT_TRY(ht_policy_parse(a, text, n, &s->policy, e));
    return load_index(s, e);
}

/* ---- a new index ----------------------------------------------------------------------------- */

/* The keys that hold a role, in their order; *n of them. */
const ht_key **route__with_role(ht_store *s, enum ht_role role, const ht_key *const *keys,
                                size_t n_keys, size_t *n)
{
    const ht_key **out = ht_arena_array(s->a, n_keys + 1, sizeof *out);
    *n = 0;
    for (size_t i = 0; out && i < n_keys; i++) {
        uint8_t pub[HT_ED25519_PUB];
        ht_key_public(keys[i], pub);
        for (size_t k = 0; k < s->trust.n_keys; k++)
            if ((s->trust.key[k].roles >> role & 1) &&
                memcmp(s->trust.key[k].pub, pub, sizeof pub) == 0)
                out[(*n)++] = keys[i];
    }
    return out;
}

/* The index on disk is the one that was opened: nobody published another meanwhile. */
static int unchanged(ht_store *s, ht_err *e)
{
    const char *text;
    uint64_t n;
    ht_dsse env;
    uint8_t digest[HT_SHA256_BYTES];
    char sha[HT_SHA256_HEX];
    bool same = !s->has_index && !route__exists(s->dir, "index.dsse.json");
    if (s->has_index) {
        HT_TRY(ht_read_under(s->a, s->dir, "index.dsse.json", HT_STORE_FILE, &text, &n, e));
        HT_TRY(ht_dsse_parse(s->a, text, n, &env, e));
        HT_TRY(ht_sha256_of(env.payload, env.n, digest, e));
        ht_hex(digest, sizeof digest, sha);
        same = strcmp(sha, s->index.sha256) == 0;
    }
    return same ? 0
                : HT_FAIL(e, HT_EGATE,
                          "CHANGED_MEANWHILE: another command has changed the index of %s; "
                          "nothing is lost, run this one again",
                          s->dir);
}

static int replace_index(ht_store *s, const ht_buf *env, ht_err *e)
{
    int fd;
    HT_TRY(lock(s->dir, &fd, e));
    int rc = unchanged(s, e);
    if (rc == 0) rc = route__put(s->dir, "index.dsse.json", env->p, env->n, e);
    close(fd);
    return rc;
}

/* Sign `next` as the successor of the index in force, write it, open it again as any reader
 * would. */
static int publish(ht_store *s, ht_index *next, const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    size_t n;
    const ht_key **signer = route__with_role(s, HT_ROLE_INDEX, keys, n_keys, &n);
    if (!signer) return HT_FAIL(e, HT_ENOMEM, "index: no memory");
    if (n == 0)
        return HT_FAIL(e, HT_EGATE,
                       "BAD_SIGNATURE: none of the keys has the role index; name one "
                       "with --key");
    next->version = s->has_index ? s->index.version + 1 : 1;
    memcpy(next->prev, s->has_index ? s->index.sha256 : zeros, HT_SHA256_HEX);
    next->issued_unix = s->now_unix;
    next->expires_unix = s->now_unix + (int64_t)HT_STORE_DAYS * 86400;
    ht_index_sort(next);
    ht_buf b, env;
    ht_buf_init(&b, HT_STORE_FILE);
    ht_buf_init(&env, HT_STORE_FILE);
    int rc = ht_index_write(next, &b, e);
    if (rc == 0) rc = ht_dsse_sign(b.p, b.n, HT_INDEX_TYPE, signer, n, &env, e);
    if (rc == 0) rc = replace_index(s, &env, e);
    ht_buf_done(&b);
    ht_buf_done(&env);
    return rc ? rc : load_index(s, e);
}

/* A copy of the index in force with room for more. */
static int copy_index(ht_store *s, size_t more_entries, size_t more_tombs, ht_index *out, ht_err *e)
{
    *out = (ht_index){.n_entries = s->index.n_entries, .n_tombs = s->index.n_tombs};
    out->entry = ht_arena_array(s->a, out->n_entries + more_entries, sizeof *out->entry);
    out->tomb = ht_arena_array(s->a, out->n_tombs + more_tombs, sizeof *out->tomb);
    if (!out->entry || !out->tomb) return HT_FAIL(e, HT_ENOMEM, "index: no memory");
    if (out->n_entries) memcpy(out->entry, s->index.entry, out->n_entries * sizeof *out->entry);
    if (out->n_tombs) memcpy(out->tomb, s->index.tomb, out->n_tombs * sizeof *out->tomb);
    return 0;
}

int ht_store_may_nominate(const ht_store *s, const char *scope_sha, ht_err *e)
{
    for (size_t i = 0; i < s->index.n_entries; i++) {
        const ht_index_entry *t = &s->index.entry[i];
        if (t->state != HT_ST_NEGATIVE || strcmp(t->scope_sha, scope_sha) != 0) continue;
        return HT_FAIL(e, HT_EGATE,
                       "NEGATIVE: scope %.16s... failed in bundle %.16s...; another model, binary, "
                       "machine or setting is another scope, the same one is not measured again",
                       scope_sha, t->bundle_id);
    }
    return 0;
}

/* The newest evidence says that this scope is worse: what was promoted for it is set aside. */
static int set_aside(ht_index *next, const char *scope_sha, ht_err *e)
{
    for (size_t i = 0; i < next->n_entries; i++) {
        ht_index_entry *t = &next->entry[i];
        if (strcmp(t->scope_sha, scope_sha) != 0 || t->state != HT_ST_PROMOTED) continue;
        HT_TRY(ht_index_entry_sha256(t, t->prev, e));
        t->state = HT_ST_QUARANTINED;
    }
    return 0;
}

int route__admit(ht_store *s, const ht_index_entry *add, size_t n, const ht_key *const *keys,
                 size_t n_keys, ht_err *e)
{
    ht_index next;
    HT_TRY(copy_index(s, n, 0, &next, e));
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        if (add[i].state == HT_ST_NEGATIVE) HT_TRY(set_aside(&next, add[i].scope_sha, e));
        else HT_TRY(ht_store_may_nominate(s, add[i].scope_sha, e));
        while (k < next.n_entries && (strcmp(next.entry[k].scope_sha, add[i].scope_sha) != 0 ||
                                      strcmp(next.entry[k].bundle_id, add[i].bundle_id) != 0))
            k++;
        if (k < next.n_entries && next.entry[k].state == HT_ST_NEGATIVE &&
            add[i].state == HT_ST_NEGATIVE)
            continue; /* it stands there already */
        if (k < next.n_entries && next.entry[k].state == HT_ST_PROMOTED)
            return HT_FAIL(e, HT_EGATE, "this bundle is promoted already");
        if (k < next.n_entries)
            return HT_FAIL(e, HT_EGATE, "a %s entry is restored by a new bundle only",
                           ht_state_name(next.entry[k].state));
        next.entry[next.n_entries] = add[i];
        memcpy(next.entry[next.n_entries++].prev, zeros, sizeof zeros);
    }
    return publish(s, &next, keys, n_keys, e);
}

int ht_store_revoke(ht_store *s, const char *bundle_id, const char *reason,
                    const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    ht_index next;
    if (ht_index_tomb(&s->index, bundle_id))
        return HT_FAIL(e, HT_EARG, "bundle %.16s... is revoked already", bundle_id);
    HT_TRY(copy_index(s, 0, 1, &next, e));
    size_t kept = 0;
    for (size_t i = 0; i < next.n_entries; i++) {
        if (strcmp(next.entry[i].bundle_id, bundle_id) == 0) continue;
        next.entry[kept++] = next.entry[i];
    }
    if (kept == next.n_entries)
        return HT_FAIL(e, HT_EARG, "no route cites bundle %.16s...; hetero routes lists them",
                       bundle_id);
    next.n_entries = kept;
    ht_tombstone *t = &next.tomb[next.n_tombs++];
    memcpy(t->bundle_id, bundle_id, HT_SHA256_HEX);
    t->reason = reason;
    t->since = s->index.version + 1;
    return publish(s, &next, keys, n_keys, e);
}

int ht_store_demote(ht_store *s, const char *bundle_id, int state, const ht_key *const *keys,
                    size_t n_keys, ht_err *e)
{
    ht_index next;
    size_t hit = 0;
    HT_TRY(copy_index(s, 0, 0, &next, e));
    for (size_t i = 0; i < next.n_entries; i++) {
        ht_index_entry *t = &next.entry[i];
        if (strcmp(t->bundle_id, bundle_id) != 0) continue;
        /* Promotion takes two keys and a verified bundle: it is no demotion. */
        if (state == HT_ST_PROMOTED || !ht_state_may(t->state, state))
            return HT_FAIL(e, HT_EGATE, "a %s route cannot become %s", ht_state_name(t->state),
                           ht_state_name(state));
        HT_TRY(ht_index_entry_sha256(t, t->prev, e));
        t->state = (uint8_t)state;
        hit++;
    }
    if (!hit)
        return HT_FAIL(e, HT_EARG, "no route cites bundle %.16s...; hetero routes lists them",
                       bundle_id);
    return publish(s, &next, keys, n_keys, e);
}

/* The newest HT_AMENDMENTS of an entry, this one last. */
static int add_amendment(ht_store *s, ht_index_entry *t, const char *sha, ht_err *e)
{
    char(*list)[HT_SHA256_HEX] = ht_arena_array(s->a, HT_AMENDMENTS, sizeof *list);
    const size_t from = t->n_amendments < HT_AMENDMENTS ? 0 : t->n_amendments - HT_AMENDMENTS + 1;
    size_t n = 0;
    if (!list) return HT_FAIL(e, HT_ENOMEM, "amendment: no memory");
    for (size_t i = from; i < t->n_amendments; i++)
        if (strcmp(t->amendment[i], sha) != 0) memcpy(list[n++], t->amendment[i], HT_SHA256_HEX);
    memcpy(list[n++], sha, HT_SHA256_HEX);
    HT_TRY(ht_index_entry_sha256(t, t->prev, e));
    t->amendment = (const char(*)[HT_SHA256_HEX])list;
    t->n_amendments = n;
    return 0;
}

static int admit_amendment(ht_store *s, const ht_amendment *x, const char *text, size_t n,
                           const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    ht_index next;
    size_t hit = 0;
    const char *path =
        ht_arena_printf(s->a, "bundles/%s/amendments/%s.dsse.json", x->bundle_id, x->sha256);
    if (!path) return HT_FAIL(e, HT_ENOMEM, "amendment: no memory");
    HT_TRY(copy_index(s, 0, 0, &next, e));
    for (size_t i = 0; i < next.n_entries; i++) {
        ht_index_entry *t = &next.entry[i];
        if (strcmp(t->bundle_id, x->bundle_id) != 0 || t->state != HT_ST_PROMOTED) continue;
        HT_TRY(add_amendment(s, t, x->sha256, e));
        hit++;
    }
    if (!hit)
        return HT_FAIL(e, HT_EGATE,
                       "NOT_PROMOTED: no promoted route cites bundle %.16s...; an amendment "
                       "restores, it does not admit",
                       x->bundle_id);
    HT_TRY(route__put(s->dir, path, text, n, e));
    return publish(s, &next, keys, n_keys, e);
}

int ht_store_amend(ht_store *s, const char *bundle_dir, const char *text, size_t n,
                   const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    ht_verified v;
    ht_amendment x;
    HT_TRY(ht_bundle_verify(s->a, bundle_dir, &s->trust, s->now_unix, &v, e));
    HT_TRY(ht_amendment_verify(s->a, text, n, &s->trust, s->now_unix, &v, &x, e));
    if (strcmp(x.policy_sha, s->policy.sha256) != 0)
        return HT_FAIL(e, HT_EGATE, "OTHER_POLICY: the bundle was judged by another policy");
    if (x.result == HT_CANARY_NOT_ADMISSIBLE)
        return HT_FAIL(e, HT_EGATE,
                       "NOT_ADMISSIBLE_ENV: a guard was red or unknown while the canary ran; "
                       "nothing is changed, run it again on a quiet machine");
    if (x.result == HT_CANARY_PASSED) return admit_amendment(s, &x, text, n, keys, n_keys, e);
    HT_TRY(ht_store_revoke(s, x.bundle_id, "CANARY_FAILED", keys, n_keys, e));
    return HT_FAIL(e, HT_EGATE,
                   "CANARY_FAILED: in the machine's new state the route is not what its bundle "
                   "says; it is revoked, measure it anew: hetero qualify");
}

int ht_store_renew(ht_store *s, const ht_key *const *keys, size_t n_keys, ht_err *e)
{
    ht_index next;
    HT_TRY(copy_index(s, 0, 0, &next, e));
    return publish(s, &next, keys, n_keys, e);
}

int ht_store_mark(const ht_store *s, const char *bundle_id, const char *why, int64_t now, ht_err *e)
{
    char path[128], utc[21];
    ht_buf b;
    ht_jw w;
    if (!ht_is_sha256(bundle_id, strlen(bundle_id)))
        return HT_FAIL(e, HT_EARG, "quarantine: '%.70s' is no bundle id", bundle_id);
    (void)snprintf(path, sizeof path, "quarantine/%s.json", bundle_id);
    ht_utc_format(now, utc);
    ht_buf_init(&b, 1 << 12);
    ht_jw_init(&w, &b, HT_JSON_CANON);
    ht_jw_obj(&w);
    ht_jw_kstr(&w, "bundleId", bundle_id);
    ht_jw_kstr(&w, "reason", why);
    ht_jw_kstr(&w, "schema", "hetero/quarantine/1");
    ht_jw_kstr(&w, "utc", utc);
    ht_jw_end(&w, '}');
    int rc = ht_buf_ok(&b, "quarantine", e);
    if (!rc) rc = route__put(s->dir, path, b.p, b.n, e);
    ht_buf_done(&b);
    return rc;
}
