/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs.c: which tensors a problem has, of which shape, in which memory order, and their allocation; see inputs.h. What
 * goes into them is in inputs_fill.c, the descriptors are in call.c. */
#include "problem/inputs.h"

#include "io/memory.h"
#include "portable/posix.h"
#include "problem/element.h"
#include "problem/inputs_shape.h"
#include "problem/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum columns { COLUMNS_DIM, COLUMNS_DIM_V, COLUMNS_ONE } columns;

typedef struct tensor_kind {
    const char *name;
    tensor_side side;
    bool of_kv_heads;
    columns columns;
    size_t present; /* offset of the problem's field that must not be 0; 0 (that is operation): see is_present */
} tensor_kind;

static const tensor_kind kinds[TENSOR_COUNT] = {
    [T_Q] = {"q", OVER_ROWS, false, COLUMNS_DIM, 0},
    [T_K] = {"k", OVER_KEYS, true, COLUMNS_DIM, 0},
    [T_V] = {"v", OVER_KEYS, true, COLUMNS_DIM_V, 0},
    [T_OUT] = {"out", OVER_ROWS, false, COLUMNS_DIM_V, 0},
    [T_LSE] = {"lse", OVER_ROWS, false, COLUMNS_ONE, 0},
    [T_DOUT] = {"dout", OVER_ROWS, false, COLUMNS_DIM_V, offsetof(problem, operation)},
    [T_DLSE] = {"dlse", OVER_ROWS, false, COLUMNS_ONE, offsetof(problem, dlse)},
    [T_DQ] = {"dq", OVER_ROWS, false, COLUMNS_DIM, offsetof(problem, operation)},
    [T_DK] = {"dk", OVER_KEYS, true, COLUMNS_DIM, offsetof(problem, operation)},
    [T_DV] = {"dv", OVER_KEYS, true, COLUMNS_DIM_V, offsetof(problem, operation)},
    [T_BIAS] = {"bias", OVER_SCORES, false, COLUMNS_ONE, offsetof(problem, bias)},
    [T_DBIAS] = {"dbias", OVER_SCORES, false, COLUMNS_ONE, offsetof(problem, dbias)},
    [T_MASK] = {"mask", OVER_SCORES, false, COLUMNS_ONE, offsetof(problem, bool_mask)},
    [T_BLOCKS] = {"block mask", OVER_BLOCKS, false, COLUMNS_ONE, offsetof(problem, block_q)},
    [T_SLOPES] = {"slopes", OVER_HEADS, false, COLUMNS_ONE, offsetof(problem, alibi)},
    [T_SINKS] = {"sinks", OVER_HEADS, false, COLUMNS_ONE, offsetof(problem, sinks)},
    [T_DSINKS] = {"dsinks", OVER_HEADS, false, COLUMNS_ONE, offsetof(problem, dsinks)},
    [T_K_SCALE] = {"scale of k", OVER_KEYS, true, COLUMNS_ONE, 0},
    [T_V_SCALE] = {"scale of v", OVER_KEYS, true, COLUMNS_ONE, 0},
    [T_Q_SCALE] = {"scale of q", OVER_ROWS, false, COLUMNS_ONE, 0},
    [T_TABLE] = {"table", OVER_HEADS, false, COLUMNS_ONE, 0},
    [T_DTABLE] = {"dtable", OVER_HEADS, false, COLUMNS_ONE, offsetof(problem, dscore)},
};

const char *tensor_name(tensor_id id) { return kinds[id].name; }

tensor_side tensor_side_of(tensor_id id) { return kinds[id].side; }

bool tensor_is_output(const problem *p, tensor_id id) {
    if (p->operation == STROBE_FORWARD) return id == T_OUT || id == T_LSE;
    return id == T_DQ || id == T_DK || id == T_DV || id == T_DBIAS || id == T_DSINKS || id == T_DTABLE;
}

static bool is_present(const problem *p, tensor_id id) {
    if (id == T_Q || id == T_K || id == T_V || id == T_OUT) return true;
    if (id == T_LSE) return !p->no_lse;
    if (id == T_K_SCALE || id == T_V_SCALE) return problem_is_quantised(problem_kv_dtype(p)) || p->scales;
    if (id == T_TABLE) return problem_has_table(p);
    if (id == T_Q_SCALE) return problem_is_quantised(p->dtype) || p->q_scales;
    return *(const int64_t *)(const void *)((const char *)p + kinds[id].present) != 0;
}

