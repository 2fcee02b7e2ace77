/* pack.c - writing a pack and reading it back: equal bytes for equal contents, both
 * representations, every misuse refused, nothing left behind; and the list of trusted packs. */
#include "format/pack.h"
#include "core/hash.h"
#include "format/trust.h"
#include "quant/r16.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

static const char *path_of(const char *name)
{
    static char ring[4][512];
    static unsigned at;
    char *p = ring[at++ % 4];
    snprintf(p, sizeof ring[0], "%s/%s", t_tmp(), name);
    return p;
}

typedef struct {
    ht_arena *arena;
    ht_packer *p;
    ht_err e;
} maker;

/* A packer with its model header. */
static maker begin(const char *path)
{
    maker m = {0};
    T_OK(ht_arena_new(&m.arena, 0, &m.e), m.e);
    ht_json *h = ht_json_new(m.arena, HT_JOBJ);
    ht_json_add(m.arena, h, "layers", ht_json_new_int(m.arena, 3));
    ht_json_add(m.arena, h, "arch", ht_json_new_str(m.arena, "llama", 5));
    T_OK(ht_packer_new(&m.p, path, &m.e), m.e);
    T_OK(ht_packer_header(m.p, h, &m.e), m.e);
    return m;
}
static void end(maker *m, char hex[65])
{
    T_OK(ht_packer_end(m->p, hex, &m->e), m->e);
    ht_arena_free(m->arena);
}

enum { ROWS = 33, COLS = 64 };
static const uint64_t matrix[2] = {ROWS, COLS}, stack[3] = {2, ROWS, COLS}, vector[1] = {COLS};

/* Two blobs, a vector, a matrix in two representations, a stack of two; data in pieces of
 * `piece`. */
static void make(const char *path, size_t piece, char hex[65])
{
    static float w[2 * ROWS * COLS];
    static uint8_t q[2 * ROWS * COLS * 2];
    uint64_t seed = 3, n;
    maker m = begin(path);
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = t_randf(&seed);
    T_OK(ht_packer_blob(m.p, "tokenizer", "tok\0en", 6, &m.e), m.e);
    T_OK(ht_packer_blob(m.p, "template", "", 0, &m.e), m.e);
    T_OK(ht_packer_tensor(m.p, "norm", "", HT_F32, HT_LAYOUT_ROWS, 1, vector, &m.e), m.e);
    T_OK(ht_packer_tensor(m.p, "w", "", HT_F32, HT_LAYOUT_ROWS, 2, matrix, &m.e), m.e);
    T_OK(ht_packer_tensor(m.p, "w", "q8", HT_Q8_0, HT_LAYOUT_R16, 2, matrix, &m.e), m.e);
    T_OK(ht_packer_tensor(m.p, "e", "", HT_Q4_0, HT_LAYOUT_R16, 3, stack, &m.e), m.e);
    const struct {
        const void *p;
        size_t n;
    } data[] = {{w, 4 * COLS}, {w, 4 * ROWS * COLS}};
    for (int k = 0; k < 2; k++)
        for (size_t at = 0; at < data[k].n; at += piece) {
            size_t left = data[k].n - at;
            T_OK(ht_packer_write(m.p, (const char *)data[k].p + at, left < piece ? left : piece,
                                 &m.e),
                 m.e);
        }
    T_TRUE(ht_r16_bytes(HT_Q8_0, ROWS, COLS, &n));
    ht_types[HT_Q8_0].encode(w, q, ROWS * COLS);
    uint8_t *r16 = calloc(1, n);
    ht_r16_pack(HT_Q8_0, q, ROWS, COLS, 0, (ROWS + 15) / 16, r16);
    T_OK(ht_packer_write(m.p, r16, n, &m.e), m.e);
    free(r16);
    T_TRUE(ht_r16_bytes(HT_Q4_0, ROWS, COLS, &n));
    r16 = calloc(2, n);
    for (int k = 0; k < 2; k++) {
        ht_types[HT_Q4_0].encode(w + k * ROWS * COLS, q, ROWS * COLS);
        ht_r16_pack(HT_Q4_0, q, ROWS, COLS, 0, (ROWS + 15) / 16, r16 + (size_t)k * n);
    }
    T_OK(ht_packer_write(m.p, r16, 2 * n, &m.e), m.e);
    free(r16);
    end(&m, hex);
}

