#!/usr/bin/env python3
"""Measures comparisons end to end, beside numpy, plain reading and the published method, and what the machine can do.

    make bench                                                  all of it, about 10 minutes, 10 GB of disk
    make bench BENCH_ARGS=--quick                               smaller and fewer, about a minute
    make bench BENCH_ARGS='--write docs/benchmark-tables.md'          keeps the results in that document

Each table's lines run interleaved, in rotating order. Rates are bytes of one run / time of the whole comparison, opening
and metadata included; metadata was made beforehand. Every outcome is checked against what the case was made to hold.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import cases
import ceilings
import goals
import lines
import numpy as np
import page_cache
import table
from cases import CHUNK, Case, Metadata
from lines import Line, Outcome
from measure import Effort, Spread, Timing, interleave

import twinrun
from twinrun import _core

ROOT = Path(__file__).resolve().parent.parent
LARGEST_SPREAD = 1.5  # slowest / fastest repetition: above it, a table says so


@dataclass(frozen=True)
class Scale:
    """How much to measure. captures: steps of the simulation that are kept."""

    megabytes: float
    particles: int
    steps: int
    captures: str
    cold: Effort
    warm: Effort
    calls: int


SCALES = {
    "full": Scale(1073, 1_000_000, 40, "10,20,30,40", Effort(2, 4, 4.0), Effort(3, 7, 3.0), 5000),
    "quick": Scale(120, 50_000, 20, "10,20", Effort(2, 3, 0.5), Effort(3, 5, 0.5), 2000),
    "tiny": Scale(7.4, 3_000, 4, "2,4", Effort(1, 1, 0.0), Effort(1, 1, 0.0), 20),
}


@dataclass
class Bench:
    """Everything that is known so far; `document` is what the results file holds."""

    scale: Scale
    folder: Path
    states: tuple[str, ...]
    drop_everything: bool
    programs: Path | None
    results: dict[tuple[str, str, str], goals.Measured] = field(default_factory=dict)
    storage: dict[str, float] = field(default_factory=dict)  # case -> bytes/s
    building: dict[str, float] = field(default_factory=dict)  # line -> bytes/s, all cores
    call_seconds: float | None = None
    notes: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    document: dict = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Prints, and keeps for the document."""
        print(text + "\n", flush=True)
        self.text.append(text)

    def note_spread(self, what: str, timings: dict[str, Timing]) -> None:
        """Doubts about a table."""
        wide = [
            k
            for k, t in timings.items()
            if len(t.seconds) > 1 and max(t.seconds) > LARGEST_SPREAD * min(t.seconds)
        ]
        if wide:
            self.notes.append(f"{what}: slowest over {LARGEST_SPREAD}x the fastest for {', '.join(wide)}")


