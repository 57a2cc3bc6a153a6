"""The checks of layers, of C++ and of Python, find what they are for, and nothing in this tree."""

import ast
import shutil
import subprocess
from pathlib import Path

import check_layers
import pytest

ROOT = Path(__file__).resolve().parents[3]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_this_tree_is_in_order():
    assert check_layers.check(ROOT) == []


CLEAN = {
    "include/twinrun/twinrun.h": "#include <stddef.h>\n",
    "include/twinrun/mpi.h": "#include <mpi.h>\n#include <twinrun/twinrun.h>\n",
    "src/core/base/result.hpp": "#pragma once\n#include <nlohmann/json.hpp>\n",
    "src/core/tree/walk.hpp": '#include "base/result.hpp"\n#include <vector>\n',
    "src/core/tree/walk.cpp": '#include "tree/walk.hpp"\n',
    "src/core/capi/run.cpp": '#include "base/result.hpp"\n#include "twinrun/twinrun.h"\n',
    "src/aggregate/topology/tree.hpp": '#include "base/result.hpp"\n',
    "src/aggregate/plan/layout.cpp": '#include "aggregate/topology/tree.hpp"\n',
    "src/mpi/mpi.cpp": "#include <mpi.h>\n#include <twinrun/mpi.h>\n",
    "src/veloc/files.hpp": "#pragma once\n",
    "tests/core/tree/walk_test.cpp": '#include "capi/run.hpp"\n',
    "apps/mini/main.cpp": '#include "tree/walk.hpp"\n#include "own.hpp"\n',
    "python/bindings/core.cpp": '#include "tree/walk.hpp"\n',
}
CLEAN |= {
    f"src/{check_layers.folder_of(room)}/README.md": f"# {room}\n\n{check_layers.may_include(room)}\n"
    for room in check_layers.ROOMS
}


def test_clean_tree_passes(tmp_path):
    assert check_layers.check(write(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(
    ("name", "text", "line", "word"),
    [
        (
            "src/core/base/a.cpp",
            '#include <map>\n#include "tree/walk.hpp"\n',
            2,
            "base must not include tree",
        ),
        (
            "src/core/base/b.hpp",
            '/* one\ntwo */\n  #  include "tree/walk.hpp"\n',
            3,
            "base must not include tree",
        ),
        ("src/core/base/c.cpp", "#include <tree/walk.hpp>\n", 1, "base must not include tree"),
        (
            "src/core/tree/a.hpp",
            '#include "aggregate/topology/tree.hpp"\n',
            1,
            "tree must not include aggregate/topology",
        ),
        ("src/core/tree/b.cpp", "#include <base/result.hpp>\n", 1, "in quotes"),
        ("src/core/tree/b.cpp", "#include <core/base/result.hpp>\n", 1, "only its own rooms"),
        ("src/core/tree/c.cpp", '#include "walk.hpp"\n', 1, '"tree/walk.hpp"'),
        ("src/core/tree/d.cpp", '#include "../base/result.hpp"\n', 1, "from src/core/"),
        ("src/core/tree/d.cpp", "#include <../core/base/result.hpp>\n", 1, "from src/core/"),
        ("src/core/tree/e.cpp", '#include "tests/support/data.hpp"\n', 1, "only its own rooms"),
        ("src/core/tree/f.cpp", '#include "python/bindings/x.hpp"\n', 1, "only its own rooms"),
        ("src/core/tree/g.cpp", '#include "base/none.hpp"\n', 1, "no such file"),
        ("src/core/tree/h.cpp", '#include "twinrun/twinrun.h"\n', 1, "public headers"),
        ("src/core/tree/h.cpp", "#include <twinrun/twinrun.h>\n", 1, "public headers"),
        ("src/core/tree/i.cpp", "#define FILE <vector>\n#include FILE\n", 2, "by a macro"),
        ("src/core/tree/j.cpp", "#include <mpi.h>\n", 1, "must not know MPI"),
        (
            "src/aggregate/topology/k.cpp",
            '#include "aggregate/plan/layout.hpp"\n',
            1,
            "must not include aggregate/plan",
        ),
        (
            "src/mpi/i.cpp",
            '#include <twinrun/mpi.h>\n#include "base/result.hpp"\n',
            2,
            "mpi must not include base",
        ),
        ("src/veloc/j.cpp", '#include "mpi/mpi.cpp"\n', 1, "veloc must not include mpi"),
        ("src/interpose/j.cpp", "#include <twinrun/twinrun.h>\n", 1, "public headers"),
        ("include/twinrun/own.h", '#include "base/result.hpp"\n', 1, "no file of src/"),
    ],
)
def test_violation_is_found(tmp_path, name, text, line, word):
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, name: text}))
    assert problem.startswith(f"{name}:{line}: ")
    assert word in problem


