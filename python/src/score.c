/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score.c: the user's function of a score: texts, dictionaries of scalars and arrays, and of tensors for the arrays'
 * gradients. The function is made anew for each call, which takes less time than to look for it. */
#include "score.h"

#include <stdlib.h>
#include <string.h>

static bool read_text(PyObject *from, const char *name, const char **to) {
    if (from == Py_None) return true;
    if (PyUnicode_Check(from)) return read_string(from, name, to);
    PyErr_Format(PyExc_TypeError, "%s is %R; an expression as text is accepted", name, from);
    return false;
}

/* A dictionary with at most so many names. */
static bool is_dictionary(PyObject *from, const char *name, Py_ssize_t most) {
    if (!PyDict_Check(from)) {
        PyErr_Format(PyExc_TypeError, "%s is %R; a dictionary from names is accepted", name, from);
        return false;
    }
    if (PyDict_Size(from) <= most) return true;
    PyErr_Format(PyExc_ValueError, "%s has %zd entries; up to %zd are accepted", name, PyDict_Size(from), most);
    return false;
}

/* An integer of Python, NumPy or another framework is an integer of the function, any other number a float. */
static bool read_number(PyObject *from, strobe_score_scalar *to) {
    PyObject *index = PyNumber_Index(from);
    if (!index) PyErr_Clear();
    to->integer = index != NULL;
    to->value = PyFloat_AsDouble(index ? index : from);
    Py_XDECREF(index);
    if (!PyErr_Occurred()) return true;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s of scalars is %R; a number is accepted", to->name, from);
    return false;
}

static bool read_score_scalars(struct score *s, PyObject *from) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (from == Py_None) return true;
    if (!is_dictionary(from, "scalars", MOST_SCALARS)) return false;
    while (PyDict_Next(from, &at, &key, &value)) {
        strobe_score_scalar *to = &s->scalars[s->scalar_count++];
        if (!read_text(key, "a name of scalars", &to->name) || !read_number(value, to)) return false;
    }
    return true;
}

static int32_t dtype_of(const struct tensor *t) {
    if (t->element == ELEMENT_BOOL || t->element == ELEMENT_UINT8) return STROBE_UINT8;
    if (t->element == ELEMENT_INT32) return STROBE_INT32;
    return t->element == STROBE_FP32 || t->element == STROBE_FP16 || t->element == STROBE_BF16 ? t->element : 0;
}

static void set_elements(strobe_score_elements *to, const struct tensor *t) {
    to->data = t->data;
    for (int axis = 0; axis < t->ndim; ++axis) to->extent[axis] = t->shape[axis], to->stride[axis] = t->stride[axis];
}

static bool read_arrays(struct call *c, struct score *s, PyObject *from) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (from == Py_None) return true;
    if (!is_dictionary(from, "arrays", MOST_ARRAYS)) return false;
    while (PyDict_Next(from, &at, &key, &value)) {
        const int n = s->array_count;
        strobe_score_array *to = &s->arrays[n];
        struct tensor *t = &s->tensors[n];
        if (!read_text(key, "a name of arrays", &to->name) || !tensor_open(c->state, t, value, to->name)) return false;
        ++s->array_count;
        to->rank = t->ndim, to->dtype = dtype_of(t);
        if (t->ndim < 1 || t->ndim > MOST_RANK) return refuse_shape(t, "a tensor of 1 to 4 axes");
        if (!to->dtype) return refuse_dtype(t, "float32, float16, bfloat16, int32, uint8 or bool");
        if (!tensor_is_on(t, &c->q)) return false;
        set_elements(&s->elements[n], t);
    }
    return true;
}

bool read_score(struct call *c) {
    const char *score = NULL, *visible = NULL;
    if (!read_text(c->args[ARG_SCORE], "score", &score) || !read_text(c->args[ARG_VISIBLE], "visible", &visible))
        return false;
    if (!score && !visible) {
        if (c->args[ARG_ARRAYS] == Py_None && c->args[ARG_SCALARS] == Py_None) return true;
        PyErr_SetString(PyExc_ValueError,
                        "arrays or scalars are given without score and visible; one of these is accepted with "
                        "them");
        return false;
    }
    struct score *s = c->score = calloc(1, sizeof *s);
    if (!s) return PyErr_NoMemory() != NULL;
    if (!read_score_scalars(s, c->args[ARG_SCALARS]) || !read_arrays(c, s, c->args[ARG_ARRAYS])) return false;
    s->source = (strobe_score_source){.struct_size = sizeof s->source,
                                      .score = score,
                                      .visible = visible,
                                      .scalars = s->scalars,
                                      .arrays = s->arrays,
                                      .scalar_count = s->scalar_count,
                                      .array_count = s->array_count};
    const strobe_status status = strobe_score_create(&s->source, &s->function);
    if (status) return raise_status(c->state, status) != NULL;
    s->arguments = (strobe_score_arguments){
        .struct_size = sizeof s->arguments, .function = s->function, .arrays = s->elements, .array_count = s->array_count};
    c->a.score = &s->arguments;
    return true;
}

