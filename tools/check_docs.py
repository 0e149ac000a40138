#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""check_docs.py: what a text search can check about pages and comments.

    links     a relative link of a page leads to a file, and to a heading of it
    blocks    a block of code in Python or JSON is well-formed, and every block ends
    files     a file of this tree that a page or a comment names is there
    titles    the comment at the top of a file begins with the file's own name
    names     a name of ours in a page, strobe_*, STROBE_*, or a kernel's, stands in the code too
    words     no name and no comment uses a word that docs/glossary.md retires
    figures   measured speeds stand in docs/benchmarks.md and in the notebooks of docs/kernels/, and in no comment

Prints "file:line: message" for each finding and fails when there is one."""
import ast
import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

ENDINGS = "c|cmake|cpp|cu|h|hpp|map|md|png|py|rs|sh|svg|toml|txt"
# A file with its folder, anywhere in a text: one of this tree unless it begins as one of ELSEWHERE.
NAMED = re.compile(rf"(?<![\w./<>$@{{}}*-])((?:[\w*-]+/)+[\w*-]+\.(?:{ENDINGS}))\b(?![\w</]|\.in\b)")
ELSEWHERE = ("build", "api/", "lib/cmake/")
# Names of ours; not the beginnings of names, as in "standard_*", nor those that src/cpu/level.h puts together.
OURS = re.compile(r"\b(?:(?:STROBE_|strobe_(?!_cpu_))\w+"
                  r"|(?:cpu|cuda|reference|standard)_(?:forward|backward|decode)(?:_\w+)?)\b(?!\*)(?<!_)")
# Notebooks and the changelog tell of names as they were.
HISTORY = ("CHANGELOG.md", "docs/kernels/")
CODE = {".c", ".h", ".cpp", ".hpp", ".cu"}

# Folders whose comments have no measured speeds. The rates in lab/device.c are what a model starts from.
NO_FIGURES = ("cli/", "include/", "src/")

# Word of a name in snake case -> what to say instead, and the folder where it is retired ("" is everywhere).
RETIRED_IN_NAMES = {
    "form": ("variant", "src"),
    "forms": ("variants", "src"),
    "term": ("delta", "src"),
    "weigh": ("exponential", "src"),
    "weighing": ("exponential", "src"),
    "courier": ("exchange", ""),
    "course": ("consumer state", ""),
    "wide": ("pair", "src/cuda"),
    "turn": ("ping_pong, dq_order or rotation", "src"),
    "turns": ("ping_pong, dq_order or rotation", "src"),
    "meet": ("the loop over blocks, or process", "src"),
    "meets": ("the loop over blocks, or process", "src"),
    "meeting": ("block_pair", "src"),
    "places": ("slots, stages or positions", "src"),
}
# In comments the same words are looked for where they can have no other sense.
RETIRED_IN_COMMENTS = [
    (r"\b(courier|couriers)\b", "exchange through distributed shared memory", ""),
    (r"\b(weigh|weighs|weighed|weighing)\b", "exponential", "src"),
    (r"\bmeetings?\b|\bmeets? (\w+ )?(block|key|tile|strip|row|super)s?\b", "block pair, loop over blocks, process", "src"),
    (r"\b(a|the|its|their|his|by|take|takes|taking|give|gives|whose|each|own|next|first) turns?\b",
     "ping-pong, dQ order, tile rotation", "src"),
    (r"\bstale maxim(um|a)\b", "lagging maximum", ""),
]
FIGURE = re.compile(r"\d[\d.]*\s*(/\s*\d[\d.]*\s*)?(T|G)(FLOP|B)/s")
PAGES_WITH_FIGURES = ["docs/benchmarks.md", "docs/kernels/", "docs/lab.md"]


def in_folder(path, folder):
    return folder == "" or path == folder or path.startswith(folder.rstrip("/") + "/")


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", text, flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def check_links(path, lines):
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= line.lstrip().startswith("```")
        if fenced:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            page = (Path(path).parent / file) if file else Path(path)
            if not page.exists():
                yield number, f"the link {target} leads nowhere"
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text(encoding="utf-8")):
                yield number, f"the link {target}: {page} has no such heading"


def check_blocks(lines):
    start, language = 0, ""
    for number, line in enumerate(lines, 1):
        fence = re.match(r"```(\w*)", line)
        if not fence:
            continue
        if not start:
            start, language = number, fence[1]
            continue
        text, start = "\n".join(lines[start:number - 1]), 0
        try:
            {"python": ast.parse, "json": json.loads}.get(language, len)(text)
        except (SyntaxError, ValueError) as error:
            yield number, f"the block of {language} that ends here: {error}"
    if start:
        yield start, "this block of code does not end"


def is_file_of(tree, name):
    """Whether a path, or the end of one, is of the tree; * stands for anything."""
    name = name.removeprefix("./").rstrip("/")
    return name in tree["ends"] or "*" in name and any(fnmatch.fnmatch(end, name) for end in tree["ends"])


def check_files(path, lines, tree):
    quoted = re.compile(rf"`((?:[\w*-]+/)*[\w*-]+\.(?:{ENDINGS})|(?:[\w*-]+/)+)`")
    for number, line in enumerate(lines, 1):
        if not path.endswith(".md") and ("include" in line or path.endswith(".cmake")):
            continue
        names = set(NAMED.findall(line)) | (set(quoted.findall(line)) if path.endswith(".md") else set())
        for name in sorted(names):
            if not is_file_of(tree, name) and not name.startswith(ELSEWHERE):
                yield number, f"names {name}, which is not there"


def check_bare_files(comments, tree):
    """Comments name files without a folder too; there are none of the C library's names among them."""
    for number, line in enumerate(comments, 1):
        for name in re.findall(r"(?<![\w./<-])([A-Za-z]\w*\.(?:c|h|cu|cmake|py|sh))\b(?![\w(])", line):
            if name not in tree["ends"]:
                yield number, f"names {name}, which is not there"


