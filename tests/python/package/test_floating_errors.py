"""Any values: what the caller set for errors of floating-point numbers, and for warnings, does not matter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun import golden
from twinrun.golden.single import Reproducible
from twinrun.report.html import html, write_html
from twinrun.report.listing import write_differences


def values(dtype: str) -> np.ndarray:
    """Signalling NaN, infinities, the largest and the smallest numbers, among others."""
    kind = np.dtype(dtype)
    word = {2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize]
    about = np.finfo(kind)
    made = np.linspace(0, 1, 6000).astype(kind)
    made[:8] = [np.inf, -np.inf, np.nan, about.max, -about.max, about.tiny, about.smallest_subnormal, -0.0]
    signalling = np.array(np.inf, kind).view(word) + word(1)
    made[[20, 3000]] = np.array([signalling, signalling | (word(1) << word(8 * kind.itemsize - 1))]).view(
        kind
    )
    return made.reshape(2000, 3)


def moved(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[5:9] += a.dtype.type(0.125)
    b[0] = a[0][::-1]
    b[1500] = b[1501] = a[1000]
    return b


def checks(a: np.ndarray, b: np.ndarray, folder: Path) -> dict[str, Callable[[], object]]:
    def kept(**options: object) -> str:
        golden.save({"x": a}, folder / "golden", **options)
        return golden.check(folder / "golden", {"x": b}).verdict

    def single() -> None:
        Reproducible(folder / "single", ["t"], update=True).check("x", a, atol=1e-3, keep_values=0)
        assert Reproducible(folder / "single", ["t"]).check("x", a, atol=1e-3)

    def reports(**options: object) -> str:
        c = twinrun.compare({"position": a}, {"position": b}, **options)
        write_html(c, folder / "page.html")
        write_differences(c, folder / "list.csv")
        write_differences(c, folder / "list.parquet")
        assert str(c) and html(c) and sum(part.count for part in c.differences()) == c.different
        return c.verdict

    rules = {
        "equal": {}, "absolute": {"atol": 1e-3}, "relative": {"rtol": 1e-3}, "both": {"atol": 1e-3, "rtol": 1e-3},
        "tiny": {"atol": 1e-3, "rtol": 1e-300}, "subnormal": {"atol": 5e-324}, "large": {"atol": 1e300},
    }  # fmt: skip
    found: dict[str, Callable[[], object]] = {"single": single}
    for name, rule in rules.items():
        for most in (0, 1 << 20):
            found[f"golden {name} {most}"] = lambda rule=rule, most=most: kept(keep_values=most, **rule)
        found[f"compare {name}"] = lambda rule=rule: reports(**rule)
        found[f"digest {name}"] = lambda rule=rule: str(twinrun.digest(a, **rule))
        found[f"sketch {name}"] = lambda rule=rule: (
            twinrun.sketch({"x": a}, **rule).compare(twinrun.sketch({"x": b}, **rule)).verdict
        )
    for name, rule in {"ulp": {"ulp": 2}, "period": {"atol": 1e-3, "period": 1.5}}.items():
        found[f"golden {name}"] = lambda rule=rule: kept(keep_values=1 << 20, **rule)
        found[f"compare {name}"] = lambda rule=rule: reports(**rule)
    return found


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_settings_of_the_caller_change_nothing(dtype: str, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        a = values(dtype)
        b = moved(a)
    for name, check in checks(a, b, tmp_path).items():
        with np.errstate(all="ignore"):
            said = check()
        with np.errstate(all="raise"):
            assert check() == said, name
            assert np.geterr()["invalid"] == "raise"
        with np.errstate(all="warn"), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert check() == said, name


@pytest.mark.parametrize("wrong", ["1", b"1", None, [1.0], True, np.False_, 10**400])
def test_tolerances_are_numbers(wrong: object, tmp_path: Path) -> None:
    x = np.zeros(3)
    calls = [
        lambda **given: twinrun.digest(x, **given),
        lambda **given: twinrun.sketch({"x": x}, **given),
        lambda **given: twinrun.Run(tmp_path / "run", **given),
        lambda **given: twinrun.index(tmp_path / "no file", **given),
        lambda **given: Reproducible(tmp_path, ["t"], update=True).check("x", x, **given),
    ]
    if wrong is not None:
        calls += [
            lambda **given: twinrun.compare(x, x, **given),
            lambda **given: golden.save({"x": x}, tmp_path / "golden", **given),
        ]
    for call in calls:
        for name in ("atol", "rtol"):
            with pytest.raises(twinrun.TwinrunError, match=f"{name} must be a number, not"):
                call(**{name: wrong})


@pytest.mark.parametrize(
    "wrong", [True, np.True_, "1", (1.0, True), (1.0, "1"), (1.0, 2.0, 3.0), (), None], ids=repr
)
def test_tolerances_of_fields_are_numbers(wrong: object, tmp_path: Path) -> None:
    own = {"x": wrong}
    for call in (
        lambda: twinrun.sketch({"x": np.zeros(3)}, tolerances=own),
        lambda: twinrun.Run(tmp_path / "run", tolerances=own),
    ):
        with pytest.raises(
            twinrun.TwinrunError, match=r"field 'x' must be (a number|atol or \(atol, rtol\)), not"
        ):
            call()


@pytest.mark.parametrize(
    "own", [1, 0.5, np.float32(0.5), (1, 2), [1.0], np.array([1.0, 2.0]), np.array(1.0)], ids=repr
)
def test_all_kinds_of_numbers_are_tolerances_of_fields(own: object) -> None:
    twinrun.sketch({"x": np.zeros(3)}, tolerances={"x": own})


def test_one_field_is_no_fields() -> None:
    assert "1 field," in repr(twinrun.sketch({"x": np.zeros(3)}))
    assert "2 fields," in repr(twinrun.sketch({"x": np.zeros(3), "y": np.zeros(3)}))
