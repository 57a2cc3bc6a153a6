"""Compare two runs: histories, folders, files or arrays. `compare` gives facts; report/ makes them readable."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from . import _core
from .errors import Incomparable, TwinrunError
from .indexing import FLOATING, build, field_plan
from .provenance import Difference, Provenance, difference, read_provenance
from .settings import check_settings, chosen_devices
from .subject import FieldRef, Place, Subject, check_alike, open_subject

__all__ = ["Comparison", "FieldComparison", "compare", "histogram_edges", "parse_steps"]

METHODS = ("auto", "staged", "direct", "published")
STAGES = ("tree", "sketch", "elements")
# What reading one side to build its metadata may cost, against reading both: the core's choice in words.
_BUILT = "only one run had metadata: the other's was built on the fly, reading one run's data instead of both"
_DIRECT = "no metadata at hand: every element is compared, which reads no more than building metadata would"


def histogram_edges() -> list[float]:
    """Edges of the histograms: bin 0 is |a-b| = 0, bin 1 below the first edge, the last two 1e40 and up, infinite."""
    return _core.histogram_edges()


@dataclass
class FieldComparison:
    """What is known about one field at one place.

    elements: scalars (complex numbers count twice: real and imaginary part). different: those with
    |a - b| > atol + rtol |a|; a is the first-named run. first_index, max_abs_index: N-D indices as the user knows
    them. max_abs_diff: the largest |a - b| of all elements; where max_abs_diff_is_bound, none exceeds it (None: not
    even a bound is known). max_rel_diff, rms_diff: of |a - b| / |a| and |a - b| over the elements that differ.
    histogram: of |a - b| over the elements that were read; histogram_different over those that differ.
    A NaN against a number, or an infinity against anything else, counts as an infinite difference.
    device: where elements and sketches were compared ('cpu', 'cuda:0', 'cuda:0-3'), and why there; device_seconds: of
    copies to devices and their kernels, added up over devices.
    """

    step: int | None
    rank: int
    field: str
    dtype: str
    shape: tuple[int, ...]
    atol: float
    rtol: float
    elements: int
    bytes: int
    different: int
    infinite: int
    first_index: tuple[int, ...] | None
    first_a: float | int | None
    first_b: float | int | None
    first_abs_diff: float | int | None
    max_abs_diff: float | None
    max_abs_diff_is_bound: bool
    max_abs_diff_at_least: float
    max_abs_index: tuple[int, ...] | None
    max_abs_a: float | int | None
    max_abs_b: float | int | None
    max_rel_diff: float
    max_rel_index: tuple[int, ...] | None
    rms_diff: float
    rms_diff_all: float | None
    rms_diff_all_is_bound: bool
    histogram: list[int]
    histogram_different: list[int]
    elements_read: int
    proven_by_tree: int
    proven_by_cells: list[int]
    cell: float
    coarse_cell: float
    chunks: int
    stages: dict[str, dict]
    method: str
    reason: str
    io: str
    seconds: float
    warnings: list[str] = field(default_factory=list)
    device: str = "cpu"
    device_reason: str = ""
    device_seconds: float = 0.0

    @property
    def same(self) -> bool:
        """No element differs."""
        return self.different == 0

    def place(self) -> str:
        """'step 500, rank 0, x[1234, 2]' of the first difference, or of the field."""
        parts = [] if self.step is None else [f"step {self.step}"]
        parts.append(f"rank {self.rank}")
        index = "" if not self.first_index else "[" + ", ".join(map(str, self.first_index)) + "]"
        return ", ".join([*parts, self.field + index])


@dataclass
class Comparison:
    """The result of `compare`. verdict: 'same' or 'different' (what cannot be compared raises instead).

    fields: by step, rank and field. seconds: of all work. not_compared: datasets of types that are not compared (text),
    left out on both sides or one; the notes name them. notes: what the user should know (left-out datasets, …).
    device_asked: as `compare` was told ('auto', 'cpu', 'cuda:0', …). provenance_a, provenance_b: under which conditions
    the runs ran, where their histories say.
    """

    a: str
    b: str
    verdict: str
    fields: list[FieldComparison]
    seconds: float
    bytes_compared: int
    bytes_read: int
    notes: list[str]
    not_compared: int = 0
    device_asked: str = "auto"
    provenance_a: Provenance | None = None
    provenance_b: Provenance | None = None

    @property
    def conditions(self) -> list[Difference] | None:
        """Conditions in which the runs differ, the likeliest explanation first; None where a run does not say."""
        if self.provenance_a is None or self.provenance_b is None:
            return None
        return difference(self.provenance_a, self.provenance_b)

    @property
    def device(self) -> str:
        """Where fields were compared: 'cpu', 'cuda:0', or several, as 'cpu, cuda:0'."""
        return ", ".join(sorted({f.device for f in self.fields}))

    @property
    def device_seconds(self) -> float:
        """Of copies to devices and their kernels, in all fields."""
        return sum(f.device_seconds for f in self.fields)

    @property
    def same(self) -> bool:
        """Every element of every field agrees within the tolerance."""
        return self.verdict == "same"

    @property
    def different(self) -> int:
        """Elements that differ, in all fields."""
        return sum(f.different for f in self.fields)

    @property
    def first(self) -> FieldComparison | None:
        """The field in which the runs first part: the earliest step, then the lowest rank, then the order of fields."""
        return next((f for f in self.fields if not f.same), None)

    @property
    def first_divergence(self) -> dict | None:
        """{step, rank, field, index, a, b, abs_diff} of the first difference."""
        f = self.first
        if f is None:
            return None
        return {
            "step": f.step,
            "rank": f.rank,
            "field": f.field,
            "index": list(f.first_index or ()),
            "a": f.first_a,
            "b": f.first_b,
            "abs_diff": f.first_abs_diff,
        }

    @property
    def stages(self) -> dict[str, dict]:
        """Sums over all fields of each stage's chunks_in, chunks_out, bytes_read and seconds."""
        total = {s: {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0} for s in STAGES}
        for f in self.fields:
            for name, stage in f.stages.items():
                into = total.setdefault(
                    name, {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0}
                )
                for key in into:
                    into[key] += stage[key]
        return total


