/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mask_lists.c: lists of what masks hide, made once for calls that follow (strobe_mask_lists.h). To Python they are a pair:
 * the memory, a tensor of q's framework and device, and what they were made for, the structure's bytes. */
#include <string.h>

#include "arguments.h"

/* The structure without what is only true while a call runs. */
static PyObject *bytes_of(const strobe_mask_lists *lists) {
    strobe_mask_lists kept = *lists;
    kept.data = NULL;
    return PyBytes_FromStringAndSize((const char *)&kept, sizeof kept);
}

static bool refuse(PyObject *given) {
    PyErr_Format(PyExc_TypeError, "mask_lists is %R; what strobe.mask_lists returned is accepted", given);
    return false;
}

bool read_mask_lists(struct call *c) {
    PyObject *given = c->args[ARG_MASK_LISTS];
    strobe_mask_lists *l = &c->mask_lists;
    if (given == Py_None) return true;
    if (!PyTuple_Check(given) || PyTuple_Size(given) != 2) return refuse(given);
    PyObject *made_for = PyTuple_GetItem(given, 1);
    char *bytes;
    Py_ssize_t size;
    if (!PyBytes_Check(made_for) || PyBytes_AsStringAndSize(made_for, &bytes, &size) != 0 || size != sizeof *l)
        return refuse(given);
    if (!tensor_open(c->state, &c->lists_memory, PyTuple_GetItem(given, 0), "mask_lists")) return false;
    const struct tensor *t = &c->lists_memory;
    if (t->element != ELEMENT_UINT8 || t->ndim != 1) return refuse(given);
    if (!tensor_is_on(t, &c->q)) return false;
    memcpy(l, bytes, sizeof *l);
    l->data = t->shape[0] ? t->data : NULL, l->bytes = (size_t)t->shape[0];
    c->a.mask_lists = l;
    return true;
}

/* Memory of as many bytes as the lists take, in q's framework. A reference of our own. */
static PyObject *new_memory(struct call *c, strobe_mask_lists *lists, struct tensor *memory) {
    const strobe_status status = strobe_mask_lists_bytes(&c->a, lists, &lists->bytes);
    if (status) return raise_status(c->state, status);
    const int64_t shape[1] = {(int64_t)lists->bytes};
    PyObject *object = result_new(c->state, memory, &c->q, false, "mask_lists", ELEMENT_UINT8, 1, shape);
    if (object) lists->data = lists->bytes ? memory->data : NULL;
    return object;
}

static PyObject *make(struct call *c, bool backward) {
    strobe_mask_lists lists = {.struct_size = sizeof lists};
    struct tensor memory = {0};
    void *stream;
    PyObject *answer = NULL;
    lists.uses = STROBE_LISTS_FORWARD | (backward ? STROBE_LISTS_BACKWARD : 0);
    PyObject *object = new_memory(c, &lists, &memory);
    if (object && tensor_stream(&c->q, &stream)) {
        const strobe_status status = strobe_mask_lists_make(&c->a, &lists, stream);
        PyObject *made_for = status ? raise_status(c->state, status) : bytes_of(&lists);
        if (made_for) answer = PyTuple_Pack(2, object, made_for);
        Py_XDECREF(made_for);
    }
    tensor_close(&memory);
    Py_XDECREF(object);
    return answer;
}

KEYWORDS_FUNCTION(py_mask_lists) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, LISTS, args, count, names)) return NULL;
    PyObject *wanted = call.args[ARG_FOR_BACKWARD];
    const int backward = wanted == Py_None ? 1 : PyObject_IsTrue(wanted);
    PyObject *answer = backward >= 0 && call_read(&call) ? make(&call, backward) : NULL;
    call_close(&call);
    return answer;
}
