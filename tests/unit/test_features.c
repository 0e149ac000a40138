/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_features.c: what a problem asks for is found, and what a kernel's record does not declare is refused. Each feature is
 * asked for by the fields of the public structures that core/fields.h names. Then every kernel of the tables, also those
 * that this machine cannot run, is asked about every feature, dtype and limit by itself: it takes what its record declares
 * and nothing else, so that docs/support.md, which is printed from the records, is what holds. */
#include <stdio.h>
#include <string.h>

#include "core/fields.h"
#include "core/plan.h"
#include "refusal.h"
#include "test.h"

/* ---------------------------------------------------------------------------------------------------------- features -- */

/* How each feature is asked for: one row for each field that asks for it, and for each value that means another feature. */
static const struct asked {
    int bit;
    struct poke poke[4];
} asked[] = {
    {BIT_GROUPS, {INT(a.heads_kv, 2)}},
    {BIT_DIM_V, {INT(a.dim_v, 32)}},
    {BIT_CAUSAL_BOTTOM_RIGHT, {INT(a.mask, STROBE_MASK_CAUSAL_BOTTOM_RIGHT)}},
    {BIT_CAUSAL_TOP_LEFT, {INT(a.mask, STROBE_MASK_CAUSAL_TOP_LEFT)}},
    {BIT_WINDOW_BOTTOM_RIGHT, {INT(a.mask, STROBE_MASK_WINDOW_BOTTOM_RIGHT)}},
    {BIT_WINDOW_TOP_LEFT, {INT(a.mask, STROBE_MASK_WINDOW_TOP_LEFT)}},
    {BIT_STARTS, {INT(a.q_start, 1)}},
    {BIT_STARTS, {INT(a.k_start, -1)}},
    {BIT_BOOL_MASK, {ATTACH(bool_mask)}},
    {BIT_BLOCK_MASK, {ATTACH(block_mask), INT(block_mask.block_q, 8), INT(block_mask.block_k, 8)}},
    {BIT_NEGATIVE_SCALE, {REAL(a.scale, -1)}},
    {BIT_SOFTCAP, {REAL(a.softcap, 9)}},
    {BIT_BIAS, {ATTACH(bias)}},
    {BIT_DBIAS, {ATTACH(bias), ATTACH_D(dbias)}},
    {BIT_ALIBI, {ATTACH(alibi)}},
    {BIT_SINKS, {ATTACH(sinks)}},
    {BIT_DSINKS, {ATTACH(sinks), ATTACH_D(dsinks)}},
    {BIT_SCORE, {ATTACH(score)}},
    {BIT_SCORE, {ATTACH(score), POINT(score.function, &score_function)}},
    {BIT_VISIBLE, {ATTACH(score), POINT(score.function, &visible_function)}},
    {BIT_DSCORE, {ATTACH(score), ATTACH_D(dscore)}},
    {BIT_DROPOUT, {ATTACH(dropout), REAL(dropout.p, 0.5)}},
    {BIT_LSE, {POINT(a.lse.data, input)}},
    {BIT_DLSE, {POINT(g.dlse.data, input)}},
    {BIT_DETERMINISTIC, {INT(a.flags, STROBE_DETERMINISTIC)}},
    {BIT_PACKED_Q, {ATTACH(varlen), POINT(varlen.cu_seqlens_q, call.cu_q)}},
    {BIT_PACKED_K, {ATTACH(varlen), POINT(varlen.cu_seqlens_k, call.cu_k)}},
    {BIT_USED_Q, {ATTACH(varlen), POINT(varlen.used_q, call.used_q)}},
    {BIT_USED_K, {ATTACH(varlen), POINT(varlen.used_k, call.used_k)}},
    {BIT_LEFTPAD_K, {ATTACH(varlen), POINT(varlen.leftpad_k, call.used_k)}},
    {BIT_INDEX64, {ATTACH(varlen), INT(varlen.index_bits, 64)}},
    {BIT_PAGED, {ATTACH(paged), INT(paged.page_size, 8)}},
    {BIT_SCALES, {ATTACH(scales)}},
    {BIT_SCALES_Q, {ATTACH(scales), POINT(scales.q, input)}},
    {BIT_SPLIT_KEYS, {ATTACH(tuning), INT(tuning.split_keys, 64)}},
    {BIT_KEY_SUMS, {INT(g.dq.dtype, STROBE_FP16)}},
    {BIT_GRADIENT_DTYPES, {INT(g.dk.dtype, STROBE_FP16)}},
    {BIT_GRADIENT_DTYPES, {INT(g.dv.dtype, STROBE_FP16)}},
    {BIT_GRADIENT_DTYPES, {INT(g.dq.dtype, STROBE_FP16), INT(g.dk.dtype, STROBE_BF16)}},
};

