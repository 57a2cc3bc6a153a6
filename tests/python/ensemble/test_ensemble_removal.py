"""A task that exchanges its folder: nothing is removed but what lies in the folder that was made for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HANG, command
from ensemble_support import lines, within, write_study

from twinrun.ensemble.run import runner
from twinrun.ensemble.study import record
from twinrun.ensemble.study.removal import FOLDER_ITSELF, remove


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder with files, some of which are named as those of attempts."""
    folder = tmp_path / "user"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "sub/b", "record.json", "spec.json", "claim", "lock", "stdout"):
        (folder / name).write_text(json.dumps({"precious": name}))
    return folder


def study_of(folder: Path, script: str, **keys: object) -> Path:
    return write_study(folder, name="x", command=["sh", "-c", script], repetitions=1, **keys)


EXCHANGES = {
    "link": "cd ..; rm -r $TWINRUN_TASK_FOLDER; ln -s {here}/user $TWINRUN_TASK_FOLDER",
    "moved, link": "cd ..; mv $TWINRUN_TASK_FOLDER {here}/away; ln -s {here}/user $TWINRUN_TASK_FOLDER",
    "other folder": "cd ..; mv $TWINRUN_TASK_FOLDER {here}/away; mv {here}/user $TWINRUN_TASK_FOLDER",
    "link above": "cd ../..; mv output {here}/away; mkdir {here}/new; mv {here}/user {here}/new/0-1; ln -s {here}/new output",
}


@pytest.mark.parametrize("how", EXCHANGES)
def test_another_folder_in_place_of_a_tasks_own_stays(how: str, user: Path, tmp_path: Path) -> None:
    before = files(user)
    study = study_of(tmp_path, EXCHANGES[how])
    done = command("ensemble", "run", study, "--folder", tmp_path / "F", "-q")
    place = tmp_path / "F" / "output" / "0-1"
    assert files(place) == before
    (line,) = lines(tmp_path / "F")
    assert line["status"] == "failed" and not line["interrupted"]
    assert (
        line["reason"]
        == "its folder was removed while it ran, or another one has its name, so what it took is not known"
    )
    assert (
        f"note: {place}: is not the folder that was made for the task: it is left alone, with all in it"
        in done.err
    )
    if how == "link above":
        return  # a later run is refused: `output` is no folder
    # Later runs leave it alone, too, and the task may run again beside it.
    study_of(tmp_path, "true")
    assert runner.run_study(study, tmp_path / "F", retries=1, amend=True).failed == 0
    assert files(place) == before
    assert [(x["attempt"], x["status"]) for x in lines(tmp_path / "F")] == [(1, "failed"), (2, "ok")]


def test_a_folder_that_was_moved_and_linked_is_read_and_left(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    study = study_of(
        tmp_path,
        "cd ..; mv $TWINRUN_TASK_FOLDER {here}/scratch/t{task}; ln -s {here}/scratch/t{task} $TWINRUN_TASK_FOLDER;"
        "cd $TWINRUN_TASK_FOLDER; echo r > result.nc; echo rate: 3",
        metrics={"rate": {"regex": "rate: (\\d)"}},
        results={"compare": "result.nc"},
    )
    done = command("ensemble", "run", study, "--folder", tmp_path / "F")
    (line,) = lines(tmp_path / "F")
    assert line["status"] == "ok" and line["metrics"] == {"rate": 3.0}
    assert line["results"]["verdict"] == "reference"
    assert (tmp_path / "F" / "results" / "all").read_text() == "r\n"
    assert (tmp_path / "scratch" / "t0" / "result.nc").read_text() == "r\n"
    assert "0-1: is not the folder that was made for the task" in done.err


def test_results_outside_of_the_folder_are_copied(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("of the user\n")
    study = study_of(tmp_path, "ln -s {here}/out result", results={"compare": "result"})
    runner.run_study(study, tmp_path / "F")
    (tmp_path / "out").write_text("of a later task\n")
    assert (tmp_path / "F" / "results" / "all").read_text() == "of the user\n"
    study = study_of(tmp_path / "2", "true", results={"compare": str(tmp_path / "out")})
    runner.run_study(study, tmp_path / "2" / "F")
    assert (tmp_path / "out").exists()


def test_a_session_leaves_its_folder_if_something_of_the_user_is_in_it(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(user)
    script = f"cd ..; rm -r $TWINRUN_TASK_FOLDER; mv {user} $TWINRUN_TASK_FOLDER"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    done = command("ensemble", "-r", "1", "-w", "0", "--", "sh", "-c", script)
    assert done.status == 2
    (place,) = temporary.glob("twinrun-ensemble-*/output/0-1")
    assert files(place) == before and f"note: {place}: is not the folder" in done.err
    shutil.rmtree(temporary)
    temporary.mkdir()
    assert command("ensemble", "-r", "1", "--", "sh", "-c", "mkdir -p r/o; chmod 555 r; true").status == 0
    assert not list(temporary.iterdir())


class Stop(BaseException):
    pass


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_later_runner_knows_the_folders_that_an_earlier_one_made(
    exchanged: bool, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner died between the line of an attempt and its clearing."""

    def stop(*_: object) -> None:
        raise Stop

    study, folder = study_of(tmp_path, "echo data > data"), tmp_path / "F"
    with monkeypatch.context() as patched:
        patched.setattr(record.Attempts, "clear", stop)
        with pytest.raises(Stop):
            runner.run_study(study, folder)
    place = folder / "output" / "0-1"
    assert (place / "data").exists() and (place / "spec.json").exists()
    if exchanged:
        os.rename(place / "spec.json", user / "spec.json")  # all but the folder itself is that of the attempt
        shutil.rmtree(place)
        user.rename(place)
        before = files(place)
    outcome = runner.run_study(None, folder)
    assert outcome.done == 1
    if exchanged:
        assert files(place) == before and len(outcome.left) == 1
    else:
        assert sorted(p.name for p in place.iterdir()) == ["agent", "stderr", "stdout"] and not outcome.left


def test_links_stay_and_what_is_kept_within_folders(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").write_text("a")
    script = "mkdir -p in/deep out; touch in/deep/x.log in/y out/z; ln -s {here}/precious in/link; ln -s {here}/precious link; mkfifo pipe"
    runner.run_study(study_of(tmp_path, script, keep=["*/deep/*.log"]), tmp_path / "F")
    assert (tmp_path / "precious" / "a").exists()
    place = tmp_path / "F" / "output" / "0-1"
    assert sorted(p.name for p in place.iterdir()) == ["agent", "in", "stderr", "stdout"]


def test_mount_points_stay(tmp_path: Path) -> None:
    """In a namespace of its own, where this user may mount."""
    for name in ("precious", "folder/in/mounted", "folder/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "precious" / "a").write_text("a")
    program = (
        "import os, sys; from twinrun.ensemble.study.removal import *;"
        "print(remove('folder', os.open('.', FOLDER_ITSELF)))"
    )
    script = 'mount --bind precious folder/in/mounted || exit 77; exec "$0" -c "$1"'
    words = ["unshare", "-rm", "sh", "-c", script, sys.executable, program]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    if done.returncode != 0 and "Error" not in done.stderr:
        pytest.skip(f"nothing can be mounted: {done.stderr.strip()}")
    assert done.stdout == "['folder/in/mounted']\n", done.stderr
    assert (tmp_path / "precious" / "a").exists() and not (tmp_path / "folder" / "other").exists()
    above = os.open(tmp_path, FOLDER_ITSELF)
    assert remove("folder", above) == [] and not (tmp_path / "folder").exists()
    os.close(above)
