/* SPDX-License-Identifier: BSD-3-Clause
 *
 * draw.c: random problems; see draw.h. What is interesting is drawn more often: the ends of the kernels' blocks and one off
 * them, empty sides, primes; each case has its own density of features, so that plain problems and crowded ones both come.
 * The float64 oracle takes time in proportion to rows x keys x dims, so sizes are cut down to a budget. */
#include "check/draw.h"

#include "check/draw_ranks.h"
#include "problem/inputs.h"
#include "problem/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FOR_CASES = 6000, MOST_ATTEMPTS = 24, LARGEST_DIM = 576, LARGEST_DIM_V = 512 };

typedef random_stream stream;

static bool chance(stream *r, int64_t of, int64_t in) { return random_below(r, in) < of; }

#define PICK(r, list) (list)[random_below(r, (int64_t)(sizeof(list) / sizeof(list)[0]))]

/* ------------------------------------------------------------------------------------------------------------ sizes -- */

/* Rows and keys of the tiles of all kernels, splits and ranges of keys among them. */
static const int64_t edges[] = {4,   8,   12,  16,  24,  32,  48,  64,   80,   96,   112,  128,  144,   160,   176,   192,
                                224, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768, 131072};
static const int64_t primes[] = {2,  3,  5,  7,  11, 13,  17,  19,  23,  29,  31,  37,
                                 41, 53, 61, 67, 97, 101, 131, 197, 257, 263, 509, 1021};
static const int64_t dims[] = {1,   2,   3,   4,   5,   7,   8,   15,  16,  17,  24,  31,  32,  33,  40,  48,  56,  63,
                               64,  65,  72,  80,  88,  96,  104, 112, 120, 127, 128, 129, 136, 144, 160, 176, 192, 193,
                               200, 208, 224, 240, 248, 255, 256, 257, 264, 272, 320, 384, 448, 511, 512, 575, 576};
static const int64_t usual_dims[] = {64, 64, 128, 128, 96, 192, 256, 80, 32};

static int64_t draw_length(stream *r, int64_t most) {
    int64_t length = random_below(r, 41);
    const int64_t kind = random_below(r, 8);
    if (kind < 4) length = PICK(r, edges) + random_below(r, 3) - 1;
    if (kind == 4) length = PICK(r, primes);
    if (chance(r, 1, 40)) length = 0;
    return length <= most ? length : 1 + random_below(r, most);
}

static int64_t draw_dim(stream *r) {
    const int64_t kind = random_below(r, 4);
    if (kind == 0) return 1 + random_below(r, LARGEST_DIM);
    return kind == 1 ? PICK(r, dims) : kind == 2 ? PICK(r, usual_dims) : 8 * (1 + random_below(r, 32));
}

/* How long either side may be at first: most cases are small, some are long on one side. */
static int64_t draw_most(stream *r) {
    static const int64_t most[] = {48, 48, 130, 130, 300, 300, 1100, 200000};
    return PICK(r, most);
}

static void draw_sizes(stream *r, problem *p) {
    static const int64_t batches[] = {1, 1, 1, 2, 2, 3, 4, 5}, heads[] = {1, 1, 2, 2, 3, 4, 8};
    static const int64_t groups[] = {1, 1, 1, 2, 3, 4, 5, 8, 16};
    p->batch = chance(r, 1, 60) ? 0 : PICK(r, batches);
    p->heads_kv = PICK(r, heads);
    p->heads_q = p->heads_kv * PICK(r, groups);
    p->seq_q = draw_length(r, draw_most(r));
    p->seq_k = draw_length(r, draw_most(r));
    if (chance(r, 1, 6)) p->seq_q = 1 + random_below(r, 4);
    if (chance(r, 1, 6)) p->seq_k = p->seq_q;
    p->dim = draw_dim(r);
    p->dim_v = chance(r, 3, 4) ? p->dim : draw_dim(r);
    if (p->dim_v > LARGEST_DIM_V) p->dim_v = LARGEST_DIM_V;
}

static int64_t cost_of(const problem *p) {
    const int64_t pairs = p->batch * p->heads_q * (p->seq_q + 1) * (p->seq_k + 1);
    return pairs * (p->dim + p->dim_v) * (p->operation == STROBE_BACKWARD ? 4 : 1);
}

