/* SPDX-License-Identifier: BSD-3-Clause
 *
 * score_function.h: the user's score function by vectors of query rows. Its programs (core/score/score.h) are run on a tile
 * and a block of keys, an operation at a time:
 *
 *     of the call     once a tile, the same in all lanes
 *     of the row      once a tile, TILE_ROWS values
 *     of the key      once a tile and block, keys across the lanes; then copied to all lanes where pairs need it
 *     of the pair     CHUNK keys and a vector of rows at a time, in registers that stay in L1
 *
 * Before pairs are asked who sees whom, `visible` is evaluated on the block's ranges of rows and keys (core/score/ranges.h):
 * a block that is hidden, or visible, for certain takes no more. All memory is the worker's. */
#ifndef STROBE_CPU_SCORE_FUNCTION_H
#define STROBE_CPU_SCORE_FUNCTION_H

#include "core/score/bind.h"
#include "core/score/ranges.h"
#include "cpu/scratch.h"
#include "cpu/vector/rows.h"
#include "cpu/vector/score_operations.h"

enum { CHUNK = 16 }; /* keys: a register is 1 KiB at most */

/* Of a tile: calls, rows, ranges. Of a worker, for all of its tiles: the others. */
struct score_memory {
    float *calls;            /* [slots of calls][LANES] */
    float *rows;             /* [slots of rows][TILE_ROWS] */
    struct interval *ranges; /* [nodes] */
    float *keys;             /* [slots of keys][BLOCK_KEYS] */
    float *wide;             /* [slots of keys][BLOCK_KEYS][LANES] */
    float *registers;        /* [registers][CHUNK][LANES] */
    float *input;            /* [BLOCK_KEYS][TILE_ROWS] what the function was given, for the backward */
};

/* Takes a worker's part; nothing without a function. */
static inline struct score_memory take_score_memory(float *base, size_t *used, const struct problem *p) {
    const struct strobe_score *f = p->score_call.function;
    struct score_memory m = {0};
    if (!p->a.score) return m;
    int64_t registers = f->of_visible.registers;
    if (f->of_score.registers > registers) registers = f->of_score.registers;
    if (f->of_slope.registers > registers) registers = f->of_slope.registers;
    if (f->of_gradients.registers > registers) registers = f->of_gradients.registers;
    m.keys = take(base, used, f->slots[OF_KEY] * BLOCK_KEYS);
    m.wide = take(base, used, f->slots[OF_KEY] * BLOCK_KEYS * LANES);
    m.registers = take(base, used, registers * CHUNK * LANES);
    m.input = take(base, used, p->operation == STROBE_BACKWARD ? BLOCK_KEYS * TILE_ROWS : 0);
    return m;
}

/* Takes a tile's part, beside what its worker has. */
static inline struct score_memory take_tile_memory(const struct score_memory *worker, float *base, size_t *used,
                                                   const struct problem *p) {
    const struct strobe_score *f = p->score_call.function;
    struct score_memory m = *worker;
    if (!p->a.score) return m;
    m.calls = take(base, used, f->slots[OF_CALL] * LANES);
    m.rows = take(base, used, f->slots[OF_ROW] * TILE_ROWS);
    m.ranges = (struct interval *)(void *)take(base, used, f->node_count * (int64_t)(sizeof *m.ranges / sizeof(float)));
    return m;
}

/* ------------------------------------------------------------------------------------------------------------- values -- */

/* What is evaluated: a program on the rows of a vector, from r on, and the keys from `key` of the block on; the scores of
 * the first. */
struct score_run {
    const struct tile_rows *t;
    const struct score_memory *m;
    const struct score_program *program;
    int64_t r, key;
    const float *scores; /* [.][TILE_ROWS] */
};

