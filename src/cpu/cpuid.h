/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cpuid.h: which level of vector instructions this machine has, by feature bits only, never by a model number: virtual
 * machines claim any model. */
#ifndef STROBE_CPU_CPUID_H
#define STROBE_CPU_CPUID_H

#include "strobe/strobe.h"

enum cpu_level { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_AMX, CPU_LEVELS };

extern const char *const strobe__cpu_level_names[CPU_LEVELS];

/* The best level that CPU, operating system and the environment variable STROBE_ISA (a level's name; lowers, never raises)
 * allow. The variable is read once, at the first call. */
enum cpu_level strobe__cpu_level(void);

/* NULL, or why kernels of a level cannot run here. */
const char *strobe__cpu_lacks(enum cpu_level level);

/* NULL, or why this process may not use AMX tiles. The first call asks the operating system for permission, for the process
 * and for good: only a call that is about to use tiles asks. Needs the level CPU_AMX. */
const char *strobe__cpu_refuses_tiles(void);

/* The processor as it calls itself. */
const char *strobe__cpu_name(void);

#endif
