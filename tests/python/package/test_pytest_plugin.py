"""The pytest plugin, run in pytest: what passes, what fails and what it says then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG
from hypothesis import given, settings
from hypothesis import strategies as st
from support import brute_force

import twinrun
from twinrun import TwinrunError
from twinrun.golden.single import NotReproduced, Reproducible, file_name

pytest_plugins = ["pytester"]

# By the module's name, and no plugins of packages: where twinrun is installed its entry point would load it under another one.
PLUGIN = ("--disable-plugin-autoload", "-p", "twinrun.pytest_plugin", "-p", "no:cacheprovider")

TESTS = """
import os
import numpy as np
import pytest

BUMP = float(os.environ.get("BUMP", "0"))

@pytest.mark.parametrize("n", [10, 1.5, "a/b", "a:b"])
def test_rod(reproducible, n):
    x = np.sin(np.arange(5000.0).reshape(50, 100))
    x[3, 7] += BUMP
    reproducible.check("temperature", x, atol=1e-9)

class TestGrid:
    def test_list(self, reproducible):
        reproducible.check("two", {"a": [1.0, 2.0], "n": 3})
        reproducible.check("one", 2.5, rtol=1e-9)
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, *arguments)


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("BUMP", raising=False)
    pytester.makeini(
        "[pytest]\n"
    )  # temporary folders may lie in a checkout, whose own settings are not meant
    pytester.makepyfile(test_heat=TESTS)
    return pytester


def files(suite: pytest.Pytester, folder: str = "__twinrun__") -> dict[str, bytes]:
    return {
        str(p.relative_to(suite.path)): p.read_bytes()
        for p in (suite.path / folder).rglob("*")
        if p.is_file()
    }


def test_missing_files_fail_and_are_not_made(suite: pytest.Pytester) -> None:
    result = run(suite)
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        ["*there is no golden file*", "*pytest 'test_heat.py::test_rod?10?' --twinrun-update*"]
    )
    assert files(suite) == {}


def test_update_then_the_same_then_different(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(suite, "--twinrun-update")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["twinrun: 6 golden files up to date, 6 of them changed"])
    made = files(suite)
    assert len(made) == 12 and "__twinrun__/test_heat/TestGrid/test_list/one.twm" in made
    assert all(len(content) < 0.08 * 40000 for name, content in made.items() if name.endswith(".twm"))
    run(suite).assert_outcomes(passed=5)
    again = run(suite, "--twinrun-update")
    again.stdout.fnmatch_lines(["twinrun: 6 golden files up to date, 0 of them changed"])
    monkeypatch.setenv("BUMP", "1e-10")
    run(suite).assert_outcomes(passed=5)
    monkeypatch.setenv("BUMP", "1e-7")
    result = run(suite)
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*temperature is not what its golden file says*",
            "*temperature: 1 of 5000 elements differ*",
            "*temperature?3, 7? = *, was *: |a-b| = 1e-07 > 1e-09*",
            "*if this change is meant, write the file again and commit it:*",
            "*pytest 'test_heat.py::test_rod?10?' --twinrun-update*",
        ]
    )
    assert files(suite) == made


def test_one_test_is_updated_alone(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(suite, "--twinrun-update")
    before = files(suite)
    monkeypatch.setenv("BUMP", "1")
    run(suite, "--twinrun-update", "test_heat.py::test_rod[10]").assert_outcomes(passed=1)
    after = files(suite)
    assert before.keys() == after.keys()
    assert len([n for n in before if before[n] != after[n]]) == 2  # digests and values
    run(suite).assert_outcomes(passed=2, failed=3)


def test_folder_of_the_ini_file(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\ntwinrun_folder = kept/golden\n")
    run(suite, "--twinrun-update")
    assert len(files(suite, "kept/golden")) == 12 and files(suite) == {}
    run(suite).assert_outcomes(passed=5)


def test_a_damaged_file_fails(suite: pytest.Pytester) -> None:
    run(suite, "--twinrun-update")
    for name in files(suite):
        path = suite.path / name
        content = path.read_bytes()
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    run(suite).assert_outcomes(failed=5)


def test_start_is_cheap() -> None:
    """Importing the plugin loads neither numpy nor the core: it happens at every start of pytest."""
    code = "import sys; import pytest; before = set(sys.modules); import twinrun.pytest_plugin; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True
    )
    assert set(done.stdout.split()) == {"twinrun", "twinrun.pytest_plugin", "twinrun.views"}


def test_the_entry_point_names_the_plugin() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"twinrun": "twinrun.pytest_plugin"}


