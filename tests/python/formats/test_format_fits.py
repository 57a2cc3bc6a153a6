"""Files that astropy writes, against what astropy reads of them."""

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, mutations, no_false_same, survives, texts
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, MissingPackage, TwinrunError, Uncompared
from twinrun.formats import detect, open_file

fits = pytest.importorskip("astropy.io.fits")
pytestmark = pytest.mark.filterwarnings("ignore")

IMAGES = {
    "i2": [3, -4],
    "i4": [3, -4],
    "i8": [3, -4],
    "u1": [3, 250],
    "u2": [3, 65000],
    "u4": [3, 4_000_000_000],
    "u8": [3, 18_000_000_000_000_000_000],
    "i1": [3, -100],
    "f4": [0.5, np.nan],
    "f8": [0.5, -np.inf],
}


def image_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return np.resize(np.array(IMAGES[dtype], dtype), count).reshape(shape)


@pytest.mark.parametrize("dtype", IMAGES)
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5)])
def test_images_of_every_type(tmp_path, dtype, shape):
    data = image_of(dtype, shape)
    unit = fits.PrimaryHDU(data)
    unit.header["EXPTIME"] = (30.5, "[s] time of exposure")
    fits.HDUList([unit, fits.ImageHDU(data[..., ::-1], name="SCI", ver=2)]).writeto(tmp_path / "a.fits")
    assert detect(tmp_path / "a.fits").name == "fits"
    with open_file(tmp_path / "a.fits") as content:
        assert list(content.fields) == ["PRIMARY", "SCI-2"] and not content.skipped
        stored = dtype in ("i2", "i4", "i8", "u1", "f4", "f8")
        check_field(content.fields["PRIMARY"], data, in_extents=stored)
        check_field(content.fields["SCI-2"], np.ascontiguousarray(data[..., ::-1]))
        assert content.facts["PRIMARY@EXPTIME"].text == "30.5"
        assert "time of exposure" in content.facts["PRIMARY@(comments)"].text
        assert not any("BZERO" in label or "CHECKSUM" in label for label in content.facts)
    with open_file(tmp_path / "a.fits", attributes=True) as content:
        assert content.fields["PRIMARY@EXPTIME"].elements().tolist() == [30.5]


def test_scaled_integers_are_compared_as_stored_and_that_is_said(tmp_path):
    for name, zero in (("a", 3.0), ("b", 3.0), ("c", 4.0)):
        unit = fits.PrimaryHDU(np.arange(6, dtype="i2"))
        unit.header["BSCALE"], unit.header["BZERO"], unit.header["BLANK"] = 0.5, zero, -99
        fits.HDUList([unit]).writeto(tmp_path / f"{name}.fits")
    result = twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits")
    assert result.same and "as stored: PRIMARY (scale 0.5, zero 3.0)" in str(result.notes)
    assert twinrun.compare(tmp_path / "a.fits", tmp_path / "c.fits").verdict == "different"


COLUMNS = [
    ("short", "I", np.array([1, -2, 3], "i2")),
    ("long", "3J", np.arange(9, dtype="i4").reshape(3, 3)),
    ("wide", "K", np.array([1, 2, 1 << 60])),
    ("byte", "B", np.array([1, 2, 255], "u1")),
    ("single", "E", np.array([0.5, np.nan, 2], "f4")),
    ("double", "2D", np.arange(6.0).reshape(3, 2)),
    ("pair", "C", np.array([1 + 2j, 3, 4j], "c8")),
    ("pairs", "M", np.array([1 + 2j, 3, 4j], "c16")),
]


def table(**changed: object) -> "fits.BinTableHDU":
    columns = [fits.Column(name, form, array=changed.get(name, data)) for name, form, data in COLUMNS]
    cube = fits.Column("cube", "12E", dim="(3,2,2)", array=np.arange(36.0).reshape(3, 2, 2, 3))
    whole = fits.Column("whole", "J", bzero=1 << 31, array=np.array([1, 2, 4_000_000_000], "u4"))
    name = fits.Column("name", "6A", array=changed.get("name", ["a", "bcd", "efghij"]))
    flags = fits.Column("flags", "2L", array=np.array([[True, False], [False, True], [True, True]]))
    bits = fits.Column("bits", "11X", array=np.arange(33).reshape(3, 11) % 3 == 0)
    lists = np.empty(3, object)
    lists[:] = changed.get("lists", [np.array([1.5, 2.5], "f4"), np.array([], "f4"), np.array([7], "f4")])
    made = fits.BinTableHDU.from_columns(
        [*columns, cube, whole, name, flags, bits, fits.Column("lists", "PE()", array=lists, unit="m")],
        name="EVENTS",
    )
    made.header["TUNIT1"] = changed.get("unit", "keV")
    return made


