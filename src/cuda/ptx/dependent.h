/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dependent.h: kernels that follow each other in a stream and overlap (PTX ISA 9.7.13.14, griddepcontrol): a kernel that was
 * launched as one may start when every CTA of the kernel before it has let it in or has ended. */
#ifndef STROBE_CUDA_PTX_DEPENDENT_H
#define STROBE_CUDA_PTX_DEPENDENT_H

/* The next kernel's CTAs may take what room there is. */
static __device__ __forceinline__ void let_next_start(void) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Until the kernel before has ended and what it wrote is seen. */
static __device__ __forceinline__ void wait_for_previous(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#endif
