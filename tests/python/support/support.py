"""What several Python tests use: an exact brute-force comparison to hold reports against; histories of several ranks."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import xxhash

import twinrun
from twinrun import CompareOptions, FieldComparison
from twinrun.comparison.options import Moved
from twinrun.comparison.work import histogram_edges


def in_options(how: Mapping) -> dict:
    """Parameters of `compare`, of which those that are options of experts are in a `CompareOptions`."""
    moved = {name: value for name, value in how.items() if name in Moved.__optional_keys__}
    if not moved:
        return dict(how)
    rest = {name: value for name, value in how.items() if name not in moved}
    return {**rest, "options": CompareOptions(formats=rest.get("options"), **moved)}


def step_files(folder: Path) -> list[str]:
    """Names in a step's folder, but for the file that says whose it is."""
    names = sorted(os.listdir(folder))
    marks = [name for name in names if name.startswith(".twinrun-")]
    assert len(marks) == 1
    return [name for name in names if name not in marks]


def exceeds(a: float | int, b: float | int, atol: float, rtol: float) -> bool:
    """|a - b| > atol + rtol |a| in exact rational arithmetic; finite operands."""
    return abs(Fraction(a) - Fraction(b)) > Fraction(atol) + Fraction(rtol) * abs(Fraction(a))


def scalars(x: np.ndarray) -> np.ndarray:
    """The flattened array; complex numbers as pairs."""
    x = np.ascontiguousarray(x).reshape(-1)
    if x.dtype.kind == "c":
        return x.view(x.real.dtype)
    return x


def brute_force(a: np.ndarray, b: np.ndarray, atol: float, rtol: float, equal_nan: bool = True) -> dict:
    """What a report must say, found out one element at a time."""
    xs, ys = scalars(a), scalars(b)
    if xs.dtype.kind == "b":
        xs, ys = xs.astype(np.uint8), ys.astype(np.uint8)
    different = []
    diffs = np.zeros(xs.size)
    for i, (x, y) in enumerate(zip(xs.tolist(), ys.tolist(), strict=True)):
        nan_x, nan_y = x != x, y != y
        if nan_x or nan_y:
            same = nan_x and nan_y and equal_nan
            diffs[i] = 0 if same else np.inf
        elif abs(x) == np.inf or abs(y) == np.inf:
            same = x == y
            diffs[i] = 0 if same else np.inf
        else:
            tolerance = atol + rtol * abs(float(x))
            rough = abs(float(x) - float(y))
            # Exact rationals are slow: only where rounding could decide.
            plain = max(rough, tolerance) > 1e-290 and abs(x) < 2**53 and abs(y) < 2**53
            if plain and rough > tolerance * (1 + 1e-9):
                same = False
            elif plain and rough < tolerance * (1 - 1e-9):
                same = True
            else:
                same = x == y or not exceeds(x, y, atol, rtol)
            diffs[i] = float(abs(x - y)) if isinstance(x, int) else abs(float(x) - float(y))
        if not same:
            different.append(i)
    return {"different": different, "diffs": diffs, "a": xs, "b": ys}


def histogram(diffs: np.ndarray) -> list[int]:
    """Counts in the report's bins."""
    edges = np.array(histogram_edges())
    bins = np.zeros(len(edges) + 3, dtype=np.int64)
    finite = diffs[np.isfinite(diffs)]
    bins[0] = int((finite == 0).sum())
    positive = finite[finite > 0]
    np.add.at(bins, 1 + np.searchsorted(edges, positive, side="right"), 1)
    bins[-1] = int(np.isinf(diffs).sum())
    return bins.tolist()


def check_report(f: FieldComparison, a: np.ndarray, b: np.ndarray, equal_nan: bool = True) -> None:
    """The report of a field equals brute force, whatever the method."""
    truth = brute_force(a, b, f.atol, f.rtol, equal_nan)
    different, diffs = truth["different"], truth["diffs"]
    assert f.elements == diffs.size
    assert f.different == len(different)
    if different:
        first = different[0]
        item = first // 2 if a.dtype.kind == "c" else first
        index = tuple(int(i) for i in np.unravel_index(item, a.shape)) if a.ndim else ()
        assert f.first_index == index + ((first % 2,) if a.dtype.kind == "c" else ())
        x, y = truth["a"][first], truth["b"][first]
        for said, is_so in ((f.first_a, x), (f.first_b, y)):
            assert said == is_so.item() or (np.isnan(said) and np.isnan(is_so))
        over = diffs[different]
        assert f.infinite == int(np.isinf(over).sum())
        assert f.histogram_different == histogram(over)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            magnitude = np.abs(truth["a"][different].astype(np.float64))
            relative = np.where(np.isinf(over) | (magnitude == 0), np.inf, over / magnitude)
        assert f.max_rel_diff == relative.max()
        finite = over[np.isfinite(over)]
        if finite.size and np.square(finite).sum() < 1e300:
            assert np.isclose(f.rms_diff, np.sqrt(np.mean(np.square(finite))), rtol=1e-9)
    else:
        assert f.first_index is None
        assert sum(f.histogram_different) == 0
    # The maximum over everything: exact, or a bound that is one.
    largest = diffs.max(initial=0.0)
    if f.max_abs_diff is not None:
        if f.max_abs_diff_is_bound:
            assert largest <= f.max_abs_diff
        else:
            assert f.max_abs_diff == largest
    assert f.max_abs_diff_at_least <= largest
    if f.elements_read == f.elements:
        assert f.histogram == histogram(diffs)
        assert not f.max_abs_diff_is_bound
    assert f.elements_read + f.proven_by_tree + sum(f.proven_by_cells) == f.elements


