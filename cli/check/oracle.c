/* SPDX-License-Identifier: BSD-3-Clause
 *
 * oracle.c: the reference's answer and the allowance derived from standard attention; see oracle.h. */
#include "check/oracle.h"

#include "check/compare.h"
#include "check/trial.h"
#include "problem/element.h"
#include "problem/random.h"
#include "problem/visible.h"

#include <math.h>

/* Of refinement: how many rows of each output are enough, how many seeds at most, how many runs of moved inputs at most, how
 * many rows of both sides at most. */
enum { ENOUGH_ROWS = 16384, MOST_RUNS = 2048, MOST_MOVED = 64, MOST_ROWS = 1 << 20 };
/* Of a gradient that is added to a number of up to 2 (outputs_begin.c). */
#define SUM_ROUNDING 0x1p-23

static const double log2_e = 1.4426950408889634;

enum { FOR_MOVES = 6000 }; /* a stream of random numbers, beside those of inputs */

double oracle_seconds(const problem *p) {
    const double pairs = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k;
    const double passes = p->operation == STROBE_BACKWARD ? 10 : 3; /* of plain loops, some 1e8 products a second */
    return 1e-3 + 1e-8 * passes * pairs * (double)(p->dim + p->dim_v);
}

/* The same question for the kernels that answer it here: no layout but the plain one, so that two tensors may differ that
 * share memory in the inputs, no pages but where some are missing, and no choices that are another kernel's. */
static problem with_dtype(const problem *p, strobe_dtype dtype) {
    problem other = *p;
    if (p->dtype == STROBE_FP8_E4M3) { /* k and v stay what they are, and all have their scales */
        other.kv_dtype = problem_kv_dtype(p), other.q_scales = 1;
        if (!p->scales) other.scales = SCALES_TOKEN;
    }
    other.dtype = dtype;
    other.split_keys = other.wide = other.added = 0;
    other.out_dtype = other.dout_dtype = other.gradients_dtype = 0;
    other.kernel[0] = 0;
    if (p->layout != LAYOUT_PACKED) other.layout = LAYOUT_BSHD;
    if (!p->missing) other.page_size = 0;
    if (p->ranks) other.no_lse = 0; /* which the allowance of out follows from, below */
    other.v_in_k = 0;
    return other;
}

/* A new copy of the inputs under another problem, run by a kernel. */
static bool run_as(inputs *copy, outputs *out, const inputs *in, const problem *p, const char *kernel, char *message,
                   size_t capacity) {
    return inputs_convert(copy, in, p, message, capacity) && outputs_create(out, copy, message, capacity) &&
           !trial_run(copy, out, kernel, &trial_plain, message, capacity);
}

/* The float64 forward into wide's out and lse, rounded into in's. */
static bool run_forward(inputs *wide, inputs *in, char *message, size_t capacity) {
    if (trial_forward(wide, trial_reference[STROBE_FORWARD], message, capacity)) return false;
    inputs_copy(in, T_OUT, &in->tensor[T_OUT], &wide->tensor[T_OUT]);
    inputs_copy(in, T_LSE, &in->tensor[T_LSE], &wide->tensor[T_LSE]);
    return true;
}

/* Whether dsinks of 16-bit tensors does not come from an out that was rounded: a kernel that has all keys sums dS. Ranks
 * have but out. */
static bool sinks_by_sums(const problem *p) { return p->dsinks && p->dtype != STROBE_FP32 && !p->ranks; }

/* False if some of the standard's numbers are none, as scores above what fp16 holds make them: they say nothing. */
static bool measure_error(oracle *o, const inputs *in, const outputs *out, tensor_id id) {
    const difference d = compare(in, id, &out->tensor[id], &o->reference.tensor[id]);
    if (d.finite > o->standard_error[id]) o->standard_error[id] = d.finite;
    if (!isfinite(d.error)) return false;
    if (out->tensor[id].dtype == problem_wide_dtype(&in->problem)) o->standard_whole[id] = d.whole;
    return true;
}

