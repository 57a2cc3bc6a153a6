"""A process of a job that captures sharded tensors: `sharded_runs.py RANK RANKS DEVICE STORE FOLDER SCENARIO…`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import begin, end, here
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import twinrun
from twinrun.runs.opening import open_subject
from twinrun.torch import ParallelRun, ReplicasDiffer, Sharded, trace


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def captured(what: nn.Module, folder: Path, ranks: int) -> None:
    """The training of three steps, with every state of it."""
    optimizer = torch.optim.AdamW(what.parameters(), lr=1e-2)
    data = torch.Generator(torch.get_default_device()).manual_seed(9)
    with ParallelRun(folder, atol=1e-5) as run:
        for step in range(3):
            run.capture(step, {"model": what, "optimizer": optimizer})
            optimizer.zero_grad()
            what(torch.randn(8, 6, generator=data)).square().mean().backward()
            optimizer.step()


def plain(rank: int, ranks: int, folder: Path) -> None:
    captured(model(), folder / f"plain{ranks}", ranks)


def ddp(rank: int, ranks: int, folder: Path) -> None:
    captured(nn.parallel.DistributedDataParallel(model()).module, folder / f"ddp{ranks}", ranks)


def fsdp(rank: int, ranks: int, folder: Path) -> None:
    mesh = init_device_mesh(here(), (ranks,))
    what = model()
    fully_shard(what[0], mesh=mesh)
    captured(fully_shard(what, mesh=mesh), folder / f"fsdp{ranks}", ranks)


def tp(rank: int, ranks: int, folder: Path) -> None:
    mesh = init_device_mesh(here(), (ranks,), mesh_dim_names=("tp",))
    what = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    captured(what, folder / f"tp{ranks}", ranks)


def grid(rank: int, ranks: int, folder: Path) -> None:
    """FSDP2 over tensor parallelism: strided shards."""
    mesh = init_device_mesh(here(), (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    what = parallelize_module(model(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    captured(fully_shard(what, mesh=mesh["dp"]), folder / f"grid{ranks}", ranks)


def uneven(rank: int, ranks: int, folder: Path) -> None:
    """Every size of a dimension and every order of placements, against the whole."""
    mesh = init_device_mesh(here(), (ranks,))
    values = {f"{n}": torch.arange(n * 3.0).reshape(n, 3) + n for n in range(6)}
    values["0d"] = torch.tensor(4.5)
    with ParallelRun(folder / f"uneven{ranks}") as run:
        for step, placement in enumerate((Shard(0), Shard(1), Replicate())):
            run.capture(
                step,
                {
                    n: distribute_tensor(v, mesh, [Replicate() if v.ndim == 0 else placement])
                    for n, v in values.items()
                },
            )


def fused(rank: int, ranks: int, folder: Path) -> None:
    """Query, key and value in one tensor: each process has a piece of each."""
    torch.manual_seed(3)
    q, k, v = torch.randn(8, 4), torch.randn(4, 4), torch.randn(4, 4)
    mine = torch.cat([one.chunk(ranks)[rank] for one in (q, k, v)])
    how = Sharded(0, (8, 4, 4), group=dist.group.WORLD)
    with ParallelRun(folder / f"fused{ranks}") as run:
        run.capture(0, {"qkv.weight": mine, "norm": torch.ones(4)}, sharded={"*.weight": how})


def refused(rank: int, ranks: int, folder: Path) -> None:
    """What has no place, and what differs: said on all processes, and nothing is captured."""
    mesh = init_device_mesh(here(), (ranks,), mesh_dim_names=("tp",))
    with ParallelRun(folder / "refused") as run:
        summand = DTensor.from_local(torch.ones(4), mesh, [Partial()])
        _say(run, "partial", {"x": summand})
        _say(run, "differ", {"y": torch.full((3,), float(rank)), "z": torch.ones(2)})
        _say(run, "broken", {"y": object() if rank == 1 else torch.ones(2)})
        try:
            how = {"w": Sharded(0, 9, group=mesh["tp"])}
            run.capture(0, {"w": torch.ones(4)}, sharded=how)
        except twinrun.TwinrunError as e:
            print(f"size: {e}", flush=True)
        run.capture(7, {"y": torch.full((3,), float(rank)), "z": torch.ones(2)}, local=["y"])


def _say(run: ParallelRun, what: str, fields: dict, step: int = 0, **options) -> None:
    try:
        run.capture(step, fields, **options)
    except ReplicasDiffer as e:
        print(f"{what}: {e.ranks} {e.names} {e}", flush=True)
    except twinrun.TwinrunError as e:
        print(f"{what}: {e}", flush=True)


def subset(rank: int, ranks: int, folder: Path) -> None:
    """A run of some processes; then all of them make a group, and a run."""
    some = dist.new_group([0, 1])
    if rank < 2:
        for number in range(2):
            with ParallelRun(folder / f"some{number}", group=some) as run:
                run.capture(0, {"x": torch.ones(3)})
    else:
        try:
            ParallelRun(folder / "some", group=some)
        except twinrun.TwinrunError as e:
            print(f"outside: {e}", flush=True)
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group([*range(ranks)]))
    print(f"sum: {total.item()}", flush=True)
    with ParallelRun(folder / "all") as run:
        run.capture(0, {"x": torch.ones(3)})


def newest(rank: int, ranks: int, folder: Path) -> None:
    with ParallelRun(folder / "newest") as run:
        found = []
        for step in range(12):
            run.capture(step, {"x": torch.ones(3), "y": torch.ones(300_000 * rank + 1)}, local=["y"])
            found.append(run.latest())
        print(f"newest: {found}", flush=True)


# What two processes hold where both must hold the same.
UNLIKE = {
    "longer": (torch.zeros(3), torch.zeros(4)), "wider": (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    "dimension": (torch.zeros(3), torch.zeros(3, 1)), "scalar": (torch.zeros(()), torch.zeros(1)),
    "empty": (torch.zeros(0), torch.zeros(0, 3)), "list": ([1, 2], [1, 2, 3]), "kind": (1, 1.0), "bool": (True, 1),
    "text": (torch.zeros(3), "gone"), "digit": ("1", 1), "none": (None, 0), "texts": ("a", "b"), "zero": (0.0, -0.0),
}  # fmt: skip


def unlike(rank: int, ranks: int, folder: Path) -> None:
    with ParallelRun(folder / "unlike") as run:
        for name, pair in UNLIKE.items():
            _say(run, name, {"x": pair[rank], "y": torch.ones(2)})
        print(f"steps: {run.steps}", flush=True)


def wrappers(rank: int, ranks: int, folder: Path) -> None:
    """The same values of a plain model, and of wrapped ones within containers."""
    mesh = init_device_mesh(here(), (ranks,))
    for name, wrapped in (
        ("bare", lambda m: m),
        ("ddp", nn.parallel.DistributedDataParallel),
        ("compiled", torch.compile),
        ("both", lambda m: torch.compile(nn.parallel.DistributedDataParallel(m))),
        ("fsdp2", lambda m: fully_shard(m, mesh=mesh)),
    ):
        with ParallelRun(folder / f"wrapped-{name}") as run:
            run.capture(0, {"model": wrapped(model()), "more": {"list": [wrapped(model())]}})
            run.capture(1, wrapped(model()))


class Holding(nn.Module):
    """A model whose part is wrapped, and which has a module of a wrapper's name that is none."""

    def __init__(self, wrapped) -> None:
        super().__init__()
        self.net = wrapped(model())
        self.other = nn.Module()
        self.other.module = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other.module(self.net(x))


