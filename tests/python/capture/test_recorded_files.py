"""Files of other programs in records: whatever a folder has comes back, and whatever is in the way stays."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, process
from twinrun_spec.record import Record, read_difference

import twinrun

MIB = 1 << 20


def make_tree(folder: bytes, rng: random.Random) -> None:
    """Files of every kind and name. Every byte that a name can have is in one of them."""
    odd = [b for b in range(1, 256) if b != ord("/")]
    rng.shuffle(odd)
    names = [bytes(odd[i : i + 31]) for i in range(0, len(odd), 31)]
    names += [bytes(rng.choices(odd, k=rng.randint(1, 255))) for _ in range(20)]
    names += [b"a" * 251, b"b" * 252, b"c" * 253, b"d" * 254, b"e" * 255, b".", b"..", b"x", b"1", b".zarray"]
    names += [b"state_0005.bin", b"state_0010.bin", b"state_0010.bin#2", b"\xff\xfe", b"-", b"\n", b"step-7"]
    folders = [folder]
    made: list[bytes] = []
    for name in names:
        if name in (b".", b".."):
            continue
        where = rng.choice(folders)
        path = os.path.join(where, name)
        if len(path) > 3000 or os.path.lexists(path):
            continue
        kind = rng.random()
        if kind < 0.3:
            os.mkdir(path)
            folders.append(path)
        else:
            with open(path, "xb") as file:
                file.write(rng.randbytes(rng.choice([0, 1, 255, 4096, 70_001])))
            made.append(path)
    os.mkdir(os.path.join(folder, b"nothing in it"))
    os.makedirs(os.path.join(folder, b".hidden", b"step-10", b"empty"))
    with open(os.path.join(folder, b"sparse"), "xb") as file:
        file.truncate(24 * MIB)
        file.seek(7 * MIB + 5)
        file.write(b"somewhere")
    for number, target in enumerate(rng.sample(made, 6) + rng.sample(folders, 4)):
        relative = os.path.relpath(target, folder)
        os.symlink(relative, os.path.join(folder, b"link-%c" % (ord("a") + number)))
    os.symlink(b"nowhere/\xff", os.path.join(folder, b"dangling"))
    os.symlink(b"/nowhere", os.path.join(folder, b"dangling too"))
    os.symlink(b"round", os.path.join(folder, b"round"))
    os.symlink(b".", os.path.join(folder, b"self"))
    os.symlink(b"../../..", os.path.join(folder, b"above"))
    os.symlink(b"/etc/passwd", os.path.join(folder, b"outside"))
    os.mkfifo(os.path.join(folder, b"pipe"))


def listing(folder: bytes) -> dict[bytes, tuple[str, bytes]]:
    """name: what it is, and its bytes or a link's text; of a folder its name alone. No link is followed."""
    found: dict[bytes, tuple[str, bytes]] = {}
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(where, name)
            mode = os.lstat(path).st_mode
            relative = os.path.relpath(path, folder)
            if stat.S_ISLNK(mode):
                found[relative] = "link", os.readlink(path)
            elif stat.S_ISDIR(mode):
                found[relative] = "folder", b""
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    found[relative] = "file", file.read()
            else:
                found[relative] = "other", b""
    return found


def restored(record: object, to: Path) -> dict[bytes, tuple[str, bytes]]:
    """All that a record has, of all steps."""
    twinrun.restore(record, to)
    found: dict[bytes, tuple[str, bytes]] = {}
    for step in os.listdir(os.fsencode(to)):
        for name, what in listing(os.path.join(os.fsencode(to), step)).items():
            assert found.setdefault(name, what) == what, name
    return found


@pytest.mark.parametrize("seed", range(6))
def test_everything_is_kept_or_named(tmp_path: Path, seed: int) -> None:
    source = os.fsencode(tmp_path / "run")
    os.mkdir(source)
    make_tree(source, random.Random(seed))
    facts = twinrun.pack(source, tmp_path / "record")
    named = {os.fsencode(name): why for name, why in facts.notes}
    assert named[b"pipe"] == "left out: a pipe"
    assert "kept as a link" in named[b"self"] and "kept as a link" in named[b"above"]
    assert "kept as a link" in named[b"dangling"] and "kept as a link" in named[b"round"]
    truth, found = listing(source), restored(tmp_path / "record", tmp_path / "back")
    for name, (kind, body) in truth.items():
        if kind == "other":
            assert "left out" in named[name]
        elif kind == "link" and found[name][0] != "link":  # what it leads to, in its place
            path = os.path.join(source, name)
            if os.path.isdir(path):
                inner = [n for n in found if n.startswith(name + b"/")]
                beyond = listing(os.path.realpath(path))
                assert {n[len(name) + 1 :] for n in inner} >= {
                    n for n, (what, _) in beyond.items() if what in ("file", "folder")
                }
            else:
                with open(path, "rb") as file:
                    assert found[name] == ("file", file.read())
        else:
            assert found[name] == (kind, body), name
    assert not {n for n in named if "left out" in named[n]} & set(found)
    assert found[b"outside"][0] == "file"  # a record stands alone
    # Holes are holes again.
    assert os.stat(next((tmp_path / "back").glob("*/sparse"))).st_blocks * 512 < 2 * MIB
    assert twinrun.verify(tmp_path / "record")[0] == []
    # Once more, nothing is new.
    again = twinrun.pack(source, tmp_path / "record", append=True)
    assert again.steps == [] and sorted(again.notes) == sorted(facts.notes)


