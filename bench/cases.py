"""Pairs of runs to compare: synthetic ones with known differences, and two runs of a real simulation.

A synthetic run is one raw file of seven f32 arrays (x, y, z, vx, vy, vz, phi), as long as the published code's were. What
differs is known, so that every measurement is checked. Metadata of one kind lies in a folder of its own, with hard links
to the data: all kinds share the data's pages in the page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIELDS = ("x", "y", "z", "vx", "vy", "vz", "phi")
LARGEST_CHUNK = 512 << 10  # of the tables; fields are whole numbers of these, so that every chunk is full
CHUNK = 4096
SEED = 20241202
_PIECE = 1 << 22  # elements generated at a time

Change = Callable[[np.ndarray, np.random.Generator, int], np.ndarray]  # piece, generator, its first element


@dataclass(frozen=True)
class Metadata:
    """A kind of metadata. bits: of residues."""

    digest: str
    bits: int
    chunk: int = CHUNK

    @property
    def folder(self) -> str:
        """A name for it."""
        return f"{self.digest}-{self.bits}-{self.chunk}"


@dataclass(frozen=True)
class Array:
    """An f32 array of a run: name, file relative to the run, bytes before it, elements."""

    name: str
    file: str
    offset: int
    count: int


@dataclass
class Case:
    """Two runs. a, b: file or folder. different: elements that differ; None where it is not known beforehand."""

    key: str
    title: str
    eps: float
    folder: Path
    a: str
    b: str
    arrays: list[Array]
    different: int | None

    @property
    def bytes(self) -> int:
        """Of one run's elements."""
        return sum(4 * x.count for x in self.arrays)

    def path(self, run: str, metadata: Metadata | None = None) -> Path:
        """Where run 'a' or 'b' lies, with this metadata beside its data."""
        name = self.a if run == "a" else self.b
        return self.folder / ("data" if metadata is None else metadata.folder) / name

    def data_file(self, run: str, array: Array) -> Path:
        """The file that holds an array."""
        return self.path(run) / array.file if array.file else self.path(run)

    def data_files(self) -> list[Path]:
        """Of both runs."""
        return sorted({self.data_file(run, x) for run in "ab" for x in self.arrays})

    def all_files(self) -> list[Path]:
        """Data and metadata of all kinds, each inode once."""
        seen: dict[int, Path] = {}
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            seen.setdefault(path.stat().st_ino, path)
        return list(seen.values())

    def link(self, metadata: Metadata) -> None:
        """Makes the folder for one kind of metadata: links to the data."""
        target = self.folder / metadata.folder
        if not target.exists():
            shutil.copytree(self.folder / "data", target, copy_function=_link)

    def remove(self) -> None:
        """Gives the space back."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _link(data: str | Path, name: str | Path) -> None:
    """Another name. A hard link would change the status of data that metadata was made of already."""
    os.symlink(os.path.realpath(data), name)


def elements_per_field(megabytes: float) -> int:
    """So that a run has about this many MB (10^6 bytes) and every chunk of every size is full."""
    unit = LARGEST_CHUNK // 4
    return max(1, round(megabytes * 1e6 / (4 * len(FIELDS)) / unit)) * unit


def _pieces(elements: int) -> Iterator[tuple[int, int]]:
    for first in range(0, elements, _PIECE):
        yield first, min(_PIECE, elements - first)


def _commit(path: Path, pieces: Iterator[np.ndarray]) -> None:
    with open(path, "wb") as f:
        for piece in pieces:
            f.write(piece.data)
        f.flush()
        os.fsync(f.fileno())  # dirty pages cannot be dropped


def _describe(path: Path, per_field: int) -> None:
    arrays = [{"name": name, "dtype": "f32", "shape": [per_field]} for name in FIELDS]
    Path(f"{path}.json").write_text(json.dumps({"arrays": arrays}))


def write_reference(path: Path, per_field: int) -> None:
    """The first run: N(0, 1)."""
    rng = np.random.default_rng(SEED)
    total = per_field * len(FIELDS)
    _commit(path, (rng.standard_normal(n, dtype=np.float32) for _, n in _pieces(total)))
    _describe(path, per_field)


def _signs(rng: np.random.Generator, n: int) -> np.ndarray:
    """+1 or -1 at random, int8."""
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-n // 8)), np.uint8), count=n).view(np.int8)
    return bits * 2 - 1


def _same(piece: np.ndarray, _rng: np.random.Generator, _first: int) -> np.ndarray:
    return piece


def dense(distance: float) -> Change:
    """Every element is off by +-distance."""

    def change(piece: np.ndarray, rng: np.random.Generator, _first: int) -> np.ndarray:
        return piece + _signs(rng, piece.size) * np.float32(distance)

    return change


def _one_ulp(piece: np.ndarray, rng: np.random.Generator, _first: int) -> np.ndarray:
    # Not by arithmetic on the bits: N(0, 1) of this size holds zeros, whose bits have no neighbour below.
    return np.nextafter(piece, _signs(rng, piece.size) * np.float32(np.inf))


def sparse_chunks(chunks: int) -> np.ndarray:
    """The 4 KiB chunks that differ: 0.1% of them, at least one."""
    rng = np.random.default_rng(SEED + 1)
    return np.sort(rng.choice(chunks, size=max(1, round(chunks / 1000)), replace=False))


def _sparse(total: int) -> Change:
    per_chunk = CHUNK // 4
    chosen = sparse_chunks(total // per_chunk)
    places = chosen * per_chunk + np.random.default_rng(SEED + 2).integers(0, per_chunk, chosen.size)

    def change(piece: np.ndarray, _rng: np.random.Generator, first: int) -> np.ndarray:
        result = piece.copy()
        mine = places[(places >= first) & (places < first + piece.size)] - first
        result[mine] += np.float32(1)
        return result

    return change


@dataclass(frozen=True)
class Recipe:
    """A synthetic case. published: its row in the published code's table, or ''. full: all lines, warm and cold."""

    key: str
    title: str
    eps: float
    change: Callable[[int], Change]
    full: bool
    published: str = ""


