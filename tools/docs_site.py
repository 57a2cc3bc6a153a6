"""Hooks of MkDocs for the docs site: pages that are made from sources, and links that leave docs/.

`make docs` builds the site (mkdocs.yml). Nothing is fetched: pages of the reference are made here by
`docs_reference`. Files of the repository that pages link to (the specification, examples, headers) are
shown inside the site, under repo/, so that every link can be checked.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import docs_reference

ROOT = docs_reference.ROOT
SHOWN = docs_reference.REPOSITORY
_LINK = re.compile(r"(\]\(|<img src=\")([^)\s\"]+)(?=[)\"\s])")
_LANGUAGES = {
    ".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".f90": "fortran", ".py": "python", ".toml": "toml",
    ".yml": "yaml", ".cff": "yaml", ".json": "json", ".sh": "bash", ".txt": "cmake",
}  # fmt: skip

# Of each page of the site that shows a file of the repository: which file that is.
_shown: dict[str, str] = {}


def place_of(path: str) -> str:
    """Where the site shows a file or folder of the repository."""
    return f"{SHOWN}/{path}" if path.endswith(".md") else f"{SHOWN}/{path}.md"


def without_code(text: str) -> str:
    """Markdown without its blocks of code, in which brackets are no links."""
    return re.sub(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def leaves(link: str, page: str) -> tuple[str, str] | None:
    """The file of the repository that a link of a page leads to, and its anchor; None: it stays, or leads to the web."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return None
    name, _, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
    if target.startswith("docs/") or not (ROOT / target).exists():
        return None
    return target, anchor


def _page_of(target: str) -> str:
    path = ROOT / target
    if path.is_dir():
        if (path / "README.md").exists():
            return f"{target}/README.md"
        return target
    return target


def rewritten(text: str, page: str, shown_at: str) -> str:
    """A page's text, its links out of docs/ leading to the pages that show those files.

    page: the file of the repository that the text is. shown_at: its place in the site.
    """

    def link(found: re.Match[str]) -> str:
        name, _, anchor = found[2].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
        if "://" in found[2] or not name or found[2].startswith("mailto:"):
            return found[0]
        if target.startswith("docs/"):
            place = target.removeprefix("docs/")
        elif (ROOT / target).exists():
            place = place_of(_page_of(target))
        else:
            return found[0]
        return f"{found[1]}{posixpath.relpath(place, posixpath.dirname(shown_at) or '.')}{'#' + anchor if anchor else ''}"

    parts = re.split(r"(^ *```.*?^ *```+ *$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(link, part) for part in parts)


def _content(target: str) -> str:
    """The page that shows a file or folder of the repository."""
    path = ROOT / target
    if path.is_dir():
        names = sorted(
            p.name + ("/" if p.is_dir() else "") for p in path.iterdir() if not p.name.startswith(".")
        )
        return (
            f"# {target}/\n\n"
            + "\n".join(f"- [{name}]({path.name}/{name.rstrip('/')})" for name in names)
            + "\n"
        )
    text = path.read_text("utf-8")
    if target.endswith(".md"):
        return text
    return f"# {target}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def repository_pages(pages: dict[str, str]) -> dict[str, str]:
    """The files of the repository that pages lead to, and those that these lead to: their text, by file."""
    found: dict[str, str] = {}
    todo = list(pages.items())
    while todo:
        page, text = todo.pop()
        for _, link in _LINK.findall(without_code(text)):
            gone = leaves(link, page)
            if gone is None:
                continue
            target = _page_of(gone[0])
            if target in found:
                continue
            found[target] = _content(target)
            # The list of a folder leads to each of its files: what a reader then looks at.
            todo.append((target, found[target]))
    return found


def on_config(config: Any) -> Any:
    _shown.clear()
    return config


def on_files(files: Files, config: Any) -> Files:
    made = docs_reference.pages()
    pages = {
        f"docs/{f.src_uri}": Path(f.abs_src_path).read_text("utf-8") for f in files.documentation_pages()
    }
    pages |= {f"docs/{place}": text for place, text in made.items()}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for target, text in repository_pages(pages).items():
        place = place_of(target)
        _shown[place] = target
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    text = rewritten(markdown, _shown.get(place, f"docs/{place}"), place)
    # Python's Markdown wants an empty line in front of a list; GitHub does not.
    return re.sub(r"^((?![-*+ |>#\d]|\s*$)[^\n]*\n)(?=[-*] |\d+\. )", r"\1\n", text, flags=re.MULTILINE)
