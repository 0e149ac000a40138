/* SPDX-License-Identifier: BSD-3-Clause
 *
 * problem_words.c: the words of a problem, in the order in which they are printed, and the same as a page of help. */
#include "problem/problem_words.h"

#include <stdio.h>
#include <string.h>

#define FIELD(name)          .field = offsetof(problem, name)
#define FIELDS(name, name_2) .field = offsetof(problem, name), .second = offsetof(problem, name_2)

enum { MOST_BATCH = 1 << 20, MOST_HEADS = 1 << 16, MOST_SEQ = 1 << 30, MOST_DIM = 1 << 16, MOST_THREADS = 4096 };
#define MOST_WINDOW ((int64_t)1 << 40) /* what the library takes */
#define MOST_START  ((int64_t)1 << 59)

static const word_choice operations[] = {{"fwd", STROBE_FORWARD}, {"bwd", STROBE_BACKWARD}, {0}};
static const word_choice dtypes[] = {{"fp32", STROBE_FP32}, {"fp16", STROBE_FP16},    {"bf16", STROBE_BF16},
                                     {"fp64", STROBE_FP64}, {"fp8", STROBE_FP8_E4M3}, {0}};
static const word_choice kv_dtypes[] = {{"same", 0},
                                        {"fp32", STROBE_FP32},
                                        {"fp16", STROBE_FP16},
                                        {"bf16", STROBE_BF16},
                                        {"int8", STROBE_INT8},
                                        {"fp8", STROBE_FP8_E4M3},
                                        {0}};
static const word_choice result_dtypes[] = {{"same", 0},           {"fp32", STROBE_FP32}, {"fp16", STROBE_FP16},
                                            {"bf16", STROBE_BF16}, {"fp64", STROBE_FP64}, {0}};
static const word_choice qk_dtypes[] = {{"same", 0}, {"int8", STROBE_INT8}, {0}};
static const word_choice devices[] = {{"cpu", STROBE_CPU}, {"cuda", STROBE_CUDA}, {0}};
static const word_choice causal[] = {
    {"bottomright", STROBE_MASK_CAUSAL_BOTTOM_RIGHT}, {"topleft", STROBE_MASK_CAUSAL_TOP_LEFT}, {0}};
static const word_choice varlen[] = {
    {"packed", VARLEN_CU_Q | VARLEN_CU_K},
    {"used", VARLEN_USED_Q | VARLEN_USED_K},
    {"used_k", VARLEN_USED_K},
    {"packed_q", VARLEN_CU_Q | VARLEN_USED_K},
    {"packed_used", VARLEN_CU_Q | VARLEN_CU_K | VARLEN_USED_Q | VARLEN_USED_K},
    {"packed64", VARLEN_CU_Q | VARLEN_CU_K | VARLEN_INDEX_64},
    {"used64", VARLEN_USED_Q | VARLEN_USED_K | VARLEN_INDEX_64},
    {"used_q", VARLEN_USED_Q},
    {"packed_k", VARLEN_CU_K | VARLEN_USED_Q},
    {"packed_used64", VARLEN_CU_Q | VARLEN_CU_K | VARLEN_USED_Q | VARLEN_USED_K | VARLEN_INDEX_64},
    {0}};
static const word_choice axes[] = {{"qk", AXIS_ROW | AXIS_KEY},
                                   {"k", AXIS_KEY},
                                   {"hk", AXIS_HEAD | AXIS_KEY},
                                   {"hqk", AXIS_HEAD | AXIS_ROW | AXIS_KEY},
                                   {"bk", AXIS_BATCH | AXIS_KEY},
                                   {"bqk", AXIS_BATCH | AXIS_ROW | AXIS_KEY},
                                   {"bhk", AXIS_BATCH | AXIS_HEAD | AXIS_KEY},
                                   {"bhqk", AXIS_BATCH | AXIS_HEAD | AXIS_ROW | AXIS_KEY},
                                   {0}};