def test_tables(tmp_path):
    table().writeto(tmp_path / "a.fits")
    with open_file(tmp_path / "a.fits") as content:
        assert not content.skipped and not content.notes
        for name, _, data in COLUMNS:
            check_field(content.fields[f"EVENTS/{name}"], data)
        check_field(content.fields["EVENTS/cube"], np.arange(36, dtype="f4").reshape(3, 2, 2, 3))
        check_field(content.fields["EVENTS/whole"], np.array([1, 2, 4_000_000_000], "u4"))
        assert texts(content.fields["EVENTS/name"]) == ["'a'", "'bcd'", "'efghij'"]
        assert texts(content.fields["EVENTS/lists"]) == ["[1.5, 2.5]", "[]", "[7.0]"]
        assert content.fields["EVENTS/flags"].elements().tobytes() == b"TFFTTT"
        assert content.fields["EVENTS/bits"].tell(0) == "10010010"
        assert content.facts["EVENTS/short@TUNIT"].meaning
        assert content.fields["EVENTS/byte"].extents is not None


CHANGES = {
    "short": np.array([1, -2, 4], "i2"),
    "long": np.arange(1, 10, dtype="i4").reshape(3, 3),
    "single": np.array([0.5, np.nan, 3], "f4"),
    "pairs": np.array([1 + 2j, 3, 5j]),
    "name": ["a", "bcd", "efghi"],
    "lists": [np.array([1.5], "f4"), np.array([2.5], "f4"), np.array([7], "f4")],
    "unit": "eV",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_a_table_is_found_in_its_column(tmp_path, what):
    table().writeto(tmp_path / "a.fits")
    table(**{what: CHANGES[what]}).writeto(tmp_path / "b.fits")
    result = twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits")
    assert result.verdict == "different"
    named = [f.field for f in result.fields if f.different]
    assert named == ([] if what == "unit" else [f"EVENTS/{what}"])


def test_tables_of_text_are_texts(tmp_path):
    columns = [
        fits.Column("n", "I5", ascii=True, array=np.array([1, 22, -3])),
        fits.Column("x", "E12.4", ascii=True, array=np.array([0.5, 2, 1e10])),
    ]
    fits.TableHDU.from_columns(columns, name="OLD").writeto(tmp_path / "a.fits")
    with open_file(tmp_path / "a.fits") as content:
        assert [float(eval(t)) for t in texts(content.fields["OLD/x"])] == [0.5, 2, 1e10]
        assert [int(eval(t)) for t in texts(content.fields["OLD/n"])] == [1, 22, -3]


@pytest.mark.parametrize("kind", ["RICE_1", "GZIP_2", "HCOMPRESS_1", "PLIO_1"])
def test_compressed_images_are_what_astropy_decodes(tmp_path, kind):
    rng = np.random.default_rng(3)
    number = rng.integers(0, 900, (40, 50)).astype("i2")
    shifted = rng.integers(0, 60_000, (40, 50)).astype("u2")
    units = [
        fits.PrimaryHDU(),
        fits.CompImageHDU(number, name="N", compression_type=kind, tile_shape=(10, 10)),
    ]
    if kind == "RICE_1":
        units.append(fits.CompImageHDU(shifted, name="U", compression_type=kind))
    if kind in ("RICE_1", "GZIP_2"):
        real = rng.normal(size=(40, 50)).astype("f4")
        real[3, 4] = np.nan
        units.append(fits.CompImageHDU(real, name="F", compression_type=kind, quantize_level=16))
    fits.HDUList(units).writeto(tmp_path / "a.fits")
    with fits.open(tmp_path / "a.fits") as file, open_file(tmp_path / "a.fits") as content:
        assert sorted(content.fields) == sorted(unit.name for unit in file[1:])
        for unit in file[1:]:
            check_field(content.fields[unit.name], unit.data.astype(unit.data.dtype.newbyteorder("=")))
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(number, name="N")]).writeto(tmp_path / "plain.fits")
    fits.HDUList(units[:2]).writeto(tmp_path / "one.fits")
    # How an image is stored is no difference.
    assert twinrun.compare(tmp_path / "plain.fits", tmp_path / "one.fits").same