T_CASE(pack, round_trip)
{
    char hex[65], verified[65], own[65];
    const char *path = path_of("a.htpack");
    ht_file *f;
    ht_err e = {0};
    size_t n;
    uint64_t want;
    make(path, 1000, hex);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_EQ_INT(ht_file_kind(f), HT_FILE_PACK);
    T_EQ_INT(ht_file_n_tensors(f), 4);
    T_CHECK(!memcmp(ht_file_blob(f, "tokenizer", &n), "tok\0en", 6) && n == 6, "tokenizer");
    T_CHECK(ht_file_blob(f, "template", &n) && n == 0, "empty template");
    T_CHECK(!ht_file_blob(f, "other", &n) && n == 0, "no such blob");
    T_EQ_INT(ht_json_path(ht_file_header(f), "model.layers")->i, 3);
    const ht_tensor *w = ht_file_find(f, "w"), *alt = ht_pack_find(f, "w", "q8");
    T_CHECK(w && alt && w != alt && w == ht_pack_find(f, "w", ""), "both representations");
    T_CHECK(!ht_pack_find(f, "w", "q4") && !ht_pack_find(f, "x", "") && !ht_pack_find(f, NULL, ""),
            "no others");
    T_EQ_INT(w->bytes, 4 * ROWS * COLS);
    T_EQ_INT(alt->layout, HT_LAYOUT_R16);
    T_TRUE(ht_r16_bytes(HT_Q8_0, ROWS, COLS, &want));
    T_EQ_INT(alt->bytes, want);
    T_TRUE(ht_r16_bytes(HT_Q4_0, ROWS, COLS, &want));
    T_EQ_INT(ht_file_find(f, "e")->bytes, 2 * want);
    uint64_t seed = 3;
    for (int i = 0; i < ROWS * COLS; i++) {
        float v;
        memcpy(&v, (const char *)w->data + 4 * i, 4);
        T_CHECK(v == t_randf(&seed), "element %d", i);
    }
    for (size_t i = 0; i < 4; i++)
        T_CHECK((uintptr_t)ht_file_tensor(f, i)->data % HT_PACK_ALIGN == 0 &&
                    ht_file_tensor(f, i)->sha256,
                "tensor %zu", i);
    T_OK(ht_file_verify(f, NULL, NULL, verified, &e), e);
    T_EQ_STR(verified, hex);
    ht_hex(ht_file_sha256(f), 32, own);
    T_EQ_STR(own, hex);
    ht_file_close(f);
}

/* The bytes are a function of the contents: not of the path, the time or how the data came. */
T_CASE(pack, same_bytes)
{
    char a[65], b[65];
    size_t an, bn;
    make(path_of("one.htpack"), 7, a);
    make(path_of("two-with-a-longer-name.htpack"), 1 << 20, b);
    T_EQ_STR(a, b);
    char *x = t_slurp(path_of("one.htpack"), &an),
         *y = t_slurp(path_of("two-with-a-longer-name.htpack"), &bn);
    T_EQ_INT(an, bn);
    T_EQ_MEM(x, y, an);
    T_EQ_MEM(x, HT_PACK_MAGIC, 8);
    T_EQ_INT(an % HT_PACK_ALIGN, 0);
    free(x);
    free(y);
}

/* Every single byte is covered: flip any and either opening or verifying refuses. */
T_CASE(pack, every_byte)
{
    size_t n;
    ht_err e = {0};
    const char *path = path_of("flip.htpack");
    char *b = t_slurp("tests/data/malformed/pack/good.htpack", &n);
    for (size_t i = 0; i < n; i++) {
        ht_file *f;
        b[i] = (char)(b[i] ^ 1);
        t_spit(path, b, n);
        int rc = ht_file_open(&f, path, NULL, &e);
        if (!rc) {
            rc = ht_file_verify(f, NULL, NULL, NULL, &e);
            ht_file_close(f);
        }
        T_CHECK(rc < 0, "byte %zu of %zu changed unnoticed", i, n);
        b[i] = (char)(b[i] ^ 1);
    }
    free(b);
}

static void nothing_left(void)
{
    char command[600];
    snprintf(command, sizeof command, "test -z \"$(ls -A '%s')\"", t_tmp());
    T_CHECK(system(command) == 0, "%s", "a file was left behind");
}