/* Halves whatever costs most without being what the case is about, its longer side. */
static void cut_to(problem *p, int64_t budget) {
    while (cost_of(p) > budget) {
        int64_t *shorter = p->seq_q < p->seq_k ? &p->seq_q : &p->seq_k,
                *longer = p->seq_q < p->seq_k ? &p->seq_k : &p->seq_q;
        if (p->batch > 2)
            p->batch = 1 + p->batch % 2;
        else if (p->heads_kv > 2)
            p->heads_q = p->heads_q / p->heads_kv, p->heads_kv = 1;
        else if (p->heads_q / p->heads_kv > 4)
            p->heads_q = 2 * p->heads_kv;
        else if (*shorter > 3)
            *shorter = (*shorter + 1) / 2;
        else if (p->heads_q > 1)
            p->heads_q = p->heads_kv = 1;
        else if (p->batch > 1)
            p->batch = 1;
        else if (p->dim > 64 || p->dim_v > 64)
            p->dim = p->dim > 64 ? p->dim - 64 : p->dim, p->dim_v = p->dim_v > 64 ? p->dim_v - 64 : p->dim_v;
        else
            *longer = (*longer + 1) / 2;
    }
}

/* Multi-head latent attention as models have it: one K/V head of 576 columns, of which the first 512 are V. */
static void draw_latent(stream *r, problem *p) {
    static const int64_t heads[] = {8, 16, 16, 24, 32, 64, 128};
    p->v_in_k = 1, p->dim = LARGEST_DIM, p->dim_v = LARGEST_DIM_V;
    p->batch = 1 + random_below(r, 3), p->heads_kv = 1, p->heads_q = PICK(r, heads);
    p->seq_q = 1 + random_below(r, 4), p->seq_k = draw_length(r, 700);
    while (cost_of(p) > (int64_t)1 << 26) p->seq_k /= 2;
}

/* --------------------------------------------------------------------------------------------------------- features -- */

static void draw_dtypes(stream *r, problem *p) {
    static const int64_t dtypes[] = {STROBE_FP32, STROBE_FP32, STROBE_FP32, STROBE_FP16, STROBE_FP16,
                                     STROBE_BF16, STROBE_BF16, STROBE_BF16, STROBE_BF16, STROBE_FP64};
    static const int64_t caches[] = {STROBE_INT8, STROBE_INT8, STROBE_FP16, STROBE_BF16, STROBE_FP8_E4M3};
    p->dtype = PICK(r, dtypes);
    if (p->operation == STROBE_BACKWARD) return;
    if (chance(r, 1, 8)) {
        p->dtype = STROBE_FP8_E4M3;
        if (chance(r, 2, 3)) p->scales = SCALES_TOKEN + random_below(r, 5);
        if (chance(r, 1, 3)) p->qk_dtype = STROBE_INT8;
        return;
    }
    if (chance(r, 1, 16)) p->q_scales = 1;
    if (!chance(r, 1, 4)) return;
    p->kv_dtype = PICK(r, caches);
    if (p->kv_dtype == p->dtype) p->kv_dtype = 0;
    if (chance(r, 1, 2)) p->scales = SCALES_TOKEN + random_below(r, 5);
}

static int64_t draw_reach(stream *r, int64_t keys) {
    static const int64_t far[] = {-1, -1, 0, 1, 1 << 30, (int64_t)1 << 40};
    return chance(r, 1, 2)   ? random_below(r, keys + 9)
           : chance(r, 1, 2) ? PICK(r, edges) + random_below(r, 3) - 1
                             : PICK(r, far);
}

static void draw_mask(stream *r, problem *p) {
    static const int64_t masks[] = {STROBE_MASK_CAUSAL_BOTTOM_RIGHT, STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
                                    STROBE_MASK_CAUSAL_TOP_LEFT,     STROBE_MASK_WINDOW_BOTTOM_RIGHT,
                                    STROBE_MASK_WINDOW_BOTTOM_RIGHT, STROBE_MASK_WINDOW_TOP_LEFT};
    if (chance(r, 1, 3)) return;
    p->mask = PICK(r, masks);
    if (p->mask < STROBE_MASK_WINDOW_TOP_LEFT) return;
    p->window_left = draw_reach(r, p->seq_k);
    p->window_right = draw_reach(r, p->seq_k);
}