def test_without_astropy_only_compressed_images_need_it(tmp_path, monkeypatch):
    data = np.arange(200, dtype="i2").reshape(10, 20)
    fits.HDUList([fits.PrimaryHDU(data)]).writeto(tmp_path / "a.fits")
    fits.HDUList([fits.PrimaryHDU(), fits.CompImageHDU(data)]).writeto(tmp_path / "b.fits")
    monkeypatch.setitem(sys.modules, "astropy", None)
    with open_file(tmp_path / "a.fits") as content:
        check_field(content.fields["PRIMARY"], data)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[fits\]'"):
        open_file(tmp_path / "b.fits")


def test_headers_are_what_astropy_reads(tmp_path):
    unit = fits.PrimaryHDU(np.zeros(3, "f4"))
    header = unit.header
    header["LONGTEXT"] = ("it's " + "long " * 40, "of several cards")
    header["HIERARCH ESO DET NAME"] = ("ccd", "of a house")
    header["EMPTY"] = (None, "no value")
    header["PAIR"] = 1 + 2j
    header["FLAG"] = True
    header["SMALL"] = 1.5e-30
    header["QUOTE"] = "a 'word'"
    header["BLANKTXT"] = ""
    header.add_history("first")
    header.add_history("second")
    header.add_comment("seen")
    unit.writeto(tmp_path / "a.fits")
    from twinrun.formats.fits_header import parse_header

    with open(tmp_path / "a.fits", "rb", buffering=0) as file:
        found = parse_header(file, 0, (tmp_path / "a.fits").stat().st_size, "a.fits")
    with fits.open(tmp_path / "a.fits") as read:
        cards = {k: v for k, v in read[0].header.items() if k not in ("HISTORY", "COMMENT", "")}
        comments = {k: read[0].header.comments[k] for k in cards if read[0].header.comments[k]}
    cards = {k: None if isinstance(v, fits.card.Undefined) else v for k, v in cards.items()}
    assert {k: v.rstrip() if isinstance(v, str) else v for k, v in cards.items()} == found.values
    assert comments == found.comments
    assert found.commentary["HISTORY"] == ["first", "second"] and found.commentary["COMMENT"] == ["seen"]


def test_what_cannot_be_compared_is_said(tmp_path):
    groups = fits.GroupsHDU(
        fits.GroupData(np.zeros((2, 1, 3), "f4"), bitpix=-32, parnames=["u"], pardata=[np.zeros(2, "f4")])
    )
    fits.HDUList([groups]).writeto(tmp_path / "a.fits")
    with open_file(tmp_path / "a.fits") as content:
        assert [name for name, _ in content.skipped] == ["PRIMARY"]
    with pytest.raises(Uncompared, match="write its data as an image or a table"):
        twinrun.compare(tmp_path / "a.fits", tmp_path / "a.fits")


# Comments of cards that say how data lie in the file are not looked at.
LAYOUT = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|TFIELDS|THEAP|EXTNAME|(BSCALE|BZERO|T[A-Z]+\d+)"
)


def all_kinds(path: Path) -> None:
    first = fits.PrimaryHDU(np.arange(6, dtype="f4"))
    first.header["OBJECT"] = ("M31", "what was seen")
    second = fits.ImageHDU(np.arange(6, dtype="u2").reshape(2, 3), name="SCI")
    fits.HDUList([first, second, table()]).writeto(path, overwrite=True)


