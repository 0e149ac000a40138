/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.c: FlashAttention-3's schedule: how long each instruction takes on a device, how long the simulated SM takes for
 * all of them (schedule_machine.c), and what that is in TFLOP/s. */
#include "schedule.h"

#include "schedule_machine.h"

#include <math.h>
#include <stdlib.h>

static double tensor_rate(const lab_schedule *s) { return s->elements == LAB_E4M3 ? s->device->tensor8 : s->device->tensor; }

/* Clocks of each unit of work for one warp group that has its pipe to itself; loads: for the thread block. */
static void set_costs(const lab_schedule *s, double cost[LAB_UNITS]) {
    const lab_device *v = s->device;
    const double rows = (double)s->br / s->consumers, keys = (double)s->bc, d = (double)s->d, dv = (double)s->dv;
    const double tensor = tensor_rate(s), bytes = (double)lab_type_bytes(s->elements);
    cost[LAB_LOAD_K] = keys * d * bytes / v->load;
    cost[LAB_LOAD_V] = keys * dv * bytes / v->load;
    cost[LAB_QK] = 2 * rows * keys * d / tensor;
    cost[LAB_PV] = 2 * rows * keys * dv / tensor;
    cost[LAB_MAX] = rows * keys / v->maxima;
    cost[LAB_SHUFFLE] = v->step;
    cost[LAB_EXP] = rows * keys / v->exponentials;
    cost[LAB_RESCALE] = rows * dv / v->multiplies;
}

/* 64 rows a warp group, 128 threads: a tile of 64 x x in fp32 is x / 2 registers a thread, 16-bit x / 4, 8-bit x / 8. */
static void set_registers(const lab_schedule *s, lab_timeline *timeline) {
    const int64_t tiles = s->br / s->consumers / 64, scores = s->bc / 2;
    const int64_t weights = s->elements == LAB_E4M3 ? s->bc / 8 : s->bc / 4;
    const int64_t live[] = {scores, scores + weights, 2 * scores + weights}; /* P takes the place of S where it can */
    timeline->registers = (int)(tiles * (live[s->depth - 1] + s->dv / 2)) + 40;
    timeline->register_limit = s->consumers <= 2 ? 240 : 160;
}

double lab_power_clock(const lab_device *device, double utilisation) {
    const double flop_a_clock = device->processors * device->tensor, busy = device->sustained * 1e3 / flop_a_clock;
    return fmin(device->highest_clock, busy * pow(utilisation, -1.0 / 3));
}

bool lab_schedule_run(const lab_schedule *s, lab_timeline *timeline) {
    double cost[LAB_UNITS];
    set_costs(s, cost);
    *timeline = (lab_timeline){.spans = calloc(LAB_SPANS, sizeof *timeline->spans)};
    if (!timeline->spans || !lab_machine_run(s, cost, timeline)) {
        lab_timeline_destroy(timeline);
        return false;
    }
    const lab_device *v = s->device;
    const double blocks = ceil((double)s->n / (double)s->bc), flop_a_clock = tensor_rate(s) * v->processors;
    timeline->utilisation = s->consumers * blocks * (cost[LAB_QK] + cost[LAB_PV]) / timeline->clocks;
    timeline->clock = lab_power_clock(v, timeline->utilisation);
    timeline->tflops = timeline->utilisation * flop_a_clock * v->clock / 1e3;
    timeline->tflops_power = timeline->utilisation * flop_a_clock * timeline->clock / 1e3;
    set_registers(s, timeline);
    return true;
}

void lab_timeline_destroy(lab_timeline *timeline) {
    free(timeline->spans);
    *timeline = (lab_timeline){0};
}

bool lab_schedule_tile(lab_schedule *s) {
    static const struct {
        int64_t d, br, bc, bc8;
        int consumers;
    } tiles[] = {{64, 192, 128, 160, 3}, {128, 128, 176, 224, 2}, {256, 128, 80, 128, 2}};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; ++i) {
        if (tiles[i].d != s->d) continue;
        s->br = tiles[i].br;
        s->bc = s->elements == LAB_E4M3 ? tiles[i].bc8 : tiles[i].bc;
        s->consumers = tiles[i].consumers;
        s->stages = 2;
        return true;
    }
    return false;
}

const char *lab_unit_name(lab_unit unit) {
    static const char *const names[LAB_UNITS] = {"load K", "load V", "QK", "PV", "max", "shuffle", "exp", "rescale"};
    return names[unit];
}
