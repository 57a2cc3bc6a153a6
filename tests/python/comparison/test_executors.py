"""Comparisons that the workers of an executor share: they say what a serial one says, and faults of workers are clear errors."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from commands import load_json
from support import in_options, run_of_ranks
from test_lists import write_safetensors
from test_parallel import (
    captured,
    cut,
    fields,
    folder,
    large,
    particles,
    shuffled,
    start,
    timeless,
    without_pages,
)

import twinrun
from twinrun.comparison import executors
from twinrun.comparison.tolerances import Rule, Tolerances
from twinrun.errors import TwinrunError
from twinrun.report.document import document

Runs = dict[str, tuple[object, object, dict]]


def runs_of(at: Path) -> Runs:
    """What `compare` takes, by what it tries."""
    a, b = folder(at / "a"), folder(at / "b", 1e-3)
    unreadable = folder(at / "unreadable")
    broken = unreadable / "state.00003.1.npz"
    broken.write_bytes(broken.read_bytes()[:200])
    one, other = captured(at / "h1", 1, 0.0), captured(at / "h2", 2, 1e-6)
    rows, recut = cut(at / "u1", [11, 40]), cut(at / "u2", [20, 40], 1.0)
    for name, last in (("s1", 5.0), ("s2", 6.0)):
        (at / name).mkdir()
        for step in range(50):
            np.save(at / name / f"x.{step}.npy", np.r_[1.0, step, last if step == 30 else 5.0])
    rules = Tolerances((Rule(fields=("x",), atol=1e-2), Rule(fields=("v",), skip=True)))
    everything: Runs = {
        "same": (a, a, {}),
        "different": (a, b, {}),
        "rules": (a, b, {"tolerances": rules}),
        "chosen": (a, b, {"fields": ["v"], "steps": "2:6"}),
        "fewer": (a, folder(at / "fewer", steps=8), {"partial": True}),
        "unreadable": (a, unreadable, {"partial": True}),
        "unreadable at once": (a, unreadable, {}),
        "histories": (one, other, {}),
        "no metadata": (one, other, {"use_metadata": False, "atol": 1e-6}),
        "by id": (particles(at / "p1", 1), particles(at / "p2", 2, 1e-3), {"key": "id"}),
        "another cutting": (rows, recut, {}),
        "shares": (fields(at / "f1.npz"), fields(at / "f2.npz", 1.0), {}),
        "shares and problems": (
            fields(at / "f3.npz", f1=np.zeros(3), alone=np.zeros(2)),
            fields(at / "f4.npz", 1.0, f1=np.zeros(4)),
            {"partial": True},
        ),
        "another order": (shuffled(at / "o1", 1), shuffled(at / "o2", 2), {}),
        "steps of files": (at / "s1", at / "s2", {}),
        "one file": (at / "s1" / "x.3.npy", at / "s2" / "x.30.npy", {}),
        "safetensors": (tensors(at / "t1.safetensors", 0.0), tensors(at / "t2.safetensors", 1.0), {}),
        "arrays": ({"x": np.ones(3)}, {"x": np.zeros(3)}, {}),
        "large": (large(at / "l1.npz"), large(at / "l2.npz", 1e-3), {}),
    }
    return {name: (x, y, in_options({"device": "cpu", **how})) for name, (x, y, how) in everything.items()}


def tensors(path: Path, change: float) -> Path:
    """A file of twenty tensors."""
    write_safetensors(
        path, {f"x{at}": np.arange(5.0) + at + change * (at == 7) for at in range(20)}, {"a": "b"}
    )
    return path


def said(a: object, b: object, **how: object) -> object:
    """The report of a comparison without times, or its error."""
    a, b = (str(run) if isinstance(run, Path) else run for run in (a, b))
    try:
        return timeless(without_pages(load_json(json.dumps(document(twinrun.compare(a, b, **how))))))
    except TwinrunError as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, dict[str, object]]:
    """Cases, and what a serial comparison says of each."""
    made = runs_of(tmp_path_factory.mktemp("runs"))
    serial = {name: said(a, b, **how) for name, (a, b, how) in made.items()}
    assert len({str(one)[:40] for one in serial.values()}) > 1
    return made, serial


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def dask() -> Iterator[object]:
    distributed = pytest.importorskip(
        "distributed", reason="there is no distributed: pip install distributed"
    )
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


class RayExecutor:
    """Tasks of Ray as an executor, as docs/reference/scaling.md shows it."""

    def __init__(self, ray: object) -> None:
        self.ray, self.max_workers = ray, int(ray.cluster_resources()["CPU"])

    def submit(self, fn, /, *args):
        return self.ray.remote(fn).remote(*args).future()


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    ray = pytest.importorskip("ray", reason="there is no ray: pip install ray")
    # pytest's folders have longer paths than a socket may have.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    try:
        yield ray
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def same_as_serial(runs: tuple[Runs, dict[str, object]], executor: object) -> None:
    made, serial = runs
    for name, (a, b, how) in made.items():
        assert said(a, b, executor=executor, **how) == serial[name], name


def test_processes_say_what_a_serial_comparison_says(runs, processes) -> None:
    same_as_serial(runs, processes)


def test_threads_say_what_a_serial_comparison_says(runs) -> None:
    with ThreadPoolExecutor(3) as pool:
        same_as_serial(runs, pool)


def test_workers_of_dask_say_what_a_serial_comparison_says(runs, dask) -> None:
    same_as_serial(runs, dask)


def test_workers_of_ray_say_what_a_serial_comparison_says(runs, ray) -> None:
    same_as_serial(runs, RayExecutor(ray))


def test_a_worker_of_ray_that_ends_is_an_error(runs, ray) -> None:
    class Ending(RayExecutor):
        def submit(self, fn, /, *args):
            return self.ray.remote(max_retries=0)(lambda: os._exit(3)).remote().future()

    a, b, how = runs[0]["different"]
    with pytest.raises(TwinrunError, match="the executor could not compare a part of the runs"):
        twinrun.compare(str(a), str(b), executor=Ending(ray), **how)


def test_workers_of_mpi_say_what_a_serial_comparison_says(runs, tmp_path) -> None:
    made, serial = runs
    (tmp_path / "runs.pickle").write_bytes(pickle.dumps((made, serial)))
    program = tmp_path / "program.py"
    program.write_text(
        "import pickle, sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "if __name__ == '__main__':\n"
        "    from mpi4py.futures import MPIPoolExecutor\n"
        "    import test_executors\n"
        "    runs = pickle.load(open(sys.argv[1], 'rb'))\n"
        "    with MPIPoolExecutor() as pool:\n"
        "        test_executors.same_as_serial(runs, pool)\n"
        "    print('all the same')\n"
    )
    job = start(3, "-m", "mpi4py.futures", program, tmp_path / "runs.pickle")
    assert job.status == 0 and "all the same" in job.out, job.out


class Counting(ThreadPoolExecutor):
    """Keeps what travels, and may fail."""

    def __init__(self, fault: Callable[[], None] = lambda: None) -> None:
        super().__init__(2)
        self.sent: list[int] = []
        self.came: list[int] = []
        self.fault = fault

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[override]
        self.sent.append(len(pickle.dumps(args)))
        if len(self.sent) == 2:
            self.fault()

        def work() -> object:
            found = fn(*args)
            self.came.append(len(pickle.dumps(found)))
            return found

        return super().submit(work)


def test_nothing_travels_for_each_field(tmp_path) -> None:
    state = {f"field_{at:05}": np.full(2, at, "f4") for at in range(4000)}
    paths = [str(run_of_ranks(tmp_path / name, [{1: state}, {1: state}], atol=0.0)) for name in ("a", "b")]
    with Counting() as pool:
        result = twinrun.compare(*paths, executor=pool)
    assert result.same and len(result.fields) == 8000
    assert sum(pool.sent) < 100_000
    assert sum(pool.came) < 200 * 8000


def fail() -> None:
    raise OSError("no such worker")


def test_an_executor_that_takes_no_more_work_is_a_clear_error(runs) -> None:
    a, b, how = runs[0]["different"]
    with Counting(fail) as pool, pytest.raises(TwinrunError, match="the executor could not compare"):
        twinrun.compare(a, b, executor=pool, **how)


def end(*_: object) -> None:
    os._exit(3)


def test_a_worker_that_ends_is_a_clear_error(runs, monkeypatch) -> None:
    made, serial = runs
    a, b, how = made["different"]
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        monkeypatch.setattr(executors, "compare_batch", end)
        with pytest.raises(
            TwinrunError, match="the executor could not compare a part of the runs: BrokenProcess"
        ):
            twinrun.compare(a, b, executor=pool, **how)
        monkeypatch.undo()
    assert said(a, b, **how) == serial["different"]


def test_a_run_that_changes_meanwhile_is_not_called_the_same(tmp_path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in range(20):
            np.save(tmp_path / name / f"x.{step}.npy", np.arange(3.0))

    class Late(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[override]
            np.save(tmp_path / "b" / "x.19.npy", np.arange(4.0))
            return super().submit(fn, *args)

    with Late(1) as pool, pytest.raises(TwinrunError, match="changed while it was compared"):
        twinrun.compare(tmp_path / "a", tmp_path / "b", executor=pool)


def test_an_interrupt_cancels_what_was_submitted(runs) -> None:
    futures: list[Future] = []

    class Stuck:
        num_workers = 2

        def submit(self, fn, /, *args):
            futures.append(Future())
            if len(futures) == 4:
                raise KeyboardInterrupt
            return futures[-1]

    a, b, how = runs[0]["different"]
    with pytest.raises(KeyboardInterrupt):
        twinrun.compare(a, b, executor=Stuck(), **how)
    assert [future.cancelled() for future in futures] == [True, True, True, False]


def test_what_is_no_executor_is_an_error(runs) -> None:
    a, b, how = runs[0]["same"]
    with pytest.raises(TwinrunError, match="submit"):
        twinrun.compare(a, b, executor=object(), **how)