def progress(text: str) -> None:
    """Where it is, for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---- comparisons ------------------------------------------------------------------------------------------------------


def check_outcome(case: Case, line: Line, outcome: Outcome) -> None:
    """A benchmark of wrong answers is worth nothing."""
    expected = case.different
    if expected is not None and (
        outcome.same != (expected == 0) or outcome.different not in (None, expected)
    ):
        raise AssertionError(f"{case.key}, {line.key}: {outcome.different} elements differ, {expected} do")


def check_same(case: Case) -> Callable[[str, Outcome, Outcome], None]:
    """Repetitions find the same."""

    def check(key: str, first: Outcome, later: Outcome) -> None:
        if (first.same, first.different, first.left) != (later.same, later.different, later.left):
            raise AssertionError(f"{case.key}, {key}: two runs of one comparison disagree")

    return check


def check_agreement(bench: Bench, case: Case, outcomes: list[Outcome]) -> None:
    """All exact lines find the same differences. numpy rounds, so that it may judge otherwise at the very edge."""
    exact = [o for o in outcomes if o.different is not None]
    if len({o.different for o in exact}) > 1:
        raise AssertionError(
            f"{case.key}: lines disagree: { ({o.different for o in exact}) } elements differ"
        )
    if any(o.same != exact[0].same for o in outcomes):
        bench.notes.append(f"{case.title}: numpy, which rounds, judges otherwise")


def in_cache(
    bench: Bench,
    state: str,
    files: list[Path],
    jobs: list[tuple[str, Callable]],
    check: Callable,
    seconds_of: Callable = lambda _: None,
) -> dict[str, Timing]:
    """Interleaves jobs, with the files out of the page cache before each, or in it all the time."""
    if state == "cold":
        empty = lambda: page_cache.drop(files, bench.drop_everything)  # noqa: E731
        return interleave(jobs, bench.scale.cold, empty, False, check, seconds_of)
    with page_cache.resident(files):
        return interleave(jobs, bench.scale.warm, lambda: None, True, check, seconds_of)


def measure_case(
    bench: Bench, case: Case, both: Sequence[Line], only_warm: Sequence[Line], ceiling: bool
) -> None:
    """One table. both: lines cold and warm. ceiling: with what the storage can do."""
    usable = [line for line in both if line is not lines.DIRECT_URING or _core.uring_available()]
    besides = [line for line in only_warm if line is not lines.DIRECT_URING or _core.uring_available()]
    in_state = {"cold": usable, "warm": [*usable, *besides]}
    states = [s for s in bench.states if in_state[s]]
    chosen = list(dict.fromkeys(line for s in states for line in in_state[s]))
    if not chosen:
        return
    progress(f"{case.title}: metadata")
    kept = bench.folder / "reference"
    for metadata in dict.fromkeys(line.metadata for line in chosen if line.metadata is not None):
        lines.prepare(case, metadata, kept)
    files = case.all_files()
    timings: dict[str, dict[str, Timing]] = {}
    storage: dict[str, Spread] = {}
    from_storage: dict[str, int] = {}

    def work(line: Line) -> Callable[[], Outcome]:
        def run() -> Outcome:
            before = ceilings.read_bytes_of_process()
            outcome = line.run(case)
            from_storage[line.key] = ceilings.read_bytes_of_process() - before
            check_outcome(case, line, outcome)
            return outcome

        return run

    for state in states:
        progress(f"{case.title}: {state}")
        jobs: list[tuple[str, Callable]] = [(line.key, work(line)) for line in in_state[state]]
        readers = ceilings.storage_readers(case.data_files()) if ceiling and state == "cold" else {}
        jobs += [(title, lambda r=read: r()) for title, read in readers.items()]
        done = in_cache(
            bench,
            state,
            files,
            jobs,
            lambda key, a, b: None if isinstance(a, float) else check_same(case)(key, a, b),
            lambda outcome: outcome if isinstance(outcome, float) else None,
        )
        bench.note_spread(f"{case.title}, {state}", done)
        data = sum(p.stat().st_size for p in case.data_files())
        for title in readers:
            storage[title] = done[title].rate(data / 1e9)
        timings[state] = {line.key: done[line.key] for line in in_state[state]}
        for line in in_state[state]:
            timing = done[line.key]
            bench.results[case.key, line.key, state] = goals.Measured(
                timing.rate(case.bytes / 1e9), timing.outcome, case.bytes
            )
            entry = {"case": case.key, "title": case.title, "line": line.key, "state": state, "eps": case.eps}
            entry |= {
                "bytes": case.bytes,
                "seconds": timing.seconds,
                "gb_per_s": timing.rate(case.bytes / 1e9).json(),
            }
            entry |= {"bytes_read_from_storage": from_storage[line.key], "outcome": asdict(timing.outcome)}
            entry |= {"false_positives": timing.outcome.false_positives}
            bench.document["comparisons"].append(entry)
    if storage:
        bench.storage[case.key] = 1e9 * max(s.median for s in storage.values())
        bench.document["storage"][case.key] = {title: s.json() for title, s in storage.items()}
    check_agreement(bench, case, [t.outcome for by_line in timings.values() for t in by_line.values()])
    say_case(bench, case, chosen, timings, storage)


def say_case(
    bench: Bench,
    case: Case,
    chosen: list[Line],
    timings: dict[str, dict[str, Timing]],
    storage: dict[str, Spread],
) -> None:
    """The table of a case."""
    states = list(timings)
    header = ["", *(f"{s}, GB/s" for s in states), *(f"read, {s}" for s in states)]
    header += ["tree leaves", "sketch leaves", "differ", "false positives"]
    rows = []
    for line in chosen:
        here = [timings[s].get(line.key) for s in states]
        row = [line.title, *("" if t is None else table.spread(t.rate(case.bytes / 1e9)) for t in here)]
        row += ["" if t is None else table.percent(t.outcome.bytes_read / (2 * case.bytes)) for t in here]
        last = next(t.outcome for t in reversed(here) if t is not None)
        row += [
            table.percent(last.left[stage] / last.chunks) if stage in last.left else ""
            for stage in ("tree", "sketch", "elements")
        ]
        rows.append([*row, table.percent(last.false_positives)])
    for title, s in storage.items():
        # In the unit of the column: a comparison reads two runs.
        halves = Spread([v / 2 for v in s.values])
        rows.append([f"only reading: {title}", table.spread(halves), *[""] * (len(header) - 2)])
    outcomes = [t.outcome for t in timings[states[-1]].values()]
    differ = next(o.different for o in outcomes if o.different is not None)
    facts = f"eps = {case.eps:g}, {case.bytes / 1e9:.3g} GB a run, {differ} elements differ"
    bench.say(f"#### {case.title}\n\n{facts}.\n\n{table.markdown(header, rows)}")


def synthetic(bench: Bench, wanted: list[str] | None) -> None:
    """Cases with known differences."""
    per_field = cases.elements_per_field(bench.scale.megabytes)
    reference = bench.folder / "reference" / "a.bin"
    reference.parent.mkdir(parents=True)
    progress("writing the first run")
    cases.write_reference(reference, per_field)
    for recipe in cases.RECIPES:
        if wanted is not None and recipe.key not in wanted:
            continue
        progress(f"{recipe.title}: writing the second run")
        case = cases.make_case(recipe, reference, bench.folder / recipe.key, per_field)
        try:
            both = lines.FULL if recipe.full else ()
            few = () if recipe.full else lines.FEW
            measure_case(
                bench, case, both, (*few, *lines.OTHER) if recipe.published else few, ceiling=recipe.full
            )
        finally:
            case.remove()
    shutil.rmtree(reference.parent)


def simulated(bench: Bench, particles: int) -> None:
    """Two runs of a real simulation."""
    program = os.environ.get("TWINRUN_MINIHACC", "")
    if not os.access(program, os.X_OK):
        bench.notes.append("left out: two runs of minihacc; TWINRUN_MINIHACC does not name the program")
        return
    progress(f"minihacc: two runs of {particles} particles, {bench.scale.steps} steps")
    runs = bench.folder / "minihacc"
    start = time.perf_counter()
    try:
        cases.run_simulation(program, particles, bench.scale.steps, bench.scale.captures, runs)
        took = time.perf_counter() - start
        bench.document["simulation"] = {
            "particles": particles,
            "captures": bench.scale.captures,
            "seconds": took,
        }
        (bench.folder / "reference").mkdir()
        for eps in (1e-3, 1e-5, 1e-7):
            case = cases.simulation_case(eps, runs, bench.folder / f"minihacc-{eps:g}")
            try:
                measure_case(bench, case, lines.FULL, (), ceiling=False)
            finally:
                case.remove()
    finally:
        shutil.rmtree(runs, ignore_errors=True)
        shutil.rmtree(bench.folder / "reference", ignore_errors=True)


# ---- building metadata ------------------------------------------------------------------------------------------------

KINDS = {
    "linear-0": ("digests", Metadata("linear", 0)),
    "linear-2": ("digests and 2-bit residues", Metadata("linear", 2)),
    "linear-4": ("digests and 4-bit residues", Metadata("linear", 4)),
    "published-0": ("published digests", Metadata("published", 0)),
}


def building_from_files(bench: Bench) -> dict[str, dict[str, Spread]]:
    """`twinrun index` of one run: read, digest, write, fsync."""
    per_field = cases.elements_per_field(bench.scale.megabytes)
    folder = bench.folder / "index"
    folder.mkdir(parents=True)
    path = folder / "a.bin"
    cases.write_reference(path, per_field)
    size = path.stat().st_size
    rates: dict[str, dict[str, Spread]] = {}

    def work(metadata: Metadata) -> Callable[[], tuple[int, int]]:
        def run() -> tuple[int, int]:
            facts = twinrun.index(
                path,
                atol=1e-3,
                residue_bits=metadata.bits,
                digest=metadata.digest,
                chunk_bytes=CHUNK,
                refresh=True,
            )[0]
            return facts.data_bytes, facts.metadata_bytes

        return run

    def check(key: str, first: tuple[int, int], later: tuple[int, int]) -> None:
        if first != later:
            raise AssertionError(f"index, {key}: {first} bytes, then {later}")

    try:
        for state in bench.states:
            progress(f"index: {state}")
            jobs = [(key, work(metadata)) for key, (_, metadata) in KINDS.items()]
            done = in_cache(bench, state, [path], jobs, check)
            bench.note_spread(f"index, {state}", done)
            rates[state] = {key: timing.rate(size / 1e9) for key, timing in done.items()}
            for key, timing in done.items():
                data, written = timing.outcome
                entry = {"line": key, "state": state, "data_bytes": data, "metadata_bytes": written}
                bench.document["index"].append({**entry, "gb_per_s": timing.rate(size / 1e9).json()})
    finally:
        shutil.rmtree(folder)
    return rates


def building_in_memory(bench: Bench, tiny: bool) -> tuple[dict[tuple[str, int], Spread], int]:
    """The core's own benchmark: reading memory and building from it, interleaved. Keys: line, threads; GB/s."""
    program = None if bench.programs is None else bench.programs / "bench_build"
    if program is None or not program.exists():
        bench.notes.append(
            "left out: building from memory; the program bench_build was not named by --programs"
        )
        return {}, 0
    progress("building from memory")
    repetitions = 1 if tiny else 5
    command = [program, "--benchmark_format=json", f"--benchmark_repetitions={repetitions}"]
    command += [
        "--benchmark_enable_random_interleaving=true",
        f"--benchmark_min_time={0.001 if tiny else 0.2}",
    ]
    environment = {**os.environ, **({"BENCHMARK_SMOKE": "1"} if bench.scale.megabytes < 100 else {})}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    values: dict[tuple[str, int], list[float]] = {}
    for entry in json.loads(done.stdout)["benchmarks"]:
        if entry["run_type"] != "iteration":
            continue
        name, threads = entry["run_name"].removesuffix("/real_time").rsplit("/threads:", 1)
        values.setdefault((name, int(threads)), []).append(entry["bytes_per_second"] / 1e9)
    rates = {key: Spread(v) for key, v in values.items()}
    most = max(threads for _, threads in rates)
    bench.building = {name: 1e9 * s.median for (name, threads), s in rates.items() if threads == most}
    bench.document["memory"] = [
        {"line": n, "threads": t, "gb_per_s": s.json()} for (n, t), s in rates.items()
    ]
    return rates, most


