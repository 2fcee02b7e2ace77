/* env.c - the fingerprint: recorded and made-up machines read as what they are; what is not there
 * is absent, what may not be read is unreadable and matches nothing; nothing private is stored. */
#include "evid/env.h"
#include "core/cpu.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

static ht_arena *arena(void)
{
    ht_arena *a = NULL;
    ht_err e = {0};
    T_OK(ht_arena_new(&a, 0, &e), e);
    return a;
}

static void make_dirs(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
}

/* Unpacks tests/data/evid/machine/NAME.txt below the case's folder; gives the root. */
static const char *unpack(const char *name)
{
    static char root[256];
    char path[1024], line[4096];
    snprintf(path, sizeof path, "tests/data/evid/machine/%s.txt", name);
    snprintf(root, sizeof root, "%s/%s", t_tmp(), name);
    FILE *in = fopen(path, "r"), *out = NULL;
    T_CHECK(in, "%s is missing", path);
    chmod(t_tmp(), 0755);
    while (fgets(line, sizeof line, in)) {
        bool shut = strncmp(line, "!!! ", 4) == 0;
        if (shut || strncmp(line, "=== ", 4) == 0) {
            if (out) fclose(out);
            line[strcspn(line, "\n")] = 0;
            snprintf(path, sizeof path, "%s%.600s", root, line + 4);
            make_dirs(path);
            out = fopen(path, "w");
            T_CHECK(out, "cannot make %s", path);
            if (shut) chmod(path, 0);
        } else if (out) {
            fputs(line, out);
        }
    }
    if (out) fclose(out);
    fclose(in);
    /* Root may read everything: be somebody else for the rest of this case's process. */
    if (geteuid() == 0) T_EQ_INT(seteuid(65534), 0);
    return root;
}

static const ht_json *read_machine(ht_arena *a, const char *root, const ht_gpus *gpus)
{
    ht_json *doc = NULL;
    ht_err e = {0};
    const ht_machine_source src = {.root = root, .gpus = gpus};
    T_OK(ht_machine_read(a, &src, &doc, &e), e);
    T_OK(ht_machine_check(doc, &e), e);
    return doc;
}

static const char *at(ht_arena *a, const ht_json *doc, const char *path)
{
    return ht_machine_leaf_text(a, ht_json_path(doc, path));
}

T_CASE(env, zen3_vm)
{
    ht_arena *a = arena();
    const ht_json *d = read_machine(a, unpack("zen3-vm"), NULL);
    T_EQ_STR(at(a, d, "reject.cpuVendor"), "AuthenticAMD");
    T_EQ_STR(at(a, d, "reject.cpuFamily"), "25");
    T_EQ_STR(at(a, d, "reject.cpuModel"), "1");
    T_EQ_STR(at(a, d, "record.cpuName"), "AMD EPYC");
    T_EQ_STR(at(a, d, "reject.isa"), "avx2");
    T_EQ_STR(at(a, d, "reject.cores"), "capacity 1024 2 cores 2 threads");
    T_EQ_STR(at(a, d, "reject.caches"),
             "2x L1d 32K of 1; 2x L1i 32K of 1; 2x L2 512K of 1; 1x L3 32768K of 2");
    T_EQ_STR(at(a, d, "reject.ramClassGib"), "24");
    T_EQ_STR(at(a, d, "reject.hypervisor"), "unknown");
    T_EQ_STR(at(a, d, "reject.container"), "docker");
    T_EQ_STR(at(a, d, "reject.osMajor"), "6");
    T_EQ_STR(at(a, d, "stale.osMinor"), "18");
    T_EQ_STR(at(a, d, "stale.microcode"), "0x1000065");
    T_EQ_STR(at(a, d, "stale.governor"), "absent");
    T_EQ_STR(at(a, d, "stale.bios"), "absent");
    T_EQ_STR(at(a, d, "reject.gpus"), "absent");
    ht_arena_free(a);
}

