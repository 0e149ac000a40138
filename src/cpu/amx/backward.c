/* SPDX-License-Identifier: BSD-3-Clause
 *
 * backward.c (amx): FlashAttention-2's backward (Dao, 2023, algorithm 2) on AMX tiles, in bf16, and compiled again in fp16
 * and fp32, whose numbers are split into bf16 parts (amx/operand.h). cpu/vector/backward_tasks.h cuts it into tasks,
 * amx/block_loop.h has the pipeline, amx/gradients.h the products, tile shapes and layouts of operands, and amx/backward.h
 * the memory map.
 *
 *   for a super-block of keys:                             K, V, K^T packed once;  dK = dV = 0
 *     for each block of BLOCK_TILES tiles of 32 rows:      Q^T, dO^T, and Q, dO in pairs of rows, packed once
 *       for each strip of 32 keys and tile that sees it:
 *         S^T = K Q^T;  softcap, bias, ALiBi, mask where there are any;  dP^T = V dO^T
 *         P = exp(S - lse) = 2^(S c - lse log2 e);  dS = P (Z dP - delta), Z from dropout, delta = rowsum(dO * O) - dlse
 *         dV += (Z P)^T dO     dK += dS^T Q     dQ^T += K^T dS^T
 *   dK, times the scale, and dV are written
 *
 * Products of bf16 are exact and summed in fp32. P and dS are rounded to bf16, or to their parts, once, and gradients once,
 * after the sum over a group. Skip: tiles and strips that do not see each other make no block pair, and what no pair needs
 * is not packed.
 *
 * docs/kernels/cpu.md has the versions and what was tried, docs/benchmarks.md the figures. */
#include "cpu/amx/block_loop.h"
#include "cpu/table.h"

/* Tiles of a block of rows: fewer where their operands, Q and dO twice each, in parts, would fill most of L2. */
static int64_t block_tiles_of(int64_t k_padded, int64_t v_padded) {
    const int64_t bytes = 2 * (int64_t)sizeof(uint16_t) * PARTS * TILE_ROWS * (k_padded + v_padded),
                  most = ROWS_BYTES / bytes;
    const int64_t tiles = PARTS == 3 ? FP32_BLOCK_TILES : BLOCK_TILES;
    return most < 1 ? 1 : most < tiles ? most : tiles;
}

/* The loop over blocks of a head's rows, for a super-block of keys. Where numbers are split, the next block is packed in the
 * place of this one while tiles multiply its last dQ, for which no vector work is left. Features of two blocks cannot be
 * looked after at once, since some have memory. */
static void loop_over_rows(const struct backward *f, const struct scratch *c, const struct keys *k) {
    const bool ahead = PARTS > 1 && !f->has_features;
    struct row_block blocks[2], *rows = &blocks[0], *next = &blocks[1];
    bool more = find_row_block(f, c, rows, k, 0);
    while (more) {
        for (int64_t n = 0; n < rows->tiles && !f->has_element_masks; ++n) pack_tile(f, c, rows, n);
        more = ahead && find_row_block(f, c, next, k, rows->first + f->block_tiles);
        loop_over_strips(f, c, rows, k, more ? next : NULL);
        if (!ahead) more = find_row_block(f, c, next, k, rows->first + f->block_tiles);
        struct row_block *const done = rows;
        rows = next;
        next = done;
    }
}

/* The kernel's part of a task: dK and dV of a super-block of keys, and its part of dQ. */
static void super_block_gradients(const struct gradient_tasks *g, float *memory, const struct keys *k) {
    const struct backward *f = (const struct backward *)(const void *)g;
    struct scratch c;
    lay_out(&c, memory, f);
    tiles_enter();
    start_keys(f, &c, k);
    loop_over_rows(f, &c, k);
    finish_keys(f, &c, k);
    if (f->streams) stream_fence(); /* orders the non-temporal stores before whatever the caller does next */
    tiles_leave();
}

/* Writes dQ of a tile, times the scale. */
static void write_dq(const struct tile_rows *t, const float *dq) {
    float scale[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; ++r) scale[r] = (float)t->p->a.scale;
    if (t->p->g.dq.dtype == STROBE_FP32 && sizeof(number) != sizeof(float)) {
        tile_unpack(t, &t->p->g.dq, dq, t->p->a.dim, scale);
        return;
    }
    const bool streams = streams_gradients(t->p);
    unpack_rows(t, &t->p->g.dq, dq, t->p->a.dim, scale, streams);
    if (streams) stream_fence();
}

static struct backward backward_of(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct backward f = {.p = p, .k_padded = up_to(a->dim, TILE_DEPTH), .v_padded = up_to(a->dim_v, TILE_DEPTH)};
    f.tasks = gradient_tasks_of(
        p, f.k_padded, PARTS * 2 * (2 * f.k_padded + f.v_padded) + 4 * (f.k_padded + f.v_padded)); /* K, K^T, V; dK, dV */
    f.tasks.super_block_gradients = super_block_gradients;
    f.tasks.write_dq = write_dq;
    f.block_tiles = block_tiles_of(f.k_padded, f.v_padded);
    f.streams = streams_gradients(p);
    f.some_hidden = a->mask || scores_have_element_masks(p);
    f.has_element_masks = scores_have_element_masks(p);
    f.has_terms = scores_have_terms(p);
    f.delta_last = a->dropout || p->g.dbias || p->features & FEATURE(SCORE);
    f.has_features = f.has_terms || f.delta_last || f.has_element_masks;
    return f;
}

size_t AMX_KERNEL(backward_workspace)(const struct plan *plan) {
    const struct problem *p = plan->problem;
    struct scratch c;
    struct backward f = backward_of(p);
    return gradient_tasks_lay_out(&f.tasks, NULL, lay_out(&c, NULL, &f));
}

strobe_status AMX_KERNEL(backward)(const struct plan *plan, const struct execution *execution) {
    const struct problem *p = plan->problem;
    struct scratch c;
    struct backward f = backward_of(p);
    gradient_tasks_lay_out(&f.tasks, execution->workspace, lay_out(&c, NULL, &f));
    gradient_tasks_run(&f.tasks);
    return STROBE_OK;
}
