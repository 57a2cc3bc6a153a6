"""Every differing element, by name: against brute force, and as many as the report counts."""

from __future__ import annotations

import csv
import errno
import gc
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command
from hypothesis import given, settings
from hypothesis import strategies as st
from support import brute_force, run_of_ranks, scalars
from test_alignment import open_series, series
from test_placed import Parts, cases, part

import twinrun
from twinrun import formats
from twinrun.comparison.differences import Differences
from twinrun.errors import MissingPackage, Stale, TwinrunError
from twinrun.formats.model import Format
from twinrun.report import listing
from twinrun.report.listing import write_differences

TYPES = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "u8", "?", "c8", "c16"]


def joined(parts: list[Differences]) -> dict:
    """All stretches of one field."""
    return {
        "index": [tuple(i) for p in parts for i in p.index.tolist()],
        "a": [v for p in parts for v in p.a.tolist()],
        "b": [v for p in parts for v in p.b.tolist()],
        "abs_diff": [v for p in parts for v in p.abs_diff.tolist()],
    }


def alike(x: object, y: object) -> bool:
    """Equal, a NaN to a NaN."""
    return x == y or (x != x and y != y)


@given(
    data=st.data(),
    code=st.sampled_from(TYPES),
    shape=st.lists(st.integers(1, 5), max_size=4),
    fortran=st.booleans(),
    atol=st.sampled_from([0.0, 0.5]),
    rtol=st.sampled_from([0.0, 0.25]),
    window=st.sampled_from([1, 40, 4 << 20]),
    rows=st.sampled_from([1, 3, 1 << 18]),
)
@settings(max_examples=150)
def test_equals_brute_force(
    data: st.DataObject,
    code: str,
    shape: list[int],
    fortran: bool,
    atol: float,
    rtol: float,
    window: int,
    rows: int,
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    n = math.prod(shape)
    kind = np.dtype(code)
    if kind.kind == "b":
        a = random.integers(0, 2, n).astype(bool)
    elif kind.kind in "iu":
        info = np.iinfo(kind)
        a = random.integers(info.min, info.max, n, kind, endpoint=True)
    else:
        a = random.choice([0.0, -0.0, 1.0, 3.5, -2.25, math.nan, math.inf, 1e4], n).astype(kind)
    b = np.where(random.random(n) < 0.4, random.permutation(a), a).reshape(shape)
    a = a.reshape(shape)
    if fortran:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    before = (twinrun.comparison.differences._WINDOW, twinrun.comparison.differences._ROWS)
    twinrun.comparison.differences._WINDOW, twinrun.comparison.differences._ROWS = window, rows
    try:
        found = twinrun.compare(a, b, atol=atol, rtol=rtol)
        got = joined(list(found.differences()))
    finally:
        twinrun.comparison.differences._WINDOW, twinrun.comparison.differences._ROWS = before
    integers = kind.kind in "iub"
    truth = brute_force(a, b, 0.0 if integers else atol, 0.0 if integers else rtol)
    pair = 2 if kind.kind == "c" else 1
    expected = []
    for at in truth["different"]:
        index = tuple(map(int, np.unravel_index(at // pair, a.shape))) if shape else ()
        expected.append((index + ((at % 2,) if pair == 2 else ()), at))
    assert len(got["index"]) == found.different
    order = sorted(range(len(got["index"])), key=lambda i: got["index"][i])
    assert [got["index"][i] for i in order] == [index for index, _ in expected]
    xs, ys = scalars(a), scalars(b)
    for i, (_, at) in zip(order, expected, strict=True):
        assert alike(got["a"][i], xs[at].item()) and alike(got["b"][i], ys[at].item())
        assert got["abs_diff"][i] == float(truth["diffs"][at])
    if got["abs_diff"] and not fortran:
        first = found.first_divergence
        assert tuple(first["index"]) == got["index"][0] and alike(first["a"], got["a"][0])


def test_on_a_circle_the_distance_is_along_it() -> None:
    a = np.array([[0.1, 0.1], [9.9, 5.0], [3.0, 19.9]])
    b = np.array([[9.8, 0.1], [0.2, 5.5], [3.0, 0.4]])
    found = twinrun.compare({"pos": a}, {"pos": b}, period=[10, 20], atol=0.05)
    rows = joined(list(found.differences()))
    assert rows["index"] == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert rows["abs_diff"] == pytest.approx([0.3, 0.3, 0.5, 0.5])
    assert found.first_divergence["abs_diff"] == pytest.approx(0.3)
    assert max(rows["abs_diff"]) == pytest.approx(found.fields[0].max_abs_diff)


def test_histories_and_files(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(12, 5))
    y = x.copy()
    y[3, 2] += 1
    y[9, :] -= 2
    expected = joined(list(twinrun.compare({"x": x}, {"x": y}).differences()))
    assert expected["index"] == [(3, 2), *((9, i) for i in range(5))]
    for name, field in (("a", x), ("b", y)):
        ranks = [{1: {"x": x, "same": x}, 2: {"x": field if rank else x, "same": x}} for rank in range(2)]
        run_of_ranks(tmp_path / name, ranks)
    found = twinrun.compare(tmp_path / "a", tmp_path / "b")
    parts = list(found.differences())
    assert {(p.field.step, p.field.rank, p.field.field) for p in parts} == {(2, 1, "x")}
    assert joined(parts) == expected
    assert (
        list(found.differences())
        and list(twinrun.compare(tmp_path / "a", tmp_path / "a").differences()) == []
    )
    np.save(tmp_path / "one.npy", x)
    np.savez_compressed(tmp_path / "two.npz", one=y)
    np.save(tmp_path / "other.npy", np.asfortranarray(y))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    for first, second in (("one.npy", "two.npz"), ("fortran.npy", "other.npy")):
        rows = joined(list(twinrun.compare(tmp_path / first, tmp_path / second).differences()))
        assert sorted(rows["index"]) == expected["index"] and sorted(rows["b"]) == sorted(expected["b"])


@given(case=cases())
@settings(max_examples=40)
def test_global_arrays_that_are_cut_otherwise(case: tuple) -> None:
    a, b, cut_a, cut_b = case
    runs = [
        Parts(label, [{"u": part(whole, box)} for box in cut])
        for label, whole, cut in (("A", a, cut_a), ("B", b, cut_b))
    ]
    again = Parts("A", [{"u": part(a, ((0,) * a.ndim, a.shape))}])
    expected = joined(list(twinrun.compare({"u": a}, {"u": b}, atol=0.5).differences()))
    for first, second in ((runs[0], runs[1]), (again, runs[1])):
        found = twinrun.compare(first, second, atol=0.5)
        parts = list(found.differences())
        assert sum(p.count for p in parts) == found.different
        if any(f.ranks is not None for f in found.fields):  # else each rank's part has indices of its own
            assert joined(parts) == expected


def test_steps_of_the_same_time_and_single_steps_of_histories(tmp_path: Path) -> None:
    formats.register(Format("series", "for tests", open_series, suffixes=(".series",), many_steps=True))
    try:
        a = series(tmp_path / "a.series", (0, 0.0, 1.0), (10, 0.3, 2.0), (20, 0.6, 3.0))
        b = series(tmp_path / "b.series", (0, 0.0, 1.0), (15, 0.3, 2.0), (30, 0.6, 4.0))
        found = twinrun.compare(a, b, align="time")
        assert [(p.field.step, p.a.tolist(), p.b.tolist()) for p in found.differences()] == [
            (20, [3.0] * 3, [4.0] * 3)
        ]
    finally:
        del formats._extra["series"]
    x = np.arange(6.0)
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(7, {"x": x})
        run.capture(8, {"x": x + 1})
    for first, second in (({"x": x}, tmp_path / "h"), (tmp_path / "h", {"x": x})):
        found = twinrun.compare(first, second, steps="8")
        (part,) = found.differences()
        assert found.different == part.count == 6 and part.field.step == 8


def test_rules_hold_here_too(tmp_path: Path) -> None:
    """Tolerances by field, ulps, NaNs that differ, left-out fields, methods: as many as the report counts."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[tolerance]]\nfield = "x"\natol = 0.5\n[[tolerance]]\nfield = "n"\nskip = true\n'
        '[[tolerance]]\nfield = "u"\nulp = 2\n[[tolerance]]\nfield = "*"\nnan_differs = true\n'
    )
    x = np.linspace(1, 2, 50)
    a = {"x": x, "n": np.arange(4), "u": x, "nan": np.array([np.nan, 1.0])}
    shift = np.arange(50) % 5 * 0.25
    b = {
        "x": x + shift,
        "n": np.arange(4)[::-1].copy(),
        "u": x + np.arange(50) % 5 * np.spacing(x),
        "nan": a["nan"],
    }
    for method in ("auto", "direct"):
        found = twinrun.compare(a, b, tolerances=rules, options=twinrun.CompareOptions(method=method))
        got: dict[str, int] = {}
        for some in found.differences():
            got[some.field.field] = got.get(some.field.field, 0) + some.count
        assert got == {f.field: f.different for f in found.fields if f.different}
        assert got == {"x": 20, "u": 20, "nan": 1}


def particles(folder: Path, ids: np.ndarray, fields: dict[str, np.ndarray], ranks: int, seed: int) -> Path:
    """A folder with a file a rank, the particles in any order."""
    random = np.random.default_rng(seed)
    order = random.permutation(ids.size)
    owner = random.integers(0, ranks, ids.size)
    (folder / "step-5").mkdir(parents=True)
    for rank in range(ranks):
        mine = order[owner == rank]
        np.savez(
            folder / "step-5" / f"rank-{rank}.npz", id=ids[mine], **{n: v[mine] for n, v in fields.items()}
        )
    return folder


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 1 << 20),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kind=st.sampled_from([np.int32, np.int64, np.uint64]),
    lost=st.integers(0, 3),
    doubled=st.integers(0, 2),
    memory=st.sampled_from([1 << 20, 1 << 30]),
)
@settings(max_examples=40)
def test_particles_by_id(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    seed: int,
    ranks: tuple[int, int],
    kind: type,
    lost: int,
    doubled: int,
    memory: int,
) -> None:
    random = np.random.default_rng(seed)
    ids = random.choice(1 << 16, count + lost, replace=False).astype(kind)
    if kind is np.uint64:
        ids += np.uint64(1 << 63)
    pos = random.normal(size=(ids.size, 3)).astype(np.float32)
    moved = pos.copy()
    moved[random.random(pos.shape) < 0.2] += 1
    extra = random.integers(0, count, doubled)
    folder = tmp_path_factory.mktemp("runs")
    a = particles(folder / "a", ids[: count + lost // 2], {"pos": pos[: count + lost // 2]}, ranks[0], seed)
    keep = np.concatenate([np.arange(count), np.arange(count + lost // 2, ids.size), extra]).astype(int)
    b = particles(folder / "b", ids[keep], {"pos": moved[keep]}, ranks[1], seed + 1)
    found = twinrun.compare(a, b, key="id", options=twinrun.CompareOptions(memory=memory))
    by_field: dict[str, list[Differences]] = {"id": [], "pos": []}
    for some in found.differences():
        by_field[some.field.field].append(some)
    counted = {f.field: f.different for f in found.fields}
    assert {n: sum(p.count for p in parts) for n, parts in by_field.items()} == counted
    odd = set(ids[extra].tolist())
    expected = {
        (int(ids[i]), (c,)): (float(pos[i, c]), float(moved[i, c]))
        for i in range(count)
        for c in range(3)
        if pos[i, c] != moved[i, c] and int(ids[i]) not in odd
    }
    got = {}
    for p in by_field["pos"]:
        for i, index, x, y in zip(p.ids.tolist(), p.index.tolist(), p.a.tolist(), p.b.tolist(), strict=True):
            got[(i, tuple(index))] = (x, y)
        # The rows say where the first run holds them.
        rows = np.concatenate([_read(own["pos"]) for _, own in p.parts_a])
        assert (rows[p.rows_a, p.index[:, 0]] == p.a).all()
    assert got == expected
    alone = {
        i: (x, y) for p in by_field["id"] for i, x, y in zip(p.ids.tolist(), p.in_a, p.in_b, strict=True)
    }
    missing = set(ids[count:].tolist())
    assert set(alone) == missing | odd
    assert all((i in set(ids[: count + lost // 2].tolist())) == bool(alone[i][0]) for i in missing)


def _read(ref: object) -> np.ndarray:
    raw = twinrun._core.read_source(ref.source(), 0, ref.items)
    return raw.view(np.float32).reshape(ref.user_shape)


def table_of(path: Path) -> list[dict]:
    """Rows of a Parquet file."""
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


def test_parquet_holds_all_and_64_bit_integers_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(listing, "_ROW_GROUP", 1000)
    random = np.random.default_rng(3)
    x = random.normal(size=(80, 50))
    n = np.array([2**63 - 1, -(2**63), 5], np.int64)
    u = np.array([2**64 - 1, 0], np.uint64)
    y = np.where(random.random(x.shape) < 0.6, x + 1, x)
    y[0, 0], x[0, 1] = np.nan, np.inf
    a, b = {"x": x, "n": n, "u": u}, {"x": y, "n": n[::-1].copy(), "u": u[::-1].copy()}
    found = twinrun.compare(a, b)
    assert write_differences(found, tmp_path / "d.parquet") == found.different
    file = pq.ParquetFile(tmp_path / "d.parquet")
    assert file.metadata.num_rows == found.different and file.metadata.num_row_groups > 1
    assert file.schema_arrow.metadata[b"twinrun.verdict"] == b"different"
    rows = table_of(tmp_path / "d.parquet")
    of_x = [r for r in rows if r["field"] == "x"]
    where = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    assert [tuple(r["index"]) for r in of_x] == [tuple(map(int, i)) for i in np.argwhere(where)]
    for r in of_x:
        assert alike(r["a"], x[tuple(r["index"])]) and alike(r["b"], y[tuple(r["index"])])
        assert r["a_integer"] is None and r["id"] is None and r["step"] is None
    exact = {
        (r["field"], *r["index"]): (int(r["a_integer"]), int(r["b_integer"]))
        for r in rows
        if r["field"] != "x"
    }
    assert exact == {
        ("n", 0): (2**63 - 1, 5), ("n", 2): (5, 2**63 - 1), ("u", 0): (2**64 - 1, 0), ("u", 1): (0, 2**64 - 1)
    }  # fmt: skip
    assert write_differences(found, tmp_path / "d.csv") == found.different
    lines = (tmp_path / "d.csv").read_text().splitlines()
    assert lines[0] == ",".join(listing.COLUMNS) and len(lines) == found.different + 1
    assert ",0,n,0,,9223372036854775807,5,9.223372036854776e+18,9223372036854775807,5" in lines


def test_particles_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ids = np.array([3, 2**63 + 7, 11], np.uint64)
    pos = np.zeros((3, 3))
    shifted = pos.copy()
    shifted[1, 2] = 0.5
    a = particles(tmp_path / "a", ids, {"pos": pos}, 2, 1)
    b = particles(tmp_path / "b", ids[:2], {"pos": shifted[:2]}, 1, 2)
    done = command("compare", a, b, "--key", "id", "--list-differences", tmp_path / "d.parquet")
    assert done.status == 1
    rows = {(r["field"], r["id"]): r for r in table_of(tmp_path / "d.parquet")}
    assert set(rows) == {("id", 11), ("pos", 2**63 + 7)}
    assert (rows["id", 11]["a"], rows["id", 11]["b"]) == (11.0, None)
    assert rows["pos", 2**63 + 7]["index"] == [2] and rows["pos", 2**63 + 7]["abs_diff"] == 0.5


def test_the_command_writes_the_list_whole_or_not_at_all(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    x = np.arange(10.0)
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", x + (x == 4))
    np.save(tmp_path / "c.npy", x[:5])
    target = tmp_path / "d.parquet"
    assert (
        command("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--list-differences", target).status == 0
    )
    assert table_of(target) == []
    assert (
        command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--list-differences", target).status == 1
    )
    (row,) = table_of(target)
    assert (row["index"], row["a"], row["b"], row["abs_diff"], row["rank"]) == ([4], 4.0, 5.0, 1.0, 0)
    check_error(command("compare", tmp_path / "a.npy", tmp_path / "c.npy", "--list-differences", target))
    assert table_of(target) == [row]
    away = tmp_path / "nowhere" / "d.parquet"
    line = check_error(
        command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "-q", "--list-differences", away)
    )
    assert "cannot write the differences" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy", "d.parquet"]
    os.mkfifo(tmp_path / "pipe")
    line = check_error(
        command(
            "compare", tmp_path / "a.npy", tmp_path / "b.npy", "-q", "--list-differences", tmp_path / "pipe"
        )
    )
    assert "a regular file" in line and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("why", ["missing", "shapes", "changed", "full", "interrupted"])
def test_an_error_leaves_the_file_that_was_there(
    why: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a link leads to it: the link stays, and so does the file."""
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    x = np.arange(10.0)
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", x[:5] if why == "shapes" else x + (x == 4))
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / f"old.{suffix}", tmp_path / f"l.{suffix}"
    target.write_text("mine")
    link.symlink_to(target)
    b = tmp_path / ("nothing.npy" if why == "missing" else "b.npy")

    def failing(*_: object) -> Iterator[object]:
        yield from ()
        raise {"changed": Stale("changed"), "full": OSError(errno.ENOSPC, "No space left on device")}.get(
            why, KeyboardInterrupt()
        )

    if why in ("changed", "full", "interrupted"):
        monkeypatch.setattr(listing, "differences", failing)
    before = sorted(p.name for p in tmp_path.iterdir())
    for named in (target, link):
        done = command("compare", tmp_path / "a.npy", b, "-q", "--list-differences", named)
        assert done.status == 2, done
        assert target.read_text() == "mine" and os.readlink(link) == str(target)
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        assert os.listdir(tmp_path / "disk") == [target.name]


def test_data_that_changed_since_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(10.0)
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", x + (x == 4))
    monkeypatch.chdir(tmp_path)
    found = twinrun.compare("a.npy", "b.npy")
    monkeypatch.chdir("/")
    assert sum(p.count for p in found.differences()) == 1
    np.save(tmp_path / "b.npy", x)
    with pytest.raises(Stale, match="0 elements differ, and 1 when it was compared"):
        list(found.differences())
    (tmp_path / "b.npy").unlink()
    with pytest.raises(TwinrunError, match="no such file"):
        write_differences(found, tmp_path / "d.csv")
    assert not (tmp_path / "d.csv").exists()


def test_results_keep_no_arrays_alive_and_can_be_pickled() -> None:
    a, b = np.zeros(4), np.ones(4)
    found = twinrun.compare({"x": a}, {"x": b})
    assert sum(p.count for p in found.differences()) == 4
    copy = pickle.loads(pickle.dumps(found))
    assert copy.different == 4 and copy == found
    with pytest.raises(TwinrunError, match="arrays that were compared are gone"):
        list(copy.differences())
    del b
    gc.collect()
    with pytest.raises(TwinrunError, match="arrays that were compared are gone"):
        list(found.differences())


def test_without_pyarrow_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    found = twinrun.compare(np.zeros(2), np.ones(2))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[parquet\]'"):
        write_differences(found, tmp_path / "d.parquet")


@settings(max_examples=200)
@given(
    a=st.floats(allow_nan=False, allow_infinity=False),
    turns=st.floats(-1e30, 1e30),
    period=st.floats(1e-3, 1e6),
    atol=st.sampled_from([0.0, 1.0]),
)
def test_what_is_said_of_a_circle_agrees_however_far_numbers_are_apart(
    a: float, turns: float, period: float, atol: float
) -> None:
    """The core turns b towards a up to 2^52 times. The first difference and the list follow it."""
    x, y = {"x": np.array([a])}, {"x": np.array([a + turns * period])}
    found = twinrun.compare(x, y, atol=atol, period=period)
    (field,) = found.fields
    if found.same:
        return
    listed = joined(list(found.differences()))
    rounded = abs(turns * period) * 2.0**-50 + 1e-12 * period
    assert field.first_abs_diff == pytest.approx(field.max_abs_diff, rel=1e-6, abs=rounded)
    assert listed["abs_diff"][0] == pytest.approx(field.max_abs_diff, rel=1e-6, abs=rounded)
    assert field.first_abs_diff >= atol


def test_csv_holds_any_name(tmp_path: Path) -> None:
    """Also those with an end of a line that Python's csv would not quote."""
    names = ["a,b", 'c"d', "e\nf", "g\rh", "i\r\nj", "=1+1"]
    a, b = ({name: np.full(1, value) for name in names} for value in (0.0, 1.0))
    write_differences(twinrun.compare(a, b), str(tmp_path / "d.csv"))
    with open(tmp_path / "d.csv", newline="") as file:
        assert [row["field"] for row in csv.DictReader(file)] == names
    assert b"\r\n" not in (tmp_path / "d.csv").read_bytes().replace(b"i\r\nj", b"")
