# SPDX-License-Identifier: BSD-3-Clause
"""Lists of what masks hide: the same results with them, on the CPU and on a GPU, and sentences for lists of another call."""

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch

ON_GPU = torch.cuda.is_available() and any(k.device == "cuda" and not k.unavailable for k in strobe.kernels())
DEVICES = ["cpu", "cuda"] if ON_GPU else ["cpu"]


def problem(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(2, 300, 4, 64, generator=generator).to(device, dtype) for _ in range(4))
    at = torch.arange(300)
    mask = (at[:, None] // 100 == at[None, :] // 100)[None, None].to(device)
    return q, k, v, dout, mask


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_same_results(device, deterministic):
    q, k, v, dout, mask = problem(device)
    lists = strobe.mask_lists(q, k, v, mask=mask)
    assert lists.memory.device.type == device and (lists.memory.numel() > 0) == (device == "cuda")
    results = []
    for given in (None, lists):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = st.attention(*leaves, mask=mask, mask_lists=given, deterministic=deterministic)
        results.append([out, *torch.autograd.grad(out, leaves, dout)])
    same = torch.equal if deterministic or device == "cpu" else lambda x, y: torch.allclose(x, y, atol=2e-2, rtol=2e-2)
    assert torch.equal(results[0][0], results[1][0])
    assert all(same(x, y) for x, y in zip(*results, strict=True))
    assert "chosen" in strobe.explain(q, k, v, mask=mask, mask_lists=lists, backward=True)


def test_of_numpy_and_blocks():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 130, 4, 16), dtype=np.float32)
    blocks = np.array([[True, False, True], [True, True, False]])[None, None]
    given = {"block_mask": blocks, "block_size": (128, 64)}
    lists = strobe.mask_lists(q, k, v, **given, backward=False)
    assert np.array_equal(strobe.attention(q, k, v, **given), strobe.attention(q, k, v, **given, mask_lists=lists))
    with pytest.raises(
        ValueError, match=r"mask_lists.made is 1; lists that strobe_mask_lists_make has made for this operation"
    ):
        strobe.explain(q, k, v, **given, mask_lists=lists, backward=True)


def test_of_another_call():
    q, k, v, _, mask = problem("cpu")
    lists = strobe.mask_lists(q, k, v, mask=mask)
    with pytest.raises(ValueError, match=r"mask_lists.axes is 9; 0, that of this call's masks, is accepted"):
        strobe.attention(q, k, v, mask_lists=lists)
    with pytest.raises(ValueError, match=r"mask_lists.seq_q is 300; 200, that of this call's masks, is accepted"):
        strobe.attention(q[:, :200], k, v, mask=mask[:, :, :200], mask_lists=lists)
    with pytest.raises(TypeError, match=r"mask_lists is 3; what strobe.mask_lists returned"):
        strobe.attention(q, k, v, mask=mask, mask_lists=3)
    with pytest.raises(TypeError, match=r"what strobe.mask_lists returned for tensors of PyTorch"):
        st.attention(q, k, v, mask=mask, mask_lists=(lists.memory, lists.made_for))
    with pytest.raises(ValueError, match="bool_mask and block_mask are NULL; a descriptor with one of them is accepted"):
        strobe.mask_lists(q, k, v)
