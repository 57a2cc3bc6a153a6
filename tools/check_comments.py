#!/usr/bin/env python3
"""usage: check_comments.py [FILE...]

Checks comments in src/, include/ and python/. A line that is only a comment has at most 100 columns. A
docstring has at most 110, as code has. A comment behind a declaration or statement does not break it into
several lines: it goes above. Prints each place; exit status 1 if there is one.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, CODE = 100, 110
FOLDERS = ("src", "include", "python")
SUFFIXES = (".cpp", ".hpp", ".h", ".cu", ".cuh", ".inc", ".py")
RAW = re.compile(r'(?:u8|u|U|L)?R"([^()\\ ]{0,16})\(')


def comment_column(line, until):
    """Where `//` begins in a line of C++, or None; and what ends a comment or raw string that goes on after it.

    until: what ends the one that goes on from the line before, or "".
    """
    at = 0
    if not until and "//" not in line and "/*" not in line and 'R"' not in line:
        return None, ""  # nearly all lines
    if until:
        end = line.find(until)
        if end < 0:
            return None, until
        at = end + len(until)
    while at < len(line):
        if line.startswith("//", at):
            return at, ""
        raw = RAW.match(line, at)
        begin, close = at, ""
        if line.startswith("/*", at):
            begin, close = at + 2, "*/"
        elif raw and not (at and (line[at - 1].isalnum() or line[at - 1] == "_")):
            begin, close = raw.end(), f'){raw[1]}"'
        if close:
            end = line.find(close, begin)
            if end < 0:
                return None, close
            at = end + len(close)
            continue
        separator = line[at] == "'" and at and line[at - 1].isalnum() and line[at + 1 : at + 2].isalnum()
        if line[at] in "\"'" and not separator:
            quote = line[at]
            at += 1
            while at < len(line) and line[at] != quote:
                at += 2 if line[at] == "\\" else 1
        at += 1
    return None, ""


def unclosed(code):
    """Brackets that are opened and not closed in this code; negative: closed and not opened."""
    plain = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", code)
    return sum(map(plain.count, "([")) - sum(map(plain.count, ")]"))


def goes_on(code):
    """Whether the next line belongs to the same statement, as far as the end of this line shows."""
    code = code.rstrip()
    if not code or code.lstrip().startswith(("#", "template", "//", "*", "/*")):
        return False
    return not code.endswith((";", "{", "}", ",", "(", "[", "\\", "*/")) and (
        not code.endswith(":") or code.endswith("::")
    )


def joined_length(parts):
    """Columns of a statement on one line."""
    text = parts[0].rstrip()
    for part in parts[1:]:
        text += part.strip() if text.endswith(("(", "[", "!")) else " " + part.strip()
    return len(text)


def check_cpp(text):
    """(line number, problem) of C or C++."""
    lines, code, until = text.split("\n"), [], ""
    for number, line in enumerate(lines, 1):
        within = bool(until)
        at, until = comment_column(line, until)
        code.append("" if within else line if at is None else line[:at])
        only_comment = not within and at is not None and not line[:at].strip()
        block = (
            within and until in ("", "*/") and not line.strip().startswith("R")
        ) or line.lstrip().startswith("/*")
        if (
            len(line) > WIDTH
            and (only_comment or (block and '"' not in line))
            and " " in line[:WIDTH].strip(" /*")
        ):
            yield number, f"the comment has {len(line)} columns, more than {WIDTH}"
        if only_comment or at is None or within or "NOLINT" in line:
            continue
        start = number - 1
        while start > 0 and goes_on(code[start - 1]) and comment_column(lines[start - 1], "")[0] is None:
            start -= 1
        ends = code[number - 1].rstrip().endswith((";", "{"))
        while start > 0 and ends and unclosed("".join(code[start:number])) < 0:
            start -= 1
        if start < number - 1 and ends and joined_length(code[start:number]) <= CODE:
            yield number, "the comment breaks its statement into several lines: write it above"


def docstrings(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                yield item.value


def check_python(text):
    """(line number, problem) of Python."""
    lines = text.split("\n")
    # What is looked for first, as most files have none of it: parsing them takes most of the time.
    if not any(
        len(line) > WIDTH or ("#" in line and before.rstrip().endswith("("))
        for before, line in zip(["", *lines], lines, strict=False)
    ):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        line = lines[row - 1]
        if not line[:column].strip():
            if len(line) > WIDTH and " " in line[:WIDTH].strip(" #"):
                yield row, f"the comment has {len(line)} columns, more than {WIDTH}"
        elif (
            1 < row < len(lines)
            and lines[row - 2].rstrip().endswith("(")
            and re.fullmatch(r"\s*\)+:?", lines[row])
            and not line[:column].rstrip().endswith(",")
            and len(lines[row - 2]) + len(line[:column].strip()) + len(lines[row].strip()) <= CODE
        ):
            yield row, "the comment breaks its statement into several lines: write it above"
    for node in docstrings(ast.parse(text)):
        for number in range(node.lineno, node.end_lineno + 1):
            if len(lines[number - 1]) > CODE:
                yield number, f"the docstring has {len(lines[number - 1])} columns, more than {CODE}"


def problems(path):
    """(line number, problem) of a file."""
    text = path.read_text(encoding="utf-8")
    yield from (check_python if path.suffix == ".py" else check_cpp)(text)


def files():
    """All files that are checked."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def main(arguments):
    wrong = 0
    for path in map(Path, arguments) if arguments else files():
        for number, problem in problems(path):
            print(
                f"{path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path}:{number}: {problem}"
            )
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
