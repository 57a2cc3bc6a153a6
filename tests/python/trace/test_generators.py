"""Random numbers of operations: the state of the generator that they draw from goes into them."""

import contextlib

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402


class Noisy(nn.Module):
    """Draws from a generator of its own, and from the usual one."""

    def __init__(self, seed: int, again: int | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.own, self.again = torch.Generator().manual_seed(seed), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) + torch.rand(6, generator=self.own)
        if self.again is not None:  # in the midst of a module: its entry has another state
            torch.manual_seed(self.again)
        return nn.functional.dropout(x, 0.5)


def traced(path, *, rng: str = "torch", **how) -> None:
    torch.manual_seed(1)
    model = Noisy(**how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, path, optimizer=optimizer, level="ops", rng=rng):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 6)).sum().backward()
            optimizer.step()


@pytest.mark.parametrize(
    "a, b, operation, agree",
    [
        ({"seed": 5}, {"seed": 6}, "aten.rand.generator", "inputs agree, but "),
        (
            {"seed": 5, "again": 7},
            {"seed": 5, "again": 8},
            "aten.bernoulli_.float",
            "",
        ),  # it takes nothing else
    ],
)
def test_a_generator_that_differs_is_named_at_the_operation_that_draws(
    tmp_path, a, b, operation, agree
) -> None:
    traced(tmp_path / "a", **a)
    traced(tmp_path / "b", **b)
    traced(tmp_path / "again", **a)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.operation, found.reason) == (operation, "operation")
    assert f": {agree}the state of its random number generator differs; outputs differ" in str(found)


def test_of_two_generators_that_differ_its_own_is_named(tmp_path) -> None:
    """The usual one, which nothing draws from before, differs too."""
    for name, seed in (("a", 5), ("b", 6)):
        torch.manual_seed(1)
        model = Noisy(seed)
        torch.manual_seed(seed)
        with trace(model, tmp_path / name, level="ops") as seen:
            model(torch.ones(4, 6))
            seen.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert found.site.operation == "aten.rand.generator"
    assert "inputs agree, but the state of its random number generator differs" in str(found)


def test_only_operations_that_draw_have_a_state(tmp_path) -> None:
    traced(tmp_path / "a", seed=5)
    traced(tmp_path / "none", seed=5, rng="none")
    drawing = {e.operation: [v.name for v in e.values if v.role == "rng"] for e in events_of(tmp_path / "a")}
    drawing = {name: of for name, of in drawing.items() if name.startswith("aten") and of}
    assert drawing == {"aten.rand.generator": ["generator"], "aten.bernoulli_.float": ["torch"]}
    assert not [v for e in events_of(tmp_path / "none") for v in e.values if v.role == "rng"]


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_attention_draws_where_it_drops(tmp_path, p: float) -> None:
    torch.manual_seed(1)
    model = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)
    x = torch.randn(2, 5, 8)
    with trace(model, tmp_path / "a", level="ops") as seen:
        model(x, x, x, need_weights=False)
        seen.step()
    found = {e.operation for e in events_of(tmp_path / "a") if e.operation[:5] == "aten." and
             any(v.role == "rng" for v in e.values)}  # fmt: skip
    assert bool(found) is (p > 0)


def test_drawing_is_as_without_a_trace(tmp_path) -> None:
    def values(level):
        torch.manual_seed(3)
        model, own = nn.Dropout(0.5), torch.Generator().manual_seed(4)
        with trace(model, tmp_path / str(level), level=level) if level else contextlib.nullcontext():
            out = [model(torch.ones(50)) for _ in range(3)]
            return [*out, torch.randn(5, generator=own), torch.randperm(9), torch.get_rng_state()]

    plain = values(None)
    assert all(map(torch.equal, plain, values("ops")))
