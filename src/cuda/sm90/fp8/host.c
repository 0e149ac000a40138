/* SPDX-License-Identifier: BSD-3-Clause
 *
 * host.c: what FP8 refuses beside what the forward does, whose host.c launches it too. */
#include "cuda/sm90/forward/host.h"

const char *strobe__sm90_fp8_reject(const struct problem *p) {
    const strobe_scales *s = &p->scales;
    if (p->a.k.dtype != p->a.q.dtype || p->a.v.dtype != STROBE_FP8_E4M3)
        return "q and k differ in dtype, or v is no e4m3; q and k both in e4m3 or both in int8, and v in e4m3, are taken";
    if (s->block_k % SCALED_KEYS != 0)
        return "scales.block_k is no multiple of 128; multiples and 0, the whole sequence, are taken";
    if (s->block_k != 0 && p->varlen.cu_seqlens_k)
        return "scales.block_k is not 0 with packed k and v; 0, the whole sequence, is taken";
    if (s->block_q > MOST_POSITIONS || s->block_k > MOST_POSITIONS)
        return "scales.block_q or block_k is above 2^28; up to that is taken";
    return strobe__sm90_forward_reject(p);
}
