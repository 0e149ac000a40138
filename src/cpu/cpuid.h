/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpuid.h: the level of vector instructions that this machine has. It is found by feature bits alone, since virtual machines
 * claim any model number. */
#ifndef STROBE_CPU_CPUID_H
#define STROBE_CPU_CPUID_H

#include <stdbool.h>

#include "strobe/strobe.h"

enum cpu_level { CPU_BASELINE, CPU_NEON, CPU_NEONBF16, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX, CPU_LEVELS };

/* NULL for the levels of other architectures. */
extern const char *const strobe__cpu_level_names[CPU_LEVELS];

/* The best level that CPU, operating system and the environment variable STROBE_ISA (a level's name; lowers, never raises)
 * allow. The variable is read once, at the first call. */
enum cpu_level strobe__cpu_level(void);

/* NULL, or why kernels of a level cannot run here. */
const char *strobe__cpu_lacks(enum cpu_level level);

/* NULL, or why this process may not use AMX tiles. The first call asks the operating system for permission, which the
 * process then keeps for good; so call it only for a problem that is about to use tiles. The level must be CPU_AMX. */
const char *strobe__cpu_refuses_tiles(void);

/* NULL, or why products of bytes of ARM (FEAT_DotProd) cannot run here. */
const char *strobe__cpu_lacks_byte_products(void);

/* Whether what is read once is prefetched into L2 and no further. On AMD's processors that was up to 1.6 times as fast, on
 * Intel's some hundredths slower (docs/kernels/cpu.md). */
bool strobe__cpu_prefetches_into_l2(void);

/* The name that the processor gives itself. */
const char *strobe__cpu_name(void);

#endif