def building(bench: Bench, tiny: bool) -> None:
    """The table of building metadata."""
    from_files = building_from_files(bench)
    in_memory, most = building_in_memory(bench, tiny)
    threads = sorted({t for _, t in in_memory})
    header = ["", *(f"file, {state}" for state in from_files)]
    header += [
        f"memory, {'all ' if t == most and t > 1 else ''}{t} core{'s' if t > 1 else ''}" for t in threads
    ]
    rows = []
    for key, (title, _) in KINDS.items():
        name = "build/published" if key == "published-0" else "build/" + key.replace("-", "_")
        row = [title, *(table.spread(by_line[key]) for by_line in from_files.values())]
        rows.append([*row, *(table.spread(in_memory.get((name, t))) for t in threads)])
    if in_memory:
        row = ["only reading", *[""] * len(from_files)]
        rows.append([*row, *(table.spread(in_memory.get(("memory_read", t))) for t in threads)])
    bench.say(f"#### Building metadata\n\nGB/s of data, 4 KiB chunks.\n\n{table.markdown(header, rows)}")


def call_overhead(bench: Bench) -> None:
    """What a call costs where there is next to nothing to compare."""
    a = np.zeros(1024, np.float32)
    b = a + np.float32(1e-5)
    seconds = []
    for i in range(bench.scale.calls + bench.scale.calls // 10):
        start = time.perf_counter()
        result = twinrun.compare(a, b, atol=1e-3)
        if i >= bench.scale.calls // 10:
            seconds.append(time.perf_counter() - start)
    if not result.same:
        raise AssertionError("two small arrays within the tolerance differ")
    bench.call_seconds = statistics.median(seconds)
    tail = sorted(seconds)[int(0.99 * len(seconds))]
    bench.document["call"] = {
        "median_seconds": bench.call_seconds,
        "p99_seconds": tail,
        "calls": len(seconds),
    }
    us = f"{1e6 * bench.call_seconds:.0f} µs (median), {1e6 * tail:.0f} µs (99th percentile) of {len(seconds)} calls"
    bench.say(f"#### A call\n\nComparing two arrays of 4 KB from Python: {us}.")


# ---- the report -------------------------------------------------------------------------------------------------------


def say_published_code(bench: Bench) -> None:
    """The published code's table, with what was measured here."""
    rows = []
    chunks = (CHUNK, *lines.OTHER_CHUNKS)
    for recipe in cases.RECIPES:
        if not recipe.published or (recipe.key, f"ours-4-{CHUNK}", "warm") not in bench.results:
            continue
        row = [f"{recipe.title}, eps = {recipe.eps:g}"]
        for chunk in chunks:
            recorded = goals.PUBLISHED_CODE[recipe.published][chunk]
            here = [
                bench.results.get((recipe.key, f"{line}-{chunk}", "warm")) for line in ("published", "ours-4")
            ]
            flags = [
                "" if m is None else f" ({table.percent(m.outcome.read_chunks / m.outcome.chunks)})"
                for m in here
            ]
            rates = ["" if m is None else table.number(m.rate.median) for m in here]
            row.append(f"{recorded:g} / {rates[0]}{flags[0]} / **{rates[1]}**{flags[1]}")
        rows.append(row)
    if rows:
        header = ["published code / published method here / **twinrun**", *map(lines.size, chunks)]
        bench.say(
            "#### Beside the published code, warm\n\n"
            "GB/s; in brackets the chunks whose elements were read. The published code's numbers were recorded on 2 quiet "
            "cores of the same kind, at another time; the other two ran interleaved. twinrun: 4 residue bits.\n\n"
            + table.markdown(header, rows)
        )


def say_goals(bench: Bench) -> list[goals.Goal]:
    """Met or not, honestly."""
    found = goals.all_goals(bench.results, bench.storage, bench.building, bench.call_seconds)
    verdict = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[g.text, g.aim, g.measured or "", verdict[g.met]] for g in found]
    bench.say(f"### Goals\n\n{table.markdown(['goal', 'aim', 'measured', ''], rows)}")
    bench.document["goals"] = [asdict(g) for g in found]
    return found


