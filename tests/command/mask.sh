#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# mask.sh STROBE SOURCE: what `strobe mask` counts and draws is what follows from the mask by hand: of n x n causal blocks the n on the
# diagonal are partial, half of the others are visible.
set -eu
strobe=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
expect() {
    wanted=$1
    shift
    "$strobe" mask "$@" >"$work/counts"
    grep -qxF "$wanted" "$work/counts" || {
        echo "strobe mask $*: $(cat "$work/counts"), not $wanted"
        exit 1
    }
}
expect "64 x 64 blocks of 16: 2016 visible, 64 partial, 2016 skipped" fwd s=1k causal -o "$work/picture.svg"
squares() { grep -F "fill=\"$1\"" "$work/picture.svg" | grep -o M | wc -l; }
[ "$(squares '#1f4e79')" = 2016 ] && [ "$(squares '#8db4d9')" = 64 ] || {
    echo "the picture has other squares"
    exit 1
}
expect "64 x 64 blocks of 16: 2016 visible, 64 partial, 2016 skipped" fwd s=1k h=2 visible="j <= i"
expect "50.8 % of the blocks are computed, 50.0 % of the scores are visible" fwd s=1k causal alibi softcap=5 score="score - i"
expect "4 x 4 blocks of 32: 4 visible, 0 partial, 12 skipped" -b 32 fwd s=128 visible="i / 32 == j / 32"
expect "3 x 5 blocks of 64: 0 visible, 15 partial, 0 skipped" -b 64 fwd sq=130 sk=300 visible="(i + j) % 2 == 0"
if "$strobe" mask fwd s=0 2>"$work/sentence"; then exit 1; fi
grep -q "the first sequence has 0 rows and 0 keys; 1 to 16384 are accepted" "$work/sentence"

# The pictures of docs/scores.md are what its commands draw.
grep '^    strobe mask .* -o docs/' "$source/docs/scores.md" | grep -v neighbours >"$work/commands"
while read -r _ _ arguments; do
    eval "set -- $arguments"
    for picture; do :; done # the last argument
    eval "\"$strobe\" mask ${arguments% -o *}" -o "\"$work/picture.svg\"" >"$work/counts"
    cmp "$work/picture.svg" "$source/$picture" || exit 1
done <"$work/commands"
[ "$(wc -l <"$work/commands")" = 6 ]
