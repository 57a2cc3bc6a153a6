"""The digests of a golden file, opened: what its fields share is found once."""

from __future__ import annotations

from .. import _core
from ..formats.labels import labels_told

__all__ = ["Digests"]


class Digests:
    """Digests of several fields, with what they say of units and kinds.

    path: of the file. fields: facts of each. numbers: {field: its number}, without the labels of units and
    kinds. labels: {field: its unit and kind}.
    """

    def __init__(self, metadata: _core.Metadata) -> None:
        self._metadata = metadata
        self.path = metadata.path
        self.fields = metadata.fields
        self.labels, names = labels_told({f.name: f.shape for f in self.fields})
        self.numbers = {f.name: at for at, f in enumerate(self.fields) if f.name not in names}

    def section(self, at: int, name: str) -> bytes:
        """A part of the file that belongs to field number `at`: 'tree', 'fine' or 'residues'."""
        return self._metadata.section(at, name)

    def sketch(self, at: int) -> _core.FieldSketch:
        """The digests of field number `at`, as the core compares them."""
        (found,) = _core.load_sketches(self._metadata, [at], -1)
        return found
