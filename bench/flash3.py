# SPDX-License-Identifier: BSD-3-Clause
"""flash3.py: FlashAttention-3 for ctypes, from a shared library that the measurer builds; nothing of it is in this tree.

The library has four functions around FlashAttention-3's run_mha_fwd_ and run_mha_bwd_, with parameters as its flash_api.cpp fills them
for a default call. Tensors are bf16, [batch, seq, heads, dim], dense; lse is float, [batch, heads, seq]; the work is sent to the
stream. They return 0, or another number where the call is not offered:

    const char *fa3_version(void);
    size_t fa3_workspace(int batch, int seq, int heads, int dim, int causal, int backward);
    int fa3_forward(q, k, v, out, lse, int batch, int seq, int heads, int dim, int causal, void *workspace, cudaStream_t stream);
    int fa3_backward(dout, q, k, v, out, lse, dq, dk, dv, int batch, int seq, int heads, int dim, int causal, int deterministic,
                     void *workspace, cudaStream_t stream);

A backward takes out and lse of the forward. fa3_workspace's bytes are aligned to 256."""
from ctypes import CDLL, c_char_p, c_int, c_size_t, c_void_p

import torch


class Flash3:
    def __init__(self, path):
        self.lib = CDLL(path)
        self.lib.fa3_version.restype = c_char_p
        self.lib.fa3_workspace.restype = c_size_t
        self.lib.fa3_workspace.argtypes = [c_int] * 6
        self.lib.fa3_forward.argtypes = [c_void_p] * 5 + [c_int] * 5 + [c_void_p] * 2
        self.lib.fa3_backward.argtypes = [c_void_p] * 9 + [c_int] * 6 + [c_void_p] * 2
        self.version = self.lib.fa3_version().decode()

    def problem(self, q, k, v, causal, dout=None):
        return Flash3Call(self.lib, q, k, v, causal, dout)


class Flash3Call:
    """One problem. Tensors are [batch, heads, seq, dim] views of [batch, seq, heads, dim] in memory, as elsewhere in bench/."""

    def __init__(self, lib, q, k, v, causal, dout=None):
        given = [x for x in (q, k, v, dout) if x is not None]
        assert all(x.shape == q.shape and x.dtype == torch.bfloat16 and x.transpose(1, 2).is_contiguous() for x in given)
        self.lib, self.inputs, self.dout = lib, (q, k, v), dout
        batch, heads, seq, dim = q.shape
        self.sizes = (batch, seq, heads, dim, int(causal))
        self.out, self.lse = torch.empty_like(q), torch.empty(batch, heads, seq, device=q.device)
        self.gradients = [torch.empty_like(x) for x in (q, k, v)] if dout is not None else []
        need = max(lib.fa3_workspace(*self.sizes, back) for back in ((0, 1) if dout is not None else (0,)))
        self.work = torch.empty(need, dtype=torch.uint8, device=q.device)
        self.forward()

    def forward(self):
        self.send(self.lib.fa3_forward, [*self.inputs, self.out, self.lse], [])

    def backward(self, deterministic=False):
        self.send(self.lib.fa3_backward, [self.dout, *self.inputs, self.out, self.lse, *self.gradients], [int(deterministic)])

    def send(self, function, tensors, options):
        if function(*(x.data_ptr() for x in tensors), *self.sizes, *options, self.work.data_ptr(),
                    torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("FlashAttention-3 has no such call")
