/* subject.h - the identity of what is measured, for bundles and comparisons. */
#ifndef HT_CLI_SUBJECT_H
#define HT_CLI_SUBJECT_H
#include "cli/cli.h"
#include "evid/bundle.h"
#include "evid/env.h"

enum { CLI_SUBJECT_FILES = 16 };
typedef struct {
    ht_arena *arena;
    char model_sha[HT_SHA256_HEX], tok_sha[HT_SHA256_HEX], tmpl_sha[HT_SHA256_HEX];
    char binary_sha[HT_SHA256_HEX], assets_sha[HT_SHA256_HEX];
    ht_bundle_file file[CLI_SUBJECT_FILES]; size_t n_files;
} cli__subject;
/* Of an engine as the library accounts for it (ht_engine_subject), and of this program's build;
 * every byte is hashed. Documents live in the arena. */
HT_MUST_USE int cli__subject_make(ht_arena *, ht_engine *, cli__subject *, ht_err *);
/* The machine at hand: class, state, which of several equal ones, system. */
typedef struct {
    char class_sha[HT_SHA256_HEX], state_sha[HT_SHA256_HEX], instance[HT_INSTANCE], os[64];
} cli__machine;
/* gpus: as just read. A leaf that cannot be read is a warning: it matches nothing. */
HT_MUST_USE int cli__machine_read(cli__ctx *, ht_arena *, const ht_gpus *, cli__machine *,
                                  ht_err *);
/* A file of this installation's state: $XDG_STATE_HOME/hetero/NAME; makes the folder. */
HT_MUST_USE int cli__state_path(const char *name, char out[CLI_PATH], ht_err *);
/* The key of --key, or bench.pem of the state, which is made when it is not there. */
HT_MUST_USE int cli__bench_key(cli__ctx *, ht_key **, ht_err *);
/* The folder of -o, or `def`, before anything is made: HT_EARG when it is no folder, or when none
 * can be made or written there. */
HT_MUST_USE int cli__out_dir(const cli__ctx *, const char *def, const char **dir, ht_err *);
/* The name of a new folder below parent (made) for a run that has no id yet. */
HT_MUST_USE int cli__run_dir(const char *parent, char dir[CLI_PATH], ht_err *);
/* DIR/NAME of a bundle that was just sealed, parsed; lives in the arena. */
HT_MUST_USE int cli__bundle_doc(ht_arena *, const char *dir, const char *name, ht_json **,
                                ht_err *);
/* That document with the bundle's place on standard output; *status becomes CLI_GATE, with a
 * message, where its class is not QUALIFIED. */
HT_MUST_USE int cli__out_verdict(cli__ctx *, ht_arena *, const char *dir, const char *name,
                                 int *status, ht_err *);
#endif