static const word_choice layouts[] = {{"bshd", LAYOUT_BSHD},
                                      {"bhsd", LAYOUT_BHSD},
                                      {"packed", LAYOUT_PACKED},
                                      {"gaps", LAYOUT_GAPS},
                                      {"reversed", LAYOUT_REVERSED},
                                      {"sbhd", LAYOUT_SBHD},
                                      {"backwards", LAYOUT_BACKWARDS},
                                      {"misaligned", LAYOUT_MISALIGNED},
                                      {"shared", LAYOUT_SHARED},
                                      {"mixed", LAYOUT_MIXED},
                                      {"overlapping", LAYOUT_OVERLAPPING},
                                      {0}};
static const word_choice values[] = {
    {"normal", VALUES_NORMAL}, {"outliers", VALUES_OUTLIERS}, {"growing", VALUES_GROWING}, {"falling", VALUES_FALLING},
    {"low", VALUES_LOW},       {"spikes", VALUES_SPIKES},     {"equal", VALUES_EQUAL},     {0}};
static const word_choice shows[] = {
    {"usual", SHOWS_USUAL}, {"few", SHOWS_FEW}, {"documents", SHOWS_DOCUMENTS}, {"nothing", SHOWS_NOTHING}, {0}};
static const word_choice hidden[] = {{"nan", HIDDEN_NAN}, {"inf", HIDDEN_INFINITY}, {"largest", HIDDEN_LARGEST}, {0}};
static const word_choice scales[] = {{"token", SCALES_TOKEN},   {"rows", SCALES_ROWS},     {"sequence", SCALES_SEQUENCE},
                                     {"tensor", SCALES_TENSOR}, {"blocks", SCALES_BLOCKS}, {0}};
static const word_choice lengths[] = {{"ragged", LENGTHS_RAGGED},     {"no_keys", LENGTHS_NO_KEYS},
                                      {"no_rows", LENGTHS_NO_ROWS},   {"none", LENGTHS_NONE},
                                      {"one_long", LENGTHS_ONE_LONG}, {0}};
static const word_choice sinks[] = {
    {"usual", SINKS_USUAL}, {"hidden", SINKS_HIDDEN}, {"large", SINKS_LARGE}, {"far", SINKS_FAR}, {0}};
static const word_choice wide[] = {{"all", WIDE_ALL}, {"keys", WIDE_KEYS}, {"dq", WIDE_DQ}, {"dk", WIDE_DK}, {0}};
static const word_choice alibi[] = {{"heads", ALIBI_HEADS}, {"batch", ALIBI_BATCH}, {"signed", ALIBI_SIGNED}, {0}};

