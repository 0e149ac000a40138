/* SPDX-License-Identifier: BSD-3-Clause
 *
 * merge.c: merge(outs, lses): partial results over disjoint keys into one, in the framework of the first. */
#include <stdlib.h>

#include "arguments.h"

enum { ARG_OUTS, ARG_LSES, ARG_RESULT, MERGE_ARGUMENTS };

struct parts {
    struct state *state;
    Py_ssize_t count;
    PyObject *outs, *lses;        /* tuples */
    struct tensor *out, *lse;     /* [count] */
    strobe_partial *descriptions; /* [count] */
};

/* parts.out: every part has the first one's shape and device; dtypes may differ. */
static bool open_part(struct parts *p, Py_ssize_t n) {
    struct tensor *out = &p->out[n], *lse = &p->lse[n], *first = &p->out[0];
    if (!tensor_open(p->state, out, PyTuple_GetItem(p->outs, n), "outs[]")) return false;
    if (out->ndim != 4) return refuse_shape(out, "(batch, seq, heads, dim)");
    const int64_t lse_shape[3] = {first->shape[0], first->shape[2], first->shape[1]};
    return tensor_has_shape(out, 4, first->shape) && tensor_open(p->state, lse, PyTuple_GetItem(p->lses, n), "lses[]") &&
           tensor_has_shape(lse, 3, lse_shape) && tensor_is_on(out, first) && tensor_is_on(lse, first) &&
           place_rows(&p->descriptions[n].out, out, false) && place_lse(&p->descriptions[n].lse, lse, false);
}

static PyObject *tuple_of(PyObject *given, const char *name) {
    PyObject *tuple = PySequence_Tuple(given);
    if (!tuple && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s is %R; a sequence of tensors is accepted", name, given);
    return tuple;
}

static bool open_parts(struct parts *p, PyObject *const *args) {
    p->outs = tuple_of(args[ARG_OUTS], "outs");
    p->lses = p->outs ? tuple_of(args[ARG_LSES], "lses") : NULL;
    if (!p->lses) return false;
    p->count = PyTuple_Size(p->outs);
    if (p->count < 1 || p->count != PyTuple_Size(p->lses)) {
        PyErr_Format(PyExc_ValueError, "outs has %zd parts and lses has %zd; as many of both, at least 1, are accepted",
                     p->count, PyTuple_Size(p->lses));
        p->count = 0;
        return false;
    }
    const size_t count = (size_t)p->count;
    p->out = calloc(count, sizeof *p->out), p->lse = calloc(count, sizeof *p->lse);
    p->descriptions = calloc(count, sizeof *p->descriptions);
    if (!p->out || !p->lse || !p->descriptions) return PyErr_NoMemory() != NULL;
    for (Py_ssize_t n = 0; n < p->count; ++n)
        if (!open_part(p, n)) return false;
    return true;
}

static void close_parts(struct parts *p) {
    for (Py_ssize_t n = 0; p->descriptions && n < p->count; ++n) tensor_close(&p->out[n]), tensor_close(&p->lse[n]);
    free(p->out), free(p->lse), free(p->descriptions);
    Py_XDECREF(p->outs);
    Py_XDECREF(p->lses);
}

static PyObject *merge(struct parts *p, PyObject *given) {
    struct tensor *first = &p->out[0], out = {0}, lse = {0};
    const int64_t lse_shape[3] = {first->shape[0], first->shape[2], first->shape[1]};
    const bool own = given == Py_None;
    strobe_partials m = {.struct_size = sizeof m, .batch = first->shape[0], .seq_q = first->shape[1]};
    m.heads_q = first->shape[2], m.dim_v = first->shape[3], m.count = p->count, m.parts = p->descriptions;
    m.device = first->device, m.device_index = first->device_index;
    strobe_parallel parallel;
    use_threads(&parallel, default_threads());
    m.parallel = &parallel;
    PyObject *result = own ? result_new(p->state, &out, first, false, "out", first->element, 4, first->shape) : given;
    PyObject *lse_result = NULL, *answer = NULL;
    if (!own) {
        Py_INCREF(given);
        if (!tensor_open(p->state, &out, given, "out") || !tensor_has_shape(&out, 4, first->shape) ||
            !tensor_is_on(&out, first) || !tensor_is_writable(&out))
            goto end;
    }
    if (result) lse_result = result_new(p->state, &lse, first, false, "lse", STROBE_FP32, 3, lse_shape);
    void *stream;
    if (lse_result && place_rows(&m.out, &out, false) && place_lse(&m.lse, &lse, false) && tensor_stream(first, &stream)) {
        strobe_status status;
        Py_BEGIN_ALLOW_THREADS;
        status = strobe_merge(&m, stream);
        Py_END_ALLOW_THREADS;
        answer = status ? raise_status(p->state, status) : PyTuple_Pack(2, result, lse_result);
    }
end:
    tensor_close(&out);
    tensor_close(&lse);
    Py_XDECREF(result);
    Py_XDECREF(lse_result);
    return answer;
}

FUNCTION(py_merge) {
    if (count != MERGE_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "%zd arguments; %d are accepted", count, MERGE_ARGUMENTS);
        return NULL;
    }
    struct parts parts = {.state = module_state(module)};
    PyObject *answer = open_parts(&parts, args) ? merge(&parts, args[ARG_RESULT]) : NULL;
    close_parts(&parts);
    return answer;
}