def test_the_independent_reader_knows_links_and_folders(tmp_path: Path) -> None:
    source = tmp_path / "run"
    (source / "empty").mkdir(parents=True)
    name = os.fsdecode(b"\xe9t\xe9.dat")
    (source / name).write_bytes(b"bytes")
    os.symlink(name, source / "link")
    twinrun.pack(source, tmp_path / "record")
    path = tmp_path / "record" / "step-0000000000" / "rank-00000.twr"
    difference = read_difference(path)
    assert difference.version == 2
    assert [(f.name, f.kind, f.to) for f in difference.files] == [
        ("empty", "folder", ""), ("link", "link", name), (name, "file", "")]  # fmt: skip
    assert Record(lambda _: path).read_file(0, name) == b"bytes"
    (source / "link").unlink()
    (source / "empty").rmdir()
    twinrun.pack(source, tmp_path / "plain")  # as versions before had it
    assert read_difference(tmp_path / "plain" / "step-0000000000" / "rank-00000.twr").version == 1


def test_links_and_folders_stay_when_steps_leave(tmp_path: Path) -> None:
    source = tmp_path / "run"
    for step in range(4):
        (source / f"step-{step}" / "empty").mkdir(parents=True)
        (source / f"step-{step}" / "x.dat").write_bytes(bytes(10_000) + b"%d" % step)
        os.symlink("x.dat", source / f"step-{step}" / "link")
    twinrun.pack(source, tmp_path / "record")
    twinrun.compact(tmp_path / "record", keep_last=2)
    found = restored(tmp_path / "record", tmp_path / "back")
    truth = listing(os.fsencode(source))
    assert found == {n: w for n, w in truth.items() if not n.startswith((b"step-0", b"step-1"))}


