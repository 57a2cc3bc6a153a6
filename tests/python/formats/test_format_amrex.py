"""fixtures/amrex holds plotfiles that AMReX itself wrote: the same cells in several cuttings, and the program that did."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, mutations, same
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingFile, Unsupported
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder

FIXTURES = Path(__file__).parent / "fixtures" / "amrex"
PATCH = (slice(2, 10), slice(4, 8), slice(4, 12))  # what level 1 covers, z first
PARTICLES = {"a": 8, "b": 1, "c": 8, "d": 4}  # boxes of level 0; each has 5


def cells(level: int, dtype: str = "f8") -> dict[str, np.ndarray]:
    """A level in its domain, z first, as write.cpp fills it."""
    n = 8 << level
    k, j, i = np.meshgrid(*[np.arange(n)] * 3, indexing="ij")
    density = 1000.0 * level + i + 100.0 * j + 10000.0 * k
    return {"density": density.astype(dtype), "velocity": (1 / (1 + density)).astype(dtype)}


def expected(dtype: str = "f8") -> dict[str, np.ndarray]:
    """Fields of the levels as a user indexes them: (i, j, k)."""
    arrays = {f"level-0/{name}": array.T for name, array in cells(0, dtype).items()}
    covered = np.zeros((16, 16, 16), "u1")
    covered[PATCH] = 1
    for name, array in cells(1, dtype).items():
        arrays[f"level-1/{name}"] = np.where(covered, array, np.array(0, dtype)).T
    return arrays | {"level-1/covered": covered.T}


def of_levels(content) -> dict:
    return {name: f for name, f in content.fields.items() if name.startswith("level")}


@pytest.mark.parametrize("name", "abcd")
def test_levels_in_their_domains_however_they_were_cut(name):
    path = FIXTURES / name / "plt00042"
    assert detect(path).name == "amrex"
    with open_file(path) as content:
        assert content.time == 0.25 and content.notes == []
        arrays = expected("f4" if name == "c" else "f8")
        found = of_levels(content)
        assert list(found) == list(arrays)
        for label, array in arrays.items():
            in_extents = label.startswith("level-0") and name in "bd"
            check_field(found[label], array, in_extents)
        assert found["level-0/density"].index(8 * 8 * 2 + 8 * 3 + 5) == (5, 3, 2)
        if name == "d":
            assert len(found["level-0/density"].extents) == 4
        for path in content.files():
            assert os.path.isfile(path)
        assert any(path.endswith("Level_1/Cell_D_00000") for path in content.files())


@pytest.mark.parametrize("name", "abcd")
def test_box_after_box(name):
    with open_file(FIXTURES / name / "plt00042", place=False) as content:
        found = of_levels(content)
        for level, whole in (
            (0, cells(0, "f4" if name == "c" else "f8")),
            (1, cells(1, "f4" if name == "c" else "f8")),
        ):
            boxes = found[f"level-{level}/boxes"]
            corners = boxes.elements().reshape(boxes.shape)
            for component, array in whole.items():
                parts = []
                for low, high in corners:
                    slices = tuple(slice(a, b + 1) for a, b in zip(low[::-1], high[::-1], strict=True))
                    parts.append(array[slices].reshape(-1))
                check_field(found[f"level-{level}/{component}"], np.concatenate(parts), in_extents=True)


@pytest.mark.parametrize("name", "abcd")
def test_particles(name):
    boxes = PARTICLES[name]
    with open_file(FIXTURES / name / "plt00042") as content:
        found = {k: f for k, f in content.fields.items() if k.startswith("tracers")}
        number = np.arange(5 * boxes)
        arrays = {
            "tracers/idcpu": (np.uint64(3) << np.uint64(32)) | (number + 1).astype("u8"),
            "tracers/mass": 0.5 * (number % 5),
            "tracers/colour": (7 * (number % 5)).astype("i4"),
        }
        for label, array in arrays.items():
            check_field(found[label], array)
            assert found[label].key == "tracers/idcpu" and found[label].group == "tracers"
        assert sorted(set(found) - set(arrays)) == ["tracers/x", "tracers/y", "tracers/z"]
        assert len(found["tracers/x"].extents) == boxes
        x = found["tracers/x"].elements()[:5]
        assert np.array_equal(x, (0.25 + 0.125 * np.arange(5)) / 8)


def copied(tmp_path: Path, name: str = "a") -> Path:
    return Path(shutil.copytree(FIXTURES / name / "plt00042", tmp_path / "plt00042", dirs_exist_ok=True))


def test_a_folder_of_plotfiles(tmp_path):
    for step in (42, 84):
        shutil.copytree(FIXTURES / "a" / "plt00042", tmp_path / f"plt{step:05}")
    listing = list_folder(tmp_path)
    assert [(f.step, f.rank, f.format) for f in listing.files] == [(42, 0, "amrex"), (84, 0, "amrex")]
    assert listing.ignored == []


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_level_that_is_mostly_holes_is_not_placed(tmp_path):
    path = copied(tmp_path)
    edit(path / "Header", "(15,15,15)", "(255,255,255)")
    with open_file(path) as content:
        assert content.fields["level-1/density"].shape == (256,) and "level-1/boxes" in content.fields
        assert "level-1: its boxes cover little" in content.notes[0]
    with open_file(path, place="yes") as content:
        field = content.fields["level-1/density"]
        assert field.shape == (256, 256, 256)
        at = (5 * 256 + 6) * 256
        assert same(field.elements(at + 4, 8), cells(1)["density"][5, 6, 4:12])
        assert (field.elements(at, 4) == 0).all()
    edit(path / "Header", "((0,0,0) (255,255,255)", "((5,0,0) (255,255,255)")
    with pytest.raises(FormatError, match="leave the domain"):
        open_file(path, place=True)


def test_cuttings_compare_cell_by_cell(tmp_path):
    a, b = FIXTURES / "a" / "plt00042", copied(tmp_path, "d")
    levels = ["level-*"]
    result = twinrun.compare(a, b, fields=levels, equal_nan=False)
    assert result.same and len(result.fields) == 5
    data = bytearray((b / "Level_1" / "Cell_D_00000").read_bytes())
    data[-1] ^= 0x80  # the last velocity of the last box
    (b / "Level_1" / "Cell_D_00000").write_bytes(data)
    result = twinrun.compare(a, b, fields=levels)
    assert [f.field for f in result.fields if not f.same] == ["level-1/velocity"]
    assert sum(f.different or 0 for f in result.fields) == 1


def fab(dtype: str, low: tuple[int, ...], high: tuple[int, ...], array: np.ndarray) -> bytes:
    """A box as it lies in a file; array: (components, z, y, x)."""
    size = np.dtype(dtype).itemsize
    layout = "64 11 52 0 1 12 0 1023" if size == 8 else "32 8 23 0 1 9 0 127"
    places = range(1, size + 1) if dtype.startswith(">") else range(size, 0, -1)
    box = f"(({','.join(map(str, low))}) ({','.join(map(str, high))}) ({','.join('0' * len(low))}))"
    text = f"FAB ((8, ({layout})),({size}, ({' '.join(map(str, places))}))){box} {len(array)}\n"
    return text.encode() + array.astype(dtype).tobytes()


@pytest.mark.parametrize("dtype", [">f8", ">f4", "<f4"])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("ghosts", [0, 2])
def test_other_orders_dimensions_and_ghost_cells(tmp_path, dtype, dimensions, ghosts):
    rng = np.random.default_rng(dimensions)
    size = (4, 3, 2)[:dimensions]
    whole = rng.normal(size=size[::-1])
    cut = 2  # two boxes along x
    (tmp_path / "plt1" / "Level_0").mkdir(parents=True)
    data, places, boxes = b"", [], []
    for x in (0, cut):
        low, high = (x, *[0] * (dimensions - 1)), (x + cut - 1, *[n - 1 for n in size[1:]])
        boxes.append(
            f"(({','.join(map(str, low))}) ({','.join(map(str, high))}) ({','.join('0' * dimensions)}))"
        )
        sizes = [b - a + 1 + 2 * ghosts for a, b in zip(low, high, strict=True)]
        part = np.full([1, *sizes[::-1]], -1.0)
        inner = (0, *[slice(ghosts, n - ghosts) for n in part.shape[1:]])
        part[inner] = whole[..., x : x + cut]
        places.append(f"FabOnDisk: Cell_D_00000 {len(data)}")
        data += fab(dtype, tuple(a - ghosts for a in low), tuple(b + ghosts for b in high), part)
    domain = f"(({','.join('0' * dimensions)}) ({','.join(str(n - 1) for n in size)}) ({','.join('0' * dimensions)}))"
    edges = "0 1\n" * (2 * dimensions)
    (tmp_path / "plt1" / "Header").write_text(
        f"HyperCLaw-V1.1\n1\nthe density\n{dimensions}\n0.5\n0\n{'0 ' * dimensions}\n{'1 ' * dimensions}\n\n{domain}\n7\n"
        f"{'0.1 ' * dimensions}\n0\n0\n0 2 0.5\n7\n{edges}Level_0/Cell\n"
    )
    (tmp_path / "plt1" / "Level_0" / "Cell_D_00000").write_bytes(data)
    (tmp_path / "plt1" / "Level_0" / "Cell_H").write_text(
        f"1\n1\n1\n{ghosts}\n(2 0\n" + "\n".join(boxes) + "\n)\n2\n" + "\n".join(places) + "\n\n2,1\n0,\n0,\n"
    )
    with open_file(tmp_path / "plt1") as content:
        geometry = np.array([0.0] * dimensions + [1.0] * dimensions)
        check_content(content, {"level-0/the density": whole.astype(dtype).T, "geometry": geometry})
    if ghosts:
        with pytest.raises(Unsupported, match="ghost"):
            open_file(tmp_path / "plt1", place=False)


def test_headers_without_text_before_the_boxes(tmp_path):
    """VisMF's versions 2 and 3: the kind of numbers stands at the end of Cell_H."""
    path = copied(tmp_path, "d")
    level = path / "Level_0"
    data = (level / "Cell_D_00000").read_bytes()
    starts = [m.start() for m in re.finditer(rb"FAB \(\(8", data)]
    out, places = b"", []
    for start, stop in zip(starts, [*starts[1:], len(data)], strict=True):
        places.append(len(out))
        out += data[data.index(b"\n", start) + 1 : stop]
    text = (level / "Cell_H").read_text()
    for start, place in zip(starts, places, strict=True):
        text = text.replace(f"00000 {start}\n", f"00000 {place}\n", 1)
    (level / "Cell_D_00000").write_bytes(out)
    native = "((8, (64 11 52 0 1 12 0 1023)),(8, (8 7 6 5 4 3 2 1)))\n"
    (level / "Cell_H").write_text(text.replace("1\n", "3\n", 1) + native)
    with open_file(path) as content:
        check_field(content.fields["level-0/density"], expected()["level-0/density"], in_extents=True)
    (level / "Cell_H").write_text(text.replace("1\n", "2\n", 1))
    with pytest.raises(DamagedFile, match="type of its numbers"):
        open_file(path)