T_CASE(pack, misuse)
{
    ht_err e = {0};
    ht_packer *p;
    float x[COLS] = {0};
    const char *path = path_of("bad.htpack");
    T_ERR(ht_packer_new(&p, path_of("no/such/dir/x"), &e), HT_EIO, e,
          "cannot create a temporary file");
    T_ERR(ht_packer_new(&p, "", &e), HT_EARG, e, "no path");

    T_OK(ht_packer_new(&p, path, &e), e);
    T_ERR(ht_packer_end(p, NULL, &e), HT_EARG, e, "no model header");

    maker m = begin(path);
    T_ERR(ht_packer_blob(m.p, "two words", "", 0, &e), HT_EARG, e, "no word");
    T_ERR(ht_packer_tensor(m.p, "v", "much-too-long-a-name", HT_F32, 0, 1, vector, &e), HT_EARG, e,
          "no word");
    T_ERR(ht_packer_tensor(m.p, "v", "", HT_TYPES, 0, 1, vector, &e), HT_EARG, e, "tensor v: type");
    T_ERR(ht_packer_tensor(m.p, "v", "", HT_Q4_K, 0, 1, vector, &e), HT_EFORMAT, e,
          "multiple of 256");
    T_ERR(ht_packer_tensor(m.p, "v", "", HT_F32, HT_LAYOUT_R16, 1, vector, &e), HT_EFORMAT, e,
          "needs rows and columns");
    T_OK(ht_packer_tensor(m.p, "v", "", HT_F32, 0, 1, vector, &e), e);
    T_ERR(ht_packer_blob(m.p, "late", "", 0, &e), HT_EARG, e, "after a tensor");
    T_OK(ht_packer_write(m.p, x, 100, &e), e);
    T_ERR(ht_packer_tensor(m.p, "w", "", HT_F32, 0, 1, vector, &e), HT_EARG, e, "after data");
    T_ERR(ht_packer_write(m.p, x, sizeof x, &e), HT_EARG, e, "256 bytes were declared");
    T_ERR(ht_packer_end(m.p, NULL, &e), HT_EARG, e, "tensor v: 100 of 256 bytes");
    ht_arena_free(m.arena);

    m = begin(path);
    T_OK(ht_packer_tensor(m.p, "v", "", HT_F32, 0, 1, vector, &e), e);
    T_OK(ht_packer_tensor(m.p, "v", "", HT_F32, 0, 1, vector, &e), e);
    T_ERR(ht_packer_write(m.p, x, sizeof x, &e), HT_EARG, e, "tensor v  was declared twice");
    ht_packer_abort(m.p);
    ht_arena_free(m.arena);
    ht_packer_abort(NULL);
    nothing_left();
}

T_CASE(pack, header_must_be_canonical)
{
    maker m = {0};
    T_OK(ht_arena_new(&m.arena, 0, &m.e), m.e);
    ht_json *h = ht_json_new(m.arena, HT_JOBJ), *real = ht_json_new(m.arena, HT_JREAL);
    ht_json_add(m.arena, h, "x", real);
    T_OK(ht_packer_new(&m.p, path_of("real.htpack"), &m.e), m.e);
    T_CHECK(ht_packer_header(m.p, h, &m.e) < 0, "a real number in a canonical header");
    T_ERR(ht_packer_header(m.p, real, &m.e), HT_EARG, m.e, "not an object");
    ht_packer_abort(m.p);
    ht_arena_free(m.arena);
    nothing_left();
}

T_CASE(trust, remembers)
{
    char hex[65], list[512];
    const char *path = path_of("t.htpack");
    ht_file *f;
    ht_err e = {0};
    struct stat st;
    snprintf(list, sizeof list, "%s", path_of("cache/trusted"));
    make(path, 4096, hex);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_CHECK(!ht_pack_trusted(f, list) && !ht_pack_trusted(f, NULL),
            "trusted before it was verified");
    T_OK(ht_file_record(f, list, hex, &e), e);
    T_CHECK(ht_pack_trusted(f, list), "not trusted after");
    T_OK(ht_file_record(f, list, hex, &e), e); /* again: one line, not two */
    ht_file_close(f);
    size_t n, lines = 0;
    char *text = t_slurp(list, &n);
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    T_EQ_INT(lines, 1);
    T_CHECK(!strncmp(text, hex, 64), "the line begins with the digest");
    free(text);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_CHECK(ht_pack_trusted(f, list), "not trusted by another open");
    ht_file_close(f);
    /* Touched: the same bytes, but no longer the state that was hashed. */
    char *b = t_slurp(path, &n);
    usleep(20000);
    t_spit(path, b, n);
    free(b);
    T_OK(ht_file_open(&f, path, NULL, &e), e);
    T_CHECK(!ht_pack_trusted(f, list), "trusted after a rewrite");
    T_OK(ht_file_record(f, list, hex, &e), e);
    T_CHECK(ht_pack_trusted(f, list), "trusted anew");
    /* A list that others may write proves nothing. */
    T_CHECK(chmod(list, 0666) == 0 && !ht_pack_trusted(f, list), "a list open to all was believed");
    T_CHECK(stat(list, &st) == 0, "the list is still there");
    ht_file_close(f);
}

