"""Perturbed input: by the asked digits and nothing else, in every kind of file, and no file of others is lost."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from commands import command
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun import _core
from twinrun.acceptance import perturb_copies
from twinrun.acceptance.perturbation import Change, perturbed_text, perturbed_values
from twinrun.capture.run import RankRun
from twinrun.errors import TwinrunError
from twinrun.runs.opening import open_subject

WIDTHS = {"f16": (np.float16, 10), "bf16": (np.uint16, 7), "f32": (np.float32, 23), "f64": (np.float64, 52)}


def magnitude(bits: np.ndarray) -> np.ndarray:
    return (bits & bits.dtype.type((1 << (bits.dtype.itemsize * 8 - 1)) - 1)).astype(object)


class Gives:
    """An object that gives numpy an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


def test_masks_stay():
    given = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0], fill_value=-9.0)
    for x in (given, Gives(given)):
        made = twinrun.perturb({"x": x}, ulp=1)["x"]
        assert isinstance(made, np.ma.MaskedArray) and made.fill_value == -9.0
        assert made.mask.tolist() == [False, True, False] and (made.data[[0, 2]] != given.data[[0, 2]]).all()
    with pytest.raises(TwinrunError, match="nothing was perturbed"):
        twinrun.perturb({"x": np.ma.array([1.0, 2.0], mask=True)}, ulp=1)
    plain = twinrun.perturb({"x": np.ma.array([1.0, 2.0])}, ulp=1)["x"]
    assert isinstance(plain, np.ma.MaskedArray) and not np.ma.is_masked(plain)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), dtype=st.sampled_from(sorted(WIDTHS)), ulp=st.integers(1, 50))
def test_each_number_is_so_many_values_away(data, dtype, ulp):
    kind, mantissa = WIDTHS[dtype]
    size = np.dtype(kind).itemsize
    words = data.draw(st.lists(st.integers(0, (1 << (8 * size)) - 1), min_size=1, max_size=30))
    edges = [0, 1, ulp, ulp + 1, 1 << (8 * size - 1)]
    infinite = ((1 << (8 * size - 1 - mantissa)) - 1) << mantissa
    bits = np.array([*words, *edges, infinite, infinite - 1, infinite - ulp], f"u{size}")
    found = perturbed_values(bits.view(kind), dtype, Change(ulp=ulp), np.random.default_rng(1)).view(
        bits.dtype
    )
    for before, after, old, new in zip(bits, found, magnitude(bits), magnitude(found), strict=True):
        if old == 0 or old >= infinite:
            assert before == after
        else:
            assert abs(new - old) == ulp and 0 < new < infinite
            assert (before ^ after) >> (8 * size - 1) == 0, "the sign stays"


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=30),
    seed=st.integers(0, 99),
)
def test_relative_changes_stay_within_their_share(values, seed):
    x = np.array(values)
    found = perturbed_values(x, "f64", Change(relative=1e-14), np.random.default_rng(seed))
    assert np.array_equal(np.isnan(found), np.isnan(x)) and np.array_equal(np.isinf(found), np.isinf(x))
    usual = np.isfinite(x) & (np.abs(x) > 1e-300)
    assert (np.abs(found[usual] - x[usual]) <= np.abs(x[usual]) * (1e-14 + 2.0**-52)).all()


def test_arrays_seeds_and_shapes():
    state = {
        "x": np.ones((3, 4), ">f4"),
        "z": np.ones(5, complex),
        "seed": np.arange(4),
        "name": np.array(["a"]),
    }
    one, same, other = (twinrun.perturb(state, ulp=1, seed=s) for s in (1, 1, 2))
    assert one["seed"] is state["seed"] and one["name"] is state["name"]
    assert one["x"].dtype == np.dtype(">f4") and one["x"].shape == (3, 4)
    assert (state["x"] == 1).all(), "the given arrays stay"
    assert all(np.array_equal(one[k], same[k]) for k in state)
    assert not np.array_equal(one["x"], other["x"]) and not np.array_equal(one["z"], other["z"])
    assert twinrun.perturb(state, ulp=1, fields=["x"])["z"] is state["z"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either ulp or relative"),
        ({"ulp": 1, "relative": 1e-3}, "either ulp or relative"),
        ({"ulp": 0}, "ulp must be"),
        ({"relative": 1.5}, "relative must be"),
        ({"relative": 1e-14}, "f32: 1e-14 is less than the last digit"),
        ({"ulp": 1, "fields": ["n"]}, "only numbers with fractions"),
        ({"ulp": 1, "fields": ["nobody"]}, "nothing was perturbed"),
        ({"ulp": 1, "fields": ["zero"]}, "nothing was perturbed"),
        ({"ulp": 1, "seed": -1}, "seed must be"),
    ],
)
def test_what_cannot_be_perturbed(arguments, said):
    state = {"x": np.ones(3, np.float32), "n": np.arange(3), "zero": np.zeros(3)}
    with pytest.raises(TwinrunError, match=said):
        twinrun.perturb(state, **arguments)


