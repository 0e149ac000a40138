/* SPDX-License-Identifier: BSD-3-Clause
 *
 * features.c: what a problem has; see features.h. A new word of problems is a line of the table. */
#include "check/features.h"

#include <math.h>
#include <stddef.h>

#include <strobe/strobe_dist.h>

/* How a feature is read from its field: the field has the value, or any but 0. Or a function says. */
enum { ANY = INT32_MIN };

typedef struct feature {
    const char *name;
    size_t field;
    int64_t value;
    bool (*has)(const problem *p);
    bool backward; /* only backward has it */
    bool forward;
} feature;

static bool is_grouped(const problem *p) { return p->heads_q != p->heads_kv; }
static bool has_other_dim_v(const problem *p) { return p->dim_v != p->dim; }
static bool has_odd_dim(const problem *p) { return p->dim % 8 || p->dim_v % 8; }
static bool is_wide(const problem *p) { return p->dim > 256 || p->dim_v > 256; }
static bool is_empty(const problem *p) { return p->batch == 0 || p->seq_q == 0 || p->seq_k == 0; }
static bool is_one_row(const problem *p) { return p->seq_q == 1; }
static bool has_long_keys(const problem *p) { return p->seq_k > 1024; }
static bool has_long_rows(const problem *p) { return p->seq_q > 1024; }
static bool has_batch(const problem *p) { return p->batch > 1; }
static bool has_scale(const problem *p) { return p->scale != 0; }
static bool has_softcap(const problem *p) { return p->softcap > 0; }
static bool has_dropout(const problem *p) { return p->dropout > 0; }
static bool has_window(const problem *p) {
    return p->mask == STROBE_MASK_WINDOW_TOP_LEFT || p->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}
static bool has_far_window(const problem *p) {
    return has_window(p) && (p->window_left > p->seq_k || p->window_right > p->seq_k);
}
static bool has_open_window(const problem *p) { return has_window(p) && (p->window_left < 0 || p->window_right < 0); }
static bool has_packed(const problem *p) { return p->varlen & (VARLEN_CU_Q | VARLEN_CU_K); }
static bool has_used(const problem *p) { return p->varlen & (VARLEN_USED_Q | VARLEN_USED_K); }
static bool has_index64(const problem *p) { return p->varlen & VARLEN_INDEX_64; }
static bool has_whole_bias(const problem *p) { return p->bias && (p->bias & AXIS_ROW); }
static bool has_broadcast_bias(const problem *p) {
    return p->bias && p->bias != (AXIS_KEY | AXIS_ROW | AXIS_HEAD | AXIS_BATCH);
}
static bool has_far_starts(const problem *p) {
    const int64_t far = (int64_t)1 << 24;
    return (p->q_start > far || p->q_start < -far) && (p->k_start > far || p->k_start < -far);
}
static bool has_large_scale(const problem *p) { return fabs(p->scale) > 50; }
static bool has_score(const problem *p) { return p->score[0]; }
static bool has_visible(const problem *p) { return p->visible[0]; }
static bool has_ranks(const problem *p) { return p->ranks > 1; }
static bool has_ring(const problem *p) { return p->ranks > 1 && p->rank_scheme == STROBE_DIST_RING; }
static bool has_broadcast_mask(const problem *p) {
    return p->bool_mask && p->bool_mask != (AXIS_KEY | AXIS_ROW | AXIS_HEAD | AXIS_BATCH);
}

#define IS(name, value_of) .field = offsetof(problem, name), .value = (value_of)

