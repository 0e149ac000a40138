/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_function.cu: the pass before a kernel where the user's function says who sees whom: the states of all units, and
 * the bits of those that are visible in part (visible.h). A block of threads has some units of one owner:
 *
 *     ranges   a warp a unit: the function on the unit's ranges of rows and keys; hidden or visible for certain: done
 *     rows     a thread a row: the values that only rows have
 *     keys     a thread a key
 *     pairs    a thread sixty-four pairs, `at_once` at a time
 *
 * All threads of a warp are at the same step, which is read from the kernel's parameters. Rows and keys past the end of a
 * sequence have the last one's values, and count neither as visible nor as hidden. */
#include "cuda/device/function_pairs.h"
#include "cuda/device/visible_unit.h"
#include "cuda/ptx/dependent.h"

/* The unit that a block of threads is at. */
struct unit_place {
    struct function_place at;
    int first_row, first_key;
};

/* A warp: what the ranges of a unit say of it. */
INLINE int state_of_ranges(const struct any_visible_function *f, const struct unit_place *u, struct interval *ranges) {
    const int rows = min(u->first_row + UNIT, u->at.rows) - u->first_row;
    const int keys = min(u->first_key + UNIT, u->at.keys) - u->first_key;
    if (rows <= 0 || keys <= 0) return UNIT_HIDDEN;
    const struct function_box box = {u->first_row, u->first_row + rows - 1, u->first_key, u->first_key + keys - 1};
    const struct interval all = range_of_function(f, &u->at, &box, ranges);
    return interval_is_false(all) ? UNIT_HIDDEN : interval_is_true(all) ? UNIT_FULL : UNIT_PARTIAL;
}

/* The pairs of the boolean mask, or all, of sixteen keys of a row. */
INLINE struct sixteen pairs_there(const struct any_visible_function *f, const struct unit_place *u, const uint8_t *mask,
                                  int i, int j) {
    struct sixteen s = {0, 0};
    const int count = u->at.keys - j;
    if (i >= u->at.rows || count <= 0) return s;
    if (f->head.pass.mask.data) s = load_sixteen(&f->head.pass, mask, i, j);
    s.there = count >= 16 ? 0xffff : (1u << count) - 1;
    s.seen = f->head.pass.mask.data ? s.seen & s.there : s.there;
    return s;
}

INLINE void pack_unit(const struct any_visible_function *f, const struct function_memory *m, struct packed_unit *unit,
                      const struct unit_place *u, const uint8_t *mask, int state, int64_t at) {
    struct sixteen s[AT_A_TIME];
    if (state == UNIT_PARTIAL) {
        run_lines(f, m, &u->at, u->first_row, u->first_key);
        __syncthreads();
    }
#pragma unroll 1
    for (int n = 0; n < AT_A_TIME; ++n) {
        const int row = unit_row(n), key = 16 * unit_chunk();
        struct sixteen now = pairs_there(f, u, mask, u->first_row + row, u->first_key + key);
        if (state == UNIT_PARTIAL) now.seen &= run_pairs(f, m, row, key);
#pragma unroll
        for (int x = 0; x < AT_A_TIME; ++x)
            if (x == n) s[x] = now;
    }
    store_unit(&f->head.pass, unit, s, at);
}

INLINE void pack_units(const struct any_visible_function *f, const struct function_memory *m, struct packed_unit *unit,
                       int *states, unsigned index) {
    const struct visible_pass *p = &f->head.pass;
    const unsigned cuts = (unsigned)((p->others + p->per_block - 1) / p->per_block);
    const int other = (int)(index % cuts) * p->per_block, owner = (int)(index / cuts % (unsigned)p->owners[0]);
    const unsigned entry = index / cuts / (unsigned)p->owners[0];
    const int head = (int)(entry % (unsigned)p->heads[0]), batch = (int)(entry / (unsigned)p->heads[0]);
    const uint8_t *mask = (const uint8_t *)p->mask.data + batch * p->mask.batch + head * p->mask.head;
    const int64_t at = ((int64_t)entry * p->owners[0] + owner) * p->states;
    const int end = other + p->per_block < p->others ? other + p->per_block : p->others, warp = (int)threadIdx.x / 32;
    struct unit_place u = {function_place_of(f, batch, head), 0, 0};
    if (other + warp < end) {
        u.first_row = (p->transposed ? other + warp : owner) * UNIT;
        u.first_key = (p->transposed ? owner : other + warp) * UNIT;
        const int state = state_of_ranges(f, &u, m->ranges + warp * f->head.steps);
        if (threadIdx.x % 32 == 0) states[warp] = state;
    }
    __syncthreads();
#pragma unroll 1
    for (int n = other; n < end; ++n) {
        const int state = states[n - other];
        u.first_row = (p->transposed ? n : owner) * UNIT, u.first_key = (p->transposed ? owner : n) * UNIT;
        if (state == UNIT_PARTIAL || (state == UNIT_FULL && p->mask.data))
            pack_unit(f, m, unit, &u, mask, state, at + n);
        else if (threadIdx.x == 0)
            p->mask_states[at + n] = (uint8_t)state;
        __syncthreads();
    }
    if (end == p->others && threadIdx.x < p->states - p->others) p->mask_states[at + end + threadIdx.x] = UNIT_HIDDEN;
}

extern "C" __global__ void __launch_bounds__(UNIT_THREADS, 3) KERNEL(const __grid_constant__ struct any_visible_function f) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ struct packed_unit unit;
    __shared__ int states[RANGE_WARPS];
#if __CUDA_ARCH__ >= 900
    let_next_start();
#endif
    const struct function_memory m = function_memory_of(&f, memory);
    pack_units(&f, &m, &unit, states, blockIdx.x);
}
