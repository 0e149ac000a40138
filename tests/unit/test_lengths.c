/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_lengths.c: every kernel of the table against the oracle past each length at which a kernel of the CPU takes another
 * path: a block of keys, a range of the backward, a split of decoding, a super-block, a task of the forward. The lengths are
 * made of the kernels' own constants, so that they move when those are tuned. Every feature meets several blocks of keys. */
#include "against_oracle.h"
#include "cpu/amx/sizes.h"
#include "cpu/decode/split_kv.h"
#include "cpu/vector/backward_tasks.h"
#include "cpu/vector/forward_tasks.h"
#include "level_sizes.h"

enum { SEVERAL_BLOCKS = 3 * BLOCK_KEYS + 5, LARGEST_DIM = 512, LARGEST_DIM_ON_TILES = 256 };

/* Keys of a super-block at the largest head dim, where it is smallest: of vector/backward.c (K, V, dK and dV in fp32), of
 * amx/backward.c (K, K^T and V in bf16, dK and dV in fp32; in parts they are smaller), and of amx/forward.c (K and V in
 * bf16). */
enum {
    SUPER_OF_BACKWARD = SUPER_BYTES / (4 * 4 * LARGEST_DIM),
    SUPER_OF_BACKWARD_ON_TILES = SUPER_BYTES / (14 * LARGEST_DIM_ON_TILES),
    SUPER_OF_FORWARD_ON_TILES = FORWARD_SUPER_BYTES / (2 * 2 * LARGEST_DIM_ON_TILES),
};

#define SIZE          .batch = 2, .seq_q = 150, .seq_k = SEVERAL_BLOCKS, .heads_q = 4, .heads_kv = 2, .dim = 9, .dim_v = 6
#define TOP_LEFT_SIZE .batch = 1, .seq_q = SEVERAL_BLOCKS + 9, .seq_k = SEVERAL_BLOCKS, .heads_q = 2, .dim = 7
#define ONE           .batch = 1, .heads_q = 1, .dim = 6

/* A problem, in every dtype unless it names one; `tiles`: it has a row more than so many tiles of the level with the largest
 * ones. */
struct length {
    struct shape shape;
    int64_t tiles;
};

