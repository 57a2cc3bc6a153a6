#!/usr/bin/env python3
"""Measures comparisons end to end on a machine with a GPU, beside what storage, copies and the GPU's memory reach by themselves.

    python bench/device_stream_bench.py --programs build/release/bin            all of it, about 3 minutes, 16 GB of disk
    python bench/device_stream_bench.py --quick                                 smaller and fewer, under a minute
    python bench/device_stream_bench.py --write docs/benchmark-tables.md              keeps the results in that document

Prints a JSON object a line as they are measured, tables at the end. Lines that are compared run interleaved, in rotating order;
medians, with fastest and slowest in brackets. What cannot be measured (no GPU, no PyTorch or CuPy, a page cache that cannot be
emptied) is left out, with the reason. Every outcome is checked against what the data was made to hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import cases
import ceilings
import device_arrays
import numpy as np
import page_cache
import table
from measure import Effort, Spread, Timing, interleave

import twinrun
from twinrun import _core
from twinrun.runs.entries import captured_entries

ROOT = Path(__file__).resolve().parent.parent
MARKS = (
    "<!-- GPU, measured: begin; bench/device_stream_bench.py --write docs/benchmark-tables.md rewrites this -->",
    "<!-- GPU, measured: end -->",
)
EPS = 1e-3
NOISE = 4e-4  # 40% of it
SECTIONS = ("files", "host", "device", "capture")


@dataclass(frozen=True)
class Scale:
    """Bytes: file: each of two; host, device: each of two arrays; capture: of all tensors. cold: rounds of cold lines."""

    file: float
    host: float
    device: float
    capture: float
    tensors: int
    cold: Effort
    warm: Effort


SCALES = {
    "full": Scale(6 * 2**30, 4 * 2**30, 8 * 2**30, 10e9, 1000, Effort(2, 4, 12.0), Effort(4, 9, 2.0)),
    "quick": Scale(1 * 2**30, 1 * 2**30, 2 * 2**30, 2e9, 1000, Effort(2, 3, 3.0), Effort(3, 5, 0.5)),
    "tiny": Scale(8e6, 4e6, 4e6, 4e6, 20, Effort(1, 1, 0.0), Effort(1, 1, 0.0)),
}


@dataclass(frozen=True)
class Took:
    """One repetition. facts: of it, such as device_seconds."""

    seconds: float
    facts: dict = field(default_factory=dict)


@dataclass
class Goal:
    """An aim, met or not; None: not measured."""

    text: str
    aim: str
    measured: str
    met: bool | None


@dataclass
class Bench:
    """What is known so far."""

    scale: Scale
    folder: Path
    programs: Path | None
    drop_everything: bool
    gpu: device_arrays.Library | None
    no_gpu: str  # why twinrun can use none
    lines: list[dict] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def record(self, **entry: object) -> None:
        """A line of JSON."""
        self.lines.append(entry)
        print(json.dumps(entry), flush=True)

    def leave_out(self, what: str, why: str) -> None:
        """Says so."""
        self.notes.append(f"left out: {what}: {why}")
        self.record(section="note", text=self.notes[-1])

    def goal(self, text: str, sign: str, aim: float, value: float | None, unit: str = "") -> None:
        """sign: ≥ or ≤."""
        met = None if value is None else value >= aim if sign == "≥" else value <= aim
        shown = "" if value is None else f"{table.number(value)}{unit}"
        self.goals.append(Goal(text, f"{sign} {aim:g}{unit}", shown, met))
        self.record(section="goal", text=text, aim=f"{sign} {aim:g}", measured=value, met=met)

    def wants_gpu(self, what: str) -> bool:
        """Whether it can be measured."""
        if self.no_gpu or self.gpu is None:
            self.leave_out(what, self.no_gpu or "neither PyTorch nor CuPy can be used")
        return not self.no_gpu and self.gpu is not None


def progress(text: str) -> None:
    """Where it is, for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def timed(work: Callable[[], object]) -> Took:
    """Of a function that waits for what it does."""
    start = time.perf_counter()
    work()
    return Took(time.perf_counter() - start)


Work = Callable[[], Took]


