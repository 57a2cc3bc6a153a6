"""What others keep in a folder that twinrun is given is there afterwards, byte for byte: whatever is planted, whatever the verb."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import command
from folders import looks

import twinrun

X = np.arange(3000.0)


def _file(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.write_bytes(rng.choice([b"", b"text\n", b"no line feed", rng.randbytes(5000), b'{"atol":0.0']))


def _folder(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.mkdir()
    for name in rng.sample(
        ["notes.txt", "rank-00000.data", "rank-00000.twm", "rank-00000.data.tmp", "group.data", "sub"], 3
    ):
        if name == "sub":
            (path / name).mkdir()
            (path / name / "deep").write_bytes(b"deep")
        else:
            (path / name).write_bytes(rng.randbytes(100))


def _empty_folder(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.mkdir()


def _link_to_folder(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def _link_to_file(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "precious")


def _dangling(path: Path, rng: random.Random, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "not there")


def _pipe(path: Path, rng: random.Random, elsewhere: Path) -> None:
    os.mkfifo(path)


KINDS = (_file, _folder, _empty_folder, _link_to_folder, _link_to_file, _dangling, _pipe)
# Names that twinrun gives to files and folders, and names that are near them.
NAMES = (
    "step-0000000001", "step-0000000002", "step-0000000001.1", "step-000.log", "step-2", ".step-0000000001", "step-leftovers",
    "manifest.jsonl", "rank-00000.jsonl", "rank-00001.jsonl", "rank-00000.data.tmp", "rank-00000.begun", "rank-00000", ".twinrun-" + 32 * "0", "x.npy.twm",
    "x.npy.twm.tmp", "golden.json", "golden.json.tmp", "rank_0.twm", "step_1_rank_0.twm", "README.md", "x-0001.npy", "x-0001.npy.tmp",
    ".x-0001.npy", "group.data", "flush.log", "report.html.tmp",
)  # fmt: skip


def plant(folder: Path, rng: random.Random, elsewhere: Path) -> dict[str, tuple]:
    """Some of it, and what it looks like."""
    for name in rng.sample(NAMES, rng.randrange(1, 9)):
        rng.choice(KINDS)(folder / name, rng, elsewhere)
    return looks(folder)


def check(before: dict[str, tuple], folder: Path) -> None:
    after = looks(folder)
    harmed = sorted(name for name, was in before.items() if after.get(name) != was)
    assert not harmed


def attempt(work: Callable[[], object]) -> None:
    """Works, or says why not in one line."""
    try:
        work()
    except twinrun.TwinrunError as e:
        assert (
            "\n" not in str(e)
            and "internal" not in str(e)
            and "json" not in str(e).replace("jsonl", "").replace(".json", "")
        )


def capture(path: Path, **options: object) -> None:
    with twinrun.Run(path, **options) as run:
        for step in (1, 2, 3):
            with contextlib.suppress(twinrun.TwinrunError):
                run.capture(step, {"x": X + step})


def verb(*arguments: object) -> Callable[[], None]:
    def run() -> None:
        done = command(*arguments)
        assert done.status in (0, 1, 2) and "internal" not in done.err, done
        assert done.status != 2 or len(done.err.strip().splitlines()) <= 1 or "error" in done.err

    return run


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history, a record of it, a folder of files and a record of that, and a local part on its way."""
    root = tmp_path_factory.mktemp("sources")
    capture(root / "run")
    command("pack", root / "run", root / "record")
    (root / "files").mkdir()
    for step in (1, 2):
        np.save(root / f"files/x-{step:04}.npy", X + step)
    command("pack", root / "files", root / "packed")
    np.save(root / "x.npy", X)
    capture(root / "late", local=root / "local", flusher="none")
    return root


