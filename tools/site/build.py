#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""build.py [FOLDER]: docs/ as a site in FOLDER (default: build-site/site): index.md beside this first, the pages, a reference of the
headers and of the Python package made of their own texts (reference.py), and each source file that a page links to. Links and
headings are checked by mkdocs, whose warnings are errors. Needs what python/requirements/site.txt names, which is installed into an
environment beside FOLDER; exits with 77 where that cannot be had."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from pinned_tools import make_tools  # noqa: E402

FIRST = "tools/site/index.md"
MOVED = {
    FIRST: "index.md",
    "README.md": "readme.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def page_of(path):
    """Where a file of the tree, or a folder, stands in the site."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/") and Path(path).suffix:
        return path.removeprefix("docs/")
    if re.fullmatch(r"include/strobe/strobe(?!_trace)\w*\.h", path):
        return f"api/{Path(path).stem}.md"
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def relink(text, path, wanted):
    """The text of a page with its links as the site has them. Files that are linked to are added to wanted."""
    here = Path(page_of(path)).parent

    def link(match):
        target, _, anchor = match[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        file = os.path.normpath(Path(path).parent / target)
        wanted.add(file)
        return f"]({os.path.relpath(page_of(file), here)}{'#' + anchor if anchor else ''})"

    pieces = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    pieces[::2] = (re.sub(r"\]\(([^)\s]+)\)", link, piece) for piece in pieces[::2])
    return "".join(pieces)


def section(page, heading):
    """What a page says above its first heading of the second level; its first program under one; or, of one whose only heading is
    its title, everything, with the title as a heading of the second level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if heading:
        under = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
        return re.search(r"^```.*?^```$", under[1], flags=re.S | re.M)[0]
    above = text.split("\n## ")[0].strip()
    return above.split("\n", 1)[1].strip() if "\n## " in text else f"#{above}"


def first_page():
    """index.md, with what it takes from other pages and their links as they are from its folder."""
    text = (ROOT / FIRST).read_text(encoding="utf-8")

    def taken(match):
        folder = os.path.relpath((ROOT / match[1]).parent, (ROOT / FIRST).parent)
        return re.sub(r"\]\((?![a-z]+:)", f"]({folder}/", section(match[1], match[2]))

    return re.sub(r"<!-- from (\S+?)(?:: (.*?))? -->", taken, text)


def source_page(path):
    """A page that shows a file, or lists a folder."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(f.name for f in file.iterdir() if f.is_file())
        listing = "\n".join(f"- [{n}]({n}.md)" if file != ROOT / "docs" else f"- {n}" for n in names if is_text(file / n))
        return f"# {path}/\n\n{listing}\n", [f"{path}/{n}" for n in names if is_text(file / n)]
    language = {"c": "c", "h": "c", "cu": "cpp", "cpp": "cpp", "hpp": "cpp", "py": "python", "sh": "sh"}.get(
        file.suffix[1:], "text"
    )
    return f"# {path}\n\n````{language}\n{file.read_text(encoding='utf-8')}````\n", []


def is_text(file):
    return file.suffix in (".c", ".h", ".hpp", ".cpp", ".cu", ".py", ".md", ".txt")


def gather(pages):
    """Writes every page of the site."""
    originals = [*MOVED, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md") if p != ROOT / "docs/README.md")]
    wanted, done = set(), set(originals)
    texts = {page_of(path): relink((ROOT / path).read_text(encoding="utf-8"), path, wanted) for path in originals}
    texts["index.md"] = relink(first_page(), FIRST, wanted)
    for header in sorted((ROOT / "include/strobe").glob("*.h")):
        path = str(header.relative_to(ROOT))
        if page_of(path).startswith("api/"):
            texts[page_of(path)] = reference.of_header(header.name, header.read_text(encoding="utf-8"))
            done.add(path)
    texts["api/python.md"] = reference.of_package(ROOT / "python/strobe")
    while wanted - done:
        path = min(wanted - done)
        done.add(path)
        if path.startswith("docs/") and (ROOT / path).is_file():
            (pages / page_of(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, pages / page_of(path))
            continue
        folder_of_pages = path in ("docs/decisions", "docs/kernels")
        if folder_of_pages:
            names = sorted((ROOT / path).glob("*.md"))
            lines = [
                f"- [{n.stem}]({os.path.relpath(page_of(str(n.relative_to(ROOT))), Path(page_of(path)).parent)})"
                for n in names
            ]
            texts[page_of(path)] = f"# {path}/\n\n" + "\n".join(lines) + "\n"
            continue
        texts[page_of(path)], more = source_page(path)
        wanted.update(more)
    for name, text in texts.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build-site/site").resolve()
    tools, pages = make_tools(folder.parent / "tools", "site.txt"), folder.parent / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    gather(pages)
    env = {**os.environ, "STROBE_SITE_PAGES": str(pages), "STROBE_SITE_FOLDER": str(folder), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [tools / "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / "tools/site/mkdocs.yml"], env=env, check=False
    )
    if done.returncode == 0:
        print(f"{len(list(folder.rglob('*.html')))} pages: {folder / 'index.html'}")
    return done.returncode


sys.exit(main())
