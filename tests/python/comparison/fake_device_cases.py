"""Dictionaries of tensors on the fake device: what is begun while they are walked, and that it finds what one by one finds.

Run by test_lists_fake_device.py, in a process whose library for devices is the fake one.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import fake_device
import numpy as np
import pytest
from random_containers import changed, odd_value, random_array
from test_lists import one_by_one, outcome

import twinrun
from twinrun import _core
from twinrun.comparison import settings, start, work
from twinrun.comparison.pending import Pending
from twinrun.errors import TwinrunError

Tensor = fake_device.Tensor
KINDS = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ? c8 c16".split()
SHAPES = [(), (1,), (7,), (300,), (3, 5), (2, 3, 4), (0,), (2, 0), (5000,), (40, 50)]


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    fake_device.package()
    yield
    fake_device.fail("")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each comparison the number of pairs that were begun while the dictionaries were walked."""
    found: list[int] = []
    real = start.start

    def counted(*asked: object) -> tuple:
        opened = real(*asked)
        found.append(0 if opened[2] is None else len(opened[2]))
        return opened

    monkeypatch.setattr(work, "start", counted)
    return found


def random_tensors(random: np.random.Generator, count: int) -> tuple[dict, dict]:
    """Two states: most tensors are dense and on one device; some are strided, on another one, on the host, or no tensors."""
    a: dict = OrderedDict() if random.random() < 0.3 else {}
    b: dict = OrderedDict() if random.random() < 0.3 else {}
    for at in range(count):
        x = random_array(
            random, random.choice(KINDS), SHAPES[random.integers(len(SHAPES))], random.random() < 0.2
        )
        y = changed(random, x)
        into = (a, b)
        if random.random() < 0.2:
            into = a.setdefault("inner", {}), b.setdefault("inner", {})
        if random.random() < 0.05:
            into[0][f"odd{at}"] = into[1][f"odd{at}"] = odd_value(random)
        kind = random.random()
        if kind < 0.05:
            into[0][f"x{at}"], into[1][f"x{at}"] = x, y
            continue
        device = 1 if kind < 0.1 else 0
        for side, one in zip(into, (x, y), strict=True):
            strided = random.random() < 0.05 and one.ndim == 1 and one.size > 1
            one = np.repeat(one, 2)[::2] if strided else one
            skew = one.itemsize if random.random() < 0.1 else 0
            side[f"x{at}"] = Tensor(one, 0 if random.random() < 0.01 else device, strided, skew)
        if random.random() < 0.01:
            into[1].pop(f"x{at}")
    if random.random() < 0.1:
        b = dict(reversed(b.items()))
    if "inner" in a and random.random() < 0.3:
        a["inner"], b["inner"] = list(a["inner"].values()), tuple(b["inner"].values())
    return a, b


@pytest.mark.parametrize("seed", range(24))
def test_tensors_are_compared_as_one_by_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random_tensors(random, int(random.integers(1, 400 if seed % 8 == 0 else 60)))
    how: dict = {
        "atol": random.choice([0.0, 1e-3, 2.0]),
        "rtol": random.choice([0.0, 1e-5]),
        "equal_nan": bool(random.integers(2)),
        "tolerate_integers": bool(random.integers(2)),
        "method": random.choice(["auto", "direct", "staged"]),
        "device": random.choice(["auto", "cuda", "cuda:0", "cpu"]),
        "partial": bool(random.integers(4)),
        "common": bool(random.integers(2)),
    }
    if random.random() < 0.3:
        how["ulp"] = int(random.integers(3))
    assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    assert outcome(twinrun.compare, a, a, **how) == outcome(one_by_one, a, a, **how)
    one, two = list(a.values()), tuple(b.values())
    assert outcome(twinrun.compare, one, two, **how) == outcome(one_by_one, one, two, **how)


def state(count: int, change: Callable[[int, np.ndarray], None] = lambda at, x: None) -> dict[str, Tensor]:
    random = np.random.default_rng(count)
    made = {}
    for at in range(count):
        x = random.standard_normal(int(random.integers(1, 50))).astype(np.float32)
        change(at, x)
        made[f"layers.{at}.weight"] = Tensor(x)
    return made


