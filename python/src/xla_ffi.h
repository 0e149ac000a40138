/* SPDX-License-Identifier: BSD-3-Clause
 *
 * xla_ffi.h: the part of XLA's foreign function interface that this extension speaks, version 0, declared from its
 * description: what a handler is called with, and the calls back that it makes. Layouts are an ABI of plain structures:
 * each begins with its size, and what is added goes to the end, or behind a new extension.
 *
 * The declarations are our own so that a build needs no jaxlib, of 100 MB, and works with all of them.
 * tests/python/test_jax.py compares each size and offset with the header that the installed jaxlib brings. */
#ifndef STROBE_PYTHON_XLA_FFI_H
#define STROBE_PYTHON_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

/* What the handler says it was written for: the interface's own minor version, up to the newest that was looked at. The
 * oldest is that of JAX 0.5. */
enum { XLA_MAJOR = 0, XLA_OLDEST_MINOR = 1, XLA_NEWEST_MINOR = 3 };

enum xla_error_code { XLA_INVALID_ARGUMENT = 3, XLA_RESOURCE_EXHAUSTED = 8, XLA_UNIMPLEMENTED = 12, XLA_INTERNAL = 13 };
enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_ATTRIBUTE_ARRAY = 1 };
enum { XLA_BUFFER = 1 };

/* Of elements. */
enum xla_dtype {
    XLA_BOOL = 1,
    XLA_INT8 = 2,
    XLA_INT32 = 4,
    XLA_INT64 = 5,
    XLA_UINT8 = 6,
    XLA_UINT32 = 8,
    XLA_FLOAT16 = 10,
    XLA_FLOAT32 = 11,
    XLA_FLOAT64 = 12,
    XLA_BFLOAT16 = 16,
    XLA_FLOAT8_E4M3FN = 20
};

struct xla_extension {
    size_t struct_size;
    int type; /* XLA_EXTENSION_METADATA */
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extensions;
    int major, minor;
};

/* A handler is first called with this extension, to say what it is; no buffer is there then. */
struct xla_metadata {
    size_t struct_size;
    struct xla_version version;
    uint32_t traits;
};

struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

struct xla_error;   /* of the interface */
struct xla_context; /* of one execution */

struct xla_error_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    const char *message;
    int code; /* an enum xla_error_code */
};

struct xla_stream_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    void *stream; /* written: a CUstream */
};

struct xla_allocate_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    size_t size, alignment; /* in bytes; up to 16 */
    void *data;             /* written */
};

struct xla_free_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    size_t size;
    void *data;
};

struct xla_device_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    int32_t index; /* written */
};

/* The table of the interface's functions. Those without a type here are not called. */
struct xla_api {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_version version;
    const void *internal;
    struct xla_error *(*error_create)(struct xla_error_arguments *arguments);
    void (*error_message)(void), (*error_destroy)(void), (*handler_register)(void);
    struct xla_error *(*stream_get)(struct xla_stream_arguments *arguments);
    void (*type_register)(void), (*context_get)(void), (*state_set)(void), (*state_get)(void);
    struct xla_error *(*memory_allocate)(struct xla_allocate_arguments *arguments);
    struct xla_error *(*memory_free)(struct xla_free_arguments *arguments);
    void (*pool_schedule)(void), (*pool_threads)(void), (*future_create)(void), (*future_set)(void), (*future_fail)(void);
    void (*run_id_get)(void);
    struct xla_error *(*device_get)(struct xla_device_arguments *arguments); /* not in all versions: by struct_size */
};

/* Contiguous, the last axis innermost, as jax.ffi asks for by default. */
struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extensions;
    int dtype; /* an enum xla_dtype */
    void *data;
    int64_t rank;
    const int64_t *dims; /* [rank] */
};

struct xla_array {
    int dtype; /* an enum xla_dtype */
    size_t size;
    void *data;
};

struct xla_text {
    const char *start;
    size_t length;
};

/* Arguments, and results alike. */
struct xla_buffers {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    const int *types; /* [size], XLA_BUFFER */
    void *const *buffers;
};

/* Attributes, sorted by their names. */
struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    const int *types; /* [size], XLA_ATTRIBUTE_ARRAY and others */
    struct xla_text *const *names;
    void *const *values;
};

struct xla_call {
    size_t struct_size;
    struct xla_extension *extensions;
    const struct xla_api *api;
    struct xla_context *context;
    int stage; /* XLA_STAGE_EXECUTE and others */
    struct xla_buffers arguments, results;
    struct xla_attributes attributes;
};

#endif
