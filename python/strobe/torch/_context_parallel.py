# SPDX-License-Identifier: BSD-3-Clause
"""One sequence over the processes of a group: attention of shards, and what cuts tensors into shards and puts them together."""

import ctypes
import operator
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from strobe import _strobe
from strobe._attention import sides
from strobe.torch._attention import _over_keys, under_autocast
from strobe.torch._ops import usable

LAYOUTS = ("contiguous", "zigzag", "striped")
SCHEMES = ("automatic", "ring", "all_gather", "ulysses", "two_levels")
_TENSORS = ("q", "k", "v", "bias", "sinks")  # as attention_backward returns their gradients


def _bytes(address: int, count: int) -> Tensor:
    """Memory of the library's as a tensor, for as long as an exchange lasts."""
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=torch.uint8)


class _OnGpu:
    """Memory of a GPU, as tensors are made of it without a copy."""

    def __init__(self, address: int, count: int):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}


class _Transport:
    """Messages between the ranks of a group, by isend and irecv."""

    def __init__(self, group: Any):
        self.group, self.ranks, self.works = group, dist.get_process_group_ranks(group), []

    def start(self, sends: list, receives: list) -> None:
        self.works = [dist.irecv(_bytes(at, n), self.ranks[peer], group=self.group) for at, n, peer in receives]
        self.works += [dist.isend(_bytes(at, n), self.ranks[peer], group=self.group) for at, n, peer in sends]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works = []


class _GpuTransport(_Transport):
    """The same of memory of a GPU, all messages in one group of NCCL's: its stream and the current one wait for each other, and
    the host for neither."""

    def __init__(self, group: Any, device: torch.device):
        super().__init__(group)
        self.device = device

    def exchange(self, sends: list, receives: list) -> None:
        messages = [dist.P2POp(dist.irecv, x, self.ranks[peer], group=self.group) for x, peer in receives]
        messages += [dist.P2POp(dist.isend, x, self.ranks[peer], group=self.group) for x, peer in sends]
        self.works = dist.batch_isend_irecv(messages) if messages else []

    def start(self, sends: list, receives: list) -> None:
        def view(messages: list) -> list:
            return [(torch.as_tensor(_OnGpu(at, n), device=self.device), peer) for at, n, peer in messages]

        self.exchange(view(sends), view(receives))


class _Records(_GpuTransport):
    """What ranks compare lies in memory of the host, and goes through the GPU where the group moves nothing else."""

    def start(self, sends: list, receives: list) -> None:
        sent = [(_bytes(at, n).to(self.device), peer) for at, n, peer in sends]
        landed = [(torch.empty(n, dtype=torch.uint8, device=self.device), peer) for _, n, peer in receives]
        self.landed = [(at, n, x) for (at, n, _), (x, _) in zip(receives, landed, strict=True)]
        self.exchange(sent, landed)

    def wait(self) -> None:
        super().wait()
        for at, n, x in self.landed:
            _bytes(at, n).copy_(x)


# What most calls leave as it is, in the order in which context_parallel_attention looks at it.
_PLAIN = (None, None, None, None, None, None, None, None, 0.0, None, 0, None, None, 0, 0, False, None)

_transports: dict[tuple[int, int], tuple[Any, Any]] = {}  # by group, which is kept, and communicator


def _nccl(member: "_Member", device: torch.device) -> Any:
    """The library's own transport over the group's communicator, which goes without Python, and within a host by copy engines,
    unless STROBE_DIST_COPIES is 0, on every process; None where PyTorch does not tell the communicator, or has not made it yet."""
    backend = member.backends.get(device)
    if backend is None:
        backend = member.backends[device] = member.group._get_backend(device)
    address = backend._comm_ptr() if hasattr(backend, "_comm_ptr") else 0
    if not address:
        return None
    key = (id(member.group), address)
    if key not in _transports:
        copies = os.environ.get("STROBE_DIST_COPIES", "1") != "0"
        _transports[key] = (_strobe.gpu_transport(address, device.index, copies), member.group)
    return _transports[key][0]


