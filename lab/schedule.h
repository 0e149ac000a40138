/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: FlashAttention-3's forward pipeline on one SM, as a simulation of events: a producer that loads K and V blocks
 * into a ring, consumer warp groups that issue matrix products and calculate softmax, and the pipes that they share. How
 * long an instruction takes comes from the device's rates.
 *
 * Warp groups that use a pipe at the same time share its rate: two that multiply at the same time take twice as long each.
 * So without ping-pong both are in their softmax at the same time, and the tensor cores are idle. With ping-pong the warp
 * groups have the tensor cores one after the other (FA3, section 3.1). Depth 2 is the overlap inside a warp group, which
 * issues the next S = Q K^T before the softmax (section 3.2, Algorithm 2); depth 3 also takes the scores of the softmax from
 * one product earlier (appendix). */
#ifndef STROBE_LAB_SCHEDULE_H
#define STROBE_LAB_SCHEDULE_H

#include "device.h"
#include "precision.h"

#include <stdbool.h>
#include <stdint.h>

enum { LAB_MOST_CONSUMERS = 4, LAB_SPANS = 65536 };

typedef struct lab_schedule {
    const lab_device *device;
    lab_type elements; /* fp16 or bf16; e4m3 */
    int64_t n, d, dv;  /* keys, head dims */
    int64_t br, bc;    /* rows of the thread block, keys of one block */
    int consumers;     /* warp groups that share br */
    int stages;        /* K and V blocks in the ring */
    bool ping_pong;
    int depth; /* 1: no overlap inside a warp group, 2: two stages, 3: three */
} lab_schedule;

/* FA3's tile for a head dim (full mask): br, bc, consumers; two stages. False if d is not 64, 128 or 256. */
bool lab_schedule_tile(lab_schedule *schedule);

typedef enum lab_unit {
    LAB_LOAD_K,
    LAB_LOAD_V,
    LAB_QK,
    LAB_PV,
    LAB_MAX,
    LAB_SHUFFLE,
    LAB_EXP,
    LAB_RESCALE,
    LAB_UNITS
} lab_unit;
const char *lab_unit_name(lab_unit unit);

/* Something that ran from start to end (clocks), for a block of keys; consumer -1: the producer. */
typedef struct lab_span {
    lab_unit unit;
    int consumer;
    int64_t block;
    double start, end;
} lab_span;

typedef struct lab_timeline {
    double clocks;                 /* of one query tile, all blocks of keys */
    double utilisation;            /* of the tensor cores */
    double tflops;                 /* at the nominal clock */
    double clock;                  /* GHz that the power budget leaves at this utilisation */
    double tflops_power;           /* at that clock */
    int registers, register_limit; /* a thread of a consumer: S, P, O and 40 more */
    lab_span *spans;               /* in the order of their ends */
    int span_count;                /* the first LAB_SPANS */
} lab_timeline;

/* False: out of memory. lab_timeline_destroy frees spans. */
bool lab_schedule_run(const lab_schedule *schedule, lab_timeline *timeline);
void lab_timeline_destroy(lab_timeline *timeline);

/* The clock that a power budget leaves: dynamic power goes as utilisation x clock^3 (voltage follows the clock), and the
 * matrix product that keeps the tensor cores busy all the time is measured (device->sustained). GHz. */
double lab_power_clock(const lab_device *device, double utilisation);

#endif
