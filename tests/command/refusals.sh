#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# refusals.sh STROBE SOURCE: bad calls of the command. Each must exit with 2, print nothing on stdout, and say one sentence on
# stderr that names the argument, its value and what is accepted. A check that checks nothing exits with 77 and says why.
set -u
strobe=$1
cd "$2" || exit 1
file=examples/data/minilm_qkv.safetensors
long=$(printf '%0400d' 0)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
calls=0 failed=0

# ends CODE SENTENCE WORD...: the call `strobe WORD...`. SENTENCE is the whole of stderr, or its beginning if it ends in "...".
ends() {
    right=$1 sentence=$2
    shift 2
    calls=$((calls + 1))
    printed=$("$strobe" "$@" 2>"$errors")
    code=$?
    case $sentence in
    *...) pattern=${sentence%...} rest=* ;;
    *) pattern=$sentence rest= ;;
    esac
    [ "$right" = 2 ] || printed= # a table, which a refusal has not
    case $code:${#printed}:$(cat "$errors") in
    # shellcheck disable=SC2254 # $rest is a pattern
    "$right":0:"$pattern"$rest) return ;;
    esac
    printf 'strobe %s\n  exit code %s, %s bytes on stdout\n  expected: %s\n  said:     %s\n' \
        "$*" "$code" "${#printed}" "$sentence" "$(cat "$errors")"
    failed=$((failed + 1))
}
refused() { ends 2 "$@"; }
nothing_checked() { ends 77 "$@"; }

refused 'strobe: "speed" is not a command...' speed
refused 'strobe lab: "speed" is not a command...' lab speed
refused 'strobe info: --all is not an option; strobe info --help lists the options' info --all
refused 'strobe info: -x is not an option; strobe info --help lists the options' info -x
refused 'strobe info: -o is given without its value; strobe info --help lists the options' info -o
refused 'strobe info: --support=md takes no value; strobe info --help lists the options' info --support=md
refused 'strobe info: -o is xml; table, json, csv or md is accepted' info -o xml
refused 'strobe info: twice is one word too many' info twice
refused 'strobe run: --q is given without its value; strobe run --help lists the options' run --q
refused 'strobe run: a safetensors file, or all of --q, --k and --v, is needed; strobe run --help shows how' run --q q.npy
refused 'strobe run: no.safetensors: could not be read: No such file or directory' run no.safetensors
refused 'strobe run: src: could not be read: it is not a regular file' run src
refused 'strobe run: README.md: not a safetensors file: its first 8 bytes are not the length of a header inside it' run README.md
refused 'strobe run: b=3 is not a word that run takes; strobe run --help lists them' run $file b=3
refused 'strobe check: --device is tpu; cuda is accepted' check --device tpu
for part in 3/2 0/2 1 /2 1/ x/2; do
    refused "strobe check: --part is $part; K/N with K from 1 to N is accepted" check --part $part
done
refused 'strobe check: kernel is fast; a kernel that strobe info lists is accepted' \
    check --kernel fast
refused 'strobe check: --random is 0; a number of seconds above 0 is accepted' check --random 0
refused 'strobe check: --seed is -1; an integer from 0 on is accepted' check --random 1 --seed -1
refused 'strobe check: --cases is 0; an integer from 1 on is accepted' check --random 1 --cases 0
refused 'strobe check: --random is given with --part; one of them is accepted' check --random 1 --part 1/2
refused 'strobe check: --random is given with the problem fwd; one of them is accepted' check --random 1 fwd
nothing_checked 'strobe check: nothing was checked: no kernel takes this problem; cpu_decode_baseline: seq_q times heads_q / heads_kv is 100; ...' \
    check --kernel cpu_decode_baseline fwd h=1 sq=100 sk=100 d=16