const word problem_words[] = {
    {.key = "fwd or bwd", .kind = WORD_BARE, FIELD(operation), .choice = operations},
    {.key = "b", .kind = WORD_INTEGER, .always = true, FIELD(batch), .least = 0, .most = MOST_BATCH},
    {.key = "h", .kind = WORD_PAIR, .separator = '/', FIELDS(heads_q, heads_kv), .least = 1, .most = MOST_HEADS},
    {.key = "s", .kind = WORD_INTEGER, .sets = SETS_SEQ_Q | SETS_SEQ_K, FIELD(seq_q), .least = 0, .most = MOST_SEQ},
    {.key = "sq", .kind = WORD_INTEGER, .sets = SETS_SEQ_Q, FIELD(seq_q), .least = 0, .most = MOST_SEQ},
    {.key = "sk", .kind = WORD_INTEGER, .sets = SETS_SEQ_K, FIELD(seq_k), .least = 0, .most = MOST_SEQ},
    {.key = "d", .kind = WORD_INTEGER, .always = true, FIELD(dim), .least = 1, .most = MOST_DIM},
    {.key = "dv", .kind = WORD_INTEGER, FIELD(dim_v), .least = 1, .most = MOST_DIM},
    {.key = "fp32, fp16, bf16, fp64 or fp8", .kind = WORD_BARE, FIELD(dtype), .choice = dtypes},
    {.key = "kv", .kind = WORD_CHOICE, FIELD(kv_dtype), .choice = kv_dtypes},
    {.key = "qk", .kind = WORD_CHOICE, FIELD(qk_dtype), .choice = qk_dtypes},
    {.key = "out", .kind = WORD_CHOICE, FIELD(out_dtype), .choice = result_dtypes},
    {.key = "dout", .kind = WORD_CHOICE, FIELD(dout_dtype), .choice = result_dtypes},
    {.key = "gradients", .kind = WORD_CHOICE, FIELD(gradients_dtype), .choice = result_dtypes},
    {.key = "causal", .kind = WORD_CHOICE, .sets = SETS_MASK, FIELD(mask), .choice = causal},
    {.key = "window",
     .kind = WORD_PAIR,
     .separator = ',',
     .sets = SETS_MASK,
     FIELDS(window_left, window_right),
     .least = -1,
     .most = MOST_WINDOW,
     .implies_mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT},
    {.key = "window_topleft",
     .kind = WORD_PAIR,
     .separator = ',',
     .sets = SETS_MASK,
     FIELDS(window_left, window_right),
     .least = -1,
     .most = MOST_WINDOW,
     .implies_mask = STROBE_MASK_WINDOW_TOP_LEFT},
    {.key = "scale", .kind = WORD_REAL, FIELD(scale)},
    {.key = "softcap", .kind = WORD_REAL, FIELD(softcap), .above = 0, .below = 1e30},
    {.key = "values", .kind = WORD_CHOICE, FIELD(values), .choice = values},
    {.key = "hidden", .kind = WORD_CHOICE, FIELD(hidden), .choice = hidden},
    {.key = "nan", .kind = WORD_FLAG, FIELD(nan)},
    {.key = "scales", .kind = WORD_CHOICE, FIELD(scales), .choice = scales},
    {.key = "qscales", .kind = WORD_FLAG, FIELD(q_scales)},
    {.key = "dropout", .kind = WORD_REAL, FIELD(dropout), .above = 0, .below = 1, .zero = true},
    {.key = "shard", .kind = WORD_FLAG, FIELD(shard)},
    {.key = "seed", .kind = WORD_INTEGER, FIELD(seed), .least = 0, .most = INT64_MAX},
    {.key = "varlen", .kind = WORD_CHOICE, FIELD(varlen), .choice = varlen},
    {.key = "lengths", .kind = WORD_CHOICE, FIELD(lengths), .choice = lengths},
    {.key = "mask", .kind = WORD_CHOICE, FIELD(bool_mask), .choice = axes},
    {.key = "block", .kind = WORD_PAIR, .separator = ',', FIELDS(block_q, block_k), .least = 1, .most = MOST_SEQ},
    {.key = "block_axes", .kind = WORD_CHOICE, FIELD(block_axes), .choice = axes},
    {.key = "shows", .kind = WORD_CHOICE, FIELD(shows), .choice = shows},
    {.key = "bias", .kind = WORD_CHOICE, FIELD(bias), .choice = axes},
    {.key = "bias_dtype", .kind = WORD_CHOICE, FIELD(bias_dtype), .choice = result_dtypes},
    {.key = "bias_hides", .kind = WORD_FLAG, FIELD(bias_hides)},
    {.key = "alibi", .kind = WORD_CHOICE, FIELD(alibi), .choice = alibi},
    {.key = "sinks", .kind = WORD_CHOICE, FIELD(sinks), .choice = sinks},
    {.key = "score", .kind = WORD_EXPRESSION, FIELD(score)},
    {.key = "visible", .kind = WORD_EXPRESSION, FIELD(visible)},
    {.key = "dscore", .kind = WORD_FLAG, FIELD(dscore)},
    {.key = "nolse", .kind = WORD_FLAG, FIELD(no_lse)},
    {.key = "dlse", .kind = WORD_FLAG, FIELD(dlse)},
    {.key = "dbias", .kind = WORD_FLAG, FIELD(dbias)},
    {.key = "dsinks", .kind = WORD_FLAG, FIELD(dsinks)},
    {.key = "layout", .kind = WORD_CHOICE, FIELD(layout), .choice = layouts},
    {.key = "paged", .kind = WORD_INTEGER, FIELD(page_size), .least = 0, .most = MOST_SEQ},
    {.key = "v_in_k", .kind = WORD_FLAG, FIELD(v_in_k)},
    {.key = "leftpad", .kind = WORD_FLAG, FIELD(leftpad)},
    {.key = "missing", .kind = WORD_FLAG, FIELD(missing)},
    {.key = "append", .kind = WORD_INTEGER, FIELD(append), .least = 0, .most = MOST_SEQ},
    {.key = "qstart", .kind = WORD_INTEGER, FIELD(q_start), .least = -MOST_START, .most = MOST_START},
    {.key = "kstart", .kind = WORD_INTEGER, FIELD(k_start), .least = -MOST_START, .most = MOST_START},
    {.key = "split", .kind = WORD_INTEGER, FIELD(split_keys), .least = 0, .most = MOST_SEQ},
    {.key = "deterministic", .kind = WORD_FLAG, FIELD(deterministic)},
    {.key = "tf32x3", .kind = WORD_FLAG, FIELD(tf32x3)},
    {.key = "added", .kind = WORD_FLAG, FIELD(added)},
    {.key = "wide", .kind = WORD_CHOICE, FIELD(wide), .choice = wide},
    {.key = "device", .kind = WORD_CHOICE, FIELD(device), .choice = devices},
    {.key = "threads", .kind = WORD_INTEGER, FIELD(threads), .least = 0, .most = MOST_THREADS},
    {.key = "kernel", .kind = WORD_NAME, FIELD(kernel)},
    {.key = "ranks", .kind = WORD_RANKS, FIELD(ranks)},
};
const size_t problem_word_count = sizeof problem_words / sizeof problem_words[0];
_Static_assert(sizeof problem_words / sizeof problem_words[0] <= 64, "a set of words that were read has a bit for each");

