"""fixtures/gromacs holds trajectories of GROMACS itself in both precisions, and what `gmx dump` prints of them."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, mutations, survives
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, Unsupported
from twinrun.formats import detect, open_file

FIXTURES = Path(__file__).parent / "fixtures" / "gromacs"


def dumped(name: str) -> dict[int, dict[str, np.ndarray]]:
    """Arrays by step out of the text of `gmx dump`: six digits of each number."""
    steps: dict[int, dict[str, np.ndarray]] = {}
    for frame in (FIXTURES / f"{name}.txt").read_text().split("frame ")[1:]:
        step = int(re.search(r"step=\s*(\d+)", frame)[1])
        arrays: dict[str, list[list[float]]] = {}
        for label, row in re.findall(r"(\w+)\[\s*\d+\]=\{(.*?)\}", frame):
            arrays.setdefault(label, []).append([float(x) for x in row.split(",")])
        steps[step] = {label: np.array(rows) for label, rows in arrays.items()}
    return steps


@pytest.mark.parametrize(("name", "dtype"), [("argon", "f4"), ("argon_d", "f8")])
def test_what_gromacs_writes(name, dtype):
    truth = dumped(name)
    assert sorted(truth) == [0, 5, 10]
    path = FIXTURES / f"{name}.trr"
    assert detect(path).name == "trr"
    with open_file(path) as content:
        assert content.steps() == [0, 5, 10]
        assert content.times == {0: 0.0, 5: pytest.approx(0.01), 10: pytest.approx(0.02)}
        assert content.period == (pytest.approx(2.0), pytest.approx(2.1), pytest.approx(2.2))
        arrays = {}
        for step, parts in truth.items():
            assert sorted(parts) == (["box", "f", "v", "x"] if step != 5 else ["box", "v", "x"])
            for label, printed in parts.items():
                field = content.fields[f"step-{step}/{label}"]
                found = field.elements().reshape(field.shape)
                assert found.dtype == dtype and np.allclose(found, printed, rtol=5e-6, atol=1e-12)
                assert (field.step, field.series, field.byte_order) == (step, label, "big")
                assert field.group == (None if label == "box" else "atoms")
                arrays[field.name] = found
        check_content(content, arrays, in_extents=True)


def frame(step: int, item: int, atoms: int = 2, parts: str = "x", box: object = None, **sizes: int) -> bytes:
    """A frame as GROMACS' trrio.cpp lays it out."""
    code = "f" if item == 4 else "d"
    lengths = {"x": 3 * atoms, "v": 3 * atoms, "f": 3 * atoms}
    values = {p: np.arange(lengths[p]) * 0.5 + step for p in "xvf" if p in parts}
    bytes_ = {"box": 0 if box is None else 9 * item, **{p: v.size * item for p, v in values.items()}, **sizes}
    order = ["ir", "e", "box", "vir", "pres", "top", "sym", "x", "v", "f"]
    out = struct.pack(">3i12s", 1993, 13, 12, b"GMX_trn_file")
    out += struct.pack(">13i", *(bytes_.get(p, 0) for p in order), atoms, step, 0)
    out += struct.pack(f">2{code}", step * 0.1, 0)
    if box is not None:
        out += np.asarray(box, f">{code}").tobytes()
    return out + b"".join(v.astype(f">{code}").tobytes() for v in values.values())


def test_boxes_and_frames_without_positions(tmp_path):
    path = tmp_path / "x.trr"
    tilted = np.array([[1.0, 0, 0], [0.5, 2, 0], [0, 0, 3]])
    for box, period in (
        (np.diag([1.0, 2, 3]), (1, 2, 3)),
        (tilted, None),
        (np.diag([1.0, 2, np.nan]), None),
        (None, None),
    ):
        path.write_bytes(frame(4, 8, parts="xv", box=box))
        with open_file(path) as content:
            assert content.period == period and content.time == pytest.approx(0.4)
            assert list(content.fields) == ([] if box is None else ["box"]) + ["x", "v"]
    path.write_bytes(frame(1, 4, parts="", box=np.diag([1.0, 2, 3])) + frame(2, 4, parts="f"))
    with open_file(path) as content:
        assert list(content.fields) == ["step-1/box", "step-2/f"]


def test_a_box_that_changes_is_said(tmp_path):
    (tmp_path / "x.trr").write_bytes(
        frame(1, 4, box=np.diag([1.0, 2, 3])) + frame(2, 4, box=np.diag([1.0, 2, 4]))
    )
    with open_file(tmp_path / "x.trr") as content:
        assert content.period is None and "box changes" in content.notes[0]


def test_contradictions(tmp_path):
    path = tmp_path / "x.trr"
    good = frame(1, 4, parts="xvf", box=np.diag([1.0, 2, 3]))
    for cut in (1, 11, 30, 75, 85, 90, len(good) - 1):
        path.write_bytes(good + good[:cut])
        with pytest.raises(DamagedFile):
            open_file(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedFile, match="is empty"):
        open_file(path, format="trr")
    for changed, words in ((frame(1, 4, x=25), "neither"), (frame(1, 4, parts="xv", v=48), "has 48 bytes")):
        path.write_bytes(changed)
        with pytest.raises(DamagedFile, match=words):
            open_file(path)
    path.write_bytes(frame(1, 4, top=4))
    with pytest.raises(Unsupported, match="version 2"):
        open_file(path)


@settings(max_examples=300)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    good = (FIXTURES / data.draw(st.sampled_from(["argon.trr", "argon_d.trr"]))).read_bytes()
    survives(tmp_path / "x.trr", data.draw(mutations(good)), format="trr")
