/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.cu (sm90): FlashAttention-3's forward (Shah et al., 2024) on Hopper: tensor copies, asynchronous matrix products,
 * specialised warp groups. One text, compiled for each (HEAD_DIM, KEYS, GROUPS) and element type:
 *
 *     HEAD_DIM 64..256 columns of Q, K, V in shared memory   GROUPS consumer warp groups, 64 query rows each
 *     KEYS     keys in a block                               ELEMENT_BF16 or ELEMENT_FP16
 *     TERMS    1: softcap and ALiBi; a variant of its own, since their code costs 15 % where it only stands by
 *
 * A CTA owns a tile of 64 GROUPS rows of one query head. Blocks of keys run from right to left, so that masked ones come
 * first. A producer warp copies, two stages deep; in a consumer, softmax of block n runs under the product P V of block n + 1,
 * and the groups take turns at issuing products, so that one's softmax runs under the other's products:
 *
 *     producer    | K0 Q | K1 V0 | K2 V1 | ...                            wait for room -> expect bytes -> copy
 *     consumer 0  | QK0 softmax0 | QK1 PV0, softmax1 | QK2 PV1, softmax2 | ... | PVlast, O / l -> shared -> global
 *     consumer 1  |     QK0 softmax0 | QK1 PV0, softmax1 | ...
 *
 * Shared memory: Q [slab][rows][64], two stages of K and V [slab][KEYS][64], slabs of 64 columns, 128-byte swizzle.
 * Registers of a consumer: S KEYS/2, P KEYS/4, O HEAD_DIM/2. See docs/kernels/sm90_forward.md for the tuning. */
#if defined(ELEMENT_BF16)
#define STROBE_MMA_TYPE "bf16"
#define pack16          cvt_bf16x2
#else
#define STROBE_MMA_TYPE "f16"
#define pack16          cvt_f16x2
#endif

#include "cuda/ptx/convert.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/warp_group.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/forward_params.h"
#include "cuda/sm90/forward_tile.h"
#include "cuda/sm90/exact_row.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define SCORES_STEP JOIN(wgmma_ss_, KEYS)
#define VALUES_STEP JOIN(wgmma_rs_, HEAD_DIM)

enum {
    STAGES = 2,
    SLABS = (HEAD_DIM + 63) / 64,
    THREADS = 128 * (GROUPS + 1),
    ROW_BYTES = 128, /* of a slab */
    Q_SLAB = 64 * ROW_BYTES, /* of one group */
    KV_SLAB = KEYS * ROW_BYTES,
    SCORES = KEYS / 2,     /* accumulators of a thread */
    OUTPUTS = HEAD_DIM / 2,
    TURN_BARRIER = 1, /* TURN_BARRIER + g: group g may issue */
};

/* Of a thread, after they have moved: at launch all have 65536 / THREADS. */
#define PRODUCER_REGISTERS (GROUPS == 3 ? 32 : 24)
#define CONSUMER_REGISTERS (GROUPS == 3 ? 160 : 240)

/* Stale maxima are kept until a row grows by more than 2^8: weights stay below 2^8, sums and O are scaled alike, and O is
 * rarely touched between products. A constant: part of the numerics. */
#define GROWTH_LIMIT 8.0f

/* Where there is room, the next tile's Q has a second place, and O one of its own; else O takes Q's, and the next Q waits. */
#define ROOMY    (HEAD_DIM <= 128)
#define Q_STAGES (ROOMY ? 2 : 1)

/* A group's rows of Q and O, 64 by HEAD_DIM in slabs. */
enum {
    GROUP_BYTES = SLABS * Q_SLAB,
    TILES = 4, /* known at a time: the one in hand, and what the producer is ahead */
};

