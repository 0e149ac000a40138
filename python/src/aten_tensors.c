/* SPDX-License-Identifier: BSD-3-Clause
 *
 * aten_tensors.c: tensors of PyTorch's as a problem of the library; see aten.h. */
#include <math.h>
#include <string.h>

#include "aten.h"

enum { BATCH, HEADS, SEQ, DIM, AXES };
enum { DTYPES = 4 };

static int32_t dtypes[DTYPES]; /* PyTorch's numbers, in the order of elements[] */
static int32_t boolean, cpu, cuda;
static const int32_t elements[DTYPES] = {STROBE_FP32, STROBE_FP16, STROBE_BF16, STROBE_FP64};

void aten_numbers(void) {
    const int32_t numbers[DTYPES] = {torch_abi.float32(), torch_abi.float16(), torch_abi.bfloat16(), torch_abi.float64()};
    memcpy(dtypes, numbers, sizeof dtypes);
    boolean = torch_abi.boolean(), cpu = torch_abi.cpu(), cuda = torch_abi.cuda();
}

/* -1 for another. */
static int32_t element_of(int32_t dtype) {
    for (int n = 0; n < DTYPES; ++n)
        if (dtypes[n] == dtype) return elements[n];
    return -1;
}

static int32_t dtype_of(int32_t element) {
    int n = 0;
    while (n + 1 < DTYPES && elements[n] != element) ++n;
    return dtypes[n];
}

static bool find_place(struct torch_tensor *tensor, struct place *place) {
    return torch_abi.device_type(tensor, &place->device) == 0 && torch_abi.device_index(tensor, &place->index) == 0;
}

static bool is_at(struct torch_tensor *tensor, const struct place *place) {
    struct place own;
    return find_place(tensor, &own) && own.device == place->device && own.index == place->index;
}

/* ------------------------------------------------------------------------------------------------------------ results -- */

static bool make(const int64_t *size, const int64_t *stride, int axes, int32_t dtype, const struct place *place,
                 struct torch_tensor **made, void **data) {
    return torch_abi.empty(axes, size, stride, dtype, place->device, place->index, made) == 0 &&
           torch_abi.write_data(*made, data) == 0;
}

bool aten_empty(int32_t element, int axes, const int64_t *size, const int64_t *stride, struct torch_tensor **made) {
    enum { NO_INDEX = -1 };
    return torch_abi.version && torch_abi.empty(axes, size, stride, dtype_of(element), cpu, NO_INDEX, made) == 0;
}

static void place(strobe_tensor *to, void *data, const int64_t stride[AXES]) {
    to->data = data;
    to->stride[0] = stride[BATCH], to->stride[1] = stride[SEQ], to->stride[2] = stride[HEADS];
}

static void seq_before_heads(const int64_t size[AXES], int64_t stride[AXES]) {
    stride[DIM] = 1, stride[HEADS] = size[DIM];
    stride[SEQ] = stride[HEADS] * size[HEADS], stride[BATCH] = stride[SEQ] * size[SEQ];
}

bool aten_new(const struct aten_call *c, const int64_t size[AXES], struct torch_tensor **made, strobe_tensor *to) {
    int64_t stride[AXES];
    void *data;
    seq_before_heads(size, stride);
    if (!make(size, stride, AXES, c->q.dtype, &c->q.place, made, &data)) return false;
    place(to, data, stride);
    return true;
}

/* The axes in the order of the other's strides, without gaps. */
bool aten_new_like(const struct aten_call *c, const struct view *like, const int64_t size[AXES], struct torch_tensor **made,
                   strobe_tensor *to) {
    const int64_t *given = like->callers_stride;
    int order[AXES] = {BATCH, HEADS, SEQ, DIM}; /* outermost first */
    for (int n = 1; n < AXES; ++n)
        for (int at = n; at > 0 && given[order[at - 1]] < given[order[at]]; --at) {
            const int outer = order[at];
            order[at] = order[at - 1], order[at - 1] = outer;
        }
    int64_t stride[AXES], elements_below = 1;
    for (int n = AXES - 1; n >= 0; --n) {
        const int axis = order[n];
        if (given[axis] == 0 && size[axis] > 1) return false;
        stride[axis] = elements_below;
        elements_below *= size[axis];
    }
    void *data;
    if ((stride[DIM] != 1 && size[DIM] > 1) || !make(size, stride, AXES, c->q.dtype, &c->q.place, made, &data)) return false;
    place(to, data, stride);
    return true;
}

/* By the driver, which is less for the host than an operator of PyTorch's, where the device is the current one. */
static bool fill_with_infinity(const struct aten_call *c, struct torch_tensor *tensor, void *data, int64_t count) {
    enum { INFINITY_IN_FP32 = 0x7f800000 };
    void *stream;
    int device;
    if (c->a.device == STROBE_CUDA && c->a.dtype != STROBE_FP64 && torch_abi.set_words &&
        torch_abi.current_device(&device) == 0 && device == c->a.device_index &&
        torch_abi.current_stream(device, &stream) == 0 &&
        torch_abi.set_words((uintptr_t)data, INFINITY_IN_FP32, (size_t)count, stream) == 0)
        return true;
    return torch_abi.fill && torch_abi.fill(tensor, (double)INFINITY) == 0;
}

