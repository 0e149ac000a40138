/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_dist_choice.c: what is decided before anything is computed: which scheme `automatic` takes on GPUs, against the times
 * that docs/benchmarks.md has measured of all, and in which order packed sequences come, against a count of every pair; and
 * which calls take the plan of one before. No GPU is asked: strobe_workspace, by which libstrobe_dist asks whether a kernel
 * takes the problem, says yes. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strobe/strobe_dist.h"
#include "unit/test.h"

enum { DOCUMENTS = 20, LONGEST = 15282, MOST_DOCUMENTS = 40 };

static int questions;
strobe_status __wrap_strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes);
strobe_status __wrap_strobe_workspace(const strobe_attention *a, const strobe_gradients *g, size_t *bytes) {
    (void)a, (void)g;
    *bytes = 4096;
    ++questions;
    return STROBE_OK;
}

/* The documents of bench/dist_peers.py. */
static const int64_t lengths[DOCUMENTS] = {263, 1356, 15282, 289,  2176, 3704, 2167, 238,  2054, 11377,
                                           472, 5701, 478,   1211, 5293, 1465, 210,  5113, 6315, 372};

/* A problem of 128 numbers a head, bf16, causal or with a window, and what forward and backward together took on H200s with
 * messages over copy engines, in milliseconds. */
struct measured {
    const char *name;
    int32_t ranks;
    int64_t heads, heads_kv, tokens, window;
    bool packed;
    double took[3];    /* ring, all-gather, Ulysses */
    int forward_alone; /* 1 and on: the scheme whose forward alone was the shortest by the profiler; 0: not known */
};

static const struct measured table[] = {
    {"four, 32/8 8k", 4, 32, 8, 8192, 0, false, {2.165, 1.812, 1.620}, 2},
    {"four, 32/8 16k", 4, 32, 8, 16384, 0, false, {4.504, 3.990, 4.085}, 0},
    {"four, 32/8 64k", 4, 32, 8, 65536, 0, false, {54.81, 56.58, 56.64}, 0},
    {"four, 32/32 8k", 4, 32, 32, 8192, 0, false, {2.862, 2.989, 1.963}, 0},
    {"four, 32/32 16k", 4, 32, 32, 16384, 0, false, {5.301, 6.445, 4.598}, 0},
    {"four, 32/32 64k", 4, 32, 32, 65536, 0, false, {59.39, 62.05, 52.91}, 0},
    {"four, documents 64k", 4, 32, 8, 65536, 0, true, {10.96, 11.37, 9.874}, 0},
    {"four, window 64k", 4, 32, 8, 65536, 4096, false, {8.271, 7.636, 9.428}, 0},
    {"four, 8/1 64k", 4, 8, 1, 65536, 0, false, {14.09, 14.45, 13.63}, 0},
    {"two, 32/8 8k", 2, 32, 8, 8192, 0, false, {2.339, 2.342, 2.608}, 0},
    {"two, 32/8 16k", 2, 32, 8, 16384, 0, false, {7.256, 7.472, 7.914}, 0},
    {"two, 32/8 64k", 2, 32, 8, 65536, 0, false, {106.7, 104.5, 106.0}, 0},
    {"two, 32/32 8k", 2, 32, 32, 8192, 0, false, {2.581, 3.068, 2.855}, 0},
    {"two, 32/32 16k", 2, 32, 32, 16384, 0, false, {7.651, 8.644, 8.115}, 0},
    {"two, 32/32 64k", 2, 32, 32, 65536, 0, false, {105.2, 109.0, 108.5}, 0},
    {"two, documents 64k", 2, 32, 8, 65536, 0, true, {15.42, 15.36, 17.68}, 0},
    {"two, window 64k", 2, 32, 8, 65536, 4096, false, {15.03, 14.52, 17.27}, 0},
    {"two, 8/1 64k", 2, 8, 1, 65536, 0, false, {26.27, 25.79, 26.94}, 0},
};

/* What strobe_dist_explain says of one direction: predicted milliseconds of each scheme, and which is chosen. */
struct said {
    double predicted[3];
    int chosen;
};

