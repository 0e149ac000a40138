/* SPDX-License-Identifier: BSD-3-Clause
 *
 * decode_schedule.h: which CTA attends to which keys. An item is a K/V head of a sequence, with all query rows that share
 * it; its units are blocks of BLOCK_N keys that some row sees, at least one. All units of a call in a row are cut into even
 * shares, one for each CTA, by lengths that are read here, on the device: one long sequence beside many short ones keeps all
 * multiprocessors busy. (The "stream-K" division of work: Osama et al., 2023.) A CTA's share of one item is a segment.
 *
 *      item 0        item 1  item 2
 *      |. . . . . . .|. . . .|. . . . .|
 *      CTA 0   | CTA 1   | CTA 2   |       CTA 1 has the end of item 0, item 1 but for its end, ...
 *
 * The end of a segment that is not a whole item costs a CTA more time than a few blocks of keys. So a share ends with an
 * item where that end is near: where it is no further from the even cut than some blocks, and less than half a share.
 *
 * Where the caller has fixed the size of parts (split_keys), a share ends with the nearest part, and each part is a segment.
 *
 * Where no array tells the lengths and items have the same number of CTAs, each has one part, and nothing is worked out but
 * which.
 */
#ifndef STROBE_CUDA_SM80_DECODE_SCHEDULE_H
#define STROBE_CUDA_SM80_DECODE_SCHEDULE_H

#include "cuda/device/decode.h"
#include "cuda/device/job.h"
#include "cuda/device/stored.h"

/* Segments that are known at a time, a power of two: those of the blocks that are on their way, and two more. */
enum { SEGMENTS = 8 };

struct segment {
    struct job t;             /* its sequence and head */
    const stored *k, *v;      /* row 0 of the sequence, with pages of page 0 */
    int first, blocks;        /* the key at which it begins, and its blocks; 0: there is none */
    int full_first, full_end; /* all rows see the keys between */
    int slot, first_slot;     /* of its part, and of the item's first one: see decode_merge.h */
    int parts;                /* of the item */
};

/* The share of a CTA, and where its next segment begins. */
struct walk {
    uint32_t units;      /* of the CTA */
    uint32_t each, more; /* units of a CTA; the first `more` CTAs have one more */
    uint32_t at, end;    /* the next segment's first unit, and the end of the share, of all units */
    uint32_t unit;       /* `at`, counted from the first unit of sequence t */
    int blocks;          /* of an item of the sequence */
    int part_blocks;     /* as decode_params has them */
    struct job t;
};

/* Reads the lengths of sequence t->b; returns the blocks of each of its items. */
INLINE int blocks_of_sequence(struct job *t, const struct params *p) {
    job_sequence(t, p);
    const int64_t first = clamp(band_first(&t->band, 0), t->keys) / BLOCK_N, end = band_end(&t->band, t->rows - 1);
    const int64_t blocks = (end + BLOCK_N - 1) / BLOCK_N - first;
    return t->rows == 0 ? 0 : blocks > 0 ? (int)blocks : 1;
}

/* The CTA that has a unit by even cuts, and the unit at which a CTA begins by them. */
INLINE int cta_of_unit(const struct walk *w, uint32_t unit) {
    const uint32_t larger = w->more * (w->each + 1);
    const bool among = unit < larger;
    return (int)((among ? unit : unit - larger) / (among ? w->each + 1 : w->each) + (among ? 0 : w->more));
}
INLINE uint32_t even_cut(const struct walk *w, uint32_t cta) { return cta * w->each + (cta < w->more ? cta : w->more); }

/* Where a cut is moved to that lies `into` units into an item of so many blocks. */
enum { NEAR_BLOCKS = 4 };
INLINE uint32_t near_end(const struct walk *w, uint32_t into, uint32_t blocks) {
    if (w->part_blocks > 0) {
        const uint32_t size = (uint32_t)w->part_blocks, end = (into + size / 2) / size * size;
        return end < blocks ? end : blocks;
    }
    const uint32_t near = w->each / 2 < NEAR_BLOCKS ? w->each / 2 : NEAR_BLOCKS, rest = blocks - into;
    return into <= near && into <= rest ? 0 : rest <= near ? blocks : into;
}

/* The first CTA that has a part of the item at units [first, first + blocks), and the last one. */
INLINE int first_cta_of(const struct walk *w, uint32_t first, uint32_t blocks) {
    int cta = cta_of_unit(w, first);
    for (;; ++cta) {
        const uint32_t next = even_cut(w, (uint32_t)cta + 1) - first;
        if (next >= blocks || near_end(w, next, blocks) > 0) return cta;
    }
}
INLINE int last_cta_of(const struct walk *w, uint32_t first, uint32_t blocks) {
    int cta = cta_of_unit(w, first + blocks - 1);
    for (;; --cta) {
        const uint32_t cut = even_cut(w, (uint32_t)cta);
        if (cut <= first || near_end(w, cut - first, blocks) < blocks) return cta;
    }
}

