/* SPDX-License-Identifier: BSD-3-Clause
 *
 * call.c: calls that take the common arguments: attention, attention_backward, check, explain. Each reads the arguments,
 * makes or takes its results, and runs the library without the GIL. */
#include <math.h>
#include <stdlib.h>

#include "results.h"

enum { DQ, DK, DV, DBIAS, DSINKS, GRADIENTS };

/* ---------------------------------------------------------------------------------------------------------------- run -- */

/* The device's memory for a CUDA call comes from the caller's framework, as its results do, and lives until the call has
 * been put on the stream: the allocator of the framework orders by it. On the CPU the library allocates itself. */
static bool open_workspace(struct call *c, const strobe_gradients *g, struct result *r, size_t *bytes) {
    *bytes = 0;
    if (c->a.device == STROBE_CPU) return true;
    const strobe_status status = strobe_workspace(&c->a, g, bytes);
    if (status) return raise_status(c->state, status) != NULL;
    const int64_t shape[1] = {(int64_t)*bytes};
    return *bytes == 0 || open_result(c, r, Py_None, "workspace", ELEMENT_UINT8, 1, shape);
}

/* repeat: for bench/overhead.py, which takes the time of the library's call alone from the difference. */
static bool run(struct call *c, const strobe_gradients *g, int64_t repeat) {
    struct result workspace = {0};
    size_t bytes;
    void *stream;
    if (c->shards) return run_shards(c, g);
    if (!open_workspace(c, g, &workspace, &bytes) || !tensor_stream(&c->q, &stream)) {
        close_result(&workspace);
        return false;
    }
    strobe_status status = STROBE_OK;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t n = 0; n < repeat && !status; ++n)
        status = g ? strobe_backward(&c->a, g, workspace.tensor.data, bytes, stream)
                   : strobe_forward(&c->a, workspace.tensor.data, bytes, stream);
    Py_END_ALLOW_THREADS;
    close_result(&workspace);
    if (status) raise_status(c->state, status);
    return !status;
}

/* ------------------------------------------------------------------------------------------------------------ forward -- */

/* Of q in bytes out is bfloat16, or what the caller's is. */
static int32_t out_element(const struct call *c) {
    if (c->q.element != STROBE_FP8_E4M3 && c->q.element != STROBE_INT8) return c->q.element;
    struct tensor given = {0};
    const bool is_fp16 = c->args[ARG_OUT] != Py_None && tensor_open(c->state, &given, c->args[ARG_OUT], "out") &&
                         given.element == STROBE_FP16;
    tensor_close(&given);
    PyErr_Clear(); /* said again where out is opened */
    return is_fp16 ? STROBE_FP16 : STROBE_BF16;
}

static bool open_forward(struct call *c, struct result *out, struct result *lse, bool with_lse) {
    int64_t shape[4];
    const bool spare = c->a.varlen && has_spare_rows(&c->cu_q, &c->used_q, c->total_q);
    if (!open_result(c, out, c->args[ARG_OUT], "out", out_element(c), out_shape(c, shape), shape) ||
        !place_rows(&c->a.out, &out->tensor, is_packed_q(c)))
        return false;
    if (spare && c->args[ARG_OUT] == Py_None && !fill(out, 0)) return false;
    if (!with_lse) return true;
    if (!open_result(c, lse, Py_None, "lse", lse_element(c), lse_shape(c, shape), shape)) return false;
    if (spare && !fill(lse, -INFINITY)) return false;
    return place_lse(&c->a.lse, &lse->tensor, is_packed_q(c));
}

KEYWORDS_FUNCTION(py_attention) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, FORWARD, args, count, names)) return NULL;
    struct result out = {0}, lse = {0};
    PyObject *answer = NULL;
    int64_t repeat = 1;
    const int with_lse = PyObject_IsTrue(call.args[ARG_RETURN_LSE]);
    if (with_lse >= 0 && read_int(call.args[ARG_REPEAT], "repeat", &repeat) && call_read(&call) &&
        open_forward(&call, &out, &lse, with_lse) && run(&call, NULL, repeat)) {
        PyObject *shown = call.args[ARG_OUT] == Py_None ? as_shown(&call, out.object) : Py_NewRef(out.object);
        answer = with_lse && shown ? PyTuple_Pack(2, shown, lse.object) : shown;
        if (with_lse) Py_XDECREF(shown);
    }
    close_result(&out);
    close_result(&lse);
    call_close(&call);
    return answer;
}

enum { PLAIN_Q, PLAIN_CAUSAL = 3, PLAIN_DIAGONAL, PLAIN_SCALE, PLAIN_ARGUMENTS };

/* Whether a tensor of PyTorch's requires a gradient, whether or not one is recorded; -1 with an exception. */
static int requires_gradient(const struct state *state, PyObject *tensor) {
    PyObject *requires = PyObject_GetAttr(tensor, state->requires_grad);
    const int is = requires ? requires == Py_True : -1;
    Py_XDECREF(requires);
    return is;
}

