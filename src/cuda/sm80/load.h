/* SPDX-License-Identifier: BSD-3-Clause
 *
 * load.h: tiles of tensors into shared memory. A tile is [rows][ROW elements], its rows cut into chunks of 16 bytes. The
 * tile is swizzled: chunk c of row r lies at c ^ (r % 8), so that eight rows of one chunk, which is what ldmatrix reads at a
 * time, and eight chunks of one row, which is what a copy writes, lie in different banks. Columns past the tensor's and rows
 * past the sequence's are zeros. Rows that do not start at multiples of 16 bytes are copied element by element. */
#ifndef STROBE_CUDA_SM80_LOAD_H
#define STROBE_CUDA_SM80_LOAD_H

#include "cuda/device/job.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/ldmatrix.h"

/* Bytes from a tile's start to a chunk. */
INLINE uint32_t chunk_at(int row_bytes, int row, int chunk) {
    return (uint32_t)(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

/* Loads one chunk of a row of which `columns` elements are left in the tensor; 0 or less: none. Kernels without FEATURES are
 * given aligned tensors only, since the other path costs registers in the main loop. */
INLINE void load_chunk(unsigned char *to, const element *from, int columns, bool aligned) {
    const int there = columns < 0 ? 0 : columns < CHUNK ? columns : CHUNK;
    if (!FEATURES || aligned) {
        cp_async_16(shared_address(to), from, there * ELEMENT_BYTES); /* with 0 bytes, from is not looked at */
    } else {
        element chunk[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) chunk[e] = e < there ? from[e] : (element)0;
        *(uint4 *)to = *(const uint4 *)chunk;
    }
}

/* Loads rows [first, first + tile_rows) of one head of K, V or, not packed, of queries. Row 0 lies at `head`; rows from
 * `end` on are zeros. All threads of the block take part: a thread keeps to one chunk and steps over rows. The caller gives
 * one pointer a head, because working out all factors of the address took a seventh of the loop's time. */
INLINE void load_rows(unsigned char *tile, const element *head, int64_t stride, int first, int tile_rows, int end,
                      int row_elements, int columns, bool aligned, int threads) {
    const int chunks = row_elements / CHUNK, step = threads >= chunks ? threads / chunks : 1;
    const int rounds = threads >= chunks ? 1 : chunks / threads; /* over the widest rows */
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
        const int chunk = (int)threadIdx.x % chunks + round * threads, left = columns - chunk * CHUNK;
        const int own = threads >= chunks ? (int)threadIdx.x / chunks : 0;
        const element *at = head + (first + own) * stride + chunk * CHUNK;
#pragma unroll
        for (int n = 0; n < tile_rows / step; ++n, at += step * stride)
            load_chunk(tile + chunk_at(row_elements * ELEMENT_BYTES, own + n * step, chunk), at,
                       own + n * step < end - first ? left : 0, aligned);
    }
}

/* Loads packed rows from `first` on of Q or dO; row 0 of the group's first head lies at `head`. */
INLINE void load_packed(unsigned char *tile, const struct params *p, const struct job *t, const struct view *x,
                        const element *head, int first, int tile_rows, int row_elements, int columns, int threads) {
    const int chunks = row_elements / CHUNK, end = t->rows * p->group;
    if (p->group == 1) {
        load_rows(tile, head, x->row, first, tile_rows, end, row_elements, columns, x->aligned, threads);
        return;
    }
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < tile_rows * chunks; at += threads) {
        const int row = at / chunks, chunk = at % chunks, packed = first + row;
        const bool there = packed < end;
        const int i = packed / p->group;
        const element *from = there ? head + i * x->row + (packed - i * p->group) * x->head + chunk * CHUNK : head;
        load_chunk(tile + chunk_at(row_elements * ELEMENT_BYTES, row, chunk), from, there ? columns - chunk * CHUNK : 0,
                   x->aligned);
    }
}

#endif
