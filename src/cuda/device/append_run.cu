/* SPDX-License-Identifier: BSD-3-Clause
 *
 * append_run.cu: strobe_append on a GPU for prompts: 16-bit rows of COLUMNS_OF_ROW (64, 128 or 256) columns, which are
 * copied, or turned in all of their columns, transformed and quantised as wanted. All else, and short calls, are
 * append.cu's; the bytes are the same.
 *
 * A warp has a run of neighbouring tokens, and of each up to eight heads. LANES neighbouring lanes hold a row, each eight
 * columns of each of its parts:
 *
 *     columns      0 .. 7 | 8 .. 15 | 16 .. 23 | 24 .. 31 | 32 .. 39 | ...        of 128
 *     lane            0        1         2          3          0
 *
 * So the pairs of rotary embedding, and all steps of a transform but two (three of 256 columns), are in a lane's own
 * registers, and a row's scale is worked out once by each of its lanes.
 *
 *     loads of the first tokens' rows         under way, while each lane finds where one token of the run goes
 *     for each token, or two of few heads:
 *         wait for its rows and angles        in shared memory; a lane reads its own rows, all lanes the angles
 *         load those of the next
 *         turn, transform, quantise, store
 *
 * The order of every operation is that of math/quantise.h. COLUMNS_OF_ROW, by -D; CTAS on a multiprocessor. */
#include "cuda/device/append_eight.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/maximum.h"
#include "cuda/ptx/shared_address.h"

enum {
    DIM = COLUMNS_OF_ROW,
    PAIRS = DIM / 2,
    LANES = APPEND_RUN_LANES(DIM),
    PARTS = DIM / LANES / COLUMNS,
    PART = DIM / PARTS, /* columns */
    ROWS = APPEND_RUN_ROWS(DIM),
    MOST_TOKENS = APPEND_RUN_TOKENS(DIM), /* at once, with angles */
    WARPS = APPEND_THREADS / 32,
    STAGES = 2,
};

/* Where a token's rows are. */
struct spot {
    int64_t from, to, scale, position; /* bytes to head 0 of its row of the source; elements; NOWHERE */
};
#define NOWHERE INT64_MIN

struct run_shared {
    uint4 rows[STAGES][PARTS][APPEND_THREADS];
    float angle[WARPS][STAGES][MOST_TOKENS][2][PAIRS]; /* cosines and sines */
    struct spot spot[WARPS][APPEND_MOST_RUN];
    uint4 sign[LANES][PARTS * 2 + 1]; /* a word for each column, with the sign's bit; a gap, for other banks */
};

/* What a warp has, and the lane of it. */
struct run {
    int warp, count;       /* of the CTA; tokens */
    uint32_t first;        /* token */
    int at_once;           /* tokens */
    int token, head, lane; /* of the lane: which of the tokens at once, and the lane of the row */
    bool has_head;
};

INLINE struct run run_of(const struct append_side *s, uint32_t block) {
    struct run r;
    const int row = (int)threadIdx.x % 32 / LANES;
    r.warp = (int)threadIdx.x / 32;
    const uint32_t warp = block * WARPS + (uint32_t)r.warp, chunk = divided(warp, &s->parts);
    r.first = chunk * (uint32_t)s->run;
    r.count = warp >= s->groups ? 0 : (int)(s->tokens - r.first < (uint32_t)s->run ? s->tokens - r.first : (uint32_t)s->run);
    r.at_once = ROWS / s->each;
    r.token = row / s->each, r.lane = (int)threadIdx.x % LANES;
    r.head = (int)(warp - chunk * s->parts.by) * s->each + row % s->each;
    r.has_head = r.head < s->units;
    return r;
}

/* Where the lane's token of the run lies, among all of the tensor's. */
INLINE struct group token_of(const struct append_side *s, const struct run *r) {
    struct group g;
    const int lane = (int)threadIdx.x % 32;
    const uint32_t token = r->first + (uint32_t)lane, batch = divided(token, &s->rows);
    g.token = (int)token, g.batch = batch, g.row = token - batch * s->rows.by;
    g.first = 0, g.lane = lane, g.there = lane < r->count;
    return g;
}

INLINE bool is_there(const struct run *r, int step) { return r->has_head && step * r->at_once + r->token < r->count; }

INLINE const struct spot *spot_of(const struct run_shared *shared, const struct run *r, int step) {
    return &shared->spot[r->warp][(step * r->at_once + r->token) % APPEND_MOST_RUN];
}

/* Begins to copy the rows of a step; of those that are not there 0. */
INLINE void begin_rows(const struct append_side *s, struct run_shared *shared, const struct run *r, int step, int stage) {
    const bool there = is_there(r, step);
    const char *from = (const char *)s->at.t.from;
    if (there) from += spot_of(shared, r, step)->from + r->head * s->at.t.from_stride[2] * 2 + 16 * r->lane;
#pragma unroll
    for (int n = 0; n < PARTS; ++n)
        cp_async_16(shared_address(&shared->rows[stage][n][threadIdx.x]), there ? from + n * PART * 2 : from,
                    there ? 16 : 0);
}

