// SPDX-License-Identifier: BSD-3-Clause
//! Strobe's C interface as it stands in `include/strobe/*.h`, which are the manual: every structure, constant and function,
//! under its own name. `tests/layout.rs` compares them with the C headers.
#![allow(non_camel_case_types)]
use std::os::raw::{c_char, c_int, c_void};

/// The offset and size of a field in bytes, for the test of layouts.
pub type Field = (&'static str, usize, usize);

/// A structure's name, whether it begins with `struct_size` and may grow, its bytes and its fields.
pub type Layout = (&'static str, bool, usize, Vec<Field>);

const fn size_of_target<T>(_: *const T) -> usize {
    std::mem::size_of::<T>()
}

macro_rules! structure {
    (grows $name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            pub struct_size: usize,
            $(pub $field: $type,)*
        }
        impl Default for $name {
            /// `struct_size` is set, everything else is zero: the default of every field.
            fn default() -> Self {
                // SAFETY: numbers, pointers and options of functions; zero is a value of each.
                $name { struct_size: std::mem::size_of::<$name>(), ..unsafe { std::mem::zeroed() } }
            }
        }
    };
    (fixed $name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(pub $field: $type,)*
        }
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: as above.
                unsafe { std::mem::zeroed() }
            }
        }
    };
}

