// SPDX-License-Identifier: BSD-3-Clause
//! Exact attention and its gradients on slices, by [Strobe](strobe_sys). Tensors borrow their slices, so that nothing can
//! change or go away during a call, and an output is the only view of its memory. All checks are made before a call; what the
//! library refuses comes back as an [`Error`] with its sentence.
//!
//! ```
//! use strobe::{Attention, Tensor, TensorMut, Workspace};
//! let (q, k, v) = (vec![0.5f32; 512 * 8 * 64], vec![0.1; 512 * 2 * 64], vec![1.0; 512 * 2 * 64]);
//! let mut out = vec![0.0; q.len()];
//! let attention = Attention::new(
//!     Tensor::new(&q, [1, 512, 8, 64])?, // batch, seq, heads, dim
//!     Tensor::new(&k, [1, 512, 2, 64])?,
//!     Tensor::new(&v, [1, 512, 2, 64])?,
//! )?
//! .causal();
//! attention.forward(&mut TensorMut::new(&mut out, [1, 512, 8, 64])?, None, &mut Workspace::default())?;
//! assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-5));
//! # Ok::<(), strobe::Error>(())
//! ```
//!
//! The result cannot be written over what is read:
//!
//! ```compile_fail,E0502
//! # use strobe::{Attention, Tensor, TensorMut, Workspace};
//! let mut q = vec![0.5f32; 64];
//! let t = Tensor::new(&q, [1, 1, 1, 64])?;
//! let attention = Attention::new(t, t, t)?;
//! attention.forward(&mut TensorMut::new(&mut q, [1, 1, 1, 64])?, None, &mut Workspace::default())?;
//! # Ok::<(), strobe::Error>(())
//! ```
use std::{ffi::CStr, fmt, os::raw::c_void, ptr};
use strobe_sys as sys;

mod tensor;
pub use tensor::{Bf16, Element, Tensor, TensorMut, F16};

/// What was refused or failed: a status of the C interface, and one sentence that names the argument, its value and what is
/// accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    pub sentence: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

pub(crate) fn refuse<T>(sentence: String) -> Result<T, Error> {
    Err(Error { status: sys::STROBE_INVALID_ARGUMENT, sentence })
}

fn check(status: sys::strobe_status) -> Result<(), Error> {
    if status == sys::STROBE_OK {
        return Ok(());
    }
    // SAFETY: never NULL, ends in a zero, and no call of this thread comes between.
    let sentence = unsafe { CStr::from_ptr(sys::strobe_last_error()) }.to_string_lossy().into_owned();
    Err(Error { status, sentence })
}

/// How the library was built: version, compiler, backends, levels.
pub fn build_info() -> &'static str {
    // SAFETY: the string lives as long as the library, and is ASCII.
    unsafe { CStr::from_ptr(sys::strobe_build_info()) }.to_str().unwrap_or("")
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]); // read and written by the library

/// Memory for calls, kept from call to call and grown when one needs more.
#[derive(Default)]
pub struct Workspace(Vec<Line>);

impl Workspace {
    fn of(&mut self, a: &sys::strobe_attention, g: *const sys::strobe_gradients) -> Result<(*mut c_void, usize), Error> {
        let mut bytes = 0;
        // SAFETY: both structures, and what they point to, live through the call.
        check(unsafe { sys::strobe_workspace(a, g, &mut bytes) })?;
        let lines = (bytes + 63) / 64;
        if lines > self.0.len() {
            self.0.resize(lines, Line([0; 64]));
        }
        Ok((self.0.as_mut_ptr().cast(), 64 * self.0.len()))
    }
}

/// What a forward and its backward share: the tensors that are read, who sees whom, and what happens to scores. T is their
/// element: f32, [`F16`], [`Bf16`], or f64 for reference kernels.
#[derive(Clone)]
pub struct Attention<'a, T> {
    q: Tensor<'a, T>,
    k: Tensor<'a, T>,
    v: Tensor<'a, T>,
    mask: i32,
    window: (i64, i64),
    scale: f64,
    softcap: f64,
    alibi: Option<&'a [f32]>,
    sinks: Option<&'a [f32]>,
}

