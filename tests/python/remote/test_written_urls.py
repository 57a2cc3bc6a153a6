"""Paths that look like URLs and are written: none becomes a folder of that name."""

from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun
from twinrun import Unsupported

URLS = [
    "az://box/a",
    "abfs://me:pw@box/a?pw",
    "ftp://host/a",
    "hdfs://host/a",
    "file:///tmp/a",
    "wasb://box/a",
    "memory://a",
    "s3:/bucket/a",
    "S3:/bucket",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def captured(path: str) -> str:
    with twinrun.Run(path) as run:
        run.capture(1, {"x": np.zeros(3)})
    return path


@pytest.mark.parametrize("url", URLS)
def test_a_run_refuses_them(url: str, folder: Path) -> None:
    with pytest.raises(Unsupported, match=r"it writes to s3:// and gs:// only; .* write ./") as caught:
        twinrun.Run(url)
    assert "pw" not in str(caught.value)
    with pytest.raises(Unsupported, match="folders of this machine only"):
        twinrun.Run("run", local=url)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("url", ["az://box/a", "s3:/bucket/a"])
def test_commands_refuse_them(url: str, folder: Path) -> None:
    captured("run")
    before = sorted(folder.iterdir())
    for arguments in (
        ("flush", "run", "--to", url),
        ("golden", "save", "run", "-o", url, "--atol", "1"),
        ("pack", "run", url),
    ):
        check_error(command(*arguments), "twinrun does not write to this URL", url)
    check_error(command("index", url, "--atol", "1"), url)
    assert sorted(folder.iterdir()) == before


def test_golden_files_and_records_are_not_written_to_buckets(folder: Path) -> None:
    captured("run")
    before = sorted(folder.iterdir())
    check_error(
        command("golden", "save", "run", "-o", "s3://b/g", "--atol", "1"), "folders of this machine only"
    )
    check_error(command("pack", "run", "s3://b/g"), "folders of this machine only")
    assert sorted(folder.iterdir()) == before


def test_a_folder_of_such_a_name_can_be_written(folder: Path) -> None:
    for path in ("./az:/a", str(folder / "s3:" / "b"), "az:c"):
        assert twinrun.compare(captured(path), path).verdict == "same"


@pytest.mark.parametrize("url", ["s3://b//y", "s3://b/x//", "s3://b/./y", "s3://b/x/..", "S3://b/x//y"])
def test_a_prefix_has_no_empty_part(url: str, folder: Path) -> None:
    pytest.importorskip("s3fs")
    for kwargs in ({}, {"existing": "append"}):
        with pytest.raises(Unsupported, match=r"no empty part, . or .. in its URL.*write one slash"):
            twinrun.Run(url, local="here", **kwargs)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("url", ["s3://bucket/a", "https://me:pw@host/a?pw"])
@pytest.mark.parametrize("verb", ["verify", "log", "pack", "restore", "compact", "flush"])
def test_commands_that_read_folders_of_this_machine_say_so(verb: str, url: str, folder: Path) -> None:
    words = {"pack": ["to"], "restore": ["to"], "compact": ["--keep-last", "1"]}.get(verb, [])
    done = command(verb, url, *words)
    check_error(done, "works with folders of this machine", "download it first")
    assert "pw" not in done.err
    assert not list(folder.iterdir())


def test_a_folder_of_such_a_name_is_read(folder: Path) -> None:
    (folder / "s3:").mkdir()
    captured("./s3:/a")
    assert command("verify", "s3:/a").status == 0
