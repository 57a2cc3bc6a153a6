"""Step, rank and field name from the path of a file of another program.

    step-0000000010/x.f32      step 10, rank 0, x
    plt00010.h5                step 10, rank 0, plt
    out_250.npy                step 250, rank 0, out
    step-10/rank-00003/x.npy   step 10, rank 3, x
    snap_010.3.hdf5            step 10, rank 3, snap
    output_00010/part/x1.f32   step 10, rank 0, part/x1
    epoch=3-step=1000.ckpt     step 1000, rank 0, no name: parts that change from file to file are
                               not part of the name

Rules, in this order:

Rank: a number after the word rank, proc or mpi in any part of the path; otherwise a number between dots in
the file's name (`.3.`), if the path has a step without it.

Step: a number after a word such as step, iter, plt, dump, out or snap, in the innermost part of the path that
has one; otherwise the last number of the file's name that follows a separator (`_250`, `.250`) or has three
digits or more; otherwise the last number of the innermost folder that has one; otherwise the last number of
the file's name.

Name: the file's stem without rank and step, after the folders that contain neither.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

__all__ = ["Place", "field_name", "parse_path"]


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Of ranks, steps, numbers between dots, numbers that stand apart, numbers, and pairs. Compiled
    for the first path that has a number.
    """
    rank = r"(?i)(?<![a-z])(?:rank|proc|mpi)[-_.=]?(\d{1,18})(?!\d)"
    step = (
        r"(?i)(?<![a-z])(?:time_?step|step|iteration|iter|it|cycle|cyc|ts|plt|plot|chk|checkpoint|ckpt|snapshot"
        r"|snapdir|snap|dump|restart|output|out|frame|epoch|gen)[-_.=]?(\d{1,18})(?!\d)"
    )
    dotted = r"\.(\d{1,18})(?=\.|$)"
    apart = r"(?<=[-_.])\d{1,18}(?!\d)|(?<!\d)\d{3,18}(?!\d)"
    number = r"(?<!\d)\d{1,18}(?!\d)"
    pair = r"[A-Za-z][A-Za-z0-9_]*=[^-=]*(?=-|$)"
    return tuple(map(re.compile, (rank, step, dotted, apart, number, pair)))


