"""Comparisons that ranks of an MPI job share: they say what a serial one says, and nobody waits for ever.

With the mpiexec that TWINRUN_TEST_MPIEXEC names (words, as a shell takes them), or that of this Python environment, or of the PATH.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import shlex
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import command, load_json
from hypothesis import given
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun.comparison import parallel
from twinrun.comparison import shares as units
from twinrun.comparison.outcome import Outcome, Remarks, in_shares
from twinrun.comparison.ranges import compare_part, put_together
from twinrun.comparison.settings import Settings
from twinrun.errors import MissingPackage, TwinrunError
from twinrun.runs import histories
from twinrun.runs.fields import FieldRef

HERE = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from mpi import Job  # noqa: E402

RANKS = (1, 2, 4, 7)


def mpiexec() -> list[str]:
    """What starts jobs; skips where nothing does."""
    if os.environ.get("TWINRUN_TEST_MPIEXEC"):
        return shlex.split(os.environ["TWINRUN_TEST_MPIEXEC"])
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec: pip install mpich")
    pytest.importorskip("mpi4py", reason="there is no mpi4py: pip install mpi4py")
    return [found]


def start(ranks: int, *words: object, environment: Mapping[str, str] | None = None) -> Job:
    """A job of Python."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HERE)]))
    return Job(
        [*mpiexec(), "-n", str(ranks), sys.executable, *map(str, words)],
        {"PYTHONPATH": path, **(environment or {})},
        limit=90,
    )


# ---- the runs ----


def folder(path: Path, change: float = 0.0, steps: int = 10, ranks: int = 4) -> Path:
    """A file a step and rank, two fields each; step 4 and later of rank 2 differ by `change`."""
    path.mkdir()
    random = np.random.default_rng(5)
    for step in range(steps):
        for rank in range(ranks):
            x, v = random.standard_normal(300 + 700 * rank), random.standard_normal((40, 3))
            if step >= 4 and rank == 2:
                x[7] += change
            np.savez(path / f"state.{step:05}.{rank}.npz", x=x, v=v)
    return path


def captured(path: Path, seed: int, size: float) -> Path:
    """A history of three ranks and four steps."""
    same, own = np.random.default_rng(1), np.random.default_rng(seed)
    return run_of_ranks(
        path,
        [
            {
                step: {
                    "x": same.standard_normal(4000) + size * step * own.standard_normal(4000),
                    "n": np.arange(50, dtype=np.int32),
                }
                for step in range(1, 5)
            }
            for _ in range(3)
        ],
        atol=1e-6,
    )


def cut(path: Path, ends: list[int], change: float = 0.0) -> Path:
    """A history of ranks that hold rows of a global array up to these ends, and something of their own."""
    whole = np.arange(40 * 3, dtype=np.float64).reshape(40, 3)
    whole[17, 1] += change
    begins = [0, *ends[:-1]]
    return run_of_ranks(
        path,
        [
            {s: {"u": np.ascontiguousarray(whole[i:j] * s), "t": np.full(2, float(s))} for s in (1, 2)}
            for i, j in zip(begins, ends, strict=True)
        ],
        places=[{"u": (whole.shape, (i, 0))} for i in begins],
        atol=0.0,
    )


def particles(path: Path, seed: int, change: float = 0.0) -> Path:
    """Two steps of three ranks; which rank holds a particle, and where, is random."""
    path.mkdir()
    random = np.random.default_rng(seed)
    for step in (10, 20):
        ids = random.permutation(900) + 1
        at = ids[:, None] * np.array([1.0, 0.5, 0.25]) + change * (ids[:, None] == 77)
        for rank, mine in enumerate(np.split(np.arange(900), sorted(random.integers(0, 900, 2)))):
            np.savez(path / f"p.{step}.{rank}.npz", id=ids[mine], pos=at[mine])
    return path


def fields(path: Path, change: float = 0.0, **others: np.ndarray) -> Path:
    """One file of many fields."""
    random = np.random.default_rng(2)
    values = {f"f{i}": random.standard_normal(100 * (i + 1)) for i in range(9)}
    values["f3"][5] += change
    np.savez(path, **(values | others))
    return path


