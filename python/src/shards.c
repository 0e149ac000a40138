/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shards.c: calls over many processes, by libstrobe_dist: q, k and v are shards, and what moves data is Python's: two
 * functions that start an exchange of messages and wait for it, and two more for the records that ranks compare, which lie
 * in the host's memory where tensors are a GPU's. They run on the thread of the call, with the GIL, which the call itself
 * runs without. An exception of theirs ends the call and is raised from it. Or else what moves data are the library's own
 * transports, over a communicator of NCCL's and over copy engines, which need no Python: gpu_transport. */
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_dist_copies.h>
#include <strobe/strobe_dist_nccl.h>

#include "results.h"

/* Two functions of Python's, borrowed from the argument. */
struct mover {
    struct shards *shards;
    PyObject *start, *wait;
};

struct shards {
    strobe_dist dist;
    strobe_transport transport, records;
    struct mover messages, compared;
    int64_t seq_q, seq_k;   /* of all ranks together, of sequences that are not packed; else their rows */
    PyThreadState *thread;  /* while the GIL is not held */
    PyObject *exception[3]; /* what start or wait has raised */
    bool called;            /* the ranks have compared */
};

/* ------------------------------------------------------------------------------------------------------- transport -- */

/* [(address, bytes, peer), ...] */
static PyObject *list_of(const strobe_message *messages, int64_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t n = 0; list && n < count; ++n) {
        PyObject *one = Py_BuildValue("(Nni)", PyLong_FromVoidPtr(messages[n].data), (Py_ssize_t)messages[n].bytes,
                                      (int)messages[n].peer);
        if (!one || PyList_SetItem(list, (Py_ssize_t)n, one) != 0) Py_CLEAR(list);
    }
    return list;
}

/* Leaves Python again; the code of a transport. */
static int leave(struct shards *s, PyObject *answer) {
    const int failed = !answer;
    Py_XDECREF(answer);
    if (failed && !s->exception[0]) PyErr_Fetch(&s->exception[0], &s->exception[1], &s->exception[2]);
    if (failed) PyErr_Clear();
    s->thread = PyEval_SaveThread();
    return failed;
}

static int start(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream) {
    const struct mover *m = self;
    struct shards *s = m->shards;
    (void)stream; /* Python's functions work on the framework's own, which is the call's */
    PyEval_RestoreThread(s->thread);
    PyObject *sent = list_of(sends, send_count), *received = list_of(receives, receive_count);
    PyObject *answer = sent && received ? PyObject_CallFunctionObjArgs(m->start, sent, received, NULL) : NULL;
    Py_XDECREF(sent);
    Py_XDECREF(received);
    return leave(s, answer);
}

static int wait_for(void *self, void *stream) {
    const struct mover *m = self;
    (void)stream;
    PyEval_RestoreThread(m->shards->thread);
    return leave(m->shards, PyObject_CallFunctionObjArgs(m->wait, NULL));
}

/* ------------------------------------------------------------------------------------------------------------- GPUs -- */

static const char capsule_name[] = "strobe_transport";

/* The first is what the capsule holds. */
struct gpu_transport {
    strobe_transport best, nccl; /* best: over copy engines, or a copy of nccl */
    bool copies;
};

static void destroy_transport(PyObject *capsule) {
    struct gpu_transport *t = PyCapsule_GetPointer(capsule, capsule_name);
    if (t->copies) strobe_dist_copies_destroy(&t->best);
    strobe_dist_nccl_destroy(&t->nccl);
    free(t);
}

/* NULL, or the sentence of what failed. Where copy engines reach no other rank, NCCL moves everything. */
static const char *make_transport(struct gpu_transport *t, void *communicator, int device, int copies,
                                  strobe_status *status) {
    *status = strobe_dist_nccl_create(&communicator, &t->nccl);
    if (*status) return strobe_dist_nccl_last_error();
    t->best = t->nccl;
    if (!copies || t->nccl.size == 1) return NULL;
    *status = strobe_dist_copies_create(&t->nccl, device, &t->best);
    t->copies = *status == STROBE_OK;
    if (*status == STROBE_OK || *status == STROBE_UNSUPPORTED) return NULL;
    strobe_dist_nccl_destroy(&t->nccl);
    return strobe_dist_copies_last_error();
}

/* (an ncclComm_t as a number, the device's number, whether copy engines may be used) -> a capsule with a transport, for
 * start in `shards`. Every rank of the communicator makes this call. */
