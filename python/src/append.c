/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append.c: strobe.append: new K and V into a cache, and q turned on the way. The descriptor's k and v are the cache, its q
 * is the result; the new tensors are the appender's. */
#include <strobe/strobe_append.h>

#include "results.h"

/* What a call has beside the common arguments. */
struct append {
    strobe_appender n;
    struct rotary rotary;
    PyObject *given[3]; /* q, k and v as the caller has them, borrowed; q None: there is none */
    struct tensor k, v, cu, used, lengths, positions, slots;
    struct result q;
};

/* The cache takes the places of k and v. Without a q the new k stands for it, whose device, dtype and rows are a q's too. */
static void change_places(struct call *c, struct append *w) {
    for (int n = 0; n < 3; ++n) w->given[n] = c->args[ARG_Q + n];
    c->args[ARG_K] = c->args[ARG_K_CACHE], c->args[ARG_V] = c->args[ARG_V_CACHE];
    c->names[1] = "k_cache", c->names[2] = "v_cache";
    if (w->given[0] != Py_None) return;
    c->names[0] = "k", c->offsets_of_q = "cu_seqlens_new", c->bound_of_q = "max_seqlen_new";
    c->args[ARG_Q] = w->given[1];
    c->args[ARG_CU_SEQLENS_Q] = c->args[ARG_CU_SEQLENS_NEW], c->args[ARG_USED_Q] = Py_None;
    c->args[ARG_MAX_SEQLEN_Q] = c->args[ARG_CU_SEQLENS_Q] == Py_None ? Py_None : c->args[ARG_MAX_SEQLEN_NEW];
}

static bool read_new_lengths(struct call *c, struct append *w) {
    strobe_appender *n = &w->n;
    if (!open_integers(c, &w->cu, ARG_CU_SEQLENS_NEW, "cu_seqlens_new", &n->index_bits, &n->cu_seqlens_new) ||
        !open_integers(c, &w->used, ARG_USED_NEW, "used_new", &n->index_bits, &n->used_new) ||
        !open_integers(c, &w->lengths, ARG_LENGTHS, "lengths", &n->index_bits, &n->lengths) ||
        !open_integers(c, &w->positions, ARG_POSITIONS, "positions", &n->index_bits, &n->positions))
        return false;
    const struct tensor *of_sequences[3] = {&w->used, &w->lengths, &w->positions};
    for (int i = 0; i < 3; ++i)
        if (tensor_is_open(of_sequences[i]) && !tensor_has_shape(of_sequences[i], 1, &c->a.batch)) return false;
    if (tensor_is_open(&w->cu) && !tensor_has_shape(&w->cu, 1, (const int64_t[]){c->a.batch + 1})) return false;
    return read_bound(c, &w->cu, ARG_MAX_SEQLEN_NEW, "max_seqlen_new", &n->seq_new);
}

/* k and v, (batch, tokens, heads, dim), or packed (tokens, heads, dim). */
static bool open_new(struct call *c, struct append *w) {
    const strobe_attention *a = &c->a;
    const bool packed = tensor_is_open(&w->cu);
    if (!tensor_open(c->state, &w->k, w->given[1], "k") || !tensor_open(c->state, &w->v, w->given[2], "v")) return false;
    const int rows = packed ? 0 : 1;
    const int64_t k_shape[4] = {a->batch, -1, a->heads_kv, a->dim};
    if (!tensor_has_shape(&w->k, 3 + rows, k_shape + 1 - rows)) return false;
    const int64_t v_shape[4] = {a->batch, w->k.shape[rows], a->heads_kv, a->dim_v};
    if (!tensor_has_shape(&w->v, 3 + rows, v_shape + 1 - rows)) return false;
    if (packed)
        w->n.total_new = w->k.shape[0];
    else
        w->n.seq_new = w->k.shape[1];
    const struct tensor *tensors[2] = {&w->k, &w->v};
    for (int n = 0; n < 2; ++n)
        if (!records_no_gradient(c->state, tensors[n]) || !tensor_is_on(tensors[n], &c->q)) return false;
    return place_rows(&w->n.k, &w->k, packed) && place_rows(&w->n.v, &w->v, packed);
}