/* Where the value of a node lies, as an operand of a pair. */
static inline struct score_operand pair_operand(const struct score_run *run, uint16_t node) {
    const struct strobe_score *f = run->t->p->score_call.function;
    const struct score_memory *m = run->m;
    const int64_t place = f->place[node];
    switch ((enum score_class)f->node[node].varies) {
    case OF_CALL: return (struct score_operand){m->calls + place * LANES, 0};
    case OF_ROW: return (struct score_operand){m->rows + place * TILE_ROWS + run->r, 0};
    case OF_KEY: return (struct score_operand){m->wide + (place * BLOCK_KEYS + run->key) * LANES, LANES};
    default: break;
    }
    if (f->node[node].operation == OP_SCORE) return (struct score_operand){run->scores, TILE_ROWS};
    return (struct score_operand){m->registers + run->program->register_of[node] * CHUNK * LANES, LANES};
}

/* The same as an operand of a row or a key. */
static inline struct score_operand class_operand(const struct score_run *run, uint16_t node) {
    const struct strobe_score *f = run->t->p->score_call.function;
    const struct score_memory *m = run->m;
    const int64_t place = f->place[node];
    if (f->node[node].varies == OF_CALL) return (struct score_operand){m->calls + place * LANES, 0};
    if (f->node[node].varies == OF_ROW) return (struct score_operand){m->rows + place * TILE_ROWS, LANES};
    return (struct score_operand){m->keys + place * BLOCK_KEYS, LANES};
}

static inline void run_step(const struct score_run *run, uint16_t at, float *to, const struct score_operand of[3],
                            int64_t count) {
    const struct score_call *call = &run->t->p->score_call;
    const struct score_node *n = &call->function->node[at];
    const enum score_operation operation = (enum score_operation)n->operation;
    if (operation == OP_LOAD)
        apply_load(to, of[0], count, &call->array[n->number]);
    else if ((operation >= OP_I_ADD && operation <= OP_I_SELECT) || operation == OP_I_TO_F)
        apply_to_integers(operation, to, of, count);
    else
        apply_to_floats(operation, to, of, count);
}

/* Writes a leaf's value into `count` floats, of rows or of keys from j0 on. Rows and keys that are not there have the last
 * one's. */
static inline void fill_leaf(const struct score_run *run, const struct score_node *n, float *to, int64_t count, int64_t j0,
                             int64_t keys) {
    const struct tile_rows *t = run->t;
    const struct score_call *call = &t->p->score_call;
    for (int64_t e = 0; e < count; ++e) {
        const int64_t r = e < t->n ? e : t->n - 1, j = e < keys ? e : keys - 1;
        int64_t x = 0;
        switch ((enum score_operation)n->operation) {
        case OP_BATCH: x = t->s.b; break;
        case OP_HEAD: x = packed_head(t, r); break;
        case OP_HEAD_KV: x = t->kv; break;
        case OP_ROW: x = t->p->a.q_start + packed_row(t, r); break;
        case OP_KEY: x = t->p->a.k_start + j0 + j; break;
        case OP_SEQ_Q: x = t->s.rows; break;
        case OP_SEQ_K: x = t->s.keys; break;
        case OP_STRIDE: x = call->array[n->number].stride[n->axis]; break;
        case OP_LAST: x = call->array[n->number].extent[n->axis] - 1; break;
        default: { /* a constant or a scalar */
            const double value = n->operation == OP_CONSTANT ? n->value : call->scalar[n->number];
            if (!n->is_integer) {
                to[e] = (float)value;
                continue;
            }
            x = (int64_t)value;
        }
        }
        const int32_t whole = (int32_t)x;
        memcpy(&to[e], &whole, sizeof whole);
    }
}

