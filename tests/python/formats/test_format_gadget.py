"""fixtures/gadget holds a snapshot that pynbody wrote; other forms are laid out here as the user guide of GADGET-2 tells (section 6)."""

import struct
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, mutations, not_numbers, survives
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, FormatError
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder

FIXTURES = Path(__file__).parent / "fixtures" / "gadget"
COUNTS = (3, 5, 0, 0, 2, 0)
MASSES = (0.0, 0.25, 0.0, 0.0, 0.0, 0.0)
OF = {"MASS": (0, 4), "U": (0,), "RHO": (0,), "HSML": (0,), "AGE": (4,), "WIND": (0,)}
OF_HEADER = {
    "Header/MassTable": np.array(MASSES), "Header/Time": np.array([0.5]), "Header/Redshift": np.array([1.0]),
    "Header/BoxSize": np.array([100.0]), "Header/Omega0": np.array([0.3]), "Header/OmegaLambda": np.array([0.7]),
    "Header/HubbleParam": np.array([0.7]),
}  # fmt: skip
NAMES = {
    "POS": "Coordinates", "VEL": "Velocities", "ID": "ParticleIDs", "MASS": "Masses", "U": "InternalEnergy",
    "RHO": "Density", "HSML": "SmoothingLength", "POT": "Potential", "AGE": "StellarFormationTime", "WIND": "WIND",
}  # fmt: skip


def header(mark: str = "<", files: int = 1, counts: tuple[int, ...] = COUNTS) -> bytes:
    data = struct.pack(
        mark + "6i6d2d2i6I2i4d", *counts, *MASSES, 0.5, 1.0, 0, 0, *counts, 0, files, 100, 0.3, 0.7, 0.7
    )
    return data.ljust(256, b"\0")


def record(data: bytes, mark: str) -> bytes:
    length = struct.pack(mark + "I", len(data))
    return length + data + length


def blocks(labels: str, floats: str = "f4", ids: str = "u4") -> dict[str, dict[int, np.ndarray]]:
    """{label: {type: array}}"""
    rng = np.random.default_rng(1)
    result: dict[str, dict[int, np.ndarray]] = {}
    first = 1
    for label in labels.split():
        for t in OF.get(label, (0, 1, 4)):
            if label == "ID":
                made = np.arange(first, first + COUNTS[t], dtype=ids)[::-1]
                first += COUNTS[t]
            else:
                made = rng.random((COUNTS[t], 3) if label in ("POS", "VEL") else COUNTS[t]).astype(floats)
            result.setdefault(label, {})[t] = made
    return result


def snapshot(
    made: dict[str, dict[int, np.ndarray]], mark: str = "<", labelled: bool = False, files: int = 1
) -> bytes:
    def labelling(label: str, length: int) -> bytes:
        return (
            record(label.ljust(4).encode() + struct.pack(mark + "i", length + 8), mark) if labelled else b""
        )

    out = labelling("HEAD", 256) + record(header(mark, files), mark)
    for label, parts in made.items():
        data = b"".join(a.astype(a.dtype.newbyteorder(mark)).tobytes() for a in parts.values())
        out += labelling(label, len(data)) + record(data, mark)
    return out


def expected(
    made: dict[str, dict[int, np.ndarray]], other: dict[str, str] | None = None
) -> dict[str, np.ndarray]:
    names = NAMES | (other or {})
    particles = {f"PartType{t}/{names[label]}": a for label, parts in made.items() for t, a in parts.items()}
    return particles | OF_HEADER


def test_a_snapshot_of_pynbody():
    truth = np.load(FIXTURES / "snapshot_002.npz")
    path = FIXTURES / "snapshot_002"
    assert detect(path).name == "gadget"
    with open_file(path) as content:
        arrays = {}
        for name, label in (
            ("pos", "Coordinates"),
            ("vel", "Velocities"),
            ("iord", "ParticleIDs"),
            ("mass", "Masses"),
        ):
            parts = np.split(truth[name], [3, 8])
            for t, part in enumerate(parts):
                arrays[f"PartType{t}/{label}"] = part.astype("u4" if name == "iord" else "f4")
        arrays |= {"PartType0/InternalEnergy": truth["u"].astype("f4")}
        arrays["PartType0/Density"] = truth["rho"].astype("f4")
        check_content(content, arrays | OF_HEADER | {"Header/MassTable": np.zeros(6)}, in_extents=True)
        assert content.time == 0.5 and content.period == (100, 100, 100)


