"""Tables: text and Parquet, by column."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command
from format_checks import check_content, mutations, survives
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import twinrun
from twinrun import golden
from twinrun.comparison.words import verdict_line
from twinrun.errors import FormatError
from twinrun.formats import detect, open_file
from twinrun.formats.texts import text_digests

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def columns(path: Path, **options: object) -> dict[str, np.ndarray]:
    with open_file(path, **options) as content:
        assert content.format == "table"
        return {n: f.elements().reshape(f.shape) for n, f in content.fields.items()}


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def texts(*values: object) -> list:
    return text_digests(values).tolist()


# ---- text ----


def test_what_numpy_writes(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(50, 3)) * 10.0 ** np.arange(-300, 300, 4).reshape(50, 3)
    np.savetxt(tmp_path / "t.dat", values, fmt="%.17g", header="x y z")
    found = columns(tmp_path / "t.dat")
    assert list(found) == ["x", "y", "z"]
    np.testing.assert_array_equal(np.stack(list(found.values()), 1), values)  # every bit
    np.savetxt(tmp_path / "u.txt", values, delimiter=",", header="made by a test", fmt="%.17g")
    found = columns(tmp_path / "u.txt")
    assert list(found) == ["column_0", "column_1", "column_2"]
    np.testing.assert_array_equal(found["column_2"], values[:, 2])
    np.savetxt(tmp_path / "one.dat", values[:, 0])
    assert list(columns(tmp_path / "one.dat")) == ["column_0"]


def test_what_pandas_writes(tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "x": np.random.default_rng(2).normal(size=7), "n": np.arange(7) - 3, "big": np.full(7, (1 << 64) - 1, np.uint64),
        "ok": [True, False] * 3 + [True], "name": ["a", 'b "q", c', "d\ne", "", "NA", "1", " f "],
    })  # fmt: skip
    for index in (True, False):
        frame.to_csv(tmp_path / "t.csv", index=index)
        found = columns(tmp_path / "t.csv")
        assert list(found) == ["index"] * index + ["x", "n", "big", "ok", "name@text"]
        for name in ("x", "n", "big", "ok"):
            np.testing.assert_array_equal(found[name], frame[name].to_numpy())
            assert found[name].dtype == frame[name].dtype
        assert found["name@text"].tolist() == texts(*frame["name"])
    frame.drop(columns="name").to_csv(tmp_path / "t.tsv", sep="\t")
    assert columns(tmp_path / "t.tsv")["n"].tolist() == list(range(-3, 4))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "a,b\r\n1,2\r\n3,4\r\n", {"a": [1, 3], "b": [2, 4]}),
        ("a.csv", "\ufeffa;b\n1;2.5\n3;4\n", {"a": [1, 3], "b": [2.5, 4]}),
        ("a.csv", "a,b\n1,\n,2.5\n", {"a": [1, np.nan], "b": [np.nan, 2.5]}),
        ("a.csv", "a,a,\n1,2,3\n", {"a": [1], "a#2": [2], "column_2": [3]}),
        ("a.txt", "  1 2.0\n 10   -inf\n", {"column_0": [1, 10], "column_1": [2, -np.inf]}),
        ("a.txt", "# n  v\n# second\n1 nan\n\n2 1e-3\n# end\n", {"column_0": [1, 2], "column_1": [np.nan, 1e-3]}),
        ("a.xvg", '# made\n@ title "t"\n0.0 1.5\n0.1 1.6\n', {"column_0": [0, 0.1], "column_1": [1.5, 1.6]}),
        ("a.txt", "x y\nr1 1 2\nr2 3 4\n", {"index@text": ["r1", "r2"], "x": [1, 3], "y": [2, 4]}),
        ("a.csv", "k,v\n9007199254740993,1\n,2\n", {"k@text": ["9007199254740993", ""], "v": [1, 2]}),
        ("a.csv", "k\n,\n", None),
    ],
)  # fmt: skip
def test_layouts(tmp_path: Path, name: str, text: str, expected: dict | None) -> None:
    path = written(tmp_path / name, text)
    if expected is None:
        return
    found = columns(path)
    assert list(found) == list(expected)
    for column, values in expected.items():
        if column.endswith("@text"):
            assert found[column].tolist() == texts(*values)
        else:
            np.testing.assert_array_equal(found[column], values)


def test_many_blocks(tmp_path: Path) -> None:
    """Types and rows of a file of several megabytes, with texts over two lines, read from anywhere."""
    n = 150_000
    frame = pd.DataFrame({
        "i": np.arange(n), "x": np.where(np.arange(n) == n - 1, 0.5, np.arange(n)),
        "t": [f'{i}, "line"\nnext' if i % 5 == 0 else str(i) for i in range(n)],
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert (tmp_path / "t.csv").stat().st_size > 3 << 20
    with open_file(tmp_path / "t.csv") as content:
        f = content.fields
        assert [x.dtype for x in f.values()] == ["i64", "f64", "u64"] and f["t@text"].shape == (n, 2)
        np.testing.assert_array_equal(f["x"].elements(), frame["x"])
        for first, count in ((0, 10), (n - 3, 3), (77_777, 40_000), (5, 1)):
            np.testing.assert_array_equal(f["i"].elements(first, count), np.arange(first, first + count))
            want = text_digests(frame["t"][first : first + count]).reshape(-1)
            np.testing.assert_array_equal(f["t@text"].elements(2 * first, 2 * count), want)
            np.testing.assert_array_equal(f["t@text"].elements(2 * first + 1, 2 * count - 1), want[1:])
        check_content(
            content,
            {"i": frame["i"].to_numpy(), "x": frame["x"].to_numpy(), "t@text": text_digests(frame["t"])},
        )


def test_differences_are_found(tmp_path: Path) -> None:
    a = written(tmp_path / "a.csv", "n,x,t\n1,0.5,u#1\n2,1.5,v\n")
    for text in (
        "n,x,t\n1,0.5,u#2\n2,1.5,v\n",
        "n,x,t\n1,0.5,u#1\n2,1.25,v\n",
        "n,x,t\n3,0.5,u#1\n2,1.5,v\n",
    ):
        b = written(tmp_path / "b.csv", text)
        assert twinrun.compare(a, a).same and not twinrun.compare(a, b)
    for text in ("n,y,t\n1,0.5,u#1\n2,1.5,v\n", "n,x,t\n1,0.5,u#1\n", "n,x,t\n1,a,u#1\n2,1.5,v\n"):
        with pytest.raises(twinrun.Incomparable):
            twinrun.compare(a, written(tmp_path / "b.csv", text))


def test_one_column_of_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name\nan apple\nb\n"c, d"\n')
    (tmp_path / "b.csv").write_text('name\r\n"an apple"\r\nb\r\n"c, d"\r\n')
    (tmp_path / "c.csv").write_text('name\nan apple\nB\n"c, d"\n')
    (tmp_path / "d.csv").write_text('other\nan apple\nb\n"c, d"\n')
    assert twinrun.compare(tmp_path / "a.csv", tmp_path / "b.csv").verdict == "same"
    assert twinrun.compare(tmp_path / "a.csv", tmp_path / "c.csv").verdict == "different"
    with pytest.raises(twinrun.TwinrunError):
        twinrun.compare(tmp_path / "a.csv", tmp_path / "d.csv")
    twinrun.index(tmp_path / "a.csv")
    assert twinrun.compare(tmp_path / "a.csv", tmp_path / "b.csv").verdict == "same"


def test_integers_beside_fractions(tmp_path: Path) -> None:
    """A column may happen to be integers in one run; as numbers they are compared all the same."""
    a = written(tmp_path / "a.dat", "1 0\n2 5\n")
    b = written(tmp_path / "b.dat", "1.0 1e-9\n2 5\n")
    for x, y in ((a, b), (b, a)):
        result = twinrun.compare(x, y)
        assert result.different == 1 and result.first_divergence["field"] == "column_1"
        assert twinrun.compare(x, y, atol=1e-6).same
        assert [part.index.tolist() for part in result.differences()] == [[[0]]]
    large = written(tmp_path / "c.dat", f"{(1 << 53) + 1} 0\n2 5\n")
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(large, b)


def test_metadata_alone_compares_as_its_file_does(tmp_path: Path) -> None:
    """1 in one text and 1.0 in the other: the verdict is that of the files, whichever side is metadata."""
    whole = written(tmp_path / "whole.csv", "x,y\n1,2\n2,3\n")
    same = written(tmp_path / "same.csv", "x,y\n1.0,2\n2,3\n")
    other = written(tmp_path / "other.csv", "x,y\n1.5,2\n2,3\n")
    text = written(tmp_path / "text.csv", "x,y\nno,2\n2,3\n")
    twinrun.index(whole, same, other, text)
    for b, status in ((same, 0), (other, 1), (text, 2)):
        for suffixes in (("", ""), (".twm", ""), ("", ".twm"), (".twm", ".twm")):
            for x, y in ((whole, b), (b, whole)):
                done = command("compare", f"{x}{suffixes[0]}", f"{y}{suffixes[1]}")
                assert done.status == status, (done, suffixes)
                assert status != 1 or (
                    done.last.startswith("different: first at x[0]: 1") and "|a-b| = 0.5 > 0" in done.last
                )
    (tmp_path / "moved").mkdir()
    os.rename(f"{whole}.twm", tmp_path / "moved" / "whole.csv.twm")  # its data is not at hand
    check_error(command("compare", tmp_path / "moved" / "whole.csv.twm", same), "i64", "types must agree")


def test_text_is_not_taken_for_numbers(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "t.dat", np.random.default_rng(3).random((100, 10)))
    path = tmp_path / "t.dat"
    assert path.stat().st_size % 8 == 0
    assert detect(str(path)).name == "table"
    for options in (
        {"dtype": "f64"},
        {"format": "raw", "dtype": "f64"},
        {"format": "raw", "fields": "x:f32,y:f32"},
    ):
        with pytest.raises(FormatError) as caught:
            open_file(path, **options)
        assert "printable" not in str(caught.value) and "add format=" not in str(caught.value)
    with pytest.raises(FormatError, match=r"holds text, not binary numbers.*format='table'"):
        open_file(path, format="raw", dtype="u8")
    (tmp_path / "no_lines").write_bytes(b"ABCDEFGH" * 100)  # no table has one line so long
    with pytest.raises(FormatError, match=r"holds text, not binary numbers.*printable"):
        open_file(tmp_path / "no_lines", format="raw", dtype="u8")
    os.rename(path, tmp_path / "t.f64")  # by a name that promises numbers
    with pytest.raises(FormatError, match="holds text"):
        open_file(tmp_path / "t.f64")
    with open_file(tmp_path / "t.f64", format="raw", dtype="f64", printable="true") as content:
        assert content.fields
    with pytest.raises(
        FormatError, match="holds text"
    ) as caught:  # no type is proposed for what is no table either
        open_file(written(tmp_path / "words.dat", "hello world\n"))
    assert "dtype" not in str(caught.value)
    (tmp_path / "b.dat").write_bytes(b"# a header of text\n" + np.arange(20.0).tobytes())
    with open_file(tmp_path / "b.dat", format="raw", dtype="f64", offset=19) as content:
        assert content.fields["b"].elements().tolist() == list(range(20))


@pytest.mark.parametrize(("delimiter", "compared"), [(",", True), ("\t", True), (";", True), (" ", False)])
def test_lines_in_front(tmp_path: Path, delimiter: str, compared: bool) -> None:
    rows = f"a{delimiter}b\n1{delimiter}2\n3{delimiter}4\n"
    fronts = {"c": "#c\n", "d": "#d\n", "e": ""}
    runs = [written(tmp_path / f"{name}.csv", front + rows) for name, front in fronts.items()]
    found = twinrun.compare(runs[0], runs[1])
    assert [d.text() for d in found.attributes] == ["@(comments): ['#c'] against ['#d']"] * compared
    assert twinrun.compare(runs[0], runs[2]).same is not compared
    assert twinrun.compare(runs[0], runs[0]).same


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.txt", "step 1 done\nstep 2 failed badly\n"),
        ("notes.md", "# title\n\nsome words\nand more words here\n"),
        ("params.yaml", "x: 1\ny: 2\n"),
        ("input.nml", "&run\n n = 3\n/\n"),
        ("code.py", "x = 1\ny = 2\n"),
        ("a.json", '{"a": 1}\n'),
        ("words.txt", "hello"),
        ("bytes.csv", b"a,b\n1,\x00\n"),
    ],
)
def test_what_is_no_table(tmp_path: Path, name: str, text: str | bytes) -> None:
    path = written(tmp_path / name, text)
    assert detect(str(path)) is None or detect(str(path)).name != "table" or name.endswith(".csv")
    with pytest.raises(FormatError):
        open_file(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", b""),
        ("t.csv", b"name\n"),
        ("t.csv", b"a,b\n"),
        ("t.csv", b"a,b\n1,2\n3,4,5\n"),
        ("t.csv", b"a,b\n" + b"1,2\n" * 400 + b"3,4,5\n"),
        ("t.csv", b"a,b\n1,\xe9\n"),
        ("t.csv", b"a,b\n1,\x00\n"),
        ("t.log", b"began\nended well\n"),
        ("t", b"some words\n"),
    ],
)
def test_text_that_is_no_table_is_compared_as_bytes(tmp_path: Path, name: str, text: bytes) -> None:
    for run, content in (("a", text), ("b", text), ("c", text[:-1] + b" ")):
        (tmp_path / run).mkdir()
        np.save(tmp_path / run / "x.npy", np.arange(3))
        written(tmp_path / run / name, content)
    for inner in (name, ""):  # alone, and beside others in a folder
        a, b, c = (tmp_path / run / inner for run in "abc")
        found = twinrun.compare(a, b)
        assert found.same and any("is compared as bytes" in note for note in found.notes)
        if text:
            assert [f.different for f in twinrun.compare(a, c).fields if f.field != "x"] == [1]
    written(tmp_path / "other", text)
    assert twinrun.compare(tmp_path / "a" / name, tmp_path / "other", options={"format": "bytes"}).same
    with pytest.raises(FormatError):
        twinrun.compare(tmp_path / "a" / name, tmp_path / "b" / name, options={"format": "table"})
    twinrun.index(tmp_path / "a")
    assert twinrun.compare(tmp_path / "a", tmp_path / "b").same


def test_a_damaged_parquet_file_is_no_text(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        written(tmp_path / name, b"some words\n")
    with pytest.raises(FormatError):
        twinrun.compare(tmp_path / "a.parquet", tmp_path / "b.parquet")


@pytest.mark.parametrize(
    "text",
    [b"a,b\n1,2\n3,4,5\n", b"a,b\n1,2\n3\n4,5,6\n", b'a,b\n1,"2\n', b"a,b\n1,\xff\n", b"\n\n\n", b""],
)
def test_damaged_text(tmp_path: Path, text: bytes) -> None:
    path = written(tmp_path / "t.csv", text)
    try:
        with open_file(path, format="table") as content:
            for f in content.fields.values():
                f.elements()
    except FormatError:
        pass


# Damage of all kinds: a line of error, or a content that agrees with itself.
HOSTILE = settings(
    max_examples=60, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@HOSTILE
@given(data=st.data())
def test_hostile_text(tmp_path: Path, data: st.DataObject) -> None:
    good = b'n,name,x\n1,a,0.5\n2,"b, c",\n3,d,1e9\n'
    survives(tmp_path / "t.csv", data.draw(mutations(good)), format="table")


# ---- Parquet ----


def sample() -> object:
    return pa.table({
        "x": pa.array([0.5, None, float("nan"), 4.0]), "n": pa.array([1, 2, 3, 4], pa.int16()), "m": pa.array([1, None, 3, 4]),
        "ok": [True, False, True, True], "name": ["a", None, "", "b"], "raw": [b"a", b"", b"c", None],
        "kind": pa.array(["u", "v", "u", None]).dictionary_encode(), "when": pa.array([0, 1, None, 3], pa.timestamp("ms", "UTC")),
        "day": pa.array([0, 1, 2, 3], pa.date32()), "list": [[1, 2], [], None, [3]], "pair": [{"a": 1}, {"a": 2}, None, {"a": 3}],
        "sum": pa.array(["1.10", "2.00", None, "3.00"]).cast(pa.decimal128(10, 2)), "half": pa.array(np.arange(4, dtype="f2")),
    })  # fmt: skip


def test_columns_of_parquet(tmp_path: Path) -> None:
    pq.write_table(sample(), tmp_path / "t.parquet", row_group_size=3)
    found = columns(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found["x"], [0.5, 0, np.nan, 4])
    assert found["x@mask"].tolist() == [False, True, False, False]
    assert found["n"].dtype == np.int16 and found["n"].tolist() == [1, 2, 3, 4]
    assert found["m"].tolist() == [1, 0, 3, 4] and found["m@mask"].tolist() == [False, True, False, False]
    assert found["ok"].tolist() == [True, False, True, True]
    assert found["name@text"].tolist() == texts("a", None, "", "b")
    assert found["raw@text"].tolist() == texts(b"a", b"", b"c", None)
    assert found["kind@text"].tolist() == texts("u", "v", "u", None)
    assert found["when"].tolist() == [0, 1, 0, 3] and found["when@mask"].tolist() == [
        False,
        False,
        True,
        False,
    ]
    assert found["day"].tolist() == [0, 1, 2, 3] and found["half"].dtype == np.float16
    assert len(np.unique(found["list@text"][:, 0])) == len(np.unique(found["pair@text"][:, 0])) == 4
    with open_file(tmp_path / "t.parquet") as content:
        check_content(content, found)


def test_parquet_in_any_storage_is_the_same(tmp_path: Path) -> None:
    table = sample()
    pq.write_table(table, tmp_path / "a.parquet")
    for at, options in enumerate(
        ({"compression": "gzip"}, {"use_dictionary": False}, {"row_group_size": 2}, {"version": "1.0"})
    ):
        pq.write_table(table, tmp_path / f"{at}.parquet", **options)
        assert twinrun.compare(
            tmp_path / "a.parquet", tmp_path / f"{at}.parquet", fields=["x", "n", "name@text"]
        ).same
    changed = table.set_column(4, "name", pa.array(["a", "", "", "b"]))
    pq.write_table(changed, tmp_path / "b.parquet")
    result = twinrun.compare(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert result.verdict == "different" and [f.field for f in result.fields if not f.same] == ["name@text"]


@pytest.mark.parametrize("missing", [0, 3])
def test_statistics_that_are_not_there(missing: int, tmp_path: Path) -> None:
    """A writer may leave them out: whether values are missing is in the column."""
    table = pa.table({"x": pa.array([None if i < missing else float(i) for i in range(200_000)])})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet", write_statistics=False, row_group_size=70_000)
    assert list(columns(tmp_path / "b.parquet")) == (["x", "x@mask"] if missing else ["x"])
    assert command("compare", tmp_path / "a.parquet", tmp_path / "b.parquet").status == 0


def test_a_value_that_one_run_lacks_is_a_difference(tmp_path: Path) -> None:
    """Some number is stored in its place: no distance to it is told, whatever the order of rows."""
    day = datetime.datetime(2020, 1, 2)
    columns_ = {
        "x": ([1.5, 2.5, 3.5], pa.float64(), ("2.5", "no value")),
        "i": ([5, 6, 7], pa.int64(), ("6", "no value")),
        "t": ([day] * 3, pa.timestamp("us"), ("2020-01-02T00:00:00.000000", "no value")),
        "b": ([True] * 3, pa.bool_(), ("1", "no value")),
        "s": (["u", "v", "w"], pa.string(), ("'v'", "None")),
    }
    for name, (values, kind, told) in columns_.items():
        lacking = [values[0], None, values[2]]
        a, b = tmp_path / f"{name}.parquet", tmp_path / f"{name}-lacks.parquet"
        for path, own in ((a, values), (b, lacking)):
            pq.write_table(pa.table({name: pa.array(own, kind), "id": [1, 2, 3]}), path)
        reordered = tmp_path / f"{name}-reordered.parquet"
        pq.write_table(pa.table({name: pa.array(lacking[::-1], kind), "id": [3, 2, 1]}), reordered)
        for other, key in ((b, []), (reordered, ["--key", "id"])):
            at = "[id 2]" if key else "[1]"
            label = f"{name}@text" if name == "s" else name
            done = command("compare", a, other, *key)
            assert done.status == 1
            of_it = next(line for line in done.out.splitlines() if line.startswith(f"{label} "))
            assert "█" in of_it and of_it.endswith("·")  # and no distance
            if name != "s" or not key:  # texts that are matched by ID have digests alone
                assert f"different: first at {label}{at}: {told[0]} against {told[1]}" in done.out
            back = command("compare", other, a, *key)
            assert back.status == 1
            if name != "s":
                assert f"different: first at {name}{at}: {told[1]} against {told[0]}" in back.out
        again = tmp_path / f"{name}-again.parquet"
        pq.write_table(pa.table({name: pa.array(lacking, kind), "id": [1, 2, 3]}), again)
        assert command("compare", b, again).status == 0


def test_decimal_commas_are_no_separators(tmp_path: Path) -> None:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("time;x\n1;2,5\n2;3,5\n")
    b.write_text("time;x\n1;2,5\n2;3,6\n")
    assert set(columns(a)) == {"time", "x@text"}
    found = twinrun.compare(a, b)
    assert (found.verdict, found.first_divergence["field"]) == ("different", "x@text")
    assert verdict_line(found).endswith("x@text[1]: '3,5' against '3,6'")
    a.write_text("name\n'a;b',1\n'c;d',2\n")  # names of rows, as R writes them
    assert set(columns(a)) == {"index@text", "name"}


def test_numbers_against_text_are_said(tmp_path: Path) -> None:
    """Integers that f64 does not hold are text beside fractions, and numbers beside integers."""
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("x,y\n1,9007199254740993\n2,3\n")
    b.write_text("x,y\n1,9007199254740993\n2,3.5\n")
    for one, other, said in (
        (a, b, "numbers in {a}, and text in {b}"),
        (b, a, "numbers in {a}, and text in {b}"),
    ):
        found = twinrun.compare(one, other, partial=True)
        (problem,) = map(str, found.problems)
        assert found.verdict == "incomparable"
        assert f"field 'y': {said.format(a=a, b=b)}; store numbers in both" in problem


def test_columns_that_are_called_as_what_is_made_of_others(tmp_path: Path) -> None:
    """x has missing values, or is text, and x@mask or x@text is a column of its own."""

    def saved(name: str, **changed: object) -> Path:
        made = {
            "x": [1.0, None],
            "x@mask": [1.5, 2],
            "x@mask#": [3, 4],
            "y": ["a", "b"],
            "y@text": [5, 6],
            "z@text": ["c", None],
        }
        pq.write_table(pa.table(made | changed), tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.parquet"

    a = saved("a")
    assert set(columns(a)) == {"x", "x@mask", "x@mask#", "x@mask##", "y@text", "y@text#", "z@text#@text"}
    assert command("compare", a, saved("b")).status == 0
    changes = {
        "x": [1.0, 2.0], "x@mask": [1.5, 3], "x@mask#": [3, 5], "y": ["a", "c"], "y@text": [5, 7], "z@text": ["d", None],
    }  # fmt: skip
    for name, values in changes.items():
        done = command("compare", a, saved("c", **{name: values}), "--atol", "0.1")
        assert done.status == 1, (name, done)
    assert command("compare", a, saved("d", **{"x@mask": [1.5, 2.25]}), "--atol", "0.5").status == 0
    # The same in text, and in memory.
    text = written(tmp_path / "t.csv", "y,y@text\na,5\nb,6\n")
    assert set(columns(text)) == {"y@text", "y@text#"}
    frame = pd.DataFrame({"x": pd.array([1, None], "Int64"), "x@mask": [1.5, 2.0]})
    arrow = pa.table({"x": pa.array([1, None]), "x@mask": [1.5, 2.0]})
    for made, changed in (
        (frame, frame.assign(**{"x@mask": [1.5, 3.0]})),
        (arrow, arrow.set_column(1, "x@mask", pa.array([1.5, 3.0]))),
    ):
        assert twinrun.compare(made, made).same
        found = [f.field for f in twinrun.compare(made, changed).fields if not f.same]
        assert found == ["x@mask#"]


def test_statistics_that_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing value is no 0, whatever the footer tells."""
    pq.write_table(pa.table({"n": [1, None, 3]}), tmp_path / "a.parquet")
    monkeypatch.setattr("twinrun.formats.parquet._has_missing", lambda *_: False)
    with open_file(tmp_path / "a.parquet") as content, pytest.raises(FormatError, match="lacks values"):
        content.fields["n"].elements()


