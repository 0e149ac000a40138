/* SPDX-License-Identifier: BSD-3-Clause
 *
 * quantise.c: strobe.quantise: q, k and v in e4m3 or int8, and their scales. */
#include "results.h"

enum { Q8, K8, V8, Q_SCALES, K_SCALES, V_SCALES, LSE_SHIFT, K_MEAN, RESULTS };

/* What a call has beside the common arguments. */
struct quantise {
    strobe_quantiser z;
    struct rotary rotary;
    struct result results[RESULTS];
};

/* The dtype of q and k, and v's. */
static bool read_dtype(const struct call *c, int32_t *element, int32_t *of_v) {
    PyObject *dtype = c->args[ARG_DTYPE];
    const bool is_text = dtype != Py_None && PyUnicode_Check(dtype);
    *element = *of_v = STROBE_FP8_E4M3;
    if (dtype == Py_None || (is_text && PyUnicode_CompareWithASCIIString(dtype, "float8_e4m3fn") == 0)) return true;
    *element = STROBE_INT8;
    if (is_text && PyUnicode_CompareWithASCIIString(dtype, "int8_float8_e4m3fn") == 0) return true;
    *of_v = STROBE_INT8;
    if (is_text && PyUnicode_CompareWithASCIIString(dtype, "int8") == 0) return true;
    PyErr_Format(PyExc_ValueError, "dtype is %R; \"float8_e4m3fn\", \"int8_float8_e4m3fn\" or \"int8\" is accepted", dtype);
    return false;
}

/* The quantised tensors take the places of the given ones in the descriptor, which go to the quantiser. */
static bool open_bytes(struct call *c, struct quantise *w, int32_t element, int32_t of_v) {
    static const char *const names[3] = {"q", "k", "v"};
    const struct tensor *given[3] = {&c->q, &c->k, &c->v};
    strobe_tensor *from[3] = {&w->z.q, &w->z.k, &w->z.v}, *to[3] = {&c->a.q, &c->a.k, &c->a.v};
    for (int n = 0; n < 3; ++n) {
        const bool packed = n == 0 ? is_packed_q(c) : is_packed_k(c);
        const struct tensor *cu = n == 0 ? &c->cu_q : &c->cu_k, *used = n == 0 ? &c->used_q : &c->used_k;
        struct result *r = &w->results[Q8 + n];
        *from[n] = *to[n], *to[n] = (strobe_tensor){0};
        if (!open_result(c, r, Py_None, names[n], n == 2 ? of_v : element, given[n]->ndim, given[n]->shape) ||
            !place_rows(to[n], &r->tensor, packed))
            return false;
        if (c->a.varlen && has_spare_rows(cu, used, given[n]->shape[0]) && !fill(r, 0)) return false;
    }
    w->z.dtype = c->a.dtype, c->a.dtype = of_v;
    return true;
}

static bool open_scales(struct call *c, struct quantise *w) {
    static const char *const names[3] = {"q_scale", "k_scale", "v_scale"};
    strobe_scales *s = &c->scales;
    const float **to[3] = {&s->q, &s->k, &s->v};
    strobe_tensor *from[3] = {&w->z.q, &w->z.k, &w->z.v};
    int64_t *stride[3] = {s->stride_q, s->stride_k, s->stride_v}, shape[3];
    s->struct_size = sizeof *s, s->block_q = s->block_k = 128;
    if (!read_pair(c->args[ARG_SCALE_BLOCK], "scale_block", &s->block_q, &s->block_k)) return false;
    for (int n = 0; n < 3; ++n) {
        const int64_t block = n == 0 ? s->block_q : s->block_k;
        struct result *r = &w->results[Q_SCALES + n];
        const int axes = scales_shape(c, n == 0, block, shape);
        if (!open_result(c, r, Py_None, names[n], STROBE_FP32, axes, shape) || (c->a.varlen && !fill(r, 0)) ||
            !place_scales(c, &r->tensor, n == 0, block, stride[n]))
            return false;
        *to[n] = r->tensor.data;
        if (!from[n]->data) from[n]->data = r->tensor.data; /* PyTorch's, without rows: given, and nothing is read */
    }
    c->a.scales = s;
    return true;
}

/* K's mean, and what lse becomes lower by. */
static bool open_mean(struct call *c, struct quantise *w) {
    const int wanted = PyObject_IsTrue(c->args[ARG_SUBTRACT_MEAN]);
    if (wanted <= 0) return wanted == 0;
    struct result *mean = &w->results[K_MEAN], *shift = &w->results[LSE_SHIFT];
    int64_t shape[4] = {c->a.batch, c->a.heads_kv, c->a.dim, 0};
    if (!open_result(c, mean, Py_None, "k_mean", STROBE_FP32, 3, shape)) return false;
    w->z.k_mean = mean->tensor.data;
    if (!w->z.k.data) w->z.k.data = mean->tensor.data; /* as above: the mean is written */
    return open_result(c, shift, Py_None, "lse_shift", STROBE_FP32, lse_shape(c, shape), shape) &&
           (!c->a.varlen || fill(shift, 0)) && place_lse(&w->z.lse_shift, &shift->tensor, is_packed_q(c));
}

static bool read_quantiser(struct call *c, struct quantise *w) {
    int32_t element, of_v;
    const int hadamard = PyObject_IsTrue(c->args[ARG_HADAMARD]);
    w->z.struct_size = sizeof w->z;
    w->z.hadamard = hadamard > 0 ? STROBE_HADAMARD : 0, w->z.seed = c->dropout.seed;
    if (hadamard < 0 || !read_dtype(c, &element, &of_v) || !read_rotary(c, &w->rotary)) return false;
    if (w->rotary.attached) w->z.rotary = &w->rotary.by;
    return open_bytes(c, w, element, of_v) && open_scales(c, w) && open_mean(c, w);
}

static bool run(struct call *c, struct quantise *w) {
    void *stream;
    if (!tensor_stream(&c->q, &stream)) return false;
    strobe_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = strobe_quantise(&c->a, &w->z, stream);
    Py_END_ALLOW_THREADS;
    if (status) raise_status(c->state, status);
    return !status;
}

/* (q, k, v, q_scale, k_scale, v_scale, lse_shift or None) */
KEYWORDS_FUNCTION(py_quantise) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, QUANTISE, args, count, names)) return NULL;
    struct quantise work = {0};
    PyObject *answer = NULL;
    if (call_read(&call) && read_quantiser(&call, &work) && run(&call, &work)) {
        answer = PyTuple_New(K_MEAN);
        for (int n = 0; answer && n < K_MEAN; ++n) {
            PyObject *object = work.results[n].object ? work.results[n].object : Py_None;
            Py_INCREF(object);
            PyTuple_SetItem(answer, n, object);
        }
    }
    for (int n = 0; n < RESULTS; ++n) close_result(&work.results[n]);
    close_rotary(&work.rotary);
    call_close(&call);
    return answer;
}
