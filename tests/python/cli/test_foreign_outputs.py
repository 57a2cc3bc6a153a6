"""Studies, journals and reports: what others keep under names that twinrun uses stays as it is, and no report replaces what is read."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Outcome, command
from ensemble_support import PYTHON, write_study
from folders import looks
from test_foreign_files import KINDS, check

import twinrun
from twinrun.aggregate.studies.journal import Journal
from twinrun.ensemble.run import runner
from twinrun.errors import TwinrunError
from twinrun.outputs import NOISE_MEASURED, check_outputs, replacing, write_whole

X = np.arange(100.0)
STUDY = {"name": "s", "command": [*PYTHON, "print(1)"], "repetitions": 2}
NAMES = (
    "study.toml", "study.toml.tmp", "study-1.toml", "here", "here.tmp", "plan.jsonl", "plan.jsonl.tmp", "tasks.jsonl", "tasks.jsonl.tmp",
    "warmup.jsonl", "lock", "environments", "output", "results", "noise", "tasks", "report.html",
)  # fmt: skip


@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--list-differences"])
def test_a_link_that_the_user_names_leads_to_the_file(option: str, tmp_path: Path) -> None:
    """As in a shell's redirection: the link stays a link, the file keeps its mode, and what is read is not written to."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", X + (name == "b"))
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk/report.csv", tmp_path / "report.csv"
    link.symlink_to("disk/report.csv")
    for there in (False, True):
        if there:
            target.write_text("the last one")
            target.chmod(0o600)
        done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", option, link)
        assert done.status == 1, done
        assert os.readlink(link) == "disk/report.csv"
        assert target.read_bytes() not in (b"", b"the last one")
        assert target.stat().st_mode & 0o777 == (0o600 if there else 0o644)
        assert os.listdir(tmp_path / "disk") == ["report.csv"]
    link.unlink()
    link.symlink_to("a.npy")
    before = (tmp_path / "a.npy").read_bytes()
    done = command("compare", tmp_path / "a.npy", tmp_path / "b.npy", option, link)
    assert done.status == 2 and "must not replace it" in done.err
    assert (tmp_path / "a.npy").read_bytes() == before and link.is_symlink()


def test_files_are_written_whole_in_one_way(tmp_path: Path) -> None:
    """The mode is the file's, or the umask's; a link is followed or replaced, as said; what is not ours stays."""
    path, link = tmp_path / "x", tmp_path / "link"
    before = os.umask(0o027)
    try:
        write_whole(path, b"1")
        assert path.read_bytes() == b"1" and path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        with replacing(path, durable=True) as temporary:
            assert os.stat(temporary).st_mode & 0o777 == 0o600, "as private as the file, from the beginning"
            Path(temporary).write_bytes(b"2")
        assert path.read_bytes() == b"2" and path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    link.symlink_to("x")
    with replacing(link) as temporary:
        Path(temporary).write_bytes(b"3")
    assert link.is_symlink() and path.read_bytes() == b"3"
    write_whole(link, b"4")
    assert not link.is_symlink() and (path.read_bytes(), link.read_bytes()) == (b"3", b"4")
    with pytest.raises(TwinrunError, match="not what twinrun writes here"):
        write_whole(path, b"5", ours=lambda _: False)
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        Path(temporary).write_bytes(b"6")
        raise ZeroDivisionError
    assert path.read_bytes() == b"3"
    write_whole(path, b"7", ours=lambda name: Path(name).read_bytes() == b"3")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        write_whole(tmp_path / "pipe", b"8")
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "x"] and path.read_bytes() == b"7"


