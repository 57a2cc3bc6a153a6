"""A fault in a training is found, and the module is named in which it was planted."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from faults import AT, FAULTS, Fault  # noqa: E402
from processes import checked  # noqa: E402
from trainings import MODELS, traced_training  # noqa: E402

import twinrun  # noqa: E402


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    made = {}

    def reference(kind: str, level: str) -> str:
        if (kind, level) not in made:
            path = tmp_path_factory.mktemp("reference") / f"{kind}-{level}"
            made[kind, level] = str(path), traced_training(kind, path, level=level, last=AT + 1).bits()
        return made[kind, level]

    return reference


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 200 and sum(f.level == "ops" for f in FAULTS) >= 25
    assert {f.model for f in FAULTS} == set(MODELS)
    assert len({(f.model, f.name) for f in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.model}: {f.name}")
def test_names_the_module(fault: Fault, references, tmp_path) -> None:
    reference, _ = references(fault.model, fault.level)
    traced_training(fault.model, tmp_path / "b", fault.plant, level=fault.level, last=AT + 1)
    found = twinrun.compare_traces(reference, tmp_path / "b")
    first = found.first_divergence
    assert found.verdict == "different", str(found)
    assert (first.module, first.site.iteration) == (fault.module, AT), str(found)
    assert first.site.phase == fault.phase, str(found)
    assert fault.operation in first.site.operation, str(found)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_a_lossy_sum_of_gradients(tmp_path) -> None:
    """Both processes get the same wrong sum: what goes into the optimizer differs, and nothing before it."""
    checked(tmp_path, 2, "lossy")
    for name in ("lossy", "dropped"):
        found = twinrun.compare_traces(tmp_path / "exact", tmp_path / name)
        assert sorted(found.firsts) == [0, 1] and found.verdict == "different"
        for first in found.firsts.values():
            assert (first.site.iteration, first.site.phase, first.module, first.reason) == (
                1,
                "optimizer",
                "0",
                "input",
            )
            assert {v.role for v in first.values} == {"gradient"}
        # Among themselves the processes agree.
        assert twinrun.compare_traces(tmp_path / name, replicas=True).same


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("level", ["modules", "ops"])
def test_nothing_planted_nothing_found(kind: str, level: str, references, tmp_path) -> None:
    reference, bits = references(kind, level)
    again = traced_training(kind, tmp_path / "b", level=level, last=AT + 1)
    found = twinrun.compare_traces(reference, tmp_path / "b")
    assert found.verdict == "same" and found.same and not found.problems, str(found)
    assert again.bits() == bits
