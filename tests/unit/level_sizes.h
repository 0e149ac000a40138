/* SPDX-License-Identifier: BSD-3-Clause
 *
 * level_sizes.h: the rows of a tile at each level of vector instructions, as the kernels' own headers have them:
 * level_sizes.c is compiled once a level, with the kernels' options. */
#ifndef STROBE_TESTS_UNIT_LEVEL_SIZES_H
#define STROBE_TESTS_UNIT_LEVEL_SIZES_H

#include <stddef.h>
#include <stdint.h>

extern const int64_t strobe__cpu_tile_rows_baseline;
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
extern const int64_t strobe__cpu_tile_rows_avx2;
#if !defined(STROBE_NO_AVX512)
extern const int64_t strobe__cpu_tile_rows_avx512, strobe__cpu_tile_rows_amx;
#endif
#endif

/* The most of them. */
static inline int64_t most_tile_rows(void) {
    const int64_t rows[] = {
        strobe__cpu_tile_rows_baseline,
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
        strobe__cpu_tile_rows_avx2,
#if !defined(STROBE_NO_AVX512)
        strobe__cpu_tile_rows_avx512,
        strobe__cpu_tile_rows_amx,
#endif
#endif
    };
    int64_t most = 0;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; ++n)
        if (rows[n] > most) most = rows[n];
    return most;
}

#endif
