/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_fixture.c: see problem_fixture.h. */
#include "problem_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

const char *const tensor_names[TENSORS] = {"q",  "k",  "v",    "out",   "lse",   "dout",   "dlse",  "dq",
                                           "dk", "dv", "bias", "dbias", "sinks", "dsinks", "table", "dtable"};

static void *allocate(struct fixture *f, size_t bytes) {
    if (f->pieces == (int)COUNT(f->memory)) abort();
    f->memory[f->pieces] = fenced_make(bytes);
    return f->memory[f->pieces++].data;
}

static bool has(const struct fixture *f, unsigned features) { return (f->shape.features & features) != 0; }

/* -------------------------------------------------------------------------------------------------- sequence lengths -- */

/* The first sequence has all rows, others fewer. */
static int64_t length_of(int64_t b, int64_t longest) { return b == 0 ? longest : (b * 7 + 2) % (longest + 1); }

static const void *indices(struct fixture *f, const int64_t *values, int64_t count) {
    void *memory = allocate(f, (size_t)count * (has(f, INDEX64) ? sizeof(int64_t) : sizeof(int32_t)));
    int64_t *wide = memory;
    int32_t *narrow = memory;
    for (int64_t n = 0; n < count; ++n)
        if (has(f, INDEX64))
            wide[n] = values[n];
        else
            narrow[n] = (int32_t)values[n];
    return memory;
}

/* One side's arrays; returns the rows of its packed tensors. A row that belongs to no sequence stands at each end. */
static int64_t make_side(struct fixture *f, bool packed, bool used, int64_t longest, const void **cu, const void **lengths) {
    const int64_t batch = f->shape.batch;
    int64_t offsets[16] = {1}, rows[16] = {0};
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t length = packed ? length_of(b, longest) : longest;
        offsets[b + 1] = offsets[b] + length;
        rows[b] = length - (length + b) / 3;
    }
    if (packed) *cu = indices(f, offsets, batch + 1);
    if (used) *lengths = indices(f, rows, batch);
    return packed ? offsets[batch] + 1 : 0;
}

static void make_varlen(struct fixture *f) {
    f->varlen = (strobe_varlen){.struct_size = sizeof f->varlen, .index_bits = has(f, INDEX64) ? 64 : 0};
    f->varlen.total_q = make_side(f, has(f, PACKED_Q), has(f, USED_Q), f->shape.seq_q, &f->varlen.cu_seqlens_q,
                                  &f->varlen.used_q);
    f->varlen.total_k = make_side(f, has(f, PACKED_K), has(f, USED_K), f->shape.seq_k, &f->varlen.cu_seqlens_k,
                                  &f->varlen.used_k);
    f->a.varlen = &f->varlen;
}

/* ----------------------------------------------------------------------------------------------------------- tensors -- */

static struct slot make_slot(const struct fixture *f, int32_t dtype, const int64_t extent[3], const int64_t stride[3],
                             int64_t inner) {
    return has(f, TIGHT) ? slot_make_tight(dtype, extent, stride, inner) : slot_make(dtype, extent, stride, inner, 0);
}

/* In the order batch, sequence, head in memory; lse has the heads before the sequence. */
static void make_rows(struct fixture *f, enum tensor t, int32_t dtype, int64_t seq, int64_t packed, int64_t heads,
                      int64_t inner) {
    const int64_t extent[3] = {packed ? f->shape.batch > 0 : f->shape.batch, packed ? packed : seq, heads};
    const int64_t as_out[3] = {extent[1] * heads * inner, heads * inner, inner};
    const int64_t as_lse[3] = {heads * extent[1], 1, extent[1]};
    f->slot[t] = make_slot(f, dtype, extent, t == LSE || t == DLSE ? as_lse : as_out, inner);
}

