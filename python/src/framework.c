/* SPDX-License-Identifier: BSD-3-Clause
 *
 * framework.c: which route a type's tensors come in by, found out once a type; and the checks of an opened tensor, with
 * their sentences, in the library's way: the argument, its value, what is accepted. */
#include <stdio.h>
#include <string.h>

#include "tensor.h"

/* Follows the chain to the major version that is understood here. */
static const struct dlpack_exchange_api *exchange_api(PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const struct dlpack_exchange_header *header = NULL;
    if (capsule && PyCapsule_IsValid(capsule, DLPACK_EXCHANGE_CAPSULE))
        header = PyCapsule_GetPointer(capsule, DLPACK_EXCHANGE_CAPSULE);
    Py_XDECREF(capsule); /* what it leads to lives as long as the process */
    PyErr_Clear();
    while (header && header->version.major != DLPACK_MAJOR) header = header->previous;
    return (const struct dlpack_exchange_api *)header;
}

/* Whether a type is this class of a module, or a subclass of it; a module that nobody imported has no objects. */
static bool is_a(PyObject *type, const char *module, const char *class) {
    PyObject *imported = PyDict_GetItemString(PyImport_GetModuleDict(), module); /* both borrowed */
    PyObject *base = imported ? PyObject_GetAttrString(imported, class) : NULL;
    const bool is = base && PyObject_IsSubclass(type, base) == 1;
    Py_XDECREF(base);
    PyErr_Clear();
    return is;
}

/* NumPy's arrays have __dlpack__ too, but it refuses what is read-only, and it is slower. */
static void look_up(struct framework *f) {
    f->is_torch = is_a(f->type, "torch", "Tensor");
    f->is_jax = is_a(f->type, "jax", "Array");
    f->api = exchange_api(f->type);
    f->is_neg = f->api ? PyObject_GetAttrString(f->type, "is_neg") : NULL;
    PyErr_Clear();
    if (f->api)
        f->route = ROUTE_EXCHANGE;
    else if (!is_a(f->type, "numpy", "ndarray") && PyObject_HasAttrString(f->type, "__dlpack__"))
        f->route = ROUTE_CAPSULE;
    else
        f->route = ROUTE_BUFFER;
}

struct framework *framework_of(struct state *state, PyObject *object) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    struct framework *f = state->frameworks;
    for (size_t n = 0; n < FRAMEWORKS && f[n].type; ++n)
        if (f[n].type == type) return &f[n];
    struct framework found = {.type = type};
    look_up(&found);
    Py_INCREF(type);
    struct framework *entry = &f[state->next_framework++ % FRAMEWORKS];
    const struct framework old = *entry;
    *entry = found;
    Py_XDECREF(old.type);
    Py_XDECREF(old.is_neg);
    Py_XDECREF(old.from_dlpack);
    return entry;
}

/* "(2, 3)", with "*" for -1. */
static void print_shape(char *text, size_t room, int ndim, const int64_t *shape) {
    size_t at = (size_t)snprintf(text, room, "(");
    for (int axis = 0; axis < ndim && at < room; ++axis) {
        const char *comma = axis + 1 < ndim ? ", " : ndim == 1 ? "," : "";
        if (shape[axis] < 0)
            at += (size_t)snprintf(text + at, room - at, "*%s", comma);
        else
            at += (size_t)snprintf(text + at, room - at, "%lld%s", (long long)shape[axis], comma);
    }
    if (at < room) snprintf(text + at, room - at, ")");
}

bool refuse_shape(const struct tensor *t, const char *wanted) {
    char shape[MOST_AXES * 22 + 4];
    print_shape(shape, sizeof shape, t->ndim, t->shape);
    PyErr_Format(PyExc_ValueError, "%s.shape is %s; %s is accepted", t->name, shape, wanted);
    return false;
}

bool refuse_stride(const struct tensor *t, int axis) {
    PyErr_Format(PyExc_ValueError, "%s.strides[%d] is %lld elements; 1, a contiguous %saxis, is accepted", t->name, axis,
                 (long long)t->stride[axis], t->ndim > 1 ? "last " : "");
    return false;
}

bool refuse_dtype(const struct tensor *t, const char *wanted) {
    PyObject *own = t->element == ELEMENT_OTHER && t->object ? PyObject_GetAttrString(t->object, "dtype") : NULL;
    PyErr_Clear();
    if (own) /* as the framework calls it, such as ">f4" */
        PyErr_Format(PyExc_ValueError, "%s.dtype is %S; %s is accepted", t->name, own, wanted);
    else
        PyErr_Format(PyExc_ValueError, "%s.dtype is %s; %s is accepted", t->name, element_name(t->element), wanted);
    Py_XDECREF(own);
    return false;
}

bool tensor_has_shape(const struct tensor *t, int ndim, const int64_t *shape) {
    bool fits = t->ndim == ndim;
    for (int axis = 0; fits && axis < ndim; ++axis) fits = shape[axis] < 0 || shape[axis] == t->shape[axis];
    if (fits) return true;
    char wanted[MOST_AXES * 22 + 4];
    print_shape(wanted, sizeof wanted, ndim, shape);
    return refuse_shape(t, wanted);
}

bool tensor_is_on(const struct tensor *t, const struct tensor *q) {
    if (t->device == q->device && t->device_index == q->device_index) return true;
    static const char *const kinds[] = {"the CPU", "CUDA device"};
    PyErr_Format(PyExc_ValueError, "%s is on %s %d; %s's, %s %d, is accepted", t->name, kinds[t->device],
                 (int)t->device_index, q->name, kinds[q->device], (int)q->device_index);
    return false;
}

bool tensor_is_writable(const struct tensor *t) {
    if (t->framework.is_jax) { /* its DLPack does not say so, and programs of JAX's take it for granted */
        PyErr_Format(
            PyExc_ValueError,
            "%s is an array of JAX, which never changes; a tensor that can be written, such as NumPy's or PyTorch's, "
            "is accepted",
            t->name);
        return false;
    }
    if (t->read_only) PyErr_Format(PyExc_ValueError, "%s is read-only; a tensor that can be written is accepted", t->name);
    return !t->read_only;
}
