"""Traces that are compared while they are made: with a reference, and among data-parallel processes."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from faults import AT, kernel  # noqa: E402
from processes import checked, ended  # noqa: E402
from trainings import ITERATIONS, Training, one_thread, traced_training  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import TraceDiverged, trace  # noqa: E402
from twinrun.torch.stopping import StopMark  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402

PROGRAM = Path(__file__).with_name("parallel_training.py")


def test_a_reference_stops_the_training(tmp_path) -> None:
    traced_training("transformer", tmp_path / "a")
    same = traced_training("transformer", tmp_path / "b", reference=tmp_path / "a", on_divergence="stop")
    assert len(same.losses) == 2 * ITERATIONS
    plant = kernel("layers.1.attn.proj")
    with one_thread():
        training = Training("transformer")
        plant(training)
        with pytest.raises(TraceDiverged, match=r"layers\.1\.attn\.proj") as stopped:
            with trace(
                training.model, tmp_path / "c", optimizer=training.optimizer, reference=tmp_path / "a",
                on_divergence="stop", rng="all",
            ) as traced:  # fmt: skip
                training.run(traced)
    assert stopped.value.origin.module == "layers.1.attn.proj" and stopped.value.origin.site.iteration == AT
    assert len(training.losses) == 2 * (AT + 1)
    # What was traced until then is there, and comparing it says the same.
    assert TraceSubject(tmp_path / "c").iterations(0) == list(range(AT + 1))
    assert (
        twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence.site
        == stopped.value.origin.site
    )


def test_a_reference_calls_back_once(tmp_path) -> None:
    traced_training("lstm", tmp_path / "a")
    found = []
    training = traced_training(
        "lstm", tmp_path / "b", kernel("head"), reference=tmp_path / "a", on_divergence=found.append
    )
    assert [o.module for o in found] == ["head"] and len(training.losses) == 2 * ITERATIONS
    with pytest.warns(RuntimeWarning, match=rf"differs from .*: iteration {AT}, forward of head"):
        traced_training("lstm", tmp_path / "c", kernel("head"), reference=tmp_path / "a")


def test_a_reference_that_ends_early_is_no_agreement(tmp_path) -> None:
    with one_thread():
        training = Training("lstm")
        with trace(training.model, tmp_path / "a", optimizer=training.optimizer) as traced:
            training.run(traced, last=1)
        training = Training("lstm")
        with trace(
            training.model,
            tmp_path / "b",
            optimizer=training.optimizer,
            reference=tmp_path / "a",
            on_error="raise",
        ) as traced:
            training.run(traced)
    assert any("no iteration 1" in p for p in traced.problems)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "incomparable"


@pytest.mark.parametrize("how", ["warn", "raise"])
def test_what_a_callback_raises_is_the_trainings(how: str, tmp_path) -> None:
    traced_training("lstm", tmp_path / "a")

    def fails(origin) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        traced_training(
            "lstm",
            tmp_path / "b",
            kernel("head"),
            reference=tmp_path / "a",
            on_divergence=fails,
            on_error=how,
        )
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict != "same" and found.first_divergence is not None


def ranks(tmp_path, how: str) -> list[tuple[int, str]]:
    return ended(PROGRAM, tmp_path, 2, how, statuses=(0, 3))


@pytest.mark.usefixtures("job_device")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
class TestProcesses:
    def test_data_parallel_processes(self, tmp_path) -> None:
        plain, right = ranks(tmp_path, "untraced"), ranks(tmp_path, "right")
        assert plain == right and plain[0] == plain[1]
        assert TraceSubject(tmp_path / "right").ranks == [0, 1]
        assert ranks(tmp_path, "batch") != right
        first = twinrun.compare_traces(tmp_path / "right", tmp_path / "batch").firsts
        # The gradients of rank 0 change too, by what rank 1 adds to them.
        assert first[1].reason == "input" and (first[1].site.iteration, first[1].site.module) == (2, "")
        assert (first[0].site.iteration, first[0].site.phase) == (2, "optimizer")

    def test_replicas_that_differ_stop_before_the_step(self, tmp_path) -> None:
        for status, out in ranks(tmp_path, "wrong"):
            assert status == 3 and "differ (0, 1) 2.bias" in out and "iteration 2" in out

    def test_sharded_parameters(self, tmp_path) -> None:
        pytest.importorskip("torch.distributed.fsdp", reason="no FSDP")
        if not hasattr(torch.distributed.fsdp, "fully_shard"):
            pytest.skip(f"PyTorch {torch.__version__} has no fully_shard")
        one, two = ranks(tmp_path, "fsdp"), TraceSubject(tmp_path / "fsdp")
        assert ranks(tmp_path, "fsdp untraced") == one
        assert two.ranks == [0, 1] and one[0] == one[1]
        again = tmp_path / "again"
        again.mkdir()
        assert ranks(again, "fsdp") == one
        found = twinrun.compare_traces(tmp_path / "fsdp", again / "fsdp")
        assert found.verdict == "same", (str(found), found.problems[:3])

    @pytest.mark.parametrize("how", ["ops", "fsdp ops"])
    def test_operations_of_processes(self, tmp_path, how: str) -> None:
        """What a collective gives is there when the program waited for it: it is compared where it is used."""
        if how.startswith("fsdp") and not hasattr(
            pytest.importorskip("torch.distributed.fsdp"), "fully_shard"
        ):
            pytest.skip(f"PyTorch {torch.__version__} has no fully_shard")
        again = tmp_path / "again"
        again.mkdir()
        assert ranks(tmp_path, how) == ranks(again, how)
        found = twinrun.compare_traces(tmp_path / how, again / how)
        assert found.verdict == "same", (str(found), found.problems[:3])
        ranks(tmp_path, f"{how} batch")
        found = twinrun.compare_traces(tmp_path / how, tmp_path / f"{how} batch")
        assert found.verdict == "different"
        # Nothing before the iteration in which rank 1 has another input is to blame, on either rank.
        assert {o.site.iteration for o in found.firsts.values()} == {2}
        assert (found.firsts[1].reason, found.firsts[1].site.phase) == ("unmatched", "outside")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_a_mark_in_a_store() -> None:
    store = torch.distributed.HashStore()
    first, second = StopMark(store), StopMark(store)
    assert first.since(9) is None
    assert second.put(3, "rank 1: x\ny\udc80")
    # All stop at the same place: not in the iteration of the mark, which some of them ended before it was there.
    assert first.since(3) is None and second.since(3) is None
    assert first.since(4) == second.since(4) == "rank 1: x\ny?"
    # Marks of a trace before do not count, and a store that fails has none.
    assert StopMark(store).since(9) is None

    class Lost:
        calls = 0

        def add(self, key, number):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("the connection was lost")
            return 0

        def set(self, key, text):
            raise RuntimeError("the connection was lost")

    lost = StopMark(Lost())
    assert not lost.put(1, "x") and lost.since(9) is None
    assert StopMark.of_the_job() is None


@pytest.mark.usefixtures("job_device")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
class TestProcessesThatMeet:
    """What goes wrong in one process leaves no other one waiting."""

    def test_two_processes(self, tmp_path) -> None:
        checks = (
            "untraced",
            "full_disk",
            "no_digests",
            "no_digests_raise",
            "quantized",
            "stop",
            "alone",
            "default_device",
            "traced_captures",
        )
        zero, one = checked(tmp_path, 2, *checks)
        bits = zero["untraced"]
        assert one["untraced"] == bits
        # The trace of one process stopped; both count the same iterations, and the training is as it would be.
        assert (zero["full_disk"], one["full_disk"]) == (f"False 5 {bits}", f"True 5 {bits}")
        for said in (zero, one):
            assert said["no_digests"].startswith("False ['iteration 1: replicas: ")
            assert "rank 1 has no digests: RuntimeError: a device fails'] " in said["no_digests"]
            assert said["no_digests"].endswith(bits)
            assert said["no_digests_raise"].startswith(
                "raised: iteration 1: replicas were not compared: rank 1"
            )
            assert said["quantized"] == "(0, 1) ('2.bias',) 4 2"
        assert zero["alone"] == one["alone"] == bits
        for name in ("short", "a-longer-name"):
            found = twinrun.compare_traces(tmp_path / "traced-none", tmp_path / f"traced-{name}")
            assert found.verdict == "same", (str(found), found.problems[:3])
        assert zero["default_device"] == one["default_device"] == "[0] True"
        # All end after the iteration that follows; in the last one, only the process that differs.
        assert zero["stop"] == "5 ended | 5 ended | 3 another | 5 ended"
        assert one["stop"] == "5 ended | 5 ended | 3 itself | 5 itself"

    def test_the_trace_of_replicas_that_differ_says_so(self, tmp_path) -> None:
        for one in checked(tmp_path, 2, "one_gradient"):
            assert one["one_gradient"] == "('2.bias.grad',) 2"
        found = twinrun.compare_traces(tmp_path / "gradient", replicas=True)
        first = found.first_divergence
        assert found.verdict == "different" and first is not None
        assert (first.site.iteration, first.site.phase, [v.name for v in first.values]) == (
            2,
            "optimizer",
            ["2.bias.grad"],
        )

    def test_replicas_under_other_conditions_are_told(self, tmp_path) -> None:
        said = (
            "['twinrun: replicas run under different conditions: "
            "python.cudnn_benchmark: False (rank 0, 2) | True (rank 1)'] []"
        )
        assert [one["conditions"] for one in checked(tmp_path, 3, "conditions")] == [said] * 3
        (found,) = twinrun.compare_traces(tmp_path / "conditions", replicas=True).conditions
        assert (found.name, found.a, found.b) == (
            "cudnn_benchmark",
            "False (rank 0, 2)",
            "True (rank 1)",
        )

    def test_groups_of_replicas(self, tmp_path) -> None:
        right = "agree 3 0 | (1, 3) ('weight',) True | (1, 3) ('both@local',) True"
        wrong = "ReplicasDiffer True | TwinrunError True | TwinrunError True"
        assert [said["grid"] for said in checked(tmp_path, 4, "grid")] == [f"{right} | {wrong}"] * 4


def recording(path, last: int, changed: int = -1, after: bool = True, first: int = 0, **options) -> None:
    """A training that records its loss after the optimizer's step, or before it."""
    from torch import nn

    torch.manual_seed(4)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with trace(model, path, optimizer=optimizer, start=first, on_error="raise", **options) as traced:
        for n in range(first, last):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), float(n))).sum()
            loss.backward()
            told = loss.detach() + (2**-10 if n == changed else 0)
            if not after:
                traced.record("loss", told)
            optimizer.step()
            if after:
                traced.record("loss", told)


