// SPDX-License-Identifier: BSD-3-Clause
//
// 07_cpp.cpp: forward and backward from C++20, with spans, exceptions and a workspace that is kept. One direction of the
// gradient is compared with a finite difference. Compile: c++ -std=c++20 07_cpp.cpp $(pkg-config --cflags --libs strobe)
#include <cmath>
#include <cstdio>
#include <strobe/strobe.hpp>
#include <vector>

namespace {

constexpr std::int64_t rows = 48, heads = 4, heads_kv = 2, dim = 32;
using numbers = std::vector<float>;

numbers waves(std::int64_t count, float step) {
    numbers x(static_cast<std::size_t>(count));
    for (std::size_t n = 0; n < x.size(); ++n) x[n] = std::sin(step * static_cast<float>(n));
    return x;
}

double dot(const numbers &x, const numbers &y) {
    double sum = 0;
    for (std::size_t n = 0; n < x.size(); ++n) sum += static_cast<double>(x[n]) * static_cast<double>(y[n]);
    return sum;
}

const strobe::sizes of_q{1, rows, heads, dim}, of_k{1, rows, heads_kv, dim};

// The loss is the sum of out * dout.
double loss(const numbers &q, const numbers &k, const numbers &v, const numbers &dout, strobe::workspace &work) {
    numbers out(q.size());
    strobe::attention a(strobe::tensor(q, of_q), strobe::tensor(k, of_k), strobe::tensor(v, of_k),
                        strobe::tensor(out, of_q));
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    strobe::forward(a, work.of(a));
    return dot(out, dout);
}

} // namespace

int main() try {
    numbers q = waves(rows * heads * dim, 0.37f), k = waves(rows * heads_kv * dim, 0.53f);
    const numbers v = waves(rows * heads_kv * dim, 0.71f), dout = waves(rows * heads * dim, 0.11f);
    numbers out(q.size()), lse(rows * heads), dq(q.size()), dk(k.size()), dv(v.size());

    strobe::attention a(strobe::tensor(q, of_q), strobe::tensor(k, of_k), strobe::tensor(v, of_k),
                        strobe::tensor(out, of_q));
    a.mask = STROBE_MASK_CAUSAL_BOTTOM_RIGHT;
    a.keep_lse(lse);
    strobe::workspace work;
    strobe::forward(a, work.of(a));
    const strobe::gradients g(a, strobe::tensor(dout, of_q), strobe::tensor(dq, of_q), strobe::tensor(dk, of_k),
                              strobe::tensor(dv, of_k));
    strobe::backward(a, g, work.of(a, &g));

    const numbers direction = waves(rows * heads_kv * dim, 0.91f);
    constexpr float step = 1e-2f;
    numbers ahead = k, behind = k;
    for (std::size_t n = 0; n < k.size(); ++n) ahead[n] += step * direction[n], behind[n] -= step * direction[n];
    const double difference = (loss(q, ahead, v, dout, work) - loss(q, behind, v, dout, work)) / (2.0 * step);
    const double gradient = dot(dk, direction);
    std::printf("along one direction: dk says %.5f, a finite difference %.5f\n", gradient, difference);

    try {
        a.softcap = -1;
        strobe::forward(a);
        return 1;
    } catch (const strobe::error &refusal) {
        std::printf("%s: %s\n", strobe_status_name(refusal.status()), refusal.what());
    }
    return std::fabs(gradient - difference) < 1e-3 * std::fabs(gradient) + 1e-4 ? 0 : 1;
} catch (const strobe::error &refusal) {
    std::fprintf(stderr, "%s\n", refusal.what());
    return 1;
}
