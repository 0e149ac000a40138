#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""plot.py: the figures of docs/lab.md. Every number comes from `strobe lab ... -o json`; each call is printed.

    strobe lab plot [FOLDER]                          # runs this
    python3 lab/plot.py build/strobe docs/lab         # the same

Needs matplotlib 3.11.2 (other versions draw the same with other letter spacing). Exit code 77 without it."""
import json
import subprocess
import sys
from pathlib import Path

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch
except ImportError:
    print("plot.py: this python3 has no matplotlib; pip install matplotlib==3.11.2", file=sys.stderr)
    sys.exit(77)

# Okabe and Ito's colours, which the colour-blind can tell apart; an algorithm keeps its colour in every figure.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
COLOUR = {"standard": RED, "safe_softmax": PINK, "online_softmax": ORANGE, "flash1": BLUE, "flash2": GREEN}
GREY = "#777777"

plt.rcParams.update({
    "figure.dpi": 110, "savefig.dpi": 150, "font.size": 10, "axes.titlesize": 11, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "legend.frameon": False, "lines.linewidth": 2, "svg.hashsalt": "strobe", "figure.constrained_layout.use": True})


class Strobe:
    """The command, and the folder that figures go to."""

    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def lab(self, *words):
        print("strobe lab", *words, "-o json", flush=True)
        done = subprocess.run([self.program, "lab", *words, "-o", "json"], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        return json.loads(done.stdout)

    def save(self, figure, name):
        for kind in ("svg", "png"):
            path = self.folder / f"{name}.{kind}"
            figure.savefig(path, metadata={"Date": None} if kind == "svg" else {"Software": None})
            if kind == "svg":  # matplotlib ends lines with blanks
                path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
            print(f"  {path}")
        plt.close(figure)


def curve(document, algorithm, column="bytes", value="value"):
    """x and y of an algorithm in a sweep, where it fits."""
    points = [(row[value], row[column]) for row in document["rows"] if row["algorithm"] == algorithm and row[column]]
    return [x for x, _ in points], [y for _, y in points]


def grouped(value):
    return f"{value:,.0f}"


def powers(axis, values, label=None):
    """Ticks at these values, written out, and none between."""
    axis.set_ticks(values, [label(v) if label else grouped(v) for v in values])
    axis.set_ticks([], minor=True)


def block_size(strobe):
    """Traffic and the least time against the size of a key block: FA1 falls until a block no longer fits."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.8, 4.4))
    device = strobe.lab("roofline", "n=4k", "d=64", "--device", "a100", "algorithms=flash1")["device"]
    arithmetic = 0
    for kib, style in ((48, ":"), (96, "--"), (192, "-")):
        sweep = strobe.lab("sweep", "bc=8,16,24,32,48,64,96,128,192,256,384,512", "n=4k", "d=64", "fp16",
                           f"sram={kib}KiB", "algorithms=flash1,flash2")
        x, y = curve(sweep, "flash2")
        left.plot(x, [v / 1e6 for v in y], style, color=COLOUR["flash2"], marker="o", markersize=3.5)
        left.text(x[-1] * 1.06, y[-1] / 1e6, f"{kib} KiB", color=COLOUR["flash2"], va="bottom", fontsize=9)
        x, y = curve(sweep, "flash1")  # on one line for every S, which only says where it ends
        flop = curve(sweep, "flash1", "flop")[1]
        time = [max(v / device["gbps"] / 1e3, f / device["tflops"] / 1e6) for v, f in zip(y, flop)]
        arithmetic = flop[-1] / device["tflops"] / 1e6
        for axis, values in ((left, [v / 1e6 for v in y]), (right, time)):
            axis.plot(x, values, color=COLOUR["flash1"], marker="o", markersize=3.5)
            axis.plot(x[-1], values[-1], "s", color=COLOUR["flash1"], markersize=9)
        right.text(x[-1] * 1.06, time[-1] * 1.1, f"S = {kib} KiB", color=COLOUR["flash1"], va="bottom", fontsize=9)
    right.axhline(arithmetic, color=GREY, linewidth=1.2, zorder=1)
    right.text(8, arithmetic * 0.95, f"arithmetic alone: {arithmetic:.1f} µs", color=GREY, va="top")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        powers(axis.xaxis, [8, 16, 32, 64, 128, 256, 512])
        axis.set_xlim(7, 1300)
        axis.set_xlabel("keys in a block, Bc (square: the largest that fits)")
    powers(left.yaxis, [5, 10, 20, 50, 100, 200, 500, 1000])
    powers(right.yaxis, [10, 20, 50, 100, 200, 500])
    left.text(16.5, 560, "flash1: keys outside\nsquares: S = 48, 96, 192 KiB", color=COLOUR["flash1"])
    left.text(9, 5.4, "flash2: queries outside", color=COLOUR["flash2"])
    left.set_ylim(4.5, 1300)
    right.set_ylim(8, 800)
    left.set_ylabel("slow-memory traffic, MB a head")
    left.set_title("Traffic")
    right.set_ylabel("least time a head, µs")
    right.set_title(f"flash1 on an A100 ({device['gbps'] / 1e3:.4g} TB/s, {device['tflops']:g} TFLOP/s)")
    figure.suptitle("N = 4,096, d = 64, fp16; Br as large as fits beside Bc")
    strobe.save(figure, "block_size")


