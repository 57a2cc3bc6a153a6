"""Comparisons of traces in words and as a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..words import counted, number

if TYPE_CHECKING:
    from .result import Origin, StructureDifference, TraceComparison, ValueDifference
    from .site import Site

__all__ = [
    "IN_VALUE", "MOST_STRUCTURE", "compared_text", "later_text", "origin_text", "qualified", "spans", "structure_lines", "structure_note", "structure_text",
    "trace_document", "trace_lines", "uncalled_note", "verdict_text",
]  # fmt: skip

IN_VALUE = " in value"  # how it ends that something agrees, where more than values differs
MOST_STRUCTURE = 1000  # differences beside values that are kept
_VOWELS = set("aeiou")
_CLAUSES = 2
_MOST_NAMES = 5
_ROLES = {"rng": "state of the generator", "state": "optimizer's state"}


def _at(index: list[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def _amount(v: ValueDifference) -> str:
    if v.a != v.b:
        return f"{v.a} against {v.b}"
    if v.elements is None:
        return v.a
    if not v.different:
        return f"{v.a}, kept data agree"
    said = f"{v.different} of {counted(v.elements, 'element')}"
    if v.whole is not None and v.offset is not None:
        said += f" of a part of {_at(v.whole)} that begins at {_at(v.offset)}"
    if v.max_abs_diff is not None:
        said += f", |a-b| up to {number(v.max_abs_diff)}"
    if v.max_ulp is not None:
        said += f", {v.max_ulp} ulp"
    if v.infinite:
        said += f", {v.infinite} of them NaN or infinite in one run or in both"
    if v.overflowing:
        said += f", {v.overflowing} of them farther apart than a float64 can say"
    if v.box and math.prod(high - low for low, high in v.box) < v.elements:
        said += f"; all within [{', '.join(f'{low}:{high}' for low, high in v.box)}]"
    if v.first_index is not None:
        said += f"; first at {_at(v.first_index)}: {v.first_a!r} against {v.first_b!r}"
    if v.max_index is not None and v.max_index != v.first_index:
        said += f"; largest at {_at(v.max_index)}: {v.max_a!r} against {v.max_b!r}"
    return said


def value_text(v: ValueDifference) -> str:
    """A value that differs, and by how much."""
    role = "" if v.role == "value" else f" ({_ROLES.get(v.role, v.role)})"
    return f"{v.name}{role}: {_amount(v)}"


def _names(values: list[ValueDifference]) -> str:
    names = [v.name for v in values[:3]]
    return ", ".join(names) + (f" and {len(values) - 3} more" if len(values) > 3 else "")


def compared_text(what: str, agree: int, left: int, why: str) -> str:
    """Whether all inputs (or outputs) agree, of which none differs; '' where there are none."""
    if not left:
        return f"{what} agree" if agree else ""
    few = f"{agree} agree{'s' if agree == 1 else ''} and {left} {'was' if left == 1 else 'were'} not compared"
    return f"of its {what}, {few} ({why})"


def structure_text(d: StructureDifference) -> str:
    """What differs beside a value."""
    if d.role == "operation":
        other = "(a tensor, or not given)"
        return f"its {d.what} is {d.a or other} in a and {d.b or other} in b"
    if d.role == "module":
        return f"its {d.what} is {d.a or '(no plain value)'} in a and {d.b or '(no plain value)'} in b"
    name = f"parameter {d.name}" if d.role == "parameter" else d.name
    if d.what == "class":
        kinds = [f"{'an' if one[:1].lower() in _VOWELS else 'a'} {one}" if one else "" for one in (d.a, d.b)]
        if not all(kinds):  # a plain value in the other run, or none
            return (
                f"{name} is {kinds[0]} in a and not in b"
                if kinds[0]
                else f"{name} is {kinds[1]} in b and not in a"
            )
        return f"{name} is {kinds[0]} in a and {kinds[1]} in b"
    if d.what == "keys":
        if sorted(d.a.split(", ")) == sorted(d.b.split(", ")):
            return f"{name} has its keys in another order: {d.a} in a and {d.b} in b"
        return (
            f"{name} has the keys {d.a or '(one text, or none)'} in a and {d.b or '(one text, or none)'} in b"
        )
    if d.what == "attributes":
        return f"{name} has the attributes {d.a or '(no more)'} in a and {d.b or '(no more)'} in b"
    if d.what == "strides":
        strides = [f"has strides {one}" if one else "is row-major" for one in (d.a, d.b)]
        return f"{name} {strides[0]} in a and {strides[1]} in b"
    if d.what == "same":
        same = [f"the same tensor as {one}" if one else "one of its own" for one in (d.a, d.b)]
        return f"{name} is {same[0]} in a and {same[1]} in b"
    return f"{name} has {d.what} {d.a or '(none)'} in a and {d.b or '(none)'} in b"


def _placed(d: StructureDifference, here: Site | None) -> str:
    return str(d) if here is None or d.site == here else f"{d} at {d.site}"


def _clauses(structure: list[StructureDifference], here: Site | None) -> str:
    """Some differences, with the places of those that are elsewhere."""
    shown = [_placed(d, here) for d in structure[:_CLAUSES]]
    more = len(structure) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def qualified(said: str, structure: list[StructureDifference], here: Site | None = None) -> str:
    """What is said of values that agree, with what differs beside them."""
    if not structure:
        return said
    joined = f"{IN_VALUE}, but " if said.endswith(("agree", "agrees")) else "; "
    return f"{said}{joined}{_clauses(structure, here)}"


def structure_lines(o: Origin) -> list[str]:
    """What differs beside the values that a place takes, each with its place where that is another one."""
    return [_placed(d, o.site) for d in o.structure]


def structure_note(structure: list[StructureDifference]) -> str:
    """That something differs beside values that agree."""
    first = structure[0]
    least = "at least " if len(structure) == MOST_STRUCTURE else ""
    more = f", and {least}{len(structure) - 1} more" if len(structure) > 1 else ""
    return f"beside the values something differs, first at {first.site}: {first}{more}"


def uncalled_note(modules: list[str]) -> str:
    """That calls of modules were not seen, though there were gradients."""
    names = ", ".join(m or "the model" for m in modules[:_MOST_NAMES])
    more = f" and {len(modules) - _MOST_NAMES} more" if len(modules) > _MOST_NAMES else ""
    return (
        f"not compared: what goes into {names}{more} and comes out. No call was seen, though there were gradients: "
        "compiled code ran in its place, its parameters are used elsewhere, or it came into the model while that ran"
    )


def later_text(later: list[Origin]) -> str:
    """What is said of places after the first one."""
    if any(o.inputs_not_compared or o.structure for o in later):
        return "later, where outputs differ and no input that was compared does"
    return "later, where inputs agree again and outputs differ"


def origin_text(o: Origin) -> str:
    """Where a difference enters, as one sentence."""
    rank = f"rank {o.rank}, " if o.rank or o.names_rank else ""
    where = f"{rank}{o.site}" + (f" ({o.kind})" if o.kind else "")
    if o.calls:
        where += f", call {o.call} of {o.calls}"

    before = qualified("everything before agrees", o.structure, o.site) + (";" if o.structure else ",")
    draws = False  # whether its own generator is what differs
    if o.reason == "operation":
        inputs = compared_text("inputs", o.inputs_agree, o.inputs_not_compared, o.not_compared)
        if draws := o.generator == str(o.site):
            agrees = (
                qualified(inputs, o.structure, o.site) + ("; " if o.structure else ", but ") if inputs else ""
            )
            before = f"{agrees}the state of its random number generator differs;"
        elif inputs:
            before = qualified(inputs, o.structure, o.site) + (";" if o.structure else ",")
        said = f"{before} outputs differ: {_names(o.values)}"
        if any(v.elements is not None for v in o.values):
            said += f": {_amount(next(v for v in o.values if v.elements is not None))}"
    elif o.reason == "input":
        roles = {v.role for v in o.values}
        if roles <= {"value"} and o.site.phase == "forward":
            inside = "the own code of " + o.module if o.module else "the code around it"
            if not o.site.module and o.site.operation == "forward" and o._within:
                said = f"{before} its input differs: {_names(o.values)}; made by the own code of the model"
            elif not o.site.module and o.site.operation == "forward":
                said = f"what the model is given differs: {_names(o.values)}"
            else:
                said = f"{before} its input differs: {_names(o.values)}; made by {inside}"
        elif arguments := [d for d in o.structure if d.role == "operation" and d.site == o.site]:
            rest = [d for d in o.structure if d not in arguments]
            agrees = qualified("everything before agrees", rest, o.site) + (";" if rest else ", and")
            said = f"{agrees} what it takes differs: {_clauses(arguments, o.site)}"
        else:
            said = (
                f"{before} {'' if o.structure else 'and '}what it takes differs: "
                f"{', '.join(sorted(_ROLES.get(r, r) for r in roles))} {_names(o.values)}"
            )
    elif o.reason == "unknown":
        what = "outputs differ" if any(v.out for v in o.values) else "its input differs"
        said = f"{what}: {_names(o.values)}; it is not known where this comes from, because of {o.unknown}"
    elif o.reason == "unmatched":
        said = f"only in {o.only_in}: the other run does something else here"
        if o.structure:
            said += f"; {before.rstrip(';')}"
    else:
        said = f"no value differs; the state of a random number generator does: {_names(o.values)}"
    if o.generator and not draws:
        said += f" (the state of a random number generator differs since {o.generator})"
    return one_line(f"{where}: {said}")


def spans(numbers: Sequence[int]) -> str:
    """Iterations in words: '0 to 4, 7'."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    said = [str(low) if low == high else f"{low} to {high}" for low, high in found[:10]]
    if len(found) > 10:  # where they end is always told
        low, high = found[-1]
        said[-1] = f"…, {low if low == high else f'{low} to {high}'}"
    return ", ".join(said)