# ---- a history of several ranks, put together from runs of one: src/core/history/history.hpp ----


def sealed(line: Mapping) -> str:
    """A line of a manifest or journal."""
    text = json.dumps(line, separators=(",", ":"))[:-1]
    return f'{text},"xxh3":"{xxhash.xxh3_64_intdigest(text.encode()):016x}"}}\n'


def opened(file: Path) -> list[dict]:
    """The lines of a manifest or journal."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["xxh3"]
    return lines


def _of_rank(metadata: bytes, rank: int) -> bytes:
    """A metadata file of rank 0 as another rank's: its directory names the rank and the data file (spec/metadata.md)."""
    raw = bytearray(metadata)
    end = 64 + struct.unpack_from("<Q", raw, 24)[0]
    struct.pack_into("<I", raw, 64 + 16, rank)
    raw[64:end] = raw[64:end].replace(b"rank-00000.data", b"rank-%05d.data" % rank)
    struct.pack_into("<Q", raw, 32, xxhash.xxh3_64_intdigest(bytes(raw[64:end])))
    struct.pack_into("<Q", raw, 56, xxhash.xxh3_64_intdigest(bytes(raw[:56])))
    return bytes(raw)


HISTORY_ID = "0123456789abcdef" * 2


def run_of_ranks(
    path: Path,
    ranks: Sequence[Mapping[int, Mapping[str, object]]],
    local: Path | None = None,
    places: Sequence[Mapping[str, tuple]] | None = None,
    ids: Mapping[str, str] | None = None,
    **settings: object,
) -> Path:
    """Captures ranks[rank][step] = fields into one history; ranks may lack steps, as after a crash.

    local: then it is left as the ranks' parts on a node-local tier, on their way to `path`. places[rank]: of its parts in global
    arrays. ids: of fields, the field with their IDs.
    """
    if len(ranks) == 1 and local is None:
        with twinrun.Run(path, **settings) as run:
            for step, fields in ranks[0].items():
                run.capture(step, fields, ids=ids, global_place=None if places is None else places[0])
        return path
    for rank, steps in enumerate(ranks):
        alone = path.parent / f".{path.name}-{rank}"
        with twinrun.Run(alone, **settings) as run:
            for step, fields in steps.items():
                run.capture(step, fields, ids=ids, global_place=None if places is None else places[rank])
        first, *lines = opened(alone / "manifest.jsonl")
        first["ranks"] = len(ranks)
        first["id"] = HISTORY_ID
        root = path
        if local is not None:
            root = local / f"rank-{rank:05}"
            first |= {"rank": rank, "history": str(path)}
        root.mkdir(parents=True, exist_ok=True)
        (root / "manifest.jsonl").write_text(sealed(first))
        journal = [{"twinrun_journal": 1, "rank": rank, "ranks": len(ranks), "id": HISTORY_ID}]
        for line in lines:
            if "step" in line:
                files = line["ranks"][0]
                own = root / line["folder"]
                own.mkdir(exist_ok=True)
                (own / f".twinrun-{HISTORY_ID}").touch()
                content = _of_rank((alone / line["folder"] / files["metadata"]).read_bytes(), rank)
                if files["data"]:
                    (alone / line["folder"] / files["data"]).rename(own / f"rank-{rank:05}.data")
                    files["data"] = f"rank-{rank:05}.data"
                files["metadata"] = f"rank-{rank:05}.twm"
                (own / files["metadata"]).write_bytes(content)
                files["rank"] = rank
                files["header_xxh3"] = f"{xxhash.xxh3_64_intdigest(content[:64]):016x}"
            journal.append(line)
        (root / f"rank-{rank:05}.jsonl").write_text("".join(map(sealed, journal)))
        shutil.rmtree(alone)
    return path
