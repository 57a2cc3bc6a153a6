"""Ways to compare two runs: the lines of a table. Each opens, reads and decides; nothing is kept from call to call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cases import CHUNK, Case, Metadata

import twinrun

STAGES = ("tree", "sketch", "elements")


@dataclass
class Outcome:
    """What one run of a line found, and what it read. different: None if it only says whether.

    bytes_read: of both runs. element_bytes: of them, elements. left: chunks that each stage left open; of elements: that
    hold a difference. read_chunks: whose elements were read.
    """

    same: bool
    different: int | None
    bytes_read: int
    element_bytes: int
    chunks: int = 0
    read_chunks: int = 0
    left: dict[str, int] = field(default_factory=dict)
    io: str = ""

    @property
    def false_positives(self) -> float | None:
        """Share of the chunks without a difference whose elements were read all the same."""
        clean = self.chunks - self.left.get("elements", 0)
        return (self.read_chunks - self.left["elements"]) / clean if self.left and clean else None


@dataclass(frozen=True)
class Line:
    """A way to compare. metadata: that must be there beforehand."""

    key: str
    title: str
    run: Callable[[Case], Outcome]
    metadata: Metadata | None = None


def _numpy(case: Case) -> Outcome:
    """As a scientist writes it."""
    same = True
    for x in case.arrays:
        a = np.fromfile(case.data_file("a", x), np.float32, x.count, offset=x.offset)
        b = np.fromfile(case.data_file("b", x), np.float32, x.count, offset=x.offset)
        same = np.allclose(a, b, rtol=0, atol=case.eps) and same
    return Outcome(same, None, 2 * case.bytes, 2 * case.bytes)


def _outcome(result: twinrun.Comparison, bytes_read: int | None = None) -> Outcome:
    stages = result.stages
    elements = stages["elements"]["bytes_read"] if bytes_read is None else bytes_read
    staged = any(f.method != "direct" for f in result.fields)
    left: dict[str, int] = {}
    if staged:
        ran = {s: any(f.stages[s]["ran"] for f in result.fields) for s in STAGES}
        left["tree"] = stages["tree"]["chunks_out"]
        if ran["sketch"]:
            left["sketch"] = stages["sketch"]["chunks_out"]
        left["elements"] = stages["elements"]["chunks_out"]
    return Outcome(
        result.same,
        result.different,
        result.bytes_read if bytes_read is None else bytes_read,
        elements,
        sum(f.chunks for f in result.fields),
        stages["elements"]["chunks_in"],
        left,
        "+".join(sorted({f.io for f in result.fields if f.io})),
    )


def _direct_mmap(case: Case) -> Outcome:
    """Mapped files, compared as arrays: the kernel's page faults and read-ahead bring the data."""
    sides = [
        {
            x.name: np.memmap(case.data_file(run, x), np.float32, "r", x.offset, (x.count,))
            for x in case.arrays
        }
        for run in "ab"
    ]
    result = twinrun.compare(*sides, atol=case.eps, options=twinrun.CompareOptions(method="direct"))
    return _outcome(result, 2 * case.bytes)


def _direct(io: str) -> Callable[[Case], Outcome]:
    def run(case: Case) -> Outcome:
        a, b = case.path("a"), case.path("b")
        return _outcome(
            twinrun.compare(
                a,
                b,
                atol=case.eps,
                options=twinrun.CompareOptions(method="direct", io=io, use_metadata=False),
            )
        )

    return run


def _with(metadata: Metadata) -> Callable[[Case], Outcome]:
    method = "published" if metadata.digest == "published" else "staged"

    def run(case: Case) -> Outcome:
        a, b = case.path("a", metadata), case.path("b", metadata)
        return _outcome(twinrun.compare(a, b, atol=case.eps, options=twinrun.CompareOptions(method=method)))

    return run


def size(chunk: int) -> str:
    """'4 KiB'."""
    return f"{chunk >> 10} KiB"


def published(chunk: int = CHUNK) -> Line:
    """The published method."""
    metadata = Metadata("published", 0, chunk)
    name = "published method" + ("" if chunk == CHUNK else f", {size(chunk)}")
    return Line(f"published-{chunk}", name, _with(metadata), metadata)


def ours(bits: int, chunk: int = CHUNK) -> Line:
    """Three stages."""
    metadata = Metadata("linear", bits, chunk)
    name = f"twinrun, {bits} residue bits" + ("" if chunk == CHUNK else f", {size(chunk)}")
    return Line(f"ours-{bits}-{chunk}", name, _with(metadata), metadata)


NUMPY = Line("numpy", "numpy: fromfile, allclose", _numpy)
DIRECT_MMAP = Line("direct-mmap", "direct, mmap", _direct_mmap)
DIRECT_URING = Line("direct-uring", "direct, io_uring", _direct("uring"))
DIRECT_PREAD = Line("direct-pread", "direct, pread", _direct("pread"))
DIRECT = (DIRECT_MMAP, DIRECT_URING, DIRECT_PREAD)
FULL = (NUMPY, *DIRECT, published(), ours(0), ours(2), ours(4))
OTHER_CHUNKS = (64 << 10, 512 << 10)


# What is measured, warm, for the published code's table: besides FULL, or alone.
OTHER = tuple(make for chunk in OTHER_CHUNKS for make in (published(chunk), ours(4, chunk)))
FEW = (DIRECT_URING, published(), ours(4))


def prepare(case: Case, metadata: Metadata, kept: Path) -> None:
    """Makes the metadata of both runs. kept: a folder for that of the reference, which many cases share."""
    case.link(metadata)
    shared = kept / f"{metadata.folder}-{case.eps:g}.twm"
    for run in "ab":
        path = case.path(run, metadata)
        beside = Path(f"{path}.twm")
        if run == "a" and shared.exists():
            os.link(shared, beside)
            continue
        twinrun.index(
            path,
            atol=case.eps,
            residue_bits=metadata.bits,
            chunk_bytes=metadata.chunk,
            digest=metadata.digest,
        )
        if run == "a" and path.is_file():
            os.link(beside, shared)
