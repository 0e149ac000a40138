/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accumulate.c: where gradients lie that are added behind a kernel; see accumulate.h. */
#include "core/accumulate.h"

#include <string.h>

#include "core/validate.h"

enum { GRADIENTS = 3, ALL_BITS = STROBE_ADD_TO_DQ | STROBE_ADD_TO_DK | STROBE_ADD_TO_DV };

/* A gradient as the call has it: dq, dk or dv by number, which is that of its bit. */
struct gradient {
    const char *name;
    strobe_tensor *tensor;
    bool of_rows;
    int64_t seq, heads, columns;
};

static struct gradient gradient_of(struct problem *p, int n) {
    const strobe_attention *a = &p->a;
    const struct gradient all[GRADIENTS] = {{"dq", &p->g.dq, true, a->seq_q, a->heads_q, a->dim},
                                            {"dk", &p->g.dk, false, a->seq_k, a->heads_kv, a->dim},
                                            {"dv", &p->g.dv, false, a->seq_k, a->heads_kv, a->dim_v}};
    return all[n];
}

static bool is_added(const struct problem *p, int n) { return p->operation == STROBE_BACKWARD && p->g.accumulate >> n & 1; }

strobe_status strobe__check_accumulate(const struct problem *p) {
    struct problem *of = (struct problem *)(uintptr_t)p; /* nothing is written */
    if (p->g.accumulate & ~ALL_BITS)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "gradients.accumulate is %d; bits 1 (dq), 2 (dk), 4 (dv) are accepted",
                            p->g.accumulate);
    if (p->g.reserved != 0)
        return strobe__fail(STROBE_INVALID_ARGUMENT, "gradients.reserved is %d; 0 is accepted", p->g.reserved);
    for (int n = 0; n < GRADIENTS; ++n) {
        const struct gradient g = gradient_of(of, n);
        if (!is_added(p, n)) continue;
        if (g.tensor->dtype != STROBE_FP32)
            return strobe__fail(STROBE_INVALID_ARGUMENT, "gradients.accumulate has %s, whose dtype is %s; fp32 is accepted",
                                g.name, strobe__dtype_name(g.tensor->dtype));
        const bool packed = p->a.varlen && (g.of_rows ? p->varlen.cu_seqlens_q : p->varlen.cu_seqlens_k);
        const bool none = p->a.batch == 0 || g.seq == 0 || (g.of_rows ? p->no_rows : p->no_keys);
        if (packed && !none && (g.of_rows ? p->varlen.total_q : p->varlen.total_k) <= 0)
            return strobe__fail(STROBE_INVALID_ARGUMENT,
                                "gradients.accumulate has %s, which is packed, and varlen.%s is 0; the rows of the packed "
                                "tensor are accepted",
                                g.name, g.of_rows ? "total_q" : "total_k");
    }
    return STROBE_OK;
}

/* Rows of all entries in a tensor of the workspace: of padded sequences as many for each. */
static int64_t rows_of(const struct problem *p, const struct gradient *g) {
    const strobe_varlen *v = p->a.varlen ? &p->varlen : NULL;
    if (v && (g->of_rows ? v->cu_seqlens_q : v->cu_seqlens_k)) return g->of_rows ? v->total_q : v->total_k;
    return strobe__product(p->a.batch, g->seq);
}

/* A row is whole pieces of 16 bytes, as kernels like it best. */
static int64_t stride_of_head(const struct gradient *g) { return (g->columns + 3) / 4 * 4; }

static size_t bytes_of(const struct problem *p, const struct gradient *g) {
    const int64_t most = INT64_MAX / 64,
                  floats = strobe__product(rows_of(p, g), strobe__product(g->heads, stride_of_head(g)));
    return ((size_t)(floats < most ? floats : most) * sizeof(float) + 63) / 64 * 64;
}

void strobe__accumulate_divert(struct problem *p) {
    for (int n = 0; n < GRADIENTS; ++n) {
        if (!is_added(p, n)) continue;
        const struct gradient g = gradient_of(p, n);
        const int64_t head = stride_of_head(&g), row = strobe__product(g.heads, head);
        p->added_to[n] = *g.tensor;
        *g.tensor = (strobe_tensor){.stride = {strobe__product(g.seq, row), row, head}, .dtype = STROBE_FP32};
    }
    if (p->operation == STROBE_BACKWARD && p->g.accumulate) strobe__problem_ask(p);
}

size_t strobe__accumulate_bytes(const struct problem *p) {
    size_t bytes = 0;
    for (int n = 0; n < GRADIENTS; ++n) {
        const struct gradient g = gradient_of((struct problem *)(uintptr_t)p, n);
        if (is_added(p, n)) bytes += bytes_of(p, &g);
    }
    return bytes;
}

void strobe__accumulate_place(struct problem *p, void *workspace) {
    char *at = workspace;
    for (int n = 0; n < GRADIENTS; ++n) {
        const struct gradient g = gradient_of(p, n);
        if (!is_added(p, n)) continue;
        const size_t bytes = bytes_of(p, &g);
        g.tensor->data = bytes ? at : NULL;
        at += bytes;
    }
}

int strobe__additions(const struct problem *p, struct addition all[GRADIENTS]) {
    int count = 0;
    for (int n = 0; n < GRADIENTS; ++n) {
        const struct gradient g = gradient_of((struct problem *)(uintptr_t)p, n);
        if (!is_added(p, n) || !g.tensor->data) continue;
        all[count++] = (struct addition){p->added_to[n], *g.tensor, g.of_rows, g.seq, g.heads, g.columns};
    }
    return count;
}
