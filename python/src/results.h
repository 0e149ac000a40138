/* SPDX-License-Identifier: BSD-3-Clause
 *
 * results.h: the results of a call, the caller's tensors or new ones. */
#ifndef STROBE_PYTHON_RESULTS_H
#define STROBE_PYTHON_RESULTS_H

#include "arguments.h"

/* One result: the object, ours or the caller's, and the tensor in it. */
struct result {
    PyObject *object; /* a reference of our own; NULL: none */
    struct tensor tensor;
};

/* Takes the caller's object, or makes a new one where it is None. close_result must follow in any case. */
bool open_result(struct call *c, struct result *r, PyObject *given, const char *name, int32_t element, int ndim,
                 const int64_t *shape);
void close_result(struct result *r);

/* Some rows of a result may belong to no sequence, and the library leaves them alone. Where cu lies on a GPU it is taken to
 * cover all rows: to look would be to wait for the device. */
bool has_spare_rows(const struct tensor *cu, const struct tensor *used, int64_t total);

/* Our own results hold no uninitialised memory there: value, as a row has that sees no key. On a GPU the framework that
 * allocated them fills them, on its current stream, as the kernels run. value: 0 where elements are no floats. */
bool fill(struct result *r, double value);

#endif
