#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
#
# aarch64_levels.sh SOURCE: the level neonbf16 is chosen where the processor has products of bf16 and STROBE_ISA allows it, and nowhere
# else: qemu's Cortex-A57 has none, and stops a program that uses one. STROBE_ISA never raises a level. Exit code 77 of `strobe check`
# says that the kernel cannot run there. Then a problem runs on both processors, by the kernels that each has.
set -u
check="$1/build-aarch64/check_alone"
export OMP_NUM_THREADS=1 QEMU_LD_PREFIX=/usr/aarch64-linux-gnu

# expect CODE PROCESSOR ISA: of the kernel of neonbf16
expect() {
    for kernel in forward backward; do
        problem=fwd
        [ $kernel = backward ] && problem=bwd
        STROBE_ISA=$3 qemu-aarch64 -cpu "$2" "$check" --kernel "cpu_${kernel}_neonbf16" $problem s=70 d=64 bf16 >/dev/null 2>&1
        code=$?
        [ $code = "$1" ] && continue
        echo "cpu_${kernel}_neonbf16 on $2 with STROBE_ISA='$3': exit code $code, not $1"
        exit 1
    done
}
expect 0 max ''
expect 0 max neonbf16
expect 77 max neon
expect 77 max baseline
expect 77 cortex-a57 ''
expect 77 cortex-a57 neonbf16

for processor in max cortex-a57; do
    found=$(qemu-aarch64 -cpu $processor "$check" fwd h=2 s=70 d=64 bf16 bwd h=2 s=70 d=64 bf16) || { echo "$found"; exit 1; }
    case $processor in max) wanted=2 ;; *) wanted=0 ;; esac
    [ "$(echo "$found" | grep -c '^cpu_[a-z]*_neonbf16 .* 1  ')" = $wanted ] && continue
    echo "on $processor $wanted kernels of neonbf16 should have run:"
    echo "$found"
    exit 1
done
# Products of bytes: on a processor that has them without those of bf16, and not on one of ARMv8.0.
for processor in neoverse-n1 cortex-a57; do
    found=$(qemu-aarch64 -cpu $processor "$check" fwd h=4/2 sq=1 sk=200 d=64 kv=int8) || { echo "$found"; exit 1; }
    case $processor in neoverse-n1) wanted=1 ;; *) wanted=0 ;; esac
    [ "$(echo "$found" | grep -c '^cpu_decode_int8_neon  *1  ')" = $wanted ] && continue
    echo "on $processor $wanted kernels of products of bytes should have run:"
    echo "$found"
    exit 1
done
echo "neonbf16 and products of bytes run where they may, and nowhere else"