/* Begins to copy the angles of a step, or works them out. */
INLINE void begin_angles(const struct append_params *p, struct run_shared *shared, const struct run *r, int step,
                         int stage) {
    const struct quantise_choices *c = &p->choices;
#pragma unroll 1
    for (int n = 0; n < MOST_TOKENS && n < r->at_once && step * r->at_once + n < r->count; ++n) {
        const int64_t position = shared->spot[r->warp][step * r->at_once + n].position;
        float(*const to)[PAIRS] = shared->angle[r->warp][stage][n];
        if (p->tables_aligned && position >= 0 && position < c->positions) {
#pragma unroll
            for (int unit = (int)threadIdx.x % 32; unit < DIM / 4; unit += 32) {
                const int which = unit >= DIM / 8, at = 4 * (unit - which * (DIM / 8));
                cp_async_16(shared_address(&to[which][at]), (which ? c->sin : c->cos) + position * PAIRS + at, 16);
            }
        } else {
#pragma unroll 1
            for (int pair = (int)threadIdx.x % 32; pair < PAIRS; pair += 32) {
                const struct rotary_angle angle = angle_at(p, position, pair);
                to[0][pair] = angle.cos, to[1][pair] = angle.sin;
            }
        }
    }
}

INLINE void read_four(const float *from, float (&x)[4]) {
    const float4 four = *(const float4 *)from;
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

/* Turns a pair of columns. */
INLINE void rotate_pair(float *first, float *second, float cos, float sin) {
    const float a = *first, b = *second;
    *first = turned_first(a, b, cos, sin), *second = turned_second(a, b, cos, sin);
}

INLINE void rotate(bool interleaved, const float (*angle)[PAIRS], int lane, float (&x)[PARTS][COLUMNS]) {
    float cos[4], sin[4];
    if (interleaved) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int pair = (part * PART + lane * COLUMNS) / 2;
            read_four(&angle[0][pair], cos), read_four(&angle[1][pair], sin);
#pragma unroll
            for (int n = 0; n < 4; ++n) rotate_pair(&x[part][2 * n], &x[part][2 * n + 1], cos[n], sin[n]);
        }
        return;
    }
#pragma unroll
    for (int part = 0; part < PARTS / 2; ++part)
#pragma unroll
        for (int four = 0; four < COLUMNS; four += 4) {
            const int pair = part * PART + lane * COLUMNS + four;
            read_four(&angle[0][pair], cos), read_four(&angle[1][pair], sin);
#pragma unroll
            for (int n = 0; n < 4; ++n) rotate_pair(&x[part][four + n], &x[part + PARTS / 2][four + n], cos[n], sin[n]);
        }
}

INLINE void spread_signs(const struct append_params *p, struct run_shared *shared) {
#pragma unroll 1
    for (int n = (int)threadIdx.x; n < DIM; n += APPEND_THREADS) {
        const int lane = n / COLUMNS % LANES, at = n / PART * COLUMNS + n % COLUMNS;
        ((uint32_t *)shared->sign[lane])[at] = p->choices.signs[n / 32] << (31 - n % 32) & 0x80000000u;
    }
}

INLINE float with_sign(float x, uint32_t sign) { return __uint_as_float(__float_as_uint(x) ^ sign); }

/* Signs, the butterflies from far columns to near ones, the norm. All lanes of the warp. */
INLINE void transform(const uint4 *sign, int lane, float norm, float (&x)[PARTS][COLUMNS]) {
#pragma unroll
    for (int n = 0; n < PARTS * 2; ++n) {
        const uint4 four = sign[n];
        float *const to = &x[n / 2][n % 2 * 4];
        to[0] = with_sign(to[0], four.x), to[1] = with_sign(to[1], four.y);
        to[2] = with_sign(to[2], four.z), to[3] = with_sign(to[3], four.w);
    }
#pragma unroll
    for (int step = PARTS / 2; step > 0; step /= 2)
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            if (!(part & step))
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    const float a = x[part][n], b = x[part + step][n];
                    x[part][n] = a + b, x[part + step][n] = a - b;
                }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        const float sign_of_own = lane & step ? -1 : 1; /* a product by it is exact: one rounding, as of a sum */
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                x[part][n] = fmaf(sign_of_own, x[part][n], __shfl_xor_sync(0xffffffffu, x[part][n], step));
    }
#pragma unroll
    for (int step = COLUMNS / 2; step > 0; step /= 2)
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                if (!(n & step)) {
                    const float a = x[part][n], b = x[part][n + step];
                    x[part][n] = a + b, x[part][n + step] = a - b;
                }
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) x[part][n] = fmaf(x[part][n], norm, 0.0f); /* a zero is +0 */
}