class _ContextParallel(torch.autograd.Function):
    """names: of the tensors that are given. shards: what the extension is told of them; see python/src/shards.c."""

    @staticmethod
    def forward(ctx, shards, names, numbers, *given):
        tensors = dict(zip(names, map(usable, given), strict=True))
        out, lse = _strobe.attention(**tensors, **numbers, shards=shards, return_lse=True)
        ctx.save_for_backward(out, lse, *given)
        ctx.shards, ctx.names, ctx.numbers = shards, names, numbers
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse):
        out, lse, *given = ctx.saved_tensors
        tensors = dict(zip(ctx.names, map(usable, given), strict=True))
        dout = torch.zeros_like(out) if dout is None else usable(dout)
        saved = {"dout": dout, "dlse": usable(dlse), "out": out, "lse": lse}
        saved["bias_gradient"] = "bias" in ctx.names and ctx.needs_input_grad[3 + ctx.names.index("bias")]
        numbers = {name: x for name, x in ctx.numbers.items() if name != "kernel"}  # the forward's
        results = _strobe.attention_backward(**tensors, **numbers, **saved, shards=ctx.shards)
        gradients = dict(zip(_TENSORS, results, strict=True))
        if ctx.shards[0] != 0 and gradients["sinks"] is not None:  # all ranks have the whole sum: one of them keeps it
            gradients["sinks"] = torch.zeros_like(gradients["sinks"])
        return None, None, None, *(gradients.get(name) for name in ctx.names)


def _choice(name: str, value: str, accepted: tuple[str, ...]) -> int:
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; {', '.join(map(repr, accepted))} is accepted")
    return accepted.index(value)


def _rows(x: Any, packed: bool) -> int:
    return x.shape[0 if packed else 1] if isinstance(x, Tensor) and x.dim() == (3 if packed else 4) else 0


class _Member:
    """This process in a group, asked once: every question takes PyTorch some microseconds."""

    def __init__(self, group: Any):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group is one that this process has no part in; one of its own is accepted")
        moved = {device.type for device in getattr(group, "_device_types", ())}
        self.backends: dict[torch.device, Any] = {}
        self.devices = moved or ({"cuda"} if "nccl" in dist.get_backend(group) else {"cpu"})  # whose tensors it moves


_members: dict[int, _Member] = {}  # by group, which is kept


def _member_of(group: Any) -> _Member:
    if not dist.is_initialized():
        raise ValueError("torch.distributed has no process group; torch.distributed.init_process_group makes one")
    group = dist.group.WORLD if group is None else group
    member = _members.get(id(group))
    if member is None:
        member = _members[id(group)] = _Member(group)
    return member


def _check_device(name: str, x: Any, q: Any, devices: set[str]) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x)}; a torch.Tensor is accepted")
    if x.device.type not in devices or x.device.type not in ("cpu", "cuda"):
        places = " or ".join({"cpu": "on the CPU", "cuda": "on a GPU"}[kind] for kind in sorted(devices & {"cpu", "cuda"}))
        raise TypeError(f"{name} is on {x.device}; a torch.Tensor {places} is accepted, which is what the group moves")
    if x.device != q.device:
        raise TypeError(f"{name} is on {x.device} and q on {q.device}; the same device is accepted")


def _settle(member: _Member, rows: tuple[int, int], refusal: Exception | None) -> tuple[int, int]:
    """The rows of all ranks. Where one has refused its arguments, none goes on."""
    device = "cpu" if "cpu" in member.devices else torch.device("cuda", torch.cuda.current_device())
    sums = torch.tensor([*rows, refusal is not None], dtype=torch.int64, device=device)
    dist.all_reduce(sums, group=member.group)
    if refusal is not None:
        raise refusal
    if sums[2] > 0:
        raise ValueError("another rank has refused its arguments, and says why; those of all ranks are accepted together")
    return int(sums[0]), int(sums[1])


def _movers(member: _Member, q: Tensor) -> tuple[Any, Any, Any, Any]:
    """start and wait of the messages and of the records; or the library's own transport in place of the first."""
    group = member.group
    transport = _nccl(member, q.device) if q.is_cuda else None
    if transport is not None:
        return transport, None, None, None
    messages = records = _Transport(group)
    if q.is_cuda:
        messages = _GpuTransport(group, q.device)
        records = records if "cpu" in member.devices else _Records(group, q.device)
    return messages.start, messages.wait, records.start, records.wait


