"""What a model gives for an item must not depend on the items beside it: the first module is named where it does."""

import warnings
from collections import deque

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from trainings import MODELS, Transformer, one_thread  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import BatchDependent, assert_batch_invariant  # noqa: E402


class Row(nn.Module):
    """A product row by row: no order of additions depends on how many rows there are."""

    def __init__(self, width: int = 4, out: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, width, generator=torch.Generator().manual_seed(3)))

    def forward(self, x):
        return (x.unsqueeze(-2) * self.weight).cumsum(-1)[..., -1]


class Centred(nn.Module):
    """Takes the mean of the whole batch away."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Coarse(nn.Module):
    """Another precision from a number of rows on, as kernels that are chosen by size."""

    def __init__(self, rows: int = 4) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x):
        return x.bfloat16().float() if len(x) >= self.rows else x


class Inner(nn.Module):
    """Its own code, between its modules, depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Row(), Row()

    def forward(self, x):
        return self.second(self.first(x) * (1 + 2**-20 * len(x)))


def batch(size: int = 6, *shape: int) -> torch.Tensor:
    return torch.randn(size, *(shape or (4,)), generator=torch.Generator().manual_seed(7))


def test_a_model_that_depends_on_items_alone() -> None:
    model = nn.Sequential(Row(), nn.ReLU(), nn.Sequential(Row(), nn.Tanh()), Row(4, 2))
    found = assert_batch_invariant(model, batch(), sizes=(1, 2, 4, 100))
    assert found == ("0", "1", "2.0", "2.1", "2", "3", "")
    assert assert_batch_invariant(model, batch(), modules="2.*") == ("2.0", "2.1", "")
    assert not model._forward_hooks and not model[0]._forward_pre_hooks


@pytest.mark.parametrize(
    "model, module, kind, value",
    [
        (nn.Sequential(Row(), Centred(), Row()), "1", "Centred", "output"),
        (nn.Sequential(Row(), nn.Sequential(nn.ReLU(), Coarse()), Row()), "1.1", "Coarse", "output"),
        (nn.Sequential(Row(), nn.BatchNorm2d(2), Row()), "1", "BatchNorm2d", "output"),
        (nn.Sequential(Row(), nn.Dropout(0.5), Row()), "1", "Dropout", "output"),
        (nn.Sequential(Row(), Inner()), "1", "Inner", "output"),
        (Inner(), "", "Inner", "output"),
    ],
    ids=["mean", "coarse", "batch norm", "dropout", "own code", "code of the model"],
)
def test_the_first_module_is_named(model, module: str, kind: str, value: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    with pytest.raises(BatchDependent, match=rf"{kind}.*in the batch of 6") as found:
        assert_batch_invariant(model, batch(6, 2, 3, 4) if kind == "BatchNorm2d" else batch())
    error = found.value
    assert (error.module, error.kind, error.size, error.value) == (module, kind, 1, value)
    assert 0 <= error.item < 6 and error.max_abs_diff > 0
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())


def test_sizes() -> None:
    """Only a batch of four or more is coarse: all agree where none is."""
    model = nn.Sequential(Row(), Coarse(4))
    assert assert_batch_invariant(model, batch(3), sizes=(1, 2)) == ("0", "1", "")
    assert assert_batch_invariant(model, batch(8), sizes=(4,)) == ("0", "1", "")
    with pytest.raises(BatchDependent, match=r"in a batch of 3 than in the batch of 8") as found:
        assert_batch_invariant(model, batch(8), sizes=(4, 3))
    assert (found.value.module, found.value.size) == ("1", 3)


def test_the_item_is_named() -> None:
    class Fifth(nn.Module):
        def forward(self, x):
            return torch.cat([x[:4], x[4:5] * (1 + 2**-10), x[5:]]) if len(x) > 5 else x

    with pytest.raises(BatchDependent, match="item 4") as found:
        assert_batch_invariant(nn.Sequential(Row(), Fifth()), batch(), sizes=(2,))
    assert (found.value.item, found.value.size) == (4, 2)


def test_items_in_any_dimension() -> None:
    class Mixed(nn.Module):
        """(items, time, width), (time, items, width), (items time, width), (time items, width)."""

        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.swap, self.flat, self.turns = Swap(), Flat(), Flat()
            self.last = Centred() if wrong else nn.Identity()

        def forward(self, x):
            y = self.swap(x)
            z = self.flat(x)
            w = self.turns(y)
            t, b, c = y.shape
            return self.last(z.view(b, t, c) + w.view(t, b, c).transpose(0, 1))

    class Swap(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1)

    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(-1, x.shape[-1])

    found = assert_batch_invariant(Mixed(False), batch(6, 3, 4), sizes=(1, 2, 5))
    assert found == ("swap", "flat", "turns", "last", "")
    with pytest.raises(BatchDependent) as error:
        assert_batch_invariant(Mixed(True), batch(6, 3, 4))
    assert error.value.module == "last"


