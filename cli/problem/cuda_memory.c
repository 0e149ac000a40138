/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_memory.c: memory of a GPU, by calls of the driver; see cuda_memory.h. */
#include "problem/cuda_memory.h"

#include "problem/cuda_driver.h"

#include <stdint.h>
#include <stdio.h>

enum { PIECE_ALIGNMENT = 512 }; /* that of the driver's own allocations */

static const cuda_driver *driver;

static struct {
    size_t wanted, bytes, used;
    device_address memory;
    int64_t pieces;
} arena;

bool cuda_memory_open(char *message, size_t capacity) {
    driver = cuda_driver_open(message, capacity);
    return driver != NULL;
}

void cuda_memory_use_arena(size_t bytes) { arena.wanted = bytes; }

/* 0 if the arena has no room. */
static device_address cut(size_t bytes) {
    if (!arena.bytes && arena.wanted && !driver->allocate(&arena.memory, arena.wanted)) arena.bytes = arena.wanted;
    const size_t start = (arena.used + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
    if (start > arena.bytes || bytes > arena.bytes - start) return 0;
    arena.used = start + bytes;
    ++arena.pieces;
    return arena.memory + start;
}

static bool is_cut(device_address memory) { return memory >= arena.memory && memory < arena.memory + arena.bytes; }

void *cuda_memory_allocated(size_t bytes) {
    device_address memory = 0;
    return driver->allocate(&memory, bytes) ? NULL : (void *)(uintptr_t)memory;
}

void *cuda_memory_copied(const void *from, size_t bytes) {
    device_address memory = cut(bytes ? bytes : 1);
    if (!memory && driver->allocate(&memory, bytes ? bytes : 1)) return NULL;
    if (bytes && (from ? driver->to_device(memory, from, bytes) : driver->fill(memory, 0xFF, bytes))) {
        cuda_memory_free((void *)(uintptr_t)memory);
        return NULL;
    }
    return (void *)(uintptr_t)memory;
}

void *cuda_memory_copied_to(int device, const void *from, size_t bytes) {
    device_address memory = 0;
    if (device == 0) return cuda_memory_copied(from, bytes);
    bool made = cuda_driver_use(device) && !driver->allocate(&memory, bytes ? bytes : 1);
    if (made && bytes) made = !(from ? driver->to_device(memory, from, bytes) : driver->fill(memory, 0xFF, bytes));
    if (!made && memory) driver->release(memory);
    return cuda_driver_enter() && made ? (void *)(uintptr_t)memory : NULL;
}

bool cuda_memory_copy_back(void *to, const void *from, size_t bytes) {
    return bytes == 0 || driver->to_host(to, (uintptr_t)from, bytes) == 0;
}

bool cuda_memory_copy_over(void *to, const void *from, size_t bytes) {
    return bytes == 0 || driver->to_device((uintptr_t)to, from, bytes) == 0;
}

bool cuda_memory_poison(void *memory, size_t bytes) {
    return bytes == 0 || driver->fill((uintptr_t)memory, 0xFF, bytes) == 0;
}

void cuda_memory_free(void *memory) {
    if (!memory) return;
    if (!is_cut((uintptr_t)memory))
        driver->release((uintptr_t)memory);
    else if (--arena.pieces == 0)
        arena.used = 0;
}

static bool lost;

bool cuda_memory_is_lost(void) { return lost; }

bool cuda_memory_wait(char *message, size_t capacity) {
    const int error = driver->wait();
    const char *name = "an unknown error";
    if (!error) return true;
    lost = true;
    driver->error_name(error, &name);
    snprintf(message, capacity, "the GPU reports %s", name);
    return false;
}
