# SPDX-License-Identifier: BSD-3-Clause
"""q, k and v in fewer bits, with scales."""

from typing import TYPE_CHECKING, Any, NamedTuple

from strobe import _strobe
from strobe._arguments import Quantise, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Quantised(NamedTuple):
    """What :func:`quantise` returns: ``strobe.attention(z.q, z.k, z.v, **z.scales)``."""

    q: Any
    k: Any
    v: Any
    q_scale: Any
    k_scale: Any
    v_scale: Any
    scale_block: tuple[int, int]
    lse_shift: Any

    @property
    def scales(self) -> dict[str, Any]:
        """The options of :func:`strobe.attention` for q, k and v."""
        return {"q_scale": self.q_scale, **self.cache_scales}

    @property
    def cache_scales(self) -> dict[str, Any]:
        """Those for k and v alone, beside a q that is not quantised."""
        return {"k_scale": self.k_scale, "v_scale": self.v_scale, "scale_block": self.scale_block}


def _numpy_has(dtype: str, q: Any) -> None:
    """NumPy's float8_e4m3fn is ml_dtypes', which has to be imported."""
    if type(q).__module__ != "numpy" or not dtype.endswith("float8_e4m3fn"):
        return
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        raise NotImplementedError(
            "NumPy has no float8_e4m3fn; with the package ml_dtypes, or with dtype='int8', this is accepted"
        ) from None


@takes(Quantise)
def quantise(q: Any, k: Any, v: Any, **options: "Unpack[Quantise]") -> Quantised:
    """Return q, k and v in e4m3 or int8 with scales, as :func:`attention` takes them; the true value is scale * stored.

    On the way, in this order: rotary embedding, subtraction of K's mean, random signs and a Hadamard transform. docs/fp8.md
    says which are worth their cost.

    Parameters
    ----------
    q, k, v : tensor, as of :func:`attention`
        float32, float16 or bfloat16.
    dtype : {"float8_e4m3fn", "int8_float8_e4m3fn", "int8"}
        The second: q and k in int8, v in e4m3, whose scores are some three times as exact. int8 is for k and v on the CPU,
        beside a q as it is. NumPy's float8_e4m3fn is that of the package ml_dtypes.
    scale_block : (rows, keys)
        How many share a scale; 0: all of a sequence.
    hadamard : bool
        Transform q and k by random signs and a Hadamard matrix, which scores do not feel; outliers are spread. Head dims up
        to 256.
    seed : int
        Of the signs: the same for q and k, also where they are quantised by two calls.
    rotary : (cos, sin) or float, optional
        float32 tables, (positions, columns / 2), contiguous: q and k are turned, row i by the tables' row q_start + i. Column
        c is turned with c + columns / 2. A number is the base from which angles are computed, such as 10000, on the CPU.
    rotary_dim : int, optional
        Columns that are turned, with a base. Default: all.
    interleaved : bool
        Column 2 c is turned with 2 c + 1.
    subtract_mean : bool
        Subtract the mean of K over its sequence. out stays as it is, unless there are softcap or sinks; lse is lower by
        lse_shift.
    scale : float, optional
        Of the attention, for lse_shift. Default 1 / sqrt(dim).
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, used_q, used_k, q_start, k_start, threads
        As in :func:`attention`.

    Returns
    -------
    Quantised
        q, k, v of the shapes given; q_scale, k_scale, v_scale: float32, (batch, blocks, heads), or (blocks, heads) of a
        packed side, or (batch, heads) where a packed sequence has one scale; scale_block; lse_shift: of lse's shape, or
        None.

    Raises
    ------
    ValueError, NotImplementedError, TypeError, strobe.Error
        As :func:`attention`.

    Examples
    --------
    >>> import strobe, torch
    >>> q, k, v = torch.randn(3, 1, 256, 2, 64)
    >>> z = strobe.quantise(q, k, v, hadamard=True)
    >>> strobe.attention(z.q, z.k, z.v, **z.scales, causal=True).dtype
    torch.bfloat16
    """
    _numpy_has(options.get("dtype", "float8_e4m3fn"), q)
    results = _strobe.quantise(q, k, v, **options)
    return Quantised(*results[:6], tuple(options.get("scale_block") or (128, 128)), results[6])
