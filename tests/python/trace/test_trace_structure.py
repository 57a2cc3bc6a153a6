"""What holds the values of a trace: equal structure gives no note, each single change is named, and no bit is said to differ."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from commands import command  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from nested import Tree, changes, made, trees  # noqa: E402
from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.capture.events import EventWriter  # noqa: E402
from twinrun.runs.events import Event, encoded_events  # noqa: E402
from twinrun.runs.structure import OWN, facts_of, own_facts  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.torch.module_facts import OwnFacts  # noqa: E402
from twinrun.torch.position import Position  # noqa: E402
from twinrun.torch.recorder import Recorder  # noqa: E402
from twinrun.trace.escalation import KeptPlaces  # noqa: E402
from twinrun.trace.site import Site  # noqa: E402
from twinrun.trace.structure import structure_differences  # noqa: E402
from twinrun.trace.words import trace_document, trace_lines  # noqa: E402


class NoGenerators:
    def begin_iteration(self) -> None:
        pass


def tensor(tree: Tree) -> torch.Tensor:
    values = torch.arange(6.0).reshape(2, 3) + tree.number
    if tree.turned:
        values = values.t().contiguous().t()
    return values.requires_grad_(tree.needs)


def seen(value: object, out: bool) -> Event:
    writer = EventWriter("a", True)
    recorder = Recorder(writer, Position(0, 1), NoGenerators(), KeptPlaces(frozenset()), lambda: None)
    event = recorder.event("record", "", "", "x", 0)
    recorder.see(event, "x", value, out=out)
    writer.events()  # reads the digests
    return event


def differences(a: Event, b: Event) -> list[tuple[str, str]]:
    return [(d.name, d.what) for d in structure_differences(a, b, Site(0, 0, "record", "", "x"))]


@given(trees(), st.booleans())
def test_values_that_are_built_alike_show_no_difference(tree, out) -> None:
    a, b = (seen(made(tree, tensor), out) for _ in range(2))
    assert a == b and not differences(a, b)


@given(trees(), st.booleans(), st.data())
def test_each_single_change_is_the_only_one_that_is_named(tree, out, data) -> None:
    possible = list(changes(tree, "x"))
    if not possible:
        return
    change = data.draw(st.sampled_from(possible))
    a, b = (seen(made(one, tensor), out) for one in (tree, change.tree))
    assert sorted(a.values, key=str) == sorted(b.values, key=str)  # the values themselves show nothing
    assert differences(a, b) == [(change.name, change.what)] == differences(b, a)
    (told,) = structure_differences(a, b, Site(0, 0, "record", "", "x"))
    assert told.out is out and told.a != told.b and str(told).startswith(change.name)


@given(trees(), trees())
def test_what_is_told_of_any_two_values_has_words(one, other) -> None:
    a, b = seen(made(one, tensor), False), seen(made(other, tensor), False)
    for d in structure_differences(a, b, Site(0, 0, "record", "", "x")):
        assert d.a != d.b and str(d)


# ---- models that look at it ----


class Takes(nn.Module):
    """Gives what a function makes of what it takes: equal values, and not always an equal result."""

    def __init__(self, look) -> None:
        super().__init__()
        self.look = look

    def forward(self, *args, **kwargs):
        return self.look(*args, **kwargs)


class Net(nn.Module):
    def __init__(self, give, look) -> None:
        super().__init__()
        self.before, self.takes, self.after = nn.Linear(4, 4), Takes(look), nn.Linear(4, 2)
        self.give = give

    def forward(self, x):
        args, kwargs = self.give(self.before(x))
        return self.after(self.takes(*args, **kwargs))


def traced(path, give, look, **options) -> str:
    torch.manual_seed(3)
    model = Net(give, look)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, path, optimizer=optimizer, on_error="raise", **options):
        for n in range(2):
            optimizer.zero_grad()
            model(torch.arange(12.0).reshape(3, 4) / 7 + n).sum().backward()
            optimizer.step()
    return str(path)


def in_order(given):
    """A sum that rounds otherwise in another order."""
    total = torch.zeros(3, 4)
    for one in given.values() if isinstance(given, dict) else given:
        total = total * 1.1 + one
    return total


@dataclass
class Holder:
    x: torch.Tensor


def with_more(x: torch.Tensor) -> Holder:
    made = Holder(x)
    made.more = 2
    return made


PLANTED = {
    "an attribute that is no field": (
        lambda x: ((Holder(x),), {}),
        lambda x: ((with_more(x),), {}),
        lambda given: given.x * getattr(given, "more", 1),
        "args.0 has the attributes (no more) in a and more in b",
    ),
    "order of keys": (
        lambda x: (({"p": x, "q": x * 2},), {}),
        lambda x: (({"q": x * 2, "p": x},), {}),
        in_order,
        "args.0 has its keys in another order: 'p', 'q' in a and 'q', 'p' in b",
    ),
    "order of named arguments": (
        lambda x: ((), {"p": x, "q": x * 2}),
        lambda x: ((), {"q": x * 2, "p": x}),
        lambda **given: in_order(given),
        "kwargs has its keys in another order: 'p', 'q' in a and 'q', 'p' in b",
    ),
    "a key that is a number, and one that is a text": (
        lambda x: (({1: x},), {}),
        lambda x: (({"1": x},), {}),
        lambda given: given[1] * 2 if 1 in given else given["1"],
        "args.0 has the keys 1 in a and (one text, or none) in b",
    ),
    "list and tuple": (
        lambda x: (([x, x * 2],), {}),
        lambda x: (((x, x * 2),), {}),
        lambda given: in_order(given if isinstance(given, list) else given[::-1]),
        "args.0 is a list in a and a tuple in b",
    ),
    "class of a mapping": (
        lambda x: (({"p": x},), {}),
        lambda x: ((OrderedDict(p=x),), {}),
        lambda given: given["p"] * (1 if type(given) is dict else 2),
        "args.0 is a dict in a and an OrderedDict in b",
    ),
    "requires_grad": (
        lambda x: ((x, x.detach() * 1),  {}),
        lambda x: ((x, (x.detach() * 1).requires_grad_()), {}),
        lambda x, y: x * (2 if y.requires_grad else 1),
        "args.1 has requires_grad False in a and True in b",
    ),
    "strides": (
        lambda x: ((torch.empty_strided((3, 4), (4, 1)).copy_(x),), {}),
        lambda x: ((torch.empty_strided((3, 4), (1, 3)).copy_(x),), {}),
        lambda x: x * (1 if x.is_contiguous() else 2),
        "args.0 is row-major in a and has strides (1, 3) in b",
    ),
    "one tensor": (
        lambda x: ((x, (x, x * 1)[0]), {}),
        lambda x: ((x, (x, x * 1)[1]), {}),
        lambda query, key: query * (1 if query is key else 2),
        "args.1 is the same tensor as args.0 in a and one of its own in b",
    ),
    "an empty container": (
        lambda x: ((x, []), {}),
        lambda x: ((x, {}), {}),
        lambda x, given: x * (1 if given == [] else 2),
        "args.1 is a list in a and a dict in b",
    ),
    "an object": (
        lambda x: ((x, {(1,)}), {}),
        lambda x: ((x, frozenset({(1,)})), {}),
        lambda x, given: x * (1 if type(given) is set else 2),
        "args.1 is a set in a and a frozenset in b",
    ),
    "an object of one run alone": (
        lambda x: ((x,), {}),
        lambda x: ((x, {(1,)}), {}),
        lambda x, given=None: x * (1 if given is None else 2),
        "args.1 is a set in b and not in a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("planted", list(PLANTED))
def test_a_module_that_looks_at_it_is_not_blamed_without_a_hint(tmp_path, planted, level) -> None:
    give, give_b, look, told = PLANTED[planted]
    a, b = traced(tmp_path / "a", give, look, level=level), traced(tmp_path / "b", give_b, look, level=level)
    found = twinrun.compare_traces(a, b)
    assert found.verdict == "different"
    first = found.first_divergence
    assert told in str(first), str(first)
    assert "inputs agree," not in str(first) and "everything before agrees," not in str(first)
    assert told in [str(d) for d in first.structure]
    near = next(n for n in found.around if n.site.module == "takes" and "inputs" in n.text + n.state)
    assert near.state == "inputs differ" or (told in near.text and near.state != "inputs agree")


@pytest.mark.parametrize("planted", list(PLANTED))
def test_equal_bits_stay_the_same_and_a_note_tells_the_rest(tmp_path, planted) -> None:
    """A stride makes no run another one. What a model does with all this is seen where values differ."""
    give, give_b, _, told = PLANTED[planted]

    def blind(*args, **kwargs):
        return torch.ones(3, 4).requires_grad_()

    a, again = (traced(tmp_path / name, give, blind) for name in ("a", "again"))
    b = traced(tmp_path / "b", give_b, blind)
    found = twinrun.compare_traces(a, b)
    assert found.verdict == "same" and not found.problems
    assert {str(d) for d in found.structure} >= {told}
    assert any(
        note.startswith("beside the values something differs") and told in note for note in found.notes
    )
    same = twinrun.compare_traces(a, again)
    assert same.same and not same.structure and str(same).endswith("agree bit by bit")
    assert all(note.startswith("not compared: ") for note in same.notes)
    assert bool(same.notes) is (planted == "an object")


def test_reports_and_documents_tell_it(tmp_path) -> None:
    give, give_b, look, told = PLANTED["strides"]
    a, b = traced(tmp_path / "a", give, look), traced(tmp_path / "b", give_b, look)
    page, document = tmp_path / "page.html", tmp_path / "out.json"
    done = command("compare", a, b, "--html", page, "--json", document)
    assert done.status == 1
    said = f"inputs agree in value, but {told}; outputs differ: output"
    assert f"different: first at iteration 0, forward of takes (Takes): {said}" in done.out
    assert f"forward of takes: inputs agree in value, but {told}\n" in done.out
    text = page.read_text()
    assert said in text and 'id="structure"' in text
    read = json.loads(document.read_text())
    for place in (read, read["first_divergence"]):
        one = place["structure"][0]
        assert (one["name"], one["what"], one["a"], one["b"]) == ("args.0", "strides", "", "(1, 3)")
        assert one["site"]["module"] == "takes" and one["text"] == told
    near = next(n for n in read["around"] if n["module"] == "takes")
    assert (near["state"], near["structure"][0]["text"]) == ("inputs agree in value", told)
    assert json.loads(json.dumps(trace_document(twinrun.compare_traces(a, b))))["text"] == read["text"]


# ---- parameters, gradients, what follows from others ----


def test_parameters_in_another_memory_format_are_named(tmp_path) -> None:
    def run(name: str, memory_format) -> str:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).to(memory_format=memory_format)
        with trace(model, tmp_path / name, on_error="raise") as t:
            model(torch.ones(1, 3, 5, 5))
            t.step()
        return str(tmp_path / name)

    a, b = run("a", torch.contiguous_format), run("b", torch.channels_last)
    told = {str(d) for d in twinrun.compare_traces(a, b).structure}
    assert "parameter weight is row-major in a and has strides (27, 1, 9, 3) in b" in told


def test_frozen_parameters_are_named(tmp_path) -> None:
    def run(name: str, frozen: bool) -> str:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        model[0].bias.requires_grad_(not frozen)
        with trace(model, tmp_path / name, on_error="raise") as t:
            model(torch.ones(1, 3))
            t.step()
        return str(tmp_path / name)

    found = twinrun.compare_traces(run("a", False), run("b", True))
    assert found.same
    assert [str(d) for d in found.structure] == ["parameter bias has requires_grad True in a and False in b"]


def test_a_gradient_of_other_strides_is_named_where_it_comes_in(tmp_path) -> None:
    class Turns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, turned):
            ctx.turned = turned
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.t().contiguous().t() if ctx.turned else gradient.contiguous(), None

    def run(name: str, turned: bool) -> str:
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        with trace(model, tmp_path / name, on_error="raise") as t:
            Turns.apply(model(torch.ones(3, 4)), turned).sum().backward()
            t.step()
        return str(tmp_path / name)

    told = [str(d) for d in twinrun.compare_traces(run("a", False), run("b", True)).structure]
    assert told[0] == "grad.0 is row-major in a and has strides (1, 3) in b"


def test_code_that_takes_it_from_an_inner_module_is_told(tmp_path) -> None:
    """The module whose own code is blamed got it from a module within."""

    class Gives(nn.Module):
        turned = False

        def forward(self, x):
            return {"q": x * 2, "p": x} if self.turned else {"p": x, "q": x * 2}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gives, self.last = Gives(), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(in_order(self.gives(x)))

    def run(name: str, turned: bool) -> str:
        torch.manual_seed(1)
        model = nn.Sequential(nn.ReLU(), Outer())
        model[1].gives.turned = turned
        with trace(model, tmp_path / name, on_error="raise") as t:
            model(torch.arange(12.0).reshape(3, 4) / 7)
            t.step()
        return str(tmp_path / name)

    first = twinrun.compare_traces(run("a", False), run("b", True)).first_divergence
    assert (first.site.module, first.module, first.reason) == ("1.last", "1", "input")
    assert [(d.name, d.what, d.site.module) for d in first.structure] == [("output", "keys", "1.gives")]
    assert "everything before agrees in value, but output has its keys in another order" in str(first)
    assert "at iteration 0, forward of 1.gives;" in str(first)


def test_an_event_of_one_run_alone_is_told_with_what_its_module_took(tmp_path) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.ReLU(), nn.Sigmoid()

        def forward(self, given):
            return self.one(given[0]) if isinstance(given, list) else self.other(given[0])

    class Outer(nn.Module):
        def __init__(self, kind) -> None:
            super().__init__()
            self.chooses, self.kind = Chooses(), kind

        def forward(self, x):
            return self.chooses(self.kind([x]))

    def run(name: str, kind) -> str:
        model = Outer(kind)
        with trace(model, tmp_path / name, on_error="raise") as t:
            model(torch.ones(2))
            t.step()
        return str(tmp_path / name)

    a, b = run("a", list), run("b", tuple)
    for one, other, kinds in ((a, b, ("list", "tuple")), (b, a, ("tuple", "list"))):
        first = twinrun.compare_traces(one, other).first_divergence
        assert first.reason == "unmatched"
        assert f"args.0 is a {kinds[0]} in a and a {kinds[1]} in b" in str(first)


# ---- what makes no difference ----


def test_traces_without_these_facts_compare_as_before(tmp_path) -> None:
    """Those of version 1 have none, and are no different for it."""
    give, give_b, look, _ = PLANTED["strides"]
    a = traced(tmp_path / "a", give, look)
    traced(tmp_path / "b", give_b, look)
    with twinrun.Run(tmp_path / "old") as run, twinrun.Run(tmp_path / "old_b") as run_b:
        for n in range(2):
            for path, into in (("a", run), ("b", run_b)):
                events = events_of(tmp_path / path, n)
                for e in events:
                    e.structure = None
                fields = encoded_events(events)
                text = (
                    fields["trace.events"]
                    .tobytes()
                    .replace(b'"version":2', b'"version":1', 1)
                    .replace(b"],null]", b"]]")
                )
                fields["trace.events"] = torch.frombuffer(bytearray(text), dtype=torch.uint8).numpy()
                into.capture(n, fields)
    old, old_b = str(tmp_path / "old"), str(tmp_path / "old_b")
    for one, other in ((a, old), (old, a), (old, old)):
        found = twinrun.compare_traces(one, other)
        assert found.same and not found.structure and not found.notes
    for one, other in ((old, old_b), (a, old_b), (old, str(tmp_path / "b"))):
        found = twinrun.compare_traces(one, other)
        assert found.verdict == "different" and not found.structure
        assert str(found.first_divergence).endswith("(Takes): inputs agree, outputs differ: output")


def test_other_shapes_are_no_other_strides(tmp_path) -> None:
    """A value of another shape is told as a value that differs, and once."""
    a, b = seen(torch.ones(2, 3), False), seen(torch.ones(3, 4).t(), False)
    assert differences(a, b) == []
    assert differences(seen([torch.ones(2).requires_grad_()], False), seen([], False)) == []


def test_names_that_are_changed_stay_comparable(tmp_path) -> None:
    def run(name: str, label: str) -> str:
        model = nn.Linear(2, 2)
        with trace(model, tmp_path / name, on_error="raise") as t:
            t.record(label, torch.ones(4, 3).t().requires_grad_())
            t.step()
        return str(tmp_path / name)

    found = twinrun.compare_traces(run("a", "new"), run("b", "old"), rename="old=new")
    assert not found.structure


def test_reports_in_text_list_what_differs_beside_the_values(tmp_path) -> None:
    give, give_b, look, told = PLANTED["list and tuple"]
    found = twinrun.compare_traces(traced(tmp_path / "a", give, look), traced(tmp_path / "b", give_b, look))
    assert f"  {told}" in trace_lines(found)
    assert repr(found.first_divergence.structure[0]).startswith("StructureDifference(")


def test_a_training_is_not_changed_and_does_not_fail_where_a_tensor_cannot_be_asked(tmp_path) -> None:
    """Sparse and nested tensors have no strides; those of transforms are other tensors below."""
    model = Takes(lambda x, *more: x * 2)
    with trace(model, tmp_path / "a", on_error="raise") as t:
        x = torch.ones(2, 3)
        model(x, x.to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), x.to("meta"))
        torch.func.vmap(model)(x)
        torch.func.grad(lambda x: model(x).sum())(x)
        t.step()
    forward = [e for e in events_of(tmp_path / "a") if e.phase == "forward"]
    assert not t.problems and len(forward) == 6
    assert "<args.1.values" not in forward[0].structure and ">output" in forward[-1].structure


# ---- what modules have of their own ----


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.name, self._hidden = scale, "a folder/of its own", object()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x) * self.scale


def of_modules(path, *, p=0.1, scale=1.0, unused=0, eval_at=9, drop=nn.Dropout) -> str:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), drop(p), Scaled(scale), nn.LayerNorm(4))
    model[0].unused = unused
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, path, optimizer=optimizer, on_error="raise"):
        for n in range(3):
            if n == eval_at:
                model[1].eval()
            for _ in range(2):
                model(torch.arange(12.0).reshape(3, 4) + n).sum().backward()
            optimizer.step()
    return str(path)


class OtherDropout(nn.Dropout):
    pass


@pytest.mark.parametrize(
    "other, iteration, module, told",
    [
        ({"p": 0.2}, 0, "1", "its p is 0.1 in a and 0.2 in b"),
        ({"eval_at": 1}, 1, "1", "its training is True in a and False in b"),
        ({"scale": 2.0}, 0, "2", "its scale is 1.0 in a and 2.0 in b"),
        ({"p": 0.2, "drop": OtherDropout}, 0, "1", "its class is Dropout in a and OtherDropout in b"),
    ],
)
def test_an_attribute_that_differs_is_named_where_the_difference_enters(
    tmp_path, other, iteration, module, told
) -> None:
    a, b = of_modules(tmp_path / "a"), of_modules(tmp_path / "b", **other)
    assert twinrun.compare_traces(a, of_modules(tmp_path / "again")).structure == []
    found = twinrun.compare_traces(a, b)
    first = found.first_divergence
    assert (first.site.iteration, first.site.module) == (iteration, module)
    assert told in [str(d) for d in first.structure] and told in str(found)
    (fact,) = [d for d in trace_document(found)["first_divergence"]["structure"] if d["text"] == told]
    assert fact["role"] == "module" and fact["name"] == "" and f"  {told}" in trace_lines(found)


def test_attributes_that_nothing_uses_make_no_difference(tmp_path) -> None:
    found = twinrun.compare_traces(of_modules(tmp_path / "a"), of_modules(tmp_path / "b", unused=1))
    assert found.same and {str(d) for d in found.structure} == {"its unused is 0 in a and 1 in b"}
    # Once in an iteration, not at each call.
    assert [d.site.iteration for d in found.structure] == [0, 1, 2]


def test_a_trace_without_attributes_of_modules_says_nothing_of_them(tmp_path, monkeypatch) -> None:
    a = of_modules(tmp_path / "a")
    monkeypatch.setattr("twinrun.torch.module_facts.OwnFacts.line", lambda self: "")
    found = twinrun.compare_traces(a, of_modules(tmp_path / "b", unused=1))
    assert found.same and found.structure == [] and not found.notes


def test_ranks_are_compared_in_attributes_of_modules(tmp_path) -> None:
    for rank, unused in enumerate((0, 0, 5)):
        of_modules(tmp_path / "a" / f"rank{rank:05d}", unused=unused)
    found = twinrun.compare_traces(tmp_path / "a", replicas=True)
    assert found.same and {str(d) for d in found.structure} == {"its unused is 0 in a and 5 in b"}


def test_facts_of_a_module_are_told_again_where_they_change() -> None:
    class Odd:
        def __eq__(self, other):
            raise AssertionError("the model's own code")

        __hash__ = None

    module = Scaled(1.0)
    module.odd, module.many, module.huge, module.shape = Odd(), tuple(range(9)), 10**5000, (1, 2.5)
    own = OwnFacts(module)
    assert own_facts(of_modules_alone(own.line())) == {
        "class": "Scaled",
        "training": "True",
        "scale": "1.0",
        "shape": "(1, 2.5)",
    }
    assert own.line() == ""
    module.odd, module.scale = Odd(), 2.0
    assert "scale=2.0" in own.line() and own.line() == ""
    module.scale = torch.ones(3)
    assert "scale" not in own.line() and own.line() == ""
    module.new = "word"
    assert "new=word" in own.line()
    own.begin_iteration()
    assert "new=word" in own.line()
    linear = OwnFacts(nn.Linear(2, 2))
    assert "device=cpu" in linear.line()
    linear.module.to("meta")
    assert "device=meta" in linear.line()


def of_modules_alone(line: str) -> str:
    return facts_of(line)[False, "", OWN]
