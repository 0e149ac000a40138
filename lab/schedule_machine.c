/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule_machine.c: the SM of the simulation: a producer, consumers, and the pipes that they share. Time goes from event
 * to event: an event is the end of some piece of work; between two events every piece of work proceeds at its pipe's rate
 * over the number that share the pipe. After each event every warp group goes on until it has to wait. */
#include "schedule_machine.h"

#include "schedule_program.h"

#include <math.h>
#include <stdlib.h>

/* Work of one warp group on one pipe. */
typedef struct work {
    lab_unit unit;
    int64_t block;
    double left, start; /* clocks when alone */
} work;

enum { IN_FLIGHT = 2 }; /* products of one warp group */

typedef struct consumer {
    work products[IN_FLIGHT]; /* in order; the first one runs */
    int product_count;
    work vector; /* max, exp or rescale */
    bool busy;   /* with vector */
    bool gives;  /* ping-pong: gives the tensor cores up when its products have ended */
    bool done;
    const lab_step *step;
    int64_t j;
} consumer;

typedef struct machine {
    const lab_schedule *s;
    const lab_program *program;
    lab_timeline *timeline;
    consumer consumers[LAB_MOST_CONSUMERS];
    const double *cost; /* [LAB_UNITS] */
    double time;
    int64_t blocks;
    int owner; /* ping-pong: the consumer that has the tensor cores */
    work load;
    bool loading;
    int64_t loaded_k, loaded_v;                                       /* blocks whose K, whose V has arrived */
    int64_t freed_k[LAB_MOST_CONSUMERS], freed_v[LAB_MOST_CONSUMERS]; /* blocks that each is done with */
} machine;

static void record(machine *m, int who, const work *w) {
    if (m->timeline->span_count < LAB_SPANS)
        m->timeline->spans[m->timeline->span_count++] = (lab_span){
            .unit = w->unit, .consumer = who, .block = w->block, .start = w->start, .end = m->time};
}

/* ------------------------------------------------------------------------------------------------------ the producer -- */

static int64_t least(const int64_t *values, int count) {
    int64_t smallest = values[0];
    for (int i = 1; i < count; ++i) smallest = values[i] < smallest ? values[i] : smallest;
    return smallest;
}

/* FA3's Algorithm 1, lines 6 to 10: the next block is loaded into its stage once all consumers are done with the block
 * there. */
static void produce(machine *m) {
    if (m->loading || m->loaded_v == m->blocks) return;
    /* K_0, K_1, V_0, K_2, V_1, ...: the pipeline wants K of the next block before V of this one. */
    const bool is_k = m->loaded_k < m->blocks && m->loaded_k - m->loaded_v < 2;
    const int64_t block = is_k ? m->loaded_k : m->loaded_v;
    if (block - least(is_k ? m->freed_k : m->freed_v, m->s->consumers) >= m->s->stages) return;
    const lab_unit unit = is_k ? LAB_LOAD_K : LAB_LOAD_V;
    m->load = (work){.unit = unit, .block = block, .left = m->cost[unit], .start = m->time};
    m->loading = true;
}

/* ------------------------------------------------------------------------------------------------------ the consumers -- */

static void issue(machine *m, consumer *c, lab_unit unit, int64_t block) {
    c->products[c->product_count++] = (work){.unit = unit, .block = block, .left = m->cost[unit], .start = m->time};
}

/* Ping-pong: gives the tensor cores to the next warp group that still has something to do. */
static void pass_tensor_cores(machine *m) {
    for (int i = 0; i < m->s->consumers; ++i) {
        m->owner = (m->owner + 1) % m->s->consumers;
        if (!m->consumers[m->owner].done) return;
    }
}

/* Executes one instruction. False: it has to wait. */
static bool execute(machine *m, int who, lab_op op, int64_t block) {
    consumer *c = &m->consumers[who];
    switch (op) {
    case LAB_OP_TAKE: return !m->s->ping_pong || (m->owner == who && !c->gives);
    case LAB_OP_GIVE: c->gives = m->s->ping_pong; return true;
    case LAB_OP_WAIT_K: return m->loaded_k > block;
    case LAB_OP_WAIT_V: return m->loaded_v > block;
    case LAB_OP_QK: issue(m, c, LAB_QK, block); return true;
    case LAB_OP_PV: issue(m, c, LAB_PV, block); return true;
    case LAB_OP_WAIT_ALL: return c->product_count == 0;
    case LAB_OP_WAIT_ONE: return c->product_count <= 1;
    case LAB_OP_FREE_K: m->freed_k[who] = block + 1; return true;
    case LAB_OP_FREE_V: m->freed_v[who] = block + 1; return true;
    default: break; /* max, shuffle, exp, rescale: start; the next instruction begins at the end */
    }
    static const lab_unit units[] = {
        [LAB_OP_MAX] = LAB_MAX, [LAB_OP_SHUFFLE] = LAB_SHUFFLE, [LAB_OP_EXP] = LAB_EXP, [LAB_OP_RESCALE] = LAB_RESCALE};
    const lab_unit unit = units[op];
    c->vector = (work){.unit = unit, .block = block, .left = m->cost[unit], .start = m->time};
    c->busy = true;
    return true;
}

