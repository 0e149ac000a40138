/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible.c: the host side of device/visible.cu: how states and bits lie in the workspace, and the launch.
 *
 *     states of the boolean mask | states of the block mask | bits of the boolean mask
 *
 * States take a byte for each 128 x 128 scores, bits an eighth of the boolean mask. Both repeat where their mask does. The
 * user's function is a boolean mask here, alone or combined with one by "and"; device/visible_function.cu works it out. A
 * caller's lists (strobe_mask_lists.h) are this of the masks, for the forward, then for the backward. */
#include "cuda/host/visible.h"

#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/visible_function.h"

CUDA_KERNEL(visible_units);

enum { MOST_LENGTH = 1 << 28 };

/* Units of one mask. */
struct extent {
    int64_t batch, heads, owners;
};

struct layout {
    int64_t others, states; /* units along the walk, a hidden one where there are none; the same in whole eights */
    struct extent mask, blocks;
    int64_t mask_units, block_units; /* 0: there is no such mask */
    int64_t blocks_at, bits_at, bytes;
};

static int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

/* repeats: over batch entries, heads and rows. */
static struct extent extent_of(const struct problem *p, const bool repeats[3], enum owners owners) {
    const int64_t rows = !repeats[2] || owners == OWNERS_ARE_KEYS ? ceil_div(p->a.seq_q, UNIT) : 1;
    return (struct extent){repeats[0] ? 1 : p->a.batch, repeats[1] ? 1 : p->a.heads_q,
                           owners == OWNERS_ARE_ROWS ? rows : ceil_div(p->a.seq_k, UNIT)};
}

static bool has_function(const struct problem *p) { return p->features & FEATURE(VISIBLE); }

static struct layout lay_out(const struct problem *p, enum owners owners) {
    struct layout l = {.others = ceil_div(owners == OWNERS_ARE_ROWS ? p->a.seq_k : p->a.seq_q, UNIT)};
    if (l.others == 0) l.others = 1;
    l.states = round_up(l.others, 8);
    if (p->a.bool_mask || has_function(p)) {
        bool repeats[3] = {true, true, true};
        if (has_function(p)) strobe__visible_function_repeats(p, repeats);
        for (int axis = 0; axis < 3 && p->a.bool_mask; ++axis)
            repeats[axis] = repeats[axis] && p->bool_mask.stride[axis] == 0;
        l.mask = extent_of(p, repeats, owners);
        l.mask_units = l.mask.batch * l.mask.heads * l.mask.owners * l.states;
    }
    if (p->a.block_mask) {
        const int64_t *stride = p->block_mask.stride;
        l.blocks = extent_of(p, (const bool[3]){stride[0] == 0, stride[1] == 0, stride[2] == 0}, owners);
        l.block_units = l.blocks.batch * l.blocks.heads * l.blocks.owners * l.states;
    }
    l.blocks_at = round_up(l.mask_units, 16);
    l.bits_at = l.blocks_at + round_up(l.block_units, 16);
    l.bytes = l.bits_at + l.mask_units * UNIT_THREADS * 8;
    return l;
}

bool strobe__cuda_blocks_are_units(const struct problem *p) {
    const strobe_block_mask *m = &p->block_mask;
    const bool rows = m->block_q % UNIT == 0 || m->block_q >= p->a.seq_q;
    return !p->a.block_mask || (rows && (m->block_k % UNIT == 0 || m->block_k >= p->a.seq_k));
}

/* Whether the problem brings lists with such owners. They are of masks alone, so a user's function beside them, which is
 * worked out with its masks, goes without. */
static bool has_lists(const struct problem *p, enum owners owners) {
    return p->a.mask_lists && !has_function(p) &&
           p->mask_lists.made & (owners == OWNERS_ARE_ROWS ? STROBE_LISTS_FORWARD : STROBE_LISTS_BACKWARD);
}

bool strobe__cuda_asks_what_is_visible(const struct problem *p) {
    return p->features & MASK_FEATURES && !has_function(p) && (p->a.mask_lists || p->a.seq_q >= UNIT);
}

bool strobe__cuda_visible_is_made(const struct problem *p) {
    return p->features & VISIBLE_FEATURES && !has_lists(p, OWNERS_ARE_ROWS);
}

void strobe__cuda_visible_choose(struct plan *plan) {
    static const struct variant units = {.name = "visible_units"}, function = {.name = "visible_function"},
                                lists = {.name = "mask_lists"};
    const struct problem *p = plan->problem;
    if (!(p->features & VISIBLE_FEATURES)) return;
    plan->more[VISIBLE_PASS] = has_function(p) ? &function : p->a.mask_lists ? &lists : &units;
}

