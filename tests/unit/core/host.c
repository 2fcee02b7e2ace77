/* host.c - processor, threads and memory limits, on this machine and on trees of others. */
#include "core/host.h"
#include "core/cpu.h"
#include "test.h"
#include <errno.h>
#include <sched.h>
#include <sys/stat.h>

static char root[512];

/* Write a file below the case's root, making the folders on the way. */
static void put(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        T_CHECK(!mkdir(full, 0755) || errno == EEXIST, "mkdir %s", full);
        *p = '/';
    }
    t_spit(full, text, strlen(text));
}

static void new_root(void)
{
    static int n;
    snprintf(root, sizeof root, "%s/%d", t_tmp(), n++);
    T_TRUE(!mkdir(root, 0755));
}

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

T_CASE(host, cgroup_v2_chain)
{
    new_root();
    put("/proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("/proc/self/mountinfo", "22 1 0:21 / / rw - ext4 /dev/sda rw\n" V2_MOUNT);
    T_NEAR(core__cgroup_cpus(root), 0, 0);
    T_TRUE(core__cgroup_mem_room(root) == UINT64_MAX);
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n");
    T_NEAR(core__cgroup_cpus(root), 0, 0);
    put("/sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n"); /* a parent's limit binds */
    T_NEAR(core__cgroup_cpus(root), 1.5, 1e-12);
    put("/sys/fs/cgroup/a.slice/b.scope/cpu.max", "50000 100000\n");
    T_NEAR(core__cgroup_cpus(root), 0.5, 1e-12);
    put("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.scope/memory.current", "1000\n");
    T_TRUE(core__cgroup_mem_room(root) == UINT64_MAX);
    put("/sys/fs/cgroup/a.slice/memory.max", "1000000\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "700000\n");
    T_EQ_INT(core__cgroup_mem_room(root), 300000);
    put("/sys/fs/cgroup/a.slice/memory.stat", "anon 5\ninactive_file 50000\nactive_file 9\n");
    T_EQ_INT(core__cgroup_mem_room(root), 350000);
    put("/sys/fs/cgroup/a.slice/memory.current", "2000000\n");
    T_EQ_INT(core__cgroup_mem_room(root), 0);
}

T_CASE(host, cgroup_v1_controllers)
{
    new_root();
    put("/proc/self/cgroup",
        "5:cpuset:/x\n4:memory:/y/z\n2:cpu,cpuacct:/x\n1:name=systemd:/x\n0::/\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup "
        "rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    T_NEAR(core__cgroup_cpus(root), 0, 0);
    put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "250000\n");
    T_NEAR(core__cgroup_cpus(root), 2.5, 1e-12);
    put("/sys/fs/cgroup/memory/y/z/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/y/z/memory.usage_in_bytes", "5\n");
    T_TRUE(core__cgroup_mem_room(root) == UINT64_MAX);
    put("/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "8192\n");
    put("/sys/fs/cgroup/memory/y/memory.usage_in_bytes", "4096\n");
    put("/sys/fs/cgroup/memory/y/memory.stat", "inactive_file 7\ntotal_inactive_file 1024\n");
    T_EQ_INT(core__cgroup_mem_room(root), 5120);
}

/* In a container without a cgroup namespace our path carries the host's prefix, of which only the
 * last part is mounted. */
T_CASE(host, cgroup_in_containers)
{
    new_root();
    put("/proc/self/cgroup", "3:cpu:/docker/abc/inner\n");
    put("/proc/self/mountinfo",
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
    put("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "300000");
    put("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
    T_NEAR(core__cgroup_cpus(root), 3, 1e-12);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
    T_NEAR(core__cgroup_cpus(root), 2, 1e-12);
    put("/proc/self/cgroup", "3:cpu:/elsewhere\n");
    T_NEAR(core__cgroup_cpus(root), 2, 1e-12);
    put("/proc/self/cgroup", "0::/../other\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    T_NEAR(core__cgroup_cpus(root), 4, 1e-12);
}

T_CASE(host, odd_files_are_no_limit)
{
    static const char *const odd[] = {"",          "x",      "max",      "0 0",
                                      "-5 100000", "100000", "100000 0", "\n\n"};
    new_root();
    T_NEAR(core__cgroup_cpus(root), 0, 0); /* nothing there at all */
    T_EQ_INT(core__mem_available(root), 0);
    put("/proc/self/cgroup", "0::/\nnonsense\n:::\n");
    put("/proc/self/mountinfo", "short\n\n" V2_MOUNT);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        put("/sys/fs/cgroup/cpu.max", odd[i]);
        T_CHECK(core__cgroup_cpus(root) <= 0, "cpu.max \"%s\"", odd[i]);
    }
    put("/proc/meminfo", "MemTotal: 100 kB\nMemAvailable:     42 kB\n");
    T_EQ_INT(core__mem_available(root), 42 * 1024);
}

T_CASE(host, physical_cores)
{
    new_root();
    char path[128], id[16];
    for (int i = 0; i < 8; i++) { /* two packages of two cores of two threads */
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", i);
        snprintf(id, sizeof id, "%d\n", i % 2);
        put(path, id);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 i);
        snprintf(id, sizeof id, "%d\n", i / 2 % 2);
        put(path, id);
    }
    const unsigned char all[2] = {0xff, 0}, one[2] = {0x11, 0}, more[2] = {0x03, 0x03};
    T_EQ_INT(core__physical_cores(root, all, 2), 4);
    T_EQ_INT(core__physical_cores(root, one, 2), 1); /* CPUs 0 and 4 share a core */
    T_EQ_INT(core__physical_cores(root, more, 2),
             4); /* 8 and 9 have no entry: cores of their own */
}

T_CASE(cpu, this_machine)
{
    ht_cpu_threads t;
    ht_cpu_threads_get(&t);
    cpu_set_t set;
    T_TRUE(!sched_getaffinity(0, sizeof set, &set));
    T_EQ_INT(t.affinity, CPU_COUNT(&set));
    T_TRUE(t.threads >= 1 && t.threads <= t.physical && t.physical <= t.affinity);
    T_TRUE(!t.quota || t.threads <= t.quota);
    T_CHECK(strstr(t.why, "physical core") && strstr(t.why, "quota"), "\"%s\"", t.why);
    T_CHECK(ht_mem_available() > 1 << 20, "%llu", (unsigned long long)ht_mem_available());
    T_TRUE(*ht_cpu_name());
    /* One CPU left: one thread. */
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) {
            cpu_set_t only;
            CPU_ZERO(&only);
            CPU_SET(i, &only);
            T_TRUE(!sched_setaffinity(0, sizeof only, &only));
            break;
        }
    ht_cpu_threads_get(&t);
    T_TRUE(t.affinity == 1 && t.physical == 1 && t.threads == 1);
}

T_CASE(cpu, features_agree_with_the_kernel)
{
    unsigned f = ht_cpu_features();
    size_t n;
    char *text = t_slurp("/proc/cpuinfo", &n), *flags = strstr(text, "flags\t");
    if (!flags) T_SKIP("/proc/cpuinfo lists no flags on this machine type");
    *strchrnul(flags, '\n') = ' ';
    static const struct {
        unsigned bit;
        const char *name;
    } pair[] = {{HT_CPU_AVX2, " avx2 "},
                {HT_CPU_AVX512, " avx512vl "},
                {HT_CPU_VNNI, " avx512_vnni "},
                {HT_CPU_BF16, " avx512_bf16 "}};
    for (size_t i = 0; i < 4; i++)
        T_CHECK(!(f & pair[i].bit) || strstr(flags, pair[i].name), "%s not in cpuinfo",
                pair[i].name);
    T_TRUE(!(f & HT_CPU_AVX512) || (f & HT_CPU_AVX2));
    if (strstr(flags, " avx2 ") && strstr(flags, " fma ")) T_TRUE(f & HT_CPU_AVX2);
    free(text);
}
