"""Options of experts as one object; maps of where fields differ."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
from commands import process

import twinrun
from twinrun.comparison.options import CompareOptions, Moved
from twinrun.comparison.proposal import propose

X = {"x": np.arange(300.0)}
Y = {"x": np.arange(300.0) + (np.arange(300) == 7)}


# What says where the work is done, and how one follows it.
PARAMETERS = {"threads", "device", "stream", "progress", "executor"}


def test_each_is_a_parameter_or_a_keyword_of_old() -> None:
    parameters = inspect.signature(twinrun.compare).parameters
    names = {field.name for field in dataclasses.fields(CompareOptions)}
    assert names == PARAMETERS | Moved.__optional_keys__ | {"formats"}
    for field in dataclasses.fields(CompareOptions):
        if field.name in PARAMETERS:
            assert parameters[field.name].default == field.default, field.name
        else:
            assert field.name not in parameters


def test_they_are_frozen_and_public() -> None:
    options = twinrun.CompareOptions(threads=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.threads = 3
    with pytest.raises(TypeError):
        twinrun.CompareOptions(atol=1.0)


@pytest.mark.filterwarnings("ignore:the keyword:DeprecationWarning")
@pytest.mark.parametrize("way", ["object", "keywords"])
def test_each_has_its_effect(way: str, tmp_path: Path) -> None:
    np.array([*X["x"]]).tofile(tmp_path / "a.raw")
    np.array([*Y["x"]]).tofile(tmp_path / "b.raw")
    seen: list = []
    how = {"method": "staged", "threads": 1, "memory": 1 << 20, "io": "pread", "cache": "buffered", "device": "cpu",
           "residue_bits": 2, "chunk_bytes": 8192, "progress": lambda *said: seen.append(said)}  # fmt: skip
    formats = {"dtype": "f64"}
    given = (
        {"options": CompareOptions(formats=formats, **how)}
        if way == "object"
        else {"options": formats, **how}
    )
    result = twinrun.compare(tmp_path / "a.raw", tmp_path / "b.raw", **given)
    (field,) = result.fields
    assert (field.dtype, field.method, field.different, field.io) == ("f64", "staged", 1, "pread")
    assert seen


def test_a_keyword_of_old_names_its_new_place(tmp_path: Path) -> None:
    for name, arrays in (("a", X), ("b", Y)):
        np.array(arrays["x"]).tofile(tmp_path / f"{name}.raw")
    pair = tmp_path / "a.raw", tmp_path / "b.raw"
    one = "the keyword io is deprecated: write options=twinrun.CompareOptions(io=…)"
    two = "the keywords method, use_metadata are deprecated: write options=twinrun.CompareOptions(method=…, use_metadata=…, formats=…)"
    with pytest.warns(DeprecationWarning) as said:
        assert twinrun.compare(X, Y, io="auto").different == 1  # also where it has its default
        found = twinrun.compare(*pair, method="direct", use_metadata=False, options={"dtype": "f64"})
    assert found.fields[0].method == "direct"
    assert [str(warning.message) for warning in said] == [one, two]


def test_the_warning_shows_the_line_of_the_caller() -> None:
    calls = [
        lambda: twinrun.assert_same(X, X, cache="auto"),
        lambda: twinrun.compare_distances(X, X, X, cache="auto"),
        lambda: propose([X, X], cache="auto"),
    ]
    for call in calls:
        with pytest.warns(DeprecationWarning, match="the keyword cache is deprecated") as said:
            call()
        assert [warning.filename for warning in said] == [__file__]


def test_a_keyword_that_never_was_one_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"compare\(\) got an unexpected keyword argument 'atoll'"):
        twinrun.compare(X, Y, atoll=1.0)
    with pytest.raises(TypeError, match="'formats'"):
        twinrun.compare(X, Y, formats={})


def test_the_command_line_does_not_warn(tmp_path: Path) -> None:
    for name, arrays in (("a", X), ("b", Y)):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, arrays)
    runs = [tmp_path / "a", tmp_path / "b"]
    how = ["--memory", "64M", "--io", "pread", "--threads", "1", "--device", "cpu"]
    for words, status in (
        (["compare", *runs, *how, "--method", "direct", "--no-metadata", "--cache", "direct"], 1),
        (["compare", *runs, *how, "--cache", "buffered", "--closer-to", tmp_path / "a"], 1),
        (["tolerances", *runs, *how], 0),
    ):
        done = process(*words, python=("-W", "error::DeprecationWarning", "-m", "twinrun"))
        assert (done.status, done.err) == (status, ""), done


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (twinrun.CompareOptions(team=3), "team must be"),
        (twinrun.CompareOptions(memory="1G"), "memory must be a whole number"),
        (twinrun.CompareOptions(memory=1.5), "memory must be a whole number"),
        (twinrun.CompareOptions(threads="2"), "threads must be a whole number"),
        (twinrun.CompareOptions(chunk_bytes=None), "chunk_bytes must be a whole number"),
        (twinrun.CompareOptions(progress=3), "progress must be a function"),
        (twinrun.CompareOptions(formats=3), "must be a dict with names, not 3"),
        (3, "must be a dict with names, not 3"),
        ("direct", "must be a dict with names, not 'direct'"),
        ({3: "f32"}, "must be a dict with names"),
    ],
)
def test_a_value_of_another_type_is_told(tmp_path: Path, options, why: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    for sides in ([{"x": np.zeros(3)}] * 2, [tmp_path / "x.npy"] * 2):
        with pytest.raises(twinrun.TwinrunError, match=why):
            twinrun.compare(*sides, options=options)


def test_options_of_a_comparison_are_none_of_formats(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    given = twinrun.CompareOptions()
    for call in (
        lambda: twinrun.golden.save({"x": np.zeros(3)}, tmp_path / "golden", options=given),
        lambda: twinrun.index(tmp_path / "x.npy", options=given),
    ):
        with pytest.raises(twinrun.TwinrunError, match="must be a dict with names"):
            call()
    with pytest.raises(TypeError, match=r"compare_distances\(\) got an unexpected keyword argument 'atol'"):
        twinrun.compare_distances({"x": [1.0]}, {"x": [1.0]}, {"x": [1.0]}, atol=1)


def test_distances_have_one_method() -> None:
    for method in ("auto", "direct"):
        assert twinrun.compare_distances(X, X, X, options=CompareOptions(method=method)).verdict != "farther"
    with pytest.raises(twinrun.TwinrunError, match="the method is 'staged'; leave the method out"):
        twinrun.compare_distances(X, X, X, options=CompareOptions(method="staged"))


def test_a_worker_and_metadata(tmp_path: Path) -> None:
    for name, arrays in (("a", X), ("b", Y)):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, arrays)
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        options = CompareOptions(executor=executor, use_metadata=False)
        result = twinrun.compare(tmp_path / "a", tmp_path / "b", options=options)
    assert result.different == 1 and result.fields[0].method == "direct"


def test_what_is_given_twice_is_an_error() -> None:
    options = CompareOptions(threads=2)
    assert twinrun.compare(X, Y, options=options, device="cpu").different == 1
    with pytest.raises(twinrun.TwinrunError, match="threads is given by options and as a keyword"):
        twinrun.compare(X, Y, options=options, threads=1)
    with pytest.raises(twinrun.TwinrunError, match="unknown method"):
        twinrun.compare(X, Y, options=CompareOptions(method="fast"))


# ---- maps ----


def drawn(figure: object) -> np.ndarray:
    """The largest |a - b| of the first panel."""
    (image,) = figure.axes[0].images
    return np.asarray(image.get_array().filled(0))


def test_a_map_shows_where_a_field_differs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    a = np.zeros((30, 40))
    b = a.copy()
    b[5:9, 7:30] = 1
    figure = twinrun.compare({"q": a, "x": a}, {"q": a, "x": b}).plot("map")
    assert np.array_equal(drawn(figure), b)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("axis 1", "axis 0")
    assert axes.get_xlim() == (-0.5, 39.5) and axes.get_ylim() == (29.5, -0.5)  # rows go down
    assert "x: 92 of 1200 elements differ" in figure.get_suptitle()
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_a_map_of_a_step_and_a_field(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        with twinrun.Run(tmp_path / name) as run:
            for step in (1, 2):
                x = np.zeros((4, 5))
                x[step, step] = name == "b"
                run.capture(step, {"x": x, "y": x.T, "line": x.ravel(), "same": np.zeros(3)})
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert drawn(result.plot("map", field="x", step=2))[2, 2] == 1
    assert drawn(result.plot("map", field="y"))[1, 1] == 1
    bars = result.plot("map", field="line").axes[0].patches
    assert [bar.get_height() for bar in bars] == [int(n == 6) for n in range(20)]
    for wrong in ({"field": "same"}, {"field": "z"}, {"step": 9}):
        with pytest.raises(twinrun.TwinrunError, match="no map"):
            result.plot("map", **wrong)
    with pytest.raises(twinrun.TwinrunError, match="kind is 'growth' or 'map'"):
        result.plot("places")
    with pytest.raises(twinrun.TwinrunError, match="are for maps"):
        result.plot(field="x")
    assert result.plot().axes[0].get_xlabel() == "step"


def test_a_large_map_keeps_its_scale() -> None:
    pytest.importorskip("matplotlib")
    a = np.zeros((300, 129), np.float32)
    b = a.copy()
    b[299, 128] = 1
    figure = twinrun.compare({"x": a}, {"x": b}).plot("map")
    counts = drawn(figure)
    assert counts.shape == (100, 65) and counts[99, 64] == 1 == counts.sum()
    axes = figure.axes[0]
    assert axes.get_xlim() == (-0.5, 129.5) and axes.get_ylim() == (299.5, -0.5)


def test_what_is_not_finite_has_a_colour_of_its_own() -> None:
    pytest.importorskip("matplotlib")
    a = np.zeros((4, 5))
    b = a.copy()
    b[1, 2], b[2, 2] = np.nan, 3.0
    figure = twinrun.compare({"x": a}, {"x": b}).plot("map")
    (image,) = figure.axes[0].images
    assert drawn(figure)[1, 2] > 3.0 == drawn(figure)[2, 2] and image.get_clim() == (0, 3.0)
    assert "red: not finite" in figure.axes[1].get_ylabel()


@pytest.mark.parametrize("what", ["steps", "ranks"])
@pytest.mark.parametrize("given", [[2], 2, (1, 2), b"2"])
def test_numbers_that_are_no_text_are_told(what: str, given: object) -> None:
    with pytest.raises(twinrun.TwinrunError, match=rf"{what}=.* is no text; write '10'"):
        twinrun.compare(X, X, **{what: given})