struct shared {
    unsigned char q[Q_STAGES][GROUPS][GROUP_BYTES];
    unsigned char k[STAGES][SLABS * KV_SLAB];
    unsigned char v[STAGES][SLABS * KV_SLAB];
    unsigned char o[ROOMY ? GROUPS : 1][ROOMY ? GROUP_BYTES : 16];
    uint64_t q_full[Q_STAGES][GROUPS], q_empty[Q_STAGES][GROUPS];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    uint64_t tile_full[TILES], tile_empty[TILES];
    struct tile tile[TILES];
};

/* Blocks and tiles are counted from the kernel's start by both sides; from a count follow the stage and the parity of its
 * phase. A reader waits for `full`, the writer for `empty`, which is one phase behind: a fresh barrier has completed that. */
struct counts {
    uint32_t k, v, q;
};

static __device__ __forceinline__ uint32_t stage_of(uint32_t count) { return count % STAGES; }
static __device__ __forceinline__ uint32_t full_parity(uint32_t count) { return count / STAGES % 2; }
static __device__ __forceinline__ uint32_t empty_parity(uint32_t count) { return full_parity(count) ^ 1; }
static __device__ __forceinline__ uint32_t slot_of(uint32_t count) { return count % TILES; }
static __device__ __forceinline__ uint32_t slot_parity(uint32_t count) { return count / TILES % 2; }
static __device__ __forceinline__ uint32_t q_stage_of(uint32_t count) { return count % Q_STAGES; }
static __device__ __forceinline__ uint32_t q_parity(uint32_t count) { return count / Q_STAGES % 2; }

static __device__ __forceinline__ void load_block(unsigned char *to, const CUtensorMap *map, uint64_t *full, int slab_bytes,
                                                  int row, int head, int batch, uint64_t policy) {
    mbarrier_expect(full, SLABS * slab_bytes);
    for (int slab = 0; slab < SLABS; ++slab)
        tma_load_4d(to + slab * slab_bytes, map, full, slab * 64, row, head, batch, policy);
}

/* One thread: Q, then K and V of every block, V a block behind K. */
static __device__ __forceinline__ void produce(const struct sm90_forward_params *p, struct shared *s, const struct tile *t,
                                               struct counts *count) {
    const int kv_head = t->head / p->group;
    const int batch_q = p->cu_seqlens_q ? 0 : t->batch, batch_k = p->cu_seqlens_k ? 0 : t->batch;
    if (t->end_block == t->first_block) return;
    const uint32_t q_stage = q_stage_of(count->q), q_was_read = q_parity(count->q++) ^ 1;
    for (int group = 0; group < GROUPS; ++group) {
        mbarrier_wait(&s->q_empty[q_stage][group], q_was_read);
        load_block(s->q[q_stage][group], &p->q, &s->q_full[q_stage][group], Q_SLAB,
                   (int)t->first_row + t->row + 64 * group, t->head, batch_q, TMA_EVICT_FIRST);
    }
    for (int n = t->end_block - 1; n >= t->first_block - 1; --n) {
        if (n >= t->first_block) {
            const uint32_t stage = stage_of(count->k);
            mbarrier_wait(&s->k_empty[stage], empty_parity(count->k++));
            load_block(s->k[stage], &p->k, &s->k_full[stage], KV_SLAB, (int)t->first_key + n * KEYS, kv_head, batch_k,
                       TMA_EVICT_LAST);
        }
        if (n < t->end_block - 1) {
            const uint32_t stage = stage_of(count->v);
            mbarrier_wait(&s->v_empty[stage], empty_parity(count->v++));
            load_block(s->v[stage], &p->v, &s->v_full[stage], KV_SLAB, (int)t->first_key + (n + 1) * KEYS, kv_head, batch_k,
                       TMA_EVICT_LAST);
        }
    }
}

/* One thread: tile after tile. The first is the CTA's number, the next ones are drawn from a counter. Consumers are told of a
 * tile before its loads; a tile of number p->tiles is the sign to stop. */
