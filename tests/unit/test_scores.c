/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_scores.c: what the CPU's kernels do to a block of scores by vectors (softcap, bias, ALiBi and masks), against the
 * public header's words in float64, score by score, at every level that runs here: biases of every dtype and broadcast, of
 * lengths that are no multiple of a vector, groups of heads whose rows share a tile, and a NaN that a mask or a bias of -inf
 * hides. And tanh, by which softcap is worked out. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/element.h"
#include "cpu/cpuid.h"
#include "level_scores.h"
#include "test.h"

enum { CASES = 600, BATCH = 2, MOST_LENGTH = 150, MOST_HEADS = 6, PLACES = BATCH * MOST_HEADS * MOST_LENGTH * MOST_LENGTH };

static const struct {
    const char *name;
    int level;
    finish_tile *finish;
    tanh_all *tanh;
    int roundings; /* of 1, which tanh may be off by */
} levels[] = {
    {"baseline", CPU_BASELINE, strobe__cpu_finish_tile_baseline, strobe__cpu_tanh_all_baseline, 3},
#if defined(__x86_64__) && !defined(STROBE_BASELINE_ONLY)
    {"avx2", CPU_AVX2, strobe__cpu_finish_tile_avx2, strobe__cpu_tanh_all_avx2, 3},
#if !defined(STROBE_NO_AVX512)
    {"avx512", CPU_AVX512, strobe__cpu_finish_tile_avx512, strobe__cpu_tanh_all_avx512, 3},
    /* The vectors of AMX, without tiles. Its tanh is for inputs of 16 bits (isa/amx.h). */
    {"amx", CPU_AVX512, strobe__cpu_finish_tile_amx, strobe__cpu_tanh_all_amx, 6},
#endif
#endif
};

struct world {
    strobe_attention a;
    strobe_bool_mask mask;
    strobe_bias bias;
    strobe_alibi alibi;
    uint8_t mask_bytes[PLACES];
    double bias_numbers[PLACES]; /* room for any dtype */
    float slopes[BATCH * MOST_HEADS];
};

static struct random numbers;

static int64_t draw(int64_t below) { return random_below(&numbers, below); }

/* Contiguous strides of [batch][heads][rows][columns] with some of the axes broadcast. */
static void draw_strides(int64_t stride[3], const strobe_attention *a) {
    stride[0] = draw(2) ? a->heads_q * a->seq_q * a->seq_k : 0;
    stride[1] = draw(2) ? a->seq_q * a->seq_k : 0;
    stride[2] = draw(4) ? a->seq_k : 0;
}

static void draw_bias(struct world *w) {
    static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP32, STROBE_BF16, STROBE_FP16, STROBE_FP64};
    w->bias.dtype = dtypes[draw(COUNT(dtypes))];
    draw_strides(w->bias.stride, &w->a);
    w->bias.data = w->bias_numbers;
    const int64_t hides = draw(3) ? 0 : 1 + draw(60); /* one of so many is -inf */
    for (int64_t n = 0; n < w->a.heads_q * w->a.seq_q * w->a.seq_k * BATCH; ++n)
        element_store(w->bias_numbers, w->bias.dtype, n,
                      hides && draw(hides) == 0 ? -(double)INFINITY : 4 * random_value(&numbers));
    w->a.bias = &w->bias;
}

static void draw_world(struct world *w) {
    static const int32_t masks[] = {STROBE_MASK_NONE, STROBE_MASK_NONE, STROBE_MASK_CAUSAL_BOTTOM_RIGHT};
    strobe_attention *a = &w->a;
    *a = (strobe_attention){.struct_size = sizeof *a, .batch = BATCH, .dim = 8};
    w->mask = (strobe_bool_mask){.struct_size = sizeof w->mask, .data = w->mask_bytes};
    w->bias = (strobe_bias){.struct_size = sizeof w->bias};
    w->alibi = (strobe_alibi){.struct_size = sizeof w->alibi, .slopes = w->slopes};
    a->seq_q = 1 + draw(MOST_LENGTH);
    a->seq_k = 1 + draw(MOST_LENGTH);
    a->heads_kv = 1 + draw(2);
    a->heads_q = a->heads_kv * (1 + draw(MOST_HEADS / 2));
    a->mask = masks[draw(COUNT(masks))];
    if (draw(2)) a->softcap = draw(2) ? 0.3 + (double)draw(3) : 30;
    if (draw(3)) draw_bias(w);
    if (draw(2)) {
        for (int n = 0; n < BATCH * MOST_HEADS; ++n) w->slopes[n] = (float)random_value(&numbers);
        w->alibi.stride_batch = draw(2) ? a->heads_q : 0;
        a->alibi = &w->alibi;
    }
    if (draw(2)) {
        draw_strides(w->mask.stride, a);
        for (size_t n = 0; n < sizeof w->mask_bytes; ++n) w->mask_bytes[n] = draw(5) ? (uint8_t)(1 + draw(255)) : 0;
        a->bool_mask = &w->mask;
    }
}

/* What becomes of a score, in float64. Returns whether it is visible. error: what fp32 may be off by, with a tanh that is
 * off by so many roundings of 1. */
