/* list.c - the only file that names every backend. The order is that of `doctor` and of the tests;
 * it is no order of preference. */
#include "backend/list.h"

#include <string.h>

extern const ht_backend ht_backend_ref, ht_backend_cpu, ht_backend_cuda, ht_backend_graph;

const ht_backend *const ht_backends[] = {&ht_backend_ref, &ht_backend_cpu, &ht_backend_cuda,
                                         &ht_backend_graph, NULL};

const ht_backend *ht_backend_find(const char *name)
{
    for (size_t i = 0; ht_backends[i]; i++)
        if (!strcmp(ht_backends[i]->name, name)) return ht_backends[i];
    return NULL;
}