# ---- the object that tests call ----


def written(folder: Path, name: str, arrays: object, **options: object) -> Reproducible:
    Reproducible(folder, ["test"], update=True).check(name, arrays, **options)
    return Reproducible(folder, ["test"])


def test_metadata_of_a_data_file_is_no_golden_file(tmp_path: Path) -> None:
    x = np.arange(5.0)
    (tmp_path / "test").mkdir()
    data = tmp_path / "test" / "plate"
    with open(data, "wb") as file:
        np.save(file, x)
    twinrun.index(data, options={"format": "npy"})
    metadata = tmp_path / "test" / "plate.twm"
    before = metadata.read_bytes()
    with pytest.raises(twinrun.TwinrunError, match="not what twinrun writes here"):
        Reproducible(tmp_path, ["test"], update=True).check("plate", x)
    with pytest.raises(NotReproduced, match="no golden file: it is metadata of data files"):
        Reproducible(tmp_path, ["test"]).check("plate", x)
    assert metadata.read_bytes() == before
    metadata.write_bytes(before[:100])  # what is damaged is of no use to anybody
    Reproducible(tmp_path, ["test"], update=True).check("plate", x)
    Reproducible(tmp_path, ["test"]).check("plate", x)


def test_tolerance_of_the_check_decides(tmp_path: Path) -> None:
    """Also where the file was made for another one: then less can be told, and nothing is told wrongly."""
    x = np.linspace(0, 1, 3000)
    written(tmp_path, "x", x, atol=1e-6)
    near = x + 0.6e-6
    Reproducible(tmp_path, ["test"]).check("x", near, atol=1e-6)
    Reproducible(tmp_path, ["test"]).check("x", near, atol=1e-5)
    for strict in (1e-7, 0.0):
        with pytest.raises(NotReproduced):
            Reproducible(tmp_path, ["test"]).check("x", near, atol=strict)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    made=st.sampled_from([(1e-3, 0.0), (0.0, 1e-3), (1e-3, 1e-3), (0.0, 0.0), (1e-6, 1e-2)]),
    asked=st.sampled_from(
        [(1e-3, 0.0), (1e-4, 0.0), (0.0, 1e-3), (0.0, 1e-5), (0.0, 0.0), (1e-2, 1e-4), (0.0, 0.1)]
    ),
    share=st.sampled_from([0.3, 0.9, 1.1, 3.0]),
    bits=st.sampled_from([4, 2, 0]),
)
def test_any_tolerance_of_the_file_and_of_the_check(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    made: tuple[float, float],
    asked: tuple[float, float],
    share: float,
    bits: int,
) -> None:
    folder = tmp_path_factory.mktemp("golden")
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, 700)
    moved = rng.uniform(-share, share, x.size) * (rng.random(x.size) < rng.choice([0.01, 1.0]))
    for scale in (asked, made):
        near = x + moved * (scale[0] + scale[1] * np.abs(x))
        written(folder, "x", x, atol=made[0], rtol=made[1], residue_bits=bits)
        found = brute_force(x, near, *asked)["different"]
        try:
            fields = Reproducible(folder, ["test"]).check(
                "x", near, atol=asked[0], rtol=asked[1], undecided="pass"
            )
        except NotReproduced as e:
            assert found, e
        else:
            assert not found or fields[0].verdict == "undecided"


