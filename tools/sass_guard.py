#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""sass_guard.py: what ptxas has made of the Hopper kernels. A kernel can stay correct and lose half of its speed to a spilled
register or a wait that moved; neither a test nor a warning tells. Compiles the variants named in a list that the build writes
and checks the compiler's report and the machine code itself.

    tools/sass_guard.py NVCC LIST [--match WORDS] [--skip WORDS] [--dtype bf16] [--jobs 2]        # LIST: build/src/cuda/sm90_defines.txt

Rules: no remark of ptxas about serialised wgmma (C75xx) and no warning; all matrix products are there and are HGMMA.
Forward: no spills, no stack frame, no local memory; in the main loop both products are issued between the two barriers of ping-pong, scores are
compared with their rows' bounds three at a time and between the wait for them and that for P V, and no exponential stands before
the first wait. Backward to 128 columns: products and waits of the main loop in the order of backward.cu, all exponentials under
the product dP and, where groups ping-pong, between its barriers, with products that nothing stands between; hardly any access of local memory
there: spills are in what runs once a tile. CTA pairs: few spills. Latent attention: no spills, all products of a block, one wait after each
group's. FP8: products and waits in the order of its texts, no more accesses of local memory than when e4m3's speed was measured, or
than int8 had on its first day.

Instructions are told apart by the low nine bits of their 128, which are the same in every sm_90 binary, so that the guard needs
nvcc alone. Exit code 0 all as designed, 1 not, 77 no nvcc or
no list."""
import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KIND = {0x1F0: "hgmma", 0x1F1: "igmma", 0x1F3: "qgmma", 0x108: "exp", 0x00F: "compare", 0x03E: "pack", 0x11D: "bar", 0x183: "local", 0x187: "local"}
WARP_GROUP = 0x1C5  # arrive and waits; the wait's limit is in the high word
WAITS = {0x10000: "wait0", 0x10100: "wait1", 0x10200: "wait2", 0x10300: "wait3"}
MOST_LOCAL = 4  # accesses from the first wait of a backward to the end of its main loop, some 1,000 instructions
MOST_LOCAL_PAIR = 70  # anywhere
MOST_LOCAL_BYTES = 16  # anywhere, of latent attention over bytes; two of them in the loop of the scores group
# From the first product of FP8 to the last, by head dim, 0 where there is none; half of forward_long.cu's at 128 are where a sum was too large.
MOST_LOCAL_FP8 = {"short": {128: 4, 256: 30}, "long": {64: 2, 128: 60, 192: 2, 256: 12}, "score": {192: 14, 256: 20}}
MOST_LOCAL_INT8 = {"short": {128: 3, 256: 28}, "long": {64: 35, 128: 114, 192: 1, 256: 11}, "score": {192: 11, 256: 17}}  # with int8 q and k


def instructions(cubin, kernel):
    """Kinds of the kernel's instructions, in order, those of no interest left out."""
    data = cubin.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    sections = [struct.unpack_from("<IIQQQQ", data, table + 64 * i) for i in range(count)]
    kinds = []
    for name, _, _, _, offset, size in sections:
        start = sections[names][4] + name
        if data[start : data.index(b"\0", start)].decode() != f".text.{kernel}":
            continue
        for at in range(offset, offset + size, 16):
            low, high = struct.unpack_from("<QQ", data, at)
            opcode = low & 0x1FF
            kind = WAITS.get(high & 0x1FFFF) if opcode == WARP_GROUP else KIND.get(opcode)
            if kind:
                kinds.append(kind)
    return kinds


def check_report(log, may_spill=False):
    """What the compiler said."""
    for line in log.splitlines():
        if may_spill and "spill" in line:
            continue
        if "stack frame" in line and not re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", line):
            yield f"spills or has a stack frame: {line.strip()}"
        if re.search(r"C75(?!19)\d\d|warning|error", line):  # C7519 is an arrive more, not a wait
            yield f"ptxas remarks: {line.strip()}"