size_t strobe__cuda_visible_bytes(const struct problem *p, enum owners owners) {
    if (!(p->features & VISIBLE_FEATURES) || has_lists(p, owners)) return 0;
    return (size_t)lay_out(p, owners).bytes;
}

static bool rows_are_aligned(const struct view *mask) {
    return (uintptr_t)mask->data % 16 == 0 && mask->batch % 16 == 0 && mask->head % 16 == 0 && mask->row % 16 == 0;
}

static struct visible_pass pass_of(const struct problem *p, enum owners owners, const struct layout *l, char *memory) {
    struct visible_pass pass = {
        .seq_q = (int32_t)p->a.seq_q,
        .seq_k = (int32_t)p->a.seq_k,
        .transposed = owners == OWNERS_ARE_KEYS,
        .owners = {(int32_t)l->mask.owners, (int32_t)l->blocks.owners},
        .heads = {(int32_t)l->mask.heads, (int32_t)l->blocks.heads},
        .others = (int32_t)l->others,
        .states = (int32_t)l->states,
        .block_units = l->block_units,
        .mask_states = (uint8_t *)memory,
        .block_states = (uint8_t *)memory + l->blocks_at,
        .bits = (uint32_t *)(memory + l->bits_at),
    };
    if (p->a.bool_mask) pass.mask = strobe__cuda_scores_view(p->bool_mask.data, p->bool_mask.stride, STROBE_INT8);
    if (p->a.block_mask) {
        pass.blocks = strobe__cuda_scores_view(p->block_mask.data, p->block_mask.stride, STROBE_INT8);
        pass.block_q = (int32_t)(p->block_mask.block_q < MOST_ROWS ? p->block_mask.block_q : MOST_ROWS);
        pass.block_k = (int32_t)(p->block_mask.block_k < MOST_ROWS ? p->block_mask.block_k : MOST_ROWS);
    }
    pass.mask_aligned = rows_are_aligned(&pass.mask);
    return pass;
}

/* Blocks of threads of the boolean mask: as few units for each as keep all multiprocessors busy, up to eight. A function's
 * units are looked at by a warp each, and few are visible in part. */
static void cut_into_blocks(struct visible_pass *pass, const struct layout *l, bool of_function, int32_t device_index) {
    const int64_t enough = (of_function ? 2 : 8) * (int64_t)strobe__cuda_limits(device_index).multiprocessors;
    const int64_t rows = l->mask.batch * l->mask.heads * l->mask.owners, some = rows * l->others / enough;
    pass->per_block = (int32_t)(some < 1 ? 1 : some < 8 ? some : 8);
    pass->mask_blocks = rows * ceil_div(l->others, pass->per_block);
}

/* Steps of an axis of `count` entries that lie `step` units apart, 0 where there is one, which repeats. */
static int64_t step_of(int64_t count, int64_t step) { return count > 1 ? step : 0; }

/* What a kernel is given of states and bits. */
static struct visible visible_in(const struct problem *p, const struct layout *l, const struct visible_pass *pass) {
    return (struct visible){.mask_states = l->mask_units > 0 ? pass->mask_states : NULL,
                            .block_states = p->a.block_mask ? pass->block_states : NULL,
                            .bits = pass->bits,
                            .mask_owner = step_of(l->mask.owners, l->states),
                            .mask_head = step_of(l->mask.heads, l->mask.owners * l->states),
                            .mask_batch = step_of(l->mask.batch, l->mask.heads * l->mask.owners * l->states),
                            .block_owner = step_of(l->blocks.owners, l->states),
                            .block_head = step_of(l->blocks.heads, l->blocks.owners * l->states),
                            .block_batch = step_of(l->blocks.batch, l->blocks.heads * l->blocks.owners * l->states)};
}

/* makes: launches the pass; otherwise `memory` holds what it has left. */
static strobe_status prepare(const struct problem *p, enum owners owners, void *memory, bool makes, struct visible *visible,
                             void *stream) {
    const struct layout l = lay_out(p, owners);
    struct visible_pass pass = pass_of(p, owners, &l, memory);
    *visible = visible_in(p, &l, &pass);
    if (!makes) return STROBE_OK;
    if (l.mask_units > 0) cut_into_blocks(&pass, &l, has_function(p), p->a.device_index);
    if (has_function(p)) {
        const strobe_status status = strobe__visible_function(p, &pass, stream);
        if (status || l.block_units == 0) return status;
        pass.mask_blocks = 0;
    }
    return strobe__cuda_launch(&strobe__kernel_visible_units, pass.mask_blocks + ceil_div(l.block_units, UNIT_THREADS),
                               UNIT_THREADS, 0, &pass, stream);
}