/* Runs the program's steps of calls, rows or keys. */
static inline void run_class(const struct score_run *run, int class, int64_t j0, int64_t keys) {
    const struct strobe_score *f = run->t->p->score_call.function;
    const uint16_t *step = run->program->step;
    for (int before = 0; before < class; ++before) step += run->program->count[before];
    for (int s = 0; s < run->program->count[class]; ++s) {
        const struct score_node *n = &f->node[step[s]];
        const int operands = strobe__score_operands((enum score_operation)n->operation);
        float *to = (float *)(uintptr_t)class_operand(run, step[s]).at;
        const int64_t vectors = class == OF_CALL ? 1 : class == OF_ROW ? VECTORS : vectors_of(keys);
        struct score_operand of[3] = {{to, 0}, {to, 0}, {to, 0}};
        for (int k = 0; k < operands; ++k) of[k] = class_operand(run, n->operand[k]);
        if (operands == 1) of[1] = of[0];
        if (operands == 0)
            fill_leaf(run, n, to, vectors * LANES, j0, keys);
        else
            run_step(run, step[s], to, of, vectors);
    }
}

/* The values of the keys of a block, and their copies. */
static inline void run_keys(const struct score_run *run, int64_t j0, int64_t keys) {
    const struct strobe_score *f = run->t->p->score_call.function;
    const struct score_memory *m = run->m;
    run_class(run, OF_KEY, j0, keys);
    for (int n = 0; n < run->program->wide_count; ++n) {
        const int64_t place = f->place[run->program->wide[n]];
        for (int64_t j = 0; j < keys; ++j)
            v_store(m->wide + (place * BLOCK_KEYS + j) * LANES, v_set(m->keys[place * BLOCK_KEYS + j]));
    }
}

/* The values of pairs: `count` keys, at most CHUNK. */
static inline void run_pairs(const struct score_run *run, int64_t count) {
    const struct strobe_score *f = run->t->p->score_call.function;
    const struct score_program *p = run->program;
    const uint16_t *step = p->step + p->count[OF_CALL] + p->count[OF_ROW] + p->count[OF_KEY];
    for (int s = 0; s < p->count[OF_PAIR]; ++s) {
        const struct score_node *n = &f->node[step[s]];
        const int operands = strobe__score_operands((enum score_operation)n->operation);
        struct score_operand of[3];
        if (operands == 0) continue; /* the score */
        for (int k = 0; k < 3; ++k) of[k] = pair_operand(run, n->operand[k < operands ? k : 0]);
        run_step(run, step[s], (float *)(uintptr_t)pair_operand(run, step[s]).at, of, count);
    }
}

/* ---------------------------------------------------------------------------------------------------- a tile, a block -- */

static inline struct score_box box_of(const struct tile_rows *t, int64_t j0, int64_t keys) {
    const int64_t first_h = t->kv * t->p->group, first_i = packed_row(t, 0), last_i = packed_row(t, t->n - 1);
    return (struct score_box){.b = t->s.b,
                              .hkv = t->kv,
                              .first_h = first_i == last_i ? packed_head(t, 0) : first_h,
                              .last_h = first_i == last_i ? packed_head(t, t->n - 1) : first_h + t->p->group - 1,
                              .first_i = t->p->a.q_start + first_i,
                              .last_i = t->p->a.q_start + last_i,
                              .first_j = t->p->a.k_start + j0,
                              .last_j = t->p->a.k_start + j0 + keys - 1,
                              .seq_q = t->s.rows,
                              .seq_k = t->s.keys};
}

/* Starts a tile: the values of the call and of its rows. */
static inline void start_score_function(const struct tile_rows *t, const struct score_memory *m) {
    const struct problem *p = t->p;
    const struct score_call *call = &p->score_call;
    const struct strobe_score *f = call->function;
    const bool asks = p->features & FEATURE(VISIBLE);
    const struct score_program *programs[3] = {asks ? &f->of_visible : NULL, f->has_score ? &f->of_score : NULL,
                                               f->has_score && p->operation == STROBE_BACKWARD ? &f->of_gradients : NULL};
    if (t->n <= 0) return;
    for (int n = 0; n < 3; ++n) {
        if (!programs[n]) continue;
        const struct score_run run = {.t = t, .m = m, .program = programs[n]};
        run_class(&run, OF_CALL, 0, 1);
        run_class(&run, OF_ROW, 0, 1);
    }
    const struct score_box box = box_of(t, 0, 1);
    if (asks) strobe__score_ranges(call, &f->of_visible, &box, OF_CALL, OF_KEY, m->ranges);
}

