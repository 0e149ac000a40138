#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# check_style.sh: everything about the tree that a compiler does not check: the rules of check_tree.py, the pages and words of
# check_docs.py, and clang-format. One line a finding, "file:line: message"; fails when there is one.
set -u
cd "$(dirname "$0")/.." || exit 1
failed=0
python3 tools/check_tree.py || failed=1
python3 tools/check_docs.py || failed=1

# Every version of clang-format has opinions of its own; the tree is formatted with 14.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cpp' '*.hpp' |
        xargs -0 clang-format --dry-run -Werror 2>&1 |
        sed -n 's/:[0-9]*: error: .*/: not as clang-format 14 has it/p' | awk -F: '!seen[$1 ":" $2]++' |
        { ! grep .; } || failed=1
else
    echo "check_style.sh: no clang-format 14 here; formatting was not checked"
fi
exit $failed