static void multiply_row(float *row, int64_t columns, double factor) {
    for (int64_t c = 0; c < columns; ++c) row[c] = (float)(factor * (double)row[c]);
}

/* Q, K or V times their scales, which stand beside every row whichever share one. */
static void multiply_by_scales(const inputs *copy, const inputs *in, tensor_id id, tensor_id scale_id) {
    const buffer *to = &copy->tensor[id], *scales = &in->tensor[scale_id];
    if (!scales->data) return;
    for (rows r = rows_of(copy, id, to); rows_next(&r);) {
        const double scale = element_load(inputs_row(in, scale_id, scales, r.batch, r.row, r.head), STROBE_FP32);
        multiply_row((float *)(void *)rows_at(&r, to), to->extent[3], scale);
    }
}

/* In fp32, with Q, K and V multiplied by scale and scales, and Q by log2(e), before the products, as kernels do that take
 * powers of 2: sums that were exact round then. */
static bool convert_scaled(inputs *copy, const inputs *in, char *message, size_t capacity) {
    const double scale = in->problem.scale != 0 ? in->problem.scale : 1 / sqrt((double)in->problem.dim);
    problem p = with_dtype(&in->problem, STROBE_FP32);
    p.kv_dtype = p.qk_dtype = p.scales = p.q_scales = 0;
    p.scale = 1 / log2_e;
    if (!inputs_convert(copy, in, &p, message, capacity)) return false;
    const buffer *q = &copy->tensor[T_Q];
    for (rows r = rows_of(in, T_Q, q); rows_next(&r);)
        multiply_row((float *)(void *)rows_at(&r, q), q->extent[3], (double)(float)(scale * log2_e));
    multiply_by_scales(copy, in, T_Q, T_Q_SCALE);
    multiply_by_scales(copy, in, T_K, T_K_SCALE);
    multiply_by_scales(copy, in, T_V, T_V_SCALE);
    return true;
}

/* The standard's error on such inputs. */
static bool measure_scaled_first(oracle *o, const inputs *in, char *message, size_t capacity) {
    outputs out = {0};
    inputs copy = {0};
    const bool ok = convert_scaled(&copy, in, message, capacity) && outputs_create(&out, &copy, message, capacity) &&
                    !trial_run(&copy, &out, trial_standard[STROBE_FORWARD], &trial_plain, message, capacity);
    for (int id = 0; ok && id < TENSOR_COUNT; ++id)
        if (out.tensor[id].data) measure_error(o, in, &out, (tensor_id)id);
    outputs_free(&out);
    inputs_free(&copy);
    return ok;
}

/* Beside a standard in fp16 whose scores overflowed: the one in fp32 on the same inputs. A step of such a score in fp32 does
 * more than rounding its weight to fp16. */
static bool measure_in_fp32(oracle *o, const inputs *in, char *message, size_t capacity) {
    const problem single = with_dtype(&in->problem, STROBE_FP32);
    inputs copy = {0};
    outputs out = {0};
    const bool ok = run_as(&copy, &out, in, &single, trial_standard[single.operation], message, capacity);
    for (int id = 0; ok && id < TENSOR_COUNT; ++id)
        if (out.tensor[id].data) measure_error(o, in, &out, (tensor_id)id);
    outputs_free(&out);
    inputs_free(&copy);
    return ok;
}

static bool measure_standard(oracle *o, const inputs *in, char *message, size_t capacity);

/* The CPU's kernels widen FP8 exactly: theirs is the allowance of bf16 tensors that hold the same numbers. */
static bool measure_widened(oracle *o, const inputs *in, char *message, size_t capacity) {
    const problem p = with_dtype(&in->problem, STROBE_BF16);
    inputs copy = {0};
    const bool ok = inputs_convert(&copy, in, &p, message, capacity) && measure_standard(o, &copy, message, capacity);
    inputs_free(&copy);
    return ok;
}

/* The standard in the inputs' dtype. For lse with scores and sums in fp32, but where a GPU multiplies FP8, whose sums have
 * few bits; and so for dsinks on the CPU, whose kernels round to 16 bits nothing that it is made of. */
