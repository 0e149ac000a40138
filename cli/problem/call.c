/* SPDX-License-Identifier: BSD-3-Clause
 *
 * call.c: from a problem and its tensors to the library's descriptors; see inputs.h. */
#include "problem/inputs_shape.h"

#include <string.h>

/* layout=bshd leaves strides at zero, the default, so that the library's own idea of contiguous is what gets tested. */
static strobe_tensor view(const inputs *in, tensor_id id, const buffer *b) {
    strobe_tensor t = {.data = b->data, .dtype = (int32_t)b->dtype};
    if (b->extent[0] == 0 || b->extent[1] == 0) t.data = NULL; /* no elements, no address */
    const bool others = inputs_lies_in(&in->problem, id) != id;
    if (b->data && (in->problem.layout != LAYOUT_BSHD || others)) memcpy(t.stride, b->stride, sizeof t.stride);
    return t;
}

static strobe_bias scores_view(const buffer *b) {
    return (strobe_bias){.struct_size = sizeof(strobe_bias),
                         .data = b->data,
                         .stride = {b->stride[0], b->stride[2], b->stride[1]},
                         .dtype = (int32_t)b->dtype};
}

static strobe_sinks sinks_view(const buffer *b) {
    return (strobe_sinks){.struct_size = sizeof(strobe_sinks), .data = b->data, .dtype = (int32_t)b->dtype};
}

static strobe_score_elements table_view(const problem *p, const buffer *b) {
    return (strobe_score_elements){
        .data = b->data, .extent = {score_table_heads(p), score_table_width(p)}, .dtype = (int32_t)b->dtype};
}

static void set_sizes(strobe_attention *a, const problem *p) {
    *a = (strobe_attention){.struct_size = sizeof *a,
                            .batch = p->batch,
                            .seq_q = p->seq_q,
                            .seq_k = p->seq_k,
                            .heads_q = p->heads_q,
                            .heads_kv = p->heads_kv,
                            .dim = p->dim,
                            .dim_v = p->dim_v,
                            .dtype = (int32_t)p->dtype,
                            .device = (int32_t)p->device,
                            .mask = (int32_t)p->mask,
                            .flags = (p->deterministic ? STROBE_DETERMINISTIC : 0) | (p->tf32x3 ? STROBE_TF32X3 : 0),
                            .scale = p->scale,
                            .softcap = p->softcap,
                            .window_left = p->window_left,
                            .window_right = p->window_right,
                            .q_start = p->q_start,
                            .k_start = p->k_start};
}

static void set_masks(call *c, const inputs *in) {
    const buffer *mask = &in->tensor[T_MASK], *blocks = &in->tensor[T_BLOCKS];
    const problem *p = &in->problem;
    if (p->bool_mask) {
        c->bool_mask = (strobe_bool_mask){.struct_size = sizeof c->bool_mask,
                                          .data = mask->data,
                                          .stride = {mask->stride[0], mask->stride[2], mask->stride[1]}};
        c->attention.bool_mask = &c->bool_mask;
    }
    if (p->block_q) {
        c->block_mask = (strobe_block_mask){.struct_size = sizeof c->block_mask,
                                            .data = blocks->data,
                                            .block_q = p->block_q,
                                            .block_k = p->block_k,
                                            .stride = {blocks->stride[0], blocks->stride[2], blocks->stride[1]}};
        c->attention.block_mask = &c->block_mask;
    }
}

/* The tensors of scales have an element for every row: where rows share one, strides step from one to the next. */
static void set_scale_strides(int64_t stride[3], const problem *p, const buffer *b, bool keys) {
    const bool packed = p->varlen & (keys ? VARLEN_CU_K : VARLEN_CU_Q);
    memcpy(stride, b->stride, sizeof b->stride);
    if (p->scales == SCALES_ROWS) stride[1] *= SCALE_ROWS;
    if (p->scales == SCALES_BLOCKS) stride[1] *= SCALE_BLOCK;
    if (p->scales == SCALES_SEQUENCE && packed) stride[0] = 0;
    if (p->scales == SCALES_TENSOR) stride[0] = stride[1] = stride[2] = 0;
}

static void set_scales(call *c, const inputs *in) {
    const problem *p = &in->problem;
    const buffer *k = &in->tensor[T_K_SCALE], *v = &in->tensor[T_V_SCALE];
    const buffer *q = &in->tensor[T_Q_SCALE];
    static const int64_t blocks[] = {1, 1, [SCALES_ROWS] = SCALE_ROWS, 0, 0, [SCALES_BLOCKS] = SCALE_BLOCK};
    c->scales = (strobe_scales){.struct_size = sizeof c->scales,
                                .q = (const float *)(void *)q->data,
                                .k = (const float *)(void *)k->data,
                                .v = (const float *)(void *)v->data,
                                .block_q = blocks[p->scales],
                                .block_k = blocks[p->scales]};
    set_scale_strides(c->scales.stride_q, p, q, false);
    set_scale_strides(c->scales.stride_k, p, k, true);
    set_scale_strides(c->scales.stride_v, p, v, true);
    c->attention.scales = &c->scales;
}