def traffic_n(strobe):
    """Traffic against length, and the same over N squared, where Theta(N^2 d^2 / S) is a level line."""
    names = ("standard", "online_softmax", "flash1", "flash2")
    sweep = strobe.lab("sweep", "n=256..64k*2", "d=64", "fp16", "sram=100KiB", "algorithms=" + ",".join(names))
    best = strobe.lab("sweep", "n=256..64k*2", "d=64", "fp16", "sram=100KiB", "algorithms=flash1,flash2", "blocks=best")
    scalars, d = sweep["problem"]["scalars"], 64
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.5))
    for name in names:
        x, y = curve(sweep, name, "accesses")
        left.plot(x, y, color=COLOUR[name], marker="o", markersize=3.5, label=name)
        right.plot(x, [v / n**2 for v, n in zip(y, x)], color=COLOUR[name], marker="o", markersize=3.5, label=name)
    for name in ("flash1", "flash2"):
        x, y = curve(best, name, "accesses")
        right.plot(x, [v / n**2 for v, n in zip(y, x)], "--", color=COLOUR[name], label=f"{name}, best blocks")
    order = [n**2 * d**2 / scalars for n in x]
    left.plot(x, order, ":", color=BLACK, label="$N^2 d^2 / S$")
    right.plot(x, [o / n**2 for o, n in zip(order, x)], ":", color=BLACK, label="$N^2 d^2 / S$")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        powers(axis.xaxis, x[::2], lambda n: f"{n // 1024}k" if n >= 1024 else str(n))
        axis.set_xlabel("N")
    left.set_ylabel("scalars between slow and fast memory")
    left.set_title("All grow as $N^2$ ...")
    left.legend(fontsize=9)
    right.set_ylabel("the same over $N^2$")
    right.set_title("... at levels that S and the blocks set")
    powers(right.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10], lambda v: f"{v:g}")
    right.set_ylim(0.06, 40)
    right.legend(fontsize=8.5, ncols=2, loc="upper left")
    right.annotate("a row of scores\nno longer fits", (x[-1], curve(sweep, "standard", "accesses")[1][-1] / x[-1]**2),
                   (x[-2] * 0.62, 13), fontsize=8.5, color=COLOUR["standard"],
                   arrowprops={"arrowstyle": "-", "color": COLOUR["standard"]})
    figure.suptitle(f"One head, d = 64, fp16, S = {scalars:,} scalars (100 KiB)")
    strobe.save(figure, "traffic_n")


UNIT = {"load K": SKY, "load V": "#A9D8F4", "QK": BLUE, "PV": GREEN, "max": YELLOW, "shuffle": "#D9D9D9", "exp": RED,
        "rescale": ORANGE}


def draw_timeline(axis, timeline, blocks=4):
    """A few blocks from the middle: one lane for loads, two for each consumer."""
    start = 6 * timeline["period"]
    end = start + blocks * timeline["period"]
    lanes = ["load"] + [f"{what} {c + 1}" for c in range(timeline["consumers"]) for what in ("tensor", "softmax")]
    for span in timeline["spans"]:
        if span["end"] <= start or span["start"] >= end:
            continue
        left, right = max(span["start"], start), min(span["end"], end)
        product = span["unit"] in ("QK", "PV")
        lane = 0 if span["consumer"] < 0 else 1 + 2 * span["consumer"] + (not product)
        axis.barh(lane, right - left, left=left - start, height=0.78, color=UNIT[span["unit"]], edgecolor="white",
                  linewidth=0.6)
        if product and right - left > 0.12 * timeline["period"]:
            axis.text((left + right) / 2 - start, lane, f"{span['unit']}$_{{{span['block']}}}$", ha="center", va="center",
                      color="white", fontsize=8)
    axis.set_yticks(range(len(lanes)), lanes)
    axis.invert_yaxis()
    axis.set_xlim(0, end - start)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)


def schedule(strobe):
    slow, fast = strobe.lab("schedule", "d=128", "--spans"), strobe.lab("schedule", "d=128", "--load", "48", "--spans")
    figure, axes = plt.subplots(3, 1, figsize=(10.8, 7.8))
    cases = ((slow, 0, "Neither ping-pong nor overlap: both warp groups multiply, then both do softmax"),
             (slow, 1, "Both: in turn at the tensor cores, softmax under the products; then loads are what is waited for"),
             (fast, 1, "Both, and each load shared by two SMs (48 bytes a clock): nothing is waited for"))
    for axis, (document, which, title) in zip(axes, cases):
        timeline = document["timelines"][which]
        row = next(r for r in document["rows"]
                   if (r["ping_pong"] == "yes", r["depth"]) == (timeline["ping_pong"], timeline["depth"]))
        published = f" (published {row['published']})" if document is slow else ""
        draw_timeline(axis, timeline)
        axis.set_title(f"{title}\ntensor cores busy {row['utilisation']:.0%}: {row['tflops_power']:.0f} TFLOP/s in 700 W"
                       + published, loc="left")
    axes[-1].set_xlabel("clocks of one SM, four blocks of keys from the middle of a query tile")
    figure.legend(handles=[Patch(color=c, label=u) for u, c in UNIT.items()], loc="outside lower center", ncols=8,
                  fontsize=9)
    p = slow["problem"]
    figure.suptitle(f"FlashAttention-3 on an {p['device'].upper()} by the lab's model, d = {p['d']:.0f}, tile {p['br']:.0f} x "
                    f"{p['bc']:.0f}, {p['load']:.0f} bytes a clock from L2")
    strobe.save(figure, "schedule")


