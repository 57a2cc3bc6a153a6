"""Files that cannot be opened: each message says where, what is wrong, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import HANG, Outcome, check_error, command

import twinrun

# Each verb that reads a run, and what stands around it.
VERBS = (("compare",), ("show",), ("index", "--atol", "1e-6"), ("golden", "check"))
KINDS = (
    "npy",
    "npz",
    "h5",
    "nc",
    "safetensors",
    "pt",
    "zarr",
    "vtu",
    "fits",
    "grib2",
    "parquet",
    "xyz",
    "dat",
)
WRITE_AGAIN = "write it again, or restore it from a copy"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.npy"
    np.save(path, np.arange(100.0))
    return path


@pytest.fixture
def golden(good: Path, tmp_path: Path) -> Path:
    assert command("golden", "save", good, "-o", tmp_path / "golden", "--atol", "1e-6").status == 0
    return tmp_path / "golden"


def by_each_verb(
    good: Path, golden: Path, bad: Path, *said: str, run: Callable[..., Outcome] = command
) -> None:
    """Every verb says this of the bad file."""
    for words in VERBS:
        first = {"compare": [good], "golden": [golden]}.get(words[0], [])
        check_error(run(*words, *first, bad), f"twinrun: {bad}: ", *said)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file(kind: str, good: Path, golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / f"bad.{kind}"
    bad.touch()
    by_each_verb(
        good, golden, bad, "is empty: it has 0 bytes; write it again: the program that wrote it failed"
    )


@pytest.mark.parametrize("kind", ["npy", "h5", "nc"])
def test_a_link_that_leads_nowhere(kind: str, good: Path, golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / f"bad.{kind}"
    bad.symlink_to("gone")
    by_each_verb(good, golden, bad, "is a symbolic link to gone, which is not there; mend the link")
    check_error(command("verify", bad), "is a symbolic link to gone, which is not there; mend the link")
    check_error(command("golden", "check", bad, good), "is a symbolic link to gone, which is not there")


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "nc", "safetensors", "vtu"])
def test_text_under_the_name_of_another_format(kind: str, good: Path, golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / f"bad.{kind}"
    bad.write_text("404: no such page\n" * 20)
    by_each_verb(
        good, golden, bad, f"it holds text: if that is a table, give --format table; else {WRITE_AGAIN}"
    )


POINTERS = {
    "Git LFS; run: git lfs pull": f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n",
    "git-annex; run: git annex get": "/annex/objects/SHA256E-s12--00.npy\n",
}


@pytest.mark.parametrize("keeper", POINTERS)
def test_a_place_elsewhere(keeper: str, good: Path, golden: Path, tmp_path: Path) -> None:
    for kind in ("npy", "h5", "bin", "csv", "parquet", "txt", "xyz", "json", "mat"):
        bad = tmp_path / f"bad.{kind}"
        bad.write_text(POINTERS[keeper])
        by_each_verb(good, golden, bad, f"is not the file itself, but the place of it in {keeper}")
    # Equal lines may stand for equal files, but nobody looked at these.
    both = [tmp_path / "a", tmp_path / "b"]
    for kind in ("csv", "bin", "png", "none"):
        for folder in both:
            folder.mkdir(exist_ok=True)
            (folder / "good.npy").write_bytes(good.read_bytes())
            (folder / f"x.{kind}").write_text(POINTERS[keeper])
        done = command("compare", *both)
        assert done.status == 2 and f"the place of it in {keeper}" in done.out + done.err, done
        assert command("golden", "save", both[0], "-o", tmp_path / f"of-{kind}").status == 2
        for folder in both:
            (folder / f"x.{kind}").unlink()
    for name in both:
        with zipfile.ZipFile(f"{name}.npz", "w") as archive:
            archive.writestr("good.npy", good.read_bytes())
            archive.writestr("x.csv", POINTERS[keeper])
    done = command("compare", f"{both[0]}.npz", f"{both[1]}.npz")
    said = f"member 'x.csv' is not the file itself, but the place of it in {keeper}"
    assert done.status == 2 and said in done.out + done.err, done
    assert command("compare", "--format", "bytes", tmp_path / "bad.csv", tmp_path / "bad.xyz").status == 0


@pytest.mark.parametrize(
    "text",
    [
        "/annex/objects/SHA256E-s12--00.npy\n1 2 3\n",
        "/annex/objects/none\n",
        "/annex/objects/A--x" + "/annex/" * 4000 + "\nz\n",  # what could take a pattern for ever
        "version https://git-lfs.github.com/spec/v1\n1 2\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        "see version https://git-lfs.github.com/spec/v1\n",
    ],
)
def test_text_that_only_speaks_of_such_a_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(text)
    assert command("compare", tmp_path / "a.xyz", tmp_path / "a.xyz").status == 0


def test_links_of_git_annex_and_circles(good: Path, golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npy"
    bad.symlink_to(".git/annex/objects/x/y/SHA256E-s12--00.npy/SHA256E-s12--00.npy")
    by_each_verb(good, golden, bad, "which is not there; run: git annex get")
    bad = tmp_path / "circle.npy"
    bad.symlink_to("circle.npy")
    by_each_verb(good, golden, bad, "is a circle of symbolic links; mend the links")


def test_files_that_were_cut_short(good: Path, golden: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    whole = {kind: tmp_path / f"whole.{kind}" for kind in ("npz", "h5")}
    np.savez(whole["npz"], x=np.zeros(100))
    with h5py.File(whole["h5"], "w") as file:
        file["x"] = np.zeros(100)
    whole["npy"] = good
    for kind, path in whole.items():
        for keep in (20, path.stat().st_size - 100):
            bad = tmp_path / f"bad.{kind}"
            bad.write_bytes(path.read_bytes()[:keep])
            by_each_verb(good, golden, bad, WRITE_AGAIN)
            for words in ("Error:", "BadZipFile", "synchronously"):  # of libraries, not of users
                assert words not in command("show", bad).err
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR" + bytes(100))
    by_each_verb(good, golden, bad, "does not begin like a Parquet file; " + WRITE_AGAIN)
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes((64).to_bytes(8, "little") + b'{"x"')
    by_each_verb(good, golden, bad, "its header claims 64 bytes, 4 are left; " + WRITE_AGAIN)


def test_what_is_no_history(good: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    for path in (tmp_path / "none", tmp_path / "link", good, tmp_path):
        for words in (("log", path), ("pack", path, tmp_path / "record"), ("compact", path)):
            check_error(command(*words), f"twinrun: {path}")


def test_what_has_no_golden_files(good: Path, golden: Path, tmp_path: Path) -> None:
    check_error(
        command("golden", "check", good, good),
        f"twinrun: {good}: is a file, and no folder of golden files; make one with: twinrun golden save RUN",
    )
    (golden / "golden.json").write_bytes(b"")
    check_error(command("golden", "check", golden, good), "golden.json: is empty; restore it, or save again")


def test_what_cannot_be_compared_in_a_run_that_is_checked(golden: Path, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(good, folder)
    (folder / "x.h5").symlink_to("gone")
    said = "cannot be compared: a link that leads nowhere; mend it, or move it out of the run"
    check_error(command("golden", "check", golden, folder), f"{folder}/x.h5: {said}")


def test_what_index_has_no_use_for(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": np.zeros(3)})
    check_error(command("index", tmp_path / "run"), "compare it as it is: twinrun compare RUN_A RUN_B")
    (tmp_path / "empty").mkdir()
    check_error(command("index", tmp_path / "empty"), "name a folder with the files of a run")


def _as_user(*arguments: object) -> Outcome:
    """A verb, run by a user whom permissions hold: root without its capabilities is one."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if drop and (not shutil.which(drop[0]) or subprocess.run([*drop, "true"], check=False).returncode):
        pytest.skip("root reads every file, and its capabilities cannot be dropped here (setpriv)")
    done = subprocess.run(
        [*drop, sys.executable, "-m", "twinrun", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", ["npy", "h5", "dat"])
def test_a_file_that_may_not_be_read(kind: str, good: Path, golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / f"bad.{kind}"
    bad.write_bytes(good.read_bytes())
    bad.chmod(0)
    said = "cannot be read: permission denied; check owner and permissions"
    by_each_verb(good, golden, bad, said, run=_as_user)
    inside = tmp_path / "folder" / bad.name
    inside.parent.mkdir()
    inside.write_bytes(good.read_bytes())
    inside.chmod(0)
    line = check_error(_as_user("compare", inside.parent, inside.parent), "permission denied; check owner")
    assert str(inside) in line


def test_folders_that_may_not_be_entered(good: Path, golden: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    shutil.copy(good, closed / "x.npy")
    with twinrun.Run(closed / "run") as run:
        run.capture(1, {"x": np.zeros(3)})
    closed.chmod(0)
    try:
        for words in (
            ("compare", good, closed / "x.npy"),
            ("show", closed / "run"),
            ("verify", closed / "run"),
        ):
            check_error(_as_user(*words), "cannot be read: permission denied; check owner and permissions")
        (golden / "golden.json").chmod(0)
        check_error(
            _as_user("golden", "check", golden, good), "golden.json: cannot be read: permission denied"
        )
    finally:
        closed.chmod(0o700)