def add_one(at: int, x: np.ndarray) -> None:
    if at % 100 == 7:
        x[-1] += 1


def test_pairs_are_begun_while_names_agree(begun: list[int]) -> None:
    a, b = state(3000), state(3000, add_one)
    result = twinrun.compare(a, b, atol=1e-6)
    assert begun == [3000] and result.different == 30
    assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)
    other = dict(b)
    other["another"] = other.pop("layers.2000.weight")
    assert outcome(twinrun.compare, a, other, common=True) == outcome(one_by_one, a, other, common=True)
    assert begun[-2:] == [2000, 2000]
    assert twinrun.compare(a, dict(reversed(b.items()))).different == 30  # they match by name
    assert begun[-1] == 0


def test_what_has_rules_of_its_own_is_not_begun(begun: list[int]) -> None:
    a, b = state(20), state(20, add_one)
    for how in (
        {"fields": ["*1*"]},
        {"leave_out": ["*3*"]},
        {"progress": lambda *_: None},
        {"device": "cpu"},
    ):
        assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    assert not any(begun)


def test_a_name_that_is_there_twice_is_an_error() -> None:
    a = {"x": {"y": Tensor(np.ones(3))}, "x.y": Tensor(np.ones(3))}
    assert outcome(twinrun.compare, a, a) == outcome(one_by_one, a, a)
    assert "two fields of the name" in outcome(twinrun.compare, a, a)


def test_first_places_of_columns_are_those_of_rows(begun: list[int]) -> None:
    x = np.asfortranarray(np.zeros((40, 30)))
    y = x.copy(order="F")
    y[3, 20] = y[30, 2] = 1
    a, b = {"x": Tensor(x), "same": Tensor(x)}, {"x": Tensor(y), "same": Tensor(x)}
    result = twinrun.compare(a, b)
    assert begun == [2] and result.first is not None and result.first.first_index == (3, 20)
    assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)


@pytest.mark.parametrize("function", ["any", "compare", "copy", "record", "event_done", "allocate"])
def test_a_call_that_fails_changes_no_result(function: str, begun: list[int]) -> None:
    a, b = state(300), state(300, add_one)
    want = outcome(one_by_one, a, b)
    for number in range(1, 40, 7):
        twinrun.release_device_memory()
        fake_device.fail(f"{function}:{number}:io")
        assert outcome(twinrun.compare, a, b) == want
        fake_device.fail("")
    assert begun[0] == 300


def test_a_device_that_is_lost_is_an_error_and_no_result(begun: list[int]) -> None:
    a, b = state(300), state(300)
    for number in (1, 5, 12, 30):
        fake_device.fail(f"any:{number}:lost")
        said = outcome(twinrun.compare, a, b)
        fake_device.fail("")
        assert "verdict: 'same'" not in said and "Error" in said


def test_work_that_nobody_asks_for_ends_before_the_tensors(begun: list[int]) -> None:
    a, b = state(200), state(200)
    b["layers.0.weight"] = Tensor(np.zeros((2, 2), np.float32))
    with pytest.raises(twinrun.Incomparable, match="shape"):
        twinrun.compare(a, b)
    made = _core.start_lists(
        a,
        state(200),
        lambda *_: {},
        True,
        _core.Rule(),
        _core.Rule(),
        settings.Settings().options(),
    )
    assert len(made[2]) == 200
    del made


# ---- sketches ----


def roots(made: twinrun.Sketch) -> list[int]:
    return _core.sketch_roots(list(made._fields.values()))


def by_entries(fields: object, monkeypatch: pytest.MonkeyPatch, **how: object) -> twinrun.Sketch:
    """The same sketch, of arrays that are all looked at before the first is sketched."""
    with monkeypatch.context() as patch:
        patch.setattr(_core, "start_sketches", lambda *_: None)
        return twinrun.sketch(fields, **how)


