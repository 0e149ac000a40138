/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma.h: Hopper's asynchronous matrix product of a warp group, D[64][N] (+)= A[64][16] B[16][N], fp32 accumulation. PTX
 * ISA 9.7.15 "Asynchronous Warpgroup Level Matrix Multiply-Accumulate". Needs sm_90a. The includer defines STROBE_MMA_TYPE
 * as "bf16" or "f16".
 *
 * A thread t of the group, w = t / 32, l = t % 32, holds of D (and of A in registers, two 16-bit values each)
 *     d[v]:  row 16 w + l / 4 + 8 (v / 2 % 2),  column 8 (v / 4) + 2 (l % 4) + v % 2
 * so that accumulators 8 k .. 8 k + 7, packed in pairs, are the A operand of step k of the next product.
 *
 * ss: A and B from shared memory, both with the depth axis contiguous. rs: A from registers, B with the N axis contiguous.
 * The accumulators belong to the instruction until wgmma_wait says that it is done. */
#ifndef STROBE_CUDA_PTX_WGMMA_H
#define STROBE_CUDA_PTX_WGMMA_H

#include <stdint.h>

/* Registers written before the first product of a batch are seen by it. */
static __device__ __forceinline__ void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* Closes a batch. */
static __device__ __forceinline__ void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until at most `pending` (a constant) younger batches are open. */
#define wgmma_wait(pending) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory")

/* An accumulator as it is after the wait: keeps the compiler from copying it before that, which would serialise the
 * products. */
static __device__ __forceinline__ void wgmma_keep(float &accumulator) { asm volatile("" : "+f"(accumulator)::"memory"); }
static __device__ __forceinline__ void wgmma_keep(int32_t &accumulator) { asm volatile("" : "+r"(accumulator)::"memory"); }

/* The descriptor of an operand in shared memory with 128-byte swizzle (PTX ISA 9.7.15.5.1): rows of 128 bytes, groups of
 * eight rows 1024 bytes apart, the tile aligned to 1024 bytes. slab_bytes: from one slab of 64 columns to the next, for an
 * operand whose N axis is contiguous. Adding bytes / 16 moves the start. */
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, uint32_t slab_bytes) {
    const uint64_t swizzle_128 = 1, group_bytes = 1024;
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(slab_bytes >> 4) << 16 | (group_bytes >> 4) << 32 |
           swizzle_128 << 62;
}

/* What the products below are made of: their text, where `d` is the list of the accumulators' operand numbers,
 * WGMMA_D<count>; and `count` accumulators from d[i] as operands of a mode ("+f": added to, "=f": written). */
#define WGMMA_TEXT(n, d, operands) \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." STROBE_MMA_TYPE "." STROBE_MMA_TYPE " {" d "}, " operands ";"
#define WGMMA_8(mode, d, i)                                                                                                 \
    mode(d[i]), mode(d[(i) + 1]), mode(d[(i) + 2]), mode(d[(i) + 3]), mode(d[(i) + 4]), mode(d[(i) + 5]), mode(d[(i) + 6]), \
        mode(d[(i) + 7])
#define WGMMA_32(mode, d, i) \
    WGMMA_8(mode, d, i), WGMMA_8(mode, d, (i) + 8), WGMMA_8(mode, d, (i) + 16), WGMMA_8(mode, d, (i) + 24)
#define WGMMA_64(mode, d, i) WGMMA_32(mode, d, i), WGMMA_32(mode, d, (i) + 32)
#define WGMMA_D24 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_D32                                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
    "%25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D48 WGMMA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_D64 WGMMA_D48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_D96                                                                                                           \
    WGMMA_D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
              "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_D128                                                                                                         \
    WGMMA_D96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, " \
              "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* wgmma_ss_<N>(d, a, b, add): D (+)= A B; add 0 starts anew. `d`: the numbers of D's registers, `ab` and `p` those of a, b,
 * add. */
#define WGMMA_SS(n, numbers, ab, p, ...)                                                                        \
    static __device__ __forceinline__ void wgmma_ss_##n(float(&d)[n / 2], uint64_t a, uint64_t b, int add) {    \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " p ", 0;" WGMMA_TEXT(n, numbers, ab ", p, 1, 1, 0, 0") "}" \
                     : __VA_ARGS__                                                                              \
                     : "l"(a), "l"(b), "r"(add));                                                               \
    }
WGMMA_SS(64, WGMMA_D32, "%32, %33", "%34", WGMMA_32("+f", d, 0))
WGMMA_SS(96, WGMMA_D48, "%48, %49", "%50", WGMMA_32("+f", d, 0), WGMMA_8("+f", d, 32), WGMMA_8("+f", d, 40))
WGMMA_SS(128, WGMMA_D64, "%64, %65", "%66", WGMMA_64("+f", d, 0))
#undef WGMMA_SS

/* wgmma_rs_<N>(d, a, b): D += A B, A in four registers. */
#define WGMMA_RS(n, numbers, a_numbers, b_number, ...)                                                     \
    static __device__ __forceinline__ void wgmma_rs_##n(float(&d)[n / 2], const uint32_t *a, uint64_t b) { \
        asm volatile(WGMMA_TEXT(n, numbers, "{" a_numbers "}, " b_number ", 1, 1, 1, 1")                   \
                     : __VA_ARGS__                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                \
    }
WGMMA_RS(48, WGMMA_D24, "%24, %25, %26, %27", "%28", WGMMA_8("+f", d, 0), WGMMA_8("+f", d, 8), WGMMA_8("+f", d, 16))
WGMMA_RS(64, WGMMA_D32, "%32, %33, %34, %35", "%36", WGMMA_32("+f", d, 0))
WGMMA_RS(96, WGMMA_D48, "%48, %49, %50, %51", "%52", WGMMA_32("+f", d, 0), WGMMA_8("+f", d, 32), WGMMA_8("+f", d, 40))
WGMMA_RS(128, WGMMA_D64, "%64, %65, %66, %67", "%68", WGMMA_64("+f", d, 0))
WGMMA_RS(192, WGMMA_D96, "%96, %97, %98, %99", "%100", WGMMA_64("+f", d, 0), WGMMA_32("+f", d, 64))
WGMMA_RS(256, WGMMA_D128, "%128, %129, %130, %131", "%132", WGMMA_64("+f", d, 0), WGMMA_64("+f", d, 64))
#undef WGMMA_RS

#endif
