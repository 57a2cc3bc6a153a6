#!/usr/bin/env python3
"""Checks what may know what: every #include of the C++ sources. Imports in the Python package are
import-linter's (pyproject.toml).

ROOMS is a table: a room, which is a folder of src/ with all that lies below it, and the rooms that
its files may include besides their own. Includes in "..." and in <...> count alike. Files are named
from src/core/ ("tree/walk.hpp"), and those of the libraries beside the core from src/
("aggregate/plan/layout.hpp"). Neither rooms nor files may include each other in a circle. Other C++
folders (apps, python/bindings, tests, bench, fuzz) may include any room; include/ stands alone.

usage: check_layers.py [ROOT]; exit status 1, and a line for each violation, if there are any.
"""

from __future__ import annotations

import graphlib
import re
import sys
from pathlib import Path

# Stands in the table for the public headers, which lie in include/.
PUBLIC = "public"

# Of src/core/.
CORE_ROOMS = {
    "base": "",
    "platform": "base",
    "device": "base platform",
    "element": "base platform device",
    "digest": "base platform device element",
    "tree": "base device digest",
    "metadata": "base platform element digest tree",
    "source": "base platform device element tree metadata",
    "difference": "platform device element",
    "sketch": "base device element digest tree metadata source difference",
    "engine": "base device element digest tree metadata source difference sketch",
    "record": "base platform device",
    "dedup": "base platform device element difference record",
    "restore": "base platform device record dedup",
    "history": "base platform device metadata source sketch record dedup restore",
    "capture": "base platform device source sketch record history",
    "comparison": "base element metadata source difference sketch engine history",
    "capi": f"base platform device history capture comparison {PUBLIC}",
}
# Of src/, beside the core.
LIBRARY_ROOMS = {
    "aggregate/topology": "base platform",
    "aggregate/plan": "base aggregate/topology",
    "aggregate/mpi": f"base platform aggregate/topology aggregate/plan {PUBLIC}",
    "aggregate/mpiio": "base aggregate/plan aggregate/mpi",
    "aggregate/hdf5": "base aggregate/plan aggregate/mpi",
    "noise": "base",
    "flush": "capture",
    "interpose": "",  # nothing of twinrun: it is loaded into any program
    # These stand on the public headers alone.
    "mpi": PUBLIC,
    "veloc": PUBLIC,
}
ROOMS = {room: set(known.split()) for room, known in {**CORE_ROOMS, **LIBRARY_ROOMS}.items()}
# Rooms that may include <mpi.h>; nothing else knows of MPI's types.
MPI_ROOMS = {"aggregate/mpi", "aggregate/mpiio", "aggregate/hdf5", "mpi", "veloc"}

CXX_SUFFIXES = {".cpp", ".hpp", ".h", ".cc", ".cu", ".cuh", ".inc", ".c"}
INCLUDE = re.compile(r"""^[^\S\n]*#[^\S\n]*include(?:_next)?\b[^\S\n]*(\S[^\n]*)?""", re.MULTILINE)
NAMED = re.compile(r"""(["<])([^">]+)[">]""")


def strip_comments(text: str) -> str:
    """Blanks out comments and keeps line numbers; strings and character literals are left alone."""

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        return piece if piece[0] in "\"'" else re.sub(r"[^\n]", " ", piece)

    pattern = r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def includes(path: Path):
    """Yields (line number, included name, whether it stands in "...") of each #include; the name is
    None if a macro gives it.
    """
    text = strip_comments(path.read_text(encoding="utf-8"))
    for match in INCLUDE.finditer(text):
        named = NAMED.match(match[1] or "")
        line = text.count("\n", 0, match.start()) + 1
        yield (line, named[2], named[1] == '"') if named else (line, None, False)


def cxx_files(folder: Path):
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.suffix in CXX_SUFFIXES and path.is_file())


def folder_of(room: str) -> str:
    """From src/ on."""
    return f"core/{room}" if room in CORE_ROOMS else room


def room_of(name: str) -> str | None:
    """The room of a file that is named as in an #include."""
    folders = name.split("/")[:-1]
    for count in range(len(folders), 0, -1):
        room = "/".join(folders[:count])
        if room in ROOMS:
            return room
    return None


