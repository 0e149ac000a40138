/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trace.h: marks of what a warp role does, in builds with STROBE_TRACE; nothing at all in others. See strobe_trace.h. */
#ifndef STROBE_CUDA_SM90_TRACE_H
#define STROBE_CUDA_SM90_TRACE_H

#if defined(STROBE_TRACE)

#include "cuda/ptx/clock.h"
#include "strobe/strobe_trace.h"

/* Of one role: where the next mark goes, and where the last may. NULL in threads that write none. */
struct tracer {
    strobe_trace_mark *to, *end;
};

static __device__ __forceinline__ struct tracer start_tracer(strobe_trace *record, int role, bool writes) {
    struct tracer tracer = {NULL, NULL};
    if (blockIdx.x >= STROBE_TRACE_CTAS || !writes) return tracer;
    tracer.to = record->cta[blockIdx.x].mark[role];
    tracer.end = tracer.to + STROBE_TRACE_MARKS;
    return tracer;
}

static __device__ __forceinline__ void trace(struct tracer *tracer, uint32_t phase, uint32_t number) {
    if (tracer->to == tracer->end) return;
    *(uint2 *)tracer->to++ = make_uint2(clock_low(), number << 8 | phase);
}

/* One thread of the CTA, at its begin and its end. */
static __device__ __forceinline__ void note_moment(strobe_trace *record, bool begins) {
    if (blockIdx.x >= STROBE_TRACE_CTAS) return;
    strobe_trace_cta *cta = &record->cta[blockIdx.x];
    const strobe_trace_moment now = {global_nanoseconds(), multiprocessor_clock()};
    *(begins ? &cta->begin : &cta->end) = now;
    cta->multiprocessor = multiprocessor_index();
    if (blockIdx.x == 0) record->magic = STROBE_TRACE_MAGIC, record->ctas = gridDim.x;
}

/* params: a kernel's, of which `trace` is a member in such builds. */
#define tracer_of(params, role, writes) start_tracer((params)->trace, role, writes)
#define trace_moment(params, begins)    note_moment((params)->trace, begins)

#else

struct tracer {
    int nothing;
};
static __device__ __forceinline__ struct tracer no_tracer(void) {
    const struct tracer none = {0};
    return none;
}
#define tracer_of(params, role, writes) no_tracer()
#define trace(tracer, phase, number)    ((void)(tracer))
#define trace_moment(params, begins)    ((void)0)

#endif
#endif
