#!/usr/bin/env python3
"""make.py - write the trees of machines that are not at hand, in the form of record.sh. The values are
made up after the formats of the kernel documentation (filesystems/proc.rst, admin-guide/cgroup-v2.rst,
ABI/testing/sysfs-devices-system-cpu); zen3-vm.txt beside them is a recording."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
AVX2 = "fpu tsc sse4_2 popcnt avx f16c fma abm bmi1 avx2 bmi2 erms"
AVX512 = AVX2 + " avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16"


def tree(vendor, family, model, name, stepping, microcode, flags, mem_gib, cpus, smt, release, extra):
    """cpus: list of (package, core, [(level, type, size, shared list)], capacity or None)"""
    f = {
        "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: %s\ncpu family\t: %d\nmodel\t\t: %d\n"
        "model name\t: %s\nstepping\t: %d\nmicrocode\t: %s\nflags\t\t: %s"
        % (vendor, family, model, name, stepping, microcode, flags),
        "/proc/meminfo": "MemTotal: %d kB\nMemFree: 1000000 kB\nMemAvailable: 2000000 kB"
        % (mem_gib * 1024 * 1024 * 98 // 100),
        "/proc/self/status": "Cpus_allowed_list:\t0-%d" % (len(cpus) - 1),
        "/proc/sys/kernel/arch": "x86_64", "/proc/sys/kernel/ostype": "Linux",
        "/proc/sys/kernel/osrelease": release,
        "/proc/sys/kernel/numa_balancing": "0",
        "/proc/loadavg": "0.01 0.02 0.00 1/200 4711",
        "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1",
        "/sys/devices/system/cpu/online": "0-%d" % (len(cpus) - 1),
        "/sys/devices/system/cpu/smt/active": "1" if smt else "0",
        "/sys/devices/system/cpu/smt/control": "on" if smt else "notsupported",
        "/sys/devices/system/node/online": "0",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected",
        "/sys/devices/system/cpu/vulnerabilities/spectre_v2": "Mitigation: Enhanced IBRS",
    }
    for i, (package, core, caches, capacity) in enumerate(cpus):
        d = "/sys/devices/system/cpu/cpu%d/" % i
        f[d + "topology/physical_package_id"] = str(package)
        f[d + "topology/core_id"] = str(core)
        if capacity:
            f[d + "cpu_capacity"] = str(capacity)
        for k, (level, kind, size, shared) in enumerate(caches):
            c = d + "cache/index%d/" % k
            f[c + "level"], f[c + "type"], f[c + "size"], f[c + "shared_cpu_list"] = (
                str(level), kind, size, shared)
    f.update(extra)
    return f


def write(name, files, unreadable=()):
    with open(os.path.join(HERE, name + ".txt"), "w") as out:
        out.write("made up by make.py\n")
        for path in sorted(files):
            out.write("=== %s\n%s\n" % (path, files[path]))
        for path in unreadable:
            out.write("!!! %s\n" % path)


def plain(n, l1, l2, l3, smt):
    """n CPUs of one kind; with smt CPU i and i + n/2 share a core."""
    half = n // 2 if smt else n
    cpus = []
    for i in range(n):
        pair = "%d,%d" % (i % half, i % half + half) if smt else str(i)
        cpus.append((0, i % half, [(1, "Data", l1, pair), (1, "Instruction", l1, pair),
                                   (2, "Unified", l2, pair), (3, "Unified", l3, "0-%d" % (n - 1))], None))
    return cpus


FREQ = {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "/sys/devices/system/cpu/cpufreq/boost": "1",
        "/sys/class/dmi/id/bios_version": "F.22", "/sys/class/dmi/id/bios_date": "01/02/2026",
        "/sys/class/thermal/thermal_zone0/temp": "41000"}

write("zen4", tree("AuthenticAMD", 25, 97, "AMD Ryzen 9 7900X 12-Core Processor", 2, "0xa601206", AVX512,
                   64, plain(24, "32K", "1024K", "32768K", True), True, "6.1.0-18-amd64", {
                       **FREQ, "/sys/devices/system/edac/mc/mc0/mc_name": "F19h_M60h",
                       "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"'}))

# Six P cores with two threads each (CPUs 0-11), eight E cores (12-19) in clusters of four.
hybrid = []
for i in range(12):
    pair = "%d-%d" % (i // 2 * 2, i // 2 * 2 + 1)
    hybrid.append((0, i // 2 * 4, [(1, "Data", "48K", pair), (1, "Instruction", "32K", pair),
                                   (2, "Unified", "1280K", pair), (3, "Unified", "24576K", "0-19")], None))
for i in range(12, 20):
    four = "%d-%d" % (12 + (i - 12) // 4 * 4, 15 + (i - 12) // 4 * 4)
    hybrid.append((0, 24 + i - 12, [(1, "Data", "32K", str(i)), (1, "Instruction", "64K", str(i)),
                                    (2, "Unified", "2048K", four), (3, "Unified", "24576K", "0-19")], None))
write("hybrid-laptop", tree(
    "GenuineIntel", 6, 154, "12th Gen Intel(R) Core(TM) i7-12700H", 3, "0x430", AVX2, 32, hybrid, True,
    "6.8.0-45-generic", {
        **FREQ, "/sys/devices/cpu_core/cpus": "0-11", "/sys/devices/cpu_atom/cpus": "12-19",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference": "balance_power",
        "/sys/class/power_supply/AC/online": "0", "/sys/firmware/acpi/platform_profile": "balanced",
        "/sys/devices/system/cpu/intel_pstate/no_turbo": "0"}))

# Four of 32 CPUs by cpuset, two by quota, 8 GiB; firmware tables may not be read.
box = tree("AuthenticAMD", 25, 1, "AMD EPYC 7763 64-Core Processor", 1, "0xa0011d5", AVX2, 128,
           plain(32, "32K", "512K", "32768K", False), False, "5.15.0-1060-azure", {
               "/.dockerenv": "", "/proc/self/status": "Cpus_allowed_list:\t4-7",
               "/proc/self/cgroup": "0::/",
               "/proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw",
               "/sys/fs/cgroup/cpu.max": "200000 100000", "/sys/fs/cgroup/memory.max": "8589934592"})
box["/proc/cpuinfo"] += " hypervisor"
write("container", box, ["/sys/class/dmi/id/bios_version"])

write("gpu-host", tree("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480C", 8, "0x2b000571",
                       AVX512, 256, plain(16, "48K", "2048K", "107520K", False), False,
                       "5.15.0-1071-nvidia", FREQ))
