#!/bin/sh
# record.sh - print what the fingerprint reads of this machine, in the form tests/unit/evid/env.c
# unpacks: "=== PATH" and the file's text, "!!! PATH" for a file that exists and may not be read.
# Holds no machine id, host name or serial number: those files are not on the list, and the paths of
# control groups are cut.
for p in /.dockerenv /run/.containerenv /run/systemd/container /etc/os-release \
    /proc/cpuinfo /proc/meminfo /proc/loadavg /proc/pressure/cpu /proc/self/status /proc/self/cgroup \
    /proc/sys/kernel/arch /proc/sys/kernel/ostype /proc/sys/kernel/osrelease \
    /proc/sys/kernel/numa_balancing /sys/class/dmi/id/bios_version /sys/class/dmi/id/bios_date \
    /sys/devices/cpu_core/cpus /sys/devices/cpu_atom/cpus /sys/devices/system/cpu/online \
    /sys/devices/system/cpu/smt/active /sys/devices/system/cpu/smt/control \
    /sys/devices/system/cpu/cpufreq/boost /sys/devices/system/cpu/intel_pstate/no_turbo \
    /sys/devices/system/cpu/cpu*/topology/physical_package_id \
    /sys/devices/system/cpu/cpu*/topology/core_id /sys/devices/system/cpu/cpu*/cpu_capacity \
    /sys/devices/system/cpu/cpu*/cache/index*/level /sys/devices/system/cpu/cpu*/cache/index*/type \
    /sys/devices/system/cpu/cpu*/cache/index*/size \
    /sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list \
    /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor \
    /sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference \
    /sys/devices/system/cpu/vulnerabilities/* /sys/devices/system/edac/mc/mc*/mc_name \
    /sys/devices/system/node/online /sys/devices/system/clocksource/clocksource0/current_clocksource \
    /sys/class/power_supply/*/online /sys/class/thermal/thermal_zone*/temp \
    /sys/firmware/acpi/platform_profile /sys/kernel/mm/transparent_hugepage/enabled; do
    [ -e "$p" ] || continue
    if text=$(cat "$p" 2>/dev/null); then
        case $p in
        /proc/self/status) text=$(printf '%s\n' "$text" | grep -E '_allowed_list') ;;
        /proc/self/cgroup) text=$(printf '%s\n' "$text" | sed 's|:/.*|:/|') ;;
        /proc/meminfo) text=$(printf '%s\n' "$text" | head -n 3) ;;
        /proc/cpuinfo) text=$(printf '%s\n' "$text" | awk '/^$/ { exit } { print }') ;;
        esac
        printf '=== %s\n%s\n' "$p" "$text"
    else
        printf '!!! %s\n' "$p"
    fi
done
