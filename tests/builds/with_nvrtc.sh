#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# with_nvrtc.sh VENV COMMAND...: runs the command with STROBE_NVRTC naming NVRTC as python/requirements/nvrtc.txt pins it, unless the
# environment names one already. VENV is made where it is missing, a download of 90 MB, and kept. Exits 77 where it cannot be had.
set -eu
venv=$1
shift
if [ -z "${STROBE_NVRTC:-}" ]; then
    tools=$(cd "$(dirname "$0")/../../tools" && pwd)
    if ! programs=$(python3 "$tools/pinned_tools.py" "$venv" nvrtc.txt 2>&1); then
        echo "$programs" | tail -n 2
        echo "skipped: NVRTC could not be had: neither the package nvidia-cuda-nvrtc nor a file that STROBE_NVRTC names"
        exit 77
    fi
    STROBE_NVRTC=$(find "$venv/lib" -name libnvrtc.so.13)
    export STROBE_NVRTC
fi
exec "$@"
