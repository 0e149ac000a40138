// SPDX-License-Identifier: BSD-3-Clause
//! Results against the definition, gradients against finite differences, and what is refused before the C interface sees it.
use strobe::{Attention, Bf16, Gradients, Tensor, TensorMut, Workspace};

const SEQ: usize = 37;
const HEADS: usize = 4;
const HEADS_KV: usize = 2;
const DIM: usize = 24;
const OF_Q: [usize; 4] = [1, SEQ, HEADS, DIM];
const OF_K: [usize; 4] = [1, SEQ, HEADS_KV, DIM];

/// Numbers in [-1, 1), the same everywhere.
fn numbers(count: usize, mut seed: u32) -> Vec<f32> {
    let mut next = || {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 8) as f32 / 8388608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn inputs() -> Inputs {
    Inputs { q: numbers(SEQ * HEADS * DIM, 1), k: numbers(SEQ * HEADS_KV * DIM, 2), v: numbers(SEQ * HEADS_KV * DIM, 3) }
}

impl Inputs {
    fn attention(&self) -> Attention<'_, f32> {
        let (q, k, v) = (Tensor::new(&self.q, OF_Q), Tensor::new(&self.k, OF_K), Tensor::new(&self.v, OF_K));
        Attention::new(q.unwrap(), k.unwrap(), v.unwrap()).unwrap()
    }

    /// softmax(scale * q k) v of one row and head over keys first..=row, with a softcap where it is not 0.
    fn by_hand(&self, row: usize, head: usize, first: usize, softcap: f64) -> Vec<f64> {
        let at = |x: &[f32], n: usize, heads: usize, head: usize, c: usize| f64::from(x[(n * heads + head) * DIM + c]);
        let kv = head / (HEADS / HEADS_KV);
        let weights: Vec<f64> = (first..=row)
            .map(|key| {
                let dot: f64 = (0..DIM).map(|c| at(&self.q, row, HEADS, head, c) * at(&self.k, key, HEADS_KV, kv, c)).sum();
                let score = dot / (DIM as f64).sqrt();
                if softcap > 0.0 { softcap * (score / softcap).tanh() } else { score }.exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let value = |c| weights.iter().zip(first..).map(|(w, key)| w * at(&self.v, key, HEADS_KV, kv, c)).sum::<f64>() / sum;
        (0..DIM).map(value).collect()
    }
}

fn run(attention: &Attention<f32>) -> Vec<f32> {
    let mut out = vec![f32::NAN; SEQ * HEADS * DIM];
    attention.forward(&mut TensorMut::new(&mut out, OF_Q).unwrap(), None, &mut Workspace::default()).unwrap();
    out
}

#[test]
fn results_are_those_of_the_definition() {
    let x = inputs();
    let cases = [(x.attention().causal(), SEQ, 0.0), (x.attention().window(Some(5), Some(0)).softcap(2.0), 5, 2.0)];
    for (attention, left, softcap) in cases {
        let out = run(&attention);
        for row in 0..SEQ {
            for head in 0..HEADS {
                let truth = x.by_hand(row, head, row.saturating_sub(left), softcap);
                for (c, value) in truth.iter().enumerate() {
                    let error = (f64::from(out[(row * HEADS + head) * DIM + c]) - value).abs();
                    assert!(error < 1e-5, "row {row}, head {head}: {error}");
                }
            }
        }
    }
}

#[test]
fn gradients_are_differences() {
    let mut x = inputs();
    let dout = numbers(x.q.len(), 4);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut work = Workspace::default();
    let (mut out, mut lse) = (vec![0.0; x.q.len()], vec![0.0; SEQ * HEADS]);
    let (mut dq, mut dk, mut dv) = (vec![0.0; x.q.len()], vec![0.0; x.k.len()], vec![0.0; x.v.len()]);
    let attention = x.attention().causal();
    attention.forward(&mut TensorMut::new(&mut out, OF_Q).unwrap(), Some(&mut lse), &mut work).unwrap();
    let gradients = Gradients {
        q: &mut TensorMut::new(&mut dq, OF_Q).unwrap(),
        k: &mut TensorMut::new(&mut dk, OF_K).unwrap(),
        v: &mut TensorMut::new(&mut dv, OF_K).unwrap(),
    };
    let saved = (&Tensor::new(&out, OF_Q).unwrap(), lse.as_slice());
    attention.backward(saved, &Tensor::new(&dout, OF_Q).unwrap(), gradients, &mut work).unwrap();
    let direction = numbers(x.k.len(), 5);
    let center = x.k.clone();
    let mut loss = |step: f32| {
        x.k = center.iter().zip(&direction).map(|(k, d)| k + step * d).collect();
        dot(&run(&x.attention().causal()), &dout)
    };
    let difference = (loss(1e-2) - loss(-1e-2)) / 2e-2;
    let gradient = dot(&dk, &direction);
    assert!((gradient - difference).abs() < 1e-3 * gradient.abs() + 1e-3, "{gradient}, {difference}");
    assert!(dot(&dq, &dq) > 0.0 && dot(&dv, &dv) > 0.0);
}

#[test]
fn strided_tensors_are_views() {
    // q, k and v of one head, packed beside each other; the result is every second row of a larger tensor.
    let packed = numbers(9 * 3 * 8, 6);
    let part = |n: usize| Tensor::strided(&packed[8 * n..], [1, 9, 1, 8], [0, 24, 8]).unwrap();
    let copy = |n: usize| (0..9).flat_map(|row| packed[24 * row + 8 * n..][..8].to_vec()).collect::<Vec<f32>>();
    let (q, k, v) = (copy(0), copy(1), copy(2));
    let whole = |x| Tensor::new(x, [1, 9, 1, 8]).unwrap();
    let (mut apart, mut together) = (vec![7.0; 9 * 16], vec![0.0; 9 * 8]);
    let mut work = Workspace::default();
    let attention = Attention::new(part(0), part(1), part(2)).unwrap();
    attention.forward(&mut TensorMut::strided(&mut apart, [1, 9, 1, 8], [0, 16, 8]).unwrap(), None, &mut work).unwrap();
    let attention = Attention::new(whole(&q), whole(&k), whole(&v)).unwrap();
    attention.forward(&mut TensorMut::new(&mut together, [1, 9, 1, 8]).unwrap(), None, &mut work).unwrap();
    for row in 0..9 {
        assert_eq!(apart[16 * row..][..8], together[8 * row..][..8]);
        assert_eq!(apart[16 * row + 8..][..8], [7.0; 8]);
    }
}

#[test]
fn bfloat16_sinks_and_alibi() {
    let ones = vec![Bf16(0x3f80); 6 * 2 * 16];
    let mut out = vec![Bf16(0); ones.len()];
    let t = Tensor::new(&ones, [1, 6, 2, 16]).unwrap();
    let (slopes, sinks) = ([0.5, 0.25], [f32::NEG_INFINITY, 1e30]);
    let attention = Attention::new(t, t, t).unwrap().alibi(&slopes).unwrap().sinks(&sinks).unwrap();
    attention.forward(&mut TensorMut::new(&mut out, [1, 6, 2, 16]).unwrap(), None, &mut Workspace::default()).unwrap();
    // A sink of -inf changes nothing, so that the average of ones is one; a huge one takes all the weight.
    assert!(out.chunks(32).all(|row| row[..16] == [Bf16(0x3f80); 16] && row[16..] == [Bf16(0); 16]));
    assert!(attention.explain().unwrap().contains("chosen"));
}

#[test]
fn calls_from_many_threads() {
    let x = inputs();
    let attention = x.attention().causal();
    let truth = run(&attention);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(run(&attention), truth)));
        }
    });
}

