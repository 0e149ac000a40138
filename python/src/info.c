/* SPDX-License-Identifier: BSD-3-Clause
 *
 * info.c: what this build and this machine have, as plain tuples; strobe/_info.py gives them names. */
#include "module.h"

FUNCTION(py_kernels) {
    (void)module, (void)args, (void)count;
    const int32_t kernels = strobe_kernel_count();
    PyObject *list = PyList_New(0);
    for (int32_t n = 0; list && n < kernels; ++n) {
        strobe_kernel_info info = {.struct_size = sizeof info};
        if (strobe_kernel_at(n, &info)) break;
        PyObject *entry = Py_BuildValue("(ssssOzi)", info.name, info.summary,
                                        info.operation == STROBE_FORWARD ? "forward" : "backward",
                                        info.device == STROBE_CPU ? "cpu" : "cuda", info.chosen_by_name ? Py_True : Py_False,
                                        info.unavailable, (int)info.scale_block);
        if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

FUNCTION(py_devices) {
    (void)module, (void)args, (void)count;
    static const char *const kinds[] = {[STROBE_CPU] = "cpu", [STROBE_CUDA] = "cuda"};
    PyObject *list = PyList_New(0);
    for (int32_t kind = STROBE_CPU; list && kind <= STROBE_CUDA; ++kind) {
        strobe_device_info info = {.struct_size = sizeof info};
        for (int32_t n = 0; list && strobe_device_at(kind, n, &info) == STROBE_OK; ++n) {
            PyObject *entry = Py_BuildValue("(sissL)", kinds[kind], (int)n, info.name, info.level ? info.level : "",
                                            (long long)info.memory_bytes);
            if (!entry || PyList_Append(list, entry) != 0) Py_CLEAR(list);
            Py_XDECREF(entry);
            info.struct_size = sizeof info;
        }
    }
    return list;
}

FUNCTION(py_version) {
    (void)module, (void)args, (void)count;
    return PyUnicode_FromString(strobe_version());
}

FUNCTION(py_build_info) {
    (void)module, (void)args, (void)count;
    return PyUnicode_FromString(strobe_build_info());
}