/* Whether a result is fp32 whatever the inputs are. */
static bool is_wide(const problem *p, tensor_id id) {
    const bool all = p->wide == WIDE_ALL;
    if (p->operation == STROBE_FORWARD) return all && id == T_OUT;
    if (id == T_DQ) return all || p->wide == WIDE_DQ;
    if (id == T_DK) return all || p->wide == WIDE_KEYS || p->wide == WIDE_DK;
    return id == T_DV && (all || p->wide == WIDE_KEYS);
}

static int64_t dtype_of(const problem *p, tensor_id id) {
    static const bool is_statistic[TENSOR_COUNT] = {[T_LSE] = true, [T_DLSE] = true, [T_SINKS] = true, [T_DSINKS] = true};
    if (id == T_MASK || id == T_BLOCKS) return STROBE_INT8;
    if (id == T_K && p->qk_dtype) return p->qk_dtype;
    if (id == T_Q && p->qk_dtype && p->dtype == STROBE_FP8_E4M3) return p->qk_dtype;
    if ((id == T_K || id == T_V) && p->kv_dtype) return p->kv_dtype;
    if (id == T_Q || id == T_K || id == T_V) return p->dtype;
    if (id == T_K_SCALE || id == T_V_SCALE || id == T_Q_SCALE || id == T_TABLE) return STROBE_FP32;
    if (id == T_SLOPES || (is_statistic[id] && p->dtype != STROBE_FP64)) return STROBE_FP32;
    if (id == T_OUT && p->out_dtype) return p->out_dtype;
    if (id == T_DOUT && p->dout_dtype) return p->dout_dtype;
    if (id >= T_DQ && id <= T_DV && p->gradients_dtype && !is_wide(p, id)) return p->gradients_dtype;
    if (id == T_BIAS && p->bias_dtype) return p->bias_dtype;
    if (id == T_DBIAS && p->bias_dtype && p->dtype != STROBE_FP64) return p->bias_dtype;
    return p->dtype != STROBE_FP64 && is_wide(p, id) ? STROBE_FP32 : problem_wide_dtype(p);
}

/* ------------------------------------------------------------------------------------------------- extents, strides -- */

static int64_t columns_of(const problem *p, tensor_id id) {
    if (kinds[id].columns == COLUMNS_ONE) return 1;
    return kinds[id].columns == COLUMNS_DIM ? p->dim : p->dim_v;
}

int64_t inputs_pages_of_sequence(const problem *p) { return (p->seq_k + p->page_size - 1) / p->page_size; }

int64_t inputs_page_count(const problem *p) { return p->batch * inputs_pages_of_sequence(p) + p->page_size % 3; }

/* K, V, and their scales where each row has its own. */
static bool is_in_pages(const problem *p, tensor_id id) {
    const bool scale = (id == T_K_SCALE || id == T_V_SCALE) && (!p->scales || p->scales == SCALES_TOKEN);
    return p->page_size && (id == T_K || id == T_V || scale);
}

static void extent_over_tokens(const inputs *in, tensor_id id, buffer *b) {
    const problem *p = &in->problem;
    const bool keys = kinds[id].side == OVER_KEYS;
    const bool packed = p->varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q);
    b->extent[0] = packed ? p->batch > 0 : p->batch;
    b->extent[1] = packed ? (keys ? in->total_k : in->total_q) : keys ? p->seq_k : p->seq_q;
    b->extent[2] = kinds[id].of_kv_heads ? p->heads_kv : p->heads_q;
    b->extent[3] = columns_of(p, id);
    if (is_in_pages(p, id)) b->extent[0] = inputs_page_count(p), b->extent[1] = p->page_size;
}

static void extent_over_scores(const problem *p, tensor_id id, buffer *b) {
    const int64_t axes = id == T_MASK ? p->bool_mask : p->bias;
    b->extent[0] = axes & AXIS_BATCH ? p->batch : 1;
    b->extent[1] = axes & AXIS_ROW ? p->seq_q : 1;
    b->extent[2] = axes & AXIS_HEAD ? p->heads_q : 1;
    b->extent[3] = p->seq_k;
}

