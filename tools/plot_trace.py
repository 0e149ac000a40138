#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""plot_trace.py: a picture of what `strobe trace` wrote: a lane a warp role, a colour a phase.

    tools/plot_trace.py trace.json picture.svg [--cta 0] [--from MICROSECONDS] [--to MICROSECONDS] [--title TEXT]

Needs nothing but Python."""
import argparse
import json
from html import escape

# Okabe and Ito's colours, which the colour-blind can tell apart. Phases that wait are pale.
COLOUR = {
    "load Q": "#009E73", "load K": "#009E73", "load V": "#56B4E9", "describe a tile": "#CC79A7",
    "issue Q K^T": "#0072B2", "wait for Q K^T": "#8FB9DA", "issue P V": "#D55E00", "wait for P V": "#F0B48A",
    "mask, maxima": "#F0E442", "exponentials": "#E69F00", "epilogue": "#000000", "wait for ping-pong": "#DDDDDD",
    "load dO": "#56B4E9", "P, issue dP, dV": "#E69F00", "wait for dP": "#F7DFA6", "dS, issue dK": "#0072B2",
    "wait for dS": "#DDDDDD", "issue dQ, wait for dV": "#D55E00", "wait for dQ": "#F0B48A", "store dQ": "#CC79A7",
    "wait for S": "#8FB9DA", "add dQ": "#CC79A7", "wait for dO": "#EEEEEE", "wait for the dQ order": "#DDDDDD",
    "wait for Q": "#EEEEEE", "wait for K": "#EEEEEE", "wait for V": "#EEEEEE", "wait for room": "#F4F4F4", "wait for a tile": "#F4F4F4"}
LEFT, WIDTH, LANE, GAP, TOP = 110, 1100, 34, 10, 46


def lanes_of(document, cta):
    names = {e["tid"]: e["args"]["name"] for e in document["traceEvents"]
             if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == cta}
    spans = [e for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == cta]
    return [(names[role], [e for e in spans if e["tid"] == role]) for role in sorted(names)]


def draw(lanes, start, end, title):
    scale = WIDTH / (end - start)
    seen = []
    body = []
    for row, (name, spans) in enumerate(lanes):
        y = TOP + row * (LANE + GAP)
        body.append(f'<text x="{LEFT - 8}" y="{y + LANE / 2 + 4}" text-anchor="end">{escape(name)}</text>')
        for span in spans:
            left, right = max(span["ts"], start), min(span["ts"] + span["dur"], end)
            if right <= left:
                continue
            seen.append(span["name"])
            colour = COLOUR.get(span["name"], "#FFFFFF")
            body.append(f'<rect x="{LEFT + (left - start) * scale:.2f}" y="{y}" width="{(right - left) * scale:.2f}" '
                        f'height="{LANE}" fill="{colour}"><title>{escape(span["name"])} {span["args"]["number"]}: '
                        f'{span["args"]["clocks"]} clocks</title></rect>')
    bottom = TOP + len(lanes) * (LANE + GAP)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if (end - start) / s <= 16)
    tick = step * -(-start // step)
    while tick <= end:
        x = LEFT + (tick - start) * scale
        body.append(f'<path d="M{x:.2f} {TOP - 6}V{bottom - GAP + 4}" stroke="#999999" stroke-width="0.5"/>')
        body.append(f'<text x="{x:.2f}" y="{bottom + 8}" text-anchor="middle">{tick:g}</text>')
        tick += step
    body.append(f'<text x="{LEFT + WIDTH}" y="{bottom + 24}" text-anchor="end">microseconds</text>')
    x, y = LEFT, bottom + 24
    for name in [n for n in COLOUR if n in set(seen)]:
        if x > LEFT + WIDTH - 220:
            x, y = LEFT, y + 20
        body.append(f'<rect x="{x}" y="{y - 10}" width="14" height="12" fill="{COLOUR[name]}" stroke="#BBBBBB" '
                    f'stroke-width="0.5"/><text x="{x + 19}" y="{y}">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    width, height = LEFT + WIDTH + 20, y + 16
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="{width}" height="{height}" fill="#FFFFFF"/>\n'
            f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>\n' + "\n".join(body) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("picture")
    parser.add_argument("--cta", type=int, default=0)
    parser.add_argument("--from", dest="start", type=float)
    parser.add_argument("--to", dest="end", type=float)
    parser.add_argument("--title")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        document = json.load(file)
    lanes = lanes_of(document, options.cta)
    spans = [span for _, lane in lanes for span in lane]
    start = min(s["ts"] for s in spans) if options.start is None else options.start
    end = max(s["ts"] + s["dur"] for s in spans) if options.end is None else options.end
    with open(options.picture, "w", encoding="utf-8") as file:
        file.write(draw(lanes, start, end, options.title or document.get("problem", "")))


if __name__ == "__main__":
    main()
