/* SPDX-License-Identifier: BSD-3-Clause
 *
 * strobe_dist.h: attention of one problem over many processes (context parallelism): each rank holds a shard of the queries
 * and one of the keys and values, and gets its shard of the result. A library of its own, libstrobe_dist, beside libstrobe,
 * whose public calls it makes. It knows neither NCCL nor MPI: what moves data is the caller's strobe_transport;
 * strobe_dist_mpi.h has one over MPI, strobe_dist_nccl.h one over NCCL for tensors on GPUs.
 *
 *     strobe_attention a = {.struct_size = sizeof a};       // the whole problem, as one process would describe it ...
 *     a.batch = 1, a.seq_q = 1000, a.seq_k = 1000, a.heads_q = 8, a.dim = 64, a.mask = STROBE_MASK_CAUSAL_TOP_LEFT;
 *     strobe_dist d = {.struct_size = sizeof d, .attention = &a, .transport = &transport, .layout = STROBE_DIST_ZIGZAG};
 *     d.rows_q = d.rows_k = strobe_dist_rows(d.layout, 1000, transport.size, transport.rank);
 *     a.q.data = q, a.k.data = k, a.v.data = v, a.out.data = out;              // ... but its tensors are the rank's shards
 *     if (strobe_dist_forward(&d, NULL, 0, NULL) != STROBE_OK) fprintf(stderr, "%s\n", strobe_dist_last_error());
 *
 * 1. Rules
 * --------
 * - The result is that of one process on the whole problem, up to the fp32 rounding of partial results: partial outputs, lse
 *   and gradients travel and add in fp32. The same call gives the same bits on every run. Another number of ranks, another
 *   scheme or layout cuts sums elsewhere, and may change the last bits.
 * - Every rank of the transport makes the same call, at the same point of its own order of calls. Before data move, the
 *   ranks compare their arguments: if they differ, or one rank's are bad, all ranks return the same sentence, and nothing is
 *   written. A workspace of too few bytes, and memory that a rank cannot have, count among these: nothing is allocated
 *   after the comparison but by the transport. Only a rank whose transport itself is bad cannot tell the others.
 * - A call that the transport fails returns STROBE_DEVICE_ERROR with the transport's text. A rank whose own kernel fails
 *   goes on exchanging, so that the others do not wait for ever, and returns its error; results of the others mean nothing
 *   then.
 * - Structures, statuses and workspaces follow strobe.h, section 1. Lists of who needs what are host memory of the call's
 *   own.
 * - On CUDA a call puts its work on the stream and returns: the calls of attention, merges, copies and the transport's
 *   exchanges, in the stream's order. It waits for the peers' arguments alone, and with STROBE_DIST_UNCOMPARED for nothing,
 *   so that a graph can capture it. The workspace is the device's and required. The device's primary context is used.
 *
 * 2. Layouts: which positions of a sequence of n a rank holds, in the order of its rows
 * -------------------------------------------------------------------------------------
 *     contiguous   one part of `size` parts, of which the first n % size have one position more (torch.tensor_split)
 *     zigzag       parts `rank` and `2 size - 1 - rank` of 2 size such parts: under a causal mask all have the same work
 *     striped      positions rank, rank + size, rank + 2 size, ...
 * Queries and keys have the same layout. Packed sequences (varlen) are cut as one sequence of cu_seqlens[batch] positions,
 * wherever the cuts fall; cu_seqlens[0] is 0. Ranks may have no rows.
 *
 * 3. Schemes
 * ----------
 *     ring         K and V go from rank to rank while the block before is computed on. dK and dV of a block go straight to
 *                  the rank that owns it, in fp32.
 *     all_gather   each rank gets the K and V that its rows see at once, and computes in as few calls as can be.
 *     ulysses      all-to-all over heads: each rank computes the whole sequence for heads_q / size heads, of which size is a
 *                  divisor; heads_kv may be smaller than size.
 *     two_levels   ulysses among `group` neighbouring ranks, ring across the groups.
 * With ring and all_gather only those K and V travel that a mask, a window or a packed sequence lets some row see.
 * automatic takes the scheme with the smallest predicted time (strobe_dist_rates) of those that take the problem. */
#ifndef STROBE_DIST_H
#define STROBE_DIST_H

#include "strobe/strobe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes for another rank, or room for bytes from one. */
typedef struct strobe_message {
    void *data;
    size_t bytes; /* at least 1 */
    int32_t peer; /* never the rank itself */
    int32_t reserved;
} strobe_message;

