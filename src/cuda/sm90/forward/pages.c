/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pages.c: see pages_host.h. */
#include "cuda/sm90/forward/pages_host.h"

#include "cuda/host/launch.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/visible.h"

enum { LANES = 32, SLAB = 64, EIGHT = 8 };

/* K or V as the copy engine is given it: extents of its axes of eights and of heads, and the stride of heads. */
struct page_axes {
    struct page_map map;
    int64_t eights, heads, head_stride;
};

/* Pages follow each other along the axis of eights, or along that of heads. False where neither will do. */
static bool page_axes_of(const strobe_tensor *t, int64_t heads, const strobe_paged *paged, struct page_axes *to) {
    const int64_t page = t->stride[0], eight = EIGHT * t->stride[1], head = t->stride[2], most = (int64_t)1 << 30;
    *to = (struct page_axes){.eights = paged->page_size / EIGHT, .heads = heads, .head_stride = head};
    if (paged->pages > most) return false;
    if (paged->pages > 1 && page % eight == 0) {
        if (page / eight > most / paged->pages) return false;
        to->map.page_eights = (int32_t)(page / eight);
    } else if (paged->pages > 1) {
        if (heads == 1) to->head_stride = page;
        if (to->head_stride == 0 || page % to->head_stride != 0 || page / to->head_stride > most / paged->pages)
            return false;
        to->map.page_heads = (int32_t)(page / to->head_stride);
    }
    to->eights += (paged->pages - 1) * to->map.page_eights, to->heads += (paged->pages - 1) * to->map.page_heads;
    return to->eights < 2 * most;
}

static const char *reject_pages(const struct problem *p) {
    const strobe_attention *a = &p->a;
    struct page_axes axes;
    if (p->features & (VISIBLE_FEATURES | FEATURE(BIAS) | FEATURE(DROPOUT)))
        return "paged K and V are given with a mask, a bias or dropout; they are taken without";
    if (p->features & FEATURE(LEFTPAD_K))
        return "varlen.leftpad_k is given with paged K and V; it is taken with contiguous or packed ones";
    if (p->paged.page_size % EIGHT != 0) return "paged.page_size is no multiple of 8; multiples are taken";
    if (p->paged.page_size > 1 << 28) return "paged.page_size is above 2^28; up to that is taken";
    if (p->paged.pages == 0) return "paged.pages is 0; 1 or more are taken";
    if (!page_axes_of(&a->k, a->heads_kv, &p->paged, &axes) || !page_axes_of(&a->v, a->heads_kv, &p->paged, &axes))
        return "the stride of pages of k or v is no multiple of that of 8 slots or of heads; multiples below 2^30 of all "
               "pages are taken";
    return NULL;
}

const char *strobe__sm90_cache_reject(const struct problem *p) {
    if (p->a.paged) return reject_pages(p);
    if (p->features & FEATURE(LEFTPAD_K) && p->features & VISIBLE_FEATURES)
        return "varlen.leftpad_k is given with a mask; it is taken without";
    return NULL;
}

static int32_t common_divisor(int32_t x, int32_t y) {
    while (y != 0) {
        const int32_t rest = x % y;
        x = y, y = rest;
    }
    return x;
}

/* Whether columns are whole slabs: then one copy brings all of them. */
static bool has_slabs(int64_t columns) { return columns % SLAB == 0; }

void strobe__sm90_set_cache(struct sm90_forward_params *to, const struct problem *p, int64_t block_keys) {
    to->cache = strobe__cuda_cache(p);
    if (!p->a.paged) return;
    const int32_t size = to->cache.page_size, keys = (int32_t)block_keys;
    const bool whole = has_slabs(p->a.dim) && has_slabs(p->a.dim_v);
    to->piece_keys = whole ? common_divisor(size, keys) : EIGHT;
    to->block_pieces = keys / to->piece_keys;
    to->window_blocks = 1;
    while (2 * to->window_blocks * to->block_pieces <= LANES) to->window_blocks *= 2;
    to->by_page_size = divisor_of(size);
}

static bool encode(CUtensorMap *map, struct page_map *pages, const strobe_tensor *t, int64_t columns, int64_t slabs,
                   const struct problem *p, int32_t piece_keys) {
    struct page_axes axes;
    if (!page_axes_of(t, p->a.heads_kv, &p->paged, &axes)) return false;
    *pages = axes.map, pages->slabs = has_slabs(columns) ? (int32_t)slabs : 1;
    return strobe__encode_eights_map(map, t, columns, axes.eights, axes.heads, axes.head_stride, pages->slabs,
                                     piece_keys / EIGHT);
}

bool strobe__sm90_encode_pages(struct sm90_forward_params *to, const struct problem *p, int64_t columns) {
    const strobe_attention *a = &p->a;
    const int64_t slabs = (columns + SLAB - 1) / SLAB;
    return encode(&to->k, &to->k_pages, &a->k, a->dim, slabs, p, to->piece_keys) &&
           encode(&to->v, &to->v_pages, &a->v, a->dim_v, slabs, p, to->piece_keys);
}
