/* SPDX-License-Identifier: BSD-3-Clause
 *
 * arguments.c: q, k, v and the scalars into the descriptor. What the descriptor cannot hold is refused here, in the
 * library's way of putting it: shapes that disagree, strides that are not its. All the rest is left to the library to
 * refuse. */
#include "arguments.h"

#include <string.h>

bool read_int(PyObject *from, const char *name, int64_t *to) {
    if (from == Py_None) return true;
    PyObject *index = PyNumber_Index(from);
    const long long value = index ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is %R; an integer of 64 bits is accepted", name, from);
        return false;
    }
    *to = value;
    return true;
}

bool read_string(PyObject *from, const char *name, const char **to) {
    Py_ssize_t length = 0;
    *to = PyUnicode_AsUTF8AndSize(from, &length);
    if (!*to || strlen(*to) == (size_t)length) return *to != NULL;
    PyErr_Format(PyExc_ValueError, "%s is %R; a text without the character of code 0 is accepted", name, from);
    return false;
}

bool read_float(PyObject *from, const char *name, double *to) {
    if (from == Py_None) return true;
    const double value = PyFloat_AsDouble(from);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is %R; a number is accepted", name, from);
        return false;
    }
    *to = value;
    return true;
}

/* The descriptor takes three zero strides for "contiguous": a tensor that repeats one row along all axes is not to be said
 * in it, and on an axis of one entry any stride will do. */
static bool place(strobe_tensor *to, const struct tensor *t, const int axes[3]) {
    const int inner = t->ndim - 1;
    bool repeats = true, one = false;
    for (int n = 0; n < 3; ++n) {
        to->stride[n] = axes[n] < 0 ? 0 : t->stride[axes[n]];
        repeats = repeats && to->stride[n] == 0;
        one = one || axes[n] < 0 || t->shape[axes[n]] <= 1;
    }
    to->data = t->data, to->dtype = t->element;
    if (axes[0] != inner && axes[1] != inner && axes[2] != inner && t->shape[inner] > 1 && t->stride[inner] != 1) {
        return refuse_stride(t, inner);
    }
    if (!repeats) return true;
    if (!one) {
        PyErr_Format(PyExc_ValueError, "%s repeats one row along every axis; a copy that does not is accepted", t->name);
        return false;
    }
    for (int n = 0; n < 3; ++n)
        if (axes[n] < 0 || t->shape[axes[n]] <= 1) to->stride[n] = 1;
    return true;
}

bool place_rows(strobe_tensor *to, const struct tensor *t, bool packed) {
    return place(to, t, packed ? (const int[]){-1, 0, 1} : (const int[]){0, 1, 2});
}

bool place_lse(strobe_tensor *to, const struct tensor *t, bool packed) {
    return place(to, t, packed ? (const int[]){-1, 1, 0} : (const int[]){0, 2, 1});
}

/* Whether scales are there is the library's to say. */
static bool is_number(const struct tensor *t) {
    return t->element < ELEMENT_BOOL ||
           refuse_dtype(t, "float32, float16, bfloat16, float64 or, with scales, float8_e4m3fn or int8");
}

/* PyTorch's tensors alone say so. */
bool records_no_gradient(const struct state *state, const struct tensor *t) {
    if (!t->framework.is_torch) return true;
    PyObject *requires = PyObject_GetAttr(t->object, state->requires_grad);
    const bool wanted = requires == Py_True;
    Py_XDECREF(requires);
    PyErr_Clear();
    if (!wanted) return true;
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch"); /* borrowed */
    PyObject *enabled = torch ? PyObject_CallMethod(torch, "is_grad_enabled", NULL) : NULL;
    const bool recording = enabled == Py_True;
    Py_XDECREF(enabled);
    PyErr_Clear();
    if (recording)
        PyErr_Format(PyExc_ValueError,
                     "%s requires a gradient, which is not recorded here; strobe.torch.attention records it, %s.detach() "
                     "is accepted",
                     t->name, t->name);
    return !recording;
}

static bool open_qkv(struct call *c) {
    struct tensor *tensors[3] = {&c->q, &c->k, &c->v};
    static const char *const names[3] = {"q", "k", "v"};
    for (int n = 0; n < 3; ++n)
        if (!tensor_open(c->state, tensors[n], c->args[ARG_Q + n], c->names[n] ? c->names[n] : names[n]) ||
            !(c->is_plain || records_no_gradient(c->state, tensors[n])) || !is_number(tensors[n]) ||
            !tensor_is_on(tensors[n], &c->q))
            return false;
    for (int n = 0; n < 3; ++n) heads_last(c, tensors[n]);
    /* an int8 q stands beside a v of e4m3, whose out is 16 bits */
    c->a.dtype = c->q.element == STROBE_INT8 ? STROBE_FP8_E4M3 : c->q.element, c->a.device = c->q.device,
    c->a.device_index = c->q.device_index;
    return true;
}

