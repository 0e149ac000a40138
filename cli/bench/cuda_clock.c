/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cuda_clock.c: clocks of the GPU, from NVML's library if it is here; see cuda_clock.h. */
#include "bench/cuda_clock.h"

#include "portable/posix.h"
#include "problem/cuda_driver.h"

#include <stdio.h>

enum { SM_CLOCK = 1, BUS_ID = 32 }; /* NVML_CLOCK_SM; the length of a PCI address with its zero */

static struct {
    int (*init)(void);
    int (*by_bus)(const char *bus_id, void **card);
    int (*clock)(void *card, int which, unsigned *mhz);
    int (*reasons)(void *card, unsigned long long *bits);
} nvml;

/* nvmlClocksEventReasons, less those of idle cards and of displays. */
static const struct {
    unsigned long long bit;
    const char *name;
} names[] = {{0x2, "clocks set by hand"}, {0x4, "power cap"}, {0x8, "hardware slowdown"},
             {0x10, "other cards"},       {0x60, "heat"},     {0x80, "power brake"}};

/* The card of the command's device, NULL without NVML. */
static void *open_card(void) {
    static void *card;
    static int asked;
    if (asked++) return card;
    char message[64], bus_id[BUS_ID];
    const cuda_driver *driver = cuda_driver_open(message, sizeof message);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!driver || !library || !cuda_driver_find(library, &nvml.init, "nvmlInit_v2") ||
        !cuda_driver_find(library, &nvml.by_bus, "nvmlDeviceGetHandleByPciBusId_v2") ||
        !cuda_driver_find(library, &nvml.clock, "nvmlDeviceGetClockInfo") ||
        !cuda_driver_find(library, &nvml.reasons, "nvmlDeviceGetCurrentClocksThrottleReasons"))
        return NULL;
    if (!cuda_driver_bus_id(bus_id, BUS_ID) || nvml.init() || nvml.by_bus(bus_id, &card)) card = NULL;
    return card;
}

void cuda_clock_look(cuda_clocks *seen) {
    unsigned mhz;
    unsigned long long bits;
    void *card = open_card();
    seen->most_mhz = (unsigned)cuda_driver_attribute(DEVICE_CLOCK_KHZ) / 1000;
    if (!card || nvml.clock(card, SM_CLOCK, &mhz)) return;
    if (seen->low_mhz == 0 || mhz < seen->low_mhz) seen->low_mhz = mhz;
    if (mhz > seen->high_mhz) seen->high_mhz = mhz;
    if (!nvml.reasons(card, &bits)) seen->reasons |= bits;
}

const char *cuda_clock_reasons(const cuda_clocks *seen, char *text, size_t capacity) {
    size_t length = 0;
    if (seen->low_mhz == 0) return "unknown";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (!(seen->reasons & names[i].bit) || length >= capacity) continue;
        length += (size_t)snprintf(text + length, capacity - length, "%s%s", length ? ", " : "", names[i].name);
    }
    return length ? text : "nothing";
}
