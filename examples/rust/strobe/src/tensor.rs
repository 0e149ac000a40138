// SPDX-License-Identifier: BSD-3-Clause
//! Views of slices as tensors (batch, seq, heads, dim). What is checked here is what makes the calls safe: a tensor lies inside
//! its slice, and no two elements of a tensor that is written are one.
use crate::{refuse, Error};
use std::marker::PhantomData;
use strobe_sys as sys;

/// A type that tensors may have.
///
/// # Safety
/// DTYPE must be the `strobe_dtype` of the type's bits, and every pattern of bits a value of the type.
pub unsafe trait Element: Copy {
    const DTYPE: i32;
}

/// The bits of an IEEE half; `half::f16` has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16: the upper half of an f32's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

// SAFETY: numbers of the size and layout that the header gives each dtype.
unsafe impl Element for f32 {
    const DTYPE: i32 = sys::STROBE_FP32;
}
unsafe impl Element for f64 {
    const DTYPE: i32 = sys::STROBE_FP64;
}
unsafe impl Element for F16 {
    const DTYPE: i32 = sys::STROBE_FP16;
}
unsafe impl Element for Bf16 {
    const DTYPE: i32 = sys::STROBE_BF16;
}

fn contiguous(shape: [usize; 4]) -> [usize; 3] {
    let [_, seq, heads, dim] = shape;
    let heads_dim = heads.saturating_mul(dim);
    [seq.saturating_mul(heads_dim), heads_dim, dim]
}

/// How many elements reach from the first to the last; None where that is more than there can be.
fn reach(shape: [usize; 4], strides: [usize; 3]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let steps = [strides[0], strides[1], strides[2], 1];
    let mut last = 0usize;
    for axis in 0..4 {
        last = last.checked_add((shape[axis] - 1).checked_mul(steps[axis])?)?;
    }
    last.checked_add(1).filter(|&end| end <= isize::MAX as usize)
}

/// Whether no element has two indices: each axis, from the smallest stride on, steps over all of the axes before it.
fn is_written_once(shape: [usize; 4], strides: [usize; 3]) -> bool {
    let mut axes: Vec<(usize, usize)> = (0..3).filter(|&n| shape[n] > 1).map(|n| (strides[n], shape[n])).collect();
    axes.sort_unstable();
    let mut extent = shape[3];
    for (stride, size) in axes {
        if stride < extent {
            return false;
        }
        extent = (size - 1).saturating_mul(stride).saturating_add(extent);
    }
    true
}

/// Strides with those that are never taken replaced by contiguous ones.
fn checked(given: usize, shape: [usize; 4], strides: [usize; 3]) -> Result<[usize; 3], Error> {
    let rows = shape[..3].iter().any(|&n| n > 1) && !shape.contains(&0);
    if rows && strides == [0; 3] {
        // To the C interface three zeros mean contiguous.
        return refuse(format!("strides are {strides:?}; at least one above 0 is accepted"));
    }
    // Sizes and products of them must be numbers of the C interface too, also where a size is 0.
    let fits = shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n.max(1)))
        .map_or(false, |n| n <= isize::MAX as usize);
    match reach(shape, strides) {
        Some(needed) if fits && needed <= given => {
            let mut taken = contiguous(shape);
            (0..3).filter(|&n| rows && shape[n] > 1).for_each(|n| taken[n] = strides[n]);
            Ok(taken)
        }
        Some(needed) if fits => {
            refuse(format!("the slice has {given} elements; at least {needed}, for {shape:?}, is accepted"))
        }
        _ => refuse(format!("shape is {shape:?}, which no memory holds")),
    }
}

/// A tensor that is read.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a, T> {
    data: &'a [T],
    shape: [usize; 4],
    strides: [usize; 3],
}

/// A tensor that is written.
#[derive(Debug)]
pub struct TensorMut<'a, T> {
    data: *mut T,
    shape: [usize; 4],
    strides: [usize; 3],
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: it is the slice that it was made of, borrowed alone.
unsafe impl<T: Send> Send for TensorMut<'_, T> {}
unsafe impl<T: Sync> Sync for TensorMut<'_, T> {}

impl<'a, T: Element> Tensor<'a, T> {
    /// Contiguous.
    pub fn new(data: &'a [T], shape: [usize; 4]) -> Result<Self, Error> {
        Self::strided(data, shape, contiguous(shape))
    }

    /// strides: elements between batch entries, positions and heads; 0 repeats.
    pub fn strided(data: &'a [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self, Error> {
        let strides = checked(data.len(), shape, strides)?;
        Ok(Tensor { data, shape, strides })
    }

    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    pub(crate) fn view(&self) -> sys::strobe_tensor {
        view_of(self.data.as_ptr() as *mut T, self.strides)
    }

    pub(crate) fn check_shape(&self, name: &str, wanted: [usize; 4]) -> Result<(), Error> {
        check_same(name, self.shape, wanted)
    }
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Contiguous.
    pub fn new(data: &'a mut [T], shape: [usize; 4]) -> Result<Self, Error> {
        Self::strided(data, shape, contiguous(shape))
    }

    /// strides: elements between batch entries, positions and heads, such that no element has two indices.
    pub fn strided(data: &'a mut [T], shape: [usize; 4], strides: [usize; 3]) -> Result<Self, Error> {
        let strides = checked(data.len(), shape, strides)?;
        if !is_written_once(shape, strides) {
            return refuse(format!("strides are {strides:?}, by which elements of {shape:?} overlap; others are accepted"));
        }
        Ok(TensorMut { data: data.as_mut_ptr(), shape, strides, memory: PhantomData })
    }

    pub(crate) fn view(&mut self) -> sys::strobe_tensor {
        view_of(self.data, self.strides)
    }

    pub(crate) fn check_shape(&self, name: &str, wanted: [usize; 4]) -> Result<(), Error> {
        check_same(name, self.shape, wanted)
    }
}

fn view_of<T: Element>(data: *mut T, strides: [usize; 3]) -> sys::strobe_tensor {
    sys::strobe_tensor { data: data.cast(), stride: strides.map(|n| n as i64), dtype: T::DTYPE, reserved: 0 }
}

fn check_same(name: &str, shape: [usize; 4], wanted: [usize; 4]) -> Result<(), Error> {
    if shape == wanted {
        return Ok(());
    }
    refuse(format!("{name}.shape is {shape:?}; {wanted:?} is accepted"))
}
