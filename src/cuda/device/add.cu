/* SPDX-License-Identifier: BSD-3-Clause
 *
 * add.cu: adds gradients, which a kernel has written to the workspace, to what the caller's tensors hold; bound by memory. A
 * warp has a row of a head at a time, and the next one as many rows on as the grid has warps. Rows that no sequence has are
 * not touched. */
#include "cuda/device/add.h"

#include "cuda/device/sequence.h"

/* Takes the lowest digit of a number of mixed base. It divides 32 bits where they suffice, since 64 take much longer. */
INLINE int take_digit(int64_t *number, int base) {
    const int64_t before = *number;
    *number = before >> 32 ? before / base : (int64_t)((uint32_t)before / (uint32_t)base);
    return (int)(before - *number * base);
}

INLINE void add_row(const struct added *g, int64_t to, int64_t from) {
    const int lane = (int)threadIdx.x % 32;
    if (!g->in_fours) {
        for (int x = lane; x < g->columns; x += 32) g->to[to + x] += g->from[from + x];
        return;
    }
    for (int x = 4 * lane; x < g->columns; x += 128) {
        const float4 a = *(const float4 *)(g->to + to + x), b = *(const float4 *)(g->from + from + x);
        *(float4 *)(g->to + to + x) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
}

/* Row number `index` of all entries and heads, if its sequence has it. */
INLINE void add_number(const struct add_params *p, const struct added *g, int64_t index) {
    const int head = take_digit(&index, g->heads), i = take_digit(&index, g->seq);
    const int64_t batch = index;
    int64_t first = 0, rows = g->seq;
    if (g->cu) first = entry(g->cu, p->index64, batch), rows = entry(g->cu, p->index64, batch + 1) - first;
    if (g->used) rows = entry(g->used, p->index64, batch);
    if (i >= clamp(rows, g->seq)) return;
    const int64_t b = g->cu ? 0 : batch, row = first + i;
    add_row(g, b * g->to_batch + row * g->to_row + head * g->to_head,
            b * g->from_batch + row * g->from_row + head * g->from_head);
}

extern "C" __global__ void __launch_bounds__(32 * ADD_WARPS) KERNEL(const __grid_constant__ struct add_params p) {
    int64_t block = blockIdx.x;
    int n = 0;
    while (n + 1 < p.count && block >= p.gradient[n].blocks) block -= p.gradient[n++].blocks;
    const struct added *g = &p.gradient[n];
    const int64_t rows = (int64_t)p.batch * g->seq * g->heads, step = g->blocks * ADD_WARPS;
    for (int64_t index = block * ADD_WARPS + (int)threadIdx.x / 32; index < rows; index += step) add_number(&p, g, index);
}
