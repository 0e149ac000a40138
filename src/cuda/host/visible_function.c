/* SPDX-License-Identifier: BSD-3-Clause
 *
 * visible_function.c: the user's function of who sees whom as the steps that device/visible_function.cu reads, from the
 * program that the parser made of it (core/score/program.c), with the arrays and scalars of a call; and the launch. */
#include "cuda/host/visible_function.h"

#include <string.h>

#include "cuda/device/visible_function.h"
#include "cuda/host/device.h"
#include "cuda/host/launch.h"

_Static_assert((int)MOST_STEPS == (int)SCORE_MOST_NODES && (int)MOST_LEAVES == (int)SCORE_MOST_NODES &&
                   (int)MOST_FUNCTION_ARRAYS == (int)SCORE_MOST_ARRAYS &&
                   (int)MOST_FUNCTION_LOADS == (int)SCORE_MOST_LOADS && (int)MOST_INDICES == (int)SCORE_MOST_RANK,
               "the device has room for any function");
_Static_assert((int)CUDA_INT32 == (int)STROBE_INT32 && (int)CUDA_UINT8 == (int)STROBE_UINT8,
               "the device numbers dtypes as strobe_score.h does");
_Static_assert(sizeof(struct visible_function) <= 32764, "kernels have so many bytes of parameters");

CUDA_KERNEL(visible_function_units);
CUDA_KERNEL(visible_small_units);

/* Shared memory beside what is dynamic, and what a block has whatever the device. */
enum { OWN_BYTES = 8192 };

static const struct score_program *program_of(const struct problem *p) { return &p->score_call.function->of_visible; }

static int steps_of(const struct score_program *program) {
    return program->count[0] + program->count[1] + program->count[2] + program->count[3];
}

static bool reads(const struct problem *p, enum score_operation operation) {
    const struct score_program *program = program_of(p);
    for (int n = 0; n < steps_of(program); ++n)
        if (p->score_call.function->node[program->step[n]].operation == operation) return true;
    return false;
}

static bool reads_lengths(const struct problem *p) { return p->a.varlen && (reads(p, OP_SEQ_Q) || reads(p, OP_SEQ_K)); }

void strobe__visible_function_repeats(const struct problem *p, bool repeats[3]) {
    repeats[0] = !reads(p, OP_BATCH) && !reads_lengths(p);
    repeats[1] = !reads(p, OP_HEAD) && !reads(p, OP_HEAD_KV);
    repeats[2] = !reads(p, OP_ROW);
}

/* Slots, registers and how many pairs a thread has at once, as many as shared memory has room for; 0: none. */
static int64_t bytes_of(const struct problem *p, int at_once) {
    const struct score_program *program = program_of(p);
    const int64_t slots = program->count[PLACE_CALL] + program->count[PLACE_ROW] + program->count[PLACE_KEY];
    return 4 * visible_function_words(slots, program->registers, at_once, steps_of(program));
}

static int at_once(const struct problem *p) {
    const int64_t most = strobe__cuda_limits(p->a.device_index).shared_bytes - OWN_BYTES;
    int n = MOST_AT_ONCE;
    while (n > 0 && bytes_of(p, n) > (n > 1 ? most / 2 : most)) n /= 2;
    return n;
}

const char *strobe__visible_function_reject(const struct problem *p) {
    if (!(p->features & FEATURE(VISIBLE)) || at_once(p) > 0) return NULL;
    if (strobe__cuda_lacks(CUDA_SM80, p->a.device_index)) return NULL; /* nothing runs here; the planner says why */
    return "visible has more operations than fit the shared memory of a multiprocessor; fewer are taken";
}

/* The value of a leaf that is the same for all calls of the kernel. */
static double leaf_of(const struct score_call *call, const struct score_node *n) {
    switch ((enum score_operation)n->operation) {
    case OP_SCALAR: return call->scalar[n->number];
    case OP_STRIDE: return (double)call->array[n->number].stride[n->axis];
    case OP_LAST: return (double)(call->array[n->number].extent[n->axis] - 1);
    default: return n->value;
    }
}

static bool is_known(const struct score_node *n) {
    return n->operation == OP_CONSTANT || n->operation == OP_SCALAR || n->operation == OP_STRIDE || n->operation == OP_LAST;
}