static void make_tensors(struct fixture *f) {
    const struct shape *s = &f->shape;
    const int64_t total_q = f->varlen.total_q, total_k = f->varlen.total_k;
    const int32_t out = has(f, WIDE) ? STROBE_FP64 : s->dtype;
    const int32_t lse = out == STROBE_FP64 ? STROBE_FP64 : STROBE_FP32;
    const int32_t dlse = s->dtype == STROBE_FP64 ? STROBE_FP64 : STROBE_FP32; /* an input: not wide */
    make_rows(f, Q, s->dtype, s->seq_q, total_q, s->heads_q, s->dim);
    make_rows(f, K, s->dtype, s->seq_k, total_k, s->heads_kv, s->dim);
    make_rows(f, V, s->dtype, s->seq_k, total_k, s->heads_kv, s->dim_v);
    make_rows(f, OUT, out, s->seq_q, total_q, s->heads_q, s->dim_v);
    make_rows(f, LSE, lse, s->seq_q, total_q, s->heads_q, 1);
    make_rows(f, DOUT, s->dtype, s->seq_q, total_q, s->heads_q, s->dim_v);
    if (has(f, WITH_DLSE)) make_rows(f, DLSE, dlse, s->seq_q, total_q, s->heads_q, 1);
    make_rows(f, DQ, out, s->seq_q, total_q, s->heads_q, s->dim);
    make_rows(f, DK, out, s->seq_k, total_k, s->heads_kv, s->dim);
    make_rows(f, DV, out, s->seq_k, total_k, s->heads_kv, s->dim_v);
    if (has(f, SINKS)) {
        const int64_t extent[3] = {1, 1, 1}, stride[3] = {0};
        f->slot[SINK_LOGITS] = make_slot(f, dlse, extent, stride, s->heads_q);
        f->slot[DSINKS] = make_slot(f, lse, extent, stride, s->heads_q);
    }
    if (has(f, BIAS)) {
        const int64_t extent[3] = {has(f, PER_BATCH) ? s->batch : 1, has(f, PER_HEAD) ? s->heads_q : 1,
                                   has(f, PER_ROW) ? s->seq_q : 1};
        const int64_t stride[3] = {has(f, PER_BATCH) ? extent[1] * extent[2] * s->seq_k : 0,
                                   has(f, PER_HEAD) ? extent[2] * s->seq_k : 0, has(f, PER_ROW) ? s->seq_k : 0};
        f->slot[BIAS_TERM] = make_slot(f, s->dtype, extent, stride, s->seq_k);
        f->slot[DBIAS] = make_slot(f, out, extent, stride, s->seq_k);
    }
}

/* The table of a score function, in fp32 whatever the problem's dtype is. */
static void make_table(struct fixture *f) {
    const struct shape *s = &f->shape;
    const int32_t out = has(f, WIDE) ? STROBE_FP64 : s->dtype;
    const int64_t width = s->seq_q + s->seq_k, extent[3] = {1, 1, s->heads_q}, stride[3] = {0, 0, width};
    if (s->score && strstr(s->score, "table")) {
        f->slot[TABLE] = make_slot(f, STROBE_FP32, extent, stride, width);
        f->slot[DTABLE] = make_slot(f, out, extent, stride, width);
    }
}

static void multiply(struct slot *s, double factor) {
    for (int64_t e = 0; e < slot_count(s); ++e) slot_set(s, e, slot_get(s, e) * factor);
}

/* Column 0 of a row of q, over the root of dim: K has 1, or its position in blocks of 64, and so no large part in common,
 * whose gradient would be a difference of large numbers. */
static double direction_of(enum values values, int64_t row) {
    static const double slopes[] = {[VERY_NEGATIVE] = -120, [GROWING] = 7, [FALLING] = -7, [STEEP] = 40};
    if (values == MIXED) return row % 3 == 0 ? 7 : row % 3 == 1 ? -7 : 0;
    return slopes[values];
}

static void set_values(struct fixture *f) {
    const enum values values = f->shape.values;
    struct slot *q = &f->slot[Q], *k = &f->slot[K];
    if (values == LARGE || values == TINY) {
        const double factor = values == LARGE ? 16 : 1. / 64;
        multiply(q, factor), multiply(k, factor);
        multiply(&f->slot[V], values == LARGE ? 1000 : 1e-3);
    }
    if (values < VERY_NEGATIVE) return;
    for (int64_t e = 0; e < slot_count(q); e += q->inner)
        slot_set(q, e, direction_of(values, e / q->inner / q->extent[2]) * sqrt((double)f->shape.dim));
    for (int64_t e = 0; e < slot_count(k); e += k->inner) {
        const double key = (double)(e / k->inner / k->extent[2] % k->extent[1]);
        slot_set(k, e, values == VERY_NEGATIVE ? 1 : key / 64);
    }
}