def _holding(ranks: int) -> dict[str, nn.Module]:
    mesh = init_device_mesh(here(), (ranks,))
    fsdp1 = torch.distributed.fsdp.FullyShardedDataParallel
    ddp = nn.parallel.DistributedDataParallel
    ways = {
        "bare": lambda m: m,
        "ddp": ddp,
        "compiled": lambda m: torch.compile(m, backend="eager"),
        "both": lambda m: torch.compile(ddp(m), backend="eager"),
        "fsdp1": lambda m: fsdp1(m, device_id=torch.get_default_device(), use_orig_params=True),
        "fsdp2": lambda m: fully_shard(m, mesh=mesh),
        "averaged": torch.optim.swa_utils.AveragedModel,
    }
    return {name: Holding(way) for name, way in ways.items()}


def held_wrappers(rank: int, ranks: int, folder: Path) -> None:
    """The same values of models whose part is wrapped; a state of two names that would become one."""
    for name, what in _holding(ranks).items():
        with ParallelRun(folder / f"held-{name}") as run:
            run.capture(0, {"model": what})
            run.capture(1, [what])
    twice = nn.parallel.DistributedDataParallel(model())
    twice.add_module("0", nn.Linear(2, 2, bias=False))
    with ParallelRun(folder / "twice") as run:
        run.capture(0, twice)


