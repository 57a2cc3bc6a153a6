"""A measurement in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import sources, tracefs
from .arms import ALL

__all__ = ["percent", "sentences_of", "span"]


def percent(x: float) -> str:
    """A share in percent."""
    return f"{100 * x:.3g}%"


def span(ns: float) -> str:
    """Nanoseconds in the unit that fits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def sentences_of(document: Mapping[str, Any]) -> list[str]:
    """What a measurement shows, and how sure that is."""
    alpha, first = 1 - document["confidence"], document["arms"][ALL]
    worst = max(first, key=lambda c: c["share"] or 0)
    if all(c["share"] is None for c in first):
        return ["No detours were looked for."]
    return [
        *_taken(first, worst),
        *_named_sources(document, worst["core"]),
        *_by_rtla(document, worst["core"]),
        *_by_trace(document, worst["core"]),
        *_slower_work(first),
        *_periodic(document, alpha),
        *_free_core(document),
        *_cut_short(document),
    ]


def _taken(first: Sequence[Mapping[str, Any]], worst: Mapping[str, Any]) -> Iterator[str]:
    """Of all cores: how much of the time was taken, and where most."""
    shares = [c["share"] for c in first if c["share"] is not None]
    rate = sum(c["detours_per_s"] for c in first) / len(first)
    cores = f"{len(first)} cores" if len(first) > 1 else f"core {first[0]['core']}"
    interval = (
        ""
        if worst["share_low"] is None
        else f" [{percent(worst['share_low'])}, {percent(worst['share_high'])}]"
    )
    yield (
        f"On {cores} the system took {percent(sum(shares) / len(shares))} of the time, in {rate:.3g} detours a second and core beyond "
        f"{span(worst['threshold_ns'])}; most on core {worst['core']}: {percent(worst['share'])}{interval}, at once {span(worst['largest_ns'])}."
    )
    if worst["share"] and worst["run_queue_share"] is not None:
        part = min(worst["run_queue_share"] / worst["share"], 1.0)
        yield f"There {percent(part)} of it was waiting while other threads had the core; of the rest it is not measured here what it was: interrupts, page faults and what lies below the system are among it."


def _named_sources(document: Mapping[str, Any], core: int) -> Iterator[str]:
    by_core = {c["core"]: c for c in document.get("sources", {}).get(ALL, ())}
    if (told := by_core.get(core)) is not None and (said := sources.sentence(told)):
        yield said


def _by_rtla(document: Mapping[str, Any], core: int) -> Iterator[str]:
    for c in document.get("rtla") or ():
        if c["core"] == core:
            counts = ", ".join(
                f"{name} {c[name] / c['seconds']:.3g}"
                for name in ("hardware", "nmi", "irq", "softirq", "thread")
            )
            yield f"rtla osnoise, right after, on core {c['core']}: {percent(c['share'])} taken; a second: {counts}."
    if document.get("rtla_failed"):
        yield f"{document['rtla_failed']}."


def _by_trace(document: Mapping[str, Any], core: int) -> Iterator[str]:
    for c in document.get("trace") or ():
        if c["core"] == core:
            yield tracefs.sentence(c)
    if document.get("trace_failed"):
        yield f"{document['trace_failed']}."


def _slower_work(first: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How much slower work is than a core's fastest piece, without the time of detours."""
    rest = [
        (1 - c["share"]) / (1 - c["fixed_work"]["share"]) - 1
        for c in first
        if c["fixed_work"] and c["share"] is not None and c["fixed_work"]["share"] < 1
    ]
    if rest and sum(rest) / len(rest) > 0.01:
        yield (
            f"Beside detours, equal work took {percent(sum(rest) / len(rest))} longer than at its fastest: the clock's frequency, caches, "
            "or a core whose other half works for others."
        )


def _periodic(document: Mapping[str, Any], alpha: float) -> Iterator[str]:
    # Correction for the number of peaks: one for each core and arm.
    peaks = [
        (c["fixed_time"]["peak"], arm, c["core"])
        for arm, c in _every(document)
        if c["fixed_time"] and c["fixed_time"]["peak"]
    ]
    found = [(p, arm, core) for p, arm, core in peaks if min(1.0, p["p"] * len(peaks)) <= alpha]
    if found:
        peak, arm, core = min(found, key=lambda f: (f[0]["p"], -f[0]["ratio"]))
        p = min(1.0, peak["p"] * len(peaks))
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"Something comes back {peak['hz']:.4g} times a second (core {core}, {arm}{more}; {'p < 0.0001' if p < 1e-4 else f'p = {p:.2g}'})."
    elif peaks:
        low = document["slowest_hz"]
        yield f"Nothing periodic is shown from {low:.2g} to {0.5e9 / document['window_ns']:.3g} times a second."


def _free_core(document: Mapping[str, Any]) -> Iterator[str]:
    d = document["comparison"]
    if d is None:
        yield "Whether a free core helps was not measured: that needs two cores."
        return
    free, value = document["free"], d["value"]
    lost = f"{abs(100 * value):.3g} percentage points {'less' if value >= 0 else 'more'}"
    if d["low"] is None:
        yield f"With core {free} left free, the others lost {lost}: too few rounds to say how sure that is."
        return
    # The interval in the direction of the sentence: less or more.
    ends = sorted((d["low"], d["high"]) if value >= 0 else (-d["low"], -d["high"]))
    interval = f"[{100 * ends[0]:.3g}, {100 * ends[1]:.3g}], {d['rounds']} pairs of rounds"
    if ends[0] > 0:
        yield f"With core {free} left free, the others lost {lost} ({interval})."
    else:
        yield f"Whether leaving core {free} free helps the others cannot be decided: they lost {lost} ({interval})."


def _cut_short(document: Mapping[str, Any]) -> Iterator[str]:
    for arm, c in _every(document):
        if c["cut_short"]:
            yield f"Core {c['core']} ({arm}) had more detours than could be kept: its figures are of the {c['watched_s']:.3g} s before."
            return


def _every(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(arm, core) of all that was measured."""
    return [(arm, c) for arm, own in document["arms"].items() for c in own]
