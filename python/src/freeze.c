/* SPDX-License-Identifier: BSD-3-Clause
 *
 * freeze.c: freezes a call for strobe.jax: the arguments are read and refused as for the call itself, of arrays whose
 * shapes and dtypes count and whose elements do not. Offsets of sequences are an exception: their last one bounds lengths.
 */
#include "frozen.h"

#include <stdlib.h>
#include <string.h>

#include "xla_ffi.h"

static int32_t xla_dtype(int32_t element) {
    switch (element) {
    case STROBE_FP32: return XLA_FLOAT32;
    case STROBE_FP16: return XLA_FLOAT16;
    case STROBE_BF16: return XLA_BFLOAT16;
    case STROBE_FP64: return XLA_FLOAT64;
    case STROBE_FP8_E4M3: return XLA_FLOAT8_E4M3FN;
    case STROBE_INT8: return XLA_INT8;
    case ELEMENT_BOOL: return XLA_BOOL;
    case ELEMENT_UINT8: return XLA_UINT8;
    case ELEMENT_INT64: return XLA_INT64;
    default: return XLA_INT32;
    }
}

static void add(struct frozen *p, enum frozen_tensor n, int32_t dtype, int ndim, const int64_t *shape) {
    p->present |= (uint64_t)1 << n;
    p->dtype[n] = dtype;
    p->elements[n] = 1;
    for (int axis = 0; axis < ndim; ++axis) p->elements[n] *= shape[axis];
}

/* Tensors that programs make are contiguous, and so are these. */
static void add_given(struct frozen *p, enum frozen_tensor n, const struct tensor *t) {
    if (tensor_is_open(t)) add(p, n, xla_dtype(t->element), t->ndim, t->shape);
}

static void add_inputs(struct frozen *p, const struct call *c) {
    add_given(p, FROZEN_Q, &c->q);
    add_given(p, FROZEN_K, &c->k);
    add_given(p, FROZEN_V, &c->v);
    add_given(p, FROZEN_BIAS, &c->bias_tensor);
    add_given(p, FROZEN_MASK, &c->mask_tensor);
    add_given(p, FROZEN_BLOCK_MASK, &c->block_tensor);
    add_given(p, FROZEN_SLOPES, &c->slopes_tensor);
    add_given(p, FROZEN_SINKS, &c->sinks_tensor);
    add_given(p, FROZEN_CU_Q, &c->cu_q);
    add_given(p, FROZEN_CU_K, &c->cu_k);
    add_given(p, FROZEN_USED_Q, &c->used_q);
    add_given(p, FROZEN_USED_K, &c->used_k);
    add_given(p, FROZEN_LEFTPAD_K, &c->leftpad_k);
    add_given(p, FROZEN_PAGE_TABLE, &c->page_table);
    add_given(p, FROZEN_Q_SCALE, &c->q_scale);
    add_given(p, FROZEN_K_SCALE, &c->k_scale);
    add_given(p, FROZEN_V_SCALE, &c->v_scale);
    for (int n = 0; c->score && n < c->score->array_count; ++n)
        add_given(p, (enum frozen_tensor)(FROZEN_ARRAY_0 + n), &c->score->tensors[n]);
    if (c->a.dropout) add(p, FROZEN_SEED, XLA_UINT32, 1, (const int64_t[]){2});
}

static bool add_gradients(struct frozen *p, struct call *c) {
    const int32_t element = xla_dtype(c->q.element);
    const int with_bias = PyObject_IsTrue(c->args[ARG_BIAS_GRADIENT]);
    if (with_bias < 0 || !read_score_gradients(c, &p->g)) return false;
    p->backward = 1;
    p->g.struct_size = sizeof p->g;
    add(p, FROZEN_DOUT, p->dtype[FROZEN_OUT], 1, &p->elements[FROZEN_OUT]);
    if (c->args[ARG_DLSE] != Py_None) add(p, FROZEN_DLSE, p->dtype[FROZEN_LSE], 1, &p->elements[FROZEN_LSE]);
    add(p, FROZEN_DQ, element, c->q.ndim, c->q.shape);
    add(p, FROZEN_DK, element, c->k.ndim, c->k.shape);
    add(p, FROZEN_DV, element, c->v.ndim, c->v.shape);
    if (with_bias && c->a.bias) {
        add(p, FROZEN_DBIAS, p->dtype[FROZEN_BIAS], 1, &p->elements[FROZEN_BIAS]);
        p->dbias = c->bias;
    }
    if (c->a.sinks) {
        add(p, FROZEN_DSINKS, p->dtype[FROZEN_SINKS], 1, &p->elements[FROZEN_SINKS]);
        p->dsinks = c->sinks;
    }
    for (int n = 0; c->score && n < c->score->array_count; ++n)
        add_given(p, (enum frozen_tensor)(FROZEN_DARRAY_0 + n), &c->score->dtensors[n]);
    return true;
}

#define FROZEN_POINTER(upper, lower, at) memset(&p->at, 0, sizeof p->at);