def traced_wrappers(rank: int, ranks: int, folder: Path) -> None:
    for name, what in _holding(ranks).items():
        with trace(what, folder / f"traced-{name}", on_error="raise") as traced:
            what(torch.ones(2, 6)).sum().backward()
            traced.step()


def traced_parts(rank: int, ranks: int, folder: Path) -> None:
    """One element of a sharded gradient is another one in the second training; both are run again."""
    mesh = init_device_mesh(here(), (ranks,))
    right, wrong = folder / "parts-right", folder / "parts-wrong"
    for again in (False, True):
        for path, reference in ((right, wrong), (wrong, right)):
            torch.manual_seed(5)
            what = fully_shard(nn.Linear(6, 8), mesh=mesh)
            optimizer = torch.optim.SGD(what.parameters(), lr=0.1, momentum=0.9)
            on = {"escalate": True, "reference": reference} if again else {}
            with trace(what, path, optimizer=optimizer, on_error="raise", **on):
                for n in range(2):
                    optimizer.zero_grad()
                    what(torch.ones(2, 6)).sum().backward()
                    if (path, rank, n) == (wrong, ranks - 1, 1):
                        what.weight.grad.to_local()[1, 2] += 1
                    optimizer.step()
            dist.barrier()


def phases(rank: int, ranks: int, folder: Path) -> None:
    """Several captures within a step; in the second run one element of one process's part is another one."""
    mesh = init_device_mesh(here(), (ranks,))
    for name in ("right", "wrong"):
        with ParallelRun(folder / f"phases-{name}") as run:
            for step in range(2):
                x = distribute_tensor(torch.arange(40.0).reshape(10, 4) + step, mesh, [Shard(0)])
                run.capture(
                    step,
                    {"x": x, "all": torch.ones(3), "own": torch.ones(rank + 1)},
                    local=["own"],
                    phase="begin",
                )
                if (name, step, rank) == ("wrong", 1, ranks - 1):
                    x.to_local()[2, 3] += 1
                run.capture(step, {"x": x, "more": [1, 2]}, phase="after forces")
                if step == 0:
                    run.capture(step, {"y": x})
            run.wait()
            print(f"{name}: {run.steps}", flush=True)
    with ParallelRun(folder / "phases-refused") as run:
        _say(run, "differ", {"y": torch.full((3,), float(rank))}, phase="a")
        _say(run, "phase", {"y": torch.ones(3)}, phase=f"a{rank}")
        _say(run, "name", {"y": torch.ones(3)}, phase="" if rank else "a")
        _say(run, "object", {"y": torch.ones(3), "own": object() if rank else 1}, phase="a", local=["own"])
        _say(run, "empty", {"y": torch.ones(3)} if rank else {}, phase="a")
        run.capture(0, {"y": torch.ones(3)}, phase="a")
    print(f"refused: {open_subject(str(folder / 'phases-refused')).places}", flush=True)


def errors(rank: int, ranks: int, folder: Path) -> None:
    mesh = init_device_mesh(here(), (ranks,))
    down = DeviceMesh(here(), [*reversed(range(ranks))])
    with ParallelRun(folder / "errors") as run:
        _say(run, "local", {"x": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}, local=["x"])
        _say(run, "mesh", {"x": DTensor.from_local(torch.ones(2), down, [Shard(0)], run_check=False)})
        _say(run, "number", {"x": torch.ones(4)}, sharded={"x": 4})
        _say(run, "mapping", {"x": torch.ones(4)}, sharded=["x"])
        _say(run, "step", {"x": torch.ones(4)}, step=rank)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run.capture(7, {"x": torch.ones(4)}, local=["rng*"], sharded={"*.qkv": Sharded(0, 4)})
        print(f"globs: {[str(w.message) for w in said]}", flush=True)
    try:
        ParallelRun(folder / f"path{rank}")
    except twinrun.TwinrunError as e:
        print(f"path: {e}", flush=True)


def main(rank: int, ranks: int, kind: str, store: str, folder: str, *scenarios: str) -> int:
    warnings.simplefilter("ignore")
    begin(rank, ranks, kind, store)
    for name in scenarios:
        globals()[name](rank, ranks, Path(folder))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    rank, ranks, *rest = sys.argv[1:]
    end(main(int(rank), int(ranks), *rest))