def measure(
    bench: Bench,
    section: str,
    title: str,
    amounts: Mapping[str, float],
    works: Mapping[str, Work],
    effort: Effort,
    before: Callable[[], None] = lambda: None,
    warm_up: bool = True,
) -> dict[str, Timing]:
    """One table: its lines interleaved. amounts: bytes by which each line's rate is reckoned."""
    progress(title)
    all_facts: dict[str, list[dict]] = {key: [] for key in works}

    def noted(key: str, work: Work) -> Work:
        def run() -> Took:
            took = work()
            all_facts[key].append(took.facts)
            return took

        return run

    jobs = [(key, noted(key, work)) for key, work in works.items()]
    done = interleave(jobs, effort, before, warm_up, lambda *_: None, lambda took: took.seconds)
    rows = []
    for key, timing in done.items():
        rate = timing.rate(amounts[key] / 1e9)
        facts = all_facts[key][-len(timing.seconds) :]
        shares = [
            f["device_seconds"] / s
            for f, s in zip(facts, timing.seconds, strict=True)
            if "device_seconds" in f
        ]
        entry: dict = {"section": section, "table": title, "line": key, "bytes": amounts[key]}
        entry |= {"seconds": timing.seconds, "gb_per_s": rate.json(), **facts[-1]}
        if shares:
            entry["device_share"] = statistics.median(shares)
        bench.record(**entry)
        wall = Spread([1e3 * s for s in timing.seconds])
        share = table.percent(statistics.median(shares)) if shares else ""
        rows.append([key, table.spread(rate), table.spread(wall), share, str(facts[-1].get("io", ""))])
    header = ["", "GB/s", "ms", "device busy", "reads"]
    bench.text.append(f"#### {title}\n\n{table.markdown(header, rows)}")
    return done


def ratio(faster: Timing | None, slower: Timing | None) -> float | None:
    """How many times as fast the first is, by medians."""
    if faster is None or slower is None:
        return None
    return statistics.median(slower.seconds) / statistics.median(faster.seconds)


def rate_ratio(a: Timing | None, bytes_a: float, b: Timing | None, bytes_b: float) -> float | None:
    """Rate of a over rate of b."""
    found = ratio(a, b)
    return None if found is None else found * bytes_a / bytes_b


# ---- files -------------------------------------------------------------------------------------------------------------


def write_pair(folder: Path, per_field: int) -> list[Path]:
    """Two raw files of N(0, 1), every element off by +-NOISE in the second; on storage when it returns."""
    total = per_field * len(cases.FIELDS)
    piece = 1 << 22
    paths = [folder / "a.bin", folder / "b.bin"]
    handles = [os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644) for p in paths]

    def write(first: int) -> None:
        rng = np.random.default_rng([cases.SEED, first])
        n = min(piece, total - first)
        a = rng.standard_normal(n, dtype=np.float32)
        b = cases.dense(NOISE)(a, rng, first)
        for handle, x in zip(handles, (a, b), strict=True):
            data = memoryview(x).cast("B")
            at = 4 * first
            while data:
                written = os.pwrite(handle, data, at)
                data, at = data[written:], at + written

    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(write, range(0, total, piece)))
        for handle in handles:
            os.fsync(handle)
    finally:
        for handle in handles:
            os.close(handle)
    arrays = [{"name": name, "dtype": "f32", "shape": [per_field]} for name in cases.FIELDS]
    for path in paths:
        Path(f"{path}.json").write_text(json.dumps({"arrays": arrays}))
    return paths


def comparison(a: object, b: object, **options: object) -> Work:
    """A comparison of runs that agree."""

    def run() -> Took:
        start = time.perf_counter()
        result = twinrun.compare(a, b, atol=EPS, options=twinrun.CompareOptions(**options))
        seconds = time.perf_counter() - start
        asked = str(options.get("device", "auto"))
        if not result.same:
            raise AssertionError(f"{result.different} elements differ, none do")
        if asked.startswith("cuda") and "cuda" not in result.device:
            raise AssertionError(f"asked for {asked}, compared on {result.device}")
        facts: dict = {"device_seconds": result.device_seconds} if "cuda" in result.device else {}
        if isinstance(a, Path):
            facts["io"] = "+".join(sorted({f.io for f in result.fields if f.io}))
        facts |= {"device": result.device, "device_reason": result.fields[0].device_reason}
        facts["bytes_read"] = result.bytes_read
        return Took(seconds, facts)

    return run


def own_reader(programs: Path | None, files: Sequence[Path]) -> Work | None:
    """Reads files as comparisons do, with nothing behind it."""
    program = None if programs is None else programs / "bench_read"
    if program is None or not program.exists():
        return None

    def run() -> Took:
        done = subprocess.run([program, *files], check=True, capture_output=True, text=True)
        facts = json.loads(done.stdout)
        return Took(facts["seconds"], {"io": facts["io"], "direct": facts["direct"]})

    return run