static struct said ask(const struct measured *m, bool backward) {
    static const char *const names[3] = {"ring: ", "all_gather: ", "ulysses: "};
    int64_t offsets[DOCUMENTS + 1] = {0};
    char text[2048];
    struct said said = {.chosen = -1};
    for (int n = 0; n < DOCUMENTS; ++n) offsets[n + 1] = offsets[n] + lengths[n];
    const strobe_varlen varlen = {
        .struct_size = sizeof varlen, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets, .index_bits = 64};
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = m->tokens, .seq_k = m->tokens};
    a.heads_q = m->heads, a.heads_kv = m->heads_kv, a.dim = 128, a.dtype = STROBE_BF16, a.device = STROBE_CUDA;
    a.mask = m->window ? STROBE_MASK_WINDOW_TOP_LEFT : STROBE_MASK_CAUSAL_TOP_LEFT;
    a.window_left = m->window ? m->window - 1 : 0;
    if (m->packed) a.varlen = &varlen, a.batch = DOCUMENTS, a.seq_q = a.seq_k = LONGEST;
    const strobe_gradients g = {.struct_size = sizeof g};
    const strobe_transport transport = {
        .struct_size = sizeof transport, .size = m->ranks, .device = STROBE_CUDA, .flags = STROBE_TRANSPORT_BESIDE_KERNELS};
    strobe_dist d = {.struct_size = sizeof d, .attention = &a, .transport = &transport};
    d.layout = m->packed || m->window ? STROBE_DIST_CONTIGUOUS : STROBE_DIST_ZIGZAG;
    d.rows_q = d.rows_k = strobe_dist_rows(d.layout, m->tokens, m->ranks, 0);
    assert_int_equal(strobe_dist_explain(&d, backward ? &g : NULL, text, sizeof text, NULL), STROBE_OK);
    for (int n = 0; n < 3; ++n) {
        const char *line = strstr(text, names[n]), *number = line ? strstr(line, "predicted ") : NULL;
        assert_non_null(number);
        assert_non_null(strstr(number, "; the host is busy for "));
        said.predicted[n] = strtod(number + strlen("predicted "), NULL);
        if (strncmp(line + strlen(names[n]), "chosen, ", 8) == 0) said.chosen = n;
    }
    return said;
}

/* Forward and backward are chosen each for itself, and were measured together: neither may be of a scheme that took over a
 * twentieth more than the best; but for a forward that was the shortest by itself. */
static void test_best_measured(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(table); ++n) {
        const double *took = table[n].took;
        const double best = took[0] < took[1]   ? took[0] < took[2] ? took[0] : took[2]
                              : took[1] < took[2] ? took[1]
                                                : took[2];
        const struct said forward = ask(&table[n], false), backward = ask(&table[n], true);
        const bool is_known = table[n].forward_alone == forward.chosen + 1;
        if ((is_known || took[forward.chosen] <= 1.05 * best) && took[backward.chosen] <= 1.05 * best) continue;
        fail_msg("%s: scheme %d forward and %d backward took %g and %g ms, the best %g", table[n].name, forward.chosen + 1,
                 backward.chosen + 1, took[forward.chosen], took[backward.chosen], best);
    }
}

/* What is predicted of both directions together is near what was measured. */
static void test_predictions(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(table); ++n) {
        const struct said forward = ask(&table[n], false), backward = ask(&table[n], true);
        for (int scheme = 0; scheme < 3; ++scheme) {
            const double ratio = (forward.predicted[scheme] + backward.predicted[scheme]) / table[n].took[scheme];
            if (ratio > 1.0 / 1.16 && ratio < 1.16) continue;
            fail_msg("%s, scheme %d: predicted %g ms, measured %g", table[n].name, scheme + 1,
                     forward.predicted[scheme] + backward.predicted[scheme], table[n].took[scheme]);
        }
    }
}

/* ---- orders of packed sequences */

struct packing {
    int64_t q[MOST_DOCUMENTS + 1], k[MOST_DOCUMENTS + 1];
    strobe_varlen varlen;
    strobe_attention a;
    strobe_transport transport;
    strobe_dist d;
};

static void pack(struct packing *p, const int64_t *q, const int64_t *k, int64_t count, int32_t ranks, int32_t layout) {
    memset(p, 0, sizeof *p);
    for (int64_t n = 0; n < count; ++n) p->q[n + 1] = p->q[n] + q[n], p->k[n + 1] = p->k[n] + k[n];
    p->varlen = (strobe_varlen){
        .struct_size = sizeof p->varlen, .cu_seqlens_q = p->q, .cu_seqlens_k = p->k, .index_bits = 64};
    p->a = (strobe_attention){.struct_size = sizeof p->a, .batch = count, .seq_q = LONGEST, .seq_k = LONGEST};
    p->a.varlen = &p->varlen, p->a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
    p->transport = (strobe_transport){.struct_size = sizeof p->transport, .size = ranks};
    p->d = (strobe_dist){.struct_size = sizeof p->d, .attention = &p->a, .transport = &p->transport, .layout = layout};
}

