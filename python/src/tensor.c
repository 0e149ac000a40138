/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor.c: opens a tensor by the route that its type has. The fast one, the exchange API, costs a call through a pointer;
 * the buffer protocol one of NumPy's; __dlpack__ makes a capsule. framework.c knows which type has which. */
#include "tensor.h"

#include <string.h>

PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, struct buffer *buffer, int flags);
PyAPI_FUNC(void) PyBuffer_Release(struct buffer *buffer);

enum { BUFFER_RECORDS_READ_ONLY = 0x0018 | 0x0004 }; /* PyBUF_RECORDS_RO: strides and format, written or not */

static const struct {
    int32_t element;
    struct dlpack_dtype dlpack;
    const char *name;
    char formats[3]; /* of the struct module, with the size that dlpack.bits says */
} elements[] = {
    {STROBE_FP32, {DLPACK_FLOAT, 32, 1}, "float32", "f"},
    {STROBE_FP16, {DLPACK_FLOAT, 16, 1}, "float16", "e"},
    {STROBE_BF16, {DLPACK_BFLOAT, 16, 1}, "bfloat16", "E"},
    {STROBE_FP64, {DLPACK_FLOAT, 64, 1}, "float64", "d"},
    {ELEMENT_BOOL, {DLPACK_BOOL, 8, 1}, "bool", "?"},
    {ELEMENT_UINT8, {DLPACK_UINT, 8, 1}, "uint8", "B"},
    {ELEMENT_INT32, {DLPACK_INT, 32, 1}, "int32", "il"},
    {ELEMENT_INT64, {DLPACK_INT, 64, 1}, "int64", "lq"},
    {STROBE_INT8, {DLPACK_INT, 8, 1}, "int8", "b"},
    {STROBE_FP8_E4M3, {DLPACK_FLOAT8_E4M3FN, 8, 1}, "float8_e4m3fn", ""},
    {ELEMENT_OTHER, {255, 0, 0}, "a dtype of another kind", ""},
};
enum { ELEMENTS = sizeof elements / sizeof elements[0] };

static size_t entry_of(int32_t element) {
    size_t n = 0;
    while (n + 1 < ELEMENTS && elements[n].element != element) ++n;
    return n;
}

const char *element_name(int32_t element) { return elements[entry_of(element)].name; }
struct dlpack_dtype element_dlpack(int32_t element) {
    return elements[entry_of(element)].dlpack;
}

static int32_t element_of_dlpack(struct dlpack_dtype dtype) {
    for (size_t n = 0; n < ELEMENTS; ++n)
        if (memcmp(&elements[n].dlpack, &dtype, sizeof dtype) == 0) return elements[n].element;
    return ELEMENT_OTHER;
}

/* A format of one native element, such as "f", "<d" or "@l"; a struct, or the other byte order, is of another kind. */
static int32_t element_of_format(const char *format, Py_ssize_t itemsize) {
    const uint16_t one = 1;
    const char native = *(const char *)&one ? '<' : '>';
    if (!format) return ELEMENT_UINT8;
    if (*format == '@' || *format == '=' || *format == native) ++format;
    if (*format == 0 || format[1] != 0) return ELEMENT_OTHER;
    for (size_t n = 0; n < ELEMENTS; ++n)
        if (strchr(elements[n].formats, *format) && elements[n].dlpack.bits == 8 * itemsize) return elements[n].element;
    return ELEMENT_OTHER;
}

static bool refuse_axes(const struct tensor *t, int ndim) {
    PyErr_Format(PyExc_ValueError, "%s has %d axes; at most %d are accepted", t->name, ndim, MOST_AXES);
    return false;
}

static bool is_empty(const struct tensor *t) {
    for (int axis = 0; axis < t->ndim; ++axis)
        if (t->shape[axis] == 0) return true;
    return false;
}

bool tensor_describe(struct tensor *t, const struct dlpack_tensor *from) {
    if (from->ndim > MOST_AXES) return refuse_axes(t, from->ndim);
    t->ndim = from->ndim;
    int64_t contiguous = 1;
    for (int axis = from->ndim - 1; axis >= 0; --axis) {
        t->shape[axis] = from->shape[axis];
        t->stride[axis] = from->strides ? from->strides[axis] : contiguous;
        contiguous *= from->shape[axis];
    }
    t->element = element_of_dlpack(from->dtype);
    t->data = from->data ? (char *)from->data + from->byte_offset : NULL;
    t->device_index = 0;
    switch (from->device.type) {
    case DLPACK_CPU:
    case DLPACK_CUDA_HOST: t->device = STROBE_CPU; return true;
    case DLPACK_CUDA:
    case DLPACK_CUDA_MANAGED: t->device = STROBE_CUDA, t->device_index = from->device.index; return true;
    default:
        PyErr_Format(PyExc_NotImplementedError, "%s is on a device of DLPack's type %d; CPU and CUDA tensors are accepted",
                     t->name, (int)from->device.type);
        return false;
    }
}

