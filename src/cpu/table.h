/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.h: the functions of the CPU's kernels, for each level. */
#ifndef STROBE_CPU_CPU_KERNELS_H
#define STROBE_CPU_CPU_KERNELS_H

#include "core/kernel.h"

/* The most query rows that share a K/V head in the decode kernels. */
enum { MOST_DECODE_ROWS = 16 };

#define DECLARE_PRODUCTS(level)                                                                            \
    size_t strobe__cpu_forward_workspace_##level(const struct plan *plan);                                 \
    strobe_status strobe__cpu_forward_##level(const struct plan *plan, const struct execution *execution); \
    size_t strobe__cpu_backward_workspace_##level(const struct plan *plan);                                \
    strobe_status strobe__cpu_backward_##level(const struct plan *plan, const struct execution *execution);
#define DECLARE_LEVEL(level)                                              \
    DECLARE_PRODUCTS(level)                                               \
    size_t strobe__cpu_decode_workspace_##level(const struct plan *plan); \
    strobe_status strobe__cpu_decode_##level(const struct plan *plan, const struct execution *execution);

DECLARE_LEVEL(baseline)
#if defined(__x86_64__)
DECLARE_LEVEL(avx2)
DECLARE_LEVEL(avx512)
DECLARE_LEVEL(amx)
DECLARE_PRODUCTS(avx512bf16)
DECLARE_PRODUCTS(fp16_amx)
DECLARE_PRODUCTS(fp32_amx)
size_t strobe__cpu_decode_workspace_int8_amx(const struct plan *plan);
strobe_status strobe__cpu_decode_int8_amx(const struct plan *plan, const struct execution *execution);
#elif defined(__aarch64__)
DECLARE_LEVEL(neon)
DECLARE_PRODUCTS(neonbf16)
size_t strobe__cpu_decode_workspace_int8_neon(const struct plan *plan);
strobe_status strobe__cpu_decode_int8_neon(const struct plan *plan, const struct execution *execution);
#endif

#undef DECLARE_LEVEL
#undef DECLARE_PRODUCTS

#endif