impl<'a, T: Element> Attention<'a, T> {
    /// Shapes: q (batch, seq_q, heads_q, dim), k (batch, seq_k, heads_kv, dim), v (batch, seq_k, heads_kv, dim_v).
    pub fn new(q: Tensor<'a, T>, k: Tensor<'a, T>, v: Tensor<'a, T>) -> Result<Self, Error> {
        let ([batch, _, heads_q, dim], [_, seq_k, heads_kv, _], dim_v) = (q.shape(), k.shape(), v.shape()[3]);
        k.check_shape("k", [batch, seq_k, heads_kv, dim])?;
        v.check_shape("v", [batch, seq_k, heads_kv, dim_v])?;
        if heads_kv == 0 || heads_q % heads_kv != 0 || dim == 0 || dim_v == 0 {
            return refuse(format!(
                "q, k, v have {heads_q} and {heads_kv} heads, {dim} and {dim_v} columns; heads of k that divide those of q, \
                 and at least 1 column, are accepted"
            ));
        }
        let (mask, window) = (sys::STROBE_MASK_NONE, (-1, -1));
        Ok(Attention { q, k, v, mask, window, scale: 0.0, softcap: 0.0, alibi: None, sinks: None })
    }

    /// Keys up to the row's own, the last row meeting the last key.
    pub fn causal(self) -> Self {
        Attention { mask: sys::STROBE_MASK_CAUSAL_BOTTOM_RIGHT, ..self }
    }

    /// As many keys before and after the row's own, counted as for [`Self::causal`]; None is unbounded.
    pub fn window(self, left: Option<u32>, right: Option<u32>) -> Self {
        let side = |n: Option<u32>| n.map_or(-1, i64::from);
        Attention { mask: sys::STROBE_MASK_WINDOW_BOTTOM_RIGHT, window: (side(left), side(right)), ..self }
    }

    /// The softmax scale in place of 1 / sqrt(dim).
    pub fn scale(self, scale: f64) -> Self {
        Attention { scale, ..self }
    }

    /// A score s becomes softcap * tanh(s / softcap).
    pub fn softcap(self, softcap: f64) -> Self {
        Attention { softcap, ..self }
    }

    /// ALiBi's slopes, one a query head.
    pub fn alibi(self, slopes: &'a [f32]) -> Result<Self, Error> {
        self.one_a_head("alibi", slopes)?;
        Ok(Attention { alibi: Some(slopes), ..self })
    }

    /// Attention sinks, one logit a query head.
    pub fn sinks(self, logits: &'a [f32]) -> Result<Self, Error> {
        self.one_a_head("sinks", logits)?;
        Ok(Attention { sinks: Some(logits), ..self })
    }

    /// Elements of lse: (batch, heads_q, seq_q).
    pub fn lse_len(&self) -> usize {
        let [batch, rows, heads, _] = self.q.shape();
        batch * rows * heads
    }

    /// Writes out (batch, seq_q, heads_q, dim_v), and lse where it is given.
    pub fn forward(&self, out: &mut TensorMut<T>, lse: Option<&mut [f32]>, work: &mut Workspace) -> Result<(), Error> {
        out.check_shape("out", self.out_shape())?;
        let lse = match lse {
            Some(lse) => self.check_lse(lse.len()).map(|()| lse.as_mut_ptr())?,
            None => ptr::null_mut(),
        };
        self.described(out.view(), lse, |a| {
            let (memory, bytes) = work.of(a, ptr::null())?;
            // SAFETY: every tensor lies in its slice, which is borrowed for the call, outputs alone.
            check(unsafe { sys::strobe_forward(a, memory, bytes, ptr::null_mut()) })
        })
    }

