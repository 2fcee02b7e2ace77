/* ov.h - the part of OpenVINO's C interface that this engine calls, loaded at run time: a binary
 * built here runs where there is no OpenVINO and says so. Types and numbers are that library's
 * ABI. */
#ifndef HT_BACKEND_GRAPH_OV_H
#define HT_BACKEND_GRAPH_OV_H
#include "core/err.h"
#include <stdint.h>

typedef struct ov_core ov_core;
typedef struct ov_model ov_model;
typedef struct ov_compiled ov_compiled;
typedef struct ov_request ov_request;
typedef struct ov_tensor ov_tensor;
typedef struct { int64_t rank; int64_t *dims; } ov_shape;
typedef struct { const char *key, *value; } ov_prop;
typedef struct { const char *build, *text; } ov_version;
typedef struct {
    int status;                          /* OV_NODE_RUN: executed                                 */
    int64_t real_us, cpu_us;
    const char *name, *exec_type, *node_type;
} ov_node;
typedef struct { ov_node *node; size_t n; } ov_nodes;
typedef struct { char **name; size_t n; } ov_devices;

enum {
    OV_OK = 0, OV_NOT_READY = -9, OV_CANCELLED = -13,
    OV_F16 = 3, OV_F32 = 4, OV_I8 = 7, OV_I32 = 9, OV_I64 = 10,
    OV_NODE_RUN = 2
};

/* X(field, symbol, arguments); every call returns a status, 0 for success. */
#define OV_CALLS(X)                                                                                \
    X(version, "ov_get_openvino_version", (ov_version *))                                          \
    X(core_new, "ov_core_create", (ov_core **))                                                    \
    X(set_props, "ov_core_set_properties", (ov_core *, const char *, size_t, const ov_prop *))     \
    X(devices, "ov_core_get_available_devices", (ov_core *, ov_devices *))                         \
    X(read, "ov_core_read_model_from_memory_buffer",                                               \
      (ov_core *, const char *, size_t, const ov_tensor *, ov_model **))                           \
    X(compile, "ov_core_compile_model_props",                                                      \
      (ov_core *, const ov_model *, const char *, size_t, const ov_prop *, ov_compiled **))        \
    X(import, "ov_core_import_model",                                                              \
      (ov_core *, const char *, size_t, const char *, ov_compiled **))                             \
    X(export, "ov_compiled_model_export_model", (const ov_compiled *, const char *))               \
    X(get_prop, "ov_compiled_model_get_property", (const ov_compiled *, const char *, char **))    \
    X(n_outputs, "ov_compiled_model_outputs_size", (const ov_compiled *, size_t *))                \
    X(request_new, "ov_compiled_model_create_infer_request", (const ov_compiled *, ov_request **)) \
    X(set_in, "ov_infer_request_set_input_tensor_by_index",                                        \
      (ov_request *, size_t, const ov_tensor *))                                                   \
    X(set_out, "ov_infer_request_set_output_tensor_by_index",                                      \
      (ov_request *, size_t, const ov_tensor *))                                                   \
    X(get_out, "ov_infer_request_get_output_tensor_by_index",                                      \
      (const ov_request *, size_t, ov_tensor **))                                                  \
    X(start, "ov_infer_request_start_async", (ov_request *))                                       \
    X(wait_for, "ov_infer_request_wait_for", (ov_request *, int64_t))                              \
    X(cancel, "ov_infer_request_cancel", (ov_request *))                                           \
    X(profile, "ov_infer_request_get_profiling_info", (const ov_request *, ov_nodes *))            \
    X(wrap, "ov_tensor_create_from_host_ptr", (int, ov_shape, void *, ov_tensor **))               \
    X(tensor_bytes, "ov_tensor_get_byte_size", (const ov_tensor *, size_t *))                      \
    X(tensor_data, "ov_tensor_data", (const ov_tensor *, void **))
/* X(field, symbol, argument): releases and texts. */
#define OV_FREES(X)                                                                                \
    X(version_free, "ov_version_free", void, (ov_version *))                                       \
    X(core_free, "ov_core_free", void, (ov_core *))                                                \
    X(devices_free, "ov_available_devices_free", void, (ov_devices *))                             \
    X(model_free, "ov_model_free", void, (ov_model *))                                             \
    X(compiled_free, "ov_compiled_model_free", void, (ov_compiled *))                              \
    X(request_free, "ov_infer_request_free", void, (ov_request *))                                 \
    X(nodes_free, "ov_profiling_info_list_free", void, (ov_nodes *))                               \
    X(tensor_free, "ov_tensor_free", void, (ov_tensor *))                                          \
    X(text_free, "ov_free", void, (const char *))                                                  \
    X(last_error, "ov_get_last_err_msg", const char *, (void))

typedef struct {
#define X(field, symbol, args) int (*field) args;
    OV_CALLS(X)
#undef X
#define X(field, symbol, type, args) type (*field) args;
    OV_FREES(X)
#undef X
    void *lib;                           /* NULL: not from a library                              */
} ov_api;

/* Load the library: from `where` (a file, a folder with libraries, or a Python package's folder)
 * when that is given and not "", else from HETERO_OPENVINO, from graph-runtime/ beside the program,
 * from Python packages, from the system. where "none": nowhere. path [cap]: what was loaded.
 * HT_EUNSUPPORTED with the reason where there is none, or none of a version this engine knows. */
int graph__ov_load(ov_api *, const char *where, char *path, size_t cap, ht_err *);
void graph__ov_unload(ov_api *);
/* The version's text into build [cap]; HT_EUNSUPPORTED outside of what this engine was made for,
 * and when the library's numbers for element types are not the ones above. */
int graph__ov_version(const ov_api *, char *build, size_t cap, ht_err *);
/* 0 for status 0. Else HT_FAIL of `code` with what, the status and the library's own words. */
int graph__ov_check(const ov_api *, int status, int code, const char *what, ht_err *);
#endif
