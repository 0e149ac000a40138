/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_append.c: strobe_append on the CPU. New tokens go where lengths, page tables or slots say, in every layout of the
 * cache and of the tokens, and no other byte changes; rotary embedding is what its definition says, of q and of k, from
 * tables and without, at any position; a quantised cache has the bytes and scales of strobe_quantise; steps of decoding with
 * an appended cache are attention over the whole; threads change no byte; what is asked for wrongly is refused, with nothing
 * written. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "math/fp8.h"
#include "strobe/strobe_append.h"
#include "test.h"

enum { BATCH = 3, NEW = 4, HEADS = 2, GROUP = 2, DIM = 12, DIM_V = 8, LONGEST = 20, PAGE = 4, PAGES = 17, TABLE = 6 };
enum { SLOTS = PAGES * PAGE, POSITIONS = 64 };

static float q[BATCH * NEW * HEADS * GROUP * DIM], k[BATCH * NEW * HEADS * DIM], v[BATCH * NEW * HEADS * DIM_V];
static float turned[BATCH * NEW * HEADS * GROUP * DIM];
static float k_cache[SLOTS * HEADS * DIM], v_cache[SLOTS * HEADS * DIM_V], k_wanted[SLOTS * HEADS * DIM];
static float v_wanted[SLOTS * HEADS * DIM_V], cosines[POSITIONS * DIM / 2], sines[POSITIONS * DIM / 2];
static const int32_t lengths[BATCH] = {5, 0, 16}, counts[BATCH] = {3, 0, 4}, ends[BATCH + 1] = {1, 4, 4, 8};
static const int32_t after[BATCH] = {8, 0, 20}, cache_ends[BATCH + 1] = {2, 12, 15, 37};
static const int64_t lengths64[BATCH] = {5, 0, 16}, ends64[BATCH + 1] = {1, 4, 4, 8};
static int32_t table[BATCH * TABLE];
static int64_t slots[BATCH * NEW];

static struct call {
    strobe_attention a;
    strobe_varlen n;
    strobe_paged g;
    strobe_scales s;
    strobe_appender w;
    strobe_rotary r;
    strobe_parallel p;
} c;

static void fill(float *x, size_t count, uint64_t seed) {
    struct random r = {.state = seed};
    for (size_t n = 0; n < count; ++n) x[n] = (float)random_value(&r);
}

static void reset(void) {
    fill(q, COUNT(q), 1), fill(k, COUNT(k), 2), fill(v, COUNT(v), 3);
    for (int n = 0; n < POSITIONS * DIM / 2; ++n) cosines[n] = (float)cos(n * 0.7), sines[n] = (float)sin(n * 0.7);
    for (int n = 0; n < BATCH * TABLE; ++n) table[n] = n * 5 % PAGES;
    memset(&c, 0, sizeof c);
    c.a = (strobe_attention){.struct_size = sizeof c.a, .batch = BATCH, .seq_q = NEW, .seq_k = LONGEST, .heads_kv = HEADS};
    c.a.heads_q = HEADS * GROUP, c.a.dim = DIM, c.a.dim_v = DIM_V;
    c.a.q.data = turned, c.a.k.data = k_cache, c.a.v.data = v_cache;
    c.n.struct_size = sizeof c.n, c.r.struct_size = sizeof c.r, c.p.struct_size = sizeof c.p, c.s.struct_size = sizeof c.s;
    c.g = (strobe_paged){.struct_size = sizeof c.g, .page_table = table, .page_size = PAGE, .pages = PAGES};
    c.g.table_stride = TABLE;
    c.w = (strobe_appender){.struct_size = sizeof c.w, .seq_new = NEW, .lengths = lengths};
    c.w.k.data = k, c.w.v.data = v;
    memset(k_cache, 0xff, sizeof k_cache), memset(v_cache, 0xff, sizeof v_cache), memset(turned, 0xff, sizeof turned);
    memset(k_wanted, 0xff, sizeof k_wanted), memset(v_wanted, 0xff, sizeof v_wanted);
}

static void append(void) {
    if (strobe_append(&c.a, &c.w, NULL)) fail_msg("%s", strobe_last_error());
}