@pytest.mark.parametrize("seed", range(12))
def test_sketches_begun_early_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    a, _ = random_tensors(random, int(random.integers(1, 300)))
    how: dict = {"atol": random.choice([0.0, 1e-3]), "residue_bits": int(random.choice([0, 4]))}
    if random.random() < 0.5:
        how["tolerances"] = {"x1": 0.5, "x2": (1e-3, 1e-5)}
    made, want = twinrun.sketch(a, wait=bool(seed % 2), **how), by_entries(a, monkeypatch, **how)
    assert made.names == want.names and made.bytes == want.bytes and made.device == want.device
    assert [dataclasses.astuple(made._facts(n)) for n in made.names] == [
        dataclasses.astuple(want._facts(n)) for n in want.names
    ]
    assert roots(made) == roots(want)
    assert made.compare(want).same and want.compare(made).same
    if "tolerances" not in how:
        assert roots(twinrun.sketch(list(a.values()), **how)) == roots(want)


def begun_sketches(fields: object, atol: float = 1e-6) -> _core.SketchList | None:
    return _core.start_sketches(fields, lambda *_: {}, {}, atol, 0.0, 4, 4096, "linear", 0)


def started(fields: object, atol: float = 1e-6) -> _core.SketchList:
    made = begun_sketches(fields, atol)
    assert made is not None
    made.wait()
    return made


def found(made: twinrun.Sketch) -> list:
    """All that a sketch says of its fields."""
    facts = [dataclasses.astuple(made._facts(n)) for n in made.names]
    return [made.names, made.device, made.bytes, facts, roots(made)]


def some_tensor(random: np.random.Generator) -> Tensor | np.ndarray:
    x = random_array(random, random.choice(KINDS), SHAPES[random.integers(len(SHAPES))], False)
    kind = random.random()
    if kind < 0.03:
        return x
    strided = kind < 0.06 and x.ndim == 1 and x.size > 1
    return Tensor(np.repeat(x, 2)[::2] if strided else x, int(kind > 0.95), strided)


def altered(random: np.random.Generator, given: dict) -> dict:
    """The state as a step of a program leaves it: values written in place, and at times other tensors, names or places."""
    made = dict(given)
    for x in made.values():
        if isinstance(x, Tensor) and x.array.size and random.random() < 0.3:
            x.array.flat[0] = random.integers(100)
    names = list(made)
    at = int(random.integers(len(names)))
    name = names[at]
    x = made[name]
    dense = isinstance(x, Tensor) and x.array.flags.c_contiguous and x.array.ndim != 0
    match random.integers(14):
        case 0:
            made[name] = some_tensor(random)
        case 1:
            made.pop(name)
        case 2:
            made[f"new{random.integers(1 << 30)}"] = some_tensor(random)
        case 3:
            made = {("other" if n == name else n): x for n, x in made.items()}
        case 4:
            made = dict(reversed(made.items()))
        case 5 if dense and x.array.size > 1:
            x.set_(x.array.reshape(-1)[1:])  # another address, shape and size
        case 6 | 7 if dense:
            x.set_(x.array.reshape(-1) if x.array.ndim > 1 else x.array.reshape(1, -1))  # the same bytes
        case 8 | 9 if dense and x.array.dtype.kind in "fiu":
            other = {"f": "i", "i": "u", "u": "i"}[x.array.dtype.kind]
            x.set_(x.array.view(f"{other}{x.array.itemsize}"))  # the same bytes, another type
        case 10 | 11 if dense:
            made[name] = Tensor(x.array)  # the same values at another address
    return made or given


@pytest.mark.parametrize("seed", range(20))
def test_states_that_come_again_are_sketched_as_for_the_first_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 20 if seed % 2 else 200))
    state_now = {f"x{at}": some_tensor(random) for at in range(count)}
    other = {f"x{at}": some_tensor(random) for at in range(20)}
    ways: list[dict] = [
        {"atol": 0.0, "residue_bits": 0},
        {"atol": 1e-3, "tolerances": {"x1": 0.5, "x2": (1e-3, 1e-5)}},
    ]
    known = []
    real = _core.start_sketches

    def noted(*asked: object) -> _core.SketchList | None:
        begun = real(*asked)
        known.append(begun is not None and begun.is_known)
        return begun

    monkeypatch.setattr(_core, "start_sketches", noted)
    for _ in range(25):
        how = ways[int(random.random() < 0.2)]
        for given in (state_now, other) if random.random() < 0.2 else (state_now,):
            made = twinrun.sketch(given, wait=bool(random.integers(2)), **how)
            want = by_entries(given, monkeypatch, **how)
            assert found(made) == found(want)
            assert made.compare(want).same and want.compare(made).same
        state_now = altered(random, state_now)
    assert len(set(known)) == 2  # some were, some were not