def test_comments_do_not_count(tmp_path):
    text = '// #include "tree/walk.hpp"\n/*\n#include "tree/walk.hpp"\n*/\nconst char* s = "// no comment";\n'
    assert check_layers.check(write(tmp_path, {**CLEAN, "src/core/base/a.cpp": text})) == []


@pytest.mark.parametrize(
    "name",
    [
        "src/helper/a.cpp",
        "src/core/helper/a.hpp",
        "src/core/a.cpp",
        "src/aggregate/a.cpp",
        "tests/core/helper/a_test.cpp",
    ],
)
def test_unknown_folder(tmp_path, name):
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, name: "\n"}))
    assert problem.startswith(f"{Path(name).parent}: no room of the table")


def test_circle_of_files(tmp_path):
    files = {
        "src/core/tree/a.hpp": '#include "tree/b.hpp"\n',
        "src/core/tree/b.hpp": '#include "tree/walk.hpp"\n#include "tree/a.hpp"\n',
    }
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, **files}))
    assert "circle" in problem and "tree/a.hpp <- tree/b.hpp" in problem.replace(
        "b.hpp <- tree/a", "a.hpp <- tree/b"
    )


def test_circle_of_rooms(tmp_path):
    table = {"base": {"tree"}, "tree": {"digest"}, "digest": {"base"}, "noise": set()}
    (problem,) = check_layers.check_rooms(tmp_path, table)
    assert "the table of rooms has a circle" in problem
    assert check_layers.check_rooms(tmp_path, {**table, "digest": set()}) == []


@pytest.mark.parametrize("text", ["# tree\n", "# tree\n\nMay include: base, device, digest, engine.\n"])
def test_room_says_what_it_may_include(tmp_path, text):
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, "src/core/tree/README.md": text}))
    assert problem == "src/core/tree/README.md: has no line 'May include: base, device, digest.'"


def test_arrow_to_no_room(tmp_path):
    (problem,) = check_layers.check_rooms(tmp_path, {"base": {"cellar"}})
    assert "base may include cellar, which is no room" in problem


def test_other_list_in_cmake(tmp_path):
    files = {**CLEAN, "cmake/TwinrunRooms.cmake": "set(TWINRUN_CORE_ROOMS\n    base\n    tree\n)\n"}
    (problem,) = check_layers.check(write(tmp_path, files))
    assert problem.startswith("cmake/TwinrunRooms.cmake: ")


def test_main_prints_and_exits(tmp_path, monkeypatch, capsys):
    write(tmp_path, CLEAN)
    monkeypatch.setattr("sys.argv", ["check_layers.py", str(tmp_path)])
    assert check_layers.main() == 0
    assert capsys.readouterr().out == "layers: in order\n"
    write(tmp_path, {"src/core/base/a.cpp": '#include "tree/walk.hpp"\n'})
    assert check_layers.main() == 1
    assert "src/core/base/a.cpp:1: " in capsys.readouterr().err


