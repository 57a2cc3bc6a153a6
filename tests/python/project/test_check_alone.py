"""tools/check_alone.py: finds sources of tests that compile only behind others."""

import json

import check_alone
import pytest

SOURCES = {
    "tests/whole_test.cpp": "#include <string>\nstd::string whole;\n",
    "tests/lacking_test.cpp": "std::string lacking;\n",
    "apps/one/lacking.cpp": "std::vector<int> lacking;\n",
    "src/read_by_clang_tidy.cpp": "std::string lacking;\n",
}


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A build folder that compiles the sources; its path."""
    entries = []
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        command = f"c++ -std=c++20 -o {name}.o -c {path}"
        entries.append({"directory": str(tmp_path), "command": command, "file": str(path)})
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    monkeypatch.setattr(check_alone, "ROOT", tmp_path)
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["check_alone.py", *map(str, arguments)])
    return check_alone.main()


def test_sources_that_lack_an_include_are_named(build, monkeypatch, capsys):
    assert run(monkeypatch, build) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("check_alone: ")]
    assert [line.split()[1] for line in lines] == ["tests/lacking_test.cpp", "apps/one/lacking.cpp"]
    assert not list(build.rglob("*.o"))


def test_words_choose_sources(build, monkeypatch, capsys):
    assert run(monkeypatch, build, "whole") == 0
    assert capsys.readouterr().out == ""


def test_a_build_that_takes_several_at_a_time_is_an_error(build, monkeypatch, capsys):
    (build / "compile_commands.json").write_text("[]")
    assert run(monkeypatch, build) == 1
    assert "TWINRUN_UNITY=OFF" in capsys.readouterr().out