@pytest.mark.parametrize("text", ["1.5", "-2.25e-7", "3", "1.0d0", "-4.5D-3", "0.1"])
def test_numbers_of_texts(text):
    said = perturbed_text(text, Change(ulp=1), np.random.default_rng(1))
    as_float = [float(t.replace("d", "e").replace("D", "e")) for t in (text, said)]
    assert as_float[0] != as_float[1] and as_float[1] in (
        np.nextafter(as_float[0], 9e9),
        np.nextafter(as_float[0], -9e9),
    )
    assert ("d" in text.lower()) == ("d" in said.lower())


# Files ---------------------------------------------------------------------------------------------------------------


def written(folder, kind):
    """An input file of this kind, with an array of numbers that are not 0 and one of integers where the format has several."""
    x, n = np.linspace(1, 2, 3000).reshape(100, 30), np.arange(50)
    path = folder / f"input.{kind.rpartition('+')[2]}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "npz":
        np.savez_compressed(path, x=x, n=n)
    elif kind == "safetensors":
        header = json.dumps({"x": {"dtype": "F32", "shape": [100, 30], "data_offsets": [0, 12000]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + x.astype("f4").tobytes())
    elif kind.endswith("h5"):
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["group/n"] = n
            file.create_dataset("group/x", data=x.astype(">f8"), compression="gzip" if "+" in kind else None)
    else:
        raise AssertionError(kind)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "h5", "packed+h5"])
def test_files_differ_by_one_ulp_in_every_number(kind, tmp_path):
    path = written(tmp_path, kind)
    before = path.read_bytes()
    copies = perturb_copies([path], tmp_path / "members", members=2, ulp=1, seed=5)
    assert path.read_bytes() == before
    assert [c.changed for c in copies] == [3000, 3000] and [c.seed for c in copies] == [5, 6]
    made = [os.path.join(c.folder, path.name) for c in copies]
    assert all(c.files == [path.name] for c in copies)
    found = twinrun.compare(str(path), made[0], atol=0.0)
    assert sum(f.different for f in found.fields) == 3000
    assert twinrun.compare(str(path), made[0], ulp=1, atol=0.0).verdict == "same"
    assert twinrun.compare(made[0], made[1], atol=0.0).verdict == "different"


def test_texts_change_where_the_expression_says(tmp_path):
    deck = tmp_path / "in.deck"
    deck.write_text(
        "# 1.5 is a comment\r\nseed 4711\r\ntemperature = 300.0\r\nvelocity 1.0d-3 2.5\r\n", newline=""
    )
    outcome = command(
        "perturb", deck, "-o", tmp_path / "m", "--match", r"^temperature = (\S+)|^velocity (\S+) (\S+)"
    )
    assert outcome.status == 0 and "3 numbers changed" in outcome.out
    lines = (tmp_path / "m/member-001/in.deck").read_bytes().decode().split("\r\n")
    assert lines[:2] == ["# 1.5 is a comment", "seed 4711"]
    assert abs(float(lines[2].split()[-1]) - 300) == np.spacing(300.0) or lines[2].endswith(
        "299.99999999999994"
    )
    assert lines[3] != "velocity 1.0d-3 2.5" and "d" in lines[3].split()[1]


def test_a_captured_state(tmp_path):
    x, ids = np.linspace(1, 2, 1000), np.arange(1000)[::-1].copy()
    with twinrun.Run(str(tmp_path / "run"), tolerances={"x": 1e-6}) as run:
        for step in (10, 20):
            run.capture(step, {"x": x * step, "id": ids}, ids={"x": "id"})
    outcome = command(
        "perturb", tmp_path / "run", "--step", 20, "-o", tmp_path / "m", "--relative", "1e-14", "--seed", 3
    )
    assert outcome.status == 0, outcome.err
    made = str(tmp_path / "m/member-001/run")
    found = twinrun.compare(str(tmp_path / "run"), made, steps="20", atol=0.0, key="id")
    assert {f.field for f in found.fields if not f.same} == {"x"}
    assert twinrun.compare(str(tmp_path / "run"), made, steps="20", rtol=2e-14, key="id").verdict == "same"
    with twinrun.Run(made, existing="append") as run:
        assert run.latest() == 20
    several = command("perturb", tmp_path / "run", "-o", tmp_path / "n")
    assert several.status == 2 and "choose one of 10, 20 with --step" in several.err


