#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""check_tree.py: the rules of docs/architecture.md that a text search can check: who may include whom, sizes of files and
functions, first lines, left-over markers, places that name one machine. Prints "file:line: message" for each finding and
fails when there is one; a line with "note:" does not fail."""
import re
import subprocess
import sys
from pathlib import Path

# Folder -> what its files may include by "...", as prefixes; the longest folder that matches a file counts. A name without a
# slash is a header of the file's own folder and always allowed, "*" is everything.
CPU_SHARED = ["cpu/level.h", "cpu/scratch.h", "cpu/table.h", "cpu/isa/", "core/", "math/", "strobe/"]
CUDA_SHARED = ["cuda/device/", "cuda/host/", "cuda/ptx/", "core/", "math/", "strobe/"]
INCLUDES = {
    "include": ["strobe/"],
    "portable": ["portable/"],
    "src/core": ["core/", "math/", "portable/", "strobe/"],
    "src/math": ["math/"],
    "src/reference": ["reference/", "core/", "math/", "strobe/"],
    "src/cpu": ["cpu/", "core/", "math/", "portable/", "strobe/"],
    "src/cpu/isa": ["cpu/isa/", "math/"],
    "src/cpu/vector": ["cpu/vector/", *CPU_SHARED],
    "src/cpu/decode": ["cpu/decode/", "cpu/vector/", "cpu/cpuid.h", *CPU_SHARED],
    "src/cpu/amx": ["cpu/amx/", "cpu/decode/", "cpu/vector/", *CPU_SHARED],
    "src/cuda": ["cuda/", "core/", "math/", "strobe/"],
    "src/cuda/host": ["cuda/host/", "cuda/device/", "core/", "math/", "strobe/"],
    "src/cuda/host/unpack.c": ["cuda/host/unpack.h", "cuda/packed/"],
    "src/cuda/packed": ["cuda/packed/", "cuda/host/unpack.h"],
    "src/cuda/device": ["cuda/device/", "cuda/ptx/", "math/"],
    "src/cuda/ptx": ["cuda/ptx/"],
    "src/cuda/sm80": ["cuda/sm80/", *CUDA_SHARED],
    "src/cuda/sm90": ["cuda/sm90/", *CUDA_SHARED],
    "src/cuda/emulated": ["cuda/emulated/", "cuda/ptx/", "math/"],
    "dist": ["portable/", "strobe/"],
    "dist/copies": ["dist/cuda_memory.h", "strobe/"],
    "dist/cuda_memory.cu": ["cuda/ptx/"],
    "dist/nccl": ["dist/cuda_memory.h", "strobe/"],
    "cli": ["strobe/", "lab/", "bench/", "check/", "io/", "portable/", "problem/", "run/"],
    "cli/bench/cuda_peaks.cu": ["cuda/ptx/"],
    "lab": ["strobe/"],
    "examples": ["strobe/"],
    "bench": ["strobe/"],
    "python": ["strobe/"],
    "tests": ["*"],
    "tests/install": ["strobe/"],
    "tests/abi": ["portable/", "strobe/"],
}

# Folder -> most lines of a file; the longest folder that matches counts. Above NOTE_LINES a note suggests to split.
MOST_LINES = {"": 500, "src/cpu": 450, "src/cuda": 450}
NOTE_LINES = 350
MOST_FUNCTION_LINES = 60

SOURCES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"}
SCRIPTS = {".py", ".rs", ".sh", ".cmake", ".map", ".toml"}

# Text -> what is wrong with it, in any file of text. Letters in brackets keep this file from finding itself.
ANYWHERE = [
    (r"\b(TO[D]O|FIXM[E]|XX[X]|HAC[K])\b", "a left-over marker"),
    (r"(?<![\w.*])/(work|root|farm|home)/\w", "a path of one machine"),
    (r"/tmp/bash[_]jobs", "a path of one machine"),
    (r"deb\.debian\.org|pypi\.org|files\.pythonhosted|registry\.npmjs", "the host of a package registry"),
    (r"[ \t]+$", "white space at the end of the line"),
]
IN_SOURCES = [
    (r"^(typedef\b.*\b|\} *)\w+_t;", "a type of ours that ends in _t"),
    (r"\t", "a tab"),
]
ASSEMBLY = re.compile(r"\b(asm|__asm|__asm__)\b\s*(volatile|__volatile__|goto)?\s*\(")


def longest(table, path):
    """The entry of the longest folder in the table that path lies in, or None."""
    folders = [f for f in table if f == "" or path == f or path.startswith(f + "/")]
    return table[max(folders, key=len)] if folders else None


def without_comments(text):
    """The text with comments blanked out, line numbers kept. Good enough: no string of ours holds a comment's opening."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)


def check_includes(path, lines):
    allowed = longest(INCLUDES, path)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match or allowed is None or "*" in allowed or "/" not in match[1]:
            continue
        if not any(match[1].startswith(prefix) for prefix in allowed):
            yield number, f'includes "{match[1]}"; allowed here: {" ".join(allowed) or "nothing"}'


def check_sizes(path, lines):
    """Functions are found by their formatting: a head at column 0 that ends in "{", a "}" at column 0."""
    most = longest(MOST_LINES, path)
    if len(lines) > most:
        yield len(lines), f"{len(lines)} lines; at most {most}"
    elif len(lines) > NOTE_LINES:
        yield len(lines), f"note: {len(lines)} lines; better below {NOTE_LINES}"
    head = None
    for number, line in enumerate(lines, 1):
        if re.match(r"[A-Za-z_].*\(", line) and not line.endswith((";", "\\")):
            head = number
        elif line.startswith("}") and head:
            if number - head + 1 > MOST_FUNCTION_LINES:
                yield head, f"a function of {number - head + 1} lines; at most {MOST_FUNCTION_LINES}"
            head = None


def check_patterns(patterns, lines):
    for number, line in enumerate(lines, 1):
        for pattern, message in patterns:
            if re.search(pattern, line):
                yield number, message


def check_file(path, text):
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        yield len(lines), "no end of line at the end of the file"
    yield from check_patterns(ANYWHERE, lines)
    name = Path(path)
    is_source = name.suffix in SOURCES
    if is_source or name.suffix in SCRIPTS or name.name in ("Makefile", "CMakeLists.txt"):
        if not any("SPDX-License-Identifier: BSD-3-Clause" in line for line in lines[:2]):
            yield 1, "no SPDX line at the top"
    if is_source:
        code = without_comments(text).splitlines()
        yield from check_includes(path, code)
        yield from check_sizes(path, lines)
        yield from check_patterns(IN_SOURCES, code)
        if not path.startswith("src/cuda/ptx/"):
            yield from ((n, "asm outside src/cuda/ptx") for n, line in enumerate(code, 1) if ASSEMBLY.search(line))


def main():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout
    failed = False
    for path in sorted(filter(None, listed.split("\0"))):
        if not Path(path).is_file():
            continue
        data = Path(path).read_bytes()
        if b"\0" in data:
            continue
        for number, message in check_file(path, data.decode(errors="replace")):
            print(f"{path}:{number}: {message}")
            failed |= not message.startswith("note:")
    return 1 if failed else 0


sys.exit(main())
