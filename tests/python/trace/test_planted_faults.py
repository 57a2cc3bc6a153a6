"""A fault in a training is found, and the module is named in which it was planted."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from faults import AT, FAULTS, Fault  # noqa: E402
from trainings import MODELS, traced_training  # noqa: E402

import twinrun  # noqa: E402


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    made = {}

    def reference(kind: str, level: str) -> str:
        if (kind, level) not in made:
            path = tmp_path_factory.mktemp("reference") / f"{kind}-{level}"
            made[kind, level] = str(path), traced_training(kind, path, level=level).bits()
        return made[kind, level]

    return reference


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 50
    assert {f.model for f in FAULTS} == set(MODELS)
    assert len({(f.model, f.name) for f in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.model}: {f.name}")
def test_names_the_module(fault: Fault, references, tmp_path) -> None:
    reference, _ = references(fault.model, fault.level)
    traced_training(fault.model, tmp_path / "b", fault.plant, level=fault.level)
    found = twinrun.compare_traces(reference, tmp_path / "b")
    first = found.first_divergence
    assert found.verdict == "different", str(found)
    assert (first.module, first.site.iteration) == (fault.module, AT), str(found)
    assert first.site.phase == fault.phase, str(found)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("level", ["modules", "ops"])
def test_nothing_planted_nothing_found(kind: str, level: str, references, tmp_path) -> None:
    reference, bits = references(kind, level)
    again = traced_training(kind, tmp_path / "b", level=level)
    found = twinrun.compare_traces(reference, tmp_path / "b")
    assert found.verdict == "same" and found.same and not found.problems, str(found)
    assert again.bits() == bits
