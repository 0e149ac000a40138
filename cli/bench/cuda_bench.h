/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_bench.h: measuring on a GPU: the time of a call by the device's own clock, L2 emptied before each, and what the GPU
 * does at best in loops of ours (bench/cuda_peaks.cu). Each function returns false, with a sentence, if something failed. */
#ifndef STROBE_CLI_CUDA_BENCH_H
#define STROBE_CLI_CUDA_BENCH_H

#include "bench/cuda_clock.h"
#include "bench/peak.h"
#include "bench/timing.h"
#include "problem/inputs.h"

/* Medians over samples until `budget` seconds are spent, at least 5 and at most 1000; on copies of the tensors. */
bool cuda_bench_time(const inputs *in, const outputs *out, double budget, timing *t, cuda_clocks *clocks, char *message,
                     size_t capacity);

/* The name of the loop that bounds products of the dtype. */
const char *cuda_bench_level(int64_t dtype);

/* Operations a second of that loop; bytes read and written a second by a copy. Takes about a tenth of a second. */
bool cuda_bench_peak(int64_t dtype, peak *now, cuda_clocks *clocks, char *message, size_t capacity);

#endif
