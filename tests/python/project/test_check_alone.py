"""tools/check_alone.py: finds sources that compile only behind others."""

import json

import check_alone
import pytest

SOURCES = {
    "tests/whole_test.cpp": "#include <string>\nstd::string whole;\n",
    "tests/lacking_test.cpp": "std::string lacking;\n",
    "apps/one/lacking.cpp": "std::vector<int> lacking;\n",
    "src/one/whole.cpp": "#include <string>\nstd::string also_whole;\n",
    "src/one/lacking.cpp": "std::string lacking;\n",
}
LACKING = ["tests/lacking_test.cpp", "apps/one/lacking.cpp", "src/one/lacking.cpp"]


@pytest.fixture(params=["alone", "dozens"])
def build(request, tmp_path, monkeypatch):
    """A build folder that compiles the sources, each alone or all as one; its path."""
    paths = []
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    if request.param == "dozens":
        together = tmp_path / "build/Unity/unity_0_cxx.cxx"
        together.parent.mkdir(parents=True)
        together.write_text("/* by CMake */\n" + "".join(f'#include "{path}"\n' for path in paths))
        paths = [together]
    entries = [
        {"directory": str(tmp_path), "command": f"c++ -std=c++20 -o {path}.o -c {path}", "file": str(path)}
        for path in paths
    ]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    monkeypatch.setattr(check_alone, "ROOT", tmp_path)
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["check_alone.py", *map(str, arguments)])
    return check_alone.main()


def named(capsys):
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("check_alone: ")]
    return [line.split()[1] for line in lines]


def test_sources_that_lack_an_include_are_named(build, monkeypatch, capsys):
    assert run(monkeypatch, build) == 1
    assert named(capsys) == LACKING
    assert not list(build.rglob("*.o"))


def test_words_choose_sources(build, monkeypatch, capsys):
    assert run(monkeypatch, build, "whole") == 0
    assert capsys.readouterr().out == ""
    assert run(monkeypatch, build, "src/", "apps/") == 1
    assert named(capsys) == LACKING[1:]


def test_a_build_without_such_sources_is_an_error(build, monkeypatch, capsys):
    assert run(monkeypatch, build, "none") == 1
    assert "compiles no such source" in capsys.readouterr().out
