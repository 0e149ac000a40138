/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.h: which CTA attends to which keys. An item is a K/V head of a sequence, and its units are the blocks of KEYS
 * keys that some row sees, at least one. All units of a call in a row are cut into even shares, by lengths that are read
 * here, on the device (the "stream-K" division of work: Osama et al., 2023). CTAs side by side have the same share and
 * different tiles of 64 packed rows, so that the keys of a share come from memory once. What a share has of one item is a
 * segment. Where the caller has fixed the size of parts (split_keys), a unit is such a part, and a segment too. */
#ifndef STROBE_CUDA_SM90_LATENT_SCHEDULE_H
#define STROBE_CUDA_SM90_LATENT_SCHEDULE_H

#include "cuda/device/job.h"
#include "cuda/sm90/latent/params.h"

enum { KEYS = LATENT_KEYS };

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

/* Blocks of a part of a fixed size, which variants without terms have not: 0. */
INLINE int part_blocks_of(const struct latent_params *d) { return HAS_TERMS ? d->part_blocks : 0; }

/* Units of an item with so many blocks. */
INLINE uint32_t units_of(const struct latent_params *d, int blocks) {
    const int size = part_blocks_of(d);
    return (uint32_t)(size ? (blocks + size - 1) / size : blocks);
}

struct segment {
    struct job t;             /* its sequence and K/V head */
    int first, blocks;        /* the key at which it begins, and its blocks; 0: there are no more segments */
    int full_first, full_end; /* all rows see the keys between */
    int begins, parts;        /* the item begins here; parts that it has */
    int slot;                 /* of this part, see part_of() */
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
 * shares of whole items or of equal parts of one end almost as soon, these are taken, since each segment more takes time.
 * count: of each item's units if all are alike, else 0. Returns how many. All lanes. */
INLINE uint32_t cut_shares(struct walk *w, const struct latent_params *d, uint32_t total, uint32_t count) {
    const uint32_t all = (uint32_t)d->shares, items = (uint32_t)(d->p.batch * d->p.heads_kv), lane = threadIdx.x % 32;
    const uint32_t most = total / (uint32_t)d->least_units, some = lane < all ? all - lane : 1;
    const uint32_t dividing = __ballot_sync(0xffffffffu, items % some == 0); /* numbers of shares of whole items */
    uint32_t shares = most < 1 ? 1 : most < all ? most : all;
    w->run = total, w->cuts = shares;
    if (count > 0 && items <= shares) { /* equal parts of items */
        const uint32_t cuts = shares / items;
        if ((count + cuts - 1) / cuts <= total / shares + (uint32_t)d->segment_units)
            w->run = count, w->cuts = cuts, shares = cuts * items;
    } else if (count > 0 && dividing) {
        const uint32_t whole = all - (uint32_t)__ffs((int)dividing) + 1;
        if (items / whole * count <= total / all + (uint32_t)d->segment_units) w->cuts = shares = whole;
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
        count = units_of(d, blocks_of(&t, p).count);
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
        if (p->batch > 32) count = t.b < p->batch ? units_of(d, blocks_of(&t, p).count) : 0; /* else the lane has it */
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
INLINE void next_segment(struct segment *s, struct walk *w, const struct latent_params *d, int share) {
    const struct params *p = &d->p;
    const int size = part_blocks_of(d);
    const uint32_t left = w->end - w->at;
    s->blocks = s->begins = 0;
    if (left == 0) return;
    struct job t;
    t.b = w->batch;
    struct blocks seen = blocks_of(&t, p);
    uint32_t unit = w->unit, units = units_of(d, seen.count);
    while (unit >= units * (uint32_t)p->heads_kv) {
        unit -= units * (uint32_t)p->heads_kv;
        ++t.b;
        seen = blocks_of(&t, p), units = units_of(d, seen.count);
    }
    t.kv = (int)(unit / units);
    const uint32_t its = unit - (uint32_t)t.kv * units, rest = units - its, own = size ? 1 : rest < left ? rest : left;
    const int item = t.b * p->heads_kv + t.kv;
    s->t = t;
    if (size) {
        const int block = (int)its * size, others = seen.count - block;
        s->first = (seen.first + block) * KEYS, s->blocks = others < size ? others : size;
        s->parts = (int)units, s->slot = item * d->item_slots + (int)its;
    } else {
        const int last = share_of_unit(w, w->at + rest - 1), first = share_of_unit(w, w->at - its);
        s->first = (seen.first + (int)its) * KEYS, s->blocks = (int)own;
        s->parts = last - first + 1, s->slot = its == 0 ? share : d->shares + share;
    }
    s->full_first = (int)(band_first(&t.band, t.rows - 1) < t.keys ? band_first(&t.band, t.rows - 1) : t.keys);
    s->full_end = (int)band_end(&t.band, 0);
    s->begins = its == 0;
    if (s->begins) w->last = (struct crossing){item, s->slot, s->parts, t.rows * p->group};
    w->at += own, w->batch = t.b, w->unit = unit + own;
}

/* The job of an item: its sequence and K/V head. */
INLINE struct job job_of_item(const struct params *p, int item) {
    struct job t;
    t.b = item / p->heads_kv, t.kv = item - t.b * p->heads_kv;
    job_sequence(&t, p);
    return t;
}

/* The part at a slot. Those of an item lie one behind the other, where their size is fixed. Else a slot has the number of
 * its share, and the first part of an item lies by itself, since its share may have the last one of another item too. */
INLINE float *part_of(const struct latent_params *d, int slot, int tile) {
    return d->parts + ((int64_t)slot * d->row_tiles + tile) * LATENT_PART_FLOATS;
}

/* Where part n of an item lies. */
INLINE int slot_of_part(const struct latent_params *d, const struct crossing *c, int n) {
    return c->slot + n + (n > 0 && !d->part_blocks ? d->shares : 0);
}

#endif
