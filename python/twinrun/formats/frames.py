"""Files of several steps: the same arrays again and again, one set a frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .facts import Fact
from .model import Field, FileContent

__all__ = ["Frame", "add_frames"]


@dataclass
class Frame:
    """fields: of one step, under the names that they have in every step. period: 0 along an axis that is not periodic. facts: of
    that step alone, owned by those names."""

    step: int
    fields: list[Field]
    time: float | None = None
    period: tuple[float, ...] | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


def add_frames(content: FileContent, frames: Iterable[Frame]) -> None:
    """Adds the fields of all frames: `x` where there is one frame, else `step-<step>/x`.

    A step that comes again (a run that was started again went on with the same file) counts as it was written last; the earlier
    one is left out, and said.
    """
    last: dict[int, Frame] = {}
    for frame in frames:
        if frame.step in last:
            again = "the step was written again later in the file, and that is what counts"
            content.notes.append(f"step {frame.step}: {again}")
            del last[frame.step]
        last[frame.step] = frame
    several = len(last) > 1
    bare = [frame for frame in last.values() if not frame.fields]
    if bare:  # no place has them: the file as a whole says that they are there, and what they say
        said = [[f.step, f.time, [[fact.label, fact.identity] for fact in f.facts]] for f in bare]
        content.say("", "(steps without fields)", said)
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
        told = {fact.label for fact in facts} | {"@" + old.name.lower() for old in frame.fields}
        if frame.time is not None and "@time" not in told:
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
        content.notes.append("the box changes from step to step: give a period by hand where positions wrap")