def shuffled(path: Path, seed: int) -> Path:
    """Steps of particles that lie in another order each time."""
    path.mkdir()
    random = np.random.default_rng(seed)
    for step in range(6):
        np.savez(path / f"p.{step}.npz", m=np.ones(80), id=random.permutation(80))
    return path


def cases(at: Path) -> dict[str, list[str]]:
    """Words of `compare` by what they try."""
    a, b, same = folder(at / "a"), folder(at / "b", 1e-3), folder(at / "same")
    fewer = folder(at / "fewer", steps=8)
    unreadable = folder(at / "unreadable")
    broken = unreadable / "state.00003.1.npz"
    broken.write_bytes(broken.read_bytes()[:200])
    one, other = captured(at / "h1", 1, 0.0), captured(at / "h2", 2, 1e-6)
    rows, recut, three = (
        cut(at / "u1", [11, 40]),
        cut(at / "u2", [20, 40], 1.0),
        cut(at / "u3", [5, 25, 40]),
    )
    (at / "rules.toml").write_text(
        '[[tolerance]]\nfield = ["x"]\natol = 1e-2\n[[tolerance]]\nfield = ["v"]\nskip = true\n[[tolerance]]\nfield = ["zz"]\natol = 1.0\n'
    )
    rules = str(at / "rules.toml")
    runs = {
        "same": [a, same],
        "different": [a, b],
        "tolerance": [a, b, "--atol", "1"],
        "rules": [a, b, "--tolerances", rules],
        "period": [a, b, "--period", "x=5"],
        "fewer": [a, fewer],
        "common": [a, fewer, "--common"],
        "unreadable": [a, unreadable],
        "histories": [one, other],
        "staged": [one, other, "--method", "staged"],
        "same history": [one, one, "--no-metadata"],
        "by id": [particles(at / "p1", 1), particles(at / "p2", 2, 1e-3), "--key", "id"],
        "another cutting": [rows, recut],
        "other ranks": [rows, three],
        "shares": [fields(at / "f1.npz"), fields(at / "f2.npz", 1.0)],
        "shares and problems": [
            fields(at / "f3.npz", f1=np.zeros(3), f8=np.zeros(4), alone=np.zeros(2)),
            fields(at / "f4.npz", 1.0, f1=np.zeros(4), f8=np.zeros((2, 2))),
        ],
        "another order": [shuffled(at / "o1", 1), shuffled(at / "o2", 2)],
        "nothing there": [a, at / "nowhere"],
        "nothing in common": [at / "f1.npz", at / "p1", "--field", "zz"],
    }
    return {name: ["compare", *map(str, words), "--device", "cpu"] for name, words in runs.items()}


def large(path: Path, change: float = 0.0) -> Path:
    """Few fields, larger than a share of all."""
    random = np.random.default_rng(3)
    values = {
        "x": random.standard_normal((3000, 200)),
        "z": random.standard_normal(200_000) + 1j * random.standard_normal(200_000),
        "half": random.standard_normal((900, 40, 40)).astype(np.float16),
        "n": random.integers(0, 1 << 40, (300, 1000)),
        "small": np.arange(10.0),
    }
    values["x"][[3, 1500, 2999], [7, 0, 199]] += np.array([1.0, 3.0, 2.0]) * change
    values["z"][199_000:] += change * 1j
    values["z"][[40, 150_000]] = np.nan, np.inf
    values["half"][800] *= 1 + change
    np.savez(path, **values)
    return path


def large_histories(path: Path, seed: int, **settings: object) -> Path:
    """A step of one rank: some of it equal, some off by little, some by much."""
    same, own = np.random.default_rng(1), np.random.default_rng(seed)
    x, y = same.standard_normal((2, 200_000)), same.standard_normal(500_000).astype(np.float32)
    x[0, 50_000:] += 1e-7 * own.standard_normal(150_000)
    y[499_000:] += np.float32(0.1) * own.standard_normal(1000).astype(np.float32)
    with twinrun.Run(path, atol=1e-6, **settings) as run:
        run.capture(1, {"x": x, "y": y, "n": np.arange(300_000).reshape(3, 100_000)})
    return path


