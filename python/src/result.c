/* SPDX-License-Identifier: BSD-3-Clause
 *
 * result.c: a new tensor of the caller's framework. PyTorch makes its own by new_empty(), NumPy by empty(). Another
 * framework allocates by the exchange API where it has one, and else takes memory of ours through its from_dlpack().
 *
 * PyTorch could allocate by the exchange API too. A tensor that came through DLPack cannot be resized, though, and a CUDA
 * graph of torch.compile refuses it: its memory is not known to PyTorch's allocator. */
#include <string.h>

#include "aten.h"
#include "tensor.h"

static void set_error(void *context, const char *kind, const char *message) {
    PyObject *builtins = PyImport_ImportModule("builtins");
    PyObject *type = builtins ? PyObject_GetAttrString(builtins, kind) : NULL;
    if (!type) PyErr_Clear();
    PyErr_Format(type ? type : PyExc_RuntimeError, "%s: %s", ((const struct tensor *)context)->name, message);
    Py_XDECREF(type);
    Py_XDECREF(builtins);
}

static PyObject *new_by_exchange(struct tensor *t, const struct tensor *like, int32_t element, int ndim,
                                 const int64_t *shape) {
    const struct dlpack_exchange_api *api = like->framework.api;
    int64_t extents[MOST_AXES];
    memcpy(extents, shape, (size_t)ndim * sizeof *shape);
    struct dlpack_tensor prototype = {
        .device = {like->device == STROBE_CPU ? DLPACK_CPU : DLPACK_CUDA, like->device_index},
        .ndim = ndim,
        .dtype = element_dlpack(element),
        .shape = extents,
    };
    struct dlpack_versioned *made = NULL;
    if (api->allocate(&prototype, &made, t, set_error) != 0 || !made) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return NULL;
    }
    const bool described = tensor_describe(t, &made->tensor);
    void *object = NULL;
    if (api->to_object(made, &object) != 0) return NULL;
    if (!described) Py_CLEAR(object);
    return object;
}

/* Whether a tensor of this shape, one row after the other, is one like `like`. */
static bool is_alike(const struct tensor *like, int32_t element, int ndim, const int64_t *shape) {
    bool alike = like->element == element && like->ndim == ndim && !like->turned;
    int64_t stride = 1;
    for (int axis = ndim - 1; alike && axis >= 0; --axis) {
        alike = like->shape[axis] == shape[axis] && like->stride[axis] == stride;
        stride *= shape[axis];
    }
    return alike;
}

/* torch.empty_like(like): less of PyTorch than new_empty(), which between other operators has to come from memory. */
static PyObject *new_by_torch_alike(struct state *state, const struct tensor *like) {
    if (!state->torch_empty_like) {
        PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch"); /* borrowed */
        state->torch_empty_like = torch ? PyObject_GetAttrString(torch, "empty_like") : NULL;
        if (!state->torch_empty_like) return NULL;
    }
    return PyObject_CallFunctionObjArgs(state->torch_empty_like, like->object, NULL);
}

/* The same on the CPU without Python's or the dispatcher's code, for a call that nothing looks at. NULL without an exception
 * where that is not to be had. */
static PyObject *new_unseen(const struct tensor *like) {
    struct torch_tensor *made = NULL;
    if (!torch_abi.wrap || like->device != STROBE_CPU || like->element > STROBE_FP64 ||
        !aten_empty(like->element, like->ndim, like->shape, like->stride, &made))
        return NULL;
    PyObject *object = torch_abi.wrap(made);
    torch_abi.tensor_delete(made);
    return object;
}

/* torch.Tensor.new_empty and its keywords for a dtype, which are NULL where it is that of `like`. New references. */
static bool find_torch(struct state *state, const struct tensor *like, int32_t element, PyObject **function,
                       PyObject **keywords) {
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch"), *dtype; /* torch is borrowed */
    if (!state->torch_keywords) state->torch_keywords = PyDict_New();
    if (!state->torch_empty) {
        PyObject *base = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
        state->torch_empty = base ? PyObject_GetAttrString(base, "new_empty") : NULL;
        Py_XDECREF(base);
    }
    if (!state->torch_keywords || !state->torch_empty) return false;
    *keywords = NULL, *function = state->torch_empty;
    Py_INCREF(*function);
    if (element == like->element) return true;
    const char *name = element_name(element);
    *keywords = PyDict_GetItemString(state->torch_keywords, name);
    if (!*keywords && (dtype = PyObject_GetAttrString(torch, name))) {
        *keywords = Py_BuildValue("{sN}", "dtype", dtype);
        if (*keywords && PyDict_SetItemString(state->torch_keywords, name, *keywords) == 0) return true;
    }
    Py_XINCREF(*keywords);
    return *keywords != NULL;
}