def test_arguments_of_every_kind() -> None:
    class Takes(nn.Module):
        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.row, self.wrong = Row(), wrong

        def forward(self, x, scale=None, *, mask=None, more=()):
            y = self.row(x) * (1 if scale is None else scale) + sum(more)
            y = y if mask is None else y.masked_fill(mask, 0)
            return {"logits": y if not self.wrong else y + 2**-10 * len(x), "loss": y.mean()}

    x, scale, mask = batch(), batch(), batch() > 0
    for inputs in (x, [x], (x, scale), {"x": x, "scale": scale, "mask": mask, "more": [x, 3.0]}):
        assert assert_batch_invariant(Takes(False), inputs) == ("row", "")
        with pytest.raises(BatchDependent) as found:
            assert_batch_invariant(Takes(True), inputs)
        assert (found.value.module, found.value.value) == ("", "output.logits")


@pytest.mark.parametrize("kind", ["transformer", "lstm", "cnn"])
def test_small_models(kind: str) -> None:
    """Whatever kernels there are: what is said is true, and a planted dependence is found."""
    torch.manual_seed(2)
    model = MODELS[kind]().eval()
    (inputs, *_), _ = model.batch(torch.Generator().manual_seed(4))
    with one_thread():
        try:
            assert "" in assert_batch_invariant(model, inputs)
        except BatchDependent as e:
            assert e.max_abs_diff < 1e-4  # the order of additions
        head = model.head
        model.head = nn.Sequential(Centred(), head)
        with pytest.raises(BatchDependent) as found:
            assert_batch_invariant(model, inputs, modules="head*")
        assert found.value.module in ("head.0", "")


def test_a_model_that_changes_its_inputs() -> None:
    class Doubles(nn.Module):
        def forward(self, x, more=None, *, table=None):
            x.mul_(2)
            if table is not None:
                table.add_(1)
            return x + (0 if more is None else more["again"]) + (0 if table is None else table)

    class Depends(nn.Module):
        def forward(self, x, *given, **named):
            return x.mul_(1 + 2**-10 * len(x))

    x, table = batch(), torch.ones(4)
    before = [str(twinrun.digest(t)) for t in (x, table)]
    given = {"x": x, "more": {"again": x}, "table": table}
    for inputs in (x, (x,), given):
        assert assert_batch_invariant(nn.Sequential(Doubles()) if inputs is x else Doubles(), inputs)
        with pytest.raises(BatchDependent) as found:
            assert_batch_invariant(Depends(), inputs)
        assert found.value.max_abs_diff > 0
        assert [str(twinrun.digest(t)) for t in (x, table)] == before
    assert given["more"]["again"] is x


def test_torchscript_is_looked_at_as_a_whole() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        same = nn.Sequential(torch.jit.script(nn.Sequential(nn.ReLU(), nn.Tanh())), Row())
        other = nn.Sequential(Row(), torch.jit.script(nn.Sequential(nn.ReLU(), Centred())))
        traced = torch.jit.trace(nn.Sequential(nn.ReLU(), nn.ReLU()), batch())
    assert assert_batch_invariant(same, batch()) == ("0", "1", "")
    assert assert_batch_invariant(traced, batch()) == ("",)
    with pytest.raises(BatchDependent, match=r"1 \(Sequential\): its inputs") as found:
        assert_batch_invariant(other, batch())
    assert found.value.module == "1" and not other[1]._forward_hooks


def test_what_cannot_be_compared() -> None:
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    for model, inputs, options, text in (
        (Mean(), batch(), {}, "dimension of items"), (Row(), batch(1), {}, "two items"), (Row(), 3.0, {}, "no tensor"),
        (Row(), batch(), {"sizes": ()}, "two items"), (Row(), batch(), {"sizes": (6, 7)}, "two items"), (Row(), batch(), {"sizes": [0]}, "sizes"),
        (Row(), batch(), {"sizes": [True]}, "sizes"),
    ):  # fmt: skip
        with pytest.raises(twinrun.TwinrunError, match=text):
            assert_batch_invariant(model, inputs, **options)

    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("mine")

    model = nn.Sequential(Fails())
    with pytest.raises(ValueError, match="mine"):
        assert_batch_invariant(model, batch())
    assert not model._forward_hooks and not model[0]._forward_hooks
    assert issubclass(BatchDependent, AssertionError) and Transformer is MODELS["transformer"]


def test_inputs_in_a_deque_are_cut_like_those_in_a_list() -> None:
    class Takes(nn.Module):
        def forward(self, given: deque) -> torch.Tensor:
            assert type(given) is deque
            return given[0] * 2 + given[1]

    inputs = deque([torch.arange(12.0).reshape(4, 3), torch.ones(4, 3)])
    assert_batch_invariant(Takes(), inputs)
