"""`twinrun aggregate join`: one file of sub-files, held against a file that numpy puts together."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import check_error, command
from twinrun_spec import FormatError
from twinrun_spec.sub_files import whole as whole_by_spec

from twinrun import DamagedFile, TwinrunError, _core
from twinrun.aggregate import sub_files
from twinrun.aggregate.sub_files import join_sub_files

Sets = list[list[int]]


def _random_whole(draw: random.Random) -> tuple[bytes, list[Sets]]:
    """A whole file, and which sets of it each of some files has. Bytes that no file has are zeros."""
    files: list[Sets] = [[] for _ in range(draw.randint(1, 5))]
    at = draw.randint(0, 300)
    for _ in range(draw.randint(0, 8)):
        way = draw.randint(0, 3)
        if way == 0:  # a stretch
            length = draw.choice([1, 7, 4000, 70_000])
            draw.choice(files).append([at, length, 1, length])
            at += length
        elif way == 1:  # columns of records, of several files
            columns, width, count = draw.randint(1, 4), draw.randint(1, 40), draw.randint(2, 3000)
            stride = columns * width + draw.choice([0, 0, 5, 2000])
            for c in range(columns):
                if draw.random() < 0.9:
                    draw.choice(files).append([at + c * width, width, count, stride])
            at += count * stride
        elif way == 2:  # a long stretch between the items of a set
            gap = draw.choice([5000, 60_000])
            draw.choice(files).append([at, 16, 3, 16 + gap])
            draw.choice(files).append([at + 16, gap, 1, gap])
            at += 3 * (16 + gap)
        else:
            at += draw.choice([1, 100, 200_000])
    ends = [o + (n - 1) * s + w for sets in files for o, w, n, s in sets]
    whole = np.zeros(max(ends, default=0), np.uint8)
    content = np.frombuffer(draw.randbytes(max(whole.size, 1)), np.uint8)
    for sets in files:
        for offset, width, count, stride in sets:
            places = (offset + np.arange(count)[:, None] * stride + np.arange(width)).ravel()
            whole[places] = content[places]
    return whole.tobytes(), files


def _identity(path: Path) -> list[int]:
    about = path.lstat()
    return [about.st_size, about.st_ino, about.st_mtime_ns]


def _write(path: Path, whole: bytes, files: list[Sets]) -> None:
    data = np.frombuffer(whole, np.uint8)
    for number, sets in enumerate(files):
        pieces = [
            data[(o + np.arange(n)[:, None] * s + np.arange(w)).ravel()].tobytes() for o, w, n, s in sets
        ]
        _part(path, number).write_bytes(b"".join(pieces))
    _write_index(path, len(files), {"bytes": len(whole), "places": files})


def _part(path: Path, number: int) -> Path:
    return Path(f"{path}.{number:05}")


def _index(path: Path) -> Path:
    return Path(f"{path}.twr-index")


def _write_index(path: Path, count: int, whole: dict | None, *, checked: bool = True) -> None:
    files = [_identity(_part(path, number)) for number in range(count)]
    version = 3 if checked else 1 if whole is None else 2
    document: dict = {"format": "twinrun sub-files", "version": version, "files": files}
    if whole is not None:
        document["whole"] = whole
    text = json.dumps(document)
    if checked:
        text = f'{text[:-1]},"checksum":"{_core.xxh3(text[:-1].encode()):016x}"}}\n'
    _index(path).write_text(text)


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("seed", range(40))
def test_the_joined_file_is_the_whole(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    whole, files = _random_whole(draw)
    path = tmp_path / "data"
    _write(path, whole, files)
    before = _names(tmp_path)
    # Windows that end anywhere, also within items; stretches that are copied by themselves.
    monkeypatch.setattr(
        sub_files, "_WINDOW", draw.choice([100, 4096, 1 << 20]) if len(whole) < 300_000 else 1 << 16
    )
    monkeypatch.setattr(sub_files, "_COPY", draw.choice([3000, 50_000, 1 << 20]))
    joined = join_sub_files(path)
    assert path.read_bytes() == whole
    assert whole_by_spec(str(path)) == whole  # spec/sub-files.md says the same
    assert (joined.files, joined.bytes, joined.removed) == (len(files), len(whole), False)
    assert _names(tmp_path) == sorted([*before, "data"])


def test_files_without_places_come_one_behind_the_other(tmp_path: Path) -> None:
    path = tmp_path / "data"
    parts = [b"first", b"", b"x" * 100_000]
    for number, part in enumerate(parts):
        _part(path, number).write_bytes(part)
    _write_index(path, 3, None)
    done = command("aggregate", "join", path)
    assert done.status == 0 and "3 sub-files" in done.out, done
    assert path.read_bytes() == b"".join(parts)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two files of records in turns."""
    path = tmp_path / "data"
    whole = bytes(range(240))
    _write(path, whole, [[[0, 4, 30, 8]], [[4, 4, 30, 8]]])
    return path