/* What strobe.torch's attention() of most programs is: q, k, v, causal, diagonal, scale. In Python each of its questions is
 * code of the interpreter's and PyTorch's that between a model's other operators has to come from memory
 * (docs/kernels/cpu.md). Returns None where the call is another way's, or where it is refused: the other way says why. */
FUNCTION(py_attention_plain) {
    struct call call = {.state = module_state(module)};
    struct result out = {0};
    PyObject *answer = NULL;
    if (count != PLAIN_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError,
                     "attention_plain() got %zd arguments; q, k, v, causal, diagonal and scale are accepted", count);
        return NULL;
    }
    const int causal = PyObject_IsTrue(args[PLAIN_CAUSAL]);
    const int plain = causal < 0 ? -1 : are_plain(call.state, args, 3);
    if (plain <= 0) return plain < 0 ? NULL : Py_NewRef(Py_None);
    for (int n = 0; n < 3; ++n) {
        const int requires = requires_gradient(call.state, args[PLAIN_Q + n]);
        if (requires != 0) return requires < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (!take_arguments(&call, FORWARD, args, 3, NULL)) return NULL;
    if (causal) call.args[ARG_CAUSAL] = Py_True, call.args[ARG_DIAGONAL] = args[PLAIN_DIAGONAL];
    call.args[ARG_SCALE] = args[PLAIN_SCALE];
    call.is_plain = true;
    if (call_read(&call) && open_forward(&call, &out, NULL, false) && run(&call, NULL, 1)) answer = Py_NewRef(out.object);
    close_result(&out);
    call_close(&call);
    if (answer || !(PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_NotImplementedError)))
        return answer;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

/* ----------------------------------------------------------------------------------------------------------- backward -- */

/* out, lse, dout, dlse: as the forward left them or as its results are. */
static bool open_saved(struct call *c, strobe_gradients *g, struct tensor saved[4]) {
    const bool packed = is_packed_q(c);
    int64_t shape[4];
    const struct {
        enum argument argument;
        const char *name;
        strobe_tensor *to;
        bool is_lse;
    } wanted[4] = {
        {ARG_OUT, "out", &c->a.out, false},
        {ARG_LSE, "lse", &c->a.lse, true},
        {ARG_DOUT, "dout", &g->dout, false},
        {ARG_DLSE, "dlse", &g->dlse, true},
    };
    for (int n = 0; n < 4; ++n) {
        struct tensor *t = &saved[n];
        const bool optional = wanted[n].to == &g->dlse;
        PyObject *object = c->args[wanted[n].argument];
        if (optional ? !tensor_open_optional(c->state, t, object, wanted[n].name)
                     : !tensor_open(c->state, t, object, wanted[n].name))
            return false;
        if (!tensor_is_open(t)) continue;
        if (!wanted[n].is_lse) heads_last(c, t);
        const int ndim = wanted[n].is_lse ? lse_shape(c, shape) : out_shape(c, shape);
        const int32_t element = wanted[n].is_lse ? lse_element(c) : c->q.element;
        if (!tensor_has_shape(t, ndim, shape) || !tensor_is_on(t, &c->q)) return false;
        if (t->element != element) return refuse_dtype(t, element_name(element));
        if (!(wanted[n].is_lse ? place_lse(wanted[n].to, t, packed) : place_rows(wanted[n].to, t, packed))) return false;
    }
    return true;
}

static bool open_dbias(struct call *c, struct result *r, strobe_bias *dbias) {
    const struct tensor *bias = &c->bias_tensor;
    const int wanted = PyObject_IsTrue(c->args[ARG_BIAS_GRADIENT]);
    if (wanted <= 0) return wanted == 0;
    if (!tensor_is_open(bias)) {
        PyErr_SetString(PyExc_ValueError, "bias_gradient is True without a bias; both or none is accepted");
        return false;
    }
    for (int axis = 0; axis + 1 < bias->ndim; ++axis)
        if (bias->shape[axis] > 1 && bias->stride[axis] == 0) {
            PyErr_Format(
                PyExc_ValueError,
                "bias repeats along axis %d by a stride of 0, along which its gradient is summed; an extent of 1 is "
                "accepted there",
                axis);
            return false;
        }
    if (!open_result(c, r, Py_None, "dbias", bias->element, bias->ndim, bias->shape)) return false;
    dbias->struct_size = sizeof *dbias, dbias->data = r->tensor.data, dbias->dtype = bias->element;
    const int64_t scores[4] = {c->a.batch, c->a.heads_q, c->a.seq_q, c->a.seq_k};
    if (c->a.varlen && !fill(r, 0)) return false; /* scores outside the sequences have no gradient */
    return read_scores(&r->tensor, scores, dbias->stride);
}

