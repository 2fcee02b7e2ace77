/* host.h - what the kernel says about this host, read from /proc and /sys. Internal to core/: cpu.c
 * makes the decisions. Every function takes the root that /proc and /sys lie under ("" outside
 * tests), so that tests bring trees of other machines. */
#ifndef HT_CORE_HOST_H
#define HT_CORE_HOST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text of a small file below root, at most cap-1 bytes, NUL-terminated; false when unreadable. */
bool core__host_text(const char *root, const char *path, char *out, size_t cap);
/* CPUs' worth of time this process may use: the smallest quota from its own cgroup up to the root
 * of what is mounted, v1 and v2; 0: no quota. */
double core__cgroup_cpus(const char *root);
/* Bytes until the tightest memory limit is met (page cache that can be dropped counts as free);
 * UINT64_MAX: no limit. */
uint64_t core__cgroup_mem_room(const char *root);
/* Distinct physical cores among the CPUs whose bit is set in mask [bytes]; CPUs of unknown topology
 * count as cores of their own. */
int core__physical_cores(const char *root, const unsigned char *mask, size_t bytes);
/* MemAvailable in bytes; 0 unknown. */
uint64_t core__mem_available(const char *root);
#endif