def large_cut(path: Path, ends: list[int], change: float = 0.0) -> Path:
    """A history of ranks that hold rows of global arrays up to these ends."""
    u = np.random.default_rng(6).standard_normal((20_000, 30))
    u[[100, 19_999], [3, 29]] += change, 2 * change
    begins = [0, *ends[:-1]]
    return run_of_ranks(
        path,
        [{1: {"u": u[i:j].copy(), "w": u[i:j, :3].copy()}} for i, j in zip(begins, ends, strict=True)],
        places=[{"u": ((20_000, 30), (i, 0)), "w": ((20_000, 3), (i, 0))} for i in begins],
        atol=0.0,
    )


def cases_of_large_fields(at: Path) -> dict[str, list[str]]:
    """Words of `compare` by what they try, and how many parts there are at least."""
    one, other = large(at / "a.npz"), large(at / "b.npz", 1e-3)
    files = at / "uneven"
    files.mkdir()
    for step in range(30):
        np.save(files / f"x.{step:03}.0.npy", np.full(600_000 if step == 11 else 10, 1.0 * step))
    uneven = shutil.copytree(files, at / "uneven2")
    np.save(uneven / "x.011.0.npy", np.r_[np.full(599_999, 11.0), 12.0])
    histories = [large_histories(at / f"h{seed}", seed) for seed in (1, 2)]
    bare = [large_histories(at / f"m{seed}", seed, keep_data=False) for seed in (1, 2)]
    rows, recut = large_cut(at / "u1", [5100, 20_000]), large_cut(at / "u2", [2000, 13_000, 20_000], 1.0)
    chunked = [at / "a.h5", at / "b.h5"]
    for path, of in zip(chunked, (one, other), strict=True):
        with h5py.File(path, "w") as file, np.load(of) as values:
            file.create_dataset("x", data=values["x"], chunks=(500, 100), compression="gzip")
    compressed = at / "c.npz"
    np.savez_compressed(compressed, **np.load(one))
    runs = {
        "same": [one, one],
        "different": [one, other],
        "tolerance": [one, other, "--atol", "1e-3", "--rtol", "1e-5"],
        "ulps": [one, other, "--ulp", "1000"],
        "period": [one, other, "--period", "x=2"],
        "one is large": [files, uneven],
        "histories": histories,
        "histories, direct": [*histories, "--method", "direct", "--atol", "4e-7"],
        "metadata alone": bare,
        "another cutting": [rows, recut],
        "as one": [rows, recut, "--field", "u", "--atol", "1.5"],
        "chunked": chunked,
        "streamed": [one, compressed],
        "metadata of one": [histories[0], histories[1], "--method", "staged", "--no-metadata"],
    }
    return {name: ["compare", *map(str, words), "--device", "cpu"] for name, words in runs.items()}


def timeless(document: object) -> object:
    """Without what may differ from one comparison of the same runs to the next: times, and how files were read (rings of
    io_uring are had while there are some)."""
    if isinstance(document, dict):
        return {k: timeless(v) for k, v in document.items() if k not in ("seconds", "device_seconds", "io")}
    return [timeless(v) for v in document] if isinstance(document, list) else document


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict]:
    """Cases, and what a serial comparison says of each."""
    at = tmp_path_factory.mktemp("runs")
    made = cases(at)
    serial = {}
    for name, words in made.items():
        report = at / "serial.json"
        outcome = command(*words, "-q", "--json", report, "--mpi", "off")
        serial[name] = (outcome.status, outcome.err, load_json(report.read_text()))
    return made, serial


