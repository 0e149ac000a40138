/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_decode_schedule.c: how cuda/sm80/decode_schedule.h shares out blocks of keys, run on the host. For random lengths,
 * cut in every way that a problem can have: each item is covered once, in the order of its keys, by neighbouring CTAs, which
 * all know whose parts belong together; the shares are even but for their ends; what a row sees is covered, and what all
 * rows see is known. Where parts have a fixed size, each is a segment, whatever else is in the batch. */
enum { THREADS = 64, BLOCK_N = 64, MOST_SEGMENTS = 1 << 16 };
#define ELEMENT_BF16
#include "device_on_host.h"

#include "cuda/sm80/decode_schedule.h"
#include "test.h"

#include <stdlib.h>

static struct decode_params given;
static struct walk walk;
static struct segment segment;
static uint32_t sums[THREADS / 32 + 1];

static struct {
    struct segment s;
    int cta;
} found[MOST_SEGMENTS];
static int found_count;

static struct random numbers;
static int draw(int least, int most) { return least + (int)random_below(&numbers, most - least + 1); }
static bool one_in(int n) { return draw(1, n) == 1; }

/* Of sequences that are as long as the bounds say, as decode_host.c counts them. */
static void count_even(struct decode_params *d) {
    const struct params *p = &d->p;
    if (p->cu_q || p->cu_k || p->used_q || p->used_k || p->cache.leftpad) return;
    struct job t = {.b = 0};
    d->even_blocks = blocks_of_sequence(&t, p);
    d->even_units = (uint32_t)(d->even_blocks * p->heads_kv);
}

enum { MOST_BATCH = 200 };
static int32_t cu_q[MOST_BATCH + 1], cu_k[MOST_BATCH + 1], used_q[MOST_BATCH], used_k[MOST_BATCH], padding[MOST_BATCH];
static const element origin;

static void draw_problem(void) {
    memset(&given, 0, sizeof given);
    struct params *p = &given.p;
    p->batch = one_in(4) ? draw(70, MOST_BATCH) : draw(1, 9); /* more sequences than threads, and fewer */
    p->heads_kv = draw(1, 3), p->group = draw(1, 4), p->dim = p->dim_v = 128;
    p->seq_q = draw(1, 8), p->seq_k = draw(1, one_in(2) ? 100 : 2000);
    p->bottom_right = draw(0, 1), p->start_shift = one_in(4) ? draw(-50, 50) : 0;
    p->left = one_in(3) ? draw(0, 300) : BAND_UNBOUNDED, p->right = one_in(2) ? draw(-3, 5) : BAND_UNBOUNDED;
    p->k.head = 128, p->k.row = 128 * p->heads_kv, p->k.batch = p->k.row * p->seq_k;
    p->k.data = (void *)(uintptr_t)&origin;
    p->v = p->q = p->k;
    for (int b = 0; b < p->batch; ++b) {
        cu_q[b + 1] = cu_q[b] + draw(0, p->seq_q), cu_k[b + 1] = cu_k[b] + draw(0, p->seq_k);
        used_q[b] = one_in(3) ? draw(0, p->seq_q) : p->seq_q;
        used_k[b] = one_in(4) ? draw(-2, p->seq_k + 5) : draw(0, p->seq_k); /* past the bound, too, and below 0 */
        padding[b] = draw(0, p->seq_k);
    }
    if (!one_in(3)) {
        if (one_in(2)) p->used_k = used_k;
        if (one_in(4)) p->used_q = used_q;
        if (one_in(4)) p->cu_q = cu_q;
        if (one_in(4)) p->cu_k = cu_k;
        if (one_in(4)) p->cache.leftpad = padding;
    }
    count_even(&given);
    if (one_in(3)) given.part_blocks = draw(1, one_in(2) ? 3 : 20);
    given.item_slots = given.part_blocks ? (p->seq_k / BLOCK_N + given.part_blocks) / given.part_blocks : 1;
    gridDim.x = (unsigned)draw(1, 12);
    if (given.even_blocks && !given.part_blocks && one_in(2)) { /* the host shares out */
        given.item_ctas = (uint32_t)draw(1, given.even_blocks < 7 ? given.even_blocks : 7);
        gridDim.x = given.item_ctas * (unsigned)(p->batch * p->heads_kv);
    }
}

static void find(void) { find_share(&walk, &segment, sums, &given); }

