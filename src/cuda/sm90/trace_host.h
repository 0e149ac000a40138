/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trace_host.h: the record that kernels keep in builds with STROBE_TRACE, in front of the rest of the workspace. */
#ifndef STROBE_CUDA_SM90_TRACE_HOST_H
#define STROBE_CUDA_SM90_TRACE_HOST_H

#if defined(STROBE_TRACE)

#include <cuda_runtime_api.h>

#include "cuda/host/device.h"
#include "strobe/strobe_trace.h"

enum { TRACE_BYTES = sizeof(strobe_trace) };

static inline strobe_status clear_trace(strobe_trace *trace, void *stream) {
    return strobe__cuda_check(cudaMemsetAsync(trace, 0, sizeof *trace, (cudaStream_t)stream), "cudaMemsetAsync");
}

#else
enum { TRACE_BYTES = 0 };
#endif
#endif