@pytest.mark.parametrize("mark", "<>")
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(("floats", "ids"), [("f4", "u4"), ("f8", "u8"), ("f4", "u8")])
def test_both_forms_orders_and_precisions(tmp_path, mark, labelled, floats, ids):
    made = blocks("POS VEL ID MASS U RHO HSML", floats, ids)
    path = tmp_path / "snapshot_010"
    path.write_bytes(snapshot(made, mark, labelled))
    assert detect(path).name == "gadget"
    with open_file(path) as content:
        check_content(content, expected(made), in_extents=True)
        x = content.fields["PartType4/Coordinates"]
        assert (x.key, x.group) == ("PartType4/ParticleIDs", "PartType4")
        assert x.byte_order == ("little" if mark == "<" else "big")
        assert content.period == (100, 100, 100) and content.notes == []


def test_more_blocks(tmp_path):
    path = tmp_path / "snapshot_010"
    made = blocks("POS VEL ID MASS U RHO HSML POT AGE WIND", "f8")
    path.write_bytes(snapshot(made, labelled=True))
    with open_file(path) as content:
        check_content(content, expected(made), in_extents=True)
    with pytest.raises(FormatError, match="names its blocks itself"):
        open_file(path, blocks="POT")
    made = blocks("POS VEL ID MASS U RHO HSML POT WIND")
    path.write_bytes(snapshot(made))
    with open_file(path) as content:
        check_content(content, expected(made, {"POT": "block-8", "WIND": "block-9"}), in_extents=True)
    with open_file(path, blocks="POT WIND") as content:
        check_content(content, expected(made), in_extents=True)
    odd = made | {"WIND": {0: np.zeros(7, "u1")}}
    path.write_bytes(snapshot(odd))
    with open_file(path) as content:
        assert not content.skipped and not_numbers(content) == {"block-9": "bytes"}
        assert content.fields["block-9"].elements().tobytes() == bytes(7)
    # Initial conditions end earlier.
    short = blocks("POS VEL ID")
    path.write_bytes(snapshot(short))
    with open_file(path) as content:
        check_content(content, expected(short))


def test_a_folder_of_snapshots_in_several_files(tmp_path):
    for step in (9, 10):
        for number in range(2):
            (tmp_path / f"snapshot_{step:03}.{number}").write_bytes(
                snapshot(blocks("POS VEL ID MASS"), files=2)
            )
    listing = list_folder(tmp_path)
    assert [(f.step, f.rank, f.format, f.prefix) for f in listing.files] == [
        (s, r, "gadget", "snapshot") for s in (9, 10) for r in (0, 1)
    ]
    with listing.files[0].open() as content:
        assert "one of the 2 files" in content.notes[0] and "Header/MassTable" in content.fields
    with listing.files[1].open() as content:
        assert "Header/MassTable" not in content.fields  # told once
    alone = tmp_path / "alone.7"  # a number of another kind: the snapshot has one file
    alone.write_bytes(snapshot(blocks("POS VEL ID MASS")))
    with open_file(alone) as content:
        assert "Header/MassTable" in content.fields


def test_contradictions(tmp_path):
    path = tmp_path / "snapshot_010"
    made = blocks("POS VEL ID MASS")
    good = snapshot(made)
    labelled = snapshot(made, labelled=True)
    for data, words in {
        good[:-1]: "bytes, but",
        good[:-4]: "a block of",
        good + bytes(5): "5 bytes after",
        good[:260] + b"\1\1\0\0" + good[264:]: "before its data and 257 after it",
        good[:264] + record(bytes(7), "<"): "POS: 7 bytes",
        labelled[:16] + record(bytes(255), "<"): "header does not have 256",
        labelled + record(b"VELX\0\0\0\0", "<"): "after the label 'VELX'",
        labelled + record(b"VEL", "<"): "instead of a label",
        labelled + record(bytes(8), "<"): "is empty",
        b"": "is empty",
    }.items():
        path.write_bytes(data)
        with pytest.raises(DamagedFile, match=words):
            open_file(path, format="gadget")


@settings(max_examples=200)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    made = blocks("POS VEL ID MASS U")
    good = snapshot(made, data.draw(st.sampled_from("<>")), data.draw(st.booleans()))
    survives(tmp_path / "x", data.draw(mutations(good)), format="gadget")