static bool open_gradients(struct call *c, strobe_gradients *g, struct result results[GRADIENTS], strobe_bias *dbias,
                           strobe_sinks *dsinks) {
    static const char *const names[3] = {"dq", "dk", "dv"};
    const struct tensor *inputs[3] = {&c->q, &c->k, &c->v};
    strobe_tensor *to[3] = {&g->dq, &g->dk, &g->dv};
    for (int n = 0; n < 3; ++n) {
        const bool packed = n == 0 ? is_packed_q(c) : is_packed_k(c);
        PyObject *given = c->args[ARG_DQ + n];
        if (!open_result(c, &results[n], given, names[n], c->q.element, inputs[n]->ndim, inputs[n]->shape) ||
            !place_rows(to[n], &results[n].tensor, packed))
            return false;
        const bool spare = n == 0 ? has_spare_rows(&c->cu_q, &c->used_q, c->q.shape[0])
                                  : has_spare_rows(&c->cu_k, &c->used_k, c->k.shape[0]);
        if (c->a.varlen && spare && given == Py_None && !fill(&results[n], 0)) return false;
    }
    if (!open_dbias(c, &results[DBIAS], dbias)) return false;
    if (results[DBIAS].object) g->dbias = dbias;
    if (!c->a.sinks) return true;
    if (!open_result(c, &results[DSINKS], Py_None, "dsinks", c->sinks.dtype, 1, &c->a.heads_q)) return false;
    dsinks->struct_size = sizeof *dsinks, dsinks->data = results[DSINKS].tensor.data, dsinks->dtype = c->sinks.dtype;
    g->dsinks = dsinks;
    return true;
}

/* The results as a tuple; None where there is none. */
static PyObject *pack(const struct call *c, const struct result results[GRADIENTS]) {
    PyObject *answer = PyTuple_New(GRADIENTS);
    for (int n = 0; answer && n < GRADIENTS; ++n) {
        PyObject *object = results[n].object ? results[n].object : Py_None;
        const bool is_ours = n <= DV && c->args[ARG_DQ + n] == Py_None;
        PyObject *shown = is_ours ? as_shown(c, object) : Py_NewRef(object);
        if (!shown || PyTuple_SetItem(answer, n, shown) != 0) Py_CLEAR(answer);
    }
    return answer;
}

KEYWORDS_FUNCTION(py_attention_backward) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, BACKWARD, args, count, names)) return NULL;
    strobe_gradients g = {.struct_size = sizeof g};
    strobe_bias dbias = {0};
    strobe_sinks dsinks = {0};
    struct tensor saved[4] = {{0}};
    struct result results[GRADIENTS] = {{0}};
    PyObject *answer = NULL;
    if (call_read(&call) && open_saved(&call, &g, saved) && open_gradients(&call, &g, results, &dbias, &dsinks) &&
        read_score_gradients(&call, &g) && run(&call, &g, 1)) {
        answer = pack(&call, results);
    }
    for (int n = 0; n < GRADIENTS; ++n) close_result(&results[n]);
    for (int n = 0; n < 4; ++n) tensor_close(&saved[n]);
    call_close(&call);
    return answer;
}

/* ------------------------------------------------------------------------------------------------------------ explain -- */

static PyObject *explain(struct call *c, const strobe_gradients *g) {
    size_t needed = 0;
    strobe_status status = strobe_explain(&c->a, g, NULL, 0, &needed);
    if (needed <= 1) return raise_status(c->state, status); /* not sound, or a device without kernels: no line to show */
    char *text = malloc(needed);
    if (!text) return PyErr_NoMemory();
    strobe_explain(&c->a, g, text, needed, NULL); /* UNSUPPORTED is an answer here */
    PyObject *answer = PyUnicode_FromString(text);
    free(text);
    return answer;
}

/* Raises what attention would with these arguments, and returns None where it would compute; nothing is written. */
KEYWORDS_FUNCTION(py_check) {
    static _Alignas(64) char nowhere[64]; /* stands for the result */
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, FORWARD, args, count, names)) return NULL;
    bool sound = call_read(&call);
    call.a.out.data = nowhere;
    const strobe_status status = sound ? strobe_check(&call.a, NULL) : STROBE_OK;
    if (status) raise_status(call.state, status), sound = false;
    call_close(&call);
    return sound ? Py_NewRef(Py_None) : NULL;
}

KEYWORDS_FUNCTION(py_explain) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, EXPLAIN, args, count, names)) return NULL;
    const strobe_gradients gradients = {.struct_size = sizeof gradients};
    const int backward = PyObject_IsTrue(call.args[ARG_FOR_BACKWARD]);
    PyObject *answer = backward >= 0 && call_read(&call) ? explain(&call, backward ? &gradients : NULL) : NULL;
    call_close(&call);
    return answer;
}