/* All segments of all CTAs, in the order of the CTAs. */
static void share_out_all(void) {
    found_count = 0;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        run_block(find);
        threadIdx.x = 0;
        for (uint32_t left = walk.units; left > 0; next_segment(&segment, &walk, &given)) {
            assert_true(segment.blocks > 0 && (uint32_t)segment.blocks <= left && found_count < MOST_SEGMENTS);
            left -= (uint32_t)segment.blocks;
            found[found_count].s = segment;
            found[found_count++].cta = (int)blockIdx.x;
        }
        if (walk.units > 0) assert_int_equal(segment.blocks, 0);
    }
}

/* Of the item of sequence t and its head: its segments are found[first] to found[end - 1]. */
static void check_item(const struct job *t, int first, int end) {
    const int size = given.part_blocks, item = (t->b * given.p.heads_kv + found[first].s.t.kv) * given.item_slots;
    int key = found[first].s.first;
    int64_t low = INT64_MAX, high = 0;
    assert_int_equal(key % BLOCK_N, 0);
    for (int n = first; n < end; ++n) {
        const struct segment *s = &found[n].s;
        assert_int_equal(s->first, key);
        assert_int_equal(s->parts, end - first);
        assert_int_equal(s->first_slot, size ? item : found[first].cta);
        if (size) {
            assert_true(n == end - 1 ? s->blocks <= size : s->blocks == size);
            assert_true(s->slot == item + n - first && n - first < given.item_slots);
        } else {
            assert_int_equal(s->slot, found[n].cta + (n > first ? (int)gridDim.x : 0));
            assert_int_equal(found[n].cta, found[first].cta + n - first);
        }
        assert_true(s->t.rows == t->rows && s->t.keys == t->keys && s->t.first_row == t->first_row &&
                    s->t.first_key == t->first_key && s->t.batch_k == t->batch_k);
        assert_ptr_equal(s->k, &origin + t->batch_k * given.p.k.batch + s->t.kv * given.p.k.head);
        key += s->blocks * BLOCK_N;
    }
    for (int i = 0; i < t->rows; ++i) {
        const int64_t from = band_first(&t->band, i), to = band_end(&t->band, i);
        for (int n = first; n < end; ++n)
            assert_true((found[n].s.full_first >= from || from > t->keys) && found[n].s.full_end <= to);
        if (from >= to) continue;
        low = from < low ? from : low, high = to > high ? to : high;
    }
    if (low < high) assert_true(found[first].s.first <= low && key >= high && key < high + BLOCK_N);
}

/* Shares are even but for their ends, which lie at an item's where one is near, or at the nearest part's. */
static void check_shares(const int units[], int total) {
    if (given.item_ctas > 0) {
        const int each = given.even_blocks / (int)given.item_ctas;
        for (int cta = 0; cta < (int)gridDim.x; ++cta) assert_true(units[cta] == each || units[cta] == each + 1);
        return;
    }
    const int ctas = total < (int)gridDim.x ? total : (int)gridDim.x;
    for (int cta = 0, at = 0; cta < (int)gridDim.x; at += units[cta++]) {
        if (cta >= ctas) assert_int_equal(units[cta], 0);
        if (cta >= ctas) continue;
        const int each = total / ctas, more = total % ctas, even = cta * each + (cta < more ? cta : more);
        const int near = each / 2 < NEAR_BLOCKS ? each / 2 : NEAR_BLOCKS;
        assert_true(abs(at - even) <= (given.part_blocks ? (given.part_blocks + 1) / 2 : near));
    }
}

static void items_are_covered_once(void **unused) {
    (void)unused;
    for (uint64_t seed = 1; seed <= 48; ++seed) {
        numbers.state = seed;
        draw_problem();
        share_out_all();
        static int units[MOST_BATCH * 3 * 7];
        int at = 0, total = 0;
        memset(units, 0, sizeof units);
        for (int b = 0; b < given.p.batch; ++b) {
            struct job t = {.b = b};
            job_sequence(&t, &given.p);
            for (int kv = 0; t.rows > 0 && kv < given.p.heads_kv; ++kv) {
                const int first = at;
                while (at < found_count && found[at].s.t.b == b && found[at].s.t.kv == kv) ++at;
                assert_true(at > first);
                check_item(&t, first, at);
            }
        }
        assert_int_equal(at, found_count);
        for (int n = 0; n < found_count; ++n) units[found[n].cta] += found[n].s.blocks, total += found[n].s.blocks;
        check_shares(units, total);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(items_are_covered_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
