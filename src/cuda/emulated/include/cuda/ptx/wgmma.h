/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma.h: for src/cuda/ptx/wgmma.h. A warp multiplies its 16 rows of A, in the order of its products: at once or, as often,
 * when it waits for them, so that an operand in shared memory that is overwritten before computes something else. */
#ifndef STROBE_CUDA_EMULATED_PTX_WGMMA_H
#define STROBE_CUDA_EMULATED_PTX_WGMMA_H

#include <stdint.h>
#include <stdlib.h>

#include "cuda/ptx/mma.h"
#include "cuda/ptx/tma.h"

static inline void wgmma_fence(void) {}
static inline void wgmma_keep(float &) {}
static inline void wgmma_keep(int32_t &) {}

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
    int n, add; /* add: 0 starts anew, negative takes the product away */
    bool is_bf16, a_transposed, b_transposed;
};

/* A product that waits: what the lanes brought, A's registers as they were. */
struct emulated_late_wgmma {
    emulated_wgmma of[EMULATED_LANES];
    uint32_t a[EMULATED_LANES][4];
    void (*run)(const emulated_wgmma (&of)[EMULATED_LANES]);
    unsigned batch;
    emulated_late_wgmma *next;
};

/* Those of a warp, oldest first, and how many batches it has closed. */
struct emulated_wgmma_queue {
    emulated_late_wgmma *first, **last;
    unsigned batches;
};

static inline emulated_wgmma_queue *emulated_wgmmas(void) {
    static thread_local emulated_wgmma_queue queues[32];
    emulated_wgmma_queue *mine = &queues[threadIdx.x / EMULATED_LANES];
    if (!mine->first) mine->last = &mine->first;
    return mine;
}

/* Runs all but those of the youngest `pending` batches. */
static inline void emulated_run_wgmmas(emulated_wgmma_queue *q, unsigned pending) {
    while (q->first && (int)(q->first->batch + pending - q->batches) < 0) {
        emulated_late_wgmma *done = q->first;
        q->first = done->next;
        done->run(done->of);
        free(done);
    }
    if (!q->first) q->last = &q->first;
}

template <void (*run)(const emulated_wgmma (&of)[EMULATED_LANES])>
static inline void emulated_issue_wgmma(void *arguments[EMULATED_LANES]) {
    emulated_wgmma_queue *q = emulated_wgmmas();
    emulated_late_wgmma *made = (emulated_late_wgmma *)calloc(1, sizeof *made);
    if (!made) emulated_fault("no memory for a wgmma");
    for (int lane = 0; lane < EMULATED_LANES; ++lane) {
        if (!arguments[lane]) emulated_fault("wgmma without lane %d", lane);
        emulated_wgmma *its = &made->of[lane];
        *its = *(const emulated_wgmma *)arguments[lane];
        if (!its->a_registers) continue;
        memcpy(made->a[lane], its->a_registers, sizeof made->a[lane]);
        its->a_registers = made->a[lane];
    }
    made->run = run, made->batch = q->batches;
    *q->last = made, q->last = &made->next;
    if (emulated_random() % 2) emulated_run_wgmmas(q, (unsigned)-1); /* the open batch too */
}

static inline void wgmma_commit(void) {
    if (threadIdx.x % EMULATED_LANES == 0) ++emulated_wgmmas()->batches;
}

/* How often the machine still asks in vain whether the thread can go on. */
static inline bool emulated_is_patient(void *times) { return (*(unsigned *)times)-- == 0; }

/* Other warps go on before the products do. */
static inline void wgmma_wait(unsigned pending) {
    unsigned times = emulated_random() % 16;
    if (threadIdx.x % EMULATED_LANES == 0 && emulated_wgmmas()->first)
        emulated_wait(emulated_is_patient, &times, "its wgmma");
    emulated_converge(
        0xffffffffu,
        [](void *arguments[EMULATED_LANES]) {
            for (int lane = 0; lane < EMULATED_LANES; ++lane)
                if (!arguments[lane]) emulated_fault("the wait for wgmma without lane %d", lane);
            emulated_run_wgmmas(emulated_wgmmas(), *(const unsigned *)arguments[0]);
        },
        &pending, "the wait for wgmma");
}

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
static inline void emulated_run_wgmma(const emulated_wgmma (&of)[EMULATED_LANES]) {
    static thread_local double a[16][EMULATED_WGMMA_K], b[EMULATED_WGMMA_K][EMULATED_WGMMA_MOST_N], d[EMULATED_WGMMA_MOST_N];
    const emulated_wgmma *m = &of[0];
    const int first_row = (int)threadIdx.x / EMULATED_LANES % 4 * 16, n = m->n;
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            if (m->a_registers) {
                const int lane = row % 8 * 4 + k % 8 / 2, number = row / 8 + k / 8 * 2;
                a[row][k] = (double)emulated_half(of[lane].a_registers[number], k % 2, m->is_bf16);
            } else {
                a[row][k] = emulated_operand_16(m->a, first_row + row, k, m->a_transposed, m->is_bf16);
            }
    for (int row = 0; row < 16 && m->add < 0; ++row)
        for (int k = 0; k < EMULATED_WGMMA_K; ++k) a[row][k] = -a[row][k];
    for (int column = 0; column < n; ++column)
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            b[k][column] = emulated_operand_16(m->b, column, k, m->b_transposed, m->is_bf16);
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < n; ++column) {
            const emulated_wgmma *its = &of[row % 8 * 4 + column % 8 / 2];
            d[column] = m->add ? (double)its->d[column / 8 * 4 + row / 8 * 2 + column % 2] : 0;
        }
        for (int k = 0; k < EMULATED_WGMMA_K; ++k)
            for (int column = 0; column < n; ++column) d[column] += a[row][k] * b[k][column];
        for (int column = 0; column < n; ++column) {
            const emulated_wgmma *its = &of[row % 8 * 4 + column % 8 / 2];
            its->d[column / 8 * 4 + row / 8 * 2 + column % 2] = emulated_cut_off(d[column]);
        }
    }
}

static inline void emulated_wgmma_of(emulated_wgmma mine) {
#if defined(STROBE_MMA_TYPE)
    mine.is_bf16 = STROBE_MMA_TYPE[0] == 'b';
#endif
    emulated_converge(0xffffffffu, emulated_issue_wgmma<emulated_run_wgmma>, &mine, "wgmma");
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
EMULATED_WGMMA_RS(48)
EMULATED_WGMMA_RS(64)
EMULATED_WGMMA_RS(96)
EMULATED_WGMMA_RS(128)
EMULATED_WGMMA_RS(192)
EMULATED_WGMMA_RS(256)

#endif
