/* SPDX-License-Identifier: BSD-3-Clause
 *
 * module.c: the module strobe._strobe: its functions, its state, its exceptions. Initialised in phases, with all state in
 * the module, so that it can be loaded into more than one interpreter. Users call what strobe/__init__.py offers. */
#include "module.h"

#include "tensor.h"

struct state *module_state(PyObject *module) {
    return PyModule_GetState(module);
}

PyObject *raise_status(const struct state *state, strobe_status status) {
    return raise_sentence(state, status, strobe_last_error());
}

PyObject *raise_sentence(const struct state *state, strobe_status status, const char *sentence) {
    switch (status) {
    case STROBE_INVALID_ARGUMENT: PyErr_SetString(PyExc_ValueError, sentence); break;
    case STROBE_UNSUPPORTED: PyErr_SetString(PyExc_NotImplementedError, sentence); break;
    default: PyErr_Format(state->error, "%s: %s", strobe_status_name(status), sentence); break;
    }
    return NULL;
}

#define ENTRY(name, keywords) \
    { #name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL | (keywords), NULL }

static PyObject *py_nothing(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module, (void)args, (void)count; /* the empty call that bench/overhead.py compares with */
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    ENTRY(attention, METH_KEYWORDS),
    ENTRY(attention_backward, METH_KEYWORDS),
    ENTRY(attention_plain, 0),
    ENTRY(check, METH_KEYWORDS),
    ENTRY(explain, METH_KEYWORDS),
    ENTRY(quantise, METH_KEYWORDS),
    ENTRY(mask_lists, METH_KEYWORDS),
    ENTRY(append, METH_KEYWORDS),
    ENTRY(freeze_attention, METH_KEYWORDS),
    ENTRY(freeze_attention_backward, METH_KEYWORDS),
    ENTRY(xla_handler, 0),
    ENTRY(arguments, 0),
    ENTRY(merge, 0),
    ENTRY(score_gradients, 0),
    ENTRY(kernels, 0),
    ENTRY(devices, 0),
    ENTRY(version, 0),
    ENTRY(build_info, 0),
    ENTRY(set_num_threads, 0),
    ENTRY(get_num_threads, 0),
    ENTRY(share_threads, 0),
    ENTRY(aten_open, 0),
    ENTRY(aten_open_cuda, 0),
    ENTRY(aten_deterministic, 0),
    ENTRY(aten_register, 0),
    ENTRY(aten_unregister, 0),
    ENTRY(aten_calls, 0),
    ENTRY(ask_before_plain, 0),
    ENTRY(is_plain, 0),
    ENTRY(sdpa_plain, 0),
    ENTRY(gpu_transport, 0),
    ENTRY(order_documents, 0),
    ENTRY(nothing, 0),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    struct state *state = module_state(module);
    state->error = PyErr_NewExceptionWithDoc(
        "strobe.Error", "What went wrong apart from the arguments: out of memory, an error of the device.",
        PyExc_RuntimeError, NULL);
    state->exporter_type = exporter_type(module);
    state->requires_grad = PyUnicode_InternFromString("requires_grad");
    state->swapaxes = PyUnicode_InternFromString("swapaxes");
    if (!state->error || !state->exporter_type || !state->requires_grad || !state->swapaxes) return -1;
    return PyModule_AddObjectRef(module, "Error", state->error);
}

/* Calls the macro on every object that the state holds. */
#define EACH_OBJECT(state, CALL)                      \
    do {                                              \
        CALL((state)->error);                         \
        CALL((state)->exporter_type);                 \
        CALL((state)->argument_names);                \
        CALL((state)->requires_grad);                 \
        CALL((state)->swapaxes);                      \
        CALL((state)->numpy_empty);                   \
        CALL((state)->torch_empty);                   \
        CALL((state)->torch_empty_like);              \
        CALL((state)->torch_keywords);                \
        CALL((state)->plain_types);                   \
        CALL((state)->questions);                     \
        for (int n = 0; n < FRAMEWORKS; ++n) {        \
            CALL((state)->frameworks[n].type);        \
            CALL((state)->frameworks[n].is_neg);      \
            CALL((state)->frameworks[n].from_dlpack); \
        }                                             \
    } while (0)

static int traverse(PyObject *module, visitproc visit, void *arg) {
    struct state *state = module_state(module);
    EACH_OBJECT(state, Py_VISIT);
    return 0;
}

static int clear(PyObject *module) {
    struct state *state = module_state(module);
    EACH_OBJECT(state, Py_CLEAR);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)(uintptr_t)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,  .m_name = "strobe._strobe", .m_size = sizeof(struct state),
    .m_methods = functions, .m_slots = slots,           .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__strobe(void);
PyMODINIT_FUNC PyInit__strobe(void) { return PyModuleDef_Init(&definition); }
