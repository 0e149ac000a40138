/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exporter.c: memory of ours for a result, as an object with __dlpack__ and __dlpack_device__ that a framework's
 * from_dlpack() takes. The memory goes with the first capsule. Its deleter frees without Python, so that it may run on any
 * thread, without the GIL, and after the interpreter has gone. */
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

enum { ALIGNMENT = 64 }; /* what JAX asks of memory that it does not copy */

struct exporter {
    PyObject_HEAD void *memory; /* NULL: taken */
    struct dlpack_dtype dtype;
    int ndim;
    int64_t shape[MOST_AXES];
};

/* The two layouts of a capsule's content, with what they lead to. */
struct export {
    struct dlpack_versioned versioned;
    struct dlpack_managed managed;
    int64_t shape[MOST_AXES], strides[MOST_AXES];
    void *memory;
};

static void free_export(struct export *e) {
    free(e->memory);
    free(e);
}

static void delete_versioned(struct dlpack_versioned *self) { free_export(self->manager); }
static void delete_managed(struct dlpack_managed *self) { free_export(self->manager); }

/* A capsule that nobody took still owns its memory. */
static void destroy_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, DLPACK_VERSIONED))
        delete_versioned(PyCapsule_GetPointer(capsule, DLPACK_VERSIONED));
    else if (PyCapsule_IsValid(capsule, DLPACK_CAPSULE))
        delete_managed(PyCapsule_GetPointer(capsule, DLPACK_CAPSULE));
}

PyObject *exporter_new(PyObject *type, struct dlpack_dtype dtype, int ndim, const int64_t *shape) {
    struct exporter *self = (struct exporter *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (!self) return NULL;
    size_t bytes = dtype.bits / 8;
    for (int axis = 0; axis < ndim; ++axis)
        if (__builtin_mul_overflow(bytes, (size_t)shape[axis], &bytes)) bytes = SIZE_MAX / 2; /* more than there is */
    self->dtype = dtype, self->ndim = ndim;
    memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    self->memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (self->memory) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void dealloc(PyObject *object) {
    free(((struct exporter *)object)->memory);
    PyObject *type = (PyObject *)Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static struct export *make_export(struct exporter *self) {
    struct export *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    int64_t contiguous = 1;
    for (int axis = self->ndim - 1; axis >= 0; --axis) {
        e->shape[axis] = self->shape[axis], e->strides[axis] = contiguous;
        contiguous *= self->shape[axis];
    }
    e->memory = self->memory;
    e->managed.tensor = (struct dlpack_tensor){
        .data = self->memory,
        .device = {DLPACK_CPU, 0},
        .ndim = self->ndim,
        .dtype = self->dtype,
        .shape = e->shape,
        .strides = e->strides,
    };
    e->managed.manager = e, e->managed.deleter = delete_managed;
    e->versioned = (struct dlpack_versioned){
        .version = {DLPACK_MAJOR, DLPACK_MINOR},
        .manager = e,
        .deleter = delete_versioned,
        .tensor = e->managed.tensor,
    };
    return e;
}

/* __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) */
static PyObject *dlpack(PyObject *object, PyObject *args, PyObject *keywords) {
    struct exporter *self = (struct exporter *)object;
    (void)args;
    PyObject *version = keywords ? PyDict_GetItemString(keywords, "max_version") : NULL; /* borrowed */
    int major = 0, minor = 0;
    if (version && version != Py_None && !PyArg_ParseTuple(version, "ii", &major, &minor)) return NULL;
    if (!self->memory) {
        PyErr_SetString(PyExc_BufferError, "the memory was taken already");
        return NULL;
    }
    struct export *e = make_export(self);
    if (!e) return PyErr_NoMemory();
    PyObject *capsule = major >= DLPACK_MAJOR ? PyCapsule_New(&e->versioned, DLPACK_VERSIONED, destroy_capsule)
                                              : PyCapsule_New(&e->managed, DLPACK_CAPSULE, destroy_capsule);
    if (capsule)
        self->memory = NULL;
    else
        free(e);
    return capsule;
}

static PyObject *dlpack_device(PyObject *object, PyObject *nothing) {
    (void)object, (void)nothing;
    return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void *)(uintptr_t)dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, (void *)"Memory of a result on its way into the caller's framework."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "strobe._strobe.Exporter",
    .basicsize = sizeof(struct exporter),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

PyObject *exporter_type(PyObject *module) { return PyType_FromModuleAndSpec(module, &spec, NULL); }
