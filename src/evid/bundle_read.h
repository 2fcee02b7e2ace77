/* bundle_read.h - what the files that read a bundle share. */
#ifndef HT_EVID_BUNDLE_READ_H
#define HT_EVID_BUNDLE_READ_H
#include "evid/bundle.h"
#include "evid/stat.h"
#include "evid/trust.h"

enum { EVID__MAX_CELLS = 256 };
/* A document of the manifest, parsed as canonical JSON against its closed schema. */
HT_MUST_USE int evid__doc(ht_arena *, const ht_manifest *, const char *path, const ht_field *,
                          const char *schema, const ht_json **out, ht_err *);
/* machine/before.json and after.json: digests of the class and the state, which must not have
 * changed; *unreadable is set when a leaf of either matches nothing. */
HT_MUST_USE int evid__read_machine(ht_arena *, const ht_manifest *, char cls[HT_SHA256_HEX],
                                   char state[HT_SHA256_HEX], bool *unreadable, ht_err *);
extern const ht_field evid__machine_fields[];
/* Digest of one part of a machine document; *unreadable is set when a leaf matches nothing. */
HT_MUST_USE int evid__machine_part(const ht_json *, const char *part, char hex[HT_SHA256_HEX],
                                   bool *unreadable, ht_err *);
/* The digests that subject/ and build/ name. */
typedef struct {
    const char *model_sha, *tok_sha, *tmpl_sha, *binary_sha, *assets_sha;
    bool dirty;
} evid__subject;
HT_MUST_USE int evid__read_subject(ht_arena *, const ht_manifest *, evid__subject *, ht_err *);
/* Members that a closed schema has checked; borrowed. */
const char *evid__str(const ht_json *, const char *key);
uint32_t evid__u32(const ht_json *, const char *key);
/* By enum ht_status, and how a stream may end; NULL-terminated. */
extern const char *const evid__status_names[HT_SM_STATES + 1], *const evid__end_names[5];
/* A figure of pairs without its tests, or unknown for that reason. */
void evid__write_stat(ht_jw *, const char *key, const ht_stat *, bool known, const char *reason);
/* Sorts; the first of two equal texts, or NULL. */
const char *evid__first_twice(const char **list, size_t n);
HT_MUST_USE int evid__sha256_of(const void *p, size_t n, char hex[HT_SHA256_HEX], ht_err *);

/* The list of every file below dir with its role, as inputs.manifest.json, appended. */
HT_MUST_USE int evid__list_inputs(ht_arena *, const char *dir, ht_buf *out, ht_err *);
/* inputs.manifest.json and outputs.manifest.json, every file they name, and that nothing else is
 * there. */
HT_MUST_USE int evid__read_manifests(ht_arena *, const char *dir, ht_manifest *in, ht_manifest *out,
                                     ht_err *);
/* The statement of a sealed bundle, appended: its subjects in order, then policy and bundle. */
typedef struct { const char *name, *sha; } evid__named;
typedef struct {
    const char *predicate_type, *schema, *bundle_id, *outputs_sha, *policy_sha;
    const evid__named *subject; size_t n_subjects;
    bool hardware_evidence, production_eligible;
} evid__claim;
/* One subject of a statement. */
void evid__write_subject(ht_jw *, const char *name, const char *sha);
HT_MUST_USE int evid__write_statement(const evid__claim *, ht_buf *out, ht_err *);
/* Run a sealing function over an arena and a buffer of its own. */
typedef int evid__seal_fn(ht_arena *, const char *dir, const ht_key *, ht_buf *,
                          char id[HT_SHA256_HEX], ht_err *);
HT_MUST_USE int evid__seal(evid__seal_fn *, const char *dir, const ht_key *,
                           char id[HT_SHA256_HEX], ht_err *);
/* One output file of a bundle against what the inputs give. */
HT_MUST_USE int evid__same_output(const ht_mfile *, const ht_buf *, ht_err *);
/* Sign payload with the bench key and write statement.dsse.json. */
HT_MUST_USE int evid__put_statement(const char *dir, const ht_key *, const ht_buf *payload,
                                    ht_err *);
/* statement.dsse.json: signed by role bench, of that predicate type, its payload byte for byte
 * this. */
HT_MUST_USE int evid__check_statement(ht_arena *, const char *dir, const ht_trust *,
                                      const char *predicate_type, int64_t now_unix,
                                      const ht_buf *payload, char statement_sha[HT_SHA256_HEX],
                                      char bench_key[HT_SHA256_HEX], ht_err *);

/* Is design.json of the bundle in dir of this schema? false on any doubt. */
bool evid__design_is(const char *dir, const char *schema);
/* Make the folders of path below dir, then the file, which must not exist. Not synced: what is lost
 * in a crash is missed by its digest. */
HT_MUST_USE int evid__put_file(const char *dir, const char *path, const void *data, size_t n,
                               ht_err *);

/* The next line of a text whose every line ends with a newline: false at the end, and when the last
 * line is cut off (*bad then). */
typedef struct { const char *p, *end; bool bad; } evid__lines;
bool evid__next_line(evid__lines *, const char **line, size_t *n);

/* journal.jsonl, prompts.jsonl, samples.jsonl and the raw files; policy and design are read. */
HT_MUST_USE int evid__read_samples(ht_arena *, ht_evidence *, ht_err *);
/* One attempt's raw streams against its sample line (bundle_raw.c). Fills s->metric and
 * s->n_out. */
typedef struct {
    const char *prefix;              /* "raw/b03/s2-B/a1/"                                        */
    const char *request_sha, *response_sha, *chunks_sha, *receipt_sha /* NULL: none */, *out_sha;
    uint64_t intended_ns, send_lag_ns;
    const char *end_state;
} evid__raw;
HT_MUST_USE int evid__read_raw(ht_arena *, const ht_manifest *, const evid__raw *, ht_sample *s,
                               ht_err *);
HT_MUST_USE int evid__read_quality(ht_arena *, ht_evidence *, ht_err *);
#endif