/* Where q, K and V of the sequence and head of t begin. */
INLINE void find_tensors(struct segment *s, struct job *t, const struct params *p) {
    const struct place head = {0, t->kv * p->group};
    const int64_t batch = p->cache.page_table ? 0 : t->batch_k;
    t->q = (const element *)p->q.data + row_offset(&p->q, t, head);
    s->k = (const stored *)p->k.data + batch * p->k.batch + t->kv * p->k.head;
    s->v = (const stored *)p->v.data + batch * p->v.batch + t->kv * p->v.head;
}

/* Writes down the next segment of the CTA. One thread. Not inlined: instructions that are fetched for the first time cost a
 * short call more than all else, so that nothing here is there twice. */
static __device__ __noinline__ void next_segment(struct segment *s, struct walk *walk, const struct decode_params *d) {
    const struct params *p = &d->p;
    const uint32_t at = walk->at, left = walk->end - at;
    s->blocks = 0;
    if (left == 0) return;
    struct job t = walk->t;
    int blocks = walk->blocks;
    uint32_t unit = walk->unit;
    while (unit >= (uint32_t)(blocks * p->heads_kv)) {
        unit -= (uint32_t)(blocks * p->heads_kv);
        ++t.b;
        walk->blocks = blocks = blocks_of_sequence(&t, p);
        walk->t = t;
    }
    t.kv = (int)(unit / (uint32_t)blocks);
    const uint32_t block = unit - (uint32_t)(t.kv * blocks), rest = (uint32_t)blocks - block, item = at - block;
    uint32_t own = rest < left ? rest : left;
    if (d->part_blocks > 0) {
        const uint32_t size = (uint32_t)d->part_blocks, part = block / size;
        s->parts = (int)(((uint32_t)blocks + size - 1) / size);
        s->first_slot = (t.b * p->heads_kv + t.kv) * d->item_slots, s->slot = s->first_slot + (int)part;
        own = rest < size ? rest : size;
    } else {
        s->first_slot = (int)blockIdx.x, s->parts = 1;
        s->slot = (int)blockIdx.x + (block > 0 ? (int)gridDim.x : 0);
        if (own < (uint32_t)blocks) {
            s->first_slot = first_cta_of(walk, item, (uint32_t)blocks);
            s->parts = last_cta_of(walk, item, (uint32_t)blocks) - s->first_slot + 1;
        }
    }
    find_tensors(s, &t, p);
    s->t = t;
    s->blocks = (int)own;
    s->first = (clamp(band_first(&t.band, 0), t.keys) / BLOCK_N + (int)block) * BLOCK_N;
    s->full_first = clamp(band_first(&t.band, t.rows - 1), t.keys), s->full_end = (int)band_end(&t.band, 0);
    walk->at = at + own, walk->unit = unit + own;
}

/* The CTA's share of `total` units by even cuts. */
INLINE void share_out(struct walk *w, uint32_t total) {
    const uint32_t ctas = total < gridDim.x ? total : gridDim.x, cta = blockIdx.x;
    w->units = w->at = w->end = 0;
    if (cta >= ctas) return;
    w->each = total / ctas, w->more = total - w->each * ctas;
    w->at = even_cut(w, cta), w->end = even_cut(w, cta + 1);
    w->units = w->end - w->at;
}

/* find_share() where no array tells the lengths: one thread, which reads nothing from memory. */
INLINE void find_even_share(struct walk *w, const struct decode_params *d) {
    const struct params *p = &d->p;
    const uint32_t total = d->even_units * (uint32_t)p->batch, blocks = (uint32_t)d->even_blocks;
    share_out(w, total);
    if (w->units == 0) return;
    const uint32_t at = w->at / blocks * blocks, end = w->end / blocks * blocks;
    w->at = at + near_end(w, w->at - at, blocks), w->end = end == w->end ? end : end + near_end(w, w->end - end, blocks);
    w->units = w->end - w->at;
    const uint32_t b = w->at < total ? w->at / d->even_units : 0;
    w->unit = w->at - b * d->even_units, w->blocks = d->even_blocks;
    w->t.b = (int)b;
    job_sequence(&w->t, p);
}

