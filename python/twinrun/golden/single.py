"""Golden files of single checks, for test suites: one metadata file for each name, beside the test."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .. import _core
from ..arguments import tolerance_number
from ..arithmetic import any_values
from ..comparison.settings import Decision
from ..errors import Incomparable, TwinrunError, in_short, one_line
from ..outputs import write_whole
from ..runs.containers import flattened, is_container, named_arrays
from ..runs.fields import FieldRef
from ..runs.opening import open_subject
from ..runs.order import read_by_row
from .digests import Digests
from .elements import check_values, kept_ref, kept_refs
from .fields import GoldenField, check_field, golden_bytes
from .manifest import is_golden_file
from .rules import needs_values, rule_settings
from .values import KEEP_VALUES, is_values_file, read_values, values_bytes, values_name

__all__ = ["NotReproduced", "Reproducible", "file_name"]

_PLAIN = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]{0,99}")
_MOST_LINES = 8
_CHUNK_BYTES = 8192


class NotReproduced(AssertionError):
    """Arrays differ from their golden file, or there is no golden file to compare them with.

    It is an AssertionError, so that pytest reports it as a failure. The message lists what differs, and has
    the command that writes the file again.
    """


def file_name(text: str) -> str:
    """`text` if it is a plain file name; else its plain characters, and a checksum of all of it."""
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9_=+-]+", "_", text)[:80].strip("_") + "-" + digest


def _ordered(arrays: dict[str, object], key: object) -> dict[str, object]:
    """The arrays with their first axes in the order of IDs. key: the IDs, or the name of their array."""
    if isinstance(key, str):
        if key not in arrays:
            raise TwinrunError(
                f"key {key!r} is not among the arrays", fix="give its name, or the IDs themselves"
            )
        ids = np.asarray(arrays[key])
    else:
        ids = np.asarray(key)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TwinrunError(
            "key must be integers in one dimension", fix="give an ID for each element of the first axis"
        )
    order = np.argsort(ids, kind="stable")
    if ids.size and (np.diff(ids[order]) == 0).any():
        raise TwinrunError("key has an ID twice, so that elements cannot be matched")
    sorted_arrays: dict[str, object] = {}
    for name, array in arrays.items():
        a = np.asarray(array)
        if a.ndim == 0 or a.shape[0] != ids.size:
            raise TwinrunError(f"has {a.shape[:1]} elements for {ids.size} IDs", where=name)
        sorted_arrays[name] = np.ascontiguousarray(a[order])
    return sorted_arrays if isinstance(key, str) else {**sorted_arrays, "key": ids[order]}


def _write(path: Path, content: bytes) -> bool:
    """Writes the golden file; False if it is unchanged."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, durable=False, ours=is_golden_file)
    return True


def _write_values(path: Path, content: bytes | None) -> bool:
    """Writes the values file beside a golden file, or removes an old one; False if nothing changed."""
    target = Path(values_name(str(path)))
    if content is None:
        if not is_values_file(str(target)):
            return False
        target.unlink()
        return True
    with contextlib.suppress(OSError):
        if target.read_bytes() == content:
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content, durable=False, ours=is_values_file)
    return True


def _save(
    path: Path,
    refs: Mapping[str, FieldRef],
    decision: Callable[[FieldRef], Decision],
    residue_bits: int,
    keep_values: int,
) -> bool:
    """Writes the golden file of these arrays, and their values where they are small; False if nothing
    changed.
    """
    kept = [read_by_row(ref) for ref in refs.values()]
    for ref in kept:
        needed, size = needs_values(decision(ref)), ref.items * ref.itemsize
        if needed and size > keep_values:
            raise Incomparable(
                f"{ref.name!r}: {needed} needs values, and of {size} bytes only digests are kept",
                fix=f"give keep_values={size}",
            )
    tolerance = {ref.name: decision(ref) for ref in kept}
    content = golden_bytes(
        kept,
        lambda ref: (tolerance[ref.name].atol, tolerance[ref.name].rtol),
        residue_bits=residue_bits,
        chunk_bytes=_CHUNK_BYTES,
        place=(None, 0),
    )
    changed = _write_values(path, values_bytes(kept, keep_values, content))
    return _write(path, content) or changed


