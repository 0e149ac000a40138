#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# test_totals.sh RESULTS.xml...: sums what ctest --output-junit wrote, as one line "N passed, N failed, N skipped". Skipped is
# only what said so by its exit code: a test that ctest could not start has failed, whatever ctest calls it. A file that is
# missing counts as one failure: its tests never came to run.
set -eu
passed=0 failed=0 skipped=0
for results in "$@"; do
    if [ ! -s "$results" ]; then
        failed=$((failed + 1))
        continue
    fi
    all=$(grep -c '^[[:space:]]<testcase ' "$results" || true)
    run=$(grep -c '^[[:space:]]<testcase .* status="run"' "$results" || true)
    out=$(grep -c '^[[:space:]]*<skipped message="SKIP_RETURN_CODE=' "$results" || true)
    passed=$((passed + run)) skipped=$((skipped + out)) failed=$((failed + all - run - out))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