def add_direct_storage(bench: Bench, works: dict[str, Work], work: Work) -> None:
    """The line of GPUDirect Storage, or why there is none."""
    title = "direct, cuda, --io gds"
    facts = _core.devices().direct_storage
    if not facts.available:
        bench.leave_out(title, facts.reason)
        return
    try:
        took = work()
    except twinrun.TwinrunError as e:
        bench.leave_out(title, str(e))
        return
    bench.notes.append(f"{title}: {took.facts['io']}; {took.facts['device_reason']}")
    works[title] = work


def files(bench: Bench) -> None:
    """Cold files: storage alone, every element, and case (iv) with metadata."""
    why = page_cache.why_not_cold(bench.folder)
    if why is not None:
        bench.leave_out("cold files", why)
        return
    per_field = cases.elements_per_field(bench.scale.file / 1e6)
    progress(f"writing two files of {4 * per_field * len(cases.FIELDS) / 1e9:.3g} GB")
    paths = write_pair(bench.folder, per_field)
    a, b = paths
    progress("metadata")
    for path in paths:
        twinrun.index(path, atol=EPS, residue_bits=4, chunk_bytes=cases.CHUNK)
    everything = [p for p in bench.folder.iterdir() if p.is_file()]
    size = float(sum(p.stat().st_size for p in paths))

    def empty() -> None:
        page_cache.drop(everything, bench.drop_everything)

    works: dict[str, Work] = {}
    for title, read in ceilings.storage_readers(paths).items():
        if "buffered" not in title:
            works[f"only reading: {title}"] = lambda read=read: Took(read())
    own = own_reader(bench.programs, paths)
    if own is None:
        bench.leave_out("only reading: bench_read", "--programs names no folder that has it")
    else:
        works["only reading: bench_read"] = own
    storage = list(works)
    direct = {"method": "direct", "use_metadata": False}
    works["direct, cpu"] = comparison(a, b, device="cpu", **direct)
    works["(iv) staged, cpu"] = comparison(a, b, device="cpu", method="staged")
    if bench.no_gpu:
        bench.leave_out("files with a GPU", bench.no_gpu)
    else:
        works["direct, cuda"] = comparison(a, b, device="cuda:0", **direct)
        works["(iv) staged, cuda"] = comparison(a, b, device="cuda:0", method="staged")
        # The first call starts the driver and takes page-locked memory.
        empty()
        first = works["direct, cuda"]()
        bench.record(section="files", line="direct, cuda, first call", seconds=[first.seconds], **first.facts)
        add_direct_storage(bench, works, comparison(a, b, device="cuda:0", io="gds", **direct))
    done = measure(
        bench, "files", f"Two files of {size / 2e9:.3g} GB, cold", dict.fromkeys(works, size), works, bench.scale.cold, empty,
        warm_up=False,
    )  # fmt: skip
    best = min((done[k] for k in storage), key=lambda t: statistics.median(t.seconds), default=None)
    for device in ("cuda", "cpu"):
        key = f"direct, {device}"
        bench.goal(f"files, cold: {key}, against only reading", "≥", 0.95, ratio(done.get(key), best))
    for device in ("cuda", "cpu"):
        staged = done.get(f"(iv) staged, {device}")
        bench.goal(
            f"files, cold: (iv) staged, {device}, against direct, {device}", "≥", 6,
            ratio(staged, done.get(f"direct, {device}")), "x",
        )  # fmt: skip
    shares = [
        x["device_share"] for x in bench.lines if x.get("line") == "(iv) staged, cuda" and "device_share" in x
    ]
    bench.goal(
        "files, cold: (iv) staged, cuda: device busy, of wall",
        "≤",
        10,
        100 * shares[0] if shares else None,
        "%",
    )
    for path in everything:
        path.unlink()


# ---- host memory -------------------------------------------------------------------------------------------------------


def fill_pair(a: np.ndarray, b: np.ndarray) -> None:
    """As write_pair fills files."""
    piece = 1 << 22

    def fill(first: int) -> None:
        rng = np.random.default_rng([cases.SEED, first])
        part = a[first : first + piece]
        rng.standard_normal(out=part, dtype=np.float32)
        b[first : first + piece] = cases.dense(NOISE)(part, rng, first)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(fill, range(0, a.size, piece)))