@torch.compiler.disable
def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    layout: str = "zigzag",
    scheme: str = "automatic",
    group_size: int = 0,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    diagonal: str = "bottom_right",
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    q_start: int = 0,
    k_start: int = 0,
    deterministic: bool = False,
    kernel: str | None = None,
    return_lse: bool = False,
    total: tuple[int, int] | None = None,
) -> Any:
    """Return the process's shard of the attention of sequences that lie over the processes of a group; differentiable.

    Every process of the group makes the same call at the same point of its program, forward and backward.

    Parameters
    ----------
    q, k, v : Tensor, (batch, rows, heads, dim), or (rows, heads, dim) with cu_seqlens
        The process's rows of the whole: those that :func:`shard` gives. float32, float16 or bfloat16.
    group : ProcessGroup, optional
        One that moves tensors of q's device: gloo's those of the CPU, NCCL's those of GPUs. Default: all processes.
    layout : {"zigzag", "contiguous", "striped"}
        Who has which rows; zigzag gives all the same work under a causal mask.
    scheme : {"automatic", "ring", "all_gather", "ulysses", "two_levels"}
        How; see docs/distributed.md. automatic takes the one that is predicted to be fastest.
    group_size : int, optional
        Of two_levels: how many neighbouring ranks exchange heads, a divisor of the group's size.
    bias, mask : Tensor, broadcasts to (batch, heads_q, rows of the process, keys of all), optional
    cu_seqlens_q, cu_seqlens_k : int32 or int64 Tensor, (batch + 1,), optional
        Of the whole, and both: sequences are cut wherever a shard ends. The host reads them: those on a GPU are copied first.
    total : (int, int), optional
        Queries and keys of all processes together. With it the processes ask each other nothing: on GPUs no call then waits on
        the host, and a CUDA graph can capture it. Processes whose arguments differ hear nothing of it, and may wait for ever.
    seed : int
        Required with dropout, the same on every process. What is dropped is what one process drops.
    others
        As in :func:`strobe.torch.attention`, of the whole.

    Returns
    -------
    out : Tensor, as q with dim_v
        Its process's rows. Gradients of q, k, v and bias are those of the process's rows; that of sinks is whole on the first
        process and zero on the others, so that a sum over processes is right for it as for other weights.
    lse : Tensor, (batch, heads_q, rows) or (heads_q, rows)
        With return_lse.

    Raises
    ------
    ValueError, NotImplementedError, TypeError, strobe.Error
        As :func:`strobe.torch.attention`. An argument that is wrong, or another one on one process, is an error on all.
    """
    member = _member_of(group)
    refusal, tensors, numbers, choices = None, {}, {}, (0, 0, 0)
    rows = (_rows(q, cu_seqlens_q is not None), _rows(k, cu_seqlens_k is not None))
    try:
        choices = (_choice("layout", layout, LAYOUTS), _choice("scheme", scheme, SCHEMES), int(group_size))
        if isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor):
            q, k, v = under_autocast(q, k, v)
        tensors, numbers = {"q": q, "k": k, "v": v}, {"causal": causal, "diagonal": diagonal, "scale": scale}
        others = (
            bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, window, softcap, dropout, seed, offset, max_seqlen_q,
            max_seqlen_k, q_start, k_start, deterministic, kernel,
        )  # fmt: skip
        if others != _PLAIN:
            given = {"bias": bias, "mask": mask, "alibi_slopes": alibi_slopes, "sinks": sinks}
            tensors |= {name: x for name, x in given.items() if x is not None}
            numbers |= {
                "window": sides(window), "softcap": softcap, "dropout": dropout, "seed": seed, "offset": offset,
                "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "q_start": q_start, "k_start": k_start,
                "deterministic": deterministic, "kernel": kernel,
            }  # fmt: skip
        for name, x in tensors.items():
            _check_device(name, x, q, member.devices)
        for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
            if x is not None:
                tensors[name] = x.cpu() if isinstance(x, Tensor) else x
    except Exception as caught:
        refusal = caught
    if total is not None and refusal is not None:
        raise refusal
    seq_q, seq_k = _settle(member, rows, refusal) if total is None else (int(total[0]), int(total[1]))
    for name in ("bias", "mask"):
        if name in tensors:
            tensors[name] = _over_keys(tensors[name], seq_k)
    layout_number, scheme_number, size = choices
    shards = (
        member.rank, member.size, layout_number, scheme_number, size, seq_q, seq_k, *_movers(member, q), total is None,
    )  # fmt: skip
    out, lse = _ContextParallel.apply(shards, tuple(tensors), numbers, *tensors.values())
    return (out, lse) if return_lse else out


def _whole(name: str, value: Any, accepted: str = "0 and more", *, most: int = 2**63 - 1) -> int:
    """An integer that C can have: what is none is refused, not rounded."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; an integer is accepted") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {number}; {accepted} is accepted")
    return number


def _check_cut(x: Any, dim: Any) -> None:
    """Whether x has an axis dim, before a process asks others for anything."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x)}; a torch.Tensor is accepted")
    if not hasattr(dim, "__index__") or not -x.dim() <= dim < x.dim():
        axes = f"{-x.dim()} to {x.dim() - 1}, an axis of x, is accepted" if x.dim() else "x has no axis to cut"
        raise ValueError(f"dim is {dim!r}; {axes}")