FUNCTION(py_gpu_transport) {
    void *communicator = count == 3 ? PyLong_AsVoidPtr(args[0]) : NULL;
    const int device = count == 3 && !PyErr_Occurred() ? (int)PyLong_AsLong(args[1]) : 0;
    const int copies = count == 3 && !PyErr_Occurred() ? PyObject_IsTrue(args[2]) : 0;
    if (PyErr_Occurred()) return NULL;
    struct gpu_transport *t = calloc(1, sizeof *t);
    if (!t) return PyErr_NoMemory();
    strobe_status status;
    const char *failure;
    Py_BEGIN_ALLOW_THREADS failure = make_transport(t, communicator, device, copies, &status);
    Py_END_ALLOW_THREADS if (failure) {
        free(t);
        return raise_sentence(module_state(module), status, failure), NULL;
    }
    PyObject *capsule = PyCapsule_New(t, capsule_name, destroy_transport);
    if (capsule) return capsule;
    if (t->copies) strobe_dist_copies_destroy(&t->best);
    strobe_dist_nccl_destroy(&t->nccl);
    free(t);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------ order -- */

/* The lengths of packed sequences as offsets, [count + 1]; NULL with an exception. */
static int64_t *offsets_of(PyObject *lengths, int64_t *longest) {
    const Py_ssize_t count = PyList_Size(lengths);
    if (count < 0) return NULL;
    int64_t *offsets = malloc(((size_t)count + 1) * sizeof *offsets);
    if (!offsets) return (int64_t *)PyErr_NoMemory();
    offsets[0] = *longest = 0;
    for (Py_ssize_t n = 0; n < count; ++n) {
        const long long length = PyLong_AsLongLong(PyList_GetItem(lengths, n));
        if (!PyErr_Occurred() && (length < 0 || length > INT64_MAX / 4 - offsets[n]))
            PyErr_Format(PyExc_ValueError, "lengths[%zd] is %lld; 0 and more, and 2^61 in all, is accepted", n, length);
        if (PyErr_Occurred()) {
            free(offsets);
            return NULL;
        }
        offsets[n + 1] = offsets[n] + length;
        if (length > *longest) *longest = length;
    }
    return offsets;
}

/* A list of the order, and the two numbers of the balance; NULL with an exception. */
static PyObject *order_of(PyObject *module, const strobe_dist *d) {
    const Py_ssize_t count = (Py_ssize_t)d->attention->batch;
    double balance[2];
    int64_t *order = malloc(((size_t)count + 1) * sizeof *order);
    PyObject *list = order ? PyList_New(count) : PyErr_NoMemory();
    const strobe_status status = list ? strobe_dist_order(d, order, balance) : STROBE_OK;
    if (status) raise_sentence(module_state(module), status, strobe_dist_last_error());
    for (Py_ssize_t n = 0; list && n < count && !PyErr_Occurred(); ++n) {
        PyObject *number = PyLong_FromLongLong((long long)order[n]);
        if (number && PyList_SetItem(list, n, number) == 0) continue;
        break;
    }
    free(order);
    if (list && !PyErr_Occurred()) return Py_BuildValue("(Ndd)", list, balance[0], balance[1]);
    Py_XDECREF(list);
    return NULL;
}

/* (a list of lengths, ranks, the layout's number, keys before and behind a row's own that it sees or -1 for all) -> (order,
 * balance as given, balance in that order). */
FUNCTION(py_order_documents) {
    long long number[4] = {0};
    if (count != 5) return PyErr_Format(PyExc_TypeError, "order_documents takes 5 arguments");
    for (int n = 0; n < 4 && !PyErr_Occurred(); ++n) number[n] = PyLong_AsLongLong(args[n + 1]);
    if (PyErr_Occurred()) return NULL;
    int64_t longest = 0;
    int64_t *offsets = offsets_of(args[0], &longest);
    if (!offsets) return NULL;
    const strobe_varlen varlen = {
        .struct_size = sizeof varlen, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets, .index_bits = 64};
    strobe_attention a = {.struct_size = sizeof a, .batch = (int64_t)PyList_Size(args[0]), .varlen = &varlen};
    a.seq_q = a.seq_k = longest, a.mask = STROBE_MASK_WINDOW_TOP_LEFT;
    a.window_left = (int64_t)number[2], a.window_right = (int64_t)number[3];
    const strobe_transport nowhere = {.struct_size = sizeof nowhere, .size = (int32_t)number[0]};
    const strobe_dist d = {.struct_size = sizeof d, .attention = &a, .transport = &nowhere, .layout = (int32_t)number[1]};
    PyObject *result = order_of(module, &d);
    free(offsets);
    return result;
}

/* ------------------------------------------------------------------------------------------------------------- call -- */

bool open_shards(struct call *c) {
    PyObject *given = c->args[ARG_SHARDS];
    if (given == Py_None) return true;
    struct shards *s = c->shards = calloc(1, sizeof *s);
    if (!s) return PyErr_NoMemory() != NULL;
    int rank, size, layout, scheme, group, compares;
    long long seq_q, seq_k;
    if (!PyArg_ParseTuple(
            given,
            "iiiiiLLOOOOp;shards is (rank, size, layout, scheme, group, seq_q, seq_k, start, wait, start and wait "
            "of records, whether calls are compared)",
            &rank, &size, &layout, &scheme, &group, &seq_q, &seq_k, &s->messages.start, &s->messages.wait,
            &s->compared.start, &s->compared.wait, &compares))
        return false;
    s->messages.shards = s->compared.shards = s;
    s->transport = (strobe_transport){.struct_size = sizeof s->transport, .rank = rank, .size = size};
    s->transport.start = start, s->transport.wait = wait_for;
    s->records = s->transport;
    s->transport.self = &s->messages, s->records.self = &s->compared;
    s->transport.records = &s->records;
    if (PyCapsule_IsValid(s->messages.start, capsule_name))
        s->transport = *(const strobe_transport *)PyCapsule_GetPointer(s->messages.start, capsule_name);
    s->dist = (strobe_dist){.struct_size = sizeof s->dist, .transport = &s->transport};
    s->dist.layout = layout, s->dist.scheme = scheme, s->dist.group = group;
    s->dist.flags = compares ? 0 : STROBE_DIST_UNCOMPARED;
    s->seq_q = seq_q, s->seq_k = seq_k;
    return true;
}

/* Of the shard's extents seq_q stays, as results have it; scores have the keys of all ranks. */
void measure_shards(struct call *c) {
    struct shards *s = c->shards;
    if (!s) return;
    s->dist.rows_q = is_packed_q(c) ? c->total_q : c->a.seq_q;
    s->dist.rows_k = is_packed_k(c) ? c->k.shape[0] : c->a.seq_k;
    if (is_packed_q(c)) c->varlen.total_q = s->seq_q;
    if (is_packed_k(c)) c->varlen.total_k = s->seq_k;
    if (!is_packed_k(c)) c->a.seq_k = s->seq_k;
}

static bool raise_kept(struct shards *s) {
    if (!s->exception[0]) return false;
    PyErr_Restore(s->exception[0], s->exception[1], s->exception[2]);
    memset(s->exception, 0, sizeof s->exception);
    return true;
}

/* As in call.c: the device's memory comes from the framework. */
static bool open_workspace(struct call *c, const strobe_gradients *g, struct result *r, size_t *bytes, void **stream) {
    *bytes = 0, *stream = NULL;
    if (c->a.device == STROBE_CPU) return true;
    if (!tensor_stream(&c->q, stream)) return false;
    if (strobe_dist_workspace(&c->shards->dist, g, bytes)) return true; /* the call says so, to all ranks */
    const int64_t shape[1] = {(int64_t)*bytes};
    return *bytes == 0 || open_result(c, r, Py_None, "workspace", ELEMENT_UINT8, 1, shape);
}

bool run_shards(struct call *c, const strobe_gradients *g) {
    struct shards *s = c->shards;
    struct result workspace = {0};
    size_t bytes;
    void *stream;
    strobe_attention whole = c->a;
    if (!is_packed_q(c)) whole.seq_q = s->seq_q;
    s->dist.attention = &whole;
    s->transport.device = whole.device;
    if (!open_workspace(c, g, &workspace, &bytes, &stream)) {
        close_result(&workspace);
        return false;
    }
    s->called = true;
    s->thread = PyEval_SaveThread();
    const strobe_status status = g ? strobe_dist_backward(&s->dist, g, workspace.tensor.data, bytes, stream)
                                   : strobe_dist_forward(&s->dist, workspace.tensor.data, bytes, stream);
    PyEval_RestoreThread(s->thread);
    close_result(&workspace);
    if (raise_kept(s)) return false;
    if (status) raise_sentence(c->state, status, strobe_dist_last_error());
    return !status;
}

/* Tells the other ranks of an exception that was raised here before the ranks have compared; they wait to hear of it. */
static void tell(struct shards *s) {
    PyObject *exception[3];
    PyErr_Fetch(&exception[0], &exception[1], &exception[2]);
    PyObject *text = exception[1] ? PyObject_Str(exception[1]) : NULL;
    const char *sentence = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    if (!sentence) sentence = "an exception without a text";
    s->thread = PyEval_SaveThread();
    strobe_dist_refuse(s->transport.records, STROBE_INVALID_ARGUMENT, sentence);
    PyEval_RestoreThread(s->thread);
    Py_XDECREF(text);
    PyErr_Restore(exception[0], exception[1], exception[2]);
}

void close_shards(struct call *c) {
    struct shards *s = c->shards;
    if (!s) return;
    if (s->transport.start && !s->called && !s->dist.flags && PyErr_Occurred()) tell(s);
    for (int n = 0; n < 3; ++n) Py_XDECREF(s->exception[n]);
    free(s);
    c->shards = NULL;
}