T_CASE(env, zen4_avx512)
{
    ht_arena *a = arena();
    const ht_json *d = read_machine(a, unpack("zen4"), NULL);
    T_EQ_STR(at(a, d, "reject.isa"), "avx512+vnni");
    T_EQ_STR(at(a, d, "reject.cores"), "all 12 cores 24 threads");
    T_EQ_STR(at(a, d, "reject.caches"),
             "12x L1d 32K of 2; 12x L1i 32K of 2; 12x L2 1024K of 2; 1x L3 32768K of 24");
    T_EQ_STR(at(a, d, "reject.hypervisor"), "none");
    T_EQ_STR(at(a, d, "reject.container"), "none");
    T_EQ_STR(at(a, d, "reject.ramClassGib"), "64");
    T_EQ_STR(at(a, d, "reject.memoryControllers"), "1");
    T_EQ_STR(at(a, d, "stale.governor"), "performance");
    T_EQ_STR(at(a, d, "stale.boost"), "on");
    T_EQ_STR(at(a, d, "stale.bios"), "F.22 01/02/2026");
    T_EQ_STR(at(a, d, "stale.thp"), "madvise");
    T_EQ_STR(at(a, d, "stale.mitigations"), "spectre_v2: Mitigation: Enhanced IBRS");
    T_EQ_STR(at(a, d, "record.distro"), "Debian GNU/Linux 12 (bookworm)");
    T_EQ_STR(at(a, d, "live.temperatureMilliC"), "41000");
    ht_arena_free(a);
}

T_CASE(env, hybrid_laptop)
{
    ht_arena *a = arena();
    const ht_json *d = read_machine(a, unpack("hybrid-laptop"), NULL);
    T_EQ_STR(at(a, d, "reject.cores"), "P 6 cores 12 threads; E 8 cores 8 threads");
    T_EQ_STR(at(a, d, "reject.caches"),
             "6x L1d 48K of 2; 6x L1i 32K of 2; 6x L2 1280K of 2; 1x L3 24576K of 20; "
             "8x L1d 32K of 1; 8x L1i 64K of 1; 2x L2 2048K of 4");
    T_EQ_STR(at(a, d, "stale.powerSource"), "battery");
    T_EQ_STR(at(a, d, "stale.energyPreference"), "balance_power");
    T_EQ_STR(at(a, d, "stale.platformProfile"), "balanced");
    ht_arena_free(a);
}

/* Evidence.md 8, 20 and 22: limits are part of the class; an unreadable leaf matches nothing. */
T_CASE(env, container_limits_and_unreadable)
{
    ht_arena *a = arena();
    ht_err e = {0};
    char hex[HT_SHA256_HEX];
    const char *root = unpack("container");
    const ht_json *d = read_machine(a, root, NULL);
    const ht_json *again = read_machine(a, root, NULL);
    T_EQ_STR(at(a, d, "reject.cpusAllowed"), "4");
    T_EQ_STR(at(a, d, "reject.cpuQuotaPpm"), "2000000");
    T_EQ_STR(at(a, d, "reject.memoryMaxBytes"), "8589934592");
    T_EQ_STR(at(a, d, "reject.container"), "docker");
    T_EQ_STR(at(a, d, "stale.bios"), "unreadable (EACCES)");
    T_OK(ht_machine_sha256(d, HT_MP_REJECT, hex, &e), e);
    T_TRUE(ht_machine_differs(d, again, HT_MP_REJECT) == NULL);
    T_ERR(ht_machine_sha256(d, HT_MP_STALE, hex, &e), HT_EGATE, e, "bios is unreadable (EACCES)");
    T_EQ_STR(ht_machine_differs(d, again, HT_MP_STALE), "bios");
    ht_arena_free(a);
}