def test_the_cases_are_what_they_are_called(runs: tuple) -> None:
    _, serial = runs
    statuses = {name: status for name, (status, _, _) in serial.items()}
    assert statuses == {
        **dict.fromkeys(serial, 1),
        **dict.fromkeys(("same", "tolerance", "rules", "common", "same history"), 0),
        **dict.fromkeys(
            (
                "fewer",
                "unreadable",
                "other ranks",
                "shares and problems",
                "nothing there",
                "nothing in common",
            ),
            2,
        ),
    }
    of = {name: document for name, (_, _, document) in serial.items()}
    assert len(of["unreadable"]["fields"]) == 2 * 39 and len(of["unreadable"]["problems"]) == 1
    assert [f["verdict"] for f in of["other ranks"]["fields"]] == ["same"] * 2  # what only ranks hold is told
    assert len(of["another cutting"]["fields"]) == 2 * 2 + 2
    assert sum("in another order" in note for note in of["another order"]["notes"]) == 1
    assert len(of["shares and problems"]["problems"]) == 3


@pytest.mark.parametrize("ranks", RANKS)
def test_says_what_a_serial_comparison_says(runs: tuple, tmp_path: Path, ranks: int) -> None:
    made, serial = runs
    commands = [
        [*words, "--json", str(tmp_path / f"{at}.report.json")] for at, words in enumerate(made.values())
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    job = start(ranks, HERE / "ranks.py", tmp_path / "commands.json", tmp_path)
    assert job.status == 0, job.out
    for at, (name, (status, said, document)) in enumerate(serial.items()):
        each = [json.loads((tmp_path / f"{at}.{rank}.json").read_text()) for rank in range(ranks)]
        assert [e["status"] for e in each] == [status] * ranks, (name, each)
        found = load_json((tmp_path / f"{at}.report.json").read_text())
        assert timeless(found) == timeless(document), name
        assert each[0]["err"] == said, name
        assert all(e["out"] == e["err"] == "" for e in each[1:]), (name, each)  # only the first one speaks


def without_pages(document: dict) -> dict:
    """Without the bytes that stages of metadata read: two ranges that meet read the same pages there. Sums of squares are rounded."""
    for stage in [document["stages"], *(f["stages"] for f in document["fields"])]:
        for name in ("tree", "sketch"):
            if name in stage:  # rows matched by ID have others
                stage[name]["bytes_read"] = None
    for f in document["fields"]:
        f |= {
            key: float(f"{f[key]:.12g}") for key in f if key.startswith("rms") and isinstance(f[key], float)
        }
    return document | {"bytes_read": None}


@pytest.fixture(scope="module")
def large_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], dict]:
    """Cases of large fields, and what a serial comparison says of each."""
    at = tmp_path_factory.mktemp("large")
    made = cases_of_large_fields(at)
    serial = {}
    for name, words in made.items():
        report, listed = at / "serial.json", at / "serial.csv"
        listed.unlink(missing_ok=True)
        outcome = command(*words, "-q", "--json", report, "--list-differences", listed, "--mpi", "off")
        document = without_pages(load_json(report.read_text()))
        serial[name] = (outcome.status, outcome.err, document, listed.read_text() if listed.exists() else "")
    return made, serial


