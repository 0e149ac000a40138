/* SPDX-License-Identifier: BSD-3-Clause
 *
 * inputs_fill.c: what goes into the tensors of a problem: lengths, random numbers, masks; see inputs.h. What the numbers of
 * values= and of scales are is in inputs_values.c, poison in inputs_poison.c. */
#include "io/memory.h"
#include "problem/element.h"
#include "problem/inputs_append.h"
#include "problem/inputs_shape.h"
#include "problem/inputs_values.h"
#include "problem/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What streams of random numbers are for, beside the tensors, which use their tensor_id. */
enum { FOR_LENGTHS = 1000, FOR_USED = 2000, FOR_SQUARES = 2500, FOR_DOCUMENTS, FOR_PAGES, FOR_PADDING };

/* Packed tensors begin with rows that belong to no sequence, and end with some: to be left alone. */
enum { ROWS_BEFORE = 2, ROWS_AFTER = 1 };

/* --------------------------------------------------------------------------------------------------------- lengths -- */

static int64_t draw_length(const problem *p, random_stream *r, int64_t longest, bool empty, bool first) {
    const int64_t most = p->lengths == LENGTHS_ONE_LONG ? (longest + 15) / 16 : longest;
    const int64_t drawn = most > 0 ? 1 + random_below(r, most) : 0;
    if (empty) return 0;
    return first ? longest : drawn;
}

/* Whether all sequences are to be empty on a side. */
static bool has_none(const problem *p, bool keys) {
    return p->lengths == LENGTHS_NONE || p->lengths == (keys ? LENGTHS_NO_KEYS : LENGTHS_NO_ROWS);
}

/* Lengths by cu_seqlens (room) and by used (rows that count) of one side. */
static void draw_lengths(const problem *p, int64_t b, bool keys, int64_t *room, int64_t *used) {
    const int64_t longest = keys ? p->seq_k : p->seq_q;
    const bool one_tensor = p->layout == LAYOUT_PACKED; /* q, k and v have the same rows */
    random_stream r = random_at((uint64_t)p->seed, (uint64_t)FOR_LENGTHS + (keys && !one_tensor), (uint64_t)b);
    const bool first = b == 0 && p->batch > 1, empty = b == (keys && !one_tensor ? 3 : 2);
    *room = p->varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q) ? draw_length(p, &r, longest, empty, first) : longest;
    r = random_at((uint64_t)p->seed, (uint64_t)FOR_USED + keys, (uint64_t)b);
    *used = p->varlen & (keys ? VARLEN_USED_K : VARLEN_USED_Q) ? draw_length(p, &r, *room, empty, first) : *room;
    if (!has_none(p, keys)) return;
    if (p->varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q)) *room = 0;
    if (p->varlen & (keys ? VARLEN_CU_K | VARLEN_USED_K : VARLEN_CU_Q | VARLEN_USED_Q)) *used = 0;
}

static void set_entry(const problem *p, void *array, int64_t at, int64_t value) {
    if (p->varlen & VARLEN_INDEX_64)
        ((int64_t *)array)[at] = value;
    else
        ((int32_t *)array)[at] = (int32_t)value;
}

/* The first keys of a sequence become padding: none, some or all. */
static void pad(inputs *in, int64_t b) {
    sequence *s = &in->sequences[b];
    random_stream r = random_at((uint64_t)in->problem.seed, FOR_PADDING, (uint64_t)b);
    const int64_t kind = random_below(&r, 8), some = random_below(&r, s->keys + 1);
    const int64_t padding = kind == 0 ? 0 : kind == 1 ? s->keys : kind < 4 ? some : some % 17;
    set_entry(&in->problem, in->varlen_arrays[LEFTPAD_ARRAY], b, padding);
    s->padding = padding, s->first_key += padding, s->keys -= padding;
}

