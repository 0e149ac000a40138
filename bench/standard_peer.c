/* SPDX-License-Identifier: BSD-3-Clause
 *
 * standard_peer.c: standard attention on OpenBLAS (standard_head.h) as a function, for bench/cpu_peers.py, which compiles
 * this file where there is an OpenBLAS, and loads it. One thread. */
#include <cblas.h>

#include "standard_head.h"

void standard_forward(const float *q, const float *k, const float *v, float *out, float *scores, int heads, int rows,
                      int keys, int dim, int causal);

/* q, out [heads][rows][dim], k, v [heads][keys][dim], scores [rows][keys]. */
void standard_forward(const float *q, const float *k, const float *v, float *out, float *scores, int heads, int rows,
                      int keys, int dim, int causal) {
    openblas_set_num_threads(1);
    for (long h = 0; h < heads; ++h)
        standard_head(q + h * rows * dim, k + h * keys * dim, v + h * keys * dim, out + h * rows * dim, scores, rows, keys,
                      dim, dim, causal);
}