enum where { CONTIGUOUS, PACKED_CACHE, IN_PAGES, HEADS_OUTSIDE };
enum tokens { ALL, USED, PACKED };
enum named { BY_LENGTHS, BY_LENGTHS_AFTER, BY_SLOTS };

/* The key's number in memory where a token is to be found, -1 where nowhere. */
static int64_t wanted_at(enum where where, enum named named, int64_t b, int64_t i, int64_t token) {
    const int64_t key = lengths[b] + i, entry = b * LONGEST;
    if (named == BY_SLOTS)
        return slots[token] < (where >= IN_PAGES ? SLOTS : where ? 37 : BATCH * LONGEST) ? slots[token] : -1;
    if (where == CONTIGUOUS) return entry + key;
    if (where == PACKED_CACHE) return cache_ends[b] + key;
    const int64_t page = table[b * TABLE + key / PAGE];
    return page < 0 || page >= PAGES ? -1 : page * PAGE + key % PAGE;
}

static void describe(enum where where, enum tokens tokens, enum named named) {
    if (where == PACKED_CACHE) c.n.cu_seqlens_k = cache_ends, c.a.varlen = &c.n, c.a.seq_k = 22;
    if (where >= IN_PAGES) c.a.paged = &c.g;
    if (where == HEADS_OUTSIDE) { /* [pages, heads, page, dim] */
        c.a.k.stride[0] = PAGE * HEADS * DIM, c.a.k.stride[1] = DIM, c.a.k.stride[2] = PAGE * DIM;
        c.a.v.stride[0] = PAGE * HEADS * DIM_V, c.a.v.stride[1] = DIM_V, c.a.v.stride[2] = PAGE * DIM_V;
    }
    const bool wide = tokens == PACKED; /* integers of 64 bits are one way too */
    if (wide) c.w.index_bits = 64, c.w.lengths = lengths64;
    if (tokens == USED) c.w.used_new = counts;
    if (tokens == PACKED) c.w.cu_seqlens_new = ends64;
    if (named == BY_LENGTHS_AFTER) c.w.lengths = NULL, c.n.used_k = after, c.a.varlen = &c.n;
    if (named != BY_SLOTS) return;
    struct random r = {.state = 7};
    const int64_t count = where >= IN_PAGES ? SLOTS : where ? 37 : BATCH * LONGEST;
    for (int n = 0; n < BATCH * NEW; ++n) { /* each its own; some before and past the cache */
        const int64_t slot = n * 5 + random_below(&r, 5);
        slots[n] = n % 5 == 3 ? -1 - slot : n % 5 == 4 ? count + n : slot % count;
        if (n % 5 < 3 && slot >= count) slots[n] = -1;
    }
    c.w.slots = slots, c.w.lengths = NULL, c.g.page_table = NULL;
}

static void check_places(enum where where, enum tokens tokens, enum named named, bool missing) {
    reset();
    describe(where, tokens, named);
    if (missing) table[1] = -1, table[2] = PAGES, table[2 * TABLE + 4] = INT32_MIN;
    for (int64_t b = 0; b < BATCH; ++b)
        for (int64_t i = 0; i < (tokens == ALL ? NEW : counts[b]); ++i) {
            const int64_t token = tokens == PACKED ? ends[b] + i : b * NEW + i;
            const int64_t at = wanted_at(where, named, b, i, token);
            for (int64_t h = 0; at >= 0 && h < HEADS; ++h) {
                const int64_t place = where == HEADS_OUTSIDE ? at / PAGE * PAGE * HEADS + h * PAGE + at % PAGE
                                                             : at * HEADS + h;
                memcpy(k_wanted + place * DIM, k + (token * HEADS + h) * DIM, DIM * sizeof *k);
                memcpy(v_wanted + place * DIM_V, v + (token * HEADS + h) * DIM_V, DIM_V * sizeof *v);
            }
        }
    append();
    if (memcmp(k_cache, k_wanted, sizeof k_cache) || memcmp(v_cache, v_wanted, sizeof v_cache))
        fail_msg("where %d, tokens %d, named %d, missing %d: other bytes", where, tokens, named, missing);
}