/* Positions; with ALiBi, whose scores grow with the distance, near ones. */
static int64_t draw_start(stream *r, const problem *p) {
    static const int64_t far[] = {-((int64_t)1 << 31), (int64_t)1 << 31, (int64_t)1 << 40, -((int64_t)1 << 59),
                                  (int64_t)1 << 59};
    const int64_t span = p->seq_q + p->seq_k + 2;
    if (!p->alibi && chance(r, 1, 6)) return PICK(r, far);
    return random_below(r, 2 * span) - span;
}

/* Positions of rows and keys that are near each other and far from 0: where 32 bits end, or a double's. */
static void draw_starts(stream *r, problem *p, int64_t of) {
    static const int64_t far[] = {1 << 24,          (int64_t)1 << 31, (int64_t)1 << 32,
                                  (int64_t)1 << 40, (int64_t)1 << 53, (int64_t)1 << 58};
    if (chance(r, of, 16)) p->q_start = draw_start(r, p);
    if (chance(r, of, 16)) p->k_start = draw_start(r, p);
    if (!chance(r, of, 32)) return;
    const int64_t span = p->seq_q + p->seq_k + 2, from = PICK(r, far) * (chance(r, 1, 3) ? -1 : 1);
    p->q_start = from + random_below(r, 2 * span) - span;
    p->k_start = from + random_below(r, 2 * span) - span;
}

static void draw_varlen(stream *r, problem *p) {
    static const int64_t kinds[] = {VARLEN_CU_Q | VARLEN_CU_K,
                                    VARLEN_CU_Q | VARLEN_CU_K,
                                    VARLEN_USED_Q | VARLEN_USED_K,
                                    VARLEN_USED_K,
                                    VARLEN_CU_Q | VARLEN_USED_K,
                                    VARLEN_USED_Q,
                                    VARLEN_CU_K | VARLEN_USED_Q,
                                    VARLEN_CU_Q | VARLEN_CU_K | VARLEN_INDEX_64,
                                    VARLEN_CU_Q | VARLEN_CU_K | VARLEN_USED_Q | VARLEN_USED_K,
                                    VARLEN_USED_Q | VARLEN_USED_K | VARLEN_INDEX_64,
                                    VARLEN_CU_Q | VARLEN_CU_K | VARLEN_USED_Q | VARLEN_USED_K | VARLEN_INDEX_64};
    p->varlen = PICK(r, kinds);
    if (chance(r, 1, 8)) p->lengths = LENGTHS_NO_KEYS + random_below(r, 4);
}

static int64_t draw_axes(stream *r) { return AXIS_KEY | random_below(r, 8) * AXIS_ROW; }

static void draw_score_terms(stream *r, problem *p, int64_t of) {
    static const int64_t bias_dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16, STROBE_FP64};
    static const double softcaps[] = {0.5, 5, 15, 30, 50, 1000};
    if (chance(r, of, 16)) p->bool_mask = draw_axes(r);
    if (chance(r, of, 24)) {
        p->block_q = chance(r, 1, 2) ? PICK(r, edges) : 1 + random_below(r, 70);
        p->block_k = chance(r, 1, 2) ? PICK(r, edges) : 1 + random_below(r, 70);
        if (chance(r, 1, 3)) p->block_q = p->block_k = 128; /* as GPU kernels skip them */
        if (chance(r, 1, 3)) p->block_axes = draw_axes(r);
    }
    if ((p->bool_mask || p->block_q) && chance(r, 1, 2))
        p->shows = chance(r, 1, 8) ? SHOWS_NOTHING : SHOWS_FEW + random_below(r, 2);
    if (chance(r, of, 16)) {
        p->bias = draw_axes(r);
        if (chance(r, 1, 3)) p->bias_dtype = PICK(r, bias_dtypes);
        if (chance(r, 1, 4)) p->bias_hides = 1;
        if (p->operation == STROBE_BACKWARD && chance(r, 1, 2)) p->dbias = 1;
    }
    if (chance(r, of, 20)) p->alibi = ALIBI_HEADS + random_below(r, 3);
    if (chance(r, of, 20)) p->softcap = PICK(r, softcaps);
    if (chance(r, of, 16)) {
        p->sinks = chance(r, 1, 2) ? SINKS_USUAL : SINKS_HIDDEN + random_below(r, 3);
        if (p->operation == STROBE_BACKWARD && chance(r, 1, 2)) p->dsinks = 1;
    }
    draw_starts(r, p, of);
}