/* A view of PyTorch's whose sign is to be changed on reading, as in x.conj().imag: DLPack cannot say so, and the exchange
 * API does not look. */
static bool means_what_it_holds(const struct tensor *t) {
    if (!t->framework.is_neg) return true;
    PyObject *answer = PyObject_CallFunctionObjArgs(t->framework.is_neg, t->object, NULL);
    Py_XDECREF(answer);
    if (answer == Py_True)
        PyErr_Format(PyExc_ValueError, "%s is a view with its negative bit set; %s.resolve_neg() is accepted", t->name,
                     t->name);
    return answer && answer != Py_True;
}

/* PyTorch's own refusal comes with a list of C++ frames; the sentence here names the argument. Always returns false. */
static bool refuse_torch(const struct tensor *t, PyObject *object) {
    if (!t->framework.is_torch) return false;
    PyErr_Clear();
    PyObject *device = PyObject_GetAttrString(object, "device"), *layout = PyObject_GetAttrString(object, "layout");
    if (device && layout)
        PyErr_Format(
            PyExc_ValueError,
            "%s is a tensor on %S, %S, whose data cannot be read; a strided tensor with data of its own, on the CPU "
            "or a CUDA device, is accepted",
            t->name, device, layout);
    Py_XDECREF(device);
    Py_XDECREF(layout);
    return false;
}

static bool open_exchange(struct tensor *t, PyObject *object) {
    const struct dlpack_exchange_api *api = t->framework.api;
    struct dlpack_tensor borrowed;
    if (api->borrow_object) {
        if (api->borrow_object(object, &borrowed) != 0) return refuse_torch(t, object);
        return tensor_describe(t, &borrowed);
    }
    if (api->from_object(object, &t->held.versioned) != 0) return refuse_torch(t, object);
    t->read_only = t->held.versioned->flags & DLPACK_READ_ONLY;
    return tensor_describe(t, &t->held.versioned->tensor);
}

/* NumPy lends no buffer of ml_dtypes' bfloat16 and float8_e4m3fn; one of integers over them it does. */
static bool open_ml_dtypes(struct tensor *t, PyObject *object) {
    static const struct {
        int32_t element;
        const char *integer;
    } lent[] = {{STROBE_BF16, "uint16"}, {STROBE_FP8_E4M3, "uint8"}};
    enum { LENT = sizeof lent / sizeof lent[0] };
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *name = dtype ? PyObject_GetAttrString(dtype, "name") : NULL;
    size_t n = 0;
    while (n < LENT &&
           !(name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, element_name(lent[n].element)) == 0))
        ++n;
    Py_XDECREF(name);
    PyErr_Clear();
    if (n == LENT && dtype) {
        PyErr_Format(PyExc_ValueError,
                     "%s.dtype is %S; float32, or another dtype of numbers that have one value, is accepted", t->name,
                     dtype);
    } else if (n == LENT) {
        PyErr_Format(PyExc_TypeError,
                     "%s is a %R; a tensor of NumPy, PyTorch, JAX or another framework with DLPack is accepted", t->name,
                     (PyObject *)Py_TYPE(object));
    }
    Py_XDECREF(dtype);
    if (n == LENT) return false;
    t->element = lent[n].element;
    t->held.view = PyObject_CallMethod(object, "view", "s", lent[n].integer);
    return t->held.view && PyObject_GetBuffer(t->held.view, &t->held.buffer, BUFFER_RECORDS_READ_ONLY) == 0;
}

static bool open_buffer(struct tensor *t, PyObject *object) {
    struct buffer *b = &t->held.buffer;
    bool known = false;
    if (PyObject_GetBuffer(object, b, BUFFER_RECORDS_READ_ONLY) != 0) {
        PyErr_Clear();
        b->object = NULL;
        if (!open_ml_dtypes(t, object)) return false;
        known = true;
    }
    if (b->ndim > MOST_AXES) return refuse_axes(t, b->ndim);
    t->data = b->data, t->ndim = b->ndim, t->read_only = b->read_only;
    t->device = STROBE_CPU, t->device_index = 0;
    if (!known) t->element = element_of_format(b->format, b->itemsize);
    if (b->itemsize == 0) return refuse_dtype(t, "a dtype with a size");
    for (int axis = 0; axis < b->ndim; ++axis) t->shape[axis] = b->shape[axis];
    for (int axis = 0; axis < b->ndim; ++axis) {
        t->stride[axis] = b->strides[axis] / b->itemsize;
        if (b->strides[axis] % b->itemsize == 0 || b->shape[axis] == 1 || is_empty(t)) continue;
        PyErr_Format(PyExc_ValueError, "%s.strides[%d] is %zd bytes; a multiple of the element's %zd is accepted", t->name,
                     axis, b->strides[axis], b->itemsize);
        return false;
    }
    return true;
}

