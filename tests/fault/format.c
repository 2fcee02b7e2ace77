/* format.c - the n-th allocation fails, for every n, while a model of each kind is opened, verified
 * and closed, and while a pack is written. Each failure is HT_ENOMEM with a message, leaves no
 * memory and no file behind, and the next attempt works. */
#include "core/arena.h"
#include "core/hash.h"
#include "format/pack.h"
#include "format/trust.h"
#include "test.h"
#include <unistd.h>

static const char *subject;

static int open_and_verify(ht_err *err)
{
    ht_file *f = NULL;
    char hex[65];
    int rc = ht_file_open(&f, subject, NULL, err);
    if (!rc) rc = ht_file_verify(f, NULL, NULL, hex, err);
    T_CHECK(!rc || !f || rc == HT_ENOMEM, "%s: %d %s", subject, rc, err->msg);
    ht_file_close(f);
    return rc;
}

static int write_pack(ht_err *err)
{
    const uint64_t dim[2] = {4, 32};
    float w[128] = {1, 2, 3};
    ht_arena *a = NULL;
    ht_packer *p = NULL;
    int rc = ht_arena_new(&a, 0, err);
    if (rc) return rc;
    ht_json *model = ht_json_new(a, HT_JOBJ), *one = ht_json_new_int(a, 1);
    if (!model || !one) {
        ht_arena_free(a);
        return HT_FAIL(err, HT_ENOMEM, "no memory for the test's own header");
    }
    ht_json_add(a, model, "x", one);
    rc = ht_packer_new(&p, subject, err);
    if (!rc) rc = ht_packer_header(p, model, err);
    if (!rc) rc = ht_packer_blob(p, "tokenizer", "abc", 3, err);
    if (!rc) rc = ht_packer_tensor(p, "w", "", HT_F32, HT_LAYOUT_ROWS, 2, dim, err);
    if (!rc) rc = ht_packer_write(p, w, sizeof w, err);
    if (rc) ht_packer_abort(p);
    else rc = ht_packer_end(p, NULL, err);
    ht_arena_free(a);
    return rc;
}

/* Walk job over n = 1, 2, ... until it succeeds; returns how many allocations failed. */
static unsigned walk(int (*job)(ht_err *), unsigned limit)
{
    ht_err err = {0};
    T_OK(job(&err), err);
    uint64_t before = ht_alloc_live();
    for (unsigned n = 1; n <= limit; n++) {
        err = (ht_err){0};
        ht_alloc_fail_at(n);
        int rc = job(&err);
        ht_alloc_fail_at(0);
        T_CHECK(ht_alloc_live() == before, "allocation %u: %llu stay", n,
                (unsigned long long)(ht_alloc_live() - before));
        if (!rc) return n - 1;
        T_CHECK(rc == HT_ENOMEM && err.code == rc && err.msg[0], "allocation %u: %d \"%s\"", n, rc,
                err.msg);
    }
    T_CHECK(false, "%u allocations and still no end", limit);
    return limit;
}

T_CASE(fault_format, open)
{
    static const char *const path[] = {
        "tests/data/malformed/gguf/good_v3.gguf",
        "tests/data/malformed/gguf/good_vocab_only.gguf",
        "tests/data/malformed/split/good-00001-of-00002.gguf",
        "tests/data/malformed/hf/good",
        "tests/data/malformed/hf/good_sharded",
        "tests/data/malformed/hf/good_template_json",
        "tests/data/malformed/pack/good.htpack",
        "tests/data/malformed/tokjson/good.json",
    };
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        subject = path[i];
        unsigned n = walk(open_and_verify, 500);
        T_CHECK(n >= 5, "%s: only %u allocations were met", path[i], n);
    }
}

T_CASE(fault_format, write)
{
    char path[512], command[600];
    snprintf(path, sizeof path, "%s/x.htpack", t_tmp());
    subject = path;
    unsigned n = walk(write_pack, 500);
    T_CHECK(n >= 10, "only %u allocations were met", n);
    T_CHECK(unlink(path) == 0, "%s", "the last attempt wrote the pack");
    snprintf(command, sizeof command, "test -z \"$(ls -A '%s')\"", t_tmp());
    T_CHECK(system(command) == 0, "%s", "a temporary file was left behind");
}

static int trust(ht_err *err)
{
    ht_file *f = NULL;
    char list[512], hex[65];
    snprintf(list, sizeof list, "%s/trusted", t_tmp());
    int rc = ht_file_open(&f, "tests/data/malformed/pack/good.htpack", NULL, err);
    if (!rc) ht_hex(ht_file_sha256(f), 32, hex);
    if (!rc) rc = ht_file_record(f, list, hex, err);
    /* Without memory the list reads as empty: the pack is hashed again, nothing worse. */
    if (!rc) (void)ht_pack_trusted(f, list);
    ht_file_close(f);
    return rc;
}

/* An allocation that only the reading of the list makes may fail unseen, so success does not end
 * the walk: a fixed number of steps, more than there are allocations. */
T_CASE(fault_format, trust)
{
    ht_err err = {0};
    unsigned failed = 0;
    T_OK(trust(&err), err);
    uint64_t before = ht_alloc_live();
    uint64_t base = ht_alloc_count();
    T_OK(trust(&err), err);
    unsigned total = (unsigned)(ht_alloc_count() - base);
    for (unsigned n = 1; n <= total; n++) {
        ht_alloc_fail_at(n);
        int rc = trust(&err);
        ht_alloc_fail_at(0);
        T_CHECK(rc == 0 || rc == HT_ENOMEM, "allocation %u: %d %s", n, rc, err.msg);
        failed += rc != 0;
        T_CHECK(ht_alloc_live() == before, "allocation %u: %llu stay", n,
                (unsigned long long)(ht_alloc_live() - before));
    }
    T_CHECK(failed + 4 >= total, "%u of %u failures were reported", failed, total);
}
