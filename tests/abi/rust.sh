#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# rust.sh CRATES LIBRARY WORK: the crates of examples/rust pass their tests against a built library, without a registry. WORK is
# a folder for what cargo builds.
set -eu
crates=$1 library=$2 work=$3
STROBE_LIB_DIR=$(cd "$(dirname "$library")" && pwd)
LD_LIBRARY_PATH=$STROBE_LIB_DIR
export STROBE_LIB_DIR LD_LIBRARY_PATH
cargo --version
cargo test --offline --locked --manifest-path "$crates/Cargo.toml" --target-dir "$work"