static void test_places(void **state) {
    (void)state;
    for (enum where where = CONTIGUOUS; where <= HEADS_OUTSIDE; ++where)
        for (enum tokens tokens = ALL; tokens <= PACKED; ++tokens)
            for (enum named named = BY_LENGTHS; named <= BY_SLOTS; ++named) {
                if (named == BY_LENGTHS_AFTER && tokens == ALL) continue; /* sequence 1 has no tokens there */
                if (where == PACKED_CACHE && tokens == ALL && named != BY_SLOTS) continue;
                check_places(where, tokens, named, false);
                if (where >= IN_PAGES) check_places(where, tokens, named, true);
            }
}

/* Element x of a row of `from` that stands at a position, by the definition, in float64. */
static double turned_element(const float *from, int64_t x, int64_t dim, bool interleaved, double angle_of_pair) {
    if (x >= dim) return (double)from[x];
    const int64_t pairs = dim / 2, pair = interleaved ? x / 2 : x % pairs;
    const bool second = interleaved ? x % 2 : x >= pairs;
    const double a = (double)from[interleaved ? 2 * pair : pair],
                 b = (double)from[interleaved ? 2 * pair + 1 : pair + pairs];
    return second ? b * cos(angle_of_pair) + a * sin(angle_of_pair) : a * cos(angle_of_pair) - b * sin(angle_of_pair);
}

static void check_rotary(int64_t dim, bool interleaved, double base, bool positions, bool at_length, bool in_place) {
    static const int32_t other[BATCH] = {9, 3, 11};
    static float before[COUNT(q)];
    reset();
    const int64_t pairs = dim / 2;
    for (int64_t n = 0; n < POSITIONS * pairs; ++n) {
        const double angle = (double)(n / pairs) * pow(10000, -(double)(n % pairs) / (double)pairs);
        cosines[n] = (float)cos(angle), sines[n] = (float)sin(angle);
    }
    c.r.dim = dim, c.r.interleaved = interleaved;
    if (base > 0) c.r.base = base;
    if (base == 0) c.r.cos = cosines, c.r.sin = sines, c.r.positions = POSITIONS, base = 10000;
    c.w.rotary = &c.r, c.w.q.data = q, c.a.q_start = 3, c.a.k_start = 2;
    if (positions) c.w.positions = other;
    if (at_length) c.w.flags = STROBE_Q_AT_LENGTH;
    memcpy(before, q, sizeof q);
    if (in_place) c.a.q.data = q;
    append();
    const float *result = in_place ? q : turned;
    for (int64_t n = 0; n < BATCH * NEW * HEADS * GROUP * DIM; ++n) {
        const int64_t x = n % DIM, row = n / DIM, i = row / (HEADS * GROUP) % NEW, b = row / (HEADS * GROUP) / NEW;
        const int64_t at = 3 + (positions ? other[b] : lengths[b]) + (at_length ? 0 : i),
                      pair = interleaved ? x / 2 : x % pairs;
        const double angle = (double)at * pow(base, -(double)pair / (double)pairs);
        const double wanted = turned_element(before + row * DIM, x, dim, interleaved, angle);
        if (fabs((double)result[n] - wanted) > 1e-6) fail_msg("q[%d] is %g, not %g", (int)n, (double)result[n], wanted);
    }
    for (int64_t n = 0; n < BATCH * NEW * HEADS * DIM; ++n) {
        const int64_t x = n % DIM, row = n / DIM, i = row / HEADS % NEW, b = row / HEADS / NEW;
        const int64_t at = 2 + (positions ? other[b] : lengths[b]) + i, pair = interleaved ? x / 2 : x % pairs;
        const double angle = (double)at * pow(base, -(double)pair / (double)pairs);
        const double wanted = turned_element(k + row * DIM, x, dim, interleaved, angle);
        const float found = k_cache[((b * LONGEST + lengths[b] + i) * HEADS + row % HEADS) * DIM + x];
        if (fabs((double)found - wanted) > 1e-6) fail_msg("k[%d] is %g, not %g", (int)n, (double)found, wanted);
    }
}