def test_shapes_types_and_names(tmp_path: Path) -> None:
    x = np.arange(12.0)
    written(tmp_path, "x", {"x": x, "y": x})
    for now, said in (
        ({"x": x, "y": x[:11]}, "shape"),
        ({"x": x, "y": x.astype(np.float32)}, "types must agree"),
        ({"x": x}, "'y' is in the golden file only"),
        ({"x": x, "y": x, "z": x}, "'z' is not in the golden file"),
    ):
        with pytest.raises(NotReproduced, match=said):
            Reproducible(tmp_path, ["test"]).check("x", now)


def test_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = rng.permutation(1000) * 7
    particles = {"id": ids, "x": rng.normal(size=(1000, 3)), "m": rng.normal(size=1000).astype(np.float32)}
    written(tmp_path, "p", particles, atol=1e-6, key="id")
    order = rng.permutation(1000)
    now = {n: a[order] for n, a in particles.items()}
    Reproducible(tmp_path, ["test"]).check("p", now, atol=1e-6, key="id")
    now["x"] = now["x"].copy()
    now["x"][5, 1] += 1
    with pytest.raises(NotReproduced, match="1 of 3000 elements differ"):
        Reproducible(tmp_path, ["test"]).check("p", now, atol=1e-6, key="id")
    now["id"] = now["id"].copy()
    now["id"][3] = 4
    with pytest.raises(NotReproduced, match="id"):
        Reproducible(tmp_path, ["test"]).check("p", now, atol=10.0, key="id")
    written(tmp_path, "own", particles["m"], key=ids)
    Reproducible(tmp_path, ["test"]).check("own", particles["m"][order], key=ids[order])
    for wrong in (np.zeros(1000, int), ids[:5], ids.astype(float), "nothing"):
        with pytest.raises(TwinrunError):
            Reproducible(tmp_path, ["test"]).check("p", particles, key=wrong)


def test_wrong_arguments(tmp_path: Path) -> None:
    check = written(tmp_path, "x", 1.0)
    check.check("x", 1.0)
    with pytest.raises(TwinrunError, match="checked twice"):
        check.check("x", 1.0)
    for arguments in ({"atol": -1.0}, {"rtol": np.inf}, {"residue_bits": 3}, {"undecided": "maybe"}):
        with pytest.raises(TwinrunError):
            Reproducible(tmp_path, ["test"]).check("y", 1.0, **arguments)
    with pytest.raises(TwinrunError):
        Reproducible(tmp_path, ["test"]).check("", 1.0)


def test_what_cannot_be_told_fails_unless_it_may_pass(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 3000)
    written(tmp_path, "x", x, atol=1e-6, keep_values=0)
    near = x + 0.9999e-6
    with pytest.raises(NotReproduced, match="undecided within one cell"):
        Reproducible(tmp_path, ["test"]).check("x", near, atol=1e-6)
    (field,) = Reproducible(tmp_path, ["test"]).check("x", near, atol=1e-6, undecided="pass")
    assert field.verdict == "undecided" and field.different == 0


def test_a_wrong_bit_anywhere_is_an_error(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 70)
    written(tmp_path, "x", {"x": x, "i": np.arange(3)}, atol=1e-6)
    for name in ("x.twm", "x.twv"):
        path = tmp_path / "test" / name
        content = path.read_bytes()
        for at in range(len(content)):
            path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
            with pytest.raises((TwinrunError, NotReproduced)):
                Reproducible(tmp_path, ["test"]).check("x", {"x": x, "i": np.arange(3)}, atol=1e-6)
        path.write_bytes(content)
    Reproducible(tmp_path, ["test"]).check("x", {"x": x, "i": np.arange(3)}, atol=1e-6)


def test_names_of_files() -> None:
    assert file_name("temperature_2.5") == "temperature_2.5"
    odd = ["", ".", "..", "a/b", "a:b", "a_b/", "x" * 300, "ü", "test[a/b]", "test[a:b]", ".hidden", "con\n"]
    names = [file_name(n) for n in odd]
    assert len(set(names)) == len(odd)
    for name in names:
        assert name.isascii() and "/" not in name and not name.startswith(".") and len(name) <= 100
