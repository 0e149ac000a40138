/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tensor_map.c: see tensor_map.h. The driver's encoder of tensor maps is found through the runtime, so that nothing links
 * against libcuda and the same library loads without one. */
#include "cuda/host/tensor_map.h"

#include <cudaTypedefs.h>
#include <pthread.h>

#include "cuda/host/device.h"

bool strobe__rows_are_aligned(const strobe_tensor *t) {
    const int64_t chunk = 16 / (int64_t)strobe__dtype_bytes(t->dtype);
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % chunk == 0 && t->stride[1] % chunk == 0 &&
           t->stride[2] % chunk == 0;
}

bool strobe__can_be_copied(const strobe_tensor *t, int64_t batch, int64_t heads) {
    const int64_t most = (int64_t)1 << 38;
    if ((batch > 1 && t->stride[0] == 0) || (heads > 1 && t->stride[2] == 0)) return false;
    return strobe__rows_are_aligned(t) && t->stride[0] >= 0 && t->stride[1] > 0 && t->stride[2] >= 0 &&
           t->stride[0] < most && t->stride[1] < most && t->stride[2] < most;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static PFN_cuTensorMapEncodeTiled_v12000 encode;

static void find_encoder(void) { (void)strobe__cuda_driver_function("cuTensorMapEncodeTiled", 12000, &encode); }

/* Its axes named as those of a tensor [batch, row, head, key]. */
static strobe_tensor scores_tensor(const struct problem *p, const strobe_bias *scores) {
    const strobe_tensor t = {.data = (void *)(uintptr_t)scores->data,
                             .stride = {scores->stride[0], scores->stride[2], scores->stride[1]},
                             .dtype = p->a.q.dtype};
    return t;
}

bool strobe__scores_can_be_copied(const struct problem *p, const strobe_bias *scores) {
    const strobe_tensor t = scores_tensor(p, scores);
    return scores->dtype == p->a.q.dtype && p->a.seq_k > 0 && p->a.seq_q > 0 && strobe__can_be_copied(&t, 1, 1);
}

static CUtensorMapDataType element_type(int32_t dtype) {
    if (strobe__dtype_bytes(dtype) == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    return dtype == STROBE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

/* A stride of 0 is that of an axis of extent 1, which may have any: 16 bytes will do. */
static bool encode_boxes(CUtensorMap *map, const strobe_tensor *t, int64_t dim, int64_t seq, int64_t heads, int64_t batch,
                         int64_t columns, int64_t rows, int64_t box_heads) {
    const cuuint64_t extent[4] = {(cuuint64_t)dim, (cuuint64_t)seq, (cuuint64_t)heads, (cuuint64_t)batch};
    const cuuint64_t bytes = strobe__dtype_bytes(t->dtype);
    cuuint64_t stride[3] = {(cuuint64_t)t->stride[1] * bytes, (cuuint64_t)t->stride[2] * bytes,
                            (cuuint64_t)t->stride[0] * bytes};
    for (int axis = 0; axis < 3; ++axis)
        if (stride[axis] == 0) stride[axis] = 16;
    const cuuint32_t box[4] = {(cuuint32_t)columns, (cuuint32_t)rows, (cuuint32_t)box_heads, 1}, step[4] = {1, 1, 1, 1};
    pthread_once(&once, find_encoder);
    return encode &&
           encode(map, element_type(t->dtype), 4, t->data, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  columns == 16 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool strobe__encode_map(CUtensorMap *map, const strobe_tensor *t, int64_t dim, int64_t seq, int64_t heads, int64_t batch,
                        int64_t rows) {
    return encode_boxes(map, t, dim, seq, heads, batch, 128 / (int64_t)strobe__dtype_bytes(t->dtype), rows, 1);
}

bool strobe__encode_heads_map(CUtensorMap *map, const strobe_tensor *t, int64_t dim, int64_t seq, int64_t heads,
                              int64_t batch, int64_t box_heads, int64_t box_rows) {
    strobe_tensor turned = *t; /* heads where rows were */
    turned.stride[1] = t->stride[2], turned.stride[2] = t->stride[1];
    return encode_boxes(map, &turned, dim, heads, seq, batch, 64, box_heads, box_rows);
}

/* Elements along five axes, the first of 64 columns or fewer; those of 16 bits come swizzled. */
static bool encode_five(CUtensorMap *map, const strobe_tensor *t, const cuuint64_t extent[5], const cuuint64_t stride[4],
                        const cuuint32_t box[5]) {
    const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    pthread_once(&once, find_encoder);
    return encode &&
           encode(map, element_type(t->dtype), 5, t->data, extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  strobe__dtype_bytes(t->dtype) == 1 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool strobe__encode_eights_map(CUtensorMap *map, const strobe_tensor *t, int64_t columns, int64_t eights, int64_t heads,
                               int64_t head_stride, int64_t box_slabs, int64_t box_eights) {
    const cuuint64_t bytes = strobe__dtype_bytes(t->dtype), slab = 64, slot = (cuuint64_t)t->stride[1] * bytes;
    const bool whole = (cuuint64_t)columns % slab == 0;
    const cuuint64_t extent[5] = {whole ? slab : (cuuint64_t)columns, 8, whole ? (cuuint64_t)columns / slab : 1,
                                  (cuuint64_t)eights, (cuuint64_t)heads};
    const cuuint64_t stride[4] = {slot, slab * bytes, 8 * slot, head_stride ? (cuuint64_t)head_stride * bytes : 16};
    const cuuint32_t box[5] = {64, 8, (cuuint32_t)box_slabs, (cuuint32_t)box_eights, 1};
    return encode_five(map, t, extent, stride, box);
}

bool strobe__encode_slabs_map(CUtensorMap *map, const strobe_tensor *t, int64_t columns, int64_t rows, int64_t heads,
                              int64_t batch, int64_t box_rows) {
    const cuuint64_t bytes = strobe__dtype_bytes(t->dtype), slab = 64, slabs = (cuuint64_t)columns / slab;
    const cuuint64_t extent[5] = {slab, (cuuint64_t)rows, slabs, (cuuint64_t)heads, (cuuint64_t)batch};
    cuuint64_t stride[4] = {(cuuint64_t)t->stride[1] * bytes, slab * bytes, (cuuint64_t)t->stride[2] * bytes,
                            (cuuint64_t)t->stride[0] * bytes};
    for (int axis = 0; axis < 4; ++axis)
        if (stride[axis] == 0) stride[axis] = 16; /* of an axis of extent 1 */
    const cuuint32_t box[5] = {64, (cuuint32_t)box_rows, (cuuint32_t)slabs, 1, 1};
    return encode_five(map, t, extent, stride, box);
}

/* Row `end` - n is `rows` - n rows and `end` rows from an address that is `rows` rows in front of the tensor; rows from
 * `end` on would be row `rows` of the second axis and further, which it does not have. */
bool strobe__encode_ends_map(CUtensorMap *map, const strobe_tensor *t, int64_t dim, int64_t seq, int64_t heads,
                             int64_t batch, int64_t rows) {
    const cuuint64_t bytes = strobe__dtype_bytes(t->dtype), row = (cuuint64_t)t->stride[1] * bytes;
    const cuuint64_t extent[5] = {(cuuint64_t)dim, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)seq + 1,
                                  (cuuint64_t)batch};
    cuuint64_t stride[4] = {row, (cuuint64_t)t->stride[2] * bytes, row, (cuuint64_t)t->stride[0] * bytes};
    for (int axis = 0; axis < 4; ++axis)
        if (stride[axis] == 0) stride[axis] = 16; /* of an axis of extent 1 */
    const cuuint32_t box[5] = {64, (cuuint32_t)rows, 1, 1, 1};
    strobe_tensor moved = *t;
    moved.data = (void *)((uintptr_t)t->data - (uintptr_t)((cuuint64_t)rows * row));
    return encode_five(map, &moved, extent, stride, box);
}

bool strobe__encode_scores_map(CUtensorMap *map, const struct problem *p, const strobe_bias *scores, int64_t keys,
                               int64_t rows) {
    const strobe_tensor t = scores_tensor(p, scores);
    return encode_boxes(map, &t, p->a.seq_k, p->a.seq_q, t.stride[2] ? p->a.heads_q : 1, t.stride[0] ? p->a.batch : 1, keys,
                        rows, 1);
}