const word *problem_word_find(const char *text, const char **value) {
    const char *equals = strchr(text, '=');
    const size_t length = equals ? (size_t)(equals - text) : strlen(text);
    *value = equals ? equals + 1 : NULL;
    for (const word *w = problem_words; w < problem_words + problem_word_count; ++w) {
        if (w->kind == WORD_BARE) {
            for (const word_choice *c = w->choice; c->name; ++c)
                if (strcmp(c->name, text) == 0) return w;
        } else if (strlen(w->key) == length && memcmp(w->key, text, length) == 0)
            return w;
    }
    return NULL;
}

/* In two parts, since a compiler need not take a longer string. */
static const char help[] =
    "A PROBLEM is an operation and its sizes, then what differs from the default, in any order:\n"
    "  fwd | bwd                    each begins a new problem (fwd)\n"
    "  b=B  h=H[/HKV]               batch (1); query heads and K/V heads (1)\n"
    "  s=S | sq=SQ sk=SK            both lengths, or those of queries and keys (128)\n"
    "  d=D  dv=DV                   head dim of q and k (64), of v and out (D)\n"
    "  fp32 | fp16 | bf16 | fp64    (fp32)\n"
    "  fp8                          e4m3 q, k and v with a scale a row and head, bf16 out\n"
    "  kv=DTYPE                     of k and v (same): fp32, fp16, bf16; int8 or fp8 with a scale a token and head\n"
    "  qk=int8                      of fp8: int8 q and k\n"
    "  out=DTYPE                    of out (that of q): fp32, fp16, bf16, fp64\n"
    "  dout=DTYPE  gradients=DTYPE  of dout; of dq, dk and dv\n"
    "  causal[=topleft]             keys up to the diagonal; by default the last row sees the last key\n"
    "  window=L,R                   L keys before the bottom-right diagonal to R after it; -1 is unbounded\n"
    "  window_topleft=L,R           the same around the top-left diagonal\n"
    "  scale=X  softcap=X           (1/sqrt(D), none)\n"
    "  values=KIND                  of q and k: normal (default), outliers, growing, falling, low, spikes, equal\n"
    "  hidden=nan|inf|largest       what check puts where no row looks (nan);  nan: one NaN where rows do look\n"
    "  scales[=KIND]                scales of k and v, of an fp8 q too: one a token (default),\n"
    "                               rows (16 share one), blocks (128 share one), sequence, tensor;  qscales: of any q\n"
    "  dropout=P  seed=N            (0, 0); seed is also that of the random inputs and lengths\n"
    "  shard                        dropout as of a part of a larger problem\n"
    "  varlen[=KIND]                ragged lengths up to S: packed (default), used (padded, with used\n"
    "                               lengths), used_k (only keys are padded), packed_q (packed queries, padded keys),\n"
    "                               packed_used (both), packed64, used64, packed_used64 (64-bit), used_q, packed_k\n"
    "  lengths=KIND                 under varlen: ragged (default), no_keys, no_rows, none, one_long\n"
    "  mask[=AXES]  bias[=AXES]     a boolean mask, an additive bias; AXES are those it has of its own, of bhqk\n"
    "                               (batch, head, row, key), the last k; qk by default, the others broadcast\n"
    "  bias_dtype=DTYPE  bias_hides the bias in another dtype; some of it is -inf\n";