static struct problem without_masks(const struct problem *p) {
    struct problem alone = *p;
    alone.a.bool_mask = NULL, alone.a.block_mask = NULL;
    strobe__problem_ask(&alone);
    return alone;
}

size_t strobe__cuda_function_bytes(const struct problem *p) {
    if (!has_function(p)) return 0;
    const struct problem alone = without_masks(p);
    return strobe__cuda_visible_bytes(&alone, OWNERS_ARE_ROWS);
}

strobe_status strobe__cuda_function(const struct problem *p, void *memory, struct visible *visible, void *stream) {
    if (!has_function(p)) return STROBE_OK;
    const struct problem alone = without_masks(p);
    const strobe_status status = prepare(&alone, OWNERS_ARE_ROWS, memory, true, visible, stream);
    visible->of_function = true;
    return status;
}

/* ---- a caller's lists: those for the forward, if there are any, come first */

static struct problem masks_alone(const struct problem *p) {
    struct problem alone = *p;
    alone.a.score = NULL;
    strobe__problem_ask(&alone);
    return alone;
}

static size_t lists_bytes(const struct problem *p, int32_t uses) {
    const struct problem alone = masks_alone(p);
    int64_t bytes = 0;
    if (uses & STROBE_LISTS_FORWARD) bytes += round_up(lay_out(&alone, OWNERS_ARE_ROWS).bytes, 64);
    if (uses & STROBE_LISTS_BACKWARD) bytes += round_up(lay_out(&alone, OWNERS_ARE_KEYS).bytes, 64);
    return (size_t)bytes;
}

static char *lists_of(const struct problem *p, enum owners owners, int32_t uses, void *data) {
    return (char *)data + (owners == OWNERS_ARE_KEYS ? lists_bytes(p, uses & STROBE_LISTS_FORWARD) : 0);
}

strobe_status strobe__cuda_visible(const struct problem *p, enum owners owners, void *memory, struct visible *visible,
                                   void *stream) {
    if (!has_lists(p, owners)) return prepare(p, owners, memory, true, visible, stream);
    char *lists = lists_of(p, owners, p->mask_lists.made, p->mask_lists.data);
    return prepare(p, owners, lists, false, visible, stream);
}

static const char *reject_lists(const struct problem *p) {
    const char *lack = strobe__cuda_lacks(CUDA_SM80, p->a.device_index);
    if (lack) return lack;
    if (p->a.seq_q > MOST_LENGTH || p->a.seq_k > MOST_LENGTH) return "seq_q or seq_k is above 2^28; up to that is taken";
    if (strobe__product(p->a.batch, p->a.heads_q) > INT32_MAX) return "batch times heads_q is above 2^31; less is taken";
    return NULL;
}

static strobe_status make_lists(const struct problem *p, int32_t uses, void *data, void *stream) {
    const struct problem alone = masks_alone(p);
    struct visible unused;
    struct cuda_visit visit;
    strobe_status status = strobe__cuda_enter(p->a.device_index, &visit);
    const struct {
        const char *name;
        const void *data;
    } pointers[] = {{"mask_lists.data", data},
                    {"bool_mask", p->a.bool_mask ? p->bool_mask.data : NULL},
                    {"block_mask", p->a.block_mask ? p->block_mask.data : NULL}};
    for (size_t n = 0; n < sizeof pointers / sizeof pointers[0] && !status; ++n)
        status = strobe__cuda_check_pointer(pointers[n].name, pointers[n].data, p->a.device_index);
    for (int owners = OWNERS_ARE_ROWS; owners <= OWNERS_ARE_KEYS && !status; ++owners)
        if (uses & (owners == OWNERS_ARE_ROWS ? STROBE_LISTS_FORWARD : STROBE_LISTS_BACKWARD))
            status = prepare(&alone, (enum owners)owners, lists_of(p, (enum owners)owners, uses, data), true, &unused,
                             stream);
    strobe__cuda_leave(&visit);
    return status;
}

const struct mask_lists_maker strobe__cuda_mask_lists = {.reject = reject_lists, .bytes = lists_bytes, .make = make_lists};