def check_code(kinds, scores_steps, values_steps, keys, ping_pong):
    """What it made. A product Q K^T takes scores_steps instructions, P V values_steps."""
    if "local" in kinds:
        yield f"{kinds.count('local')} accesses of local memory"
    products = kinds.count("hgmma")
    expected = 3 * scores_steps + 2 * values_steps  # before the first tile, in the loop, and from tile to tile
    if products != expected:
        yield f"{products} HGMMA instructions; {expected} are expected"
    if "wait1" not in kinds:
        yield "no wait that leaves P V running"
        return
    scores_wait = kinds.index("wait1")
    start = max(i for i in range(scores_wait) if kinds[i] == "wait0")
    end = kinds.index("wait0", scores_wait)
    issue, under = [k for k in kinds[start:scores_wait] if k in ("hgmma", "bar")], kinds[scores_wait:end]
    barrier = ["bar"] if ping_pong else []
    if issue != barrier + ["hgmma"] * (scores_steps + values_steps) + barrier:
        yield f"the loop's products are not between the barriers of ping-pong: {' '.join(issue)}"
    first_product = kinds.index("hgmma", start)
    if "exp" in kinds[first_product:scores_wait]:
        yield "exponentials stand between the products and the wait for the scores"
    if under.count("compare") < keys // 4 - 4:  # two of a thread's keys / 2 scores at a time, in two chains
        yield f"{under.count('compare')} comparisons of scores are under the product P V; about {keys // 4} are expected"
    if "pack" in under:
        yield "P is packed before P V, which reads their registers, is waited for"


def check_backward(kinds, dim, rows, parts, lag):
    """The same for backward.cu, 128 keys a CTA: S and dP take a product's instructions for each 16 columns, dV and dK for each
    16 rows, dQ for each 16 keys."""
    scores, sums, dq = dim // 16, rows // 16, 128 // 16
    loop = ["hgmma"] * (scores + sums) + [f"wait{parts}"] + ["hgmma"] * (sums + dq) + [f"wait{parts + 1}"] + ["hgmma"] * scores
    expected = ["hgmma"] * scores + ["wait0"] + loop + ["wait1", "wait0"] + (["hgmma"] * dq + ["wait0"] if lag else [])
    order = [k for k in kinds if k == "hgmma" or k.startswith("wait")]
    if rows > 64 and order == expected * 2:  # a loop for each group, alike: the first is looked at
        order = expected
    if order != expected:
        yield f"products and waits are in another order: {' '.join(order)}"
        return
    start, dp_wait = kinds.index("wait0"), kinds.index(f"wait{parts}")
    end = kinds.index("wait1", kinds.index(f"wait{parts + 1}"))
    exponentials = kinds[kinds.index("hgmma", start):dp_wait].count("exp")
    if exponentials != rows // 2:
        yield f"{exponentials} exponentials are under the product dP; {rows // 2} are expected"
    under = kinds[kinds.index("hgmma", start):dp_wait]
    if lag and (kinds[start - 1] != "bar" or under[-1] != "bar" or under.count("bar") != 1):
        yield "P is not made between the barriers of ping-pong"
    if lag and parts == 1 and "exp" not in under[: under.index("hgmma", under.index("hgmma", 1) + 1)]:
        yield "exponentials start late: not behind the first two of dP's products, which is 3 % slower"
    if kinds[start:end].count("local") > MOST_LOCAL:
        yield f"{kinds[start:end].count('local')} accesses of local memory in the main loop; {MOST_LOCAL} at most"


def check_pair(kinds):
    """For backward/backward_pair.cu."""
    if "hgmma" not in kinds:
        yield "no HGMMA instructions"
    if kinds.count("local") > MOST_LOCAL_PAIR:
        yield f"{kinds.count('local')} accesses of local memory; {MOST_LOCAL_PAIR} at most"


def check_latent(kinds, over_bytes):
    """For latent/latent.cu: 576 / 16 products of the scores; of the values two panels of 128 columns for each 16 of 48 keys."""
    order = [k for k in kinds if k in ("hgmma", "wait0")]
    scores, values = ["hgmma"] * 36 + ["wait0"], ["hgmma"] * 6 + ["wait0"]
    if order not in (scores + values, values + scores):
        yield f"products and waits are in another order: {' '.join(order)}"
    if over_bytes and kinds.count("local") > MOST_LOCAL_BYTES:
        yield f"{kinds.count('local')} accesses of local memory; {MOST_LOCAL_BYTES} at most"