def test_proposed_tolerances_and_what_is_there(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", X + (name == "b"))
    runs = (tmp_path / "a.npy", tmp_path / "b.npy")
    target, link = tmp_path / "target.toml", tmp_path / "link.toml"
    link.symlink_to(target.name)
    done = command("tolerances", *runs, "-o", link)
    assert done.status == 2 and "give --force" in done.err and not target.exists()
    assert command("tolerances", *runs, "-o", link, "--force").status == 0
    assert link.is_symlink() and target.read_text()
    before = runs[0].read_bytes()
    link.unlink()
    link.symlink_to("a.npy")
    for output in (runs[0], link):
        done = command("tolerances", *runs, "-o", output, "--force")
        assert done.status == 2 and "must not replace it" in done.err
        assert runs[0].read_bytes() == before


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        (("tolerances", "a.npy", "a.npy", "-o"), "-o"),
        (("golden", "save", "a.npy", "-o"), "-o"),
        (("interpose", "--output"), "--output"),
        (("compare", "a.npy", "a.npy", "--json"), "--json"),
    ],
)
def test_below_a_file_nothing_can_be_written(
    verb: tuple[str, ...], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what, where and which option names another place."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", X)
    Path("file").write_text("mine")
    done = command(*verb, "file/x/y", *(("--", "true") if verb[0] == "interpose" else ()))
    assert done.status == 2 and len(done.err.strip().splitlines()) == 1
    assert "file/x" in done.err and f"with {option}" in done.err
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("seed", range(30))
def test_a_study_in_a_folder_of_others(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"precious")
    there = looks(elsewhere)
    study = write_study(tmp_path / "in", **STUDY)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in rng.sample(NAMES, rng.randrange(1, 5)):
        rng.choice(KINDS)(folder / name, rng, elsewhere)
    planted = looks(folder)
    for _ in range(2):
        done = command("ensemble", "run", study, "--folder", folder, "-q")
        assert done.status in (0, 2) and "internal" not in done.err
        assert done.status == 0 or len(done.err.strip().splitlines()) == 1
        after = looks(folder)
        # A folder that was there and empty may be the study's; an empty file may get lines.
        harmed = {
            n for n, was in planted.items() if after.get(n) != was and (was[1] != b"" or n not in after)
        }
        assert not harmed
        assert looks(elsewhere) == there


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.jsonl", '{"task": "buy milk"}\n'),
        ("plan.jsonl", "no line feed"),
        ("tasks.jsonl", '{"task": 1, "attempt": 1}\n{"of": "mine"}\n'),
        ("tasks.jsonl", "notes without a line feed"),
        ("warmup.jsonl", "[1]\n"),
        ("study.toml", 'name = "mine"\n'),
        ("here", "/nowhere"),
        ("environments/mine.json", "{}"),
        ("output/notes", "notes"),
        ("results/all.json", "{}"),
    ],
)
def test_a_foreign_file_is_refused_by_name(name: str, text: str, tmp_path: Path) -> None:
    study = write_study(tmp_path / "in", **STUDY)
    folder = tmp_path / "folder"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
    before = looks(folder)
    done = command("ensemble", "run", study, "--folder", folder)
    assert done.status == 2 and name.split("/")[0] in done.err and "is there already" in done.err
    assert looks(folder) == before


def test_a_foreign_file_in_a_study(tmp_path: Path) -> None:
    """In place of the study's own lines, and of the reference of its results."""
    study = write_study(
        tmp_path / "in",
        name="s",
        command=["/bin/sh", "-c", "printf 12345678 > r.f64"],
        repetitions=2,
        keep=["r.f64"],
        results={"compare": "{folder}/r.f64"},
    )
    folder = tmp_path / "folder"
    assert runner.run_study(study, folder).ended == "complete"
    for name in ("tasks.jsonl", "plan.jsonl"):
        own = (folder / name).read_bytes()
        (folder / name).write_text("notes")
        before = looks(folder)
        done = command("ensemble", "run", folder)
        assert done.status == 2 and name in done.err
        assert looks(folder) == before
        (folder / name).write_bytes(own)
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    for name in ("tasks.jsonl", "results/all", "results/all.json"):
        path = again / name
        path.unlink()
    (again / "tasks.jsonl").touch()
    shutil.rmtree(again / "output")
    (again / "results/all.json").write_text("mine")
    (again / "results/all.half").mkdir()
    (again / "results/all.half/mine").write_text("mine")
    (again / "results/all.json.tmp").write_text("mine")
    before = looks(again / "results")
    assert runner.run_study(None, again).ended == "complete"
    assert looks(again / "results") == before
    lines = [json.loads(line) for line in (again / "tasks.jsonl").read_text().splitlines()]
    assert {x["results"]["verdict"] for x in lines} == {"undecided"} and "all.json" in lines[0]["results"][
        "why"
    ]


