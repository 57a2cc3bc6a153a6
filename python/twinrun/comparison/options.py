"""The options of `compare` that few callers need, as one object."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from ..arguments import format_options
from ..errors import TwinrunError

if TYPE_CHECKING:
    from .executors import Executor
    from .parallel import Team

__all__ = ["CompareOptions", "Moved", "chosen_options", "with_options"]


@dataclass(frozen=True)
class CompareOptions:
    """How `compare` works, apart from what counts as different: for experts.

    >>> fast = twinrun.CompareOptions(method="direct", threads=2)
    >>> twinrun.compare({"x": np.zeros(4)}, {"x": np.zeros(4)}, options=fast).verdict
    'same'

    None of them changes which elements differ. `threads`, `device`, `stream`, `progress` and `executor` are
    parameters of `compare` too: they say where the work is done, and how one follows it. To give one in both
    ways is an error, unless one of the values is the default. The others were such parameters. They still
    work as keywords, for one release, with a DeprecationWarning.

    Attributes
    ----------
    method : {'auto', 'staged', 'direct', 'published'}
        'staged' works on metadata first (tree, sketch, elements), 'direct' reads every element, 'published'
        is the method of the paper. All give the same differences.
    use_metadata : bool
        False: metadata is ignored, and elements are compared.
    residue_bits, chunk_bytes : int
        For metadata that is built during the comparison: bits an element, and bytes of a chunk.
    threads : int
        Threads that work; 0 takes all cores.
    memory : int
        Bytes of read buffers, at most.
    io : {'auto', 'uring', 'pread', 'gds'}
        How data is read; 'gds' is GPUDirect Storage.
    cache : {'auto', 'buffered', 'direct'}
        Whether reads go through the page cache.
    device : str
        'cpu', 'cuda', 'cuda:0', 'cuda:0,1', or 'auto': see `compare`.
    stream : int, stream object or None
        The GPU stream whose work makes the arrays.
    progress : callable or None
        `progress(label, done, total)` is called now and then.
    team : Team or None
        The ranks of an MPI job that share the work; the leader calls `compare`, the others serve
        (docs/reference/scaling.md).
    executor : executor or None
        An executor of `concurrent.futures`' kind, whose workers share the work.
    formats : dict or None
        Options of the file formats: format, dtype, shape, and others of docs/reference/formats.md.
    """

    method: str = "auto"
    use_metadata: bool = True
    residue_bits: int = 4
    chunk_bytes: int = 4096
    threads: int = 0
    memory: int = 1 << 30
    io: str = "auto"
    cache: str = "auto"
    device: str = "auto"
    stream: object = None
    progress: Callable[[str, int, int], None] | None = None
    team: Team | None = None
    executor: Executor | None = None
    formats: Mapping[str, object] | None = None


class Moved(TypedDict, total=False):
    """Keywords of `compare` that are fields of `CompareOptions` now, where they stay."""

    method: str
    use_metadata: bool
    residue_bits: int
    chunk_bytes: int
    memory: int
    io: str
    cache: str
    team: Team | None


def chosen_options(
    given: Mapping[str, object] | CompareOptions | None, moved: Moved, **keywords: Any
) -> CompareOptions:
    """All options of a comparison.

    given: what a caller gave as `options`. moved: keywords of old, which are warned about. keywords: those
    that are parameters still. Raises TypeError for a keyword that never was one, and TwinrunError where an
    option is given in both ways.
    """
    if moved:
        _warn_of(moved, isinstance(given, Mapping))
        keywords.update(moved)
    if isinstance(given, CompareOptions):
        format_options(given.formats)
        return with_options(given, **keywords)
    return CompareOptions(formats=None if given is None else format_options(given), **keywords)


def _warn_of(moved: Moved, has_formats: bool) -> None:
    """Warns where the caller's code stands, whatever function of this package it called."""
    for name in moved:
        if name not in Moved.__optional_keys__:  # as Python says it
            raise TypeError(f"compare() got an unexpected keyword argument {name!r}")
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "twinrun":
        level, frame = level + 1, frame.f_back
    now = ", ".join([f"{name}=…" for name in moved] + ["formats=…"] * has_formats)
    which = (
        f"the keywords {', '.join(moved)} are" if len(moved) > 1 else f"the keyword {next(iter(moved))} is"
    )
    warnings.warn(
        f"{which} deprecated: write options=twinrun.CompareOptions({now})",
        DeprecationWarning,
        stacklevel=level,
    )


def with_options(given: CompareOptions, **keywords: Any) -> CompareOptions:
    """The options, with keywords that a caller gave besides.

    keywords: of `CompareOptions`, but for `formats`. A default counts as not given. Raises TwinrunError where
    one is given in both ways.
    """
    changed = {}
    for field in dataclasses.fields(CompareOptions):
        value = keywords.get(field.name, field.default)
        if value is field.default or value == field.default:
            continue
        own = getattr(given, field.name)
        if not (own is field.default or own == field.default):
            raise TwinrunError(
                f"{field.name} is given by options and as a keyword", fix="give it once, in CompareOptions"
            )
        changed[field.name] = value
    return dataclasses.replace(given, **changed)
