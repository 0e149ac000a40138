#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""readme.py SOURCE STROBE LIBRARY: what README.md shows in C and of the command works as it stands there, and so do all lines of C, C++
and of the command on the pages of docs/. README's C programs are compiled without a warning and run; those of other pages are parts of
programs, and are compiled. Lines for the command are run, but for those that take seconds: `check` and `run` as they stand there have
tests of their own, as `lab report` has, and of `bench` only the problem is asked, by `explain`."""
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 120  # more than any of it takes


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_programs(page, source, library, folder):
    programs = re.findall(r"^```c\n(.*?)^```", page, flags=re.S | re.M)
    for number, text in enumerate(programs):
        program = folder / f"example{number}"
        program.with_suffix(".c").write_text(text, encoding="utf-8")
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{source / 'include'}", program.with_suffix(".c"), library,
            f"-Wl,-rpath,{library.parent}", "-o", program)
        run(program)
    return len(programs)


# What stands before and behind the lines of a page, which are a part of a program: one for each block of the page, in order.
FP8 = """#include <strobe/strobe_quantise.h>
void f(strobe_attention a, void *q, void *k, void *v, void *q8, void *k8, void *v8, float *qs, float *ks, float *vs, void *stream);
void f(strobe_attention a, void *q, void *k, void *v, void *q8, void *k8, void *v8, float *qs, float *ks, float *vs, void *stream) {
"""
SERVING = """#include <strobe/strobe.h>
#include <strobe/strobe_append.h>
void fail(const char *sentence);
void f(int32_t *cu, int32_t *used, int32_t *table, int64_t count, int64_t sequences, int64_t longest_chunk, int64_t most_tokens,
       int layers, void *q, void *k, void *v, void *turned_q, void **k_pages, void **v_pages, void *out, void *workspace, size_t bytes);
void f(int32_t *cu, int32_t *used, int32_t *table, int64_t count, int64_t sequences, int64_t longest_chunk, int64_t most_tokens,
       int layers, void *q, void *k, void *v, void *turned_q, void **k_pages, void **v_pages, void *out, void *workspace, size_t bytes) {
"""
PREFIX = """#include <strobe/strobe.h>
#include <strobe/strobe_append.h>
void fail(const char *sentence);
void f(strobe_attention step, strobe_paged pages, strobe_varlen lengths, int64_t sequences, int64_t prefix_keys, int64_t prefix_pages,
       int64_t most_own_keys, void **part, void **lse, void *out, void *workspace, size_t bytes);
void f(strobe_attention step, strobe_paged pages, strobe_varlen lengths, int64_t sequences, int64_t prefix_keys, int64_t prefix_pages,
       int64_t most_own_keys, void **part, void **lse, void *out, void *workspace, size_t bytes) {
"""
CPP = "#include <strobe/strobe.hpp>\n#include <vector>\nint main() {\n"
AROUND = {
    ("docs/fp8.md", "c"): [(FP8, "}\n")],
    ("docs/languages.md", "cpp"): [(CPP, "}\n")],
    ("docs/serving.md", "c"): [(SERVING, "}\n"), (PREFIX, "}\n")],
}


def check_fragments(source, folder):
    """Every block of C and C++ on every page but README.md."""
    count = 0
    for path in sorted((source / "docs").rglob("*.md")):
        page, text = path.relative_to(source).as_posix(), path.read_text(encoding="utf-8")
        for language in ("c", "cpp"):
            blocks = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M)
            around = AROUND.get((page, language), [])
            if len(blocks) != len(around):
                sys.exit(f"{page} has {len(blocks)} blocks of {language}; AROUND says what stands around {len(around)}")
            for block, (before, behind) in zip(blocks, around):
                fragment = folder / f"fragment.{language}"
                fragment.write_text(before + block + behind, encoding="utf-8")
                compiler = ("cc", "-std=c11") if language == "c" else ("c++", "-std=c++20")
                if language == "c" or shutil.which("c++"):
                    run(*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{source / 'include'}", fragment)
                    count += 1
    return count


# Lines of the command that are not tried: those of `check`, `run` and `lab report` have tests of their own, a plot needs matplotlib.
ELSEWHERE = ("check", "run examples/data/minilm_qkv.safetensors", "lab report", "lab plot")


def check_lines(page, source, strobe):
    lines = re.findall(r"^(?:build/|\$ )strobe ([^>\n]*)", page, flags=re.M)
    tried = 0
    for line in lines:
        words = shlex.split(line, comments=True)
        if " ".join(words).startswith(ELSEWHERE):
            continue
        if words[0] == "bench":
            words[0] = "explain"
        assert run(strobe, *words, cwd=source), line
        tried += 1
    return tried


def main():
    source, strobe, library = (Path(argument).resolve() for argument in sys.argv[1:4])
    page = (source / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        programs = check_programs(page, source, library, Path(folder))
        fragments = check_fragments(source, Path(folder))
    tried = check_lines(page, source, strobe)
    elsewhere = sum(check_lines(path.read_text(encoding="utf-8"), source, strobe) for path in sorted((source / "docs").glob("*.md")))
    print(f"{programs} programs, {fragments} parts of programs, {tried} and {elsewhere} lines of the command")
    if programs == 0 or tried == 0 or elsewhere == 0:
        sys.exit("README.md has no program in C, or pages have no line of the command: readme.py looks for something else")


main()