def circle(graph: dict[str, set[str]]) -> str | None:
    """What includes itself in the end, in words; None: nothing does."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " <- ".join(error.args[1])
    return None


def check_rooms(root: Path, rooms: dict[str, set[str]]) -> list[str]:
    """The table itself, and that each folder with sources or tests is in it."""
    problems = []
    if found := circle({room: known - {PUBLIC} for room, known in rooms.items()}):
        problems.append(f"{Path(__file__).name}: the table of rooms has a circle: {found}")
    for room, known in rooms.items():
        problems += [
            f"{Path(__file__).name}: {room} may include {other}, which is no room"
            for other in sorted(known - {PUBLIC} - rooms.keys())
        ]
    outside = {}
    for path in cxx_files(root / "src"):
        inside = path.relative_to(root / "src")
        name = inside.relative_to("core") if inside.parts[0] == "core" else inside
        room = room_of(name.as_posix())
        if room is None or not inside.as_posix().startswith(folder_of(room) + "/"):
            outside.setdefault(path.parent, path)
    for path in cxx_files(root / "tests" / "core"):
        room = path.relative_to(root / "tests" / "core").parts[0]
        if room not in CORE_ROOMS:
            outside.setdefault(root / "tests" / "core" / room, path)
    problems += [
        f"{folder.relative_to(root)}: no room of the table in {Path(__file__).name}: add it there with what it may include"
        for folder in outside
    ]
    return problems


def may_include(room: str) -> str:
    """The line of the table, as the room's README.md has it."""
    known = [*sorted(ROOMS[room] - {PUBLIC}), *(["the public headers"] if PUBLIC in ROOMS[room] else [])]
    return f"May include: {', '.join(known) or 'nothing'}."


def check_readmes(root: Path) -> list[str]:
    """Each room says in its README.md what it may include."""
    problems = []
    for room in ROOMS:
        path = root / "src" / folder_of(room) / "README.md"
        if cxx_files(path.parent) and (
            not path.is_file() or may_include(room) not in path.read_text(encoding="utf-8").splitlines()
        ):
            problems.append(f"{path.relative_to(root)}: has no line {may_include(room)!r}")
    return problems


def check_include(root: Path, room: str, name: str, quoted: bool) -> str | None:
    """What is wrong with an #include in a file of the room; None: nothing."""
    src = root / "src"
    shown = f'"{name}"' if quoted else f"<{name}>"
    if ".." in name.split("/"):
        return f"{shown}: name the file from src/core/ or src/ on"
    if (root / "include" / name).is_file() or name.startswith("twinrun/"):
        if PUBLIC not in ROOMS[room]:
            return f"{shown}: {room} must not include the public headers"
        return None
    if name == "mpi.h" and room not in MPI_ROOMS:
        return f"{shown}: {room} must not know MPI; {', '.join(sorted(MPI_ROOMS))} do"
    other = room_of(name)
    if not quoted and (other is None or not (src / folder_of(other)).is_dir()) and not (src / name).is_file():
        return None  # of the system, or of another project
    if "/" not in name:
        return f'{shown}: name the file with its room: "{room}/{name}"'
    if other is None:
        return f'{shown}: src/ includes only its own rooms, as "room/file.hpp" ({name.rpartition("/")[0]} is none)'
    if other != room and other not in ROOMS[room]:
        known = ", ".join(sorted(ROOMS[room])) or "nothing"
        return f"{shown}: {room} must not include {other}: the table gives it {known}"
    if not quoted:
        return f'{shown}: files of src/ are named in quotes: "{name}"'
    if not (src / folder_of(other) / name.removeprefix(other + "/")).is_file():
        return f"{shown}: there is no such file in src/{folder_of(other)}"
    return None


def check_src(root: Path) -> list[str]:
    problems = check_rooms(root, ROOMS)
    graph: dict[str, set[str]] = {}
    for room in ROOMS:
        folder = root / "src" / folder_of(room)
        for path in cxx_files(folder):
            file = f"{room}/{path.relative_to(folder).as_posix()}"
            graph[file] = set()
            for line, name, quoted in includes(path):
                where = f"{path.relative_to(root)}:{line}"
                if name is None:
                    problems.append(f"{where}: an #include by a macro cannot be checked: name the file")
                elif problem := check_include(root, room, name, quoted):
                    problems.append(f"{where}: {problem}")
                elif quoted:
                    graph[file].add(name)
    if found := circle(graph):
        problems.append(f"src: files include each other in a circle: {found}")
    return problems


def check_public(root: Path) -> list[str]:
    """The public headers are installed without src/."""
    problems = []
    for path in cxx_files(root / "include"):
        for line, name, _ in includes(path):
            if name is not None and (room_of(name) is not None or ".." in name.split("/")):
                problems.append(
                    f"{path.relative_to(root)}:{line}: {name}: public headers include no file of src/"
                )
    return problems


def check_cmake(root: Path) -> list[str]:
    path = root / "cmake" / "TwinrunRooms.cmake"
    if not path.is_file():
        return []
    match = re.search(r"set\(TWINRUN_CORE_ROOMS\s+([^)]*)\)", path.read_text(encoding="utf-8"))
    if match is None or match[1].split() != list(CORE_ROOMS):
        return [f"{path.relative_to(root)}: TWINRUN_CORE_ROOMS is not the list in {Path(__file__).name}"]
    return []


def check(root: Path) -> list[str]:
    return check_cmake(root) + check_src(root) + check_readmes(root) + check_public(root)


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"layers: {len(problems)} violations", file=sys.stderr)
        return 1
    print("layers: in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
