"""Particles matched by ID: against brute force, whatever the order, the rank and the file."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from commands import check_error, command
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun import golden
from twinrun.errors import Incomparable, TwinrunError


def write(
    folder: pathlib.Path, ids: np.ndarray, fields: dict[str, np.ndarray], owner: np.ndarray, step: int = 10
) -> str:
    """A folder with a file a rank; owner: the rank of each particle."""
    place = folder / f"step-{step}"
    place.mkdir(parents=True, exist_ok=True)
    for rank in range(int(owner.max()) + 1 if owner.size else 1):
        mine = owner == rank
        np.savez(place / f"rank-{rank}.npz", id=ids[mine], **{n: v[mine] for n, v in fields.items()})
    return str(folder)


@given(
    count=st.integers(0, 60),
    seed=st.integers(0, 10_000),
    ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    lost=st.integers(0, 3),
    born=st.integers(0, 3),
    atol=st.sampled_from([0.0, 1e-3]),
    kind=st.sampled_from([np.int64, np.uint64, np.int32, np.uint8]),
)
@settings(max_examples=60)
def test_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    seed: int,
    ranks: tuple[int, int],
    lost: int,
    born: int,
    atol: float,
    kind: type,
) -> None:
    random = np.random.default_rng(seed)
    low, high = (0, 255) if kind is np.uint8 else (0, 1 << 20) if kind is np.uint64 else (-(1 << 20), 1 << 20)
    everything = random.choice(np.arange(low, high), count + lost + born, replace=False)
    ids_a, ids_b = everything[: count + lost].astype(kind), everything[lost:].astype(kind)[: count + born]
    x = {int(i): random.normal(size=3) for i in everything}
    y = {i: v + random.choice([0, 5e-4, 5e-3], size=3) * (random.random() < 0.3) for i, v in x.items()}
    sides = []
    for ids, values, n in ((ids_a, x, ranks[0]), (ids_b, y, ranks[1])):
        order = random.permutation(ids.size)
        ids = ids[order]
        position = np.array([values[int(i)] for i in ids]).reshape(-1, 3)
        mass = ids.astype(np.float32) * 2
        folder = tmp_path_factory.mktemp("run")
        owner = np.sort(random.integers(0, n, ids.size)) if ids.size else np.zeros(0, int)
        owner[-1:] = n - 1  # every rank has a file
        sides.append(write(folder, ids, {"position": position, "mass": mass}, owner))
    found = twinrun.compare(*sides, key="id", atol=atol)
    common = sorted(set(ids_a.tolist()) & set(ids_b.tolist()))
    alone_a, alone_b = set(ids_a.tolist()) - set(common), set(ids_b.tolist()) - set(common)
    by_field = {f.field: f for f in found.fields}
    key = by_field["id"]
    assert key.particles is not None
    assert (key.particles["matched"], key.particles["lost"], key.particles["born"]) == (
        len(common), len(alone_a), len(alone_b),
    )  # fmt: skip
    assert key.particles["lost_ids"] == sorted(alone_a)[:10]
    assert key.particles["born_ids"] == sorted(alone_b)[:10]
    differing = [(i, c) for i in common for c in range(3) if abs(x[i][c] - y[i][c]) > atol]
    assert by_field["position"].different == len(differing)
    if differing:
        assert by_field["position"].first_id == differing[0][0]
        assert by_field["position"].first_index == (differing[0][1],)
        worst = max(abs(x[i] - y[i]).max() for i in common)
        assert by_field["position"].max_abs_diff == pytest.approx(worst, rel=1e-15)
        assert abs(x[by_field["position"].max_abs_id] - y[by_field["position"].max_abs_id]).max() == worst
    if common:
        assert by_field["mass"].different == 0
    assert found.same == (not differing and not alone_a and not alone_b)


def test_passes_over_shares_of_the_ids_find_the_same(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(3)
    n = 200_000
    ids = random.permutation(n).astype(np.int64) * 977
    x = random.normal(size=(n, 3))
    moved = x.copy()
    moved[random.choice(n, 500, replace=False), 1] += 1
    order = random.permutation(n)
    a = write(tmp_path / "a", ids, {"x": x}, np.arange(n) * 3 // n)
    b = write(tmp_path / "b", ids[order], {"x": moved[order]}, np.arange(n) * 5 // n)
    whole, shares = (
        twinrun.compare(a, b, key="id", options=twinrun.CompareOptions(memory=m)).fields[1]
        for m in (1 << 30, 1 << 22)
    )
    assert whole.different == 500
    for name in (
        "different",
        "first_id",
        "first_index",
        "first_a",
        "first_b",
        "max_abs_diff",
        "histogram",
        "elements",
    ):
        assert getattr(whole, name) == getattr(shares, name), name


def test_lost_and_born_rows_of_doubled_ids_count_each(tmp_path: pathlib.Path) -> None:
    one = np.zeros(5, int)
    a = write(tmp_path / "a", np.array([1, 2, 2, 3, 4]), {"x": np.arange(5.0)}, one)
    b = write(tmp_path / "b", np.array([1, 3, 4, 7, 7]), {"x": np.array([0.0, 3.0, 4.0, 0.0, 0.0])}, one)
    (found,) = (f for f in twinrun.compare(a, b, key="id").fields if f.field == "id")
    counts = found.particles
    assert counts is not None
    assert (counts["matched"], counts["lost"], counts["born"]) == (3, 2, 2)
    assert (counts["lost_ids"], counts["born_ids"]) == ([2], [7])


def test_doubled_ids_are_told_and_compared_in_their_order(tmp_path: pathlib.Path) -> None:
    ids = np.array([5, 7, 7, 9])
    x = np.array([1.0, 2.0, 3.0, 4.0])
    zero = np.zeros(4, int)
    a = write(tmp_path / "a", ids, {"x": x}, zero)
    same = twinrun.compare(
        a, write(tmp_path / "b", ids[[3, 1, 2, 0]], {"x": x[[3, 1, 2, 0]]}, zero), key="id"
    )
    assert same.same
    assert any("several rows each (7" in note for note in same.notes)
    once = twinrun.compare(
        a, write(tmp_path / "c", np.array([5, 7, 9]), {"x": x[[0, 1, 3]]}, zero[:3]), key="id"
    )
    assert not once.same
    assert once.first is not None and once.first.field == "id" and once.first.first_id == 7
    assert once.first.different == 2


def test_fields_of_other_lengths_compare_as_ever(tmp_path: pathlib.Path) -> None:
    ids = np.arange(6)
    for name, grid in (("a", np.zeros(4)), ("b", np.array([0.0, 0, 1, 0]))):
        place = tmp_path / name
        place.mkdir()
        order = ids if name == "a" else ids[::-1]
        np.savez(place / "step-1.npz", id=order, x=order * 2.0, grid=grid)
    found = twinrun.compare(str(tmp_path / "a"), str(tmp_path / "b"), key="id")
    assert [f.field for f in found.fields if not f.same] == ["grid"]
    assert found.first_divergence is not None and found.first_divergence["index"] == [2]


def test_a_field_that_one_run_lacks_is_a_problem(tmp_path: pathlib.Path) -> None:
    ids, zero = np.arange(3), np.zeros(3, int)
    a = write(tmp_path / "a", ids, {"x": ids * 1.0, "v": ids * 1.0}, zero)
    b = write(tmp_path / "b", ids, {"x": ids * 1.0}, zero)
    with pytest.raises(Incomparable, match="'v'"):
        twinrun.compare(a, b, key="id")
    assert twinrun.compare(a, b, key="id", partial=True).verdict == "incomparable"


@pytest.mark.parametrize("broken", ["no ids", "fewer ids", "no ids in one run"])
def test_rows_without_ids_are_never_passed_over(tmp_path: pathlib.Path, broken: str) -> None:
    """A rank whose rows have no IDs, beside ranks whose have: its differences must not vanish."""
    for name, shift in (("a", 0.0), ("b", 1.0)):
        place = tmp_path / name / "step-1"
        place.mkdir(parents=True)
        np.savez(place / "rank-0.npz", id=np.arange(4), x=np.arange(4.0))
        ids = {"id": np.arange(4, 4 if broken != "fewer ids" else 6)} if broken == "fewer ids" else {}
        if broken == "no ids in one run" and name == "a":
            ids = {"id": np.arange(4, 8)}
        np.savez(place / "rank-1.npz", x=np.arange(4.0) + shift, **ids)
    a, b = tmp_path / "a", tmp_path / "b"
    with pytest.raises(Incomparable):
        twinrun.compare(a, b, key="id")
    for options in ({"partial": True}, {"partial": True, "common": True}):
        found = twinrun.compare(a, b, key="id", **options)
        assert found.verdict == "incomparable" and any("'x'" in p for p in found.problems)


def test_a_key_that_is_nowhere_is_an_error(tmp_path: pathlib.Path) -> None:
    ids, zero = np.arange(3), np.zeros(3, int)
    a = write(tmp_path / "a", ids, {"x": ids * 1.0}, zero)
    with pytest.raises(Incomparable) as caught:
        twinrun.compare(a, a, key="tag")
    assert caught.value.what == "no field 'tag' of integer IDs"
    assert caught.value.fix == "give --key the name of the field with the IDs; fields of integers are id"


def test_ids_that_no_file_names(tmp_path: pathlib.Path) -> None:
    """'auto' is no name of a field: the message says what it does, and which fields may be meant."""
    for name in "ab":
        (tmp_path / name).mkdir()
        ids = np.arange(4)
        np.savez(
            tmp_path / name / "p.npz", nr=ids, x=ids * 0.5, kind=ids.astype("u1"), grid=ids.reshape(2, 2)
        )
        np.save(tmp_path / f"{name}.npy", ids * 0.5)
    a, b = tmp_path / "a", tmp_path / "b"
    said = f"{a}, {b}: key='auto' finds no particles: the runs do not say which field has IDs; give key the name of the field with the IDs; fields of integers are nr, kind"
    with pytest.raises(Incomparable) as caught:
        twinrun.compare(a, b, key="auto")
    assert str(caught.value) == said
    check_error(
        command("compare", a, b, "--key", "auto"),
        said.replace("key='auto'", "--key auto").replace("give key", "give --key"),
    )
    none = "give --key the name of the field with the IDs, or leave it out: no field that was compared is a row of integers"
    for key in ("auto", "nr"):
        check_error(command("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--key", key), none)
    with pytest.raises(Incomparable, match="the first run, the second run: key='auto' finds no particles"):
        twinrun.compare({"x": np.ones(3)}, {"x": np.ones(3)}, key="auto")


def test_groups_have_their_own_ids(tmp_path: pathlib.Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, step in (("a", 1), ("b", -1)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for kind, count in (("gas", 5), ("dark", 8)):
                ids = np.arange(count)[::step]
                file[f"{kind}/id"] = ids
                file[f"{kind}/x"] = ids * 1.5 + (kind == "dark" and name == "b") * (ids == 3)
    found = twinrun.compare(str(tmp_path / "a.h5"), str(tmp_path / "b.h5"), key="id")
    assert [(f.field, f.different) for f in found.fields] == [
        ("dark/id", 0), ("dark/x", 1), ("gas/id", 0), ("gas/x", 0),
    ]  # fmt: skip
    assert found.first is not None and found.first.place() == "dark/x[id 3]"


def test_a_changed_order_is_said(tmp_path: pathlib.Path) -> None:
    ids, zero = np.arange(9), np.zeros(9, int)
    a = write(tmp_path / "a", ids, {"x": ids * 1.0}, zero)
    b = write(tmp_path / "b", ids[::-1], {"x": ids[::-1] * 1.0}, zero)
    found = twinrun.compare(a, b)
    assert not found.same
    assert any("--key id" in note for note in found.notes)
    other = write(tmp_path / "c", ids + 1, {"x": ids * 1.0}, zero)
    assert not any("--key" in note for note in twinrun.compare(a, other).notes)


def test_periodic_positions(tmp_path: pathlib.Path) -> None:
    ids, zero = np.arange(3), np.zeros(3, int)
    x = np.array([[0.1, 5, 5], [9.95, 5, 5], [5, 5, 5]])
    wrapped = np.array([[10.1, 5, 5], [-0.05, 5, 5], [5, 5, 5.5]])
    velocity = np.array([1.0, 2, 3])
    a = write(tmp_path / "a", ids, {"position": x, "v": velocity}, zero)
    b = write(
        tmp_path / "b",
        ids[::-1],
        {"position": wrapped[::-1], "v": velocity[::-1] + np.array([0, 0, 10])},
        zero,
    )
    found = {f.field: f for f in twinrun.compare(a, b, key="id", period=10, atol=1e-9).fields}
    assert found["position"].different == 1 and found["position"].first_id == 2
    assert found["v"].different == 1  # a velocity is no position: a period hides nothing there
    by_axis = twinrun.compare(a, b, key="id", period="position=10x0x0", atol=1e-9)
    assert {f.field: f for f in by_axis.fields}["position"].different == 1
    with pytest.raises(TwinrunError, match="there is no field for the period"):
        twinrun.compare(a, b, key="id", fields=["v"], period=10)


def test_ids_of_another_type(tmp_path: pathlib.Path) -> None:
    ids, x, owner = np.arange(5), {"x": np.arange(5.0)}, np.zeros(5, int)
    a, b = write(tmp_path / "a", ids, x, owner), write(tmp_path / "b", ids.astype("i4"), x, owner)
    with pytest.raises(Incomparable, match="IDs are i64"):
        twinrun.compare(a, b, key="id")
    assert twinrun.compare(a, a, key="id").same and twinrun.compare(b, b, key="id").same


@pytest.mark.parametrize(("dtype", "said"), [("i4", "i32"), ("u4", "u32")])
def test_arrays_whose_ids_have_two_types_are_told_apart(dtype: str, said: str) -> None:
    a = {"id": np.arange(5), "x": np.zeros(5)}
    b = {**a, "id": a["id"].astype(dtype)}
    for one, other, types in ((a, b, ("i64", said)), (b, a, (said, "i64"))):
        with pytest.raises(
            Incomparable, match="'id': IDs are {} in the first run, {} in the second run".format(*types)
        ):
            twinrun.compare(one, other, key="id")


def test_a_field_of_ids_that_one_run_lacks_is_named(tmp_path: pathlib.Path) -> None:
    a = {"id": np.arange(5), "x": np.zeros(5)}
    for pair, where in (((a, {"x": a["x"]}), "second"), (({"x": a["x"]}, a), "first")):
        with pytest.raises(Incomparable, match=f"^the {where} run: field 'id': not there"):
            twinrun.compare(*pair, key="id")
    run = write(tmp_path / "a", a["id"], {"x": a["x"]}, np.zeros(5, int))
    (tmp_path / "b" / "step-10").mkdir(parents=True)
    np.savez(tmp_path / "b" / "step-10" / "rank-0.npz", x=a["x"])
    with pytest.raises(Incomparable, match="b: step 10: field 'id': not there"):
        twinrun.compare(run, tmp_path / "b", key="id")


def test_a_rank_whose_elements_all_have_values_needs_no_mask(tmp_path: pathlib.Path) -> None:
    """As ranks write tables: only those with a missing value have a mask of it."""

    def ranks(name: str, cut: int, missing: int) -> pathlib.Path:
        ids, x = np.arange(4), np.arange(4.0)
        held = []
        for part in (slice(cut), slice(cut, None)):
            mask = ids[part] == missing
            held.append(
                {0: {"id": ids[part], "x": np.ma.array(x[part], mask=mask) if mask.any() else x[part]}}
            )
        return run_of_ranks(tmp_path / name, held)

    a = ranks("a", 2, 1)
    assert twinrun.compare(a, a, key="id").same and twinrun.compare(a, ranks("b", 1, 1), key="id").same
    moved = ranks("d", 2, 2)
    assert not twinrun.compare(a, moved, key="id").same
    golden.save(a, tmp_path / "golden", key="id")
    assert golden.check(tmp_path / "golden", a).same
    assert golden.check(tmp_path / "golden", moved).verdict == "different"