/* Copies what was read, and leaves out every address: the same call has the same bytes. */
static void copy(struct frozen *p, const struct call *c) {
    p->a = c->a;
    p->a.varlen = NULL, p->a.paged = NULL, p->a.bias = NULL, p->a.bool_mask = NULL, p->a.block_mask = NULL;
    p->a.alibi = NULL, p->a.sinks = NULL, p->a.dropout = NULL, p->a.scales = NULL, p->a.parallel = NULL;
    p->a.tuning = NULL, p->a.score = NULL, p->g.dscore = NULL;
    p->varlen = c->varlen, p->paged = c->paged, p->bias = c->bias, p->bool_mask = c->bool_mask;
    p->block_mask = c->block_mask, p->alibi = c->alibi, p->sinks = c->sinks, p->dropout = c->dropout;
    p->scales = c->scales, p->tuning = c->tuning;
    p->tuning.kernel = NULL;
    p->dropout.seed = 0;
    FROZEN_TENSORS(FROZEN_POINTER)
}

static bool refuse_others(const struct call *c) {
    if (!c->a.mask_lists && c->a.device == STROBE_CPU) return true;
    PyErr_SetString(PyExc_NotImplementedError, "mask_lists are not accepted in a compiled program of JAX");
    return false;
}

static bool read_frozen(struct frozen *p, struct call *c, bool backward) {
    int64_t shape[4];
    if (!call_read(c) || !refuse_others(c) || !read_int(c->args[ARG_THREADS], "threads", &p->threads)) return false;
    add_inputs(p, c);
    const bool is_fp8 = c->q.element == STROBE_FP8_E4M3 || c->q.element == STROBE_INT8;
    add(p, FROZEN_OUT, xla_dtype(is_fp8 ? STROBE_BF16 : c->q.element), out_shape(c, shape), shape);
    add(p, FROZEN_LSE, xla_dtype(lse_element(c)), lse_shape(c, shape), shape);
    p->longest_q = is_packed_q(c) && c->args[ARG_MAX_SEQLEN_Q] == Py_None;
    p->longest_k = is_packed_k(c) && c->args[ARG_MAX_SEQLEN_K] == Py_None;
    if (backward && !add_gradients(p, c)) return false;
    if (c->tuning.kernel && strlen(c->tuning.kernel) < sizeof p->kernel) strcpy(p->kernel, c->tuning.kernel);
    strobe_gradients g = p->g;
    if (frozen_has(p, FROZEN_DBIAS)) g.dbias = &c->bias;
    if (frozen_has(p, FROZEN_DSINKS)) g.dsinks = &c->sinks;
    size_t bytes;
    const strobe_status status = strobe_workspace(&c->a, backward ? &g : NULL, &bytes);
    if (status) return raise_status(c->state, status) != NULL;
    copy(p, c);
    return true;
}

#define FROZEN_NAME(upper, lower, at) #lower,
static const char *const tensors[FROZEN_TENSOR_KINDS] = {FROZEN_TENSORS(FROZEN_NAME)};

/* The names of the operands, or of the results. */
static PyObject *names_of(const struct frozen *p, bool results) {
    PyObject *names = PyList_New(0);
    for (int n = 0; names && n < FROZEN_TENSOR_KINDS; ++n) {
        if (!frozen_has(p, (enum frozen_tensor)n) || frozen_is_result(p, (enum frozen_tensor)n) != results) continue;
        PyObject *name = PyUnicode_FromString(tensors[n]);
        if (!name || PyList_Append(names, name) != 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* The call, and behind it the function of a score that it has. */
static PyObject *bytes_of(struct frozen *p, const struct score *score) {
    size_t behind = 0;
    struct frozen_score *function = score ? freeze_score(score, &behind) : NULL;
    if (score && !function) return PyErr_NoMemory();
    p->score_bytes = (int64_t)behind;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof *p + behind));
    if (bytes) {
        memcpy(PyBytes_AsString(bytes), p, sizeof *p);
        if (behind) memcpy(PyBytes_AsString(bytes) + sizeof *p, function, behind);
    }
    free(function);
    return bytes;
}

static PyObject *freeze(struct call *c, bool backward) {
    struct frozen p;
    memset(&p, 0, sizeof p); /* padding too */
    p.size = sizeof p;
    strncpy(p.version, strobe_version(), sizeof p.version - 1);
    if (!read_frozen(&p, c, backward)) return NULL;
    PyObject *bytes = bytes_of(&p, c->score);
    PyObject *operands = names_of(&p, false), *results = names_of(&p, true);
    PyObject *answer = bytes && operands && results ? PyTuple_Pack(3, bytes, operands, results) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(operands);
    Py_XDECREF(results);
    return answer;
}

KEYWORDS_FUNCTION(py_freeze_attention) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, FORWARD, args, count, names)) return NULL;
    PyObject *answer = freeze(&call, false);
    call_close(&call);
    return answer;
}

KEYWORDS_FUNCTION(py_freeze_attention_backward) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, BACKWARD, args, count, names)) return NULL;
    PyObject *answer = freeze(&call, true);
    call_close(&call);
    return answer;
}
