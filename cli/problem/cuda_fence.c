/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_fence.c: pieces of memory beside pages that are mapped to nothing; see cuda_fence.h. */
#include "problem/cuda_fence.h"

#include "problem/cuda_driver.h"

enum { MOST_PLACES = 64 };
static const size_t place_bytes = (size_t)4 << 30; /* addresses, which cost nothing; of them half may be mapped */

typedef struct place {
    device_address start; /* of the mapped pages: a quarter of the place lies before them */
    size_t mapped;        /* bytes of them */
} place;

static place places[MOST_PLACES];
static int used;

/* The size of a page; 0 where there are none to map. */
static size_t page_bytes(const cuda_driver *driver) {
    static const memory_kind kind = {.pinned = 1, .location = {.is_device = 1}};
    static size_t bytes;
    enum { LEAST = 0 };
    if (!bytes && (!driver->page_size || driver->page_size(&bytes, &kind, LEAST))) bytes = 0;
    return bytes;
}

/* Maps pages behind those that the place has. */
static bool grow(const cuda_driver *driver, place *p, size_t bytes) {
    static const memory_kind kind = {.pinned = 1, .location = {.is_device = 1}};
    static const memory_access access = {.location = {.is_device = 1}, .read_and_write = 3};
    unsigned long long pages = 0;
    device_address range = 0;
    if (!p->start) {
        if (driver->reserve(&range, place_bytes, 0, 0, 0)) return false;
        p->start = range + place_bytes / 4;
    }
    if (driver->create_pages(&pages, bytes, &kind, 0)) return false;
    const device_address at = p->start + p->mapped;
    const bool mapped = driver->map(at, bytes, 0, pages, 0) == 0;
    driver->release_pages(pages); /* the mapping keeps them */
    if (!mapped || driver->set_access(at, bytes, &access, 1)) return false;
    p->mapped += bytes;
    return true;
}

void *cuda_fence_copied(const void *from, size_t bytes, fence_side side, uintptr_t address, size_t unit) {
    char message[64];
    const cuda_driver *driver = cuda_driver_open(message, sizeof message);
    const size_t page = driver ? page_bytes(driver) : 0;
    if (!page || used == MOST_PLACES || bytes > place_bytes / 4) return NULL;
    place *p = &places[used];
    const size_t needed = (bytes + unit + page - 1) / page * page; /* with room for the address modulo unit */
    if (p->mapped < needed && !grow(driver, p, needed - p->mapped)) return NULL;
    ++used;
    const uintptr_t wanted = address % unit;
    device_address at = p->start + wanted;
    if (side == FENCE_BEHIND) {
        const device_address last = p->start + p->mapped - bytes; /* where it would end with the pages */
        at = last - (last - wanted) % unit;
    }
    const device_address end = p->start + p->mapped, beside = side == FENCE_BEHIND ? at + bytes : p->start;
    const size_t mapped_beside = (size_t)(side == FENCE_BEHIND ? end - beside : at - beside);
    const bool filled = (!mapped_beside || !driver->fill(beside, 0xFF, mapped_beside)) &&
                        (!bytes || !(from ? driver->to_device(at, from, bytes) : driver->fill(at, 0xFF, bytes)));
    return filled ? (void *)(uintptr_t)at : NULL;
}

void cuda_fence_reuse(void) { used = 0; }