def host(bench: Bench) -> None:
    """Arrays in host memory, page-locked and not, beside plain copies of the same memory."""
    if not bench.wants_gpu("host memory"):
        return
    gpu = bench.gpu
    n = int(bench.scale.host) // 4
    progress(f"two arrays of {4 * n / 1e9:.3g} GB in host memory")
    locked = [gpu.pinned(n), gpu.pinned(n)]
    fill_pair(*locked)
    pageable = [x.copy() for x in locked]
    one, two = 4.0 * n, 8.0 * n
    works: dict[str, Work] = {}
    amounts: dict[str, float] = {}

    def add(key: str, amount: float, work: Work) -> None:
        works[key] = work
        amounts[key] = amount

    direct = {"method": "direct", "device": "cuda:0"}
    for kind, arrays in (("page-locked", locked), ("pageable", pageable)):
        for number, chosen, amount in (("one array", arrays[:1], one), ("two arrays in turn", arrays, two)):
            copy = gpu.copier(chosen)
            add(f"{kind}: {gpu.name} copies {number}", amount, lambda copy=copy: timed(copy))
        add(f"{kind}: direct, cuda", two, comparison(*arrays, **direct))
    add("page-locked: direct, cpu", two, comparison(*locked, method="direct", device="cpu"))
    done = measure(
        bench, "host", f"Two arrays of {one / 1e9:.3g} GB in host memory", amounts, works, bench.scale.warm
    )
    for kind in ("page-locked", "pageable"):
        best = max(
            (f"{kind}: {gpu.name} copies {x}" for x in ("one array", "two arrays in turn")),
            key=lambda k: done[k].rate(amounts[k]).median,
        )
        key = f"{kind}: direct, cuda"
        value = rate_ratio(done[key], amounts[key], done[best], amounts[best])
        bench.goal(f"host memory, {key}, against copies", "≥", 0.9, value)


# ---- device memory -----------------------------------------------------------------------------------------------------


def call_overhead(bench: Bench, a: object, b: object) -> None:
    """What a call costs where there is next to nothing to compare."""
    seconds = [timed(lambda: twinrun.compare(a, b, atol=EPS)).seconds for _ in range(220)][20:]
    bench.record(section="device", line="a call on 1024 elements", seconds_median=statistics.median(seconds))
    bench.text.append(
        f"A call of `compare` on 1024 elements of the GPU, which Python and launches make up: "
        f"{1e6 * statistics.median(seconds):.0f} µs (median of {len(seconds)})."
    )


def device(bench: Bench) -> None:
    """Two arrays on the GPU, beside reading them."""
    if not bench.wants_gpu("arrays on the GPU"):
        return
    gpu = bench.gpu
    n = min(int(bench.scale.device), int(gpu.free_bytes() * 0.2)) // 4
    a = gpu.normal(n)
    b = gpu.shifted(a, NOISE)
    gpu.synchronize()
    size = 8.0 * n
    works = {f"only reading: {k}": (lambda read=read: timed(read)) for k, read in gpu.readers([a, b]).items()}
    readers = list(works)
    works["direct, cuda"] = comparison(a, b, method="direct", device="cuda:0")
    works["device=auto"] = comparison(a, b)
    done = measure(
        bench, "device", f"Two arrays of {size / 2e9:.3g} GB on the GPU", dict.fromkeys(works, size), works, bench.scale.warm
    )  # fmt: skip
    best = min((done[k] for k in readers), key=lambda t: statistics.median(t.seconds))
    bench.goal("arrays on the GPU: direct, against only reading", "≥", 0.9, ratio(done["direct, cuda"], best))
    call_overhead(bench, a[:1024], b[:1024])
    del a, b, works, done
    gpu.free()


# ---- capture and sketches ----------------------------------------------------------------------------------------------


def mixed_sizes(total: int, count: int) -> list[int]:
    """Elements of tensors, from a few to a good part of all, as models have them."""
    weights = np.exp(np.random.default_rng(cases.SEED).normal(0, 1.8, count))
    return [max(1, int(x)) for x in weights / weights.sum() * total]


