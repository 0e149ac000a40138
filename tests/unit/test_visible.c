/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_visible.c: what the CPU's kernels take for visible in a block, against the public header's words, pair by pair: every
 * tile and block of random problems with bands, boolean masks and block masks of any broadcast, biases of -inf, groups and
 * used lengths, at every level that runs here. A block is skipped exactly where nothing is visible, and full exactly where
 * all is; only what a bias of several rows hides in a block may be left to its sum with the scores. */
#include <math.h>
#include <stdlib.h>

#include "cpu/cpuid.h"
#include "level_visible.h"
#include "test.h"

enum { CASES = 400, MOST_LENGTH = 200, MOST_HEADS = 6, BATCH = 2 };

static const struct {
    const char *name;
    int level;
    see_tile *see;
} levels[] = {
    {"baseline", CPU_BASELINE, strobe__cpu_see_tile_baseline},
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
    {"avx2", CPU_AVX2, strobe__cpu_see_tile_avx2},
#if !defined(STROBE_NO_AVX512)
    {"avx512", CPU_AVX512, strobe__cpu_see_tile_avx512},
    {"amx", CPU_AVX512, strobe__cpu_see_tile_amx}, /* its vectors, without tiles */
#endif
#endif
};

struct world {
    strobe_attention a;
    strobe_varlen varlen;
    strobe_bool_mask mask;
    strobe_block_mask blocks;
    strobe_bias bias;
    int32_t used_q[BATCH], used_k[BATCH];
    uint8_t mask_bytes[BATCH * MOST_HEADS * MOST_LENGTH * MOST_LENGTH], block_bytes[BATCH * MOST_HEADS * 70 * 70];
    float bias_numbers[BATCH * MOST_HEADS * MOST_LENGTH * MOST_LENGTH];
    bool bias_shared; /* one row of it for all rows of a tile */
};

static struct random numbers;

static int64_t draw(int64_t below) { return random_below(&numbers, below); }

/* Contiguous strides of [batch][heads][rows][columns] with some of the axes broadcast. */
static void draw_strides(int64_t stride[3], int64_t heads, int64_t rows, int64_t columns) {
    stride[0] = draw(2) ? heads * rows * columns : 0;
    stride[1] = draw(2) ? rows * columns : 0;
    stride[2] = draw(3) ? columns : 0;
}

/* Runs of visible and hidden bytes, some of them long, so that whole blocks are one or the other. */
static void draw_bytes(uint8_t *bytes, int64_t count) {
    for (int64_t at = 0; at < count;) {
        const int64_t run = draw(2) ? 1 + draw(8) : 1 + draw(3 * MOST_LENGTH);
        const uint8_t byte = draw(2) ? (uint8_t)(1 + draw(255)) : 0;
        for (int64_t n = 0; n < run && at < count; ++n) bytes[at++] = byte;
    }
}

static void draw_features(struct world *w) {
    strobe_attention *a = &w->a;
    if (draw(2)) {
        draw_strides(w->mask.stride, a->heads_q, a->seq_q, a->seq_k);
        draw_bytes(w->mask_bytes, sizeof w->mask_bytes);
        w->mask.data = w->mask_bytes;
        a->bool_mask = &w->mask;
    }
    if (draw(2)) {
        w->blocks.block_q = 3 + draw(140);
        w->blocks.block_k = 3 + draw(140);
        const int64_t rows = (a->seq_q + w->blocks.block_q - 1) / w->blocks.block_q;
        draw_strides(w->blocks.stride, a->heads_q, rows, (a->seq_k + w->blocks.block_k - 1) / w->blocks.block_k);
        for (size_t n = 0; n < sizeof w->block_bytes; ++n) w->block_bytes[n] = draw(3) ? 0 : (uint8_t)draw(256);
        w->blocks.data = w->block_bytes;
        a->block_mask = &w->blocks;
    }
    if (draw(3) == 0) {
        static uint8_t hides[sizeof w->bias_numbers / sizeof w->bias_numbers[0]];
        draw_strides(w->bias.stride, a->heads_q, a->seq_q, a->seq_k);
        draw_bytes(hides, sizeof hides);
        for (size_t n = 0; n < sizeof hides; ++n) w->bias_numbers[n] = hides[n] ? (float)hides[n] : -INFINITY;
        w->bias.data = w->bias_numbers;
        a->bias = &w->bias;
        w->bias_shared = w->bias.stride[2] == 0 && (w->bias.stride[1] == 0 || a->heads_q == a->heads_kv);
    }
    if (draw(3) == 0) {
        for (int b = 0; b < BATCH; ++b) {
            w->used_q[b] = (int32_t)draw(a->seq_q + 1);
            w->used_k[b] = (int32_t)draw(a->seq_k + 1);
        }
        w->varlen.used_q = w->used_q;
        w->varlen.used_k = w->used_k;
        a->varlen = &w->varlen;
    }
}

