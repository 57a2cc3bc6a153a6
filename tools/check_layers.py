#!/usr/bin/env python3
"""Checks the order of layers: every #include in the C++ sources and every import in the Python package.

C++: a folder of src/ includes only itself and folders before it in LAYERS, names files as "layer/file.hpp", and never
reaches into tests/, apps/ or python/. Other C++ folders (apps, bindings, tests, benchmarks) may include any layer.

Python: PYTHON_LAYERS lists the parts of the package in the same way. An import inside a function counts as well.

usage: check_layers.py [ROOT]; exit status 1, and a line for each violation, if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

LAYERS = [
    "base",
    "platform",
    "noise",
    "element",
    "digest",
    "tree",
    "metadata",
    "compare",
    "record",
    "dedup",
    "restore",
    "tiers",
    "capture",
    "aggregate",
    "capi",
]

# Libraries that stand on the public headers (<twinrun/...>) and their own files only.
FRONTS = ["mpi", "veloc", "interpose"]

# Parts of python/twinrun that others must not import: part -> what it may not import. A part is a module or a folder
# right below the package; "" is the package's __init__.
PYTHON_FORBIDDEN = {
    "errors": {"*"},
    "_core": {"*"},
    "formats": {"cli", "report", "ensemble", "comparison", "history", ""},
    "history": {"cli", "report", "ensemble"},
    "comparison": {"cli", "report", "ensemble"},
    "report": {"cli", "ensemble", "history"},
    "ensemble": {"cli"},
}
# Whatever is not named above may import anything but the command line, which nothing imports.
PYTHON_FORBIDDEN_ELSEWHERE = {"cli"}
# The command line may start itself: python -m twinrun.
PYTHON_TOP = {"cli", "__main__"}

CXX_SUFFIXES = {".cpp", ".hpp", ".h", ".cc", ".cu", ".cuh", ".inc", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def strip_comments(text: str) -> str:
    """Blanks out comments and keeps line numbers; strings and character literals are left alone."""

    def blank(match: re.Match[str]) -> str:
        piece = match[0]
        return piece if piece[0] in "\"'" else re.sub(r"[^\n]", " ", piece)

    pattern = r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def includes(path: Path):
    """Yields (line number, included name) of each quoted #include."""
    text = strip_comments(path.read_text(encoding="utf-8"))
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


def cxx_files(folder: Path):
    return sorted(path for path in folder.rglob("*") if path.suffix in CXX_SUFFIXES and path.is_file())


def check_src(root: Path) -> list[str]:
    problems = []
    src = root / "src"
    for folder in sorted(path for path in src.iterdir() if path.is_dir()) if src.is_dir() else []:
        if folder.name in FRONTS:
            for path in cxx_files(folder):
                for line, name in includes(path):
                    if not name.startswith(f"{folder.name}/") or not (src / name).is_file():
                        problems.append(
                            f'{path.relative_to(root)}:{line}: "{name}": {folder.name} stands on the public headers: '
                            "include those as <twinrun/...>, and its own files"
                        )
            continue
        if folder.name not in LAYERS and cxx_files(folder):
            problems.append(
                f"src/{folder.name}: not in the list of layers: add it to {Path(__file__).name} at its place"
            )
            continue
        for path in cxx_files(folder):
            for line, name in includes(path):
                where = f"{path.relative_to(root)}:{line}"
                layer = name.split("/", 1)[0]
                if ".." in name.split("/"):
                    problems.append(f'{where}: "{name}": name the file relative to src/')
                elif name.startswith("twinrun/") and folder.name == "capi":
                    pass  # the public headers in include/, which only the C interface implements
                elif "/" not in name:
                    problems.append(
                        f'{where}: "{name}": name the file with its folder: "{folder.name}/{name}"'
                    )
                elif layer not in LAYERS:
                    problems.append(f'{where}: "{name}": src/ includes only its own layers ({layer} is none)')
                elif LAYERS.index(layer) > LAYERS.index(folder.name):
                    problems.append(
                        f'{where}: "{name}": {folder.name} comes before {layer} and must not include it'
                    )
                elif not (src / name).is_file():
                    problems.append(f'{where}: "{name}": there is no such file in src/')
    return problems


def check_cmake(root: Path) -> list[str]:
    path = root / "cmake" / "TwinrunLayers.cmake"
    if not path.is_file():
        return []
    match = re.search(r"set\(TWINRUN_LAYERS\s+([^)]*)\)", path.read_text(encoding="utf-8"))
    if match is None or match[1].split() != LAYERS:
        return [f"{path.relative_to(root)}: TWINRUN_LAYERS is not the list in {Path(__file__).name}"]
    return []


def modules_imported(tree: ast.Module, package: list[str]):
    """Yields (line number, dotted name) of each imported module; `package` is the importing file's package.

    For `from m import n`, m.n comes too: n may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            # `from twinrun import x` is an import of twinrun.x if there is such a part, decided by the caller.
            for alias in node.names:
                yield node.lineno, ".".join([*module, alias.name])


def python_parts(package: Path) -> set[str]:
    parts = {"_core"}
    for path in package.iterdir():
        if path.is_dir() and any(path.glob("*.py")):
            parts.add(path.name)
        elif path.suffix == ".py" and path.stem != "__init__":
            parts.add(path.stem)
    return parts


def check_python(root: Path) -> list[str]:
    package = root / "python" / "twinrun"
    if not package.is_dir():
        return []
    problems = []
    parts = python_parts(package)
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        part = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        if part == "__init__":
            part = ""
        where = path.relative_to(root)
        if part in PYTHON_TOP:
            forbidden: set[str] = set()
        else:
            forbidden = PYTHON_FORBIDDEN.get(part, set()) | PYTHON_FORBIDDEN_ELSEWHERE
        dotted = ["twinrun", *inside.parts[:-1]]
        seen = set()
        for line, name in modules_imported(ast.parse(path.read_text(encoding="utf-8"), str(path)), dotted):
            words = name.split(".")
            if words[0] in ("tests", "spec"):
                problems.append(f"{where}:{line}: {name}: the package must not import {words[0]}")
            if words[0] != "twinrun":
                continue
            other = words[1] if len(words) > 1 and words[1] in parts else ""
            if other == part or (line, other) in seen:
                continue
            seen.add((line, other))
            if other in forbidden or ("*" in forbidden):
                problems.append(
                    f"{where}:{line}: {part or 'twinrun'} must not import twinrun{'.' if other else ''}{other}"
                )
    return problems


def check(root: Path) -> list[str]:
    return check_cmake(root) + check_src(root) + check_python(root)


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