def _abs_diff(a: float | int | None, b: float | int | None) -> float | int | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b)
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return math.inf
    return abs(a - b)


def parse_steps(text: str) -> Callable[[int | None], bool]:
    """A test for steps from '10', '10,20', '100:200' (both ends included), ':50', '100:'."""
    tests: list[tuple[int | None, int | None]] = []
    for part in text.split(","):
        low, colon, high = part.strip().partition(":")
        try:
            first = int(low) if low.strip() else None
            last = (int(high) if high.strip() else None) if colon else first
        except ValueError:
            first = last = None
            colon = ""
        if not colon and first is None:
            raise TwinrunError(f"steps {text!r} are not understood", fix="write 10, or 10,20, or 100:200")
        tests.append((first, last))

    def chosen(step: int | None) -> bool:
        return step is not None and any(
            (low is None or step >= low) and (high is None or step <= high) for low, high in tests
        )

    return chosen


def _names(values: Iterable[object], most: int = 5) -> str:
    listed = [str(v) for v in values]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _place_text(place: Place) -> str:
    step, rank = place
    return f"rank {rank}" if step is None else f"step {step}, rank {rank}"


def _matched_places(
    a: Subject, b: Subject, steps: Callable[[int | None], bool] | None
) -> list[tuple[Place, Place]]:
    """The places to compare, of both: the same, unless one is arrays, which have no step and belong to any single one."""
    arrays, other = (a, b) if a.kind == "arrays" else (b, a)
    if arrays.kind == "arrays" and any(step is not None for step, _ in other.places):
        places = [p for p in other.places if steps is None or steps(p[0])]
        if len(places) != 1:
            raise Incomparable(
                f"{len(places)} steps and ranks are chosen, and arrays compare with one",
                where=other.label,
                fix="choose one with steps",
            )
        none = arrays.places[0]
        return [(none, places[0]) if arrays is a else (places[0], none)]
    places_a = [p for p in a.places if steps is None or steps(p[0])]
    places_b = [p for p in b.places if steps is None or steps(p[0])]
    if not places_a and not places_b:
        what = "no steps were committed" if steps is None else "no step matches --steps"
        raise Incomparable(what, where=f"{a.label}, {b.label}", fix="nothing was compared")
    for here, there, mine, theirs in ((a, b, places_a, places_b), (b, a, places_b, places_a)):
        missing = sorted(set(mine) - set(theirs), key=lambda p: (-1 if p[0] is None else p[0], p[1]))
        if missing:
            raise Incomparable(
                f"{_names(map(_place_text, missing))} of {here.label}: not there",
                where=there.label,
                fix="compare the common ones with --steps",
            )
    return [(p, p) for p in places_a]


