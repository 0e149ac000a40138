/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cuda_quantise.c: on a GPU, strobe_quantise stores the bytes, the scales and the means that it stores on the CPU:
 * whatever rows share a scale, the head dim, the dtype of the source, packed, with used lengths, with rotary embedding of
 * both kinds, Hadamard and K's mean, and with NaNs and infinities among the numbers. Skipped without a GPU. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "problem/element.h"
#include "strobe/strobe_quantise.h"
#include "with_gpu.h"

enum { BATCH = 2, SEQ = 300, HEADS = 3, MOST_DIM = 256, ROWS = BATCH * SEQ, ELEMENTS = ROWS * HEADS * MOST_DIM };
enum { LENGTHS = 8, TABLE = 320 * (MOST_DIM / 2) };

/* What a call reads and writes, on either device. */
struct memory {
    unsigned char source[ELEMENTS * 4];
    float cos[TABLE], sin[TABLE];
    int32_t ends[LENGTHS], used[LENGTHS];
    unsigned char q8[ELEMENTS], k8[ELEMENTS];
    float q_scale[ROWS * HEADS], k_scale[ROWS * HEADS], mean[BATCH * HEADS * MOST_DIM], shift[ROWS * HEADS];
};
static struct memory host, back;

struct way {
    int64_t dim, block;
    int32_t source, target;
    bool hadamard, rotary, interleaved, mean, packed, used, nan, shared, odd, no_queries, no_keys;
};

static void fill(const struct way *w) {
    struct random r = {.state = (uint64_t)w->dim};
    memset(&host, 0x55, sizeof host);
    for (int64_t n = 0; n < ELEMENTS; ++n) {
        double x = random_value(&r) * exp2((double)random_below(&r, 12));
        if (w->nan && random_below(&r, 4000) == 0) x = random_below(&r, 2) ? NAN : INFINITY;
        if (n / w->dim % 11 == 3) x = random_below(&r, 2) ? 0.0 : -0.0; /* whole rows of both zeros */
        element_store(host.source + n * (w->source == STROBE_FP32 ? 4 : 2), w->source, x);
    }
    for (int n = 0; n < TABLE; ++n) host.cos[n] = (float)cos(n * 0.37), host.sin[n] = (float)sin(n * 0.37);
    const int32_t ends[] = {2, 150, 411}, used[] = {140, 260};
    memcpy(host.ends, ends, sizeof ends), memcpy(host.used, used, sizeof used);
    if (!w->packed) host.used[1] = 299;
}

static void run(const struct way *w, struct memory *m, int32_t device) {
    const int64_t rows = w->packed ? 420 : SEQ, gap = w->odd ? 1 : 0, row = HEADS * w->dim + gap;
    strobe_scales s = {.struct_size = sizeof s, .q = m->q_scale, .k = m->k_scale};
    s.block_q = s.block_k = w->block;
    const int64_t blocks = w->block ? (rows + w->block - 1) / w->block : 1;
    const int64_t stride[3] = {blocks * HEADS, HEADS, 1};
    if (!w->shared) memcpy(s.stride_q, stride, sizeof stride);
    memcpy(s.stride_k, stride, sizeof stride);
    strobe_varlen v = {.struct_size = sizeof v, .total_q = rows, .total_k = rows};
    if (w->packed) v.cu_seqlens_q = v.cu_seqlens_k = m->ends;
    if (w->used) v.used_q = v.used_k = m->used;
    if (!w->packed) v.total_q = v.total_k = 0;
    strobe_rotary turn = {.struct_size = sizeof turn, .cos = m->cos, .sin = m->sin, .positions = 320};
    turn.dim = w->odd ? w->dim / 4 * 2 : w->dim, turn.interleaved = w->interleaved;
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .heads_q = HEADS};
    a.seq_q = w->no_queries ? 0 : SEQ, a.seq_k = w->no_keys ? 0 : SEQ;
    a.dim = w->dim, a.dtype = w->target, a.device = device, a.scales = &s;
    if (w->packed || w->used) a.varlen = &v;
    a.q.data = m->q8, a.k.data = m->k8;
    strobe_quantiser z = {.struct_size = sizeof z, .dtype = w->source, .hadamard = w->hadamard, .seed = 77};
    z.q.data = z.k.data = m->source;
    z.q.stride[0] = z.k.stride[0] = SEQ * row, z.q.stride[1] = z.k.stride[1] = row;
    z.q.stride[2] = z.k.stride[2] = w->dim;
    if (w->rotary) z.rotary = &turn;
    if (w->mean) z.k_mean = m->mean, z.lse_shift.data = m->shift;
    if (strobe_quantise(&a, &z, NULL)) fail_msg("dim %d: %s", (int)w->dim, strobe_last_error());
}

