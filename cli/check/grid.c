/* SPDX-License-Identifier: BSD-3-Clause
 *
 * grid.c: the check grid, as text in the grammar of problems: blocks of "<words> <shape> <feature>", all combinations within
 * a block. The shapes are those of FlashAttention-3's output test, and what that one lacks: small and odd head dims, dim_v
 * that differs, empty sides, rows and batch entries that see nothing, decoding, shards. */
#include "check/grid.h"

#include "commands.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 40 };

typedef struct grid_block {
    grid_tier tier;
    const char *words;                /* what all problems of the block have; fwd or bwd first */
    const char *shapes[MOST + 1];     /* end with NULL */
    const char *const *const *groups; /* of features; each ends with NULL, and so does the list */
} grid_block;

#define ANY_DTYPE "fp32,fp16,bf16"

static const char *const plain[] = {"", NULL};
static const char *const causal_or_not[] = {"", "causal", NULL};

/* Who sees whom, and where. With sq > sk, causal hides all keys from the first rows; kstart=1000 hides all from all. */
static const char *const masks[] = {"causal",
                                    "causal=topleft",
                                    "window=7,0",
                                    "window=0,0",
                                    "window=3,5",
                                    "window=-1,4",
                                    "window=4,-1",
                                    "window_topleft=9,2",
                                    "window_topleft=-1,6",
                                    "causal qstart=11 kstart=3",
                                    "causal=topleft qstart=5 kstart=2",
                                    "window=8,3 qstart=2 kstart=9",
                                    "causal kstart=1000",
                                    "causal=topleft kstart=20",
                                    "window=9,4 qstart=3000000000",
                                    "window=9,4 kstart=3000000000",
                                    NULL};
static const char *const features[] = {"scale=0.5",
                                       "scale=-0.25",
                                       "softcap=15",
                                       "softcap=50 causal",
                                       "dropout=0.17 seed=7",
                                       "dropout=0.5 causal",
                                       "mask",
                                       "mask=k",
                                       "mask=bk causal",
                                       "mask=hqk",
                                       "mask=bqk",
                                       "mask=bhqk window=20,4",
                                       "block=16,16",
                                       "block=7,10 causal",
                                       "block=64,64 mask",
                                       "bias",
                                       "bias=k",
                                       "bias=bk",
                                       "bias=hk causal",
                                       "bias=hqk softcap=15",
                                       "bias=bhqk mask",
                                       "alibi",
                                       "alibi causal",
                                       "alibi causal=topleft qstart=4",
                                       "sinks",
                                       "sinks causal",
                                       "sinks causal kstart=1000",
                                       "score=score-0.5*abs(i-j)",
                                       "score=score*(1.5-tanh(table[h][abs(j)%3])) causal",
                                       "visible=i/16==j/16||j<3",
                                       "visible=(i-j)%4==0 score=(i+j)%5==0?-inf:score softcap=30 bias mask",
                                       "alibi sinks bias softcap=20 dropout=0.1 window=25,3",
                                       NULL};
static const char *const lengths[] = {"varlen",
                                      "varlen causal",
                                      "varlen=used causal=topleft",
                                      "varlen=used_k window=10,2",
                                      "varlen=packed_q causal",
                                      "varlen=packed_used",
                                      "varlen=packed64 alibi",
                                      "varlen=used64 bias=bhqk causal",
                                      "varlen=packed_used dropout=0.2 sinks",
                                      "varlen mask=bqk",
                                      NULL};
/* Fewer rows than a tile has, beside heads of v and of q whose columns fill fewer slabs of 64 than the kernel's. */
static const char *const ends[] = {"varlen=used64 alibi sinks=hidden dsinks causal layout=packed", "varlen=used",
                                   "varlen softcap=15", NULL};
/* Of which the memory for each sequence, as large as the longest, is mostly empty. */
static const char *const one_long[] = {"varlen lengths=one_long",
                                       "varlen lengths=one_long causal deterministic",
                                       "varlen=packed_used lengths=one_long causal",
                                       "varlen=used lengths=one_long",
                                       "varlen lengths=one_long softcap=15 sinks dsinks",
                                       "varlen lengths=one_long mask",
                                       NULL};
