# SPDX-License-Identifier: BSD-3-Clause
"""Times that can be trusted: contestants take turns in one process, so that what disturbs one disturbs all; a comparison is of
times of the same round; and a contestant that runs twice a round, against itself, shows how large a difference means nothing.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return (median, low, high): order statistics that hold the median with the confidence, whatever the distribution."""
    ordered, n = sorted(values), len(values)
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - confidence:
            break
        k += 1
    k = max(k - 1, 0)
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


@dataclass
class Contest:
    """Seconds of a call, by contestant, a value for each round; "again" are those of the first contestant's second turn."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    again: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Half the middle half of the times, as a share of the median."""
        ordered = sorted(self.seconds[name])
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2 / self.median(name)

    def noise(self) -> float:
        """How far the first contestant's ratio to itself is from 1, at the far end of its interval."""
        first = next(iter(self.seconds.values()))
        _, low, high = median_interval([a / b for a, b in zip(self.again, first, strict=True)])
        return max(high - 1, 1 - low, 0.0)

    def ratio(self, name: str) -> tuple[float, float, float]:
        """How many times as long as the first contestant, with its interval, of times of the same round."""
        first = next(iter(self.seconds.values()))
        return median_interval([a / b for a, b in zip(self.seconds[name], first, strict=True)])

    def verdict(self, name: str) -> str:
        """ "faster" or "slower": the first contestant beside this one; "same" when the difference may be noise."""
        _, low, high = self.ratio(name)
        noise = self.noise()
        return "faster" if low > 1 + noise else "slower" if high < 1 / (1 + noise) else "same"


def wall_clock(call: Callable[[], object], count: int) -> float:
    """Seconds of a call on the CPU, of `count` in a row."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def contest(
    calls: dict[str, Callable[[], object]],
    seconds: float,
    clock: Callable[[Callable[[], object], int], float] = wall_clock,
    least: float = 0.002,
    pause: float = 0.003,
) -> Contest:
    """Let the calls take turns for so many seconds, at least nine rounds.

    A turn takes at least `least` seconds: short calls are repeated in it. Before each there is a pause, in which threads that
    still spin after the turn before go to sleep, and an untimed call, which brings caches and clocks back.
    """
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(1, math.ceil(least / max(clock(call, 1), 1e-9)))
    result = Contest({name: [] for name in calls})
    names = list(calls)
    first, rounds, end = names[0], 0, time.perf_counter() + seconds

    def turn(name: str) -> float:
        time.sleep(pause)
        calls[name]()
        return clock(calls[name], counts[name])

    while rounds < 9 or (time.perf_counter() < end and rounds < 101):
        order = names[rounds % len(names) :] + names[: rounds % len(names)]
        if rounds % 2:
            order.reverse()
        before = turn(first) if rounds % 2 else None  # the second turn of the first comes now early, now late
        for name in order:
            result.seconds[name].append(turn(name))
        result.again.append(turn(first) if before is None else before)
        rounds += 1
    return result