static const char help_end[] =
    "  block=BQ,BK  block_axes=AXES a block mask with blocks of BQ x BK (bhqk)\n"
    "  shows=few|documents|nothing  masks hide most squares, all but one document's, or all (some)\n"
    "  alibi[=batch|signed]         ALiBi with the usual slopes, others for every batch entry, or usual ones, less than 0, "
    "and 0\n"
    "  sinks[=hidden|large|far]     one sink a head; hidden: -inf in every second; far: -inf, -3e38 to 1e30\n"
    "  score=\"EXPR\"                 a function of a score: score - 0.5*abs(i-j); table[h][x] is random, x < SQ + SK\n"
    "  visible=\"EXPR\"               who sees whom: j <= i && i/64 == j/64 (strobe_score.h)\n"
    "  nolse  wide[=keys|dq|dk]  added  no lse; results in fp32, keys: dk, dv; fp32 gradients are added\n"
    "  dlse  dbias  dsinks  dscore  lse's gradient is given; those of bias, sinks, table are wanted\n"
    "  layout=NAME                  bshd (default), bhsd, packed (qkv in one tensor), gaps (unused elements between rows),\n"
    "                               reversed (rows in descending order), sbhd, backwards (all axes),\n"
    "                               misaligned (by one element), shared (k, v, dout with strides of 0), mixed,\n"
    "                               overlapping (rows of what is read share elements, or are one row)\n"
    "  paged=SIZE  missing          K and V in pages of SIZE slots; some numbers are of no page\n"
    "  v_in_k  leftpad              v is K's first DV columns; some first keys are padding\n"
    "  append=N                     strobe_append writes the last N keys, and q\n"
    "  qstart=I  kstart=I           positions of row 0 and of key 0 (0)\n"
    "  split=N                      keys in a split of decoding\n"
    "  device=cpu|cuda  threads=N  kernel=NAME  deterministic  tf32x3\n"
    "  ranks=N[/G][:SCHEME[:LAYOUT]] over N ranks, in groups of G, as ring:zigzag (docs/distributed.md)\n"
    "Integers take the suffixes k and M (1024, 1024^2) and sweeps: 512..8k*2 multiplies, 1..9+2 adds, 64,128,256 lists.\n"
    "Values without a comma of their own take lists, and words without a key: fp32,bf16.\n"
    "Sweeps give all combinations.\n";

void problem_print_help(FILE *to) {
    fputs(help, to);
    fputs(help_end, to);
}
