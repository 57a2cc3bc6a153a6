"""Exodus II files: by the layout of its specification through netCDF4, and one that exodus_helper wrote."""

from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, mutations, no_false_same, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.formats import open_file

netCDF4 = pytest.importorskip("netCDF4")

STEPS, NODES = 3, 8


def values(name: str, step: int, count: int) -> np.ndarray:
    return np.arange(count) * 0.5 + step * 10 + len(name)


def write(
    path: Path,
    names: tuple[str, ...] = ("temperature", "pressure"),
    kind: str = "NETCDF3_64BIT_OFFSET",
    block_names: tuple[str, ...] = ("steel", "air"),
    change: tuple[str, int] | None = None,
    steps: int = STEPS,
) -> None:
    """change: a nodal variable and a step, in which a number is another."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.title, file.version, file.api_version = "a run", np.float32(8.0), np.float32(8.0)
        file.floating_point_word_size, file.file_size = np.int32(8), np.int32(1)
        for name, size in (
            ("len_name", 33), ("time_step", None), ("num_dim", 3), ("num_nodes", NODES), ("num_elem", 3),
            ("num_el_blk", 2), ("num_el_in_blk1", 1), ("num_el_in_blk2", 2), ("num_nod_var", len(names)),
            ("num_elem_var", 1), ("num_glo_var", 2),
        ):  # fmt: skip
            file.createDimension(name, size)
        file.createVariable("time_whole", "f8", ("time_step",))[:] = np.arange(steps) * 0.25
        file.createVariable("coordx", "f8", ("num_nodes",))[:] = np.arange(NODES)
        file.createVariable("eb_prop1", "i4", ("num_el_blk",))[:] = [10, 20]

        def texts(variable: str, rows: tuple[str, ...], axis: str) -> None:
            made = file.createVariable(variable, "S1", (axis, "len_name"))
            for row, text in enumerate(rows):
                made[row, :] = np.frombuffer(text.encode().ljust(33, b"\0"), "S1")

        texts("eb_names", block_names, "num_el_blk")
        texts("name_nod_var", names, "num_nod_var")
        texts("name_elem_var", ("stress",), "num_elem_var")
        texts("name_glo_var", ("energy", "mass"), "num_glo_var")
        everything = file.createVariable("vals_glo_var", "f8", ("time_step", "num_glo_var"))
        for number, name in enumerate(names, 1):
            made = file.createVariable(f"vals_nod_var{number}", "f8", ("time_step", "num_nodes"))
            for step in range(steps):
                made[step] = values(name, step, NODES)
                if change == (name, step):
                    made[step, 5] += 1
        for block in (1, 2):
            axes = ("time_step", f"num_el_in_blk{block}")
            made = file.createVariable(f"vals_elem_var1eb{block}", "f8", axes)
            for step in range(steps):
                made[step] = values(f"stress{'x' * block}", step, block)
        for step in range(steps):
            everything[step] = [step * 1.5, step * 2.5]


@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"])
def test_results_have_their_names_and_steps(tmp_path, kind):
    write(tmp_path / "a.exo", kind=kind)
    with open_file(tmp_path / "a.exo") as content:
        assert content.steps() == [1, 2, 3] and content.times == {1: 0.0, 2: 0.25, 3: 0.5}
        for step in range(STEPS):
            for name in ("temperature", "pressure"):
                field = content.fields[f"step-{step + 1}/nodal/{name}"]
                check_field(field, values(name, step, NODES))
                assert (field.step, field.series) == (step + 1, f"nodal/{name}")
            for block, where in ((1, "steel"), (2, "air")):
                field = content.fields[f"step-{step + 1}/element/{where}/stress"]
                check_field(field, values(f"stress{'x' * block}", step, block))
            for at, name in enumerate(("energy", "mass")):
                check_field(content.fields[f"step-{step + 1}/global/{name}"], np.array(step * (1.5 + at)))
        assert not any("vals_" in name or "name_" in name for name in content.fields)
        assert "coordx" in content.fields and not content.skipped


@pytest.mark.parametrize("kind", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_a_difference_is_reported_by_the_name_of_the_result(tmp_path, kind):
    write(tmp_path / "a.exo", kind=kind)
    write(tmp_path / "b.exo", kind=kind, change=("pressure", 1))
    write(tmp_path / "c.exo", kind=kind, names=("pressure", "temperature"))
    result = twinrun.compare(tmp_path / "a.exo", tmp_path / "b.exo")
    assert [(f.step, f.field, f.different) for f in result.fields if f.different] == [
        (2, "nodal/pressure", 1)
    ]
    # The order in which a program wrote its results is no difference.
    assert twinrun.compare(tmp_path / "a.exo", tmp_path / "c.exo").same


def test_blocks_without_names_have_their_numbers(tmp_path):
    write(tmp_path / "a.exo", block_names=("", ""))
    with open_file(tmp_path / "a.exo") as content:
        assert "step-1/element/10/stress" in content.fields and "step-1/element/20/stress" in content.fields


def test_small_models_have_all_nodal_results_in_one_variable(tmp_path):
    write(tmp_path / "a.exo")
    with netCDF4.Dataset(tmp_path / "a.exo", "a") as file:
        for number in (1, 2):
            file.renameVariable(f"vals_nod_var{number}", f"other{number}")
        both = file.createVariable("vals_nod_var", "f8", ("time_step", "num_nod_var", "num_nodes"))
        for step in range(STEPS):
            both[step] = [values("temperature", step, NODES), values("pressure", step, NODES)]
    with open_file(tmp_path / "a.exo") as content:
        for name in ("temperature", "pressure"):
            check_field(content.fields[f"step-3/nodal/{name}"], values(name, 2, NODES))


@pytest.mark.parametrize("names", [("same", "same"), ("", "pressure")])
def test_names_that_tell_nothing_leave_those_of_the_file(tmp_path, names):
    write(tmp_path / "a.exo", names=names)
    with open_file(tmp_path / "a.exo") as content:
        assert {f.series for f in content.fields.values() if f.step == 1} >= {
            "vals_nod_var1",
            "vals_nod_var2",
        }
        assert "name_nod_var" in content.fields


def test_what_stands_behind_a_name_is_compared(tmp_path):
    write(tmp_path / "a.exo")
    write(tmp_path / "b.exo")
    with netCDF4.Dataset(tmp_path / "b.exo", "a") as file:
        file["name_nod_var"][1, 20] = b" "  # behind the zero that ends `pressure`
    with open_file(tmp_path / "b.exo") as content:
        assert "step-1/nodal/pressure" in content.fields and "name_nod_var" in content.fields
    with pytest.raises(twinrun.TwinrunError, match="name_nod_var"):
        twinrun.compare(tmp_path / "a.exo", tmp_path / "b.exo")


def test_one_step_and_none(tmp_path):
    write(tmp_path / "a.exo", steps=1)
    with open_file(tmp_path / "a.exo") as content:
        assert content.time == 0.0 and "nodal/pressure" in content.fields
    write(tmp_path / "b.exo", steps=0)
    with open_file(tmp_path / "b.exo") as content:
        assert "vals_nod_var1" in content.fields and content.fields["vals_nod_var1"].size == 0


def shown(path: Path) -> object:
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        found = {name: (v.dimensions, v.dtype, v[...].tobytes()) for name, v in file.variables.items()}
        return found, {name: repr(file.getncattr(name)) for name in file.ncattrs()}


def test_damage_is_never_the_same(tmp_path):
    write(tmp_path / "a.exo", kind="NETCDF3_CLASSIC")
    versions = damaged_versions((tmp_path / "a.exo").read_bytes(), 2, flips=80)
    assert no_false_same(tmp_path / "a.exo", versions, shown)["error"] >= 10


@settings(max_examples=100)
@given(st.data())
def test_mutations_end_in_format_errors(tmp_path, data):
    path = tmp_path / "good.exo"
    if not path.exists():
        write(path, kind="NETCDF3_CLASSIC")
    survives(tmp_path / "x.exo", data.draw(mutations(path.read_bytes())), format="netcdf")


def test_what_exodus_helper_writes():
    """fixtures/exodus/make.py wrote the file."""
    with open_file(Path(__file__).parent / "fixtures" / "exodus" / "helper.exo") as content:
        assert content.times == {1: 0.5, 2: 1.0}
        assert content.fields["temperature"].shape == (
            2,
            4,
        )  # this package gives results a variable of their name
        check_field(content.fields["step-2/element/steel/stress"], np.array([6.0]))