def capture(bench: Bench) -> None:
    """Many tensors beside one array of as many bytes: captured without data, and as sketches."""
    if not bench.wants_gpu("capture and sketches"):
        return
    gpu = bench.gpu
    total = min(int(bench.scale.capture), int(gpu.free_bytes() * 0.25)) // 4
    sizes = mixed_sizes(total, bench.scale.tensors)
    many = {f"t{i}": gpu.normal(n) for i, n in enumerate(sizes)}
    one = {"t": gpu.normal(sum(sizes))}
    gpu.synchronize()
    size = 4.0 * sum(sizes)
    what = {f"{len(many)} tensors": many, "one array": one}
    shm = Path("/dev/shm")
    memory = shm / f"twinrun-bench-{os.getpid()}"
    in_memory = shm.is_dir() and shutil.disk_usage(shm).free > 0.5 * size
    if not in_memory:
        bench.leave_out("capture to memory", "/dev/shm is missing or too small")
    folders = {"to storage": bench.folder / "run", **({"to /dev/shm": memory} if in_memory else {})}
    entries = {name: captured_entries(fields, {}, None) for name, fields in what.items()}
    settings = {"atol": EPS, "residue_bits": 4, "chunk_bytes": cases.CHUNK}
    works: dict[str, Work] = {}

    def capture_to(folder: Path, fields: Mapping[str, object]) -> Work:
        def run() -> Took:
            with twinrun.Run(folder, keep_data=False, existing="replace", **settings) as run_:
                took = timed(lambda: facts.append(run_.capture(1, fields)))
            return Took(took.seconds, {"metadata_bytes": facts.pop().metadata_bytes})

        facts: list = []
        return run

    for name, fields in what.items():
        works[f"sketch, {name}"] = lambda fields=fields: timed(lambda: twinrun.sketch(fields, **settings))
        works[f"sketch, {name}, the core alone"] = lambda entry=entries[name][0]: timed(
            lambda: _core.sketch_fields(entry, EPS, 0.0, 4, cases.CHUNK, "linear", 0)
        )
        for place, folder in folders.items():
            works[f"capture {place}, {name}"] = capture_to(folder, fields)
    kept = {name: twinrun.sketch(fields, **settings) for name, fields in what.items()}
    again = {name: twinrun.sketch(fields, **settings) for name, fields in what.items()}

    def compare_sketches(name: str) -> Took:
        took = timed(lambda: found.append(kept[name].compare(again[name])))
        if not found.pop().same:
            raise AssertionError("sketches of the same arrays are not the same")
        return took

    found: list = []
    for name in what:
        works[f"two sketches compared, {name}"] = lambda name=name: compare_sketches(name)
    try:
        done = measure(
            bench, "capture", f"{size / 1e9:.3g} GB on the GPU: {len(many)} tensors, and one array", dict.fromkeys(works, size),
            works, bench.scale.warm,
        )  # fmt: skip
        rows = []
        busy: dict[str, float] = {}
        for key in works:
            seconds = None
            try:
                seconds = gpu.device_seconds(works[key])
            except Exception as e:  # profilers fail in many ways
                bench.notes.append(f"no device time of {key}: {e}")
            if seconds is not None:
                busy[key] = seconds
                rows.append([key, table.number(1e3 * seconds), table.number(size / seconds / 1e9)])
                bench.record(section="capture", line=key, profiled_device_seconds=seconds, bytes=size)
        if rows:
            bench.text.append(
                "Kernels and copies of one repetition, added up, by the profiler:\n\n"
                + table.markdown(["", "device, ms", "GB/s"], rows)
            )
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(bench.folder / "run", ignore_errors=True)
    many_name, one_name = what
    for line in ("sketch, {}", "sketch, {}, the core alone", *(f"capture {p}, {{}}" for p in folders)):
        value = ratio(done[line.format(many_name)], done[line.format(one_name)])
        bench.goal(f"{line.format(many_name)}, against one array: wall", "≥", 0.8, value)
    on_device = [busy.get(f"sketch, {name}") for name in what]
    bench.goal(
        f"sketch, {many_name}, against one array: device time", "≥", 0.8,
        None if None in on_device else on_device[1] / on_device[0],
    )  # fmt: skip
    gpu.free()


# ---- all ---------------------------------------------------------------------------------------------------------------


def allow_compatible_storage(folder: Path) -> None:
    """cuFile may go through host memory where GPUDirect Storage does not work, unless the caller said otherwise."""
    os.environ.setdefault("CUFILE_ALLOW_COMPAT_MODE", "true")
    if "CUFILE_ENV_PATH_JSON" not in os.environ:
        settings = folder / "cufile" / "cufile.json"
        settings.parent.mkdir()
        logs = {"dir": str(settings.parent), "level": "ERROR"}
        settings.write_text(json.dumps({"logging": logs, "properties": {"allow_compat_mode": True}}))
        os.environ["CUFILE_ENV_PATH_JSON"] = str(settings)