static void draw_world(struct world *w) {
    static const int32_t masks[] = {STROBE_MASK_NONE, STROBE_MASK_NONE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
                                    STROBE_MASK_CAUSAL_TOP_LEFT, STROBE_MASK_WINDOW_BOTTOM_RIGHT};
    strobe_attention *a = &w->a;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = BATCH, .dim = 8};
    w->varlen = (strobe_varlen){.struct_size = sizeof w->varlen};
    w->mask = (strobe_bool_mask){.struct_size = sizeof w->mask};
    w->blocks = (strobe_block_mask){.struct_size = sizeof w->blocks};
    w->bias = (strobe_bias){.struct_size = sizeof w->bias};
    w->bias_shared = true;
    a->seq_q = 1 + draw(MOST_LENGTH);
    a->seq_k = 1 + draw(MOST_LENGTH);
    a->heads_kv = 1 + draw(2);
    a->heads_q = a->heads_kv * (1 + draw(MOST_HEADS / 2));
    a->mask = masks[draw(COUNT(masks))];
    if (a->mask >= STROBE_MASK_WINDOW_TOP_LEFT) {
        a->window_left = draw(MOST_LENGTH);
        a->window_right = draw(MOST_LENGTH);
    }
    draw_features(w);
}

/* The public header's words, but for what the band hides, which test_mask.c checks. */
static bool sees(const struct world *w, const struct sequence *s, int64_t h, int64_t i, int64_t j, bool with_bias) {
    const strobe_attention *a = &w->a;
    const int64_t *m = w->mask.stride, *n = w->blocks.stride, *o = w->bias.stride;
    if (j < band_first(&s->band, i) || j >= band_end(&s->band, i)) return false;
    if (a->bool_mask && !w->mask_bytes[s->b * m[0] + h * m[1] + i * m[2] + j]) return false;
    if (a->block_mask && !w->block_bytes[s->b * n[0] + h * n[1] + i / w->blocks.block_q * n[2] + j / w->blocks.block_k])
        return false;
    return !with_bias || !a->bias || w->bias_numbers[s->b * o[0] + h * o[1] + i * o[2] + j] != -INFINITY;
}

static enum coverage coverage_of(int64_t visible, int64_t pairs) {
    return visible == 0 ? BLOCK_SKIPPED : visible == pairs ? BLOCK_FULL : BLOCK_PARTIAL;
}

static void check_block(const struct world *w, const struct problem *p, const struct sequence *s, int level, int64_t kv,
                        int64_t first, int64_t j0, int64_t keys, int64_t *rows) {
    bool visible[MOST_TILE][64], seen[MOST_TILE];
    const enum coverage got = levels[level].see(p, s, kv, first, j0, keys, rows, visible, seen);
    int64_t pairs = 0, all = 0;
    for (int64_t r = 0; r < *rows; ++r)
        for (int64_t j = 0; j < keys; ++j) {
            const int64_t i = (first + r) / p->group, h = kv * p->group + (first + r) % p->group;
            const bool expected = sees(w, s, h, i, j0 + j, true), but_for_bias = sees(w, s, h, i, j0 + j, false);
            pairs += expected;
            all += but_for_bias;
            if (got == BLOCK_SKIPPED) continue;
            if (visible[r][j] != expected && (w->bias_shared || visible[r][j] != but_for_bias))
                fail_msg("%s: row %lld of head %lld, key %lld: %d", levels[level].name, (long long)i, (long long)h,
                         (long long)(j0 + j), visible[r][j]);
        }
    const enum coverage right = coverage_of(pairs, *rows * keys), at_least = coverage_of(all, *rows * keys);
    if (got != right && (w->bias_shared || right == BLOCK_SKIPPED || got != at_least))
        fail_msg("%s: rows from %lld, keys from %lld: coverage %d, not %d", levels[level].name, (long long)first,
                 (long long)j0, got, right);
}

static void every_block_of(const struct world *w, int level, int64_t block) {
    struct problem p;
    assert_int_equal(strobe__problem_read(&p, &w->a, NULL, false), STROBE_OK);
    for (int64_t b = 0; b < BATCH; ++b) {
        const struct sequence s = strobe__sequence(&p, b);
        for (int64_t kv = 0; kv < w->a.heads_kv; ++kv)
            for (int64_t first = 0, rows; first < s.rows * p.group; first += rows)
                for (int64_t j0 = 0; j0 < s.keys || j0 == 0; j0 += block) {
                    if (s.keys == 0) {
                        rows = s.rows * p.group;
                        break;
                    }
                    check_block(w, &p, &s, level, kv, first, j0, s.keys - j0 < block ? s.keys - j0 : block, &rows);
                }
    }
}

static void every_pair(void **unused) {
    struct world *w = malloc(sizeof *w);
    (void)unused;
    assert_non_null(w);
    for (uint64_t seed = 0; seed < CASES; ++seed) {
        numbers.state = seed;
        draw_world(w);
        for (int level = 0; level < (int)COUNT(levels); ++level)
            if (levels[level].level <= (int)strobe__cpu_level()) every_block_of(w, level, seed % 4 ? 64 : 32);
    }
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
