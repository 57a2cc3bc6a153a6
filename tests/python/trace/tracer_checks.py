"""What tests of the tracer share."""

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.trace.comparison import compare_traces  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402
from twinrun.trace.result import TraceComparison  # noqa: E402


def events_of(path, iteration: int = 0):
    events, problems, _ = TraceSubject(path).events(0, iteration)
    assert not problems
    return events


def small(path, during=None, **options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = []
    with trace(model, path, optimizer=optimizer, **options) as traced:
        for n in range(3):
            optimizer.zero_grad()
            if during is not None:
                during(n, model, traced)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            weights.append(str(twinrun.digest(model[0].weight)))
    return weights, traced


def found(folder: Path, run: Callable[[Path], None]) -> TraceComparison:
    """The comparison of a run with another one that changes its last iteration. The same run twice agrees."""
    for name in ("a", "again", "b"):
        torch.manual_seed(1)
        run(folder / name)
    again = compare_traces(folder / "a", folder / "again")
    assert (again.verdict, again.problems) == ("same", [])
    return compare_traces(folder / "a", folder / "b")