static bool measure_standard(oracle *o, const inputs *from, char *message, size_t capacity) {
    inputs written = *from; /* what is added is added by the library, which is on trial */
    const inputs *in = &written;
    const problem *p = &in->problem;
    strobe_dtype dtype;
    const char *plain_lse = trial_plain_lse(p, &dtype);
    const problem single = with_dtype(p, dtype);
    const bool fp8 = p->dtype == STROBE_FP8_E4M3;
    const bool lse_apart = p->operation == STROBE_FORWARD && p->dtype != STROBE_FP32 && !p->no_lse && !fp8;
    const bool sinks_apart = p->operation == STROBE_BACKWARD && sinks_by_sums(p) && p->device == STROBE_CPU;
    const char *kernel = trial_standard[p->operation];
    outputs out = {0};
    inputs copy = {0};
    written.problem.added = 0;
    if (fp8 && p->device == STROBE_CPU) return measure_widened(o, in, message, capacity);
    bool ok = outputs_create(&out, in, message, capacity) && !trial_run(in, &out, kernel, &trial_plain, message, capacity);
    bool is_finite = true;
    for (int id = 0; ok && id < TENSOR_COUNT; ++id)
        if (out.tensor[id].data && !(id == T_LSE && lse_apart) && !(id == T_DSINKS && sinks_apart))
            is_finite &= measure_error(o, in, &out, (tensor_id)id);
    outputs_free(&out);
    if (ok && !is_finite && p->dtype == STROBE_FP16) ok = measure_in_fp32(o, in, message, capacity);
    if (ok && (lse_apart || sinks_apart)) {
        ok = run_as(&copy, &out, in, &single, lse_apart ? plain_lse : kernel, message, capacity);
        if (ok) measure_error(o, in, &out, lse_apart ? T_LSE : T_DSINKS);
        outputs_free(&out);
        inputs_free(&copy);
    }
    if (ok && p->operation == STROBE_FORWARD) ok = measure_scaled_first(o, in, message, capacity);
    return ok;
}

/* ----------------------------------------------------------------------------- what rounding out and lse does to gradients
 *
 * A kernel has P' = exp(score - lse) = P exp(-e), where e is what fp32 does to the difference, and D' = rowsum(dO * out') in
 * fp32. To first order its dS = P (dP - D + dlse) moves by P (-e dP - (D' - D) - e (dlse - D)), and dV by the sum of -e P
 * dO. Both are what backward gives for dout = -e dO and dlse = -e dlse - (D' - D). For e stands the error of a plain fp32
 * forward's lse: it holds both, the error of a score and the rounding of lse.
 *
 * The standard takes D as the sum of its own P dP, so that its dS add up to 0 along a row. A kernel's D comes from an out
 * that was worked out with other roundings of the scores, and its dS add up to sum(P' dP) - D', which large scores make
 * large and K multiplies where keys have much in common. In fp32 the D of a plain forward's out stands for sum(P' dP); in 16
 * bits the rounding of out outweighs it.
 *
 * A dsinks from sums of dS has no D': of it the same is asked with D' = D. */

static double row_of_d(const inputs *in, const rows *r, bool in_fp32) {
    const buffer *dout = &in->tensor[T_DOUT], *out = &in->tensor[T_OUT];
    const unsigned char *of_dout = rows_at(r, dout), *of_out = rows_at(r, out);
    double sum = 0;
    float narrow = 0;
    for (int64_t c = 0; c < dout->extent[3]; ++c) {
        const double x = element_load(of_dout + (size_t)c * element_bytes(dout->dtype), dout->dtype),
                     y = element_load(of_out + (size_t)c * element_bytes(out->dtype), out->dtype);
        sum += x * y;
        narrow += (float)x * (float)y;
    }
    return in_fp32 ? (double)narrow : sum;
}

/* Sets dout and dlse of `moved`, which has dlse, as said above; rounded_out: D' is not D. wide: the exact float64; in: the
 * rounded; single: has a plain forward's out and lse. */
