/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fuzz_npy.c: any bytes as a .npy file: an array that lies inside the bytes, or a sentence. */
#include "input.h"
#include "io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    array a;
    char message[256] = "";
    if (npy_parse(data, size, &a, message, sizeof message)) {
        REQUIRE(a.bytes == 0 || (a.data >= data && a.bytes <= (size_t)(data + size - a.data)));
        REQUIRE(a.rank >= 0 && a.rank <= ARRAY_RANK);
    } else {
        REQUIRE(message[0] != 0 && memchr(message, 0, sizeof message));
    }
    return 0;
}
