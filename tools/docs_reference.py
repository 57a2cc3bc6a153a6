"""Reference pages of the docs that are made from the sources: the command line, Python, C and Fortran.

`pages()` gives them as Markdown, by their place under docs/. `tools/docs_site.py` puts them into the site.
The command line comes from the commands that `--help` and the manual pages come from; Python from its
docstrings, by mkdocstrings; C and Fortran from the comments and declarations of the headers and modules.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "repo"  # under which folder of the site files of the repository are shown

# ---- Python ------------------------------------------------------------------------------------------------------------

# Pages by file: title, an introduction, and what stands on it. tests/python/project/test_docs_site.py checks that every
# public name is on one.
PYTHON: dict[str, tuple[str, str, list[str]]] = {
    "compare": (
        "Compare",
        "Compare two runs, files, folders or arrays.",
        [
            "compare", "Comparison", "FieldComparison", "CompareOptions", "assert_same", "NotSame", "compare_distances",
            "Distances", "FieldDistances", "Distance",
        ],
    ),
    "capture": (
        "Capture",
        "Capture the steps of a run.",
        ["Run", "CaptureFacts", "Divergence"],
    ),
    "digests": (
        "Digests, sketches and metadata",
        "Digest arrays, compare them without their data, and build or check metadata of files.",
        [
            "digest", "Digest", "sketch", "sketch_of", "Sketch", "SketchComparison", "FieldSketchComparison", "index",
            "verify", "release_device_memory",
        ],
    ),
    "records": (
        "Records",
        "Keep every step of a run at a fraction of its size.",
        [
            "pack", "PackFacts", "PackedStep", "restore", "read_part", "write_part", "compact", "CompactFacts",
            "RecordOptions",
        ],
    ),
    "golden": (
        "Golden checks",
        "Compare a run with digests that live beside the code.",
        [
            "golden.save", "golden.SaveFacts", "golden.check", "golden.GoldenCheck", "golden.GoldenField",
            "golden.GoldenElement", "golden.GoldenSpan", "golden.GoldenProblem",
        ],
    ),
    "torch": (
        "Trainings of PyTorch",
        "Trace a training, and find the first operation that differs.",
        [
            "torch.trace", "torch.Trace", "torch.TraceDiverged", "torch.ReplicasDiffer", "compare_traces",
            "TraceComparison", "torch.assert_batch_invariant", "torch.BatchDependent", "torch.ParallelRun",
            "torch.Sharded",
        ],
    ),
    "acceptance": (
        "Acceptance",
        "Does a new compiler, library or machine compute the same distribution?",
        ["accept", "Acceptance", "perturb"],
    ),
    "ensemble": (
        "Studies of time",
        "Analyse the times of many runs, and plan how ranks write few files.",
        [
            "ensemble.analyse", "ensemble.Findings", "ensemble.Analysis", "ensemble.Options", "ensemble.load_tasks",
            "plan_aggregation", "AggregationPlan",
        ],
    ),
    "errors": (
        "Errors",
        "All errors are subclasses of `twinrun.TwinrunError`. Their messages say what, where and what to do.",
        [
            "TwinrunError", "DamagedFile", "FormatError", "Incomparable", "MissingFile", "MissingPackage", "Stale",
            "StepLost", "Unsupported",
        ],
    ),
}  # fmt: skip
# Of the compiled module: griffe reads its stub, where it is beside the package.
_COMPILED = {"release_device_memory": "Give device memory back that is kept for later calls and not in use."}


def python_pages() -> Iterator[tuple[str, str]]:
    for name, (title, said, names) in PYTHON.items():
        lines = [f"# {title}\n", f"{said}\n"]
        for each in names:
            if each in _COMPILED:
                lines += [f"## `twinrun.{each}()`\n", f"{_COMPILED[each]}\n"]
            else:
                lines += [f"::: twinrun.{each}\n"]
        yield f"reference/python/{name}.md", "\n".join(lines)


# ---- the command line --------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _command(command, ctx, level: int) -> list[str]:  # type: ignore[no-untyped-def]
    import click

    from twinrun.cli.help import GROUPS, examples_of, options_of, statuses_of

    said = {name: line for verbs in GROUPS.values() for name, line in verbs.items()}
    words = ctx.command_path
    mark = "#" * level
    lines = [f"{mark} {words}\n"]
    short = said.get(words.split()[-1]) if level == 1 else None
    if short:
        lines.append(f"*{short}*\n")
    formatter = click.HelpFormatter(width=110)
    command.format_usage(ctx, formatter)
    usage = "\n".join(line.removeprefix("Usage: ").strip() for line in formatter.getvalue().splitlines())
    lines.append(f"```text\n{usage}\n```\n")
    text = inspect.cleandoc(command.help or "")
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            lines.append("```text\n" + paragraph.removeprefix("\b\n") + "\n```\n")
        else:
            lines.append(" ".join(paragraph.split()).replace("<", "\\<").replace("*", "\\*") + "\n")
    if examples := examples_of(ctx):
        width = max(len(line) for line, _ in examples)
        rows = (f"{line:<{width}}  # {what}" if what else line for line, what in examples)
        lines.append(f"{mark}# Examples {{ #{'-'.join(words.split())}-examples }}\n")
        lines.append("```text\n" + "\n".join(rows) + "\n```\n")
    for title, records in options_of(command, ctx):
        lines.append(f"{mark}# {title} {{ #{'-'.join(words.split())}-{'-'.join(title.lower().split())} }}\n")
        lines.append("| option | |\n|---|---|")
        lines += [f"| `{' '.join(forms.split())}` | {_cell(what)} |" for forms, what in records]
        lines.append("")
    lines.append(f"{mark}# Exit status {{ #{'-'.join(words.split())}-exit-status }}\n")
    lines.append("| | |\n|---|---|")
    lines += [f"| {status} | {_cell(what)} |" for status, what in statuses_of(ctx)]
    lines.append("")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            if found is not None and not found.hidden:
                lines += _command(found, click.Context(found, parent=ctx, info_name=name), level + 1)
    return lines


def cli_pages() -> Iterator[tuple[str, str]]:
    import click

    from twinrun.cli import cli
    from twinrun.cli.help import GROUPS

    root = click.Context(cli, info_name="twinrun", **cli.context_settings)
    lines = ["# Command line\n", "```text\ntwinrun VERB [OPTIONS] ...\n```\n"]
    lines.append(
        "These pages have the text of `twinrun VERB --help`. `twinrun manual FOLDER` writes it as man pages.\n"
    )
    for title, verbs in GROUPS.items():
        lines.append(f"## {title} {{ #group-{title.lower()} }}\n")
        lines.append("| verb | what it does |\n|---|---|")
        lines += [f"| [`{name}`](twinrun-{name}.md) | {_cell(said)} |" for name, said in verbs.items()]
        lines.append("")
    yield "reference/cli/index.md", "\n".join(lines)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        ctx = click.Context(command, parent=root, info_name=name)
        yield f"reference/cli/twinrun-{name}.md", "\n".join(_command(command, ctx, 1))


# ---- C -----------------------------------------------------------------------------------------------------------------

HEADERS = {
    "twinrun.h": "Capture, restore, settings",
    "compare.h": "Compare",
    "status.h": "Status codes, versions",
    "mpi.h": "Runs of MPI programs",
    "aggregate.h": "Aggregation",
    "veloc/veloc.h": "VELOC's interface",
}
_COMMENT = re.compile(r"^/\*(.*?)\*/[ \t]*\n?", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"---- (.*?) ----")


def prose(lines: list[str]) -> str:
    """A comment as Markdown: indented codes become a list, deeper indentation a block of code."""
    out: list[str] = []
    code = False
    item = False
    for line in [*lines, ""]:
        deep = line.startswith("    ") and not item
        if deep and not code:
            out += ["", "```c"]
            code = True
        if code and not deep and line.strip():
            while out[-1] == "":
                out.pop()
            out += ["```", ""]
            code = False
        if code:
            out.append(line[4:])
            continue
        text = (
            line.strip()
            .replace("*", "\\*")
            .replace("<", "\\<")
            .replace("[collective]", "**\\[collective\\]**")
        )
        if re.match(r"  \S", line):
            if not item:
                out.append("")
            item = True
            out.append("- " + re.sub(r"^((?:TWR_\w+(?:, )?)+)", r"`\1`", text))
        elif item and line.startswith("   "):
            out.append("  " + text)
        else:
            if item:
                out.append("")
            item = False
            out.append(text)
    while code and out[-1] == "":
        out.pop()
    if code:
        out.append("```")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _comment_lines(body: str) -> list[str]:
    return [re.sub(r"^ \*( |$)", "", line) for line in ("" + body.strip("\n")).split("\n")]


def _name_of(declaration: str) -> str:
    """What a declaration declares: its function, type or macro."""
    for pattern in (
        r"^#define (\w+)",
        r"TWR_API\s[^(]*?\b(\w+)\s*\(",
        r"^(?:typedef )?(?:struct|enum) (\w+) \{",
        r"^typedef \w+ (\w+)[; ]",
        r"^typedef struct \w+ (\w+);",
        r"typedef .*\(\*(\w+)\)",
        r"\b(\w+)\s*\([^()]*\)\s*;",
        r"^enum (\w+)",
    ):
        if found := re.search(pattern, declaration, re.MULTILINE):
            return found[1]
    return ""


def header_page(path: Path, title: str) -> str:
    """A header: its comments as text, each declaration under its name."""
    text = path.read_text("utf-8")
    shown = path.relative_to(ROOT / "include").as_posix()
    lines = [f"# {title}: `{shown}`\n"]
    level = "##"
    at = 0
    pending: list[str] | None = None
    body = re.sub(r'^(#ifndef \w+_H|#define \w+_H|#include .*|#endif.*|#ifdef __cplusplus|extern "C" \{|\})$', "", text, flags=re.MULTILINE)  # fmt: skip
    blocks = re.split(r"\n{2,}", body)
    while at < len(blocks):
        block = blocks[at].strip("\n")
        at += 1
        while block.count("/*") > block.count("*/") or block.count("{") > block.count(
            "}"
        ):  # torn at an empty line
            block += "\n\n" + blocks[at].strip("\n")
            at += 1
        if not block.strip():
            continue
        if found := _COMMENT.match(block):
            said = _comment_lines(found[1][1:] if found[1].startswith(" ") else found[1])
            rest = block[found.end() :].strip("\n")
            if section := _SECTION.match(said[0]):
                lines.append(f"## {section[1].strip().capitalize()}\n")
                level = "###"
                said = said[1:]
            if not rest:
                lines.append(prose(said) + "\n")
                continue
            if "#define" in rest and "/*" in rest:  # several constants, each with its comment
                lines.append(f"{level} `{_name_of(rest)}` …\n\n```c\n{block}\n```\n")
                continue
            pending = said
            block = rest
        if all(not line.strip() or line[:1] == "#" for line in block.split("\n")) and "#define" not in block:
            continue
        functions = re.findall(r"^\w+_API\s[^(;]*?\b(\w+)\s*\(", block, re.MULTILINE)
        if name := "`, `".join(functions) or _name_of(block):
            lines.append(f"{level} `{name}`\n")
        lines.append(f"```c\n{block}\n```\n")
        if pending:
            lines.append(prose(pending) + "\n")
        pending = None
    return "\n".join(lines)


# ---- Fortran -----------------------------------------------------------------------------------------------------------


def _signature(lines: list[str], at: int) -> tuple[str, list[str]]:
    """A procedure's statement with its dummy arguments' declarations, and the comment above it."""
    above: list[str] = []
    i = at - 1
    while i >= 0 and re.match(r"\s*!(?! ----)", lines[i]):
        above.insert(0, re.sub(r"^\s*! ?", "", lines[i]))
        i -= 1
    statement = [lines[at].strip()]
    while statement[-1].endswith("&"):
        at += 1
        statement.append("    " + lines[at].strip())
    whole = " ".join(part.rstrip("&").strip() for part in statement)
    called = re.search(r"\(([^()]*)\)", whole)
    names = {n.strip().lower() for n in called[1].split(",")} if called else set()
    if result := re.search(r"result\((\w+)\)", whole):
        names.add(result[1].lower())
    declared = []
    for line in lines[at + 1 :]:
        found = re.match(r"\s*([^!]*?)::\s*(.*)$", line)
        if not found:
            break
        if {re.match(r"\w*", n.strip())[0].lower() for n in re.split(r",(?![^()]*\))", found[2])} & names:  # type: ignore[index]
            declared.append("  " + line.strip())
    return "\n".join([*statement, *declared]), above


def fortran_page(path: Path) -> str:
    text = path.read_text("utf-8")
    lines = text.split("\n")
    module = re.search(r"^module (\w+)", text, re.MULTILINE)
    assert module is not None
    head = [re.sub(r"^! ?", "", line) for line in text[: module.start()].strip("\n").split("\n")]
    out = [f"# Module `{module[1]}`\n", _head_of(head) + "\n"]
    listed = " ".join(re.findall(r"^  public :: ((?:.*&\n)*.*)$", text, re.MULTILINE)).replace("&", " ")
    public = list(dict.fromkeys(re.findall(r"\w+", listed)))
    types = list(
        re.finditer(r"((?:^  !.*\n)*)^  type, public :: (\w+)\n((?:.*\n)*?)  end type", text, re.MULTILINE)
    )
    if types:
        out.append("## Types\n")
    for found in types:
        shown = re.sub(r"^  ", "", found[0][len(found[1]) :], flags=re.MULTILINE)
        out += [f"### `{found[2]}`\n", prose([re.sub(r"^  ! ?", "", x) for x in found[1].split("\n")]) + "\n"]
        out.append(f"```fortran\n{shown}\n```\n")
    constants = re.findall(
        r"((?:^  !.*\n)*)(^  integer, parameter, public ::(?:.*&\n)*.*\n)", text, re.MULTILINE
    )
    if constants:
        out.append("## Constants\n")
    for said, statement in constants:
        out.append(prose([re.sub(r"^  ! ?", "", x) for x in said.split("\n")]) + "\n")
        out.append("```fortran\n" + re.sub(r"^  ", "", statement, flags=re.MULTILINE) + "```\n")
    out.append("## Procedures\n")
    for name in public:
        generic = re.search(
            rf"((?:^  !.*\n)*)^  interface {name}\n\s*module procedure ((?:.*&\n)*.*)", text, re.MULTILINE
        )
        out.append(f"### `{name}`\n")
        if generic and generic[1]:  # the comment above says how it is called
            out.append(
                "```text\n" + re.sub(r"^  ! ?", "", generic[1], flags=re.MULTILINE).strip() + "\n```\n"
            )
            continue
        wanted = re.findall(r"\w+", generic[2]) if generic else [name]
        for each in wanted:
            at = next(
                (
                    i
                    for i, line in enumerate(lines)
                    if re.match(rf"\s*(?:subroutine|function) {each}\b", line)
                ),
                None,
            )
            if at is None:
                continue
            shown, above = _signature(lines, at)
            out.append(f"```fortran\n{shown}\n```\n")
            if above:
                out.append(prose(above) + "\n")
    return "\n".join(out)


def _head_of(lines: list[str]) -> str:
    """The comment in front of a module: paragraphs that are indented are code or tables, and stay as they are."""
    out = []
    for paragraph in re.split(r"\n{2,}", "\n".join(lines)):
        indented = paragraph.startswith("  ")
        out.append(
            f"```text\n{inspect.cleandoc(paragraph)}\n```" if indented else prose(paragraph.split("\n"))
        )
    return "\n\n".join(out)


def c_pages() -> Iterator[tuple[str, str]]:
    lines = ["# C, C++ and Fortran\n"]
    lines.append(
        "These pages are made from the comments and declarations of the installed headers and modules.\n"
    )
    lines.append("| C | |\n|---|---|")
    for name, title in HEADERS.items():
        lines.append(f"| [`twinrun/{name}`]({Path(name).stem}-h.md) | {title} |")
    lines.append("\n| Fortran | |\n|---|---|")
    lines.append("| [`use twinrun`](twinrun-f90.md) | Capture, restore, compare |")
    lines.append("| [`use twinrun_mpi`](twinrun_mpi-f90.md) | Runs of MPI programs |")
    lines.append("\n| C++ | |\n|---|---|")
    for name, title in {
        "twinrun.hpp": "Capture, restore, settings, with owners, types and exceptions",
        "compare.hpp": "Compare",
        "kokkos.hpp": "Views of Kokkos",
    }.items():
        lines.append(f"| [`twinrun/{name}`](../../../include/twinrun/{name}) | {title} |")
    lines.append(
        "\nC++ headers stand on those of C, and are shown as they are: what a call does is said on the page for C.\n"
    )
    yield "reference/c/index.md", "\n".join(lines)
    for name, title in HEADERS.items():
        yield f"reference/c/{Path(name).stem}-h.md", header_page(ROOT / "include/twinrun" / name, title)
    for name in ("twinrun", "twinrun_mpi"):
        yield f"reference/c/{name}-f90.md", fortran_page(ROOT / "fortran" / f"{name}.f90")


def pages() -> dict[str, str]:
    return dict([*cli_pages(), *python_pages(), *c_pages()])
