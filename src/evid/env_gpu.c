/* env_gpu.c - GPUs through NVIDIA's management library, loaded at run time. The interface is C and
 * documented (NVML API reference: device queries, unit structures); the types needed are declared
 * here so that the program builds without its header. */
#include "evid/env.h"
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    NVML_SUCCESS = 0,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_LIB_RM_MISMATCH = 18,
    NVML_ECC_TOTAL = 1,
    NVML_VOLATILE = 0,
    NVML_PROCESSES = 256
};
/* Clock event reasons that void a measurement: hardware slow-down, software thermal slow-down,
 * hardware thermal slow-down, hardware power brake. The software power cap is reported apart. */
#define NVML_BAD_EVENTS (0x8ull | 0x20ull | 0x40ull | 0x80ull)
#define NVML_POWER_CAP  0x4ull

typedef struct nvml_device *device;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, dev, pci_device, pci_subsystem;
    char bus_id[32];
} pci_info;
typedef struct {
    unsigned long long total, free, used;
} memory_info;
typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_info;

typedef struct {
    void *lib;
    int (*init)(void), (*shutdown)(void), (*count)(unsigned *), (*handle)(unsigned, device *);
    int (*driver)(char *, unsigned), (*cuda)(int *);
    int (*name)(device, char *, unsigned), (*uuid)(device, char *, unsigned);
    int (*vbios)(device, char *, unsigned), (*pci)(device, pci_info *);
    int (*memory)(device, memory_info *), (*cc)(device, int *, int *), (*cores)(device, unsigned *);
    int (*mig)(device, unsigned *, unsigned *), (*ecc)(device, unsigned *, unsigned *);
    int (*link_gen)(device, unsigned *), (*link_width)(device, unsigned *);
    int (*power)(device, unsigned *), (*persistence)(device, unsigned *);
    int (*events)(device, unsigned long long *);
    int (*ecc_errors)(device, unsigned, unsigned, unsigned long long *);
    int (*processes)(device, unsigned *, process_info *);
    int (*topology)(device, device, unsigned *);
} nvml;

static bool load(nvml *m)
{
    static const struct {
        const char *name, *older;
        size_t at;
    } symbol[] = {
        {"nvmlInit_v2", NULL, offsetof(nvml, init)},
        {"nvmlShutdown", NULL, offsetof(nvml, shutdown)},
        {"nvmlDeviceGetCount_v2", NULL, offsetof(nvml, count)},
        {"nvmlDeviceGetHandleByIndex_v2", NULL, offsetof(nvml, handle)},
        {"nvmlSystemGetDriverVersion", NULL, offsetof(nvml, driver)},
        {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion",
         offsetof(nvml, cuda)},
        {"nvmlDeviceGetName", NULL, offsetof(nvml, name)},
        {"nvmlDeviceGetUUID", NULL, offsetof(nvml, uuid)},
        {"nvmlDeviceGetVbiosVersion", NULL, offsetof(nvml, vbios)},
        {"nvmlDeviceGetPciInfo_v3", NULL, offsetof(nvml, pci)},
        {"nvmlDeviceGetMemoryInfo", NULL, offsetof(nvml, memory)},
        {"nvmlDeviceGetCudaComputeCapability", NULL, offsetof(nvml, cc)},
        {"nvmlDeviceGetNumGpuCores", NULL, offsetof(nvml, cores)},
        {"nvmlDeviceGetMigMode", NULL, offsetof(nvml, mig)},
        {"nvmlDeviceGetEccMode", NULL, offsetof(nvml, ecc)},
        {"nvmlDeviceGetMaxPcieLinkGeneration", NULL, offsetof(nvml, link_gen)},
        {"nvmlDeviceGetMaxPcieLinkWidth", NULL, offsetof(nvml, link_width)},
        {"nvmlDeviceGetEnforcedPowerLimit", NULL, offsetof(nvml, power)},
        {"nvmlDeviceGetPersistenceMode", NULL, offsetof(nvml, persistence)},
        {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
         offsetof(nvml, events)},
        {"nvmlDeviceGetTotalEccErrors", NULL, offsetof(nvml, ecc_errors)},
        {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
         offsetof(nvml, processes)},
        {"nvmlDeviceGetTopologyCommonAncestor", NULL, offsetof(nvml, topology)},
    };
    m->lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; m->lib && i < sizeof symbol / sizeof *symbol; i++) {
        void *p = dlsym(m->lib, symbol[i].name);
        if (!p && symbol[i].older) p = dlsym(m->lib, symbol[i].older);
        memcpy((char *)m + symbol[i].at, &p,
               sizeof p); /* a function's address, as dlsym gives it */
    }
    return m->lib && m->init && m->shutdown && m->count && m->handle;
}

