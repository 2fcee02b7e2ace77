/* list.h - every backend of this build; list.c is the only file that names them. */
#ifndef HT_BACKEND_LIST_H
#define HT_BACKEND_LIST_H
#include "step/step.h"
extern const ht_backend *const ht_backends[];          /* NULL-terminated                         */
const ht_backend *ht_backend_find(const char *name);   /* NULL: none of that name                 */
#endif