static void test_rotary(void **state) {
    (void)state;
    static const double bases[] = {0, 10000, 500000, 1};
    for (int64_t dim = 2; dim <= DIM; dim += 2)
        for (size_t n = 0; n < COUNT(bases); ++n)
            for (int flags = 0; flags < 16; ++flags) check_rotary(dim, flags & 1, bases[n], flags & 2, flags & 4, flags & 8);
}

/* Angles without tables: cosine and sine of every pair of a head of 128 columns, far out. */
static void test_far_positions(void **state) {
    (void)state;
    enum { WIDE = 128, ROWS = 6 };
    static const int64_t far[ROWS] = {0, 1, 4095, 131071, 1000003, 10000019};
    static float unit[ROWS * WIDE], result[ROWS * WIDE];
    for (int n = 0; n < ROWS * WIDE; ++n) unit[n] = n % WIDE < WIDE / 2;
    reset();
    c.a.batch = ROWS, c.a.seq_q = 1, c.a.heads_q = c.a.heads_kv = 1, c.a.dim = WIDE, c.a.q.data = result;
    c.w = (strobe_appender){.struct_size = sizeof c.w, .rotary = &c.r, .positions = far, .index_bits = 64};
    c.w.q.data = unit, c.r.base = 500000;
    append();
    for (int n = 0; n < ROWS * WIDE; ++n) {
        const int pair = n % (WIDE / 2);
        const long double angle = (long double)far[n / WIDE] * powl(500000, -(long double)pair / (WIDE / 2));
        const double wanted = (double)(n % WIDE < WIDE / 2 ? cosl(angle) : sinl(angle));
        if (fabs((double)result[n] - wanted) > 2e-7) fail_msg("[%d] is %.9g, not %.9g", n, (double)result[n], wanted);
    }
}

/* A cache of one byte a number, filled by strobe_append from length 0, and by strobe_quantise. */
static void check_quantised(int32_t dtype, bool rotary, int hadamard) {
    static uint8_t k8[2][BATCH * NEW * HEADS * DIM], v8[2][BATCH * NEW * HEADS * DIM_V];
    static float k_scale[2][BATCH * NEW * HEADS], v_scale[2][BATCH * NEW * HEADS];
    reset();
    c.a.seq_k = NEW, c.a.scales = &c.s, c.a.dtype = STROBE_FP8_E4M3, c.a.q.data = NULL, c.w.lengths = NULL, c.a.k_start = 1;
    c.a.k.dtype = c.a.v.dtype = dtype;
    c.s.block_k = 1;
    for (int axis = 0; axis < 3; ++axis) {
        static const int64_t stride[] = {NEW * HEADS, HEADS, 1};
        c.s.stride_k[axis] = c.s.stride_v[axis] = stride[axis];
    }
    c.r.cos = cosines, c.r.sin = sines, c.r.positions = POSITIONS;
    strobe_quantiser z = {.struct_size = sizeof z, .hadamard = hadamard, .seed = 5, .rotary = rotary ? &c.r : NULL};
    z.k.data = k, z.v.data = v;
    for (int n = 0; n < 2; ++n) {
        c.a.k.data = k8[n], c.a.v.data = v8[n], c.s.k = k_scale[n], c.s.v = v_scale[n];
        c.w.hadamard = hadamard, c.w.seed = 5, c.w.rotary = z.rotary;
        k[3] = NAN;
        if (n == 0) append();
        if (n == 1 && strobe_quantise(&c.a, &z, NULL)) fail_msg("%s", strobe_last_error());
    }
    assert_memory_equal(k8[0], k8[1], sizeof k8[0]);
    assert_memory_equal(v8[0], v8[1], sizeof v8[0]);
    assert_memory_equal(k_scale[0], k_scale[1], sizeof k_scale[0]);
    assert_memory_equal(v_scale[0], v_scale[1], sizeof v_scale[0]);
}

static void test_quantised(void **state) {
    (void)state;
    for (int flags = 0; flags < 8; ++flags)
        check_quantised(flags & 1 ? STROBE_INT8 : STROBE_FP8_E4M3, flags & 2, flags & 4 ? STROBE_HADAMARD : 0);
}

