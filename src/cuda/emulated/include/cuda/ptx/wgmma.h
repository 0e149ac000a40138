/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma.h: for src/cuda/ptx/wgmma.h. A warp multiplies its 16 rows of A at once, where a GPU does so by the wait at the
 * latest. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_H

#include <stdint.h>

#include "cuda/ptx/mma.h"
#include "cuda/ptx/tma.h"

static inline void wgmma_fence(void) {}
static inline void wgmma_commit(void) {}
#define wgmma_wait(pending) ((void)(pending))
static inline void wgmma_keep(float &) {}

static inline uint64_t wgmma_operand(uint32_t address, uint32_t slab_bytes) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(slab_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Byte `offset` of what a descriptor names (PTX ISA 9.7.15.5.1), before the swizzle of 128 bytes. */
static inline const unsigned char *emulated_operand_byte(uint64_t descriptor, uint32_t offset) {
    const uint32_t address = (uint32_t)(descriptor & 0x3fff) << 4;
    return (const unsigned char *)emulated_shared_pointer(emulated_swizzled(address + offset, 128));
}

/* Row `row` of an operand whose rows' elements lie side by side, from byte `byte` on. */
static inline uint32_t emulated_offset_in_row(uint64_t descriptor, int row, int byte) {
    const uint32_t group = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    return (uint32_t)(row / 8) * group + (uint32_t)(row % 8) * 128 + (uint32_t)byte;
}

/* Row `row` of one that lies transposed: neighbours are rows, slabs of 64. */
static inline uint32_t emulated_offset_across(uint64_t descriptor, int row, int k) {
    const uint32_t slab = (uint32_t)(descriptor >> 16 & 0x3fff) << 4, group = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    return (uint32_t)(row / 64) * slab + (uint32_t)(row % 64) * 2 + (uint32_t)(k / 8) * group + (uint32_t)(k % 8) * 128;
}

/* What a lane brings: its accumulators, and A in shared memory or in four registers. */
struct emulated_wgmma {
    float *d;
    const uint32_t *a_registers;
    uint64_t a, b;
    int n, add;
    bool is_bf16, a_transposed, b_transposed;
};

static inline double emulated_operand_16(uint64_t descriptor, int row, int k, bool transposed, bool is_bf16) {
    uint16_t bits;
    memcpy(&bits,
           emulated_operand_byte(descriptor, transposed ? emulated_offset_across(descriptor, row, k)
                                                        : emulated_offset_in_row(descriptor, row, 2 * k)),
           2);
    return (double)emulated_half(bits, 0, is_bf16);
}

enum { EMULATED_WGMMA_K = 16, EMULATED_WGMMA_MOST_N = 256 };

/* D (+)= A B of the warp's 16 rows, sums cut off at the end. */
static inline void emulated_run_wgmma(void *arguments[EMULATED_LANES]) {
    static thread_local double a[16][EMULATED_WGMMA_K], b[EMULATED_WGMMA_K][EMULATED_WGMMA_MOST_N], d[EMULATED_WGMMA_MOST_N];
    for (int lane = 0; lane < EMULATED_LANES; ++lane)
        if (!arguments[lane]) emulated_fault("wgmma without lane %d", lane);
    const emulated_wgmma *m = (const emulated_wgmma *)arguments[0];
    const int first_row = (int)threadIdx.x / EMULATED_LANES % 4 * 16, n = m->n;
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            if (m->a_registers) {
                const int lane = row % 8 * 4 + k % 8 / 2, number = row / 8 + k / 8 * 2;
                a[row][k] = (double)emulated_half(((const emulated_wgmma *)arguments[lane])->a_registers[number], k % 2,
                                                  m->is_bf16);
            } else {
                a[row][k] = emulated_operand_16(m->a, first_row + row, k, m->a_transposed, m->is_bf16);
            }
    for (int column = 0; column < n; ++column)
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            b[k][column] = emulated_operand_16(m->b, column, k, m->b_transposed, m->is_bf16);
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < n; ++column) {
            const emulated_wgmma *its = (const emulated_wgmma *)arguments[row % 8 * 4 + column % 8 / 2];
            d[column] = m->add ? (double)its->d[column / 8 * 4 + row / 8 * 2 + column % 2] : 0;
        }
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            for (int column = 0; column < n; ++column) d[column] += a[row][k] * b[k][column];
        for (int column = 0; column < n; ++column) {
            const emulated_wgmma *its = (const emulated_wgmma *)arguments[row % 8 * 4 + column % 8 / 2];
            its->d[column / 8 * 4 + row / 8 * 2 + column % 2] = emulated_cut_off(d[column]);
        }
    }
}

static inline void emulated_wgmma_of(emulated_wgmma mine) {
#if defined(STROBE_MMA_TYPE)
    mine.is_bf16 = STROBE_MMA_TYPE[0] == 'b';
#endif
    emulated_converge(0xffffffffu, emulated_run_wgmma, &mine, "wgmma");
}

#define EMULATED_WGMMA_SS(n)                                                             \
    static inline void wgmma_ss_##n(float(&d)[n / 2], uint64_t a, uint64_t b, int add) { \
        emulated_wgmma_of({d, nullptr, a, b, n, add, false, false, false});              \
    }
EMULATED_WGMMA_SS(64)
EMULATED_WGMMA_SS(96)
EMULATED_WGMMA_SS(128)

#define EMULATED_WGMMA_RS(n)                                                           \
    static inline void wgmma_rs_##n(float(&d)[n / 2], const uint32_t *a, uint64_t b) { \
        emulated_wgmma_of({d, a, 0, b, n, 1, false, false, true});                     \
    }
EMULATED_WGMMA_RS(64)
EMULATED_WGMMA_RS(96)
EMULATED_WGMMA_RS(128)
EMULATED_WGMMA_RS(192)
EMULATED_WGMMA_RS(256)

#endif