/* Whether row i of a sequence sees key j, by the words of strobe.h. */
static bool sees(const strobe_attention *a, int64_t rows, int64_t keys, int64_t i, int64_t j) {
    const bool bottom = a->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT || a->mask == STROBE_MASK_WINDOW_BOTTOM_RIGHT;
    const bool causal = a->mask == STROBE_MASK_CAUSAL_TOP_LEFT || a->mask == STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    const int64_t ahead = j - i - (bottom ? keys - rows : 0);
    if (a->mask == STROBE_MASK_NONE) return true;
    if (causal) return ahead <= 0;
    return (a->window_left < 0 || -ahead <= a->window_left) && (a->window_right < 0 || ahead <= a->window_right);
}

/* The most pairs of a rank over the mean, every pair counted, the sequences in that order. */
static double count_balance(const struct packing *p, const int64_t *order) {
    const int32_t ranks = p->transport.size;
    const int64_t total = p->q[p->a.batch];
    int64_t *pairs = calloc((size_t)total + 1, sizeof *pairs), at = 0; /* of the row at each position */
    double most = 0, all = 0;
    assert_non_null(pairs);
    for (int64_t n = 0; n < p->a.batch; ++n) {
        const int64_t rows = p->q[order[n] + 1] - p->q[order[n]], keys = p->k[order[n] + 1] - p->k[order[n]];
        for (int64_t i = 0; i < rows; ++i, ++at)
            for (int64_t j = 0; j < keys; ++j) pairs[at] += sees(&p->a, rows, keys, i, j);
    }
    for (int32_t rank = 0; rank < ranks; ++rank) {
        double load = 0;
        for (int64_t row = 0; row < strobe_dist_rows(p->d.layout, total, ranks, rank); ++row)
            load += (double)pairs[strobe_dist_position(p->d.layout, total, ranks, rank, row)];
        all += load, most = load > most ? load : most;
    }
    free(pairs);
    return all > 0 ? most * ranks / all : 1;
}

static void check_order(const struct packing *p, double most) {
    int64_t order[MOST_DOCUMENTS], again[MOST_DOCUMENTS], given[MOST_DOCUMENTS];
    bool seen[MOST_DOCUMENTS] = {false};
    double balance[2];
    assert_int_equal(strobe_dist_order(&p->d, order, balance), STROBE_OK);
    for (int64_t n = 0; n < p->a.batch; ++n) {
        assert_true(order[n] >= 0 && order[n] < p->a.batch && !seen[order[n]]);
        seen[order[n]] = true, given[n] = n;
    }
    assert_true(fabs(balance[0] - count_balance(p, given)) < 1e-9);
    assert_true(fabs(balance[1] - count_balance(p, order)) < 1e-9);
    assert_true(balance[1] <= balance[0] && balance[1] <= most);
    assert_int_equal(strobe_dist_order(&p->d, again, NULL), STROBE_OK);
    assert_memory_equal(order, again, (size_t)p->a.batch * sizeof *order);
}

static void test_orders(void **state) {
    static const int64_t q[9] = {40, 0, 7, 300, 1, 65, 130, 12, 0}, k[9] = {50, 3, 0, 200, 90, 65, 131, 11, 0};
    struct packing p;
    (void)state;
    for (int32_t layout = STROBE_DIST_CONTIGUOUS; layout <= STROBE_DIST_ZIGZAG; ++layout)
        for (int32_t ranks = 1; ranks <= 5; ++ranks)
            for (int32_t mask = STROBE_MASK_NONE; mask <= STROBE_MASK_WINDOW_BOTTOM_RIGHT; ++mask) {
                pack(&p, q, k, 9, ranks, layout);
                p.a.mask = mask;
                if (mask >= STROBE_MASK_WINDOW_TOP_LEFT) p.a.window_left = 20, p.a.window_right = 4;
                check_order(&p, ranks);
            }
    pack(&p, q, k, 0, 3, STROBE_DIST_CONTIGUOUS); /* no sequence, and one */
    check_order(&p, 1);
    pack(&p, q, k, 1, 3, STROBE_DIST_ZIGZAG);
    check_order(&p, 3);
    pack(&p, q, k, 2, 64, STROBE_DIST_ZIGZAG); /* more ranks than rows */
    check_order(&p, 64);
}

