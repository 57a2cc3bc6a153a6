"""Files of several steps: each step is a frame with the same arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .facts import Fact
from .model import Field, FileContent

__all__ = ["Frame", "add_frames"]


@dataclass
class Frame:
    """One step of a file.

    fields: by the names that they have in every step. time: physical time, None if the file has none. period:
    lengths of the periodic box, 0 along an axis that is not periodic. skipped: as in `FileContent`. facts: of
    this step only; their owners are names in `fields`.
    """

    step: int
    fields: list[Field]
    time: float | None = None
    period: tuple[float, ...] | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


def add_frames(content: FileContent, frames: Iterable[Frame]) -> None:
    """Adds the fields of all frames to `content`: as `x` if there is one frame, otherwise as `step-<step>/x`.

    If a step occurs several times, because a restarted run appended to the same file, only the last one is
    added, with a note.
    """
    last: dict[int, Frame] = {}
    for frame in frames:
        if frame.step in last:
            content.notes.append(
                f"step {frame.step} is in the file several times: only the last one is compared"
            )
            del last[frame.step]
        last[frame.step] = frame
    several = len(last) > 1
    bare = [frame for frame in last.values() if not frame.fields]
    if bare:  # no field carries such a step, so it becomes a fact of the file
        steps = [[f.step, f.time, [[fact.label, fact.identity] for fact in f.facts]] for f in bare]
        content.say("", "(steps without fields)", steps)
        content.skipped += [(f"{name} of step {f.step}", why) for f in bare for name, why in f.skipped]
    for step, frame in last.items():
        if not frame.fields:
            continue
        prefix = f"step-{step}/" if several else ""
        for old in frame.fields:
            key = None if old.key is None else prefix + old.key
            content.add(replace(old, name=prefix + old.name, step=step, series=old.name, key=key))
        content.skipped += [(prefix + name, why) for name, why in frame.skipped]
        facts = list(frame.facts)
        labels = {fact.label for fact in facts} | {"@" + old.name.lower() for old in frame.fields}
        if frame.time is not None and "@time" not in labels:
            facts.append(Fact.of("", "time", frame.time))
        for fact in facts:
            content.add_fact(replace(fact, step=step), f"{prefix}{fact.label}")
        if frame.time is not None:
            content.times[step] = frame.time
    if len(last) == 1:
        content.time = next(iter(last.values())).time
    periods = {frame.period for frame in last.values()}
    if len(periods) == 1:
        content.period = periods.pop()
    elif periods:
        content.notes.append("the box changes from step to step: give a period if positions wrap")