static const char *const layouts[] = {"layout=bhsd",
                                      "layout=gaps",
                                      "layout=reversed",
                                      "layout=gaps causal bias",
                                      "layout=reversed varlen",
                                      "layout=gaps varlen=packed_used",
                                      NULL};
static const char *const packed_layouts[] = {"layout=packed", "layout=packed varlen causal", NULL};
static const char *const without_lse[] = {"nolse", "nolse causal sinks", NULL};
static const char *const gradients[] = {"dlse",
                                        "dlse causal",
                                        "dlse softcap=15 dropout=0.1",
                                        "dlse varlen=packed_used",
                                        "dlse sinks dsinks",
                                        "sinks dsinks",
                                        "sinks dsinks causal kstart=1000",
                                        "sinks dsinks varlen dropout=0.3",
                                        "sinks dsinks bias=hqk dbias softcap=15",
                                        "bias dbias",
                                        "bias=k dbias",
                                        "bias=bk dbias causal",
                                        "bias=hk dbias",
                                        "bias=hqk dbias softcap=15",
                                        "bias=bqk dbias dropout=0.2",
                                        "bias=bhqk dbias mask=bhqk",
                                        "bias=bhqk dbias varlen=used",
                                        "deterministic",
                                        "deterministic causal varlen",
                                        "bias=k dbias deterministic",
                                        "bias=hqk dbias deterministic softcap=15",
                                        "bias=bqk dbias deterministic dropout=0.2 causal",
                                        "bias=hk dbias deterministic varlen=used",
                                        NULL};

/* Gradients that are added to what is there: what a row that sees nothing, a key that nobody sees, and rows of no sequence
 * have stays. */
static const char *const added[] = {"added",
                                    "added causal",
                                    "added window=3,0",
                                    "added mask=bhqk dlse",
                                    "added varlen causal",
                                    "added varlen=used hidden=inf",
                                    "added varlen=packed_used64 deterministic",
                                    "added varlen=packed_q",
                                    "added varlen=used lengths=no_keys",
                                    "added layout=gaps",
                                    "added layout=backwards bias dbias",
                                    "added layout=misaligned sinks dsinks",
                                    "added nan",
                                    "added score=score-0.5*abs(i-j) dropout=0.2",
                                    NULL};
static const char *const wide_added[] = {"wide=keys added causal", "wide=dq added varlen", "wide=dk added layout=gaps",
                                         NULL};

/* Of more keys than a tile has, so that gradients of a row have parts of several; some rows see none. */
static const char *const sums[] = {"",
                                   "causal",
                                   "causal dlse",
                                   "causal=topleft",
                                   "window=150,20",
                                   "window=0,9",
                                   "mask=bqk",
                                   "varlen causal",
                                   "varlen=packed_used",
                                   "layout=gaps varlen=used",
                                   "deterministic",
                                   "deterministic causal",
                                   "deterministic window=150,20",
                                   "deterministic varlen=packed_used causal",
                                   NULL};

/* dq, dk and dv of differing dtypes. */
static const char *const mixtures[] = {"wide=keys",
                                       "wide=keys causal",
                                       "wide=keys deterministic window=30,4",
                                       "wide=keys softcap=15 dropout=0.2",
                                       "wide=keys mask=bqk",
                                       "wide=keys bias dbias",
                                       "wide=keys varlen=packed_used causal",
                                       "wide=keys hidden=inf causal=topleft",
                                       "wide=keys layout=gaps",
                                       "wide=keys score=score-0.5*abs(i-j)",
                                       "wide=dq",
                                       "wide=dq causal",
                                       "wide=dk",
                                       "wide=dk varlen causal layout=misaligned",
                                       NULL};

