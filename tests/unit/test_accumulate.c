/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_accumulate.c: a gradient that strobe_gradients.accumulate names is what was there plus the gradient that the same
 * call writes without it, to the bit; of the others, and of rows that no sequence has, all is as without it. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "strobe/strobe.h"
#include "test.h"

enum { ROWS = 23, KEYS = 31, HEADS = 4, HEADS_KV = 2, DIM = 9, BATCH = 3, CUT = 2, GRADIENTS = 3 };
enum { MOST = BATCH * KEYS * HEADS * (DIM + CUT) };

/* Tensors have CUT elements behind each head, which belong to nobody. */
struct sides {
    float q[MOST], k[MOST], v[MOST], out[MOST], lse[MOST], dout[MOST];
    float gradient[GRADIENTS][MOST];
};

static float number(int64_t n, int what) { return (float)((n * 7919 + what * 104729) % 2003 - 1001) / 500; }

static strobe_tensor tensor(float *data, int64_t heads, int64_t seq) {
    const int64_t head = DIM + CUT;
    return (strobe_tensor){.data = data, .stride = {seq * heads * head, heads * head, head}};
}

static void begin(struct sides *s) {
    float *const all[] = {s->q, s->k, s->v, s->dout, s->gradient[0], s->gradient[1], s->gradient[2]};
    for (size_t t = 0; t < sizeof all / sizeof all[0]; ++t)
        for (int64_t n = 0; n < MOST; ++n) all[t][n] = number(n, (int)t);
}

/* A forward, and a backward that adds to some. Returns the bytes of workspace that it asks for. */
static size_t run(struct sides *s, const strobe_varlen *varlen, int32_t accumulate, int32_t threads, bool own_workspace) {
    const strobe_parallel parallel = {.struct_size = sizeof parallel, .threads = threads};
    strobe_attention a = {.struct_size = sizeof a, .batch = BATCH, .seq_q = ROWS, .seq_k = KEYS, .heads_q = HEADS};
    a.heads_kv = HEADS_KV, a.dim = DIM, a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, a.varlen = varlen, a.parallel = &parallel;
    a.q = tensor(s->q, HEADS, ROWS), a.k = tensor(s->k, HEADS_KV, KEYS), a.v = tensor(s->v, HEADS_KV, KEYS);
    a.out = tensor(s->out, HEADS, ROWS), a.lse.data = s->lse;
    begin(s);
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OK);
    strobe_gradients g = {.struct_size = sizeof g, .accumulate = accumulate};
    g.dout = tensor(s->dout, HEADS, ROWS), g.dq = tensor(s->gradient[0], HEADS, ROWS);
    g.dk = tensor(s->gradient[1], HEADS_KV, KEYS), g.dv = tensor(s->gradient[2], HEADS_KV, KEYS);
    size_t bytes;
    assert_int_equal(strobe_workspace(&a, &g, &bytes), STROBE_OK);
    void *workspace = own_workspace ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (workspace) memset(workspace, 0xFF, bytes);
    if (workspace) assert_int_equal(strobe_backward(&a, &g, workspace, bytes - 1, NULL), STROBE_WORKSPACE_TOO_SMALL);
    if (strobe_backward(&a, &g, workspace, workspace ? bytes : 0, NULL)) fail_msg("%s", strobe_last_error());
    free(workspace);
    return bytes;
}

/* Whether element n of gradient t belongs to a row of a sequence. */
static bool is_of_sequence(const strobe_varlen *v, int t, int64_t n) {
    const int64_t head = DIM + CUT, heads = t == 0 ? HEADS : HEADS_KV, seq = t == 0 ? ROWS : KEYS;
    const int64_t row = n / (heads * head);
    if (n % head >= DIM || row >= BATCH * seq) return false;
    if (!v) return true;
    const int32_t *cu = t == 0 ? v->cu_seqlens_q : v->cu_seqlens_k, *used = t == 0 ? v->used_q : v->used_k;
    for (int b = 0; b < BATCH; ++b) {
        const int64_t first = cu ? cu[b] : b * seq, end = used ? first + used[b] : cu ? cu[b + 1] : first + seq;
        if (row >= first && row < end) return true;
    }
    return false;
}

