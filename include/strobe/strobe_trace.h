/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_trace.h: what a kernel of a library built with STROBE_TRACE records about its own run, for `strobe trace` and for
 * who tunes kernels. Such a build says so in strobe_build_info; other builds leave nothing. Valid as C and as CUDA C.
 *
 * The first sizeof(strobe_trace) bytes of the workspace hold the trace. Each warp role of the first blocks of threads
 * ("CTAs") writes a mark when it enters a phase, which lasts until its next mark. Clocks are those of the multiprocessor,
 * modulo 2^32; `begin` and `end` name the same two moments by both clocks, so that clocks become nanoseconds. */
#ifndef STROBE_TRACE_H
#define STROBE_TRACE_H

#include <stdint.h>

enum { STROBE_TRACE_CTAS = 4, STROBE_TRACE_ROLES = 7, STROBE_TRACE_MARKS = 4096 };

/* Roles of the forward: one warp that loads K and V, one that schedules tiles, one that loads Q, then the warp groups that
 * compute. Of the backward: one warp that loads, one for each group that adds up its dQ, then the groups. */
enum {
    STROBE_TRACE_LOADER,
    STROBE_TRACE_SCHEDULER,
    STROBE_TRACE_QUERY_LOADER,
    STROBE_TRACE_CONSUMER,
    STROBE_TRACE_WRITER = STROBE_TRACE_SCHEDULER
};

/* Phases, in the low byte of a mark; above it the number of the block or tile. */
enum {
    STROBE_TRACE_NOTHING,   /* no mark */
    STROBE_TRACE_WAIT_TILE, /* for the description of a tile */
    STROBE_TRACE_WAIT_ROOM, /* for shared memory to be read by all */
    STROBE_TRACE_LOAD_Q,
    STROBE_TRACE_LOAD_K,
    STROBE_TRACE_LOAD_V,
    STROBE_TRACE_DESCRIBE, /* a tile is drawn and described */
    STROBE_TRACE_WAIT_Q,
    STROBE_TRACE_WAIT_K,
    STROBE_TRACE_WAIT_V,
    STROBE_TRACE_WAIT_PING_PONG, /* for the other group to have issued its products */
    STROBE_TRACE_QK,             /* Q K^T is issued */
    STROBE_TRACE_PV,             /* P V is issued */
    STROBE_TRACE_WAIT_QK,        /* for the scores */
    STROBE_TRACE_MAXIMUM,        /* mask and row maxima */
    STROBE_TRACE_WAIT_PV,
    STROBE_TRACE_EXPONENTIAL, /* P, its row sums, rounding, rescale of O */
    STROBE_TRACE_EPILOGUE,    /* O / l, or dK and dV, to memory */
    STROBE_TRACE_LOAD_DOUT,   /* from here on the backward's */
    STROBE_TRACE_WAIT_DOUT,
    STROBE_TRACE_P_AND_DV,      /* dP is issued, P, dV is issued */
    STROBE_TRACE_WAIT_DP,       /* for V dO^T */
    STROBE_TRACE_DS_AND_DK,     /* dS, to shared memory too, dK is issued */
    STROBE_TRACE_WAIT_DS,       /* for the other group's dS; dQ is issued */
    STROBE_TRACE_WAIT_DV,       /* for P^T dO */
    STROBE_TRACE_WAIT_DQ,       /* for dS^T Q and dS K; the next K Q^T is issued */
    STROBE_TRACE_STORE_DQ,      /* dQ to shared memory */
    STROBE_TRACE_WAIT_S,        /* for K Q^T */
    STROBE_TRACE_ADD_DQ,        /* dQ from there to its sums */
    STROBE_TRACE_WAIT_DQ_ORDER, /* deterministic: for the tiles that add to the same dQ before this one */
    STROBE_TRACE_END,
    STROBE_TRACE_PHASES
};

typedef struct strobe_trace_mark {
    uint32_t clock, phase;
} strobe_trace_mark;

typedef struct strobe_trace_moment {
    uint64_t nanoseconds, clock;
} strobe_trace_moment;

typedef struct strobe_trace_cta {
    strobe_trace_moment begin, end;
    uint32_t multiprocessor, unused[7];
    strobe_trace_mark mark[STROBE_TRACE_ROLES][STROBE_TRACE_MARKS]; /* up to a phase of 0, or all: later ones are lost */
} strobe_trace_cta;

typedef struct strobe_trace {
    uint64_t magic; /* STROBE_TRACE_MAGIC once a kernel has written here */
    uint64_t ctas;
    uint64_t unused[6]; /* to a multiple of 64 bytes, as is that of each CTA */
    strobe_trace_cta cta[STROBE_TRACE_CTAS];
} strobe_trace;

#define STROBE_TRACE_MAGIC 0x31656361727473ull /* "strace1" */

#endif
