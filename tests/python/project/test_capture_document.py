"""docs/reference/capture.md quotes programs that are tested, and the generated part of the Fortran module is up to date."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
QUOTE = re.compile(r"<!-- from (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)


def test_examples_are_parts_of_tested_programs():
    quotes = QUOTE.findall((ROOT / "docs" / "reference" / "capture.md").read_text(encoding="utf-8"))
    assert {Path(path).suffix for path, _ in quotes} >= {".c", ".cpp", ".f90"}
    for path, text in quotes:
        program = (ROOT / path).read_text(encoding="utf-8")
        assert text in program, f"{path} does not have these lines:\n{text}"


def test_every_status_code_is_documented():
    header = (ROOT / "include" / "twinrun" / "status.h").read_text(encoding="utf-8")
    codes = re.findall(r"^    (TWR_(?:OK|ERROR_\w+|DIVERGED|STEP_LOST)) = (\d+)", header, re.MULTILINE)
    assert len(codes) == 15
    document = (ROOT / "docs" / "reference" / "capture.md").read_text(encoding="utf-8")
    fortran = (ROOT / "fortran" / "twinrun.f90").read_text(encoding="utf-8")
    for name, number in codes:
        assert f"| `{name}` | {number} |" in document
        assert f"{name.lower()} = {number}," in fortran or f"{name.lower()} = {number}\n" in fortran


def test_the_generated_fortran_is_up_to_date():
    subprocess.run([sys.executable, ROOT / "tools" / "fortran_protect.py", "--check"], check=True)