def check_fp8(kinds, long, dim, groups, has_terms, int8):
    """For fp8/: S takes a product's instructions for each 32 columns, a part of P V one for each 32 keys. A part's sums are added under the
    next part's products, but for those of three consumers at 128 columns of forward_long.cu, which have no registers for two. int8: of q and k."""
    scores, part, wait = ["igmma" if int8 else "qgmma"] * (dim // 32), ["qgmma"] * 4, ["wait1"]
    if long:
        parts = {64: 1, 128: 2, 192: 4, 256: 5}[dim]
        between = ["wait0"] if dim == 128 and groups > 2 else wait
    else:
        parts, between = dim // (32 if groups > 2 and dim > 64 else 64), wait
    if between == wait:
        values = part + (part + wait) * (parts - 1) + ["wait0"]
    else:
        values = (part + between) * parts
    expected = scores + ["wait0"] + values + (scores + ["wait0"] if long else [])
    order = [k for k in kinds if k in ("igmma", "qgmma") or k.startswith("wait")]
    if order != expected:
        yield f"products and waits are in another order: {' '.join(order)}"
        return
    products = [n for n, kind in enumerate(kinds) if kind in ("igmma", "qgmma")]
    loop = kinds[products[0] : products[-1]].count("local")
    text = "long" if long else "score" if has_terms else "short"
    most = (MOST_LOCAL_INT8 if int8 else MOST_LOCAL_FP8)[text].get(dim, 0)
    if loop > most:
        yield f"{loop} accesses of local memory from the first product to the last; {most} at most"


def findings_of(defines, source, log, kinds):
    if source == "latent.cu":
        over_bytes = "STORED_INT8" in defines or "STORED_FP8_E4M3" in defines
        return [*check_report(log, over_bytes), *check_latent(kinds, over_bytes)]
    dim = int(defines.get("COLUMNS", defines["HEAD_DIM"]))
    if "FP8_INPUTS" in defines:
        has_terms = defines["FEATURE_CLASS"] != "FEATURES_NONE"
        shape = source == "forward_long.cu", dim, int(defines["GROUPS"]), has_terms, "INT8_SCORES" in defines
        return [*check_report(log, True), *check_fp8(kinds, *shape)]
    if source in ("forward.cu", "plain.cu"):
        keys, ping_pong = int(defines["KEYS"]), defines["GROUPS"] != "1"
        return [*check_report(log), *check_code(kinds, -(-dim // 16), keys // 16, keys, ping_pong)]
    if source == "backward.cu":
        shape = [int(defines[n]) for n in ("ROWS", "PARTS", "LAG")]
        fenced = ["dV's or dK's products are fenced one by one (C7519)"] if shape[2] and "C7519" in log else []
        return [*check_report(log, True), *fenced, *check_backward(kinds, dim, *shape)]
    return [*check_report(log, True), *check_pair(kinds)]


def guard(nvcc, name, options, folder):
    """Findings for one variant."""
    defines = dict(re.findall(r"-D(\w+)(?:=(\w+))?", " ".join(options)))
    cubin = folder / f"{name}.cubin"
    command = [nvcc, *options, f"-DKERNEL={name}", "-cubin", "-Xptxas=-v", "-o", str(cubin)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        return [f"nvcc failed: {done.stdout}"]
    return findings_of(defines, Path(options[-1]).name, done.stdout, instructions(cubin, name))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc")
    parser.add_argument("list", type=Path, help="a line a variant: its name, then nvcc's options and the source")
    parser.add_argument("--match", default="plain,mask,128_pages,latent", help="only variants whose name has one of these words; empty: all")
    parser.add_argument("--skip", default="", help="no variants whose name has one of these words")
    parser.add_argument("--dtype", default="", help="only variants of this dtype: bf16 or fp16, default both")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if not shutil.which(options.nvcc) or not options.list.exists():
        sys.exit(77)
    words, lines = options.match.split(","), options.list.read_text().splitlines()
    variants = [line.split() for line in lines if any(word in line.split()[0] for word in words)]
    variants = [v for v in variants if options.dtype in v[0] and not any(w in v[0] for w in options.skip.split(",") if w)]
    if not variants:
        sys.exit(f"sass_guard: {options.list} has no variant that matches {options.match!r} {options.dtype}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda v: (v[0], guard(options.nvcc, v[0], v[1:], Path(folder))), variants))
    for name, findings in results:
        print(f"{name}: {'as designed' if not findings else ''}")
        for finding in findings:
            print(f"  {finding}")
    sys.exit(any(findings for _, findings in results))


if __name__ == "__main__":
    main()
