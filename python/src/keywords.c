/* SPDX-License-Identifier: BSD-3-Clause
 *
 * keywords.c: from what Python passes to an array by enum argument. Names are compared as pointers first: Python interns the
 * keywords of a program, as the names here are. Callers mostly pass them in the table's order, so the search goes on behind
 * the last one found. */
#include "arguments.h"

#define ARGUMENT_NAME(upper, lower, calls) {#lower, calls},
static const struct {
    const char *name;
    int calls;
} table[ARGUMENTS] = {ARGUMENTS_TABLE(ARGUMENT_NAME)};

static const struct {
    const char *name;
    int call;
} functions[] = {{"attention", FORWARD}, {"attention_backward", BACKWARD},
                 {"explain", EXPLAIN},   {"quantise", QUANTISE},
                 {"mask_lists", LISTS},  {"append", APPEND}};
enum { FUNCTIONS = sizeof functions / sizeof functions[0], POSITIONAL = 3 };

static const char *name_of(int function) {
    int n = 0;
    while (functions[n].call != function) ++n;
    return functions[n].name;
}

static bool intern_names(struct state *state) {
    if (state->argument_names) return true;
    PyObject *names = PyTuple_New(ARGUMENTS);
    for (int n = 0; names && n < ARGUMENTS; ++n) PyTuple_SetItem(names, n, PyUnicode_InternFromString(table[n].name));
    state->argument_names = names;
    return names != NULL;
}

/* The argument of this name, looked for from one place on and around; ARGUMENTS where there is none. */
static int find(PyObject *names, PyObject *name, int from) {
    for (int n = 0; n < ARGUMENTS; ++n) {
        const int at = (from + n) % ARGUMENTS;
        if (PyTuple_GetItem(names, at) == name) return at;
    }
    for (int n = 0; n < ARGUMENTS; ++n)
        if (PyUnicode_Compare(PyTuple_GetItem(names, n), name) == 0) return n;
    return ARGUMENTS;
}

bool take_arguments(struct call *c, int function, PyObject *const *values, Py_ssize_t count, PyObject *names) {
    const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (!intern_names(c->state)) return false;
    for (int n = 0; n < ARGUMENTS; ++n) c->args[n] = Py_None;
    if (count > POSITIONAL) {
        PyErr_Format(PyExc_TypeError, "%s() got %zd positional arguments; q, k and v are accepted, the others by name",
                     name_of(function), count);
        return false;
    }
    for (Py_ssize_t n = 0; n < count; ++n) c->args[n] = values[n];
    int at = (int)count - 1;
    for (Py_ssize_t n = 0; n < named; ++n) {
        PyObject *name = PyTuple_GetItem(names, n);
        at = find(c->state->argument_names, name, at + 1);
        if (at == ARGUMENTS || !(table[at].calls & function) || at < count) {
            PyErr_Format(PyExc_TypeError, "%s() got %s keyword argument '%U'", name_of(function),
                         at < count ? "a positional and a" : "an unexpected", name);
            return false;
        }
        c->args[at] = values[count + n];
    }
    return true;
}

/* {"attention": ("q", "k", ...), ...}: for the test that holds other lists of arguments against this one. */
FUNCTION(py_arguments) {
    (void)module, (void)args, (void)count;
    PyObject *all = PyDict_New();
    for (int f = 0; all && f < FUNCTIONS; ++f) {
        PyObject *names = PyList_New(0);
        for (int n = 0; names && n < ARGUMENTS; ++n) {
            if (!(table[n].calls & functions[f].call)) continue;
            PyObject *name = PyUnicode_FromString(table[n].name);
            if (!name || PyList_Append(names, name) != 0) Py_CLEAR(names);
            Py_XDECREF(name);
        }
        if (!names || PyDict_SetItemString(all, functions[f].name, names) != 0) Py_CLEAR(all);
        Py_XDECREF(names);
    }
    return all;
}