static void set_moved_gradient(inputs *moved, const inputs *wide, const inputs *in, const inputs *single, bool rounded_out) {
    const buffer *dout = &moved->tensor[T_DOUT], *dlse = &moved->tensor[T_DLSE];
    for (rows r = rows_of(in, T_DOUT, dout); rows_next(&r);) {
        const double exact = element_load(rows_at(&r, &wide->tensor[T_LSE]), STROBE_FP64);
        const double plain = element_load(rows_at(&r, &single->tensor[T_LSE]), STROBE_FP32);
        const double e = isfinite(exact) ? plain - exact : 0;
        const double d = row_of_d(wide, &r, false), rounded_d = row_of_d(in, &r, true);
        const double of_own_d = in->problem.dtype == STROBE_FP32 ? fabs(row_of_d(single, &r, true) - d) : 0;
        double *row = (double *)(void *)rows_at(&r, dout), *row_dlse = (double *)(void *)rows_at(&r, dlse);
        *row_dlse = -e * (in->problem.dlse ? *row_dlse : 0);
        if (rounded_out) *row_dlse -= rounded_d - d + copysign(of_own_d, rounded_d - d);
        for (int64_t c = 0; c < dout->extent[3]; ++c) row[c] *= -e;
    }
}

static double largest(const inputs *in, tensor_id id, const buffer *b) {
    double most = 0;
    for (rows r = rows_of(in, id, b); rows_next(&r);)
        for (int64_t c = 0; c < b->extent[3]; ++c) most = fmax(most, fabs(((const double *)(void *)rows_at(&r, b))[c]));
    return most;
}

/* Raises `most` to what moves the outputs that come from the rounded out, or those that do not. */
static bool measure_moved_by(double most[TENSOR_COUNT], const inputs *wide, const inputs *in, const inputs *single,
                             bool rounded_out, char *message, size_t capacity) {
    problem with_dlse = wide->problem;
    with_dlse.dlse = 1;
    inputs moved = {0};
    outputs out = {0};
    bool ok = inputs_convert(&moved, wide, &with_dlse, message, capacity) && outputs_create(&out, &moved, message, capacity);
    if (ok) set_moved_gradient(&moved, wide, in, single, rounded_out);
    ok = ok && !trial_run(&moved, &out, trial_reference[STROBE_BACKWARD], &trial_plain, message, capacity);
    for (int id = 0; ok && id < TENSOR_COUNT; ++id)
        if (out.tensor[id].data && rounded_out != (id == T_DSINKS && sinks_by_sums(&in->problem)))
            most[id] = fmax(most[id], largest(in, (tensor_id)id, &out.tensor[id]));
    outputs_free(&out);
    inputs_free(&moved);
    return ok;
}

/* Adds that to the errors, for the plain forward of Q as it is and, where that one is in fp32, of Q scaled first. */
static bool add_moved_gradients(oracle *o, const inputs *wide, const inputs *in, char *message, size_t capacity) {
    strobe_dtype dtype;
    const char *plain_lse = trial_plain_lse(&in->problem, &dtype);
    const problem plain = with_dtype(&in->problem, dtype);
    double most[TENSOR_COUNT] = {0};
    bool ok = true;
    for (int scaled = 0; ok && scaled <= (dtype == STROBE_FP32); ++scaled) {
        inputs single = {0};
        ok = (scaled ? convert_scaled(&single, in, message, capacity)
                     : inputs_convert(&single, in, &plain, message, capacity)) &&
             !trial_forward(&single, plain_lse, message, capacity) &&
             measure_moved_by(most, wide, in, &single, true, message, capacity) &&
             (!sinks_by_sums(&in->problem) || measure_moved_by(most, wide, in, &single, false, message, capacity));
        inputs_free(&single);
    }
    for (int id = 0; ok && id < TENSOR_COUNT; ++id) o->standard_error[id] += most[id];
    return ok;
}

/* ------------------------------------------------------------------------------------------------------ all together -- */

