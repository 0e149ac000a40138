#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# parts.sh STROBE: the parts of a list of problems (check --part K/N) are all of it, each problem once.
set -eu
strobe=$1
cases() { "$strobe" check --each -o csv --kernel reference_forward "$@" fwd s=1,2,3,4,5 d=8 | tail -n +2; }
whole=$(cases)
[ "$(echo "$whole" | wc -l)" -eq 5 ]
[ "$(cases --part 2/3 | wc -l)" -eq 2 ]
parts=$(for part in 1 2 3; do cases --part $part/3; done)
[ "$(echo "$parts" | sort)" = "$(echo "$whole" | sort)" ]
