# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of every framework come in without a copy, whatever their strides, and results are of the same framework."""

import contextlib
import ctypes
import types

import numpy as np
import pytest
import strobe
import torch

NUMPY = np.random.default_rng(0).standard_normal((3, 2, 9, 4, 16), dtype=np.float32)


class Capsules:
    """A framework with nothing but __dlpack__, such as PyTorch before the exchange API; versioned capsules or older ones."""

    def __init__(self, tensor, versioned):
        self.tensor, self.versioned = tensor, versioned

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        def from_dlpack(exporter):
            class Plain:  # what an older consumer asks for
                __dlpack__ = staticmethod(lambda **_: exporter.__dlpack__())
                __dlpack_device__ = exporter.__dlpack_device__

            return Capsules(torch.from_dlpack(exporter if self.versioned else Plain), self.versioned)

        return types.SimpleNamespace(from_dlpack=from_dlpack)


def to_jax(x):
    return pytest.importorskip("jax").numpy.asarray(x)


MAKERS = {
    "numpy": lambda x: x,
    "torch": torch.from_numpy,
    "parameter": lambda x: torch.nn.Parameter(torch.from_numpy(x), requires_grad=False),
    "jax": to_jax,
    "versioned": lambda x: Capsules(torch.from_numpy(x), True),
    "unversioned": lambda x: Capsules(torch.from_numpy(x), False),
    "memoryview": memoryview,
}


def as_numpy(x):
    return np.asarray(x.tensor if isinstance(x, Capsules) else x)


@pytest.mark.parametrize("framework", MAKERS)
def test_every_framework(framework):
    q, k, v = NUMPY
    out, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
    tensors = [MAKERS[framework](x) for x in NUMPY]
    theirs = strobe.attention(*tensors, causal=True, return_lse=True)
    kinds = {"memoryview": np.ndarray, "parameter": torch.Tensor}
    assert type(theirs[0]) is kinds.get(framework, type(tensors[0])) or framework == "jax"
    if framework == "jax":
        assert isinstance(theirs[0], pytest.importorskip("jax").Array)
    assert np.array_equal(as_numpy(theirs[0]), out) and np.array_equal(as_numpy(theirs[1]), lse)
    gradients = strobe.attention_backward(theirs[0], *tensors, *theirs, causal=True)
    ours = strobe.attention_backward(out, q, k, v, out, lse, causal=True)
    assert all(np.array_equal(as_numpy(x), y) for x, y in zip(gradients[:3], ours[:3], strict=True))
    merged, _ = strobe.merge([theirs[0]], [theirs[1]])
    assert type(merged) is type(theirs[0]) and np.array_equal(as_numpy(merged), out)


def test_frameworks_mix():
    q, k, v = NUMPY
    out = strobe.attention(torch.from_numpy(q), k, to_jax(v), mask=np.ones((9, 9), bool))
    assert isinstance(out, torch.Tensor) and np.array_equal(out.numpy(), strobe.attention(q, k, v))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_dtypes_come_back(framework, name):
    context = contextlib.nullcontext()
    if framework == "torch":
        x = torch.from_numpy(NUMPY).to(getattr(torch, name))
    elif framework == "jax":
        context = pytest.importorskip("jax").enable_x64(True)
    elif name == "bfloat16":
        x = NUMPY.astype(pytest.importorskip("ml_dtypes").bfloat16)
    else:
        x = NUMPY.astype(name)
    with context:
        if framework == "jax":
            x = to_jax(NUMPY).astype(name)
        out, lse = strobe.attention(x[0], x[1], x[2], return_lse=True)
    assert out.dtype == x.dtype
    assert str(lse.dtype).endswith("float64" if str(x.dtype).endswith("float64") else "float32")
    truth = strobe.attention(*NUMPY.astype(np.float64))
    assert np.abs(np.asarray(out.double() if framework == "torch" else out, np.float64) - truth).max() < 0.05