static void extent_over_blocks(const problem *p, buffer *b) {
    const int64_t axes = p->block_axes ? p->block_axes : AXIS_BATCH | AXIS_HEAD | AXIS_ROW;
    b->extent[0] = axes & AXIS_BATCH ? p->batch : 1;
    b->extent[1] = axes & AXIS_ROW ? (p->seq_q + p->block_q - 1) / p->block_q : 1;
    b->extent[2] = axes & AXIS_HEAD ? p->heads_q : 1;
    b->extent[3] = (p->seq_k + p->block_k - 1) / p->block_k;
}

/* Memory order [batch][outer][inner][columns] with `gap` unused elements after every step; axis 1 is rows, 2 heads. */
static void order(buffer *b, int outer, int inner, int64_t gap) {
    const int64_t *e = b->extent;
    /* Products that overflow are caught later, by buffer_bytes: the grammar keeps each of them far from wrapping twice. */
    b->stride[inner] = e[3] + gap;
    b->stride[outer] = e[inner] * b->stride[inner] + gap;
    b->stride[0] = e[outer] * b->stride[outer] + gap;
}

/* The layout of one tensor; under layout=mixed the seed says. */
static int64_t layout_of(const problem *p, tensor_id id) {
    static const int64_t any[] = {LAYOUT_BSHD, LAYOUT_BHSD,      LAYOUT_GAPS,      LAYOUT_REVERSED,
                                  LAYOUT_SBHD, LAYOUT_BACKWARDS, LAYOUT_MISALIGNED};
    if (p->layout != LAYOUT_MIXED) return p->layout;
    random_stream r = random_at((uint64_t)p->seed, (uint64_t)LAYOUT_MIXED, (uint64_t)id);
    return any[random_below(&r, sizeof any / sizeof any[0])];
}

/* Whether rows of the tensor share elements: of those that are read, all but what a forward has left for the backward. */
static bool overlaps(const problem *p, tensor_id id) {
    return p->layout == LAYOUT_OVERLAPPING && (id == T_Q || id == T_K || id == T_V || id == T_DOUT || id == T_DLSE ||
                                               id == T_BIAS || id == T_MASK || id == T_BLOCKS);
}

/* Steps that are shorter than a row, none too; a row's may be a multiple of 16 bytes, which kernels of Hopper want. Three
 * strides of 0 would mean that a tensor is contiguous. */
static void overlap(const problem *p, tensor_id id, buffer *b) {
    random_stream r = random_at((uint64_t)p->seed, (uint64_t)LAYOUT_OVERLAPPING, (uint64_t)id);
    const int64_t steps[] = {0, 0, 1, 8, 16, b->extent[3] / 2, b->extent[3]};
    for (int axis = 0; axis < 3; ++axis) b->stride[axis] = steps[random_below(&r, sizeof steps / sizeof steps[0])];
    if (random_below(&r, 2))
        for (int axis = 0; axis < 3; ++axis) b->stride[axis] = (b->stride[axis] + 7) / 8 * 8;
    if (b->stride[0] == 0 && b->stride[1] == 0 && b->stride[2] == 0) b->stride[random_below(&r, 3)] = 8;
}

static int64_t gap_of(int64_t layout) { return layout == LAYOUT_GAPS ? 3 : layout == LAYOUT_MISALIGNED; }

static void reverse(buffer *b, int64_t layout) {
    for (int axis = 0; axis < 3; ++axis)
        if (layout == LAYOUT_BACKWARDS || (layout == LAYOUT_REVERSED && axis == 1)) b->stride[axis] = -b->stride[axis];
}

static void stride_over_tokens(const inputs *in, tensor_id id, buffer *b) {
    const problem *p = &in->problem;
    const int64_t layout = layout_of(p, id), gap = gap_of(layout);
    const bool statistic = kinds[id].columns == COLUMNS_ONE; /* lse is [batch, heads, rows] */
    const bool heads_outside = layout == LAYOUT_BHSD || statistic;
    order(b, heads_outside ? 2 : 1, heads_outside ? 1 : 2, gap);
    b->lead = layout == LAYOUT_MISALIGNED;
    if (layout == LAYOUT_SBHD && !statistic) {
        b->stride[0] = b->extent[2] * b->stride[2];
        b->stride[1] = b->extent[0] * b->stride[0];
    }
    if (layout == LAYOUT_SHARED && (id == T_K || id == T_V || id == T_DOUT)) b->stride[0] = b->stride[2] = 0;
    reverse(b, layout);
    if (overlaps(p, id)) overlap(p, id, b);
    if (inputs_lies_in(p, id) != id) { /* K's rows, in all their columns */
        const int64_t own = b->extent[3];
        inputs_shape(in, inputs_lies_in(p, id), b);
        b->extent[3] = own;
    }
    if (inputs_is_packed_with(p, id) != TENSOR_COUNT) {
        b->stride[1] = inputs_packed_width(p);
        b->stride[0] = b->extent[1] * b->stride[1];
        b->stride[2] = b->extent[3];
    }
}

