/* canary.h - hetero qualify --canary BUNDLE. */
#ifndef HT_CLI_CANARY_H
#define HT_CLI_CANARY_H
#include "cli/cli.h"

/* Run the canary of a bundle and write its amendment; CLI_GATE when it did not pass. */
HT_MUST_USE int cli__canary(cli__ctx *, ht_err *);
#endif
