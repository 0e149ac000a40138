/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_quantise.c: strobe_quantise on the CPU. Scales are the largest magnitude of their rows over 448 or 127, whichever
 * rows share one; every number comes back to half a step; rows that do not exist are left alone; products of Q and K are
 * what they were, whatever the head dim, with Hadamard and rotary embedding; K's mean leaves out and the corrected lse as
 * they were; a NaN stays in its row; the bytes depend on nothing else; and what is asked for wrongly is refused with a
 * sentence. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "math/fp8.h"
#include "strobe/strobe.h"
#include "strobe/strobe_quantise.h"
#include "test.h"

enum { BATCH = 2, SEQ = 150, HEADS = 2, GROUP = 2, DIM = 48, ROWS = BATCH * SEQ };

static float q[ROWS * HEADS * GROUP * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
static uint8_t q8[2][ROWS * HEADS * GROUP * DIM], k8[2][ROWS * HEADS * DIM], v8[2][ROWS * HEADS * DIM];
static float q_scale[ROWS * HEADS * GROUP], k_scale[ROWS * HEADS], v_scale[ROWS * HEADS];
static const int32_t ends[BATCH + 1] = {3, 81, 170}, used[BATCH] = {70, 60};

static struct call {
    strobe_attention a;
    strobe_scales s;
    strobe_varlen n;
    strobe_quantiser z;
    strobe_rotary r;
    strobe_parallel p;
} c;

static void fill(uint64_t seed) {
    struct random r = {.state = seed};
    for (size_t n = 0; n < COUNT(q); ++n) q[n] = (float)random_value(&r);
    for (size_t n = 0; n < COUNT(k); ++n) k[n] = (float)random_value(&r) + 3, v[n] = (float)random_value(&r);
}

static void reset(int64_t block) {
    memset(&c, 0, sizeof c);
    c.a = (strobe_attention){.struct_size = sizeof c.a, .batch = BATCH, .seq_q = SEQ, .seq_k = SEQ};
    c.a.heads_q = HEADS * GROUP, c.a.heads_kv = HEADS, c.a.dim = DIM, c.a.dtype = STROBE_FP8_E4M3, c.a.scales = &c.s;
    c.a.q.data = q8[0], c.a.k.data = k8[0], c.a.v.data = v8[0];
    const int64_t blocks = block ? (SEQ + block - 1) / block : 1;
    c.s = (strobe_scales){.struct_size = sizeof c.s, .q = q_scale, .k = k_scale, .v = v_scale};
    c.s.block_q = c.s.block_k = block;
    for (int axis = 0; axis < 3; ++axis) {
        const int64_t of_q[] = {blocks * HEADS * GROUP, HEADS * GROUP, 1}, of_k[] = {blocks * HEADS, HEADS, 1};
        c.s.stride_q[axis] = of_q[axis], c.s.stride_k[axis] = c.s.stride_v[axis] = of_k[axis];
    }
    c.n.struct_size = sizeof c.n, c.r.struct_size = sizeof c.r, c.p.struct_size = sizeof c.p;
    c.z = (strobe_quantiser){.struct_size = sizeof c.z};
    c.z.q.data = q, c.z.k.data = k, c.z.v.data = v;
    memset(q8, 0x55, sizeof q8), memset(k8, 0x55, sizeof k8), memset(v8, 0x55, sizeof v8);
}

static void quantise(void) {
    if (strobe_quantise(&c.a, &c.z, NULL)) fail_msg("%s", strobe_last_error());
}

/* Whether row `row` of the [ROWS] of K, in order of memory, is of a sequence; which one and where. */
static bool exists(int64_t row, bool packed, bool is_used, int64_t *b, int64_t *i) {
    *b = packed ? row >= ends[1] : row / SEQ, *i = packed ? row - ends[*b] : row % SEQ;
    const int64_t rows = is_used ? used[*b] : packed ? ends[*b + 1] - ends[*b] : SEQ;
    return *i >= 0 && *i < rows;
}

/* A sequence without rows has a scale, the least, and a mean, 0; blocks of no rows have no scales. No data are read. */
static void test_no_rows(void **state) {
    (void)state;
    static float mean[BATCH * HEADS * DIM], shift[BATCH * HEADS * GROUP];
    for (int kind = 0; kind < 8; ++kind) {
        const bool no_keys = kind & 1, int8 = kind & 2, blocks = kind & 4;
        const float least = 0x1p-40f / (int8 ? 127 : 448);
        reset(blocks ? 128 : 0);
        if (int8) c.a.q.dtype = c.a.k.dtype = c.a.v.dtype = STROBE_INT8;
        *(no_keys ? &c.a.seq_k : &c.a.seq_q) = 0;
        c.z.k_mean = mean, c.z.lse_shift.data = no_keys ? NULL : shift;
        for (size_t n = 0; n < COUNT(mean); ++n) mean[n] = 77;
        for (int64_t n = 0; n < BATCH * HEADS * GROUP; ++n) q_scale[n] = k_scale[n] = v_scale[n] = 77;
        quantise();
        const float expected = blocks ? 77 : least;
        for (int64_t n = 0; n < BATCH * HEADS * (no_keys ? 1 : GROUP); ++n)
            if ((no_keys ? k_scale[n] : q_scale[n]) != expected || (no_keys && v_scale[n] != expected))
                fail_msg("kind %d: scale %lld is %g", kind, (long long)n, no_keys ? k_scale[n] : q_scale[n]);
        for (size_t n = 0; no_keys && n < COUNT(mean); ++n) assert_true(mean[n] == 0);
    }
}

static void test_scales(void **state) {
    (void)state;
    static const int64_t blocks[] = {0, 1, 16, 128, 7, 150};
    for (size_t n = 0; n < COUNT(blocks); ++n)
        for (int kind = 0; kind < 16; ++kind) {
            const bool packed = kind & 1, is_used = kind & 2, int8 = kind & 4, whole = kind & 8;
            const int64_t block = blocks[n];
            fill(n);
            reset(block);
            if (packed || is_used) c.a.varlen = &c.n;
            if (packed) c.n.cu_seqlens_k = ends, c.z.q.data = NULL;
            if (is_used) c.n.used_k = used;
            if (int8) c.a.k.dtype = STROBE_INT8;
            if (whole) memset(c.s.stride_k, 0, sizeof c.s.stride_k);
            quantise();
            static float largest[ROWS * HEADS];
            memset(largest, 0, sizeof largest);
            for (int pass = 0; pass < 2; ++pass)
                for (int64_t row = 0; row < (packed ? ends[BATCH] : ROWS); ++row)
                    for (int64_t h = 0; h < HEADS; ++h) {
                        int64_t b, i;
                        const bool there = exists(row, packed, is_used, &b, &i);
                        const int64_t base = packed && block ? 0 : b * c.s.stride_k[0];
                        const int64_t slot = base + h * c.s.stride_k[2] +
                                             (block ? (packed ? row : i) / block * c.s.stride_k[1] : 0);
                        for (int64_t x = 0; x < DIM; ++x) {
                            const int64_t at = (row * HEADS + h) * DIM + x;
                            if (!there) {
                                assert_int_equal(k8[0][at], 0x55);
                            } else if (pass == 0) {
                                largest[slot] = fmaxf(largest[slot], fabsf(k[at]));
                            } else {
                                const float scale = k_scale[slot];
                                assert_true(scale == largest[slot] / (int8 ? 127 : 448));
                                const float stored = int8 ? (float)(int8_t)k8[0][at] : e4m3_to_float(k8[0][at]);
                                const double step = int8 ? 0.5 : fmax(fabs((double)k[at] / (double)scale) / 16, 0x1p-10);
                                assert_true(fabs((double)stored - (double)k[at] / (double)scale) <= step * 1.00001);
                            }
                        }
                    }
        }
}

/* The product of row i of q and row j of k, of one head, as they are stored; -1: as they were, in float64. */
static double product(int64_t dim, int64_t i, int64_t j, int which) {
    double sum = 0;
    for (int64_t x = 0; x < dim; ++x) {
        const double a = which < 0 ? (double)q[i * dim + x]
                                   : (double)e4m3_to_float(q8[which][i * dim + x]) * (double)q_scale[i];
        const double b = which < 0 ? (double)k[j * dim + x]
                                   : (double)e4m3_to_float(k8[which][j * dim + x]) * (double)k_scale[j];
        sum += a * b;
    }
    return sum;
}

/* A row with an outlier, spread over all columns: its products with keys are right to the rounding of e4m3, of which one of
 * a factor is at most 2^-4 and of two on average 0.05 of a term. */
static void test_hadamard(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 2, 3, 8, 24, 31, 48, 64, 80, 96, 100, 112, 128, 160, 192, 200, 255, 256};
    for (size_t n = 0; n < COUNT(dims); ++n) {
        fill(n);
        reset(1);
        const int64_t dim = dims[n];
        c.a.batch = 1, c.a.seq_q = c.a.seq_k = 20, c.a.heads_q = c.a.heads_kv = 1, c.a.dim = c.a.dim_v = dim;
        memset(c.s.stride_q, 0, sizeof c.s.stride_q);
        c.s.stride_q[1] = c.s.stride_k[1] = c.s.stride_v[1] = 1;
        c.z.hadamard = STROBE_HADAMARD, c.z.seed = n;
        for (int64_t i = 0; i < 20; ++i) q[i * dim] = 100; /* an outlier */
        quantise();
        double error = 0, size = 0;
        for (int64_t i = 0; i < 20; ++i)
            for (int64_t j = 0; j < 20; ++j) {
                error += pow(product(dim, i, j, 0) - product(dim, i, j, -1), 2);
                for (int64_t x = 0; x < dim; ++x) size += 1e4 / (double)dim * pow((double)k[j * dim + x], 2);
            }
        if (sqrt(error / size) > 0.07) fail_msg("dim %d: relative error %g", (int)dim, sqrt(error / size));
    }
}