def power_of_ten(value):
    """1.6e-4 as 1.6 x 10^-4."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}$\\cdot$10$^{{{int(exponent)}}}$"


def fp8(strobe):
    rows = strobe.lab("fp8", "n=8k", "heads=8")
    figure, axis = plt.subplots(figsize=(9.4, 4.6))
    colours = [BLUE if row["variant"].startswith("fp16") else
               GREEN if row["variant"] in ("fp8_hadamard", "fp8_flash3") else ORANGE for row in rows]
    places = range(len(rows))
    axis.barh(places, [row["rmse"] for row in rows], color=colours, height=0.6)
    for place, row in zip(places, rows):
        right = max(row["rmse"], row["published"] or 0)
        axis.text(right * 1.13, place, power_of_ten(row["rmse"]), va="center", fontsize=9.5)
        if row["published"]:
            axis.plot([row["published"]] * 2, [place - 0.4, place + 0.4], color=BLACK, linewidth=2.2,
                      label="published (FlashAttention-3, Table 3)" if place == 0 else None)
    axis.set_yticks(places, [row["variant"] + "\n" + row["summary"] for row in rows], fontsize=8.5)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(5e-5, 1e-1)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("root mean square error against float64")
    axis.set_title("Q, K, V ~ N(0, 1) + N(0, 100) Bernoulli(0.001); 8 heads, N = 8,192, d = 128", loc="left")
    axis.legend(loc="upper right", fontsize=9)
    strobe.save(figure, "fp8")


def roofline(strobe):
    """The algorithms that differ, with the formula's blocks (filled) and with the best (open)."""
    names = ("standard", "safe_softmax", "online_softmax_v", "flash1", "flash2", "flash3", "standard_backward",
             "flash1_backward", "flash2_backward")
    words = ("n=4k", "d=128", "--device", "h200", "algorithms=" + ",".join(names))
    formula, best = strobe.lab("roofline", *words), strobe.lab("roofline", *words, "blocks=best")
    device = formula["device"]
    figure, axis = plt.subplots(figsize=(10.4, 5.2))
    x = [1, device["tflops"] * 1e3 / device["gbps"], 2000]
    axis.plot(x, [min(device["tflops"], v * device["gbps"] / 1e3) for v in x], color=BLACK, zorder=1)
    axis.text(2.6, 2.6 * device["gbps"] / 1e3 * 1.25, f"{device['gbps'] / 1e3:g} TB/s", rotation=41,
              rotation_mode="anchor")
    axis.text(1900, device["tflops"] * 1.07, f"{device['tflops']:g} TFLOP/s", ha="right", va="bottom")
    markers = dict(zip(names, "osdDv^P>*"))
    palette = dict(zip(names, (RED, PINK, ORANGE, BLUE, GREEN, SKY, RED, BLUE, GREEN)))
    for document, fill in ((formula, True), (best, False)):
        for row in document["rows"]:
            name = row["algorithm"]
            if not fill and not name.startswith("flash"):
                continue  # their blocks are the best anyway
            label = f"{name}{'' if fill else ', best blocks'}: {row['flop_per_byte']:.3g} FLOP/B, {row['of_peak']:.0%}"
            axis.plot(row["flop_per_byte"], row["tflops"], markers[name], color=palette[name], markersize=9,
                      markerfacecolor=palette[name] if fill else "white", markeredgewidth=1.8, linestyle="none", label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    powers(axis.xaxis, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])
    powers(axis.yaxis, [5, 10, 20, 50, 100, 200, 500, 1000])
    axis.set_xlim(1, 2000)
    axis.set_ylim(4.5, 1500)
    axis.set_xlabel("FLOP a byte of slow memory, as counted")
    axis.set_ylabel("TFLOP/s at most")
    axis.legend(fontsize=8.5, loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.8)
    axis.set_title(f"One head on an {device['name'].upper()}: N = 4,096, d = 128, fp16, S = "
                   f"{formula['problem']['scalars']:,} scalars (227 KiB)", loc="left")
    strobe.save(figure, "roofline")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py STROBE FOLDER")
    strobe = Strobe(sys.argv[1], sys.argv[2])
    for figure in (block_size, traffic_n, schedule, fp8, roofline):
        figure(strobe)


if __name__ == "__main__":
    main()
