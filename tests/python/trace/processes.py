"""Several processes of one job: what each said of the checks of parallel_checks.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from commands import HANG

CHECKS = Path(__file__).with_name("parallel_checks.py")


def checked(tmp_path, number: int, *checks: str) -> list[dict[str, str]]:
    """What each process said of each check."""
    started = [
        subprocess.Popen(
            [
                sys.executable,
                str(CHECKS),
                str(r),
                str(number),
                str(tmp_path / "store"),
                str(tmp_path),
                *checks,
            ],
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
            lines = [line.split(": ", 1) for line in out.splitlines()]
            told.append({name: said for name, said in lines if name in checks})
    finally:
        for p in started:
            p.kill()
            p.wait()
    assert all(list(one) == list(checks) for one in told), told
    return told