def header(bench: Bench, command: str) -> str:
    """Where, when and how it was measured."""
    machine = ceilings.machine(bench.folder)
    found = _core.devices()
    machine["GPUs"] = (
        ", ".join(f"{d.name} ({d.memory_bytes / 2**30:.0f} GiB)" for d in found.devices) or "none"
    )
    machine["driver, runtime"] = f"{found.driver_version}, {found.runtime_version}"
    machine["arrays by"] = "none" if bench.gpu is None else bench.gpu.version()
    machine["reads"] = "io_uring" if _core.uring_available() else "pread (io_uring is not available)"
    machine["instruction set"] = _core.backend()
    bench.record(section="machine", command=command, version=twinrun.__version__, **machine)
    load = os.getloadavg()[0]
    if load > 1:
        bench.notes.append(f"the machine was not idle at the start: load average {load:.1f}")
    facts = [f"- {key}: {value}" for key, value in machine.items()]
    facts += [
        f"- twinrun {twinrun.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}",
        f"- date: {time.strftime('%Y-%m-%d')}",
        f"- command: `{command}`",
        f"- cold: {page_cache.how_cold(bench.drop_everything)}",
        "- rates: bytes of both runs, or of all arrays, by the time of the whole call",
    ]
    return "\n".join(facts)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", default="full")
    scale.add_argument("--tiny", dest="scale", action="store_const", const="tiny", help="for tests")
    parser.add_argument("--file-gib", type=float, help="of each of two files (default: 6)")
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--programs", type=Path, help="folder with bench_read (build/release/bin)")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "build/bench/data", help="for files; removed at the end"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/device_stream_bench.jsonl")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="rewrite the GPU part of a document")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs what was chosen; exit status 0 whether aims are met or not: it measures."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = SECTIONS if options.only is None else tuple(options.only.split(","))
    if not set(chosen) <= set(SECTIONS):
        print(f"device_stream_bench: --only takes {','.join(SECTIONS)}", file=sys.stderr)
        return 2
    if options.write is not None:
        table.split(options.write, MARKS)  # before minutes are spent
    scale = SCALES[options.scale]
    if options.file_gib is not None:
        scale = Scale(**{**scale.__dict__, "file": options.file_gib * 2**30})
    options.data.mkdir(parents=True, exist_ok=True)
    if "files" in chosen and shutil.disk_usage(options.data).free < 2.5 * scale.file:
        print(
            f"device_stream_bench: {options.data}: needs {2.5 * scale.file / 1e9:.1f} GB free; give --data or --file-gib",
            file=sys.stderr,
        )
        return 2
    folder = options.data / f"gpu-{os.getpid()}"
    folder.mkdir()
    started = time.perf_counter()
    command = "python bench/device_stream_bench.py " + shlex.join(
        sys.argv[1:] if arguments is None else arguments
    )
    try:
        allow_compatible_storage(folder)
        gpu, why = device_arrays.library()
        drop_everything = options.scale != "tiny" and page_cache.may_drop_all()
        bench = Bench(scale, folder, options.programs, drop_everything, gpu, _core.devices().reason)
        if why:
            bench.notes.append(f"no arrays on a GPU: {why}")
        opening = header(bench, command)
        for name, section in (("files", files), ("host", host), ("device", device), ("capture", capture)):
            if name not in chosen:
                continue
            try:
                section(bench)
            except AssertionError:  # a benchmark of wrong answers is worth nothing
                raise
            except Exception as e:  # one section that fails must not cost the others
                bench.leave_out(name, f"{type(e).__name__}: {e}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not any(options.data.iterdir()):
            options.data.rmdir()
    verdict = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[g.text, g.aim, g.measured, verdict[g.met]] for g in bench.goals]
    text = [f"### Machine with a GPU\n\n{opening}"]
    if rows:
        text.append(f"### Goals on a GPU\n\n{table.markdown(['goal', 'aim', 'measured', ''], rows)}")
    if bench.text:
        text += ["### Tables of the GPU", *bench.text]
    notes = list(dict.fromkeys(bench.notes))
    if options.scale != "full" or options.file_gib is not None:
        notes.insert(0, "smaller than the aims are about, where fixed costs weigh more")
    if notes:
        text.append("Doubts and omissions:\n\n" + "\n".join(f"- {note}" for note in notes))
    document = "\n\n".join(text)
    print("\n" + document, flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text("".join(json.dumps(line) + "\n" for line in bench.lines))
    if options.write is not None:
        table.rewrite(options.write, document, MARKS)
    progress(f"done in {time.perf_counter() - started:.0f} s; all numbers are in {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