static bool open_slots(struct call *c, struct append *w) {
    struct tensor *t = &w->slots;
    if (!tensor_open_optional(c->state, t, c->args[ARG_SLOTS], "slots")) return false;
    if (!tensor_is_open(t)) return true;
    if (t->element != ELEMENT_INT64) return refuse_dtype(t, "int64");
    const int axes = w->k.ndim - 2; /* as k's rows */
    if (!tensor_has_shape(t, axes, w->k.shape) || !tensor_is_on(t, &c->q)) return false;
    int64_t stride = 1;
    for (int axis = axes - 1; axis >= 0; stride *= t->shape[axis--])
        if (t->shape[axis] > 1 && t->stride[axis] != stride)
            return refuse_shape(t, "contiguous, its rows one after the other,");
    w->n.slots = t->data;
    return true;
}

/* q as it was, and where it goes. */
static bool open_q(struct call *c, struct append *w) {
    if (w->given[0] == Py_None) {
        c->a.q.data = NULL;
        return true;
    }
    w->n.q = c->a.q;
    if (!open_result(c, &w->q, c->args[ARG_OUT], "out", c->q.element, c->q.ndim, c->q.shape) ||
        !place_rows(&c->a.q, &w->q.tensor, is_packed_q(c)))
        return false;
    const bool spare = c->a.varlen && has_spare_rows(&c->cu_q, &c->used_q, c->total_q);
    return !spare || c->args[ARG_OUT] != Py_None || fill(&w->q, 0);
}

static bool read_appender(struct call *c, struct append *w) {
    const int hadamard = PyObject_IsTrue(c->args[ARG_HADAMARD]), at_length = PyObject_IsTrue(c->args[ARG_Q_AT_LENGTH]);
    const struct tensor *written[4] = {&c->k, &c->v, &c->k_scale, &c->v_scale};
    if (hadamard < 0 || at_length < 0) return false;
    for (int n = 0; n < 4; ++n)
        if (tensor_is_open(written[n]) && !tensor_is_writable(written[n])) return false;
    w->n.struct_size = sizeof w->n;
    w->n.hadamard = hadamard ? STROBE_HADAMARD : 0, w->n.seed = c->dropout.seed;
    w->n.flags = at_length ? STROBE_Q_AT_LENGTH : 0;
    if (!read_new_lengths(c, w) || !open_new(c, w) || !open_slots(c, w) || !read_rotary(c, &w->rotary)) return false;
    if (w->rotary.attached) w->n.rotary = &w->rotary.by;
    return open_q(c, w);
}

/* Below so many elements waking a second thread costs more than it saves. */
static void choose_append_threads(struct call *c, const strobe_appender *n) {
    enum { SMALL = 65536 };
    const strobe_attention *a = &c->a;
    const int64_t rows = n->cu_seqlens_new ? n->total_new : a->batch * n->seq_new;
    if (c->args[ARG_THREADS] == Py_None && rows * a->heads_kv * (a->dim + a->dim_v) < SMALL) use_threads(&c->parallel, 1);
}

static bool run(struct call *c, struct append *w) {
    void *stream;
    if (!tensor_stream(&c->q, &stream)) return false;
    choose_append_threads(c, &w->n);
    strobe_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = strobe_append(&c->a, &w->n, stream);
    Py_END_ALLOW_THREADS;
    if (status) raise_status(c->state, status);
    return !status;
}

/* q, turned; None without one. */
KEYWORDS_FUNCTION(py_append) {
    struct call call = {.state = module_state(module)};
    if (!take_arguments(&call, APPEND, args, count, names)) return NULL;
    struct append work = {0};
    change_places(&call, &work);
    PyObject *answer = NULL;
    if (call_read(&call) && read_appender(&call, &work) && run(&call, &work)) {
        answer = work.q.object ? work.q.object : Py_None;
        Py_INCREF(answer);
    }
    struct tensor *tensors[] = {&work.k, &work.v, &work.cu, &work.used, &work.lengths, &work.positions, &work.slots};
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; ++n) tensor_close(tensors[n]);
    close_result(&work.q);
    close_rotary(&work.rotary);
    call_close(&call);
    return answer;
}