bool aten_new_lse(struct aten_call *c, enum lse_layout layout, int64_t rows, struct torch_tensor **made) {
    const int64_t *q = c->q.size, size[4] = {q[BATCH], q[HEADS], rows, 1};
    const bool last = layout == LSE_HEADS_LAST;
    const int64_t stride[4] = {q[HEADS] * rows, last ? 1 : rows, last ? q[HEADS] : 1, 1};
    const int32_t element = c->a.dtype == STROBE_FP64 ? STROBE_FP64 : STROBE_FP32;
    void *data;
    if (!make(size, stride, layout == LSE_COLUMN ? 4 : 3, dtype_of(element), &c->q.place, made, &data)) return false;
    c->a.lse = (strobe_tensor){.data = data, .stride = {stride[0], stride[2], stride[1]}, .dtype = element};
    return rows == q[SEQ] || fill_with_infinity(c, *made, data, q[BATCH] * q[HEADS] * rows);
}

bool aten_new_empty(const struct aten_call *c, int32_t dtype, const int64_t *size, struct torch_tensor **made) {
    static const int64_t one = 1;
    const struct place *at = &c->q.place;
    return torch_abi.empty(size ? 1 : 0, size ? size : &one, &one, dtype, at->device, at->index, made) == 0;
}

/* Where the driver does not say, it is taken for one: a tensor on the device is right in both. */
static bool is_recorded(const struct aten_call *c) {
    void *stream;
    int status;
    if (c->a.device != STROBE_CUDA) return false; /* tests have these kernels on the CPU */
    return !torch_abi.is_capturing || torch_abi.current_stream(c->a.device_index, &stream) ||
           torch_abi.is_capturing(stream, &status) || status != 0;
}

bool aten_new_unread(const struct aten_call *c, struct torch_tensor **made, int count) {
    static const int64_t one = 1;
    const bool there = is_recorded(c);
    bool done = true;
    for (int n = 0; n < count && done; ++n)
        done = there ? aten_new_empty(c, torch_abi.int64(), NULL, &made[n])
                     : torch_abi.empty(0, &one, &one, torch_abi.int64(), cpu, 0, &made[n]) == 0;
    return done;
}

/* ------------------------------------------------------------------------------------------------------------- inputs -- */

/* The library reads along the last axis, and takes three strides of zero for a default. */
static bool is_readable(const struct view *v) {
    return (v->stride[DIM] == 1 || v->size[DIM] == 1) && (v->stride[BATCH] || v->stride[HEADS] || v->stride[SEQ]);
}

/* With stride 1 where there is one entry: no axis of more than one has stride 0 on all three. */
static bool is_one_row(const struct view *v) { return v->size[BATCH] == 1 && v->size[HEADS] == 1 && v->size[SEQ] == 1; }

static bool copy_view(struct view *v, struct torch_tensor *tensor) {
    seq_before_heads(v->size, v->stride);
    return make(v->size, v->stride, AXES, v->dtype, &v->place, &v->copy, &v->data) &&
           torch_abi.copy(v->copy, tensor, 0) == 0;
}

static bool open_view(struct view *v, struct torch_tensor *tensor) {
    int64_t axes, *size, *stride;
    const void *data;
    if (torch_abi.dim(tensor, &axes) || axes != AXES || torch_abi.sizes(tensor, &size) ||
        torch_abi.strides(tensor, &stride) || torch_abi.dtype(tensor, &v->dtype) || !find_place(tensor, &v->place))
        return false;
    memcpy(v->size, size, sizeof v->size);
    memcpy(v->stride, stride, sizeof v->stride);
    memcpy(v->callers_stride, stride, sizeof v->callers_stride);
    for (int axis = 0; axis < AXES; ++axis)
        if (v->size[axis] < 1) return false;
    if (is_one_row(v)) v->stride[BATCH] = 1;
    if (!is_readable(v)) return copy_view(v, tensor);
    if (torch_abi.read_data(tensor, &data)) return false;
    memcpy(&v->data, &data, sizeof data); /* a pointer that the library only reads by */
    return data != NULL;
}

bool aten_read(const struct aten_call *c, struct view *v, struct torch_tensor *tensor, strobe_tensor *to) {
    const int64_t wanted[AXES] = {c->a.batch, c->a.heads_q, c->a.seq_q, c->a.dim_v};
    if (!is_at(tensor, &c->q.place) || !open_view(v, tensor) || v->dtype != c->q.dtype ||
        memcmp(v->size, wanted, sizeof wanted) != 0)
        return false;
    place(to, v->data, v->stride);
    return true;
}