def test_a_state_is_known_the_second_time() -> None:
    a = state(700)
    first = started(a)
    assert not first.is_known
    before = _core.sketch_roots([first[at] for at in range(len(first))])
    add_one(7, a["layers.650.weight"].array)
    second, third = started(a), started(dict(a.items()))
    assert second.is_known and third.is_known and not started(a, 1e-5).is_known
    now = _core.sketch_roots([second[at] for at in range(len(second))])
    assert [at for at in range(700) if now[at] != before[at]] == [650]
    # An older sketch keeps its own digests.
    assert _core.sketch_roots([first[at] for at in range(len(first))]) == before
    x = a["layers.650.weight"]
    a["layers.650.weight"] = Tensor(x.array)
    other = started(a)
    assert not other.is_known and started(a).is_known
    assert _core.sketch_roots([other[at] for at in range(700)]) == now
    assert not started({n.replace("650", "750"): x for n, x in a.items()}).is_known
    a["layers.650.weight"].negative = True  # the same memory, other values: Python looks at it
    assert begun_sketches(a) is None


def test_what_is_known_of_a_state_keeps_no_tensor_and_is_bounded() -> None:
    references = []
    for count in range(40, 60):
        a = state(count)
        made = started(a)
        assert started(a).is_known
        references += [weakref.ref(x) for x in a.values()]
        del a, made
    assert not any(x() is not None for x in references)
    many = state(1)
    for _ in range(20):  # the first one is the same, and the newest that begins with it is taken
        many = {**many, f"x{len(many)}": Tensor(np.zeros(3, np.float32))}
        assert not started(many).is_known
    assert started(many).is_known


def test_a_sketch_need_not_be_waited_for() -> None:
    a = state(700)
    made = twinrun.sketch(a, atol=1e-6, wait=False)
    assert made.names == list(a)  # which asks no device
    references = [weakref.ref(x) for x in a.values()]
    del a
    assert all(x() is not None for x in references)
    assert made.compare(twinrun.sketch(state(700), atol=1e-6)).same
    assert not any(x() is not None for x in references)
    assert twinrun.sketch(state(700, add_one), atol=1e-6, wait=False).compare(made).open


def test_a_sketch_that_nobody_asks_for_ends() -> None:
    for count in (1, 40, 300):
        del (made := [twinrun.sketch(state(count), wait=False)])[0]
        assert not made


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("function", ["any", "digest", "copy", "allocate", "fill"])
def test_a_call_that_fails_is_an_error_or_nothing(function: str, known: bool) -> None:
    a = state(300)
    want = roots(twinrun.sketch(a, atol=1e-6))
    for number in range(1, 30, 3):
        for wait in (False, True):
            given = a if known else state(300)
            assert not known or started(a).is_known
            twinrun.release_device_memory()
            fake_device.fail(f"{function}:{number}:io")
            try:
                assert roots(twinrun.sketch(given, atol=1e-6, wait=wait)) == want
            except TwinrunError as e:
                assert "fake device" in str(e)
            fake_device.fail("")
            assert roots(twinrun.sketch(given, atol=1e-6)) == want


# ---- comparisons that are not waited for ----


def test_a_comparison_need_not_be_waited_for() -> None:
    a, b = state(200), state(200, add_one)  # few: no thread takes results
    want = outcome(twinrun.compare, a, b, atol=1e-6)
    result = twinrun.compare(a, b, atol=1e-6, wait=False)
    assert type(result) is Pending and isinstance(result, twinrun.Comparison)
    assert not result.done()
    assert result.done()  # the fake device works when it is asked
    assert type(result) is Pending
    assert result.different == 2 and type(result) is twinrun.Comparison and result.done()
    assert outcome(lambda *_, **__: result, a, b) == want
    assert [part.count for part in result.differences()] == [1] * 2
    a, b = state(700), state(700, add_one)
    references = [weakref.ref(x) for one in (a, b) for x in one.values()]
    late = twinrun.compare(a, b, atol=1e-6, wait=False)
    del a, b
    assert all(x() is not None for x in references)
    assert late.result() is late and late.different == 7
    assert not any(x() is not None for x in references)