/* An outlier in one column, whichever it is, becomes no more than 3.6 times what an even share of the columns of a transform
 * has: where a row takes two transforms, the second must not gather what the first has spread. */
static void test_spread(void **state) {
    (void)state;
    static const int64_t dims[] = {64, 72, 80, 96, 112, 128, 160, 192, 256};
    for (size_t n = 0; n < COUNT(dims); ++n)
        for (int64_t first = 0; first < dims[n]; first += 8) {
            const int64_t dim = dims[n], most = dim < 128 ? 64 : dim < 256 ? 128 : 256;
            reset(1);
            c.a.batch = c.a.seq_q = 1, c.a.seq_k = 8, c.a.heads_q = c.a.heads_kv = 1, c.a.dim = c.a.dim_v = dim;
            memset(c.s.stride_k, 0, sizeof c.s.stride_k);
            c.s.stride_k[1] = 1;
            c.z.hadamard = STROBE_HADAMARD, c.z.seed = (uint64_t)first;
            memset(k, 0, sizeof k);
            for (int64_t row = 0; row < 8; ++row) k[row * dim + first + row] = 1;
            quantise();
            for (int64_t row = 0; row < 8; ++row) {
                const double largest = (double)k_scale[row] * 448;
                if (!(largest < 3.6 / sqrt((double)most)))
                    fail_msg("dim %d, column %d: %g", (int)dim, (int)(first + row), largest);
            }
        }
}

