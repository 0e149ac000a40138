/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which CTA attends to which keys. An item is a K/V head of a sequence, and its units are the blocks of KEYS
 * keys that some row sees, at least one. All units of a call in a row are cut into even shares, by lengths that are read
 * here, on the device (the "stream-K" division of work: Osama et al., 2023). CTAs side by side have the same share and
 * different tiles of 64 packed rows, so that the keys of a share come from memory once. What a share has of one item is a
 * segment. */
#ifndef STROBE_CUDA_SM90_LATENT_SCHEDULE_H
#define STROBE_CUDA_SM90_LATENT_SCHEDULE_H

#include "cuda/device/job.h"
#include "cuda/sm90/latent/params.h"

enum {
    KEYS = LATENT_KEYS,
    SEGMENT_BLOCKS = 8,
};

/* By a product with what the host gives: there are less than 2^16 CTAs. */
INLINE int share_of_cta(const struct latent_params *d) { return (int)(blockIdx.x * d->tiles_factor >> 16); }
INLINE int tile_of_cta(const struct latent_params *d) { return (int)blockIdx.x - share_of_cta(d) * d->row_tiles; }

/* The blocks of a sequence that some row sees; a sequence of which none is seen has one all the same. */
struct blocks {
    int first, count;
};

/* Reads the lengths of sequence t->b. */
INLINE struct blocks blocks_of(struct job *t, const struct params *p) {
    job_sequence(t, p);
    const int first = (int)(band_first(&t->band, 0) < t->keys ? band_first(&t->band, 0) : t->keys) / KEYS;
    const int end = ((int)band_end(&t->band, t->rows - 1) + KEYS - 1) / KEYS;
    const struct blocks seen = {end > first ? first : 0, t->rows == 0 ? 0 : end > first ? end - first : 1};
    return seen;
}

struct segment {
    struct job t;             /* its sequence and K/V head */
    int first, blocks;        /* the key at which it begins, and its blocks; 0: there are no more segments */
    int full_first, full_end; /* all rows see the keys between */
    int begins, parts;        /* the item begins here; shares that have parts of it */
};

/* The shares of a call, and where the next segment of this one begins. */
struct walk {
    uint32_t run, cuts;  /* shares are cut from so many units at a time, of all items or of one; so many are */
    uint32_t each, more; /* units of a share; the first `more` shares of a run have one more */
    uint32_t at, end;    /* the next segment's first unit, and the end of the share, of all units */
    uint32_t unit;       /* `at`, counted from the first unit of sequence `batch` */
    int batch;
    struct crossing last; /* that began in the share */
};

INLINE uint32_t begin_of_share(const struct walk *w, uint32_t share) {
    const uint32_t run = share < w->cuts ? 0 : share / w->cuts, cut = share - run * w->cuts;
    return run * w->run + cut * w->each + (cut < w->more ? cut : w->more);
}

/* The share that has a unit. */
INLINE int share_of_unit(const struct walk *w, uint32_t unit) {
    const uint32_t run = unit < w->run ? 0 : unit / w->run, larger = w->more * (w->each + 1), at = unit - run * w->run;
    return (int)(run * w->cuts + (at < larger ? at / (w->each + 1) : w->more + (at - larger) / w->each));
}

/* Cuts all units into shares: as many as the host says, or fewer where these would be short. Where all items are alike, and
 * shares of whole items or of equal parts of one end almost as soon, these are taken: each segment more costs about as much
 * as SEGMENT_BLOCKS blocks. count: of each item's blocks if all are alike, else 0. Returns how many. All lanes. */
INLINE uint32_t cut_shares(struct walk *w, const struct latent_params *d, uint32_t total, uint32_t count) {
    const uint32_t all = (uint32_t)d->shares, items = (uint32_t)(d->p.batch * d->p.heads_kv), lane = threadIdx.x % 32;
    const uint32_t most = total / (uint32_t)d->least_blocks, some = lane < all ? all - lane : 1;
    const uint32_t dividing = __ballot_sync(0xffffffffu, items % some == 0); /* numbers of shares of whole items */
    uint32_t shares = most < 1 ? 1 : most < all ? most : all;
    w->run = total, w->cuts = shares;
    if (count > 0 && items <= shares) { /* equal parts of items */
        const uint32_t cuts = shares / items;
        if ((count + cuts - 1) / cuts <= total / shares + SEGMENT_BLOCKS)
            w->run = count, w->cuts = cuts, shares = cuts * items;
    } else if (count > 0 && dividing) {
        const uint32_t whole = all - (uint32_t)__ffs((int)dividing) + 1;
        if (items / whole * count <= total / all + SEGMENT_BLOCKS) w->cuts = shares = whole;
    }
    w->each = w->run / w->cuts, w->more = w->run - w->each * w->cuts;
    return shares;
}

