/* cgroup.c - quotas of control groups, v1 and v2 (kernel documentation admin-guide/cgroup-v1,
 * cgroup-v2.rst). A limit on any group above ours binds us, so every level is read, from our own
 * group up to the root of the mount. Inside a container the path in /proc/self/cgroup may start
 * with a prefix that is not mounted; mountinfo's root field tells which part to drop. */
#include "core/arena.h"
#include "core/cpu.h"
#include "core/host.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 1024, TEXT_CAP = 1 << 16 };

bool core__host_text(const char *root, const char *path, char *out, size_t cap)
{
    char full[PATH_CAP];
    size_t n = 0;
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return false;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    while (n < cap - 1) {
        ssize_t got = read(fd, out + n, cap - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(fd);
    out[n] = 0;
    return n > 0;
}

/* A control group: where its hierarchy is mounted and its path below that. */
typedef struct {
    char mount[PATH_CAP], path[PATH_CAP];
} group;

/* Whether the comma-separated list holds the word. */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ',')) return true;
    return false;
}

/* Our path in the hierarchy of controller ("" : the v2 hierarchy) from /proc/self/cgroup, whose
 * lines are "id:controllers:path". */
static bool own_path(const char *root, const char *controller, char *out)
{
    static const char file[] = "/proc/self/cgroup";
    char text[8192], *save = NULL;
    if (!core__host_text(root, file, text, sizeof text)) return false;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        list++;
        bool ours = *controller ? listed(list, controller) : !*list;
        size_t n = strlen(path);
        if (ours && n < PATH_CAP) {
            memcpy(out, path, n + 1);
            return true;
        }
    }
    return false;
}

/* The mount of the hierarchy from mountinfo: "id parent dev root point options [tags] - type source
 * superoptions". *mount_root: the part of the hierarchy that is mounted there. */
static bool find_mount(const char *text, const char *controller, char *mount, char *mount_root)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        char type[64], super[512];
        while (*line == '\n') line++;
        const char *end = strchr(line, '\n'), *dash = strstr(line, " - ");
        if (!dash || (end && dash > end)) continue;
        if (sscanf(line, "%*s %*s %*s %1023s %1023s", mount_root, mount) != 2) continue;
        if (sscanf(dash + 3, "%63s %*s %511s", type, super) != 2) continue;
        if (*controller ? !strcmp(type, "cgroup") && listed(super, controller)
                        : !strcmp(type, "cgroup2"))
            return true;
    }
    return false;
}

static bool find_group(const char *root, const char *controller, group *g)
{
    char mount_root[PATH_CAP], *text = ht_mem_alloc(TEXT_CAP);
    bool found = text && own_path(root, controller, g->path) &&
                 core__host_text(root, "/proc/self/mountinfo", text, TEXT_CAP) &&
                 find_mount(text, controller, g->mount, mount_root);
    ht_mem_free(text);
    if (!found) return false;
    size_t n = strlen(mount_root);
    if (n > 1) { /* only a part is mounted: our path counts from there, or is not visible at all */
        bool below = !strncmp(g->path, mount_root, n) && (!g->path[n] || g->path[n] == '/');
        if (below) memmove(g->path, g->path + n, strlen(g->path + n) + 1);
        else g->path[0] = 0;
    }
    if (!strncmp(g->path, "/..", 3)) g->path[0] = 0; /* outside our cgroup namespace */
    return true;
}

/* Go one level up; false at the root of the mount. */
static bool parent(group *g)
{
    char *slash = strrchr(g->path, '/');
    if (!slash || !g->path[0] || !strcmp(g->path, "/")) return false;
    *slash = 0;
    return true;
}

static bool group_text(const char *root, const group *g, const char *file, char *out, size_t cap)
{
    char path[2 * PATH_CAP + 64];
    snprintf(path, sizeof path, "%s%s/%s", g->mount, strcmp(g->path, "/") ? g->path : "", file);
    return core__host_text(root, path, out, cap);
}

static bool group_number(const char *root, const group *g, const char *file, double *out)
{
    char text[64], *end;
    if (!group_text(root, g, file, text, sizeof text)) return false;
    *out = strtod(text, &end);
    return end != text;
}

static double smaller_quota(double a, double quota, double period)
{
    if (quota <= 0 || period <= 0) return a;
    double cpus = quota / period;
    return a <= 0 || cpus < a ? cpus : a;
}

double core__cgroup_cpus(const char *root)
{
    group g;
    char text[128];
    double best = 0, quota, period;
    if (find_group(root, "", &g)) {
        do {
            if (group_text(root, &g, "cpu.max", text, sizeof text) &&
                sscanf(text, "%lf %lf", &quota, &period) == 2) /* "max 100000" gives no number */
                best = smaller_quota(best, quota, period);
        } while (parent(&g));
    }
    if (find_group(root, "cpu", &g)) {
        do {
            if (group_number(root, &g, "cpu.cfs_quota_us", &quota) &&
                group_number(root, &g, "cpu.cfs_period_us", &period))
                best = smaller_quota(best, quota, period); /* quota -1: none */
        } while (parent(&g));
    }
    return best;
}

/* The value of "key value" in memory.stat; 0 when it is not there. */
static double stat_value(const char *root, const group *g, const char *key)
{
    char text[8192], name[64];
    double v;
    if (!group_text(root, g, "memory.stat", text, sizeof text)) return 0;
    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        while (*p == '\n') p++;
        if (sscanf(p, "%63s %lf", name, &v) == 2 && !strcmp(name, key)) return v;
    }
    return 0;
}

static uint64_t smaller_room(uint64_t a, double limit, double used, double cache)
{
    if (limit >= 0x1p62) return a; /* v1 writes "no limit" as a huge number */
    double room = limit - used + cache;
    uint64_t r = room > 0 ? (uint64_t)room : 0;
    return r < a ? r : a;
}

uint64_t core__cgroup_mem_room(const char *root)
{
    group g;
    uint64_t best = UINT64_MAX;
    double limit, used;
    if (find_group(root, "", &g)) {
        do {
            if (group_number(root, &g, "memory.max", &limit) &&
                group_number(root, &g, "memory.current", &used))
                best = smaller_room(best, limit, used, stat_value(root, &g, "inactive_file"));
        } while (parent(&g));
    }
    if (find_group(root, "memory", &g)) {
        do {
            if (group_number(root, &g, "memory.limit_in_bytes", &limit) &&
                group_number(root, &g, "memory.usage_in_bytes", &used))
                best = smaller_room(best, limit, used, stat_value(root, &g, "total_inactive_file"));
        } while (parent(&g));
    }
    return best;
}

double ht_cgroup_cpus(const char *root)
{
    return core__cgroup_cpus(root);
}

uint64_t ht_cgroup_memory(const char *root)
{
    group g;
    uint64_t best = UINT64_MAX;
    double limit;
    if (find_group(root, "", &g)) {
        do {
            if (group_number(root, &g, "memory.max", &limit))
                best = smaller_room(best, limit, 0, 0);
        } while (parent(&g));
    }
    if (find_group(root, "memory", &g)) {
        do {
            if (group_number(root, &g, "memory.limit_in_bytes", &limit))
                best = smaller_room(best, limit, 0, 0);
        } while (parent(&g));
    }
    return best;
}
