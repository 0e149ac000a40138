/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dist.h: what the files of this folder share. A call goes: read and check (read.c, check.c), a shard of sequence and heads
 * (shard.c), a schedule of exchanges and calls for it (schedule.c, pairs.c), agreement of the ranks (agree.c), the run
 * (forward.c, backward.c; heads.c before and after for Ulysses). Ring, all-gather, Ulysses and two levels are one path: an
 * all-to-all over heads among `group` ranks, 1 for none, then a ring or an all-gather among the participants, which are the
 * ranks that have the same heads, 1 for pure Ulysses. */
#ifndef STROBE_DIST_DIST_H
#define STROBE_DIST_DIST_H

#include <stdbool.h>

#include "strobe/strobe_dist.h"

#define TRY(call)                                 \
    do {                                          \
        const strobe_status status_ = (call);     \
        if (status_ != STROBE_OK) return status_; \
    } while (0)

/* Sets the sentence and returns the status. strobe__dist_core: with the core library's sentence. */
__attribute__((format(printf, 2, 3))) strobe_status strobe__dist_fail(strobe_status status, const char *format, ...);
strobe_status strobe__dist_core(strobe_status status);
strobe_status strobe__dist_no_memory(void);

/* Where a call works: tensors and workspace lie in the memory of a device, and work on them is put on its stream. */
struct place {
    int32_t device, index; /* a strobe_device, and which */
    void *stream;          /* NULL on the CPU */
    strobe_status status;  /* of work on memory, the first that failed */
    char sentence[256];
    struct collected *collected; /* NULL, or copies that go together; see tensor.h */
};

/* Positions first, first + step, ..., of which there are count; they lie side by side in a tensor, from row on. grad: where
 * they lie in the tensors of gradients. */
struct run {
    int64_t first, step, count, row, grad;
};
struct runs {
    struct run *at;
    int64_t count, capacity;
};

/* All return false where memory has run out. */
bool strobe__runs_add(struct runs *runs, struct run run);
bool strobe__runs_unite(struct runs *a, const struct runs *b);    /* both cut from the same tensor; a becomes the union */
bool strobe__runs_copy(struct runs *copy, const struct runs *of); /* rows counted anew, one run behind the other */
void strobe__runs_free(struct runs *runs);
int64_t strobe__runs_rows(const struct runs *runs);

#define FAR ((int64_t)1 << 60) /* no limit of a band */

/* The whole problem after reading: defaults filled in, structures copied. */
struct whole {
    strobe_dist d;
    strobe_transport t, records; /* records: what the ranks compare by, size 0: nothing */
    struct place place;
    strobe_dist_rates rates;
    bool hides; /* on a GPU: messages go beside kernels that have all multiprocessors */
    strobe_attention a;
    strobe_gradients g;
    bool backward;

    strobe_varlen varlen;
    strobe_bias bias, dbias;
    strobe_bool_mask bool_mask;
    strobe_alibi alibi;
    strobe_sinks sinks, dsinks;
    strobe_dropout dropout;
    strobe_parallel parallel;
    strobe_tuning tuning;

    int64_t *cu_q, *cu_k; /* [batch + 1] each, NULL: not packed */
    int64_t entries;      /* of the tensors: batch, or 1 where packed */
    int64_t total_q, total_k;
    int64_t left, right; /* the band: keys before and behind the diagonal; FAR */
    bool bottom_right;
};

/* Copies a structure of the caller's version; what this version does not know must be zero. */
strobe_status strobe__dist_copy(void *target, size_t target_bytes, const void *source, const char *name);
strobe_status strobe__dist_read_transport(strobe_transport *t, strobe_transport *records, const strobe_transport *transport);
strobe_status strobe__dist_check_transport(const strobe_transport *t, const strobe_transport *records, bool compares);
strobe_status strobe__dist_check_device(const strobe_attention *a, const strobe_transport *t);
strobe_status strobe__dist_read(struct whole *w, const strobe_dist *dist, const strobe_gradients *gradients, bool backward);
/* What does not depend on where tensors lie; and what does, with the transport's functions. */
strobe_status strobe__dist_check(const struct whole *w);
strobe_status strobe__dist_check_run(const struct whole *w);
void strobe__dist_release(struct whole *w);
size_t strobe__dist_bytes(int32_t dtype);           /* of an element: fp32, fp16, bf16 */
int64_t strobe__dist_product(int64_t a, int64_t b); /* INT64_MAX where it is more */