/* The CTA's part, where items have as many CTAs each: its share and its only segment. One thread. */
INLINE void find_part(struct walk *walk, struct segment *s, const struct decode_params *d) {
    const struct params *p = &d->p;
    const uint32_t parts = d->item_ctas, blocks = (uint32_t)d->even_blocks, each = blocks / parts,
                   more = blocks - each * parts;
    const uint32_t item = blockIdx.x / parts, part = blockIdx.x - item * parts;
    struct job t;
    t.b = (int)item / p->heads_kv, t.kv = (int)item - t.b * p->heads_kv;
    job_sequence(&t, p);
    find_tensors(s, &t, p);
    const uint32_t block = part * each + (part < more ? part : more);
    s->blocks = (int)(each + (part < more));
    s->first = (clamp(band_first(&t.band, 0), t.keys) / BLOCK_N + (int)block) * BLOCK_N;
    s->full_first = clamp(band_first(&t.band, t.rows - 1), t.keys), s->full_end = (int)band_end(&t.band, 0);
    s->first_slot = (int)(blockIdx.x - part), s->parts = (int)parts;
    s->slot = (int)blockIdx.x + (part > 0 ? (int)gridDim.x : 0);
    s->t = t;
    walk->units = (uint32_t)s->blocks, walk->at = walk->end = 0;
}

/* Moves a cut of find_share() that lies in a sequence of the thread's; w: of its first sequence, which begins at unit
 * `begin`. w->unit and w->t: the cut's. */
INLINE uint32_t move_cut(struct walk *w, const struct params *p, uint32_t cut, uint32_t begin) {
    uint32_t unit = cut - begin;
    while (unit >= (uint32_t)(w->blocks * p->heads_kv)) {
        unit -= (uint32_t)(w->blocks * p->heads_kv);
        ++w->t.b;
        w->blocks = blocks_of_sequence(&w->t, p);
    }
    const uint32_t blocks = (uint32_t)w->blocks, into = unit % blocks;
    w->unit = unit - into + near_end(w, into, blocks);
    return cut - unit + w->unit;
}

/* Finds the CTA's share and its first segment. Threads add up the blocks of some neighbouring sequences each; the one among
 * whose is the CTA's first unit begins there, the one among whose is the next CTA's first unit tells where the share ends.
 * All threads; sums: [THREADS / 32 + 1] in shared memory. */
INLINE void find_share(struct walk *walk, struct segment *segment, uint32_t *sums, const struct decode_params *d) {
    const struct params *p = &d->p;
    const int thread = (int)threadIdx.x, lane = thread % 32;
    if (d->item_ctas > 0) {
        if (thread == 0) find_part(walk, segment, d);
        __syncthreads();
        return;
    }
    uint32_t *const end_of_share = &sums[THREADS / 32];
    struct walk w;
    w.part_blocks = d->part_blocks;
    bool mine = thread == 0;
    if (d->even_blocks > 0) {
        if (mine) find_even_share(&w, d);
    } else {
        const int each = (p->batch + THREADS - 1) / THREADS;
        const int first = thread * each, end = first + each < p->batch ? first + each : p->batch;
        uint32_t sum = 0;
#pragma unroll 1
        for (int b = end - 1; b >= first; --b) {
            w.t.b = b;
            w.blocks = blocks_of_sequence(&w.t, p);
            sum += (uint32_t)(w.blocks * p->heads_kv);
        }
        uint32_t last = sum; /* the last unit of the thread's, and one more */
#pragma unroll
        for (int n = 1; n < 32; n *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, last, n);
            if (lane >= n) last += other;
        }
        if (lane == 31) sums[thread / 32] = last;
        __syncthreads();
        uint32_t total = 0;
#pragma unroll
        for (int n = 0; n < THREADS / 32; ++n) {
            if (n < thread / 32) last += sums[n];
            total += sums[n];
        }
        share_out(&w, total);
        const uint32_t begin = last - sum, even_end = w.end;
        mine = w.units > 0 ? begin <= w.at && w.at < last : mine;
        const bool ends_here = w.units > 0 && (even_end < total ? begin <= even_end && even_end < last : mine);
        if (ends_here) {
            struct walk to_end = w;
            *end_of_share = even_end < total ? move_cut(&to_end, p, even_end, begin) : total;
        }
        if (mine && w.units > 0) w.at = move_cut(&w, p, w.at, begin);
        __syncthreads();
        if (mine && w.units > 0) w.end = *end_of_share, w.units = w.end - w.at;
    }
    if (mine) {
        *walk = w;
        if (w.units > 0) next_segment(segment, walk, d);
    }
    __syncthreads();
}

#endif