/* What moves data between ranks. The library calls it from the thread of the call alone, and has at most one exchange under
 * way: start, wait, start, wait, ... Both return 0, or anything else for a failure.
 * start: begins to send and to receive; data and lists stay as they are until wait has returned. What one rank sends to
 *   another arrives in the order in which it was sent, over exchanges too, and sizes are the same on both sides. It must
 *   not wait for the peers: all may send first.
 * wait: returns when all messages of the exchange have been sent and received.
 * move: start and wait in one call, for an exchange beside which nothing goes; NULL where the transport has nothing better.
 *   A rank may call it where others call start and wait.
 * error: the text of the last failure; may be NULL.
 * stream is the call's, NULL on the CPU.
 * With device = STROBE_CUDA messages lie in the device's memory, and all goes by the stream's order: data are ready when the
 * stream has come to where start was called, and what is put on the stream after wait comes after all messages have been
 * sent and received. Neither need wait on the host. records: how the ranks compare their calls, a transport of the same
 * ranks for memory of the host, whose wait returns when they have arrived; it is given the same stream. Required but with
 * STROBE_DIST_UNCOMPARED, as is one process alone. */
typedef struct strobe_transport {
    size_t struct_size;
    int32_t rank, size; /* 0 <= rank < size */
    void *self;
    int (*start)(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                 int64_t receive_count, void *stream);
    int (*wait)(void *self, void *stream);
    const char *(*error)(void *self);
    int32_t device; /* a strobe_device: that of the tensors; default the CPU */
    int32_t flags;  /* bits, the same on every rank */
    const struct strobe_transport *records;
    int (*move)(void *self, const strobe_message *sends, int64_t send_count, const strobe_message *receives,
                int64_t receive_count, void *stream);
} strobe_transport;

/* Bits of strobe_transport.flags. */
enum {
    STROBE_TRANSPORT_BESIDE_KERNELS = 1 /* on CUDA messages move also while a kernel has all multiprocessors */
};

typedef enum strobe_dist_layout {
    STROBE_DIST_CONTIGUOUS = 0,
    STROBE_DIST_ZIGZAG = 1,
    STROBE_DIST_STRIPED = 2
} strobe_dist_layout;

typedef enum strobe_dist_scheme {
    STROBE_DIST_AUTOMATIC = 0,
    STROBE_DIST_RING = 1,
    STROBE_DIST_ALL_GATHER = 2,
    STROBE_DIST_ULYSSES = 3,
    STROBE_DIST_TWO_LEVELS = 4
} strobe_dist_scheme;

/* Bits of strobe_dist.flags. */
enum {
    STROBE_DIST_UNCOMPARED = 1 /* the caller knows that all ranks make the same sound call: they do not compare */
};

/* What the cost model believes of a rank and of the links; 0: a default of the device, which docs/distributed.md has. */
typedef struct strobe_dist_rates {
    size_t struct_size;
    double flops;     /* of attention, a second, by one rank */
    double bandwidth; /* bytes a second that one rank sends while it receives as many */
    double latency;   /* seconds of an exchange without bytes */
    double call;      /* seconds of a call of attention without work */
    double memory;    /* bytes a second of the rank's own memory: partial results merge there, and messages are packed */
    double launch;    /* seconds of the host for a launch, event or value that it puts on a stream of a GPU */
} strobe_dist_rates;

/* A call over many processes.
 * attention: the whole problem, the same on every rank, but for its tensors: q, k, v, out and lse, and in strobe_gradients
 *   dout, dlse, dq, dk, dv, are the rank's shards, of rows_q rows and rows_k keys. Default strides follow from these. Rows
 * of a bias, its gradient and a boolean mask are those of the rank, their last axis is the whole sequence of keys. A default
 * head stride of lse is rows_q. varlen's offsets are those of the whole, in memory of the host, on CUDA too. Not taken:
 * STROBE_FP64, e4m3, int8, used_q, used_k, leftpad_k, paged, block_mask, scales, score, mask_lists; a bias or a boolean mask
 * with packed sequences; gradients.accumulate. dsinks is the whole problem's on every rank. Schemes and layouts refuse by
 * name, further: striped with ring, all_gather and two_levels: ALiBi, dropout, packed sequences, bias, boolean masks;
 * ulysses and two_levels: bias, boolean masks; two_levels: striped; ring, all_gather and two_levels: ALiBi under a top-left
 * mask of sequences with seq_q other than seq_k; a dbias whose rows are summed. */
typedef struct strobe_dist {
    size_t struct_size;
    const strobe_attention *attention;
    const strobe_transport *transport;
    int64_t rows_q, rows_k; /* of the rank's tensors: as strobe_dist_rows says */
    int32_t layout;         /* a strobe_dist_layout */
    int32_t scheme;         /* a strobe_dist_scheme */
    int32_t group;          /* two_levels: ranks of a group, a divisor of size; required there, 0 for all else */
    int32_t reserved;
    uint64_t flags;
    const strobe_dist_rates *rates; /* NULL: the defaults */
} strobe_dist;