/* What `visible` says of a whole block, conservatively. */
static inline enum coverage function_covers(const struct tile_rows *t, const struct score_memory *m, int64_t j0,
                                            int64_t keys) {
    const struct score_call *call = &t->p->score_call;
    const struct score_box box = box_of(t, j0, keys);
    strobe__score_ranges(call, &call->function->of_visible, &box, OF_KEY, OF_PAIR + 1, m->ranges);
    const struct interval x = m->ranges[call->function->visible];
    return interval_is_false(x) ? BLOCK_SKIPPED : interval_is_true(x) ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* The keys that each row sees, pair by pair. */
static inline void see_function(uint64_t *seen, const struct tile_rows *t, const struct score_memory *m, int64_t j0,
                                int64_t keys) {
    const struct strobe_score *f = t->p->score_call.function;
    struct score_run run = {.t = t, .m = m, .program = &f->of_visible};
    run_keys(&run, j0, keys);
    for (run.r = 0; run.r < t->n; run.r += LANES) {
        vec_ints words[2] = {{0}, {0}};
        for (run.key = 0; run.key < keys; run.key += CHUNK) {
            const int64_t count = keys - run.key < CHUNK ? keys - run.key : CHUNK;
            run_pairs(&run, count);
            const struct score_operand root = pair_operand(&run, f->visible);
            for (int64_t n = 0; n < count; ++n) {
                const int64_t key = run.key + n;
                const uint32_t bit = 1u << key % 32;
                words[key / 32] |= (i_load(root.at + n * root.stride) != 0) & (int32_t)bit;
            }
        }
        for (int64_t lane = 0; lane < LANES && run.r + lane < t->n; ++lane)
            seen[run.r + lane] &= (uint64_t)(uint32_t)words[1][lane] << 32 | (uint32_t)words[0][lane];
    }
}

/* The scores of the vectors of rows [first, end) become the function's, after they are multiplied by `scale`. A bias of -inf
 * stays one. Returns whether one of them is -inf. */
static inline bool scores_function(float *s, const struct tile_rows *t, const struct score_memory *m, int first, int end,
                                   int64_t j0, int64_t keys, float scale) {
    const struct problem *p = t->p;
    const struct strobe_score *f = p->score_call.function;
    struct score_run run = {.t = t, .m = m, .program = &f->of_score};
    const vec none = v_set(-INFINITY);
    vec least = v_set(0);
    run_keys(&run, j0, keys);
    for (run.r = first * LANES; run.r < end * LANES; run.r += LANES)
        for (run.key = 0; run.key < keys; run.key += CHUNK) {
            const int64_t count = keys - run.key < CHUNK ? keys - run.key : CHUNK;
            float *const at = s + run.key * TILE_ROWS + run.r;
            for (int64_t n = 0; n < count; ++n) {
                const vec x = v_mul(v_load(at + n * TILE_ROWS), v_set(scale));
                v_store(at + n * TILE_ROWS, x);
                if (p->operation == STROBE_BACKWARD) v_store(m->input + (run.key + n) * TILE_ROWS + run.r, x);
            }
            run.scores = at;
            run_pairs(&run, count);
            const struct score_operand root = pair_operand(&run, f->score);
            for (int64_t n = 0; n < count; ++n) {
                vec x = v_load(root.at + n * root.stride);
                if (p->a.bias) x = v_select_equal(v_load(at + n * TILE_ROWS), none, none, x);
                least = v_min(x, least); /* a NaN leaves it as it is */
                v_store(at + n * TILE_ROWS, x);
            }
        }
    return v_equal_bits(least, none) != 0;
}

#endif
