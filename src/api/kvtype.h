/* kvtype.h - what kvtype.c lends: the KV types of an engine by layer, and their gate. */
#ifndef HT_API_KVTYPE_H
#define HT_API_KVTYPE_H
#include "api/api.h"

/* Read "TYPE[,FIRST-LAST=TYPE...]" of K and V (NULL: f16). HT_EARG names what is wrong. */
HT_MUST_USE int api__kv_read(api__kv *, const char *ctk, const char *ctv, uint32_t n_layers,
                             ht_arena *, ht_err *);
/* HT_EGATE for packed types without a measurement inside the bounds, unless forced. */
HT_MUST_USE int api__kv_admit(ht_engine *, const ht_engine_params *, ht_err *);
#endif