/* Of more keys than the backward sums dQ over at once: it is summed over ranges, and these are added. */
static const char *const ranges[] = {"",
                                     "causal",
                                     "window=300,20",
                                     "causal=topleft dlse",
                                     "bias=hk dbias dropout=0.1",
                                     "sinks dsinks varlen=packed_used",
                                     "deterministic causal varlen",
                                     NULL};

/* Of more keys than a split of decoding has. */
static const char *const splits[] = {"",
                                     "window=700,0",
                                     "varlen=used_k causal",
                                     "varlen=packed_used sinks",
                                     "kv=int8",
                                     "kv=int8 window=700,0",
                                     "kv=int8 varlen=used_k window=90,0",
                                     NULL};

/* K and V that are not of q's dtype, as a cache holds them. */
static const char *const caches[] = {"kv=int8",
                                     "kv=int8 causal",
                                     "kv=int8 window=6,0 layout=bhsd",
                                     "kv=int8 window=40,0",
                                     "kv=int8 scale=-0.25 layout=gaps",
                                     "kv=int8 layout=reversed varlen",
                                     "kv=int8 varlen=packed_used sinks",
                                     "kv=int8 varlen=packed_q causal",
                                     "kv=int8 mask=bhqk softcap=15",
                                     "kv=fp8 causal",
                                     "kv=fp8 scales=rows varlen",
                                     "kv=fp16 qscales scales=rows",
                                     "kv=fp16",
                                     "kv=fp16 varlen=used causal",
                                     "kv=bf16",
                                     "kv=bf16 varlen=used_k window=10,2",
                                     "kv=fp32 causal",
                                     NULL};

/* K and V in pages. */
static const char *const pages[] = {"paged=16",
                                    "paged=1 causal sinks",
                                    "paged=7 missing alibi softcap=15",
                                    "paged=64 layout=bhsd varlen=used_k causal",
                                    "paged=16 missing kv=int8 varlen=used_k window=20,0",
                                    "paged=32 varlen=packed_q causal layout=gaps",
                                    "paged=16 missing bias=hk mask=bqk layout=backwards",
                                    "paged=10 scales=sequence dropout=0.2",
                                    "paged=300 missing block=20,30",
                                    "paged=16 append=9 causal varlen=used_k",
                                    "append=5 kv=int8 varlen=packed",
                                    "leftpad causal append=3",
                                    "leftpad paged=16 kv=int8 varlen=used_k bias",
                                    "leftpad varlen=packed window=9,0",
                                    "paged=8 missing kv=bf16 scales split=40",
                                    NULL};

/* Trees of tokens and other boolean masks over few rows. */
static const char *const trees[] = {"mask=bqk",
                                    "mask=hqk layout=bhsd",
                                    "mask=bhqk causal",
                                    "mask=k window=150,0 sinks",
                                    "mask=hk window=40,0",
                                    "mask=bqk hidden=inf",
                                    "mask=bqk shows=few hidden=nan varlen=used_k",
                                    "mask=bqk paged=16 varlen=used_k",
                                    "mask=bqk paged=1 missing layout=gaps hidden=inf",
                                    "mask=qk paged=64 split=100 varlen=used_k causal",
                                    "mask=bqk leftpad split=64 hidden=inf",
                                    "mask=bhqk varlen=packed_used alibi softcap=15",
                                    "mask=bqk kv=int8 scales=rows varlen=used_k",
                                    "mask=k kv=int8 leftpad",
                                    "mask=bqk shows=few kv=int8 scales=token window=90,0",
                                    "mask=bqk kv=fp8 scales=token paged=16 missing hidden=inf",
                                    "mask=bqk values=growing nolse scale=-0.25",
                                    NULL};

/* Latent attention: V in the columns of K, which is mostly a cache. */
static const char *const latents[] = {"",
                                      "causal",
                                      "paged=64 varlen=used_k causal",
                                      "paged=16 missing varlen=used_k sinks",
                                      "paged=8 missing varlen=used causal layout=bhsd",
                                      "varlen=used_k window=40,1 values=growing",
                                      "leftpad causal values=spikes",
                                      "causal hidden=inf nolse",
                                      "varlen=used_k lengths=no_keys",
                                      "scale=-0.25 alibi paged=8 varlen=used_k",
                                      "softcap=15 alibi=batch causal hidden=inf",
                                      "split=60 varlen=used_k causal",
                                      "kv=fp8 paged=16 missing varlen=used_k causal",
                                      "kv=int8 split=100 window=40,1 softcap=15 hidden=inf",
                                      NULL};