static void stride_over_scores(const problem *p, tensor_id id, buffer *b) {
    const int64_t layout = layout_of(p, id);
    order(b, 2, 1, gap_of(layout) ? 2 * gap_of(layout) - 1 : 0);
    b->lead = layout == LAYOUT_MISALIGNED;
    if (layout == LAYOUT_BACKWARDS) reverse(b, layout);
    if (overlaps(p, id)) b->stride[0] = 3, b->stride[1] = 1, b->stride[2] = 2; /* as of i - j, and one more each head */
    for (int axis = 0; axis < 3; ++axis)
        if (b->extent[axis] == 1) b->stride[axis] = 0; /* broadcast */
}

tensor_id inputs_lies_in(const problem *p, tensor_id id) {
    if (!p->v_in_k) return id;
    return id == T_V ? T_K : id == T_V_SCALE ? T_K_SCALE : id;
}

tensor_id inputs_is_packed_with(const problem *p, tensor_id id) {
    if (p->layout != LAYOUT_PACKED) return TENSOR_COUNT;
    if (id == T_Q || id == T_K || id == T_V) return T_Q;
    return id == T_DQ || id == T_DK || id == T_DV ? T_DQ : TENSOR_COUNT;
}

int64_t inputs_packed_width(const problem *p) { return (p->heads_q + p->heads_kv) * p->dim + p->heads_kv * p->dim_v; }

void inputs_shape(const inputs *in, tensor_id id, buffer *b) {
    const problem *p = &in->problem;
    *b = (buffer){.dtype = dtype_of(p, id)};
    if (kinds[id].side == OVER_HEADS) {
        for (int axis = 0; axis < 3; ++axis) b->extent[axis] = 1;
        b->extent[3] = b->stride[0] = p->heads_q;
        if (id == T_TABLE || id == T_DTABLE) b->extent[3] = b->stride[0] = score_table_heads(p) * score_table_width(p);
        if (id == T_SLOPES && p->alibi == ALIBI_BATCH) b->extent[0] = p->batch;
    } else if (kinds[id].side == OVER_ROWS || kinds[id].side == OVER_KEYS) {
        extent_over_tokens(in, id, b);
        stride_over_tokens(in, id, b);
    } else {
        if (kinds[id].side == OVER_SCORES)
            extent_over_scores(p, id, b);
        else
            extent_over_blocks(p, b);
        stride_over_scores(p, id, b);
    }
}

/* ------------------------------------------------------------------------------------------------------- allocation -- */

bool inputs_has(const problem *p, tensor_id id, bool output) {
    return is_present(p, id) && tensor_is_output(p, id) == output;
}

static int64_t limit_bytes(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page / 2 : INT64_MAX;
}

/* Refuses, before anything is allocated, what half of the machine's memory would not hold. */
static bool fits_in_memory(const inputs *in, char *message, size_t capacity) {
    int64_t sum = 0;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        if (!is_present(&in->problem, (tensor_id)id)) continue;
        buffer b;
        inputs_shape(in, (tensor_id)id, &b);
        const int64_t bytes = buffer_bytes(&b);
        if (bytes >= 0 && !__builtin_add_overflow(sum, bytes, &sum) && sum <= limit_bytes()) continue;
        char text[PROBLEM_TEXT];
        problem_print(&in->problem, text);
        snprintf(message, capacity, "the tensors of %s take more than %lld MiB, half of this machine's memory", text,
                 (long long)(limit_bytes() >> 20));
        return false;
    }
    return true;
}

static void lend(buffer *tensors, tensor_id first, const problem *p) {
    const int64_t bytes = (int64_t)element_bytes(tensors[first].dtype);
    if (!tensors[first].data) return; /* no elements */
    tensors[first + 1].data = tensors[first].data + p->heads_q * p->dim * bytes;
    tensors[first + 2].data = tensors[first + 1].data + p->heads_kv * p->dim * bytes;
}

