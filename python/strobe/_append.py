# SPDX-License-Identifier: BSD-3-Clause
"""New K and V into a cache."""

from typing import TYPE_CHECKING, Any

from strobe import _strobe
from strobe._arguments import Append, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes(Append)
def append(k_cache: Any, v_cache: Any, k: Any, v: Any, **options: "Unpack[Append]") -> Any:
    """Write the K and V of new tokens into a cache, in place; turn, transform and quantise them, and turn q, on the way.

    Sequence b has a length before the call, L: its token i becomes key L + i. :func:`attention` reads the cache with the same
    page_table and scales, and used_k as it is after the call.

    Parameters
    ----------
    k_cache, v_cache : tensor, (batch, slots, heads_kv, dim or dim_v), written
        Or (pages, page_size, heads_kv, dim or dim_v), with page_table, with any strides but a contiguous last axis. float32,
        float16, bfloat16, or float8_e4m3fn or int8 with scales.
    k, v : tensor, (batch, tokens, heads_kv, dim or dim_v), or packed (total, heads_kv, dim or dim_v), with cu_seqlens_new
        float32, float16 or bfloat16.
    q : tensor, (batch, seq_q, heads_q, dim), or packed, with cu_seqlens_q, optional
        To be turned and transformed as k is.
    lengths : int32 or int64 tensor, (batch,), optional
        L of each sequence. Default: used_k, or all slots, less the new tokens.
    used_k : int32 or int64 tensor, (batch,), optional
        Lengths after the call.
    page_table : int32 tensor, (batch, pages a sequence), optional
        As in :func:`attention`. A key in a page that is none is not written.
    slots : int64 tensor, (batch, tokens) or (total,), optional
        Where each key goes, in place of L: page * page_size + slot of it, or entry * slots + slot of a contiguous cache. A
        token with a negative one is not written.
    rotary : (cos, sin) or float, optional
        float32 tables, (positions, columns / 2), contiguous, or the base from which angles are computed, such as 10000. Key i
        stands at position L + i, row i of q too. Column c is turned with c + columns / 2.
    rotary_dim : int, optional
        Columns that are turned, with a base. Default: all.
    interleaved : bool
        Column 2 c is turned with 2 c + 1.
    positions : int32 or int64 tensor, (batch,), optional
        What stands for L in positions.
    q_at_length : bool
        All rows of q stand at L, as flash-attn has them without a causal mask or a window.
    hadamard : bool
        Transform q and k by random signs, of `seed`, and a Hadamard matrix, which scores do not feel. Head dims up to 256.
    k_scale, v_scale : float32 tensor, (batch, blocks, heads), optional
        Of a cache of float8_e4m3fn or int8: a number a token and head is written; with 0 in scale_block, one a sequence is read.
    scale_block : (rows, keys)
        As in :func:`attention`.
    cu_seqlens_new, max_seqlen_new, used_new
        Of k and v, as cu_seqlens_q, max_seqlen_q and used_q are of q in :func:`attention`.
    cu_seqlens_q, max_seqlen_q, used_q, cu_seqlens_k, max_seqlen_k, q_start, k_start, threads
        As in :func:`attention`.
    out : tensor, optional
        Where to write q as it is then, which may be q itself.

    Returns
    -------
    tensor or None
        q, turned and transformed, in q's dtype; None without q.

    Raises
    ------
    ValueError, NotImplementedError, TypeError, strobe.Error
        As :func:`attention`.

    Examples
    --------
    >>> import numpy as np, strobe
    >>> cache = np.zeros((2, 4, 16, 2, 64), np.float32)  # k and v: 4 pages of 16 slots
    >>> k, v = np.random.default_rng(0).standard_normal((2, 1, 20, 2, 64), dtype=np.float32)
    >>> table = np.array([[2, 0]], np.int32)
    >>> strobe.append(*cache, k, v, page_table=table, lengths=np.array([0], np.int32))
    >>> bool((cache[0][2] == k[0, :16]).all() and (cache[1][0, :4] == v[0, 16:]).all())
    True
    """
    return _strobe.append(k_cache=k_cache, v_cache=v_cache, k=k, v=v, **options)
