/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel_table.c: see kernel_table.h. */
#include "kernel_table.h"

#include <string.h>

int kernels_for(struct fixture *f, strobe_operation operation, const char *names[MOST_KERNELS]) {
    strobe_kernel_info info = {.struct_size = sizeof info};
    const char *chosen;
    int count = 0;
    for (int32_t k = 0; count < MOST_KERNELS && strobe_kernel_at(k, &info) == STROBE_OK; ++k) {
        if (info.operation != (int32_t)operation || info.device != STROBE_CPU || info.unavailable) continue;
        f->tuning.kernel = info.name;
        if (strobe_select(&f->a, operation == STROBE_BACKWARD ? &f->g : NULL, &chosen) == STROBE_OK)
            names[count++] = info.name;
    }
    return count;
}

bool is_yardstick(const char *kernel) {
    return strncmp(kernel, "reference_", 10) == 0 || strncmp(kernel, "standard_", 9) == 0;
}
