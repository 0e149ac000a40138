#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpu_check.sh BUILD [--quick] [--only PARTS] [--ranks N]: what CI cannot see, on a machine with an NVIDIA GPU. BUILD is a build
# folder with the command and libstrobe.so. Its parts, all of them unless --only names some (with commas between):
#   grid       the check grid on every CUDA kernel
#   random     ten minutes of random problems (with --quick one)
#   sanitizer  the four tools of compute-sanitizer on small problems
#   threads    calls from any thread and with any device current, and kernels' first calls
#   graphs     capture in CUDA graphs; 1000 repeats of the deterministic backward beside a busy stream, and 100 of two at once
#   speed      beside PyTorch's FlashAttention-2 and cuDNN in one process
#   python     the Python package of the same build: calls of PyTorch's and JAX's
# Totals come last; exit code 0 all passed, 1 something failed, 77 there is no GPU. Needs compute-sanitizer, python3 with PyTorch,
# and a C compiler or BUILD/tests, for their parts; says what it left out. racecheck cannot follow how warps of the Hopper backward,
# of its forward with a bias, masks or pages, of FP8 and of latent attention release memory: it sees these kernels in RACECHECK_BUILD alone, a
# folder built with -DSTROBE_CUDA_FLAGS=-DSTROBE_RACECHECK.
# --quick: the quick grid, two of the tools on a third of the problems, a corner of the table of speeds; two minutes on 16 cores.
# --ranks N: attention over N processes and nothing else: streams of the GPUs as ranks, also under memcheck and racecheck, NCCL, copy
# engines and MPI with 1 to N processes (several share a GPU, through sockets, where there are fewer), the Python package's over
# torchrun, and where there are N GPUs speeds of bench/dist_peers.py, up to 16k tokens; two minutes and a half on 32 cores.
set -u
usage="usage: gpu_check.sh BUILD [--quick] [--only PARTS] [--ranks N]"
parts="grid random sanitizer threads graphs speed python"
build=${1:?$usage} ranks= only=
shift
tier=--full random=600 tools="memcheck racecheck initcheck synccheck" every=1 speed="--ms 40" repeats=1000
while [ $# -gt 0 ]; do
    case $1 in
    --quick) tier=--quick random=60 tools="memcheck racecheck" every=3 speed="--ms 10 --seq 512,8k" repeats=50 ;;
    --ranks) ranks=${2:?$usage} && shift ;;
    --only)
        only=${2:?$usage} && shift
        for part in ${only//,/ }; do
            [[ " $parts " == *" $part "* ]] || { echo "gpu_check: --only $part: one of $parts is accepted" && exit 2; }
        done
        ;;
    *) echo "$usage" && exit 2 ;;
    esac
    shift
done
here=$(cd "$(dirname "$0")/.." && pwd)
strobe=$build/strobe
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$strobe" info | grep -q '^cuda  *[0-9]'; then
    echo "gpu_check: there is no GPU here that this build can use"
    exit 77
fi
failed=0

# wanted PART: whether this run has that part.
wanted() { [[ -z $only || ,$only, == *,$1,* ]]; }

