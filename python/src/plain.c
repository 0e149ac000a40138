/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain.c: whether a call of strobe.torch may take the shortest way: its tensors are of PyTorch's own types, and nothing
 * looks at operators. Asked from C, since in Python the questions cost as much as the call. And the shortest way of
 * scaled_dot_product_attention. */
#include <string.h>

#include "tensor.h"
#include "torch_abi.h"

/* Takes the types and the questions, functions without arguments: each answers with something true where a call is seen by
 * somebody. The last tuple is of those that PyTorch's library answers faster, where it has the functions (torch_abi.h): a
 * trace, modes, casts. */
FUNCTION(py_ask_before_plain) {
    struct state *state = module_state(module);
    if (count != 3 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "types and two kinds of questions are accepted, three tuples");
        return NULL;
    }
    PyObject *questions = torch_abi.dispatches[0] ? Py_NewRef(args[1]) : PySequence_Concat(args[1], args[2]);
    if (!questions) return NULL;
    Py_XDECREF(state->plain_types);
    Py_XDECREF(state->questions);
    state->plain_types = Py_NewRef(args[0]), state->questions = questions;
    return Py_NewRef(Py_None);
}

/* The last questions' answers. PyTorch's numbers of CPU and CUDA, which all plain tensors of a call are on. */
static bool is_seen(void) {
    return torch_abi.dispatches[0] &&
           (torch_abi.modes(false) || *torch_abi.tracing() || torch_abi.casts((int8_t)torch_abi.cpu()) ||
            torch_abi.casts((int8_t)torch_abi.cuda()));
}

static bool is_of(PyObject *object, PyObject *types) {
    for (Py_ssize_t n = 0; n < PyTuple_Size(types); ++n)
        if ((PyObject *)Py_TYPE(object) == PyTuple_GetItem(types, n)) return true;
    return false;
}

/* 1, 0, or -1 with an exception. */
static int answers(PyObject *question) {
    PyObject *said = PyObject_CallNoArgs(question);
    const int is_true = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    return is_true;
}

int are_plain(const struct state *state, PyObject *const *tensors, Py_ssize_t count) {
    if (!state->questions || is_seen()) return 0;
    for (Py_ssize_t n = 0; n < count; ++n)
        if (!is_of(tensors[n], state->plain_types)) return 0;
    for (Py_ssize_t n = 0; n < PyTuple_Size(state->questions); ++n) {
        const int seen = answers(PyTuple_GetItem(state->questions, n)); /* borrowed */
        if (seen != 0) return seen < 0 ? -1 : 0;
    }
    return 1;
}

FUNCTION(py_is_plain) {
    const int plain = are_plain(module_state(module), args, count);
    return plain < 0 ? NULL : PyBool_FromLong(plain);
}

/* ------------------------------------------------------------------------------------- scaled_dot_product_attention -- */

/* False where a type has no exchange API, or a tensor no data. */
static bool borrow(struct state *state, PyObject *object, struct dlpack_tensor *to) {
    const struct framework *f = framework_of(state, object);
    if (!f->api || !f->api->borrow_object) return false;
    if (f->api->borrow_object(object, to) == 0) return true;
    PyErr_Clear();
    return false;
}

/* Four axes each, of one dtype and as many batches; as many heads, or any number where they are grouped. What else has to
 * agree the kernel looks at. */
static bool fit(const struct dlpack_tensor t[3], bool grouped) {
    for (int n = 0; n < 3; ++n)
        if (t[n].ndim != 4 || t[n].shape[0] != t[0].shape[0] || memcmp(&t[n].dtype, &t[0].dtype, sizeof t[0].dtype) != 0)
            return false;
    return grouped || t[1].shape[1] == t[0].shape[1];
}

/* function(q, k, v, *options, scale=scale)[0]; None where it does not take them, which another way has the sentence for. */
static PyObject *first_of(PyObject *function, PyObject *const qkv[3], PyObject *options, PyObject *scale) {
    PyObject *given = options ? PyTuple_New(3 + PyTuple_Size(options)) : NULL;
    PyObject *keywords = scale == Py_None ? NULL : Py_BuildValue("{sO}", "scale", scale);
    PyObject *answer = NULL;
    if (given && (keywords || scale == Py_None)) {
        for (Py_ssize_t n = 0; n < PyTuple_Size(given); ++n)
            PyTuple_SetItem(given, n, Py_NewRef(n < 3 ? qkv[n] : PyTuple_GetItem(options, n - 3)));
        answer = PyObject_Call(function, given, keywords);
    }
    Py_XDECREF(options);
    Py_XDECREF(keywords);
    Py_XDECREF(given);
    PyObject *first = answer ? Py_XNewRef(PyTuple_GetItem(answer, 0)) : NULL;
    Py_XDECREF(answer);
    if (first || !(PyErr_ExceptionMatches(PyExc_RuntimeError) || PyErr_ExceptionMatches(PyExc_TypeError))) return first;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

enum { SHORT_Q, SHORT_K, SHORT_V, SHORT_CAUSAL, SHORT_SCALE, SHORT_GROUPED, SHORT_EFFICIENT, SHORT_FLASH, SHORT_ARGUMENTS };

/* Attention of plain tensors (batch, heads, seq, dim), causal from the top-left corner, by PyTorch's functions of the
 * operators that have a compiled kernel: of the CPU, of CUDA, None where there is none. None for any other call. */
FUNCTION(py_sdpa_plain) {
    struct state *state = module_state(module);
    struct dlpack_tensor t[3];
    if (count != SHORT_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError,
                     "sdpa_plain() got %zd arguments; q, k, v, causal, scale, grouped and two functions are accepted",
                     count);
        return NULL;
    }
    const int causal = PyObject_IsTrue(args[SHORT_CAUSAL]), grouped = PyObject_IsTrue(args[SHORT_GROUPED]);
    const int plain = causal < 0 || grouped < 0 ? -1 : are_plain(state, args, 3);
    if (plain <= 0) return plain < 0 ? NULL : Py_NewRef(Py_None);
    for (int n = 0; n < 3; ++n)
        if (!borrow(state, args[SHORT_Q + n], &t[n])) return Py_NewRef(Py_None);
    const bool on_cpu = t[0].device.type == DLPACK_CPU;
    PyObject *function = on_cpu ? args[SHORT_EFFICIENT] : t[0].device.type == DLPACK_CUDA ? args[SHORT_FLASH] : Py_None;
    if (function == Py_None || !fit(t, grouped)) return Py_NewRef(Py_None);
    PyObject *of_causal = causal ? Py_True : Py_False;
    PyObject *options = on_cpu ? Py_BuildValue("(OOdO)", Py_None, torch_abi.grad_mode() ? Py_True : Py_False, 0.0, of_causal)
                               : Py_BuildValue("(dO)", 0.0, of_causal);
    return first_of(function, &args[SHORT_Q], options, args[SHORT_SCALE]);
}