/* Calls __dlpack__: with the newest version that is understood here, then, for producers from before versions, plainly. */
static PyObject *capsule_of(PyObject *object) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    if (!method) return NULL;
    PyObject *nothing = PyTuple_New(0), *keywords = Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR, DLPACK_MINOR);
    PyObject *capsule = nothing && keywords ? PyObject_Call(method, nothing, keywords) : NULL;
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_CallObject(method, NULL);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(nothing);
    Py_DECREF(method);
    return capsule;
}

static bool take_capsule(struct tensor *t, PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, DLPACK_VERSIONED)) {
        struct dlpack_versioned *tensor = PyCapsule_GetPointer(capsule, DLPACK_VERSIONED);
        if (PyCapsule_SetName(capsule, DLPACK_VERSIONED_USED) != 0) return false;
        t->held.versioned = tensor; /* closed whatever its version is: the deleter's place is the same in all */
        if (tensor->version.major != DLPACK_MAJOR) {
            PyErr_Format(PyExc_BufferError, "%s comes in DLPack %u; version %d is accepted", t->name, tensor->version.major,
                         DLPACK_MAJOR);
            return false;
        }
        t->read_only = tensor->flags & DLPACK_READ_ONLY;
        return tensor_describe(t, &tensor->tensor);
    }
    struct dlpack_managed *tensor = PyCapsule_GetPointer(capsule, DLPACK_CAPSULE);
    if (!tensor || PyCapsule_SetName(capsule, DLPACK_CAPSULE_USED) != 0) return false;
    t->held.managed = tensor;
    return tensor_describe(t, &tensor->tensor);
}

static bool open_capsule(struct tensor *t, PyObject *object) {
    PyObject *capsule = capsule_of(object);
    if (!capsule) return false;
    const bool taken = take_capsule(t, capsule);
    Py_DECREF(capsule);
    return taken;
}

/* The strides of a tensor without elements say nothing, and frameworks put anything there: contiguous ones take their place.
 */
static void set_contiguous(struct tensor *t) {
    int64_t contiguous = 1;
    for (int axis = t->ndim - 1; axis >= 0; --axis) {
        t->stride[axis] = contiguous;
        if (t->shape[axis] > 0 && __builtin_mul_overflow(contiguous, t->shape[axis], &contiguous)) contiguous = 1;
    }
}

bool tensor_open_new(struct state *state, struct tensor *t, PyObject *object, const char *name) {
    t->name = name, t->object = object, t->read_only = false;
    memset(&t->held, 0, sizeof t->held);
    t->framework = *framework_of(state, object);
    bool open = false;
    switch (t->framework.route) {
    case ROUTE_EXCHANGE: open = open_exchange(t, object); break;
    case ROUTE_BUFFER: open = open_buffer(t, object); break;
    case ROUTE_CAPSULE: open = open_capsule(t, object); break;
    }
    if (!open)
        tensor_close(t);
    else if (is_empty(t))
        set_contiguous(t);
    return open;
}

bool tensor_open(struct state *state, struct tensor *t, PyObject *object, const char *name) {
    if (!tensor_open_new(state, t, object, name)) return false;
    if (means_what_it_holds(t)) return true;
    tensor_close(t);
    return false;
}

bool tensor_open_optional(struct state *state, struct tensor *t, PyObject *object, const char *name) {
    if (object != Py_None) return tensor_open(state, t, object, name);
    t->object = NULL;
    return true;
}

void tensor_close(struct tensor *t) {
    if (!t->object) return;
    t->object = NULL;
    if (t->held.buffer.object) PyBuffer_Release(&t->held.buffer);
    Py_XDECREF(t->held.view);
    if (t->held.versioned && t->held.versioned->deleter) t->held.versioned->deleter(t->held.versioned);
    if (t->held.managed && t->held.managed->deleter) t->held.managed->deleter(t->held.managed);
}

bool tensor_stream(const struct tensor *t, void **stream) {
    *stream = NULL;
    const struct dlpack_exchange_api *api = t->framework.api;
    return t->device == STROBE_CPU || !api || api->current_stream(DLPACK_CUDA, t->device_index, stream) == 0;
}