/* Those of the benchmark, of which the longest has more pairs than a rank's share: 1.68 times the mean as they are given. */
static void test_orders_are_even(void **state) {
    struct packing p;
    double balance[2];
    int64_t order[DOCUMENTS];
    (void)state;
    for (int32_t layout = STROBE_DIST_CONTIGUOUS; layout <= STROBE_DIST_ZIGZAG; ++layout) {
        pack(&p, lengths, lengths, DOCUMENTS, 4, layout);
        assert_int_equal(strobe_dist_order(&p.d, order, balance), STROBE_OK);
        assert_true(balance[0] > 1.6 && balance[1] < 1.04);
    }
}

static void expect(const struct packing *p, int64_t *order, strobe_status status, const char *sentence) {
    assert_int_equal(strobe_dist_order(&p->d, order, NULL), status);
    assert_non_null(strstr(strobe_dist_last_error(), sentence));
}

static void test_refused_orders(void **state) {
    int64_t order[DOCUMENTS];
    struct packing p;
    (void)state;
    pack(&p, lengths, lengths, DOCUMENTS, 4, STROBE_DIST_STRIPED);
    expect(&p, order, STROBE_UNSUPPORTED, "layout is striped; contiguous and zigzag");
    p.d.layout = 7;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "layout is 7; 0 to 2 is accepted");
    p.d.layout = STROBE_DIST_ZIGZAG;
    expect(&p, NULL, STROBE_INVALID_ARGUMENT, "order is NULL; ");
    p.a.mask = 9;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "mask is 9; 0 to 4 is accepted");
    p.a.mask = STROBE_MASK_NONE, p.transport.size = 0;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "transport.size is 0; ");
    p.transport.size = 4, p.q[3] = 1;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "varlen.cu_seqlens_q[3] is 1 after 1619; ");
    p.a.varlen = NULL;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "attention has no packed sequences; ");
    p.a.varlen = &p.varlen, p.a.batch = -1;
    expect(&p, order, STROBE_INVALID_ARGUMENT, "batch is -1; ");
}

/* A call of which the workspace is asked for. */
struct shaped {
    strobe_attention a;
    strobe_gradients g;
    strobe_dropout dropout;
    strobe_tuning tuning;
    strobe_transport transport;
    strobe_dist d;
    bool backward;
};

static const struct shaped shape = {
    .a = {.struct_size = sizeof shape.a,
          .batch = 2,
          .seq_q = 640,
          .seq_k = 640,
          .heads_q = 8,
          .heads_kv = 2,
          .dim = 64,
          .dtype = STROBE_BF16,
          .device = STROBE_CUDA,
          .mask = STROBE_MASK_CAUSAL_TOP_LEFT},
    .g = {.struct_size = sizeof shape.g},
    .dropout = {.struct_size = sizeof shape.dropout, .p = 0.25, .seed = 7},
    .tuning = {.struct_size = sizeof shape.tuning, .kernel = "one"},
    .transport = {.struct_size = sizeof shape.transport, .rank = 1, .size = 4, .device = STROBE_CUDA},
    .d = {.struct_size = sizeof shape.d,
          .layout = STROBE_DIST_ZIGZAG,
          .scheme = STROBE_DIST_RING,
          .rows_q = 160,
          .rows_k = 160},
    .backward = true,
};

/* How many questions the core library is asked for the workspace, and how many bytes that is. */
static int count_questions(struct shaped *s, size_t *bytes) {
    questions = 0;
    s->d.attention = &s->a, s->d.transport = &s->transport;
    assert_int_equal(strobe_dist_workspace(&s->d, s->backward ? &s->g : NULL, bytes), STROBE_OK);
    return questions;
}

static unsigned char memory[4096];

enum change {
    PLACE,
    SEED,
    OFFSET,
    NOT_ANEW, /* those before are of the same plan */
    ALIGNMENT,
    NULL_LSE,
    STRIDE,
    DTYPE,
    MASK,
    LENGTH,
    HEADS,
    SCALE,
    KERNEL,
    NO_KERNEL,
    CHANCE,
    RANK,
    LAYOUT,
    SCHEME,
    HIDES,
    RATES,
    FORWARD_ALONE,
    CHANGES
};