/* A way to do it. */
struct scheme {
    const char *name;
    int32_t group; /* of the all-to-all over heads */
    bool gathers;  /* all K and V at once; otherwise a ring */
};
/* NULL, or a sentence why not. */
const char *strobe__dist_rejects(const struct whole *w, int32_t scheme);
struct scheme strobe__dist_scheme(const struct whole *w, int32_t scheme);
extern const char *const strobe__dist_scheme_names[5], *const strobe__dist_layout_names[3];

/* Rows of a call, as rows of the shard. fresh: no call before has a part of them; last: no later one has. */
struct segment {
    int64_t row, rows;
    bool fresh, last;
};

/* A call of attention: rows of q over keys of a block. */
struct call {
    int64_t q_row, rows, k_row, keys, grad_row;
    int64_t q_first, k_first;    /* positions of the first row and key in their sequence */
    int64_t lowest, highest;     /* row i sees key j where lowest <= j - i <= highest, counted from the first of each */
    int64_t document, documents; /* of packed sequences; else 0 and 1 */
    bool whole;                  /* whole sequences, as the caller describes them */
    struct segment *segments;    /* all its rows, in their order */
    int64_t segment_count;
    bool rows_fresh, keys_fresh; /* results are written, not merged or added: nothing was there before */
    bool rows_last;              /* no later call has a part of any of its rows */
    double pairs;                /* that see each other */
    int64_t *cu_q, *cu_k;        /* whole packed sequences: offsets from the first row and key, neighbours in memory */
    int64_t *device_cu;          /* on CUDA: the same in the workspace, cu_q first */
};
struct calls {
    struct call *at;
    int64_t count, capacity;
};
/* Appends the calls that rows q have to make over keys k: one a pair of runs, and as few as can be. */
bool strobe__dist_pairs(const struct whole *w, const struct runs *q, const struct runs *k, struct calls *calls);
bool strobe__dist_calls(const struct whole *w, const struct runs *q, const struct runs *k, struct calls *calls);
/* The pairs that see each other of a packed sequence's first rows. */
double strobe__dist_pairs_before(const struct whole *w, int64_t document, int64_t rows);
void strobe__calls_free(struct calls *calls);
bool strobe__calls_add(struct calls *calls, struct call call); /* false where memory has run out */
/* Appends the same call with some of its rows, and the keys that these see. */
bool strobe__call_take_rows(const struct call *c, const struct segment *rows, struct calls *calls);

/* Rows of a layout. */
bool strobe__layout_runs(int32_t layout, int64_t seq, int32_t size, int32_t first_rank, int32_t ranks, struct runs *runs);

/* What one rank computes on, after the all-to-all over heads if there is one: all heads and its rows, or some heads and the
 * rows of its group. */
struct shard {
    const struct whole *w;
    strobe_attention a; /* heads, tensors and features of the shard */
    strobe_gradients g;
    int64_t rows, keys;
    int32_t group;               /* of the all-to-all */
    int32_t parts, part;         /* heads of a rank that go through it at a time; 1 and 0: all */
    int32_t index, participants; /* of the ring */
    struct runs *q, *k;          /* [participants] */
};
int32_t strobe__shard_rank(const struct shard *s, int32_t participant);
bool strobe__shard_make(struct shard *s, const struct whole *w, int32_t group, int32_t parts, int32_t part);
/* The same of another call of the same shape. */
void strobe__shard_renew(struct shard *s, const struct whole *w);
/* In how many parts the heads go, so that one part's messages travel while another is computed on. */
enum { MOST_PARTS = 4 };
int32_t strobe__dist_parts(const struct whole *w, int32_t group);
/* Whether a call over so many keys has enough blocks of them for a GPU's multiprocessors, some of them twice: fewer cost
 * more than what is hidden by computing on some heads at a time. */
bool strobe__dist_is_filled(int64_t heads_kv, int64_t keys);
/* How many K/V heads of a rank's own block are enough to compute on while the first K and V travel: a quarter, which leaves
 * the others for gradients, twice the bytes; or half; 0 where all have too few blocks. */
int64_t strobe__dist_early_heads(int64_t heads_kv, int64_t keys);
void strobe__shard_free(struct shard *s);

#endif
