"""The pytest plugin: `reproducible.check("temperature", array, atol=1e-9)` against a golden file beside the
test.

Loaded at every start of pytest where twinrun is installed: so it imports nothing but pytest until a test asks
for the fixture.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .golden.single import Reproducible

_WRITTEN = "_twinrun_written"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option --twinrun-update, and the ini option twinrun_folder."""
    group = parser.getgroup("twinrun", "golden files of twinrun")
    group.addoption(
        "--twinrun-update",
        action="store_true",
        default=False,
        help="write the golden files of the tests that run, in place of comparing with them",
    )
    parser.addini(
        "twinrun_folder",
        "where golden files lie, beside each test module (default: __twinrun__)",
        default="__twinrun__",
    )


@pytest.fixture
def reproducible(request: pytest.FixtureRequest) -> Reproducible:
    """The fixture that compares arrays with golden files beside the test.

        def test_step(reproducible):
            reproducible.check("temperature", array, atol=1e-9)

    `pytest --twinrun-update` writes the golden files; commit them. Later runs compare with them. See
    `twinrun.golden.single.Reproducible.check` for the parameters.

    Returns
    -------
    Reproducible
        With the method `check(name, arrays, atol=0.0, rtol=0.0, ...)`.

    Raises
    ------
    NotReproduced
        `check` raises it where something differs.

    Notes
    -----
    The files lie in the folder `twinrun_folder` (ini option, default __twinrun__) beside the test module.
    docs/reference/golden.md.
    """
    from .golden.single import Reproducible

    config = request.config
    written = config.__dict__.setdefault(_WRITTEN, [])
    path = request.node.path
    module = request.node.getparent(pytest.Module)
    inside = request.node.nodeid.split("::")[1:] if "::" in request.node.nodeid else [request.node.name]
    return Reproducible(
        path.parent / config.getini("twinrun_folder") / (path.stem if module is not None else path.name),
        inside,
        update=config.getoption("--twinrun-update"),
        command=f"pytest {shlex.quote(request.node.nodeid)} --twinrun-update",
        written=written,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how many golden files were written."""
    written = config.__dict__.get(_WRITTEN)
    if written:
        changed = sum(1 for _, new in written if new)
        terminalreporter.write_line(
            f"twinrun: {len(written)} golden file{'s' if len(written) != 1 else ''} up to date, {changed} of them changed"
        )
