"""What a program that uses twinrun prints when it ends: nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import HANG

KEEPS = {
    "an error": """
try:
    twinrun.compare({"x": np.ones(3)}, {"y": np.ones(3)})
except twinrun.TwinrunError as e:
    kept = e
try:
    twinrun._core.FieldList.of_arrays(3, print)
except TypeError as e:
    also = e
""",
    "a list of arrays": "kept = twinrun._core.FieldList.of_arrays({'x': np.ones(3)}, print, True)",
    "results": "kept = twinrun.compare({'x': np.ones(3)}, {'x': np.zeros(3)}); kept.fields",
    "a sketch in a circle": "kept = [twinrun.sketch({'x': np.ones(3)})]; kept.append(kept)",
}


@pytest.mark.parametrize("kept", KEEPS)
def test_nothing_is_printed_where_objects_are_kept(kept: str) -> None:
    program = f"import numpy as np, twinrun, sys\n{KEEPS[kept]}\nsys.kept = kept"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