/* FP8, as quantisers leave it. */
static const char *const eighths[] = {"",
                                      "causal",
                                      "window=30,9 scales=rows",
                                      "causal=topleft scales=blocks layout=bhsd",
                                      "scales=sequence varlen=packed_used sinks",
                                      "scales=tensor varlen=used_k causal",
                                      "scales=rows varlen causal",
                                      "scales=blocks softcap=15 layout=gaps",
                                      "scales=sequence alibi layout=reversed nolse",
                                      "scales=blocks qstart=5 kstart=-3 window=40,0",
                                      "scales=token bias=hk dropout=0.17",
                                      "scales=blocks causal scale=1e-20 values=outliers varlen=packed_q alibi",
                                      NULL};

/* What a side without elements meets: everything that stands over scores, and each gradient. */
static const char *const beside_nothing[] = {"causal sinks",
                                             "window=3,5 qstart=2 kstart=9",
                                             "scale=-0.25 softcap=15",
                                             "alibi causal",
                                             "dropout=0.17",
                                             "mask=bhqk",
                                             "block=7,10",
                                             "bias=k mask=k",
                                             "bias=bhqk",
                                             "layout=gaps bias=hk",
                                             "layout=reversed",
                                             "varlen",
                                             "varlen=used causal bias=bhqk",
                                             "varlen=packed_used sinks",
                                             NULL};
static const char *const gradients_of_nothing[] = {"dlse",
                                                   "sinks dsinks dlse",
                                                   "bias dbias",
                                                   "bias=k dbias",
                                                   "bias=bk dbias causal",
                                                   "bias=hqk dbias softcap=15",
                                                   "bias=bhqk dbias dropout=0.2",
                                                   "bias=bhqk dbias varlen=packed_used",
                                                   "deterministic",
                                                   "bias=k dbias deterministic",
                                                   "bias=hqk dbias deterministic sinks dsinks",
                                                   "bias=bqk dbias deterministic varlen",
                                                   NULL};

static const char *const *const all_forward[] = {masks, features, lengths, layouts, without_lse, NULL};
static const char *const *const all_backward[] = {masks, features, lengths, layouts, gradients, NULL};
static const char *const *const all_beside_nothing[] = {beside_nothing, NULL};
static const char *const *const all_gradients_of_nothing[] = {beside_nothing, gradients_of_nothing, NULL};
static const char *const *const only_plain[] = {plain, NULL};
static const char *const *const only_packed[] = {packed_layouts, NULL};
static const char *const *const only_one_long[] = {one_long, NULL};
static const char *const *const only_ends[] = {ends, NULL};
static const char *const *const only_caches[] = {caches, NULL};
static const char *const *const only_eighths[] = {eighths, NULL};
static const char *const *const only_pages[] = {pages, NULL};
static const char *const *const only_trees[] = {trees, NULL};
static const char *const *const only_latents[] = {latents, NULL};
static const char *const *const only_causal[] = {causal_or_not, NULL};
static const char *const *const only_sums[] = {sums, NULL};
static const char *const *const only_mixtures[] = {mixtures, NULL};
static const char *const *const only_added[] = {added, NULL};
static const char *const *const only_wide_added[] = {wide_added, NULL};
static const char *const *const only_ranges[] = {ranges, NULL};
static const char *const *const only_splits[] = {splits, NULL};
static const char *const *const only_masks[] = {causal_or_not, masks, NULL};

/* LONGER has several blocks of keys. How long a block, a range and a split are is the kernels' own affair, which this
 * program does not see: tests/unit/test_cli_grid.c does, and fails where a shape is not beyond them any more. */
