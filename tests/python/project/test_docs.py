"""The docs: pages and links are there, code blocks run or at least parse, commands exist, and sentences are short."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import docs_benchmarks
import docs_english
import docs_offline
import docs_reference
import docs_run
import pytest
import yaml

import twinrun
from twinrun.cli import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]
# Pages that change with the code are not looked at.
RUN = [
    name
    for name in NAMES
    if name not in docs_english.exempt()
    and any(block.runs for block in docs_run.blocks_of((DOCS / name).read_text("utf-8")))
]


def blocks(page: Path) -> list[docs_run.Block]:
    return docs_run.blocks_of(page.read_text("utf-8"))


# ---- pages and links ---------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """What a link can name in a page: its headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = DOCS / name
    made = {f"docs/{place}" for place in made_pages()}
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if path.relative_to(ROOT).as_posix() in made:
            continue
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@functools.cache
def made_pages() -> list[str]:
    """Pages that the site makes from sources: their places alone, which need no click and no headers."""
    places = [place for place, _ in docs_reference.python_pages()]
    places += ["reference/cli/index.md"]
    places += [f"reference/cli/twinrun-{name}.md" for name in cli.list_commands(click.Context(cli))]
    return places + [place for place, _ in docs_reference.c_pages()]


def test_pages_that_sources_name_are_there() -> None:
    """Messages, comments and READMEs name pages by their paths."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    if not any(listed):
        pytest.skip("this is no checkout of git")
    for name in filter(None, listed):
        path = ROOT / name
        if path.suffix in (".png", ".svg", ".bin") or "corpus" in name or not path.is_file():
            continue
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text("utf-8", errors="replace")):
            if page == "docs/file_format_specifications.md":  # of netCDF-C
                continue
            assert (ROOT / page).is_file(), f"{name} names {page}, which is not there"


def test_what_shows_the_first_hour_is_there() -> None:
    page = (ROOT / "docs/reference/first-hour.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 17
    for row in rows:
        shown = re.findall(r"`((?:tests|tools)/[^`]+|make [a-z-]+)`", row[-1])
        assert shown, row
        assert all(one.startswith("make ") or (ROOT / one).is_file() for one in shown), shown


def test_the_site_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(NAMES) <= set(listed)
    assert set(listed) - set(NAMES) <= set(made_pages())


def test_the_reference_has_every_public_name() -> None:
    on_pages = {name for _, _, names in docs_reference.PYTHON.values() for name in names}
    assert set(twinrun.__all__) - {"__version__"} <= on_pages
    for module in ("golden", "ensemble", "torch"):
        public = importlib.import_module(f"twinrun.{module}").__all__
        assert {f"{module}.{name}" for name in public} <= on_pages
    assert {name.split(".")[0] for name in on_pages} <= {*twinrun.__all__, "golden", "ensemble", "torch"}


def test_the_reference_of_c_has_every_function() -> None:
    pages = dict(docs_reference.c_pages())
    for name in docs_reference.HEADERS:
        header = (ROOT / "include/twinrun" / name).read_text("utf-8")
        page = pages[f"reference/c/{Path(name).stem}-h.md"]
        functions = re.findall(r"^(?:TWR_API|VELOC_API)\s[^(;]*?\b(\w+)\s*\(", header, re.MULTILINE)
        assert functions or name in ("veloc/veloc.h",)
        for function in functions:
            assert f"`{function}`" in page, (name, function)
    fortran = pages["reference/c/twinrun-f90.md"]
    for function in ("twr_open", "twr_protect", "twr_capture", "twr_compare", "twr_comparison_field"):
        assert f"### `{function}`\n\n```" in fortran


def test_the_reference_of_the_command_line_has_every_option() -> None:
    made = list(docs_reference.cli_pages())
    pages = dict(made)
    assert len(pages) == len(made), "two pages have one place: `index` is a verb, too"
    assert "# Command line" in pages["reference/cli/index.md"]
    root = click.Context(cli, info_name="twinrun")
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        page = pages[f"reference/cli/twinrun-{name}.md"]
        assert page.startswith(f"# twinrun {name}\n")
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in page, (name, option.opts)


# ---- blocks of code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUN)
def test_pages_print_what_they_say(name: str) -> None:
    page = DOCS / name
    if (lacks := docs_run.missing(page.read_text("utf-8"))) is not None:
        pytest.skip(f"needs {lacks}")
    wrong, _ = docs_run.run_page(page)
    assert not wrong, "\n".join(f"{name}:{each.line}: {each.what}" for each in wrong)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_parse(name: str) -> None:
    """Blocks that are not run are Python, TOML, JSON or YAML at least; quoted ones are parts of what they quote."""
    for block in blocks(DOCS / name):
        where = f"{name}:{block.line}"
        if block.says.startswith("from "):
            source = ROOT / block.says.removeprefix("from ").strip()
            assert block.text in source.read_text("utf-8"), (
                f"{where}: {source.name} does not have these lines"
            )
        if block.kind == "python" and name not in docs_english.exempt():
            ast.parse(block.text, where)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "json":
            json.loads(block.text)
        elif block.kind == "yaml":
            yaml.safe_load(block.text)


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """The commands of twinrun that a page shows, without what the shell does."""
    for block in blocks(page):
        if block.kind not in ("", "console", "bash", "text"):
            continue
        for number, line in enumerate(re.sub(r"\\\n\s*", " ", block.text).split("\n"), block.line):
            found = re.match(r"(?:\$ )?(?:(?:mpirun|mpiexec|srun) [^…]*? )?(twinrun [a-z]+\b.*)$", line)
            if found and not re.search(r"…|\.\.\.|\[|=>|[A-Z]{3,}|RUN\b", found[1].split("  #")[0]):
                yield number, shlex.split(found[1], comments=True)


def parsed(words: list[str]) -> None:
    """Raises where twinrun would not understand the words. Paths need not exist."""
    command: click.Command = cli
    context = click.Context(cli, info_name="twinrun")
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        if found is None:
            if command is cli:
                raise click.UsageError(f"there is no verb {rest[0]}")
            return  # commands of the user's own, as after `ensemble --`
        command, rest = found, rest[1:]
        context = click.Context(command, parent=context, info_name=words[1])
    if "--" in rest:
        return
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in rest:
        if word.startswith("--"):
            assert word.split("=")[0] in known | {"--help"}, f"{' '.join(words)}: no option {word}"


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist(name: str) -> None:
    for number, words in commands(DOCS / name):
        try:
            parsed(words)
        except (AssertionError, click.UsageError) as error:
            pytest.fail(f"{name}:{number}: {error}")


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; echo two\none\nthree\n$ false\n$ echo $?\n1\n```\n")
    wrong, text = docs_run.run_page(page)
    assert [each.line for each in wrong] == [1] and "one\ntwo\n" in text
    page.write_text(
        "```console\n$ seq 5\n1\n…\n5\n$ echo 0.25 s of abc\n0.5 s of …c\n```\n\n```python\nassert 1 == 1\n```\n"
    )
    assert docs_run.run_page(page)[0] == []
    page.write_text(
        "<!-- file a.txt -->\n```\nhello\n```\n\n<!-- measured -->\n```console\n$ cat a.txt\n1\n$ exit 3\n\n```\n"
    )
    wrong, _ = docs_run.run_page(page)
    assert len(wrong) == 1 and "exit 3" in wrong[0].what


def test_ratios_and_pictures_are_those_of_the_tables() -> None:
    for path, text in docs_benchmarks.made().items():
        assert path.read_text("utf-8") == text, f"{path.name}: python tools/docs_benchmarks.py"


def test_the_site_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://x.org/a">a</a><script src=a.js></script><img src="b.png">'
    )
    assert docs_offline.loads(tmp_path) == []
    (tmp_path / "page.html").write_text(
        '<script src=https://x.org/a.js></script><link rel="stylesheet" href="//x.org/b">'
    )
    (tmp_path / "style.css").write_text("@import url(https://x.org/c)")
    assert len(docs_offline.loads(tmp_path)) == 3


# ---- English -----------------------------------------------------------------------------------------------------------

ENGLISH = {docs_english.name_of(page): page for page in docs_english.all_pages()}


@pytest.mark.parametrize("name", [name for name in ENGLISH if name not in docs_english.exempt()])
def test_sentences_are_short(name: str) -> None:
    wrong, _ = docs_english.check(ENGLISH[name].read_text("utf-8"), docs_english.rules())
    assert not wrong, "\n".join(f"{name}:{each}" for each in wrong)


def test_exempt_pages_are_there() -> None:
    assert set(docs_english.exempt()) <= set(ENGLISH)


def test_english_of_every_page_is_checked() -> None:
    rooms = (
        "spec/record.md",
        "src/core/engine/README.md",
        "python/twinrun/torch/README.md",
        "apps/haccio/README.md",
    )
    assert {*NAMES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md", *rooms} <= set(ENGLISH)
    tracked = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert {docs_english.name_of(ROOT / path) for path in tracked.stdout.split()} <= set(ENGLISH)


def test_sentences_are_found_and_counted() -> None:
    page = "# Title\n\nOne two `x y z`. Four |a - b| words.\nSix\n\n- an item; still it\n- another\n\n| a. B | c |\n|---|---|\n\n```\nCode. Code.\n```\n"
    found = docs_english.sentences(page)
    assert [s.text for s in found] == [
        "One two Code.",
        "Four |a - b| words.",
        "Six",
        "an item; still it",
        "another",
    ]
    assert [s.words for s in found] == [3, 4, 1, 4, 1] and [s.line for s in found] == [3, 3, 3, 6, 7]


@pytest.mark.parametrize(
    "text",
    [
        " ".join(["word"] * 36) + ".",
        " ".join(["word"] * 21) + ".",
        "Of which there are two.",
        "It is simply there.",
        "We utilise it.",
    ],
)
def test_what_is_wrong_is_found(text: str) -> None:
    assert docs_english.check(text, docs_english.rules())[0]