static const feature features[] = {
    {"fp32", IS(dtype, STROBE_FP32)},
    {"fp16", IS(dtype, STROBE_FP16)},
    {"bf16", IS(dtype, STROBE_BF16)},
    {"fp64", IS(dtype, STROBE_FP64)},
    {"out of another dtype", IS(out_dtype, ANY)},
    {"dout of another dtype", IS(dout_dtype, ANY), .backward = true},
    {"dq, dk, dv of another dtype", IS(gradients_dtype, ANY), .backward = true},
    {"int8 k and v", IS(kv_dtype, STROBE_INT8), .forward = true},
    {"fp8", IS(dtype, STROBE_FP8_E4M3), .forward = true},
    {"fp8, int8 q and k", IS(qk_dtype, STROBE_INT8), .forward = true},
    {"fp8 k and v", IS(kv_dtype, STROBE_FP8_E4M3), .forward = true},
    {"fp16 k and v", IS(kv_dtype, STROBE_FP16), .forward = true},
    {"bf16 k and v", IS(kv_dtype, STROBE_BF16), .forward = true},
    {"scales a token", IS(scales, SCALES_TOKEN), .forward = true},
    {"scales of rows", IS(scales, SCALES_ROWS), .forward = true},
    {"scales of blocks", IS(scales, SCALES_BLOCKS), .forward = true},
    {"scales of q", IS(q_scales, ANY), .forward = true},
    {"scales of a sequence", IS(scales, SCALES_SEQUENCE), .forward = true},
    {"scales of a tensor", IS(scales, SCALES_TENSOR), .forward = true},
    {"grouped heads", .has = is_grouped},
    {"dim_v other than dim", .has = has_other_dim_v},
    {"dim no multiple of 8", .has = has_odd_dim},
    {"dim above 256", .has = is_wide},
    {"batch", .has = has_batch},
    {"nothing in it", .has = is_empty},
    {"one row", .has = is_one_row},
    {"more than 1024 keys", .has = has_long_keys},
    {"more than 1024 rows", .has = has_long_rows},
    {"no mask", IS(mask, STROBE_MASK_NONE)},
    {"causal", IS(mask, STROBE_MASK_CAUSAL_BOTTOM_RIGHT)},
    {"causal, top left", IS(mask, STROBE_MASK_CAUSAL_TOP_LEFT)},
    {"window", IS(mask, STROBE_MASK_WINDOW_BOTTOM_RIGHT)},
    {"window, top left", IS(mask, STROBE_MASK_WINDOW_TOP_LEFT)},
    {"window past the end", .has = has_far_window},
    {"window unbounded", .has = has_open_window},
    {"q_start", IS(q_start, ANY)},
    {"k_start", IS(k_start, ANY)},
    {"both starts far away", .has = has_far_starts},
    {"boolean mask", IS(bool_mask, ANY)},
    {"boolean mask, broadcast", .has = has_broadcast_mask},
    {"block mask", IS(block_q, ANY)},
    {"block mask, broadcast", IS(block_axes, ANY)},
    {"masks that show few", IS(shows, SHOWS_FEW)},
    {"masks of documents", IS(shows, SHOWS_DOCUMENTS)},
    {"masks that show nothing", IS(shows, SHOWS_NOTHING)},
    {"scale", .has = has_scale},
    {"scale above 50", .has = has_large_scale},
    {"softcap", .has = has_softcap},
    {"bias", IS(bias, ANY)},
    {"bias with rows", .has = has_whole_bias},
    {"bias, broadcast", .has = has_broadcast_bias},
    {"bias of another dtype", IS(bias_dtype, ANY)},
    {"bias of -inf", IS(bias_hides, ANY)},
    {"dbias", IS(dbias, ANY), .backward = true},
    {"alibi", IS(alibi, ALIBI_HEADS)},
    {"alibi a batch entry", IS(alibi, ALIBI_BATCH)},
    {"alibi of 0 and below", IS(alibi, ALIBI_SIGNED)},
    {"sinks", IS(sinks, SINKS_USUAL)},
    {"sinks of -inf", IS(sinks, SINKS_HIDDEN)},
    {"large sinks", IS(sinks, SINKS_LARGE)},
    {"sinks far away", IS(sinks, SINKS_FAR)},
    {"dsinks", IS(dsinks, ANY), .backward = true},
    {"score function", .has = has_score},
    {"visible function", .has = has_visible},
    {"gradient of a score's table", IS(dscore, ANY), .backward = true},
    {"dropout", .has = has_dropout},
    {"dropout of a shard", IS(shard, ANY)},
    {"no lse", IS(no_lse, ANY), .forward = true},
    {"dlse", IS(dlse, ANY), .backward = true},
    {"gradients added", IS(added, ANY), .backward = true},
    {"deterministic", IS(deterministic, ANY), .backward = true},
    {"products of tf32 allowed", IS(tf32x3, ANY)},
    {"packed sequences", .has = has_packed},
    {"used lengths", .has = has_used},
    {"64-bit lengths", .has = has_index64},
    {"no keys in any sequence", IS(lengths, LENGTHS_NO_KEYS)},
    {"no rows in any sequence", IS(lengths, LENGTHS_NO_ROWS)},
    {"only empty sequences", IS(lengths, LENGTHS_NONE)},
    {"one long sequence among short ones", IS(lengths, LENGTHS_ONE_LONG)},
    {"split_keys", IS(split_keys, ANY), .forward = true},
    {"results in fp32", IS(wide, WIDE_ALL)},
    {"dk and dv in fp32", IS(wide, WIDE_KEYS), .backward = true},
    {"dq in fp32", IS(wide, WIDE_DQ), .backward = true},
    {"dk in fp32", IS(wide, WIDE_DK), .backward = true},
    {"K and V in pages", IS(page_size, ANY), .forward = true},
    {"pages that are none", IS(missing, ANY), .forward = true},
    {"v in the columns of k", IS(v_in_k, ANY), .forward = true},
    {"left padding", IS(leftpad, ANY), .forward = true},
    {"appended keys", IS(append, ANY), .forward = true},
    {"layout bhsd", IS(layout, LAYOUT_BHSD)},
    {"layout packed", IS(layout, LAYOUT_PACKED)},
    {"layout gaps", IS(layout, LAYOUT_GAPS)},
    {"layout reversed", IS(layout, LAYOUT_REVERSED)},
    {"layout sbhd", IS(layout, LAYOUT_SBHD)},
    {"layout backwards", IS(layout, LAYOUT_BACKWARDS)},
    {"layout misaligned", IS(layout, LAYOUT_MISALIGNED)},
    {"layout shared", IS(layout, LAYOUT_SHARED)},
    {"layout mixed", IS(layout, LAYOUT_MIXED)},
    {"layout overlapping", IS(layout, LAYOUT_OVERLAPPING)},
    {"outliers", IS(values, VALUES_OUTLIERS)},
    {"growing scores", IS(values, VALUES_GROWING)},
    {"falling scores", IS(values, VALUES_FALLING)},
    {"low scores", IS(values, VALUES_LOW)},
    {"spikes", IS(values, VALUES_SPIKES)},
    {"equal scores", IS(values, VALUES_EQUAL)},
    {"hidden infinities", IS(hidden, HIDDEN_INFINITY)},
    {"hidden largest numbers", IS(hidden, HIDDEN_LARGEST)},
    {"visible nan", IS(nan, ANY)},
    {"threads", IS(threads, ANY)},
    {"ranks", .has = has_ranks},
    {"a ring of ranks", .has = has_ring},
    {"all-gather", IS(rank_scheme, STROBE_DIST_ALL_GATHER)},
    {"Ulysses", IS(rank_scheme, STROBE_DIST_ULYSSES)},
    {"two levels", IS(rank_scheme, STROBE_DIST_TWO_LEVELS)},
    {"shards in zigzag", IS(rank_layout, STROBE_DIST_ZIGZAG)},
    {"shards in stripes", IS(rank_layout, STROBE_DIST_STRIPED)},
};
enum { COUNT_OF_FEATURES = sizeof features / sizeof features[0] };
_Static_assert(COUNT_OF_FEATURES <= (int)MOST_FEATURES, "a set has a bit for every feature");

int features_count(void) { return COUNT_OF_FEATURES; }
const char *feature_name(int n) { return features[n].name; }

int feature_operation(int n) {
    if (features[n].backward) return STROBE_BACKWARD;
    return features[n].forward ? STROBE_FORWARD : -1;
}

bool features_exclude(int one, int other) {
    const feature *a = &features[one], *b = &features[other];
    if ((a->forward && b->backward) || (a->backward && b->forward)) return true;
    return !a->has && !b->has && a->field == b->field && one != other;
}

static bool has(const problem *p, const feature *f) {
    if (f->has) return f->has(p);
    const int64_t value = *(const int64_t *)(const void *)((const char *)p + f->field);
    return f->value == ANY ? value != 0 : value == f->value;
}

feature_set features_of(const problem *p) {
    feature_set s = {{0}};
    for (int n = 0; n < COUNT_OF_FEATURES; ++n)
        if (has(p, &features[n])) s.bits[n / 64] |= (uint64_t)1 << n % 64;
    return s;
}