#define SMALL  "b=2 h=4/2 sq=37 sk=53 d=40 dv=24"
#define LONGER "b=2 h=4/2 sq=75 sk=197 d=24 dv=16"
#define EDGES                                                                                                              \
    "sq=5 sk=0", "sq=0 sk=5", "sq=0 sk=0", "b=0 sq=5 sk=5", "b=3 sq=1 sk=1", "h=8/2 sq=1 sk=130 d=96", "h=6/1 sq=2 sk=67", \
        "sq=70 sk=9", "b=5 h=2 sq=40 sk=33 varlen", "b=2 h=2 sq=9 sk=30 mask=bhqk", "h=3 sq=64 sk=64 d=64",                \
        "sq=65 sk=65 d=64"
#define NOTHING "b=2 sq=0 sk=5 d=40,192,224", "b=2 sq=5 sk=0 d=40,192,224", "b=2 sq=0 sk=0 d=40", "b=0 sq=5 sk=5 d=40"
#define DIMS    "h=2/1 sq=19 sk=35 d=1,2,3,5,8,17,33,40,65,96,127,160,192,256,257,512"
#define PEER_SHAPES                                                                                               \
    "sq=1 sk=1", "sq=64 sk=128", "sq=128 sk=192", "sq=256 sk=256", "sq=239 sk=1", "sq=799 sk=3", "sq=113 sk=203", \
        "sq=113 sk=128", "sq=128 sk=217", "sq=113 sk=211", "sq=108 sk=256", "sq=256 sk=512", "sq=384 sk=256",     \
        "sq=640 sk=128", "sq=512 sk=256"

