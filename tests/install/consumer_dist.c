/* SPDX-License-Identifier: BSD-3-Clause
 *
 * consumer_dist.c: a program of somebody else's that links libstrobe_dist: one rank, which needs no transport's functions.
 */
#include <stdio.h>
#include <strobe/strobe_dist.h>

int main(void) {
    float q[6 * 16], out[6 * 16];
    for (int n = 0; n < 6 * 16; ++n) q[n] = 2;
    strobe_attention a = {sizeof a};
    a.batch = 1, a.seq_q = 6, a.seq_k = 6, a.heads_q = 1, a.dim = 16;
    a.q.data = q, a.k.data = q, a.v.data = q, a.out.data = out;
    strobe_transport alone = {sizeof alone};
    alone.size = 1;
    strobe_dist d = {sizeof d};
    d.attention = &a, d.transport = &alone;
    d.rows_q = d.rows_k = strobe_dist_rows(STROBE_DIST_CONTIGUOUS, 6, 1, 0);
    if (strobe_dist_forward(&d, NULL, 0, NULL) != STROBE_OK) {
        puts(strobe_dist_last_error());
        return 1;
    }
    for (int n = 0; n < 6 * 16; ++n) /* every value is 2, and so is every average of values */
        if (out[n] < 1.999f || out[n] > 2.001f) return 1;
    return 0;
}
