/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trace.h: marks of what a warp role does, in builds with STROBE_TRACE; nothing at all in others. See strobe_trace.h. */
#ifndef STROBE_CUDA_SM90_TRACE_H
#define STROBE_CUDA_SM90_TRACE_H

#if defined(STROBE_TRACE)

#include "cuda/ptx/clock.h"
#include "cuda/sm90/forward_params.h"

/* Of one role: where the next mark goes, and where the last may. NULL in threads that write none. */
struct tracer {
    strobe_trace_mark *to, *end;
};

static __device__ __forceinline__ struct tracer tracer_of(const struct sm90_forward_params *p, int role, bool writes) {
    struct tracer tracer = {NULL, NULL};
    if (blockIdx.x >= STROBE_TRACE_CTAS || !writes) return tracer;
    tracer.to = p->trace->cta[blockIdx.x].mark[role];
    tracer.end = tracer.to + STROBE_TRACE_MARKS;
    return tracer;
}

static __device__ __forceinline__ void trace(struct tracer *tracer, uint32_t phase, uint32_t number) {
    if (tracer->to == tracer->end) return;
    *(uint2 *)tracer->to++ = make_uint2(clock_low(), number << 8 | phase);
}

/* One thread of the CTA, at its begin and its end. */
static __device__ __forceinline__ void trace_moment(const struct sm90_forward_params *p, bool begins) {
    if (blockIdx.x >= STROBE_TRACE_CTAS) return;
    strobe_trace_cta *cta = &p->trace->cta[blockIdx.x];
    const strobe_trace_moment now = {global_nanoseconds(), multiprocessor_clock()};
    *(begins ? &cta->begin : &cta->end) = now;
    cta->multiprocessor = multiprocessor_index();
    if (blockIdx.x == 0) p->trace->magic = STROBE_TRACE_MAGIC, p->trace->ctas = gridDim.x;
}

#else

struct tracer {
    int nothing;
};
#define tracer_of(params, role, writes) ((struct tracer){0})
#define trace(tracer, phase, number)    ((void)(tracer))
#define trace_moment(params, begins)    ((void)0)

#endif
#endif