/* The scale and the bytes of the lane's row; where, to: its scale and columns. All lanes of the warp. */
INLINE void store_bytes(const struct append_side *s, bool there, int lane, float *where, uint8_t *to,
                        const float (&x)[PARTS][COLUMNS]) {
    const struct quantise_tensor *t = &s->at.t;
    float most[4] = {0, 0, 0, 0}, scale = 1;
#pragma unroll
    for (int n = 0; n < PARTS * COLUMNS; ++n) most[n % 4] = larger_or_nan(most[n % 4], fabsf(x[n / COLUMNS][n % COLUMNS]));
    uint32_t largest = __float_as_uint(larger_or_nan(larger_or_nan(most[0], most[1]), larger_or_nan(most[2], most[3]))) &
                       0x7fffffffu;
    const bool infinite = __any_sync(0xffffffffu, largest >= 0x7f800000u);
    if (infinite) {
        bool any = false;
        largest = 0;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) largest = larger(largest, largest_of(x[part], t->int8, &any));
    }
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (t->block == 1) {
        scale = scale_of_bits(largest, t->int8);
        if (there && lane == 0) *where = scale;
    } else if (there) {
        scale = *where;
    }
    const float inverse = 1 / scale;
    uint2 bytes[PARTS];
    if (!t->int8) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) bytes[part] = eight_e4m3(x[part], inverse);
        if (infinite) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) patch_infinities(x[part], &bytes[part]);
        }
    } else if (t->block == 1 && !infinite) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) bytes[part] = eight_int8(x[part], inverse);
    } else {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) bytes[part] = eight_int8_limited(x[part], inverse);
    }
    if (there)
#pragma unroll
        for (int part = 0; part < PARTS; ++part) *(uint2 *)(to + part * PART) = bytes[part];
}

/* The rows of a step, which are in shared memory. All lanes of the warp. */
INLINE void store_rows(const struct append_params *p, const struct append_side *s, struct run_shared *shared,
                       const struct run *r, int step, int stage) {
    const struct quantise_tensor *t = &s->at.t;
    const struct spot *spot = spot_of(shared, r, step);
    const bool there = is_there(r, step) && spot->to != NOWHERE;
    const int64_t to = spot->to + r->head * t->to_stride[2] + r->lane * COLUMNS;
    uint4 raw[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; ++part) raw[part] = shared->rows[stage][part][threadIdx.x];
    if (s->way == APPEND_COPY) {
        if (there)
#pragma unroll
            for (int part = 0; part < PARTS; ++part) *(uint4 *)((uint16_t *)t->to + to + part * PART) = raw[part];
        return;
    }
    float x[PARTS][COLUMNS];
    if (t->from_dtype == CUDA_BF16) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) widen(CUDA_BF16, raw[part], x[part]);
    } else {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) widen(CUDA_FP16, raw[part], x[part]);
    }
    if (t->rotary) rotate(p->choices.interleaved, shared->angle[r->warp][stage][r->token % MOST_TOKENS], r->lane, x);
    if (t->hadamard) transform(shared->sign[r->lane], r->lane, p->norm, x);
    if (s->quantised) {
        store_bytes(s, there, r->lane, t->scale + spot->scale + r->head * t->scale_stride[2], t->to + to, x);
    } else if (there) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) store_floats(s, to + part * PART, x[part]);
    }
}

INLINE void append_run(const struct append_params *p, const struct append_side *s, struct run_shared *shared,
                       const struct run *r) {
    const int steps = (r->count + r->at_once - 1) / r->at_once;
    const struct group g = token_of(s, r);
    struct spot *own = &shared->spot[r->warp][g.lane % APPEND_MOST_RUN];
    if (g.there) own->from = source_of(&s->at.t, &g) * 2;
    __syncwarp();
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step)
        if (step < steps) begin_rows(s, shared, r, step, step);
    if (g.there) {
        const struct token_place place = place_of(p, s, &g);
        own->to = place.there ? place.to : NOWHERE, own->scale = place.scale, own->position = place.position;
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (s->at.t.rotary && step < steps) begin_angles(p, shared, r, step, step);
        cp_async_commit();
    }
    int stage = 0, next = STAGES - 1;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        cp_async_wait(STAGES - 2);
        __syncwarp(); /* all have come, and the stage that is filled next has been read by all */
        if (step + STAGES - 1 < steps) {
            begin_rows(s, shared, r, step + STAGES - 1, next);
            if (s->at.t.rotary) begin_angles(p, shared, r, step + STAGES - 1, next);
        }
        cp_async_commit();
        store_rows(p, s, shared, r, step, stage);
        stage = stage == STAGES - 1 ? 0 : stage + 1, next = next == STAGES - 1 ? 0 : next + 1;
    }
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS, CTAS) KERNEL(const __grid_constant__ struct append_params p) {
    __shared__ struct run_shared shared;
    uint32_t block = blockIdx.x;
    int which = 0;
    for (; block >= p.side[which].blocks; ++which) block -= p.side[which].blocks;
    const struct append_side *s = &p.side[which];
    const struct run r = run_of(s, block);
    if (s->at.t.hadamard) {
        spread_signs(&p, &shared);
        __syncthreads();
    }
    append_run(&p, s, &shared, &r);
}
