#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""dist_timeline.py: what the GPUs of a host do during attention over processes: a picture of their streams.

    PYTHONPATH=build/package torchrun --nproc-per-node 2 bench/dist_timeline.py --scheme ring --tokens 16k -o ring.svg

PyTorch's profiler notes when each kernel and each copy began and ended; -o FILE.json keeps that, and
`python3 bench/dist_timeline.py FILE.json -o ring.svg` draws it again. A row a stream and rank: attention, what moves between
the GPUs, and passes over memory (merges, sums, copies). Times count from the first of a rank: clocks of GPUs differ."""

import argparse
import json
import os
import sys

COLOURS = {"attention": "#0072B2", "exchange": "#E69F00", "memory": "#009E73"}
LEFT, WIDTH, HEIGHT, GAP = 130, 1060, 26, 6


def kind_of(name):
    if "nccl" in name.lower() or "PtoP" in name:
        return "exchange"
    if "forward" in name or "backward" in name:
        return "attention"
    return "memory"


def lanes_of(events):
    """(name, events) of each stream, the call's first: attention runs there. Over copy engines one sends, and one takes."""
    named = {}
    for event in events:
        named.setdefault(event[1], []).append(event)
    for own in named.values():
        if "attention" in {kind_of(e[0]) for e in own}:
            yield "the call", own
    for own in named.values():
        kinds = {kind_of(e[0]) for e in own}
        if "attention" not in kinds:
            yield ("exchange" if any("nccl" in e[0] for e in own) else "sends" if "exchange" in kinds else "takes"), own


def record(given):
    """Lists of (name, stream, begin, microseconds) by rank, on every rank."""
    import strobe.torch as st
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    heads, heads_kv = map(int, given.heads.split("/"))
    rows = given.tokens // dist.get_world_size()
    q, k, v, dout = (
        torch.randn(1, rows, h, 128, device="cuda", dtype=torch.bfloat16) for h in (heads, heads_kv, heads_kv, heads)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    total = (given.tokens, given.tokens)

    def run():
        st.context_parallel_attention(*leaves, scheme=given.scheme, causal=True, total=total).backward(dout)
        torch.cuda.synchronize()

    for _ in range(3):
        run()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as noted:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda._sleep(10_000_000)  # the host is ahead from here on
        run()
    path = f"/tmp/dist_timeline_{dist.get_rank()}_{os.getpid()}.json"
    noted.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    os.unlink(path)
    events = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    events.sort(key=lambda e: e["ts"])
    begins = [n for n, e in enumerate(events) if "spin_kernel" in e["name"]]
    events = events[begins[-1] + 1 :] if begins else events
    first = events[0]["ts"]
    own = [(e["name"][:80], e["args"]["stream"], round(e["ts"] - first, 1), round(e["dur"], 1)) for e in events]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    title = f"{given.scheme}, {given.heads} heads of 128, {given.tokens} tokens, causal, bf16: {torch.cuda.get_device_name()}"
    rank = dist.get_rank()
    dist.destroy_process_group()
    return (title, every) if rank == 0 else None


def draw(title, ranks):
    end = max(begin + length for events in ranks for _, _, begin, length in events)
    lanes = [(f"rank {rank}, {name}", own) for rank, events in enumerate(ranks) for name, own in lanes_of(events)]
    height = 60 + len(lanes) * (HEIGHT + GAP) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 40}" height="{height}" '
        f'viewBox="0 0 {LEFT + WIDTH + 40} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + 40}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
    ]
    for n, (name, colour) in enumerate(COLOURS.items()):
        lines.append(f'<rect x="{LEFT + 120 * n}" y="30" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + 120 * n + 18}" y="41">{name}</text>')
    for n, (name, events) in enumerate(lanes):
        y = 54 + n * (HEIGHT + GAP)
        lines.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{name}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#F4F4F4"/>')
        for what, _, begin, length in events:
            x, width = LEFT + begin / end * WIDTH, max(length / end * WIDTH, 0.5)
            what = what.replace("&", "").replace("<", "").replace(">", "")
            lines.append(
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{HEIGHT}" fill="{COLOURS[kind_of(what)]}">'
                f"<title>{what}: {length} us</title></rect>"
            )
    y = 54 + len(lanes) * (HEIGHT + GAP) + 10
    step = next(s for s in (50, 100, 200, 500, 1000, 2000, 5000, 10000, 10**9) if end / s <= 12)
    for at in range(0, int(end) + 1, step):
        lines.append(f'<text x="{LEFT + at / end * WIDTH:.1f}" y="{y + 4}" text-anchor="middle">{at} us</text>')
    return "\n".join([*lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", nargs="?", help="what an earlier run has kept, to be drawn")
    parser.add_argument("-o", "--output", default="timeline.svg", help="an .svg, or a .json")
    parser.add_argument("--scheme", default="ring")
    parser.add_argument("--heads", default="32/8")
    parser.add_argument("--tokens", type=lambda x: int(x[:-1]) << 10 if x.endswith("k") else int(x), default=16 << 10)
    given = parser.parse_args()
    if given.recorded:
        with open(given.recorded) as file:
            taken = json.load(file)
    else:
        taken = record(given)
    if taken is None:  # rank 0 writes
        return 0
    with open(given.output, "w") as file:
        file.write(json.dumps(taken) if given.output.endswith(".json") else draw(*taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