def test_contradictions(tmp_path):
    for file, old, new, words in (
        ("Header", "\n2\ndensity", "\n3\ndensity", "instead of a number|components"),
        ("Header", "Level_0/Cell", "../../etc/Cell", "outside of the plotfile"),
        ("Header", "Level_0/Cell", "Level_9/Cell", "no such file"),
        (
            "Level_0/Cell_H",
            "FabOnDisk: Cell_D_00000 0",
            "FabOnDisk: /etc/passwd 0",
            "outside of the plotfile",
        ),
        ("Level_0/Cell_H", "FabOnDisk: Cell_D_00000 0", "FabOnDisk: Cell_D_00000 1", "no box at byte 1"),
        (
            "Level_0/Cell_H",
            "FabOnDisk: Cell_D_00000 0",
            "FabOnDisk: Cell_D_00000 99999999",
            "a box begins at byte",
        ),
        ("Level_0/Cell_H", "((0,0,0) (3,3,3)", "((0,0,0) (3,3,9)", "not the box that Cell_H lists"),
        ("Level_0/Cell_H", "((0,0,0) (3,3,3)", "((0,0,0) (3,3,-3)", "empty"),
        ("Level_0/Cell_H", "(8 0", "(7 0", "end of the boxes"),
        ("tracers/Header", "\n40\n", "\n41\n", "41 particles"),
        ("tracers/Header", "0 5 0\n", "0 5 9999999\n", "extend beyond its end"),
    ):
        path = copied(tmp_path)
        edit(path / file, old, new)
        with pytest.raises(FormatError, match=words):
            open_file(path)
    path = copied(tmp_path)
    with open(path / "Level_1" / "Cell_D_00000", "r+b") as data:
        data.truncate(1000)
    with pytest.raises(DamagedFile, match="is the plotfile complete"):
        open_file(path)
    os.remove(path / "Level_1" / "Cell_D_00000")
    with pytest.raises(MissingFile):
        open_file(path)


def test_files_that_change_after_opening(tmp_path):
    path = copied(tmp_path)
    with open_file(path) as content:
        os.truncate(path / "Level_0" / "Cell_D_00000", 100)
        with pytest.raises(FormatError, match="too early"):
            content.fields["level-0/density"].elements()


@settings(max_examples=100)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = copied(tmp_path)
    name = data.draw(
        st.sampled_from(
            ["Header", "Level_0/Cell_H", "Level_0/Cell_D_00000", "tracers/Header", "Level_1/Cell_H"]
        )
    )
    (path / name).write_bytes(data.draw(mutations((path / name).read_bytes())))
    try:
        with open_file(path, format="amrex", place=data.draw(st.sampled_from([None, False]))) as content:
            for field in content.fields.values():
                count = min(field.size, 1000)
                assert field.elements(0, count).size == count
                assert field.elements(field.size - count, count).size == count
    except FormatError as error:
        assert str(error).isprintable()
