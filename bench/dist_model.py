#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""dist_model.py: draws the table "Beyond four GPUs, on paper" of docs/distributed.md: predicted shares by scheme.

    python3 bench/dist_model.py docs/distributed.md -o docs/figures/ranks.svg"""

import argparse

COLOURS = {"ring": "#0072B2", "all_gather": "#E69F00", "ulysses": "#009E73"}
LEFT, TOP, HEIGHT, BAR, GAP, LEAST = 60, 64, 200, 18, 26, 0.7


def rows_of(text):
    """[(ranks and tokens, six shares)] of the page's table."""
    lines = text[text.index("### Beyond four GPUs") :].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(f"{first}, {tokens}", [float(x) for x in shares]) for first, tokens, *shares in cells[2:] if len(shares) == 6]


def draw(rows):
    group = 3 * BAR + GAP
    half = len(rows) * group + GAP
    width, bottom = LEFT + 2 * half + 20, TOP + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 84}" viewBox="0 0 {width} {bottom + 84}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{bottom + 84}" fill="#FFFFFF"/>',
    ]
    for n, (name, colour) in enumerate(COLOURS.items()):
        words = name if name != "ulysses" else "ulysses, or two levels of 8"
        lines.append(f'<rect x="{LEFT + 110 * n}" y="12" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + 110 * n + 18}" y="23">{words}</text>')

    def height(share):
        return bottom - (share - LEAST) / (1 - LEAST) * HEIGHT

    for tenth in range(round(LEAST * 20), 21):
        y = height(tenth / 20)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#DDDDDD"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 20:.2f}</text>')
    for side, what in enumerate(("forward", "backward")):
        lines.append(f'<text x="{LEFT + side * half + GAP}" y="{TOP - 12}" font-size="14">{what}: predicted share of ideal</text>')
        for n, (name, shares) in enumerate(rows):
            x = LEFT + side * half + GAP + n * group
            for bar, (share, colour) in enumerate(zip(shares[3 * side :], COLOURS.values(), strict=False)):
                y = height(share)
                lines.append(
                    f'<rect x="{x + bar * BAR}" y="{y:.1f}" width="{BAR - 2}" height="{bottom - y:.1f}" fill="{colour}">'
                    f"<title>{name}: {share:.2f}</title></rect>"
                )
            for part, word in enumerate(name.split(", ")):
                lines.append(
                    f'<text x="{x + 1.5 * BAR}" y="{bottom + 16 + 15 * part}" text-anchor="middle" font-size="11">{word}</text>'
                )
    return "\n".join([*lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", help="docs/distributed.md")
    parser.add_argument("-o", "--output", default="ranks.svg")
    given = parser.parse_args()
    with open(given.page) as page:
        rows = rows_of(page.read())
    with open(given.output, "w") as file:
        file.write(draw(rows))


if __name__ == "__main__":
    main()