def lint_imports(root):
    """The exit status, and all that is said."""
    done = subprocess.run(
        [ROOT / "tools" / "lint_imports.sh", root],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture
def package(tmp_path):
    """A copy of the Python sources and their contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    unread = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python" / "twinrun", tmp_path / "python" / "twinrun", ignore=unread)
    return tmp_path


def test_this_package_keeps_its_contracts():
    assert lint_imports(ROOT) == (0, "layers of Python: in order\n")


def add(root, files):
    for name, text in files.items():
        with open(root / "python" / "twinrun" / name, "a", encoding="utf-8") as file:
            file.write(text)


@pytest.mark.parametrize(
    ("files", "contract", "word"),
    [
        (
            {"runs/order.py": "from twinrun import report\n"},
            "a room knows those below it",
            "twinrun.runs.order -> twinrun.report",
        ),
        (
            {"formats/npy.py": "def late():\n    from ..cli import main\n"},
            "a room knows those below it",
            "twinrun.formats.npy -> twinrun.cli",
        ),
        ({"cellar.py": "import os\n"}, "a room knows those below it", "cellar"),
        (
            {"golden/plan.py": "from ..capture import run\n"},
            "golden checks, comparisons and runs know no captures",
            "twinrun.golden.plan -> twinrun.capture.run",
        ),
        (
            {"formats/one.py": "from . import two\n", "formats/two.py": "from .one import some\n"},
            "no circles",
            ".two -> .one",
        ),
        (
            {"comparison/merge.py": "from . import work\n"},
            "a comparison, from the call to one field",
            "twinrun.comparison.merge -> twinrun.comparison.work",
        ),
        ({"comparison/cellar.py": "import os\n"}, "a comparison, from the call to one field", "cellar"),
        (
            {"acceptance/samples.py": "from . import copies\n"},
            "an acceptance, from the call to the sums of one field",
            "twinrun.acceptance.samples -> twinrun.acceptance.copies",
        ),
        (
            {"report/html.py": "import jinja2\n"},
            "markup is made in one place, which escapes",
            "twinrun.report.html -> jinja2",
        ),
        (
            {"errors.py": "import tests.support\n"},
            "the package stands without its tests and the reader of the specification",
            "twinrun.errors -> tests",
        ),
    ],
)
def test_broken_contract_is_found(package, files, contract, word):
    add(package, files)
    status, said = lint_imports(package)
    assert status == 1
    assert f"{contract} BROKEN" in said
    assert word in said


def test_imports_for_types_are_free(package):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from twinrun import report\n"
    add(package, {"runs/order.py": text})
    assert lint_imports(package)[0] == 0


# Modules that import what they are told: lists of what a package offers, packages of others, and the command's verbs.
TOLD = {
    "__init__.py",
    "acceptance/__init__.py",
    "cli/__init__.py",
    "comparison/__init__.py",
    "ensemble/__init__.py",
    "ensemble/watch/__main__.py",
    "formats/catalogue.py",
    "later.py",
    "packages.py",
    "torch/__init__.py",
}


def imports_by_name(package):
    """(file, line) of calls that import a module whose name is no constant, and of constant names of this package: arrows
    that import-linter does not see."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called not in ("import_module", "__import__"):
                continue
            told = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if name not in TOLD and (told is None or told.startswith((".", "twinrun"))):
                found.append(f"{name}:{node.lineno}")
    return found


def test_no_module_imports_another_by_a_name_that_contracts_do_not_see(package):
    inside = package / "python" / "twinrun"
    assert imports_by_name(inside) == []
    add(package, {"runs/joined.py": "import importlib\nimportlib.import_module('twinrun' + '.report')\n"})
    add(package, {"runs/told.py": "from importlib import import_module\nimport_module('twinrun.report')\n"})
    assert imports_by_name(inside) == ["runs/joined.py:2", "runs/told.py:2"]


def test_nobody_inside_imports_what_the_package_offers():
    """No contract sees it: for import-linter, an import of the extension is one of the package itself."""
    package = ROOT / "python" / "twinrun"
    parts = {"_core", *(path.name.removesuffix(".py") for path in package.iterdir())}
    found = []
    for path in sorted(package.rglob("*.py")):
        depth = len(path.relative_to(package).parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or path == package / "__init__.py":
                continue
            if (node.level == depth and node.module is None) or (
                node.level == 0 and node.module == "twinrun"
            ):
                found += [f"{path}:{node.lineno}: {a.name}" for a in node.names if a.name not in parts]
    assert found == []