def check_title(path, lines):
    for number, line in enumerate(lines[:4], 1):
        title = re.match(rf"(?: \* |# |\"\"\"|)([\w-]+\.(?:{ENDINGS}))\b", line)
        if title:
            if title[1] != Path(path).name:
                yield number, f"the file is {Path(path).name} and calls itself {title[1]}"
            return


def check_names(lines, tree):
    for number, line in enumerate(lines, 1):
        for name in sorted(set(OURS.findall(line))):
            if name not in tree["names"]:
                yield number, f"names {name}, which the code does not have"


def split_code(text):
    """The text as code without comments and strings, and as comments alone; lines are kept."""
    blank = lambda piece: re.sub(r"[^\n]", " ", piece)
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', flags=re.S)
    comments, last = "", 0
    for match in pattern.finditer(text):
        comments += blank(text[last:match.start()]) + (blank(match[0]) if match[0][0] == '"' else match[0])
        last = match.end()
    code = pattern.sub(lambda match: blank(match[0]), text)
    return code.splitlines(), (comments + blank(text[last:])).splitlines()


def check_words(path, code, comments):
    for number, line in enumerate(code, 1):
        if line.lstrip().startswith("#include"):
            continue
        for name in sorted(set(re.findall(r"[A-Za-z_]\w*", line))):
            for word in set(name.lower().split("_")) & RETIRED_IN_NAMES.keys():
                instead, folder = RETIRED_IN_NAMES[word]
                if in_folder(path, folder):
                    yield number, f'{name}: "{word}" is retired, say {instead} (docs/glossary.md)'
    for number, line in enumerate(comments, 1):
        for pattern, instead, folder in RETIRED_IN_COMMENTS:
            match = re.search(pattern, line, flags=re.I)
            if match and in_folder(path, folder):
                yield number, f'"{match[0]}" is retired, say {instead} (docs/glossary.md)'


def check_figures(lines):
    for number, line in enumerate(lines, 1):
        match = FIGURE.search(line)
        if match:
            yield number, f'"{match[0].strip()}": figures stand in docs/benchmarks.md'


def check_file(path, text, tree):
    lines = text.splitlines()
    if path.endswith(".md"):
        yield from check_links(path, lines)
        yield from check_blocks(lines)
        if not any(in_folder(path, page) for page in PAGES_WITH_FIGURES):
            yield from check_figures(lines)
        if not path.startswith(HISTORY):
            yield from check_names(lines, tree)
    if path != "CHANGELOG.md":
        yield from check_files(path, lines, tree)
    if path.endswith((".c", ".cpp", ".cu", ".h", ".hpp", ".py", ".rs", ".sh")):
        yield from check_title(path, lines)
    if Path(path).suffix in CODE:
        code, comments = split_code(text)
        if path.startswith(("bench/", "cli/", "include/", "lab/", "python/", "src/")):
            yield from check_bare_files(comments, tree)
        yield from check_words(path, code, comments)
        if path.startswith(NO_FIGURES):
            yield from check_figures(comments)


def main():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout
    paths = [path for path in sorted(filter(None, listed.split("\0"))) if Path(path).is_file()]
    data = {path: Path(path).read_bytes() for path in paths if not path.startswith("tests/fuzz/seeds/")}
    texts = {path: bytes.decode(errors="replace") for path, bytes in data.items() if b"\0" not in bytes}
    # Of support.md, which the command writes, come the names of kernels that the code puts together.
    tree = {"ends": {"/".join(path.split("/")[first:last]) for path in paths for last in range(1, path.count("/") + 2)
                     for first in range(last)},
            "names": {name for path, text in texts.items() if not path.endswith(".md") or path == "docs/support.md"
                      for name in re.findall(r"\w+", text)}}
    failed = False
    for path, text in texts.items():
        for number, message in check_file(path, text, tree):
            print(f"{path}:{number}: {message}")
            failed = True
    return 1 if failed else 0


sys.exit(main())