static __device__ __forceinline__ void producer(const struct sm90_forward_params *p, struct shared *s) {
    struct counts count = {0, 0, 0};
    uint32_t told = 0;
    for (int number = blockIdx.x, going = 1; going; ++told) {
        const struct tile t = tile_of(p, number);
        mbarrier_wait(&s->tile_empty[slot_of(told)], slot_parity(told) ^ 1);
        s->tile[slot_of(told)] = t;
        mbarrier_arrive(&s->tile_full[slot_of(told)]);
        going = number < p->tiles;
        if (!going) break;
        number = gridDim.x < p->tiles ? (int)(gridDim.x + atomicAdd(&p->workspace->next_tile, 1)) : p->tiles;
        produce(p, s, &t, &count);
    }
}

/* What a consumer thread keeps of its two rows, l / 4 and l / 4 + 8 of its warp's sixteen. */
struct rows {
    float maximum[2]; /* of raw scores, perhaps stale */
    float sum[2];     /* of the weights that this thread holds */
    float growth[2];  /* what O has to be multiplied by, where `rescale` */
    bool rescale;     /* the same for the whole warp */
};

static __device__ __forceinline__ void issue_scores(float (&s)[SCORES], uint64_t q, uint64_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; ++step) {
        const int columns = step % 4 * 2;
        SCORES_STEP(s, q + step / 4 * (Q_SLAB / 16) + columns, k + step / 4 * (KV_SLAB / 16) + columns, step > 0);
    }
    wgmma_commit();
}

static __device__ __forceinline__ void issue_values(float (&o)[OUTPUTS], const uint32_t (&w)[SCORES / 2], uint64_t v) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KEYS / 16; ++step) VALUES_STEP(o, &w[4 * step], v + step * (16 * ROW_BYTES / 16));
    wgmma_commit();
}

/* Scores become weights 2^(s c - m c); `rows` moves on. */
static __device__ __forceinline__ void online_softmax(float (&s)[SCORES], struct rows *r, float c) {
    float seen[2] = {r->maximum[0], r->maximum[1]};
#pragma unroll
    for (int v = 0; v < SCORES; ++v) seen[v / 2 % 2] = fmaxf(seen[v / 2 % 2], s[v]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        seen[i] = fmaxf(seen[i], __shfl_xor_sync(0xffffffffu, seen[i], 1));
        seen[i] = fmaxf(seen[i], __shfl_xor_sync(0xffffffffu, seen[i], 2));
    }
    const bool grew = (seen[0] - r->maximum[0]) * c > GROWTH_LIMIT || (seen[1] - r->maximum[1]) * c > GROWTH_LIMIT;
    r->rescale = __any_sync(0xffffffffu, grew);
    if (r->rescale) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            r->growth[i] = seen[i] == -INFINITY ? 1.0f : ex2((r->maximum[i] - seen[i]) * c);
            r->maximum[i] = seen[i];
            r->sum[i] *= r->growth[i];
        }
    }
    const float shift[2] = {r->maximum[0] == -INFINITY ? 0 : r->maximum[0] * c,
                            r->maximum[1] == -INFINITY ? 0 : r->maximum[1] * c};
#pragma unroll
    for (int v = 0; v < SCORES; ++v) {
        s[v] = ex2(fmaf(s[v], c, -shift[v / 2 % 2]));
        r->sum[v / 2 % 2] += s[v];
    }
}

static __device__ __forceinline__ void pack_weights(uint32_t (&w)[SCORES / 2], const float (&s)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; ++i) w[i] = pack16(s[2 * i], s[2 * i + 1]);
}

static __device__ __forceinline__ void rescale(float (&o)[OUTPUTS], const struct rows *r) {
    if (!r->rescale) return;
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) o[v] *= r->growth[v / 2 % 2];
}

/* Bytes from the start of a group's staging memory to (row, column), swizzled like Q against bank conflicts. */
static __device__ __forceinline__ int staged(int row, int column) {
    return column / 64 * Q_SLAB + row * ROW_BYTES + ((column % 64 / 8) ^ (row % 8)) * 16 + column % 8 * 2;
}

