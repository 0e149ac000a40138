/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fake_calls.c: see fake_calls.h. */
#include "fake_calls.h"

#include <stdio.h>
#include <string.h>

#include "fake_runtime.h"

static uintptr_t next_offset;

void *fake_place(int device) { return fake_memory(device, next_offset += (uintptr_t)1 << 40); }

static strobe_tensor tensor(int device, unsigned with, int32_t dtype) {
    char *data = fake_place(device);
    return (strobe_tensor){.data = with & ODD ? data + 4 : data, .dtype = with & WIDE ? STROBE_FP32 : dtype};
}

static void add_scores(struct call *c, int device, unsigned with) {
    const int64_t row = c->a.seq_k, head = row * c->a.seq_q, batch = head * c->a.heads_q;
    const int64_t full[3] = {batch, head, row}, shared[3] = {0, 0, row}, *stride = with & BROADCAST ? shared : full;
    c->bias = (strobe_bias){.struct_size = sizeof c->bias, .data = fake_place(device)};
    c->bool_mask = (strobe_bool_mask){.struct_size = sizeof c->bool_mask, .data = fake_place(device)};
    c->block_mask = (strobe_block_mask){.struct_size = sizeof c->block_mask, .data = fake_place(device)};
    c->block_mask.block_q = c->block_mask.block_k = 64;
    memcpy(c->bias.stride, stride, sizeof full), memcpy(c->bool_mask.stride, stride, sizeof full);
    c->dbias = c->bias, c->dbias.data = fake_place(device);
    if (with & BIAS) c->a.bias = &c->bias, c->g.dbias = with == BIAS ? NULL : &c->dbias;
    if (with & BOOL) c->a.bool_mask = &c->bool_mask;
    if (with & BLOCK) c->a.block_mask = &c->block_mask;
}

static void add_lengths(struct call *c, int device, unsigned with) {
    c->varlen = (strobe_varlen){.struct_size = sizeof c->varlen};
    if (with & PACKED) {
        c->varlen.cu_seqlens_q = fake_place(device), c->varlen.cu_seqlens_k = fake_place(device);
        c->varlen.total_q = c->a.batch * c->a.seq_q, c->varlen.total_k = c->a.batch * c->a.seq_k;
    }
    if (with & USED) c->varlen.used_q = fake_place(device), c->varlen.used_k = fake_place(device);
    if (with & (PACKED | USED)) c->a.varlen = &c->varlen;
}

/* K and V in pages, or in a byte a number. */
static void add_cache(struct call *c, int device, unsigned with) {
    c->paged = (strobe_paged){
        .struct_size = sizeof c->paged, .page_table = fake_place(device), .page_size = 16, .pages = 9999};
    c->scales = (strobe_scales){
        .struct_size = sizeof c->scales, .k = fake_place(device), .v = fake_place(device), .block_k = 1};
    c->scales.stride_k[1] = c->scales.stride_v[1] = 1;
    if (with & V_IN_K) c->scales.v = c->scales.k;
    if (with & PAGED) c->a.paged = &c->paged;
    if (!(with & (INT8_CACHE | FP8_CACHE))) return;
    c->a.scales = &c->scales;
    c->a.k.dtype = c->a.v.dtype = with & INT8_CACHE ? STROBE_INT8 : STROBE_FP8_E4M3;
}

/* A function of who sees whom, with an array that is read at rows and keys: a small one, or one of many steps. */
static void add_function(struct call *c, int device, bool is_small) {
#define OR_SAME_DOCUMENT(n) " || doc[min(i, " #n ")] == doc[min(j, " #n ")]"
    static const char *const texts[2] = {"i < j" OR_SAME_DOCUMENT(95) OR_SAME_DOCUMENT(96) OR_SAME_DOCUMENT(97)
                                             OR_SAME_DOCUMENT(98) OR_SAME_DOCUMENT(99),
                                         "j <= i + 100 && doc[min(i, 99)] == doc[min(j, 99)]"};
    static strobe_score *functions[2];
    const strobe_score_array array = {.name = "doc", .rank = 1, .dtype = STROBE_INT32};
    const strobe_score_source source = {
        .struct_size = sizeof source, .visible = texts[is_small], .arrays = &array, .array_count = 1};
    strobe_score **function = &functions[is_small];
    if (!*function && strobe_score_create(&source, function)) fprintf(stderr, "%s\n", strobe_last_error());
    c->array = (strobe_score_elements){.data = fake_place(device), .extent = {100}};
    c->score = (strobe_score_arguments){.struct_size = sizeof c->score, .function = *function};
    c->score.arrays = &c->array, c->score.array_count = 1;
    c->a.score = &c->score;
}

/* V as the first columns of K, as latent attention has it. */
static void put_v_in_k(strobe_attention *a, int64_t rows) {
    const int64_t row = a->heads_kv * a->dim, stride[3] = {rows * row, row, a->dim};
    memcpy(a->k.stride, stride, sizeof stride);
    a->v = a->k;
}

void fake_call(struct call *c, int device, int32_t dtype, const int64_t dim[2], const int64_t size[4], unsigned with) {
    memset(c, 0, sizeof *c), next_offset = 0;
    c->a = (strobe_attention){.struct_size = sizeof c->a, .batch = size[0], .seq_q = size[1], .seq_k = size[2]};
    c->a.heads_q = 8, c->a.heads_kv = 8 / size[3], c->a.dim = dim[0], c->a.dim_v = dim[1], c->a.dtype = dtype;
    c->a.device = STROBE_CUDA, c->a.device_index = device;
    c->a.q = tensor(device, with & ODD, dtype), c->a.k = tensor(device, 0, dtype), c->a.v = tensor(device, 0, dtype);
    c->a.out = tensor(device, with, dtype), c->a.lse = tensor(device, 0, STROBE_FP32);
    c->g = (strobe_gradients){.struct_size = sizeof c->g, .dout = tensor(device, 0, dtype)};
    c->g.dq = tensor(device, with, dtype), c->g.dk = tensor(device, with, dtype), c->g.dv = tensor(device, with, dtype);
    c->alibi = (strobe_alibi){.struct_size = sizeof c->alibi, .slopes = fake_place(device)};
    c->sinks = (strobe_sinks){.struct_size = sizeof c->sinks, .data = fake_place(device)};
    c->dsinks = c->sinks, c->dsinks.data = fake_place(device);
    c->dropout = (strobe_dropout){.struct_size = sizeof c->dropout, .p = 0.1};
    c->tuning = (strobe_tuning){.struct_size = sizeof c->tuning, .split_keys = 256};
    if (with & V_IN_K) put_v_in_k(&c->a, with & PAGED ? 16 : c->a.seq_k);
    add_scores(c, device, with), add_lengths(c, device, with), add_cache(c, device, with);
    if (with & ALIBI) c->a.alibi = &c->alibi;
    if (with & SINKS) c->a.sinks = &c->sinks, c->g.dsinks = &c->dsinks;
    if (with & DROPOUT) c->a.dropout = &c->dropout;
    if (with & SOFTCAP) c->a.softcap = with == SOFTCAP ? 30 : 20;
    if (with & NEGATIVE) c->a.scale = -0.25;
    if (with & CAUSAL) c->a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    if (with & FIXED_ORDER) c->a.flags = STROBE_DETERMINISTIC;
    if (with & TF32_PARTS) c->a.flags |= STROBE_TF32X3;
    if (with & SPLIT) c->a.tuning = &c->tuning;
    if (with & VISIBLE) add_function(c, device, with == VISIBLE);
}
