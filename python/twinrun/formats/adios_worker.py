"""The process that reads ADIOS2 files for `adios`: python adios_worker.py PATH.

The adios2 package may crash, or wait without end, on files that were cut short; here it takes nothing with it. Requests
are lines of JSON on stdin, answers lines of JSON on stdout, followed by as many bytes as they name; lines with "progress"
before an answer say that there is some. The process ends when its stdin does, whatever the package does meanwhile.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

MOST_STEPS = 1_000_000
MOST_BLOCKS = 100_000  # of a variable in one step
DTYPES = {
    "int8_t": "i1", "int16_t": "i2", "int32_t": "i4", "int64_t": "i8", "uint8_t": "u1", "uint16_t": "u2",
    "uint32_t": "u4", "uint64_t": "u8", "float": "f4", "double": "f8", "float complex": "c8",
    "double complex": "c16", "char": "i1",
}  # fmt: skip


_TELL_EVERY = 1.0  # seconds


def end_with_stdin() -> None:
    """A process beside this one ends it once whoever asks is gone: the package may wait for good, and holds Python's lock.

    Not the kernel's signal at a parent's death: that one comes when the thread ends that started this process.
    """
    worker = os.getpid()
    alive, held = os.pipe()  # the other end is closed when this process is gone
    if os.fork():
        os.close(alive)
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # those of a terminal go to all
        signal.signal(number, signal.SIG_IGN)
    os.close(held)
    os.close(1)
    poll = select.poll()
    poll.register(0, 0)  # only its end
    poll.register(alive, 0)
    while not poll.poll():
        pass
    if os.getppid() == worker:
        os.kill(worker, signal.SIGKILL)
    os._exit(0)


def steps(package: Any, path: str, tell: Callable[[], None]) -> list[list[dict[str, Any]]]:
    """What every step holds. A variable may be missing in some of them, and have another shape in each.

    at: how many steps before had it. shape: null for blocks without a place in a global array.
    """
    seen: dict[str, int] = {}
    result: list[list[dict[str, Any]]] = []
    io = package.Adios().declare_io("steps")
    io.set_parameter("OpenTimeoutSecs", "0")  # of an unfinished file the package would wait an hour for more
    with package.Stream(io, path, "r") as stream:
        for _ in stream.steps(timeout=0.0):
            found = []
            for name, facts in stream.available_variables().items():
                tell()
                at = seen[name] = seen.get(name, -1) + 1
                entry = {
                    "name": name,
                    "kind": facts["Type"],
                    "at": at,
                    "shape": [],
                    "blocks": [],
                    "single": True,
                }
                found.append(entry)
                variable = stream.inquire_variable(name)
                if facts["Type"] == "string":
                    entry["single"] = bool(variable.single_value())
                    if entry["single"]:
                        entry["text"] = str(stream.read(name))
                    continue
                entry["single"] = bool(variable.single_value())
                entry["shape"] = [int(n) for n in variable.shape()]
                # Where blocks end tells how to read, and what there is of blocks without a place.
                blocks = () if entry["single"] else stream.engine.blocks_info(name, stream.current_step())
                for block in list(blocks)[: MOST_BLOCKS + 1]:
                    entry["blocks"].append([int(n) for n in block["Count"].split(",") if n.strip()])
                if variable.shape_id() == package.ShapeID.LocalArray:
                    entry["shape"] = None
                else:
                    del entry["blocks"][1:]
                if len(entry["blocks"]) > MOST_BLOCKS:
                    raise ValueError(f"{name!r:.80}: more than {MOST_BLOCKS} blocks")
            tell()
            result.append(found)
            if len(result) > MOST_STEPS:
                raise ValueError(f"more than {MOST_STEPS} steps")
    return result


def attributes(file: Any) -> dict[str, Any]:
    """[type, values] of the attributes: a list, or a text alone."""
    result: dict[str, Any] = {}
    for name, facts in sorted(file.available_attributes().items()):
        kind = facts["Type"]
        if kind == "string":
            result[name] = [kind, file.read_attribute_string(name)]
        else:
            value = file.read_attribute(name)
            pairs = kind.endswith("complex")  # JSON has none
            result[name] = [kind, value.view(value.real.dtype).tolist() if pairs else value.tolist()]
    return result


def read(file: Any, request: dict[str, Any]) -> bytes:
    """The elements of a box of a variable in one step, in C order and native byte order."""
    import numpy as np

    # With a buffer of our own: the package's read() does not know every type that it writes.
    variable = file.inquire_variable(request["name"])
    if variable is None or variable.type() != request["kind"]:
        raise ValueError(f"no variable {request['name']!r:.80} of type {request['kind']}")
    variable.set_step_selection([request["at"], 1])
    if request["block"] is not None:
        variable.set_block_selection(request["block"])
    if request["count"] and not request["single"]:
        variable.set_selection([request["start"], request["count"]])
    part = np.empty(request["count"], DTYPES[request["kind"]])
    if variable.selection_size() != part.size:
        raise ValueError(f"{variable.selection_size()} elements where {part.size} were asked for")
    file.engine.get(variable, part)
    return part.tobytes()


def main(path: str) -> None:
    """Answers requests until stdin ends."""
    end_with_stdin()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the package writes to stdout

    def answer(data: bytes = b"", **facts: object) -> None:
        answers.write(json.dumps({**facts, "bytes": len(data)}).encode() + b"\n" + data)
        answers.flush()

    told = time.monotonic()

    def tell() -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            answers.write(b'{"progress": true}\n')
            answers.flush()

    file: Any = None
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            if file is None:
                import adios2

                found = steps(adios2, path, tell)
                file = adios2.FileReader(path)
                answer(steps=found, attributes=attributes(file))
            else:
                answer(read(file, request))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}"[:1000])


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file: its modules are no packages
    main(sys.argv[1])
