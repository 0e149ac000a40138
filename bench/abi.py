# SPDX-License-Identifier: BSD-3-Clause
"""The structs of include/strobe/strobe.h for ctypes: for benches and tests that load any libstrobe.so, also one beside another.
The Python package needs none of this; it calls the library from C."""

from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("stride", c_int64 * 3), ("dtype", c_int32), ("reserved", c_int32)]


class Parallel(Structure):
    _fields_ = [("struct_size", c_size_t), ("threads", c_int32), ("reserved", c_int32), ("run", c_void_p), ("self", c_void_p)]


class Tuning(Structure):
    _fields_ = [("struct_size", c_size_t), ("kernel", c_char_p), ("split_keys", c_int64)]


class BoolMask(Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("stride", c_int64 * 3)]


class BlockMask(Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("block_q", c_int64), ("block_k", c_int64), ("stride", c_int64 * 3)]


class MaskLists(Structure):
    _fields_ = (
        [("struct_size", c_size_t), ("data", c_void_p), ("bytes", c_size_t)]
        + [(name, c_int32) for name in ("uses", "made", "device", "device_index")]
        + [(name, c_int64) for name in ("batch", "heads_q", "seq_q", "seq_k", "block_q", "block_k")]
        + [("axes", c_int32), ("reserved", c_int32)]
    )


class Attention(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in ("batch", "seq_q", "seq_k", "heads_q", "heads_kv", "dim", "dim_v")]
        + [(name, Tensor) for name in ("q", "k", "v", "out", "lse")]
        + [(name, c_int32) for name in ("dtype", "device", "device_index", "mask")]
        + [("flags", c_uint64), ("scale", c_double), ("softcap", c_double)]
        + [(name, c_int64) for name in ("window_left", "window_right", "q_start", "k_start")]
        + [(name, c_void_p) for name in ("varlen", "paged", "bias", "bool_mask", "block_mask", "alibi", "sinks", "dropout", "scales")]
        + [("parallel", POINTER(Parallel)), ("tuning", POINTER(Tuning)), ("score", c_void_p), ("mask_lists", c_void_p)]
    )


class Gradients(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, Tensor) for name in ("dout", "dlse", "dq", "dk", "dv")]
        + [("dbias", c_void_p), ("dsinks", c_void_p)]
    )


class Partials(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in ("batch", "seq_q", "heads_q", "dim_v", "count")]
        + [("parts", c_void_p), ("out", Tensor), ("lse", Tensor)]
        + [(name, c_int32) for name in ("dtype", "device", "device_index", "reserved")]
        + [("parallel", c_void_p)]
    )


class Scales(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, c_void_p) for name in ("q", "k", "v")]
        + [(name, c_int64 * 3) for name in ("stride_q", "stride_k", "stride_v")]
        + [(name, c_int64) for name in ("block_q", "block_k")]
    )


class Rotary(Structure):
    _fields_ = [("struct_size", c_size_t), ("cos", c_void_p), ("sin", c_void_p), ("positions", c_int64), ("dim", c_int64),
                ("interleaved", c_int32), ("reserved", c_int32), ("base", c_double)]


class Quantiser(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, Tensor) for name in ("q", "k", "v")]
        + [("dtype", c_int32), ("hadamard", c_int32), ("seed", c_uint64), ("rotary", c_void_p), ("k_mean", c_void_p)]
        + [("lse_shift", Tensor)]
    )


class Varlen(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, c_void_p) for name in ("cu_seqlens_q", "cu_seqlens_k", "used_q", "used_k")]
        + [("total_q", c_int64), ("total_k", c_int64), ("index_bits", c_int32), ("reserved", c_int32), ("leftpad_k", c_void_p)]
    )


class Paged(Structure):
    _fields_ = [("struct_size", c_size_t), ("page_table", c_void_p), ("table_stride", c_int64), ("page_size", c_int64),
                ("pages", c_int64)]


class Appender(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, Tensor) for name in ("q", "k", "v")]
        + [("dtype", c_int32), ("hadamard", c_int32), ("seed", c_uint64), ("seq_new", c_int64), ("total_new", c_int64)]
        + [(name, c_void_p) for name in ("cu_seqlens_new", "used_new", "lengths", "positions", "slots", "rotary")]
        + [("index_bits", c_int32), ("flags", c_int32)]
    )


def load(path):
    library = CDLL(path)
    library.strobe_last_error.restype = c_char_p
    library.strobe_forward.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p]
    library.strobe_backward.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
    library.strobe_workspace.argtypes = [c_void_p, c_void_p, c_void_p]
    if hasattr(library, "strobe_mask_lists_make"):
        library.strobe_mask_lists_bytes.argtypes = [c_void_p, c_void_p, c_void_p]
        library.strobe_mask_lists_make.argtypes = [c_void_p, c_void_p, c_void_p]
    if hasattr(library, "strobe_quantise"):
        library.strobe_quantise.argtypes = [c_void_p, c_void_p, c_void_p]
    if hasattr(library, "strobe_append"):
        library.strobe_append.argtypes = [c_void_p, c_void_p, c_void_p]
    return library


def check(library, status):
    if status:
        raise RuntimeError(library.strobe_last_error().decode())


def selected(library, a, g=None):
    """The name of the kernel that the library would choose."""
    kernel = c_char_p()
    check(library, library.strobe_select(byref(a), g and byref(g), byref(kernel)))
    return kernel.value.decode()
