"""The docstrings of the public interface: complete, and their examples run.

A complete docstring names every parameter with its type, every attribute of a result, and the errors that its code raises.
"""

import ast
import builtins
import doctest
import importlib
import inspect
import re
import textwrap

import numpy as np
import pytest

import twinrun
from twinrun import errors

pytest.importorskip("xarray")
pytest.importorskip("pandas")  # ensemble's names need the packages of analyses

ROOMS = ("", "acceptance", "golden", "formats", "ensemble", "noise", "xarray")
PLUGIN = "twinrun.pytest_plugin"
# Classes whose attributes are what a call found.
RESULTS = (
    "acceptance.result.Acceptance",
    "acceptance.result.Alarms",
    "acceptance.result.Excess",
    "acceptance.result.FieldAcceptance",
    "acceptance.copies.PerturbedCopy",
    "aggregate.plan.AggregationPlan",
    "aggregate.plan.Aggregator",
    "aggregate.plan.Partition",
    "aggregate.plan.PlacementPlan",
    "aggregate.plan.Place",
    "capture.records.CompactFacts",
    "capture.records.PackFacts",
    "capture.records.PackedStep",
    "capture.records.RecordOptions",
    "capture.facts.CaptureFacts",
    "capture.facts.Divergence",
    "comparison.attributes.AttributeDifference",
    "comparison.differences.Differences",
    "comparison.field.FieldComparison",
    "comparison.options.CompareOptions",
    "comparison.work.Comparison",
    "ensemble.analysis.findings.Findings",
    "ensemble.analysis.result.Analysis",
    "ensemble.analysis.result.Claim",
    "ensemble.analysis.result.Options",
    "ensemble.intervals.Interval",
    "ensemble.run.runner.Outcome",
    "formats.model.Extent",
    "formats.model.Field",
    "formats.model.FileContent",
    "formats.model.Format",
    "golden.GoldenCheck",
    "golden.GoldenElement",
    "golden.GoldenField",
    "golden.GoldenProblem",
    "golden.GoldenSpan",
    "golden.SaveFacts",
    "noise.Noise",
    "noise.Peak",
    "runs.index.IndexFacts",
    "runs.sketch.FieldSketchComparison",
    "runs.sketch.Sketch",
    "runs.sketch.SketchComparison",
    "runs.provenance.Difference",
    "runs.provenance.Provenance",
    "runs.verify.Verified",
)


def found(place):
    """The object of 'comparison.work.Comparison'."""
    module, _, name = f"twinrun.{place}".rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_objects():
    """(name, object) of all that a user may call: functions, classes, and the public methods of these."""
    objects = {}
    for room in ROOMS:
        module = importlib.import_module(f"twinrun.{room}".rstrip("."))
        objects[module.__name__] = module
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                objects.setdefault(f"{module.__name__}.{name}", value)
    plugin = importlib.import_module(PLUGIN)
    objects[f"{PLUGIN}.reproducible"] = plugin.reproducible
    single = importlib.import_module("twinrun.golden.single")
    for name in ("Reproducible", "NotReproduced"):
        objects[f"{single.__name__}.{name}"] = getattr(single, name)
    for place in RESULTS:
        value = found(place)
        if value not in objects.values():
            objects[f"twinrun.{place}"] = value
    for owner, value in list(objects.items()):
        if inspect.isclass(value):
            for name, member in vars(value).items():
                plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if not name.startswith("_") and inspect.isfunction(plain):
                    objects[f"{owner}.{name}"] = plain
    return objects


OBJECTS = public_objects()
CLASSES = {name: value for name, value in OBJECTS.items() if inspect.isclass(value)}


def sections(text):
    """{title: its text} of a docstring; '' has what comes before the first title."""
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", inspect.cleandoc(text), flags=re.M)
    assert len(set(parts[1::2])) == len(parts[1::2]), "a section comes twice"
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(text):
    """{name: (type, description)} of a section's entries, as `a, b : float`, and indented lines below."""
    told = {}
    for piece in re.split(r"^(?=\S)", text, flags=re.M):
        if piece.strip():
            head, _, body = piece.partition("\n")
            names, _, kind = head.partition(" : ")
            for name in names.split(","):
                told[name.strip().lstrip("*")] = (kind.strip(), textwrap.dedent(body).strip())
    return told