@functools.cache
def _usual() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Step and rank of a file's name whose only numbers are a step behind a separator and perhaps a rank
    (`x_250.npy`, `x.250.3.npy`); and of what ends with a word for a step or a rank.
    """
    words = r"(?i)(?<![a-z])(?:rank|proc|mpi|time_?step|step|iteration|iter|it|cycle|cyc|ts|plt|plot|chk|checkpoint|ckpt"
    words += r"|snapshot|snapdir|snap|dump|restart|output|out|frame|epoch|gen)[-_]*$"
    return re.compile(r"([A-Za-z][A-Za-z_-]*)[-_.]([0-9]{1,18})(?:\.([0-9]{1,18}))?\.[A-Za-z]+"), re.compile(
        words
    )


_DOUBLE_SUFFIX = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Place:
    """Step, rank and name of a file.

    step: None if the path has no number that can be a step. rank: 0 if the path names none. name: may be ''.
    """

    step: int | None
    rank: int
    name: str


@functools.lru_cache(1 << 15)  # both runs have the same names, as a rule
def parse_path(path: str) -> Place:
    """Place of a file, from its path relative to the folder of the run, by the rules above."""
    usual, words = _usual()
    found = usual.fullmatch(path)
    if (
        found is not None
        and words.search(found[1]) is None
        and not path.lower().endswith((".ckpt", *_DOUBLE_SUFFIX))
    ):
        # The result of the rules below.
        return Place(int(found[2]), int(found[3] or 0), found[1].rstrip("-_"))
    *folders, base = path.replace(os.sep, "/").split("/")
    if base.lower().endswith(_DOUBLE_SUFFIX):
        base = os.path.splitext(base)[0]
    stem, suffix = os.path.splitext(base)
    # snapshot_010.3, dump.melt.1000: the number is not a suffix
    if not stem or suffix[1:].isdecimal():
        stem = base
    if suffix.lower() != ".ckpt" and not any(
        map(str.isdecimal, path)
    ):  # most single files: nothing to look for
        return Place(
            None, 0, "/".join([*(f for f in folders if f not in ("", ".")), *([stem] if stem else [])])
        )
    of_rank, of_step, of_dotted, of_apart, of_number, of_pair = _patterns()
    used: list[set[tuple[int, int]]] = [set() for _ in range(len(folders) + 1)]
    parts = [*folders, stem]
    inner_first = range(len(parts) - 1, -1, -1)

    def search(pattern: re.Pattern[str], where: range | list[int]) -> tuple[int, re.Match[str]] | None:
        for at in where:
            hits = [
                m
                for m in pattern.finditer(parts[at])
                if not any(a < m.end() and m.start() < b for a, b in used[at])
                and (
                    pattern in (of_rank, of_step)
                    or at != last
                    or not any(a <= m.start() < b for a, b in pairs)
                )
            ]
            if hits:  # prefer a step to the epoch that contains it
                finer = [m for m in hits if not m[0].lower().startswith("epoch")]
                return at, (finer or hits)[-1]
        return None

    def take(hit: tuple[int, re.Match[str]], group: int) -> int:
        used[hit[0]].add(hit[1].span())
        return int(hit[1].group(group))

    last = len(parts) - 1
    # Pairs such as epoch=3, and val_loss=0.25 in the name of a checkpoint, change from file to
    # file.
    pairs = {
        m.span()
        for m in of_pair.finditer(stem)
        if suffix.lower() == ".ckpt" or of_step.fullmatch(m[0]) is not None
    }
    rank: int | None = None
    if (hit := search(of_rank, inner_first)) is not None:
        rank = take(hit, 1)

    step: int | None = None
    marked = search(of_step, inner_first)
    dotted = search(of_dotted, [last]) if rank is None else None
    if dotted is not None:
        span = dotted[1].span()
        overlaps = (
            marked is not None
            and marked[0] == last
            and marked[1].start() < span[1]
            and span[0] < marked[1].end()
        )
        apart = of_apart.search(stem[: span[0]]) is not None
        digits = any(folder.isdecimal() for folder in folders)
        if (marked is not None and not overlaps) or (marked is None and (apart or digits)):
            rank = take(dotted, 1)
    if marked is not None:
        step = take(marked, 1)
    else:
        folders_inner_first = range(last - 1, -1, -1)
        for pattern, where in ((of_apart, [last]), (of_number, folders_inner_first), (of_number, [last])):
            if (hit := search(pattern, where)) is not None:
                step = take(hit, 0)
                break

    # Remove the rank and the step. A word before the step stays in the name ("plt"), but not "step"
    # or "rank". Folders that contain a rank or a step are removed whole.
    kept = [folder for at, folder in enumerate(folders) if not used[at] and folder not in ("", ".")]
    if pairs:
        inside = [m for m in used[last] if any(a <= m[0] and m[1] <= b for a, b in pairs)]
        used[last] = (used[last] - set(inside)) | pairs
    rest = stem
    for start, end in sorted(used[last], reverse=True):
        word = re.match(r"(?i)[a-z_]*", rest[start:end])
        keep = word.group(0).strip("_") if word and "=" not in rest[start:end] else ""
        if re.fullmatch(r"(?i)rank|proc|mpi|time_?step|step|iteration|iter|it|cycle|cyc|ts", keep):
            keep = ""
        rest = rest[:start] + keep + "\0" + rest[end:]
    rest = re.sub(r"[-_.]*\0[-_.]*", "\0", rest).strip("\0")
    return Place(step, rank or 0, "/".join([*kept, rest.replace("\0", "_")] if rest else kept))


def field_name(path: str) -> str:
    """Name for the only array of a file, from the file's name.

    'data' if that has nothing but rank and step.
    """
    return parse_path(os.path.basename(path)).name or "data"
