"""`twinrun compare --bisect` under git itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

GIT = shutil.which("git")


@pytest.mark.skipif(GIT is None, reason="there is no git")
@pytest.mark.parametrize("options, bad", [([], 6), (["--typo"], None)])
def test_git_finds_the_commit(tmp_path: Path, options: list[str], bad: int | None) -> None:
    """The first of eight commits is good. Number 6 changes a value; 3 and 4 cannot be compared. A wrong option finds nothing."""
    repository = tmp_path / "repository"
    repository.mkdir()
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str, status: int | None = 0) -> str:
        done = subprocess.run(
            [str(GIT), *words], cwd=repository, env=environment, capture_output=True, text=True, timeout=HANG
        )
        assert status is None or done.returncode == status, done
        return done.stdout + done.stderr

    git("init", "-q")
    np.save(tmp_path / "good.npy", np.zeros(3))
    commits = []
    for n in range(8):
        array = np.zeros((3, 1)) if n in (3, 4) else np.full(3, float(n >= 6))
        np.save(repository / "x.npy", array)
        (repository / "number").write_text(str(n))
        git("add", ".")
        git("commit", "-q", "-m", f"number {n}")
        commits.append(git("rev-parse", "HEAD").strip())
    git("bisect", "start", commits[-1], commits[0])
    words = [
        sys.executable,
        "-m",
        "twinrun",
        "compare",
        str(tmp_path / "good.npy"),
        "x.npy",
        "--bisect",
        "-q",
        *options,
    ]
    told = git("bisect", "run", *words, status=None)
    if bad is None:
        assert "is the first bad commit" not in told and "129" in told, told
    else:
        assert f"{commits[bad]} is the first bad commit" in told, told
        assert "git bisect skip" in git("bisect", "log")