/* The mean of a column with a NaN, and lse_shift of a row with one, are NaN, with any bits. */
static void same_nan(struct memory *m) {
    for (size_t n = 0; n < COUNT(m->mean); ++n)
        if (isnan(m->mean[n])) m->mean[n] = NAN;
    for (size_t n = 0; n < COUNT(m->shift); ++n)
        if (isnan(m->shift[n])) m->shift[n] = NAN;
}

static void assert_same(const struct way *w, const char *what, const void *left, const void *right, size_t bytes) {
    const unsigned char *a = left, *b = right;
    for (size_t n = 0; n < bytes; ++n)
        if (a[n] != b[n])
            fail_msg("%s, byte %zu is 0x%02x on the GPU and 0x%02x on the CPU: dim %d, block %d, source %d, target %d", what,
                     n, a[n], b[n], (int)w->dim, (int)w->block, w->source, w->target);
}

static void same_bytes(void **state) {
    static const int64_t dims[] = {64, 96, 128, 192, 256, 80, 1, 7, 40, 100, 8, 32}, blocks[] = {128, 1, 0, 16, 7, 200};
    char message[256];
    (void)state;
    const char *wanted = getenv("STROBE_QUANTISE_STEP"); /* every seventh case, say, on a GPU that the host plays */
    const size_t step = wanted ? (size_t)atoi(wanted) : 1;
    assert_true(step > 0);
    struct random r = {.state = 9};
    for (size_t n = 0; n < 184; ++n) {
        const uint64_t bits = random_bits(&r) >> 20;
        struct way w = {.dim = dims[n % COUNT(dims)], .block = blocks[n / 2 % COUNT(blocks)]};
        w.source = bits & 1 ? STROBE_BF16 : bits & 2 ? STROBE_FP16 : STROBE_FP32;
        w.target = bits & 12 ? STROBE_FP8_E4M3 : STROBE_INT8;
        w.hadamard = bits & 16, w.rotary = bits & 32 && w.dim >= 8 && w.dim % 4 == 0, w.interleaved = bits & 64;
        w.mean = bits & 128, w.packed = bits & 256, w.used = bits & 512, w.nan = bits & 1024, w.odd = (bits >> 11) % 4 == 0;
        w.shared = (bits >> 13) % 8 == 0;
        if (n < 6)
            w = (struct way){
                .dim = dims[n], .block = 128, .source = STROBE_BF16, .target = STROBE_FP8_E4M3, .hadamard = true};
        if (n >= 96) { /* what one kernel does for rows of 64, 96, 128, 192 and 256 columns, first e4m3, then int8 */
            w = (struct way){.dim = dims[n % 5], .block = n / 5 % 5 == 0 ? 1 : n / 5 % 5 == 1 ? 16 : 128};
            w.source = bits & 1 ? STROBE_BF16 : STROBE_FP16;
            w.target = n < 136 ? STROBE_FP8_E4M3 : STROBE_INT8;
            w.hadamard = bits & 2, w.rotary = bits & 4, w.used = bits & 8, w.nan = bits & 16, w.mean = bits & 32;
        }
        if (n >= 176) { /* of a sequence without rows the scale and the mean alone */
            w = (struct way){.dim = n % 4 < 2 ? 128 : 40, .block = n % 2 ? 0 : 128, .source = STROBE_BF16, .mean = true};
            w.target = STROBE_FP8_E4M3, w.no_keys = n < 180, w.no_queries = !w.no_keys;
        }
        if (n % step) continue;
        fill(&w);
        struct memory *there = cuda_memory_copied(&host, sizeof host);
        assert_non_null(there);
        run(&w, there, STROBE_CUDA);
        run(&w, &host, STROBE_CPU);
        if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
        assert_true(cuda_memory_copy_back(&back, there, sizeof back));
        cuda_memory_free(there);
        same_nan(&host), same_nan(&back);
        assert_same(&w, "mean", back.mean, host.mean, sizeof host.mean);
        assert_same(&w, "scale of q", back.q_scale, host.q_scale, sizeof host.q_scale);
        assert_same(&w, "scale of k", back.k_scale, host.k_scale, sizeof host.k_scale);
        assert_same(&w, "q", back.q8, host.q8, sizeof host.q8);
        assert_same(&w, "k", back.k8, host.k8, sizeof host.k8);
        if (w.mean) assert_same(&w, "lse_shift", back.shift, host.shift, sizeof host.shift);
    }
}

