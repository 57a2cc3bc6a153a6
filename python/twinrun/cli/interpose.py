"""twinrun interpose"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import TwinrunError
from .common import PATH, console
from .help import Verb

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["interpose"]


def _lines(profiles: list[dict], top: int) -> list[str]:
    """A table of calls over all ranks, with notes."""
    made: dict[str, list] = {}
    for profile in profiles:
        for name, call in profile["calls"].items():
            row = made.setdefault(name, [call["group"], 0, 0.0, 0, 0.0])
            row[1] += call["count"]
            row[2] += call["seconds"]
            row[3] += call["bytes"]
            row[4] = max(row[4], call["largest_seconds"])
    wall = max((p["wall"] for p in profiles), default=0.0)
    lines = [
        f"{'call':<24} {'group':<18} {'calls':>10} {'seconds':>10} {'mean (us)':>10} {'largest (s)':>11} {'bytes':>14}"
    ]
    for name, (group, count, seconds, size, largest) in sorted(made.items(), key=lambda x: -x[1][2])[:top]:
        mean = f"{seconds / count * 1e6:.2f}" if count else ""
        lines.append(
            f"{name:<24} {group:<18} {count:>10} {seconds:>10.4f} {mean:>10} {largest:>11.6f} {size:>14}"
        )
    if len(made) > top:
        lines.append(f"... and {len(made) - top} more calls")
    own = sum(p.get("own_cost_seconds") or 0.0 for p in profiles)
    lines.append(f"{len(profiles)} rank(s), {wall:.4g} s; counting took about {own:.2g} s, over all ranks")
    for profile in profiles:
        for rule in (profile.get("injected") or {}).get("rules", []):
            where = "" if profile.get("rank") is None else f"rank {profile['rank']}: "
            lines.append(
                f"injected: {where}{rule['rule']}: {rule['count']} of {rule['calls']} calls, {rule['seconds']:.4g} s"
            )
    for key, text in (("other_preloads", "preloaded too"), ("errors", "error")):
        for entry in dict.fromkeys(x for p in profiles for x in p.get(key) or []):
            lines.append(f"{text}: {entry}")
    return lines


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _not_finished(marks: list[dict], profiled: set[int], own: int, status: int) -> list[str]:
    """A line for each process whose profile is missing or incomplete.

    profiled: numbers of processes with a profile; own: of the command's own process.
    """
    lines = []
    for mark in marks:
        what = "is not in the profiles" if mark["pid"] not in profiled else "is there as of its last flush"
        ended = (
            f"was ended by {_signal_name(-status)}"
            if mark["pid"] == own and status < 0
            else "was killed, or runs still"
        )
        lines.append(
            f"not finished: process {mark['pid']} ({mark['program'] or 'unknown program'}) {ended}, and {what}"
        )
    return lines


class _Ended(NamedTuple):
    """A command that ended. marks: of its processes without a whole profile; given: the profiles."""

    pid: int
    status: int
    marks: list[dict]
    given: list[Any]


def _run(command: tuple[str, ...], folder: Path, library: Path, **how: Any) -> _Ended:
    """Runs the command with the library, which writes into the folder.

    how: as of `interposition.variables`.
    """
    import subprocess

    from ..ensemble.study import interposition

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise TwinrunError(
            f"cannot be made: {e.strerror}", where=folder, fix="name another folder with --output"
        ) from None
    if any(folder.glob("PROFILE-*.json")) or interposition.unfinished(folder):
        raise TwinrunError("there are profiles already", where=folder, fix="give another folder")
    added = interposition.variables(library, folder, preloaded=os.environ.get("LD_PRELOAD"), **how)
    try:
        process = subprocess.Popen(command, env={**os.environ, **added})
    except OSError as e:
        raise TwinrunError(f"cannot be run: {e.strerror}", where=command[0]) from None
    with process:
        status = process.wait()
    # What is marked first: what ends in between is in both, and not in neither.
    marks = interposition.unfinished(folder)
    given = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("PROFILE-*.json"))]
    return _Ended(process.pid, status, marks, given)


def _notes(command: tuple[str, ...], ended: _Ended) -> list[str]:
    """What the profiles do not have."""
    given, marks = ended.given, ended.marks
    notes = _not_finished(marks, {p.get("pid") for p in given}, ended.pid, ended.status)
    if not given and not marks:
        notes.append(
            f"nothing was recorded: {command[0]} is static, setuid or no Linux program: the library cannot be preloaded into it"
        )
    elif not given:
        notes.append(
            "nothing was recorded: --flush SECONDS writes profiles while it runs, for what will be killed"
        )
    return notes


@click.command(cls=Verb, context_settings={"ignore_unknown_options": True})
@click.option(
    "--inject", metavar="RULES", default="", help="Delay or leave out calls, as write:delay=1ms..5ms."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of random delays.")
@click.option("--output", type=PATH, metavar="FOLDER", default=None, help="Keep the profiles in this folder.")
@click.option("--flush", type=click.IntRange(0, 999_999), default=0, metavar="SECONDS",
              help="Also write profiles while it runs, for a command that will be killed.")  # fmt: skip
@click.option(
    "--json", "json_file", type=PATH, metavar="FILE", default=None, help="All profiles; - is stdout."
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Calls to list.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def interpose(
    inject: str,
    seed: int,
    output: str | None,
    flush: int,
    json_file: str | None,
    top: int,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND, count and time its calls of MPI, POSIX and stdio, and print them on stderr.

    The exit status is the command's (128 + N where signal N ended it), also where nothing could be counted.
    Put -- before a command with options of its own.
    """

    import tempfile
    from pathlib import Path
    from shutil import which

    from ..ensemble.study import interposition
    from ..outputs import check_outputs
    from ..report.document import write_whole

    check_outputs(
        {"--json": json_file},
        [word for word in (which(command[0]), *command) if word and os.path.isfile(word)],
    )
    path = interposition.library()
    if inject:
        interposition.check_rules(inject, path)
    with tempfile.TemporaryDirectory(prefix="twinrun-interpose-") as temporary:
        folder = Path(output or temporary).absolute()
        ended = _run(command, folder, path, rules=inject, seed=seed, flush=flush)
    status, given = ended.status, ended.given
    try:
        profiles = interposition.read_profiles(given)
    except ValueError:
        profiles = given
    if json_file is not None:
        text = json.dumps(profiles, indent=1)
        if json_file == "-":
            click.echo(text)
        else:
            write_whole(json_file, text + "\n", "JSON")
    out = console(stderr=True)
    for line in [*(_lines(profiles, top) if given else []), *_notes(command, ended)]:
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    return status if status >= 0 else 128 - status