@pytest.mark.parametrize(
    "ask",
    [
        bool, repr, str, copy.copy, copy.deepcopy, pickle.dumps, lambda r: r == r, lambda r: r.fields, lambda r: r.not_compared,
        lambda r: r.provenance_a, lambda r: r.device_asked, lambda r: r.to_arrow(), lambda r: dataclasses.asdict(r), vars,
        lambda r: setattr(r, "notes", []), lambda r: r.result(), lambda r: r.worst, lambda r: list(r.differences()),
    ],
)  # fmt: skip
def test_whoever_asks_waits(ask: Callable) -> None:
    a, b = state(50), state(50, add_one)
    result = twinrun.compare(a, b, wait=False)
    assert type(result) is Pending
    ask(result)
    assert type(result) is twinrun.Comparison and result.verdict == "different"
    assert len(result.fields) == 50


@pytest.mark.parametrize("count", [40, 200, 300])  # from 256 on another thread takes the results
def test_later_work_of_the_stream_may_change_what_is_compared(count: int) -> None:
    a, b = state(count), state(count)
    result = twinrun.compare(a, b, wait=False)
    made = twinrun.sketch(a, wait=False)
    runtime = fake_device.Runtime()
    for x in a.values():  # in the default stream, as the package's
        runtime.fill(x.array, 7)
    runtime.wait()
    assert result.same and made.compare(twinrun.sketch(b)).same
    assert not twinrun.compare(a, b).same


def test_what_must_be_looked_at_again_is_not_left() -> None:
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    for odd in (
        {"x": Tensor(x)},  # columns
        {"x": Tensor(np.arange(5))},  # maybe IDs
        {"x": np.ones(3, np.float32)},  # on the host
        {"x": Tensor(np.arange(8.0)[::2], strided=True)},
        {"x": "text"},
    ):
        a, b = {**state(40), **odd}, {**state(40), **odd}
        result = twinrun.compare(a, b, wait=False)
        assert type(result) is twinrun.Comparison and result.same and result.done()
    b.pop("x")
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(a, b, wait=False)
    assert (
        type(twinrun.compare(state(40), dict(reversed(state(40).items())), wait=False)) is twinrun.Comparison
    )


def test_a_device_that_cannot_say_whether_it_is_done_is_waited_for() -> None:
    result = twinrun.compare(state(200), state(200), wait=False)
    assert type(result) is Pending
    fake_device.fail("event_done:1:io")
    result.done()
    assert result.same


@pytest.mark.parametrize("function", ["event_done", "elapsed"])
def test_what_a_device_could_not_do_is_an_error_each_time(function: str) -> None:
    a, b = state(200), state(200)
    result = twinrun.compare(a, b, wait=False)
    assert type(result) is Pending
    fake_device.fail(f"{function}:1:io")
    for _ in range(2):
        with pytest.raises(TwinrunError, match="fake device"):
            result.verdict  # noqa: B018
    assert result.done()


def test_a_comparison_that_nobody_asks_for_ends() -> None:
    for count in (1, 40, 300):
        a = state(count)
        references = [weakref.ref(x) for x in a.values()]
        result = twinrun.compare(a, state(count), wait=False)
        del a, result
        assert not any(x() is not None for x in references)


def test_many_threads_ask_one_comparison() -> None:
    a, b = state(500), state(500, add_one)
    for _ in range(5):
        result = twinrun.compare(a, b, wait=False)
        with ThreadPoolExecutor(8) as pool:
            ask = lambda at, of=result: of.different if at % 2 else of.done()  # noqa: E731
            found = list(pool.map(ask, range(64)))
        assert set(found[1::2]) == {5}
