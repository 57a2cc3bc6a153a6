"""A study from a command line: commands, parameters, and how often; no file is needed.

    words           what stands behind `--`: a command, or several with --vs between them
    study_text      the study.toml that it stands for

A command of one word is a line as one types it: it is split into words, or given to a shell where
one of the lines needs it. A command of several words is run unchanged. Braces are plain characters,
except {NAME} of a parameter.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from ...errors import TwinrunError
from .shown import SHELL_SIGNS, shown_command, shown_each, shown_line, shown_words

__all__ = ["VERSUS", "CommandLine", "commands_of", "scan", "shell_of", "study_text", "toml_of"]

VERSUS = "--vs"
# Words that only a shell knows, as the first of a line.
_BUILT_IN = re.compile(
    r"\s*(\.|:|alias|cd|eval|exec|exit|export|read|set|source|trap|ulimit|umask|unset|wait)(\s|$)"
)
_MOST_LEVELS = 1000


@dataclass(frozen=True)
class CommandLine:
    """The study that the options describe. names: of commands, in their order; prepare: one for
    all, or one for each command.
    """

    commands: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = ()
    parameters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    directory: str = ""
    shell: str = "auto"  # auto, none, or a program
    setup: str = ""
    prepare: tuple[str, ...] = ()
    cleanup: str = ""
    warmup: int = 1
    least: int = 10
    most: int = 1000
    precision: float = 0.02
    confidence: float = 0.95
    seconds: float = 60.0
    time_after: int = 10
    order: int = 1
    ignore_failure: bool = False


def commands_of(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The commands, --vs between them. Raises TwinrunError for an empty one, and for lines with
    words behind them.
    """
    found: list[tuple[str, ...]] = []
    for is_versus, group in itertools.groupby(words, key=lambda w: w == VERSUS):
        part = tuple(group)
        if is_versus:
            if len(part) > 1 or not found:
                raise TwinrunError(f"{VERSUS} stands between two commands")
            continue
        if not part[0].strip():
            raise TwinrunError("a command is empty")
        if len(part) > 1 and re.search(r"\s", part[0]):
            line, word = shown_each(part[:2])
            raise TwinrunError(
                f"{line!r:.60} is a whole command line, and {word!r:.60} follows it",
                fix=f"put {VERSUS} between commands, and options before --",
            )
        found.append(part)
    if found and words[-1] == VERSUS:
        raise TwinrunError(f"{VERSUS} stands between two commands, and none follows the last one")
    if not found:
        raise TwinrunError("there is no command", fix=f"write: twinrun ensemble -- 'cmd A' {VERSUS} 'cmd B'")
    return tuple(found)


def scan(name: str, low: str, high: str, step: str) -> list[str]:
    """The values from low to high. Raises TwinrunError where that are none, or too many."""
    try:
        first, last, by = Decimal(low), Decimal(high), Decimal(step)
        if not (first.is_finite() and last.is_finite() and by.is_finite()):
            raise InvalidOperation
    except InvalidOperation:
        raise TwinrunError(
            f"the scan of {name} needs numbers, not {low!r:.40}, {high!r:.40}, {step!r:.40}"
        ) from None
    if by <= 0 or last < first or (last - first) / by >= _MOST_LEVELS:
        raise TwinrunError(
            f"the scan of {name} from {low} to {high} by {step} has no values, or more than {_MOST_LEVELS}"
        )
    return [str(first + k * by) for k in range(int((last - first) / by) + 1)]


def shell_of(line: CommandLine) -> str:
    """The shell that runs the commands; empty where none does."""
    if line.shell != "auto":
        return "" if line.shell == "none" else line.shell
    texts = [command[0] for command in line.commands if len(command) == 1]
    for name in line.parameters:
        texts = [t.replace("{" + name + "}", "") for t in texts]
    return "/bin/sh" if any(SHELL_SIGNS.search(t) or _BUILT_IN.match(t) for t in texts) else ""


def _escaped(text: str, parameters: Mapping[str, Sequence[str]]) -> str:
    """A text as a template: all braces are braces, but those of parameters."""
    text = text.replace("{", "{{").replace("}", "}}")
    for name in parameters:
        text = text.replace("{{" + name + "}}", "{" + name + "}")
    return text