T_CASE(env, gpus)
{
    ht_arena *a = arena();
    ht_err e = {0};
    char one[HT_SHA256_HEX], two[HT_SHA256_HEX];
    static ht_gpus g = {.n = 1,
                        .driver = "550.54.15",
                        .runtime = "cuda 12.4",
                        .gpu[0] = {.name = "NVIDIA H200",
                                   .uuid = "GPU-secret",
                                   .vbios = "96.00.A6.00.01",
                                   .pci_device = 0x233510de,
                                   .pci_subsystem = 0x18be10de,
                                   .cc_major = 9,
                                   .cores = 16896,
                                   .link_gen = 5,
                                   .link_width = 16,
                                   .memory_bytes = 150754820096u,
                                   .power_limit_mw = 700000,
                                   .ecc = 1,
                                   .persistence = 1,
                                   .live_known = true}};
    const char *root = unpack("gpu-host");
    const ht_json *d = read_machine(a, root, &g);
    T_EQ_STR(at(a, d, "reject.gpus"),
             "NVIDIA H200 pci 233510de subsystem 18be10de compute 9.0 cores 16896 memory "
             "150754820096 mig off ecc on link gen 5 x16");
    T_EQ_STR(at(a, d, "stale.gpuDriver"), "550.54.15");
    T_EQ_STR(at(a, d, "stale.gpuPower"), "700000 mW persistence on");
    T_EQ_STR(at(a, d, "live.gpuLive"), "processes 0 events 0 ecc errors 0");
    T_OK(ht_machine_sha256(d, HT_MP_REJECT, one, &e), e);
    g.gpu[0].mig = 1; /* another class */
    const ht_json *mig = read_machine(a, root, &g);
    T_OK(ht_machine_sha256(mig, HT_MP_REJECT, two, &e), e);
    T_CHECK(strcmp(one, two) != 0, "MIG on is the same class");
    T_EQ_STR(ht_machine_differs(d, mig, HT_MP_REJECT), "gpus");
    g.gpu[0].mig = 0;
    memcpy(g.driver, "560.00", 7); /* another state, the same class */
    const ht_json *newer = read_machine(a, root, &g);
    T_TRUE(ht_machine_differs(d, newer, HT_MP_REJECT) == NULL);
    T_EQ_STR(ht_machine_differs(d, newer, HT_MP_STALE), "gpuDriver");
    g.unreadable = "NVML_HANDLE";
    T_ERR(ht_machine_sha256(read_machine(a, root, &g), HT_MP_REJECT, two, &e), HT_EGATE, e,
          "NVML_HANDLE");
    ht_arena_free(a);
}

/* One field at a time: each of the class changes its digest and no other's. */
T_CASE(env, every_field_decides_its_own_part)
{
    ht_arena *a = arena();
    ht_err e = {0};
    char base[HT_MP_PARTS][HT_SHA256_HEX], hex[HT_SHA256_HEX];
    const ht_json *d = read_machine(a, unpack("zen4"), NULL);
    for (int p = 0; p < HT_MP_PARTS; p++)
        T_OK(ht_machine_sha256(d, (enum ht_machine_part)p, base[p], &e), e);
    unsigned n = 0;
    for (const ht_machine_field *f = ht_machine_fields; f->name; f++, n++) {
        ht_json *leaf = (ht_json *)(uintptr_t)ht_json_get(
            ht_json_get(d, ht_machine_part_names[f->part]), f->name);
        ht_json old = *leaf, *other = evid__leaf_str(a, "something else");
        leaf->at = other->at;
        leaf->n = 1;
        for (int p = 0; p < HT_MP_PARTS; p++) {
            T_OK(ht_machine_sha256(d, (enum ht_machine_part)p, hex, &e), e);
            T_CHECK((strcmp(hex, base[p]) != 0) == (p == f->part), "%s changes part %s", f->name,
                    ht_machine_part_names[p]);
        }
        *leaf = old;
    }
    T_CHECK(n >= 45, "%u fields", n);
    ht_arena_free(a);
}

T_CASE(env, closed_form)
{
    ht_arena *a = arena();
    ht_err e = {0};
    ht_json *d = (ht_json *)(uintptr_t)read_machine(a, unpack("zen4"), NULL), *again;
    ht_buf b;
    ht_buf_init(&b, 0);
    T_OK(ht_json_write(d, HT_JSON_CANON, &b, &e), e);
    T_OK(ht_json_parse(a, b.p, b.n, HT_JSON_CANON, "machine", &again, &e), e);
    T_OK(ht_machine_check(again, &e), e);
    ht_json *reject = (ht_json *)(uintptr_t)ht_json_get(again, "reject");
    ht_json_add(a, reject, "hostname", evid__leaf_str(a, "box"));
    T_ERR(ht_machine_check(again, &e), HT_EFORMAT, e, "reject has a field that no machine has");
    reject->n -= 2;
    T_ERR(ht_machine_check(again, &e), HT_EFORMAT, e, "is missing or no leaf");
    ht_buf_done(&b);
    ht_arena_free(a);
}