def _compared(result: TraceComparison) -> str:
    said = spans(result.iterations)
    return f"iteration{'' if len(result.iterations) == 1 else 's'} {said}"


def verdict_text(result: TraceComparison) -> str:
    """The last line of a report."""
    first = result.first_divergence
    if result.verdict == "same":
        beside = len(result.structure)
        least = "at least " if beside == MOST_STRUCTURE else ""
        return (
            f"same: {counted(result.values, 'value')} of {counted(result.events, 'event')} in {_compared(result)} "
            "agree bit by bit"
            + (
                f"; beside them {least}{counted(beside, 'fact')} differ{'s' if beside == 1 else ''}"
                if beside
                else ""
            )
        )
    if first is not None:
        return f"{result.verdict}: first at {first}"
    if result.verdict == "different":
        return f"different: in fields beside the trace: {result.beside}"
    return f"incomparable: {result.problems[0] if result.problems else 'something was not compared'}"


def trace_lines(result: TraceComparison, verbose: bool = False) -> list[str]:
    """A report of a comparison; the verdict comes last."""
    lines = [f"twinrun: {one_line(n)}" for n in result.notes]
    if result.replicas:
        rest = ", ".join(map(str, result.replicas[1:]))
        lines.append(
            f"rank {result.replicas[0]} is a, and is compared with rank {rest}: what all must hold alike"
        )
    for c in result.conditions or []:
        lines.append(one_line(f"condition {c.group}.{c.name}: {c.a} | {c.b}"))
    lines.append(
        f"{counted(result.events, 'event')} matched, {counted(result.values, 'value')} compared: "
        f"{result.different_values} differ, {result.unmatched} unmatched"
    )
    first = result.first_divergence
    if first is not None:
        lines.append("")
        lines.append("around the first divergence, in the order of execution:")
        marks = {
            "inputs differ": ">",
            "outputs differ": "x",
            "only in a": "-",
            "only in b": "+",
            "not known": "?",
        }
        for near in result.around:
            lines.append(one_line(f"  {marks.get(near.state, ' ')} {near.site}: {near.text}"))
        lines.append("")
        at = len(lines)
        if first.signature:
            lines.append(f"  operation: {first.signature}")
        shown_values = first.values[: None if verbose else 10]
        lines.extend(f"  {value_text(v)}" for v in shown_values)
        if len(first.values) > len(shown_values):
            lines.append(f"  and {len(first.values) - len(shown_values)} more")
        beside = structure_lines(first)
        lines.extend(f"  {said}" for said in beside[: None if verbose else 10])
        if len(beside) > 10 and not verbose:
            lines.append(f"  and {len(beside) - 10} more")
        if first.module != first.site.module:
            lines.append(f"  made by: {first.module or 'the code around the model'}")
        if len(lines) > at:
            lines.insert(at, f"what differs at {first.site}:")
        others = [o for rank, o in result.firsts.items() if o is not first]
        lines.extend(f"first of another rank: {o}" for o in others)
        later = [o for o in result.origins if o is not first and o not in others]
        if later:
            shown = later if verbose else later[:5]
            lines.append("")
            lines.append(f"{later_text(later)}:")
            lines.extend(f"  {o}" for o in shown)
            if len(later) > len(shown):
                lines.append(f"  and {len(later) - len(shown)} more")
    problems = result.problems if verbose else result.problems[:5]
    if problems:
        lines.append("")
        lines.extend(one_line(f"problem: {p}") for p in problems)
        if len(result.problems) > len(problems):
            lines.append(f"problem: and {len(result.problems) - len(problems)} more")
    return [*map(one_line, lines), "", one_line(verdict_text(result))]