/* An expression; their numbers are few, so that few functions are made. Positions have to be ones of 32 bits. */
static void draw_functions(stream *r, problem *p, int64_t of) {
    static const char *const scores[] = {"score-0.5*abs(i-j)",
                                         "20*tanh(score/20)",
                                         "score+0.5*exp(-0.1*abs(i-j))",
                                         "(i+j)%3==0?-inf:score",
                                         "score*(h%2==0?1.0:0.5)+0.25*(j%8)",
                                         "sqrt(score*score+1)"};
    static const char *const masks[] = {"j<=i",
                                        "i/16==j/16",
                                        "abs(i-j)<40",
                                        "(i-j)%4==0||i-j<8&&j<=i",
                                        "j%64<32||i==j",
                                        "i/128!=j/128",
                                        "h%2==0||j>i",
                                        "table[h][abs(j)%2]>0",
                                        "i+j<seq_k&&i>=b",
                                        "seq_q-i<=seq_k-j",
                                        "!(j>i+3)&&2*i-2*j<=81"};
    const int64_t far = (int64_t)1 << 24, at = p->seq_k - 1 + p->k_start - p->q_start;
    if (p->q_start > far || p->q_start < -far || p->k_start > far || p->k_start < -far) return;
    if (chance(r, of, 20)) {
        snprintf(p->score, sizeof p->score, "%s", PICK(r, scores));
        if (chance(r, 1, 3)) snprintf(p->score, sizeof p->score, "score+table[h][i-j+%lld]", (long long)at);
        if (chance(r, 1, 6)) snprintf(p->score, sizeof p->score, "score*(1.5-tanh(table[h][abs(j)%%3]))");
        if (fabs(p->scale) > 1e6 && strstr(p->score, "score*score")) p->score[0] = 0; /* infinite in fp32 */
        p->dscore = p->operation == STROBE_BACKWARD && strstr(p->score, "table") && chance(r, 1, 2);
    }
    if (chance(r, of, 20)) snprintf(p->visible, sizeof p->visible, "%s", PICK(r, masks));
}

/* Of scores up to what docs/numerics.md promises. A backward's weights are differences of scores and lse, whose steps in
 * fp32 are to stay below 1, and its gradients within fp16 where they are such. q is multiplied by softcap. */
static double draw_large_scale(stream *r, const problem *p) {
    static const double of_backward[] = {100, 300, -1000}, on_gpu[] = {100, 1e3, -1e4},
                        on_cpu[] = {100, 1e3, -1e4, 1e6, 1e12, 1e30};
    const bool adds_up = p->values >= VALUES_GROWING && p->values <= VALUES_LOW; /* over the columns of a key */
    if (p->operation == STROBE_BACKWARD && (adds_up || p->softcap > 100)) return 0;
    if (p->operation == STROBE_BACKWARD) return p->dtype == STROBE_FP16 ? 0 : PICK(r, of_backward);
    return p->device == STROBE_CUDA ? PICK(r, on_gpu) : PICK(r, on_cpu);
}

static void draw_values(stream *r, problem *p, int64_t of) {
    static const double scales[] = {0.5, -0.25, 0.01, 1, -2, 1e-5, 1e-20, 3, 10};
    if (chance(r, of, 10)) p->values = VALUES_OUTLIERS + random_below(r, 6);
    if (chance(r, of, 16)) p->hidden = HIDDEN_INFINITY + random_below(r, 2);
    if (chance(r, of, 40)) p->nan = 1;
    if (chance(r, of, 12)) p->scale = PICK(r, scales);
    if (chance(r, of, 40)) p->scale = draw_large_scale(r, p);
}

static void draw_layout(stream *r, problem *p) {
    p->layout = LAYOUT_BHSD + random_below(r, LAYOUT_OVERLAPPING);
    if (p->layout != LAYOUT_PACKED) return;
    const int64_t cu = p->varlen & (VARLEN_CU_Q | VARLEN_CU_K);
    const bool alone = cu == VARLEN_CU_Q || cu == VARLEN_CU_K || p->lengths == LENGTHS_NO_KEYS ||
                       p->lengths == LENGTHS_NO_ROWS;
    if (p->kv_dtype || p->dtype == STROBE_FP8_E4M3 || alone)
        p->layout = LAYOUT_GAPS;
    else
        p->seq_q = p->seq_k = p->seq_q < p->seq_k ? p->seq_q : p->seq_k;
}

