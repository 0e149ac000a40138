/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dlpack.h: the part of DLPack 1.3 that this extension speaks, declared from the specification: tensors, the two managed
 * structures that capsules carry, and the C exchange API that a type offers as __dlpack_c_exchange_api__. Layouts are an
 * ABI: a change of the major version changes them, so whoever reads a versioned structure compares `major` first.
 *
 * The declarations are our own because no package that a build could require has these: Debian's libdlpack-dev is 0.6, from
 * before versioned structures; the package dlpack for pip holds no header; NumPy ships none, and PyTorch is not needed here.
 */
#ifndef STROBE_PYTHON_DLPACK_H
#define STROBE_PYTHON_DLPACK_H

#include <stddef.h>
#include <stdint.h>

/* The names of the capsules, before and after somebody took what is in them. */
#define DLPACK_CAPSULE          "dltensor"
#define DLPACK_CAPSULE_USED     "used_dltensor"
#define DLPACK_VERSIONED        "dltensor_versioned"
#define DLPACK_VERSIONED_USED   "used_dltensor_versioned"
#define DLPACK_EXCHANGE_CAPSULE "dlpack_exchange_api"

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 0 }; /* what the exporter writes: it uses nothing newer */

enum dlpack_device_type {
    DLPACK_CPU = 1,
    DLPACK_CUDA = 2,
    DLPACK_CUDA_HOST = 3, /* pinned: the CPU's */
    DLPACK_CUDA_MANAGED = 13
};

enum dlpack_type_code {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_BOOL = 6,
    DLPACK_FLOAT8_E4M3FN = 10
};

enum { DLPACK_READ_ONLY = 1 }; /* bit of dlpack_versioned.flags */

struct dlpack_device {
    int32_t type; /* an enum dlpack_device_type */
    int32_t index;
};

struct dlpack_dtype {
    uint8_t code; /* an enum dlpack_type_code */
    uint8_t bits;
    uint16_t lanes;
};

struct dlpack_tensor {
    void *data;
    struct dlpack_device device;
    int32_t ndim;
    struct dlpack_dtype dtype;
    int64_t *shape;       /* [ndim] */
    int64_t *strides;     /* [ndim], in elements; NULL before version 1.2 = contiguous */
    uint64_t byte_offset; /* from data to the first element */
};

/* What a capsule "dltensor" holds. */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *manager;
    void (*deleter)(struct dlpack_managed *self); /* may be NULL */
};

struct dlpack_version {
    uint32_t major, minor;
};

/* What a capsule "dltensor_versioned" holds. Up to `flags` every version is laid out like this. */
struct dlpack_versioned {
    struct dlpack_version version;
    void *manager;
    void (*deleter)(struct dlpack_versioned *self); /* may be NULL */
    uint64_t flags;
    struct dlpack_tensor tensor;
};

/* The exchange API. Python objects are void * so that the specification needs no Python header. Functions return 0, or -1
 * with a Python exception set; those that do, synchronise nothing. */
struct dlpack_exchange_header {
    struct dlpack_version version;
    struct dlpack_exchange_header *previous; /* the same for an older major version, or NULL */
};

struct dlpack_exchange_api {
    struct dlpack_exchange_header header;
    /* A new tensor of the prototype's dtype, shape and device. Reports through set_error alone. */
    int (*allocate)(struct dlpack_tensor *prototype, struct dlpack_versioned **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*from_object)(void *object, struct dlpack_versioned **out);
    int (*to_object)(struct dlpack_versioned *tensor, void **object); /* takes the tensor */
    int (*borrow_object)(void *object, struct dlpack_tensor *out);    /* may be NULL; shape and strides stay the object's */
    int (*current_stream)(int32_t device_type, int32_t device_index, void **stream);
};

#endif