def _plain(value: object) -> object:
    if isinstance(value, complex):
        return [value.real, value.imag]
    return value


def _value(v: ValueDifference) -> dict[str, Any]:
    return {
        "name": v.name, "role": v.role, "out": v.out, "a": v.a, "b": v.b, "elements": v.elements,
        "different": v.different, "max_abs_diff": v.max_abs_diff, "max_ulp": v.max_ulp,
        "first_index": v.first_index, "first_a": _plain(v.first_a), "first_b": _plain(v.first_b),
        "max_index": v.max_index, "max_a": _plain(v.max_a), "max_b": _plain(v.max_b),
        "box": v.box, "infinite": v.infinite, "overflowing": v.overflowing, "whole": v.whole, "offset": v.offset,
    }  # fmt: skip


def _structure(d: StructureDifference) -> dict[str, Any]:
    return {**d._asdict(), "site": d.site._asdict(), "text": str(d)}


def _origin(o: Origin | None) -> dict[str, Any] | None:
    if o is None:
        return None
    return {
        "rank": o.rank, **o.site._asdict(), "reason": o.reason, "named_module": o.module, "kind": o.kind,
        "number": o.number, "call": o.call, "calls": o.calls, "generator": o.generator, "only_in": o.only_in, "unknown": o.unknown, "signature": o.signature,
        "inputs_agree": o.inputs_agree, "inputs_not_compared": o.inputs_not_compared, "not_compared": o.not_compared, "values": [_value(v) for v in o.values],
        "structure": [_structure(d) for d in o.structure],
        "text": str(o),
    }  # fmt: skip