/* What is asked for with another. */
static feature_set with(int bit) {
    const feature_set others = bit == BIT_DBIAS      ? FEATURE(BIAS)
                               : bit == BIT_DSINKS   ? FEATURE(SINKS)
                               : bit == BIT_SCALES_Q ? FEATURE(SCALES)
                               : bit == BIT_DSCORE   ? FEATURE(SCORE)
                                                     : 0;
    return others | (feature_set)1 << bit;
}

static bool is_of_dtypes(int bit) { return bit == BIT_KEY_SUMS || bit == BIT_GRADIENT_DTYPES; }

static bool is_of_backward(int bit) {
    return bit == BIT_DBIAS || bit == BIT_DSINKS || bit == BIT_DSCORE || bit == BIT_DLSE || bit == BIT_DETERMINISTIC ||
           is_of_dtypes(bit);
}

/* A call that asks for nothing. Its rows are whole 16 bytes in every dtype, which some kernels want. */
static void reset_plain_call(void) {
    reset_call();
    call.a.heads_kv = call.a.heads_q, call.a.dim = 16;
    call.a.lse.data = call.g.dlse.data = NULL;
    call.varlen.index_bits = 0, call.dropout.p = 0;
    call.varlen.total_q = 6, call.varlen.total_k = 7; /* of packed tensors, where they are packed */
}

static struct problem read(bool backward) {
    struct problem p;
    if (strobe__problem_read(&p, &call.a, backward ? &call.g : NULL, false)) fail_msg("%s", strobe_last_error());
    return p;
}

static void test_plain_asks_for_nothing(void **state) {
    (void)state;
    reset_plain_call();
    assert_int_equal(read(false).features, 0);
    assert_int_equal(read(true).features, 0);
    call.a.flags = STROBE_TF32X3; /* is allowed, not asked for */
    assert_int_equal(read(false).features, 0);
    assert_int_equal(read(true).features, 0);
}

static void test_each_is_found(void **state) {
    (void)state;
    feature_set found = 0;
    for (size_t n = 0; n < COUNT(asked); ++n) {
        const int bit = asked[n].bit;
        reset_plain_call();
        apply_pokes(asked[n].poke, COUNT(asked[n].poke));
        const feature_set forward = read(false).features, backward = read(true).features;
        if ((bit == BIT_LSE ? forward : backward) != with(bit)) fail_msg("%s was not found", strobe__feature_title(bit));
        if (!is_of_backward(bit) && forward != with(bit)) fail_msg("%s: not in the forward", strobe__feature_title(bit));
        found |= with(bit);
    }
    for (int bit = 0; bit < FEATURE_COUNT; ++bit)
        if (!(found >> bit & 1)) fail_msg("%s: this test has no call that asks for it", strobe__feature_title(bit));
}

/* Each kind of mask is a feature, the last one too. */
static void test_masks_are_features(void **state) {
    (void)state;
    int32_t mask = STROBE_MASK_NONE + 1;
    for (;; ++mask) {
        reset_plain_call();
        call.a.mask = mask;
        const struct problem p = read(false);
        if (strobe__problem_validate(&p)) break; /* past the last */
        assert_int_not_equal(p.features, 0);
    }
    assert_int_equal(mask, STROBE_MASK_WINDOW_BOTTOM_RIGHT + 1);
}

/* ------------------------------------------------------------------------------------------------------------ fields -- */

/* Where a structure lies in struct call. */
static size_t place_of(const char *type) {
    static const struct {
        const char *type;
        size_t at;
    } places[] = {
        {"strobe_attention", offsetof(struct call, a)},           {"strobe_gradients", offsetof(struct call, g)},
        {"strobe_varlen", offsetof(struct call, varlen)},         {"strobe_dropout", offsetof(struct call, dropout)},
        {"strobe_scales", offsetof(struct call, scales)},         {"strobe_tuning", offsetof(struct call, tuning)},
        {"strobe_score_arguments", offsetof(struct call, score)},
    };
    for (size_t n = 0; n < COUNT(places); ++n)
        if (strcmp(places[n].type, type) == 0) return places[n].at;
    fail_msg("%s has a field that asks for a feature; this test has to know where it lies", type);
    return 0;
}