static void check(const strobe_varlen *varlen) {
    static struct sides written, added;
    const size_t plain = run(&written, varlen, 0, 1, true);
    for (int32_t bits = 1; bits < 1 << GRADIENTS; ++bits) {
        const size_t bytes = run(&added, varlen, bits, 1 + bits % 3, bits % 2);
        assert_true(bytes > plain || bits == 0);
        for (int t = 0; t < GRADIENTS; ++t)
            for (int64_t n = 0; n < MOST; ++n) {
                const float before = number(n, 4 + t), gradient = written.gradient[t][n];
                const bool sums = bits >> t & 1 && is_of_sequence(varlen, t, n);
                const float right = sums ? before + gradient : gradient, is = added.gradient[t][n];
                if (is != right)
                    fail_msg("bits %d, gradient %d, element %lld: %.9g and not %.9g", bits, t, (long long)n, is, right);
            }
    }
}

static void test_padded(void **state) {
    (void)state;
    check(NULL);
}

static const int32_t cu_q[] = {2, 2, 20, 40}, cu_k[] = {0, 25, 25, 50}, used_q[] = {23, 0, 5}, used_k[] = {9, 31, 0};

static void test_packed(void **state) {
    (void)state;
    check(&(strobe_varlen){
        .struct_size = sizeof(strobe_varlen), .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k, .total_q = 41, .total_k = 50});
}

static void test_used(void **state) {
    (void)state;
    check(&(strobe_varlen){.struct_size = sizeof(strobe_varlen), .used_q = used_q, .used_k = used_k});
}

/* A key that nobody sees, and a row that sees nothing, have a gradient of 0. */
static void test_no_keys(void **state) {
    (void)state;
    static const int32_t none[] = {0, 0, 0};
    check(&(strobe_varlen){.struct_size = sizeof(strobe_varlen), .used_k = none});
}

/* What programs have that were compiled before the field was there. */
static void test_short_structure(void **state) {
    (void)state;
    static struct sides s;
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 2, .seq_k = 2, .heads_q = 1, .dim = DIM};
    strobe_gradients g = {.struct_size = offsetof(strobe_gradients, accumulate), .accumulate = STROBE_ADD_TO_DQ};
    begin(&s);
    a.q.data = s.q, a.k.data = s.k, a.v.data = s.v, a.out.data = s.out, a.lse.data = s.lse;
    assert_int_equal(strobe_forward(&a, NULL, 0, NULL), STROBE_OK);
    g.dout.data = s.dout, g.dq.data = s.gradient[0], g.dk.data = s.gradient[1], g.dv.data = s.gradient[2];
    assert_int_equal(strobe_backward(&a, &g, NULL, 0, NULL), STROBE_OK);
    const float once = s.gradient[0][DIM + 1];
    assert_int_equal(strobe_backward(&a, &g, NULL, 0, NULL), STROBE_OK);
    assert_true(once != 0 && s.gradient[0][DIM + 1] == once);
    g.struct_size = sizeof g;
    assert_int_equal(strobe_backward(&a, &g, NULL, 0, NULL), STROBE_OK);
    assert_true(s.gradient[0][DIM + 1] == once + once);
}

static void test_explained(void **state) {
    (void)state;
    char text[4096];
    strobe_attention a = {.struct_size = sizeof a, .batch = 1, .seq_q = 2, .seq_k = 2, .heads_q = 1, .dim = DIM};
    strobe_gradients g = {.struct_size = sizeof g, .accumulate = STROBE_ADD_TO_DK};
    assert_int_equal(strobe_explain(&a, &g, text, sizeof text, NULL), STROBE_OK);
    assert_non_null(strstr(text, "chosen, gradients added by a pass behind it"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_padded),  cmocka_unit_test(test_packed),          cmocka_unit_test(test_used),
        cmocka_unit_test(test_no_keys), cmocka_unit_test(test_short_structure), cmocka_unit_test(test_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