static const grid_block blocks[] = {
    {GRID_QUICK, "fwd " ANY_DTYPE, {SMALL}, all_forward},
    {GRID_QUICK, "bwd " ANY_DTYPE, {SMALL}, all_backward},
    {GRID_QUICK, "fwd,bwd " ANY_DTYPE, {"b=2 h=4/2 s=41 d=24", "b=4 h=3 s=20 d=33 dv=17"}, only_packed},
    {GRID_QUICK, "bwd bf16 b=9 h=2 s=200", {"d=64", "d=128", "d=200"}, only_one_long},
    {GRID_FULL, "bwd bf16 b=9 h=2 s=400", {"d=64", "d=128", "d=200"}, only_one_long},
    {GRID_QUICK, "bwd bf16,fp16 b=2 h=1 s=3", {"d=128 dv=64", "d=136", "d=200 dv=64"}, only_ends},
    {GRID_QUICK, "fwd,bwd " ANY_DTYPE, {EDGES}, only_causal},
    {GRID_QUICK, "fwd " ANY_DTYPE " h=4/2", {NOTHING}, all_beside_nothing},
    {GRID_QUICK, "bwd " ANY_DTYPE " h=4/2", {NOTHING}, all_gradients_of_nothing},
    {GRID_QUICK, "fwd,bwd " ANY_DTYPE, {DIMS}, only_plain},
    {GRID_QUICK, "fwd,bwd bf16 causal", {DIMS}, only_plain},
    {GRID_QUICK,
     "fwd,bwd " ANY_DTYPE " h=2 sq=19 sk=35",
     {"d=192 dv=128", "d=64 dv=512", "d=7 dv=200", "d=512 dv=1"},
     only_plain},
    {GRID_QUICK, "fwd " ANY_DTYPE, {SMALL, "b=4 h=6/2 sq=1 sk=150 d=72 dv=40"}, only_caches},
    {GRID_QUICK, "fwd " ANY_DTYPE " b=2 h=7/1,8/2 sk=300", {"sq=1 d=64", "sq=2 d=128", "sq=1 d=40 dv=96"}, only_causal},
    {GRID_QUICK, "fwd fp32,bf16", {SMALL, "b=4 h=6/2 sq=1 sk=150 d=72 dv=40", "h=2 sq=70 sk=0"}, only_pages},
    {GRID_QUICK,
     "fwd " ANY_DTYPE " b=2 h=8/2",
     {"sq=4 sk=150 d=64", "sq=2 sk=333 d=100 dv=128", "sq=1 sk=90 d=200"},
     only_trees},
    {GRID_FULL, "fwd " ANY_DTYPE " b=2", {"h=8/2 sq=16 sk=700 d=128", "h=8/1 sq=5 sk=1900 d=64"}, only_trees},
    {GRID_QUICK, "fwd fp16,bf16 d=576 dv=512 v_in_k", {"b=3 h=16/1 sq=2 sk=150", "h=6/2 sq=1 sk=300"}, only_latents},
    {GRID_QUICK, "fwd fp8", {SMALL, "b=3 h=4/1 sq=70 sk=150 d=64"}, only_eighths},
    {GRID_QUICK, "fwd fp8 qk=int8", {SMALL, "b=3 h=4/1 sq=70 sk=150 d=64"}, only_eighths},
    /* Rows beside keys that hold NaN are computed again on a GPU; here all their weights are equal. */
    {GRID_QUICK,
     "fwd fp8 h=3/1 sq=1 d=64 scales=sequence softcap=5 values=low seed=339",
     {"sk=768 window_topleft=1,339", "sk=4500 window_topleft=1,4133"},
     only_plain},
    {GRID_QUICK, "fwd bf16 b=2 h=4/2 sq=2 sk=90 kv=int8", {"d=1,7,16,33,64,80,128 dv=8,31,256"}, only_plain},
    {GRID_QUICK, "bwd fp16,bf16", {SMALL, "h=8/1 sq=3 sk=90 d=128"}, only_mixtures},
    {GRID_QUICK, "bwd fp32", {SMALL, "h=2/1 sq=70 sk=150 d=64"}, only_added},
    {GRID_QUICK, "bwd fp16,bf16 wide", {SMALL, "h=4/2 sq=70 sk=150 d=128"}, only_added},
    {GRID_QUICK, "bwd bf16", {SMALL, "b=2 sq=5 sk=0", "b=2 sq=0 sk=5"}, only_wide_added},
    {GRID_FULL,
     "bwd bf16",
     {LONGER, "h=4/2 sq=90 sk=400 d=128", "h=16/1 sq=70 sk=300 d=64", "sq=75 sk=270 d=256"},
     only_mixtures},
    {GRID_FULL,
     "bwd bf16 h=4/2",
     {"sq=70 sk=500 d=64", "sq=400 sk=300 d=128", "sq=200 sk=290 d=36 dv=70", "sq=90 sk=400 d=192"},
     only_sums},
    {GRID_FULL, "fwd " ANY_DTYPE, {LONGER}, all_forward},
    {GRID_FULL, "bwd " ANY_DTYPE, {LONGER}, all_backward},
    {GRID_FULL, "bwd fp32,bf16 b=2 h=2/1 sq=40", {"sk=1100 d=33 dv=20", "sk=2100 d=64"}, only_ranges},
    {GRID_FULL, "bwd fp32,bf16 h=2/1 sq=40", {"sk=8300 d=9 dv=6", "sk=600 d=256", "sk=300 d=512"}, only_causal},
    {GRID_FULL, "fwd fp16,bf16 d=576 dv=512 v_in_k", {"b=2 h=128/1 sq=1 sk=400", "h=32/1 sq=4 sk=700"}, only_latents},
    {GRID_FULL, "fwd " ANY_DTYPE " b=2 h=6/2", {"sq=1 sk=1100 d=40", "sq=2 sk=3300 d=64"}, only_splits},
    /* More tiles than a GPU works on at a time, by few, and long ones: two of its CTAs share one. */
    {GRID_FULL, "fwd fp16,bf16 h=140/1 sq=70 d=128", {"sk=1700"}, only_plain},
    {GRID_FULL, "fwd fp32,bf16 sq=1 d=4", {"h=1 sk=131073", "h=75 sk=600"}, only_plain},
    {GRID_FULL, "fwd " ANY_DTYPE " h=6,6/2,6/1 d=64", {PEER_SHAPES}, only_causal},
    {GRID_FULL, "bwd fp32,bf16 h=6,6/2,6/1 d=64", {PEER_SHAPES}, only_causal},
    {GRID_FULL, "fwd,bwd fp32,bf16 h=2/1 d=96,128,192,256", {PEER_SHAPES}, only_causal},
    {GRID_FULL, "fwd,bwd fp32,bf16 d=64", {"s=1024", "sq=1023 sk=1024", "sq=1024 sk=1023"}, only_causal},
    {GRID_LONG, "fwd,bwd " ANY_DTYPE " h=2/1 d=64,128", {"s=1024", "sq=1023 sk=1024", "sq=1024 sk=1023"}, only_masks},
    {GRID_LONG, "fwd,bwd " ANY_DTYPE " d=64,96,128,192,256", {"s=4096", "s=4224"}, only_causal},
    {GRID_LONG, "fwd " ANY_DTYPE " b=3 h=6/2 d=64,80,128", {PEER_SHAPES}, all_forward},
    {GRID_LONG, "bwd " ANY_DTYPE " b=3 h=6/2 d=64,80,128", {PEER_SHAPES}, all_backward},
};