static const struct field {
    const char *type, *name;
    size_t at, bytes;
    int role;
} fields[] = {
#define ROW(type, field, role) {#type, #type "." #field, offsetof(type, field), sizeof(((type *)0)->field), role},
    FIELDS_strobe_attention(ROW) /* each in the order of the header */
    FIELDS_strobe_gradients(ROW) FIELDS_strobe_tensor(ROW) FIELDS_strobe_varlen(ROW) FIELDS_strobe_paged(ROW)
        FIELDS_strobe_bias(ROW) FIELDS_strobe_bool_mask(ROW) FIELDS_strobe_block_mask(ROW) FIELDS_strobe_alibi(ROW)
            FIELDS_strobe_sinks(ROW) FIELDS_strobe_dropout(ROW) FIELDS_strobe_scales(ROW) FIELDS_strobe_parallel(ROW)
                FIELDS_strobe_tuning(ROW) FIELDS_strobe_score_arguments(ROW) FIELDS_strobe_score_gradients(ROW)
                    FIELDS_strobe_mask_lists(ROW)
#undef ROW
};

/* Each field that asks for a feature is one by which the table above asks for it. */
static void test_fields(void **state) {
    (void)state;
    for (const struct field *f = fields; f < fields + COUNT(fields); ++f) {
        if (f > fields && strcmp(f->type, f[-1].type) == 0 && f->at != f[-1].at + f[-1].bytes)
            fail_msg("between %s and %s there is a field that fields.h does not know", f[-1].name, f->name);
        if (f->role >= IS_VERSION) continue;
        const size_t first = place_of(f->type) + f->at, end = first + f->bytes;
        bool tried = false;
        for (size_t n = 0; n < COUNT(asked); ++n)
            for (size_t k = 0; k < COUNT(asked[n].poke); ++k)
                tried = tried || (asked[n].bit == f->role && asked[n].poke[k].at >= first && asked[n].poke[k].at < end);
        if (!tried) fail_msg("%s asks for \"%s\"; no call of this test does so", f->name, strobe__feature_title(f->role));
    }
}

/* ----------------------------------------------------------------------------------------------------------- records -- */

/* The first dtype of a set, q's for SAME. */
static int32_t first_of(unsigned set, int32_t q) { return !set || set & SAME ? q : (int32_t)__builtin_ctz(set); }

/* V as the first columns of K, where the kernel wants that. */
static void put_v_in_k(const struct kernel *k) {
    const int64_t row = call.a.heads_kv * call.a.dim, stride[3] = {call.a.seq_k * row, row, call.a.dim};
    if (!k->v_in_k) return;
    memcpy(call.a.k.stride, stride, sizeof stride);
    call.a.v = call.a.k;
}

static bool is_bytes(int32_t dtype) { return dtype == STROBE_FP8_E4M3 || dtype == STROBE_INT8; }

/* What sets of dtypes cannot say, and reject() does: on a GPU K goes with a q in bytes, and V is e4m3; latent attention
 * takes K in bytes beside a bf16 q alone. */
static bool has_bytes_of_its_own(const struct kernel *k, int32_t q) { return k->device == STROBE_CUDA && is_bytes(q); }

static bool go_together(const struct kernel *k, int32_t q, int32_t kv) {
    if (has_bytes_of_its_own(k, q)) return kv == q && kv == STROBE_FP8_E4M3;
    return !(k->device == STROBE_CUDA && k->v_in_k && is_bytes(kv)) || q == STROBE_BF16;
}

/* Rows of a plain call for kernels that leave fewer to others. Their records do not say so, since with a mask or pages, or
 * in another dtype, they take any number. */
enum { MANY_ROWS = 64 };

static bool leaves_few_rows(const struct kernel *k) {
    const uint64_t flags = call.a.flags;
    call.a.flags |= k->allowed_by;
    const struct problem p = read(k->operation == STROBE_BACKWARD);
    struct reason why = {.sentence = ""};
    call.a.flags = flags;
    return !strobe__declares(k, &p, &why) && strstr(why.sentence, "seq_q is below 64");
}

