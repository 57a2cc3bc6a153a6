"""The options of `compare` that few callers need, as one object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import TwinrunError

if TYPE_CHECKING:
    from .executors import Executor
    from .parallel import Team

__all__ = ["CompareOptions", "with_options"]


@dataclass(frozen=True)
class CompareOptions:
    """How `compare` works, apart from what counts as different: for experts.

    >>> fast = twinrun.CompareOptions(method="direct", threads=2)
    >>> twinrun.compare({"x": np.zeros(4)}, {"x": np.zeros(4)}, options=fast).verdict
    'same'

    None of them changes which elements differ. Each is a parameter of `compare` too, by the same name; these
    keywords stay for one release. An option that is given in both ways is an error.

    Attributes
    ----------
    method : {'auto', 'staged', 'direct', 'published'}
        'staged' works on metadata first (tree, sketch, elements), 'direct' reads every element, 'published'
        is the method of the paper.
    use_metadata : bool
        False: metadata is ignored, and elements are compared.
    residue_bits, chunk_bytes : int
        For metadata that is built during the comparison: bits an element, and bytes of a chunk.
    threads : int
        Threads that work; 0 takes all cores.
    memory : int
        Bytes of read buffers, at most.
    io : {'auto', 'uring', 'pread', 'gds'}
        How data is read.
    cache : {'auto', 'buffered', 'direct'}
        Whether reads go through the page cache.
    device : str
        'cpu', 'cuda', 'cuda:0', 'cuda:0,1', or 'auto'.
    stream : int, stream object or None
        The GPU stream whose work makes the arrays.
    progress : callable or None
        `progress(label, done, total)` is called now and then.
    team : Team or None
        The ranks of an MPI job that share the work.
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


def with_options(given: CompareOptions, **keywords: Any) -> CompareOptions:
    """The options, with keywords that a caller gave besides.

    keywords: all of `CompareOptions`, but for `formats`. Raises TwinrunError where one is given in both ways.
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
