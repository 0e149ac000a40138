/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten.c: compiled kernels for operators of PyTorch's, so that neither a call nor its derivative, which PyTorch has
 * compiled, runs a line of Python. They are registered with PyTorch's dispatcher through its stable C ABI (torch_abi.h), in
 * four groups:
 *
 *     replaced on the CPU    _scaled_dot_product_flash_attention_for_cpu, while strobe.torch.activate() is in force
 *     replaced on CUDA       _scaled_dot_product_flash_attention, _cudnn_ and _efficient_, likewise
 *     offered on the CPU     _scaled_dot_product_efficient_attention, for which PyTorch has no kernel there
 *     offered on CUDA        _scaled_dot_product_flash_attention_for_cpu, likewise
 *
 * and the _backward of each. strobe.torch calls those that are offered for their compiled derivative
 * (strobe/torch/_compiled.py). The kernels are in aten_cpu.c and aten_cuda.c. */
#include <string.h>

#include "aten.h"
#include "module.h"

struct registration {
    const char *space, *key, *operator;
    stable_kernel *kernel;
};

enum { MOST = 6 };

#define PRODUCT(name) "_scaled_dot_product_" name
static const struct registration replaced_cpu[MOST] = {
    {"aten", "CPU", PRODUCT("flash_attention_for_cpu"), aten_flash_for_cpu},
    {"aten", "CPU", PRODUCT("flash_attention_for_cpu_backward"), aten_flash_for_cpu_backward},
};
static const struct registration replaced_cuda[MOST] = {
    {"aten", "CUDA", PRODUCT("flash_attention"), aten_flash},
    {"aten", "CUDA", PRODUCT("flash_attention_backward"), aten_flash_backward},
    {"aten", "CUDA", PRODUCT("cudnn_attention"), aten_cudnn},
    {"aten", "CUDA", PRODUCT("cudnn_attention_backward"), aten_cudnn_backward},
    {"aten", "CUDA", PRODUCT("efficient_attention"), aten_efficient},
    {"aten", "CUDA", PRODUCT("efficient_attention_backward"), aten_efficient_backward},
};
static const struct registration offered_cpu[MOST] = {
    {"aten", "CPU", PRODUCT("efficient_attention"), aten_efficient_offered},
    {"aten", "CPU", PRODUCT("efficient_attention_backward"), aten_efficient_offered_backward},
    {"strobe", "CPU", "_efficient_backward_below", aten_efficient_offered_backward},
    {"aten", "AutogradCPU", PRODUCT("efficient_attention_backward"), aten_efficient_offered_graph},
};
static const struct registration offered_cuda[MOST] = {
    {"aten", "CUDA", PRODUCT("flash_attention_for_cpu"), aten_flash_offered},
    {"aten", "CUDA", PRODUCT("flash_attention_for_cpu_backward"), aten_flash_offered_backward},
    {"strobe", "CUDA", "_flash_backward_below", aten_flash_offered_backward},
    {"aten", "AutogradCUDA", PRODUCT("flash_attention_for_cpu_backward"), aten_flash_offered_graph},
};

static struct {
    const char *name;
    const struct registration *kernels;
    struct torch_library *libraries[MOST]; /* NULL: not registered */
} groups[] = {
    {"replaced CPU", replaced_cpu, {NULL}},
    {"replaced CUDA", replaced_cuda, {NULL}},
    {"offered CPU", offered_cpu, {NULL}},
    {"offered CUDA", offered_cuda, {NULL}},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };

/* key: in the place of each "CUDA"; NULL: as it is. */
static bool register_kernels(const struct registration *r, const char *key, struct torch_library **libraries) {
    for (int n = 0; n < MOST && r[n].kernel; ++n) {
        const char *place = key && strcmp(r[n].key, "CUDA") == 0 ? key : r[n].key;
        if (torch_abi.library_new(r[n].space, place, "strobe", 0, &libraries[n]) ||
            torch_abi.library_impl(libraries[n], r[n].operator, r[n].kernel, TORCH_ABI)) {
            PyErr_Format(PyExc_RuntimeError, "PyTorch has not taken a kernel for %s::%s on %s", r[n].space, r[n].operator,
                         place);
            return false;
        }
    }
    return true;
}

static void unregister_kernels(struct torch_library **libraries) {
    for (int n = 0; n < MOST; ++n) {
        if (libraries[n]) torch_abi.library_delete(libraries[n]);
        libraries[n] = NULL;
    }
}

/* Opens PyTorch's library at a path; whether its ABI is one that the kernels here know. */
FUNCTION(py_aten_open) {
    (void)module;
    const char *path = count == 1 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    if (!path) return NULL;
    const bool open = torch_abi_open(path);
    if (open) aten_numbers();
    return PyBool_FromLong(open);
}

/* The same for the library with PyTorch's CUDA backend. */
FUNCTION(py_aten_open_cuda) {
    (void)module;
    const char *path = count == 1 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    return path ? PyBool_FromLong(torch_abi_open_cuda(path)) : NULL;
}

/* What the kernels of CUDA take torch.are_deterministic_algorithms_enabled() for; None where they are not open. */
FUNCTION(py_aten_deterministic) {
    (void)module, (void)args, (void)count;
    if (!torch_abi.settings) return Py_NewRef(Py_None);
    return PyBool_FromLong(torch_abi.deterministic(torch_abi.settings()));
}

/* Registers a group's kernels. A second argument is a dispatch key in the place of CUDA, for tests without a GPU. */
FUNCTION(py_aten_register) {
    (void)module;
    const char *name = count > 0 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    const char *key = count > 1 ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
    if (!name || (count > 1 && !key)) return NULL;
    if (!torch_abi.version) {
        PyErr_SetString(PyExc_RuntimeError, "PyTorch's library has not been opened");
        return NULL;
    }
    for (int n = 0; n < GROUPS; ++n) {
        if (strcmp(groups[n].name, name) != 0) continue;
        unregister_kernels(groups[n].libraries);
        if (register_kernels(groups[n].kernels, key, groups[n].libraries)) return Py_NewRef(Py_None);
        unregister_kernels(groups[n].libraries);
        return NULL;
    }
    PyErr_Format(PyExc_ValueError, "\"%s\" is no group of kernels", name);
    return NULL;
}

/* Gives PyTorch its own kernels back. */
FUNCTION(py_aten_unregister) {
    (void)module;
    const char *name = count == 1 ? PyUnicode_AsUTF8AndSize(args[0], NULL) : NULL;
    if (!name) return NULL;
    for (int n = 0; n < GROUPS; ++n)
        if (strcmp(groups[n].name, name) == 0) unregister_kernels(groups[n].libraries);
    return Py_NewRef(Py_None);
}

FUNCTION(py_aten_calls) {
    long long calls[2];
    (void)module, (void)args, (void)count;
    aten_computed(calls);
    return Py_BuildValue("LL", calls[0], calls[1]);
}
