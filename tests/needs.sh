#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# needs.sh PROGRAM... -- COMMAND...: runs the command if every program is here, else says which is not and exits with 77, which
# ctest counts as skipped.
while [ "$1" != -- ]; do
    if ! command -v "$1" >/dev/null; then
        echo "skipped: no $1 here (tools/packages/debian.txt)"
        exit 77
    fi
    shift
done
shift
exec "$@"