static void fill_lengths(inputs *in) {
    const problem *p = &in->problem;
    in->sequences = memory_zeroed((size_t)p->batch, sizeof *in->sequences);
    for (int i = 0; i < VARLEN_ARRAYS; ++i)
        if (i == LEFTPAD_ARRAY ? p->leftpad : p->varlen & 1 << i)
            in->varlen_arrays[i] = memory_zeroed((size_t)p->batch + 1, 8);
    int64_t end[2];
    for (int side = 0; side < 2; ++side) end[side] = has_none(p, side) ? 0 : ROWS_BEFORE;
    for (int64_t b = 0; b <= p->batch; ++b)
        for (int side = 0; side < 2; ++side) {
            const bool packed = p->varlen & (side ? VARLEN_CU_K : VARLEN_CU_Q);
            if (packed) set_entry(p, in->varlen_arrays[side], b, end[side]);
            if (b == p->batch) continue;
            int64_t room = 0, used = 0;
            draw_lengths(p, b, side, &room, &used);
            if (in->varlen_arrays[2 + side]) set_entry(p, in->varlen_arrays[2 + side], b, used);
            sequence *s = &in->sequences[b];
            *(side ? &s->keys : &s->rows) = used;
            *(side ? &s->first_key : &s->first_row) = packed ? end[side] : 0;
            end[side] += room;
            if (side && p->leftpad) pad(in, b);
        }
    in->total_q = end[0] > 0 ? end[0] + ROWS_AFTER : 0;
    in->total_k = end[1] > 0 ? end[1] + ROWS_AFTER : 0;
}

/* Pages in any order. A number of a page that is none may be next to those that are, or far away. */
static void fill_pages(inputs *in) {
    const problem *p = &in->problem;
    if (!p->page_size) return;
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    const int64_t entries = p->batch * inputs_pages_of_sequence(p), count = inputs_page_count(p);
    random_stream r = random_at((uint64_t)p->seed, FOR_PAGES, 0);
    in->pages = memory_zeroed((size_t)count + 1, sizeof *in->pages);
    in->page_table = memory_zeroed((size_t)count + 1, sizeof *in->page_table);
    for (int64_t n = 0; n < count; ++n) { /* a random permutation */
        const int64_t at = random_below(&r, n + 1);
        in->pages[n] = in->pages[at];
        in->pages[at] = (int32_t)n;
    }
    for (int64_t n = 0; n < entries; ++n) {
        const bool is_missing = p->missing && random_below(&r, 4) == 0;
        const int64_t kind = random_below(&r, 4);
        in->page_table[n] = !is_missing ? in->pages[n] : kind < 3 ? wrong[kind] : (int32_t)count;
    }
}

/* ---------------------------------------------------------------------------------------------------------- values -- */

typedef struct row_place {
    int64_t batch, row, head;
    uint64_t stream; /* the place that random numbers follow from */
} row_place;

/* Rows of int8 or fp8: the same numbers over a scale, which goes beside them. */
static void quantise_row(inputs *in, tensor_id id, unsigned char *row, const row_place *at, const float *normal) {
    const tensor_id scale_id = id == T_K ? T_K_SCALE : id == T_V ? T_V_SCALE : T_Q_SCALE;
    const bool int8 = in->tensor[id].dtype == STROBE_INT8;
    const buffer *t = &in->tensor[id];
    unsigned char *stored = inputs_row(in, scale_id, &in->tensor[scale_id], at->batch, at->row, at->head);
    double largest = 0;
    for (int64_t c = 0; c < t->extent[3]; ++c) largest = fmax(largest, fabs((double)normal[c]));
    if (!in->problem.scales) element_store(stored, STROBE_FP32, largest > 0 ? largest / (int8 ? 127 : 448) : 1);
    const double scale = element_load(stored, STROBE_FP32);
    for (int64_t c = 0; c < t->extent[3]; ++c) {
        const double level = (double)normal[c] / scale;
        if (int8)
            element_store(row + c, STROBE_INT8, fmax(fmin(round(level), 127), -127));
        else
            element_store(row + c, STROBE_FP8_E4M3, level);
    }
}

