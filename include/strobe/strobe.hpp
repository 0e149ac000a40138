// SPDX-License-Identifier: BSD-3-Clause
//
// strobe.hpp: the C interface for C++20. Tensors are spans with a shape, a refusal is an exception, a workspace frees
// itself. attention and gradients are the structures of strobe.h with sizes filled in, so that every feature is set as that
// header says; what has no function here is called as strobe::check(strobe_merge(&m, nullptr)).
//
//     std::vector<float> q(512 * 8 * 64), k(512 * 2 * 64), v(512 * 2 * 64), out(512 * 8 * 64);
//     strobe::attention a(strobe::tensor(q, {1, 512, 8, 64}), strobe::tensor(k, {1, 512, 2, 64}),
//                         strobe::tensor(v, {1, 512, 2, 64}), strobe::tensor(out, {1, 512, 8, 64}));
//     a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
//     strobe::forward(a); // throws strobe::error
#ifndef STROBE_HPP
#define STROBE_HPP

#include "strobe/strobe.h"

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace strobe {

// What was refused or failed; what() is one sentence that names the argument, its value and what is accepted.
class error : public std::runtime_error {
  public:
    error(strobe_status status, const std::string &sentence) : std::runtime_error(sentence), status_(status) {}
    strobe_status status() const noexcept { return status_; }

  private:
    strobe_status status_;
};

inline void check(strobe_status status) {
    if (status != STROBE_OK) throw error(status, strobe_last_error());
}
inline void accept(bool accepted, const std::string &sentence) {
    if (!accepted) throw error(STROBE_INVALID_ARGUMENT, sentence);
}

// A structure of strobe.h with struct_size set and all else zero: auto alibi = strobe::make<strobe_alibi>();
template <class S> S make() {
    S structure{};
    structure.struct_size = sizeof structure;
    return structure;
}

// The strobe_dtype of an element. 16-bit types of the program's own are made known by a specialisation:
//     template <> inline constexpr strobe_dtype strobe::dtype_of<my_bfloat16> = STROBE_BF16;
template <class T> inline constexpr strobe_dtype dtype_of = STROBE_DTYPE_DEFAULT;
template <> inline constexpr strobe_dtype dtype_of<float> = STROBE_FP32;
template <> inline constexpr strobe_dtype dtype_of<double> = STROBE_FP64;
template <> inline constexpr strobe_dtype dtype_of<signed char> = STROBE_INT8;

using sizes = std::array<std::int64_t, 4>;   // batch, seq, heads, dim
using strides = std::array<std::int64_t, 3>; // elements between batch entries, positions and heads; zeros: contiguous

inline std::string to_string(const sizes &s) {
    return "(" + std::to_string(s[0]) + ", " + std::to_string(s[1]) + ", " + std::to_string(s[2]) + ", " +
           std::to_string(s[3]) + ")";
}

// A tensor in memory of the CPU. Throws error if the elements end before the tensor does.
template <class T> struct tensor {
    static constexpr strobe_dtype dtype = dtype_of<std::remove_const_t<T>>;
    static_assert(dtype != STROBE_DTYPE_DEFAULT, "strobe::dtype_of does not know this type");
    std::span<T> elements;
    sizes shape;
    strides stride;

    tensor(std::span<T> e, const sizes &n, const strides &s = {}) : elements(e), shape(n), stride(s) {
        std::int64_t last = 0, step = 1, contiguous = 1;
        bool empty = false, overflow = false;
        for (std::size_t axis = 4; axis-- > 0; overflow |= __builtin_mul_overflow(contiguous, n[axis], &contiguous)) {
            accept(n[axis] >= 0, "shape is " + to_string(n) + "; sizes from 0 on are accepted");
            if (axis < 3) step = s == strides{} ? contiguous : s[axis];
            accept(step >= 0, "stride is below 0; 0 and more is accepted");
            empty |= n[axis] == 0;
            overflow |= __builtin_mul_overflow(n[axis] - 1, step, &step) || __builtin_add_overflow(last, step, &last);
        }
        accept(empty || (!overflow && static_cast<std::uint64_t>(last) < e.size()),
               "shape is " + to_string(n) + ", which " + std::to_string(e.size()) + " elements do not hold");
    }
    // As a member of the C structures.
    operator strobe_tensor() const {
        void *const data = const_cast<std::remove_const_t<T> *>(elements.data());
        return {data, {stride[0], stride[1], stride[2]}, dtype, 0};
    }
    void check_shape(const char *name, const sizes &wanted) const {
        accept(shape == wanted, name + (" has the shape " + to_string(shape)) + "; " + to_string(wanted) + " is accepted");
    }
};
template <class R>
tensor(R &&, const sizes &, const strides & = {}) -> tensor<typename decltype(std::span(std::declval<R &>()))::element_type>;

// The descriptor of a forward. What the tensors look at must outlive it.
struct attention : strobe_attention {
    template <class Q, class K, class V, class O>
    attention(const tensor<Q> &q_, const tensor<K> &k_, const tensor<V> &v_, const tensor<O> &out_)
        : strobe_attention(make<strobe_attention>()) {
        static_assert(!std::is_const_v<O>, "out is written");
        batch = q_.shape[0], seq_q = q_.shape[1], heads_q = q_.shape[2], dim = q_.shape[3];
        seq_k = k_.shape[1], heads_kv = k_.shape[2], dim_v = v_.shape[3];
        k_.check_shape("k", {batch, seq_k, heads_kv, dim});
        v_.check_shape("v", {batch, seq_k, heads_kv, dim_v});
        out_.check_shape("out", {batch, seq_q, heads_q, dim_v});
        accept(heads_kv > 0 && dim_v > 0, "k and v have no heads or no columns; at least 1 is accepted");
        q = q_, k = k_, v = v_, out = out_, dtype = q_.dtype;
    }
    // lse is [batch, heads_q, seq_q]: forward writes it, backward reads it.
    void keep_lse(std::span<float> elements) {
        const std::int64_t needed = batch * heads_q * seq_q, given = static_cast<std::int64_t>(elements.size());
        accept(given >= needed,
               "lse has " + std::to_string(given) + " elements; " + std::to_string(needed) + " is accepted");
        lse = {elements.data(), {}, STROBE_FP32, 0};
    }
};

// What the backward reads and writes beside the forward's tensors; the attention's out and lse are those of the forward.
struct gradients : strobe_gradients {
    template <class O, class Q, class K, class V>
    gradients(const attention &a, const tensor<O> &dout_, const tensor<Q> &dq_, const tensor<K> &dk_, const tensor<V> &dv_)
        : strobe_gradients(make<strobe_gradients>()) {
        static_assert(!std::is_const_v<Q> && !std::is_const_v<K> && !std::is_const_v<V>, "dq, dk and dv are written");
        dout_.check_shape("dout", {a.batch, a.seq_q, a.heads_q, a.dim_v});
        dq_.check_shape("dq", {a.batch, a.seq_q, a.heads_q, a.dim});
        dk_.check_shape("dk", {a.batch, a.seq_k, a.heads_kv, a.dim});
        dv_.check_shape("dv", {a.batch, a.seq_k, a.heads_kv, a.dim_v});
        dout = dout_, dq = dq_, dk = dk_, dv = dv_;
    }
};

// Memory for calls on the CPU, kept from call to call and grown when one needs more. One call at a time may use it.
class workspace {
  public:
    std::span<std::byte> of(const strobe_attention &a, const strobe_gradients *g = nullptr) {
        std::size_t bytes = 0;
        check(strobe_workspace(&a, g, &bytes));
        if (bytes > bytes_) {
            memory_.reset(), bytes_ = 0;
            memory_.reset(static_cast<std::byte *>(::operator new(bytes, alignment))), bytes_ = bytes;
        }
        return {memory_.get(), bytes_};
    }

  private:
    static constexpr std::align_val_t alignment{64};
    struct release {
        void operator()(std::byte *memory) const { ::operator delete(memory, alignment); }
    };
    std::unique_ptr<std::byte, release> memory_;
    std::size_t bytes_ = 0;
};

// The calls. work: workspace::of(), memory of the GPU, or nothing: the library allocates on the CPU.
inline void forward(const strobe_attention &a, std::span<std::byte> work = {}, void *stream = nullptr) {
    check(strobe_forward(&a, work.data(), work.size(), stream));
}
inline void backward(const strobe_attention &a, const strobe_gradients &g, std::span<std::byte> work = {},
                     void *stream = nullptr) {
    check(strobe_backward(&a, &g, work.data(), work.size(), stream));
}

} // namespace strobe

#endif
