#!/usr/bin/env python3
"""Writes fortran/twinrun_protect.inc: twr_protect for every type and rank, which Fortran 2008 wants
one by one.

usage: fortran_protect.py [--check]; --check: exit status 1 if the file is not what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "fortran" / "twinrun_protect.inc"

# Name of the procedures, type in Fortran, dtype.
TYPES = [
    ("real32", "real(real32)", "twr_f32"),
    ("real64", "real(real64)", "twr_f64"),
    ("int8", "integer(int8)", "twr_i8"),
    ("int16", "integer(int16)", "twr_i16"),
    ("int32", "integer(int32)", "twr_i32"),
    ("int64", "integer(int64)", "twr_i64"),
    ("complex32", "complex(real32)", "twr_c64"),
    ("complex64", "complex(real64)", "twr_c128"),
    ("logical", "logical", "of_logical"),
    ("bool", "logical(c_bool)", "twr_bool"),
]
RANKS = range(8)

PROCEDURE = """\
  subroutine protect_{name}_{rank}(run, name, array, atol, rtol, global_shape, global_offset, ids, stat, errmsg)
    type(twr_run_t), intent(in) :: run
    character(*), intent(in) :: name
    {type}, intent(inout), target :: array{dimensions}
    real(real64), intent(in), optional :: atol, rtol
    integer(int64), intent(in), optional :: global_shape(:), global_offset(:)
    character(*), intent(in), optional :: ids
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    type(c_ptr) :: at(0:{rank})
    integer(c_int) :: status
{addresses}
    status = protect_items(run, name, at, {dtype}, storage_size(array), shape(array, int64), &
        atol, rtol, global_shape, global_offset, ids)
    if (status /= twr_ok .and. present(errmsg)) errmsg = message_of(status)
    call finish(status, stat)
  end subroutine
"""


def element(rank: int, moved: int | None = None) -> str:
    """The first element, or the one after it along a dimension."""
    if rank == 0:
        return "array"
    return f"array({', '.join('2' if d == moved else '1' for d in range(rank))})"


def addresses(rank: int) -> str:
    if rank == 0:
        return "    at(0) = c_loc(array)"
    lines = ["at = c_null_ptr", "if (size(array, kind=int64) > 0) then", f"  at(0) = c_loc({element(rank)})"]
    lines += [
        f"  if (size(array, {d + 1}, int64) > 1) at({d + 1}) = c_loc({element(rank, d)})" for d in range(rank)
    ]
    return "\n".join(f"    {line}" for line in [*lines, "end if"])


def text() -> str:
    parts = ["! Written by tools/fortran_protect.py: change that, not this.\n"]
    for name, kind, dtype in TYPES:
        for rank in RANKS:
            dimensions = f"({','.join([':'] * rank)})" if rank else ""
            parts.append(
                PROCEDURE.format(
                    name=name,
                    rank=rank,
                    type=kind,
                    dimensions=dimensions,
                    dtype=dtype,
                    addresses=addresses(rank),
                )
            )
    return "\n".join(parts)


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if FILE.is_file() and FILE.read_text(encoding="utf-8") == text():
            return 0
        print(f"{FILE.name} is not what tools/{Path(__file__).name} writes: run it", file=sys.stderr)
        return 1
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