VIEWS = {
    "transposed": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
    "packed": lambda x: np.stack([x, x + 1], 2)[:, :, 0],
    "every other row": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "padded dim": lambda x: np.concatenate([x, x], -1)[..., :16],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned axis of one": lambda x: np.lib.stride_tricks.as_strided(x, x.shape, x.strides),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view):
    q, k, v = (VIEWS[view](x) for x in NUMPY)
    assert np.array_equal(strobe.attention(q, k, v), strobe.attention(*NUMPY))
    if view not in ("backwards", "read-only"):
        out = strobe.attention(*(torch.from_numpy(x) for x in (q, k, v)))
        assert np.array_equal(out.numpy(), strobe.attention(*NUMPY))


def test_results_are_written_through_views():
    q, k, v = NUMPY
    holder = np.full((2, 4, 9, 32), 7, np.float32)
    out = holder.transpose(0, 2, 1, 3)[..., :16]
    assert strobe.attention(q, k, v, out=out) is out
    assert np.array_equal(out, strobe.attention(q, k, v)) and (holder[..., 16:] == 7).all()
    _, lse = strobe.attention(q, k, v, return_lse=True)
    packed = np.full((2, 9, 3, 4, 16), 7, np.float32)
    dq, dk, dv = packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
    written = strobe.attention_backward(out, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)
    own = strobe.attention_backward(out, q, k, v, out, lse)
    assert written.dq is dq and all(np.array_equal(x, y) for x, y in zip(written[:3], own[:3], strict=True))


def test_strides_that_are_no_multiple_of_the_element():
    """A field of records lies 5 bytes apart; where there is one entry, or none, the stride is never taken."""
    records = np.zeros((2, 9, 4, 16), [("x", np.float32), ("tag", np.int8)])
    field = records["x"]
    assert field.strides == (2880, 320, 80, 5)
    with pytest.raises(ValueError, match=r"k.strides\[3\] is 5 bytes; a multiple of the element's 4 is accepted"):
        strobe.attention(NUMPY[0], field, NUMPY[2])
    padded = np.zeros((3, 2 * 9 * 4 * 16 * 4 + 2), np.uint8)
    odd = np.ndarray((2, 9, 4, 16), np.float32, padded, 0, (9 * 4 * 16 * 4 + 2, 4 * 16 * 4, 16 * 4, 4))
    with pytest.raises(ValueError, match=r"v.strides\[0\] is 2306 bytes; a multiple of the element's 4 is accepted"):
        strobe.attention(NUMPY[0], NUMPY[1], odd)
    with pytest.raises(ValueError, match=r"out.strides\[0\] is 2306 bytes; a multiple of the element's 4 is accepted"):
        strobe.attention(*NUMPY, out=odd)
    one = np.ndarray((1, 9, 4, 16), np.float32, padded, 0, odd.strides)
    one[:] = NUMPY[2, :1]
    assert np.array_equal(strobe.attention(NUMPY[0, :1], NUMPY[1, :1], one), strobe.attention(*NUMPY[:, :1]))
    none = np.ndarray((0, 9, 4, 16), np.float32, padded, 0, odd.strides)
    assert strobe.attention(NUMPY[0, :0], NUMPY[1, :0], none).shape == (0, 9, 4, 16)
    misaligned = np.ndarray((2, 9, 4, 16), np.float32, np.zeros(2 * 9 * 4 * 16 * 4 + 2, np.uint8), 2)
    with pytest.raises(ValueError, match=r"q is 0x.*; a multiple of its element's 4 bytes is accepted"):
        strobe.attention(misaligned, NUMPY[1], NUMPY[2])


def own_memory(x):
    """Whether PyTorch's allocator made it: only such a tensor can be resized, and only such a one can a CUDA graph hold."""
    return x.untyped_storage().resizable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_are_of_pytorchs_allocator(dtype):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in NUMPY)
    assert own_memory(q.clone()) and not own_memory(torch.from_dlpack(q.clone()))
    bias, sinks = torch.zeros(9, 9, dtype=dtype), torch.zeros(4)
    out, lse = strobe.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
    gradients = strobe.attention_backward(out, q, k, v, out, lse, bias=bias, sinks=sinks, bias_gradient=True)
    merged = strobe.merge([out.float()], [lse.float()])
    for x in (out, lse, *gradients, *merged):
        assert own_memory(x) and x.is_contiguous() and not x.requires_grad and x.layout == torch.strided
    assert out.dtype == dtype and all(g.dtype == x.dtype for g, x in zip(gradients, (q, k, v, bias, sinks), strict=True))
    with torch.inference_mode():
        assert strobe.attention(q, k, v).is_inference()
    with torch.device("meta"):  # a default device is for those who name none
        assert strobe.attention(q, k, v).device == q.device


def test_a_subclass_gives_its_like():
    class Named(torch.Tensor):
        pass

    q, k, v = (torch.from_numpy(x).as_subclass(Named) for x in NUMPY)
    out, lse = strobe.attention(q, k, v, return_lse=True)
    assert type(out) is type(lse) is Named and np.array_equal(out.numpy(), strobe.attention(*NUMPY))


def test_broadcast_tensors():
    q, k, _ = NUMPY
    row = torch.from_numpy(k[:1, :1]).expand(2, 9, 4, 16)  # stride 0 along batch and rows, a stride along heads
    assert torch.equal(
        strobe.attention(torch.from_numpy(q), row, row), strobe.attention(torch.from_numpy(q), *[row.clone()] * 2)
    )
    same = torch.zeros(16).expand(2, 9, 4, 16)  # every stride 0: the descriptor reads that as contiguous
    with pytest.raises(ValueError, match="k repeats one row along every axis"):
        strobe.attention(torch.from_numpy(q), same, same)
    one = torch.as_strided(torch.from_numpy(q[:1, :1, :1]).clone(), (1, 1, 1, 16), (0, 0, 0, 1))
    assert torch.allclose(strobe.attention(one, one, one), one)