static void apply(struct shaped *s, enum change change, strobe_dist_rates *rates) {
    switch (change) {
    case PLACE: s->a.q.data = memory + 512, s->g.dq.data = memory + 1024; break;
    case SEED: s->dropout.seed = 8; break;
    case OFFSET: s->dropout.offset = 100; break;
    case ALIGNMENT: s->a.q.data = memory + 16; break;
    case NULL_LSE: s->a.lse.data = NULL; break;
    case STRIDE: s->a.k.stride[0] = 160 * 512, s->a.k.stride[1] = 512, s->a.k.stride[2] = 64; break;
    case DTYPE: s->a.dtype = STROBE_FP16; break;
    case MASK: s->a.mask = STROBE_MASK_NONE; break;
    case LENGTH: s->a.seq_k = 320, s->d.rows_k = 80; break;
    case HEADS: s->a.heads_kv = 4; break;
    case SCALE: s->a.scale = 0.5; break;
    case KERNEL: s->tuning.kernel = "another"; break;
    case NO_KERNEL: s->a.tuning = NULL; break;
    case CHANCE: s->dropout.p = 0.5; break;
    case RANK: s->transport.rank = 2; break;
    case LAYOUT: s->d.layout = STROBE_DIST_CONTIGUOUS; break;
    case SCHEME: s->d.scheme = STROBE_DIST_ALL_GATHER; break;
    case HIDES: s->transport.flags = STROBE_TRANSPORT_BESIDE_KERNELS; break;
    case RATES: s->d.rates = rates; break;
    case FORWARD_ALONE: s->backward = false; break;
    case NOT_ANEW:
    case CHANGES: break;
    }
}

static struct shaped shaped(void) {
    struct shaped s = shape;
    strobe_tensor *const tensors[] = {&s.a.q, &s.a.k, &s.a.v, &s.a.out, &s.a.lse, &s.g.dout, &s.g.dq, &s.g.dk, &s.g.dv};
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; ++t) tensors[t]->data = memory + 256 * t;
    return s;
}

/* The aligned memory of another call makes no difference, nor what dropout draws; all else does. */
static void test_kept_plans(void **state) {
    strobe_dist_rates rates = {.struct_size = sizeof rates, .flops = 1e14};
    (void)state;
    for (enum change change = PLACE; change < CHANGES; ++change) {
        struct shaped first = shaped(), other;
        size_t bytes, again;
        first.a.batch = 3 + (int64_t)change; /* that no other change has asked for */
        first.a.dropout = &first.dropout, first.a.tuning = &first.tuning;
        assert_true(count_questions(&first, &bytes) > 0);
        assert_int_equal(count_questions(&first, &again), 0);
        assert_int_equal(bytes, again);
        other = first;
        other.a.dropout = &other.dropout, other.a.tuning = &other.tuning;
        apply(&other, change, &rates);
        if ((count_questions(&other, &again) > 0) != (change > NOT_ANEW))
            fail_msg("change %d: %d questions", change, questions);
    }
}

static void expect_anew(struct shaped *s) {
    size_t bytes;
    assert_true(count_questions(s, &bytes) > 0);
    assert_true(count_questions(s, &bytes) > 0);
}

/* Packed sequences' offsets, and the threads of a CPU, may be others when the next call comes; a refused call is checked
 * again. */
static void test_plans_that_are_not_kept(void **state) {
    struct shaped s = shaped();
    const int32_t offsets[] = {0, 400, 640};
    const strobe_varlen varlen = {.struct_size = sizeof varlen, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets};
    size_t bytes;
    (void)state;
    s.a.varlen = &varlen;
    expect_anew(&s);
    s = shaped(), s.a.device = STROBE_CPU, s.transport.device = STROBE_CPU;
    expect_anew(&s);
    s = shaped(), s.d.rows_q = 161;
    for (int n = 0; n < 2; ++n) {
        s.d.attention = &s.a, s.d.transport = &s.transport;
        assert_int_equal(strobe_dist_workspace(&s.d, &s.g, &bytes), STROBE_INVALID_ARGUMENT);
        assert_non_null(strstr(strobe_dist_last_error(), "rows_q is 161; 160, "));
    }
}

/* More shapes than there are places: all are right, and the last one's plan is there. */
static void test_many_plans(void **state) {
    (void)state;
    for (int round = 0; round < 2; ++round)
        for (int64_t n = 0; n < 100; ++n) {
            struct shaped s = shaped();
            size_t bytes, again;
            s.a.batch = 1000 + n;
            assert_true(count_questions(&s, &bytes) > 0);
            assert_int_equal(count_questions(&s, &again), 0);
            assert_int_equal(bytes, again);
        }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_measured),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_orders_are_even),
        cmocka_unit_test(test_refused_orders),
        cmocka_unit_test(test_kept_plans),
        cmocka_unit_test(test_plans_that_are_not_kept),
        cmocka_unit_test(test_many_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
