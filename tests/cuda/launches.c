/* SPDX-License-Identifier: BSD-3-Clause
 *
 * launches.c: on each architecture every problem finds kernels whose launches fit its shared memory, threads and
 * instructions, on the device that is named whatever is current. The library's core and the CUDA backend's host side run
 * over a runtime that checks launches and has no GPU (fake_runtime.c). Where code does not load, the call fails and leaves
 * the thread as it was. Exit code 0 passed, 1 failed. */
#include <stdio.h>
#include <string.h>

#include "fake_calls.h"
#include "fake_runtime.h"

/* No kernel is compiled here. */
const char strobe__cuda_sources[1] = "", strobe__cuda_sources_end[1] = "";

/* ---- the problems */

static const unsigned features[] = {0,
                                    CAUSAL,
                                    BIAS,
                                    BIAS | BROADCAST | FIXED_ORDER,
                                    BOOL,
                                    BLOCK,
                                    BLOCK | FIXED_ORDER,
                                    ALIBI,
                                    DROPOUT,
                                    SINKS,
                                    SOFTCAP,
                                    SOFTCAP | FIXED_ORDER,
                                    SOFTCAP | ALIBI,
                                    PACKED,
                                    USED,
                                    NEGATIVE,
                                    ODD,
                                    FIXED_ORDER,
                                    SPLIT,
                                    WIDE,
                                    WIDE | SINKS,
                                    WIDE | BIAS | ALIBI | SOFTCAP,
                                    CAUSAL | PACKED | FIXED_ORDER,
                                    BIAS | BOOL | BLOCK | ALIBI | DROPOUT | SINKS | SOFTCAP | USED | CAUSAL,
                                    VISIBLE,
                                    VISIBLE | BOOL | BROADCAST,
                                    VISIBLE | BLOCK | USED,
                                    VISIBLE | FIXED_ORDER | SOFTCAP,
                                    BIAS | SINKS | ODD | FIXED_ORDER | NEGATIVE,
                                    TF32_PARTS,
                                    TF32_PARTS | CAUSAL | FIXED_ORDER,
                                    TF32_PARTS | BIAS | DROPOUT | PACKED,
                                    PAGED,
                                    PAGED | CAUSAL | ODD,
                                    INT8_CACHE,
                                    INT8_CACHE | SPLIT,
                                    FP8_CACHE,
                                    FP8_CACHE | PAGED | USED | SINKS,
                                    V_IN_K,
                                    V_IN_K | PAGED | USED | CAUSAL,
                                    V_IN_K | SOFTCAP | ALIBI | SPLIT,
                                    V_IN_K | INT8_CACHE,
                                    V_IN_K | FP8_CACHE | PAGED | USED};
static const int64_t dims[][2] = {{1, 1},     {32, 32},   {40, 24},   {48, 48},   {64, 64},   {65, 65},
                                  {96, 96},   {128, 128}, {160, 160}, {192, 128}, {192, 192}, {256, 256},
                                  {257, 257}, {512, 512}, {64, 512},  {512, 1},   {576, 512}};
static const int64_t sizes[][4] = {/* batch, seq_q, seq_k, group */
                                   {1, 1, 1, 1},      {2, 1, 4096, 8},     {1, 16, 300, 1},     {3, 64, 64, 2},
                                   {1, 1000, 700, 1}, {16, 4096, 4096, 1}, {16, 3900, 4096, 1}, {2, 0, 5, 2},
                                   {2, 5, 0, 2},      {2, 4, 2000, 8},     {2, 8, 2000, 8},     {1, 16, 300, 8},
                                   {1, 1, 4096, 8},   {10, 1, 4096, 8},    {1, 64, 4096, 2},    {3, 1, 300, 1},
                                   {10, 1, 300, 1}};
static const int32_t dtypes[] = {STROBE_FP32, STROBE_FP16, STROBE_BF16};

/* ---- the runs */

static int failures, calls;

static void fail(const struct call *c, bool backward, const char *sentence) {
    if (++failures > 20) return;
    fprintf(stderr, "FAILED: %s %s d %d/%d, sq %d, sk %d, dtype %d: %s\n", fake_gpus[c->a.device_index].name,
            backward ? "bwd" : "fwd", (int)c->a.dim, (int)c->a.dim_v, (int)c->a.seq_q, (int)c->a.seq_k, c->a.dtype,
            sentence);
}

/* before: the device that is current, -1 none. Afterwards it is the same, or what the runtime would have chosen. */
static void run(struct call *c, bool backward, int before) {
    const int device = c->a.device_index;
    size_t bytes = 0;
    void *workspace = fake_memory(device, (uintptr_t)1 << 46);
    fake_thread = (struct fake_thread){.current = before, .chosen = before < 0 ? 0 : before, .below = {-1, -1, -1, -1}};
    fake_launches.device = device, fake_launches.refusal[0] = 0;
    const int64_t launches = fake_launches.count;
    strobe_status status = strobe_workspace(&c->a, backward ? &c->g : NULL, &bytes);
    if (!status)
        status = backward ? strobe_backward(&c->a, &c->g, workspace, bytes, NULL)
                          : strobe_forward(&c->a, workspace, bytes, NULL);
    ++calls;
    if (status || fake_launches.refusal[0]) fail(c, backward, status ? strobe_last_error() : fake_launches.refusal);
    if (!backward && c->a.seq_q == 0) return;
    if (fake_launches.count == launches && !status) fail(c, backward, "no launch");
    const bool same = fake_thread.current == before || (before < 0 && device == 0 && fake_thread.current == 0);
    if (!same || fake_thread.chosen != (before < 0 ? 0 : before) || fake_thread.held)
        fail(c, backward, "another device is current than before");
}