def state_of_ranks(rng):
    """What four ranks hold: parts of a global array, one of them empty; columns in Fortran's order; a rank of integers alone."""
    shapes, begin = [(5, 3), (0, 3), (7, 3), (1, 3)], 0
    ranks, places = [], []
    for rank, shape in enumerate(shapes):
        fields = {"u": rng.normal(0, 1, shape), "seed": np.array([4711 + rank])}
        fields |= {"p": rng.normal(0, 1, 6), "id": np.arange(6) * 4 + rank}
        if rank != 3:
            fields["w"] = np.asfortranarray(rng.normal(0, 1, (4, 6)).astype("f4"))
            fields["special"] = np.array([0.0, -0.0, np.nan, np.inf, 1.5, 1e-310])
        if rank == 2:
            fields["z"] = rng.normal(0, 1, 9) + 1j * rng.normal(0, 1, 9)
        ranks.append({10: {k: v * 2 for k, v in fields.items()}, 20: fields})
        places.append({"u": ((13, 3), (begin, 0))})
        begin += shape[0]
    return ranks, places


def loaded(path, ranks, step):
    """What each rank of a program gets back."""
    turns = _core.Turns(ranks)
    found = []
    for _ in range(ranks):
        with RankRun(path, turns, existing="append", tolerances={"u": 1e-6}) as run:
            found.append(run.load(step))
    return found


def test_a_captured_state_of_several_ranks(tmp_path):
    ranks, places = state_of_ranks(np.random.default_rng(1))
    tolerances = {"u": 1e-6, "w": (0, 1e-3)}
    run = run_of_ranks(tmp_path / "run", ranks, places=places, ids={"p": "id"}, tolerances=tolerances)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    ask = ("perturb", run, "--step", 20, "--relative", "1e-6", "--members", 2)
    outcome = command(*ask, "-o", tmp_path / "m", "--seed", 3)
    assert outcome.status == 0, outcome.err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    made = tmp_path / "m/member-001/run"
    assert command("verify", made).status == 0

    state = loaded(made, 4, 20)
    changed = 0
    for rank, (old, new) in enumerate(zip((r[20] for r in ranks), state, strict=True)):
        assert set(new) == set(old)
        for name, x in old.items():
            y = new[name]
            assert (y.dtype, y.shape) == (x.dtype, x.shape)
            if name in ("seed", "id"):
                assert np.array_equal(y, x)
                continue
            assert np.array_equal(np.isnan(x), np.isnan(y)) and np.array_equal(x == 0, y == 0)
            assert np.array_equal(np.signbit(x.view(x.real.dtype)), np.signbit(y.view(y.real.dtype)))
            usual = np.isfinite(x) & (np.abs(x) > 1e-300)
            assert (np.abs(y[usual] - x[usual]) <= np.abs(x[usual]) * 2e-6).all()
            changed += int(((x != y) & ~np.isnan(x)).sum())
            assert name == "special" or not x.size or (x != y).any(), (rank, name)
    assert f"member-001: {changed} numbers changed, seed 3" in outcome.out
    # the place in the global array, the tolerances and the orders of elements are kept
    for rank in range(4):
        with (
            open_subject(str(run)).open((20, rank)) as own,
            open_subject(str(made)).open((20, rank)) as other,
        ):
            assert list(own) == list(other)
            for name, ref in own.items():
                twin = other[name]
                assert (twin.place, twin.fortran_order, twin.shape) == (
                    ref.place,
                    ref.fortran_order,
                    ref.shape,
                )
                assert (twin.facts.atol, twin.facts.rtol) == (ref.facts.atol, ref.facts.rtol)
                assert twin.key == ref.key and (ref.key == "id") == (name in ("p", "id"))
    assert twinrun.compare(str(run), str(made), steps="20", rtol=2e-6).verdict == "same"

    # the same seed gives the same numbers, another seed others, also from rank to rank
    again = perturb_copies([run], tmp_path / "again", relative=1e-6, seed=3, step=20)
    for old, new in zip(state, loaded(os.path.join(again[0].folder, "run"), 4, 20), strict=True):
        assert all(old[name].tobytes() == new[name].tobytes() for name in old)
    second = loaded(tmp_path / "m/member-002/run", 4, 20)
    assert not np.array_equal(state[0]["w"], second[0]["w"])