def _check_one(
    golden: Digests, name: str, kept: FieldRef | None, ref: FieldRef, decision: Decision
) -> GoldenField:
    if kept is not None:
        return check_values(golden, kept, ref, (None, 0), decision, label="this test", most_listed=20)
    if needed := needs_values(decision):
        raise Incomparable(
            f"{needed} needs values, and only digests are kept",
            fix=f"write the file again, with keep_values={ref.items * ref.itemsize} or more",
        )
    return check_field(
        golden,
        golden.numbers[name],
        ref,
        (None, 0),
        decision.atol,
        decision.rtol,
        label="this test",
        most_listed=20,
    )


class Reproducible:
    """Golden files of one test: what the fixture `reproducible` of the pytest plugin gives.

    >>> from pathlib import Path
    >>> from twinrun.golden.single import Reproducible
    >>> x = np.linspace(0, 1, 100)
    >>> Reproducible(Path("golden"), ["test_heat"], update=True).check("plate", x, atol=1e-6)
    >>> fields = Reproducible(Path("golden"), ["test_heat"]).check("plate", x + 1e-9, atol=1e-6)
    >>> fields[0].verdict
    'same'

    Parameters
    ----------
    folder : path
        The folder of the golden files of the test module.
    inside : sequence of str
        The names that lead to the test in its module.
    update : bool, default False
        True: `check` writes golden files, and compares nothing.
    command : str, default 'pytest --twinrun-update'
        The command that writes them, for messages.
    written : list, default None
        Gets (path, changed) of each written file.
    """

    def __init__(
        self,
        folder: Path,
        inside: Sequence[str],
        *,
        update: bool = False,
        command: str = "pytest --twinrun-update",
        written: list | None = None,
    ) -> None:
        self.folder = Path(folder, *(file_name(part) for part in inside))
        self._update = update
        self._command = command
        self._written = [] if written is None else written
        self._names: set[str] = set()

    @any_values
    def check(
        self,
        name: str,
        arrays: object,
        *,
        atol: float = 0.0,
        rtol: float = 0.0,
        key: object = None,
        tolerate_integers: bool = False,
        residue_bits: int = 4,
        undecided: str = "fail",
        ulp: int | None = None,
        period: str | float | Iterable[float] | None = None,
        keep_values: int = KEEP_VALUES,
    ) -> list[GoldenField] | None:
        """Raises `NotReproduced` unless arrays agree with their golden file.

        In a test: `reproducible.check("temperature", array, atol=1e-9)`.

        Parameters
        ----------
        name : str
            The name of the golden file, used once in a test.
        arrays : array or container of arrays
            An array (numpy, PyTorch, CuPy, JAX, a list, a number), or a container: `{name: array}`, nested
            ones, a model, a table.
        atol, rtol : float, default 0
            Elements agree where |a - b| <= atol + rtol |a|, a the golden values. `atol` has the unit of the
            data. Integers and booleans are compared exactly.
        key : str or array of int, default None
            IDs, or the name of the array that has them: the order of elements along the first axis then does
            not matter.
        tolerate_integers : bool, default False
            True: the tolerance holds for integers and booleans too.
        residue_bits : {4, 2, 0}
            Bits an element, when the file is written.
        undecided : {'fail', 'pass'}
            Whether what cannot be decided within one cell counts as a failure.
        ulp : int, default None
            Floating-point numbers that are at most so many representable values apart agree. Needs values.
        period : float, iterable of float, or str, default None
            Lengths of the periodic box, as for `twinrun.compare`. Needs values.
        keep_values : int, default 65536
            Bytes of the largest array of which the values are kept, when the file is written.

        Returns
        -------
        list of GoldenField or None
            What is known of each field; None where the file was written.

        Raises
        ------
        NotReproduced
            Something differs or could not be compared, or there is no golden file.
        TwinrunError
            A parameter has no meaning, the name was used before, or a file that is not twinrun's has the
            name.
        DamagedFile
            The golden file contradicts its checksums, or the values that it keeps are not those of its
            digests.
        Incomparable
            `ulp` or `period` is given for an array that is too large to keep its values.
        """
        __tracebackhide__ = True
        if not isinstance(name, str) or not name:
            raise TwinrunError(f"a check needs a name, not {in_short(name)}")
        if name in self._names:
            raise TwinrunError(
                f"{name!r} is checked twice in this test", fix="give each check a name of its own"
            )
        if undecided not in ("fail", "pass"):
            raise TwinrunError(f"undecided must be 'fail' or 'pass', not {in_short(undecided)}")
        if residue_bits not in (0, 2, 4):
            raise TwinrunError(f"residue_bits must be 0, 2 or 4, not {in_short(residue_bits)}")
        _core.check_tolerance(tolerance_number("atol", atol), tolerance_number("rtol", rtol))
        self._names.add(name)
        fields = named_arrays(arrays) if is_container(arrays) else flattened(name, arrays)
        if key is not None:
            fields = _ordered(fields, key)
        path = self.folder / f"{file_name(name)}.twm"
        subject = open_subject(fields)

        settings_of = rule_settings(atol, rtol, ulp, period, tolerate_integers)

        def decision(ref: FieldRef) -> Decision:
            return settings_of.decision(ref, ref, None)

        with subject.open(subject.places[0]) as refs:
            if self._update:
                self._written.append((path, _save(path, refs, decision, residue_bits, keep_values)))
                return None
            problems, results = self._held(path, refs, decision)
        wrong = [
            f
            for f in results
            if f.verdict == "different" or (f.verdict == "undecided" and undecided == "fail")
        ]
        if problems or wrong:
            raise NotReproduced(self._said(name, path, problems, wrong))
        return results

    def _held(
        self, path: Path, refs: Mapping[str, FieldRef], decision: Callable[[FieldRef], Decision]
    ) -> tuple[list[str], list[GoldenField]]:
        __tracebackhide__ = True
        if not path.exists():
            raise NotReproduced(
                f"there is no golden file {path}\nto make it, and look at what was made before it is committed:\n"
                f"  {self._command}"
            )
        metadata = _core.Metadata(str(path))
        metadata.verify()
        if metadata.data_files:
            raise NotReproduced(
                f"{path} is no golden file: it is metadata of data files, which 'twinrun index' makes"
            )
        values_path = values_name(str(path))
        values = read_values(values_path, path.read_bytes()) if os.path.lexists(values_path) else {}
        golden = Digests(metadata)
        known = golden.numbers
        values = {name: kept for name, kept in values.items() if name in known}
        elements = kept_refs(golden, values)
        problems = [f"{n!r} is not in the golden file" for n in refs if n not in known]
        problems += [f"{n!r} is in the golden file only" for n in known if n not in refs]
        results = []
        for name, ref in refs.items():
            if name not in known:
                continue
            try:
                kept = kept_ref(golden, name, elements) if name in values else None
                results.append(_check_one(golden, name, kept, ref, decision(read_by_row(ref))))
            except TwinrunError as e:
                problems.append(f"{name!r}: {e}")
        return problems, results

    def _said(self, name: str, path: Path, problems: list[str], wrong: list[GoldenField]) -> str:
        from .words import element_text, span_text

        lines = [f"{name} is not what its golden file says: {path}"]
        lines += [f"  not compared: {p}" for p in problems]
        for f in wrong:
            counted = "" if f.different_is_exact else "at least "
            if f.verdict == "different":
                lines.append(f"  {f.field}: {counted}{f.different} of {f.elements} elements differ")
            else:
                lines.append(
                    f"  {f.field}: undecided within one cell of {f.cell:.3g} (undecided='pass' lets it pass)"
                )
            details = list(dict.fromkeys(element_text(e, f) for e in f.listed)) + [
                span_text(s, f) for s in f.spans if not s.exact
            ]
            lines += [f"    {one_line(line)}" for line in details[:_MOST_LINES]]
            if len(details) > _MOST_LINES or f.listed_left_out or f.spans_left_out:
                lines.append("    …")
        lines.append("if this change is meant, write the file again and commit it:")
        lines.append(f"  {self._command}")
        return "\n".join(lines)