nothing_checked 'strobe check: nothing was checked in 1e-09 seconds: all was refused, or they were too few' check --random 1e-9
refused 'strobe check: d is 0; an integer from 1 to 65536 is accepted' check fwd d=0
refused 'strobe check: fwd b=1 h=1 s=128 d=600 fp32: dim is 600; 1 to 576 is accepted' check fwd d=600
refused 'strobe check: scale is nan; a finite number other than 0 is accepted' check fwd scale=nan
refused 'strobe check: dropout is 1; a number from 0 and below 1 is accepted' check fwd dropout=1
refused 'strobe check: h is 3/2; a number of K/V heads that divides the query heads is accepted' check fwd h=3/2
refused 'strobe check: "fast" is not a word of a problem; see the words under strobe bench --help' check fwd fast
refused 'strobe check: layout is bdsh; accepted are bshd, bhsd, packed, gaps, reversed, sbhd, backwards, misaligned, shared, mixed, overlapping' check fwd layout=bdsh
refused 'strobe bench: --seconds is soon; a number from 0 is accepted' bench fwd --seconds soon
refused 'strobe bench: -o is svg; table, json, csv, md or html is accepted' bench fwd -o svg
refused 'strobe bench: --compare is given 1 files; two, the old and the new, are accepted' bench --compare old.json
refused 'strobe bench: no.json: could not be read: No such file or directory' bench --compare no.json no.json
refused 'strobe bench: README.md: ...' bench --compare README.md README.md
refused 'strobe bench: no problem is given; strobe bench --help shows how' bench
refused 'strobe trace: the problem is without device=cuda; one with it is taken' trace fwd
refused 'strobe lab traffic: n = many: a number such as 64, 16k, 100KiB, 1k..16k*2 or 64..256+64 is accepted' lab traffic n=many
refused 'strobe lab traffic: n = 0: 1 to 16777216 is accepted' lab traffic n=0
refused 'strobe lab traffic: "speed=1": no such word; --help lists them' lab traffic speed=1
refused 'strobe lab traffic: blocks = 00000000000000000000000000000000000000000...' lab traffic "blocks=$long"
refused 'strobe lab traffic: algorithms = flash4: the names that strobe lab --help lists are accepted' \
    lab traffic algorithms=flash4
refused 'strobe lab traffic: no.safetensors: could not be read: No such file or directory' lab traffic no.safetensors
refused "strobe lab traffic: $file has no tensors named layer9.q, layer9.k and layer9.v" lab traffic $file layer=layer9
refused 'strobe lab sweep: one word has to have several values, as in n=512..64k*2' lab sweep n=512
refused 'strobe lab sweep: S = 4611686018427387904: 1 to 1152921504606846975 is accepted' \
    lab sweep 'S=4611686018427387904..9223372036854775807*2'
refused 'strobe lab roofline: --device is v100; h100, h200, a100 or this is accepted' lab roofline --device v100
refused 'strobe lab schedule: --load is 0; 1 to 1024 is accepted' lab schedule --load 0
refused 'strobe lab fp8: d = 100: the Hadamard transform takes a power of two' lab fp8 d=100
if [ -w /dev/full ]; then
    calls=$((calls + 1))
    "$strobe" info -o json >/dev/full 2>"$errors"
    if [ $? != 2 ] || [ "$(cat "$errors")" != 'strobe: standard output could not be written to the end' ]; then
        echo "strobe info on a full disk says: $(cat "$errors")"
        failed=$((failed + 1))
    fi
    refused 'strobe mask: /dev/full could not be written: No space left on device' mask fwd s=64 causal -o /dev/full
fi
refused 'strobe mask: /nonexistent/a.svg could not be written: No such file or directory' mask fwd s=64 causal -o /nonexistent/a.svg
STROBE_ISA=sse9 && export STROBE_ISA
refused 'strobe: STROBE_ISA is sse9; baseline, avx2, avx512, avx512bf16 or amx is accepted' info

echo "$calls calls, $failed not refused as they should be"
[ $failed = 0 ]