def _matched_fields(
    a: Subject,
    b: Subject,
    in_a: dict[str, FieldRef],
    in_b: dict[str, FieldRef],
    globs: list[str] | None,
    place: Place,
) -> list[tuple[FieldRef, FieldRef]]:
    if globs is None and len(in_a) == 1 and len(in_b) == 1 and a.kind != "history" and b.kind != "history":
        # One array each, in files or memory: their names come from the files' names and need not agree.
        pairs = [(next(iter(in_a.values())), next(iter(in_b.values())))]
        if a.kind == "folder" and pairs[0][0].name != pairs[0][1].name:
            pairs = []
        if pairs and not (a.one_array and b.one_array) and pairs[0][0].name != pairs[0][1].name:
            pairs = []
    else:
        pairs = []
    if not pairs:
        chosen_a = {
            n: f for n, f in in_a.items() if globs is None or any(fnmatch.fnmatchcase(n, g) for g in globs)
        }
        chosen_b = {
            n: f for n, f in in_b.items() if globs is None or any(fnmatch.fnmatchcase(n, g) for g in globs)
        }
        for here, there, mine, theirs in ((a, b, chosen_a, chosen_b), (b, a, chosen_b, chosen_a)):
            missing = [n for n in mine if n not in theirs]
            if missing:
                raise Incomparable(
                    f"{_place_text(place)}: field {_names(map(repr, missing))} of {here.label}: not there",
                    where=there.label,
                    fix="compare the common ones with --field",
                )
        pairs = [(f, chosen_b[n]) for n, f in chosen_a.items()]
    if not pairs:
        raise Incomparable(
            f"{_place_text(place)}: no field to compare", where=a.label, fix="nothing was compared"
        )
    for x, y in pairs:
        what = f"{_place_text(place)}: field {x.name!r}"
        check_alike(x, y, what, a.label, b.label)
    return pairs


@dataclass
class _Settings:
    atol: float | None
    rtol: float | None
    equal_nan: bool
    method: str
    integers: bool
    residue_bits: int
    chunk_bytes: int
    threads: int
    memory: int
    io: str
    cache: str
    device: str
    devices: list[int]
    progress: Callable[[str, int, int], None] | None

    def tolerance(self, a: FieldRef, b: FieldRef) -> tuple[float, float]:
        """The tolerance of a field: what was asked for, else what its metadata was made for, else equality."""
        if self.atol is not None or self.rtol is not None:
            if a.dtype not in FLOATING and not self.integers:
                return 0.0, 0.0
            return self.atol or 0.0, self.rtol or 0.0
        made = {(r.facts["atol"], r.facts["rtol"]) for r in (a, b) if r.facts is not None}
        if len(made) > 1:
            raise Incomparable(
                f"field {a.name!r}: the runs were captured for different tolerances",
                fix="say which with --atol and --rtol",
            )
        return made.pop() if made else (0.0, 0.0)


