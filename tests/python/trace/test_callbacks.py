"""Callbacks of trainers: what they trace is what a loop of one's own would."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402

import twinrun  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402


class Data(torch.utils.data.Dataset):
    def __init__(self, wrong: bool) -> None:
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(16, 4, generator=g)
        if wrong:
            self.x[9, 2] += 2**-10

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int):
        return {"x": self.x[at], "labels": self.x[at].sum()}


def check(tmp_path, run, iterations: int) -> None:
    for name, wrong in (("a", False), ("b", False), ("c", True)):
        run(tmp_path, name, wrong)
    assert TraceSubject(tmp_path / "a").iterations(0) == list(range(iterations))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert (first.site.iteration, first.reason) == (2, "input")


def test_transformers(tmp_path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: make test-torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers: make test-torch")
    from twinrun.torch.transformers import TraceCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x, labels=None):
            y = self.inner(x).squeeze(-1)
            return {"loss": (y - labels).square().mean(), "logits": y}

    def run(folder, name: str, wrong: bool) -> None:
        transformers.set_seed(1)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / f"out-{name}"), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip

        class InOrder(transformers.Trainer):
            def _get_train_sampler(self, *given):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        InOrder(
            model=Model(), args=arguments, train_dataset=Data(wrong),
            callbacks=[TraceCallback(folder / name, on_error="raise")],
        ).train()  # fmt: skip

    check(tmp_path, run, 4)


def test_a_training_of_transformers_that_fails(tmp_path) -> None:
    """Trainer has no callback for it: a `with` ends the trace, or what comes next."""
    pytest.importorskip("accelerate", reason="needs accelerate: make test-torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers: make test-torch")
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    from twinrun.torch.transformers import TraceCallback

    class Model(nn.Module):
        fails = True

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)
            self.calls = 0

        def forward(self, x, labels=None):
            self.calls += 1
            if self.fails and self.calls == 3:
                raise ValueError("mine")
            return {"loss": (self.inner(x).squeeze(-1) - labels).square().mean()}

    def trainer(callback) -> transformers.Trainer:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        return transformers.Trainer(
            model=Model(), args=arguments, train_dataset=Data(False), callbacks=[callback]
        )

    def hooks(made: transformers.Trainer) -> int:
        return len(made.model._forward_pre_hooks) + len(made.model.inner._forward_hooks)

    with pytest.raises(ValueError, match="mine"), TraceCallback(tmp_path / "a", level="ops") as callback:
        failed = trainer(callback)
        failed.train()
    assert hooks(failed) == 0 and _get_current_dispatch_mode() is None
    assert TraceSubject(tmp_path / "a").iterations(0) == [0, 1, 2]
    # Without it the next training ends what was left.
    callback = TraceCallback(tmp_path / "b", level="ops", existing="replace")
    again = trainer(callback)
    with pytest.raises(ValueError, match="mine"):
        again.train()
    assert hooks(again) == 2
    again.model.fails = False
    again.train()
    assert hooks(again) == 0 and _get_current_dispatch_mode() is None
    # Operations after the last step of the optimizer are one more.
    assert TraceSubject(tmp_path / "b").iterations(0) == [0, 1, 2, 3, 4]
    # So does its own end, which hurts no other mode.
    callback = TraceCallback(tmp_path / "c", level="ops")
    last = trainer(callback)
    with pytest.raises(ValueError, match="mine"):
        last.train()
    with torch.utils._python_dispatch.TorchDispatchMode() as other:
        callback.__del__()
        assert _get_current_dispatch_mode() is other
    assert hooks(last) == 0
    _get_current_dispatch_mode().__exit__(None, None, None)
    assert _get_current_dispatch_mode() is None


def test_lightning(tmp_path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning: make test-torch")
    from lightning.pytorch.plugins.environments import LightningEnvironment

    from twinrun.torch.lightning import TraceCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def training_step(self, batch, number):
            return (self.inner(batch["x"]).squeeze(-1) - batch["labels"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def run(folder, name: str, wrong: bool) -> None:
        torch.manual_seed(1)
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[TraceCallback(folder / name, on_error="raise")],
            # Without this it looks for an MPI, and starts it where mpi4py is installed.
            plugins=[LightningEnvironment()],
            default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(Data(wrong), batch_size=4))

    check(tmp_path, run, 4)