static void set_features(call *c, const inputs *in) {
    const problem *p = &in->problem;
    if (p->varlen || p->leftpad) {
        c->varlen = (strobe_varlen){.struct_size = sizeof c->varlen,
                                    .cu_seqlens_q = in->varlen_arrays[0],
                                    .cu_seqlens_k = in->varlen_arrays[1],
                                    .used_q = in->varlen_arrays[2],
                                    .used_k = in->varlen_arrays[3],
                                    .leftpad_k = in->varlen_arrays[LEFTPAD_ARRAY],
                                    .total_q = p->varlen & VARLEN_CU_Q ? in->total_q : 0,
                                    .total_k = p->varlen & VARLEN_CU_K ? in->total_k : 0,
                                    .index_bits = p->varlen & VARLEN_INDEX_64 ? 64 : 32};
        c->attention.varlen = &c->varlen;
    }
    if (p->page_size) {
        c->paged = (strobe_paged){.struct_size = sizeof c->paged,
                                  .page_table = in->page_table,
                                  .page_size = p->page_size,
                                  .pages = inputs_page_count(p)};
        c->attention.paged = &c->paged;
    }
    if (p->bias) c->bias = scores_view(&in->tensor[T_BIAS]), c->attention.bias = &c->bias;
    if (p->alibi) {
        c->alibi = (strobe_alibi){.struct_size = sizeof c->alibi,
                                  .slopes = (const float *)(void *)in->tensor[T_SLOPES].data,
                                  .stride_batch = p->alibi == ALIBI_BATCH ? p->heads_q : 0};
        c->attention.alibi = &c->alibi;
    }
    if (p->sinks) c->sinks = sinks_view(&in->tensor[T_SINKS]), c->attention.sinks = &c->sinks;
    if (problem_is_quantised(problem_kv_dtype(p)) || problem_is_quantised(p->dtype) || p->scales || p->q_scales)
        set_scales(c, in);
    if (p->dropout > 0) c->dropout = in->dropout, c->attention.dropout = &c->dropout;
    if (problem_has_table(p)) {
        c->table = table_view(p, &in->tensor[T_TABLE]);
        c->score = (strobe_score_arguments){
            .struct_size = sizeof c->score, .function = score_function_of(p), .arrays = &c->table, .array_count = 1};
        c->attention.score = &c->score;
    }
    if (p->threads) {
        c->parallel = (strobe_parallel){.struct_size = sizeof c->parallel, .threads = (int32_t)p->threads};
        c->attention.parallel = &c->parallel;
    }
    if (p->kernel[0] || p->split_keys) {
        c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .split_keys = p->split_keys};
        if (p->kernel[0]) c->tuning.kernel = p->kernel;
        c->attention.tuning = &c->tuning;
    }
}

void call_prepare(call *c, const inputs *in, const outputs *out) {
    const problem *p = &in->problem;
    *c = (call){.backward = p->operation == STROBE_BACKWARD};
    set_sizes(&c->attention, p);
    set_masks(c, in);
    set_features(c, in);
    const buffer *of_forward = c->backward ? in->tensor : out->tensor;
    c->attention.q = view(in, T_Q, &in->tensor[T_Q]);
    c->attention.k = view(in, T_K, &in->tensor[T_K]);
    c->attention.v = view(in, T_V, &in->tensor[T_V]);
    c->attention.out = view(in, T_OUT, &of_forward[T_OUT]);
    c->attention.lse = view(in, T_LSE, &of_forward[T_LSE]);
    if (!c->backward) return;
    c->gradients = (strobe_gradients){.struct_size = sizeof c->gradients,
                                      .dout = view(in, T_DOUT, &in->tensor[T_DOUT]),
                                      .dlse = view(in, T_DLSE, &in->tensor[T_DLSE]),
                                      .dq = view(in, T_DQ, &out->tensor[T_DQ]),
                                      .dk = view(in, T_DK, &out->tensor[T_DK]),
                                      .dv = view(in, T_DV, &out->tensor[T_DV])};
    if (outputs_are_added(p, &out->tensor[T_DQ])) c->gradients.accumulate |= STROBE_ADD_TO_DQ;
    if (outputs_are_added(p, &out->tensor[T_DK])) c->gradients.accumulate |= STROBE_ADD_TO_DK;
    if (outputs_are_added(p, &out->tensor[T_DV])) c->gradients.accumulate |= STROBE_ADD_TO_DV;
    if (p->dbias) c->dbias = scores_view(&out->tensor[T_DBIAS]), c->gradients.dbias = &c->dbias;
    if (p->dscore) {
        c->dtable = table_view(p, &out->tensor[T_DTABLE]);
        c->dscore = (strobe_score_gradients){.struct_size = sizeof c->dscore, .arrays = &c->dtable, .array_count = 1};
        c->gradients.dscore = &c->dscore;
    }
    if (p->dsinks) c->dsinks = sinks_view(&out->tensor[T_DSINKS]), c->gradients.dsinks = &c->dsinks;
}

void call_describe(call *c, const problem *p) {
    /* A query reads no data, but NULL means "not wanted" for lse and "absent" for dlse and the arrays of varlen. */
    static int64_t nothing[8] __attribute__((aligned(64)));
    inputs in = {.problem = *p,
                 .dropout = {.struct_size = sizeof in.dropout, .p = p->dropout},
                 .total_q = p->batch * p->seq_q,
                 .total_k = p->batch * p->seq_k};
    outputs out = {0};
    for (int id = 0; id < TENSOR_COUNT; ++id)
        for (int output = 0; output <= 1; ++output) {
            if (!inputs_has(p, (tensor_id)id, output)) continue;
            buffer *b = output ? &out.tensor[id] : &in.tensor[id];
            inputs_shape(&in, (tensor_id)id, b);
            b->data = (unsigned char *)nothing;
        }
    for (int i = 0; i < LEFTPAD_ARRAY; ++i) in.varlen_arrays[i] = p->varlen & 1 << i ? nothing : NULL;
    in.varlen_arrays[LEFTPAD_ARRAY] = p->leftpad ? nothing : NULL;
    in.page_table = (int32_t *)(void *)nothing;
    call_prepare(c, &in, &out);
    if (p->kernel[0]) c->tuning.kernel = p->kernel; /* the caller's: in goes away */
}