static void fill_row(inputs *in, tensor_id id, unsigned char *row, const row_place *at, float *normal) {
    const problem *p = &in->problem;
    const buffer *b = &in->tensor[id];
    const size_t bytes = element_bytes(b->dtype);
    const double factor = id == T_Q && p->softcap > 0 ? p->softcap / 4 : 1;
    random_stream r = random_at((uint64_t)p->seed, (uint64_t)id, at->stream);
    random_normal(&r, normal, b->extent[3]);
    if (p->values) values_shape_row(in, id, at->batch, at->row, normal, &r);
    if (problem_is_quantised(b->dtype)) {
        for (int64_t c = 0; c < b->extent[3]; ++c) normal[c] *= (float)factor;
        quantise_row(in, id, row, at, normal);
    } else
        for (int64_t c = 0; c < b->extent[3]; ++c)
            element_store(row + (size_t)c * bytes, b->dtype, factor * (double)normal[c]);
}

/* Every existing row of query heads (or all K/V heads) [head, end_head) of one batch entry. */
static void fill_tokens(inputs *in, tensor_id id, int64_t b, int64_t first, int64_t end, int64_t head, int64_t end_head) {
    const buffer *t = &in->tensor[id];
    float *normal = memory_zeroed((size_t)t->extent[3], sizeof *normal);
    for (int64_t i = first; i < end; ++i)
        for (int64_t h = head; h < end_head; ++h) {
            const uint64_t place = (((uint64_t)b << 32) + (uint64_t)i) * (uint64_t)t->extent[2] + (uint64_t)h;
            fill_row(in, id, inputs_row(in, id, t, b, i, h), &(row_place){b, i, h, place}, normal);
        }
    free(normal);
}

static void fill_scores(inputs *in, tensor_id id) {
    const buffer *t = &in->tensor[id];
    float *normal = memory_zeroed((size_t)t->extent[3], sizeof *normal);
    uint64_t place = 0;
    for (int64_t b = 0; b < t->extent[0]; ++b)
        for (int64_t i = 0; i < t->extent[1]; ++i)
            for (int64_t h = 0; h < t->extent[2]; ++h)
                fill_row(in, id, buffer_at(t, b, i, h, element_bytes(t->dtype)), &(row_place){b, i, h, place++}, normal);
    free(normal);
}

static bool shows_score(const inputs *in, const buffer *t, int64_t b, int64_t i, uint64_t bits) {
    const int64_t axes = in->problem.bool_mask;
    if (axes & AXIS_ROW && i % 7 == 6) return false;
    if (axes & AXIS_BATCH && t->extent[0] > 1 && b == t->extent[0] - 1) return false;
    return bits % 8 != 0;
}

/* Scores that a mask's entry stands for: 1 x 1, or those of a block. */
typedef struct extent {
    int64_t rows, keys;
} extent;

/* SHOWS_FEW: most squares of scores are hidden, one in twelve is shown whole, one in twelve in part. Squares are of 128
 * scores, as GPU kernels skip them, or smaller in a small problem. */
static bool few_show(const inputs *in, extent of, int64_t matrix, int64_t i, int64_t j, uint64_t bits) {
    const problem *p = &in->problem;
    const int64_t side = p->seq_q > 256 || p->seq_k > 256 ? 128 : 16;
    const int64_t place = (matrix << 40) + (i * of.rows / side << 20) + j * of.keys / side;
    random_stream r = random_at((uint64_t)p->seed, FOR_SQUARES, (uint64_t)place);
    const int64_t kind = random_below(&r, 12);
    return kind == 0 || (kind == 1 && bits % 8 != 0);
}

/* SHOWS_DOCUMENTS: whether some row and some key of the entry are of one document. Documents are of one length, up to 255,
 * and the first may be shorter. */