macro_rules! structures {
    ($($kind:ident $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(structure! { $kind $name { $($field: $type,)* } })*

        /// What the compiler made of each structure. `struct_size` is left out: it is the first eight bytes.
        pub fn layouts() -> Vec<Layout> {
            vec![$({
                let zero = $name::default();
                let start = std::ptr::addr_of!(zero) as usize;
                let fields = vec![$({
                    let field = std::ptr::addr_of!(zero.$field);
                    (stringify!($field), field as usize - start, size_of_target(field))
                },)*];
                (stringify!($name), stringify!($kind) == "grows", std::mem::size_of::<$name>(), fields)
            },)*]
        }
    };
}

macro_rules! constants {
    ($($name:ident = $value:literal,)*) => {
        $(pub const $name: i32 = $value;)*

        pub fn constants() -> Vec<(&'static str, i32)> {
            vec![$((stringify!($name), $name),)*]
        }
    };
}

/// `strobe_status` in C: a constant from `STROBE_OK` to `STROBE_DEVICE_ERROR`.
pub type strobe_status = c_int;

/// A function of a score, behind a pointer.
#[repr(C)]
pub struct strobe_score {
    hidden: [u8; 0],
}

/// What `strobe_parallel.run` calls: context, index, worker.
pub type Task = unsafe extern "C" fn(*mut c_void, i64, i32);
/// `strobe_parallel.run`: self, tasks, task, context.
pub type Run = unsafe extern "C" fn(*mut c_void, i64, Task, *mut c_void);
/// Receives a line for each call that ran: user, message.
pub type strobe_log_callback = Option<unsafe extern "C" fn(*mut c_void, *const c_char)>;

constants! {
    STROBE_OK = 0, STROBE_INVALID_ARGUMENT = 1, STROBE_UNSUPPORTED = 2, STROBE_OUT_OF_MEMORY = 3,
    STROBE_WORKSPACE_TOO_SMALL = 4, STROBE_DEVICE_ERROR = 5,
    STROBE_DTYPE_DEFAULT = 0, STROBE_FP32 = 1, STROBE_FP16 = 2, STROBE_BF16 = 3, STROBE_FP64 = 4,
    STROBE_FP8_E4M3 = 5, STROBE_INT8 = 6, STROBE_INT32 = 32, STROBE_UINT8 = 33,
    STROBE_CPU = 0, STROBE_CUDA = 1, STROBE_FORWARD = 0, STROBE_BACKWARD = 1,
    STROBE_MASK_NONE = 0, STROBE_MASK_CAUSAL_TOP_LEFT = 1, STROBE_MASK_CAUSAL_BOTTOM_RIGHT = 2,
    STROBE_MASK_WINDOW_TOP_LEFT = 3, STROBE_MASK_WINDOW_BOTTOM_RIGHT = 4,
    STROBE_DETERMINISTIC = 1, STROBE_TF32X3 = 2, STROBE_Q_AT_LENGTH = 1, STROBE_LISTS_FORWARD = 1, STROBE_LISTS_BACKWARD = 2,
    STROBE_HADAMARD = 1,
}

structures! {
    fixed strobe_tensor {
        data: *mut c_void, stride: [i64; 3], dtype: i32, reserved: i32,
    }
    grows strobe_varlen {
        cu_seqlens_q: *const c_void, cu_seqlens_k: *const c_void, used_q: *const c_void,
        used_k: *const c_void, total_q: i64, total_k: i64, index_bits: i32, reserved: i32,
        leftpad_k: *const c_void,
    }
    grows strobe_paged {
        page_table: *const i32, table_stride: i64, page_size: i64, pages: i64,
    }
    grows strobe_bias {
        data: *mut c_void, stride: [i64; 3], dtype: i32, reserved: i32,
    }
    grows strobe_bool_mask {
        data: *const u8, stride: [i64; 3],
    }
    grows strobe_block_mask {
        data: *const u8, block_q: i64, block_k: i64, stride: [i64; 3],
    }
    grows strobe_alibi {
        slopes: *const f32, stride_batch: i64,
    }
    grows strobe_sinks {
        data: *mut c_void, dtype: i32, reserved: i32,
    }
    grows strobe_dropout {
        p: f64, seed: u64, offset: u64, heads: i64, rows: i64, keys: i64, batch_start: i64, head_start: i64,
        row_start: i64, key_start: i64,
    }
    grows strobe_scales {
        q: *const f32, k: *const f32, v: *const f32, stride_q: [i64; 3], stride_k: [i64; 3],
        stride_v: [i64; 3], block_q: i64, block_k: i64,
    }
    grows strobe_parallel {
        threads: i32, reserved: i32, run: Option<Run>, self_: *mut c_void,
    }
    grows strobe_tuning {
        kernel: *const c_char, split_keys: i64,
    }
    grows strobe_attention {
        batch: i64, seq_q: i64, seq_k: i64, heads_q: i64, heads_kv: i64, dim: i64, dim_v: i64,
        q: strobe_tensor, k: strobe_tensor, v: strobe_tensor, out: strobe_tensor, lse: strobe_tensor,
        dtype: i32, device: i32, device_index: i32, mask: i32, flags: u64, scale: f64, softcap: f64,
        window_left: i64, window_right: i64, q_start: i64, k_start: i64, varlen: *const strobe_varlen,
        paged: *const strobe_paged, bias: *const strobe_bias, bool_mask: *const strobe_bool_mask,
        block_mask: *const strobe_block_mask, alibi: *const strobe_alibi, sinks: *const strobe_sinks,
        dropout: *const strobe_dropout, scales: *const strobe_scales, parallel: *const strobe_parallel,
        tuning: *const strobe_tuning, score: *const strobe_score_arguments,
        mask_lists: *const strobe_mask_lists,
    }
    grows strobe_gradients {
        dout: strobe_tensor, dlse: strobe_tensor, dq: strobe_tensor, dk: strobe_tensor, dv: strobe_tensor,
        dbias: *const strobe_bias, dsinks: *const strobe_sinks, dscore: *const strobe_score_gradients,
        accumulate: i32, reserved: i32,
    }
    fixed strobe_partial {
        out: strobe_tensor, lse: strobe_tensor,
    }
    grows strobe_partials {
        batch: i64, seq_q: i64, heads_q: i64, dim_v: i64, count: i64, parts: *const strobe_partial,
        out: strobe_tensor, lse: strobe_tensor, dtype: i32, device: i32, device_index: i32, reserved: i32,
        parallel: *const strobe_parallel,
    }
    grows strobe_kernel_info {
        name: *const c_char, summary: *const c_char, unavailable: *const c_char, operation: i32,
        device: i32, chosen_by_name: i32, reserved: i32, features: u64, dtypes: [u16; 9], reserved2: u16,
        dim: i32, dim_v: i32, scale_block: i32, seq_q: [i64; 2], seq_k: [i64; 2], rows: [i64; 2],
        best_rows: [i64; 2], limits: *const c_char, variants: *const c_char,
    }
    grows strobe_device_info {
        name: *const c_char, level: *const c_char, threads: i32, reserved: i32, memory_bytes: i64,
    }
    grows strobe_appender {
        q: strobe_tensor, k: strobe_tensor, v: strobe_tensor, dtype: i32, hadamard: i32, seed: u64,
        seq_new: i64, total_new: i64, cu_seqlens_new: *const c_void, used_new: *const c_void,
        lengths: *const c_void, positions: *const c_void, slots: *const i64, rotary: *const strobe_rotary,
        index_bits: i32, flags: i32,
    }
    grows strobe_mask_lists {
        data: *mut c_void, bytes: usize, uses: i32, made: i32, device: i32, device_index: i32, batch: i64,
        heads_q: i64, seq_q: i64, seq_k: i64, block_q: i64, block_k: i64, axes: i32, reserved: i32,
    }
    grows strobe_rotary {
        cos: *const f32, sin: *const f32, positions: i64, dim: i64, interleaved: i32, reserved: i32,
        base: f64,
    }
    grows strobe_quantiser {
        q: strobe_tensor, k: strobe_tensor, v: strobe_tensor, dtype: i32, hadamard: i32, seed: u64,
        rotary: *const strobe_rotary, k_mean: *mut f32, lse_shift: strobe_tensor,
    }
    fixed strobe_score_scalar {
        name: *const c_char, value: f64, integer: i32, reserved: i32,
    }
    fixed strobe_score_array {
        name: *const c_char, rank: i32, dtype: i32,
    }
    grows strobe_score_source {
        score: *const c_char, visible: *const c_char, scalars: *const strobe_score_scalar,
        arrays: *const strobe_score_array, scalar_count: i32, array_count: i32,
    }
    fixed strobe_score_elements {
        data: *mut c_void, extent: [i64; 4], stride: [i64; 4], dtype: i32, reserved: i32,
    }
    grows strobe_score_arguments {
        function: *const strobe_score, scalars: *const f64, arrays: *const strobe_score_elements,
        scalar_count: i32, array_count: i32,
    }
    grows strobe_score_gradients {
        arrays: *const strobe_score_elements, array_count: i32, reserved: i32,
    }
}

extern "C" {
    pub fn strobe_status_name(status: strobe_status) -> *const c_char;
    pub fn strobe_last_error() -> *const c_char;
    pub fn strobe_forward(
        attention: *const strobe_attention,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> strobe_status;
    pub fn strobe_backward(
        attention: *const strobe_attention,
        gradients: *const strobe_gradients,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> strobe_status;
    pub fn strobe_check(attention: *const strobe_attention, gradients: *const strobe_gradients) -> strobe_status;
    pub fn strobe_workspace(
        attention: *const strobe_attention,
        gradients: *const strobe_gradients,
        bytes: *mut usize,
    ) -> strobe_status;
    pub fn strobe_merge(partials: *const strobe_partials, stream: *mut c_void) -> strobe_status;
    pub fn strobe_append(
        attention: *const strobe_attention,
        appender: *const strobe_appender,
        stream: *mut c_void,
    ) -> strobe_status;
    pub fn strobe_quantise(
        attention: *const strobe_attention,
        quantiser: *const strobe_quantiser,
        stream: *mut c_void,
    ) -> strobe_status;
    pub fn strobe_select(
        attention: *const strobe_attention,
        gradients: *const strobe_gradients,
        kernel: *mut *const c_char,
    ) -> strobe_status;
    pub fn strobe_explain(
        attention: *const strobe_attention,
        gradients: *const strobe_gradients,
        text: *mut c_char,
        capacity: usize,
        needed: *mut usize,
    ) -> strobe_status;
    pub fn strobe_kernel_count() -> i32;
    pub fn strobe_kernel_at(index: i32, info: *mut strobe_kernel_info) -> strobe_status;
    pub fn strobe_kernel_on(index: i32, device_index: i32, info: *mut strobe_kernel_info) -> strobe_status;
    pub fn strobe_feature_name(bit: i32) -> *const c_char;
    pub fn strobe_device_at(device: i32, index: i32, info: *mut strobe_device_info) -> strobe_status;
    pub fn strobe_version() -> *const c_char;
    pub fn strobe_build_info() -> *const c_char;
    pub fn strobe_set_log(callback: strobe_log_callback, user: *mut c_void);
    pub fn strobe_score_create(source: *const strobe_score_source, function: *mut *mut strobe_score) -> strobe_status;
    pub fn strobe_prepare(attention: *const strobe_attention, gradients: *const strobe_gradients) -> strobe_status;
    pub fn strobe_score_destroy(function: *mut strobe_score);
    pub fn strobe_mask_lists_bytes(
        attention: *const strobe_attention,
        lists: *const strobe_mask_lists,
        bytes: *mut usize,
    ) -> strobe_status;
    pub fn strobe_mask_lists_make(
        attention: *const strobe_attention,
        lists: *mut strobe_mask_lists,
        stream: *mut c_void,
    ) -> strobe_status;
}