/* The bound of the keys is what the table has room for, where the caller gives none. */
static bool read_pages(struct call *c) {
    const struct tensor *t = &c->page_table;
    strobe_paged *p = &c->paged;
    if (!tensor_has_shape(t, 2, (const int64_t[]){c->a.batch, -1})) return false;
    *p = (strobe_paged){.struct_size = sizeof *p, .page_table = t->data};
    p->table_stride = t->shape[0] > 1 ? t->stride[0] : t->shape[1];
    p->page_size = c->k.shape[1], p->pages = c->k.shape[0];
    if (c->args[ARG_MAX_SEQLEN_K] == Py_None) c->a.seq_k = t->shape[1] * p->page_size;
    c->a.paged = p;
    return true;
}

/* Fills in the extents. The batch is the lengths' where a side is packed. */
static bool read_shapes(struct call *c) {
    strobe_attention *a = &c->a;
    const bool packed_q = is_packed_q(c), packed_k = is_packed_k(c);
    const int q_axes = packed_q ? 3 : 4, k_axes = packed_k ? 3 : 4;
    if (c->q.ndim != q_axes)
        return refuse_shape(&c->q, packed_q ? "(total_q, heads, dim), with cu_seqlens_q," : "(batch, seq, heads, dim)");
    if (c->k.ndim != k_axes)
        return refuse_shape(&c->k, packed_k ? "(total_k, heads, dim), with cu_seqlens_k," : "(batch, seq, heads, dim)");
    const int64_t *q = c->q.shape, *k = c->k.shape;
    a->batch = packed_q ? c->cu_q.shape[0] - 1 : q[0];
    a->heads_q = q[q_axes - 2], a->dim = q[q_axes - 1], a->heads_kv = k[k_axes - 2];
    /* The axes that are not the batch's: rows and heads are k's own to say, and v has k's. */
    const int64_t of_k = is_paged(c) ? k[0] : a->batch; /* pages, or sequences */
    const int64_t k_wanted[4] = {of_k, -1, -1, a->dim}, v_wanted[4] = {of_k, k[k_axes - 3], a->heads_kv, -1};
    const int first = packed_k ? 1 : 0;
    if (!tensor_has_shape(&c->k, k_axes, k_wanted + first) || !tensor_has_shape(&c->v, k_axes, v_wanted + first))
        return false;
    if (packed_k && c->cu_k.shape[0] - 1 != a->batch) return tensor_has_shape(&c->cu_k, 1, (const int64_t[]){a->batch + 1});
    a->dim_v = c->v.shape[k_axes - 1];
    c->total_q = q[0];
    if (!packed_q) a->seq_q = q[1];
    if (is_paged(c)) {
        if (!read_pages(c)) return false;
    } else if (!packed_k)
        a->seq_k = k[1];
    /* Zero would ask for the library's default. */
    if (a->heads_kv == 0 || a->dim_v == 0) return refuse_shape(a->dim_v == 0 ? &c->v : &c->k, "1 head and 1 dim, or more,");
    return place_rows(&a->q, &c->q, packed_q) && place_rows(&a->k, &c->k, packed_k) && place_rows(&a->v, &c->v, packed_k);
}

static bool read_window(struct call *c, int64_t *left, int64_t *right) {
    PyObject *window = c->args[ARG_WINDOW];
    *left = *right = -1;
    if (window == Py_None) return true;
    if (!PySequence_Check(window) || PySequence_Size(window) != 2) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "window is %R; a pair (left, right) is accepted", window);
        return false;
    }
    PyObject *first = PySequence_GetItem(window, 0), *second = PySequence_GetItem(window, 1);
    const bool read = first && second && read_int(first, "window[0]", left) && read_int(second, "window[1]", right);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return read;
}

static bool read_mask_kind(struct call *c) {
    PyObject *diagonal = c->args[ARG_DIAGONAL];
    const int causal = PyObject_IsTrue(c->args[ARG_CAUSAL]);
    int64_t left, right;
    if (causal < 0 || !read_window(c, &left, &right)) return false;
    const bool is_text = PyUnicode_Check(diagonal), is_default = diagonal == Py_None;
    const bool top = is_text && PyUnicode_CompareWithASCIIString(diagonal, "top_left") == 0;
    if (!top && !is_default && !(is_text && PyUnicode_CompareWithASCIIString(diagonal, "bottom_right") == 0)) {
        PyErr_Format(PyExc_ValueError, "diagonal is %R; \"bottom_right\" or \"top_left\" is accepted", diagonal);
        return false;
    }
    if (causal) right = 0;
    if (left == -1 && right == -1)
        c->a.mask = STROBE_MASK_NONE;
    else if (left == -1 && right == 0)
        c->a.mask = top ? STROBE_MASK_CAUSAL_TOP_LEFT : STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    else
        c->a.mask = top ? STROBE_MASK_WINDOW_TOP_LEFT : STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    c->a.window_left = left, c->a.window_right = right;
    return true;
}