def test_what_is_there_stays(written: Path) -> None:
    own = b"results of last year"
    written.write_bytes(own)
    check_error(command("aggregate", "join", written), "is there already", "--output", "--replace")
    assert written.read_bytes() == own
    assert command("aggregate", "join", written, "--replace").status == 0
    assert written.read_bytes() == bytes(range(240))
    # Neither a link nor a folder is replaced.
    elsewhere = written.with_name("elsewhere")
    elsewhere.write_bytes(own)
    other = written.with_name("link")
    other.symlink_to(elsewhere)
    check_error(command("aggregate", "join", written, "-o", other, "--replace"), "no regular file")
    assert other.is_symlink() and elsewhere.read_bytes() == own
    check_error(command("aggregate", "join", written, "-o", _part(written, 1), "--replace"), "are joined")
    check_error(command("aggregate", "join", written, "-o", _index(written), "--replace"), "are joined")
    assert join_sub_files(written, written.with_name("again")).bytes == 240
    assert not [n for n in _names(written.parent) if "partial" in n]


def test_remove_takes_only_what_was_written(written: Path) -> None:
    _part(written, 2).write_bytes(b"somebody's")
    done = command("aggregate", "join", written, "--remove")
    assert done.status == 0 and "which are removed" in done.out
    assert _names(written.parent) == ["data", "data.00002"]


def _replace(name: Path, text: bytes, *, keep_time: bool) -> None:
    """Puts a file of its own in the place of a sub-file."""
    time = name.stat().st_mtime_ns
    name.rename(name.with_name("moved"))
    name.write_bytes(text)
    os.utime(name, ns=(time, time if keep_time else time + 1))


def _alter(name: Path) -> None:
    with name.open("r+b") as file:
        file.write(b"other")
    os.utime(name, ns=(1, 1))


def _link(name: Path) -> None:
    name.rename(name.with_name("moved"))
    name.symlink_to("moved")


@pytest.mark.parametrize(
    "change",
    [
        lambda p: _replace(p, p.read_bytes(), keep_time=True),
        lambda p: _replace(p, p.read_bytes(), keep_time=False),
        lambda p: _replace(p, b"o" * 120, keep_time=False),  # of another write
        _alter,
        _link,
    ],
)
@pytest.mark.parametrize("number", [0, 1])
def test_remove_is_refused_where_a_file_is_not_what_was_written(
    written: Path, change: Callable[[Path], None], number: int
) -> None:
    change(_part(written, number))
    before = {name: (written.parent / name).read_bytes() for name in _names(written.parent)}
    done = command("aggregate", "join", written, "--remove")
    check_error(done, f"{_part(written, number)}: is not the file that was written", "join without --remove")
    assert {name: (written.parent / name).read_bytes() for name in _names(written.parent)} == before


def _exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def _move_over(one: Path, other: Path) -> None:
    text = other.read_bytes()
    other.rename(one)
    other.write_bytes(text)


def _link_to_other(one: Path, other: Path) -> None:
    one.unlink()
    one.symlink_to(other.name)


@pytest.mark.parametrize("change", [_exchange, _move_over, _link_to_other])
@pytest.mark.parametrize("places", [True, False])
def test_exchanged_files_are_refused(
    written: Path, change: Callable[[Path, Path], None], places: bool
) -> None:
    if not places:
        _write_index(written, 2, None)
    change(_part(written, 0), _part(written, 1))
    before = _names(written.parent)
    for remove in ([], ["--remove"]):
        done = command("aggregate", "join", written, *remove)
        check_error(done, "data.00000: is the file that was written as", "data.00001", "its own name")
        assert _names(written.parent) == before
    with pytest.raises(FormatError, match="another entry"):
        whole_by_spec(str(written))


