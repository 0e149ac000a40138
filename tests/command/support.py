# SPDX-License-Identifier: BSD-3-Clause
"""support.py STROBE PAGE: docs/support.md says what the records of this build declare. A build without CUDA, or for another
processor, has fewer kernels than the page: those that it has are compared, cell by cell."""
import subprocess
import sys


def cells(text: str) -> dict:
    """(table, feature, kernel) -> cell, where a number of a note is the note itself."""
    notes = dict(line.split(". ", 1) for line in text.splitlines() if line[:1].isdigit())
    found, title, kernels = {}, "", []
    for line in text.splitlines():
        if line.startswith("## "):
            title, kernels = line[3:], []
        if not line.startswith("| "):
            continue
        feature, *row = (cell.strip() for cell in line.strip("|").split("|"))
        if not kernels:
            kernels = row
            continue
        for kernel, cell in zip(kernels, row, strict=True):
            found[title, feature, kernel] = notes.get(cell.strip("()"), cell) if cell.startswith("(") else cell
    return found


def main() -> int:
    built = cells(subprocess.run([sys.argv[1], "info", "--support", "-o", "md"], check=True, capture_output=True, text=True).stdout)
    page = cells(open(sys.argv[2], encoding="utf-8").read())
    kernels, features = {key[2] for key in built}, {key[:2] for key in built}
    wrong = [(key, cell) for key, cell in built.items() if page.get(key) != cell]
    wrong += [(key, None) for key in page if key[2] in kernels and key not in built]
    for (title, feature, kernel), cell in wrong[:20]:
        print(f"{title}, {feature}, {kernel}: the record says {cell}, docs/support.md {page.get((title, feature, kernel))}")
    print(f"{len(kernels)} kernels, {len(features)} rows, {len(wrong)} cells that differ (make support writes the page)")
    return 1 if wrong or len(kernels) < 6 else 0


sys.exit(main())
