"""Checks the English of the docs: usage: docs_english.py [-v] [PAGE...]

Without pages: all of docs/ and spec/, the pages of the root (CHANGELOG.md, CONTRIBUTING.md, …), and every README.md.

A page has at most 20 words a sentence on average, and no sentence of more than 35. Rules of style stand in
tools/style/*.yml, in the form of Vale's (`existence` and `substitution`). tools/style/exempt.txt names pages
that are not checked yet. Blocks of code, tables and headings are no sentences and are not looked at; code
within a sentence counts as one word.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Folders whose README.md are checked; others (build, environments) hold what other projects wrote.
ROOMS = ("apps", "bench", "examples", "packaging", "python", "src", "tests")
STYLE = ROOT / "tools/style"
AVERAGE = 20
LONGEST = 35
_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|et al|vs|cf|No|Fig|Figs|approx|resp|St|Dr)\.$")
_END = re.compile(r"[.?!…][\"')\]*_]*\s+(?=[\"'(\[*_]*(?:[A-Z0-9|+\-]|twinrun\b|minihacc\b|[ivx]+\)))")


@dataclass(frozen=True)
class Sentence:
    text: str
    line: int

    @property
    def words(self) -> int:
        return sum(1 for word in self.text.split() if re.search(r"\w", word))


def _plain(text: str) -> str:
    """What a reader reads: no marks, and code as one word."""
    text = re.sub(r"(`+)(.+?)\1", "Code", text)
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)(?:\{[^}]*\})?", r"\1", text)
    text = re.sub(r"<[^>\n]+>", " ", text)
    return text.replace("**", "").replace("\\", "")


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, each with its first line."""
    held: list[str] = []
    first = 0
    fence = ""
    comment = False
    for number, line in enumerate([*page.split("\n"), ""], 1):
        stripped = line.strip()
        if comment or stripped.startswith("<!--"):
            comment = "-->" not in line
            line = stripped = ""
        mark = re.match(r"(```+|~~~+)", stripped)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = ""
            continue
        if mark:
            fence = mark[1]
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        indented = stripped.startswith((":::", "!!!")) or (line[:4] == "    " and not held)
        ends = not stripped or mark or item or stripped[0] in "#|" or indented
        if (
            stripped[:1] == "|" and held and not re.search(r"\|\s*$", stripped)
        ):  # |a - b| at the beginning of a line
            ends = False
        if ends:
            if held:
                yield first, " ".join(held)
            held = []
        if item:
            held, first = [line[item.end() :].strip()], number
        elif stripped and not ends:
            if not held:
                first = number
            held.append(stripped)


def sentences(page: str) -> list[Sentence]:
    found = []
    for line, text in paragraphs(page):
        plain = _plain(text)
        start = 0
        for end in _END.finditer(plain):
            if _ABBREVIATIONS.search(plain[start : end.start() + 1]):
                continue
            found.append(Sentence(plain[start : end.end()].strip(), line))
            start = end.end()
        if plain[start:].strip():
            found.append(Sentence(plain[start:].strip(), line))
    return [sentence for sentence in found if sentence.words > 0]


def rules() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text("utf-8")) for path in sorted(STYLE.glob("*.yml"))]


def against_style(sentence: Sentence, style: list[dict[str, Any]]) -> Iterator[str]:
    for rule in style:
        flags = re.IGNORECASE if rule.get("ignorecase") else 0
        opening = "^" if rule.get("scope") == "sentence" else ""
        if rule["extends"] == "existence":
            for token in rule["tokens"]:
                if found := re.search(rf"{opening}\b(?:{token})\b", sentence.text, flags):
                    yield rule["message"] % found[0]
        else:
            for token, better in rule["swap"].items():
                if found := re.search(rf"\b(?:{token})\b", sentence.text, flags):
                    yield rule["message"] % (better, found[0])


def all_pages() -> list[Path]:
    """What is checked where no page is named, but for what is exempt."""
    beside = [*ROOT.glob("*.md"), *(ROOT / "spec").rglob("*.md")]
    readmes = [page for room in ROOMS for page in (ROOT / room).rglob("README.md")]
    return sorted({*DOCS.rglob("*.md"), *beside, *readmes})


def name_of(page: Path) -> str:
    """A page as exempt.txt names it: by its path in docs/, or in the repository."""
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def exempt() -> dict[str, str]:
    """Pages that are not checked, and why."""
    lines = (
        line.partition("#")[0].strip() for line in (STYLE / "exempt.txt").read_text("utf-8").splitlines()
    )
    return dict(line.split(None, 1) for line in lines if line)  # type: ignore[misc]


def check(page: str, style: list[dict[str, Any]]) -> tuple[list[str], float]:
    """What is wrong with a page's sentences, as "LINE: ...", and their words on average."""
    found = sentences(page)
    wrong = []
    for sentence in found:
        if sentence.words > LONGEST:
            wrong.append(f"{sentence.line}: {sentence.words} words, more than {LONGEST}: {sentence.text}")
        wrong += [f"{sentence.line}: {said}: {sentence.text}" for said in against_style(sentence, style)]
    average = sum(s.words for s in found) / len(found) if found else 0.0
    if average > AVERAGE:
        wrong.append(f"1: {average:.1f} words a sentence on average, more than {AVERAGE}")
    return wrong, average


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the average of each page")
    given = parser.parse_args(arguments)
    skipped = exempt()
    pages = given.pages or [page for page in all_pages() if name_of(page) not in skipped]
    style = rules()
    count = 0
    for path in pages:
        wrong, average = check(path.read_text("utf-8"), style)
        count += len(wrong)
        for each in wrong:
            print(f"{path.relative_to(ROOT) if path.is_absolute() else path}:{each}", file=sys.stderr)
        if given.verbose:
            print(f"{average:5.1f} words a sentence  {path}")
    if not given.pages:
        print(
            f"docs: English of {len(pages)} pages checked, {len(skipped)} exempt, {count} sentences to mend"
        )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
