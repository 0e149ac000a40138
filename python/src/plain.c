/* SPDX-License-Identifier: BSD-3-Clause
 *
 * plain.c: whether a call of strobe.torch may take the shortest way: its tensors are of PyTorch's own types, and nothing
 * looks at operators. Asked from C, since in Python the questions cost as much as the call. */
#include "module.h"

/* Takes the types and the questions, functions without arguments: each answers with something true where a call is seen by
 * somebody. */
FUNCTION(py_ask_before_plain) {
    struct state *state = module_state(module);
    if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "types and questions are accepted, two tuples");
        return NULL;
    }
    Py_XDECREF(state->plain_types);
    Py_XDECREF(state->questions);
    state->plain_types = Py_NewRef(args[0]), state->questions = Py_NewRef(args[1]);
    return Py_NewRef(Py_None);
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
    if (!state->questions) return 0;
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
