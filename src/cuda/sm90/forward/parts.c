/* SPDX-License-Identifier: BSD-3-Clause
 *
 * parts.c: see parts_host.h. */
#include "cuda/sm90/forward/parts_host.h"

#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/merge.h"
#include "cuda/host/tensor_map.h"

/* Parts and their merge cost the time of some ten blocks of keys: fewer are not worth it. */
enum { LEAST_BLOCKS = 4, LEAST_SAVED = 12, MOST_HEAD_BITS = 6, MOST_ROWS_OF_HEADS = 1 << 28 };

/* As many heads of a group as are a power of two; their rows are numbered together. */
static int64_t head_bits_of(int64_t group, int64_t seq_q) {
    int64_t bits = 0;
    while (bits < MOST_HEAD_BITS && group % (2 << bits) == 0 && seq_q << (bits + 1) <= MOST_ROWS_OF_HEADS) ++bits;
    return bits;
}

int64_t strobe__sm90_cut_tiles(const struct problem *p, const struct sm90_cut *cut) {
    return strobe__product(strobe__product(cut->row_tiles, cut->heads), strobe__product(cut->count, p->a.batch));
}

struct sm90_cut strobe__sm90_cut(const struct problem *p, int64_t visible, int64_t tile_rows, int64_t keys) {
    const strobe_attention *a = &p->a;
    struct sm90_cut cut = {.head_bits = head_bits_of(p->group, a->seq_q), .count = 1};
    cut.row_tiles = ceil_div(a->seq_q << cut.head_bits, tile_rows), cut.heads = a->heads_q >> cut.head_bits;
    const int64_t tiles = strobe__sm90_cut_tiles(p, &cut), blocks = ceil_div(visible, keys);
    const int64_t most = tiles > 0 ? strobe__cuda_limits(a->device_index).multiprocessors / tiles : 0;
    if (most < 2) return cut;
    const int64_t even = ceil_div(blocks, most), each = even < LEAST_BLOCKS ? LEAST_BLOCKS : even;
    if (blocks - each >= LEAST_SAVED) cut.count = ceil_div(blocks, each);
    return cut;
}

static struct params parts_of(const struct problem *p, const struct sm90_cut *cut, float *workspace) {
    struct params parts = strobe__cuda_params(p);
    strobe__cuda_into_parts(&parts, p, cut->count, workspace);
    return parts;
}

static void set_strides(int64_t to[3], const struct view *from) {
    to[0] = from->batch, to[1] = from->row, to[2] = from->head;
}

void strobe__sm90_set_cut(struct sm90_forward_params *to, const struct problem *p, const struct sm90_cut *cut,
                          float *workspace) {
    to->heads_q = (int32_t)(cut->heads * cut->count), to->all_heads = (int32_t)(to->heads_q * p->a.batch);
    to->group = (int32_t)(p->group >> cut->head_bits);
    to->row_tiles = (int32_t)cut->row_tiles, to->tiles = (int32_t)strobe__sm90_cut_tiles(p, cut);
    to->section_heads = to->all_heads;
    to->parts.count = (int32_t)cut->count, to->parts.head_bits = (int32_t)cut->head_bits;
    if (cut->count == 1) return;
    const struct params parts = parts_of(p, cut, workspace);
    to->is_dynamic = 0; /* no CTA has two tiles */
    to->out = parts.out.data, to->lse = parts.lse.data, to->out_is_aligned = p->a.dim_v % 2 == 0;
    set_strides(to->out_stride, &parts.out), set_strides(to->lse_stride, &parts.lse);
    to->parts.step_out = parts.split_out, to->parts.step_lse = parts.split_lse;
    to->sinks = NULL; /* they come with the merge */
}

bool strobe__sm90_encode_cut(struct sm90_forward_params *to, const struct problem *p) {
    const strobe_attention *a = &p->a;
    const bool packed = p->varlen.cu_seqlens_q;
    const int64_t heads = (int64_t)1 << to->parts.head_bits;
    return strobe__encode_heads_map(&to->q, &a->q, a->dim, packed ? p->varlen.total_q : a->seq_q, a->heads_q,
                                    packed ? 1 : a->batch, heads, 64 / heads);
}

strobe_status strobe__sm90_merge_cut(const struct problem *p, const struct sm90_cut *cut, float *workspace, void *stream) {
    if (cut->count == 1) return STROBE_OK;
    const struct params whole = strobe__cuda_params(p), parts = parts_of(p, cut, workspace);
    return strobe__cuda_merge_splits(&whole, &parts, true, stream);
}
