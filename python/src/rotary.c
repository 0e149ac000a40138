/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rotary.c: rotary embedding as quantise and append take it: rotary is a pair of tables, or the base of the angles. */
#include "arguments.h"

static bool open_table(struct call *c, struct tensor *t, PyObject *object, const char *name) {
    if (!tensor_open(c->state, t, object, name) || !tensor_is_on(t, &c->q)) return false;
    if (t->ndim != 2) return refuse_shape(t, "(positions, columns / 2)");
    if (t->element != STROBE_FP32) return refuse_dtype(t, "float32");
    if (t->stride[1] == 1 && t->stride[0] == t->shape[1]) return true;
    PyErr_Format(PyExc_ValueError, "%s is not contiguous; a contiguous table is accepted", name);
    return false;
}

static bool read_tables(struct call *c, struct rotary *r, PyObject *given) {
    PyObject *cos = PySequence_GetItem(given, 0), *sin = PySequence_GetItem(given, 1);
    const bool opened = cos && sin && open_table(c, &r->cos, cos, "rotary[0]") && open_table(c, &r->sin, sin, "rotary[1]") &&
                        tensor_has_shape(&r->sin, 2, r->cos.shape);
    Py_XDECREF(cos); /* the pair still has them */
    Py_XDECREF(sin);
    r->by.cos = r->cos.data, r->by.sin = r->sin.data;
    r->by.positions = r->cos.shape[0], r->by.dim = 2 * r->cos.shape[1];
    return opened;
}

bool read_rotary(struct call *c, struct rotary *r) {
    PyObject *given = c->args[ARG_ROTARY];
    const int interleaved = PyObject_IsTrue(c->args[ARG_INTERLEAVED]);
    r->by.struct_size = sizeof r->by, r->by.interleaved = interleaved;
    r->attached = given != Py_None;
    if (interleaved < 0 || given == Py_None) return interleaved >= 0;
    if (PyFloat_Check(given) || PyLong_Check(given)) {
        if (!read_float(given, "rotary", &r->by.base) || !read_int(c->args[ARG_ROTARY_DIM], "rotary_dim", &r->by.dim))
            return false;
        if (r->by.base >= 1) return true;
        PyErr_Format(PyExc_ValueError, "rotary is %R; a base of 1 or more, or a pair of tables (cos, sin), is accepted",
                     given);
        return false;
    }
    if (PySequence_Check(given) && PySequence_Size(given) == 2) return read_tables(c, r, given);
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "rotary is %R; a pair of tables (cos, sin), or a number, the base, is accepted", given);
    return false;
}

void close_rotary(struct rotary *r) {
    tensor_close(&r->cos);
    tensor_close(&r->sin);
}
