/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.c: the table of device rates. Hopper's come from NVIDIA's documents and from published measurements: a 16-bit
 * m64nNk16 product takes N/2 clocks, and an SM does 16 exponentials, 64 maxima and 128 multiplications a clock. Two figures
 * are uncertain. L2 to SM was measured between 5.5 and 7 TB/s, 24 to 30 bytes a clock and SM; the table has the lower. The
 * best matrix product measured under the 700 W of these boards is 793 (H200) to 808 TFLOP/s; the table has 793 and 800. */
#include "device.h"

#include <stddef.h>
#include <string.h>

/* One chip on two boards, which differ in memory and in the best product measured. */
#define HOPPER                                                                                                              \
    .tflops = 989, .fast_bytes = 227 * 1024, .has_schedule = true, .processors = 132, .clock = 1.83, .highest_clock = 1.98, \
    .tensor = 4096, .tensor8 = 8192, .exponentials = 16, .maxima = 64, .multiplies = 128, .load = 24, .step = 100

static const lab_device devices[] = {
    {.name = "h100", HOPPER, .gbps = 3350, .sustained = 800},
    {.name = "h200", HOPPER, .gbps = 4800, .sustained = 793},
    {.name = "a100", .tflops = 312, .gbps = 1555, .fast_bytes = 192 * 1024}, /* FlashAttention-1's: 192 KB of SRAM */
};

const lab_device *lab_device_at(int index) {
    return index >= 0 && index < (int)(sizeof devices / sizeof *devices) ? &devices[index] : NULL;
}

const lab_device *lab_device_named(const char *name) {
    for (int i = 0; lab_device_at(i); ++i)
        if (!strcmp(lab_device_at(i)->name, name)) return lab_device_at(i);
    return NULL;
}
