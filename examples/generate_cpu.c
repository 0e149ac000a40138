/* SPDX-License-Identifier: BSD-3-Clause
 *
 * generate_cpu.c: what generate.c asks of the CPU, by plain loops; see generate_device.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <strobe/strobe.h>

#include "generate_device.h"

static void *open_nothing(void) { return NULL; }

static void *zeros(size_t bytes) {
    const size_t whole = (bytes / 64 + 1) * 64; /* workspaces begin at multiples of 64 */
    void *made = aligned_alloc(64, whole);
    if (!made) stop("out of memory", "aligned_alloc");
    return memset(made, 0, whole);
}

static void copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

static void look_up(float *x, const float *embed, const float *place, const int32_t *ids, const int32_t *places, int rows,
                    int width) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < width; ++c) x[r * width + c] = embed[ids[r] * width + c] + place[places[r] * width + c];
}

static void norm(float *to, const float *x, const int32_t *from, const float *const weight_bias[2], int rows, int width) {
    for (int r = 0; r < rows; ++r, to += width) {
        const float *row = x + (from ? from[r] : r) * width;
        double mean = 0, square = 0;
        for (int i = 0; i < width; ++i) mean += row[i];
        mean /= width;
        for (int i = 0; i < width; ++i) square += (row[i] - mean) * (row[i] - mean);
        const double scale = 1 / sqrt(square / width + 1e-5);
        for (int i = 0; i < width; ++i) to[i] = (float)((row[i] - mean) * scale) * weight_bias[0][i] + weight_bias[1][i];
    }
}

static float dot(const float *x, const float *y, int n) { /* sixteen sums, which compilers keep in vectors */
    float sums[16] = {0}, sum = 0;
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += x[i + j] * y[i + j];
    for (int j = 0; j < 16; ++j) sum += sums[j];
    return sum;
}

static void linear(float *to, const float *x, const float *const weight_bias[2], int rows, int ins, int outs, int added) {
    for (int o = 0; o < outs; ++o) /* a row of the weight serves all rows */
        for (int r = 0; r < rows; ++r) {
            float *y = to + r * outs + o;
            *y = dot(x + r * ins, weight_bias[0] + o * ins, ins) + (weight_bias[1] ? weight_bias[1][o] : 0) +
                 (added ? *y : 0);
        }
}

static void gelu(float *x, size_t count) {
    for (size_t i = 0; i < count; ++i) x[i] *= 0.5f * (1 + erff(x[i] * 0.70710678f));
}

static void largest(int32_t *ids, const float *x, int rows, int columns) {
    for (int r = 0; r < rows; ++r, x += columns) {
        ids[r] = 0;
        for (int c = 1; c < columns; ++c)
            if (x[c] > x[ids[r]]) ids[r] = c;
    }
}

const struct device on_cpu = {
    .kind = STROBE_CPU,
    .open = open_nothing,
    .zeros = zeros,
    .put = copy,
    .get = copy,
    .look_up = look_up,
    .norm = norm,
    .linear = linear,
    .gelu = gelu,
    .largest = largest,
};