/* Finds this CTA's share. All lanes of a warp, each of which reads the lengths of one sequence at a time. */
INLINE void find_share(struct walk *to, const struct latent_params *d) {
    const struct params *p = &d->p;
    const int lane = (int)threadIdx.x % 32;
    struct walk w = {0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}};
    struct job t;
    uint32_t total = 0, before = 0, least = ~0u, greatest = 0, count = 0;
#pragma unroll 1
    for (t.b = lane; t.b < p->batch; t.b += 32) {
        count = (uint32_t)blocks_of(&t, p).count;
        total += count * (uint32_t)p->heads_kv;
        if (count == 0 && d->by_item && blockIdx.x == 0) /* nobody else tells of these */
            for (int kv = 0; kv < p->heads_kv; ++kv) d->crossings[t.b * p->heads_kv + kv].parts = 0;
        least = count < least ? count : least, greatest = count > greatest ? count : greatest;
    }
#pragma unroll
    for (int n = 16; n > 0; n /= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, n);
        least = min(least, __shfl_xor_sync(0xffffffffu, least, n));
        greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, n));
    }
    const uint32_t shares = cut_shares(&w, d, total, least == greatest ? least : 0), share = (uint32_t)share_of_cta(d);
    if (share < shares) w.at = begin_of_share(&w, share), w.end = begin_of_share(&w, share + 1);
#pragma unroll 1
    for (int first = 0; w.at < w.end; first += 32) {
        t.b = first + lane;
        if (p->batch > 32) count = t.b < p->batch ? (uint32_t)blocks_of(&t, p).count : 0; /* else the lane has it */
        const uint32_t own = count * (uint32_t)p->heads_kv;
        uint32_t end = own;
#pragma unroll
        for (int n = 1; n < 32; n *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, end, n);
            if (lane >= n) end += other;
        }
        const uint32_t beyond = __ballot_sync(0xffffffffu, before + end > w.at);
        if (beyond) {
            const int found = __ffs((int)beyond) - 1;
            w.batch = first + found, w.unit = w.at - before - __shfl_sync(0xffffffffu, end - own, found);
            break;
        }
        before += __shfl_sync(0xffffffffu, end, 31);
    }
    if (lane == 0) *to = w;
    __syncwarp();
}

/* Describes the next segment of the share; at its end one without blocks. One thread. */
INLINE void next_segment(struct segment *s, struct walk *w, const struct params *p, int share) {
    const uint32_t left = w->end - w->at;
    s->blocks = s->begins = 0;
    if (left == 0) return;
    struct job t;
    t.b = w->batch;
    struct blocks seen = blocks_of(&t, p);
    uint32_t unit = w->unit;
    while (unit >= (uint32_t)(seen.count * p->heads_kv)) {
        unit -= (uint32_t)(seen.count * p->heads_kv);
        ++t.b;
        seen = blocks_of(&t, p);
    }
    t.kv = (int)unit / seen.count;
    const uint32_t block = unit - (uint32_t)(t.kv * seen.count), rest = (uint32_t)seen.count - block;
    const uint32_t own = rest < left ? rest : left;
    const int last = share_of_unit(w, w->at + rest - 1), first = share_of_unit(w, w->at - block);
    s->t = t;
    s->first = (seen.first + (int)block) * KEYS, s->blocks = (int)own;
    s->full_first = (int)(band_first(&t.band, t.rows - 1) < t.keys ? band_first(&t.band, t.rows - 1) : t.keys);
    s->full_end = (int)band_end(&t.band, 0);
    s->begins = block == 0, s->parts = last - first + 1;
    if (s->begins) w->last = (struct crossing){t.b * p->heads_kv + t.kv, share, s->parts, t.rows * p->group};
    w->at += own, w->batch = t.b, w->unit = unit + own;
}

/* The job of an item: its sequence and K/V head. */
INLINE struct job job_of_item(const struct params *p, int item) {
    struct job t;
    t.b = item / p->heads_kv, t.kv = item - t.b * p->heads_kv;
    job_sequence(&t, p);
    return t;
}

/* A part of an item: the first lies with the share in which the item begins, the others one behind the other. */
INLINE float *part_of(const struct latent_params *d, int share, int tile, bool begins) {
    return d->parts + ((begins ? share : d->shares + share) * d->row_tiles + tile) * (int64_t)LATENT_PART_FLOATS;
}

#endif