def plant(target: Path, names: list[str], rng: random.Random, elsewhere: Path) -> None:
    """Foreign files of every kind, under names that a writer may think of."""
    for name in names:
        for number, guess in enumerate(
            (
                f"{name}.tmp",
                f".{name}",
                f".{name}.tmp",
                f"{name}~",
                f"{name}.part",
                f"tmp-{name}",
                f".twinrun-{name}",
            )
        ):
            path = target / guess
            if len(os.fsencode(guess)) > 255:
                continue
            kind = rng.randrange(5)
            if kind == 0:
                path.write_bytes(rng.randbytes(100))
            elif kind == 1:
                path.mkdir()
                (path / "precious").write_bytes(rng.randbytes(10))
            elif kind == 2:
                os.symlink(elsewhere / f"file-{number}", path)
            elif kind == 3:
                os.symlink(elsewhere, path)
            else:
                os.symlink("nowhere", path)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_in_the_target_stays(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    source, target, elsewhere = tmp_path / "run", tmp_path / "to", tmp_path / "elsewhere"
    names = ["state.bin", "n" * 251, "o" * 255, os.fsdecode(b"\xff.dat"), ".metadata"]
    for folder in (source / "sub", target / "sub", elsewhere):
        folder.mkdir(parents=True)
    for number in range(7):
        (elsewhere / f"file-{number}").write_bytes(rng.randbytes(50))
    for name in names:
        (source / name).write_bytes(rng.randbytes(5000))
        (source / "sub" / name).write_bytes(rng.randbytes(5000))
    plant(target, names, rng, elsewhere)
    plant(target / "sub", names, rng, elsewhere)
    twinrun.pack(source, tmp_path / "record")
    before = {p: listing(os.fsencode(p)) for p in (target, elsewhere)}
    twinrun.restore(tmp_path / "record", target, flat=True)
    assert listing(os.fsencode(elsewhere)) == before[elsewhere]
    after = listing(os.fsencode(target))
    truth = listing(os.fsencode(source))
    assert {n: w for n, w in after.items() if n not in truth or w[0] == "folder"} == {
        n: w for n, w in before[target].items() if n not in truth or w[0] == "folder"
    }
    assert {n: after[n] for n in truth} == truth
    # Now all is there: nothing is written a second time, nor half of it beside.
    (target / names[0]).write_bytes(b"mine")
    (target / "sub" / names[1]).unlink()
    there = listing(os.fsencode(target))
    with pytest.raises(twinrun.TwinrunError, match="is there already"):
        twinrun.restore(tmp_path / "record", target, flat=True)
    assert listing(os.fsencode(target)) == there


@pytest.mark.parametrize(
    "kind", ["file", "folder", "link", "dangling", "parent link", "parent file", "step link"]
)
def test_what_has_a_name_keeps_it(tmp_path: Path, kind: str) -> None:
    source, target, elsewhere = tmp_path / "run", tmp_path / "to", tmp_path / "elsewhere"
    for folder in (source / "sub", target, elsewhere):
        folder.mkdir(parents=True)
    (source / "sub" / "a.dat").write_bytes(b"new")
    (source / "b.dat").write_bytes(b"new")
    (elsewhere / "a.dat").write_bytes(b"old")
    at = target / "sub" / "a.dat"
    if not kind.startswith(("parent", "step")):
        at.parent.mkdir()
    if kind == "file":
        at.write_bytes(b"old")
    elif kind == "folder":
        at.mkdir()
    elif kind == "parent file":
        at.parent.write_bytes(b"old")
    else:
        to = {"link": elsewhere / "a.dat", "dangling": elsewhere / "new"}.get(kind, elsewhere)
        os.symlink(to, {"parent link": at.parent, "step link": target / "step-0000000000"}.get(kind, at))
    twinrun.pack(source, tmp_path / "record")
    before = listing(os.fsencode(tmp_path))
    flat = () if kind == "step link" else ("--flat", "--step", "0")
    check_error(command("restore", tmp_path / "record", target, *flat), "name another folder, or remove it")
    assert listing(os.fsencode(tmp_path)) == before


def test_data_sets_of_many_files_stay_one(tmp_path: Path) -> None:
    """Numbers within a data set are no steps, and its hidden files are its own."""
    zarr = pytest.importorskip("zarr")
    source = tmp_path / "run"
    values = {step: np.random.default_rng(step).standard_normal((40, 30)) for step in (10, 20)}
    for step, x in values.items():
        group = zarr.open_group(str(source / f"out_{step}.zarr"), mode="w")
        group["x"] = x
    facts = twinrun.pack(source, tmp_path / "record")
    assert [s.step for s in facts.steps] == [10, 20] and facts.notes == []
    for step, x in values.items():
        to = tmp_path / f"back-{step}"
        twinrun.restore(tmp_path / "record", to, steps=[step], flat=True)
        assert np.array_equal(zarr.open_group(str(to / f"out_{step}.zarr"), mode="r")["x"][:], x)
    twinrun.pack(source / "out_10.zarr", tmp_path / "one")  # which has nothing but numbers
    twinrun.restore(tmp_path / "one", tmp_path / "back", flat=True)
    assert np.array_equal(zarr.open_group(str(tmp_path / "back"), mode="r")["x"][:], values[10])
    assert twinrun.compare(source / "out_10.zarr", tmp_path / "back").verdict == "same"


def test_links_lead_where_they_led(tmp_path: Path) -> None:
    """A link stays a link where its target comes with it; what is elsewhere, or of another step, is packed in its place."""
    source, outside = tmp_path / "run", tmp_path / "outside"
    for folder in (source / "step-5", source / "step-10", outside / "deep"):
        folder.mkdir(parents=True)
    (source / "mesh.dat").write_bytes(b"mesh")
    (outside / "deep" / "table").write_bytes(b"table")
    os.symlink("table", outside / "deep" / "alias")
    for step in (5, 10):
        (source / f"step-{step}" / "x.dat").write_bytes(b"x%d" % step)
        os.symlink("../mesh.dat", source / f"step-{step}" / "mesh.dat")
        os.symlink("x.dat", source / f"step-{step}" / "current")
        os.symlink("../../outside/deep", source / f"step-{step}" / "tables")
    os.symlink(source / "step-10", source / "latest")
    os.symlink(outside / "deep" / "table", source / "table")
    facts = twinrun.pack(source, tmp_path / "record")
    assert facts.notes == []
    twinrun.restore(tmp_path / "record", tmp_path / "back")
    five, ten = (tmp_path / "back" / f"step-{step:010}" for step in (5, 10))
    for at, step in ((five, 5), (ten, 10)):
        inner = at / f"step-{step}"
        assert os.readlink(inner / "current") == "x.dat"
        assert (inner / "mesh.dat").read_bytes() == b"mesh"
        assert (inner / "tables" / "table").read_bytes() == b"table"
        assert os.readlink(inner / "tables" / "alias") == "table"
    assert os.path.islink(five / "step-5" / "mesh.dat") and not os.path.islink(ten / "step-10" / "mesh.dat")
    assert (five / "table").read_bytes() == b"table" and (five / "latest" / "x.dat").read_bytes() == b"x10"
    with pytest.raises(twinrun.FormatError, match="within what is packed"):
        os.symlink(tmp_path / "record", source / "record")
        twinrun.pack(source, tmp_path / "record", append=True)


def test_steps_that_changed_are_never_passed_over(tmp_path: Path) -> None:
    source, record = tmp_path / "run", tmp_path / "record"
    source.mkdir()
    rng = random.Random(1)
    bodies = {step: rng.randbytes(50_000) for step in (1, 2, 3)}
    for step in (1, 2):
        (source / f"x_{step}.dat").write_bytes(bodies[step])
    (source / "run.log").write_text("begun\n")
    twinrun.pack(source, record)

    (source / "x_3.dat").write_bytes(bodies[3])
    assert [s.step for s in twinrun.pack(source, record, append=True).steps] == [3]
    os.remove(source / "x_3.dat")  # what is gone stays in the record, and is no change
    assert twinrun.pack(source, record, append=True).steps == []

    (source / "y_2.dat").write_bytes(b"late")
    with open(source / "run.log", "a") as log:
        log.write("more\n")
    os.remove(source / "x_1.dat")
    (source / "x_4.dat").write_bytes(bodies[1])
    before = listing(os.fsencode(record))
    line = check_error(command("pack", source, record, "--append"), "step 1 (and 1 more steps)", "--update")
    assert "changed: run.log" in line
    assert listing(os.fsencode(record)) == before  # nothing of it was written, not even step 4

    done = command("pack", source, record, "--update", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [(x["step"], x["new_version"]) for x in lines] == [(1, True), (2, True), (4, False)]
    assert lines[0]["bytes"] < 2000  # told by what differs
    twinrun.restore(record, tmp_path / "back")
    back = {s: tmp_path / "back" / f"step-{s:010}" for s in (1, 2, 3, 4)}
    assert (back[1] / "run.log").read_text() == "begun\nmore\n"
    assert (back[1] / "x_1.dat").read_bytes() == bodies[1]  # gone from the folder, and kept
    assert (back[2] / "y_2.dat").read_bytes() == b"late" and (back[2] / "x_2.dat").read_bytes() == bodies[2]
    assert (back[3] / "x_3.dat").read_bytes() == bodies[3] and (back[4] / "x_4.dat").exists()
    assert twinrun.verify(record)[0] == []
    assert command("pack", source, record, "--append").status == 0  # and now nothing is new
    # The same size, another byte; a file that became a link; with methods that keep no checksum of the content too.
    twinrun.pack(source, tmp_path / "full", options=twinrun.RecordOptions("full"))
    body = bytearray(bodies[2])
    body[12345] ^= 1
    (source / "x_2.dat").write_bytes(body)
    for where, method in ((record, "runs"), (tmp_path / "full", "full")):
        with pytest.raises(twinrun.TwinrunError, match=r"changed: x_2\.dat"):
            twinrun.pack(source, where, options=twinrun.RecordOptions(method), append=True)
    (source / "x_2.dat").write_bytes(bodies[2])
    os.remove(source / "y_2.dat")
    os.symlink("x_2.dat", source / "y_2.dat")
    with pytest.raises(twinrun.TwinrunError, match=r"changed: y_2\.dat"):
        twinrun.pack(source, record, append=True)


@pytest.mark.parametrize("shared", ["off", "one"])
def test_a_history_whose_step_was_captured_again(tmp_path: Path, shared: str) -> None:
    run, record = tmp_path / "run", tmp_path / "record"
    x = np.arange(5000.0)
    with twinrun.Run(run, atol=1e-9, settings={"shared_files": shared}) as one:
        for step in range(3):
            one.capture(step, {"x": x + step})
    twinrun.pack(run, record)
    assert twinrun.pack(run, record, append=True).steps == []
    with twinrun.Run(
        run, atol=1e-9, existing="append", replace_steps=True, settings={"shared_files": shared}
    ) as one:
        one.capture(1, {"x": x - 7})
        one.capture(3, {"x": x})
    with pytest.raises(twinrun.TwinrunError, match="step 1 has changed since it was packed"):
        twinrun.pack(run, record, append=True)
    assert [s.step for s in twinrun._core.open_history(str(record)).steps] == [0, 1, 2]
    facts = twinrun.pack(run, record, update=True)
    assert [(s.step, s.new_version) for s in facts.steps] == [(1, True), (3, False)]
    assert twinrun.compare(run, record).verdict == "same"
    assert twinrun.verify(record)[0] == []
    assert twinrun.pack(run, record, append=True).steps == []


def test_append_to_a_record_within_a_bound(tmp_path: Path) -> None:
    """What is still within the bound of what the record gives back is no change."""
    run, record = tmp_path / "run", tmp_path / "record"
    bounded = twinrun.RecordOptions(bounded=True)
    x = np.random.default_rng(1).standard_normal(5000)

    def capture(step: int, x: np.ndarray, existing: str = "append") -> None:
        with twinrun.Run(run, atol=1e-3, existing=existing, replace_steps=True) as one:
            one.capture(step, {"x": x})

    capture(0, x, "refuse")
    capture(1, x + 4e-4)
    twinrun.pack(run, record, options=bounded)
    capture(1, x + 5e-4)
    assert twinrun.pack(run, record, options=bounded, append=True).steps == []
    x[4321] += 2e-3
    capture(1, x)
    with pytest.raises(twinrun.TwinrunError, match="step 1 has changed since it was packed"):
        twinrun.pack(run, record, options=bounded, append=True)
    assert [s.step for s in twinrun.pack(run, record, options=bounded, update=True).steps] == [1]
    assert twinrun.pack(run, record, options=bounded, append=True).steps == []


def test_steps_without_data_are_named(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", atol=1e-9, keep_data_steps=2) as run:
        for step in range(4):
            run.capture(step, {"x": np.arange(100.0)})
    done = command("pack", tmp_path / "run", tmp_path / "record", "-q")
    assert done.status == 0
    assert "step 0: left out: only its metadata was kept" in done.out and "step 1: left out" in done.out


def test_notes_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "run"
    source.mkdir()
    (source / "x.dat").write_bytes(b"x")
    with socket.socket(socket.AF_UNIX) as one:
        with monkeypatch.context() as here:
            here.chdir(source)  # the path of a socket may be 107 bytes long
            one.bind("s")
        for number in range(30):
            os.mkfifo(source / f"pipe {chr(ord('a') + number % 26)}{number}")
        done = command("pack", source, tmp_path / "record", "--quiet")
        assert done.status == 0 and done.out.count("left out: a pipe") == 20 and "11 more: --json" in done.out
        done = command("pack", source, tmp_path / "again", "--json")
    notes = {x["name"]: x["note"] for x in map(json.loads, done.out.splitlines()) if "note" in x}
    assert len(notes) == 31 and notes["s"] == "left out: a socket"


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Of files, of records, of what a record is against; from a folder whose own name is none either."""
    place = os.fsencode(tmp_path) + b"/\xe9t\xe9"
    source = place + b"/\xff\xfe"
    os.makedirs(source)
    name = b"\x80\n\xc3\x28_0001.bin"
    body = random.Random(3).randbytes(20_000)
    with open(os.path.join(source, name), "xb") as file:
        file.write(body)

    def run(*arguments: bytes | str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "twinrun", *arguments], cwd=place, capture_output=True, timeout=120
        )

    for arguments in (
        ("pack", b"\xff\xfe", b"rec\xaa"),
        ("pack", b"\xff\xfe", b"second\xab", "--against", b"rec\xaa"),
        ("pack", b"\xff\xfe", b"second\xab", "--against", b"rec\xaa", "--append"),
        ("restore", b"second\xab", b"to\xac", "--flat"),
        ("restore", b"rec\xaa", b"part\xad", "--step", "1", "--field", name, "--bytes", "5:100"),
    ):
        done = run(*arguments)
        assert done.returncode == 0 and done.stderr == b"", (arguments, done)
    with open(os.path.join(place, b"to\xac", name), "rb") as file:
        assert file.read() == body
    with open(os.path.join(place, b"part\xad"), "rb") as file:
        assert file.read() == body[5:105]
    refused = run("compact", b"rec\xaa", "--keep-last", "1")
    assert refused.returncode == 2 and b"is recorded against it" in refused.stderr
    again = run("restore", b"second\xab", b"to\xac", "--flat")
    assert again.returncode == 2 and again.stderr.count(b"\n") == 1 and b"is there already" in again.stderr
    for verb in ("show", "log", "verify", "compare", "index", "compact", "flush"):
        told = run(verb, *([b"rec\xaa"] * (2 if verb == "compare" else 1)))
        assert b"defect of twinrun" not in told.stderr and b"Traceback" not in told.stderr, (verb, told)


BOUNDED = """
import resource, sys, twinrun
memory, what, record, to, room = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
twinrun.verify, twinrun.restore, twinrun.write_part  # loaded now, not in the little that will be left
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + room, now + room))
if what == "verify":
    assert twinrun.verify(record, memory=memory, threads=1)[0] == []
elif what == "part":
    assert twinrun.write_part(record, 0, sys.argv[6], to, memory=memory, threads=1) > 0
else:
    twinrun.restore(record, to, memory=memory, threads=1)
"""


def bounded(
    what: str, record: Path, to: Path, *more: str, memory: int = 4 * MIB, room: int = 48 * MIB
) -> bool:
    """Whether it is done where no more than `room` is left."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = process(memory, what, record, to, room, *more, python=("-c", BOUNDED), env=environment)
    assert done.status == 0 or "not enough memory" in done.err or "MemoryError" in done.err, done
    return done.status == 0


def test_files_come_back_in_little_memory(tmp_path: Path) -> None:
    """A step of 96 MiB, some of it zeros, where a twentieth of that is allowed."""
    source, size = tmp_path / "run", 96 * MIB
    source.mkdir()
    body = random.Random(1).randbytes(16 * MIB)
    with open(source / "x_0.dat", "xb") as file:
        file.truncate(size)
        file.seek(40 * MIB + 12345)
        file.write(body)
    twinrun.pack(source, tmp_path / "record", options=twinrun.RecordOptions(chunk=4096))
    assert bounded("restore", tmp_path / "record", tmp_path / "back")
    back = tmp_path / "back" / "step-0000000000" / "x_0.dat"
    assert back.stat().st_size == size and back.stat().st_blocks * 512 < 20 * MIB
    with open(back, "rb") as file:
        file.seek(40 * MIB + 12345)
        assert file.read(len(body)) == body
    assert bounded("verify", tmp_path / "record", tmp_path / "none")
    assert bounded("part", tmp_path / "record", tmp_path / "part", "x_0.dat")
    assert (tmp_path / "part").stat().st_size == size
    # Long runs of chunks are read in small parts, however much memory is allowed.
    assert bounded("restore", tmp_path / "record", tmp_path / "more", memory=1 << 40)


def test_files_of_short_runs_come_back_in_little_memory(tmp_path: Path) -> None:
    """Of 96 MiB a chunk in 12 is no zeros: parts are as large as may be, so that few blocks are read twice."""
    source, size = tmp_path / "run", 96 * MIB
    source.mkdir()
    body = random.Random(3).randbytes(4096)
    with open(source / "x_0.dat", "xb") as file:
        file.truncate(size)
        for at in range(0, size, 48 << 10):
            file.seek(at)
            file.write(at.to_bytes(8, "little") + body[8:])
    twinrun.pack(source, tmp_path / "record", options=twinrun.RecordOptions(chunk=4096))
    assert bounded("restore", tmp_path / "record", tmp_path / "back")
    assert (tmp_path / "back" / "step-0000000000" / "x_0.dat").read_bytes() == (
        source / "x_0.dat"
    ).read_bytes()
    # The tests can fail: with as much as the step allowed, there is not enough.
    assert not bounded("restore", tmp_path / "record", tmp_path / "more", memory=1 << 40)
    assert not (tmp_path / "more" / "step-0000000000" / "x_0.dat").exists()


def test_histories_come_back_in_little_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    y = np.zeros(8 * MIB)
    y[::8192] = np.arange(1024)  # short runs, which are read together where memory allows it
    with twinrun.Run(tmp_path / "run", atol=1e-9) as run:
        run.capture(0, {"x": rng.standard_normal(4 * MIB), "y": y, "small": np.arange(3)})
    twinrun.pack(
        tmp_path / "run", tmp_path / "record", options=twinrun.RecordOptions(chunk=4096, compress="none")
    )
    assert bounded("restore", tmp_path / "record", tmp_path / "back")
    assert bounded("verify", tmp_path / "record", tmp_path / "none")
    for mark in tmp_path.glob("*/step-*/.twinrun-*"):  # of each history its own
        mark.unlink()
    assert listing(os.fsencode(tmp_path / "back" / "step-0000000000")) == listing(
        os.fsencode(tmp_path / "run" / "step-0000000000")
    )
    assert not bounded("restore", tmp_path / "record", tmp_path / "more", memory=1 << 40)


def test_parts_of_files_in_every_memory(tmp_path: Path) -> None:
    """Cut at any place, with any memory: the same bytes."""
    source, rng = tmp_path / "run", random.Random(2)
    source.mkdir()
    body = rng.randbytes(2 * MIB) + bytes(MIB + 7) + rng.randbytes(MIB + 4)
    (source / "x_0.dat").write_bytes(body)
    twinrun.pack(source, tmp_path / "record", options=twinrun.RecordOptions(chunk=64))
    for number in range(12):
        offset = rng.randrange(len(body) + 1)
        count = rng.randrange(len(body) - offset + 1)
        memory = rng.choice([1, 64, 1000, MIB, 40 * MIB, 1 << 40])
        part = twinrun.read_part(tmp_path / "record", 0, "x_0.dat", offset=offset, count=count, memory=memory)
        assert part == body[offset : offset + count]
        to = tmp_path / f"part-{number}"
        assert (
            twinrun.write_part(
                tmp_path / "record", 0, "x_0.dat", to, offset=offset, count=count, memory=memory
            )
            == count
        )
        assert to.read_bytes() == part
    assert twinrun.read_part(tmp_path / "record", 0, "x_0.dat", memory=1) == body


WRONG_LINES = {
    "not json": "{nothing",
    "no step": '{"folder":"step-0000000000","ranks":[]',
    "another type": '{"step":"zero","folder":"step-0000000000","ranks":[]',
    "a list": '{"moved":3,"gone":[]',
    "huge": '{"step":1e400,"folder":"x","ranks":[]',
    "path": '{"child":{"bytes":"zz"}',
    "path again": '{"child":{"octets":"00"}',
    "path at last": '{"child":7',
    "not utf-8": '{"child":"\udcff"',
    "unknown": '{"something":1',
}


@pytest.mark.parametrize("name", WRONG_LINES)
def test_wrong_lines_are_told_in_plain_words(tmp_path: Path, name: str) -> None:
    xxhash = pytest.importorskip("xxhash")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "x_0.dat").write_bytes(b"x")
    twinrun.pack(tmp_path / "run", tmp_path / "record")
    manifest = tmp_path / "record" / "manifest.jsonl"
    line = os.fsencode(WRONG_LINES[name])
    sealed = line + b',"xxh3":"%s"}\n' % xxhash.xxh3_64_hexdigest(line).encode()
    manifest.write_bytes(manifest.read_bytes() + sealed)
    said = check_error(
        command("restore", tmp_path / "record", tmp_path / "to"),
        "manifest.jsonl: damaged: line 3: ",
        "restore the file from a copy",
    )
    assert "json" not in said.replace("manifest.jsonl", "").lower().replace("it is not json", "")
    assert "exception" not in said


