/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rounds.c: see rounds_host.h. */
#include "cuda/sm90/forward/rounds_host.h"

#include "cuda/host/launch.h"

/* What sharing tiles costs a CTA, in blocks of 128 keys and columns: a change of tiles more, and a tile's state to the
 * workspace and back; and as much again, so that it is chosen where it is sure to pay. */
enum { LEAST_SAVED = 12 };

/* Heads that are worked on at a time, whole groups of them, as many as keep K and V in half of the L2 cache: under a causal
 * mask the more, the better tiles of all lengths level out. But no more than so many rounds of tiles, so that new K and V
 * come from memory at an even pace: one where all are alike, half of one where a head has many; two under a mask, but where
 * small CTAs have long rows. And at least four heads of K and V, lest all CTAs ask one part of the cache for the same
 * lines. Under a mask all sections are as long as each other, or nearly: in a short last one long tiles would come late. */
int64_t strobe__sm90_section_heads(const struct problem *p, struct sm90_rounds r) {
    const strobe_attention *a = &p->a;
    const int64_t head_bytes = a->seq_k * (a->dim + a->dim_v) * (int64_t)strobe__dtype_bytes(a->k.dtype),
                  cache_bytes = (int64_t)(r.alike ? 18 : 32) << 20;
    const bool is_even = r.alike || r.visible <= 512 || r.dim > 64;
    const int64_t all = a->batch * a->heads_q, halves = !r.alike ? 4 : r.dim > 64 && r.row_tiles >= 8 ? 1 : 2;
    const int64_t cached = cache_bytes / head_bytes, even = halves * r.ctas / (2 * r.row_tiles * p->group);
    const int64_t enough = even > 4 ? even : 4, some = is_even && enough < cached ? enough : cached;
    const int64_t kv_heads = some > 0 ? some : 1, heads = kv_heads * p->group < all ? kv_heads * p->group : all;
    return r.alike ? heads : ceil_div(ceil_div(all, ceil_div(all, heads)), p->group) * p->group;
}

/* All tiles are alike, and where CTAs would wait for those that have one of the last round, each has enough blocks less to
 * do. */
bool strobe__sm90_relay_pays(const struct problem *p, struct sm90_rounds r) {
    const int64_t tiles = r.row_tiles * p->a.heads_q * p->a.batch, more = tiles % r.ctas;
    return r.alike && tiles >= r.ctas && more > 0 && (r.ctas - more) * ceil_div(p->a.seq_k, r.keys) >= LEAST_SAVED * r.ctas;
}

bool strobe__sm90_has_pairs(struct sm90_rounds r) { return r.alike && r.row_tiles % 2 == 0 && r.ctas % 2 == 0; }
