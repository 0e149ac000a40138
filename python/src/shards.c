/* SPDX-License-Identifier: BSD-3-Clause
 *
 * shards.c: calls over many processes, by libstrobe_dist: q, k and v are shards, and what moves data is Python's: two
 * functions that start an exchange of messages and wait for it. They run on the thread of the call, with the GIL, which the
 * call itself runs without. An exception of theirs ends the call and is raised from it. */
#include <stdlib.h>
#include <string.h>
#include <strobe/strobe_dist.h>

#include "arguments.h"

struct shards {
    strobe_dist dist;
    strobe_transport transport;
    int64_t seq_q, seq_k;   /* of all ranks together, of sequences that are not packed; else their rows */
    PyObject *start, *wait; /* borrowed from the argument */
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
    struct shards *s = self;
    (void)stream;
    PyEval_RestoreThread(s->thread);
    PyObject *sent = list_of(sends, send_count), *received = list_of(receives, receive_count);
    PyObject *answer = sent && received ? PyObject_CallFunctionObjArgs(s->start, sent, received, NULL) : NULL;
    Py_XDECREF(sent);
    Py_XDECREF(received);
    return leave(s, answer);
}

static int wait_for(void *self, void *stream) {
    struct shards *s = self;
    (void)stream;
    PyEval_RestoreThread(s->thread);
    return leave(s, PyObject_CallFunctionObjArgs(s->wait, NULL));
}

/* ------------------------------------------------------------------------------------------------------------- call -- */

bool open_shards(struct call *c) {
    PyObject *given = c->args[ARG_SHARDS];
    if (given == Py_None) return true;
    struct shards *s = c->shards = calloc(1, sizeof *s);
    if (!s) return PyErr_NoMemory() != NULL;
    int rank, size, layout, scheme, group;
    long long seq_q, seq_k;
    if (!PyArg_ParseTuple(given, "iiiiiLLOO;shards is (rank, size, layout, scheme, group, seq_q, seq_k, start, wait)", &rank,
                          &size, &layout, &scheme, &group, &seq_q, &seq_k, &s->start, &s->wait))
        return false;
    s->transport = (strobe_transport){.struct_size = sizeof s->transport, .rank = rank, .size = size, .self = s};
    s->transport.start = start, s->transport.wait = wait_for;
    s->dist = (strobe_dist){.struct_size = sizeof s->dist, .transport = &s->transport};
    s->dist.layout = layout, s->dist.scheme = scheme, s->dist.group = group;
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

bool run_shards(struct call *c, const strobe_gradients *g) {
    struct shards *s = c->shards;
    strobe_attention whole = c->a;
    if (!is_packed_q(c)) whole.seq_q = s->seq_q;
    s->dist.attention = &whole;
    s->called = true;
    s->thread = PyEval_SaveThread();
    const strobe_status status = g ? strobe_dist_backward(&s->dist, g, NULL, 0, NULL)
                                   : strobe_dist_forward(&s->dist, NULL, 0, NULL);
    PyEval_RestoreThread(s->thread);
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
    strobe_dist_refuse(&s->transport, STROBE_INVALID_ARGUMENT, sentence);
    PyEval_RestoreThread(s->thread);
    Py_XDECREF(text);
    PyErr_Restore(exception[0], exception[1], exception[2]);
}

void close_shards(struct call *c) {
    struct shards *s = c->shards;
    if (!s) return;
    if (s->transport.start && !s->called && PyErr_Occurred()) tell(s);
    for (int n = 0; n < 3; ++n) Py_XDECREF(s->exception[n]);
    free(s);
    c->shards = NULL;
}