def test_ranks_that_hold_the_same_get_other_signs(tmp_path):
    x = np.linspace(1, 2, 200)
    run = run_of_ranks(tmp_path / "run", [{1: {"x": x}}, {1: {"x": x}}, {1: {"x": x}}])
    one = tmp_path / "one"
    with twinrun.Run(one) as alone:
        alone.capture(1, {"x": x})
    for source in (run, one):
        perturb_copies([source], tmp_path / f"{source.name}-m", ulp=1, seed=5)
    found = loaded(tmp_path / "run-m/member-001/run", 3, 1)
    ups = [r["x"] > x for r in found]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert 60 < (ups[a] != ups[b]).sum() < 140
    # rank 0 moves as the only rank of a history does
    with twinrun.Run(tmp_path / "one-m/member-001/one", existing="append") as alone:
        assert np.array_equal(alone.load(1)["x"], found[0]["x"])


def test_a_record_of_several_ranks_is_read_too(tmp_path):
    ranks = [{1: {"x": np.linspace(1, 2, 2000) + r}, 2: {"x": np.linspace(2, 3, 2000) + r}} for r in range(2)]
    run = run_of_ranks(tmp_path / "run", ranks)
    assert command("pack", run, tmp_path / "packed").status == 0
    for source in (run, tmp_path / "packed"):
        perturb_copies([source], tmp_path / f"m-{source.name}", ulp=1, step=2)
    own = loaded(tmp_path / "m-run/member-001/run", 2, 2)
    other = loaded(tmp_path / "m-packed/member-001/packed", 2, 2)
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(own, other, strict=True))