/* q, k and v of other numbers of heads in one call, which one kernel takes alternately: each is in its own place. */
enum { MOST_HEADS = 7, LIST_ROWS = BATCH * SEQ };

struct list {
    uint16_t source[3][LIST_ROWS * MOST_HEADS * MOST_DIM];
    float cos[TABLE], sin[TABLE];
    uint8_t bytes[3][LIST_ROWS * MOST_HEADS * MOST_DIM];
    float scale[3][LIST_ROWS * MOST_HEADS];
    int32_t used[2][BATCH];
};
static struct list one, other;

struct heads {
    int64_t dim, q, kv;
    bool rotary, used, int8;
};

static void quantise_list(const struct heads *w, struct list *m, int32_t device) {
    const int64_t blocks = (SEQ + 127) / 128;
    strobe_scales s = {.struct_size = sizeof s, .q = m->scale[0], .k = m->scale[1], .v = m->scale[2]};
    s.block_q = 64, s.block_k = 128;
    const int64_t of_q[3] = {(SEQ + 63) / 64 * w->q, w->q, 1}, of_k[3] = {blocks * w->kv, w->kv, 1};
    memcpy(s.stride_q, of_q, sizeof of_q), memcpy(s.stride_k, of_k, sizeof of_k), memcpy(s.stride_v, of_k, sizeof of_k);
    strobe_varlen v = {.struct_size = sizeof v, .used_q = m->used[0], .used_k = m->used[1]};
    strobe_rotary turn = {.struct_size = sizeof turn, .cos = m->cos, .sin = m->sin, .positions = 320, .dim = w->dim};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = SEQ, .seq_k = SEQ, .heads_q = w->q};
    a.heads_kv = w->kv, a.dim = a.dim_v = w->dim, a.dtype = STROBE_FP8_E4M3, a.device = device, a.scales = &s;
    a.q.data = m->bytes[0], a.k.data = m->bytes[1], a.v.data = m->bytes[2];
    if (w->int8) a.q.dtype = a.k.dtype = STROBE_INT8;
    if (w->used) a.varlen = &v;
    strobe_quantiser z = {.struct_size = sizeof z, .dtype = STROBE_BF16, .hadamard = true, .seed = 5};
    z.q.data = m->source[0], z.k.data = m->source[1], z.v.data = m->source[2];
    if (w->rotary) z.rotary = &turn;
    if (strobe_quantise(&a, &z, NULL)) fail_msg("%s", strobe_last_error());
}

static void heads_alternate(void **state) {
    static const struct heads ways[] = {{64, 7, 7, .rotary = true},  {128, 6, 2, .rotary = true, .used = true},
                                        {96, 7, 1, .rotary = true},  {256, 2, 1, .rotary = true, .int8 = true},
                                        {192, 3, 3, .rotary = true}, {64, 1, 1, .used = true}};
    char message[256];
    (void)state;
    for (size_t n = 0; n < COUNT(ways); ++n) {
        const struct heads *w = &ways[n];
        struct random r = {.state = n};
        memset(&one, 0x55, sizeof one);
        for (int which = 0; which < 3; ++which)
            for (size_t i = 0; i < COUNT(one.source[0]); ++i)
                element_store((unsigned char *)&one.source[which][i], STROBE_BF16, random_value(&r) * (which + 1));
        for (int i = 0; i < TABLE; ++i) one.cos[i] = (float)cos(i * 0.37), one.sin[i] = (float)sin(i * 0.37);
        const int32_t used[2][BATCH] = {{140, 0}, {299, 17}};
        memcpy(one.used, used, sizeof used);
        struct list *there = cuda_memory_copied(&one, sizeof one);
        assert_non_null(there);
        quantise_list(w, there, STROBE_CUDA);
        quantise_list(w, &one, STROBE_CPU);
        if (!cuda_memory_wait(message, sizeof message)) fail_msg("%s", message);
        assert_true(cuda_memory_copy_back(&other, there, sizeof other));
        cuda_memory_free(there);
        for (int which = 0; which < 3; ++which) {
            const struct way what = {.dim = w->dim, .block = which, .source = STROBE_BF16};
            assert_same(&what, "a scale of the list", other.scale[which], one.scale[which], sizeof one.scale[0]);
            assert_same(&what, "the list", other.bytes[which], one.bytes[which], sizeof one.bytes[0]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bytes), cmocka_unit_test(heads_alternate)};
    return RUN_WITH_GPU(tests);
}
