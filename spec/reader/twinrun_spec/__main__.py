"""python -m twinrun_spec FILE [--verify]: what a metadata file says, and whether it is right.

Without --verify the file's own checksums and rules are checked. With it, everything is computed again from the data.
Exit status 0: right, 1: wrong.
"""

from __future__ import annotations

import argparse
import sys

from twinrun_spec.metadata import FormatError, check_sections, describe, parse_file, verify


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m twinrun_spec", description="read and check a metadata file"
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--verify", action="store_true", help="compute everything again from the data files")
    options = parser.parse_args(arguments)
    try:
        metadata = parse_file(options.file)
        print(describe(metadata))
        problems = verify(options.file) if options.verify else check_sections(metadata)
    except (FormatError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"wrong: {problem}")
    if not problems:
        print("right: " + ("equal to what the data gives" if options.verify else "checksums and rules"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
