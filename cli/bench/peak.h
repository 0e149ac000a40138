/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peak.h: what this machine can do at best, measured now and by loops of our own, on a number of threads at once: fp32
 * multiply-adds and products of bf16 from registers, and bytes read from memory. */
#ifndef STROBE_CLI_PEAK_H
#define STROBE_CLI_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct peak {
    double flops; /* floating-point operations a second, a multiply-add being two */
    double bf16;  /* the same in bf16, by AMX or products of pairs; 0 where there are none */
    double bytes; /* bytes read a second, from more memory than most caches hold */
} peak;

typedef struct peak_meter peak_meter;

/* NULL if memory or threads are short. */
peak_meter *peak_meter_create(int threads);
void peak_meter_destroy(peak_meter *meter);

/* Takes about an eighth of a second. */
peak peak_measure(peak_meter *meter);

/* The loops, in peak_kernels.c. run returns the operations that a number of rounds does, and something that depends on all
 * of them. */
typedef struct peak_loop {
    const char *level;
    int64_t (*run)(int64_t rounds, float *result);
} peak_loop;

peak_loop peak_fastest_loop(void); /* of fp32 */
peak_loop peak_bf16_loop(void);    /* run is NULL where the library's level has none */
uint64_t peak_read(const uint64_t *words, size_t count);

#endif