/* A plain call for the kernel with q of a dtype, everything else of the first dtypes that it takes. */
static void reset_call_for(const struct kernel *k, int32_t q) {
    const struct dtypes *d = &k->dtypes;
    reset_plain_call();
    call.a.device = (int32_t)k->device, call.a.dtype = q;
    call.a.seq_q = k->seq_q.least > 4 ? k->seq_q.least : 4;
    call.a.k.dtype = call.a.v.dtype = first_of(d->kv, q);
    if (has_bytes_of_its_own(k, q)) call.a.k.dtype = q;
    call.a.out.dtype = first_of(d->out, q), call.a.lse.dtype = call.g.dlse.dtype = first_of(d->lse, q);
    call.bias.dtype = first_of(d->bias, q), call.dbias.dtype = first_of(d->dbias, q);
    call.sinks.dtype = call.dsinks.dtype = first_of(d->sinks, q);
    call.g.dout.dtype = first_of(d->dout, q);
    call.g.dq.dtype = call.g.dk.dtype = call.g.dv.dtype = first_of(d->gradients, q);
    if (k->least_dim) call.a.dim = k->least_dim;
    if (k->least_dim_v) call.a.dim_v = k->least_dim_v;
    put_v_in_k(k);
    if (leaves_few_rows(k)) call.a.seq_q = MANY_ROWS;
}

static void check(const struct kernel *k, bool taken, const char *what) {
    call.a.flags |= k->allowed_by;
    const struct problem p = read(k->operation == STROBE_BACKWARD);
    struct reason why = {.sentence = "nothing said"};
    if (strobe__declares(k, &p, &why) != taken)
        fail_msg("%s %s %s: %s", k->name, taken ? "declares and does not take" : "takes and does not declare", what,
                 taken ? why.sentence : "");
    if (strobe__declares(k, &p, NULL) != taken) fail_msg("%s: another answer where no reason is asked for", k->name);
    if (!taken && !strstr(why.sentence, " is taken") && !strstr(why.sentence, " are taken"))
        fail_msg("%s, %s: \"%s\" does not say what is taken", k->name, what, why.sentence);
}

static void test_features(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index) {
        const int32_t q = first_of(k->dtypes.q, 0);
        reset_call_for(k, q);
        check(k, true, "a plain problem");
        for (size_t n = 0; n < COUNT(asked); ++n) {
            const int bit = asked[n].bit;
            if (k->operation == STROBE_FORWARD ? is_of_backward(bit) : bit == BIT_LSE) continue;
            if (bit == BIT_DIM_V && k->least_dim_v) continue; /* its plain problem has it */
            if (is_of_dtypes(bit)) continue;                  /* of more dtypes than one: below */
            reset_call_for(k, q);
            apply_pokes(asked[n].poke, COUNT(asked[n].poke));
            check(k, (with(bit) & ~k->features) == 0, strobe__feature_title(bit));
        }
        if (k->features >> FEATURE_COUNT) fail_msg("%s declares a feature that does not exist", k->name);
    }
}

/* Every three dtypes of dq, dk and dv that a record takes one by one, for every q: those together that it declares. A record
 * declares what some three of them ask for. */
static void test_gradient_dtypes(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index) {
        feature_set met = 0;
        for (int32_t n = 0; k->operation == STROBE_BACKWARD && n < 8 * 8 * 8 * 8; ++n) {
            const int32_t q = n / 512, dtype[3] = {n / 64 % 8, n / 8 % 8, n % 8};
            const unsigned takes = k->dtypes.gradients | (k->dtypes.gradients & SAME ? 1u << q : 0u);
            if (!(k->dtypes.q & 1u << q) || dtype[0] == 0 || dtype[1] == 0 || dtype[2] == 0) continue;
            if (!(takes & 1u << dtype[0]) || !(takes & 1u << dtype[1]) || !(takes & 1u << dtype[2])) continue;
            reset_call_for(k, q);
            call.g.dq.dtype = dtype[0], call.g.dk.dtype = dtype[1], call.g.dv.dtype = dtype[2];
            const bool differ = dtype[0] != dtype[1] || dtype[1] != dtype[2];
            const bool sums = dtype[1] == STROBE_FP32 && dtype[2] == STROBE_FP32;
            const feature_set asks = !differ ? 0 : sums ? FEATURE(KEY_SUMS) : FEATURE(GRADIENT_DTYPES);
            met |= asks;
            check(k, (asks & ~k->features) == 0, "dtypes of dq, dk and dv together");
        }
        if (k->features & DTYPE_FEATURES & ~met) fail_msg("%s declares dtypes together that it has not one by one", k->name);
    }
}