    /// Writes the gradients of q, k and v, of their shapes. out and lse are what the forward wrote.
    pub fn backward(
        &self,
        saved: (&Tensor<T>, &[f32]),
        dout: &Tensor<T>,
        d: Gradients<T>,
        work: &mut Workspace,
    ) -> Result<(), Error> {
        let (out, lse) = saved;
        out.check_shape("out", self.out_shape())?;
        dout.check_shape("dout", self.out_shape())?;
        d.q.check_shape("dq", self.q.shape())?;
        d.k.check_shape("dk", self.k.shape())?;
        d.v.check_shape("dv", self.v.shape())?;
        self.check_lse(lse.len())?;
        let (dout, dq, dk, dv) = (dout.view(), d.q.view(), d.k.view(), d.v.view());
        let g = sys::strobe_gradients { dout, dq, dk, dv, ..Default::default() };
        self.described(out.view(), lse.as_ptr() as *mut f32, |a| {
            let (memory, bytes) = work.of(a, &g)?;
            // SAFETY: as in forward; the backward reads out and lse.
            check(unsafe { sys::strobe_backward(a, &g, memory, bytes, ptr::null_mut()) })
        })
    }

    /// A line for each kernel, best first: "name: chosen" or "name: why not". Tensors need not hold anything yet.
    pub fn explain(&self) -> Result<String, Error> {
        self.described(sys::strobe_tensor::default(), ptr::null_mut(), |a| {
            let mut text = vec![0u8; 16384];
            // SAFETY: it writes at most as many bytes as it is told, with a zero at the end.
            check(unsafe { sys::strobe_explain(a, ptr::null(), text.as_mut_ptr().cast(), text.len(), ptr::null_mut()) })?;
            text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(0));
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    }

    fn out_shape(&self) -> [usize; 4] {
        let [batch, rows, heads, _] = self.q.shape();
        [batch, rows, heads, self.v.shape()[3]]
    }

    fn check_lse(&self, given: usize) -> Result<(), Error> {
        if given == self.lse_len() {
            return Ok(());
        }
        refuse(format!("lse has {given} elements; {}, batch * heads_q * seq_q, is accepted", self.lse_len()))
    }

    fn one_a_head(&self, name: &str, values: &[f32]) -> Result<(), Error> {
        let heads = self.q.shape()[2];
        if values.len() == heads {
            return Ok(());
        }
        refuse(format!("{name} has {} elements; {heads}, one a query head, is accepted", values.len()))
    }

    /// Gives the descriptor to `call`; what it points to lives until `call` returns.
    fn described<R>(&self, out: sys::strobe_tensor, lse: *mut f32, call: impl FnOnce(&sys::strobe_attention) -> R) -> R {
        let [batch, seq_q, heads_q, dim] = self.q.shape().map(|n| n as i64);
        let [_, seq_k, heads_kv, _] = self.k.shape().map(|n| n as i64);
        let slopes = self.alibi.map(|s| sys::strobe_alibi { slopes: s.as_ptr(), ..Default::default() });
        let logits = self.sinks.map(|s| sys::strobe_sinks { data: s.as_ptr() as *mut c_void, ..Default::default() });
        let a = sys::strobe_attention {
            batch,
            seq_q,
            seq_k,
            heads_q,
            heads_kv,
            dim,
            dim_v: self.v.shape()[3] as i64,
            q: self.q.view(),
            k: self.k.view(),
            v: self.v.view(),
            out,
            lse: sys::strobe_tensor { data: lse.cast(), dtype: sys::STROBE_FP32, ..Default::default() },
            dtype: T::DTYPE,
            mask: self.mask,
            scale: self.scale,
            softcap: self.softcap,
            window_left: self.window.0,
            window_right: self.window.1,
            alibi: slopes.as_ref().map_or(ptr::null(), |s| s),
            sinks: logits.as_ref().map_or(ptr::null(), |s| s),
            ..Default::default()
        };
        call(&a)
    }
}

/// What a backward writes.
pub struct Gradients<'a, 'b, T> {
    pub q: &'a mut TensorMut<'b, T>,
    pub k: &'a mut TensorMut<'b, T>,
    pub v: &'a mut TensorMut<'b, T>,
}
