/* SPDX-License-Identifier: BSD-3-Clause
 *
 * file.c: the q, k, v of a safetensors file as heads of the lab, one [rows][dim] after another; see lab_command.h. */
#include "io/file.h"
#include "lab/lab_command.h"
#include "problem/element.h"
#include "run/attention_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An array [batch, seq, heads, dim] as [batch][heads of q][seq][dim]: a head of K or V is repeated for its group. */
static double *heads_of(const array *a, int64_t batch, int64_t seq, int64_t heads, int64_t heads_q, int64_t dim) {
    const size_t element = element_bytes(a->dtype);
    double *values = calloc((size_t)(batch * heads_q * seq * dim) + 1, sizeof *values);
    for (int64_t b = 0; values && b < batch; ++b)
        for (int64_t h = 0; h < heads_q; ++h)
            for (int64_t i = 0; i < seq; ++i)
                for (int64_t c = 0; c < dim; ++c) {
                    const int64_t from = ((b * seq + i) * heads + h / (heads_q / heads)) * dim + c;
                    values[((b * heads_q + h) * seq + i) * dim + c] = element_load(a->data + (size_t)from * element,
                                                                                   a->dtype);
                }
    return values;
}

static bool take_set(lab_file *file, const attention_set *set, char *message) {
    problem p = {0};
    if (!attention_set_problem(set, &p, false, message, LAB_REFUSAL)) return false;
    if (p.batch * p.heads_q * p.seq_q * p.seq_k == 0) {
        snprintf(message, LAB_REFUSAL, "%sq, k and v have no numbers", set->prefix);
        return false;
    }
    *file = (lab_file){.heads = p.batch * p.heads_q,
                       .m = p.seq_q,
                       .n = p.seq_k,
                       .d = p.dim,
                       .dv = p.dim_v,
                       .q = heads_of(set->q, p.batch, p.seq_q, p.heads_q, p.heads_q, p.dim),
                       .k = heads_of(set->k, p.batch, p.seq_k, p.heads_kv, p.heads_q, p.dim),
                       .v = heads_of(set->v, p.batch, p.seq_k, p.heads_kv, p.heads_q, p.dim_v)};
    if (file->q && file->k && file->v) return true;
    snprintf(message, LAB_REFUSAL, "this machine has no memory for %sq, k and v", set->prefix);
    lab_file_free(file);
    return false;
}

bool lab_file_read(lab_file *file, const char *path, const char *layer, char *message) {
    unsigned char *bytes = NULL;
    size_t size = 0, at = 0;
    safetensors tensors = {0};
    attention_set set;
    char prefix[64] = "", reason[LAB_REFUSAL - 128] = "";
    *file = (lab_file){0};
    if (layer) snprintf(prefix, sizeof prefix, "%s.", layer);
    bool ok = file_read(path, &bytes, &size, reason, sizeof reason) &&
              safetensors_parse(bytes, size, &tensors, reason, sizeof reason);
    if (!ok) {
        snprintf(message, LAB_REFUSAL, "%.100s: %s", path, reason);
    } else if (!attention_set_next(&tensors, layer ? prefix : NULL, &at, &set)) {
        snprintf(message, LAB_REFUSAL, "%.100s has no tensors named %sq, %sk and %sv", path, prefix, prefix, prefix);
        ok = false;
    }
    ok = ok && take_set(file, &set, message);
    safetensors_free(&tensors);
    free(bytes);
    return ok;
}

void lab_file_free(lab_file *file) {
    free(file->q);
    free(file->k);
    free(file->v);
    *file = (lab_file){0};
}