static bool documents_show(const inputs *in, extent of, int64_t i, int64_t j) {
    random_stream r = random_at((uint64_t)in->problem.seed, FOR_DOCUMENTS, 0);
    const int64_t length = 1 + random_below(&r, 255), shift = random_below(&r, length);
    const int64_t first_of_rows = (i * of.rows + shift) / length, last_of_rows = ((i + 1) * of.rows - 1 + shift) / length;
    const int64_t first_of_keys = (j * of.keys + shift) / length, last_of_keys = ((j + 1) * of.keys - 1 + shift) / length;
    return first_of_rows <= last_of_keys && first_of_keys <= last_of_rows;
}

static void fill_mask(inputs *in, tensor_id id) {
    const buffer *t = &in->tensor[id];
    const problem *p = &in->problem;
    const extent of = id == T_MASK ? (extent){1, 1} : (extent){p->block_q, p->block_k};
    random_stream r = random_at((uint64_t)p->seed, (uint64_t)id, 0);
    for (int64_t b = 0; b < t->extent[0]; ++b)
        for (int64_t i = 0; i < t->extent[1]; ++i)
            for (int64_t h = 0; h < t->extent[2]; ++h)
                for (int64_t j = 0; j < t->extent[3]; ++j) {
                    const uint64_t bits = random_bits(&r) >> 32;
                    const bool shows = p->shows == SHOWS_NOTHING     ? false
                                       : p->shows == SHOWS_FEW       ? few_show(in, of, b * t->extent[2] + h, i, j, bits)
                                       : p->shows == SHOWS_DOCUMENTS ? documents_show(in, of, i, j)
                                       : id == T_MASK                ? shows_score(in, t, b, i, bits)
                                                                     : bits % 4 != 0;
                    buffer_at(t, b, i, h, 1)[j] = shows ? (unsigned char)(1 + (bits >> 8) % 255) : 0; /* not 0: visible */
                }
}

/* alibi=signed: slopes above 0, of 0 and below take turns; the seed says which is the first head's. */
static double sign_of_slope(const problem *p, int64_t head) {
    return p->alibi == ALIBI_SIGNED ? (double)((head + p->seed % 3 + 1) % 3 - 1) : 1;
}

static void fill_slopes(inputs *in) {
    buffer *t = &in->tensor[T_SLOPES];
    for (int64_t b = 0; b < t->extent[0]; ++b)
        for (int64_t h = 0; h < t->extent[3]; ++h)
            element_store(t->data + (size_t)(b * t->extent[3] + h) * element_bytes(t->dtype), t->dtype,
                          sign_of_slope(&in->problem, h) * exp2(-8.0 * (double)(h + 1) / (double)t->extent[3]) /
                              (double)(b + 1));
}

static void fill(inputs *in) {
    static const tensor_id tokens[] = {T_Q, T_K, T_V};
    const problem *p = &in->problem;
    values_fill_scales(in);
    for (size_t n = 0; n < sizeof tokens / sizeof tokens[0]; ++n)
        for (int64_t b = 0; inputs_lies_in(p, tokens[n]) == tokens[n] && b < p->batch; ++b)
            fill_tokens(in, tokens[n], b, 0, inputs_length(in, tokens[n], b), 0, in->tensor[tokens[n]].extent[2]);
    for (int64_t b = 0; b < p->batch; ++b) inputs_fill_gradient(in, b, 0, p->heads_q, 0, in->sequences[b].rows);
    if (p->bias) fill_scores(in, T_BIAS);
    if (p->sinks) fill_scores(in, T_SINKS);
    if (problem_has_table(p)) fill_scores(in, T_TABLE);
    values_add_extremes(in);
    if (p->bool_mask) fill_mask(in, T_MASK);
    if (p->block_q) fill_mask(in, T_BLOCKS);
    if (p->alibi) fill_slopes(in);
}

/* The second half of the batch's and heads' and some of the rows and the end of the keys of a larger problem, which has so
 * many rows that the counter of groups of four keys passes 2^32 in the middle of the shard's first head. With an odd seed
 * the first key is not the first of four, which not all kernels take. */