@pytest.mark.parametrize("text", [b"notes", b"notes\n", b'{"kind": "notes"}\n', b'{"kind": "run"', b"\0"])
def test_a_journal_is_not_appended_to_a_foreign_file(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(text)
    with pytest.raises(twinrun.TwinrunError, match="journal"):
        Journal(path, "s", {})
    assert path.read_bytes() == text


def test_a_journal_goes_on_after_a_crash_in_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, "s", {}) as journal:
        journal.add({"x": 1})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path, "s", {}) as journal:
            assert len(journal.runs) == 0
        assert path.read_bytes() == whole[:first]


def test_a_journal_is_a_file_and_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(twinrun.TwinrunError):
            Journal(tmp_path / name, "s", {})
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


# ---- reports --------------------------------------------------------------------------------------------------------


def _refused(before: dict[str, tuple], folder: Path, option: str, *arguments: object) -> None:
    done = command(*arguments)
    assert done.status == 2 and f"{option} must not replace it" in done.err, done
    assert len(done.err.strip().splitlines()) == 1
    assert looks(folder) == before


@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--picture", "--list-differences"])
def test_compare_replaces_no_input(option: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x-1.npy", X)
        with twinrun.Run(tmp_path / f"run-{name}") as run:
            run.capture(1, {"x": X})
    (tmp_path / "t.toml").write_text('[[field]]\nname = "*"\natol = 1.0\n')
    os.link(tmp_path / "b/x-1.npy", tmp_path / "hard.npy")
    (tmp_path / "soft.npy").symlink_to("b/x-1.npy")
    (tmp_path / "out").symlink_to("a")
    before = looks(tmp_path)
    for output in ("a/x-1.npy", "b/x-1.npy", "hard.npy", "soft.npy", "out/x-1.npy"):
        _refused(
            before, tmp_path, option, "compare", tmp_path / "a", tmp_path / "b", option, tmp_path / output
        )
    a, b = tmp_path / "a/x-1.npy", tmp_path / "b/x-1.npy"
    _refused(before, tmp_path, option, "compare", a, b, option, tmp_path / "hard.npy")
    runs = tmp_path / "run-a", tmp_path / "run-b"
    for output in ("run-a/manifest.jsonl", "run-b/step-0000000001/rank-00000.data"):
        _refused(before, tmp_path, option, "compare", *runs, option, tmp_path / output)
    rules = ["--tolerances", tmp_path / "t.toml"]
    _refused(before, tmp_path, option, "compare", *runs, *rules, option, tmp_path / "t.toml")


def test_what_describes_a_file_is_an_input(tmp_path: Path) -> None:
    for name in ("a.dat", "b.dat"):
        X.tofile(tmp_path / name)
        (tmp_path / f"{name}.json").write_text('{"dtype": "f64"}')
    np.save(tmp_path / "x.npy", X)
    assert command("index", tmp_path / "x.npy", "--atol", "1e-6").status == 0
    before = looks(tmp_path)
    two = tmp_path / "a.dat", tmp_path / "b.dat"
    _refused(before, tmp_path, "--json", "compare", *two, "--json", tmp_path / "b.dat.json")
    same = tmp_path / "x.npy", tmp_path / "x.npy"
    _refused(before, tmp_path, "--json", "compare", *same, "--json", tmp_path / "x.npy.twm")
    for _ in range(2):  # an earlier report describes nothing
        assert command("compare", *same, "--json", tmp_path / "x.npy.json").status == 0


def test_reports_are_replaced(tmp_path: Path) -> None:
    """As every tool does; also beside a history's own files, and what is not there is nobody's."""
    for name in ("a", "b"):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, {"x": X})
    for _ in range(2):
        for path in (tmp_path / "r.json", tmp_path / "a/r.json"):
            assert command("compare", tmp_path / "a", tmp_path / "b", "--json", path).status == 0
            assert json.loads(path.read_text())["verdict"] == "same"
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "r.json"]


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_golden_check_replaces_no_input(option: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    assert (
        command("golden", "save", tmp_path / "x.npy", "-o", tmp_path / "golden", "--atol", "1e-6").status == 0
    )
    before = looks(tmp_path)
    golden = [p for p in (tmp_path / "golden").iterdir() if p.is_file()]
    assert golden
    for path in [*golden, tmp_path / "x.npy"]:
        _refused(
            before, tmp_path, option, "golden", "check", tmp_path / "golden", tmp_path / "x.npy", option, path
        )


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_ensemble_report_replaces_no_input(option: str, tmp_path: Path) -> None:
    study = write_study(tmp_path / "in", **STUDY)
    folder = tmp_path / "folder"
    assert runner.run_study(study, folder).ended == "complete"
    before = looks(tmp_path)
    environment = next(iter((folder / "environments").iterdir()))
    for path in (folder / "tasks.jsonl", folder / "plan.jsonl", folder / "study.toml", environment):
        _refused(before, tmp_path, option, "ensemble", "report", folder, option, path)
        other = ["--against", folder]
        _refused(before, tmp_path, option, "ensemble", "report", folder, *other, option, path)


def test_a_demonstrations_picture_replaces_no_other(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from twinrun.cli.demo import _free_name
    from twinrun.report.picture import save_growth

    mine = tmp_path / "growth.png"
    assert _free_name(str(tmp_path), "growth", ".png", b"Software\0twinrun") == str(mine)
    for name, content in (("growth.png", b"mine"), ("growth-1.png", b"")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "growth-2.png").symlink_to("growth.png")
    before = looks(tmp_path)
    for _ in range(2):
        path = _free_name(str(tmp_path), "growth", ".png", b"Software\0twinrun")
        assert os.path.basename(path) == "growth-3.png"
        save_growth(twinrun.compare({"x": X}, {"x": X + 1}), path)
        check(before, tmp_path)


def test_files_of_a_study_of_storage_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    from twinrun.aggregate.studies.launch import new_data_folder, remove_data

    (tmp_path / f"haccio-study-{os.getpid()}-data").write_text("mine")
    before = looks(tmp_path)
    made = new_data_folder(tmp_path)
    assert looks(tmp_path) == before, "a name alone"
    made.mkdir()
    (made / "file-data").write_text("data")
    check(before, tmp_path)
    remove_data(tmp_path, made)
    assert looks(tmp_path) == before
    (tmp_path / "haccio-study-mine").mkdir()
    (tmp_path / "haccio-study-mine/data").write_text("mine")
    (tmp_path / made.name).symlink_to("haccio-study-mine")
    before = looks(tmp_path)
    for other in (made, tmp_path / "haccio-study-mine", tmp_path):
        remove_data(tmp_path, other)
    made.unlink()
    made.mkdir()
    remove_data(tmp_path / "haccio-study-mine", made)
    made.rmdir()
    made.symlink_to("haccio-study-mine")
    check(before, tmp_path)


def test_interpose_into_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = command("interpose", "--output", tmp_path / "mine", "--", "true")
    assert done.status == 2 and "mine" in done.err and len(done.err.strip().splitlines()) == 1
    check({"mine": looks(tmp_path)["mine"]}, tmp_path)


def test_pipes_keep_nobody_waiting(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, X)
    a, b, pipe = tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "pipe"
    os.mkfifo(pipe)
    golden = tmp_path / "golden"
    assert command("golden", "save", a, "--output", golden).status == 0
    with_pipes = []
    for name in sorted(os.listdir(golden)):
        folder = tmp_path / f"golden-{name}"
        shutil.copytree(golden, folder)
        os.unlink(folder / name)
        os.mkfifo(folder / name)
        with_pipes.append(("golden", "check", folder, a))
    assert len(with_pipes) >= 2
    commands = [*with_pipes, ("compare", a, b, "--tolerances", pipe), ("compare", a, b, "--html", pipe)]
    for words in commands:
        done = command(*words)
        assert done.status == 2 and len(done.err.strip().splitlines()) == 1
        assert "not a regular file" in done.err
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:  # a pipe that is read gets its report, as far as it fits
        assert command("compare", a, b, "--json", pipe).status == 0
        assert json.loads(os.read(reader, 1 << 16))["verdict"] == "same"
    finally:
        os.close(reader)


def test_tolerances_replace_no_link(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, X)
    output = tmp_path / "t.toml"
    output.symlink_to(tmp_path / "nowhere")
    done = command("tolerances", tmp_path / "a.npy", tmp_path / "b.npy", "-o", output)
    assert done.status == 2 and "is there already" in done.err
    assert output.is_symlink() and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["here", "lock"])
def test_files_of_others_in_the_folder_of_a_study(name: str, tmp_path: Path) -> None:
    study, folder = write_study(tmp_path / "in", **STUDY), tmp_path / "folder"
    assert command("ensemble", "run", study, "--folder", folder, "-q").status == 0
    (folder / name).write_bytes(b"precious")
    done = command("ensemble", "run", study, "--folder", folder, "-q")
    assert done.status == 2 and "is left alone" in done.err and len(done.err.strip().splitlines()) == 1
    assert (folder / name).read_bytes() == b"precious"


@pytest.mark.parametrize("link", [False, True])
def test_folders_of_others_by_the_name_of_an_attempt(link: bool, tmp_path: Path) -> None:
    study, folder = write_study(tmp_path / "in", **STUDY), tmp_path / "folder"
    assert command("ensemble", "run", study, "--folder", folder, "-q").status == 0
    os.truncate(folder / "tasks.jsonl", 0)
    shutil.rmtree(folder / "output")
    place = tmp_path / "elsewhere" if link else folder / "output" / "1-1"
    place.mkdir(parents=True)
    (place / "precious").write_bytes(b"precious")
    if link:
        (folder / "output").mkdir()
        (folder / "output" / "1-1").symlink_to(place)
    assert command("ensemble", "run", study, "--folder", folder, "-q").status == 0
    assert os.listdir(place) == ["precious"] and (place / "precious").read_bytes() == b"precious"
    assert (folder / "output" / "1-1").is_symlink() is link
    assert (folder / "output" / "1-2" / "stdout").exists()


# ---- outputs of one command, and exactly the files that were named ---------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x-1.npy", X + (name == "b"))
        (tmp_path / name / "fig.png").write_bytes(b"an input")
    return tmp_path / "a", tmp_path / "b"


def test_two_outputs_are_two_files(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Whatever is there already, and by whatever names."""
    options = ("--json", "--html", "--junit", "--list-differences", "--picture")
    (tmp_path / "link").symlink_to("report")
    for first, second in itertools.pairwise(options):
        before = looks(tmp_path)
        for other in ("report", "./report", "link", "a/../report"):
            done = command("compare", *two, first, tmp_path / "report", second, f"{tmp_path}/{other}")
            assert done.status == 2 and "names too" in done.err and len(done.err.splitlines()) == 1
            assert looks(tmp_path) == before
        (tmp_path / "report").write_text("of an earlier comparison")
    for verb in (
        ("aggregate", "plan", "--topology", "torus:2x2", "--json", tmp_path / "r", "--svg", tmp_path / "r"),
        ("aggregate", "plan", "--topology", "torus:2x2", "--html", tmp_path / "r", "--png", tmp_path / "r"),
        ("noise", "--seconds", "0.1", "--html", tmp_path / "r", "--picture", tmp_path / "r"),
    ):
        done = command(*verb)
        assert done.status == 2 and "names too" in done.err and not (tmp_path / "r").exists()
    # A device is not replaced.
    assert command("compare", *two, "--json", "/dev/null", "--html", "/dev/null").status == 1


def test_a_picture_has_exactly_the_name_that_was_given(two: tuple[Path, Path], tmp_path: Path) -> None:
    """No suffix is added: so that no file of a name that nobody gave is replaced."""
    pytest.importorskip("matplotlib")
    before = looks(tmp_path)
    assert command("compare", *two, "--picture", two[0] / "fig").status == 1
    assert (two[0] / "fig").read_bytes().startswith(b"\x89PNG")
    check(before, tmp_path)
    (tmp_path / "pic.png").write_bytes(b"mine")
    before = looks(tmp_path)
    plan = ("aggregate", "plan", "--topology", "torus:2x2", "-q")
    assert command(*plan, "--svg", tmp_path / "pic", "--png", tmp_path / "png").status == 0
    assert b"<svg" in (tmp_path / "pic").read_bytes()
    assert (tmp_path / "png").read_bytes().startswith(b"\x89PNG")
    check(before, tmp_path)
    _refused(looks(tmp_path), tmp_path, "--picture", "compare", *two, "--picture", two[0] / "fig.png")
    done = command("compare", *two, "--picture", tmp_path / "fig.xyz")
    assert done.status == 2 and "cannot write the picture" in done.err and not (tmp_path / "fig.xyz").exists()


def test_a_plan_of_aggregation_replaces_no_input(tmp_path: Path) -> None:
    volumes, machine = tmp_path / "vol.json", tmp_path / "machine.json"
    volumes.write_text("[1000, 2000, 3000, 4000]")
    machine.write_text("{}")
    before = looks(tmp_path)
    plan = ("aggregate", "plan", "-q")
    for option in ("--json", "--html", "--svg", "--png"):
        given = ("--topology", "torus:2x2", "--volumes", volumes)
        _refused(before, tmp_path, option, *plan, *given, option, volumes)
        _refused(before, tmp_path, option, *plan, "--topology", f"file:{machine}", option, machine)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_file_of_a_study_is_an_input(elsewhere: bool, tmp_path: Path) -> None:
    study = write_study(tmp_path / "in", **STUDY)
    folder = tmp_path / "out/folder" if elsewhere else study.with_suffix("")
    assert command("ensemble", "run", study, "--folder", folder, "-q").status == 0
    (folder / "study-1.toml").write_text("what it was")
    before = looks(tmp_path)
    for path in (study, folder / "study-1.toml"):
        for option in ("--json", "--html"):
            _refused(before, tmp_path, option, "ensemble", "report", folder, option, path)
        _refused(before, tmp_path, "FILE", "ensemble", "export", folder, path)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("option", ["--json", "--html", "--junit", "--picture", "--list-differences"])
def test_a_link_to_itself_is_an_error(
    option: str, there: bool, two: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also where the comparison itself cannot be made."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    before = looks(tmp_path)
    for name in ("loop", "one"):
        b = two[1] if there else tmp_path / "nothing"
        done = command("compare", two[0], b, option, tmp_path / name)
        assert done.status == 2 and "leads to itself" in done.err and option in done.err
        assert looks(tmp_path) == before
    with pytest.raises(OSError, match="symbolic links"), replacing(tmp_path / "loop"):
        pass
    assert looks(tmp_path) == before


def test_reports_replace_nothing_of_a_history(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Nor golden files, nor metadata, whoever reads them; a report beside them is one."""
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(1, {"x": X})
    assert command("golden", "save", two[0] / "x-1.npy", "-o", tmp_path / "g").status == 0
    before = looks(tmp_path)
    step = tmp_path / "h/step-0000000001"
    own = [tmp_path / "h/manifest.jsonl", *step.glob("rank-*"), *(tmp_path / "g").iterdir()]
    assert len(own) == 6
    for path in own:
        _refused(before, tmp_path, "--json", "interpose", "--json", path, "--", "touch", tmp_path / "ran")
        _refused(before, tmp_path, "--html", "compare", *two, "--html", path)
    for path in (tmp_path / "h/r.json", step / "r.json"):
        for _ in range(2):
            assert command("compare", *two, "--json", path).status == 1
    check(before, tmp_path)


def _study(folder: Path) -> Path:
    """A study with measurements, as if it had been run here from the file beside it."""
    csv = folder.parent / "times.csv"
    csv.write_text("variant,seconds\na,1\nb,2\na,3\nb,4\n")
    assert command("ensemble", "import", csv, "--output", folder).status == 0
    for name in ("environments", "output/0-1/deep", "results", "noise"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("measured")
    for name in ("warmup.jsonl", "lock", "here", "study-1.toml"):
        (folder / name).write_text("")
    folder.with_suffix(".toml").write_text((folder / "study.toml").read_text())
    return folder


def test_reports_replace_nothing_of_a_study(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Of any study, whoever reads it; what is measured cannot be made again."""
    study, other = _study(tmp_path / "study"), _study(tmp_path / "other")
    own = [p for p in other.rglob("*") if p.is_file()] + [tmp_path / "other.toml"]
    assert len(own) == 12
    (tmp_path / "link").symlink_to(other / "tasks.jsonl")
    before = looks(tmp_path)
    for path in [*own, tmp_path / "link", tmp_path / "other/../other/plan.jsonl"]:
        _refused(before, tmp_path, "--json", "compare", *two, "--json", path)
    plan, tasks = other / "plan.jsonl", other / "tasks.jsonl"
    csv = ("ensemble", "export", study, tasks, "--format", "csv")
    _refused(before, tmp_path, "FILE", *csv)
    _refused(before, tmp_path, "--html", "ensemble", "report", study, "--html", plan)
    for option, path in (
        ("--export-json", tasks),
        ("--export-csv", other / "study.toml"),
        ("--export-markdown", plan),
    ):
        _refused(
            before, tmp_path, option, "ensemble", "-r", "2", option, path, "--", "touch", tmp_path / "ran"
        )
    tasks.unlink()  # of a study that has not begun: the name is the study's too
    before = looks(tmp_path)
    _refused(before, tmp_path, "--json", "compare", *two, "--json", tasks)
    tasks.write_text((study / "tasks.jsonl").read_text())
    plan.unlink()  # the lines say it alone, under any name
    (tmp_path / "copy").write_text(tasks.read_text())
    before = looks(tmp_path)
    for path in (tasks, tmp_path / "copy"):
        _refused(before, tmp_path, "--json", "compare", *two, "--json", path)
    for path in (
        other / "report.json",
        tmp_path / "more.toml",
        tmp_path / "tasks.jsonl",
    ):  # these are nobody's
        for _ in range(2):
            assert command("compare", *two, "--json", path).status == 1


def test_reports_replace_no_other_measurement(two: tuple[Path, Path], tmp_path: Path) -> None:
    """The journal of an I/O study, a measurement of noise, the profile of a process, a step's data of several ranks."""
    (tmp_path / "journal").write_text(
        '{"kind": "study", "version": 1, "study": "size", "conditions": {}, "facts": {}}\n'
    )
    (tmp_path / "noise.json").write_text('{\n "twinrun": "1",\n "kind": "noise report",\n "version": 1\n}\n')
    (tmp_path / "PROFILE-rank-3.json").write_text("{}")
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(1, {"x": X})
    step = tmp_path / "h/step-0000000001"
    (step / "group.data").write_bytes(b"x")
    before = looks(tmp_path)
    own = [tmp_path / name for name in ("journal", "noise.json", "PROFILE-rank-3.json")]
    for path in (*own, step / "group.data", *step.glob(".twinrun-*")):
        _refused(before, tmp_path, "--json", "compare", *two, "--json", path)
    check_outputs(
        {"--json": tmp_path / "noise.json"}, replaceable=NOISE_MEASURED
    )  # a later one, by twinrun noise


def test_what_a_command_is_given_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data")
    before = looks(tmp_path)
    arguments = ("interpose", "--json", tmp_path / "data", "--", "cat", tmp_path / "data")
    _refused(before, tmp_path, "--json", *arguments)


def test_an_input_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the journal of a study; by whatever name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(twinrun.TwinrunError, match="--json must not replace it"):
        check_outputs({"--json": "./journal"}, [tmp_path / "journal"])
    for option in ("--html", "--junit", "--picture", "--list-differences"):
        with pytest.raises(twinrun.TwinrunError, match=f"standard output for --json only.* with {option}"):
            check_outputs({"--json": "-", option: "-"}, ["-"])
    check_outputs({"--json": "-", "--html": None}, ["-"])  # standard output is no file


def test_nothing_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), replacing(tmp_path / "pipe"):
        pass
    assert os.listdir(tmp_path) == ["pipe"]


# ---- the demonstration ----------------------------------------------------------------------------------------------

SIMULATION = f"""#!{sys.executable}
import os, sys
import numpy as np
import twinrun
words = sys.argv[1:]
value = {{name: words[words.index(name) + 1] for name in ("--history", "--capture")}}
with twinrun.Run(value["--history"], atol=1e-4, existing="replace") as run:
    for step in value["--capture"].split(","):
        run.capture(int(step), {{"x": np.arange(10.0)}})
"""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Outcome]:
    """The verb with a simulation that does not compute, into tmp_path/demo."""
    program = tmp_path / "simulation"
    program.write_text(SIMULATION)
    program.chmod(0o755)
    monkeypatch.setenv("TWINRUN_MINIHACC", str(program))
    return lambda: command("demo", "--folder", tmp_path / "demo", "--capture", "2,4")


@pytest.mark.parametrize("name", ["run-a", "run-b"])
def test_a_demonstration_replaces_no_history_of_others(
    name: str, demo: Callable[[], Outcome], tmp_path: Path
) -> None:
    with twinrun.Run(tmp_path / "demo" / name) as run:
        run.capture(1, {"x": X})
    before = looks(tmp_path)
    done = demo()
    assert done.status == 2 and name in done.err and "--folder" in done.err
    assert len(done.err.splitlines()) == 1 and looks(tmp_path) == before


def test_a_demonstration_replaces_what_it_made_and_nothing_else(
    demo: Callable[[], Outcome], tmp_path: Path
) -> None:
    for _ in range(2):
        done = demo()
        assert done.status == 0, done
    run = tmp_path / "demo/run-b"
    mark = run / ".twinrun-demo"
    assert twinrun.verify(run) and mark.is_file()
    with twinrun.Run(run, atol=1e-4, existing="append") as more:  # a user's step in a demo's history
        more.capture(9, {"x": np.arange(10.0)})
    told = looks(tmp_path)
    assert demo().status == 2 and looks(tmp_path) == told
    mark.unlink()
    assert demo().status == 2
    (tmp_path / "elsewhere").write_bytes((tmp_path / "demo/run-a/.twinrun-demo").read_bytes())
    (tmp_path / "demo/run-a/.twinrun-demo").unlink()
    (tmp_path / "demo/run-a/.twinrun-demo").symlink_to(tmp_path / "elsewhere")
    done = demo()
    assert done.status == 2 and "run-a" in done.err
