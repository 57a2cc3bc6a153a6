"""README.md is one screen, its links lead somewhere, and its examples print what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LIMIT = 80  # lines
PICTURE_LIMIT = 100_000  # bytes


def anchors(path: Path) -> set[str]:
    """What a link can name in a page: its headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def twinrun(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "twinrun"
    command = [sys.executable, "-m", "twinrun", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG)


def block(word: str) -> str:
    (found,) = (text for _, text in BLOCKS if word in text)
    return found


def test_it_is_one_screen_with_a_small_picture() -> None:
    assert README.count("\n") <= LIMIT
    (picture,) = re.findall(r'<img src="([^"]+)"[^>]* alt="[^"]{20,}"', README)
    data = (ROOT / picture).read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) <= PICTURE_LIMIT


@pytest.mark.parametrize(
    "page", ["README.md", "docs/install.md", "docs/tour.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")) if "://" not in link]
    assert links or page in ("SECURITY.md", "CODE_OF_CONDUCT.md")
    for link in links:
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_two_files(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 100_000)
    np.save(tmp_path / "a.npy", x)
    x[1234] += 1e-3
    np.save(tmp_path / "b.npy", x)
    line, _, said = block("twinrun compare a.npy").partition("\n")
    done = twinrun(line.removeprefix("$ "), tmp_path)
    assert (done.returncode, done.stdout) == (1, said)


def test_a_run_in_python_and_its_golden_files(tmp_path: Path) -> None:
    program = block("twinrun.Run(")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    said = re.search(r"# … (.*)", program)
    assert said is not None and done.stdout.splitlines()[-1].startswith(said[1])
    save, check = block("twinrun golden save").splitlines()
    assert twinrun(save, tmp_path).returncode == 0
    found = twinrun(check, tmp_path)
    assert found.returncode == 1 and found.stdout.splitlines()[-1].startswith("different: first at step 40")
    kept = sum(p.stat().st_size for p in (tmp_path / "golden").rglob("*") if p.is_file())
    data = sum(p.stat().st_size for p in (tmp_path / "runs/a").rglob("*.data"))
    assert 0 < kept < 0.1 * data