def test_a_record_that_another_needs_keeps_its_steps_wherever_that_one_is(tmp_path: Path) -> None:
    """Moved, damaged, or its parent moved: who cannot be asked may still need what would leave."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=20_000)
    for name in ("first", "second"):
        with twinrun.Run(tmp_path / name) as run:
            for step in range(4):
                run.capture(step, {"x": x + step})
    parent, child = tmp_path / "parent", tmp_path / "child"
    twinrun.pack(tmp_path / "first", parent)
    twinrun.pack(tmp_path / "second", child, against=parent)

    def refused(record: Path, why: str) -> None:
        with pytest.raises(twinrun.TwinrunError, match=why):
            twinrun.compact(record, keep_last=1)

    child.rename(tmp_path / "elsewhere")
    refused(parent, "was recorded against it, and is not there")
    (tmp_path / "elsewhere").rename(child)
    manifest = (child / "manifest.jsonl").read_bytes()
    (child / "manifest.jsonl").write_bytes(manifest[:100])
    refused(parent, "cannot be read")
    (child / "manifest.jsonl").write_bytes(manifest)
    parent.rename(tmp_path / "renamed")
    refused(tmp_path / "renamed", "which is not there")
    (tmp_path / "renamed").rename(parent)
    refused(parent, "remove that record first")
    assert twinrun.verify(child)
    shutil.rmtree(child)
    refused(parent, "forget-missing")
    assert twinrun.compact(parent, keep_last=1, forget_missing=True).dropped_steps == 3


def test_advice_about_a_record_that_is_there_works(tmp_path: Path) -> None:
    source, record = tmp_path / "run", tmp_path / "record"
    source.mkdir()
    np.save(source / "x_1.npy", np.zeros(3))
    twinrun.pack(source, record)
    check_error(
        command("pack", source, record),
        "holds a history already; give --append to go on with it, --update where steps changed, or another folder",
    )
    with pytest.raises(twinrun.TwinrunError, match="give append=True to go on with it, update=True where"):
        twinrun.pack(source, record)
    for option in ("--append", "--update"):
        assert command("pack", source, record, option).status == 0

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.jsonl").write_text("{}\n")
    check_error(command("pack", source, foreign), "is no manifest of a history; name another folder, or move")
    (foreign / "manifest.jsonl").rename(tmp_path / "moved")
    assert command("pack", source, foreign).status == 0


def test_golden_files_do_not_go_beside_a_foreign_manifest(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.jsonl").write_text("{}\n")
    check_error(
        command("golden", "save", tmp_path / "x.npy", "-o", foreign), "name a new folder for the golden files"
    )


def test_flat_is_of_one_step(tmp_path: Path) -> None:
    source, record = tmp_path / "run", tmp_path / "record"
    source.mkdir()
    for step in (1, 2):
        (source / f"out_{step}.dat").write_text("data")
    twinrun.pack(source, record)
    said = "holds files of several steps, which need a folder for each; choose one step, or leave out --flat"
    check_error(command("restore", record, tmp_path / "all", "--flat"), said)
    with pytest.raises(
        twinrun.TwinrunError, match="which need a folder for each; choose one step, or leave out flat=True"
    ):
        twinrun.restore(record, tmp_path / "all", flat=True)
    assert not (tmp_path / "all").exists()
    assert command("restore", record, tmp_path / "one", "--flat", "--step", "2").out == (
        f"wrote 1 file below {tmp_path / 'one'}\n"
    )
    assert os.listdir(tmp_path / "one") == ["out_2.dat"]
    assert f"wrote 2 files below {tmp_path / 'all'}" in command("restore", record, tmp_path / "all").out
    assert sorted(os.listdir(tmp_path / "all")) == ["step-0000000001", "step-0000000002"]
    part = command(
        "restore", record, tmp_path / "part", "--step", "1", "--field", "out_1.dat", "--bytes", "0:1"
    )
    assert part.out == f"wrote 1 byte to {tmp_path / 'part'}\n"
    shown = " ".join(command("restore", "--help").out.split())
    assert "a folder step-N of TO for each step; with --flat one step comes into TO itself" in shown


def test_what_is_no_file_has_words_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "out" / "empty").mkdir(parents=True)
    (tmp_path / "out" / "x_0.bin").write_bytes(b"abc")
    (tmp_path / "out" / "ln").symlink_to("x_0.bin")
    record = tmp_path / "record"
    twinrun.pack(tmp_path / "out", record)
    for name in ("ln", "empty"):
        done = command("restore", record, tmp_path / "no", "--step", "0", "--field", name)
        assert done.status == 2 and f"{name!r} of step 0 is a link, a folder or" in done.err, done
    done = command("restore", record, tmp_path / "no", "--step", "0", "--field", "nope")
    assert done.status == 2 and "has no 'nope'; it has empty, ln, x_0.bin" in done.err, done
    (tmp_path / "there").write_text("mine")
    done = command("restore", record, tmp_path / "there", "--step", "0", "--field", "x_0.bin")
    assert done.status == 2 and "is there already; name another file, or remove it" in done.err, done
    done = command("restore", record, tmp_path / "back")
    assert done.out.startswith("wrote 2 files and 1 empty folder below "), done


@pytest.mark.parametrize("options", [["--json"], []])
def test_packing_goes_on_where_its_report_is_not_read(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "out").mkdir()
    for step in range(4):
        (tmp_path / "out" / f"x_{step}.bin").write_bytes(bytes(5000))
    record = tmp_path / "record"
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "twinrun", "pack", str(tmp_path / "out"), str(record), *options]
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (
        done.returncode == 2 and "packing was finished (4 steps), but the report could not be" in done.stderr
    ), done
    assert len(twinrun.restore(record, tmp_path / "back")) == 4


def test_a_record_beside_files_of_others_changes_none(tmp_path: Path) -> None:
    record = tmp_path / "record"
    others = {record / "mine.txt": b"mine", record / "step-0000000000" / "rank.txt": b"mine too"}
    for path, content in others.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for step in range(3):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / f"x_{step}.bin").write_bytes(bytes([step]) * 5000)
    twinrun.pack(tmp_path / "out", record)
    assert twinrun.verify(record)
    assert len(twinrun.restore(record, tmp_path / "back")) == 3
    twinrun.compact(record, keep_last=1)
    assert twinrun.verify(record)
    assert {path: path.read_bytes() for path in others} == others


def test_an_empty_name_of_a_report(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"")
    done = command("compare", tmp_path / "x.npy", tmp_path / "x.npy", "--json", "")
    assert done.status == 2 and "--json names no file: its name is empty" in done.err, done