/* Sets reference and standard_error from these inputs alone. */
static bool measure(oracle *o, inputs *in, char *message, size_t capacity) {
    const bool backward = in->problem.operation == STROBE_BACKWARD;
    const problem p = with_dtype(&in->problem, STROBE_FP64);
    const char *kernel = trial_reference[p.operation];
    inputs wide = {0};
    bool ok = inputs_convert(&wide, in, &p, message, capacity);
    if (ok && backward) ok = run_forward(&wide, in, message, capacity);
    ok = ok && outputs_create(&o->reference, &wide, message, capacity) &&
         !trial_run(&wide, &o->reference, kernel, &trial_plain, message, capacity);
    const bool has_standard = p.dtype != in->problem.dtype; /* fp64 has the reference alone, which is held to itself */
    if (ok && has_standard) ok = measure_standard(o, in, message, capacity);
    if (ok && has_standard && backward) ok = add_moved_gradients(o, &wide, in, message, capacity);
    inputs_free(&wide);
    return ok;
}

static bool sees_a_key(const inputs *in, int64_t b, int64_t h, int64_t i) {
    for (int64_t j = 0; j < in->sequences[b].keys; ++j)
        if (visible(in, b, h, i, j)) return true;
    return false;
}

static bool is_seen(const inputs *in, int64_t b, int64_t hkv, int64_t j) {
    const int64_t group = in->problem.heads_q / in->problem.heads_kv;
    for (int64_t i = in->sequences[b].rows - 1; i >= 0; --i) /* the last row, of a causal mask, sees the most */
        for (int64_t h = hkv * group; h < (hkv + 1) * group; ++h)
            if (visible(in, b, h, i, j)) return true;
    return false;
}

/* The rows of out and dQ that see a key, and those of dK and dV whose key is seen: of others nothing is computed, but for
 * dsinks, which are sums of dlse over all rows where none sees a key. What a function of the problem hides is not asked. */
static void count_rows(const inputs *in, int64_t *queries, int64_t *keys) {
    int64_t all = 0;
    *queries = *keys = 0;
    for (int64_t b = 0; b < in->problem.batch; ++b) {
        for (int64_t h = 0; h < in->problem.heads_q; ++h)
            for (int64_t i = 0; i < in->sequences[b].rows; ++i) *queries += sees_a_key(in, b, h, i);
        for (int64_t h = 0; h < in->problem.heads_kv; ++h)
            for (int64_t j = 0; j < in->sequences[b].keys; ++j) *keys += is_seen(in, b, h, j);
        all += in->problem.heads_q * in->sequences[b].rows;
    }
    if (*queries == 0 && in->problem.dsinks) *queries = all;
}

/* Moves every element of q, v and dout by some units of the last place of fp32: scores, out and what gradients are sums of
 * are what they were, but for their roundings, which become others. */
static void move_last_places(inputs *in, int64_t run) {
    static const tensor_id moved[] = {T_Q, T_V, T_DOUT};
    random_stream r = random_at((uint64_t)in->problem.seed, FOR_MOVES, (uint64_t)run);
    for (size_t n = 0; n < sizeof moved / sizeof moved[0]; ++n) {
        const buffer *t = &in->tensor[moved[n]];
        if (!t->data || t->dtype != STROBE_FP32) continue; /* keys and values may be bytes */
        for (rows of = rows_of(in, moved[n], t); rows_next(&of);) {
            float *row = (float *)(void *)rows_at(&of, t);
            for (int64_t c = 0; c < t->extent[3]; ++c) row[c] *= 1 + (float)(random_below(&r, 9) - 4) * 0x1p-22f;
        }
    }
}

/* Raises standard_error to what the standard does on other inputs, which are freed. */
static bool measure_other(oracle *o, inputs *other, char *message, size_t capacity) {
    oracle another = {0};
    const bool ok = measure(&another, other, message, capacity);
    for (int id = 0; ok && id < TENSOR_COUNT; ++id)
        o->standard_error[id] = fmax(o->standard_error[id], another.standard_error[id]);
    oracle_free(&another);
    inputs_free(other);
    return ok;
}

