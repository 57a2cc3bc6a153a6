"""One field against its kept values: both sides are known, so that the result is that of `compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core
from ..comparison.differences import abs_diff
from ..comparison.settings import Decision, Settings
from ..errors import DamagedFile, Stale
from ..formats.element_types import scalar_bytes, scalars_of
from ..runs.fields import FieldRef
from ..runs.order import in_type, read_by_row
from ..runs.subject import Place
from .digests import Digests
from .fields import alike, described, kind_of, readable, told, values_of
from .result import GoldenElement, GoldenField, GoldenSpan
from .values import KeptValues

__all__ = ["check_values", "compared", "kept_ref", "kept_refs"]


def kept_refs(golden: Digests, kept: Mapping[str, KeptValues]) -> dict[str, FieldRef]:
    """The kept elements as fields, by name: of those that have the digests beside them."""
    found = {}
    for name, values in kept.items():
        known = golden.fields[golden.numbers[name]]
        if (values.dtype, values.shape) != (known.dtype, known.shape) or known.fortran_order:
            continue
        ref = found[name] = values.ref(name, golden.path)
        told = golden.labels.get(name, {})
        ref.unit, ref.kind = told.get("unit"), told.get("kind")
    proven = described(golden, found)
    return {name: ref for name, ref in found.items() if name in proven}


def kept_ref(golden: Digests, name: str, refs: Mapping[str, FieldRef]) -> FieldRef:
    """The kept elements of a field, out of `kept_refs`. Raises DamagedFile if its digests are of others."""
    if name not in refs:
        raise DamagedFile(
            f"field {name!r}: the kept values are not those of the digests beside them",
            where=golden.path,
            fix="restore both files, or save again",
        )
    return refs[name]


def check_values(
    golden: Digests,
    a: FieldRef,
    ref: FieldRef,
    place: Place,
    decision: Decision,
    *,
    label: str,
    most_listed: int = 100,
    threads: int = 0,
    memory: int = 1 << 28,
    io: str = "auto",
) -> GoldenField:
    """Compares a field with its kept values, as `compare` compares two runs. The result has the name that was
    saved.

    a: the kept values, out of `kept_ref`. label: names the run in messages. Others: as for `compared`.
    Raises Incomparable, DamagedFile, and what reading the field raises.
    """
    known = golden.fields[golden.numbers[a.name]]
    b = in_type(ref, known.dtype)
    alike(known, golden.labels.get(known.name, {}), b, label)
    return compared(a, b, place, decision, known.chunk_bytes, most_listed=most_listed, threads=threads,
                    memory=memory, io=io)  # fmt: skip


def compared(
    a: FieldRef,
    b: FieldRef,
    place: Place,
    decision: Decision,
    chunk_bytes: int,
    *,
    most_listed: int = 100,
    threads: int = 0,
    memory: int = 1 << 28,
    io: str = "auto",
) -> GoldenField:
    """Compares two fields of one type and shape; a is the golden one.

    chunk_bytes: how many of them make an entry of the result's spans. most_listed: elements, and chunks, to
    list. Raises Incomparable where the run has no data.
    """
    b = read_by_row(b)
    source_a, source_b = a.need_source(), readable(b)
    settings = Settings(method="direct", threads=threads, memory=memory, io=io, device="cpu")
    rule = decision.rule()
    side_a, side_b = (_core.FieldSide(source, None, 0) for source in (source_a, source_b))
    found = _core.compare(side_a, side_b, rule, settings.options())
    scalars = np.empty(0, np.uint64)
    if found.different:
        scalars = _core.list_differences(source_a, source_b, 0, a.items, rule)
    if scalars.size != found.different:
        raise Stale("the data changed while it was compared", where=b.where, fix="check again")
    kind = kind_of(a)
    least: float = found.max_abs
    if any(decision.period):  # the core's statistics are of a - b as float64 rounds it
        least = _largest(a, b, decision)
    most: float | None = least
    if kind is not None:
        least, most = 0.0, None if found.different else 0.0
    return GoldenField(
        step=place[0],
        rank=place[1],
        field=a.name,
        dtype=a.dtype,
        shape=a.user_shape,
        atol=decision.atol,
        rtol=decision.rtol,
        elements=found.scalars,
        bytes=a.items * a.itemsize,
        chunks=-(-a.items * a.itemsize // chunk_bytes),
        residue_bits=0,
        cell=0.0,
        kind=kind,
        unit=b.unit,
        ulps=decision.ulps,
        period=decision.period,
        values_kept=True,
        different=found.different,
        at_least=least,
        at_most=most,
        **_spans(scalars, found.scalars, a, chunk_bytes, most_listed),
        **_listed(scalars[:most_listed], a, b, decision),
        listed_left_out=max(int(scalars.size) - most_listed, 0),
    )


def _largest(a: FieldRef, b: FieldRef, decision: Decision) -> float:
    """The largest |a - b|: where both are NaN, they are 0 apart unless NaN differs."""
    of_a, of_b = (
        values_of(bytes(_core.read_source(ref.need_source(), 0, ref.items)), ref.dtype) for ref in (a, b)
    )
    apart = abs_diff(of_a, of_b, np.arange(of_a.size, dtype=np.uint64), decision)
    same = of_a == of_b
    if decision.equal_nan:
        same |= (of_a != of_a) & (of_b != of_b)
    return float(np.where(same, 0.0, apart).max(initial=0.0))


def _spans(scalars: np.ndarray, total: int, ref: FieldRef, chunk_bytes: int, most: int) -> dict[str, Any]:
    """The facts of chunks that differ. scalars: numbers of those that differ. total: how many there are."""
    if not scalars.size:
        return {"spans": [], "spans_left_out": 0, "chunks_different": 0}
    per_chunk = chunk_bytes // scalar_bytes(ref.dtype)
    chunks, counts = np.unique(scalars // np.uint64(per_chunk), return_counts=True)
    spans = []
    for chunk, count in zip(chunks[:most].tolist(), counts[:most].tolist(), strict=True):
        first, last = chunk * per_chunk, min((chunk + 1) * per_chunk, total) - 1
        spans.append(
            GoldenSpan(first, last, ref.index(first), ref.index(last), count, True, False, "different")
        )
    return {
        "spans": spans,
        "spans_left_out": max(int(chunks.size) - most, 0),
        "chunks_different": int(chunks.size),
    }


def _listed(scalars: np.ndarray, a: FieldRef, b: FieldRef, decision: Decision) -> dict[str, Any]:
    """The elements of these numbers, which differ."""
    at = scalars.astype(np.int64)
    if not at.size:
        return {"listed": []}
    per_item = scalars_of(a.dtype)
    begin, end = int(at[0]) // per_item, int(at[-1]) // per_item + 1
    of_a, of_b = (
        values_of(bytes(_core.read_source(ref.need_source(), begin, end - begin)), ref.dtype)[
            at - begin * per_item
        ]
        for ref in (a, b)
    )
    apart = abs_diff(of_a, of_b, scalars, decision)
    listed = []
    for n, x, y, d in zip(at.tolist(), of_a, of_b, apart.tolist(), strict=True):
        element = GoldenElement(a.index(n), y.item(), None, d, d, "different", x.item())
        if kind_of(a) is not None:
            element = replace(element, at_least=0.0, at_most=math.inf)
        # A code, or a digest: only the run's file can say what it stands for.
        if (said := told(b, element.index, n)) is not None:
            element = replace(element, b=said, a=None)
        listed.append(element)
    return {"listed": listed}