/* RFC 4231, test cases 1, 2 and 6. */
T_CASE(env, hmac_vectors)
{
    uint8_t key[131], out[HT_SHA256_BYTES];
    char hex[HT_SHA256_HEX];
    ht_err e = {0};
    memset(key, 0x0b, 20);
    T_OK(ht_hmac_sha256(key, 20, "Hi There", 8, out, &e), e);
    ht_hex(out, sizeof out, hex);
    T_EQ_STR(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    T_OK(ht_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, out, &e), e);
    ht_hex(out, sizeof out, hex);
    T_EQ_STR(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, 131);
    T_OK(ht_hmac_sha256(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54, out,
                        &e),
         e);
    ht_hex(out, sizeof out, hex);
    T_EQ_STR(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

T_CASE(env, instance)
{
    char path[300], one[HT_INSTANCE], two[HT_INSTANCE];
    uint8_t secret[HT_SECRET], again[HT_SECRET];
    ht_err e = {0};
    struct stat st;
    snprintf(path, sizeof path, "%s/secret", t_tmp());
    T_OK(ht_machine_secret(path, secret, &e), e);
    T_OK(ht_machine_secret(path, again, &e), e);
    T_EQ_MEM(again, secret, HT_SECRET);
    T_EQ_INT(stat(path, &st), 0);
    T_EQ_INT(st.st_mode & 0777, 0600);
    t_spit(path, "short", 5);
    T_ERR(ht_machine_secret(path, again, &e), HT_EFORMAT, e, "is not 32 bytes");
    const char *root = unpack("zen4");
    const ht_machine_source src = {.root = root};
    T_ERR(ht_machine_instance(&src, secret, one, &e), HT_EGATE, e, "machine-id");
    static ht_gpus g = {.n = 1, .gpu[0].uuid = "GPU-1"};
    const ht_machine_source with = {.root = root, .gpus = &g};
    T_OK(ht_machine_instance(&with, secret, one, &e), e);
    T_CHECK(strncmp(one, "hmac:", 5) == 0 && strlen(one) == 69, "%s", one);
    g.gpu[0].uuid[4] = '2';
    T_OK(ht_machine_instance(&with, secret, two, &e), e);
    T_CHECK(strcmp(one, two) != 0, "two GPUs, one instance");
    g.gpu[0].uuid[4] = '1';
    secret[0] ^= 1;
    T_OK(ht_machine_instance(&with, secret, two, &e), e);
    T_CHECK(strcmp(one, two) != 0, "two installations, one instance");
}

/* This machine: the level read from /proc is the one the kernels dispatch to, and nothing private
 * is in the document. */
T_CASE(env, live)
{
    ht_arena *a = arena();
    ht_err e = {0};
    ht_buf b;
    char host[256] = "", id[64] = "";
    const ht_json *d = read_machine(a, "", NULL);
    const char *isa = at(a, d, "reject.isa");
    unsigned f = ht_cpu_features();
    T_EQ_STR(isa, f & HT_CPU_VNNI     ? "avx512+vnni"
                  : f & HT_CPU_AVX512 ? "avx512"
                  : f & HT_CPU_AVX2   ? "avx2"
                                      : "generic");
    ht_buf_init(&b, 0);
    T_OK(ht_json_write(d, HT_JSON_CANON, &b, &e), e);
    gethostname(host, sizeof host - 1);
    if (strlen(host) > 3) T_CHECK(!strstr(b.p, host), "the host name is in the fingerprint");
    FILE *in = fopen("/etc/machine-id", "r");
    if (in && fgets(id, sizeof id, in)) {
        id[strcspn(id, "\n")] = 0;
        if (*id) T_CHECK(!strstr(b.p, id), "the machine id is in the fingerprint");
    }
    if (in) fclose(in);
    ht_buf_done(&b);
    ht_arena_free(a);
}

T_CASE(env, cpu_lists)
{
    bool set[64];
    T_EQ_INT(evid__cpu_list("0-3,8", set, 64), 5);
    T_TRUE(set[0] && set[3] && set[8] && !set[4]);
    T_EQ_INT(evid__cpu_list("5", set, 64), 1);
    T_EQ_INT(evid__cpu_list("", set, 64), 0);
    T_EQ_INT(evid__cpu_list("3-1", set, 64), -1);
    T_EQ_INT(evid__cpu_list("0-64", set, 64), -1);
    T_EQ_INT(evid__cpu_list("x", set, 64), -1);
    T_EQ_INT(evid__cpu_list("1 2", set, 64), -1);
}