def _build_on_the_fly(
    ref: FieldRef, like: dict, settings: _Settings, stack: contextlib.ExitStack
) -> tuple[_core.Metadata, dict]:
    """Metadata of a field in a temporary file, with the settings of `like`."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="twinrun-"))
    target = os.path.join(folder, "field.twm")
    plan = field_plan(
        ref,
        None,
        atol=like["atol"],
        rtol=like["rtol"],
        residue_bits=like["residue_bits"],
        chunk_bytes=like["chunk_bytes"],
        digest=like["digest"],
    )
    start = time.perf_counter()
    facts = build(
        target,
        [ref],
        [],
        lambda _: plan,
        threads=settings.threads,
        memory=settings.memory,
        io="auto" if settings.io == "gds" else settings.io,
        cache=settings.cache,
    )
    stage = {
        "ran": True,
        "chunks_in": 0,
        "chunks_out": 0,
        "bytes_read": facts["bytes_read"],
        "seconds": time.perf_counter() - start,
    }
    return _core.Metadata(target), stage


def _settings_like(ref: FieldRef, atol: float, rtol: float, settings: _Settings) -> dict:
    """Settings to build metadata with, where no run has any."""
    return {
        "atol": atol,
        "rtol": rtol,
        "residue_bits": settings.residue_bits,
        "chunk_bytes": settings.chunk_bytes,
        "digest": "published" if settings.method == "published" else "linear",
    }


def _compare_field(a: FieldRef, b: FieldRef, place: Place, settings: _Settings) -> FieldComparison:
    start = time.perf_counter()
    atol, rtol = settings.tolerance(a, b)
    reason = ""
    built: dict | None = None
    with contextlib.ExitStack() as stack:
        sides = []
        for ref in (a, b):
            sides.append([ref.source(settings.cache), ref.metadata, ref.metadata_field])
        have = [s[1] is not None for s in sides]
        for ref, side in zip((a, b), sides, strict=True):
            if side[0] is None and (side[1] is None or settings.method in ("direct", "published")):
                if (
                    side[1] is not None
                    and settings.method == "published"
                    and ref.facts["digest"] == "published"
                ):
                    continue
                raise Incomparable(
                    f"{_place_text(place)}: field {ref.name!r}: only its metadata is at hand, and this asks for its data",
                    where=ref.where,
                    fix="leave out --no-metadata and --method, or compare with the data at hand",
                )
        on_the_fly = settings.method in ("staged", "published") or (settings.method == "auto" and any(have))
        in_memory = a.memory is not None and b.memory is not None and settings.method == "auto"
        if settings.method != "direct" and on_the_fly and not all(have) and not in_memory:
            like = next((r.facts for r in (a, b) if r.facts is not None), None)
            wrong_kind = like is not None and settings.method == "published" and like["digest"] != "published"
            if like is None or wrong_kind:
                like = _settings_like(a, atol, rtol, settings)
            for side, ref in zip(sides, (a, b), strict=True):
                if side[1] is None:
                    side[1], stage = _build_on_the_fly(ref, like, settings, stack)
                    side[2] = 0
                    built = stage if built is None else {k: built[k] + stage[k] for k in built}
            reason = _BUILT if any(have) else "metadata was built on the fly, as asked for"
        elif settings.method == "auto" and not any(have):
            reason = _DIRECT
        progress = None
        if settings.progress is not None:
            label = f"{_place_text(place)} {a.name}"
            progress = lambda done, total: settings.progress(label, done, total)  # noqa: E731
        try:
            r = _core.compare(
                *sides[0],
                *sides[1],
                atol=atol,
                rtol=rtol,
                nan_equal=settings.equal_nan,
                method=settings.method,
                threads=settings.threads,
                memory=settings.memory,
                io=settings.io,
                cache=settings.cache,
                progress=progress,
                device=settings.device,
                devices=settings.devices,
            )
        except TwinrunError as e:
            raise type(e)(f"{_place_text(place)}: field {a.name!r}: {e}") from None
    if built is not None:
        r["stages"]["build"] = built
    return _facts(r, a, b, place, atol, rtol, settings, reason, time.perf_counter() - start)


def _facts(
    r: dict,
    a: FieldRef,
    b: FieldRef,
    place: Place,
    atol: float,
    rtol: float,
    settings: _Settings,
    reason: str,
    seconds: float,
) -> FieldComparison:
    cells = r["proven_by_cells"]
    cell, coarse = r["cell"], r["coarse_cell"]
    read, different = r["scalars_read"], r["different"]
    finite = different - r["infinite"]
    max_cell = max((c for c, n in enumerate(cells) if n), default=0)
    at_least = max(r["max_abs_read"], (max_cell - 1) * cell if cell > 0 and max_cell > 1 else 0.0)
    # Root mean square over everything: exact where all was read, else what the proofs allow.
    sum_squares: float | None = r["sum_squares"]
    unread = r["scalars"] - read
    if unread and cell > 0:
        sum_squares += r["proven_by_tree"] * (coarse * coarse)  # products overflow to infinity, powers raise
        sum_squares += sum(n * ((c + 1) * cell) * ((c + 1) * cell) for c, n in enumerate(cells))
    elif unread and cell == 0:
        sum_squares = sum_squares + unread * (atol * atol) if rtol == 0 else None
    total_finite = r["scalars"] - r["infinite"]
    rms_all = None if sum_squares is None else math.sqrt(sum_squares / total_finite) if total_finite else 0.0
    max_abs = r["max_abs"]
    index = lambda scalar: None if scalar is None else a.index(scalar)  # noqa: E731
    return FieldComparison(
        step=place[0],
        rank=place[1],
        field=a.name,
        dtype=a.dtype,
        shape=a.user_shape,
        atol=atol,
        rtol=rtol,
        elements=r["scalars"],
        bytes=a.items * a.itemsize,
        different=different,
        infinite=r["infinite"],
        first_index=index(r["first"]),
        first_a=r["first_a"],
        first_b=r["first_b"],
        first_abs_diff=_abs_diff(r["first_a"], r["first_b"]),
        max_abs_diff=None if math.isnan(max_abs) else max_abs,
        max_abs_diff_is_bound=r["max_abs_is_bound"],
        max_abs_diff_at_least=at_least,
        max_abs_index=index(r["max_abs_at"]),
        max_abs_a=r["max_abs_a"],
        max_abs_b=r["max_abs_b"],
        max_rel_diff=r["max_rel_different"],
        max_rel_index=index(r["max_rel_different_at"]),
        rms_diff=math.sqrt(r["sum_squares_different"] / finite) if finite else 0.0,
        rms_diff_all=rms_all,
        rms_diff_all_is_bound=bool(unread) and cell >= 0,
        histogram=r["histogram"],
        histogram_different=r["histogram_different"],
        elements_read=read,
        proven_by_tree=r["proven_by_tree"],
        proven_by_cells=cells,
        cell=max(cell, 0.0),
        coarse_cell=coarse,
        chunks=r["chunks"],
        stages=r["stages"],
        method=r["method"],
        reason=reason or r["reason"],
        io=r["io"],
        seconds=seconds,
        warnings=r["warnings"],
        device=r["device"],
        device_reason=r["device_reason"],
        device_seconds=r["device_seconds"],
    )


def _provenance(subject: Subject) -> Provenance | None:
    """Of a history; one that is damaged takes no verdict away, but the user is told."""
    try:
        return read_provenance(subject.settings or {})
    except TwinrunError as e:
        subject.notes.append(f"{subject.label}: {e}")
        return None


def compare(
    a: object,
    b: object,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    equal_nan: bool = True,
    method: str = "auto",
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    tolerate_integers: bool = False,
    use_metadata: bool = True,
    residue_bits: int = 4,
    chunk_bytes: int = 4096,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    cache: str = "auto",
    device: str = "auto",
    stream: object = None,
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Compares two runs: where, by how much, and from which step on they differ.

    a, b: histories, folders, files, arrays or {name: array}, on the host or on a GPU; a is the reference. Elements differ where
    |a - b| > atol + rtol |a|, decided as if in infinite precision; without atol and rtol the tolerance that the
    metadata was made for, or equality. Integers and booleans compare exactly unless tolerate_integers.
    equal_nan: a NaN equals a NaN. method: 'auto', 'staged' (tree, sketch, elements), 'direct' (every element) or
    'published'; all give the same differences. fields: globs. steps: '10,20' or '100:200'.
    residue_bits, chunk_bytes: of metadata that is built on the fly. threads: 0 for all cores. memory: bytes of read
    buffers at most. io: 'auto', 'uring', 'pread', or 'gds' (GPUDirect Storage). cache: 'auto', 'buffered' or 'direct' reads.
    device: 'auto' (where it is expected to be faster), 'cpu', 'cuda' (all GPUs), 'cuda:0', 'cuda:0,1'. stream: the one
    whose work makes arrays on a GPU, as a handle or an object of PyTorch, CuPy or Numba; else what the arrays say.
    options: of formats (format, dtype, shape, …). progress(label, done, total) is called now and then.

    Raises Incomparable, MissingFile, DamagedFile, Stale and their base TwinrunError: then nothing counts as compared.
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise TwinrunError(f"unknown method {method!r}", fix="use one of " + ", ".join(METHODS))
    check_settings(
        threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io, gds=True
    )
    if cache not in ("auto", "buffered", "direct"):
        raise TwinrunError(f"cache must be auto, buffered or direct, not {cache!r}")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise TwinrunError(f"{name} must be a finite number that is not negative, not {value!r}")
    use, devices = chosen_devices(device)
    settings = _Settings(
        None if atol is None else float(atol),
        None if rtol is None else float(rtol),
        equal_nan,
        method,
        tolerate_integers,
        residue_bits,
        chunk_bytes,
        threads,
        memory,
        io,
        cache,
        use,
        devices,
        progress,
    )
    globs = None if fields is None else list(fields)
    chosen_steps = None if steps is None else parse_steps(steps)
    subject_a, subject_b = open_subject(a, options, stream), open_subject(b, options, stream)
    results: list[FieldComparison] = []
    opening = 0
    for place_a, place_b in _matched_places(subject_a, subject_b, chosen_steps):
        place = place_b if place_a[0] is None else place_a
        with subject_a.open(place_a, use_metadata) as in_a, subject_b.open(place_b, use_metadata) as in_b:
            pairs = _matched_fields(subject_a, subject_b, in_a, in_b, globs, place)
            opened = {id(m): m for pair in pairs for m in (ref.metadata for ref in pair) if m is not None}
            opening += sum(m.bytes_read for m in opened.values())  # headers and directories
            for x, y in pairs:
                results.append(_compare_field(x, y, place, settings))
    provenance = [_provenance(s) for s in (subject_a, subject_b)]
    notes = list(dict.fromkeys(subject_a.notes + subject_b.notes))
    bytes_read = opening + sum(stage["bytes_read"] for f in results for stage in f.stages.values())
    return Comparison(
        a=subject_a.label,
        b=subject_b.label,
        verdict="same" if all(f.same for f in results) else "different",
        fields=results,
        seconds=time.perf_counter() - start,
        bytes_compared=sum(f.bytes for f in results),
        bytes_read=bytes_read,
        notes=notes,
        not_compared=subject_a.left_out + subject_b.left_out,
        device_asked=str(device),
        provenance_a=provenance[0],
        provenance_b=provenance[1],
    )