/* Sizes of pages that engines have, and any. Scales are a row's or a sequence's then. */
static void draw_pages(stream *r, problem *p) {
    static const int64_t page_sizes[] = {1, 16, 16, 32, 64, 128, 256};
    if (p->operation == STROBE_BACKWARD || p->varlen & VARLEN_CU_K) return;
    if (p->layout == LAYOUT_PACKED || p->layout == LAYOUT_SHARED || p->layout == LAYOUT_OVERLAPPING) return;
    p->page_size = chance(r, 1, 2) ? PICK(r, page_sizes) : 1 + random_below(r, 300);
    p->missing = chance(r, 1, 3);
    if (p->scales == SCALES_ROWS || p->scales == SCALES_BLOCKS) p->scales = SCALES_SEQUENCE;
}

/* What else caches are: keys that are padding, V in K's columns, as multi-head latent attention has it. */
static void draw_cache(stream *r, problem *p, int64_t of) {
    if (p->operation == STROBE_BACKWARD) return;
    if (chance(r, of, 16)) p->leftpad = 1;
    if (p->v_in_k && !p->page_size && chance(r, 1, 2)) draw_pages(r, p);
    p->v_in_k = (p->v_in_k || chance(r, of, 16)) && p->layout != LAYOUT_PACKED && !p->scales && !p->qk_dtype;
    if (!p->v_in_k) return;
    if (p->dim_v > p->dim) p->dim_v = p->dim;
}

/* A step of decoding, a chunk, or the whole cache. */
static void draw_append(stream *r, problem *p, int64_t of) {
    const bool rows_share = p->scales == SCALES_ROWS || p->scales == SCALES_BLOCKS;
    const bool shared = p->layout == LAYOUT_SHARED || p->layout == LAYOUT_OVERLAPPING;
    if (!chance(r, of, 12) || p->operation == STROBE_BACKWARD || shared || p->qk_dtype || p->dtype == STROBE_FP64) return;
    if (problem_is_quantised(problem_kv_dtype(p)) && rows_share) return;
    p->append = chance(r, 1, 3) ? 1 : 1 + random_below(r, chance(r, 1, 2) ? 40 : p->seq_k + 1);
}

/* Results and dout of other dtypes than the inputs. */
static void draw_result_dtypes(stream *r, problem *p, int64_t of) {
    static const int64_t dtypes[] = {STROBE_FP16, STROBE_FP16, STROBE_BF16, STROBE_BF16, STROBE_FP32, STROBE_FP64};
    const bool backward = p->operation == STROBE_BACKWARD;
    if (chance(r, of, 20) && (backward || !p->wide)) p->out_dtype = PICK(r, dtypes);
    if (backward && chance(r, of, 20)) p->dout_dtype = PICK(r, dtypes);
    if (backward && chance(r, of, 20)) p->gradients_dtype = PICK(r, dtypes);
    if (p->out_dtype == problem_wide_dtype(p)) p->out_dtype = 0;
    if (p->dout_dtype == p->dtype) p->dout_dtype = 0;
    if (p->gradients_dtype == p->dtype || (p->gradients_dtype == STROBE_FP16 && fabs(p->scale) >= 100))
        p->gradients_dtype = 0;
}