/* O / l, rounded, into the warp's rows of the staging memory, then a row's 16-byte pieces by neighbouring lanes to where they
 * belong; lse beside. Returns whether the warp's O was finite, as far as that is asked. */
static __device__ __forceinline__ bool epilogue(const struct sm90_forward_params *p, unsigned char *staging,
                                                const struct tile *t, float (&o)[OUTPUTS], struct rows *r, int first) {
    const int lane = threadIdx.x % 32;
    float factor[2];
    float nothing = 0; /* 0 x = 0 unless x is an infinity or a NaN */
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        r->sum[i] += __shfl_xor_sync(0xffffffffu, r->sum[i], 1);
        r->sum[i] += __shfl_xor_sync(0xffffffffu, r->sum[i], 2);
        factor[i] = finish_row(p, t, first + lane / 4 + 8 * i, r->maximum[i], r->sum[i], lane % 4 == 0);
    }
#pragma unroll
    for (int v = 0; v < OUTPUTS; v += 2) {
        const int row = first % 64 + lane / 4 + 8 * (v / 2 % 2), column = 8 * (v / 4) + 2 * (lane % 4), i = v / 2 % 2;
        *(uint32_t *)(staging + staged(row, column)) = pack16(o[v] * factor[i], o[v + 1] * factor[i]);
    }
    __syncwarp();
    for (int at = lane; at < 16 * (HEAD_DIM / 8); at += 32) {
        const int row = at / (HEAD_DIM / 8), column = at % (HEAD_DIM / 8) * 8;
        store_piece(p, t, first + row, column, staging + staged(first % 64 + row, column));
    }
    if (!p->may_hide) return true;
#pragma unroll
    for (int v = 0; v < OUTPUTS; ++v) nothing = fmaf(o[v], 0, nothing);
    return !__any_sync(0xffffffffu, nothing != 0);
}

static __device__ __forceinline__ void release(uint64_t *empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}

#define STAGE_STEP (SLABS * KV_SLAB / 16) /* from stage to stage in a descriptor */

/* A tile's rows of one warp group, from Q to O. `count` is the number of blocks before this tile. */
static __device__ __forceinline__ void attend(const struct sm90_forward_params *p, struct shared *shared,
                                              const struct tile *t, uint32_t count, uint32_t q_stage, int group,
                                              float (&o)[OUTPUTS], struct rows *r) {
    float s[SCORES];
    uint32_t w[SCORES / 2];
    const float c = exponent_factor(p);
    const int first = 64 * group + threadIdx.x % 128 / 32 * 16; /* of the warp's rows in the tile */
    const uint64_t q = wgmma_operand(shared_address(shared->q[q_stage][group]), 0);
    const uint64_t k = wgmma_operand(shared_address(shared->k), 0), v = wgmma_operand(shared_address(shared->v), KV_SLAB);

    mbarrier_wait(&shared->k_full[stage_of(count)], full_parity(count));
    issue_scores(s, q, k + stage_of(count) * STAGE_STEP);
    wgmma_wait(0);
    release(&shared->k_empty[stage_of(count)]);
    if (ROOMY && t->end_block - 1 == t->first_block) release(&shared->q_empty[q_stage][group]);
    finish_scores(p, t, s, first, (t->end_block - 1) * KEYS);
    online_softmax(s, r, c);
    pack_weights(w, s);

    for (int n = t->end_block - 2; n >= t->first_block; --n) {
        const uint32_t before = stage_of(count), before_parity = full_parity(count), now = stage_of(++count);
        mbarrier_wait(&shared->k_full[now], full_parity(count));
        if (GROUPS > 1) named_barrier_wait(TURN_BARRIER + group, 256);
        issue_scores(s, q, k + now * STAGE_STEP);
        mbarrier_wait(&shared->v_full[before], before_parity);
        issue_values(o, w, v + before * STAGE_STEP);
        if (GROUPS > 1) named_barrier_arrive(TURN_BARRIER + (group + 1) % GROUPS, 256);
        wgmma_wait(1);
        release(&shared->k_empty[now]);
        if (ROOMY && n == t->first_block) release(&shared->q_empty[q_stage][group]);
        finish_scores(p, t, s, first, n * KEYS);
        online_softmax(s, r, c);
        wgmma_wait(0);
        release(&shared->v_empty[before]);
        pack_weights(w, s);
        rescale(o, r);
    }
    mbarrier_wait(&shared->v_full[stage_of(count)], full_parity(count));
    issue_values(o, w, v + stage_of(count) * STAGE_STEP);
    wgmma_wait(0);
    release(&shared->v_empty[stage_of(count)]);
}

