/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.h: a caller's tensor, of whatever framework, opened for the time of a call. Three routes lead to the same structure
 * (tensor.c): the C exchange API of DLPack, the buffer protocol, __dlpack__(). Nothing is copied on any of them. */
#ifndef STROBE_PYTHON_TENSOR_H
#define STROBE_PYTHON_TENSOR_H

#include "module.h"

enum { MOST_AXES = 8 };

/* What elements are: a strobe_dtype, or one of these, which only some arguments take. */
enum element { ELEMENT_BOOL = 32, ELEMENT_UINT8, ELEMENT_INT32, ELEMENT_INT64, ELEMENT_OTHER };

/* Py_buffer and its functions are part of the stable ABI from 3.11 on. CPython 3.10 exports the same functions over the same
 * structure, which is as it was in 3.0; they are declared here so that one binary serves both. */
struct buffer {
    void *data;
    PyObject *object;
    Py_ssize_t bytes, itemsize;
    int read_only, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
};

struct tensor {
    const char *name; /* the argument's, for sentences */
    void *data;       /* the first element */
    int ndim;
    int32_t element;
    int32_t device, device_index; /* as in strobe_attention */
    bool read_only;
    bool turned;                                 /* the second and third axis are exchanged: heads_last() */
    int64_t shape[MOST_AXES], stride[MOST_AXES]; /* stride in elements */

    PyObject *object;           /* borrowed from the caller; NULL: not open */
    struct framework framework; /* of its type */
    struct {                    /* what keeps the data where it is, by route; at most one is set */
        struct buffer buffer;   /* set when buffer.object is */
        PyObject *view;         /* the array that lent the buffer in the caller's place */
        struct dlpack_versioned *versioned;
        struct dlpack_managed *managed;
    } held;
};

/* Opens object under the argument's name; false with an exception set. The structure must be zero or closed. */
bool tensor_open(struct state *state, struct tensor *tensor, PyObject *object, const char *name);
/* The same for a tensor that nobody has seen yet, which needs fewer questions. */
bool tensor_open_new(struct state *state, struct tensor *tensor, PyObject *object, const char *name);
/* tensor_open, where None leaves the tensor closed. */
bool tensor_open_optional(struct state *state, struct tensor *tensor, PyObject *object, const char *name);
void tensor_close(struct tensor *tensor);
static inline bool tensor_is_open(const struct tensor *tensor) { return tensor->object != NULL; }

/* Copies a DLPack description, which no longer has to live on then. */
bool tensor_describe(struct tensor *tensor, const struct dlpack_tensor *from);

/* What is known of the object's type; found out when it is seen for the first time. The entry may make room for another type
 * as soon as other Python code runs. */
struct framework *framework_of(struct state *state, PyObject *object);

/* "float32" and so on; for sentences. */
const char *element_name(int32_t element);
struct dlpack_dtype element_dlpack(int32_t element);

/* Sets ValueError "NAME.shape is (2, 3); WANTED is accepted", the way the library puts it. Always returns false. */
bool refuse_shape(const struct tensor *tensor, const char *wanted);
bool refuse_dtype(const struct tensor *tensor, const char *wanted);
/* "NAME.strides[0] is 2 elements; 1, a contiguous axis, is accepted", of the last axis. */
bool refuse_stride(const struct tensor *tensor, int axis);
/* Whether the tensor has these axes; -1 is any extent. Refuses otherwise. */
bool tensor_has_shape(const struct tensor *tensor, int ndim, const int64_t *shape);
/* Whether it is on q's device; whether it can be written. They refuse otherwise. */
bool tensor_is_on(const struct tensor *tensor, const struct tensor *q);
bool tensor_is_writable(const struct tensor *tensor);
/* The stream that the framework works on now, on the tensor's GPU; NULL, which is CUDA's default stream, where it does not
 * say, and on the CPU. */
bool tensor_stream(const struct tensor *tensor, void **stream);

/* result.c: a new tensor of the framework that `like` came from, opened under the name; the object, or NULL. is_unseen:
 * nothing looks at operators of PyTorch's (plain.c), so that it may be made by none. */
PyObject *result_new(struct state *state, struct tensor *tensor, const struct tensor *like, bool is_unseen, const char *name,
                     int32_t element, int ndim, const int64_t *shape);

/* exporter.c: memory of ours for a tensor, offered through __dlpack__ once. data gets its address. */
PyObject *exporter_type(PyObject *module);
PyObject *exporter_new(PyObject *type, struct dlpack_dtype dtype, int ndim, const int64_t *shape);

#endif
