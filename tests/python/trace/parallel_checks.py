"""What several processes of one job meet, one after the other: `parallel_checks.py RANK RANKS DEVICE STORE FOLDER CHECK...`.

Each check prints one line that begins with its name.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import begin, end, here
from torch import nn
from trainings import Full

import twinrun
import twinrun.torch.replicas
from twinrun.torch import ParallelRun, ReplicasDiffer, TraceDiverged, trace

ITERATIONS = 5


class Job:
    """A data-parallel training of a small model."""

    def __init__(self, rank: int, group=None) -> None:
        torch.manual_seed(5)
        self.rank = rank
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.model = nn.parallel.DistributedDataParallel(self.inner, process_group=group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.data = torch.Generator(torch.get_default_device()).manual_seed(rank)

    def run(self, during=lambda n: None, traced=None) -> None:
        for n in range(ITERATIONS):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(6, 4, generator=self.data)).square().mean()
            during(n)
            loss.backward()
            if traced is not None:
                traced.record("mine", loss)
            self.optimizer.step()

    def bits(self) -> str:
        return " ".join(str(d) for d in twinrun.digest(dict(self.inner.named_parameters())).values())


def untraced(rank: int, folder: Path) -> str:
    job = Job(rank)
    job.run()
    return job.bits()


def full_disk(rank: int, folder: Path) -> str:
    """The trace of one process stops in iteration 1, and iterations 0, 2 and 4 compare replicas."""
    job = Job(rank)
    with trace(job.model, folder / "full", optimizer=job.optimizer, replicas=2) as traced:

        def during(n: int) -> None:
            if rank == 1 and n == 1:
                traced.run = Full(traced.run)

        job.run(during)
    return f"{traced.stopped} {traced.iteration} {job.bits()}"


def no_digests(rank: int, folder: Path, how: str = "warn") -> str:
    """One process cannot digest anything in iteration 1."""
    job = Job(rank)
    usual = twinrun.torch.replicas.digests_of

    def broken(*given):
        raise RuntimeError("a device fails")

    def during(n: int) -> None:
        twinrun.torch.replicas.digests_of = broken if (rank, n) == (1, 1) else usual

    try:
        with trace(
            job.model, folder / f"no-{how}", optimizer=job.optimizer, replicas=True, on_error=how
        ) as t:
            job.run(during)
    except twinrun.TwinrunError as e:
        return f"raised: {e}"
    finally:
        twinrun.torch.replicas.digests_of = usual
    return f"{t.stopped} {t.problems} {job.bits()}"


def no_digests_raise(rank: int, folder: Path) -> str:
    return no_digests(rank, folder, "raise")


def quantized(rank: int, folder: Path) -> str:
    """A value that no process can digest hides no other one."""
    job = Job(rank)

    def during(n: int) -> None:
        if (rank, n) == (1, 2):
            with torch.no_grad():
                job.inner[2].bias[1] += 2**-20

    # AdamW finds a state that it did not make, and would not make its own.
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)
    for p in job.inner.parameters():
        job.optimizer.state[p]["scale"] = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    try:
        with trace(job.model, folder / "quantized", optimizer=job.optimizer, replicas=True) as traced:
            job.run(during)
    except ReplicasDiffer as e:
        return f"{e.ranks} {e.names} {sum('scale was not compared' in p for p in traced.problems)} {traced.iteration}"
    return "no difference was found"


def one_gradient(rank: int, folder: Path) -> str:
    """One process has another gradient, in iteration 2: the trace has what differs."""
    job = Job(rank)

    def other(optimizer, args, kwargs) -> None:
        if (rank, traced.iteration) == (1, 2):
            job.inner[2].bias.grad[1] += 2**-10

    try:
        with trace(job.model, folder / "gradient", optimizer=job.optimizer, replicas=True) as traced:
            job.optimizer.register_step_pre_hook(other)
            job.run()
    except ReplicasDiffer as e:
        return f"{e.names} {traced.iteration}"
    return "no difference was found"


def stop(rank: int, folder: Path) -> str:
    """One process alone differs from its reference, in iteration 1."""
    told = []
    for where in ("reference", None, 1, ITERATIONS - 1):
        job = Job(rank)
        steps = []
        on = {} if where == "reference" else {"reference": folder / "reference", "on_divergence": "stop"}
        try:
            with trace(
                job.model, folder / str(where), optimizer=job.optimizer, every=1 + (where is None), **on
            ) as t:

                def during(n: int, steps=steps, t=t, where=where) -> None:
                    steps.append(n)
                    t.record("other", float((rank, n) == (1, where)))

                job.run(during, t)
            told.append(f"{len(steps)} ended")
        except TraceDiverged as e:
            said = "itself" if e.origin is not None else "another" if "another process" in str(e) else str(e)
            told.append(f"{len(steps)} {said}")
        dist.barrier()
    return " | ".join(told)


def default_device(rank: int, folder: Path) -> str:
    """What the program makes lies elsewhere unless it says where; what twinrun makes does not."""
    x = torch.arange(12.0)
    with torch.device("meta"), ParallelRun(folder / "default-run") as run:
        run.capture(0, {"x": x, "own": x + rank}, local=["own"])
        steps = run.steps
    bits = []
    for traced in (False, True):
        job = Job(rank)
        optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)  # AdamW's own counters follow the default
        data = [torch.randn(6, 4, generator=job.data) for _ in range(ITERATIONS)]
        with torch.device("meta"), contextlib.ExitStack() as stack:
            if traced:
                on = {"optimizer": optimizer, "replicas": True, "on_error": "raise"}
                stack.enter_context(trace(job.model, folder / "default", **on))
            for one in data:
                optimizer.zero_grad()
                job.model(one).square().mean().backward()
                optimizer.step()
        bits.append(job.bits())
    return f"{steps} {bits[0] == bits[1]}"


def traced_captures(rank: int, folder: Path) -> str:
    """What a run of several processes does for itself is no operation of the training."""
    for name in ("none", "short", "a-longer-name"):
        job = Job(rank)
        on = {"optimizer": job.optimizer, "level": "ops", "on_error": "raise"}
        with trace(job.model, folder / f"traced-{name}", **on), contextlib.ExitStack() as stack:
            if name == "none":
                job.run()
                continue
            run = stack.enter_context(ParallelRun(folder / name))
            job.run(lambda n, run=run, job=job: run.capture(n, {"model": job.model}))
    return "done"


def alone(rank: int, folder: Path) -> str:
    """One process alone is traced: the other one neither waits nor is waited for."""
    for name in ("one", "two"):
        job = Job(rank)
        if rank == 1:
            job.run()
            continue
        on = {} if name == "one" else {"reference": folder / "one", "on_divergence": "stop"}
        with trace(job.model, folder / name, optimizer=job.optimizer, on_error="raise", **on) as traced:
            job.run(traced=traced)
    return job.bits()


def lossy(rank: int, folder: Path) -> str:
    """Gradients pass through bfloat16 on their way to the other process, in iteration 1 of the second run."""
    for name in ("exact", "lossy", "dropped"):
        job = Job(rank)
        at = [0]

        def reduce(state, bucket, name=name, at=at):
            buffer = bucket.buffer()
            if at[0] == 1 and name == "lossy":
                buffer.copy_(buffer.bfloat16())
            if (at[0], rank, name) == (1, 1, "dropped"):
                buffer.zero_()
            summed = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
            return summed.get_future().then(lambda f: f.value()[0])

        job.model.register_comm_hook(None, reduce)
        with trace(job.model, folder / name, optimizer=job.optimizer, replicas=True, on_error="raise"):
            job.run(lambda n, at=at: at.__setitem__(0, n))
    return "done"


def grid(rank: int, folder: Path) -> str:
    """Four processes: two hold one part of a model, two the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(here(), (2, 2), mesh_dim_names=("dp", "tp"))
    tp = rank % 2
    told = []
    for wrong in (None, "plain", "part"):
        torch.manual_seed(tp)  # ranks 0 and 2 hold one half, 1 and 3 the other
        model = nn.Linear(4, 4)
        torch.manual_seed(9)
        model.whole = nn.Parameter(
            distribute_tensor(torch.randn(4, 4), mesh["tp"], [Shard(0)], src_data_rank=None)
        )
        model.both = nn.Parameter(
            distribute_tensor(torch.randn(4, 4), mesh, [Replicate(), Shard(0)], src_data_rank=None)
        )
        model.sharded = nn.Parameter(  # no process holds what another one does
            distribute_tensor(torch.randn(4, 4), mesh, [Shard(0), Shard(1)], src_data_rank=None)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with trace(
                model, folder / f"grid-{wrong}", optimizer=optimizer, replicas=True, group=mesh["dp"]
            ) as t:
                for n in range(3):
                    if rank == 3 and n == 1 and wrong is not None:
                        with torch.no_grad():
                            changed = model.weight if wrong == "plain" else model.both.to_local()
                            changed.view(-1)[2] += 2**-10
                    optimizer.zero_grad()
                    model(torch.ones(1, 4)).sum().backward()
                    optimizer.step()
            told.append(f"agree {t.iteration} {len(t.problems)}")
        except ReplicasDiffer as e:
            told.append(f"{e.ranks} {e.names} {'iteration 1' in str(e)}")
        dist.barrier()
    # All processes together hold two kinds of values.
    model = nn.Linear(4, 4, bias=tp == 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for group in (None, mesh, "dp"):
        try:
            with trace(
                model, folder / f"grid-{type(group)}", optimizer=optimizer, replicas=True, group=group
            ):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        except twinrun.TwinrunError as e:
            told.append(f"{type(e).__name__} {'group' in str(e)}")
    return " | ".join(told)


def conditions(rank: int, folder: Path) -> str:
    """Process 1 has another flag than the others. It is said once, and the values agree."""
    usual = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = rank == 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        job = Job(rank)
        with trace(job.model, folder / "conditions", optimizer=job.optimizer, replicas=True) as traced:
            job.run()
    torch.backends.cudnn.benchmark = usual
    said = [str(w.message) for w in seen if "different conditions" in str(w.message)]
    return f"{said} {traced.problems}"


def main(rank: int, ranks: int, kind: str, store: str, folder: str, *checks: str) -> int:
    warnings.simplefilter("ignore")
    begin(rank, ranks, kind, store)
    for name in checks:
        print(f"{name}: {globals()[name](rank, Path(folder))}", flush=True)
        dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    rank, ranks, *rest = sys.argv[1:]
    end(main(int(rank), int(ranks), *rest))