def header(bench: Bench, command: str) -> str:
    """Where, when and how it was measured."""
    machine = ceilings.machine(bench.folder)
    machine["instruction set"] = _core.backend()
    machine["reads"] = "io_uring" if _core.uring_available() else "pread (io_uring is not available)"
    load = os.getloadavg()[0]
    if load > 0.5:
        bench.notes.append(f"the machine was not idle at the start: load average {load:.1f}")
    bench.document["machine"] = machine
    bench.document["date"] = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    bench.document["command"] = command
    bench.document["cold"] = page_cache.how_cold(bench.drop_everything)
    facts = [f"- {key}: {value}" for key, value in machine.items()]
    effort = bench.scale
    facts += [
        f"- twinrun {twinrun.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}",
        f"- date: {bench.document['date'][:10]}",
        f"- command: `{command}`",
        f"- cold: {page_cache.how_cold(bench.drop_everything)}",
        "- warm: all files held in the page cache (mapped and locked), one uncounted run of each line",
        f"- median (fastest and slowest are the ends) of up to {effort.cold.most} cold and {effort.warm.most} warm "
        f"repetitions; a slow line stops after {effort.cold.least} or {effort.warm.least}",
    ]
    return "\n".join(facts)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", default="full")
    scale.add_argument(
        "--tiny", dest="scale", action="store_const", const="tiny", help="for tests: counts, not times"
    )
    parser.add_argument(
        "--megabytes", type=float, help="of a synthetic run (default: 1073, as the published code's)"
    )
    parser.add_argument("--particles", type=int, help="of the simulation (default: 1000000)")
    parser.add_argument(
        "--cases", help=f"some of {','.join(r.key for r in cases.RECIPES)},minihacc,index,call"
    )
    parser.add_argument("--states", default="cold,warm", help="cold, warm or both")
    parser.add_argument("--programs", type=Path, help="folder with bench_build")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "build/bench/data", help="for files; removed at the end"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/bench/compare_bench.json")
    parser.add_argument(
        "--write", type=Path, metavar="DOCUMENT", help="rewrite the measured part of a document"
    )
    return parser.parse_args(arguments)


