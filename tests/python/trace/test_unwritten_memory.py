"""Memory that nobody wrote makes no difference between two trainings, and hides none."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.runs.gaps import NOT_LOOKED_INTO, ROOM, UNWRITTEN, gap  # noqa: E402
from twinrun.torch import trace  # noqa: E402


class Fresh:
    """Memory as PyTorch gives it, with what was there before: NumPy writes it, which no trace sees."""

    def __init__(self, rest: float, value: float = 1.0) -> None:
        self.rest, self.value = rest, value

    def poisoned(self, t):
        t.numpy()[...] = self.rest
        return t

    def __call__(self, *shape, **options):
        return self.poisoned(torch.empty(*(shape or (6, 4)), **options))


def index_put(y, f):
    o = f.poisoned(y.detach().new_empty(6, 4))
    o[torch.arange(6)] = y.detach() * f.value
    return y + o


def where(y, f):
    return torch.where(torch.zeros(6, 4, dtype=torch.bool), f(), y * f.value)


def rrelu(y, f):
    y = y.detach()
    return torch.ops.aten.rrelu_with_noise(y * f.value, f(), 0.1, 0.3, True)


def rrelu_of_inference(y, f):
    noise = f()
    given = torch.ops.aten.rrelu_with_noise(y.detach() * f.value, noise, 0.1, 0.3, False)
    return torch.ops.aten.rrelu_with_noise_backward(given, y.detach(), noise, 0.1, 0.3, False, False)


def two_halves(y, f):
    o = f()
    o[:3] = y[:3].detach() * f.value
    o[3:] = 1
    return y + o


def a_part(y, f):
    """The second half is never written, and not used."""
    o = f()
    o[:3] = y[:3].detach() * f.value
    z = torch.cat([o.clone() * 2, f(1, 4)])
    return y[:3] + z[:3]


def a_part_by_numbers(y, f):
    o = f()
    o[torch.tensor([0, 2])] = y[:2].detach() * f.value
    return o[0] + o[2]


def scattered(y, f):
    o = f()
    o.scatter_(0, torch.arange(6)[:, None].expand(6, 4), y.detach() * f.value)
    return o.sum(0)


def masked(y, f):
    o = f()
    o.masked_fill_(torch.ones(6, 4, dtype=torch.bool), 2.0 * f.value)
    return o.sum(0)


def indexed(y, f):
    o = f()
    o.index_copy_(0, torch.arange(6), y.detach() * f.value)
    return o.sum(0)


def resized(y, f):
    o = torch.ones(2, 4) * f.value
    o.resize_(6, 4)
    o.numpy()[2:] = f.rest
    return o[:2].sum(0) + y[:2]


def out(y, f):
    o = f()
    torch.mul(y.detach(), f.value, out=o)
    return o.sum(0)


def in_place(y, f):
    o = f()
    o.mul_(2)  # still nobody's
    o.copy_(y.detach() * f.value)
    return o + y


def strided(y, f):
    o = f.poisoned(torch.empty_strided((6, 4), (1, 6)))
    o.copy_(y.detach() * f.value)
    return y + o


def drawn(y, f):
    return torch.bernoulli(f(), 0.5) * y * f.value


def of_other_kinds(y, f):
    o = f(6, 4, dtype=torch.complex64)
    o[:2] = (y[:2] * f.value).detach().to(torch.complex64)
    return y[:2] + o[:2].conj().real


def of_lists(y, f):
    o, p = f(), f()
    o[:3] = y[:3].detach() * f.value
    p[:4] = y[2:].detach() * f.value
    torch._foreach_mul_([o, p], 2.0)
    more = torch._foreach_add([o, p], [p, o])
    torch._foreach_copy_(more, [p, o])
    torch._foreach_sqrt_(more)
    torch._foreach_maximum_(more, torch._foreach_neg(more))
    q, r = f(), f()
    torch._foreach_zero_([q])
    torch._foreach_addcmul_([r], [more[0]], [q])
    return y[:3] + o[:3] + p[:3] + more[1][:3] + q[:3] * y[:3]


def of_bytes(y, f):
    """As `copy.deepcopy` does: it copies the bytes of the storage."""
    o = f()
    o[:3] = y[:3].detach() * f.value
    copied = torch.empty_like(o)
    copied.view(torch.uint8).copy_(o.view(torch.uint8))
    again = copy.deepcopy(o)
    return y[:3] + copied[:3] + again[:3] + again.view(torch.int16)[:3, ::2] * 0


MOVES = {
    "index_select": lambda o: o.index_select(0, torch.tensor([1, 0, 4]))[:2],
    "gather": lambda o: o.gather(0, torch.tensor([[1, 0, 2, 4]]))[:, :3],
    "take": lambda o: o.take(torch.tensor([3, 23, 1]))[::2],
    "indexed": lambda o: o[torch.tensor([2, 5])][0],
    "roll": lambda o: o.roll(1, 0)[1:4],
    "flip": lambda o: o.flip(0)[-3:],
    "repeat": lambda o: o.repeat(2, 1)[6:9],
    "pad": lambda o: nn.functional.pad(o, (1, 0))[:3],
    "tril": lambda o: o.tril()[:3],
    "triu": lambda o: o.triu()[:3],
    "diag_embed": lambda o: o.diag_embed()[:3],
    "slice_scatter": lambda o: o.slice_scatter(o[:1] * 3, 0, 5, 6)[5],
    "select_scatter": lambda o: o.select_scatter(o[0] * 3, 0, 5)[5],
    "index_put": lambda o: o.index_put((torch.tensor([4]),), o[0] * 3)[4],
    "index_copy": lambda o: o.index_copy(0, torch.tensor([4]), o[:1] * 3)[4],
    "index_fill": lambda o: o.index_fill(0, torch.tensor([4]), 2.0)[4] * o[0],
    "scatter": lambda o: o.scatter(0, torch.full((1, 4), 4), o[:1] * 3)[4],
    "embedding": lambda o: nn.functional.embedding(torch.tensor([0, 5]), o)[0],
    "to_double": lambda o: o.double()[:3],
    "complex": lambda o: torch.complex(o, o)[:3].real,
    "unbind_copy": lambda o: torch.unbind_copy(o)[1],
    "split_copy": lambda o: torch.split_copy(o, 3)[0],
    "split_with_sizes_copy": lambda o: torch.split_with_sizes_copy(o, [1, 5])[1][:2],
    "block_diag": lambda o: torch.block_diag(o, o[:1] * 3)[torch.tensor([0, 2, 6])],
    "stack": lambda o: torch.stack([o, o * 2], 1)[:3],
    "reflect": lambda o: nn.functional.pad(o[None], (1, 1), mode="reflect")[0, :3],
    "replicate": lambda o: nn.functional.pad(o[None], (1, 1), mode="replicate")[0, :3],
    "unfold": lambda o: nn.functional.unfold(o[None, None], (2, 4))[0, :, 0],
    "nearest": lambda o: nn.functional.interpolate(o[None], scale_factor=2)[0, :3],
    "index_add": lambda o: o.index_add(0, torch.tensor([4]), o[:1])[:3],
    "masked_scatter": lambda o: o.masked_scatter(torch.tensor([[False]] * 5 + [[True]]), o[:1] * 3)[5],
    "tril_": lambda o: o.clone().tril_()[:3],
    "one_column": lambda o: (o.view(-1)[:12][None].t() + 1)[:12],
    "narrow_copy": lambda o: torch.narrow_copy(o, 0, 0, 4)[:3],
}


def moved(name):
    """Rows 0 to 2 of memory are written; an operation moves them beside others, and they are used."""

    def use(y, f):
        o = f()
        o[:3] = y[:3].detach() * f.value
        return MOVES[name](o).sum() + y.sum() * 0

    use.__name__ = name
    return use


CASES = [
    *map(moved, MOVES),
    index_put, where, rrelu, rrelu_of_inference, two_halves, a_part, a_part_by_numbers, scattered, masked, indexed,
    resized, out, in_place, strided, drawn, of_other_kinds, of_lists, of_bytes,
]  # fmt: skip


def run(path, use, fresh: Fresh) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return use(self.lin(x), fresh)

    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, path, optimizer=optimizer, level="ops", on_error="raise"):
        for _ in range(2):
            given = model(torch.randn(6, 4)).sum()
            if given.requires_grad:
                given.backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("use", CASES, ids=lambda f: f.__name__)
def test_memory_that_nobody_wrote(tmp_path, use) -> None:
    run(tmp_path / "a", use, Fresh(3.0))
    run(tmp_path / "b", use, Fresh(-5.0))
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.same, (found.problems, str(found))
    # A difference in what was written is seen, at the operation that made it.
    run(tmp_path / "c", use, Fresh(3.0, 1 + 2**-20))
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c")
    assert found.verdict == "different"
    assert "output" in found.first_divergence.values[0].name or found.first_divergence.reason == "input"


OUTS = {
    "cat": lambda o, out: torch.cat([o, o * 2], out=out),
    "stack": lambda o, out: torch.stack([o, o], out=out),
    "index_select": lambda o, out: torch.index_select(o, 0, torch.tensor([0, 2]), out=out),
    "gather": lambda o, out: torch.gather(o, 0, torch.tensor([[1, 0, 2, 0]]), out=out),
    "take": lambda o, out: torch.take(o, torch.tensor([0, 5]), out=out),
    "tril": lambda o, out: torch.tril(o, out=out),
    "unbind_copy": lambda o, out: torch.unbind_copy(o, out=[torch.empty(0) for _ in range(5)] + [out]),
    "split_copy": lambda o, out: torch.split_copy(o, 3, out=[out.resize_(3, 4), torch.empty(3, 4)]),
    "mul": lambda o, out: torch.mul(o, 2, out=out),
    "clone": lambda o, out: torch.ops.aten.clone.out(o, out=out),
}


@pytest.mark.parametrize("name", OUTS)
def test_what_an_operation_writes_is_left_as_it_is(tmp_path, name: str) -> None:
    """To find out which places of a result were written, operations run again: on memory of the trace."""

    def write():
        o = torch.empty(6, 4)
        o.fill_(3.0)
        part = torch.empty(6, 4)
        part[:5] = 2.0
        part[5].numpy()[...] = 7.0
        results = []
        for one in (o, part):
            out = torch.empty(0)
            OUTS[name](one, out)
            results.append(out.clone())
        return results

    plain = write()
    with trace(nn.Linear(2, 2), tmp_path / "a", level="ops", on_error="raise") as traced:
        found = write()
        traced.step()
    assert all(map(torch.equal, found, plain))


def wrong_place(y, f):
    o = f()
    o[3 if f.value > 1 else 2] = 7.0
    return o[2:4].detach() * 0


def unseen(y, f):
    """NumPy writes it: the result of the product is compared."""
    o = torch.empty(4, 4)
    o.numpy()[...] = f.value
    return y @ o


@pytest.mark.parametrize("use", [wrong_place, unseen], ids=lambda f: f.__name__)
def test_a_difference_is_not_hidden(tmp_path, use) -> None:
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        run(tmp_path / name, use, Fresh(3.0, value))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").verdict == "different"


def test_memory_is_known_by_its_storage(tmp_path) -> None:
    """Another storage may have the address of one that is gone; operations that were not seen write, too."""
    from twinrun.torch.unwritten import UnwrittenMemory

    memory = UnwrittenMemory()
    for n in range(1000):
        t = torch.empty(8)
        assert memory.mask(t) is None
        memory.allocated(t)
        mask = memory.mask(t[2:4])
        assert mask is not None and not mask.any() and mask.shape == (2,)
        if n % 2:
            memory.write(t[::2])
            assert memory.mask(t).tolist() == [True, False] * 4 and memory.mask(t[2::2]) is None
        if n % 3 == 0:
            memory.write(t)
            assert memory.mask(t) is None
    assert len(memory) <= 128
    held = torch.empty(8)
    memory.allocated(held)
    memory.forget()
    assert memory.mask(held) is None and not len(memory)


def test_marks_of_tensors_of_several_types_are_those_of_their_bytes() -> None:
    from twinrun.torch.unwritten import UnwrittenMemory

    types = {1: torch.uint8, 2: torch.int16, 4: torch.float32, 8: torch.float64}
    random = np.random.default_rng(5)

    def view(storage):
        """A view of the storage, and which bytes its elements have."""
        size = int(random.choice([*types]))
        most = 64 // size
        whole = torch.empty(0, dtype=types[size]).set_(storage, 0, (most,))
        first, step = int(random.integers(most)), int(random.integers(1, 4))
        last = int(random.integers(first, most)) + 1
        numbers = np.arange(first, last, step)
        return whole[first:last:step], numbers[:, None] * size + np.arange(size)

    for _ in range(300):
        memory, written = UnwrittenMemory(), np.zeros(64, bool)
        made = torch.empty(0, dtype=types[int(random.choice([*types]))])
        storage = torch.UntypedStorage(64)
        memory.allocated(made.set_(storage, 0, (64 // made.element_size(),)))
        for _ in range(12):
            t, at = view(storage)
            if random.random() < 0.5:
                mask = random.random(len(t)) < 0.5 if random.random() < 0.5 else np.ones(len(t), bool)
                memory.write(t, None if mask.all() else torch.from_numpy(mask))
                written[at] = mask[:, None]
            t, at = view(storage)
            found = memory.mask(t)
            assert (np.ones(len(t), bool) if found is None else found.numpy()).tolist() == written[at].all(
                1
            ).tolist()


def test_what_was_not_seen_counts_as_written(tmp_path) -> None:
    def train(path, value: float) -> None:
        torch.manual_seed(3)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trace(model, path, optimizer=optimizer, level="ops", every=2, on_error="raise"):
            held = torch.empty(6, 4)
            for n in range(3):
                if n == 1:  # this iteration is not traced
                    held.fill_(value)
                y = model(torch.ones(6, 4))
                if n == 2:
                    held * 2
                y.sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    train(tmp_path / "a", 1.0)
    train(tmp_path / "b", 2.0)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert first is not None and "mul" in first.site.operation and first.reason == "input"


@pytest.mark.parametrize("training", [True, False])
def test_rrelu(tmp_path, training: bool) -> None:
    """Its noise is new memory, which it writes in training only."""
    for name, rest in (("a", 3.0), ("b", -5.0)):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.RReLU()).train(training)
        x = torch.randn(6, 4)
        before = [torch.full((24,), rest + n) for n in range(64)]
        del before  # new memory has what was here
        with trace(model, tmp_path / name, level="ops", on_error="raise"):
            model(x).sum().backward()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.same, str(found)


def test_memory_that_nobody_wrote_is_no_input_that_agrees(tmp_path) -> None:
    """What is left out of a comparison is said, and counted."""

    def use(y, f):
        return torch.ops.aten.mul(y.detach() * f.value, f())  # nobody wrote the second factor

    def half(y, f):
        o = f()
        o[:3] = 1
        return o.sum(0) * f.value

    for name, how in (("whole", use), ("part", half)):
        run(tmp_path / f"{name}a", how, Fresh(3.0))
        run(tmp_path / f"{name}b", how, Fresh(3.0, 1 + 2**-20))
    found = twinrun.compare_traces(tmp_path / "wholea", tmp_path / "wholeb")
    assert found.verdict == "different"
    events = [n for n in found.around if n.inputs_not_compared]
    assert events and all(n.not_compared == UNWRITTEN for n in events)
    assert all("inputs agree" not in n.text and "all agree" not in n.text for n in events)
    found = twinrun.compare_traces(tmp_path / "parta", tmp_path / "partb")
    assert any(n.not_compared == f"in part {UNWRITTEN}" for n in found.around)


def test_room_to_work_in_is_no_input_that_agrees(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, tmp_path / "a", optimizer=optimizer, level="ops"):
        model(torch.ones(3, 2, 4))[0].sum().backward()
        optimizer.step()
    events = [e for e in events_of(tmp_path / "a") if "mkldnn_rnn_layer_backward" in e.operation]
    if not events:
        pytest.skip("this PyTorch runs an LSTM in another way")
    assert [v.name for v in events[0].values if gap(v) == ROOM] == ["workspace"]
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a").same


class Cache:
    """An object that a trace does not look into."""

    def __init__(self, value: float) -> None:
        self.value = value


class Cached(nn.Module):
    def forward(self, x, cache, scale=None):
        return x * cache.value


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_an_object_that_is_not_looked_into_is_no_input_that_agrees(tmp_path, level: str) -> None:
    for name, value in (("a", 2.0), ("b", 3.0)):
        model = nn.Sequential(nn.Linear(4, 4), Cached())
        model[1].register_forward_pre_hook(lambda m, args, v=value: (*args, Cache(v)))
        torch.manual_seed(1)
        nn.init.ones_(model[0].weight)
        nn.init.ones_(model[0].bias)
        with trace(model, tmp_path / name, level=level) as traced:
            model(torch.ones(2, 4))
            traced.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    entry = next(n for n in found.around if n.site.module == "1" and n.site.operation == "forward")
    said = f"and 1 was not compared ({NOT_LOOKED_INTO})"
    assert entry.state == "not all compared" and said in entry.text
    assert found.verdict == "different"
    if level == "modules":
        assert found.first_divergence.module == "1" and said in str(found)
        assert "inputs agree" not in str(found)