static bool expected_score(const struct world *w, const struct tile_place *at, int64_t h, int64_t i, int64_t j, double x,
                           int roundings, double *expected, double *error) {
    const strobe_attention *a = &w->a;
    const int64_t b = at->s->b, *m = w->mask.stride, *n = w->bias.stride, diagonal = a->seq_k - a->seq_q;
    double magnitude = 0;
    if (a->softcap > 0) {
        x = a->softcap * tanh(x / a->softcap);
        magnitude += roundings * a->softcap;
    }
    magnitude += fabs(x);
    if (a->bias) {
        const double bias = element_load(w->bias_numbers, w->bias.dtype, b * n[0] + h * n[1] + i * n[2] + j);
        if (bias == -(double)INFINITY) return false;
        x += bias;
        magnitude += fabs(bias) + fabs(x);
    }
    if (a->alibi) {
        const double term = -(double)w->slopes[b * w->alibi.stride_batch + h] * fabs((double)(i + diagonal - j));
        x += term;
        magnitude += fabs(term) + fabs(x);
    }
    *expected = x;
    *error = 2 * magnitude * 0x1p-24;
    if (a->mask && j > i + diagonal) return false;
    return !a->bool_mask || w->mask_bytes[b * m[0] + h * m[1] + i * m[2] + j];
}

static void check_tile(const struct world *w, const struct tile_place *at, int level) {
    static float before[MOST_KEYS][MOST_ROWS], s[MOST_KEYS][MOST_ROWS], slope[MOST_KEYS][MOST_ROWS];
    const float scale = w->a.softcap > 0 || w->a.bias || w->a.alibi ? 0.125f : 1;
    struct tile_sizes t;
    bool said_hidden = false, is_hidden = false;
    for (int64_t j = 0; j < MOST_KEYS; ++j)
        for (int64_t r = 0; r < MOST_ROWS; ++r) before[j][r] = draw(20) ? (float)(40 * random_value(&numbers)) : NAN;
    memcpy(s, before, sizeof s);
    const bool seen = levels[level].finish(at, s, slope, scale, &t, &said_hidden);
    for (int64_t r = 0; r < t.rows; ++r)
        for (int64_t j = 0; j < at->keys; ++j) {
            const int64_t packed = at->from + r, h = at->kv * at->p->group + packed % at->p->group;
            const double x = (double)before[j][r] * (double)scale, got = (double)s[j][r];
            double expected = 0, error = 0;
            const int roundings = levels[level].roundings;
            const bool visible = expected_score(w, at, h, packed / at->p->group, at->j0 + j, x, roundings, &expected,
                                                &error);
            is_hidden = is_hidden || !visible;
            const bool worked_on = seen && r >= t.first && r < t.end;
            if (!worked_on && (visible || memcmp(&s[j][r], &before[j][r], sizeof(float)) != 0))
                fail_msg("%s: row %lld is left out, and sees something or was written", levels[level].name, (long long)r);
            if (!worked_on) continue;
            if (visible ? !(fabs(got - expected) <= error || (isnan(got) && isnan(expected))) : got != -(double)INFINITY)
                fail_msg("%s: row %lld of a tile, key %lld: %g became %g, not %g", levels[level].name, (long long)r,
                         (long long)(at->j0 + j), x, got, visible ? expected : -(double)INFINITY);
            const double c = w->a.softcap, th = c > 0 ? tanh(x / c) : 0;
            if (c > 0 && visible &&
                !(fabs((double)slope[j][r] - (1 - th * th)) <= 2 * (roundings + 1) * 0x1p-24 || isnan(th)))
                fail_msg("%s: slope %g at %g", levels[level].name, (double)slope[j][r], x);
        }
    if (seen && is_hidden && !said_hidden)
        fail_msg("%s: pairs are hidden, and the block does not say so", levels[level].name);
}

static void every_score(void **state) {
    (void)state;
    struct world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 0; seed < CASES; ++seed) {
        numbers.state = seed;
        draw_world(w);
        struct problem p;
        assert_int_equal(strobe__problem_read(&p, &w->a, NULL, false), STROBE_OK);
        const struct sequence s = strobe__sequence(&p, draw(BATCH));
        struct tile_place at = {.p = &p, .s = &s, .kv = draw(w->a.heads_kv), .from = draw(w->a.seq_q * p.group)};
        at.j0 = draw(w->a.seq_k) / 32 * 32;
        at.keys = w->a.seq_k - at.j0 < MOST_KEYS ? w->a.seq_k - at.j0 : MOST_KEYS;
        for (int level = 0; level < (int)COUNT(levels); ++level)
            if (levels[level].level <= (int)strobe__cpu_level()) check_tile(w, &at, level);
    }
    free(w);
}

/* tanh is off by a few roundings of 1, and keeps signs, infinities, NaN and the accuracy of small numbers. */
static void every_tanh(void **state) {
    (void)state;
    static float x[1 << 14], y[COUNT(x)];
    const float edges[] = {0,       -0.0f,       INFINITY, -INFINITY, NAN,    0.625f,
                           -0.625f, 0.62499997f, FLT_MAX,  -FLT_MAX,  1e-30f, -1e-30f};
    for (size_t n = 0; n < COUNT(x); ++n)
        x[n] = (float)(ldexp(1 + (double)(n % 64) / 64, (int)(n / 128) % 40 - 30) * (n / 64 % 2 ? -1 : 1));
    memcpy(x, edges, sizeof edges);
    for (int level = 0; level < (int)COUNT(levels); ++level) {
        if (levels[level].level > (int)strobe__cpu_level()) continue;
        memcpy(y, x, sizeof y);
        levels[level].tanh(y, COUNT(y));
        for (size_t n = 0; n < COUNT(x); ++n) {
            const double exact = tanh((double)x[n]), error = fabs((double)y[n] - exact);
            const bool right = error <= levels[level].roundings * 0x1p-24 && error <= 6 * 0x1p-24 * fabs(exact) &&
                               (signbit(y[n]) == signbit(x[n]) || x[n] == 0);
            if (!right && !(isnan(x[n]) && isnan(y[n])))
                fail_msg("%s: tanh(%.9g) is %.9g, not %.9g", levels[level].name, (double)x[n], (double)y[n], exact);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_score), cmocka_unit_test(every_tanh)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
