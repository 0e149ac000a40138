/* SPDX-License-Identifier: BSD-3-Clause
 *
 * with_gpu.h: test programs that need a GPU. Where there is none that this build can use they end with 77, which ctest
 * counts as skipped. */
#ifndef STROBE_TESTS_UNIT_WITH_GPU_H
#define STROBE_TESTS_UNIT_WITH_GPU_H

#include <stdbool.h>
#include <stdio.h>

#include "problem/cuda_memory.h"
#include "strobe/strobe.h"
#include "test.h"

static inline bool has_gpu(void) {
    char message[256];
    strobe_device_info info = {.struct_size = sizeof info};
    if (strobe_device_at(STROBE_CUDA, 0, &info) == STROBE_OK && cuda_memory_open(message, sizeof message)) return true;
    puts("skipped: there is no GPU that this build can use");
    return false;
}

#define RUN_WITH_GPU(tests) (has_gpu() ? cmocka_run_group_tests(tests, NULL, NULL) : 77)

#endif