def test_a_value_recorded_before_the_step_belongs_to_its_iteration(tmp_path) -> None:
    recording(tmp_path / "a", 4, after=False)
    recording(tmp_path / "b", 4, 2, after=False)
    assert TraceSubject(tmp_path / "a").iterations(0) == [0, 1, 2, 3]
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.phase, first.site.iteration) == ("record", 2)


@pytest.mark.parametrize("rng", ["torch", "all"])
def test_values_recorded_after_the_last_step(tmp_path, rng: str) -> None:
    recording(tmp_path / "short", 3, rng=rng)
    recording(tmp_path / "long", 5, rng=rng)
    recording(tmp_path / "wrong", 3, 2, rng=rng)
    for pair in (("short", "long"), ("long", "short")):
        a, b = (tmp_path / name for name in pair)
        found = twinrun.compare_traces(a, b, common=True)
        assert found.same, found.problems
        assert any("only values recorded after the last step" in note for note in found.notes)
        assert twinrun.compare_traces(a, b).verdict == "incomparable"
    # They are compared all the same.
    for a, b in (("wrong", "long"), ("long", "wrong"), ("short", "wrong")):
        found = twinrun.compare_traces(tmp_path / a, tmp_path / b, common=True)
        assert found.verdict == "different" and found.first_divergence.site.phase == "record"
    # An iteration that one run lacks is none that ended.
    recording(tmp_path / "resumed", 5, first=3, rng=rng)
    assert (
        twinrun.compare_traces(tmp_path / "short", tmp_path / "resumed", common=True).verdict
        == "incomparable"
    )


