/* SPDX-License-Identifier: BSD-3-Clause
 *
 * device.h: rates of devices, for the roofline and for the schedule of FlashAttention-3. */
#ifndef STROBE_LAB_DEVICE_H
#define STROBE_LAB_DEVICE_H

#include <stdbool.h>

typedef struct lab_device {
    const char *name;
    double tflops;                           /* dense 16-bit matrix products, at the nominal clock */
    double gbps;                             /* slow memory, GB/s */
    double fast_bytes;                       /* fast memory of one processor */
    bool has_schedule;                       /* the rates below are known: a Hopper */
    double processors;                       /* SMs */
    double clock;                            /* GHz, nominal: the one behind tflops */
    double highest_clock;                    /* GHz */
    double sustained;                        /* TFLOP/s of the best matrix product measured: what the power budget leaves */
    double tensor, tensor8;                  /* FLOP a clock and SM, 16-bit and 8-bit */
    double exponentials, maxima, multiplies; /* a clock and SM */
    double load;                             /* bytes a clock and SM from L2 into fast memory */
    double step;                             /* clocks of one softmax that no rate explains: shuffles, waits, latencies */
} lab_device;

/* NULL for an unknown name, or past the end. */
const lab_device *lab_device_named(const char *name);
const lab_device *lab_device_at(int index);

#endif
