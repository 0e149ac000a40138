/* SPDX-License-Identifier: BSD-3-Clause
 *
 * torch_abi.h: the functions of PyTorch's stable C ABI that the kernels of aten_cpu.c and aten_cuda.c need, found at run
 * time. Nothing of PyTorch is included, linked or built against: one binary works with every PyTorch from 2.10 on, where the
 * ABI has all of them, and does without where they are not found (torch_abi_open). The headers of its stable ABI document
 * them. */
#ifndef STROBE_PYTHON_TORCH_ABI_H
#define STROBE_PYTHON_TORCH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value on a kernel's stack: a number's bytes; a tensor or list, owned; of an optional one a pointer to another, or 0. */
typedef uint64_t stable_value;
typedef void stable_kernel(stable_value *stack, uint64_t arguments, uint64_t results);

typedef int32_t torch_error; /* 0: none */
struct torch_tensor;         /* at::Tensor, by a pointer that owns it */
struct torch_list;
struct torch_library;

/* The version whose conversions of values the kernels expect: 2.10. */
#define TORCH_ABI (UINT64_C(2) << 56 | UINT64_C(10) << 48)

enum { SEEN_BY = 4 };

struct torch_abi {
    uint64_t (*version)(void);
    torch_error (*library_new)(const char *space, const char *key, const char *file, uint32_t line,
                               struct torch_library **library);
    torch_error (*library_impl)(struct torch_library *library, const char *name, stable_kernel *kernel, uint64_t version);
    torch_error (*library_delete)(struct torch_library *library);
    torch_error (*call)(const char *name, const char *overload, stable_value *stack, uint64_t version);

    torch_error (*is_defined)(struct torch_tensor *tensor, bool *is);
    torch_error (*dim)(struct torch_tensor *tensor, int64_t *dim);
    torch_error (*sizes)(struct torch_tensor *tensor, int64_t **sizes); /* borrowed, as are strides and data */
    torch_error (*strides)(struct torch_tensor *tensor, int64_t **strides);
    torch_error (*dtype)(struct torch_tensor *tensor, int32_t *dtype);
    torch_error (*device_type)(struct torch_tensor *tensor, int32_t *type);
    torch_error (*device_index)(struct torch_tensor *tensor, int32_t *index);
    torch_error (*read_data)(struct torch_tensor *tensor, const void **data);
    torch_error (*write_data)(struct torch_tensor *tensor, void **data);
    torch_error (*empty)(int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                         int32_t device_index, struct torch_tensor **tensor);
    torch_error (*undefined)(struct torch_tensor **tensor);
    torch_error (*copy)(struct torch_tensor *to, struct torch_tensor *from, int32_t non_blocking);
    torch_error (*fill)(struct torch_tensor *tensor, double value);
    torch_error (*tensor_delete)(struct torch_tensor *tensor);
    torch_error (*list_item)(struct torch_list *list, size_t index, stable_value *item);
    torch_error (*list_delete)(struct torch_list *list);

    bool (*grad_mode)(void);
    /* Throws PyTorch's exception where it does not hold. */
    void (*check)(bool holds, const char *function, const char *file, uint32_t line, const char *sentence);

    int32_t (*cpu)(void); /* a device's type, as the next; the others are dtypes */
    int32_t (*cuda)(void);
    int32_t (*float32)(void), (*float16)(void), (*bfloat16)(void), (*float64)(void), (*boolean)(void);
    int32_t (*uint8)(void), (*int64)(void), (*uint64)(void);

    /* Frees what an optional value points to. From 2.13 on it has a function of its own; before, it is C++'s delete. */
    void (*value_delete)(stable_value *value);
    const char *(*last_error)(void); /* from 2.13 on; NULL before */
    /* A tensor as Python's object, a new reference; it may take the tensor out of what it is given, which is still to be
     * deleted. By its mangled name, since the ABI has none: NULL where it is not found. */
    void *(*wrap)(struct torch_tensor *tensor);

    /* Whether the dispatcher has something to do with a tensor between autograd and a kernel: it is of a type in Python that
     * is shown operators, a view with its negative bit set, zeros that nobody has written, or a functionalization's. The ABI
     * does not tell; functions of C++ by their mangled names, all of them or none. */
    bool (*dispatches[SEEN_BY])(const struct torch_tensor *tensor);
    bool (*modes)(bool skip_those_of_pytorch); /* whether any mode is shown operators; NULL together with them */
    /* Whether a call is traced: what is pointed to is not NULL; whether tensors of a type of device are cast. NULL likewise.
     */
    void *const *(*tracing)(void);
    bool (*casts)(int8_t device_type);

    /* torch_abi_open_cuda: NULL before. */
    torch_error (*current_stream)(int32_t device_index, void **stream);
    /* The driver's cuStreamIsCapturing, which PyTorch has no function for; a status of 0 is no. */
    int (*is_capturing)(void *stream, int *status);
    /* Its cuMemsetD32Async and cuCtxGetDevice; 0 is success. */
    int (*set_words)(unsigned long long at, unsigned word, size_t count, void *stream);
    int (*current_device)(int *device);
    /* Whether torch.use_deterministic_algorithms is in force, of PyTorch's settings. The ABI does not tell: these are two
     * functions of C++, by their mangled names, that take and return what C has too. */
    void *(*settings)(void);
    bool (*deterministic)(const void *settings);
};

extern struct torch_abi torch_abi;

/* Finds the functions in the library of PyTorch at this path, which the process has loaded. False where PyTorch is a version
 * that is not known to keep to this ABI or lacks one of them; then none may be called. */
bool torch_abi_open(const char *path);

/* The same for what calls on GPUs need besides, in the library of PyTorch's that has its CUDA backend. */
bool torch_abi_open_cuda(const char *path);

#endif