# Attention over processes.
if [ -n "$ranks" ]; then
    size="s=515 h=8/2 d=128 bf16" few="b=2 h=8/2 s=330 d=64 fp16"
    problems=()
    for way in 3:ring:zigzag "$ranks:ring:contiguous" "$ranks:ring:striped" "$ranks:all_gather:zigzag" 4:ulysses:zigzag 8:ulysses \
        4/2:two_levels:zigzag 9:automatic; do
        for operation in fwd bwd; do
            problems+=("$operation $size causal=topleft ranks=$way" "$operation $size window=100,0 ranks=$way")
            case $way in
            *striped*) ;;
            *) problems+=("$operation $few varlen causal sinks ranks=$way" "$operation $few alibi dropout=0.2 softcap=20 ranks=$way") ;;
            esac
        done
    done
    problems+=("fwd $size wide" "bwd $size wide" "fwd s=1003 h=8/2 d=128 bf16 causal ranks=$ranks:ring:zigzag"
        "bwd s=1003 h=8/2 d=128 bf16 causal ranks=$ranks:ring:zigzag")
    # Some problems to a process: the oracle runs on the CPU and takes most of the time.
    jobs=$((($(nproc) + 1) / 2)) running=()
    [ $jobs -lt 16 ] || jobs=16
    for ((part = 1; part <= jobs; ++part)); do
        # shellcheck disable=SC2086 # the problems are words
        OMP_NUM_THREADS=2 "$strobe" check --device cuda --part $part/$jobs ${problems[*]} >"$work/ranks_$part" 2>&1 &
        running+=($!)
    done
    # Beside them, each by itself: racecheck cannot follow the Hopper backward.
    sanitize_ranks() {
        local kernel=
        [ "$1$2" = racecheckbwd ] && kernel="--kernel cuda_backward_sm80"
        # shellcheck disable=SC2086
        compute-sanitizer --tool "$1" --error-exitcode 9 "$strobe" check --device cuda $kernel "$2" b=1 h=4/2 s=150 d=64 bf16 \
            causal=topleft sinks ranks=2:"$3":zigzag >"$work/log_$1_$2_$3" 2>&1
    }
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            for operation in fwd bwd; do
                for scheme in ring ulysses all_gather; do
                    { sanitize_ranks $tool $operation $scheme || echo "gpu_check: $tool: $operation over ranks, $scheme" >"$work/found_${tool}_${operation}_$scheme"; } &
                    running+=($!)
                done
            done
        done
    fi
    for ((part = 1; part <= jobs; ++part)); do
        wait "${running[part - 1]}" || { failed=1 && cat "$work/ranks_$part"; }
    done
    cat "$work"/ranks_* | awk '/cases run/ { run += $1; bad += $6 } END { print "ranks as streams: " run " cases run, " bad " failed" }'
    wait "${running[@]}"
    for found in "$work"/found_*; do
        [ -e "$found" ] || continue
        failed=1 && cat "$found"
        grep -m 5 -E 'ERROR|Error|Invalid|hazard|FAILED' "$work/log_${found##*/found_}"
    done
    LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    # Results of the package's tests come when the others are done.
    python_tests= has_python=0
    PYTHONPATH=$build/package python3 -c 'import strobe, pytest, torch' 2>/dev/null && has_python=1
    if [ $has_python = 1 ]; then
        PYTHONPATH=$build/package python3 -m pytest -q -p no:cacheprovider "$here/tests/python/test_context_parallel.py" >"$work/python" 2>&1 &
        python_tests=$!
    fi
    # over_nccl N [SEQ MODE]: with a line about what has failed.
    over_nccl() {
        local status=0
        "$build/tests/test_dist_nccl" "$@" >"$work/nccl" 2>&1 || status=$?
        cat "$work/nccl"
        [ $status = 0 ] || echo "gpu_check: test_dist_nccl $* ends with $status"
        [ $status = 0 ] || [ $status = 77 ] || failed=1
    }
    for ((n = 1; n <= ranks; ++n)); do
        over_nccl $n
        over_nccl $n 1003 copies
    done
    over_nccl "$ranks" 1003 death
    "$build/tests/test_dist_copies" || [ $? = 77 ] || failed=1
    if [ -x "$build/tests/test_dist_mpi_gpu" ] && command -v mpirun >/dev/null; then
        for ((n = 1; n <= ranks; ++n)); do
            mpirun --oversubscribe --allow-run-as-root --timeout 100 -n $n "$build/tests/test_dist_mpi_gpu" 515 || failed=1
        done
    else
        echo "gpu_check: no mpirun here, or a build without MPI: GPUs over MPI left out"
    fi
    if [ $has_python = 1 ]; then
        wait "$python_tests" || failed=1
        cat "$work/python"
        if [ "$(nvidia-smi -L | wc -l)" -ge "$ranks" ]; then
            PYTHONPATH=$build/package torchrun --nproc-per-node "$ranks" "$here/bench/dist_peers.py" --rounds 9 --seconds 2 --only "causal 8k,causal 16k" || failed=1
        else
            echo "gpu_check: fewer than $ranks GPUs here, speeds over processes left out"
        fi
    fi
    exit $failed
fi