def toml_of(value: object) -> str:
    """A value as TOML. Raises TwinrunError for a text that is not UTF-8."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TwinrunError(f"{value!r:.80} is not UTF-8, which a study's file must be") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return repr(value)


def _names(line: CommandLine, texts: Sequence[str]) -> list[str]:
    """A name for each command, no two alike."""
    if line.names and len(line.names) != len(texts):
        raise TwinrunError(
            f"there are {len(texts)} commands and {len(line.names)} names",
            fix="give a --command-name for each",
        )
    found: list[str] = []
    for text in line.names or texts:
        name, number = text, 2
        while name in found:
            name, number = f"{text} ({number})", number + 1
        found.append(name)
    return found


def _check_words(line: CommandLine, shell: str) -> None:
    """Raises TwinrunError for a command that cannot be run by the shell, or without one."""
    for own in line.commands:
        if shell and len(own) > 1:
            raise TwinrunError(
                f"{shown_words(own)!r:.80} is given as words, and a shell takes one line",
                fix="quote it as one word, or give -N",
            )
        if not shell and len(own) == 1:
            try:
                shlex.split(own[0])
            except ValueError as e:
                raise TwinrunError(
                    f"{shown_line(own[0])!r:.80} cannot be split into words: {str(e).lower()}",
                    fix="close what is open, or give --shell sh",
                ) from None


def _head(line: CommandLine, name: str, shell: str) -> list[str]:
    """What holds for all commands."""
    rows = [f"name = {toml_of(name)}"] if name else []
    rows += [f"repetitions = {line.most}", f"warmup = {line.warmup}"]
    if shell:
        rows.append(f"shell = {toml_of(True if shell == '/bin/sh' else shell)}")
    if line.directory:
        rows.append(f"directory = {toml_of(_escaped(line.directory, {}))}")
    if line.setup:
        rows.append(f"setup = {_in_shell(line, shell, line.setup)}")
    if len(line.prepare) == 1:
        rows.append(f"prepare = {_in_shell(line, shell, line.prepare[0])}")
    if line.cleanup:
        rows.append(f"cleanup = {_in_shell(line, shell, line.cleanup)}")
    if line.ignore_failure:
        rows.append(f"success = {toml_of(list(range(256)))}")
    return rows


def _in_shell(line: CommandLine, shell: str, text: str) -> str:
    """The words that run a line of the user."""
    return toml_of([*shlex.split(shell or "/bin/sh"), "-c", _escaped(text, line.parameters)])


def _commands(line: CommandLine, names: Sequence[str], shell: str) -> list[str]:
    rows = []
    for number, (level, own) in enumerate(zip(names, line.commands, strict=True)):
        rows += ["", f"[commands.{toml_of(level)}]"]
        escaped = [_escaped(w, line.parameters) for w in own]
        rows.append(f"command = {toml_of(escaped[0] if len(own) == 1 else escaped)}")
        if len(line.prepare) > 1:
            rows.append(f"prepare = {_in_shell(line, shell, line.prepare[number])}")
    return rows


def _parameters(line: CommandLine) -> list[str]:
    rows = []
    used = [word for own in line.commands for word in own]
    used += [line.setup, line.cleanup, *line.prepare]
    for parameter, levels in line.parameters.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", parameter):
            raise TwinrunError(
                f"{parameter!r:.60} is not a name of a parameter", fix="use letters, digits, _ and -"
            )
        if not any("{" + parameter + "}" in text for text in used):
            raise TwinrunError(
                f"the parameter {parameter} changes nothing", fix=f"write {{{parameter}}} in a command"
            )
        # Without it, threads would be what the watcher verifies, and cores would be bound.
        rows += ["", f"[factors.{parameter}]", f"levels = {toml_of(list(levels))}", 'kind = "value"']
    return rows


def _end(line: CommandLine) -> list[str]:
    """The order of tasks, and when they are enough."""
    rows = ["", "[design]", f"order = {line.order}"]
    if line.most > line.least or line.seconds:
        rows += ["", "[stopping]", 'of = "ratios"', f"precision = {line.precision!r}", f"confidence = {line.confidence!r}",
                 f"least = {min(line.least, line.most)}", f"most = {line.most}"]  # fmt: skip
        if line.seconds:
            rows += [f"time = {line.seconds!r}", f"time_after = {line.time_after}"]
    return rows


def study_text(line: CommandLine, name: str = "") -> str:
    """The study.toml. Raises TwinrunError for options that contradict each other."""
    if len(line.prepare) not in (0, 1, len(line.commands)):
        raise TwinrunError(
            f"there are {len(line.commands)} commands and {len(line.prepare)} of --prepare",
            fix="give one, or one for each command",
        )
    shell = shell_of(line)
    _check_words(line, shell)
    texts = [shown_command(own) for own in line.commands]
    names = _names(line, texts)
    rows = [*_head(line, name, shell), *_commands(line, names, shell), *_parameters(line), *_end(line)]
    return "\n".join(rows) + "\n"
