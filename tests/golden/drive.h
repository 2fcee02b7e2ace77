/* drive.h - a model run without the engine: file, model, tape, cover, plan, run. What golden tests
 * measure is therefore the model code and a backend, nothing above them. */
#ifndef HT_TEST_DRIVE_H
#define HT_TEST_DRIVE_H
#include "backend/list.h"
#include "core/json.h"
#include "kv/kv.h"
#include "model/model.h"
#include "test.h"

typedef struct {
    const ht_backend *be;
    int type_k, type_v;         /* enum ht_kvtype                                            */
    int act;                    /* enum ht_act                                               */
    uint8_t flags;              /* of the bucket                                             */
    uint32_t ctx, ubatch, seqs; /* seqs 0: one                                               */
} drive_params;
typedef struct {
    drive_params p;
    ht_file *file;
    ht_model *model;
    ht_dev *dev;
    ht_pool *pool;
    ht_stage *tape;
    ht_cut *cut;
    size_t n_tape, n_cuts;
    ht_plan *plan; /* of ubatch rows                                            */
    uint32_t n_table;
} drive;

/* Path of a file of the golden of an architecture: of golden/arch in the tree where it is small
 * enough, of those that make writes beside this program (tests/oracle/own_model.py), else in the
 * given data, without which the case is skipped. Static, until the next call. */
const char *drive_golden(const char *name, const char *file);
/* Open and plan. false: this backend cannot work here or does not cover the model, and nothing
 * is left open; any other failure ends the test case. */
bool drive_open(drive *, const char *path, const drive_params *);
void drive_close(drive *);
/* Evaluate ids at the sequence's end in chunks of ubatch; logits [n_want,vocab] of the wanted
 * indices (ascending). rope_long: the sequence will be longer than the original context. */
void drive_eval(drive *, ht_seq *, const int32_t *ids, uint32_t n, const uint32_t *want,
                uint32_t n_want, bool rope_long, float *logits);
/* Greedy continuation of a sequence whose last logits are given. */
void drive_greedy(drive *, ht_seq *, const float *logits, uint32_t n, bool rope_long, int32_t *out);
uint32_t drive_argmax(const float *, uint32_t n);
/* Integer list of a JSON array; *n its length. Arena memory. */
int32_t *drive_ids(ht_arena *, const ht_json *, uint32_t *n);
#endif