@pytest.mark.parametrize("ranks", RANKS)
def test_large_fields_are_divided_and_say_the_same(large_runs: tuple, tmp_path: Path, ranks: int) -> None:
    made, serial = large_runs
    assert {name: status for name, (status, *_) in serial.items()} == {
        **dict.fromkeys(serial, 1), **dict.fromkeys(("same", "streamed"), 0), "metadata alone": 2,
    }  # fmt: skip
    commands = [
        [
            *words,
            "-q",
            "--json",
            str(tmp_path / f"{at}.report.json"),
            "--list-differences",
            str(tmp_path / f"{at}.csv"),
        ]
        for at, words in enumerate(made.values())
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    piece = 1 << 20
    job = start(
        ranks,
        HERE / "ranks.py",
        tmp_path / "commands.json",
        tmp_path,
        environment={"TWINRUN_TEST_PIECE": str(piece)},
    )
    assert job.status == 0, job.out
    for at, (name, (status, said, document, listed)) in enumerate(serial.items()):
        each = [json.loads((tmp_path / f"{at}.{rank}.json").read_text()) for rank in range(ranks)]
        assert [e["status"] for e in each] == [status] * ranks, (name, each)
        found = without_pages(load_json((tmp_path / f"{at}.report.json").read_text()))
        assert timeless(found) == timeless(document), name
        file = tmp_path / f"{at}.csv"
        assert (file.read_text() if file.exists() else "") == listed, name
        assert each[0]["err"] == said, name
        parts = [e["parts"] for e in each]
        divided = ranks > 1 and name not in ("streamed", "metadata of one")
        assert (sum(parts) > 1) == divided, (name, parts)


@pytest.mark.parametrize("name", ["same", "different", "unreadable"])
def test_the_job_ends_with_the_verdicts_status(runs: tuple, name: str) -> None:
    made, serial = runs
    job = start(2, "-m", "twinrun", *made[name], "-q")
    assert job.status == serial[name][0], job
    if name == "unreadable":
        assert serial[name][1].strip() in job.out, job


@pytest.mark.parametrize("fault", ["kill", "defect", "interrupt", "absent"])
def test_no_rank_waits_for_one_that_failed(runs: tuple, tmp_path: Path, fault: str) -> None:
    made, _ = runs
    (tmp_path / "commands.json").write_text(json.dumps([[*made["different"], "--json", "-"]]))
    job = start(2, HERE / "ranks.py", tmp_path / "commands.json", tmp_path, fault)
    assert job.status not in (0, 1), job
    assert '"verdict": "same"' not in job.out and '"verdict": "different"' not in job.out, job
    said = {"kill": "", "defect": "made for a test", "interrupt": "interrupted", "absent": "pip install"}
    assert said[fault] in job.out, job


def test_one_rank_needs_no_mpi4py(runs: tuple, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('made for a test')")
    made, _ = runs
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    one, three = (
        start(n, "-m", "twinrun", *made["different"], environment={"PYTHONPATH": path}) for n in (1, 3)
    )
    assert one.status == 1 and "different: first at" in one.out, one
    assert three.status == 2 and "pip install 'twinrun[mpi]'" in three.out, three
    assert "different" not in three.out, three


def test_a_job_whose_mpi_is_not_the_launchers_is_told(runs: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strange:
        rc = type("rc", (), {"initialize": True})

        class MPI:
            @staticmethod
            def Get_library_version() -> str:
                return "Open MPI v5.0.11, package: made for a test\0"

            @staticmethod
            def Is_initialized() -> bool:
                raise AssertionError("must not be initialised")

    for name in ("PMI_SIZE", "PMI_RANK"):
        monkeypatch.setenv(name, "3" if name == "PMI_SIZE" else "0")
    for launcher in ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "MPI4PY_LIBMPI"):
        monkeypatch.delenv(launcher, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", Strange)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Strange.MPI)
    with pytest.raises(TwinrunError, match=r"mpiexec started 3 ranks, and mpi4py loads Open MPI v5\.0\.11"):
        with parallel.joined():
            raise AssertionError("must not begin")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[mpi\]'"):
        with parallel.joined():
            raise AssertionError("must not begin")


# ---- the parts ----


def test_launchers_are_known() -> None:
    assert parallel.launched({}) is None
    assert parallel.launched({"OMPI_COMM_WORLD_SIZE": "1"})[1:3] == (1, 0)
    assert parallel.launched({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None  # a script of sbatch
    assert parallel.launched({"PMI_SIZE": "8", "PMI_RANK": "3"})[1:] == (8, 3, "MPICH")
    assert parallel.launched({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "PMI_SIZE": "8"})[1:3] == (
        8,
        5,
    )
    assert parallel.launched({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"})[3] == "Open MPI"


@given(sizes=st.lists(st.integers(0, 1 << 40), max_size=600), ranks=st.integers(1, 64))
def test_batches_hold_every_task_once_the_largest_first(sizes: list[int], ranks: int) -> None:
    made = list(parallel.batches(sizes, ranks))
    order = [at for batch in made for at in batch]
    assert sorted(order) == list(range(len(sizes)))
    assert [sizes[at] for at in order] == sorted(sizes, reverse=True)
    left = sum(sizes) + len(sizes)
    for batch in made:
        held = sum(sizes[at] + 1 for at in batch)
        assert 1 <= len(batch) <= 256 and (len(batch) == 1 or held <= left / (2 * ranks))
        left -= held


@given(
    # Bytes of whole items of 8.
    fields=st.lists(st.tuples(st.integers(0, 1 << 31).map(lambda n: 8 * n), st.booleans()), max_size=20),
    shares=st.integers(1, 40),
)
def test_fields_larger_than_a_share_are_divided(fields: list[tuple[int, bool]], shares: int) -> None:
    sizes, may = [size for size, _ in fields], [m for _, m in fields]
    made = units.pieces(sizes, may, shares)
    limit = max(units.LEAST_PIECE, -(-sum(sizes) // shares))
    assert list(dict.fromkeys(piece.at for piece in made)) == list(range(len(sizes)))
    for at, (size, divisible) in enumerate(fields):
        own = [piece for piece in made if piece.at == at]
        assert [piece.part for piece in own] == [(k, len(own)) for k in range(len(own))]
        assert (len(own) > 1) == (divisible and size > limit)
        assert len(own) == 1 or sum(piece.bytes for piece in own) > size - len(own)
        if divisible:
            assert all(piece.bytes <= limit for piece in own)
            ranges = [piece.ranges(size // 8, 8, 2) for piece in own]
            if len(own) > 1:
                flat = [r for found in ranges for r in found]
                ends = list(itertools.accumulate(n for _, n in flat))
                assert [first for first, _ in flat] == [0, *ends[:-1]] and ends[-1] == size // 8 * 2
                assert all(n > 0 and first % (units.LEAST_PIECE // 4) == 0 for first, n in flat)
            else:
                assert ranges == [None]


@given(sizes=st.lists(st.integers(0, 1 << 36), max_size=50), wanted=st.integers(1, 400))
def test_units_larger_than_a_share_of_all_are_shared(sizes: list[int], wanted: int) -> None:
    found = units.shares_by_size(sizes, wanted)
    for size, shares in zip(sizes, found, strict=True):
        assert 1 <= shares <= wanted
        assert shares == 1 or size // shares >= 2 * units.LEAST_PIECE
        assert shares == 1 or size * wanted >= shares * (sum(sizes) - wanted)


@given(sizes=st.lists(st.integers(0, 1000), max_size=40), shares=st.integers(1, 9))
def test_shares_of_a_place_are_even(sizes: list[int], shares: int) -> None:
    mine = units.owners(sizes, shares)
    assert len(mine) == len(sizes) and all(0 <= share < shares for share in mine)
    loads = [
        sum(s + 1 for s, owner in zip(sizes, mine, strict=True) if owner == share) for share in range(shares)
    ]
    assert max(loads) - min(loads) <= max(sizes, default=0) + 1


def test_shares_of_a_place_are_put_together_in_order() -> None:
    pairs = [("x", 8), ("y", 8), ("z", 8)]
    opened = TwinrunError("left out", where="file")
    shares = [
        Outcome(results=[(2, "z")], problems=[(-1, opened)], remarks=Remarks(opening=5), pairs=pairs),
        Outcome(
            results=[(0, "x")],
            problems=[(-1, opened), (1, TwinrunError("y"))],
            remarks=Remarks(opening=5),
            pairs=pairs,
        ),
    ]
    whole = in_shares(shares)
    assert whole.results == [(0, "x"), (2, "z")] and whole.remarks.opening == 5
    assert [str(p) for _, p in whole.problems] == ["file: left out", "y"]
    shares[0].pairs = pairs[
        1:
    ]  # the file was written again in between: who compares what is not sure any more
    assert any("changed while it was compared" in str(p) for _, p in in_shares(shares).problems)


def test_parts_of_a_divided_field_are_put_together() -> None:
    a, b = np.zeros(30_000), np.zeros(30_000)
    b[[100, 29_000]] = 1.0, 3.0
    x, y = (
        FieldRef(
            "x", "f64", "little", v.shape, False, "arrays", memory=twinrun.runs.arrays.taken("x", v, None)
        )
        for v in (a, b)
    )
    ranges = [(0, 10_240), (10_240, 10_240), (20_480, 9520)]
    asked = Settings(atol=0.5)
    parts = [compare_part(x, y, (3, 1), asked, [r]) for r in ranges]
    whole = put_together([compare_part(x, y, (3, 1), asked)])
    pairs = [("w", 8, False), ("x", 240_000, True)]

    def shares() -> list[Outcome]:
        found = [Outcome(parts=[(1, part)], pairs=pairs) for part in (parts[2], parts[0], parts[1])]
        found[1].results = [(0, "w")]
        return found

    first, second = (f for _, f in in_shares(shares()).results)
    assert first == "w" and (second.different, second.first_index, second.max_abs_index) == (
        2,
        (100,),
        (29_000,),
    )
    for f in (second, whole):
        f.seconds, f.device_reason, f.io, f.stages = 0.0, "", "", {}
    assert second == whole
    with pytest.raises(RuntimeError, match="a part of a field was lost"):
        in_shares(shares()[:2])
    with pytest.raises(RuntimeError, match="a part of a field was lost"):
        in_shares([*shares(), shares()[0]])
    # One that failed is a problem, once, whatever the others found; so is a share that did not get so far.
    failed = shares()
    for outcome in failed[1:]:
        outcome.parts, outcome.problems = [], [(1, TwinrunError(str(id(outcome))))]
    told = in_shares(failed)
    assert told.results == [(0, "w")] and len(told.problems) == 1
    away = [*shares()[:2], Outcome(problems=[(-1, TwinrunError("gone"))])]
    assert in_shares(away).results == [(0, "w")]
    changed = shares()
    changed[2].pairs = [("w", 8, False), ("x", 240_000, False)]
    told = in_shares(changed)
    assert told.results == [(0, "w")] and "changed while it was compared" in str(told.problems[0][1])


def test_records_of_many_ranks_need_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal(2000)
    runs = [
        run_of_ranks(
            tmp_path / name, [{s: {"x": x + s * size} for s in (1, 2, 3)} for _ in range(4)], **settings
        )
        for name, size, settings in (
            ("a", 1.0, {"record": "runs", "atol": 0.0}),
            ("b", 1.5, {"record": "runs", "atol": 0.0}),
        )
    ]
    free = twinrun.compare(*runs)
    monkeypatch.setattr(histories, "_records_kept", lambda: 2)
    opened = histories.HistorySubject(str(runs[0]))
    bound = twinrun.compare(opened, str(runs[1]))
    assert len(opened._records) == 2
    assert [f.different for f in bound.fields] == [f.different for f in free.fields] == [2000] * 12


def test_cores_of_a_node_are_shared() -> None:
    assert [parallel.cores_each([range(8)] * 3, rank) for rank in range(3)] == [2, 2, 2]
    assert [parallel.cores_each([[0], [1]], rank) for rank in range(2)] == [1, 1]
    assert [parallel.cores_each([range(16), range(16), range(16, 32)], rank) for rank in range(3)] == [
        8,
        8,
        16,
    ]
    assert parallel.cores_each([[0]] * 5, 4) == 1


def test_last_words_wait_for_their_reader(tmp_path: Path) -> None:
    """A launcher throws away what it has not read when a rank ends the job."""
    reader, writer = os.pipe()
    os.write(writer, b"interrupted")
    assert not parallel.wait_until_read(writer, limit=0.0)
    later = threading.Thread(target=lambda: os.read(reader, 100))
    later.start()
    assert parallel.wait_until_read(writer, limit=90.0)
    later.join()
    with open(tmp_path / "a file", "wb") as file:
        file.write(b"no pipe")
        assert parallel.wait_until_read(file.fileno(), limit=0.0)
    os.close(reader)
    assert parallel.wait_until_read(writer, limit=0.0)
    os.close(writer)


def test_what_is_sent_can_be_sent() -> None:
    """Dataclasses of results hold nothing of this process."""
    outcome = Outcome(error=TwinrunError("what", where="where", fix="fix"))
    back = pickle.loads(pickle.dumps(outcome))
    assert str(back.error) == "where: what; fix" and back.error.where == "where"
    assert dataclasses.replace(back, error=None) == dataclasses.replace(outcome, error=None)