static void test_rotary(void **state) {
    (void)state;
    enum { PAIRS = 16, POSITIONS = SEQ + 9 };
    static float cosines[POSITIONS * PAIRS], sines[POSITIONS * PAIRS];
    for (int n = 0; n < POSITIONS * PAIRS; ++n) {
        const double angle = n / PAIRS * pow(1e4, -(double)(n % PAIRS) / PAIRS);
        cosines[n] = (float)cos(angle), sines[n] = (float)sin(angle);
    }
    for (int interleaved = 0; interleaved < 2; ++interleaved) {
        fill(5);
        reset(1);
        c.r = (strobe_rotary){
            .struct_size = sizeof c.r, .cos = cosines, .sin = sines, .positions = POSITIONS, .dim = 2 * PAIRS};
        c.r.interleaved = interleaved, c.z.rotary = &c.r, c.a.k_start = 9;
        quantise();
        for (int64_t row = 0; row < ROWS; ++row)
            for (int64_t x = 0; x < DIM; ++x) {
                const float *from = k + row * HEADS * DIM;
                const int64_t pair = x >= 2 * PAIRS ? 0
                                     : interleaved  ? x / 2
                                                    : x % PAIRS,
                              at = (row % SEQ + 9) * PAIRS + pair;
                const bool second = interleaved ? x % 2 : x >= PAIRS;
                const double a = (double)from[interleaved ? 2 * pair : pair];
                const double b = (double)from[interleaved ? 2 * pair + 1 : pair + PAIRS];
                double expected = second ? b * (double)cosines[at] + a * (double)sines[at]
                                         : a * (double)cosines[at] - b * (double)sines[at];
                if (x >= 2 * PAIRS) expected = (double)from[x];
                const double scale = (double)k_scale[row * HEADS], step = fmax(fabs(expected) / 16, scale * 0x1p-10) * 1.001;
                assert_true(fabs((double)e4m3_to_float(k8[0][row * HEADS * DIM + x]) * scale - expected) <= step);
            }
    }
}

