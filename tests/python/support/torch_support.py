"""An interpreter with PyTorch for the tests of examples/pytorch."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commands import HANG

import twinrun


@functools.lru_cache
def python_with_torch() -> tuple[str, str]:
    """An interpreter that has PyTorch and can load this twinrun, or "" and why there is none.

    The system's own serves as well (Debian's package python3-torch), if it is of the version that twinrun was built for.
    """
    if importlib.util.find_spec("torch") is not None:
        return sys.executable, ""
    system = "/usr/bin/python3"
    ask = "import torch, numpy, sysconfig; print(sysconfig.get_config_var('SOABI'))"
    try:
        done = subprocess.run([system, "-I", "-c", ask], capture_output=True, text=True, timeout=HANG)
    except OSError:
        return "", f"needs PyTorch: {sys.executable} has none, and there is no {system}"
    if done.returncode != 0:
        return "", f"needs PyTorch: neither {sys.executable} nor {system} has it"
    ours = sysconfig.get_config_var("SOABI")
    if done.stdout.strip() != ours:
        return "", f"needs PyTorch: that of {system} is for {done.stdout.strip()}, twinrun for {ours}"
    return system, ""


def torch_or_skip(folder: Path) -> tuple[str, dict[str, str]]:
    """An interpreter with PyTorch and twinrun, and the environment that it needs. `folder` is for what is lent to it."""
    python, why = python_with_torch()
    if not python:
        pytest.skip(why)
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environment["OMP_WAIT_POLICY"] = (
        "passive"  # threads that spin would wait for each other where cores are busy
    )
    if python != sys.executable:  # it has packages of its own: only twinrun is lent to it
        lent = folder / "lent"
        lent.mkdir()
        (lent / "twinrun").symlink_to(Path(twinrun.__file__).parent)
        environment["PYTHONPATH"] = str(lent)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return python, environment