# Twice the same pair with another tolerance is one recipe a tolerance: metadata is made for a tolerance.
RECIPES = (
    Recipe("identical", "(i) identical", 1e-3, lambda _: _same, True, "identical"),
    Recipe("sparse", "(ii) 0.1% of the 4 KiB chunks differ", 1e-3, _sparse, True, "sparse 1e-3"),
    Recipe("noise-1", "(iii) every element differs by 1% of eps", 1e-3, lambda _: dense(1e-5), True),
    Recipe("noise-40", "(iv) every element differs by 40% of eps", 1e-3, lambda _: dense(4e-4), True),
    Recipe("sparse-1e-7", "0.1% of the 4 KiB chunks differ", 1e-7, _sparse, False, "sparse 1e-7"),
    Recipe("ulp", "every element differs by 1 ulp", 1e-3, lambda _: _one_ulp, False, "ulp"),
    Recipe("noise-1e-4", "every element differs by 1e-4", 1e-3, lambda _: dense(1e-4), False, "1e-4"),
    Recipe("noise-1e-7", "every element differs by 1e-7", 1e-3, lambda _: dense(1e-7), False, "1e-7"),
)


def make_case(recipe: Recipe, reference: Path, folder: Path, per_field: int) -> Case:
    """Writes the second run of a case beside a link to the first."""
    data = folder / "data"
    data.mkdir(parents=True)
    for name in (reference.name, reference.name + ".json"):
        _link(reference.with_name(name), data / name)
    total = per_field * len(FIELDS)
    change = recipe.change(total)
    rng = np.random.default_rng(SEED + 3)
    first_run = np.memmap(reference, np.float32, "r")
    _commit(data / "b.bin", (change(first_run[at : at + n], rng, at) for at, n in _pieces(total)))
    _describe(data / "b.bin", per_field)
    arrays = [Array(name, "", 4 * per_field * i, per_field) for i, name in enumerate(FIELDS)]
    sparse = recipe.change is _sparse
    different = sparse_chunks(total * 4 // CHUNK).size if sparse else 0
    return Case(recipe.key, recipe.title, recipe.eps, folder, reference.name, "b.bin", arrays, different)


def run_simulation(program: str, particles: int, steps: int, captures: str, folder: Path) -> None:
    """Runs minihacc twice, into folder/a and folder/b."""
    folder.mkdir(parents=True)
    for run in "ab":
        subprocess.run(
            [
                program,
                "--quiet",
                f"--particles={particles}",
                f"--steps={steps}",
                f"--capture={captures}",
                f"--output={folder / run}",
            ],
            check=True,
        )
        for path in sorted((folder / run).rglob("*.f32")):
            with open(path, "rb") as f:
                os.fsync(f.fileno())


def simulation_case(eps: float, runs: Path, folder: Path) -> Case:
    """The two runs under a tolerance. runs: the folder that run_simulation filled."""
    shutil.copytree(runs, folder / "data", copy_function=_link)
    arrays = [
        Array(
            str(path.relative_to(runs / "a").with_suffix("")),
            str(path.relative_to(runs / "a")),
            0,
            path.stat().st_size // 4,
        )
        for path in sorted((runs / "a").rglob("*.f32"))
    ]
    title = f"(v) two runs of minihacc, eps = {eps:g}"
    return Case(f"minihacc-{eps:g}", title, eps, folder, "a", "b", arrays, None)
