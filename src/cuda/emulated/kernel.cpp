/* SPDX-License-Identifier: BSD-3-Clause
 *
 * kernel.cpp: the text of kernels, EMULATED_TEXT by -D, as C++ of the host; EMULATED_KERNELS registers each. */
#include "cuda/emulated/language.h"

#include EMULATED_TEXT

#include "cuda/emulated/kernel.h"
EMULATED_KERNELS