static void text(int (*get)(device, char *, unsigned), device d, char out[HT_GPU_TEXT])
{
    if (!get || get(d, out, HT_GPU_TEXT) != NVML_SUCCESS) snprintf(out, HT_GPU_TEXT, "?");
    out[HT_GPU_TEXT - 1] = 0;
    for (char *p = out; *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
}

static int on_off(int (*get)(device, unsigned *, unsigned *), device d)
{
    unsigned now, next;
    return get && get(d, &now, &next) == NVML_SUCCESS ? now != 0 : -1;
}

static uint32_t number(int (*get)(device, unsigned *), device d)
{
    unsigned v;
    return get && get(d, &v) == NVML_SUCCESS ? v : 0;
}

static void live(const nvml *m, device d, ht_gpu *g)
{
    process_info list[NVML_PROCESSES];
    unsigned n = NVML_PROCESSES;
    unsigned long long events = 0, errors = 0;
    g->live_known = m->events && m->processes && m->events(d, &events) == NVML_SUCCESS &&
                    m->processes(d, &n, list) == NVML_SUCCESS;
    if (!g->live_known) return;
    g->events = events & NVML_BAD_EVENTS;
    g->power_capped = (events & NVML_POWER_CAP) != 0;
    for (unsigned i = 0; i < n && i < NVML_PROCESSES; i++)
        g->processes += list[i].pid != (unsigned)getpid();
    if (m->ecc_errors && m->ecc_errors(d, NVML_ECC_TOTAL, NVML_VOLATILE, &errors) == NVML_SUCCESS)
        g->ecc_errors = errors;
}

static void read_one(const nvml *m, device d, ht_gpu *g)
{
    pci_info pci;
    memory_info mem;
    int major, minor;
    unsigned persistence;
    memset(&pci, 0, sizeof pci);
    text(m->name, d, g->name);
    text(m->uuid, d, g->uuid);
    text(m->vbios, d, g->vbios);
    if (m->pci && m->pci(d, &pci) == NVML_SUCCESS) {
        g->pci_device = pci.pci_device;
        g->pci_subsystem = pci.pci_subsystem;
    }
    if (m->memory && m->memory(d, &mem) == NVML_SUCCESS) g->memory_bytes = mem.total;
    if (m->cc && m->cc(d, &major, &minor) == NVML_SUCCESS) {
        g->cc_major = (uint32_t)major;
        g->cc_minor = (uint32_t)minor;
    }
    g->cores = number(m->cores, d);
    g->link_gen = number(m->link_gen, d);
    g->link_width = number(m->link_width, d);
    g->power_limit_mw = number(m->power, d);
    g->mig = on_off(m->mig, d);
    g->ecc = on_off(m->ecc, d);
    g->persistence =
        m->persistence && m->persistence(d, &persistence) == NVML_SUCCESS ? persistence != 0 : -1;
    live(m, d, g);
}

/* Levels of the common ancestor, upper triangle, row by row: "10,10,30". */
static void topology(const nvml *m, const device *d, ht_gpus *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < out->n; i++)
        for (uint32_t k = i + 1; k < out->n && n + 8 < sizeof out->topology; k++) {
            unsigned level;
            bool known = m->topology && m->topology(d[i], d[k], &level) == NVML_SUCCESS;
            int put = known ? snprintf(out->topology + n, 8, "%s%u", n ? "," : "", level)
                            : snprintf(out->topology + n, 8, "%s?", n ? "," : "");
            n += put > 0 ? (size_t)put : 0;
        }
}

static void read_all(const nvml *m, ht_gpus *out)
{
    device d[HT_GPU_MAX];
    unsigned n = 0;
    int cuda = 0;
    if (m->count(&n) != NVML_SUCCESS) {
        out->unreadable = "NVML_COUNT";
        return;
    }
    if (m->driver && m->driver(out->driver, sizeof out->driver) != NVML_SUCCESS) out->driver[0] = 0;
    if (m->cuda && m->cuda(&cuda) == NVML_SUCCESS)
        snprintf(out->runtime, sizeof out->runtime, "cuda %d.%d", cuda / 1000, cuda % 1000 / 10);
    for (unsigned i = 0; i < n && out->n < HT_GPU_MAX; i++) {
        if (m->handle(i, &d[out->n]) != NVML_SUCCESS) {
            out->unreadable = "NVML_HANDLE"; /* a GPU we may not see could be the one in use */
            return;
        }
        read_one(m, d[out->n], &out->gpu[out->n]);
        out->n++;
    }
    topology(m, d, out);
}

void ht_gpus_read(ht_gpus *out)
{
    nvml m;
    memset(out, 0, sizeof *out);
    memset(&m, 0, sizeof m);
    if (load(&m)) {
        int rc = m.init();
        if (rc == NVML_SUCCESS) {
            read_all(&m, out);
            m.shutdown();
        } else if (rc == NVML_LIB_RM_MISMATCH) {
            out->unreadable = "NVML_VERSION_MISMATCH";
        } else if (rc != NVML_DRIVER_NOT_LOADED) {
            out->unreadable = "NVML_INIT";
        }
    }
    if (m.lib) dlclose(m.lib);
}