VERBS: dict[str, Callable[[Path, Path], Callable[[], object]]] = {
    "capture": lambda s, to: lambda: capture(to),
    "capture, background": lambda s, to: lambda: capture(to, background=True),
    "append": lambda s, to: lambda: capture(to, existing="append"),
    "replace": lambda s, to: lambda: capture(to, existing="replace"),
    "keep one": lambda s, to: lambda: capture(to, existing="append", keep_steps=1),
    "record": lambda s, to: lambda: capture(to, record="runs"),
    "local": lambda s, to: lambda: capture(to.parent / "elsewhere-run", local=to, existing="append"),
    "local, replace": lambda s, to: (
        lambda: capture(to.parent / "elsewhere-run", local=to, existing="replace")
    ),
    "pack": lambda s, to: verb("pack", s / "run", to),
    "pack files": lambda s, to: verb("pack", s / "files", to),
    "pack --append": lambda s, to: verb("pack", "--append", s / "files", to),
    "restore": lambda s, to: verb("restore", s / "record", to),
    "restore files": lambda s, to: verb("restore", s / "packed", to),
    "restore --flat": lambda s, to: verb("restore", s / "packed", to, "--step", "1", "--flat"),
    "flush --to": lambda s, to: verb("flush", s / "local", "--to", to),
    "golden save": lambda s, to: verb("golden", "save", s / "x.npy", "-o", to),
    "golden save run": lambda s, to: verb("golden", "save", s / "run", "-o", to),
    "index": lambda s, to: verb("index", to, "--atol", "1e-6"),
    "compact": lambda s, to: verb("compact", to),
    "compare": lambda s, to: verb("compare", to, s / "run"),
    "verify": lambda s, to: verb("verify", to),
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_of_others_is_harmed(name: str, seed: int, sources: Path, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"precious")
    there = looks(elsewhere)
    to = tmp_path / "to"
    to.mkdir()
    if name == "index":
        np.save(to / "x.npy", X)
    planted = plant(to, rng, elsewhere)
    attempt(VERBS[name](sources, to))
    check(planted, to)
    check(there, elsewhere)
    assert looks(elsewhere) == there, "something was written through a link"


@pytest.mark.parametrize("seed", range(12))
def test_planted_into_a_history(seed: int, sources: Path, tmp_path: Path) -> None:
    """The folder is a history already: what was put into it and into its steps stays, whatever goes on."""
    rng = random.Random(seed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"precious")
    there = looks(elsewhere)
    to = tmp_path / "to"
    record = seed % 2 == 1
    capture(to, record="runs" if record else None)
    planted: dict[str, tuple] = {}
    for folder in (to, to / "step-0000000001", to / "step-0000000003"):
        for name in rng.sample(
            ["notes.txt", "step-0000000004", "step-0000000005", "step-7.log", "rank-1.txt", "sub", "group"], 4
        ):
            rng.choice(KINDS)(folder / name, rng, elsewhere)
            path = folder / name
            planted[os.path.relpath(path, to)] = looks(folder)[name]
            if path.is_dir() and not path.is_symlink():
                for inside, look in looks(path).items():
                    planted[os.path.join(os.path.relpath(path, to), inside)] = look
    works = [
        lambda: capture(to, existing="append", record="runs" if record else None),
        lambda: _more(to, record),
        lambda: capture(to, existing="replace"),
        verb("flush", sources / "local", "--to", to),
    ]
    if record:
        works[1:1] = [verb("compact", to, "--keep-last", "1")]
    for work in works:
        attempt(work)
        check(planted, to)
        assert looks(elsewhere) == there
    assert twinrun.verify(to)[0] == []


def _more(path: Path, record: bool) -> None:
    with twinrun.Run(path, existing="append", keep_steps=2, record="runs" if record else None) as run:
        for step in (4, 5, 6, 7):
            run.capture(step, {"x": X * step})


def test_a_users_folders_do_not_stop_a_capture(tmp_path: Path) -> None:
    """The steps get other names."""
    run = tmp_path / "run"
    (run / "step-0000000001").mkdir(parents=True)
    (run / "step-0000000001/mine").write_text("mine")
    (run / "step-0000000002").write_text("a file")
    (run / "step-0000000003").symlink_to(tmp_path)
    (run / "step-000.log").write_text("a log")
    before = looks(run)
    with twinrun.Run(run) as r:
        for step in (1, 2, 3):
            r.capture(step, {"x": X + step})
    check(before, run)
    assert twinrun.verify(run)[0] == []
    with twinrun.Run(tmp_path / "other") as r:
        for step in (1, 2, 3):
            r.capture(step, {"x": X + step})
    assert command("compare", run, tmp_path / "other").status == 0
    with twinrun.Run(run, existing="append") as r:
        y = np.empty_like(X)
        r.restore(3, {"x": y})
        assert (y == X + 3).all()
        r.capture(4, {"x": X})
    check(before, run)
    with twinrun.Run(run, existing="replace") as r:
        r.capture(9, {"x": X})
    check(before, run)
    assert sorted(set(os.listdir(run)) - set(before)) == ["manifest.jsonl", "step-0000000009"]


def test_a_run_folder_may_be_a_link(tmp_path: Path) -> None:
    """Links that the user names are followed: those within a history are not."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    with twinrun.Run(tmp_path / "runs") as r:
        r.capture(1, {"x": X})
    with twinrun.Run(tmp_path / "runs/deeper", local=tmp_path / "runs/local") as r:
        r.capture(1, {"x": X})
    assert (tmp_path / "disk/step-0000000001").is_dir()
    assert command("compare", tmp_path / "runs", tmp_path / "disk/deeper").status == 0


@pytest.mark.parametrize(
    "name", ["manifest.jsonl", "step-0000000001/rank-00000.twm", "step-0000000001/rank-00000.data"]
)
def test_links_planted_into_a_history_are_not_followed(name: str, tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "target"
    capture(run)
    os.replace(run / name, target)
    (run / name).symlink_to(target)
    before = target.read_bytes()
    for existing in ("append", "replace"):
        attempt(lambda existing=existing: _more_or_new(run, existing))
        assert target.read_bytes() == before


def _more_or_new(run: Path, existing: str) -> None:
    with twinrun.Run(run, existing=existing, replace_steps=True) as r:
        r.capture(1, {"x": X * 2})


@pytest.mark.parametrize("existing", ["append", "replace"])
def test_what_only_has_our_name_in_a_step_stays(existing: str, tmp_path: Path) -> None:
    """Text files under names that captures give, in a folder that a capture made: the step leaves, and they do not."""
    run = tmp_path / "run"
    capture(run)
    step = run / "step-0000000001"
    for name in ("group.data", "rank-00000.1.data", "rank-00000.1.twr", "rank-00000.data.tmp"):
        (step / name).write_text("my notes\n")
    (run / "step-0000000002/rank-00000.data").write_text("in place of the data\n")
    planted = {
        name: look
        for name, look in looks(run).items()
        if look[1] in (b"my notes\n", b"in place of the data\n")
    }
    assert len(planted) == 5
    with twinrun.Run(run, existing=existing, keep_steps=1) as r:
        r.capture(7, {"x": X})
        r.capture(8, {"x": X})
    check(planted, run)
    assert sorted(set(looks(run)) - set(planted)) == [
        "manifest.jsonl",
        "step-0000000001",
        *sorted(f"step-0000000001/{p.name}" for p in step.glob(".twinrun-*")),
        "step-0000000002",
        *sorted(f"step-0000000002/{p.name}" for p in (run / "step-0000000002").glob(".twinrun-*")),
        "step-0000000008",
        *sorted(f"step-0000000008/{p.name}" for p in (run / "step-0000000008").iterdir()),
    ]
    assert twinrun.verify(run)[0] == []


def test_index_replaces_only_metadata(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy.twm").write_text("my notes\n")
    done = command("index", tmp_path / "x.npy", "--atol", "1e-6")
    assert done.status == 2 and "x.npy.twm" in done.err and "is there already" in done.err
    assert (tmp_path / "x.npy.twm").read_text() == "my notes\n"
    (tmp_path / "x.npy.twm").unlink()
    for atol in ("1e-6", "1e-3"):
        assert command("index", tmp_path / "x.npy", "--atol", atol).status == 0
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npy.twm"]


def test_a_link_in_the_place_of_a_tier_is_refused(tmp_path: Path) -> None:
    """A rank makes its folder itself: where somebody else put a link, nothing is written behind it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    local = tmp_path / "local"
    local.mkdir()
    (local / "rank-00000").symlink_to(elsewhere)
    with pytest.raises(twinrun.TwinrunError, match="is a link"):
        twinrun.Run(tmp_path / "run", local=local)
    assert not os.listdir(elsewhere)
    # The tier itself may be reached through one.
    (tmp_path / "scratch").symlink_to(elsewhere)
    with twinrun.Run(tmp_path / "other", local=tmp_path / "scratch") as run:
        run.capture(1, {"x": X})
    assert twinrun.verify(tmp_path / "other").problems == []