/* One warp group: tile after tile, then what has to be computed again. */
static __device__ __forceinline__ void consumer(const struct sm90_forward_params *p, struct shared *shared, int group) {
    uint32_t count = 0, q_count = 0, told = 0; /* blocks, tiles with blocks, tiles */
    int chain = -1;
    const int first = 64 * group + threadIdx.x % 128 / 32 * 16;
    if (GROUPS > 1 && group == GROUPS - 1) named_barrier_arrive(TURN_BARRIER, 256);
    for (;; ++told) {
        const struct tile *t = &shared->tile[slot_of(told)];
        mbarrier_wait(&shared->tile_full[slot_of(told)], slot_parity(told));
        if (t->number >= p->tiles) break;
        const int blocks = t->end_block - t->first_block;
        const uint32_t q_stage = q_stage_of(q_count);
        float o[OUTPUTS];
        struct rows r = {{-INFINITY, -INFINITY}, {0, 0}, {1, 1}, false};
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i) o[i] = 0;
        if (blocks > 0) {
            mbarrier_wait(&shared->q_full[q_stage][group], q_parity(q_count++));
            const struct tile own = *t; /* in registers through the loop; the epilogue reads it again */
            attend(p, shared, &own, count, q_stage, group, o, &r);
        }
        unsigned char *staging = ROOMY ? shared->o[ROOMY ? group : 0] : shared->q[q_stage][group];
        if (!epilogue(p, staging, t, o, &r, first)) chain = note_repair(p->workspace, t->number, chain);
        if (!ROOMY) fence_proxy_async(); /* the next Q is written by the copy engine where O was read */
        __syncwarp();
        if (!ROOMY && blocks > 0) release(&shared->q_empty[q_stage][group]);
        release(&shared->tile_empty[slot_of(told)]);
        count += blocks;
    }
    repair(p, chain, first);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL(const __grid_constant__ struct sm90_forward_params p) {
    extern __shared__ unsigned char memory[];
    struct shared *shared = (struct shared *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 0) {
        tma_prefetch_map(&p.q), tma_prefetch_map(&p.k), tma_prefetch_map(&p.v);
        for (int i = 0; i < Q_STAGES * GROUPS; ++i)
            mbarrier_init(&shared->q_full[0][i], 1), mbarrier_init(&shared->q_empty[0][i], 4);
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(&shared->k_full[stage], 1), mbarrier_init(&shared->v_full[stage], 1);
            mbarrier_init(&shared->k_empty[stage], 4 * GROUPS), mbarrier_init(&shared->v_empty[stage], 4 * GROUPS);
        }
        for (int slot = 0; slot < TILES; ++slot)
            mbarrier_init(&shared->tile_full[slot], 1), mbarrier_init(&shared->tile_empty[slot], 4 * GROUPS);
        mbarrier_init_fence();
    }
    __syncthreads();
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_release(PRODUCER_REGISTERS);
        if (threadIdx.x == 0) producer(&p, shared);
    } else {
        registers_claim(CONSUMER_REGISTERS);
        consumer(&p, shared, group);
    }
}
