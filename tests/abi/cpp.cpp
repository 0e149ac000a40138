// SPDX-License-Identifier: BSD-3-Clause
//
// cpp.cpp: what strobe.hpp checks and the C interface cannot: spans that are too short, shapes that do not fit, sizes that
// overflow; and that what it accepts computes what the C call computes. cpp.sh compiles it with every compiler that is here.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <strobe/strobe.hpp>
#include <type_traits>
#include <vector>

struct half {
    std::uint16_t bits;
};
template <> inline constexpr strobe_dtype strobe::dtype_of<half> = STROBE_FP16;

namespace {

int failures = 0;

void expect(bool holds, const char *what) {
    if (!holds) std::printf("not so: %s\n", what), ++failures;
}

// Whether the call throws a strobe::error whose sentence begins so.
template <class Call> void refused(const char *sentence, const Call &call, strobe_status status = STROBE_INVALID_ARGUMENT) {
    try {
        call();
    } catch (const strobe::error &e) {
        if (std::strncmp(e.what(), sentence, std::strlen(sentence)) == 0 && e.status() == status) return;
        std::printf("said %d \"%s\", not \"%s\"\n", e.status(), e.what(), sentence), ++failures;
        return;
    }
    std::printf("nothing was thrown; expected \"%s\"\n", sentence), ++failures;
}

using strobe::tensor;
std::vector<float> x(1000), y(1000);
const std::vector<float> constant(1000, 0.5f);

void spans() {
    refused("shape is (1, 10, 2, 51), which 1000 elements do not hold", [] { tensor(x, {1, 10, 2, 51}); });
    refused("shape is (-1, 1, 1, 1); sizes from 0 on", [] { tensor(x, {-1, 1, 1, 1}); });
    refused("stride is below 0", [] { tensor(x, {1, 2, 1, 8}, {0, -8, 8}); });
    const std::int64_t huge = std::int64_t{1} << 40;
    refused("shape is (1099511627776, 1099511627776, 1, 1), which", [=] { tensor(x, {huge, huge, 1, 1}); });
    refused("shape is (2, 1, 1, 8), which 1000", [=] { tensor(x, {2, 1, 1, 8}, {huge, 8, 8}); });
    refused("shape is (1, 1, 1, 1), which 0 elements", [] { tensor(std::span<float>(), {1, 1, 1, 1}); });
    tensor(x, {1, 10, 2, 50});
    tensor(x, {1, 3, 1, 200}, {0, 400, 0}); // ends at the last element
    refused("shape is (1, 3, 1, 201), which 1000", [] { tensor(x, {1, 3, 1, 201}, {0, 400, 0}); });
    tensor(std::span<float>(), {0, 10, 2, 50});
    tensor(std::span<float>(), {huge, huge, 0, huge}); // no elements
    static_assert(std::is_same_v<decltype(tensor(constant, {1, 1, 1, 1})), tensor<const float>>);
    static_assert(std::is_same_v<decltype(tensor(x, {1, 1, 1, 1}, {1, 1, 1})), tensor<float>>);
    static_assert(tensor<const half>::dtype == STROBE_FP16 && tensor<signed char>::dtype == STROBE_INT8);
}

void shapes() {
    const strobe::sizes n{1, 5, 2, 8};
    const tensor t(constant, n);
    const tensor out(x, n);
    refused("k has the shape (1, 5, 2, 7); (1, 5, 2, 8) is accepted", [&] {
        strobe::attention(t, tensor(constant, {1, 5, 2, 7}), t, out);
    });
    refused("v has the shape (1, 6, 2, 8); (1, 5, 2, 8) is", [&] {
        strobe::attention(t, t, tensor(constant, {1, 6, 2, 8}), out);
    });
    refused("out has the shape (2, 5, 2, 8); (1, 5, 2, 8)", [&] { strobe::attention(t, t, t, tensor(x, {2, 5, 2, 8})); });
    const tensor nothing(constant, {1, 5, 0, 8});
    refused("k and v have no heads", [&] { strobe::attention(t, nothing, nothing, out); });
    strobe::attention a(t, t, t, out);
    refused("lse has 9 elements; 10 is accepted", [&] { a.keep_lse(std::span(y).first(9)); });
    refused("dk has the shape (1, 5, 1, 8); (1, 5, 2, 8)", [&] {
        strobe::gradients(a, t, tensor(y, n), tensor(y, {1, 5, 1, 8}), tensor(y, n));
    });
    refused("heads_kv is 2; ", [&] {
        strobe::forward(strobe::attention(tensor(constant, {1, 5, 3, 8}), t, t, tensor(x, {1, 5, 3, 8})));
    });
    std::vector<std::byte> few(128);
    void *const aligned = reinterpret_cast<void *>((reinterpret_cast<std::uintptr_t>(few.data()) + 63) / 64 * 64);
    refused(
        "workspace_bytes is 64; at least ", [&] { strobe::forward(a, std::span(static_cast<std::byte *>(aligned), 64)); },
        STROBE_WORKSPACE_TOO_SMALL);
}

// Interleaved tensors, by strides, against the C call on the same memory; a workspace serves calls of any size.
void results() {
    std::vector<float> packed(7 * 3 * 2 * 8), mine(7 * 2 * 8), theirs(7 * 2 * 8);
    for (std::size_t n = 0; n < packed.size(); ++n) packed[n] = std::sin(static_cast<float>(n));
    const strobe::sizes n{1, 7, 2, 8};
    const strobe::strides apart{0, 48, 8};
    const std::span<const float> all(packed);
    strobe::attention a(tensor(all, n, apart), tensor(all.subspan(16), n, apart), tensor(all.subspan(32), n, apart),
                        tensor(mine, n));
    strobe::workspace work;
    for (int round = 0; round < 3; ++round) {
        a.seq_q = round == 1 ? 1 : 7;
        strobe::forward(a, work.of(a));
    }
    auto c = strobe::make<strobe_attention>();
    c.batch = 1, c.seq_q = c.seq_k = 7, c.heads_q = 2, c.dim = 8;
    float *const first = packed.data();
    c.q = {first, {0, 48, 8}, 0, 0}, c.k = {first + 16, {0, 48, 8}, 0, 0}, c.v = {first + 32, {0, 48, 8}, 0, 0};
    c.out.data = theirs.data();
    strobe::check(strobe_forward(&c, nullptr, 0, nullptr));
    expect(mine == theirs, "the same bits as by the C interface");
    expect(theirs[100] != 0, "something was computed");
}

} // namespace

int main() {
    spans();
    shapes();
    results();
    return failures;
}