def shown_command(options: argparse.Namespace) -> str:
    """What a reader types to get the same."""
    given = list(sys.argv[1:])
    if "--programs" in given:  # make names it
        at = given.index("--programs")
        del given[at : at + 2]
    return "make bench" + (f" BENCH_ARGS={shlex.quote(' '.join(map(shlex.quote, given)))}" if given else "")


def main(arguments: list[str] | None = None) -> int:
    """Runs what was chosen; exit status 0 whether goals are met or not: it measures."""
    options = parse(arguments)
    # A stopped benchmark clears up too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scale = SCALES[options.scale]
    if options.megabytes is not None:
        scale = Scale(**{**scale.__dict__, "megabytes": options.megabytes})
    wanted = None if options.cases is None else options.cases.split(",")
    states = tuple(s for s in ("cold", "warm") if s in options.states.split(","))
    known = {r.key for r in cases.RECIPES} | {"minihacc", "index", "call"}
    if not states or (wanted is not None and not set(wanted) <= known):
        print(
            "compare_bench: --states takes cold and warm; --cases takes " + ",".join(sorted(known)),
            file=sys.stderr,
        )
        return 2
    if options.write is not None:
        table.split(options.write)  # before ten minutes are spent
    needed = 6e6 * scale.megabytes
    options.data.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(options.data).free < needed:
        print(
            f"compare_bench: {options.data}: needs {needed / 1e9:.1f} GB free; give --data or --megabytes",
            file=sys.stderr,
        )
        return 2
    folder = options.data / f"run-{os.getpid()}"
    folder.mkdir()
    # A test must not take the page cache away from everything else on the machine.
    bench = Bench(
        scale, folder, states, options.scale != "tiny" and page_cache.may_drop_all(), options.programs
    )
    if "cold" in states and (why := page_cache.why_not_cold(folder)):
        bench.states = tuple(s for s in states if s != "cold")
        bench.notes.append(f"left out: cold: {why}")
    bench.document = {"version": 1, "scale": options.scale, "comparisons": [], "storage": {}, "index": []}
    started = time.perf_counter()
    try:
        opening = header(bench, shown_command(options))
        print(opening + "\n", flush=True)
        if wanted is None or "call" in wanted:
            call_overhead(bench)
        if wanted is None or "index" in wanted:
            building(bench, options.scale == "tiny")
        if wanted is None or set(wanted) & {r.key for r in cases.RECIPES}:
            synthetic(bench, wanted)
        if wanted is None or "minihacc" in wanted:
            simulated(bench, options.particles or scale.particles)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not any(options.data.iterdir()):
            options.data.rmdir()
    tables = list(bench.text)
    bench.text.clear()
    say_published_code(bench)
    published_code = list(bench.text)
    bench.text.clear()
    say_goals(bench)
    if options.scale != "full" or options.megabytes is not None:
        bench.notes.insert(
            0, "the goals are about runs of 1.07 GB; these were smaller, where fixed costs weigh more"
        )
    if bench.notes:
        bench.say("Doubts and omissions:\n\n" + "\n".join(f"- {note}" for note in dict.fromkeys(bench.notes)))
    bench.document["notes"] = bench.notes
    bench.document["seconds"] = time.perf_counter() - started
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(bench.document, indent=1) + "\n")
    if options.write is not None:
        table.rewrite(
            options.write,
            "\n\n".join(["### Machine", opening, *bench.text, "### Tables", *published_code, *tables]),
        )
    progress(f"done in {bench.document['seconds']:.0f} s; all numbers are in {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