static bool measure_again(oracle *o, const inputs *in, int64_t seed, char *message, size_t capacity) {
    problem p = in->problem;
    p.seed = seed;
    inputs other;
    if (inputs_create(&other, &p, message, capacity)) return measure_other(o, &other, message, capacity);
    inputs_free(&other);
    return false;
}

static bool measure_moved(oracle *o, const inputs *in, int64_t run, char *message, size_t capacity) {
    inputs other;
    if (inputs_create(&other, &in->problem, message, capacity)) {
        move_last_places(&other, run);
        return measure_other(o, &other, message, capacity);
    }
    inputs_free(&other);
    return false;
}

/* Whether so many runs leave room for one more: fewest rows of an output, rows of both sides. */
static bool has_another(int64_t run, int64_t most, int64_t fewest, int64_t both) {
    return run < most && run * fewest < ENOUGH_ROWS && run * both < MOST_ROWS;
}

/* Half a step of the coarser of two dtypes: of the result's own, and of the inputs', to which kernels round weights and dS
 * before they multiply by them, however many digits the result has. */
static double rounding_of(const inputs *in, tensor_id id, const buffer *reference) {
    const problem *p = &in->problem;
    int64_t own = 0;
    if (id == T_LSE || id == T_DSINKS) return compare_rounding(in, id, reference, STROBE_FP32);
    if (id == T_DBIAS && p->bias_dtype) return compare_rounding(in, id, reference, p->bias_dtype);
    if (id == T_OUT) own = p->out_dtype;
    if (id >= T_DQ && id <= T_DV) own = p->gradients_dtype;
    const double of_inputs = compare_rounding(in, id, reference, problem_wide_dtype(p));
    return own ? fmax(of_inputs, compare_rounding(in, id, reference, own)) : of_inputs;
}

static void set_allowances(oracle *o, const inputs *in) {
    for (int id = 0; id < TENSOR_COUNT; ++id) {
        const buffer *reference = &o->reference.tensor[id];
        if (!reference->data) continue;
        double rounding = rounding_of(in, (tensor_id)id, reference);
        if (in->problem.added && id >= T_DQ && id <= T_DV) rounding = fmax(rounding, SUM_ROUNDING);
        o->allowance[id] = compare_allowance(&in->problem, o->standard_error[id], rounding);
    }
    /* Ranks merge parts by weights of exp(lse): what lse may be wrong by, the weights may. */
    if (in->problem.ranks > 1 && in->problem.operation == STROBE_FORWARD)
        o->allowance[T_OUT] += o->allowance[T_LSE] * largest(in, T_OUT, &o->reference.tensor[T_OUT]);
}

bool oracle_create(oracle *o, inputs *in, char *message, size_t capacity) {
    *o = (oracle){0};
    const bool ok = measure(o, in, message, capacity);
    if (ok) set_allowances(o, in);
    return ok;
}

void oracle_refine(oracle *o, const inputs *in) {
    const int64_t seed = in->problem.seed & 0xffff;
    int64_t queries, keys;
    char message[PROBLEM_MESSAGE]; /* what one set of inputs could pose, others can */
    count_rows(in, &queries, &keys);
    const int64_t fewest = in->problem.operation == STROBE_BACKWARD && keys > 0 && keys < queries ? keys : queries;
    if (o->refined || fewest == 0) return;
    o->refined = true;
    for (int64_t run = 1; has_another(run, MOST_RUNS, fewest, queries + keys); ++run)
        if (!measure_again(o, in, seed + run * 0x10000, message, sizeof message)) break;
    /* an error of one weight, such as the only large one that dropout leaves, is found on no other seed */
    for (int64_t run = 1; in->problem.dtype == STROBE_FP32 && has_another(run, MOST_MOVED, fewest, queries + keys); ++run)
        if (!measure_moved(o, in, run, message, sizeof message)) break;
    set_allowances(o, in);
}

void oracle_free(oracle *o) { outputs_free(&o->reference); }