/* strobe_merge: few parts and many, by kernels of their own. */
static void run_merge(int device, int64_t count, int before) {
    strobe_partial parts[40];
    for (int64_t n = 0; n < count; ++n)
        parts[n] = (strobe_partial){.out = {.data = fake_memory(device, 4096)}, .lse = {.data = fake_memory(device, 8192)}};
    strobe_partials m = {.struct_size = sizeof m, .batch = 2, .seq_q = 70, .heads_q = 3, .dim_v = 80, .count = count};
    m.parts = parts, m.device = STROBE_CUDA, m.device_index = device;
    m.out.data = fake_memory(device, 1 << 20), m.lse.data = fake_memory(device, 2 << 20);
    fake_thread = (struct fake_thread){.current = before, .chosen = before < 0 ? 0 : before, .below = {-1, -1, -1, -1}};
    fake_launches.device = device, fake_launches.refusal[0] = 0;
    ++calls;
    if (strobe_merge(&m, NULL) || fake_launches.refusal[0]) {
        fprintf(stderr, "FAILED: %s, a merge: %s\n", fake_gpus[device].name, strobe_last_error());
        ++failures;
    }
}

static void run_all(int device) {
    struct call c;
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; ++t)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; ++d)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s)
                for (size_t f = 0; f < sizeof features / sizeof features[0]; ++f)
                    for (int backward = 0; backward < 2; ++backward) {
                        if (backward && (features[f] & (SPLIT | CACHES) || dims[d][0] > 512)) continue;
                        fake_call(&c, device, dtypes[t], dims[d], sizes[s], features[f]);
                        if (f == 0) run(&c, backward, device), run(&c, backward, (device + 1) % FAKE_GPUS);
                        run(&c, backward, -1);
                        if (!backward || !(features[f] & WIDE)) continue;
                        c.a.out.dtype = dtypes[t]; /* gradients alone are fp32 */
                        run(&c, backward, -1);
                        c.g.accumulate = STROBE_ADD_TO_DQ | STROBE_ADD_TO_DK | STROBE_ADD_TO_DV;
                        run(&c, backward, -1);
                    }
}

/* Many rows over K and V in pages, by the Hopper forward. */
static void run_prefill(int device) {
    static const int64_t columns[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}},
                         size[4] = {2, 512, 4096, 4};
    strobe_paged paged = {.struct_size = sizeof paged, .page_table = fake_place(device), .page_size = 16, .pages = 9999};
    struct call c;
    for (size_t d = 0; d < sizeof columns / sizeof columns[0]; ++d)
        for (int n = 0; n < 4; ++n) {
            fake_call(&c, device, n % 2 ? STROBE_BF16 : STROBE_FP16, columns[d], size, n < 2 ? CAUSAL : SOFTCAP | ALIBI);
            c.a.paged = &paged;
            run(&c, false, -1);
        }
}

/* A call whose kernel cannot be loaded fails, launches nothing and leaves the thread's capture mode as it was; the next one
 * loads what was not. Comes before all calls, which load. */
static void run_failing(int device) {
    static const int64_t columns[2] = {64, 64}, size[4] = {1, 64, 64, 1};
    static const int failing[] = {MODE_FAILS, LOAD_FAILS, KERNEL_FAILS};
    struct call c;
    fake_call(&c, device, STROBE_BF16, columns, size, 0);
    for (size_t n = 0; n < sizeof failing / sizeof failing[0]; ++n) {
        const int64_t launches = fake_launches.count;
        size_t bytes = 0;
        fake_thread = (struct fake_thread){.current = device, .chosen = device, .below = {-1, -1, -1, -1}};
        fake_launches.device = device, fake_launches.refusal[0] = 0, fake_launches.failing = failing[n];
        strobe_status status = strobe_workspace(&c.a, NULL, &bytes);
        if (!status) status = strobe_forward(&c.a, fake_memory(device, (uintptr_t)1 << 46), bytes, NULL);
        ++calls, fake_launches.failing = ALL_WORKS;
        if (status != STROBE_DEVICE_ERROR || fake_launches.count != launches) fail(&c, false, "what fails is not reported");
        if (fake_capture_mode != cudaStreamCaptureModeGlobal) fail(&c, false, "another capture mode than before");
    }
    run(&c, false, device);
}

int main(void) {
    int kernels = 0, unused = 0;
    for (int device = 0; device < FAKE_GPUS; ++device) run_failing(device);
    for (int device = 0; device < FAKE_GPUS; ++device) {
        run_all(device);
        if (fake_gpus[device].major == 9) run_prefill(device);
        for (int before = -1; before < FAKE_GPUS; ++before) run_merge(device, 2, before), run_merge(device, 40, before);
    }
    for (const struct fake_kernel *k = fake_kernels; k->name; ++k, ++kernels)
        if (!k->with_functions && !fake_launches.used[k - fake_kernels] && ++unused) printf("never launched: %s\n", k->name);
    for (int device = 0; device < FAKE_GPUS; ++device) {
        int used = 0;
        for (int k = 0; k < kernels; ++k) used += (fake_launches.used[k] >> device & 1) != 0;
        printf("%s: %d kernels\n", fake_gpus[device].name, used);
    }
    printf("%d calls, %lld launches of %d kernels, %d never; %d failed\n", calls, (long long)fake_launches.count, kernels,
           unused, failures);
    return failures > 0 || unused > 0;
}