/* Executes instructions of a warp group until it has to wait. Returns whether it did anything. */
static bool advance(machine *m, int who) {
    consumer *c = &m->consumers[who];
    bool moved = false;
    while (!c->done && !c->busy) {
        if (c->step->op == LAB_OP_END) {
            c->done = c->j == m->blocks;
            ++c->j;
            c->step = c->j < m->blocks ? m->program->body : m->program->last;
            continue;
        }
        const int64_t block = c->j + c->step->offset;
        if (block >= 0 && !execute(m, who, c->step->op, block)) break;
        ++c->step;
        moved = true;
    }
    if (c->gives && c->product_count == 0 && m->owner == who) {
        c->gives = false;
        pass_tensor_cores(m);
        moved = true;
    }
    return moved;
}

/* ------------------------------------------------------------------------------------------------------------- time -- */

typedef enum pipe { PIPE_TENSOR, PIPE_VECTOR, PIPE_EXP, PIPE_LATENCY, PIPES } pipe;

static pipe pipe_of(lab_unit unit) { return unit == LAB_EXP ? PIPE_EXP : unit == LAB_SHUFFLE ? PIPE_LATENCY : PIPE_VECTOR; }

/* Advances a piece of work by `clocks` at 1 / sharers of the rate. Returns whether it has ended. */
static bool proceed(work *w, double clocks, int sharers) {
    w->left -= clocks / sharers;
    return w->left < 1e-9;
}

static void count_sharers(const machine *m, int sharers[PIPES]) {
    for (int i = 0; i < PIPES; ++i) sharers[i] = 0;
    for (int i = 0; i < m->s->consumers; ++i) {
        const consumer *c = &m->consumers[i];
        if (c->product_count > 0) ++sharers[PIPE_TENSOR];
        if (c->busy) ++sharers[pipe_of(c->vector.unit)];
    }
    sharers[PIPE_LATENCY] = 1; /* waiting is free */
}

/* The time until the next piece of work ends; infinity if there is none. */
static double until_next(const machine *m, const int sharers[PIPES]) {
    double next = m->loading ? m->load.left : (double)INFINITY;
    for (int i = 0; i < m->s->consumers; ++i) {
        const consumer *c = &m->consumers[i];
        if (c->product_count > 0) next = fmin(next, c->products[0].left * sharers[PIPE_TENSOR]);
        if (c->busy) next = fmin(next, c->vector.left * sharers[pipe_of(c->vector.unit)]);
    }
    return next;
}

static void pass_time(machine *m, double clocks, const int sharers[PIPES]) {
    m->time += clocks;
    if (m->loading && proceed(&m->load, clocks, 1)) {
        record(m, -1, &m->load);
        m->loading = false;
        ++*(m->load.unit == LAB_LOAD_K ? &m->loaded_k : &m->loaded_v);
    }
    for (int i = 0; i < m->s->consumers; ++i) {
        consumer *c = &m->consumers[i];
        if (c->product_count > 0 && proceed(&c->products[0], clocks, sharers[PIPE_TENSOR])) {
            record(m, i, &c->products[0]);
            c->products[0] = c->products[1];
            c->products[0].start = m->time;
            --c->product_count;
        }
        if (c->busy && proceed(&c->vector, clocks, sharers[pipe_of(c->vector.unit)])) {
            record(m, i, &c->vector);
            c->busy = false;
        }
    }
}

static void simulate(machine *m) {
    for (;;) {
        for (bool moved = true; moved;) {
            moved = false;
            for (int i = 0; i < m->s->consumers; ++i) moved = advance(m, i) || moved;
        }
        produce(m);
        int sharers[PIPES];
        count_sharers(m, sharers);
        const double next = until_next(m, sharers);
        if (!isfinite(next)) return;
        pass_time(m, next, sharers);
    }
}

bool lab_machine_run(const lab_schedule *schedule, const double cost[LAB_UNITS], lab_timeline *timeline) {
    machine *m = calloc(1, sizeof *m);
    if (!m) return false;
    *m = (machine){.s = schedule, .program = lab_program_of_depth(schedule->depth), .timeline = timeline, .cost = cost};
    m->blocks = (schedule->n + schedule->bc - 1) / schedule->bc;
    for (int i = 0; i < schedule->consumers; ++i) m->consumers[i].step = m->program->first;
    simulate(m);
    timeline->clocks = m->time;
    free(m);
    return true;
}
