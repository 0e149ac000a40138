/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c: the table of the GPU's kernels, and GPUs as devices. */
#include "cuda/host/device.h"
#include "cuda/host/launch.h"
#include "cuda/host/merge.h"
#include "cuda/sm80/backward_host.h"
#include "cuda/sm80/forward_host.h"
#include "cuda/sm90/backward/host.h"
#include "cuda/sm90/forward/host.h"

static const char *reject_forward(const struct problem *p) {
    const char *reason = strobe__cuda_refuses(p);
    return reason ? reason : strobe__cuda_forward_lacks(p);
}

static const char *reject_forward_sm80(const struct problem *p) {
    if (p->a.q.dtype == STROBE_FP32) return "q is fp32; fp16 and bf16 are taken";
    return reject_forward(p);
}

static const char *reject_forward_fp32(const struct problem *p) {
    if (p->a.q.dtype == STROBE_FP16 || p->a.q.dtype == STROBE_BF16) return "q has 16 bits; fp32 is taken";
    return reject_forward(p);
}

static const char *reject_backward(const struct problem *p) {
    const char *reason = strobe__cuda_refuses(p);
    return reason ? reason : strobe__cuda_backward_lacks(p);
}

static const char *reject_backward_sm80(const struct problem *p) {
    if (p->a.q.dtype == STROBE_FP32) return "q is fp32; fp16 and bf16 are taken";
    return reject_backward(p);
}

static const char *reject_backward_fp32(const struct problem *p) {
    if (p->a.q.dtype == STROBE_FP16 || p->a.q.dtype == STROBE_BF16) return "q has 16 bits; fp32 is taken";
    return reject_backward(p);
}

static const struct kernel kernels[] = {
    {.name = "cuda_forward_sm90",
     .summary = "FlashAttention-3 forward, wgmma and tensor copies, fp16 and bf16, Hopper",
     .operation = STROBE_FORWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = strobe__sm90_forward_reject,
     .workspace = strobe__sm90_forward_workspace,
     .run = strobe__sm90_forward},
    {.name = "cuda_forward_sm80",
     .summary = "FlashAttention-2 forward, mma.sync, fp16 and bf16, any GPU from sm_80",
     .operation = STROBE_FORWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = reject_forward_sm80,
     .workspace = strobe__cuda_forward_workspace,
     .run = strobe__cuda_forward},
    {.name = "cuda_forward_fp32",
     .summary = "FlashAttention-2 forward, true fp32, any GPU from sm_80",
     .operation = STROBE_FORWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = reject_forward_fp32,
     .workspace = strobe__cuda_forward_workspace,
     .run = strobe__cuda_forward},
    {.name = "cuda_backward_sm90",
     .summary = "FlashAttention-3 backward, wgmma and tensor copies, fp16 and bf16, Hopper",
     .operation = STROBE_BACKWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = strobe__sm90_backward_reject,
     .workspace = strobe__sm90_backward_workspace,
     .run = strobe__sm90_backward},
    {.name = "cuda_backward_sm80",
     .summary = "FlashAttention-2 backward, mma.sync, fp16 and bf16, any GPU from sm_80",
     .operation = STROBE_BACKWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = reject_backward_sm80,
     .workspace = strobe__cuda_backward_workspace,
     .run = strobe__cuda_backward},
    {.name = "cuda_backward_fp32",
     .summary = "FlashAttention-2 backward, true fp32, any GPU from sm_80",
     .operation = STROBE_BACKWARD,
     .device = STROBE_CUDA,
     .unavailable = strobe__cuda_lacks,
     .reject = reject_backward_fp32,
     .workspace = strobe__cuda_backward_workspace,
     .run = strobe__cuda_backward},
};

const struct backend strobe__cuda_backend = {
    .kernels = kernels,
    .count = sizeof kernels / sizeof kernels[0],
    .device = STROBE_CUDA,
    .describe = strobe__cuda_describe,
    .merge = strobe__cuda_merge,
};