def trace_document(result: TraceComparison) -> dict[str, Any]:
    """All facts of a comparison, for JSON."""
    return {
        "kind": "traces",
        "a": result.a,
        "b": result.b,
        "replicas": list(result.replicas),
        "verdict": result.verdict,
        "text": verdict_text(result),
        "first_divergence": _origin(result.first_divergence),
        "firsts": {str(rank): _origin(o) for rank, o in result.firsts.items()},
        "origins": [_origin(o) for o in result.origins],
        "around": [
            {
                **n.site._asdict(),
                "state": n.state,
                "text": n.text,
                "inputs_agree": n.inputs_agree,
                "inputs_not_compared": n.inputs_not_compared,
                "not_compared": n.not_compared,
                "structure": [_structure(d) for d in n.structure],
                "values": [
                    {**p._asdict(), "producer": None if p.producer is None else p.producer._asdict()}
                    for p in n.values
                ],
            }
            for n in result.around
        ],
        "events": result.events,
        "values": result.values,
        "iterations": result.iterations,
        "different_values": result.different_values,
        "unmatched": result.unmatched,
        "by_module": [
            {"iteration": i, "module": m, "values": n, "different": d}
            for (i, m), (n, d) in result.by_module.items()
        ],
        "structure": [_structure(d) for d in result.structure],
        "problems": result.problems,
        "notes": result.notes,
        "conditions": None
        if result.conditions is None
        else [{"group": c.group, "name": c.name, "a": c.a, "b": c.b} for c in result.conditions],
        "seconds": result.seconds,
    }