bool aten_read_lse(struct aten_call *c, struct torch_tensor *lse) {
    int64_t axes, *size, *stride;
    int32_t dtype;
    const void *data;
    const int32_t element = c->a.dtype == STROBE_FP64 ? STROBE_FP64 : STROBE_FP32;
    if (!is_at(lse, &c->q.place) || torch_abi.dim(lse, &axes) || (axes != 3 && axes != 4) || torch_abi.sizes(lse, &size) ||
        torch_abi.strides(lse, &stride) || torch_abi.dtype(lse, &dtype) || dtype != dtype_of(element) ||
        size[0] != c->a.batch || size[1] != c->a.heads_q || size[2] < c->a.seq_q || (axes == 4 && size[3] != 1) ||
        torch_abi.read_data(lse, &data))
        return false;
    c->a.lse = (strobe_tensor){.stride = {stride[0], stride[2], stride[1]}, .dtype = element};
    memcpy(&c->a.lse.data, &data, sizeof data);
    return true;
}

bool aten_mask(struct aten_call *c, struct torch_tensor *mask) {
    const int64_t extent[AXES] = {c->a.batch, c->a.heads_q, c->a.seq_q, c->a.seq_k};
    int64_t axes, *size, *stride, strides[3] = {0};
    int32_t dtype;
    const void *data;
    if (!mask) return true;
    if (!is_at(mask, &c->q.place) || torch_abi.dim(mask, &axes) || axes < 2 || axes > AXES || torch_abi.sizes(mask, &size) ||
        torch_abi.strides(mask, &stride) || torch_abi.dtype(mask, &dtype) || torch_abi.read_data(mask, &data))
        return false;
    for (int64_t axis = 0; axis < axes; ++axis) {
        const int64_t of = AXES - axes + axis;
        const bool repeats = size[axis] == 1 && of < DIM;
        if (!repeats && size[axis] != extent[of]) return false;
        if (of < DIM) strides[of] = repeats ? 0 : stride[axis];
    }
    if (stride[axes - 1] != 1 && extent[DIM] > 1) return false;
    if (dtype == boolean) {
        c->mask = (strobe_bool_mask){.struct_size = sizeof c->mask, .data = data};
        memcpy(c->mask.stride, strides, sizeof strides);
        c->a.bool_mask = &c->mask;
        return true;
    }
    c->bias = (strobe_bias){.struct_size = sizeof c->bias, .dtype = element_of(dtype)};
    memcpy(&c->bias.data, &data, sizeof data);
    memcpy(c->bias.stride, strides, sizeof strides);
    c->a.bias = &c->bias;
    return c->bias.dtype >= 0;
}

/* ----------------------------------------------------------------------------------------------------------- problems -- */

bool aten_describe(struct aten_call *c, struct torch_tensor *q, struct torch_tensor *k, struct torch_tensor *v, bool causal,
                   const double *scale) {
    strobe_attention *a = &c->a;
    if (!open_view(&c->q, q) || !open_view(&c->k, k) || !open_view(&c->v, v)) return false;
    const int64_t *of_q = c->q.size, *of_k = c->k.size, *of_v = c->v.size;
    const int32_t element = element_of(c->q.dtype);
    const struct place *at = &c->q.place;
    if ((at->device != cpu && at->device != cuda) || !is_at(k, at) || !is_at(v, at)) return false;
    if (element < 0 || c->k.dtype != c->q.dtype || c->v.dtype != c->q.dtype || of_k[BATCH] != of_q[BATCH] ||
        of_v[BATCH] != of_q[BATCH] || of_v[HEADS] != of_k[HEADS] || of_v[SEQ] != of_k[SEQ] || of_k[DIM] != of_q[DIM] ||
        (scale && *scale == 0))
        return false;
    a->struct_size = sizeof *a;
    a->batch = of_q[BATCH], a->heads_q = of_q[HEADS], a->heads_kv = of_k[HEADS];
    a->seq_q = of_q[SEQ], a->seq_k = of_k[SEQ], a->dim = of_q[DIM], a->dim_v = of_v[DIM];
    a->dtype = element, a->device = at->device == cpu ? STROBE_CPU : STROBE_CUDA;
    a->device_index = at->device == cpu ? 0 : at->index;
    a->mask = causal ? STROBE_MASK_CAUSAL_TOP_LEFT : STROBE_MASK_NONE;
    a->scale = scale ? *scale : 0;
    place(&a->q, c->q.data, c->q.stride);
    place(&a->k, c->k.data, c->k.stride);
    place(&a->v, c->v.data, c->v.stride);
    return true;
}

void aten_close_view(struct view *v) {
    if (v->copy) torch_abi.tensor_delete(v->copy);
    v->copy = NULL;
}

void aten_close(struct aten_call *c) {
    aten_close_view(&c->q);
    aten_close_view(&c->k);
    aten_close_view(&c->v);
}