static void set_shard(strobe_dropout *d, const problem *p) {
    d->key_start = d->seed % 2 ? 7 : 8, d->keys = p->seq_k + d->key_start;
    d->seed = ~d->seed, d->offset = UINT64_MAX - 6; /* both use all 64 bits */
    d->batch_start = p->batch;
    d->heads = 2 * p->heads_q, d->head_start = p->heads_q;
    const int64_t before = d->batch_start * d->heads + d->head_start, quads = (d->keys + 3) / 4;
    const int64_t passed = ((int64_t)1 << 32) / quads - p->seq_q / 2; /* rows before the shard's first */
    d->rows = (passed - p->seq_q) / before, d->row_start = passed - before * d->rows;
    if (d->row_start < 0 || d->rows < d->row_start + p->seq_q) d->rows = p->seq_q + 5, d->row_start = 5;
}

bool inputs_create(inputs *in, const problem *p, char *message, size_t capacity) {
    *in = (inputs){.problem = *p};
    in->dropout = (strobe_dropout){.struct_size = sizeof in->dropout, .p = p->dropout, .seed = (uint64_t)p->seed};
    if (p->shard) set_shard(&in->dropout, p);
    fill_lengths(in);
    fill_pages(in);
    if (!inputs_allocate(in, in->tensor, false, message, capacity)) return false;
    fill(in);
    return inputs_append(in, message, capacity);
}

void inputs_fill_gradient(inputs *in, int64_t batch, int64_t head, int64_t heads, int64_t first, int64_t end) {
    static const tensor_id gradients[] = {T_DOUT, T_DLSE};
    for (size_t n = 0; n < sizeof gradients / sizeof gradients[0]; ++n)
        if (in->tensor[gradients[n]].data) fill_tokens(in, gradients[n], batch, first, end, head, head + heads);
}

void inputs_clear_gradient(inputs *in) {
    static const tensor_id gradients[] = {T_DOUT, T_DLSE};
    for (size_t n = 0; n < sizeof gradients / sizeof gradients[0]; ++n) {
        const buffer *t = &in->tensor[gradients[n]];
        if (!t->data) continue;
        for (rows r = rows_of(in, gradients[n], t); rows_next(&r);)
            memset(rows_at(&r, t), 0, (size_t)t->extent[3] * element_bytes(t->dtype));
    }
}

/* ------------------------------------------------------------------------------------------------ conversion, poison -- */

static void convert_row(unsigned char *to, int64_t to_dtype, const unsigned char *from, int64_t from_dtype,
                        int64_t columns) {
    const size_t to_bytes = element_bytes(to_dtype), from_bytes = element_bytes(from_dtype);
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)columns * to_bytes);
        return;
    }
    for (int64_t c = 0; c < columns; ++c)
        element_store(to + (size_t)c * to_bytes, to_dtype, element_load(from + (size_t)c * from_bytes, from_dtype));
}

/* Of two inputs, which may differ in whether K and V are in pages. */
static void copy_rows(const inputs *to_in, const buffer *to, const inputs *from_in, const buffer *from, tensor_id id) {
    for (rows r = rows_of(from_in, id, from); rows_next(&r);) {
        rows same = r;
        same.in = to_in;
        convert_row(rows_at(&same, to), to->dtype, rows_at(&r, from), from->dtype, from->extent[3]);
    }
}

void inputs_copy(const inputs *in, tensor_id id, const buffer *to, const buffer *from) { copy_rows(in, to, in, from, id); }

bool inputs_convert(inputs *to, const inputs *from, const problem *p, char *message, size_t capacity) {
    *to = (inputs){.problem = *p, .dropout = from->dropout};
    fill_lengths(to);
    fill_pages(to);
    if (!inputs_allocate(to, to->tensor, false, message, capacity)) return false;
    values_fill_scales(to);
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const bool is_filled = p->scales > SCALES_TOKEN && (id == T_K_SCALE || id == T_V_SCALE || id == T_Q_SCALE);
        if (from->tensor[id].data && to->tensor[id].data && !is_filled)
            copy_rows(to, &to->tensor[id], from, &from->tensor[id], (tensor_id)id);
    }
    return true;
}