/* What a caller only allows is no feature: kernels that have no such products take the problem, and those that have them
 * want to be allowed. */
static void test_allowed(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index) {
        for (int allowed = 0; allowed < 2; ++allowed) {
            reset_call_for(k, first_of(k->dtypes.q, 0));
            call.a.flags = allowed ? STROBE_TF32X3 : 0;
            const struct problem p = read(k->operation == STROBE_BACKWARD);
            struct reason why;
            assert_int_equal(strobe__declares(k, &p, &why), allowed || !k->allowed_by);
            if (!allowed && k->allowed_by) assert_non_null(strstr(why.sentence, "flags has no STROBE_TF32X3"));
        }
    }
}

/* A kernel whose author forgot them all. */
static void test_nothing_declared(void **state) {
    (void)state;
    const unsigned all = FP32 | FP16 | BF16 | FP64;
    const struct dtypes dtypes = {
        .q = all, .kv = all, .out = all, .lse = all, .bias = all, .sinks = all, .dout = all, .gradients = all, .dbias = all};
    for (int operation = STROBE_FORWARD; operation <= STROBE_BACKWARD; ++operation) {
        const struct kernel forgetful = {.name = "forgetful",
                                         .operation = (strobe_operation)operation,
                                         .dtypes = dtypes,
                                         .dim = 512,
                                         .dim_v = 512,
                                         .seq_q = ANY_NUMBER,
                                         .seq_k = ANY_NUMBER,
                                         .rows = ANY_NUMBER};
        reset_plain_call();
        check(&forgetful, true, "a plain problem");
        for (size_t n = 0; n < COUNT(asked); ++n) {
            if (operation == STROBE_FORWARD ? is_of_backward(asked[n].bit) : asked[n].bit == BIT_LSE) continue;
            reset_plain_call();
            apply_pokes(asked[n].poke, COUNT(asked[n].poke));
            check(&forgetful, false, strobe__feature_title(asked[n].bit));
        }
    }
}

/* A tensor, the dtypes of its kind that a record takes, and what makes the tensor be there. */
struct tensor_case {
    const char *name;
    size_t at, taken;
    int bit; /* -1: it is always there */
    bool backward;
};

#define KIND(kind) offsetof(struct kernel, dtypes.kind)
static const struct tensor_case tensors[] = {
    {"out", offsetof(struct call, a.out.dtype), KIND(out), -1, false},
    {"lse", offsetof(struct call, a.lse.dtype), KIND(lse), BIT_LSE, false},
    {"bias", offsetof(struct call, bias.dtype), KIND(bias), BIT_BIAS, false},
    {"sinks", offsetof(struct call, sinks.dtype), KIND(sinks), BIT_SINKS, false},
    {"dlse", offsetof(struct call, g.dlse.dtype), KIND(lse), BIT_DLSE, true},
    {"dout", offsetof(struct call, g.dout.dtype), KIND(dout), -1, true},
    {"dq", offsetof(struct call, g.dq.dtype), KIND(gradients), -1, true},
    {"dk", offsetof(struct call, g.dk.dtype), KIND(gradients), -1, true},
    {"dv", offsetof(struct call, g.dv.dtype), KIND(gradients), -1, true},
    {"dbias", offsetof(struct call, dbias.dtype), KIND(dbias), BIT_DBIAS, true},
    {"dsinks", offsetof(struct call, dsinks.dtype), KIND(sinks), BIT_DSINKS, true},
};

static bool takes(unsigned set, int32_t dtype, int32_t q) { return set & 1u << dtype || (set & SAME && dtype == q); }

static void check_tensor(const struct kernel *k, int32_t q, const struct tensor_case *t, int32_t dtype) {
    char what[64];
    uint16_t taken;
    if (k->operation == STROBE_FORWARD && t->backward) return;
    if (t->bit >= 0 && (with(t->bit) & ~k->features) && t->bit != BIT_LSE) return;
    reset_call_for(k, q);
    for (size_t n = 0; n < COUNT(asked); ++n)
        if (asked[n].bit == t->bit) apply_pokes(asked[n].poke, COUNT(asked[n].poke));
    memcpy((char *)&call + t->at, &dtype, sizeof dtype);
    if (t->taken == KIND(gradients)) call.g.dq.dtype = call.g.dk.dtype = call.g.dv.dtype = dtype; /* together: above */
    memcpy(&taken, (const char *)k + t->taken, sizeof taken);
    snprintf(what, sizeof what, "%s in %s with q in %s", t->name, strobe__dtype_name(dtype), strobe__dtype_name(q));
    check(k, takes(taken, dtype, q), what);
}