T_CASE(trust, list_that_cannot_be_written)
{
    char hex[65];
    ht_file *f;
    ht_err e = {0};
    make(path_of("u.htpack"), 4096, hex);
    T_OK(ht_file_open(&f, path_of("u.htpack"), NULL, &e), e);
    T_ERR(ht_file_record(f, "/proc/no/such/list", hex, &e), HT_EIO, e, "hashed again next time");
    T_ERR(ht_file_record(f, NULL, hex, &e), HT_EARG, e, "no path");
    T_CHECK(!ht_pack_trusted(f, "/proc/no/such/list"), "trusted by nothing");
    t_spit(path_of("garbage"), "\n\nnot a list\n\xff\xff\n", 16);
    T_CHECK(!ht_pack_trusted(f, path_of("garbage")), "trusted by garbage");
    T_OK(ht_file_record(f, path_of("garbage"), hex, &e), e);
    T_CHECK(ht_pack_trusted(f, path_of("garbage")), "garbage was replaced");
    ht_file_close(f);
    T_OK(ht_file_open(&f, "tests/data/malformed/gguf/good_v3.gguf", NULL, &e), e);
    char gguf[65], found[65];
    T_CHECK(!ht_file_recorded(f, path_of("garbage"), found), "known before it was hashed");
    T_OK(ht_file_verify(f, NULL, NULL, gguf, &e), e);
    T_OK(ht_file_record(f, path_of("garbage"), gguf, &e), e);
    T_CHECK(ht_file_recorded(f, path_of("garbage"), found), "not known after");
    T_EQ_STR(found, gguf);
    T_CHECK(!ht_pack_trusted(f, path_of("garbage")), "a GGUF is no pack");
    ht_file_close(f);
}

/* Giving the finished pack its name must replace a file, never a device, a pipe or a folder; and a
 * link leads to the file that is meant. */
T_CASE(pack, only_files_are_replaced)
{
    ht_err e = {0};
    ht_packer *p = NULL;
    char hex[65];
    struct stat st;
    T_ERR(ht_packer_new(&p, "/dev/full", &e), HT_EARG, e, "no regular file");
    T_EQ_INT(stat("/dev/full", &st), 0);
    T_TRUE(S_ISCHR(st.st_mode));
    T_ERR(ht_packer_new(&p, t_tmp(), &e), HT_EARG, e, "a folder");
    const char *file = path_of("end.htpack"), *link = path_of("link.htpack");
    t_spit(file, "old", 3);
    T_EQ_INT(symlink("end.htpack", link), 0);
    make(link, SIZE_MAX, hex);
    T_EQ_INT(lstat(link, &st), 0);
    T_TRUE(S_ISLNK(st.st_mode));
    ht_file *f = NULL;
    T_OK(ht_file_open(&f, file, NULL, &e), e);
    ht_file_close(f);
}

/* The pack must not go over what it is made from, by whatever name. */
T_CASE(pack, the_source_is_no_target)
{
    ht_err e = {0};
    ht_file *f = NULL;
    char hex[65];
    make(path_of("a.htpack"), SIZE_MAX, hex);
    T_OK(ht_file_open(&f, path_of("a.htpack"), NULL, &e), e);
    T_EQ_INT(link(path_of("a.htpack"), path_of("hard")), 0);
    T_EQ_INT(symlink("a.htpack", path_of("soft")), 0);
    T_ERR(ht_packer_check(path_of("a.htpack"), f, &e), HT_EARG, e, "of the source itself");
    T_ERR(ht_packer_check(path_of("hard"), f, &e), HT_EARG, e, "of the source itself");
    T_ERR(ht_packer_check(path_of("soft"), f, &e), HT_EARG, e, "of the source itself");
    T_OK(ht_packer_check(path_of("new"), f, &e), e);
    make(path_of("b.htpack"), SIZE_MAX, hex);
    T_OK(ht_packer_check(path_of("b.htpack"), f, &e), e);
    ht_file_close(f);
    T_OK(ht_file_open(&f, "tests/data/malformed/hf/good", NULL, &e), e);
    T_ERR(ht_packer_check("tests/data/malformed/hf/good/config.json", f, &e), HT_EARG, e,
          "of the source itself");
    T_ERR(ht_packer_check("tests/data/malformed/hf/good/model.safetensors", f, &e), HT_EARG, e,
          "of the source itself");
    T_OK(ht_packer_check("tests/data/malformed/hf/good/new.htpack", f, &e), e);
    ht_file_close(f);
}

/* The list of trusted packs is kept where no folder of its path exists yet. */
T_CASE(pack, trust_makes_every_folder)
{
    ht_err e = {0};
    ht_file *f = NULL;
    char hex[65];
    make(path_of("a.htpack"), SIZE_MAX, hex);
    T_OK(ht_file_open(&f, path_of("a.htpack"), NULL, &e), e);
    const char *list = path_of("home/.cache/hetero/packs");
    T_OK(ht_file_record(f, list, hex, &e), e);
    T_TRUE(ht_pack_trusted(f, list));
    ht_file_close(f);
}