def lacking_parameters(function, text):
    """What is wrong with the section `Parameters`, a line each."""
    wanted = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls") and not p.name.startswith("_")
    ]
    told = entries(sections(text).get("Parameters", ""))
    problems = [f"parameter {name} is not described" for name in wanted if name not in told]
    problems += [f"there is no parameter {name}" for name in told if name not in wanted]
    problems += [f"parameter {name} has no type" for name, (kind, _) in told.items() if not kind]
    problems += [f"parameter {name} has no description" for name, (_, body) in told.items() if not body]
    return problems


def raised_by(function, direct=False, seen=None):
    """TwinrunErrors that leave a function: of its raise statements and, unless `direct`, of what it calls by a plain name,
    `self.name` or `cls.name`. What its own handlers catch does not leave it."""
    seen = set() if seen is None else seen
    if function in seen:
        return set()
    seen.add(function)
    names, owner = function.__globals__, owner_of(function)

    def known(node):
        """What a name, or an attribute of a module, stands for."""
        if isinstance(node, ast.Name):
            return names.get(node.id, vars(builtins).get(node.id))
        if isinstance(node, ast.Attribute) and inspect.ismodule(known(node.value)):
            return getattr(known(node.value), node.attr, None)
        return None

    def leaving(node):
        """Errors that leave a node of the syntax tree."""
        if isinstance(node, ast.Try):
            caught = tuple(
                known(n)
                for handler in node.handlers
                for n in ast.walk(handler.type or ast.Name("BaseException"))
                if inspect.isclass(known(n))
            )
            inside = {error for child in node.body for error in leaving(child)}
            others = (*node.handlers, *node.orelse, *node.finalbody)
            return {e for e in inside if not issubclass(e, caught)} | {e for n in others for e in leaving(n)}
        own = {error for child in ast.iter_child_nodes(node) for error in leaving(child)}
        if isinstance(node, ast.Raise) and node.exc is not None:
            named = [known(n) for n in ast.walk(node.exc)]
            own |= {value for value in named if is_error(value)}
        if isinstance(node, ast.Call) and not direct:
            called = called_by(node.func)
            if inspect.isfunction(called) and called.__module__.startswith("twinrun"):
                own |= raised_by(called, direct, seen)
        return own

    def called_by(node):
        """The function or method of a call, where it is known."""
        called = known(node)
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            called = getattr(owner, node.attr, None)
        return vars(called).get("__init__") if inspect.isclass(called) else called

    try:
        return leaving(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except OSError:  # made by dataclass
        return set()


def owner_of(function):
    """The class that a method is of, else None."""
    value = importlib.import_module(function.__module__)
    for part in function.__qualname__.split(".")[:-1]:
        value = getattr(value, part, None)
    return value if inspect.isclass(value) else None


def is_error(value):
    return inspect.isclass(value) and issubclass(value, errors.TwinrunError)


def lacking_errors(function, text):
    """What is wrong with the section `Raises`, a line each."""
    told = entries(sections(text).get("Raises", ""))
    problems = [f"{name} is no error" for name in told if not known_error(function, name)]
    problems += [f"{name}: it is not said when" for name, (_, body) in told.items() if not body]
    if inspect.isfunction(function):
        public = set(twinrun.__all__)
        if raised_by(function) and not told:
            problems.append("it raises TwinrunErrors and has no section Raises")
        own = {error.__name__ for error in raised_by(function, direct=True)}
        problems += [f"{name} is raised and not described" for name in sorted(own & public - set(told))]
    return problems


def known_error(function, name):
    for place in (getattr(function, "__globals__", {}), vars(errors), vars(twinrun), vars(builtins)):
        value = place.get(name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            return True
    return name in twinrun.__all__ or name == "NotReproduced"


def attributes(kind):
    """Public attributes: fields and properties."""
    named = {name for cls in kind.__mro__[:-1] for name in getattr(cls, "__annotations__", {})}
    named |= {
        name
        for cls in kind.__mro__
        if cls.__module__.startswith("twinrun")
        for name, value in vars(cls).items()
        if isinstance(value, property)
    }
    return sorted(name for name in named if not name.startswith("_"))


def lacking_attributes(kind, text):
    """What is wrong with the section `Attributes`, a line each."""
    told = entries(sections(text).get("Attributes", ""))
    known = attributes(kind)
    problems = [f"attribute {name} is not described" for name in known if name not in told]
    problems += [f"attribute {name} has no type" for name, (type_, _) in told.items() if not type_]
    problems += [f"attribute {name} has no description" for name, (_, body) in told.items() if not body]
    return problems


@pytest.mark.parametrize("name", OBJECTS)
def test_summary_is_one_line(name):
    text = inspect.getdoc(OBJECTS[name])
    assert text, "there is no docstring"
    if type(OBJECTS[name]).__name__ == "nb_func":  # a compiled function: its signature comes first
        text = text.partition("\n\n")[2]
    first, *rest = text.splitlines()
    assert first.endswith(".")
    assert not rest or rest[0] == ""


FUNCTIONS = {
    name: value
    for name, value in OBJECTS.items()
    if inspect.isfunction(value) and not name.startswith(PLUGIN)
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_errors_are_described(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(function)
    problems = lacking_parameters(function, text) + lacking_errors(function, text)
    returns = inspect.signature(function).return_annotation
    if returns not in ("None", None, inspect.Signature.empty) and "Returns" not in sections(text):
        if not re.match(r"(Iterator|Generator)", str(returns)) or "Yields" not in sections(text):
            problems.append("it is not said what it returns")
    assert problems == []


@pytest.mark.parametrize(
    "name", ["twinrun.Run", "twinrun.TwinrunError", "twinrun.NotSame", "twinrun.golden.single.Reproducible"]
)
def test_constructors_are_described(name):
    """Of a class the docstring says what its constructor takes."""
    kind = CLASSES[name]
    text = inspect.getdoc(kind)
    assert lacking_parameters(kind.__init__, text) + lacking_errors(kind.__init__, text) == []


@pytest.mark.parametrize("place", RESULTS)
def test_attributes_of_results_are_described(place):
    kind = found(place)
    assert lacking_attributes(kind, inspect.getdoc(kind)) == []


@pytest.mark.parametrize(
    "name", [name for name, value in OBJECTS.items() if ">>>" in (inspect.getdoc(value) or "")]
)
def test_examples_run(name, tmp_path, monkeypatch):
    """Each docstring's examples, in an empty folder, with np and twinrun imported."""
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(OBJECTS[name]), {"np": np, "twinrun": twinrun}, name, None, 0
    )
    runner = doctest.DocTestRunner(verbose=False)
    said = []
    runner.run(example, out=said.append, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("name", [n for n in twinrun.__all__ if n != "__version__"])
def test_public_names_have_an_example(name):
    assert ">>>" in (inspect.getdoc(getattr(twinrun, name)) or "")


@pytest.mark.parametrize(
    "name", [n for n, kind in CLASSES.items() if not issubclass(kind, BaseException) and attributes(kind)]
)
def test_classes_with_attributes_are_results(name):
    """Attributes of every public class are described, also of one that is added later."""
    assert (
        CLASSES[name] in [found(place) for place in RESULTS]
        or lacking_attributes(CLASSES[name], inspect.getdoc(CLASSES[name])) == []
    )


def lacking(raised: int, silent: int) -> int:
    """Raises what it does not say.

    Parameters
    ----------
    raised : int
        A number.
    gone : int
        Not a parameter any more.
    """
    if raised:
        raise errors.Stale("old")
    with_handler(silent)
    return silent


def with_handler(silent):
    try:
        raise errors.DamagedFile("caught")
    except errors.FormatError:
        return silent


def test_what_is_lacking_is_found():
    text = inspect.getdoc(lacking)
    assert lacking_parameters(lacking, text) == [
        "parameter silent is not described",
        "there is no parameter gone",
    ]
    assert lacking_errors(lacking, text)[0] == "it raises TwinrunErrors and has no section Raises"
    assert raised_by(lacking) == {errors.Stale}
    assert raised_by(with_handler) == set()
    assert "attribute steps is not described" in lacking_attributes(errors.StepLost, "An error.")
    assert "attribute bytes is not described" in lacking_attributes(
        twinrun.PackFacts, "Facts.\n\nAttributes\n----------\nsteps : list\n    Steps.\n"
    )


def test_public_names_are_looked_at():
    """The walk reaches every name of the package, and methods."""
    assert {f"twinrun.{name}" for name in twinrun.__all__ if name != "__version__"} <= set(OBJECTS)
    assert {
        "twinrun.Run.capture",
        "twinrun.Sketch.compare",
        "twinrun.golden.check",
        "twinrun.formats.register",
    } <= set(OBJECTS)
