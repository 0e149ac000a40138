// SPDX-License-Identifier: BSD-3-Clause
//
// consumer.cpp: the header and the library from C++17.
#include <cstdio>
#include <string>
#include <strobe/strobe.h>
#include <vector>

int main() {
    const std::vector<float> q(64, 1.0f), k(6 * 64, 0.5f), v(6 * 64, 2.0f);
    std::vector<float> out(64);
    strobe_attention a{};
    a.struct_size = sizeof a;
    a.batch = 1, a.seq_q = 1, a.seq_k = 6, a.heads_q = 1, a.dim = 64;
    a.q.data = const_cast<float *>(q.data()), a.k.data = const_cast<float *>(k.data());
    a.v.data = const_cast<float *>(v.data()), a.out.data = out.data();
    if (strobe_forward(&a, nullptr, 0, nullptr) != STROBE_OK) {
        std::puts(strobe_last_error());
        return 1;
    }
    // Every value is 2, and so is every average of values.
    for (const float x : out)
        if (!(x > 1.99999f && x < 2.00001f)) return 1;
    const std::string header = std::to_string(STROBE_VERSION_MAJOR) + "." + std::to_string(STROBE_VERSION_MINOR) + "." +
                               std::to_string(STROBE_VERSION_PATCH);
    return header == strobe_version() ? 0 : 1;
}