static void add(problem_list *list, const grid_block *b, const char *shape, const char *feature) {
    char text[PROBLEM_TEXT], message[PROBLEM_MESSAGE];
    snprintf(text, sizeof text, "%s %s %s", b->words, shape, feature);
    if (problem_list_add(list, text, message, sizeof message)) return;
    fprintf(stderr, "strobe: the check grid has a mistake in \"%s\": %s\n", text, message);
    exit(EXIT_REFUSED);
}

static void add_block(problem_list *list, const grid_block *b) {
    for (const char *const *shape = b->shapes; *shape; ++shape)
        for (const char *const *const *group = b->groups; *group; ++group)
            for (const char *const *feature = *group; *feature; ++feature) add(list, b, *shape, *feature);
}

/* For a GPU's kernels alone: products of tf32 parts, which no other device has; and tensors that are large enough for an
 * error over a whole one to say what was rounded (roundings.h). */
static const grid_block blocks_of_gpu[] = {
    {GRID_QUICK,
     "fwd fp16,bf16 b=2 h=4/2 d=64,128,256 split=2048", /* with which large tiles are taken of a small call too */
     {"sq=70 sk=1100 paged=16 causal varlen=used_k", "sq=90 sk=1030 paged=1 missing hidden=inf",
      "sq=150 sk=300 paged=7 leftpad"},
     only_plain},
    {GRID_QUICK,
     "fwd fp16,bf16 b=2 h=4/2 d=64,128 split=64", /* parts that are less than a block of large tiles */
     {"sq=40 sk=250", "sq=70 sk=1100 paged=16 varlen=used_k", "sq=40 sk=250 paged=64 missing"},
     only_plain},
    {GRID_QUICK, "fwd fp32 tf32x3", {SMALL}, all_forward},
    {GRID_QUICK, "bwd fp32 tf32x3", {SMALL}, all_backward},
    {GRID_QUICK, "fwd,bwd fp32 tf32x3", {EDGES, DIMS, "h=6/2 sq=799 sk=3 d=64", "h=2/1 sq=108 sk=256 d=128"}, only_causal},
    {GRID_QUICK, "fwd,bwd fp16,bf16 h=2 s=256 d=64,96,128,256", {""}, only_causal},
    {GRID_QUICK, "fwd bf16 h=2 s=512 d=64,128,256 values=outliers", {""}, only_causal},
};

void grid_add(problem_list *list, grid_tier tier, bool on_gpu) {
    for (const grid_block *b = blocks; b < blocks + sizeof blocks / sizeof blocks[0]; ++b)
        if (b->tier <= tier) add_block(list, b);
    for (size_t n = 0; on_gpu && n < sizeof blocks_of_gpu / sizeof blocks_of_gpu[0]; ++n) add_block(list, &blocks_of_gpu[n]);
}