bool inputs_allocate(const inputs *in, buffer tensors[TENSOR_COUNT], bool outputs_wanted, char *message, size_t capacity) {
    const problem *p = &in->problem;
    if (!fits_in_memory(in, message, capacity)) return false;
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        buffer *b = &tensors[id];
        if (!inputs_has(p, (tensor_id)id, outputs_wanted)) continue;
        inputs_shape(in, (tensor_id)id, b);
        const tensor_id owner = inputs_is_packed_with(p, (tensor_id)id);
        if ((owner != TENSOR_COUNT && owner != (tensor_id)id) || inputs_lies_in(p, (tensor_id)id) != (tensor_id)id) continue;
        const buffer shape = *b;
        if (owner != TENSOR_COUNT) b->extent[2] = 1, b->extent[3] = inputs_packed_width(p);
        const bool ok = buffer_allocate(b);
        memcpy(b->extent, shape.extent, sizeof b->extent);
        if (!ok) {
            snprintf(message, capacity, "%s: %lld bytes could not be allocated", kinds[id].name, (long long)buffer_bytes(b));
            return false;
        }
    }
    if (p->layout == LAYOUT_PACKED && (!outputs_wanted || p->operation == STROBE_BACKWARD))
        lend(tensors, outputs_wanted ? T_DQ : T_Q, p);
    for (int id = 0; id < TENSOR_COUNT; ++id) tensors[id].data = tensors[inputs_lies_in(p, (tensor_id)id)].data;
    return true;
}

void inputs_free(inputs *in) {
    for (int id = 0; id < TENSOR_COUNT; ++id) buffer_free(&in->tensor[id]);
    for (int i = 0; i < VARLEN_ARRAYS; ++i) free(in->varlen_arrays[i]);
    free(in->pages);
    free(in->page_table);
    free(in->sequences);
    *in = (inputs){0};
}

bool outputs_create(outputs *out, const inputs *in, char *message, size_t capacity) {
    *out = (outputs){0};
    return inputs_allocate(in, out->tensor, true, message, capacity);
}

void outputs_free(outputs *out) {
    for (int id = 0; id < TENSOR_COUNT; ++id) buffer_free(&out->tensor[id]);
}

int64_t inputs_length(const inputs *in, tensor_id id, int64_t batch) {
    return kinds[id].side == OVER_KEYS ? in->sequences[batch].keys : in->sequences[batch].rows;
}

unsigned char *inputs_row(const inputs *in, tensor_id id, const buffer *b, int64_t batch, int64_t row, int64_t head) {
    const bool keys = kinds[id].side == OVER_KEYS;
    const bool packed = in->problem.varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q);
    const sequence *s = &in->sequences[batch];
    if (is_in_pages(&in->problem, id)) {
        const int64_t size = in->problem.page_size, at = s->first_key + row;
        const int64_t page = in->pages[batch * inputs_pages_of_sequence(&in->problem) + at / size];
        return buffer_at(b, page, at % size, head, element_bytes(b->dtype));
    }
    return buffer_at(b, packed ? 0 : batch, row + (keys ? s->first_key : s->first_row), head, element_bytes(b->dtype));
}

static bool is_over_tokens(tensor_id id) { return kinds[id].side == OVER_ROWS || kinds[id].side == OVER_KEYS; }

rows rows_of(const inputs *in, tensor_id id, const buffer *b) {
    const bool tokens = is_over_tokens(id);
    return (rows){.in = in,
                  .id = id,
                  .batches = tokens ? in->problem.batch : b->extent[0],
                  .heads = b->extent[2],
                  .fixed_length = tokens ? -1 : b->extent[1],
                  .head = -1};
}

bool rows_next(rows *r) {
    ++r->head;
    while (r->batch < r->batches) {
        const int64_t length = r->fixed_length >= 0 ? r->fixed_length : inputs_length(r->in, r->id, r->batch);
        if (r->head < r->heads && r->row < length) return true;
        r->head = 0;
        if (++r->row >= length) r->row = 0, ++r->batch;
    }
    return false;
}

unsigned char *rows_at(const rows *r, const buffer *b) {
    if (is_over_tokens(r->id)) return inputs_row(r->in, r->id, b, r->batch, r->row, r->head);
    return buffer_at(b, r->batch, r->row, r->head, element_bytes(b->dtype));
}
