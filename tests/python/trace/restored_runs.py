"""A process of a job that goes on from a captured step: `restored_runs.py RANK RANKS DEVICE STORE FOLDER SCENARIO...`.

A scenario is the name of a function, and what it is given: `train:fsdp`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import begin, end, here
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import twinrun
from twinrun.torch import ParallelRun, Sharded

MIDDLE, LAST = 2, 5
LOCAL = ["rng"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.drop = nn.Dropout(0.25)
        self.norm = nn.LayerNorm(3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.norm(self.drop(self.body(x)))


class Held(nn.Module):
    """A model that holds a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.parallel.DistributedDataParallel(Model())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def _plan(at: str = "body") -> dict[str, Any]:
    return {f"{at}.0": ColwiseParallel(), f"{at}.2": RowwiseParallel()}


def made(kind: str, ranks: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "held":
        return Held()
    what = Model()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(what)
    if kind == "fsdp":
        mesh = init_device_mesh(here(), (ranks,))
        fully_shard(what.body, mesh=mesh)
        return fully_shard(what, mesh=mesh)
    if kind == "tp":
        return parallelize_module(what, init_device_mesh(here(), (ranks,)), _plan())
    if kind == "grid":
        mesh = init_device_mesh(here(), (2, ranks // 2), mesh_dim_names=("dp", "tp"))
        return fully_shard(parallelize_module(what, mesh["tp"], _plan()), mesh=mesh["dp"])
    return what


class Training:
    """What a training is made of, and what it captures."""

    def __init__(self, kind: str, ranks: int, seed: int = 5, how: str = "adamw") -> None:
        self.model = made(kind, ranks, seed)
        parameters = self.model.parameters()
        if how == "sgd":
            self.optimizer: Any = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
        elif how == "plain":
            self.optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-2, amsgrad=how == "amsgrad", foreach=False)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.counts = {"step": 0, "losses": [0.0, 0.0], "name": "training"}
        self.data = torch.Generator(torch.get_default_device()).manual_seed(9)

    def state(self) -> dict[str, Any]:
        self.rng = torch.cuda.get_rng_state() if here() == "cuda" else torch.get_rng_state()
        self.seen = self.data.get_state()
        return {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "counts": self.counts,
            "rng": self.rng, "data": self.seen,
        }  # fmt: skip

    def restored(self, run: ParallelRun, step: int, leave: tuple[str, ...] = (), **options: Any) -> None:
        fields = {name: one for name, one in self.state().items() if name not in leave}
        run.restore(step, fields, local=[n for n in LOCAL if n in fields], **options)
        (torch.cuda if here() == "cuda" else torch).set_rng_state(self.rng)
        self.data.set_state(self.seen)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 6, generator=self.data)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.counts["step"] += 1
        self.counts["losses"] = [self.counts["losses"][1], 0.5]


def _seed(kind: str, rank: int) -> int:
    """Of dropout: processes of tensor parallelism must drop the same."""
    return 11 if kind in ("tp", "grid") else 11 + rank


def _captured(run: ParallelRun, training: Training, first: int, until: int) -> None:
    """Steps [first, until], each captured when it is done; step 0 before any."""
    for n in range(first, until + 1):
        if n:
            training.step()
        run.capture(n, training.state(), local=LOCAL)


def train(rank: int, ranks: int, folder: Path, kind: str, how: str = "adamw") -> None:
    """A training that nobody interrupts."""
    training = Training(kind, ranks, how=how)
    torch.manual_seed(_seed(kind, rank))
    with ParallelRun(folder / f"{kind}{ranks}-{how}") as run:
        _captured(run, training, 0, LAST)


def again(rank: int, ranks: int, folder: Path, kind: str, how: str = "adamw", at: str = str(MIDDLE)) -> None:
    """A new program goes on from a step of its own history: of a training that was interrupted after it, and
    has made steps that do not count.
    """
    path = folder / f"{kind}{ranks}-{how}-again{at}"
    training = Training(kind, ranks, how=how)
    torch.manual_seed(_seed(kind, rank))
    with ParallelRun(path) as run:
        _captured(run, training, 0, int(at))
    if at != str(MIDDLE):
        training.step()  # of the same program, whose optimizer has states that the step did not have
    else:
        training = Training(kind, ranks, seed=77, how=how)
    torch.manual_seed(1000 + rank)
    with ParallelRun(path, existing="append") as run:
        assert run.latest() == int(at)
        training.restored(run, int(at))
        assert training.counts["step"] == int(at)
        _captured(run, training, int(at) + 1, LAST)


def other(rank: int, ranks: int, folder: Path, source: str, kind: str) -> None:
    """Goes on from a step that other processes captured, divided otherwise."""
    training = Training(kind, ranks, seed=77)
    with ParallelRun(folder / f"{source}-{kind}{ranks}") as run:
        assert run.latest(history=folder / source) == LAST
        assert run.latest(MIDDLE, history=folder / source) == MIDDLE
        training.restored(run, MIDDLE, leave=("rng",), history=folder / source)
        run.capture(MIDDLE, training.state(), local=LOCAL)


def whole(rank: int, ranks: int, folder: Path, source: str) -> None:
    """Fields as arrays."""
    with ParallelRun(folder / f"whole{ranks}-{source}") as run:
        found = run.load(
            MIDDLE, ["model.body.0.weight", "model.calls", "counts.losses"], history=folder / source
        )
        every = run.load(MIDDLE, history=folder / source) if ranks == 2 else {}
    print(f"whole {source}: {[(n, a.shape, str(twinrun.digest(a))) for n, a in found.items()]}", flush=True)
    print(f"own {source}: {len(every)} {twinrun.digest(every['rng']) if every else ''}", flush=True)


def _divided(t: torch.Tensor, mesh: Any, placement: Any) -> DTensor:
    return distribute_tensor(t.clone(), mesh, [placement], src_data_rank=None)


def kinds(rank: int, ranks: int, folder: Path) -> None:
    """Values of every type, placement and layout, into others of the same type."""
    mesh = init_device_mesh(here(), (ranks,))
    random = torch.Generator(torch.get_default_device()).manual_seed(3)
    types = (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64,
        torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.uint16,
    )  # fmt: skip
    bits = {
        str(t): torch.randint(0, 2 if t is torch.bool else 256, (7, 5, 16), generator=random) for t in types
    }
    values = {}
    for t in types:
        raw = bits[str(t)].to(torch.uint8)
        raw = raw[:, :, :1] if t is torch.bool else raw
        values[str(t).split(".")[1]] = raw.contiguous().view(t)[:, :, :1].clone()
    values["empty"] = torch.zeros(0, 3)
    values["number"] = torch.tensor(2.5)
    values["nan"] = torch.tensor([float("nan"), -0.0, float("inf")])
    values["across"] = torch.arange(12.0).reshape(3, 4).t()
    before = {
        "more": [{"a": np.arange(6.0).reshape(2, 3).T}, 7, True, 2.5, None, "text", (1, 2.0), [[1], [2]]]
    }
    ways = {
        "whole": lambda t: t.clone(),
        "first": lambda t: _divided(t, mesh, Shard(0) if t.ndim else Replicate()),
        "second": lambda t: _divided(t, mesh, Shard(1) if t.ndim > 1 else Replicate()),
    }  # fmt: skip
    for name, way in ways.items():
        with ParallelRun(folder / f"kinds-{name}") as run:
            run.capture(0, {**{n: way(v) for n, v in values.items()}, **before})
    wrong = []
    for name in ways:
        for into, way in ways.items():
            fresh = {n: way(torch.zeros_like(v)) for n, v in values.items()}
            more = {"more": [{"a": np.zeros((3, 2))}, 0, False, 0.0, None, "text", (0, 0.0), [[0], [0]]]}
            with ParallelRun(folder / f"kinds-{name}-{into}") as run:
                run.restore(0, {**fresh, **more}, history=folder / f"kinds-{name}")
            for n, v in values.items():
                back, right = fresh[n], way(v)
                if isinstance(back, DTensor):
                    back, right = back.to_local(), right.to_local()
                if str(twinrun.digest(back)) != str(twinrun.digest(right)):
                    wrong.append((name, into, n))
            assert np.array_equal(more["more"][0]["a"], before["more"][0]["a"])
            assert repr(more["more"][1:]) == repr(before["more"][1:]), more
    print(f"kinds: {wrong}", flush=True)


def fused(rank: int, ranks: int, folder: Path) -> None:
    """A fused tensor, and a tensor parallel layer that no DTensor tells."""
    torch.manual_seed(3)
    q, k, v = torch.randn(8, 4), torch.randn(4, 4), torch.randn(4, 4)
    mine = torch.cat([one.chunk(ranks)[rank] for one in (q, k, v)])
    with ParallelRun(folder / f"fused{ranks}") as run:
        how = {"*.weight": Sharded(0, (8, 4, 4), group=dist.group.WORLD)}
        run.capture(0, {"qkv.weight": mine}, sharded=how)
        back = torch.zeros_like(mine)
        run.restore(0, {"qkv.weight": back}, sharded=how)
        assert torch.equal(back, mine)
        every = torch.zeros(16, 4)
        run.restore(0, {"qkv.weight": every}, sharded={"*.weight": Sharded(0, (8, 4, 4))})
        assert torch.equal(every, torch.cat([q, k, v]))
    print("fused: all", flush=True)


def refused(rank: int, ranks: int, folder: Path) -> None:
    """What cannot be restored is said on all processes, and nothing is written."""
    path = folder / "refused"
    mesh = init_device_mesh(here(), (ranks,))
    with ParallelRun(path) as run:
        own = {"own": torch.full((2,), float(rank))}
        run.capture(0, {"x": torch.ones(4), "text": "a", "n": 3, **own}, local=["own"])
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.LBFGS(model.parameters())

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 4)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        run.capture(1, {"o": optimizer})
        run.capture(2, {"o": torch.optim.SGD(model.parameters())})
        x = torch.zeros(4)
        summand = DTensor.from_local(torch.ones(4), mesh, [Partial()])
        for name, step, fields, options in (
            ("type", 0, {"x": x.double()}, {}),
            ("shape", 0, {"x": torch.zeros(5)}, {}),
            ("shape of one", 0, {"x": torch.zeros(5) if rank == 1 else x}, {}),
            ("missing", 0, {"x": x, "y": torch.zeros(4)}, {}),
            ("step", 9, {"x": x}, {}),
            ("steps", rank, {"x": x}, {}),
            ("text", 0, {"x": x, "text": "b"}, {}),
            ("no text", 0, {"x": x, "n": "b"}, {}),
            ("partial", 0, {"x": summand}, {}),
            ("own", 0, {"x": x, "own": torch.zeros(2)}, {}),
            ("local", 0, {"x": x}, {"local": ["x"]}),
            ("sparse", 0, {"x": torch.eye(4).to_sparse()}, {}),
            ("history", 0, {"x": x}, {"history": folder / "none"}),
            ("optimizer", 1, {"o": torch.optim.LBFGS(model.parameters())}, {}),
            ("parameters", 2, {"o": torch.optim.SGD(nn.Linear(4, 4, bias=False).parameters())}, {}),
        ):
            _say(name, lambda step=step, fields=fields, on=options: run.restore(step, fields, **on))
            assert not x.any(), name
        run.capture(3, (torch.ones(4), 3, {"n": 4}))
        run.capture(4, (torch.ones(4), np.float64(3.5)))
        _say("number of a tuple", lambda: run.restore(3, (x, 2, {"n": 5})))
        assert not x.any()
        _say("scalar of a tuple", lambda: run.restore(4, (x, np.float64(0))))
        _say("expanded", lambda: run.restore(0, {"x": torch.zeros(1).expand(4)}))
        expanded = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (4,), (0,))
        _say("expanded array", lambda: run.restore(0, {"x": expanded}))
        _say("masked", lambda: run.restore(0, {"x": np.ma.array(np.zeros(4, "f4"), mask=[0, 1, 0, 0])}))
        kept = {"n": 5}
        run.restore(3, (x, 3, kept))  # what a container holds is set
        assert x.all() and kept == {"n": 4}
        x.zero_()
        _say("read-only", lambda: run.restore(0, {"x": _read_only()}))
        _say("no field", lambda: run.load(0, ["y"]))
        run.restore(0, {"x": x})  # the processes still meet
        assert x.all()
    with ParallelRun(folder / "digests", keep_data=False) as run:
        run.capture(0, {"x": torch.ones(4)})
        _say("no data", lambda: run.restore(0, {"x": x}))
    _say("closed", lambda: run.restore(0, {"x": x}))
    with twinrun.Run(folder / f"conjugated{rank}") as alone:
        alone.capture(0, {"c": torch.arange(3) * 1j, "i": torch.arange(3.0)})
        pending = torch.zeros(3, dtype=torch.complex64)
        _say("conjugated", lambda: alone.restore(0, {"c": pending.conj()}))
        _say("negated", lambda: alone.restore(0, {"i": pending.conj().imag}))
        assert not pending.any()
        alone.restore(0, {"c": pending})
        assert torch.equal(pending, torch.arange(3) * 1j)


