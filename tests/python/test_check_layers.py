"""The layer check finds what it is for, and nothing in this tree."""

from pathlib import Path

import check_layers
import pytest

ROOT = Path(__file__).resolve().parents[2]


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_this_tree_is_in_order():
    assert check_layers.check(ROOT) == []


CLEAN = {
    "src/base/result.hpp": "#pragma once\n",
    "src/tree/walk.hpp": '#include "base/result.hpp"\n#include <vector>\n',
    "src/tree/walk.cpp": '#include "tree/walk.hpp"\n',
    "apps/mini/main.cpp": '#include "tree/walk.hpp"\n#include "own.hpp"\n',
    "python/bindings/core.cpp": '#include "tree/walk.hpp"\n',
    "python/twinrun/__init__.py": "from .comparison import compare\nfrom . import errors\n",
    "python/twinrun/__main__.py": "from twinrun.cli import main\n",
    "python/twinrun/errors.py": "import os\n",
    "python/twinrun/comparison.py": "from twinrun import _core\nfrom .formats import model\n",
    "python/twinrun/formats/__init__.py": "from twinrun.errors import E\nfrom . import model\n",
    "python/twinrun/formats/model.py": "from ..errors import E\n",
    "python/twinrun/report/table.py": "from ..comparison import R\nimport rich\n",
    "python/twinrun/cli/__init__.py": "from .. import compare\nfrom ..report import table\n",
}


def test_clean_tree_passes(tmp_path):
    assert check_layers.check(write(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(
    ("name", "text", "line", "word"),
    [
        ("src/base/a.cpp", '#include <map>\n#include "tree/walk.hpp"\n', 2, "base comes before tree"),
        ("src/base/b.hpp", '/* one\ntwo */\n  #  include "tree/walk.hpp"\n', 3, "base comes before tree"),
        ("src/tree/c.cpp", '#include "walk.hpp"\n', 1, '"tree/walk.hpp"'),
        ("src/tree/d.cpp", '#include "../base/result.hpp"\n', 1, "relative to src/"),
        ("src/tree/e.cpp", '#include "tests/support/data.hpp"\n', 1, "only its own layers"),
        ("src/tree/f.cpp", '#include "python/bindings/x.hpp"\n', 1, "only its own layers"),
        ("src/tree/g.cpp", '#include "base/none.hpp"\n', 1, "no such file"),
        ("src/tree/h.cpp", '#include "twinrun/twinrun.h"\n', 1, "only its own layers"),
        ("src/mpi/i.cpp", '#include <twinrun/mpi.h>\n#include "base/result.hpp"\n', 2, "public headers"),
        ("src/veloc/j.cpp", '#include "veloc/none.hpp"\n', 1, "public headers"),
        ("python/twinrun/formats/npy.py", "import os\nimport twinrun.cli.compare\n", 2, "twinrun.cli"),
        ("python/twinrun/formats/raw.py", "def f():\n    from ..report import x\n", 2, "twinrun.report"),
        ("python/twinrun/formats/zarr.py", "from .. import compare\n", 1, "formats must not import twinrun"),
        ("python/twinrun/report/html.py", "from twinrun import cli\n", 1, "twinrun.cli"),
        ("python/twinrun/other.py", "from .cli import main\n", 1, "twinrun.cli"),
        ("python/twinrun/__init__.py", "from .cli import main\n", 1, "twinrun.cli"),
        ("python/twinrun/errors.py", "from .formats import model\n", 1, "twinrun.formats"),
        ("python/twinrun/comparison.py", "import tests.helpers\n", 1, "tests"),
    ],
)
def test_violation_is_found(tmp_path, name, text, line, word):
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, name: text}))
    assert problem.startswith(f"{name}:{line}: ")
    assert word in problem


def test_comments_do_not_count(tmp_path):
    text = '// #include "tree/walk.hpp"\n/*\n#include "tree/walk.hpp"\n*/\nconst char* s = "// no comment";\n'
    assert check_layers.check(write(tmp_path, {**CLEAN, "src/base/a.cpp": text})) == []


def test_unknown_folder(tmp_path):
    (problem,) = check_layers.check(write(tmp_path, {**CLEAN, "src/helper/a.cpp": "\n"}))
    assert problem.startswith("src/helper: not in the list of layers")


def test_other_list_in_cmake(tmp_path):
    files = {**CLEAN, "cmake/TwinrunLayers.cmake": "set(TWINRUN_LAYERS\n    base\n    tree\n)\n"}
    (problem,) = check_layers.check(write(tmp_path, files))
    assert problem.startswith("cmake/TwinrunLayers.cmake: ")


def test_main_prints_and_exits(tmp_path, monkeypatch, capsys):
    write(tmp_path, CLEAN)
    monkeypatch.setattr("sys.argv", ["check_layers.py", str(tmp_path)])
    assert check_layers.main() == 0
    assert capsys.readouterr().out == "layers: in order\n"
    write(tmp_path, {"src/base/a.cpp": '#include "tree/walk.hpp"\n'})
    assert check_layers.main() == 1
    assert "src/base/a.cpp:1: " in capsys.readouterr().err
