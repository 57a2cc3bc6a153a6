"""Several processes of one job, and what each of them said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from commands import HANG

CHECKS = Path(__file__).with_name("parallel_checks.py")


def job(program: Path, folder: Path, number: int, *scenarios: str) -> list[str]:
    """What each process printed. The processes take RANK RANKS STORE FOLDER SCENARIO... ."""
    store = folder / f"store{len([*folder.glob('store*')])}"
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(r), str(number), str(store), str(folder), *scenarios],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(number)
    ]
    told = []
    try:
        for p in started:
            out, err = p.communicate(timeout=HANG)
            assert p.returncode == 0, err
            told.append(out)
    finally:
        for p in started:
            p.kill()
            p.wait()
    return told


def checked(tmp_path: Path, number: int, *checks: str) -> list[dict[str, str]]:
    """What each process said of each check of parallel_checks.py."""
    told = []
    for out in job(CHECKS, tmp_path, number, *checks):
        lines = [line.split(": ", 1) for line in out.splitlines()]
        told.append({name: said for name, said in lines if name in checks})
    assert all(list(one) == list(checks) for one in told), told
    return told