bool read_score_gradients(struct call *c, strobe_gradients *g) {
    PyObject *from = c->args[ARG_ARRAY_GRADIENTS], *key, *value;
    Py_ssize_t at = 0;
    if (from == Py_None) return true;
    if (!is_dictionary(from, "array_gradients", MOST_ARRAYS)) return false;
    while (PyDict_Next(from, &at, &key, &value)) {
        const char *name = NULL;
        int n = 0;
        if (!read_text(key, "a name of array_gradients", &name)) return false;
        while (c->score && n < c->score->array_count && strcmp(c->score->arrays[n].name, name)) ++n;
        if (!c->score || n == c->score->array_count) {
            PyErr_Format(PyExc_ValueError, "array_gradients has \"%s\"; a name of arrays is accepted", name);
            return false;
        }
        struct tensor *t = &c->score->dtensors[n];
        if (!tensor_open(c->state, t, value, name) ||
            !tensor_has_shape(t, c->score->tensors[n].ndim, c->score->tensors[n].shape) || !tensor_is_on(t, &c->q) ||
            !tensor_is_writable(t))
            return false;
        if (t->element < STROBE_FP32 || t->element > STROBE_FP64) return refuse_dtype(t, "a floating-point dtype");
        set_elements(&c->score->delements[n], t);
        c->score->delements[n].dtype = t->element;
    }
    if (!c->score) return true;
    c->score->gradients = (strobe_score_gradients){
        .struct_size = sizeof c->score->gradients, .arrays = c->score->delements, .array_count = c->score->array_count};
    g->dscore = &c->score->gradients;
    return true;
}

void close_score(struct call *c) {
    if (!c->score) return;
    for (int n = 0; n < MOST_ARRAYS; ++n) tensor_close(&c->score->tensors[n]), tensor_close(&c->score->dtensors[n]);
    strobe_score_destroy(c->score->function);
    free(c->score);
    c->score = NULL;
}

/* --------------------------------------------------------------------------------------------- which have a gradient -- */

/* Lists of (name, rank, whether of integers) and of (name, whether an integer), whose strings stay theirs. */
static bool read_declarations(struct score *s, PyObject *arrays, PyObject *scalars) {
    if (!PyList_Check(arrays) || PyList_Size(arrays) > MOST_ARRAYS || !PyList_Check(scalars) ||
        PyList_Size(scalars) > MOST_SCALARS) {
        PyErr_SetString(PyExc_TypeError, "arrays and scalars are lists, of up to 16 and 32 entries");
        return false;
    }
    for (; s->array_count < PyList_Size(arrays); ++s->array_count) {
        strobe_score_array *to = &s->arrays[s->array_count];
        int of_integers;
        if (!PyArg_Parse(PyList_GetItem(arrays, s->array_count), "(sip)", &to->name, &to->rank, &of_integers)) return false;
        to->dtype = of_integers ? STROBE_INT32 : STROBE_FP32;
    }
    for (; s->scalar_count < PyList_Size(scalars); ++s->scalar_count) {
        strobe_score_scalar *to = &s->scalars[s->scalar_count];
        if (!PyArg_Parse(PyList_GetItem(scalars, s->scalar_count), "(si)", &to->name, &to->integer)) return false;
    }
    return true;
}

/* Asked of a problem without rows, of which nothing else would be refused. */
static bool has_gradient(const struct score *s, int32_t n) {
    static float nothing;
    strobe_score_elements elements[MOST_ARRAYS] = {0}, gradients[MOST_ARRAYS] = {0};
    for (int32_t a = 0; a < s->array_count; ++a)
        for (int axis = 0; axis < s->arrays[a].rank; ++axis) elements[a].extent[axis] = gradients[a].extent[axis] = 1;
    gradients[n].data = &nothing;
    const strobe_score_arguments arguments = {
        .struct_size = sizeof arguments, .function = s->function, .arrays = elements, .array_count = s->array_count};
    const strobe_score_gradients dscore = {.struct_size = sizeof dscore, .arrays = gradients, .array_count = s->array_count};
    const strobe_attention a = {.struct_size = sizeof a, .heads_q = 1, .dim = 1, .score = &arguments};
    const strobe_gradients g = {.struct_size = sizeof g, .dscore = &dscore};
    return strobe_check(&a, &g) == STROBE_OK;
}

/* (score or None, arrays, scalars) -> whether score changes with the elements of each array. All True where the library
 * refuses the text: the call says why. */
FUNCTION(py_score_gradients) {
    (void)module;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "score_gradients takes 3 arguments");
    struct score *s = calloc(1, sizeof *s);
    if (!s) return PyErr_NoMemory();
    const char *text = NULL;
    PyObject *result = NULL;
    if (read_text(args[0], "score", &text) && read_declarations(s, args[1], args[2]) &&
        (result = PyList_New(s->array_count)) != NULL) {
        s->source = (strobe_score_source){.struct_size = sizeof s->source,
                                          .score = text,
                                          .scalars = s->scalars,
                                          .arrays = s->arrays,
                                          .scalar_count = s->scalar_count,
                                          .array_count = s->array_count};
        const bool is_made = text && strobe_score_create(&s->source, &s->function) == STROBE_OK;
        for (int32_t n = 0; n < s->array_count; ++n)
            PyList_SetItem(result, n, PyBool_FromLong(text && (!is_made || has_gradient(s, n))));
    }
    strobe_score_destroy(s->function);
    free(s);
    return result;
}
