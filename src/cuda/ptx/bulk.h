/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bulk.h: copies of contiguous bytes by the copy engine (PTX ISA 9.7.9.25.4, cp.async.bulk), and sums in global memory, by
 * it (cp.reduce.async.bulk) and by a thread (9.7.13.8, red). Addresses and sizes are multiples of 16 bytes. From sm_90 on.
 */
#ifndef STROBE_CUDA_PTX_BULK_H
#define STROBE_CUDA_PTX_BULK_H

#include "cuda/ptx/mbarrier.h"

/* To shared memory; the bytes are counted by an mbarrier. */
static __device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/* Adds fp32 values in shared memory to those in global memory or, where `stores`, writes them there; closes a group of this
 * thread's. Predicates, since a branch would cost registers. */
static __device__ __forceinline__ void bulk_add(float *to, const void *from, uint32_t bytes, uint32_t stores) {
    asm volatile("{\n"
                 ".reg .pred stores;\n"
                 "setp.ne.u32 stores, %3, 0;\n"
                 "@stores cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "@!stores cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;\n"
                 "}" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes), "r"(stores)
                 : "memory");
}

/* Until the sources of all this thread's groups have been read. */
static __device__ __forceinline__ void bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Until the sums of all this thread's groups stand in memory. */
static __device__ __forceinline__ void bulk_wait(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* Four sums at once, of no particular order. */
static __device__ __forceinline__ void red_add_4(float *to, float a, float b, float c, float d) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}

/* The same or, where `stores`, they are written. */
static __device__ __forceinline__ void red_add_or_store_4(float *to, float a, float b, float c, float d, uint32_t stores) {
    asm volatile("{\n"
                 ".reg .pred stores;\n"
                 "setp.ne.u32 stores, %5, 0;\n"
                 "@stores st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
                 "@!stores red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n"
                 "}" ::"l"(to),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(stores)
                 : "memory");
}

#endif