static bool read_scale(struct call *c) {
    if (!read_float(c->args[ARG_SCALE], "scale", &c->a.scale)) return false;
    if (c->a.scale != 0 || c->args[ARG_SCALE] == Py_None) return true;
    PyErr_SetString(PyExc_ValueError,
                    "scale is 0; None, for 1/sqrt(dim), or a number of a magnitude from 1e-30 to 1e30 is accepted");
    return false;
}

static bool read_scalars(struct call *c) {
    strobe_attention *a = &c->a;
    if (!read_mask_kind(c) || !read_scale(c) || !read_float(c->args[ARG_SOFTCAP], "softcap", &a->softcap) ||
        !read_int(c->args[ARG_Q_START], "q_start", &a->q_start) || !read_int(c->args[ARG_K_START], "k_start", &a->k_start))
        return false;
    const int deterministic = PyObject_IsTrue(c->args[ARG_DETERMINISTIC]), tf32x3 = PyObject_IsTrue(c->args[ARG_TF32X3]);
    if (deterministic > 0) a->flags |= STROBE_DETERMINISTIC;
    if (tf32x3 > 0) a->flags |= STROBE_TF32X3;
    return deterministic >= 0 && tf32x3 >= 0;
}

bool call_read(struct call *c) {
    const int heads_first = PyObject_IsTrue(c->args[ARG_HEADS_FIRST]);
    if (heads_first < 0) return false;
    c->heads_first = heads_first;
    c->a.struct_size = sizeof c->a;
    if (c->is_plain) return open_qkv(c) && read_shapes(c) && read_mask_kind(c) && read_scale(c) && choose_threads(c);
    if (!open_shards(c) || !open_qkv(c) || !open_pages(c) || !read_lengths(c) || !read_shapes(c)) return false;
    measure_shards(c);
    return read_scalars(c) && read_features(c) && choose_threads(c);
}

void call_close(struct call *c) {
    struct tensor *tensors[] = {&c->q,
                                &c->k,
                                &c->v,
                                &c->bias_tensor,
                                &c->mask_tensor,
                                &c->block_tensor,
                                &c->slopes_tensor,
                                &c->sinks_tensor,
                                &c->cu_q,
                                &c->cu_k,
                                &c->used_q,
                                &c->used_k,
                                &c->leftpad_k,
                                &c->page_table,
                                &c->q_scale,
                                &c->k_scale,
                                &c->v_scale,
                                &c->lists_memory};
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n) tensor_close(tensors[n]);
    close_score(c);
    close_shards(c);
}

void heads_last(const struct call *c, struct tensor *t) {
    if (!c->heads_first || t->ndim != 4) return;
    const int64_t heads = t->shape[1], stride = t->stride[1];
    t->shape[1] = t->shape[2], t->stride[1] = t->stride[2];
    t->shape[2] = heads, t->stride[2] = stride;
    t->turned = !t->turned;
}

PyObject *as_shown(const struct call *c, PyObject *result) {
    if (!c->heads_first) return Py_NewRef(result);
    PyObject *one = PyLong_FromLong(1), *two = PyLong_FromLong(2);
    PyObject *shown = one && two ? PyObject_CallMethodObjArgs(result, c->state->swapaxes, one, two, NULL) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(two);
    return shown;
}

int out_shape(const struct call *c, int64_t shape[4]) {
    const strobe_attention *a = &c->a;
    const int64_t full[4] = {a->batch, is_packed_q(c) ? c->total_q : a->seq_q, a->heads_q, a->dim_v};
    const int first = is_packed_q(c) ? 1 : 0;
    memcpy(shape, full + first, sizeof *full * (size_t)(4 - first));
    return 4 - first;
}

int lse_shape(const struct call *c, int64_t shape[4]) {
    const strobe_attention *a = &c->a;
    if (is_packed_q(c)) {
        shape[0] = a->heads_q, shape[1] = c->total_q;
        return 2;
    }
    shape[0] = a->batch, shape[1] = a->heads_q, shape[2] = a->seq_q;
    return 3;
}

int32_t lse_element(const struct call *c) { return c->q.element == STROBE_FP64 ? STROBE_FP64 : STROBE_FP32; }