/* Scales that are given are read: a sequence, or one for all. */
static void test_given_scales(void **state) {
    (void)state;
    static uint8_t k8[BATCH * LONGEST * HEADS * DIM];
    static const float scale[BATCH * HEADS] = {0.5f, 0.25f, 2, 0.125f, 0.01f, 3};
    for (int kind = 0; kind < 4; ++kind) {
        const bool int8 = kind & 1, whole = kind & 2;
        reset();
        memset(k8, 0x55, sizeof k8);
        c.a.k.dtype = int8 ? STROBE_INT8 : STROBE_FP8_E4M3, c.a.k.data = k8, c.w.v.data = NULL;
        c.a.scales = &c.s, c.s.k = scale;
        if (!whole) c.s.stride_k[0] = HEADS, c.s.stride_k[2] = 1;
        append();
        for (int64_t n = 0; n < (int64_t)COUNT(k8); ++n) {
            const int64_t x = n % DIM, h = n / DIM % HEADS, b = n / DIM / HEADS / LONGEST,
                          i = n / DIM / HEADS % LONGEST - lengths[b];
            if (i < 0 || i >= NEW) {
                assert_int_equal(k8[n], 0x55);
                continue;
            }
            const float s = whole ? scale[0] : scale[b * HEADS + h], most = int8 ? 127 : 448;
            const float level = k[((b * NEW + i) * HEADS + h) * DIM + x] / s;
            const float wanted = level > most ? most : level < -most ? -most : level;
            const float found = int8 ? (float)(int8_t)k8[n] : e4m3_to_float(k8[n]);
            assert_true(fabsf(found - wanted) <= (int8 ? 0.5001f : fmaxf(fabsf(wanted) / 15.9f, 0x1p-10f)));
        }
    }
}

/* Conversions of dtypes: those of float16.h, which test_float16 knows. */
static void test_dtypes(void **state) {
    (void)state;
    static uint16_t half[2][BATCH * NEW * HEADS * DIM], stored[BATCH * LONGEST * HEADS * DIM];
    for (int kind = 0; kind < 2; ++kind) {
        reset();
        for (size_t n = 0; n < COUNT(k); ++n) half[kind][n] = kind ? float_to_bf16(k[n]) : float_to_fp16(k[n]);
        const int32_t dtype = kind ? STROBE_BF16 : STROBE_FP16;
        for (int direction = 0; direction < 3; ++direction) { /* fp32 to 16 bits, back, and a copy */
            c.w.v.data = NULL, c.a.k.data = direction == 1 ? (void *)k_cache : stored,
            c.w.k.data = direction ? (void *)half[kind] : k;
            c.a.k.dtype = direction == 1 ? STROBE_FP32 : dtype, c.w.k.dtype = direction ? dtype : STROBE_FP32;
            append();
            for (int64_t n = 0; n < (int64_t)COUNT(k); ++n) {
                const int64_t b = n / (NEW * HEADS * DIM), at = n + (b * (LONGEST - NEW) + lengths[b]) * HEADS * DIM;
                if (direction == 1)
                    assert_true(k_cache[at] == (kind ? bf16_to_float(half[1][n]) : fp16_to_float(half[0][n])));
                if (direction != 1) assert_int_equal(stored[at], half[kind][n]);
            }
        }
    }
}

/* A sequence that grows by chunks and tokens in pages, q and k turned on the way: attention of each step is that over the
 * keys so far, turned by hand. */