def test_exchanged_files_of_other_lengths_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for number, part in enumerate([b"first", b"second"]):
        _part(path, number).write_bytes(part)
    _write_index(path, 2, None)
    _exchange(_part(path, 0), _part(path, 1))
    with pytest.raises(DamagedFile, match="is the file that was written as"):
        join_sub_files(path)


def test_a_copy_is_joined_and_noted_where_times_are_new(written: Path, tmp_path: Path) -> None:
    whole = bytes(range(240))
    for times in (True, False):
        folder = tmp_path / f"copy-{times}"
        folder.mkdir()
        for name in (_index(written), _part(written, 0), _part(written, 1)):
            time = name.stat().st_mtime_ns
            copy = folder / name.name
            copy.write_bytes(name.read_bytes())
            os.utime(copy, ns=(time, time if times else time + 1))
        copied = folder / "data"
        done = command("aggregate", "join", copied)
        assert done.status == 0 and copied.read_bytes() == whole == whole_by_spec(str(copied))
        if times:
            assert not done.err
        else:
            assert f"note: {_part(copied, 0)} and 1 more were changed after the write, or copied" in done.err
            assert f"{copied} has what they hold now" in done.err


def test_a_file_with_the_inode_of_another_alone_is_a_copy(written: Path) -> None:
    # A copy on another file system may have any inodes. This one's content is of its own time.
    _exchange(_part(written, 0), _part(written, 1))
    for number, (_, _, time) in enumerate(json.loads(_index(written).read_text())["files"]):
        os.utime(_part(written, number), ns=(time + 5, time + 5))
    joined = join_sub_files(written)
    assert joined.changed == [str(_part(written, 0)), str(_part(written, 1))]


@pytest.mark.parametrize("keep_time", [True, False])
def test_the_changed_files_are_named(written: Path, keep_time: bool) -> None:
    _replace(_part(written, 1), b"o" * 120, keep_time=keep_time)
    output = written.with_name("whole")
    done = command("aggregate", "join", written, "-o", output)
    assert done.status == 0 and output.read_bytes() == whole_by_spec(str(written)) != bytes(range(240))
    note = f"note: {_part(written, 1)} was changed after the write, or copied: {output} has what it holds now"
    assert done.err.strip() == ("" if keep_time else note)
    assert join_sub_files(written).changed == ([] if keep_time else [str(_part(written, 1))])


def test_remove_leaves_all_where_a_file_changes_after_it_was_read(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sub_files._put_in_place

    def disturbed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        _alter(_part(written, 1))

    monkeypatch.setattr(sub_files, "_put_in_place", disturbed)
    joined = join_sub_files(written, remove=True)
    assert written.read_bytes() == bytes(range(240)) and not joined.removed
    assert joined.kept == [str(_index(written)), str(_part(written, 0)), str(_part(written, 1))]
    assert _names(written.parent) == ["data", "data.00000", "data.00001", "data.twr-index"]


def _edit(name: Path) -> None:
    with name.open("r+b") as file:
        file.write(b"edit")


def _disturb_removal(monkeypatch: pytest.MonkeyPatch, name: Path, change: Callable[[], object]) -> None:
    """Changes something after the last look at a file, and before it goes."""
    real = os.rename

    def disturbed(one: str, other: str) -> None:
        if Path(one) == name:
            monkeypatch.setattr(os, "rename", real)
            change()
        real(one, other)

    monkeypatch.setattr(os, "rename", disturbed)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda whole: whole.with_name("own").rename(whole), "another file came to its place"),
        (lambda whole: whole.rename(whole.with_name("moved")), "it was moved"),
        (lambda whole: os.truncate(whole, 10), "it was changed since"),
        (_edit, "it was changed since"),
    ],
)
@pytest.mark.parametrize("going", [None, "data.00000", "data.00001", "data.twr-index"])
def test_remove_leaves_the_rest_where_the_whole_file_changed(
    written: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    what: str,
    going: str | None,
) -> None:
    written.with_name("own").write_text("somebody's")
    if going is None:
        put = sub_files._put_in_place

        def disturbed(*given: object) -> None:
            monkeypatch.setattr(sub_files, "_put_in_place", put)
            put(*given)  # type: ignore[arg-type]
            change(written)

        monkeypatch.setattr(sub_files, "_put_in_place", disturbed)
    else:
        _disturb_removal(monkeypatch, written.with_name(going), lambda: change(written))
    with pytest.raises(TwinrunError, match=f"was made, but .*{what}.*so does their index"):
        join_sub_files(written, remove=True)
    names = ["data.00000", "data.00001", "data.twr-index"]
    left = names[names.index(going) if going else 0 :]
    assert [name for name in _names(written.parent) if "." in name] == left
    if len(left) == 3:
        assert join_sub_files(written, written.with_name("again")).bytes == 240
        assert written.with_name("again").read_bytes() == bytes(range(240))


