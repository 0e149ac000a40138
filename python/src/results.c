/* SPDX-License-Identifier: BSD-3-Clause
 *
 * results.c: the results of a call, the caller's tensors or new ones. */
#include "results.h"

#include <string.h>

bool has_spare_rows(const struct tensor *cu, const struct tensor *used, int64_t total) {
    if (tensor_is_open(used)) return true;
    if (!tensor_is_open(cu) || cu->device != STROBE_CPU) return false;
    const int64_t last = cu->shape[0] - 1;
    if (cu->element == ELEMENT_INT64)
        return ((const int64_t *)cu->data)[0] != 0 || ((const int64_t *)cu->data)[last] != total;
    return ((const int32_t *)cu->data)[0] != 0 || ((const int32_t *)cu->data)[last] != total;
}

bool fill(struct result *r, double value) {
    struct tensor *t = &r->tensor;
    if (t->device != STROBE_CPU) {
        PyObject *filled = PyObject_CallMethod(r->object, "fill_", "d", value);
        Py_XDECREF(filled);
        return filled != NULL;
    }
    size_t count = 1;
    for (int axis = 0; axis < t->ndim; ++axis) count *= (size_t)t->shape[axis];
    if (value == 0 && count > 0) memset(t->data, 0, count * (element_dlpack(t->element).bits / 8u));
    for (size_t n = 0; value != 0 && n < count; ++n) {
        if (t->element == STROBE_FP64)
            ((double *)t->data)[n] = value;
        else
            ((float *)t->data)[n] = (float)value;
    }
    return true;
}

bool open_result(struct call *c, struct result *r, PyObject *given, const char *name, int32_t element, int ndim,
                 const int64_t *shape) {
    if (given == Py_None) {
        r->object = result_new(c->state, &r->tensor, &c->q, c->is_plain, name, element, ndim, shape);
        return r->object != NULL;
    }
    if (!tensor_open(c->state, &r->tensor, given, name)) return false;
    Py_INCREF(given);
    r->object = given;
    heads_last(c, &r->tensor);
    if (!tensor_has_shape(&r->tensor, ndim, shape) || !tensor_is_on(&r->tensor, &c->q) || !tensor_is_writable(&r->tensor))
        return false;
    if (r->tensor.element != element) return refuse_dtype(&r->tensor, element_name(element));
    return true;
}

void close_result(struct result *r) {
    tensor_close(&r->tensor);
    Py_CLEAR(r->object);
}
