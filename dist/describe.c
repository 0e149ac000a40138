/* SPDX-License-Identifier: BSD-3-Clause
 *
 * describe.c: see describe.h. Whole sequences keep the caller's mask and starts. For parts of a sequence both follow from
 * the positions: the band is moved by q_start and k_start, and where everything in it is visible there is no mask at all. */
#include "describe.h"

static void describe_packed(const struct call *c, struct described *d) {
    int64_t longest_q = 0, longest_k = 0;
    for (int64_t n = 0; n < c->documents; ++n) {
        if (c->cu_q[n + 1] - c->cu_q[n] > longest_q) longest_q = c->cu_q[n + 1] - c->cu_q[n];
        if (c->cu_k[n + 1] - c->cu_k[n] > longest_k) longest_k = c->cu_k[n + 1] - c->cu_k[n];
    }
    d->varlen = (strobe_varlen){.struct_size = sizeof d->varlen, .index_bits = 64};
    d->varlen.cu_seqlens_q = c->device_cu ? c->device_cu : c->cu_q;
    d->varlen.cu_seqlens_k = c->device_cu ? c->device_cu + c->documents + 1 : c->cu_k;
    d->varlen.total_q = c->rows, d->varlen.total_k = c->keys;
    d->a.varlen = &d->varlen;
    d->a.batch = c->documents, d->a.seq_q = longest_q, d->a.seq_k = longest_k;
}

/* Row i and key j see each other where lowest <= j - i <= highest. */
static void set_band(const struct call *c, strobe_attention *a) {
    const bool low = c->lowest > 1 - c->rows, high = c->highest < c->keys - 1; /* otherwise no pair is beyond */
    a->mask = low ? STROBE_MASK_WINDOW_TOP_LEFT : high ? STROBE_MASK_CAUSAL_TOP_LEFT : STROBE_MASK_NONE;
    a->q_start = high ? c->highest : low ? c->lowest : 0, a->k_start = 0;
    a->window_left = low && high ? c->highest - c->lowest : 0, a->window_right = high ? 0 : -1;
}

/* The same with ALiBi, which counts from the bottom-right diagonal, and where the band does too. */
static void set_band_and_slopes(const struct shard *s, const struct call *c, strobe_attention *a) {
    const struct whole *w = s->w;
    const int64_t d = c->document, rows = w->cu_q ? w->cu_q[d + 1] - w->cu_q[d] : w->total_q;
    const int64_t keys = w->cu_k ? w->cu_k[d + 1] - w->cu_k[d] : w->total_k;
    const int64_t diagonal = c->q_first + w->a.q_start + keys - rows - c->k_first - w->a.k_start;
    a->q_start = diagonal - (c->keys - c->rows), a->k_start = 0;
    if (a->mask == STROBE_MASK_CAUSAL_TOP_LEFT) a->mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    if (a->mask == STROBE_MASK_WINDOW_TOP_LEFT) a->mask = STROBE_MASK_WINDOW_BOTTOM_RIGHT;
}

static void describe_part(const struct shard *s, const struct call *c, struct described *d) {
    d->a.varlen = NULL;
    d->a.batch = s->w->entries, d->a.seq_q = c->rows, d->a.seq_k = c->keys;
    if (d->a.alibi)
        set_band_and_slopes(s, c, &d->a);
    else
        set_band(c, &d->a);
}

static void describe_features(const struct shard *s, const struct call *c, struct described *d) {
    const struct whole *w = s->w;
    if (d->a.alibi) {
        d->alibi = *s->a.alibi, d->a.alibi = &d->alibi;
        d->alibi.slopes += c->document * d->alibi.stride_batch;
    }
    if (d->a.dropout) {
        d->dropout = *s->a.dropout, d->a.dropout = &d->dropout;
        d->dropout.batch_start += c->document;
        d->dropout.row_start += c->q_first, d->dropout.key_start += c->k_first;
    }
    const int64_t score = c->k_first, row = c->q_row; /* of a bias or mask, whose rows are the rank's own */
    if (d->a.bias) {
        d->bias = w->bias, d->a.bias = &d->bias;
        const int64_t bytes = d->bias.dtype == STROBE_FP64 ? 8 : (int64_t)strobe__dist_bytes(d->bias.dtype);
        if (d->bias.data) d->bias.data = (char *)d->bias.data + (row * d->bias.stride[2] + score) * bytes;
    }
    if (w->g.dbias) {
        d->dbias = w->dbias;
        const int64_t bytes = d->dbias.dtype == STROBE_FP64 ? 8 : (int64_t)strobe__dist_bytes(d->dbias.dtype);
        if (d->dbias.data) d->dbias.data = (char *)d->dbias.data + (row * d->dbias.stride[2] + score) * bytes;
    }
    if (d->a.bool_mask) {
        d->bool_mask = w->bool_mask, d->a.bool_mask = &d->bool_mask;
        if (d->bool_mask.data) d->bool_mask.data += row * d->bool_mask.stride[2] + score;
    }
}

void strobe__dist_describe(const struct shard *s, const struct call *c, const struct block *block, struct described *d) {
    *d = (struct described){.a = s->a};
    d->a.sinks = NULL; /* joins once, when all parts have been merged */
    d->a.q = strobe__tensor_from(s->a.q, c->q_row, 0);
    d->a.out = strobe__tensor_from(s->a.out, c->q_row, 0);
    d->a.lse = strobe__tensor_from(s->a.lse, c->q_row, 0);
    d->a.k = strobe__tensor_from(block->k, c->k_row, 0);
    d->a.v = strobe__tensor_from(block->v, c->k_row, 0);
    if (c->cu_q)
        describe_packed(c, d);
    else if (c->whole)
        d->a.varlen = NULL;
    else
        describe_part(s, c, d);
    describe_features(s, c, d);
}

static void take_scores(strobe_bias *b, int64_t head) {
    const int64_t bytes = b->dtype == STROBE_FP64 ? 8 : (int64_t)strobe__dist_bytes(b->dtype);
    if (b->data) b->data = (char *)b->data + head * b->stride[1] * bytes;
}

void strobe__dist_take_heads(struct described *d, int64_t first, int64_t count) {
    if (count == d->a.heads_kv) return;
    const int64_t group = d->a.heads_q / d->a.heads_kv, head = first * group;
    d->a.heads_kv = count, d->a.heads_q = count * group;
    d->a.q = strobe__tensor_from(d->a.q, 0, head), d->a.out = strobe__tensor_from(d->a.out, 0, head);
    d->a.lse = strobe__tensor_from(d->a.lse, 0, head);
    d->a.k = strobe__tensor_from(d->a.k, 0, first), d->a.v = strobe__tensor_from(d->a.v, 0, first);
    if (d->a.alibi) d->alibi.slopes += head;
    if (d->a.dropout) d->dropout.head_start += head;
    if (d->a.bool_mask && d->bool_mask.data) d->bool_mask.data += head * d->bool_mask.stride[1];
    take_scores(&d->bias, head), take_scores(&d->dbias, head);
}