@pytest.mark.parametrize("name", ["data.00000", "data.00001", "data.twr-index"])
@pytest.mark.parametrize("links", [True, False])
def test_remove_leaves_what_comes_to_a_name_at_the_last_moment(
    written: Path, monkeypatch: pytest.MonkeyPatch, name: str, links: bool
) -> None:
    own, there = written.with_name("own"), written.with_name(name)
    own.write_text("somebody's")
    _disturb_removal(monkeypatch, there, lambda: own.replace(there))
    if not links:
        real = os.link

        def no_links(*given: Any, **options: Any) -> None:
            if Path(given[1]) != written:
                raise PermissionError(1, "Operation not permitted")
            real(*given, **options)

        monkeypatch.setattr(os, "link", no_links)
    done = command("aggregate", "join", written, "--remove")
    assert there.read_text() == "somebody's" and written.read_bytes() == bytes(range(240))
    names = ["data.00000", "data.00001", "data.twr-index"]
    left = names[names.index(name) :]
    assert _names(written.parent) == ["data", *left]
    assert done.status == 0 and f"of 2 sub-files; {names.index(name)} of them are removed" in done.out
    assert all(f"{one}: stays, because" in done.err for one in left)


def test_what_cannot_get_its_name_back_is_named(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, part, real = written.with_name("own"), _part(written, 0), os.lstat
    own.write_text("somebody's")
    _disturb_removal(monkeypatch, part, lambda: own.replace(part))

    def disturbed(name: str, **given: Any) -> os.stat_result:
        if "twr-removed" in str(name):
            part.write_text("another one's")
        return real(name, **given)

    monkeypatch.setattr(os, "lstat", disturbed)
    with pytest.raises(TwinrunError, match=r"data\.00000\.twr-removed.*which another file has taken") as said:
        join_sub_files(written, remove=True)
    assert Path(str(said.value.where)).read_text() == "somebody's" and part.read_text() == "another one's"
    assert _index(written).exists() and _part(written, 1).exists()


def test_remove_stops_where_the_index_goes_meanwhile(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _disturb_removal(monkeypatch, _part(written, 0), lambda: _write_note(_index(written)))
    joined = join_sub_files(written, remove=True)
    assert joined.kept == [str(_index(written)), str(_part(written, 1))] and not joined.removed
    assert _index(written).read_text() == "somebody's" and _part(written, 1).exists()


def _write_note(name: Path) -> None:
    name.unlink()
    name.write_text("somebody's")


def _copy(name: Path) -> None:
    text = name.read_bytes()
    name.rename(name.with_name("moved"))
    name.write_bytes(text)


@pytest.mark.parametrize("change", [_write_note, _copy])
def test_remove_leaves_an_index_that_is_not_the_one_that_was_read(
    written: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    real = sub_files._put_in_place

    def disturbed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        change(_index(written))

    monkeypatch.setattr(sub_files, "_put_in_place", disturbed)
    joined = join_sub_files(written, remove=True)
    parts = [f"{written}.{number:05}" for number in range(joined.files)]
    assert written.read_bytes() == bytes(range(240)) and joined.kept == [str(_index(written)), *parts]
    assert all(Path(part).exists() for part in joined.kept) and not joined.removed


def _rewrite(path: Path, files: list[Sets], length: int = 240, *, checked: bool = True) -> None:
    _write_index(path, 2, {"bytes": length, "places": files}, checked=checked)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: _index(p).unlink(), "no index"),
        (lambda p: _index(p).write_text("a note"), "not an index"),
        (lambda p: _index(p).write_text('{"format": "twinrun sub-files", "version": 4}'), "update twinrun"),
        (lambda p: _index(p).write_text('{"format": "twinrun sub-files", "version": 2}'), "cut or altered"),
        (lambda p: _index(p).write_text(_index(p).read_text().replace("30", "31")), "cut or altered"),
        (lambda p: _index(p).write_text(_index(p).read_text().replace("240", "239")), "cut or altered"),
        (
            lambda p: _index(p).write_text(_index(p).read_text().replace('"checksum"', '"check"')),
            "cut or altered",
        ),
        (
            lambda p: _index(p).write_text(_index(p).read_text().replace('sion": 3', 'sion": 2')),
            "cut or altered",
        ),
        (lambda p: _index(p).write_text("[" * 100_000), "not an index"),
        (lambda p: _rewrite(p, [[[0, 4, 30, 8]], [[4, 4, 29, 8], [0, 4, 1, 4]]]), "cut or altered"),
        (lambda p: _rewrite(p, [[[0, 4, 30, 8]], [[4, 4, 29, 8], [232, 4, 1, 4]]]), "cut or altered"),
        (lambda p: _rewrite(p, [[[0, 4, 15, 8], [0, 4, 15, 8]], [[4, 4, 30, 8]]]), "cut or altered"),
        (lambda p: _rewrite(p, [[[0, 4, 30, 8]], [[0, 4, 30, 8]]], checked=False), "cut or altered"),
        (lambda p: _rewrite(p, [[[0, 4, 30, 8]], [[4, 4, 30, 8]]], length=241), "cut or altered"),
        (lambda p: _write_index(p, 2, {"bytes": 240, "places": None}), "cut or altered"),
        (lambda p: _part(p, 1).unlink(), "No such file"),
        (lambda p: os.truncate(_part(p, 1), 119), "119 bytes, and the index says 120"),
        (lambda p: (_part(p, 1).unlink(), _part(p, 1).mkdir()), "no regular file"),
        (lambda p: (_index(p).rename(p.with_name("i")), _index(p).symlink_to("i")), "twr-index"),
    ],
)
def test_what_is_not_whole_is_refused(written: Path, change: object, words: str) -> None:
    change(written)  # type: ignore[operator]
    before = _names(written.parent)
    for remove in ([], ["--remove"]):
        check_error(command("aggregate", "join", written, *remove), words)
        assert _names(written.parent) == before
    if not _index(written).is_symlink():  # which the format does not know
        with pytest.raises((FormatError, OSError)):
            whole_by_spec(str(written))


