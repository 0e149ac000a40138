#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""readme.py SOURCE STROBE LIBRARY: what README.md shows in C and of the command works as it stands there, and the lines of C and C++
on other pages compile. README's C programs are compiled without a warning and run. Its lines for the command are run, but for those that take seconds: `check` and `run` as
they stand there have tests of their own, and of `bench` only the problem is asked, by `explain`."""
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


# What stands before and behind the lines of a page, which are a part of a program.
AROUND = {
    ("docs/fp8.md", "c"): ("""#include <strobe/strobe_quantise.h>
void f(strobe_attention a, void *q, void *k, void *v, void *q8, void *k8, void *v8, float *qs, float *ks, float *vs, void *stream);
void f(strobe_attention a, void *q, void *k, void *v, void *q8, void *k8, void *v8, float *qs, float *ks, float *vs, void *stream) {
""", "}\n"),
    ("docs/languages.md", "cpp"): ("#include <strobe/strobe.hpp>\n#include <vector>\nint main() {\n", "}\n"),
}


def check_fragments(source, folder):
    for (page, language), (before, behind) in AROUND.items():
        (text,) = re.findall(rf"^```{language}\n(.*?)^```", (source / page).read_text(encoding="utf-8"), flags=re.S | re.M)
        fragment = folder / f"fragment.{language}"
        fragment.write_text(before + text + behind, encoding="utf-8")
        compiler = ("cc", "-std=c11") if language == "c" else ("c++", "-std=c++20")
        if language == "c" or shutil.which("c++"):
            run(*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{source / 'include'}", fragment)


def check_lines(page, source, strobe):
    lines = re.findall(r"^build/strobe (.*)$", page, flags=re.M)
    tried = 0
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "check" or words == ["run", "examples/data/minilm_qkv.safetensors"]:
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
        check_fragments(source, Path(folder))
    tried = check_lines(page, source, strobe)
    print(f"{programs} programs, {tried} lines of the command")
    if programs == 0 or tried == 0:
        sys.exit("README.md has no program in C, or no line of the command: readme.py looks for something else")


main()
