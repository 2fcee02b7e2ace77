/* compare.h - what the two files of hetero compare share. */
#ifndef HT_CLI_COMPARE_H
#define HT_CLI_COMPARE_H
#include "cli/seconds.h"
#include "cli/server_proc.h"
#include "cli/subject.h"
#include "cli/worker.h"
#include "evid/compare.h"
#include "evid/journal.h"

typedef struct {
    cli__ctx *c;
    ht_arena *arena;
    cli__server server;
    int pid;                         /* of the server, 0: not of this machine                     */
    const char *props, *arm;
    const char *label;               /* the arm without folders: paths are never stored           */
    char dir[CLI_PATH];
    ht_engine *engine;
    ht_key *key;
    cli__subject subject;
    ht_policy policy;
    const char *policy_text; size_t n_policy;
    ht_gpus gpus;
    char class_sha[HT_SHA256_HEX], index_sha[HT_SHA256_HEX];
    ht_cmp_design design;
    uint32_t ctx;
    uint64_t spacing_ns, origin_ns;
    /* prompts, one after the other: ids + from[pair] */
    int32_t *ids; size_t n_ids, *from;
    bool ids_of_text;
    char (*prompt_sha)[HT_SHA256_HEX];
    ht_journal journal;
    ht_buf lines, telemetry;         /* samples.jsonl, machine/telemetry.jsonl                    */
    cli__seconds ticker;
} cli__cmp;

typedef struct {
    uint32_t pair, slot;
    enum ht_cmp_arm arm;
    ht_telemetry gap[2], at[2];
    ht_bench_answer answer;
    const char *request; size_t n_request;
    int64_t said_prompt, said_out;   /* -1: it does not say                                       */
    uint32_t n_out, n_ids;
    size_t tail;                     /* bytes behind the last chunk                               */
    uint64_t last_ns, peak_bytes;    /* 0: not known                                              */
    bool foreign;
    const char *why;
} cli__cmp_slot;

/* An event of the journal for this slot; sha256 NULL: none. */
HT_MUST_USE int cli__cmp_event(cli__cmp *, ht_arena *, const cli__cmp_slot *, const char *event,
                               const char *sha256, ht_err *);
/* Raw files, the sample's line, the journal's line; seconds: counters taken inside the slot. */
HT_MUST_USE int cli__cmp_put(cli__cmp *, ht_arena *, cli__cmp_slot *, const ht_telemetry *seconds,
                             size_t n_seconds, ht_err *);
/* samples.jsonl, machine/telemetry.jsonl and the journal's close. */
HT_MUST_USE int cli__cmp_close(cli__cmp *, ht_err *);
/* The table of product.md R9 from the sealed bundle, on standard output. */
HT_MUST_USE int cli__cmp_table(cli__cmp *, const char *dir, ht_err *);
#endif
