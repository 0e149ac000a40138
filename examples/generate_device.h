/* SPDX-License-Identifier: BSD-3-Clause
 *
 * generate_device.h: all that generate.c asks of a device beside the library's two calls: memory, and the model between its
 * attentions. generate_cpu.c has it by plain loops, generate_cuda.cu by cuBLAS and small kernels. Tensors are fp32, rows one
 * after the other, in memory of the device; a function that fails says why and ends the program. */
#ifndef STROBE_EXAMPLES_GENERATE_DEVICE_H
#define STROBE_EXAMPLES_GENERATE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct device {
    int32_t kind; /* STROBE_CPU or STROBE_CUDA */

    void *(*open)(void);                                   /* the stream on which all is done; NULL on the CPU */
    void *(*zeros)(size_t bytes);                          /* memory of the device, which the program keeps */
    void (*put)(void *to, const void *from, size_t bytes); /* to the device, behind what was asked for before */
    void (*get)(void *to, const void *from, size_t bytes); /* from it, when all that is done */

    /* x[rows][width] = embed[ids[r]] + place[places[r]] */
    void (*look_up)(float *x, const float *embed, const float *place, const int32_t *ids, const int32_t *places, int rows,
                    int width);
    /* to[rows][width] = layer norm of x[from ? from[r] : r]; weight_bias: [width] each */
    void (*norm)(float *to, const float *x, const int32_t *from, const float *const weight_bias[2], int rows, int width);
    /* to[rows][outs] = x[rows][ins] weight[outs][ins]^T + bias, added to what is there if `added`; bias NULL: none */
    void (*linear)(float *to, const float *x, const float *const weight_bias[2], int rows, int ins, int outs, int added);
    void (*gelu)(float *x, size_t count);
    /* ids[r]: which of the columns of x[rows][columns] is the largest, the first of equals */
    void (*largest)(int32_t *ids, const float *x, int rows, int columns);

    /* A step that is run again and again with the same pointers and sizes, which `number`, from 0 on, stands for. replay:
     * whether it did the step. record: from now to end_record all that is asked for is kept under the number, and done.
     * NULL where nothing is gained. */
    int (*replay)(int number);
    void (*record)(int number);
    void (*end_record)(void);
};

extern const struct device on_cpu, on_cuda; /* on_cuda: in builds with CUDA */

/* Says what and why, and ends the program. */
void stop(const char *why, const char *what);

#ifdef __cplusplus
}
#endif
#endif
