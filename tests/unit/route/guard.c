/* guard.c - live guards over made-up trees of /proc and /sys; facts once worked out. */
#include "route/guard.h"
#include "../evid/fixture.h"
#include "route/seen.h"
#include <sys/stat.h>
#include <unistd.h>

static void put(const char *rel, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", t_tmp(), rel);
    for (char *p = path + strlen(t_tmp()) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(path, 0755);
        *p = '/';
    }
    t_spit(path, text, strlen(text));
}

#define ZONE "sys/class/thermal/thermal_zone0/"

/* A machine on mains, cool, with every counter that the default policy asks for. */
static void machine(void)
{
    put("proc/stat", "cpu  100 0 100 10000 0 0 0 0 0 0\n");
    put("proc/vmstat", "pswpin 5\n");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    put("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "7\n");
    put("sys/class/power_supply/AC/type", "Mains\n");
    put("sys/class/power_supply/AC/online", "1\n");
    put(ZONE "temp", "50000\n");
    put(ZONE "trip_point_0_type", "passive\n");
    put(ZONE "trip_point_0_temp", "90000\n");
}

static const char *look_after(ht_live *g)
{
    usleep(HT_LIVE_PERIOD_MS * 1100);
    return ht_live_look(g);
}

static void begin(ht_live *g, fx *f, ht_policy *p)
{
    ht_err e = {0};
    T_OK(ht_policy_parse(f->a, ht_policy_default, strlen(ht_policy_default), p, &e), e);
    machine();
    ht_live_begin(g, t_tmp(), p, 8, NULL);
    T_CHECK(g->red == NULL, "red from the start: %s", g->red);
}

/* Each guard by its name, and clear again when its cause is gone. */
T_CASE(guard, each_one)
{
    static const struct {
        const char *path, *bad, *good, *want;
    } all[] = {
        {ZONE "temp", "90000\n", "50000\n", "tooHot"},
        {"sys/class/power_supply/AC/online", "0\n", "1\n", "acOnline"},
        {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n", "performance\n",
         "clocksSteady"},
        {"sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "8\n", "8\n",
         "throttleDelta"},
        {"proc/stat", "cpu  600 0 100 10400 0 0 0 0 0 0\n", "cpu  600 0 100 11000 0 0 0 0 0 0\n",
         "foreignCpuPpm"},
        {"proc/vmstat", "pswpin 6\n", "pswpin 6\n", "swapIns"},
    };
    ht_live g;
    ht_policy p;
    fx f;
    fx_init(&f);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        begin(&g, &f, &p);
        put("proc/stat", "cpu  100 0 100 10900 0 0 0 0 0 0\n");
        T_CHECK(look_after(&g) == NULL, "case %zu: red without a cause: %s", i, g.red);
        put(all[i].path, all[i].bad);
        if (strcmp(all[i].path, "proc/stat") != 0)
            put("proc/stat", "cpu  100 0 100 11800 0 0 0 0 0 0\n");
        else put("proc/stat", "cpu  600 0 100 11300 0 0 0 0 0 0\n");
        const char *red = look_after(&g);
        T_EQ_STR(red ? red : "clear", all[i].want);
        T_EQ_STR(ht_live_look(&g), all[i].want); /* too soon to say anything else */
        put(all[i].path, all[i].good);
        put("proc/stat", "cpu  600 0 100 12700 0 0 0 0 0 0\n");
        /* Turning the governor back is one more change: clear at the look after it. */
        (void)look_after(&g);
        put("proc/stat", "cpu  600 0 100 13600 0 0 0 0 0 0\n");
        red = look_after(&g);
        T_CHECK(red == NULL, "case %zu stays red: %s", i, red);
    }
    fx_done(&f);
}

/* What the policy requires and the machine does not show is red; what else is missing is not. */
T_CASE(guard, unknown)
{
    char path[512];
    ht_live g;
    ht_policy p;
    fx f;
    fx_init(&f);
    begin(&g, &f, &p);
    (void)snprintf(path, sizeof path,
                   "%s/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", t_tmp());
    T_EQ_INT(unlink(path), 0);
    put("proc/stat", "cpu  100 0 100 10900 0 0 0 0 0 0\n");
    T_EQ_STR(look_after(&g), "throttleDelta");
    p.required = 0;
    put("proc/stat", "cpu  100 0 100 11800 0 0 0 0 0 0\n");
    T_CHECK(look_after(&g) == NULL, "red: %s", g.red);
    fx_done(&f);
}

/* Trip points that count, and those that do not. */
T_CASE(guard, trip_points)
{
    static const struct {
        const char *kind, *trip, *temp;
        int want;
    } all[] = {{"passive", "90000", "89999", 0},  {"passive", "90000", "90000", 1},
               {"critical", "95000", "99000", 1}, {"hot", "95000", "94000", 0},
               {"active", "40000", "80000", -1},  {"passive", "-274000", "50000", -1},
               {"passive", "0", "50000", -1}};
    T_EQ_INT(ht_live_hot(t_tmp()), -1);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        put(ZONE "temp", all[i].temp);
        put(ZONE "trip_point_0_type", all[i].kind);
        put(ZONE "trip_point_0_temp", all[i].trip);
        T_EQ_INT(ht_live_hot(t_tmp()), all[i].want);
    }
}

T_CASE(seen, list)
{
    char path[256], value[HT_SHA256_HEX], key[32];
    ht_err e = {0};
    (void)snprintf(path, sizeof path, "%s/deep/seen", t_tmp());
    T_TRUE(!ht_seen_get(path, "a", value));
    T_OK(ht_seen_put(path, "a", FX_SHA("1"), &e), e);
    T_OK(ht_seen_put(path, "b", FX_SHA("2"), &e), e);
    T_OK(ht_seen_put(path, "a", FX_SHA("3"), &e), e);
    T_TRUE(ht_seen_get(path, "a", value));
    T_EQ_STR(value, FX_SHA("3"));
    T_TRUE(ht_seen_get(path, "b", value));
    T_EQ_STR(value, FX_SHA("2"));
    T_TRUE(!ht_seen_get(path, "ab", value));
    T_ERR(ht_seen_put(path, "a b", FX_SHA("1"), &e), HT_EARG, e, "form");
    T_ERR(ht_seen_put(path, "a", "1", &e), HT_EARG, e, "form");
    for (int i = 0; i < HT_SEEN_LINES; i++) { /* the oldest go */
        (void)snprintf(key, sizeof key, "k%d", i);
        if (i > 3 && i < HT_SEEN_LINES - 3) continue;
        T_OK(ht_seen_put(path, key, FX_SHA("4"), &e), e);
    }
    T_TRUE(ht_seen_get(path, "k0", value));
    T_EQ_INT(chmod(path, 0666), 0); /* others may write it: it knows nothing */
    T_TRUE(!ht_seen_get(path, "k0", value));
    T_EQ_INT(chmod(path, 0600), 0);
    t_spit(path, "a short", 7); /* cut off, or no list at all */
    T_TRUE(!ht_seen_get(path, "a", value));
}