def shown(path: Path) -> object:
    """What astropy shows of a file: headers without sums and layout, and data."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with fits.open(path, memmap=False, lazy_load_hdus=False) as file:
            for unit in file:
                cards = sorted(
                    (card.keyword, repr(card.value), "" if LAYOUT.fullmatch(card.keyword) else card.comment)
                    for card in unit.header.cards
                    if card.keyword not in ("CHECKSUM", "DATASUM")
                )
                data = unit.data
                if data is None:
                    parts = []
                elif data.dtype.names:
                    parts = [repr(np.asarray(data[n]).tolist()) for n in data.dtype.names]
                else:
                    parts = [data.dtype.str, data.shape, data.tobytes()]
                found.append((unit.name, cards, parts))
    return found


@pytest.mark.parametrize("where", [b"= ", b"'3A", b"'one ", b"NAXIS   ", b"                    2"])
@pytest.mark.parametrize("character", [b"\t", b"\x00", b"\x1f", b"\r"])
def test_control_characters_in_a_card_are_a_difference(tmp_path, where, character):
    table = fits.BinTableHDU.from_columns([fits.Column("word", "3A", array=["a", "b"])], name="one")
    fits.HDUList([fits.PrimaryHDU(np.arange(6).reshape(2, 3)), table]).writeto(tmp_path / "a.fits")
    data = (tmp_path / "a.fits").read_bytes()
    at = data.lower().index(where.lower())
    at += where.index(b" ") if b" " in where else -1
    (tmp_path / "b.fits").write_bytes(data[:at] + character + data[at + 1 :])
    try:
        assert twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits").verdict != "same"
    except TwinrunError:
        pass


def test_damage_is_never_the_same(tmp_path):
    all_kinds(tmp_path / "a.fits")
    good = (tmp_path / "a.fits").read_bytes()
    verdicts = no_false_same(tmp_path / "a.fits", damaged_versions(good, 5, flips=200), shown)
    assert verdicts["error"] >= 10 and verdicts["different"] >= 5


def test_damage_of_compressed_images(tmp_path):
    data = np.random.default_rng(1).integers(0, 900, (30, 40)).astype("i4")
    fits.HDUList([fits.PrimaryHDU(), fits.CompImageHDU(data, name="N")]).writeto(tmp_path / "a.fits")
    good = (tmp_path / "a.fits").read_bytes()
    versions = damaged_versions(good[:-1], 6, cuts=2, flips=0)
    at = good.index(b"N       ") + 2880 - 100
    for place in range(at, len(good) - 600, 400):
        versions.append(good[:place] + bytes([good[place] ^ 0x24]) + good[place + 1 :])
    verdicts = no_false_same(tmp_path / "a.fits", versions, shown)
    assert verdicts.get("different", 0) + verdicts.get("error", 0) >= 3


def test_bytes_after_the_end_are_an_error_unless_they_are_zero(tmp_path):
    fits.PrimaryHDU(np.arange(3, dtype="f4")).writeto(tmp_path / "a.fits")
    good = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "b.fits").write_bytes(good + b"\0" * 5000)
    assert twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits").same
    (tmp_path / "b.fits").write_bytes(good + b"\0" * 5000 + b"x")
    with pytest.raises(DamagedFile, match="no header of FITS at byte 5760, after 1 headers"):
        open_file(tmp_path / "b.fits")
    (tmp_path / "b.fits").write_bytes(good[:-2860])
    with pytest.raises(DamagedFile, match="need 2880 bytes, and 20 are left"):
        open_file(tmp_path / "b.fits")


@settings(max_examples=150)
@given(st.data())
def test_mutations_end_in_format_errors(tmp_path, data):
    path = tmp_path / "good.fits"
    if not path.exists():
        all_kinds(path)
    survives(tmp_path / "x.fits", data.draw(mutations(path.read_bytes())), format="fits")


def test_a_file_that_is_written_again_in_its_place_shows_what_it_is_now(tmp_path):
    data = np.arange(200, dtype="i2").reshape(10, 20)
    for name in ("a", "b"):
        fits.HDUList([fits.PrimaryHDU(), fits.CompImageHDU(data, name="N")]).writeto(
            tmp_path / f"{name}.fits"
        )
    assert twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits").same
    other = data.copy()
    other[3, 4] = 9
    fits.HDUList([fits.PrimaryHDU(), fits.CompImageHDU(other, name="N")]).writeto(tmp_path / "c.fits")
    with open(tmp_path / "b.fits", "r+b") as file:  # the same file, with other bytes
        file.truncate(0)
        file.write((tmp_path / "c.fits").read_bytes())
    result = twinrun.compare(tmp_path / "a.fits", tmp_path / "b.fits")
    assert [(f.field, f.different, f.first_index) for f in result.fields] == [("N", 1, (3, 4))]