static void test_steps(void **state) {
    (void)state;
    enum { STEPS = 3, CHANNEL = HEADS * DIM };
    static const int64_t chunk[STEPS] = {NEW, 1, 3};
    static float all_k[LONGEST * CHANNEL], all_v[LONGEST * HEADS * DIM_V], out[2][NEW * HEADS * GROUP * DIM_V];
    int32_t length = 0;
    reset();
    c.a.batch = 1, c.a.paged = &c.g, c.a.varlen = &c.n, c.a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, c.n.used_k = &length;
    c.r.base = 10000, c.w.rotary = &c.r, c.w.q.data = q, c.w.lengths = NULL, c.a.out.data = out[0];
    for (int step = 0; step < STEPS; ++step) {
        fill(q, COUNT(q), 10 + (uint64_t)step), fill(k, COUNT(k), 20 + (uint64_t)step),
            fill(v, COUNT(v), 30 + (uint64_t)step);
        c.a.seq_q = c.w.seq_new = chunk[step], length += (int32_t)chunk[step];
        append();
        if (strobe_forward(&c.a, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
        strobe_attention whole = c.a;
        strobe_appender one = {.struct_size = sizeof one, .rotary = &c.r, .seq_new = chunk[step]};
        const int32_t before = length - (int32_t)chunk[step];
        one.k.data = k, one.v.data = v, one.lengths = &before;
        whole.varlen = NULL, whole.paged = NULL, whole.k.data = all_k, whole.v.data = all_v, whole.seq_k = LONGEST;
        assert_int_equal(strobe_append(&whole, &one, NULL), STROBE_OK);
        whole.seq_k = length, whole.out.data = out[1];
        if (strobe_forward(&whole, NULL, 0, NULL)) fail_msg("%s", strobe_last_error());
        for (int64_t n = 0; n < chunk[step] * HEADS * GROUP * DIM_V; ++n)
            if (!(fabsf(out[0][n] - out[1][n]) <= 2e-6f)) fail_msg("step %d, out[%d]", step, (int)n);
    }
}

static void run_backwards(void *self, int64_t tasks, void (*task)(void *context, int64_t index, int32_t worker),
                          void *context) {
    *(int64_t *)self = tasks;
    for (int64_t n = tasks - 1; n >= 0; --n) task(context, n, (int32_t)(n % 3));
}

static void test_threads(void **state) {
    (void)state;
    enum { ROWS = 9000, WIDE = 64 };
    static float many[ROWS * WIDE];
    static uint16_t stored[2][ROWS * WIDE];
    int64_t tasks = 0;
    fill(many, COUNT(many), 4);
    for (int n = 0; n < 2; ++n) {
        reset();
        c.a.batch = 1, c.a.seq_k = ROWS, c.a.heads_q = c.a.heads_kv = 1, c.a.dim = c.a.dim_v = WIDE, c.a.parallel = &c.p;
        c.a.k.data = stored[n], c.a.dtype = STROBE_BF16, c.w.k.data = many, c.w.v.data = NULL, c.w.lengths = NULL;
        c.w.seq_new = ROWS, c.w.rotary = &c.r, c.r.base = 10000, c.w.hadamard = STROBE_HADAMARD;
        c.p.threads = 1;
        if (n) c.p.threads = 3, c.p.run = run_backwards, c.p.self = &tasks;
        append();
    }
    assert_true(tasks > 3);
    assert_memory_equal(stored[0], stored[1], sizeof stored[0]);
}

/* Nothing to do, and caches of nothing. */
static void test_empty(void **state) {
    (void)state;
    reset(), c.a.batch = 0;
    append();
    reset(), c.w.seq_new = 0, c.w.k.data = c.w.v.data = NULL;
    append();
    reset(), c.w.k.data = c.w.v.data = NULL;
    append();
    reset(), c.a.seq_k = 0, c.w.seq_new = 0, c.w.lengths = NULL, c.a.k.data = c.a.v.data = NULL;
    append();
    reset(), describe(IN_PAGES, ALL, BY_SLOTS), c.g.pages = 0, c.a.k.data = c.a.v.data = NULL;
    append();
    reset(), c.w.slots = slots, c.w.lengths = NULL, slots[0] = INT64_MAX, slots[1] = INT64_MIN;
    for (int n = 2; n < BATCH * NEW; ++n) slots[n] = -1;
    append();
    assert_memory_equal(k_cache, k_wanted, sizeof k_cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),    cmocka_unit_test(test_rotary),  cmocka_unit_test(test_far_positions),
        cmocka_unit_test(test_quantised), cmocka_unit_test(test_dtypes),  cmocka_unit_test(test_given_scales),
        cmocka_unit_test(test_steps),     cmocka_unit_test(test_threads), cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
