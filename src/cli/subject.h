/* subject.h - the identity of what is measured, for bundles and comparisons. */
#ifndef HT_CLI_SUBJECT_H
#define HT_CLI_SUBJECT_H
#include "cli/cli.h"
#include "evid/bundle.h"

enum { CLI_SUBJECT_FILES = 16 };
typedef struct {
    ht_arena *arena;
    char model_sha[HT_SHA256_HEX], tok_sha[HT_SHA256_HEX], tmpl_sha[HT_SHA256_HEX];
    char binary_sha[HT_SHA256_HEX], assets_sha[HT_SHA256_HEX];
    ht_bundle_file file[CLI_SUBJECT_FILES]; size_t n_files;
} cli__subject;
/* model: one file. receipt: of anything the model ran, for the tokenizer's digest. tmpl: the chat
 * template or NULL. Hashes everything; documents live in the arena. */
HT_MUST_USE int cli__subject_make(ht_arena *, const char *model, const ht_json *receipt,
                                  const char *tmpl, cli__subject *, ht_err *);
#endif