/* How far out and lse from what was quantised are from those of the fp32 tensors: 1 - cosine, and the worst of lse. */
struct distance {
    double out, lse;
};

static struct distance distance(bool with_mean) {
    static float mean[BATCH * HEADS * DIM], shift[ROWS * HEADS * GROUP], out[2][ROWS * HEADS * GROUP * DIM];
    static float lse[2][ROWS * HEADS * GROUP];
    reset(128);
    c.z.hadamard = STROBE_HADAMARD;
    if (with_mean) c.z.k_mean = mean, c.z.lse_shift.data = shift;
    quantise();
    c.a.out.data = out[0], c.a.out.dtype = STROBE_FP32, c.a.lse.data = lse[0];
    if (strobe_forward(&c.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
    strobe_attention plain = c.a;
    plain.dtype = STROBE_FP32, plain.scales = NULL, plain.out.data = out[1], plain.lse.data = lse[1];
    plain.q.data = q, plain.k.data = k, plain.v.data = v;
    assert_int_equal(strobe_forward(&plain, NULL, 0, NULL), STROBE_OK);
    double dot = 0, a = 0, b = 0, worst = 0;
    for (size_t n = 0; n < COUNT(out[0]); ++n)
        dot += (double)out[0][n] * (double)out[1][n], a += pow((double)out[0][n], 2), b += pow((double)out[1][n], 2);
    for (size_t n = 0; n < COUNT(lse[0]); ++n)
        worst = fmax(worst, fabs((double)(lse[0][n] + (with_mean ? shift[n] : 0) - lse[1][n])));
    return (struct distance){1 - dot / sqrt(a * b), worst};
}

/* Keys with a mean of ten times their standard deviation: once it is subtracted, they are as good as keys without one. */
static void test_mean(void **state) {
    (void)state;
    fill(8);
    for (size_t n = 0; n < COUNT(k); ++n) k[n] -= 3;
    const struct distance without = distance(false);
    for (size_t n = 0; n < COUNT(k); ++n) k[n] += 10;
    const struct distance raw = distance(false), subtracted = distance(true);
    if (subtracted.out > 1.1 * without.out) fail_msg("1 - cosine is %g, not %g", subtracted.out, without.out);
    if (subtracted.lse > 2 * without.lse) fail_msg("lse is off by %g, not %g", subtracted.lse, without.lse);
    if (raw.out < 4 * without.out) fail_msg("the mean does no harm here, %g: the test shows nothing", raw.out);
}

static void test_nan(void **state) {
    (void)state;
    for (int hadamard = 0; hadamard < 2; ++hadamard) {
        fill(2);
        k[(5 * HEADS + 1) * DIM + 3] = NAN, k[(9 * HEADS + 1) * DIM] = INFINITY;
        reset(128);
        c.z.hadamard = hadamard;
        quantise();
        for (int64_t n = 0; n < (int64_t)COUNT(k); ++n) {
            const int64_t row = n / DIM / HEADS, x = n % DIM;
            const bool of_head = n / DIM % HEADS == 1;
            const bool poisoned = of_head && (row == 5 || row == 9) && (hadamard || (row == 5 ? x == 3 : x == 0));
            if ((k8[0][n] == 0x7f) != poisoned && !(hadamard && of_head && row == 9)) fail_msg("byte %d", (int)n);
        }
        for (size_t n = 0; n < COUNT(k_scale) / SEQ * 2; ++n) assert_true(k_scale[n] > 0 && isfinite(k_scale[n]));
    }
    reset(1);
    c.a.k.dtype = STROBE_INT8;
    quantise();
    assert_true(isnan(k_scale[5 * HEADS + 1]) && isfinite(k_scale[5 * HEADS]));
}

static void test_threads_and_strides(void **state) {
    (void)state;
    static float turned[ROWS * HEADS * DIM];
    fill(3);
    reset(16);
    c.z.hadamard = STROBE_HADAMARD;
    quantise();
    memcpy(k8[1], k8[0], sizeof k8[0]), memcpy(q8[1], q8[0], sizeof q8[0]);
    c.p.threads = 1, c.a.parallel = &c.p;
    for (int64_t n = 0; n < ROWS * HEADS * DIM; ++n) /* [batch, heads, seq, dim] */
        turned[(n / DIM / HEADS / SEQ * HEADS * SEQ + n / DIM % HEADS * SEQ + n / DIM / HEADS % SEQ) * DIM + n % DIM] = k[n];
    c.z.k.data = turned;
    c.z.k.stride[0] = HEADS * SEQ * DIM, c.z.k.stride[1] = DIM, c.z.k.stride[2] = SEQ * DIM;
    quantise();
    assert_memory_equal(k8[0], k8[1], sizeof k8[0]);
    assert_memory_equal(q8[0], q8[1], sizeof q8[0]);
    memset(k8[0], 0x55, sizeof k8[0]); /* one after the other, with the same seed */
    c.z.q.data = NULL, c.z.v.data = NULL;
    quantise();
    assert_memory_equal(k8[0], k8[1], sizeof k8[0]);
}

static void refuses(strobe_status status, const char *sentence) {
    assert_int_equal(strobe_quantise(&c.a, &c.z, NULL), status);
    assert_string_equal(strobe_last_error(), sentence);
}

static void test_refusals(void **state) {
    (void)state;
    reset(1), c.a.dtype = STROBE_BF16;
    refuses(STROBE_INVALID_ARGUMENT, "q.dtype is bf16; accepted are fp8_e4m3, int8");
    reset(1), c.a.dtype = 7;
    refuses(STROBE_INVALID_ARGUMENT, "dtype is 7; a strobe_dtype, 1 to 6, is accepted");
    reset(1), c.z.hadamard = 2;
    refuses(STROBE_INVALID_ARGUMENT, "quantiser.hadamard is 2; 0 to 1 is accepted");
    reset(1), c.s.k = NULL;
    refuses(STROBE_INVALID_ARGUMENT, "scales.k is NULL and k.dtype is fp8_e4m3; fp8_e4m3 with its scales is accepted");
    reset(1), c.a.v.data = NULL;
    refuses(STROBE_INVALID_ARGUMENT, "v is NULL; a pointer to its elements is accepted");
    reset(1), c.z.v.dtype = STROBE_FP64;
    refuses(STROBE_INVALID_ARGUMENT, "quantiser.v.dtype is fp64; accepted are fp32, fp16, bf16");
    reset(1), c.z.rotary = &c.r, c.r.cos = c.r.sin = q, c.r.dim = 3;
    refuses(STROBE_INVALID_ARGUMENT, "rotary.dim is 3; an even number is accepted");
    reset(1), c.z.rotary = &c.r, c.r.cos = c.r.sin = q, c.r.positions = SEQ - 1;
    refuses(STROBE_INVALID_ARGUMENT, "q stands at positions 0 to 149; 0 to rotary.positions - 1, 148, is accepted");
    reset(1), c.z.lse_shift.data = q;
    refuses(STROBE_INVALID_ARGUMENT, "quantiser.lse_shift is given without quantiser.k_mean; both are accepted");
    reset(1), c.a.dim = c.a.dim_v = 257, c.z.hadamard = 1;
    refuses(STROBE_UNSUPPORTED, "dim is 257 with quantiser.hadamard; 1 to 256 is taken");
    reset(16), c.s.stride_k[1] = 1;
    refuses(STROBE_INVALID_ARGUMENT,
            "scales.k.stride is {20, 1, 1}; strides that keep the elements of an output apart are accepted");
    for (size_t n = 0; n < sizeof q8[0]; ++n) assert_int_equal(q8[0][n], 0x55);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_rows),  cmocka_unit_test(test_scales),
        cmocka_unit_test(test_hadamard), cmocka_unit_test(test_spread),
        cmocka_unit_test(test_rotary),   cmocka_unit_test(test_mean),
        cmocka_unit_test(test_nan),      cmocka_unit_test(test_threads_and_strides),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