def test_no_copy():
    """Bytes that are far more than memory: a view that repeats one row, which a copy could not hold."""
    row = torch.randn(1, 1, 1, 8)
    huge = row.expand(1, 2**30, 1, 8)
    assert torch.allclose(strobe.attention(row, huge, huge, used_k=torch.tensor([3])), row)


class ExchangeHeader(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("calls", ctypes.c_void_p * 5),
    ]


def exchange_capsule(table):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


def exchange_table():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    return ExchangeHeader.from_address(address)


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch without the exchange API")
class TestExchangeApi:
    """PyTorch's own table, changed in what a framework may do differently."""

    def subclass(self, **changes):
        theirs = exchange_table()
        table = ExchangeHeader(theirs.major, theirs.minor, theirs.previous)
        table.calls[:] = theirs.calls[:]
        for name, value in changes.items():
            setattr(table, name, value)

        class Tensor(torch.Tensor):
            keep = table
            __dlpack_c_exchange_api__ = exchange_capsule(table)

        return Tensor, table

    def check(self, kind):
        tensors = [torch.from_numpy(x).as_subclass(kind) for x in NUMPY]
        assert np.array_equal(np.asarray(strobe.attention(*tensors)), strobe.attention(*NUMPY))

    def test_without_borrowing(self):
        kind, table = self.subclass()
        table.calls[3] = None
        self.check(kind)

    def test_a_newer_major_version_leads_to_this_one(self):
        old = ctypes.addressof(exchange_table())
        kind, _ = self.subclass(major=9, previous=old)
        self.check(kind)

    def test_a_newer_major_version_alone_is_passed_over(self):
        kind, _ = self.subclass(major=9)
        self.check(kind)  # by __dlpack__

    def test_a_device_without_kernels_is_refused_by_the_library(self):
        borrow_type = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        stream_type = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
        theirs = borrow_type(exchange_table().calls[3])

        def borrow(tensor, out):
            status = theirs(tensor, out)
            ctypes.c_int32.from_address(out + 8).value = 2  # CUDA
            ctypes.c_int32.from_address(out + 12).value = 1
            return status

        kind, table = self.subclass()
        self.keep = borrow_type(borrow), stream_type(lambda *_: 0)
        table.calls[3] = ctypes.cast(self.keep[0], ctypes.c_void_p).value
        table.calls[4] = ctypes.cast(self.keep[1], ctypes.c_void_p).value
        q, k, v = (torch.from_numpy(x).as_subclass(kind) for x in NUMPY)
        if "CUDA: not built" in strobe.build_info():
            with pytest.raises(NotImplementedError, match="for which this build has no kernel"):
                strobe.explain(q, k, v)
            with pytest.raises(NotImplementedError, match="for which this build has no kernel"):
                strobe.attention(q, k, v, out=q.clone())
        with pytest.raises(ValueError, match="k is on the CPU 0; q's, CUDA device 1, is accepted"):
            strobe.attention(q, NUMPY[1], NUMPY[2])


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="PyTorch without the exchange API")
def test_another_framework_with_the_exchange_api():
    """Its own table, which allocates results too: PyTorch's calls, on tensors in a shell that is no torch.Tensor."""
    theirs = exchange_table()
    take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    made = []

    class Shell:
        def __init__(self, tensor):
            self.tensor = tensor

    def to_object(managed, out):
        status = give(theirs.calls[2])(managed, out)
        tensor = ctypes.cast(out[0], ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))
        made.append(Shell(tensor))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[-1]))
        out[0] = id(made[-1])
        return status

    callbacks = (
        take(lambda shell, out: take(theirs.calls[1])(shell.tensor, out)),
        give(to_object),
        take(lambda shell, out: take(theirs.calls[3])(shell.tensor, out)),
    )
    table = ExchangeHeader(theirs.major, theirs.minor, None)
    table.calls[0], table.calls[4] = theirs.calls[0], theirs.calls[4]
    for place, callback in zip((1, 2, 3), callbacks, strict=True):
        table.calls[place] = ctypes.cast(callback, ctypes.c_void_p).value
    Shell.__dlpack_c_exchange_api__ = exchange_capsule(table)
    Shell.keep = table, callbacks
    q, k, v = (Shell(torch.from_numpy(x)) for x in NUMPY)
    out, lse = strobe.attention(q, k, v, return_lse=True)
    assert made == [out, lse] and type(out) is Shell
    expected = strobe.attention(*NUMPY, return_lse=True)
    assert np.array_equal(out.tensor.numpy(), expected[0]) and np.array_equal(lse.tensor.numpy(), expected[1])
