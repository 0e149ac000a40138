/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.c: memory of a GPU, by calls of the driver; see cuda_memory.h. */
#include "problem/cuda_memory.h"

#include "problem/cuda_driver.h"

#include <stdint.h>
#include <stdio.h>

static const cuda_driver *driver;

bool cuda_memory_open(char *message, size_t capacity) {
    driver = cuda_driver_open(message, capacity);
    return driver != NULL;
}

void *cuda_memory_copied(const void *from, size_t bytes) {
    device_address memory;
    if (driver->allocate(&memory, bytes ? bytes : 1)) return NULL;
    if (bytes && (from ? driver->to_device(memory, from, bytes) : driver->fill(memory, 0xFF, bytes))) {
        driver->release(memory);
        return NULL;
    }
    return (void *)(uintptr_t)memory;
}

bool cuda_memory_copy_back(void *to, const void *from, size_t bytes) {
    return bytes == 0 || driver->to_host(to, (uintptr_t)from, bytes) == 0;
}

void cuda_memory_free(void *memory) {
    if (memory) driver->release((uintptr_t)memory);
}

bool cuda_memory_wait(char *message, size_t capacity) {
    const int error = driver->wait();
    const char *name = "an unknown error";
    if (!error) return true;
    driver->error_name(error, &name);
    snprintf(message, capacity, "the GPU reports %s", name);
    return false;
}
