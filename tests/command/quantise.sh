#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# quantise.sh STROBE SOURCE: `strobe quantise` on a real model's tensors: what it says of the error, what it writes, what it
# refuses.
set -eu
strobe=$1
file=$2/examples/data/minilm_qkv.safetensors
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "$1"
    exit 1
}
refuses() { # SENTENCE ARGUMENT...
    wanted=$1
    shift
    code=0
    "$strobe" quantise "$@" >"$work/out" 2>"$work/sentence" || code=$?
    [ "$code" = 2 ] && grep -qF -- "$wanted" "$work/sentence" || fail "quantise $*: code $code, $(cat "$work/sentence")"
}

"$strobe" quantise "$file" --hadamard -o "$work/e4m3" >"$work/e4m3.txt"
"$strobe" quantise "$file" --dtype int8 --block 1 -o "$work/int8" >"$work/int8.txt"
"$strobe" quantise "$file" --hadamard --dtype int8_e4m3 -o "$work/int8_e4m3" >"$work/int8_e4m3.txt"
grep -q "12 tensors" "$work/e4m3.txt" && grep -q "12 tensors" "$work/int8_e4m3.txt" && grep -q "8 tensors" "$work/int8.txt" || fail "other tensors are written"
awk '/^layer/ { ++sets; if (!($6 > 0.001 && $6 < 0.05 && $7 > 0.999)) bad = 1 } END { exit bad || sets != 2 }' \
    "$work/e4m3.txt" || fail "$(cat "$work/e4m3.txt")"
awk '/^layer/ { if (!($6 > 0.0001 && $6 < 0.01 && $7 > 0.9999)) bad = 1 } END { exit bad }' "$work/int8.txt" ||
    fail "$(cat "$work/int8.txt")"
# The gate of docs/numerics.md for each layer, which e4m3 misses at the first.
awk '/^layer/ { ++sets; if (!($6 > 0.001 && $6 < 0.03 && $7 > 0.9995)) bad = 1 } END { exit bad || sets != 2 }' \
    "$work/int8_e4m3.txt" || fail "$(cat "$work/int8_e4m3.txt")"
grep -aq '"layer0.q":{"dtype":"I8"' "$work/int8_e4m3" && grep -aq '"layer0.v":{"dtype":"F8_E4M3"' "$work/int8_e4m3" ||
    fail "other dtypes are written"
# A byte an element, 4 a scale.
elements=$((2 * 3 * 12 * 445 * 32)) scales=$((2 * 3 * 12 * 4 * 4))
size=$(($(wc -c <"$work/e4m3") - elements - scales))
[ "$size" -gt 8 ] && [ "$size" -lt 4096 ] || fail "the file has $(wc -c <"$work/e4m3") bytes"

"$strobe" run "$work/int8" >"$work/out" 2>&1 && fail "run takes a file without q"
code=0
"$strobe" run "$work/e4m3" >"$work/out" 2>&1 || code=$?
[ "$code" = 2 ] && grep -q "another type; .* F16, BF16, F32 or F64 is accepted" "$work/out" || fail "$(cat "$work/out")"
refuses "one safetensors file and -o are needed" "$file"
refuses "--dtype is int4; e4m3, int8_e4m3 or int8 is accepted" "$file" --dtype int4 -o "$work/x"
refuses "--block is -1; a number of rows, or 0 for all, is accepted" "$file" --block -1 -o "$work/x"
refuses "--hadamard is given with --dtype int8" "$file" --dtype int8 --hadamard -o "$work/x"
refuses "has no tensors named ...q, ...k and ...v" "$work/int8" -o "$work/x"
[ ! -e "$work/x" ] || fail "a refused call has written a file"
