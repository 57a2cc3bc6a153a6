"""HTML and SVG from templates: the one place where text becomes markup.

Templates hold the markup; they lie in the folder `templates` of the room that fills them. All that
a template prints is text: it is put on one line, without control characters, and escaped. So a name
from a file adds no element and no attribute, also where nobody thought of it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .errors import one_line

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["drawn", "environment", "render"]

_ROOMS = ("aggregate", "comparison", "report")  # those with templates
_LONGEST = 200  # characters of a cell


def _cut(value: object, longest: int = _LONGEST) -> str:
    """Text on one line, cut to `longest`."""
    return one_line(str(value), longest)


def _printed(value: object) -> object:
    """The text of a printed value, escaped; markup that a macro made stays unchanged."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return one_line(text, len(text))


@functools.cache
def environment() -> Environment:
    """The only environment of templates. `ROOM/NAME` names the file NAME in the templates of a room.

    Jinja2 is imported here: commands that write no page do not wait for it.
    """
    from jinja2 import Environment, PackageLoader, PrefixLoader, StrictUndefined

    made = Environment(
        loader=PrefixLoader({room: PackageLoader("twinrun", f"{room}/templates") for room in _ROOMS}),
        autoescape=True,
        finalize=_printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["cut"] = _cut
    return made


def render(template: str, **data: object) -> str:
    """The text of a template, filled with data."""
    return environment().get_template(template).render(data)


def drawn(svg: str) -> Markup:
    """A picture that a plotting library wrote as SVG, which is printed unchanged: the library
    escapes its texts.
    """
    from markupsafe import Markup

    return Markup(svg)
