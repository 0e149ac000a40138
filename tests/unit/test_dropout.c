/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dropout.c: dropout's factors, which the CPU's kernels work out by vectors, against math/philox.h, weight by weight,
 * at every level that runs here: any first key modulo four, groups of heads whose rows share a tile, shards of problems
 * whose positions pass 2^32, thresholds at both ends and equal to a word, and vectors of rows that a block leaves out. */
#include <stdbool.h>

#include "cpu/cpuid.h"
#include "level_scores.h"
#include "test.h"

enum { CASES = 300, BATCH = 2 };

static const struct {
    const char *name;
    int level;
    drop_tile *drop;
} levels[] = {
    {"baseline", CPU_BASELINE, strobe__cpu_drop_tile_baseline},
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
    {"avx2", CPU_AVX2, strobe__cpu_drop_tile_avx2},
#if !defined(STROBE_NO_AVX512)
    {"avx512", CPU_AVX512, strobe__cpu_drop_tile_avx512},
    {"amx", CPU_AVX512, strobe__cpu_drop_tile_amx}, /* its vectors, without tiles */
#endif
#endif
};

static struct random numbers;

static int64_t draw(int64_t below) { return random_below(&numbers, below); }

/* A shard somewhere in a problem of up to 2^40 rows or keys, or a whole problem. */
static void draw_dropout(strobe_dropout *d, const strobe_attention *a) {
    *d = (strobe_dropout){
        .struct_size = sizeof *d, .p = 0.3, .seed = random_bits(&numbers), .offset = random_bits(&numbers)};
    if (draw(3) == 0) return;
    d->heads = a->heads_q + draw(40);
    d->rows = a->seq_q + (draw(2) ? draw(5000) : (int64_t)1 << (20 + draw(18)));
    d->keys = a->seq_k + (draw(2) ? draw(5000) : (int64_t)1 << (20 + draw(20)));
    d->batch_start = draw(100);
    d->head_start = draw(d->heads - a->heads_q + 1);
    d->row_start = draw(d->rows - a->seq_q + 1);
    d->key_start = draw(2) ? draw(d->keys - a->seq_k + 1) : d->keys - a->seq_k;
}

static uint32_t draw_threshold(const struct dropout_place *place, const struct tile_place *at) {
    const int64_t first = at->from % at->p->group, h = at->kv * at->p->group + first;
    const uint64_t row = dropout_row(place, at->s->b, h, at->from / at->p->group);
    const uint64_t key = (uint64_t)(place->key_start + at->j0 + draw(at->keys));
    const uint32_t word = philox4x32_10(place->seed, place->offset, row + key / 4).word[key % 4];
    const uint32_t thresholds[] = {0,    1,       0x7fffffff, 0x80000000, UINT32_MAX, (uint32_t)random_bits(&numbers),
                                   word, word + 1};
    return thresholds[draw(COUNT(thresholds))];
}

static void check_tile(const struct tile_place *at, const struct dropout_place *place, int level) {
    enum { UNTOUCHED = -7, WEIGHT = 3 };
    static float z[MOST_KEYS][MOST_ROWS], p[MOST_KEYS][MOST_ROWS];
    for (int64_t j = 0; j < MOST_KEYS; ++j)
        for (int64_t r = 0; r < MOST_ROWS; ++r) {
            z[j][r] = UNTOUCHED;
            p[j][r] = WEIGHT;
        }
    const struct tile_sizes t = levels[level].drop(at, place, z, p);
    for (int64_t r = 0; r < t.tile_rows; ++r) {
        const int64_t vector = r / t.lanes, packed = at->from + r, group = at->p->group;
        const bool inside = vector >= at->first && vector < at->end;
        if (r >= t.rows && inside) continue; /* a lane without a row */
        const uint64_t row = dropout_row(place, at->s->b, at->kv * group + packed % group, packed / group);
        for (int64_t j = 0; j < MOST_KEYS; ++j) {
            float factor = UNTOUCHED, weight = WEIGHT;
            if (inside && j < at->keys) {
                factor = dropout_keeps(place, row, at->j0 + j) ? place->keep_scale : 0;
                weight = factor * WEIGHT;
            }
            if (z[j][r] != factor || p[j][r] != weight)
                fail_msg("%s: row %lld of a tile, key %lld, threshold %x: factor %g, not %g; weight %g, not %g",
                         levels[level].name, (long long)r, (long long)(at->j0 + j), place->threshold, (double)z[j][r],
                         (double)factor, (double)p[j][r], (double)weight);
        }
    }
}

static void factors_at_every_level(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < CASES; ++seed) {
        numbers.state = seed;
        strobe_attention a = {
            .struct_size = sizeof a, .batch = BATCH, .seq_q = 1 + draw(150), .seq_k = 1 + draw(200), .dim = 8};
        strobe_dropout d;
        struct problem p;
        a.heads_kv = 1 + draw(3);
        a.heads_q = a.heads_kv * (1 + draw(5));
        draw_dropout(&d, &a);
        a.dropout = &d;
        assert_int_equal(strobe__problem_read(&p, &a, NULL, false), STROBE_OK);
        const struct sequence s = strobe__sequence(&p, draw(BATCH));
        struct tile_place at = {
            .p = &p, .s = &s, .kv = draw(a.heads_kv), .from = draw(a.seq_q * p.group), .j0 = draw(a.seq_k)};
        const int64_t left = a.seq_k - at.j0;
        at.keys = 1 + draw(left < MOST_KEYS ? left : MOST_KEYS);
        at.first = (int)draw(3);
        at.end = at.first + (int)draw(4);
        struct dropout_place place = strobe__dropout_place(&p);
        place.threshold = draw_threshold(&place, &at);
        for (int level = 0; level < (int)COUNT(levels); ++level)
            if (levels[level].level <= (int)strobe__cpu_level()) check_tile(&at, &place, level);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_at_every_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