/// The sentence of what is refused.
fn sentence<T>(result: Result<T, strobe::Error>) -> String {
    result.err().expect("it was taken").to_string()
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = vec![0.0f32; 100];
    let mut y = vec![7.0f32; 100];
    let huge = usize::MAX / 2;
    assert_eq!(
        sentence(Tensor::new(&x, [1, 5, 2, 11])),
        "the slice has 100 elements; at least 110, for [1, 5, 2, 11], is accepted"
    );
    assert!(sentence(Tensor::new(&x, [huge, huge, 1, 1])).contains("which no memory holds"));
    assert!(sentence(Tensor::new(&x, [huge, huge, 0, 1])).contains("which no memory holds"));
    assert!(sentence(Tensor::strided(&x, [2, 1, 1, 8], [huge / 2, 8, 8])).contains("the slice has 100 elements"));
    assert!(sentence(Tensor::strided(&x, [1, 5, 1, 8], [0, 0, 0])).contains("strides are [0, 0, 0]"));
    assert!(Tensor::strided(&x, [1, 5, 2, 8], [0, 0, 8]).is_ok(), "rows of what is read may be one");
    assert!(Tensor::strided(&x, [1, 1, 1, 8], [huge, huge, huge]).is_ok(), "strides that are never taken may be any");
    assert!(sentence(TensorMut::strided(&mut y, [1, 5, 2, 8], [0, 0, 8])).contains("overlap"));
    assert!(sentence(TensorMut::strided(&mut y, [1, 5, 2, 8], [0, 8, 15])).contains("overlap"));
    assert!(TensorMut::strided(&mut y, [1, 2, 5, 8], [0, 8, 16]).is_ok());
    let t = |shape| Tensor::new(&x, shape).unwrap();
    let q = t([1, 5, 2, 8]);
    assert_eq!(sentence(Attention::new(q, t([1, 6, 2, 7]), q)), "k.shape is [1, 6, 2, 7]; [1, 6, 2, 8] is accepted");
    assert_eq!(sentence(Attention::new(q, q, t([1, 6, 2, 8]))), "v.shape is [1, 6, 2, 8]; [1, 5, 2, 8] is accepted");
    assert!(sentence(Attention::new(q, t([1, 5, 0, 8]), t([1, 5, 0, 8]))).contains("2 and 0 heads"));
    let attention = Attention::new(q, q, q).unwrap();
    let mut work = Workspace::default();
    let mut out = TensorMut::new(&mut y, [1, 5, 2, 8]).unwrap();
    let answer = attention.forward(&mut out, Some(&mut [0.0; 9]), &mut work);
    assert!(sentence(answer).contains("lse has 9 elements; 10"));
    assert!(sentence(attention.clone().alibi(&[1.0])).contains("alibi has 1 elements; 2"));
    let refused = attention.clone().softcap(-1.0).forward(&mut out, None, &mut work);
    assert_eq!(sentence(refused), "softcap is -1; 0 (none) or a number from 1e-30 to 1e30 is accepted");
    assert!(y.iter().all(|&v| v == 7.0), "nothing is written on refusal");
}
