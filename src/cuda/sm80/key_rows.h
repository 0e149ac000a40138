/* SPDX-License-Identifier: BSD-3-Clause
 *
 * key_rows.h: the shared memory that a forward over a cache (cache.h) takes beside its tiles, as the host asks for it. */
#ifndef STROBE_CUDA_SM80_KEY_ROWS_H
#define STROBE_CUDA_SM80_KEY_ROWS_H

/* Blocks of keys whose rows are known at a time: the one in work, the one that is copied, the one that is looked up. */
enum { KEY_ROWS_SLOTS = 3 };

/* Of one block of keys: the offsets of K's and V's rows, their scales, and which have no memory: see struct key_rows. */
#define KEY_ROWS_BYTES(keys) ((keys) * (2 * 8 + 2 * 4) + 16)

/* The same where a row's place is one number of 32 bits for both; then also of the block whose pages are on their way. */
#define KEY_ROWS_32_BYTES(keys) ((keys)*4 + 16)
#define KEY_ROWS_32_SLOTS       4

#endif
