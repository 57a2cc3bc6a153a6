"""Values of events that cannot be compared, though nothing is missing: a text stands in their place, as a
setting that is the same in every run. A comparison does not take them for values that agree.
"""

from __future__ import annotations

from .digest import digest_of_text
from .events import Traced

__all__ = [
    "BY_CHANCE",
    "CHANGED_BEFORE",
    "NOT_LOOKED_INTO",
    "OF_EACH_RANK",
    "OF_TYPE",
    "PART",
    "ROOM",
    "UNCALLED",
    "UNDER_WAY",
    "UNWRITTEN",
    "WRITTEN",
    "gap",
    "gap_value",
    "may_be_alone",
]

UNWRITTEN = "memory that nobody wrote"
UNDER_WAY = "what a collective gives: seen where it is used"
NOT_LOOKED_INTO = "an object that is not looked into"
CHANGED_BEFORE = "what the call changed before it was seen"
ROOM = "room that an operation works in"
# What stands for a module whose parameters had gradients, and whose calls no hook saw.
UNCALLED = "a module whose calls were not seen"
# How the problem of an iteration ends in which several threads were at work in modules at once.
BY_CHANCE = "Their order is by chance: forward and backward passes of this iteration are not compared"
# Between the ranks of one trace:
OF_EACH_RANK = "each rank has its own"
PART = "a part of a distributed tensor"

# How the name of a value ends of which the rest is memory that nobody wrote.
WRITTEN = "@written"
# And of the setting that says which type and shape memory has that nobody wrote at all.
OF_TYPE = "@type"

_TEXTS = {
    int(digest_of_text(text)): text
    for text in (UNWRITTEN, CHANGED_BEFORE, NOT_LOOKED_INTO, ROOM, UNCALLED, OF_EACH_RANK, PART)
}
_TEXTS[int(digest_of_text(repr(UNDER_WAY)))] = UNDER_WAY  # it is a value of Python


def gap_value(name: str, out: bool, why: str) -> Traced:
    """What an event has in place of such a value."""
    return Traced(name, out, "setting", "python", (), digest=int(digest_of_text(why)))


def gap(v: Traced) -> str:
    """Why there is nothing to compare in a value; '' for one that is compared."""
    return _TEXTS.get(v.digest, "") if v.role == "setting" and v.dtype == "python" else ""


def may_be_alone(why: str) -> bool:
    """Whether it is no difference where one run alone has it: traces of before do not have it."""
    return why in (NOT_LOOKED_INTO, ROOM, OF_EACH_RANK, PART)