@pytest.mark.parametrize(
    ("ranks", "more", "said"),
    [
        ([{1: {"n": np.arange(3)}}, {1: {"n": np.arange(3)}}], {}, "nothing was perturbed"),
        ([{1: {"x": np.ones(3)}}, {1: {"x": np.zeros(3)}}], {"fields": ["y"]}, "nothing was perturbed"),
        ([{1: {"x": np.ones(3)}}, {1: {"x": np.arange(3)}}], {"fields": ["x"]}, "only numbers with fractions"),
        ([{1: {"x": np.ones(3)}}, {1: {"x": np.ones(3)}, 2: {"x": np.ones(3)}}], {"step": 2}, "has no step 2"),
        ([{1: {"x": np.ones(3)}}, {1: {"x": np.ones(3, "f4")}}], {"relative": 1e-14}, "less than the last digit"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_perturbed_leave_nothing(ranks, more, said, tmp_path):
    run = run_of_ranks(tmp_path / "run", ranks)
    with pytest.raises(TwinrunError, match=said):
        perturb_copies([run], tmp_path / "m", **({"ulp": 1} if "relative" not in more else {}) | more)
    assert not (tmp_path / "m").exists() or os.listdir(tmp_path / "m") == []


def test_the_part_of_a_rank_and_steps_without_data_are_refused(tmp_path):
    x = np.linspace(1, 2, 50)
    run_of_ranks(tmp_path / "run", [{1: {"x": x}}, {1: {"x": x}}], local=tmp_path / "local")
    with pytest.raises(TwinrunError, match="is the part of rank 0 on its way to a history") as error:
        perturb_copies([tmp_path / "local/rank-00000"], tmp_path / "m", ulp=1)
    assert "twinrun flush" in str(error.value)
    run = run_of_ranks(tmp_path / "digests", [{1: {"x": x}}, {1: {"x": x}}], keep_data=False)
    with pytest.raises(TwinrunError, match="of field 'x' only the metadata is there"):
        perturb_copies([run], tmp_path / "m", ulp=1)
    assert not (tmp_path / "m").exists() or os.listdir(tmp_path / "m") == []


def test_a_trace_is_no_state(tmp_path):
    x = np.linspace(1, 2, 10)
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": x}, phase="after forces")
        run.capture(1, {"y": x})
        run.capture(2, {"x": x}, phase="after forces")
    copy = perturb_copies([tmp_path / "run"], tmp_path / "m", ulp=1, step=1)[0]
    assert copy.changed == 10
    with twinrun.Run(os.path.join(copy.folder, "run"), existing="append") as run:
        assert list(run.load(1)) == ["y"]
    with pytest.raises(TwinrunError, match="step 2 holds a trace and no state"):
        perturb_copies([tmp_path / "run"], tmp_path / "n", ulp=1, step=2)


def test_texts_stay_as_they_are(tmp_path):
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": np.linspace(1, 2, 10), "names": np.array(["a", "b"])})
    made = os.path.join(perturb_copies([tmp_path / "run"], tmp_path / "m", ulp=1)[0].folder, "run")
    assert twinrun.compare(str(tmp_path / "run"), made, rtol=1e-10).verdict == "same"


def test_numbers_that_are_no_numbers_are_not_counted_as_changed(tmp_path):
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": np.array([1.0, np.nan, np.nan, 0.0, 2.0])})
    assert perturb_copies([tmp_path / "run"], tmp_path / "m", ulp=1)[0].changed == 2
    np.savez(tmp_path / "x.npz", x=np.array([1.0, np.nan]))
    assert perturb_copies([tmp_path / "x.npz"], tmp_path / "n", ulp=1)[0].changed == 1


def test_a_member_of_ones_own_is_replaced_and_nothing_else(tmp_path):
    path = written(tmp_path, "npy")
    out = tmp_path / "members"
    first = perturb_copies([path], out, ulp=1, seed=1)[0]
    member = out / "member-001"
    old = (member / "input.npy").read_bytes()
    perturb_copies([path], out, ulp=1, seed=2)
    assert (member / "input.npy").read_bytes() != old and first.folder == str(member)
    assert sorted(os.listdir(out)) == ["member-001"]

    def refused():
        before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
        with pytest.raises(TwinrunError, match="twinrun did not write it"):
            perturb_copies([path], out, ulp=1, seed=3, members=2)
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before

    (member / "result.dat").write_text("hours of work")
    refused()
    (member / "result.dat").unlink()
    (member / "input.npy").write_bytes(old)  # changed since, if only to what another seed gives
    refused()
    (member / ".twinrun-perturb.json").unlink()
    refused()


def test_an_input_in_the_place_of_a_member_is_refused(tmp_path):
    path = written(tmp_path, "npy")
    first = perturb_copies([path], tmp_path / "members", ulp=1)[0]
    own = os.path.join(first.folder, "input.npy")
    with pytest.raises(TwinrunError, match="is read here, and would be replaced"):
        perturb_copies([own], tmp_path / "members", ulp=1, seed=7)


def test_a_link_in_the_place_of_a_member_is_refused(tmp_path):
    path = written(tmp_path, "npy")
    elsewhere = perturb_copies([path], tmp_path / "elsewhere", ulp=1)[0].folder
    (tmp_path / "members").mkdir()
    (tmp_path / "members/member-001").symlink_to(elsewhere)
    with pytest.raises(TwinrunError, match="twinrun did not write it"):
        perturb_copies([path], tmp_path / "members", ulp=1)
    assert os.path.islink(tmp_path / "members/member-001")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.npy"], "no such file"),
        (["input.npy", "--relative", "2"], "relative must be"),
        (["input.npy", "--ulp", "1", "--relative", "1e-10"], "either ulp or relative"),
        (["input.npy", "--field", "nobody"], "no field of numbers"),
        (["input.npy", "--step", "3"], "no input is a history"),
        (["zeros.npy"], "nothing was perturbed"),
        (["numbers.npy"], "no field of numbers"),
        (["deck.txt"], "name the numbers of a text with --match"),
        (["deck.txt", "--match", "temperature"], "has no group"),
        (["deck.txt", "--match", "(("], "is not a regular expression"),
        (["deck.txt", "--match", "(word)"], "'word', which is not a number"),
        (["deck.txt", "--match", r"= (\S+)x"], "finds no number"),
        ([".", "--match", r"= (\S+)x"], "is a folder, and no history"),
        (["input.npy", "./input.npy"], "two inputs have this name"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "npy")
    np.save("zeros.npy", np.zeros(9))
    np.save("numbers.npy", np.arange(9))
    (tmp_path / "deck.txt").write_text("a word\ntemperature = 300.0\n")
    outcome = command("perturb", *arguments, "-o", "out")
    assert outcome.status == 2 and said in outcome.err and outcome.err.count("\n") == 1, outcome.err
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_checksums_of_other_formats_are_not_broken(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.ones(10)}, tmp_path / "x.pt")
    with pytest.raises(TwinrunError, match="cannot be changed in place"):
        perturb_copies([tmp_path / "x.pt"], tmp_path / "m", ulp=1)
