/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fuzz_safetensors.c: any bytes as a safetensors file: tensors that lie inside the bytes, or a sentence. */
#include "input.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    safetensors file;
    char message[256] = "";
    if (safetensors_parse(data, size, &file, message, sizeof message)) {
        for (size_t n = 0; n < file.count; ++n) {
            const array *a = &file.arrays[n];
            REQUIRE(a->bytes == 0 || (a->data >= data && a->bytes <= (size_t)(data + size - a->data)));
            REQUIRE(a->rank >= 0 && a->rank <= ARRAY_RANK && memchr(a->name, 0, sizeof a->name));
            REQUIRE(safetensors_find(&file, a->name) != NULL);
        }
    } else {
        REQUIRE(message[0] != 0 && memchr(message, 0, sizeof message));
    }
    safetensors_free(&file);
    return 0;
}