@pytest.mark.parametrize("rng", ["torch", "all"])
def test_a_reference_and_values_recorded_after_the_last_step(tmp_path, rng: str) -> None:
    recording(tmp_path / "long", 5, rng=rng)
    recording(tmp_path / "short", 3, rng=rng, reference=tmp_path / "long", on_divergence="stop")
    recording(tmp_path / "longer", 5, rng=rng, reference=tmp_path / "short", on_divergence="stop")
    found: list = []
    recording(tmp_path / "wrong", 3, 2, rng=rng, reference=tmp_path / "long", on_divergence=found.append)
    recording(tmp_path / "wrong2", 5, 2, rng=rng, reference=tmp_path / "short", on_divergence=found.append)
    assert [(o.site.phase, o.site.iteration) for o in found] == [("record", 3)] * 2


def test_conditions_are_those_of_this_process(monkeypatch) -> None:
    """In a folder of its own a process is rank 0; one folder of all has the conditions of all."""
    from types import SimpleNamespace

    from twinrun.torch import replica_checks

    def told(*ranks: int) -> str:
        entries = [SimpleNamespace(rank=r, json=f"of {r}") for r in ranks]
        core = SimpleNamespace(open_history=lambda path: SimpleNamespace(provenance=entries))
        monkeypatch.setattr(replica_checks, "_core", core)
        run = SimpleNamespace(run=SimpleNamespace(path="a"))
        return replica_checks.ReplicaChecks(1, None, None, None, run, [])._conditions()

    monkeypatch.setattr(replica_checks, "rank", lambda: 1)
    assert (told(0, 1, 2), told(0, 0), told()) == ("of 1", "of 0", "")