/* How many positions of a sequence of seq a rank holds; -1 where an argument makes no sense. */
STROBE_API int64_t strobe_dist_rows(int32_t layout, int64_t seq, int32_t size, int32_t rank);

/* The position of a rank's row in the whole sequence; -1 where an argument makes no sense. */
STROBE_API int64_t strobe_dist_position(int32_t layout, int64_t seq, int32_t size, int32_t rank, int64_t row);

/* An order of packed sequences in which the layout, contiguous or zigzag, gives each rank about as many pairs that see each
 * other, and so as much to compute under ring and all_gather: order[i], of batch numbers in memory of the host, is the
 * sequence that is to come i-th. Each rank still has the same number of rows; no sequence need fit into one. Read of dist
 * are attention's batch, mask, window and the offsets of varlen, the transport's size, and the layout. balance: NULL, or two
 * numbers, the most pairs of a rank over the mean, 1 being even: with the sequences as they are given, and in the order
 * found. The same arguments give the same order everywhere. It takes some ten milliseconds at most, and moves nothing.
 * Errors: INVALID_ARGUMENT, OUT_OF_MEMORY; UNSUPPORTED for the striped layout. */
STROBE_API strobe_status strobe_dist_order(const strobe_dist *dist, int64_t *order, double *balance);

/* Attention. Workspace and stream as in strobe_forward. Besides its errors: DEVICE_ERROR where the transport fails. */
STROBE_API strobe_status strobe_dist_forward(const strobe_dist *dist, void *workspace, size_t workspace_bytes, void *stream);

/* Gradients. dist: as it was for the forward, with out and lse as the forward left them; another scheme will do. */
STROBE_API strobe_status strobe_dist_backward(const strobe_dist *dist, const strobe_gradients *gradients, void *workspace,
                                              size_t workspace_bytes, void *stream);

/* Attention over a cache that is split over ranks, as in decoding: every rank has all query rows and a part of the keys, and
 * gets the whole result, the same bits on each. part: what strobe_forward would be given for the rank's own keys; k, v,
 * seq_k and what belongs to them (lengths, pages, scales, k_start) differ between ranks, queries and their number do not.
 * The result is that of strobe_merge over all ranks' parts in fp32, in the order of the ranks, with the sinks joining once.
 * So a mask that is not to count from the end of each part goes by positions: top left, with q_start and k_start. A rank may
 * have no keys. Not taken: fp64, varlen.used_q; on CUDA more than 255 ranks. There packed queries' total_q is required.
 * flags: STROBE_DIST_UNCOMPARED, which saves a token the comparison. Workspace and stream as in strobe_forward; errors as
 * strobe_dist_forward. */
STROBE_API strobe_status strobe_dist_decode(const strobe_attention *part, const strobe_transport *transport, uint64_t flags,
                                            void *workspace, size_t workspace_bytes, void *stream);

/* The bytes of workspace that strobe_dist_decode needs. Moves nothing; of the transport, rank and size are read. */
STROBE_API strobe_status strobe_dist_decode_workspace(const strobe_attention *part, const strobe_transport *transport,
                                                      size_t *bytes);

/* For a rank that cannot make the call that the others make, since it lacks memory or was itself called wrongly: takes the
 * call's part in the comparison, so that all ranks return this status and "rank N: " with the sentence. Returns what they
 * do: where a lower rank refuses as well, that rank's. INVALID_ARGUMENT at once for a bad transport, and for STROBE_OK. */
STROBE_API strobe_status strobe_dist_refuse(const strobe_transport *transport, strobe_status status, const char *sentence);

/* The bytes of workspace that a call of this rank needs, into *bytes. Moves nothing; of the transport, rank, size and flags
 * are read. gradients: NULL for the forward. */
STROBE_API strobe_status strobe_dist_workspace(const strobe_dist *dist, const strobe_gradients *gradients, size_t *bytes);

/* The cost model's answer as text: a line for each scheme, "ring: chosen, predicted ..." or "ulysses: why not". Moves
 * nothing. Writes at most capacity bytes with the closing zero; *needed (may be NULL) gets the bytes that the whole text
 * takes. Returns UNSUPPORTED, with the text written, when no scheme takes the problem. */
STROBE_API strobe_status strobe_dist_explain(const strobe_dist *dist, const strobe_gradients *gradients, char *text,
                                             size_t capacity, size_t *needed);

/* The sentence of the last call of this thread to this library that did not return STROBE_OK; "" before the first. */
STROBE_API const char *strobe_dist_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
