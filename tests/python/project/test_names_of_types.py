"""No two headers or sources define types of the same name in one namespace.

A program has one copy of each inline function of a type. With two types of one name, it may have that of the wrong one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_FOLDERS = ("src", "include", "python/bindings")
_ENDINGS = {".hpp", ".cpp", ".h", ".cu", ".cuh"}
_OPENS = re.compile(r"(?:inline )?namespace\s*(?P<name>[\w:]+)?\s*\{$")
_CLOSES = re.compile(r"\}\s*// namespace")
_DEFINES = re.compile(
    r"(?:template.*>\s*)?(?:struct|class|enum class|enum|union)\s+(?P<name>\w+)(?:\s[^;<]*)?\{"
)


def types_of(text: str) -> set[str]:
    """The types that are defined at the level of a namespace with a name."""
    inside: list[str] = []
    found = set()
    for line in text.splitlines():
        if opens := _OPENS.match(line):
            inside.append(opens["name"] or "")
        elif _CLOSES.match(line) and inside:
            inside.pop()
        elif (defines := _DEFINES.match(line)) and inside and all(inside):
            found.add("::".join([*inside, defines["name"]]))
    return found


def test_types_are_found() -> None:
    text = """namespace a {
inline namespace b {
struct One {
    struct Inner {};
};
class Later;
class Two final : public One {
template <> struct Three<int> {
void One::Four() {
namespace {
struct Hidden {
}  // namespace
enum class Five : int { x };
}  // namespace b
}  // namespace a
"""
    assert types_of(text) == {"a::b::One", "a::b::Two", "a::b::Five"}


def test_each_name_of_a_type_is_of_one_file() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _ENDINGS:
                for name in types_of(path.read_text(encoding="utf-8")):
                    files[name].append(str(path.relative_to(ROOT)))
    assert len(files) > 300
    assert {name: of for name, of in files.items() if len(of) > 1} == {}
