"""A second, slow player of the flows that bench/simulate prints: flows share links fairly (max-min). For small cases.

Bursts and latencies are left out. Bytes a second of a flow: all flows grow together; where a link is full, its flows stop growing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Flows", "Part", "Window", "read_flows", "seconds"]

Flow = tuple[int, int]  # route, bytes
Begin = Callable[[list[Flow]], set[int]]  # begins flows, and gives their numbers


@dataclass
class Window:
    """What is moved one after another, and the round it belongs to."""

    round: int
    read: list[Flow] = field(default_factory=list)
    gather: list[Flow] = field(default_factory=list)
    write: list[Flow] = field(default_factory=list)


@dataclass
class Part:
    """An aggregator."""

    rank: int
    node: int
    gateway: int
    windows: list[Window]


@dataclass
class Flows:
    """A text of simulate_flows with one job."""

    capacities: list[float]
    names: list[str]
    routes: list[list[int]]
    bytes: int = 0
    buffers: int = 0
    rounds: bool = False
    parts: list[Part] = field(default_factory=list)
    bounds: dict[str, tuple[float, str]] = field(default_factory=dict)


def read_flows(text: str) -> Flows:
    """The text, which must be whole."""
    found = Flows([], [], [])
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "link":
            found.capacities.append(float(words[1]))
            found.names.append(words[2])
        elif kind == "route":
            found.routes.append([int(w) for w in words[3:]])
        elif kind == "job":
            found.bytes, found.buffers, found.rounds = int(words[1]), int(words[4]), words[5] == "rounds"
        elif kind == "part":
            found.parts.append(Part(int(words[1]), int(words[2]), int(words[3]), []))
        elif kind == "window":
            window = Window(int(words[0]))
            at = window.write
            for word in words[1:]:
                if ":" in word:
                    route, count = word.split(":")
                    at.append((int(route), int(count)))
                else:
                    at = getattr(window, word)
            found.parts[-1].windows.append(window)
        elif kind == "bound":
            found.bounds[words[1]] = (float(words[2]), words[3])
    assert text.endswith("end\n")
    return found


def _rates(flows: Flows, active: list[int]) -> list[float]:
    """Of flows over these routes at the same time."""
    left = dict(enumerate(flows.capacities))
    rates = [0.0] * len(active)
    growing = set(range(len(active)))
    while growing:
        users: dict[int, int] = {}
        for k in growing:
            for link in flows.routes[active[k]]:
                users[link] = users.get(link, 0) + 1
        share, full = min((left[link] / count, link) for link, count in users.items())
        for k in [k for k in growing if full in flows.routes[active[k]]]:
            rates[k] = share
            growing.discard(k)
            for link in flows.routes[active[k]]:
                left[link] -= share
    return rates


def _pipelined(part: Part, buffers: int, start: Begin) -> Iterator[set[int]]:
    """Yields the flows that it waits for; `start` takes those that begin."""
    writes: list[set[int]] = []
    for k, window in enumerate(part.windows):
        if k >= buffers:
            yield writes[k - buffers]
        yield start(window.gather)
        writes.append(start(window.write))
    yield from writes


def _in_rounds(part: Part, last: int, start: Begin) -> Iterator[set[int] | int]:
    """Yields flows as above, or the number of a round that all must reach."""
    of_round = {window.round: window for window in part.windows}
    for number in range(last + 1):
        yield number
        if window := of_round.get(number):
            for flows in (window.read, window.gather, window.write):
                yield start(flows)


def seconds(flows: Flows) -> float:
    """When the last byte is written."""
    running: dict[int, list] = {}  # number: route, bytes left
    count = 0

    def begin(some: list[Flow]) -> set[int]:
        nonlocal count
        numbers = set()
        for route, amount in some:
            running[count] = [route, float(amount)]
            numbers.add(count)
            count += 1
        return numbers

    last = max((w.round for part in flows.parts for w in part.windows), default=0)
    work = [
        _in_rounds(part, last, begin) if flows.rounds else _pipelined(part, flows.buffers, begin)
        for part in flows.parts
    ]
    waits: list[set[int] | int | None] = [next(one, None) for one in work]
    clock = 0.0
    while any(wait is not None for wait in waits):
        moved = True
        while moved:
            moved = False
            rounds = {wait for wait in waits if isinstance(wait, int)}
            together = len(rounds) == 1 and all(isinstance(wait, int) for wait in waits)
            for k, wait in enumerate(waits):
                if (isinstance(wait, set) and not wait & running.keys()) or (
                    isinstance(wait, int) and together
                ):
                    waits[k] = next(work[k], None)
                    moved = True
        if not running:
            break
        numbers = list(running)
        rates = _rates(flows, [running[n][0] for n in numbers])
        step = min(running[n][1] / rate for n, rate in zip(numbers, rates, strict=True))
        clock += step
        for n, rate in zip(numbers, rates, strict=True):
            running[n][1] -= rate * step
            if running[n][1] <= 1e-6:
                del running[n]
    return clock