/* Each tensor has its own numbers, so that they do not depend on which others are there. */
static void fill_tensors(struct fixture *f) {
    static const enum tensor inputs[] = {Q, K, V, DOUT, DLSE, BIAS_TERM, SINK_LOGITS};
    for (size_t n = 0; n < COUNT(inputs); ++n) {
        struct slot *s = &f->slot[inputs[n]];
        struct random random = {.state = 1000 + n};
        for (int64_t e = 0; s->base && e < slot_count(s); ++e)
            slot_set(s, e,
                     inputs[n] == BIAS_TERM && has(f, HOLES) && e % 5 == 2 ? -(double)INFINITY : random_value(&random));
    }
    struct random random = {.state = 2000};
    for (int64_t e = 0; f->slot[TABLE].base && e < slot_count(&f->slot[TABLE]); ++e) /* a difference's steps are exact */
        slot_set(&f->slot[TABLE], e, (double)((int64_t)random_below(&random, 512) - 256) / 256);
    for (int64_t h = 0; has(f, NO_SINKS) && h < f->shape.heads_q; h += 2)
        slot_set(&f->slot[SINK_LOGITS], h, -(double)INFINITY);
    const double far = f->shape.dtype == STROBE_FP16 ? 2e4 : 1e38;
    for (int64_t e = 0; has(f, FAR_BIAS) && e < slot_count(&f->slot[BIAS_TERM]); ++e)
        slot_set(&f->slot[BIAS_TERM], e, (slot_get(&f->slot[BIAS_TERM], e) / 2 - 2) * far);
    set_values(f);
}

/* ---------------------------------------------------------------------------------------------------- other features -- */

static uint8_t *random_bytes(struct fixture *f, int64_t count, struct random *r) {
    uint8_t *bytes = allocate(f, (size_t)count);
    for (int64_t n = 0; n < count; ++n) bytes[n] = random_below(r, 10) < 7 ? (uint8_t)(1 + random_below(r, 255)) : 0;
    return bytes;
}

static void make_masks(struct fixture *f, struct random *r) {
    const struct shape *s = &f->shape;
    if (has(f, BOOL_MASK)) {
        const int64_t rows = has(f, PER_ROW) ? s->seq_q : 1, heads = has(f, PER_HEAD) ? s->heads_q : 1;
        f->bool_mask = (strobe_bool_mask){.struct_size = sizeof f->bool_mask};
        f->bool_mask.data = random_bytes(f, s->batch * heads * rows * s->seq_k, r);
        f->bool_mask.stride[0] = has(f, PER_BATCH) ? heads * rows * s->seq_k : 0;
        f->bool_mask.stride[1] = has(f, PER_HEAD) ? rows * s->seq_k : 0;
        f->bool_mask.stride[2] = has(f, PER_ROW) ? s->seq_k : 0;
        uint8_t *bytes = (uint8_t *)(uintptr_t)f->bool_mask.data;
        if (has(f, PER_ROW)) memset(bytes, 0, (size_t)s->seq_k);    /* one row sees nothing */
        if (has(f, PER_BATCH) && !has(f, PER_HEAD) && s->batch > 0) /* nor does the last batch entry */
            memset(bytes + (s->batch - 1) * f->bool_mask.stride[0], 0, (size_t)f->bool_mask.stride[0]);
        f->a.bool_mask = &f->bool_mask;
    }
    if (has(f, BLOCK_MASK)) {
        f->block_mask = (strobe_block_mask){.struct_size = sizeof f->block_mask, .block_q = 2, .block_k = 3};
        const int64_t rows = (s->seq_q + 1) / 2, keys = (s->seq_k + 2) / 3;
        f->block_mask.data = random_bytes(f, s->batch * s->heads_q * rows * keys, r);
        const int64_t stride[3] = {s->heads_q * rows * keys, rows * keys, keys};
        memcpy(f->block_mask.stride, stride, sizeof stride);
        f->a.block_mask = &f->block_mask;
    }
}

static void make_options(struct fixture *f, struct random *r) {
    const struct shape *s = &f->shape;
    if (has(f, ALIBI)) {
        float *slopes = allocate(f, (size_t)(s->batch * s->heads_q) * sizeof *slopes);
        for (int64_t n = 0; n < s->batch * s->heads_q; ++n) slopes[n] = (float)(0.2 + 0.1 * random_value(r));
        f->alibi = (strobe_alibi){.struct_size = sizeof f->alibi, .slopes = slopes, .stride_batch = s->heads_q};
        f->a.alibi = &f->alibi;
    }
    if (has(f, DROPOUT)) {
        f->dropout = (strobe_dropout){.struct_size = sizeof f->dropout, .p = 0.3, .seed = 0x0123456789abcdef, .offset = 77};
        f->dropout.heads = s->heads_q + 2, f->dropout.rows = s->seq_q + 5, f->dropout.keys = s->seq_k + 6;
        f->dropout.batch_start = 1, f->dropout.head_start = 2, f->dropout.row_start = 3, f->dropout.key_start = 5;
        f->a.dropout = &f->dropout;
    }
    if (has(f, SOFTCAP)) f->a.softcap = 1.5;
    if (has(f, NEGATIVE_SCALE)) f->a.scale = -0.4;
    if (has(f, STARTS)) f->a.q_start = 2, f->a.k_start = 3;
}

