/* server_proc.h - the process behind a foreign server of this machine: who it is and what it has
 * used, from /proc. The server itself is not asked. */
#ifndef HT_CLI_SERVER_PROC_H
#define HT_CLI_SERVER_PROC_H
#include "cli/foreign.h"

/* The process that listens at this port, 0 when none is found or we may not look. */
int cli__server_pid(uint16_t port);
/* CPU time and greatest resident size so far; false: not readable. */
bool cli__server_usage(int pid, uint64_t *cpu_ns, uint64_t *peak_bytes);
/* server/foreign.json (hetero/foreignreceipt/1): digest of the program, arguments without folders,
 * the environment's variables that change kernels, digest of the model file it was started with,
 * the properties it shows, and whether two of these agree on the model ("executed"). props NULL:
 * none. */
HT_MUST_USE int cli__server_receipt(ht_arena *, const cli__server *, int pid, const char *binary,
                                    const char *props, ht_buf *out, ht_err *);
#endif
