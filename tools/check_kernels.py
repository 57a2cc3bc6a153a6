#!/usr/bin/env python3
"""Checks the object files of kernels for one instruction set (*_avx2.cpp, *_avx512.cpp).

Such a file may define only functions of its own. If it emits a copy of a shared inline function,
the linker may keep that copy for the whole program, which then dies with an illegal instruction on
a processor without the instruction set.

usage: check_kernels.py BUILD_FOLDER; exit status 1, and a line for each violation, if there are any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

KERNEL = re.compile(r"_avx(2|512)\.cpp\.o$")


def shared_symbols(path: Path) -> list[str]:
    """The weak functions that an object file defines, demangled."""
    lines = subprocess.run(
        ["nm", "--demangle", "--defined-only", str(path)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    # W: weak function. V (weak object) and u (unique object) are data, which has no instructions.
    return [line.split(" W ", 1)[1] for line in lines if " W " in line]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: check_kernels.py BUILD_FOLDER", file=sys.stderr)
        return 2
    objects = sorted(path for path in Path(sys.argv[1]).rglob("*.o") if KERNEL.search(path.name))
    status = 0
    for path in objects:
        for name in shared_symbols(path):
            print(f"{path.name[:-2]}: emits {name}, which other files share", file=sys.stderr)
            status = 1
    if status == 0:
        print(f"kernels: {len(objects)} object files emit only functions of their own")
    return status


if __name__ == "__main__":
    sys.exit(main())
