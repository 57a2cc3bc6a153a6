"""twinrun show PATH"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .. import _core
from ..errors import Uncompared, one_line
from ..words import byte_size
from .common import PATH, console, format_options, print_not_compared
from .help import Verb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

    from ..runs.fields import FieldRef


def _settings(ref: FieldRef) -> str:
    facts = ref.facts
    if facts is None:
        return "no metadata"
    if facts.exact:
        tolerance = "exact (an earlier kind)" if facts.outdated else "exact"
    else:
        tolerance = " + ".join(
            t
            for t in (
                f"{facts.atol:g}" if facts.atol else "",
                f"{facts.rtol:g} |a|" if facts.rtol else "",
            )
            if t
        )
    kind = "" if facts.digest == "linear" else ", published digests"
    by_id = facts.sums is not None and facts.sums.kind == "ids"
    sums = "" if facts.sums is None else f", sums by {facts.key if by_id else 'place'}"
    return f"{tolerance}, {facts.residue_bits} bits, chunks of {facts.chunk_bytes // 1024} KiB{kind}{sums}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _devices_line(found: _core.Devices) -> str:
    """One line: what `--system` says of GPUs."""
    usable = [f"cuda:{n} {d.name}" for n, d in enumerate(found.devices) if d.usable]
    if not usable:
        return f"GPUs: none can be used: {found.reason}"
    return f"GPUs: {', '.join(usable)} (more: twinrun show --devices)"


def _show_devices(out: Console, found: _core.Devices) -> None:
    from rich.table import Table
    from rich.text import Text

    out.print(one_line(f"library: {found.library or 'none'}"), soft_wrap=True)
    if found.runtime_version:
        driver = found.driver_version
        said = f"CUDA {_version(driver)}" if driver else "none"
        out.print(f"made for: CUDA {_version(found.runtime_version)}; driver: {said}", soft_wrap=True)
    if found.devices:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for column in ("device", "name", "bus", "compute", "SMs", "memory", "free", "used"):
            table.add_column(column, justify="right" if column in ("SMs", "memory", "free") else "left")
        for number, d in enumerate(found.devices):
            table.add_row(
                f"cuda:{number}",
                Text(one_line(d.name)),
                d.bus,
                f"{d.compute_major}.{d.compute_minor}",
                str(d.multiprocessors),
                byte_size(d.memory_bytes),
                byte_size(d.free_bytes) if d.usable else "",
                Text("yes" if d.usable else "no"),
            )
        out.print(table)
    for number, d in enumerate(found.devices):
        if not d.usable:
            out.print(one_line(f"cuda:{number} is not used: {d.reason}"), soft_wrap=True)
    if found.reason:
        out.print(one_line(f"GPUs are not used: {found.reason}"), soft_wrap=True)
    storage = found.direct_storage
    if storage.available:
        said = f"available ({storage.library})" + (f": {storage.reason}" if storage.reason else "")
    else:
        said = f"not used: {storage.reason}"
    out.print(one_line(f"GPUDirect Storage: {said}"), soft_wrap=True)


def _show_system(out: Console, with_gpus: bool) -> None:
    """What this machine offers. with_gpus: and a line of its GPUs."""
    out.print(f"twinrun {_core.__version__}")
    out.print(f"kernels: {_core.backend()} (available: {', '.join(_core.backends())})")
    ignored = _core.backend_override_ignored()
    if ignored:
        out.print(f"TWINRUN_BACKEND={ignored} is not available here and was ignored")
    out.print(f"reads: {'io_uring' if _core.uring_available() else 'pread (io_uring is not available)'}")
    out.print(f"threads: {_core.worker_count()}")
    if with_gpus:
        out.print(one_line(_devices_line(_core.devices())), soft_wrap=True)


def _table_of(fields: Iterable[FieldRef]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("field", "type", "shape", "bytes", "NaN", "metadata"):
        table.add_column(column, justify="right" if column in ("bytes", "NaN") else "left")
    for ref in fields:
        if ref.recorded is not None:
            ref.source()  # raises where the record does not have it
        order = "" if ref.byte_order == "little" or ref.itemsize == 1 else " big-endian"
        column_major = " column-major" if ref.fortran_order else ""
        shape = "x".join(map(str, ref.user_shape)) + column_major if ref.user_shape else "0-d"
        if ref.null:
            shape = "null"
        if ref.user_place is not None and ref.user_place[0] != ref.user_shape:
            whole, at = ("x".join(map(str, numbers)) for numbers in ref.user_place)
            shape += f" of {whole}, at {at.replace('x', ',')}"
        table.add_row(
            Text(one_line(ref.name)),
            ref.dtype + order,
            shape,
            byte_size(ref.items * ref.itemsize),
            "" if ref.facts is None else str(ref.facts.nans),
            Text(one_line(_settings(ref))),
        )
    return table


@click.command(cls=Verb)
@click.argument("path", type=PATH, required=False)
@click.option(
    "--step", type=int, default=None, help="Of a history or folder: this step (default: the first)."
)
@click.option("--system", is_flag=True, help="What this machine offers: instruction sets, io_uring, cores.")
@click.option("--devices", is_flag=True, help="Which GPUs were found, and why one is not used.")
@format_options
def show(
    path: str | None,
    step: int | None,
    system: bool,
    devices: bool,
    options: dict,
) -> int:
    """Show the fields of a history, folder, file or metadata file, or (--system, --devices) what
    twinrun uses on this machine.
    """

    from ..report.text import print_provenance
    from ..runs.opening import open_subject, without_effect
    from ..runs.provenance import read_provenance

    out = console()
    if system:
        _show_system(out, with_gpus=not devices)
    if devices:
        _show_devices(out, _core.devices())
    if path is None:
        if system or devices:
            return 0
        raise click.UsageError("name a path, --system or --devices")
    subject = open_subject(path, options)
    places = [p for p in subject.places if step is None or p[0] == step]
    if not places:
        raise click.UsageError(f"{path}: no such step" if step is not None else f"{path}: no committed steps")
    place = places[0]
    with subject.open(place) as fields:
        table = _table_of(fields.values())
        where = [] if place[0] is None else [f"step {place[0]}"]
        out.print(
            one_line(f"{subject.kind} {path}, ")
            + ", ".join([*where, f"rank {place[1]}"])
            + f" ({len(subject.places)} in all)",
            soft_wrap=True,
        )
        out.print(table)
        lost = [*subject.skipped, *fields.skipped]
    print_not_compared(out, [str(Uncompared.of(*one)) for one in lost])
    provenance = read_provenance(subject.provenance)
    if provenance is not None:
        print_provenance(out, provenance)
    for note in (*subject.notes, *without_effect([subject], options), *fields.notes):
        out.print(one_line(f"note: {note}"), style="dim", soft_wrap=True)
    return 0
