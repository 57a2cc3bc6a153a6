"""Manual pages of all verbs, in the language of man(7), from the same commands and examples as `--help`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator

import click

from .help import EXAMPLES, GROUPS, examples_of, options_of, statuses_of

__all__ = ["is_page", "pages"]

# The last line, a comment of roff: a digest of what is above it tells that twinrun wrote the page.
_MARK = '.\\" twinrun manual '


def _escaped(text: str) -> str:
    """Text that no macro and no escape of roff is in: a line must not begin with a dot or an apostrophe."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def _marked(lines: list[str]) -> str:
    text = "\n".join(lines) + "\n"
    return f"{text}{_MARK}{hashlib.sha256(text.encode()).hexdigest()}\n"


def is_page(content: bytes) -> bool:
    """Whether this is a page that `pages` made, of any version, and nobody changed since."""
    text, mark, digest = content.rpartition(_MARK.encode())
    return bool(mark) and digest == f"{hashlib.sha256(text).hexdigest()}\n".encode()


def _heading(words: str, version: str, short: str) -> list[str]:
    name = words.replace(" ", "-")
    return [
        f'.TH "{_escaped(name.upper())}" 1 "" "twinrun {_escaped(version)}" "twinrun"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(short.rstrip('.'))}",
    ]


def _listed(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f".SH {_escaped(title.upper())}"
    for term, said in rows:
        yield from (".TP", f".B {_escaped(term)}", _escaped(said) if said else "\\&")


def _examples(rows: list[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield ".SH EXAMPLES"
    for line, said in rows:
        if said:
            yield from (".PP", _escaped(said[0].upper() + said[1:] + ":"))
        yield from (".PP", ".nf", ".RS", _escaped(line), ".RE", ".fi")


def _page(command: click.Command, ctx: click.Context, version: str) -> str:
    words = ctx.command_path
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    lines = _heading(words, version, GROUPS_OF.get(words.split()[-1], command.get_short_help_str(1000)))
    formatter = click.HelpFormatter(width=1000)
    command.format_usage(ctx, formatter)
    lines += [".SH SYNOPSIS"]
    for line in formatter.getvalue().splitlines():
        usage = line.removeprefix("Usage: ").strip().removeprefix(words)
        lines += [f".B {_escaped(words)}", _escaped(usage.strip()), ".br"]
    lines.append(".SH DESCRIPTION")
    for paragraph in text.split("\n\n"):
        lines += [".PP", _escaped(" ".join(paragraph.split()))]
    if isinstance(command, click.Group):
        verbs = [
            (n, c) for n in command.list_commands(ctx) if (c := command.get_command(ctx, n)) and not c.hidden
        ]
        lines += _listed("commands", [(n, c.get_short_help_str(1000)) for n, c in verbs])
    for title, records in options_of(command, ctx):
        lines += _listed(title, records)
    lines += _examples(examples_of(ctx))
    lines += _listed("exit status", statuses_of(ctx))
    lines += [".SH SEE ALSO", ".BR twinrun (1)"]
    return _marked(lines)


GROUPS_OF = {name: said for verbs in GROUPS.values() for name, said in verbs.items()}


def _all(command: click.Command, ctx: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            if found is not None and not found.hidden:
                yield from _all(found, click.Context(found, parent=ctx, info_name=name))


def pages(root: click.Context, version: str) -> dict[str, str]:
    """The pages by the names of their files: twinrun.1, twinrun-compare.1, ..."""
    found = {}
    for command, ctx in _all(root.command, root):
        if ctx is root:
            continue
        found[ctx.command_path.replace(" ", "-") + ".1"] = _page(command, ctx, version)
    lines = _heading("twinrun", version, inspect.cleandoc(root.command.help or ""))
    lines += [".SH SYNOPSIS", ".B twinrun", "VERB [OPTIONS] ...", ".SH DESCRIPTION"]
    lines += ["Each verb has a page of its own, as", ".BR twinrun\\-compare (1)."]
    for title, verbs in GROUPS.items():
        lines += _listed(title, list(verbs.items()))
    lines += _examples(EXAMPLES[""])
    found["twinrun.1"] = _marked(lines)
    return found
