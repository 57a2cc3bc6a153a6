"""What the package tells type checkers about its extension: `_core.pyi`, written when it is built."""

import ast
import re
from pathlib import Path

import pytest

import twinrun
from twinrun import _core

PACKAGE = Path(twinrun.__file__).parent


@pytest.fixture(scope="module")
def stub():
    return ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))


def names_of(body):
    """What is defined there, without imports."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def functions(stub):
    """(the stub's, the module's) of each function and method."""
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            yield node, getattr(_core, node.name)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    yield method, getattr(getattr(_core, node.name), method.name)


def parameters(function):
    """Names, those of which only the position counts as a word of their own, and how many have a default."""
    found = function.args
    count = len(found.posonlyargs)
    return ["/"] * count + [a.arg for a in found.args + found.kwonlyargs], len(found.defaults)


def test_package_is_typed():
    assert (PACKAGE / "py.typed").read_bytes() == b""


def test_stub_names_what_the_module_has(stub):
    public = {name for name in dir(_core) if not name.startswith("_")}
    assert set(names_of(stub.body)) == public | {"__version__"}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
            assert {name for name in names_of(node.body) if not name.startswith("_")} == members


def test_stub_has_the_parameters_of_the_module(stub):
    """Those too that python/bindings/stub.txt repeats."""
    for written, built in functions(stub):
        ((signature, *_),) = built.__nb_signature__
        # A backslash and a number stand for the default of that number; what an array must be is no Python.
        plain = re.sub(r"\\\d+", "None", re.sub(r"ndarray\[[^\]]*\]", "ndarray", signature))
        (told,) = ast.parse(plain + ": ...").body
        assert parameters(written) == parameters(told), written.name


def test_stub_says_more_than_object(stub):
    """What the bindings return as any object has its type by python/bindings/stub.txt; what a caller gave comes back as it was."""
    vague = {
        written.name for written, _ in functions(stub) if ast.unparse(written.returns) in ("object", "Any")
    }
    assert vague == set()