/* Writes the steps, and returns how many leaves they have; number_of: of a node. */
static int write_steps(struct visible_function *f, const struct problem *p, uint16_t number_of[SCORE_MOST_NODES]) {
    const struct score_call *call = &p->score_call;
    const struct strobe_score *s = call->function;
    const struct score_program *program = program_of(p);
    int leaves = 0;
    for (int n = 0; n < f->head.steps; ++n) {
        const uint16_t node = program->step[n];
        const struct score_node *x = &s->node[node];
        struct function_step *step = &f->step[n];
        const int operands = strobe__score_operands((enum score_operation)x->operation);
        number_of[node] = (uint16_t)n;
        step->operation = x->operation, step->place = x->varies, step->is_integer = x->is_integer, step->array = x->number;
        step->at = x->varies == OF_PAIR ? program->register_of[node] : (uint16_t)f->head.slots++;
        if (is_known(x)) {
            step->number = (uint16_t)leaves, f->leaf[leaves++] = leaf_of(call, x);
        }
        for (int k = 0; k < 3 && operands > 0; ++k) {
            const uint16_t operand = x->operand[k < operands ? k : 0];
            step->operand[k] = number_of[operand];
            step->from_place[k] = f->step[step->operand[k]].place, step->from[k] = f->step[step->operand[k]].at;
        }
    }
    return leaves;
}

/* The same in the smaller structure. */
static struct small_visible_function small_of(const struct visible_function *f) {
    struct small_visible_function small = {.head = f->head};
    memcpy(small.leaf, f->leaf, sizeof small.leaf), memcpy(small.array, f->array, sizeof small.array);
    memcpy(small.load, f->load, sizeof small.load), memcpy(small.step, f->step, sizeof small.step);
    return small;
}

static void write_arrays(struct visible_function *f, const struct problem *p, const uint16_t number_of[SCORE_MOST_NODES]) {
    const struct score_call *call = &p->score_call;
    const struct strobe_score *s = call->function;
    for (int n = 0; n < s->array_count; ++n) {
        f->array[n] = (struct function_array){
            .data = call->array[n].data, .dtype = call->array[n].dtype, .rank = s->array_rank[n]};
        for (int axis = 0; axis < SCORE_MOST_RANK; ++axis) {
            f->array[n].extent[axis] = (int32_t)call->array[n].extent[axis];
            f->array[n].stride[axis] = (int32_t)call->array[n].stride[axis];
        }
    }
    for (int n = 0; n < f->head.steps; ++n) {
        if (f->step[n].operation != OP_LOAD) continue;
        int load = 0;
        while (s->load[load].node != program_of(p)->step[n]) ++load;
        f->step[n].number = (uint16_t)load;
        f->load[load].array = s->load[load].array;
        for (int axis = 0; axis < s->array_rank[s->load[load].array]; ++axis)
            f->load[load].index[axis] = number_of[s->load[load].index[axis]];
    }
}

strobe_status strobe__visible_function(const struct problem *p, const struct visible_pass *pass, void *stream) {
    const struct score_program *program = program_of(p);
    uint16_t number_of[SCORE_MOST_NODES] = {0};
    struct visible_function f;
    memset(&f, 0, sizeof f);
    f.head.pass = *pass;
    if (reads_lengths(p)) {
        f.head.cu_q = p->varlen.cu_seqlens_q, f.head.cu_k = p->varlen.cu_seqlens_k;
        f.head.used_q = p->varlen.used_q, f.head.used_k = p->varlen.used_k, f.head.leftpad = p->varlen.leftpad_k;
        f.head.index64 = p->varlen.index_bits == 64;
    }
    f.head.q_start = (int32_t)p->a.q_start, f.head.k_start = (int32_t)p->a.k_start, f.head.group = (int32_t)p->group;
    for (int class = 0; class < 4; ++class) f.head.count[class] = program->count[class];
    f.head.registers = program->registers, f.head.at_once = at_once(p), f.head.steps = steps_of(program);
    const int leaves = write_steps(&f, p, number_of);
    write_arrays(&f, p, number_of);
    f.head.root = number_of[p->score_call.function->visible];
    const struct strobe_score *s = p->score_call.function;
    const int32_t shared = (int32_t)bytes_of(p, f.head.at_once);
    if (f.head.steps <= FEW_STEPS && leaves <= FEW_LEAVES && s->array_count <= FEW_FUNCTION_ARRAYS &&
        s->load_count <= FEW_FUNCTION_LOADS) {
        const struct small_visible_function small = small_of(&f);
        return strobe__cuda_launch(&strobe__kernel_visible_small_units, pass->mask_blocks, UNIT_THREADS, shared, &small,
                                   stream);
    }
    return strobe__cuda_launch(&strobe__kernel_visible_function_units, pass->mask_blocks, UNIT_THREADS, shared, &f, stream);
}