def _read_only() -> np.ndarray:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


def damaged(rank: int, ranks: int, folder: Path) -> None:
    """A bit of one part fell over on storage; also where the time of the file does not tell."""
    path = folder / "damaged"
    mesh = init_device_mesh(here(), (ranks,))
    values = torch.arange(40.0).reshape(10, 4)
    with ParallelRun(path) as run:
        run.capture(0, {"x": distribute_tensor(values, mesh, [Shard(0)])})
    dist.barrier()
    if rank == 0:
        file = path / "step-0000000000" / "rank-00001.data"
        data = bytearray(file.read_bytes())
        at = data.find(values[7:8].cpu().numpy().tobytes())
        assert at >= 0
        data[at + 5] ^= 1
        before = file.stat()
        file.write_bytes(data)
    x = distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)])
    with ParallelRun(folder / "undamaged") as run:
        for name in ("damaged", "hidden"):
            dist.barrier()
            _say(name, lambda: run.restore(0, {"x": x}, history=path))
            if rank == 0:
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not x.to_local().any()


def fewer(rank: int, ranks: int, folder: Path) -> None:
    """What each process had of its own, in another number of processes."""
    with ParallelRun(folder / "fewer") as run:
        _say(
            "fewer",
            lambda: run.restore(0, {"own": torch.zeros(2)}, local=["own"], history=folder / "refused"),
        )
        x = torch.zeros(4)
        run.restore(0, {"x": x}, history=folder / "refused")
        assert x.all()
        _say("load", lambda: run.load(0, history=folder / "refused"))
        assert [*run.load(0, ["x"], history=folder / "refused")] == ["x"]


def _say(what: str, attempt: Callable[[], Any]) -> None:
    try:
        print(f"{what}: {attempt()}", flush=True)
    except twinrun.TwinrunError as e:
        print(f"{what}: {type(e).__name__}: {e}", flush=True)


def main(rank: int, ranks: int, kind: str, store: str, folder: str, *scenarios: str) -> int:
    warnings.simplefilter("ignore")
    begin(rank, ranks, kind, store)
    for scenario in scenarios:
        name, *given = scenario.split(":")
        globals()[name](rank, ranks, Path(folder), *given)
        dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    rank, ranks, *rest = sys.argv[1:]
    end(main(int(rank), int(ranks), *rest))
