"""twinrun flush LOCAL"""

from __future__ import annotations

import os
import sys

import click

from .. import _core
from ..errors import MissingFile, TwinrunError, one_line
from ..urls import is_url
from ..words import byte_size, counted
from .common import PATH, console
from .help import Verb


def _parts(path: str) -> list[str]:
    """Folders of ranks: this one, or those in it. Lower ranks first: rank 0 makes the history."""

    from ..formats.folder import is_history

    if not os.path.isdir(path):
        raise MissingFile(
            "no such folder", where=path, fix="name a rank's folder of the local tier, or the folder of all"
        )
    if is_history(path):
        return [path]
    with os.scandir(path) as entries:
        found = sorted(e.path for e in entries if e.name.startswith("rank-") and is_history(e.path))
    if not found:
        raise MissingFile(
            "no part of a history", where=path, fix="name the folder that a run had as its local tier"
        )
    return found


def _check_place(history: str, local: str, parts: list[str]) -> None:
    """Raises TwinrunError where steps would be copied into the tier's own folders."""

    from ..outputs import check_folder

    check_folder("--to", history, parts)
    if os.path.realpath(history) == os.path.realpath(local):
        check_folder("--to", history, [local])


def _target(path: str, history: str | None) -> str:
    """Where the steps of one rank go."""

    from ..arguments import checked_path, own_folder

    facts = _core.open_history(path)
    if facts.local_part is None or facts.to is None:
        raise TwinrunError(
            "is a whole history, and no part of one on a node-local tier",
            where=path,
            fix="name LOCAL, the folder that the run had as its local tier",
        )
    return own_folder(checked_path(history or facts.to), "it writes to s3:// and gs:// only")


def _flush(path: str, to: str, history_id: str) -> bool:
    """Copies the steps of one rank, and prints how many. Returns whether all were copied."""
    facts = _core.open_history(path)
    flushed = _core.flush(path, to, history_id)
    here = len(facts.steps) - flushed.steps - len(flushed.lost)
    before = f", {here} were there already" if here else ""
    console().print(
        one_line(
            f"rank {facts.local_part}: {counted(flushed.steps, 'step')}, {byte_size(flushed.bytes)} -> {to}{before}"
        ),
        soft_wrap=True,
    )
    for step in flushed.lost:
        said = one_line(f"{path}: step {step.step} could not be brought over: {step.reason}")
        print(f"twinrun: {said}", file=sys.stderr)
    from ..runs.unnamed import unnamed_of

    unnamed = unnamed_of(path, facts)
    if unnamed is not None:
        print(f"twinrun: {unnamed}", file=sys.stderr)
    return not flushed.lost and unnamed is None


def _upload(local: str, url: str) -> int:
    """Brings a whole history into a bucket, and prints which steps are there."""
    from ..capture.mirror import upload_history
    from ..formats.folder import is_history
    from ..urls import without_secrets

    if not is_history(local):
        raise MissingFile("no history", where=local, fix="name the folder that has manifest.jsonl")
    steps = upload_history(local, url)
    console().print(one_line(f"{counted(len(steps), 'step')} -> {without_secrets(url)}"), soft_wrap=True)
    return 0


@click.command(cls=Verb)
@click.argument("local", type=PATH)
@click.option(
    "--to", "history", type=PATH, default=None, metavar="HISTORY",
    help="The history; by default the one that the run was captured into. Or a bucket: s3://BUCKET/PREFIX.",
)  # fmt: skip
def flush(local: str, history: str | None) -> int:
    """Copy steps that a run left on a node-local tier to their history.

    LOCAL is a rank's folder there, or the folder of all ranks of this node. The run must have ended, however
    it ended. Every byte is checked on the way; damaged steps stay where they are. Steps of another run than
    the history's are refused. A history that is not there is made again. With a URL, LOCAL is a whole
    history, which is brought into the bucket.
    """

    from ..arguments import checked_path, own_folder, own_source

    local = own_source(checked_path(local))
    if is_url(history):
        assert history is not None
        return _upload(local, history)
    parts = _parts(local)
    if history is not None:
        own_folder(history, "it writes to s3:// and gs:// only")
        _check_place(history, local, parts)
    done = True
    targets: dict[str, list[str]] = {}
    for path in parts:
        try:
            to = _target(path, history)
            _check_place(to, local, parts)
            targets.setdefault(to, []).append(path)
        except TwinrunError as e:  # steps of other ranks do not wait for this rank
            print(f"twinrun: {e}", file=sys.stderr)
            done = False
    for to, ours in targets.items():
        try:
            history_id = _core.id_of_parts(ours, to)
        except TwinrunError as e:  # parts of several runs: none is brought over
            print(f"twinrun: {e}", file=sys.stderr)
            done = False
            continue
        for path in ours:
            try:
                done = _flush(path, to, history_id) and done
            except TwinrunError as e:
                print(f"twinrun: {e}", file=sys.stderr)
                done = False
    return 0 if done else 2