def _positions(seq: int, size: int, rank: int, layout: str) -> Tensor:
    _choice("layout", layout, LAYOUTS)
    every = torch.arange(seq)
    if layout == "striped":
        return every[rank::size]
    if layout == "contiguous":
        return every.tensor_split(size)[rank]
    parts = every.tensor_split(2 * size)
    return torch.cat((parts[rank], parts[2 * size - 1 - rank]))


def shard_positions(seq: int, *, group: Any = None, layout: str = "zigzag") -> Tensor:
    """Return which positions of a sequence (or of packed sequences together) this process has, in the order of its rows.

    Parameters
    ----------
    seq : int
    group, layout
        As in :func:`context_parallel_attention`.

    Returns
    -------
    Tensor, (rows,), int64
        For position embeddings, rotary embedding and the like.
    """
    member = _member_of(group)
    return _positions(_whole("seq", seq), member.size, member.rank, layout)


def order_documents(
    lengths: Any,
    *,
    ranks: int | None = None,
    group: Any = None,
    layout: str = "zigzag",
    causal: bool = True,
    window: tuple[int, int] | None = None,
) -> tuple[Tensor, float, float]:
    """Return an order in which to pack documents so that every process has about as much to compute, with as many tokens.

    Under ring and all_gather a process computes what its rows see, and late rows of a long document see many keys. Documents
    may be cut wherever a shard ends. Deterministic, so that all processes come to the same order; up to some 50 ms.

    Parameters
    ----------
    lengths : sequence of int, or 1-D Tensor
        Tokens of the documents, queries and keys alike.
    ranks : int, optional
        How many processes; default: those of ``group``.
    group, layout, causal, window
        As in :func:`context_parallel_attention`; a layout of "contiguous" or "zigzag".

    Returns
    -------
    order : Tensor, (documents,), int64
        The number of the document that is to come first, second, and so on.
    given, found : float
        The most work of a process over the mean, as the documents are given and in that order: 1 is even.
    """
    if isinstance(lengths, Tensor) and lengths.dim() != 1:
        raise ValueError(f"lengths.shape is {tuple(lengths.shape)}; (documents,) is accepted")
    given = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    numbers = [_whole(f"lengths[{n}]", length, "0 and more, and 2^61 in all,", most=2**61) for n, length in enumerate(given)]
    ranks = _member_of(group).size if ranks is None else _whole("ranks", ranks, "1 to 65536", most=65536)
    left, right = sides(window)
    if causal:
        right = 0
    order, given, found = _strobe.order_documents(numbers, ranks, _choice("layout", layout, LAYOUTS), left, right)
    return torch.tensor(order, dtype=torch.int64), given, found


def shard(x: Tensor, dim: int = 1, *, group: Any = None, layout: str = "zigzag") -> Tensor:
    """Return this process's rows of x, which is whole: of inputs, labels, or q, k and v. Differentiable.

    Parameters
    ----------
    x : Tensor
    dim : int
        The axis that is cut: 1 of (batch, seq, ...), 0 of packed sequences.
    group, layout
        As in :func:`context_parallel_attention`.
    """
    _check_cut(x, dim)
    return x.index_select(dim, shard_positions(x.shape[dim], group=group, layout=layout).to(x.device))


@torch.no_grad()
def unshard(x: Tensor, dim: int = 1, *, group: Any = None, layout: str = "zigzag") -> Tensor:
    """Return the whole, on every process, of which each has its rows: the opposite of :func:`shard`. Records no gradient.

    Parameters
    ----------
    x : Tensor
        Its other axes and its dtype are the same on every process.
    dim, group, layout
        As in :func:`shard`.
    """
    _check_cut(x, dim)
    _choice("layout", layout, LAYOUTS)
    member = _member_of(group)
    group, size = member.group, member.size
    rows = torch.zeros(size, dtype=torch.int64, device=x.device)
    rows[member.rank] = x.shape[dim]
    dist.all_reduce(rows, group=group)
    most = int(rows.max())
    padded = x.new_zeros((most, *x.movedim(dim, 0).shape[1:]))
    padded[: x.shape[dim]] = x.movedim(dim, 0)
    gathered = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(gathered, padded, group=group)
    seq = int(rows.sum())
    whole = x.new_empty((seq, *padded.shape[1:]))
    for rank, part in enumerate(gathered):
        at = _positions(seq, size, rank, layout).to(x.device)
        if len(at) != rows[rank]:
            raise ValueError(f"x has {int(rows[rank])} rows on rank {rank}; {len(at)}, as {layout} has it, is accepted")
        whole[at] = part[: len(at)]
    return whole.movedim(0, dim).contiguous()
