/* env.h - the fingerprint of a machine (evidence.md 5): every fact a measurement depends on, sorted
 * by what a mismatch means. Read from /proc and /sys below a root, so that a recorded tree of
 * another machine reads the same way, and from NVML when the driver's library is there.
 *
 * A leaf has one of three forms: {"v":text or integer}, {"absent":true} (this machine has no such
 * thing), {"unreadable":"EACCES"} (it may have one, we were not allowed to see it). An absent leaf
 * matches an absent one; an unreadable leaf matches nothing, not even itself.
 * No host name, address, serial number, UUID, user or path is ever stored. */
#ifndef HT_EVID_ENV_H
#define HT_EVID_ENV_H
#include "core/hash.h"
#include "core/json.h"

enum ht_machine_part {
    HT_MP_REJECT,                    /* another machine: its evidence does not count here         */
    HT_MP_STALE,                   /* the same machine in another state: a canary must pass first */
    HT_MP_RECORD,                    /* written down, decides nothing                             */
    HT_MP_LIVE,                      /* changes by the second: guards look at it while measuring  */
    HT_MP_PARTS
};
extern const char *const ht_machine_part_names[HT_MP_PARTS + 1];     /* "reject", ..., NULL       */
typedef struct {
    const char *name, *what;         /* "cpuModel"; what it is, for a person                      */
    uint8_t part;                    /* enum ht_machine_part                                      */
} ht_machine_field;
extern const ht_machine_field ht_machine_fields[];     /* ends with a NULL name                   */

/* ---- GPUs ---- */
enum { HT_GPU_MAX = 64, HT_GPU_TEXT = 96 };
typedef struct {
    char name[HT_GPU_TEXT], uuid[HT_GPU_TEXT] /* for the instance HMAC only */, vbios[HT_GPU_TEXT];
    uint32_t pci_device, pci_subsystem, cc_major, cc_minor, cores, link_gen, link_width;
    uint64_t memory_bytes, power_limit_mw;
    int mig, ecc, persistence;       /* 1 on, 0 off, -1 the driver does not say                   */
    bool live_known;                 /* of the three below                                        */
    uint64_t events;                 /* clock event reasons that void a measurement               */
    uint64_t ecc_errors;
    uint32_t processes;              /* compute processes other than our own                      */
    int power_capped;                /* software power cap active: allowed if it is in both arms  */
} ht_gpu;
typedef struct {
    ht_gpu gpu[HT_GPU_MAX]; uint32_t n;
    char driver[HT_GPU_TEXT], runtime[HT_GPU_TEXT], topology[256];
    const char *unreadable;          /* NULL, or why NVML would not answer ("NVML_999")           */
} ht_gpus;
/* Loads libnvidia-ml.so.1 for the time of the call. No library or no driver: n = 0, no error. */
void ht_gpus_read(ht_gpus *);

/* ---- the fingerprint ---- */
typedef struct {
    const char *root;                /* "": this machine; else a folder holding proc/ and sys/    */
    const ht_gpus *gpus;             /* NULL: none                                                */
    const char *hypervisor;          /* NULL: cpuid's name on this machine, "unknown" elsewhere   */
} ht_machine_source;
/* {"schema":"hetero/machine/1","reject":{field:leaf,...},"stale":{...},"record":{...},
 *  "live":{...}} */
HT_MUST_USE int ht_machine_read(ht_arena *, const ht_machine_source *, ht_json **doc, ht_err *);
/* A document is of that closed form. HT_EFORMAT. */
HT_MUST_USE int ht_machine_check(const ht_json *doc, ht_err *);
/* SHA-256 of the canonical bytes of one part: HT_MP_REJECT gives machineClassSha256, HT_MP_STALE
 * machineStateSha256. HT_EGATE names the first leaf that is unreadable: hex is
 * filled in still, for the record, and matches nothing. */
HT_MUST_USE int ht_machine_sha256(const ht_json *doc, enum ht_machine_part, char hex[HT_SHA256_HEX],
                                  ht_err *);
/* The first field of a part in which two documents do not match, NULL when all do. */
const char *ht_machine_differs(const ht_json *, const ht_json *, enum ht_machine_part);
/* What a leaf says, for a person: "2", "absent", "unreadable (EACCES)". Borrowed or in the
 * arena. */
const char *ht_machine_leaf_text(ht_arena *, const ht_json *leaf);

/* "hmac:" and 64 hex digits: HMAC-SHA256 (RFC 2104) keyed by the installation's secret over the
 * UUIDs of the GPUs and the machine id: names one machine, tells nobody which. HT_EGATE when
 * neither a GPU nor a machine id can be read. */
enum { HT_INSTANCE = 5 + HT_SHA256_HEX, HT_SECRET = 32 };
HT_MUST_USE int ht_machine_instance(const ht_machine_source *, const uint8_t secret[HT_SECRET],
                                    char out[HT_INSTANCE], ht_err *);
/* Reads the secret, or makes it (random, mode 0600) when the file is not there. */
HT_MUST_USE int ht_machine_secret(const char *path, uint8_t secret[HT_SECRET], ht_err *);
HT_MUST_USE int ht_hmac_sha256(const void *key, size_t n_key, const void *msg, size_t n,
                               uint8_t out[HT_SHA256_BYTES], ht_err *);

/* ---- private to src/evid: reading below a root ---- */
/* Text of a small file without trailing white space, other than printable ASCII shown as '?': its
 * length; 0 when there is no such file or it is empty; -errno when it may not be read. */
int evid__text(const char *root, const char *path, char *out, size_t cap);
/* Numbers of a list like "0-3,8" into set [cap] (true at each); how many, or -1 when malformed. */
int evid__cpu_list(const char *text, bool *set, size_t cap);
/* Leaves with text, caches, cores: the processor's part of the fingerprint. */
ht_json *evid__leaf_str(ht_arena *, const char *);
ht_json *evid__leaf_int(ht_arena *, int64_t);
ht_json *evid__leaf_none(ht_arena *, int text_rc /* what evid__text gave: <= 0 */);
void evid__machine_cpu(ht_arena *, const ht_machine_source *, ht_json *const part[HT_MP_PARTS]);
#endif