/* The score function, and where its arrays lie. */
static void make_function(struct fixture *f) {
    const struct shape *s = &f->shape;
    enum { KINDS = 97 };
    static const strobe_score_scalar scalars[] = {{"w", 0.75, 0, 0}, {"c", 3, 1, 0}, {"at", 0, 1, 0}};
    static const strobe_score_array arrays[] = {{"table", 2, STROBE_FP32}, {"kind", 1, STROBE_INT32}};
    static double values[3] = {0.75, 3, 0};
    if (!s->score && !s->visible) return;
    const strobe_score_source source = {.struct_size = sizeof source,
                                        .score = s->score,
                                        .visible = s->visible,
                                        .scalars = scalars,
                                        .arrays = arrays,
                                        .scalar_count = 3,
                                        .array_count = 2};
    if (strobe_score_create(&source, &f->function)) fail_msg("%s", strobe_last_error());
    int32_t *kind = allocate(f, KINDS * sizeof *kind);
    for (int32_t n = 0; n < KINDS; ++n) kind[n] = n / 5 % 4;
    values[2] = (double)(s->seq_k - 1 + f->a.k_start - f->a.q_start);
    static const float nothing[1];
    const struct slot *table = &f->slot[TABLE], *dtable = &f->slot[DTABLE];
    f->elements[0] = (strobe_score_elements){.data = table->base ? table->data : (void *)(uintptr_t)nothing,
                                             .extent = {1, 1}};
    f->elements[1] = (strobe_score_elements){.data = kind, .extent = {KINDS}};
    f->score = (strobe_score_arguments){.struct_size = sizeof f->score,
                                        .function = f->function,
                                        .scalars = values,
                                        .arrays = f->elements,
                                        .scalar_count = 3,
                                        .array_count = 2};
    f->a.score = &f->score;
    if (!table->base) return;
    f->delements[0] = (strobe_score_elements){.data = dtable->data, .dtype = dtable->dtype};
    for (int n = 0; n < 2; ++n) {
        strobe_score_elements *x = n ? &f->delements[0] : &f->elements[0];
        x->extent[0] = s->heads_q, x->extent[1] = table->inner, x->stride[0] = table->stride[2], x->stride[1] = 1;
    }
    f->dscore = (strobe_score_gradients){.struct_size = sizeof f->dscore, .arrays = f->delements, .array_count = 2};
    f->g.dscore = &f->dscore;
}

/* ------------------------------------------------------------------------------------------------------------- whole -- */

static void bind(strobe_tensor *t, const struct slot *s) {
    *t = (strobe_tensor){.data = s->data, .dtype = s->base ? s->dtype : 0};
    if (s->base) memcpy(t->stride, s->stride, sizeof t->stride);
}

static const void *bind_bias(strobe_bias *bias, const struct slot *s) {
    *bias = (strobe_bias){.struct_size = sizeof *bias, .data = s->data, .dtype = s->dtype};
    memcpy(bias->stride, s->stride, sizeof bias->stride);
    return s->base ? bias : NULL;
}

static const void *bind_sinks(strobe_sinks *sinks, const struct slot *s) {
    *sinks = (strobe_sinks){.struct_size = sizeof *sinks, .data = s->data, .dtype = s->dtype};
    return s->base ? sinks : NULL;
}

void fixture_bind(struct fixture *f) {
    strobe_tensor *const tensors[] = {&f->a.q,    &f->a.k,    &f->a.v,  &f->a.out, &f->a.lse,
                                      &f->g.dout, &f->g.dlse, &f->g.dq, &f->g.dk,  &f->g.dv};
    for (size_t t = 0; t < COUNT(tensors); ++t) bind(tensors[t], &f->slot[t]);
    f->a.bias = bind_bias(&f->bias, &f->slot[BIAS_TERM]);
    f->g.dbias = bind_bias(&f->dbias, &f->slot[DBIAS]);
    f->a.sinks = bind_sinks(&f->sinks, &f->slot[SINK_LOGITS]);
    f->g.dsinks = bind_sinks(&f->dsinks, &f->slot[DSINKS]);
}