def test_files_that_change_meanwhile_are_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sub_files._write_whole

    def disturbed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        os.utime(_part(written, 0), ns=(1, 1))

    monkeypatch.setattr(sub_files, "_write_whole", disturbed)
    with pytest.raises(TwinrunError, match="changed or went while"):
        join_sub_files(written)
    assert _names(written.parent) == ["data.00000", "data.00001", "data.twr-index"]


def test_a_file_that_comes_meanwhile_stays(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sub_files._write_whole

    def disturbed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        written.write_bytes(b"somebody's")

    monkeypatch.setattr(sub_files, "_write_whole", disturbed)
    with pytest.raises(TwinrunError, match="came while"):
        join_sub_files(written, remove=True)
    assert written.read_bytes() == b"somebody's"
    assert _names(written.parent) == ["data", "data.00000", "data.00001", "data.twr-index"]


def test_a_full_disk_leaves_nothing(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TwinrunError, match="No space left"):
        join_sub_files(written)
    assert _names(written.parent) == ["data.00000", "data.00001", "data.twr-index"]


@pytest.mark.parametrize("places", [True, False])
def test_an_index_without_a_checksum_is_read_and_removes_nothing(written: Path, places: bool) -> None:
    whole = {"bytes": 240, "places": [[[0, 4, 30, 8]], [[4, 4, 30, 8]]]} if places else None
    _write_index(written, 2, whole, checked=False)
    assert (whole_by_spec(str(written)) == bytes(range(240))) == places
    before = _names(written.parent)
    check_error(command("aggregate", "join", written, "--remove"), "no checksum", "without --remove")
    assert _names(written.parent) == before
    assert join_sub_files(written).bytes == 240
    assert (written.read_bytes() == bytes(range(240))) == places


def test_version_1_has_no_places(written: Path) -> None:
    text = json.loads(_index(written).read_text())
    del text["checksum"]
    _index(written).write_text(json.dumps({**text, "version": 1}))
    check_error(command("aggregate", "join", written), "cut or altered")


def test_a_file_with_a_second_name_stays_and_is_counted(written: Path) -> None:
    os.link(_part(written, 1), written.with_name("second"))
    done = command("aggregate", "join", written, "--remove")
    assert done.status == 0 and "of 2 sub-files; 1 of them are removed" in done.out, done
    assert "data.00001: stays, because it has a second name" in done.err
    assert _names(written.parent) == ["data", "data.00001", "second"]


def test_without_the_right_to_remove_nothing_is_made(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = written.parent / "elsewhere"
    elsewhere.mkdir()
    before = _names(written.parent)
    asked: list[object] = []

    def no_access(path: str, mode: int, **_options: object) -> bool:
        asked.append(path)
        return not mode & os.W_OK or Path(path) != written.parent

    monkeypatch.setattr(os, "access", no_access)
    with pytest.raises(TwinrunError, match="may not be removed by this user, and nothing was made"):
        join_sub_files(written, elsewhere / "whole", remove=True)
    assert asked and not _names(elsewhere) and _names(written.parent) == before


def test_files_that_cannot_be_removed_after_all_are_named(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def refuse(path: str, to: str) -> None:
        if str(path).endswith(".00001"):
            raise PermissionError(13, "Permission denied")
        real(path, to)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(TwinrunError, match=r"data\.00001: cannot be removed.*data is made, and whole"):
        join_sub_files(written, remove=True)
    assert written.read_bytes() == bytes(range(240))
    assert _names(written.parent) == ["data", "data.00001", "data.twr-index"]


def test_files_that_were_written_again_are_not_removed(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sub_files._put_in_place

    def disturbed(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        _part(written, 0).write_bytes(b"x" * 240)
        _write_index(written, 2, None)

    monkeypatch.setattr(sub_files, "_put_in_place", disturbed)
    joined = join_sub_files(written, remove=True)
    assert len(joined.kept) == 3 and not joined.removed  # the index, and what it names
    assert _names(written.parent) == ["data", "data.00000", "data.00001", "data.twr-index"]


@pytest.mark.parametrize("step", ["_write_whole", "_put_in_place"])
def test_files_that_another_join_removes_meanwhile(
    written: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    real = sub_files._Files.check_unchanged if step == "_put_in_place" else sub_files._write_whole

    def disturbed(*arguments: object) -> None:
        for number in range(2):
            _part(written, number).unlink()
        _index(written).unlink()
        real(*arguments)  # type: ignore[arg-type]

    if step == "_put_in_place":
        monkeypatch.setattr(sub_files._Files, "check_unchanged", disturbed)
    else:
        monkeypatch.setattr(sub_files, "_write_whole", disturbed)
    with pytest.raises(TwinrunError, match=r"changed or went while.*another join"):
        join_sub_files(written, remove=True)
    assert not _names(written.parent)


def test_names_that_are_no_sub_files(tmp_path: Path, written: Path) -> None:
    check_error(command("aggregate", "join", _part(written, 1)), f"name {written}")
    check_error(command("aggregate", "join", _index(written)), f"name {written}")
    _index(written).unlink()
    check_error(command("aggregate", "join", written), "their write did not end", "again")
    alone = tmp_path / "alone"
    check_error(command("aggregate", "join", alone), "no index of sub-files", "name the path")
    alone.write_bytes(b"by one rank")
    check_error(command("aggregate", "join", alone), "nothing to join", "one file")
    for path in ("a\0b", ""):
        with pytest.raises(TwinrunError, match="zero byte"):
            join_sub_files(path)
        with pytest.raises(TwinrunError, match="zero byte"):
            join_sub_files(written, path)


def test_outputs_that_are_no_files_are_not_to_be_replaced(written: Path) -> None:
    folder = written.with_name("folder")
    folder.mkdir()
    for output, words in (
        (folder, "is a folder"),
        (f"{folder}/", "is a folder"),
        (f"{written.with_name('none')}/", "is a folder"),
        ("/dev/null", "no regular file"),
        (written.with_name("none") / "whole", "its folder is not there"),
    ):
        for replace in ([], ["--replace"]):
            done = command("aggregate", "join", written, "-o", output, *replace)
            check_error(done, words)
            assert "--replace" not in done.err