/* Every feature, and what a block's end does. */
static const struct length several_blocks[] = {
    {.shape = {"several blocks", SIZE, .features = WITH_DLSE}},
    {.shape = {"causal, top left", TOP_LEFT_SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT}},
    {.shape = {"causal, bottom right", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = WITH_DLSE}},
    {.shape = {"window over a block's end", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 30, .right = 9}},
    {.shape = {"window over two blocks", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = BLOCK_KEYS + 30,
               .right = 0}},
    {.shape = {"window, top left", TOP_LEFT_SIZE, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 50, .right = BLOCK_KEYS}},
    {.shape = {"window, open on the left", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = -1, .right = 20}},
    {.shape = {"window, open on the right", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 20, .right = -1}},
    {.shape = {"window past both ends", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 1000, .right = 1000}},
    {.shape = {"boolean mask", SIZE, .features = BOOL_MASK | PER_SCORE}},
    {.shape = {"boolean mask of keys", SIZE, .features = BOOL_MASK}},
    {.shape = {"block mask", SIZE, .features = BLOCK_MASK}},
    {.shape = {"bias", SIZE, .features = BIAS | PER_SCORE | HOLES}},
    {.shape = {"bias for all batch entries", SIZE, .features = BIAS | PER_HEAD | PER_ROW}},
    {.shape = {"bias for all heads", SIZE, .features = BIAS | PER_BATCH | PER_ROW}},
    {.shape = {"bias of keys", SIZE, .features = BIAS}},
    {.shape = {"ALiBi", SIZE, .features = ALIBI | WITH_DLSE}},
    {.shape = {"softcap", SIZE, .features = SOFTCAP}},
    {.shape = {"sinks", SIZE, .features = SINKS | WITH_DLSE}},
    {.shape = {"dropout", SIZE, .features = DROPOUT}},
    {.shape = {"dropout, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = DROPOUT}},
    {.shape = {"negative scale", SIZE, .features = NEGATIVE_SCALE}},
    {.shape = {"starts, causal, ALiBi", TOP_LEFT_SIZE, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = STARTS | ALIBI}},
    {.shape = {"packed", SIZE, .features = PACKED | WITH_DLSE}},
    {.shape = {"packed, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = PACKED}},
    {.shape = {"packed keys alone, sinks", SIZE, .features = PACKED_K | SINKS}},
    {.shape = {"used of packed, causal", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
               .features = PACKED | USED | INDEX64}},
    {.shape = {"used, dropout, bias", SIZE, .features = USED | DROPOUT | BIAS | PER_SCORE}},
    {.shape = {"without lse", SIZE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = NO_LSE}},
    {.shape = {"everything", SIZE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 90, .right = 30,
               .features = BOOL_MASK | BLOCK_MASK | BIAS | ALIBI | SOFTCAP | SINKS | DROPOUT | STARTS | WITH_DLSE |
                           NEGATIVE_SCALE | PER_HEAD | PER_ROW}},
    {.shape = {"blocks just full", ONE, .seq_q = 50, .seq_k = 2 * BLOCK_KEYS}},
    {.shape = {"a key more", ONE, .seq_q = 50, .seq_k = 2 * BLOCK_KEYS + 1, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"a key fewer", ONE, .seq_q = 50, .seq_k = 2 * BLOCK_KEYS - 1, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
};

#define RANGES       .seq_q = 27, .heads_q = 2, .heads_kv = 1, .dim = 9, .dim_v = 6
#define SECOND_RANGE .seq_k = LEAST_RANGE + BLOCK_KEYS + 1
#define WIDE_HEAD(d) .batch = 1, .heads_q = 1, .dim = d

/* The backward sums dQ over ranges of keys, and dK and dV of a range super-block by super-block. */
static const struct length ranges[] = {
    {.shape = {"two ranges", .batch = 1, RANGES, SECOND_RANGE}},
    {.shape = {"a range just full", .batch = 1, RANGES, .seq_k = LEAST_RANGE}},
    {.shape = {"two ranges, causal", .batch = 2, RANGES, SECOND_RANGE, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT,
               .features = WITH_DLSE}},
    {.shape = {"two ranges, one not seen", .batch = 1, RANGES, SECOND_RANGE, .mask = STROBE_MASK_WINDOW_TOP_LEFT,
               .left = 40}},
    {.shape = {"two ranges, most of one not seen", .batch = 1, RANGES, SECOND_RANGE, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT,
               .left = 40}},
    {.shape = {"two ranges, bias for all, dropout", .batch = 2, RANGES, SECOND_RANGE, .features = BIAS | PER_ROW | DROPOUT}},
    {.shape = {"two ranges, used lengths, sinks", .batch = 4, RANGES, SECOND_RANGE, .features = USED | PACKED_K | SINKS}},
    {.shape = {"two ranges, head dim 64", WIDE_HEAD(64), .seq_q = 60, SECOND_RANGE, .dtype = STROBE_BF16}},
    {.shape = {"three ranges", .batch = 1, RANGES, .seq_k = 2 * LEAST_RANGE + 70, .features = ALIBI | SOFTCAP}},
    {.shape = {"as many ranges as there may be", .batch = 1, RANGES, .seq_k = LEAST_RANGE * MOST_RANGES,
               .dtype = STROBE_FP32}},
    {.shape = {"ranges that grow", .batch = 1, RANGES, .seq_k = LEAST_RANGE * MOST_RANGES + BLOCK_KEYS + 1,
               .dtype = STROBE_BF16, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"super-blocks", WIDE_HEAD(LARGEST_DIM), .seq_q = 13, .dtype = STROBE_FP32, .seq_k = 2 * SUPER_OF_BACKWARD + 5,
               .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"super-blocks on tiles", WIDE_HEAD(LARGEST_DIM_ON_TILES), .seq_q = 35,
               .seq_k = 2 * SUPER_OF_BACKWARD_ON_TILES + 5}},
    {.shape = {"batches of strips, blocks of tiles", ONE, .seq_k = 2 * BATCH_STRIPS * STRIP_KEYS + 7,
               .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = 300, .right = 100},
     .tiles = BLOCK_TILES},
    {.shape = {"tasks of row statistics", ONE, .seq_k = 5}, .tiles = STATISTICS_TILES},
    {.shape = {"one task of row statistics, for dsinks", ONE, .seq_k = 5, .features = SINKS | WITH_DLSE},
     .tiles = STATISTICS_TILES},
};

/* So many rows that keys are packed; keys and columns are no multiple of a panel's width nor of a vector's. */
#define PANELS .batch = 1, .heads_q = 2, .heads_kv = 1, .dim = 45, .dim_v = 43, .seq_q = PANEL_ROWS, .seq_k = BLOCK_KEYS + 29

/* A task of the forward has several tiles where there are tasks enough; on tiles of AMX, several super-blocks of keys. */
static const struct length tasks[] = {
    {.shape = {"tasks of several tiles", .batch = 1, .heads_q = ENOUGH_TASKS, .dim = 3, .seq_k = 2 * BLOCK_KEYS + 1,
               .seq_q = TASK_ROWS + 1, .mask = STROBE_MASK_WINDOW_TOP_LEFT, .left = 60, .right = 5}},
    {.shape = {"tasks of several tiles, used lengths", .batch = 8, .heads_q = ENOUGH_TASKS / 8, .dim = 3,
               .seq_q = TASK_ROWS + 50, .seq_k = BLOCK_KEYS + 9, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = USED}},
    {.shape = {"keys in panels", PANELS}},
    {.shape = {"keys in panels, boolean mask", PANELS, .features = BOOL_MASK | PER_SCORE}},
    {.shape = {"keys in panels, and not", PANELS, .mask = STROBE_MASK_CAUSAL_TOP_LEFT, .features = PACKED}},
    {.shape = {"super-blocks on tiles, forward", WIDE_HEAD(LARGEST_DIM_ON_TILES), .seq_q = 33, .dtype = STROBE_BF16,
               .seq_k = SUPER_OF_FORWARD_ON_TILES + BLOCK_KEYS + 1, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"a row more than the least task on tiles", ONE, .seq_q = FORWARD_LEAST_ROWS + 1, .seq_k = BLOCK_KEYS + 9}},
    {.shape = {"a row more than the largest task on tiles", .batch = 1, .heads_q = 5, .dim = 4,
               .seq_q = FORWARD_MOST_ROWS + 1, .seq_k = BLOCK_KEYS + 9}},
};

#define ALL_SPLITS (DEFAULT_SPLIT * MOST_SPLITS)

/* Decoding cuts keys into splits and makes weights of MOST_KEYS at once; heads that lie side by side share a task. */
static const struct length decoding[] = {
    {.shape = {"weights of a block, a key more", ONE, .seq_q = 1, .seq_k = MOST_KEYS + 1}},
    {.shape = {"two splits", .batch = 2, .heads_q = 6, .heads_kv = 2, .dim = 40, .dim_v = 24, .seq_q = 1,
               .seq_k = DEFAULT_SPLIT + 1}},
    {.shape = {"a split just full", ONE, .seq_q = 3, .seq_k = DEFAULT_SPLIT, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"as many rows as there may be", .batch = 1, .heads_q = MOST_DECODE_ROWS / 2, .heads_kv = 1, .dim = 33,
               .seq_q = 2, .seq_k = 2 * DEFAULT_SPLIT + 70, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT, .features = SINKS}},
    {.shape = {"a row more", .batch = 1, .heads_q = MOST_DECODE_ROWS + 1, .heads_kv = 1, .dim = 33, .seq_q = 1,
               .seq_k = DEFAULT_SPLIT + 70}},
    {.shape = {"window from inside a split", .batch = 1, .heads_q = 4, .heads_kv = 2, .dim = 16, .seq_q = 2,
               .seq_k = 3 * DEFAULT_SPLIT + 77, .mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT, .left = DEFAULT_SPLIT + 30}},
    {.shape = {"packed, used", .batch = 5, .heads_q = 4, .heads_kv = 2, .dim = 16, .seq_q = 2,
               .seq_k = 2 * DEFAULT_SPLIT + 77, .features = PACKED_K | USED, .mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT}},
    {.shape = {"more heads than share a task", .batch = 1, .heads_q = 2 * HEADS_A_TASK + 5, .dim = 4, .seq_q = 1,
               .seq_k = MOST_KEYS + 70}},
    {.shape = {"more heads than share a task on tiles", .batch = 1, .heads_q = 4 * (2 * HEADS_A_TASK_ON_TILES + 5),
               .heads_kv = 2 * HEADS_A_TASK_ON_TILES + 5, .dim = 4, .seq_q = 1, .seq_k = BLOCK_KEYS + 70}},
    {.shape = {"splits that grow", ONE, .dim_v = 2, .seq_q = 1, .seq_k = ALL_SPLITS + 1, .dtype = STROBE_BF16}},
    {.shape = {"as many splits as there may be", ONE, .dim_v = 2, .seq_q = 1, .seq_k = 2 * ALL_SPLITS,
               .dtype = STROBE_FP32}},
};

static const struct group {
    const struct length *lengths;
    size_t count;
    enum operations operations;
} groups[] = {
    {several_blocks, COUNT(several_blocks), BOTH_OPERATIONS},
    {ranges, COUNT(ranges), BOTH_OPERATIONS},
    {tasks, COUNT(tasks), FORWARD_ALONE},
    {decoding, COUNT(decoding), FORWARD_ALONE},
};

int main(void) {
    enum { MOST = ORACLE_DTYPES * (COUNT(several_blocks) + COUNT(ranges) + COUNT(tasks) + COUNT(decoding)) };
    static struct oracle_test all[MOST];
    static struct CMUnitTest tests[MOST];
    size_t count = 0;
    for (const struct group *g = groups; g < groups + COUNT(groups); ++g)
        for (size_t n = 0; n < g->count * ORACLE_DTYPES; ++n) {
            const struct length *length = &g->lengths[n / ORACLE_DTYPES];
            struct shape shape = length->shape;
            if (shape.dtype && shape.dtype != oracle_dtypes[n % ORACLE_DTYPES]) continue;
            if (length->tiles) shape.seq_q = length->tiles * most_tile_rows() + 1;
            tests[count] = oracle_test(&all[count], &shape, g->operations, n % ORACLE_DTYPES);
            ++count;
        }
    return cmocka_run_group_tests(tests, NULL, NULL); /* entries without a function do not count */
}