void fixture_make(struct fixture *f, const struct shape *shape) {
    memset(f, 0, sizeof *f);
    struct shape *s = &f->shape;
    *s = *shape;
    if (s->heads_kv == 0) s->heads_kv = s->heads_q;
    if (s->dim_v == 0) s->dim_v = s->dim;
    if (s->dtype == 0) s->dtype = STROBE_FP32;
    f->a = (strobe_attention){.struct_size = sizeof f->a,
                              .batch = s->batch,
                              .seq_q = s->seq_q,
                              .seq_k = s->seq_k,
                              .heads_q = s->heads_q,
                              .heads_kv = s->heads_kv,
                              .dim = s->dim,
                              .dim_v = s->dim_v,
                              .dtype = s->dtype,
                              .mask = s->mask,
                              .window_left = s->left,
                              .window_right = s->right,
                              .parallel = &f->parallel,
                              .tuning = &f->tuning};
    f->g = (strobe_gradients){.struct_size = sizeof f->g};
    f->parallel = (strobe_parallel){.struct_size = sizeof f->parallel, .threads = 1};
    f->tuning = (strobe_tuning){.struct_size = sizeof f->tuning};
    struct random random = {.state = 1234};
    if (has(f, PACKED | USED)) make_varlen(f);
    make_tensors(f);
    make_table(f);
    fill_tensors(f);
    make_masks(f, &random);
    make_options(f, &random);
    make_function(f);
    fixture_bind(f);
}

void fixture_free(struct fixture *f) {
    for (int t = 0; t < TENSORS; ++t) slot_free(&f->slot[t]);
    strobe_score_destroy(f->function);
    while (f->pieces > 0) fenced_free(&f->memory[--f->pieces]);
}

bool is_output(const struct fixture *f, enum tensor t, strobe_operation operation) {
    static const bool outputs[2][TENSORS] = {
        [STROBE_FORWARD] = {[OUT] = true, [LSE] = true},
        [STROBE_BACKWARD] = {[DQ] = true, [DK] = true, [DV] = true, [DBIAS] = true, [DSINKS] = true, [DTABLE] = true}};
    return outputs[operation][t] && f->slot[t].base;
}

void fixture_reset(struct fixture *f, strobe_operation operation) {
    for (enum tensor t = 0; t < TENSORS; ++t)
        if (is_output(f, t, operation)) slot_reset(&f->slot[t]);
}

strobe_status fixture_forward(struct fixture *f, const char *kernel) {
    fixture_reset(f, STROBE_FORWARD);
    f->tuning.kernel = kernel;
    f->a.lse.data = has(f, NO_LSE) ? NULL : f->slot[LSE].data;
    return strobe_forward(&f->a, NULL, 0, NULL);
}

strobe_status fixture_backward(struct fixture *f, const char *kernel) {
    fixture_reset(f, STROBE_BACKWARD);
    f->tuning.kernel = kernel;
    f->a.lse.data = f->slot[LSE].data;
    return strobe_backward(&f->a, &f->g, NULL, 0, NULL);
}

strobe_status fixture_run(struct fixture *f, strobe_operation operation, const char *kernel) {
    return operation == STROBE_FORWARD ? fixture_forward(f, kernel) : fixture_backward(f, kernel);
}

/* A caller's threads, of which the last does all the work: the far end of the workspace. */
static void run_by_last(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                        void *context) {
    const strobe_parallel *parallel = self;
    for (int64_t n = 0; n < tasks; ++n) task(context, n, parallel->threads - 1);
}

strobe_status fixture_run_fenced(struct fixture *f, strobe_operation operation, const char *kernel, int32_t workers,
                                 bool *whole) {
    const strobe_parallel before = f->parallel;
    size_t bytes = 0;
    f->tuning.kernel = kernel;
    f->parallel = (strobe_parallel){
        .struct_size = sizeof f->parallel, .threads = workers, .run = run_by_last, .self = &f->parallel};
    fixture_reset(f, operation);
    f->a.lse.data = operation == STROBE_FORWARD && has(f, NO_LSE) ? NULL : f->slot[LSE].data;
    strobe_status status = strobe_workspace(&f->a, operation == STROBE_BACKWARD ? &f->g : NULL, &bytes);
    struct fenced workspace = fenced_make(bytes);
    memset(workspace.data, 0xff, bytes);
    void *data = bytes ? workspace.data : NULL;
    if (!status)
        status = operation == STROBE_FORWARD ? strobe_forward(&f->a, data, bytes, NULL)
                                             : strobe_backward(&f->a, &f->g, data, bytes, NULL);
    *whole = fenced_is_whole(&workspace);
    fenced_free(&workspace);
    f->parallel = before;
    return status;
}

bool fixture_guards_hold(const struct fixture *f) {
    for (int t = 0; t < TENSORS; ++t)
        if (f->slot[t].base && !slot_guards_hold(&f->slot[t])) return false;
    return true;
}

bool slot_equal(const struct slot *a, const struct slot *b) {
    for (int64_t e = 0; e < slot_count(a); ++e) {
        const double x = slot_get(a, e), y = slot_get(b, e);
        if (memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}