/* like.new_empty(*shape, dtype=...): on the device of `like`, from PyTorch's allocator for the current stream there. */
static PyObject *new_by_torch(struct state *state, const struct tensor *like, bool is_unseen, int32_t element, int ndim,
                              const int64_t *shape) {
    PyObject *function = NULL, *keywords = NULL, *tensor = NULL;
    if (is_alike(like, element, ndim, shape)) {
        if (is_unseen) tensor = new_unseen(like);
        return tensor || PyErr_Occurred() ? tensor : new_by_torch_alike(state, like);
    }
    PyObject *arguments = PyTuple_New(1 + ndim);
    if (arguments && find_torch(state, like, element, &function, &keywords)) {
        Py_INCREF(like->object);
        PyTuple_SetItem(arguments, 0, like->object); /* takes the references */
        for (int axis = 0; axis < ndim; ++axis) PyTuple_SetItem(arguments, 1 + axis, PyLong_FromLongLong(shape[axis]));
        tensor = PyObject_Call(function, arguments, keywords);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(function);
    return tensor;
}

/* The dtype is that of `like` where it is the same, so that ml_dtypes' bfloat16 needs no name. */
static PyObject *new_by_numpy(struct state *state, const struct tensor *like, int32_t element, int ndim,
                              const int64_t *shape) {
    if (!state->numpy_empty) {
        PyObject *numpy = PyImport_ImportModule("numpy");
        state->numpy_empty = numpy ? PyObject_GetAttrString(numpy, "empty") : NULL;
        Py_XDECREF(numpy);
        if (!state->numpy_empty) return NULL;
    }
    PyObject *dtype = element == like->element ? PyObject_GetAttrString(like->object, "dtype") : NULL;
    if (!dtype) {
        PyErr_Clear();
        dtype = PyUnicode_FromString(element_name(element));
    }
    PyObject *extents = PyTuple_New(ndim);
    for (int axis = 0; extents && axis < ndim; ++axis)
        PyTuple_SetItem(extents, axis, PyLong_FromLongLong(shape[axis])); /* takes the reference */
    PyObject *array = extents && dtype ? PyObject_CallFunctionObjArgs(state->numpy_empty, extents, dtype, NULL) : NULL;
    Py_XDECREF(extents);
    Py_XDECREF(dtype);
    return array;
}

/* The framework's own from_dlpack: strobe._frameworks knows where each keeps it. Borrowed. */
static PyObject *from_dlpack_of(struct state *state, const struct tensor *like) {
    struct framework *f = framework_of(state, like->object);
    if (f->from_dlpack) return f->from_dlpack;
    PyObject *frameworks = PyImport_ImportModule("strobe._frameworks");
    PyObject *found = frameworks ? PyObject_CallMethod(frameworks, "from_dlpack", "O", like->object) : NULL;
    Py_XDECREF(frameworks);
    f = framework_of(state, like->object);
    if (found && !f->from_dlpack) return f->from_dlpack = found;
    Py_XDECREF(found);
    return f->from_dlpack;
}

static PyObject *new_by_capsule(struct state *state, const struct tensor *like, int32_t element, int ndim,
                                const int64_t *shape) {
    if (like->device != STROBE_CPU) {
        PyErr_Format(PyExc_NotImplementedError,
                     "%s is a CUDA tensor of a framework without the C exchange API of DLPack; CPU tensors are accepted",
                     like->name);
        return NULL;
    }
    PyObject *from_dlpack = from_dlpack_of(state, like);
    if (!from_dlpack) return NULL;
    PyObject *exporter = exporter_new(state->exporter_type, element_dlpack(element), ndim, shape);
    PyObject *object = exporter ? PyObject_CallFunctionObjArgs(from_dlpack, exporter, NULL) : NULL;
    Py_XDECREF(exporter);
    return object;
}

PyObject *result_new(struct state *state, struct tensor *t, const struct tensor *like, bool is_unseen, const char *name,
                     int32_t element, int ndim, const int64_t *shape) {
    t->name = name, t->read_only = false, t->object = NULL;
    PyObject *object;
    if (like->framework.is_torch) {
        object = new_by_torch(state, like, is_unseen, element, ndim, shape);
    } else if (like->framework.route == ROUTE_EXCHANGE) {
        memset(&t->held, 0, sizeof t->held);
        return new_by_exchange(t, like, element, ndim, shape); /* stays where it is as long as the object lives */
    } else {
        object = like->framework.route == ROUTE_BUFFER ? new_by_numpy(state, like, element, ndim, shape)
                                                       : new_by_capsule(state, like, element, ndim, shape);
    }
    if (!object || tensor_open_new(state, t, object, name)) return object;
    Py_DECREF(object);
    return NULL;
}