# The grid, a process a core: the oracle runs on the CPU and takes most of the time.
if wanted grid; then
    cores=$(nproc)
    # Beside the grid, whose problems are small: tiles that fill a Hopper several times, which its backward then takes in another order.
    many="bwd bf16 b=9 h=30 sq=70 sk=140 d=64,128 causal nan bwd bf16 b=9 h=15 sq=70 sk=260 d=192,256 causal bwd bf16 b=9 h=15 s=150 d=256
        bwd bf16 b=9 h=30 sq=140 sk=70 d=128 causal=topleft bwd fp16 b=9 h=30 sq=70 sk=140 d=40,96 bwd bf16 b=20 h=30 s=260 varlen causal d=64
        bwd bf16 b=9 h=20 s=400 varlen lengths=one_long causal d=128"
    # And forward tiles that two CTAs share at the end, at d 256 with K and V too, where a head has an even number of them.
    shared="fwd bf16 h=68 sq=256 sk=832 d=256 fwd fp16 h=140 sq=128 sk=832 d=256 fwd bf16 h=140 sq=128 sk=1700 d=128"
    for ((part = 1; part <= cores; ++part)); do
        # shellcheck disable=SC2086 # the problems are words
        { OMP_NUM_THREADS=1 "$strobe" check $tier --device cuda --part $part/$cores &&
            OMP_NUM_THREADS=1 "$strobe" check --device cuda --kernel cuda_backward_sm90 --part $part/$cores $many
            OMP_NUM_THREADS=1 "$strobe" check --device cuda --kernel cuda_forward_sm90 --part $part/$cores $shared; } >"$work/grid_$part" 2>&1 &
    done
    wait
    for ((part = 1; part <= cores; ++part)); do
        grep -q ' 0 failed' "$work/grid_$part" && ! grep -q ' [1-9][0-9]* failed' "$work/grid_$part" && continue
        failed=1
        grep -E 'FAILED|failed|error' "$work/grid_$part" || tail -3 "$work/grid_$part"
    done
fi

# Random problems, a process a core; what fails is printed as a problem to repeat.
if wanted random; then
    "$strobe" check --random $random --device cuda >"$work/random" 2>"$work/random_failures" || failed=1
    tr '\r' '\n' <"$work/random_failures" | grep -v 'seconds left'
    cat "$work/random"
fi

