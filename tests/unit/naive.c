/* SPDX-License-Identifier: BSD-3-Clause
 *
 * naive.c: see naive.h. */
#include "naive.h"

#include <math.h>

/* Shared with the library, and tested by itself against known answers. */
#include "math/philox.h"

static int64_t index_at(const struct fixture *f, const void *indices, int64_t n) {
    return f->varlen.index_bits == 64 ? ((const int64_t *)indices)[n] : ((const int32_t *)indices)[n];
}

struct piece piece_of(const struct fixture *f, int64_t b) {
    const strobe_varlen *v = &f->varlen;
    struct piece s = {.b = b, .rows = f->a.seq_q, .keys = f->a.seq_k, .entry_q = b, .entry_k = b};
    if (v->cu_seqlens_q) {
        s.entry_q = 0;
        s.first_q = index_at(f, v->cu_seqlens_q, b);
        s.rows = index_at(f, v->cu_seqlens_q, b + 1) - s.first_q;
    }
    if (v->cu_seqlens_k) {
        s.entry_k = 0;
        s.first_k = index_at(f, v->cu_seqlens_k, b);
        s.keys = index_at(f, v->cu_seqlens_k, b + 1) - s.first_k;
    }
    if (v->used_q) s.rows = index_at(f, v->used_q, b);
    if (v->used_k) s.keys = index_at(f, v->used_k, b);
    return s;
}

static double bias_at(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j) {
    const struct slot *bias = &f->slot[BIAS_TERM];
    return slot_get(bias, slot_element(bias, bias->extent[0] > 1 ? s->b : 0, bias->extent[1] > 1 ? h : 0,
                                       bias->extent[2] > 1 ? i : 0, j));
}

bool naive_sees(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j) {
    const strobe_attention *a = &f->a;
    const int64_t ahead_top = a->k_start + j - (a->q_start + i), ahead_bottom = ahead_top - (s->keys - s->rows);
    const bool left_open = a->window_left < 0, right_open = a->window_right < 0;
    switch (a->mask) {
    case STROBE_MASK_CAUSAL_TOP_LEFT:
        if (ahead_top > 0) return false;
        break;
    case STROBE_MASK_CAUSAL_BOTTOM_RIGHT:
        if (ahead_bottom > 0) return false;
        break;
    case STROBE_MASK_WINDOW_TOP_LEFT:
        if ((!left_open && -ahead_top > a->window_left) || (!right_open && ahead_top > a->window_right)) return false;
        break;
    case STROBE_MASK_WINDOW_BOTTOM_RIGHT:
        if ((!left_open && -ahead_bottom > a->window_left) || (!right_open && ahead_bottom > a->window_right)) return false;
        break;
    default: break;
    }
    const strobe_bool_mask *m = a->bool_mask;
    if (m && m->data[s->b * m->stride[0] + h * m->stride[1] + i * m->stride[2] + j] == 0) return false;
    const strobe_block_mask *blocks = a->block_mask;
    if (blocks && blocks->data[s->b * blocks->stride[0] + h * blocks->stride[1] + i / blocks->block_q * blocks->stride[2] +
                               j / blocks->block_k] == 0)
        return false;
    return !a->bias || !isinf(bias_at(f, s, h, i, j));
}

double naive_score(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j) {
    const strobe_attention *a = &f->a;
    const int64_t kv = h / (a->heads_q / a->heads_kv);
    double score = 0;
    for (int64_t x = a->dim - 1; x >= 0; --x)
        score += slot_get(&f->slot[Q], slot_element(&f->slot[Q], s->entry_q, s->first_q + i, h, x)) *
                 slot_get(&f->slot[K], slot_element(&f->slot[K], s->entry_k, s->first_k + j, kv, x));
    score *= a->scale != 0 ? a->scale : 1 / sqrt((double)a->dim);
    if (a->softcap > 0) score = a->softcap * tanh(score / a->softcap);
    if (a->bias) score += bias_at(f, s, h, i, j);
    if (a->alibi) {
        const int64_t distance = a->q_start + i + (s->keys - s->rows) - (a->k_start + j);
        score -= (double)a->alibi->slopes[s->b * a->alibi->stride_batch + h] * fabs((double)distance);
    }
    return score;
}

double naive_dropout(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, int64_t j) {
    const strobe_dropout *d = f->a.dropout;
    if (!d) return 1;
    const int64_t head = (d->batch_start + s->b) * d->heads + d->head_start + h, row = head * d->rows + d->row_start + i;
    const uint64_t position = (uint64_t)(row * ((d->keys + 3) / 4) + (d->key_start + j) / 4);
    const struct philox_words words = philox4x32_10(d->seed, d->offset, position);
    return words.word[(d->key_start + j) % 4] >= d->p * 0x1p32 ? 1 / (1 - d->p) : 0;
}

double naive_row(const struct fixture *f, const struct piece *s, int64_t h, int64_t i, double *out, double *lse,
                 double *scores) {
    const strobe_attention *a = &f->a;
    const int64_t kv = h / (a->heads_q / a->heads_kv);
    double sum = a->sinks ? exp(slot_get(&f->slot[SINK_LOGITS], h)) : 0, largest = 0;
    for (int64_t x = 0; x < a->dim_v; ++x) out[x] = 0;
    for (int64_t j = 0; j < s->keys; ++j) {
        scores[j] = naive_sees(f, s, h, i, j) ? naive_score(f, s, h, i, j) : -(double)INFINITY;
        if (isinf(scores[j])) continue;
        sum += exp(scores[j]);
        largest = fmax(largest, fabs(scores[j]));
    }
    for (int64_t j = 0; j < s->keys; ++j) {
        if (isinf(scores[j])) continue;
        const double weight = exp(scores[j]) / sum * naive_dropout(f, s, h, i, j);
        for (int64_t x = 0; x < a->dim_v; ++x)
            out[x] += weight * slot_get(&f->slot[V], slot_element(&f->slot[V], s->entry_k, s->first_k + j, kv, x));
    }
    *lse = log(sum);
    return largest;
}