static void test_dtypes(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index)
        for (int32_t q = STROBE_FP32; q <= STROBE_INT8; ++q) {
            reset_call_for(k, q);
            check(k, k->dtypes.q & 1u << q, strobe__dtype_name(q));
            for (int32_t d = STROBE_FP32; k->dtypes.q & 1u << q && d <= STROBE_INT8; ++d) {
                for (size_t n = 0; n < COUNT(tensors); ++n) check_tensor(k, q, &tensors[n], d);
                reset_call_for(k, q);
                call.a.k.dtype = call.a.v.dtype = d;
                check(k, takes(k->dtypes.kv, d, q) && go_together(k, q, d), "k and v in another dtype");
                call.a.v.dtype = d == STROBE_FP32 ? STROBE_FP16 : STROBE_FP32;
                check(k, false, "k and v in two dtypes");
            }
        }
}

static void check_range(const struct kernel *k, const struct range *range, int64_t *field, const char *what) {
    const int64_t before = *field;
    if (range->least > 0) *field = range->least - 1, check(k, false, what);
    *field = range->least, check(k, true, what);
    if (range->most < LARGEST_EXTENT) {
        *field = range->most, check(k, true, what);
        *field = range->most + 1, check(k, false, what);
    }
    *field = before;
}

static void check_dims(const struct kernel *k, int64_t dim, int64_t dim_v, bool taken, const char *what) {
    call.a.dim = dim, call.a.dim_v = dim_v;
    put_v_in_k(k);
    check(k, taken, what);
}

static void test_limits(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index) {
        const bool differs = k->features & FEATURE(DIM_V);
        const int64_t dim = k->least_dim ? k->least_dim : 16, dim_v = k->least_dim_v ? k->least_dim_v : 16;
        reset_call_for(k, first_of(k->dtypes.q, 0));
        call.a.batch = call.a.heads_q = call.a.heads_kv = 1;
        check_dims(k, k->dim, differs ? dim_v : k->dim, true, "the largest dim");
        check_dims(k, k->dim + 1, differs ? dim_v : k->dim, false, "a larger dim");
        check_dims(k, dim, k->dim_v, differs, "the largest dim_v");
        check_dims(k, dim, k->dim_v + 1, false, "a larger dim_v");
        if (k->least_dim) check_dims(k, k->least_dim - 1, dim_v, false, "a smaller dim");
        if (k->least_dim_v) check_dims(k, dim, k->least_dim_v - 1, false, "a smaller dim_v");
        check_dims(k, dim, dim_v, true, "the least dims");
        if (k->v_in_k) call.a.v.data = NULL, check(k, false, "v elsewhere"), put_v_in_k(k);
        struct range rows = k->seq_q; /* one row is one query row of its head */
        if (k->rows.least > rows.least) rows.least = k->rows.least;
        if (k->rows.most < rows.most) rows.most = k->rows.most;
        if (call.a.seq_q == MANY_ROWS) rows.least = MANY_ROWS;
        check_range(k, &rows, &call.a.seq_q, "seq_q");
        check_range(k, &k->seq_k, &call.a.seq_k, "seq_k");
    }
}

/* The variant of a plan is one that the record lists. */
static void test_variants(void **state) {
    (void)state;
    const struct kernel *k;
    for (size_t index = 0; (k = strobe__kernel(index)) != NULL; ++index) {
        assert_int_equal(k->choose == NULL, k->variants == NULL);
        if (!k->choose) continue;
        reset_call_for(k, first_of(k->dtypes.q, 0));
        const struct problem p = read(k->operation == STROBE_BACKWARD);
        struct plan plan = {.problem = &p, .kernel = k};
        if (!k->choose(&plan)) continue; /* not built, or no device to fit */
        char name[100];
        snprintf(name, sizeof name, " %s ", plan.variant->name);
        char names[8192];
        snprintf(names, sizeof names, "%s ", k->variants);
        if (!strstr(names, name)) fail_msg("%s chooses%s, which it does not list", k->name, name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_asks_for_nothing),
        cmocka_unit_test(test_each_is_found),
        cmocka_unit_test(test_masks_are_features),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_gradient_dtypes),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_nothing_declared),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