# Small problems, because the sanitizer slows kernels a hundredfold: each loader, mask path, split, and the backward pass.
small="b=2 h=4/2 sq=37 sk=53 d=40 dv=24"
problems=(
    "fwd $small bf16 causal" "fwd b=1 h=2 s=150 d=128 bf16" "fwd $small fp16 softcap=15 bias mask dropout=0.2"
    "bwd $small bf16 causal" "fwd b=1 h=4/1 sq=1 sk=700 d=64 bf16" "fwd $small fp32 window=5,3 sinks"
    "bwd b=1 h=2 s=140 d=128 bf16" "fwd b=3 h=2 s=40 d=64 bf16 varlen=packed" "bwd $small bf16 deterministic"
    "bwd $small fp16 softcap=15 bias dbias mask dropout=0.2" "bwd $small bf16 bias=hk dbias deterministic"
    "bwd b=1 h=2 s=70 d=200 fp32"
    "fwd b=1 h=2 s=300 d=64 bf16 causal" "fwd b=1 h=2 s=200 d=256 fp16 mask bias" "fwd b=1 h=2 sq=200 sk=300 d=256 bf16"
    "fwd b=1 h=2 s=150 d=128 bf16 dropout=0.2 softcap=15" "fwd b=3 h=2 s=200 d=128 bf16 varlen=packed causal"
    "fwd b=2 h=2 s=300 d=64 bf16 mask" "bwd b=2 h=2 s=300 d=64 bf16 mask" "fwd b=1 h=2 s=304 d=64 bf16 bias"
    "fwd b=2 h=2 sq=40 sk=0 d=64 bf16 mask" "fwd b=1 h=2 sq=40 sk=0 d=64 bf16 block=128,128"
    "fwd b=3 h=4/2 sq=9 sk=53 d=64 bf16 append=9 causal varlen=packed"
    "bwd h=1 sq=2 sk=1 d=1 fp32 varlen lengths=none mask bias=bqk dbias"
    "fwd b=2 h=2/1 sq=130 sk=300 d=128 bf16 paged=16 missing varlen=used_k causal"
    "fwd b=2 h=2/1 sq=130 sk=300 d=96 bf16 paged=24 missing varlen=used_k" "fwd b=2 h=2 sq=130 sk=300 d=64 bf16 leftpad causal"
    "fwd b=3 h=4/2 sq=37 sk=153 d=64 bf16 causal varlen=used_k paged=16 missing leftpad" "fwd $small fp16 kv=int8 paged=5 missing"
    "fwd b=3 h=4/1 sq=1 sk=300 d=128 bf16 kv=fp8 varlen=used_k paged=1" "fwd $small fp32 kv=int8 leftpad softcap=15"
    "fwd b=2 h=4/1 sq=9 sk=70 d=576 dv=512 bf16 v_in_k paged=64 varlen=used_k"
    "fwd b=3 h=16/1 sq=2 sk=300 d=576 dv=512 bf16 v_in_k causal varlen=used_k paged=64 missing"
    "fwd b=2 h=128/1 sq=1 sk=200 d=576 dv=512 fp16 v_in_k"
    "fwd b=3 h=16/1 sq=2 sk=300 d=576 dv=512 bf16 v_in_k alibi softcap=15 split=60 varlen=used_k"
    "fwd b=3 h=16/1 sq=2 sk=300 d=576 dv=512 bf16 v_in_k kv=fp8 causal varlen=used_k paged=16 missing"
    "fwd b=2 h=16/1 sq=2 sk=300 d=576 dv=512 bf16 v_in_k kv=int8 window=40,1 split=100"
    "fwd b=1 h=1 s=1 d=1 fp32 kv=int8 varlen=packed_used lengths=no_keys"
    "fwd b=1 h=4/2 sq=200 sk=300 d=256 fp8 scales=blocks causal" "fwd b=1 h=2 sq=200 sk=300 d=192 dv=80 fp8 scales=blocks softcap=15"
    "fwd b=1 h=2 sq=200 sk=300 d=128 dv=80 fp8 scales=blocks softcap=15" "fwd b=1 h=1 sq=300 sk=2200 d=64 fp8 scales=blocks causal"
    "fwd b=1 h=2/1 sq=200 sk=1300 d=128 fp8 scales=blocks" "fwd b=1 h=1 sq=70 sk=2400 d=256 fp8 scales=sequence window=2200,0"
    "fwd b=3 h=2 s=300 d=128 fp8 scales=sequence varlen=packed causal" "fwd b=2 h=2/1 s=300 d=64 fp8 scales=blocks window=90,3 sinks"
)
# sanitize TOOL INDEX: one problem under one tool; leaves a file clean_* or dirty_*.
sanitize() {
    local tool=$1 problem=${problems[$2]} checked=$strobe only= log=$work/$1_$2
    [ "$tool" = racecheck ] && checked=${RACECHECK_BUILD:-$build}/strobe
    if [ "$tool ${RACECHECK_BUILD:-}" = "racecheck " ]; then
        [[ $problem == *"fp8 scales"* || $problem == *v_in_k* ]] && return
        [[ $problem == bwd*16* ]] && only="--kernel cuda_backward_sm80"
        [[ $problem == fwd*16*mask* || $problem == fwd*16*bias* || $problem == fwd*16*block=* || ($problem == fwd*16*paged* && $problem != *kv=*) ]] &&
            only="--kernel cuda_forward_sm80"
    fi
    # shellcheck disable=SC2086 # the problem is words
    if compute-sanitizer --tool "$tool" --error-exitcode 9 "$checked" check --device cuda $only $problem >"$log" 2>&1; then
        touch "$work/clean_$1_$2"
    else
        touch "$work/dirty_$1_$2"
        { echo "gpu_check: $tool: $problem" && grep -m 5 -E 'ERROR|Error|Invalid|hazard|FAILED' "$log"; } >"$log.found"
        cat "$log.found"
    fi
}
if wanted sanitizer; then
    [ -n "${RACECHECK_BUILD:-}" ] || echo "gpu_check: no RACECHECK_BUILD, so racecheck leaves out the Hopper backward, its forward with a bias, masks or pages, FP8 and latent attention"
    if command -v compute-sanitizer >/dev/null; then
        for tool in $tools; do
            for ((i = 0; i < ${#problems[@]}; i += every)); do
                while [ "$(jobs -rp | wc -l)" -ge $((($(nproc) + 1) / 2)) ]; do wait -n; done
                sanitize $tool $i &
            done
        done
        wait
    else
        echo "gpu_check: no compute-sanitizer here, left out"
    fi
fi

# Calls from threads that have made no CUDA call, with other devices current; kernels' first calls; the tests' programs, or their texts.
for test in $(wanted threads && echo threads first_calls); do
    program=$build/tests/cuda_$test
    if [ ! -x "$program" ] && command -v cc >/dev/null; then
        program=$work/cuda_$test
        cc -std=c11 -D_POSIX_C_SOURCE=200809L -O1 -I "$here/include" "$here/tests/cuda/$test.c" -o "$program" \
            -L "$build" -lstrobe -ldl -lpthread || failed=1
    fi
    if [ -x "$program" ]; then
        LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$program" || failed=1
    else
        echo "gpu_check: neither tests/cuda_$test nor a compiler here, left out"
    fi
done

# Graphs, repeats and speed.
if ! wanted graphs && ! wanted speed; then
    :
elif ! python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "gpu_check: no PyTorch with a GPU here, graph capture and speed left out"
else
    if wanted graphs; then
        python3 "$here/tests/cuda/calls.py" "$build/libstrobe.so" || failed=1
        python3 "$here/tests/cuda/masks.py" "$build/libstrobe.so" || failed=1
        python3 "$here/tests/cuda/masks.py" "$build/libstrobe.so" --kernel cuda_forward_sm80 --forward --bf16 || failed=1
        python3 "$here/tests/cuda/masks.py" "$build/libstrobe.so" --kernel cuda_backward_sm80 --bf16 || failed=1
        python3 "$here/tests/cuda/repeats.py" "$build/libstrobe.so" $repeats || failed=1
        python3 "$here/bench/cuda_peers.py" "$build/libstrobe.so" graph || failed=1
        python3 "$here/tests/cuda/decode_graph.py" "$build/libstrobe.so" || failed=1
    fi
    if wanted speed; then
        # the command's own figures, beside what it measures as the card's peak
        "$strobe" bench bwd b=2 h=16 s=4k d=128 bf16 causal device=cuda || failed=1
        for choice in "fwd bwd decode" "fwd --kernel cuda_forward_sm80" "bwd --kernel cuda_backward_sm80"; do
            # shellcheck disable=SC2086
            python3 "$here/bench/cuda_peers.py" "$build/libstrobe.so" $choice $speed || failed=1
        done
    fi
fi

# The Python package of the same build: calls of PyTorch's and JAX's.
if ! wanted python; then
    :
elif PYTHONPATH=$build/package python3 -c 'import strobe, pytest, torch' 2>/dev/null; then
    PYTHONPATH=$build/package python3 -m pytest -q -p no:cacheprovider "$here/tests/python/test_cuda.py" \
        "$here/tests/python/test_cuda_kernels.py" "$here/tests/python/test_activate.py" "$here/tests/python/test_compile.py" \
        "$here/tests/python/test_mask_lists.py" "$here/tests/python/test_use.py" || failed=1
    status=0
    PYTHONPATH=$build/package python3 "$here/tests/python/jax_on_gpu.py" || status=$?
    [ $status = 0 ] || [ $status = 77 ] || failed=1
else
    echo "gpu_check: no Python package in the build (STROBE_PYTHON=ON), or no pytest or PyTorch here: calls from Python left out"
fi

echo
wanted grid && grep -h ' cases run' "$work"/grid_* |
    awk '{ run += $1; passed += $4; failed += $6 } END { print "grid: " run " cases run: " passed " passed, " failed " failed" }'
clean=$(find "$work" -name 'clean_*' | wc -l) dirty=$(find "$work" -name 'dirty_*' | wc -l)
wanted sanitizer && echo "compute-sanitizer: $clean runs clean, $dirty not"
[ "$dirty" = 0 ] && [ $failed = 0 ]
