/* SPDX-License-Identifier: BSD-3-Clause
 *
 * threads.c: how many threads a call has, of those of pool.c or of PyTorch (team.c). The wheel carries the library without
 * OpenMP: it then needs nothing but libc, does not meet a second OpenMP runtime (PyTorch brings its own) whose waiting
 * threads spin, and works after a fork, where OpenMP's threads are gone and its runtime waits for them. */
#include <stdatomic.h>

#include "arguments.h"
#include "pool.h"

enum { MOST_THREADS = 1024 };

static atomic_int threads = 1; /* set_num_threads */

/* Below so many products (about 10 microseconds on one core) waking a second thread costs more than it saves. Results do not
 * depend on the number of threads. */
static bool is_small(const strobe_attention *a) {
    const double products = (double)a->batch * (double)a->heads_q * (double)a->seq_q * (double)a->seq_k;
    return products * (double)(a->dim + a->dim_v) < 262144;
}

void use_threads(strobe_parallel *p, int64_t wanted) {
    *p = (strobe_parallel){.struct_size = sizeof *p, .self = p, .run = team_run};
    p->threads = (int32_t)wanted;
    if (p->threads == 1) p->run = NULL;
}

int64_t threads_of(const strobe_attention *a) { return is_small(a) ? 1 : default_threads(); }

/* None leaves `wanted` as it is. */
static bool read_threads(PyObject *given, int64_t *wanted) {
    if (!read_int(given, "threads", wanted)) return false;
    if (*wanted >= 1 && *wanted <= MOST_THREADS) return true;
    PyErr_Format(PyExc_ValueError, "threads is %lld; 1 to %d is accepted", (long long)*wanted, MOST_THREADS);
    return false;
}

bool choose_threads(struct call *c) {
    int64_t wanted = threads_of(&c->a);
    if (!read_threads(c->args[ARG_THREADS], &wanted)) return false;
    use_threads(&c->parallel, wanted);
    c->a.parallel = &c->parallel;
    return true;
}

int32_t default_threads(void) { return atomic_load_explicit(&threads, memory_order_relaxed); }

FUNCTION(py_set_num_threads) {
    (void)module;
    int64_t wanted = 0;
    if (count != 1 || !read_threads(args[0], &wanted)) return NULL;
    atomic_store(&threads, (int)wanted);
    Py_RETURN_NONE;
}

FUNCTION(py_get_num_threads) {
    (void)module, (void)args, (void)count;
    return PyLong_FromLong(default_threads());
}