def test_texts_are_told(tmp_path: Path) -> None:
    for name, word in (("a", "heat"), ("b", "flow")):
        frame = pd.DataFrame({"n": [1, 2], "t": ["x", word]})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        frame.to_parquet(tmp_path / f"{name}.parquet")
    for suffix in ("csv", "parquet"):
        result = twinrun.compare(tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}")
        assert any("t@text[1] is 'heat' in" in note and "'flow' in" in note for note in result.notes)


def test_batches_and_row_groups(tmp_path: Path) -> None:
    n = 200_000
    table = pa.table({"i": np.arange(n), "t": [f"t{i % 9}" for i in range(n)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=90_000)
    with open_file(tmp_path / "t.parquet") as content:
        for first, count in ((0, 5), (150_000, 49_999), (89_990, 20), (3, 100_000), (n - 1, 1)):
            np.testing.assert_array_equal(
                content.fields["i"].elements(first, count), np.arange(first, first + count)
            )
            want = text_digests(f"t{i % 9}" for i in range(first, first + count)).reshape(-1)
            np.testing.assert_array_equal(content.fields["t@text"].elements(2 * first, 2 * count), want)


@HOSTILE
@given(data=st.data())
def test_hostile_parquet(tmp_path: Path, data: st.DataObject) -> None:
    pq.write_table(sample(), tmp_path / "t.parquet", compression="none")
    good = (tmp_path / "t.parquet").read_bytes()
    survives(tmp_path / "bad.parquet", data.draw(mutations(good)), format="table")


def test_a_folder_of_tables(tmp_path: Path) -> None:
    for run, change in (("a", 0.0), ("b", 1.0)):
        (tmp_path / run).mkdir()
        for step in (10, 20):
            values = np.arange(12.0).reshape(4, 3) + (change if step == 20 else 0)
            np.savetxt(tmp_path / run / f"out_{step}.dat", values, header="x y z")
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert result.first_divergence["step"] == 20 and {f.field for f in result.fields} == {"x", "y", "z"}


def test_the_order_of_ordered_categories(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pd = pytest.importorskip("pandas")
    words = ["low", "mid", "high"]
    for ordered in (False, True):
        for name, categories in (("a", words), ("b", words[::-1])):
            column = pd.Categorical(words * 3, categories=categories, ordered=ordered)
            table = pa.Table.from_pandas(pd.DataFrame({"x": column}))
            pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=4)
        a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
        assert twinrun.compare(a, a)
        found = twinrun.compare(a, b)
        golden.save(a, tmp_path / f"golden-{ordered}")
        checked = golden.check(tmp_path / f"golden-{ordered}", b)
        assert golden.check(tmp_path / f"golden-{ordered}", a).verdict == "same"
        assert found.same == (checked.verdict == "same") == (not ordered)
        if ordered:
            assert [d.text() for d in found.attributes] == [
                "x@text@(categories): ['low', 'mid', 'high'] against ['high', 'mid', 'low']"
            ]
            assert [d.label for d in checked.attributes] == ["x@text@(categories)"]


@pytest.mark.parametrize("text", ["a,b\n1.5,2\n{},3\n", "1.5 2\n{} 3\n"])
def test_numbers_beyond_float64_are_not_all_infinity(text: str, tmp_path: Path) -> None:
    """Such a column is compared as text, as one with integers that float64 cannot hold."""
    paths = [tmp_path / f"{name}.csv" for name in "abc"]
    for path, value in zip(paths, ("1e400", "1e401", "-1e400"), strict=True):
        path.write_text(text.format(value))
    assert twinrun.compare(paths[0], paths[0]).same
    for other in paths[1:]:
        result = twinrun.compare(paths[0], other)
        assert result.verdict == "different" and "'1e400' against '" in str(result)
    for value in ("inf", "-Infinity", "+INF", "1e308", "1e-400"):
        paths[0].write_text(text.format(value))
        result = twinrun.compare(paths[0], paths[0])
        assert {f.dtype for f in result.fields} == {"f64", "i64"} and result.same


def test_errors_of_tables_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n" + "3,4\n" * 300 + "5\n")
    check_error(
        command("compare", path, path, "--format", "table"),
        "does not have 2 cells, as the first row has; write rows of one length",
    )
    path = tmp_path / "t"
    path.write_text("words only, and no table\n")
    with pytest.raises(FormatError, match="it is text, and no table; if it has rows of one length, name it"):
        open_file(path)


def test_exponents_of_fortran_are_text_and_one_row_of_them_is_no_table(tmp_path):
    (tmp_path / "one.dat").write_text("a b\n1.0D+00 1\n")
    (tmp_path / "two.dat").write_text("a b\n1.0D+00 1\n2.0D+00 2\n")
    with open_file(tmp_path / "two.dat") as content:
        assert content.format == "table" and list(content.fields) == ["a@text", "b"]
    with open_file(tmp_path / "one.dat", "table") as content:
        assert list(content.fields) == ["a@text", "b"]
    with pytest.raises(FormatError, match="read it as a table"):
        open_file(tmp_path / "one.dat")