static void draw_rest(stream *r, problem *p, int64_t of) {
    static const double rates[] = {0.1, 0.5, 0.17, 0.9, 1e-9, 0.999};
    static const int64_t splits[] = {1, 16, 63, 64, 65, 100, 128, 256, 512, 1000, 1 << 20};
    static const int64_t threads[] = {1, 1, 1, 1, 1, 2, 3, 5};
    static const int64_t wide[] = {WIDE_ALL, WIDE_ALL, WIDE_KEYS, WIDE_KEYS, WIDE_DQ, WIDE_DK};
    const bool backward = p->operation == STROBE_BACKWARD;
    if (!p->nan && chance(r, of, 16)) { /* whether a NaN that is dropped reaches its rows is not said */
        p->dropout = PICK(r, rates);
        p->shard = chance(r, 1, 3);
    }
    if (chance(r, of, 10)) draw_varlen(r, p);
    if (chance(r, of, 5)) draw_layout(r, p);
    if (chance(r, of, 12)) draw_pages(r, p);
    if (chance(r, of, 12)) *(backward ? &p->dlse : &p->no_lse) = 1;
    if (backward && chance(r, of, 8)) p->deterministic = 1;
    if (!backward && chance(r, of, 12)) p->split_keys = PICK(r, splits);
    if ((p->dtype == STROBE_FP16 || p->dtype == STROBE_BF16) && chance(r, of, 8))
        p->wide = backward && p->layout != LAYOUT_PACKED ? PICK(r, wide) : WIDE_ALL;
    draw_result_dtypes(r, p, of);
    const bool no_rows = p->batch == 0 || p->seq_q == 0 || p->seq_k == 0 || p->lengths == LENGTHS_NO_KEYS ||
                         p->lengths == LENGTHS_NO_ROWS ||
                         p->lengths == LENGTHS_NONE; /* a packed tensor of none has no total */
    if (!no_rows || !(p->varlen & (VARLEN_CU_Q | VARLEN_CU_K)))
        p->added = backward && problem_has_fp32_gradients(p) && chance(r, of, 10);
    p->threads = PICK(r, threads); /* never the default: the cores are the other workers' */
    p->seed = random_below(r, chance(r, 1, 16) ? INT64_MAX : 1000);
}

/* ---------------------------------------------------------------------------------------------------------- a case -- */

static int64_t draw_budget(stream *r) {
    const int64_t kind = random_below(r, 64);
    return (int64_t)1 << (kind < 40 ? 18 : kind < 60 ? 20 : kind < 63 ? 22 : 24);
}

static void draw_call(stream *r, int32_t operation, int64_t device, problem *p) {
    static const int64_t densities[] = {0, 1, 2, 4, 4, 6};
    const int64_t of = PICK(r, densities);
    *p = (problem){.operation = operation, .device = device};
    draw_dtypes(r, p);
    draw_sizes(r, p);
    if (operation == STROBE_FORWARD && (p->dtype == STROBE_FP16 || p->dtype == STROBE_BF16) && chance(r, 1, 24))
        draw_latent(r, p);
    else
        cut_to(p, draw_budget(r));
    draw_mask(r, p);
    draw_score_terms(r, p, of);
    draw_values(r, p, of);
    draw_rest(r, p, of);
    draw_functions(r, p, of); /* when sizes are settled */
    draw_cache(r, p, of);
    draw_append(r, p, of);
    if (chance(r, 1, 10)) draw_ranks(r, p);
    p->tf32x3 = chance(r, 1, p->dtype == STROBE_FP32 ? 2 : 24); /* of other dtypes it changes nothing */
}

/* Whether the kernel that the problem names, or any, takes it; its name into the problem. */
static strobe_status select_kernel(problem *p, char *message, size_t capacity) {
    call c;
    const char *kernel = "";
    call_describe(&c, p);
    strobe_status status = strobe_select(&c.attention, call_gradients(&c), &kernel);
    snprintf(message, capacity, "%s", status ? strobe_last_error() : "");
    if (status) return status;
    if (p->ranks) status = ranks_take(p, &c, message, capacity);
    if (!status) snprintf(p->kernel, sizeof p->kernel, "%s", kernel);
    return status;
}

static int draw_kernel(stream *r, const draw_request *request, const kernel_list *kernels) {
    if (request->only_kernel) return kernel_list_index(kernels, request->only_kernel);
    for (;;) {
        const int k = (int)random_below(r, kernels->count);
        if (kernels->items[k].runs) return k;
    }
}

strobe_status draw_problem(const draw_request *request, const kernel_list *kernels, uint64_t index, problem *p,
                           coverage *count, char *message, size_t capacity) {
    stream r = random_at(request->seed, FOR_CASES, index);
    const int k = draw_kernel(&r, request, kernels);
    const bool automatic = !request->only_kernel && chance(&r, 1, 3);
    for (int attempt = 0; attempt < MOST_ATTEMPTS; ++attempt) {
        draw_call(&r, kernels->items[k].operation, request->device, p);
        if (!automatic) snprintf(p->kernel, sizeof p->kernel, "%s", kernels->items[k].name);
        const strobe_status status = select_kernel(p, message, capacity);
        if (status != STROBE_UNSUPPORTED) return status;
        if (!automatic) coverage_count_refusal(count, k, p);
    }
    return STROBE_UNSUPPORTED;
}
