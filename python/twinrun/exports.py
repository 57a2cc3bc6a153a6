"""What results share that write themselves as JSON and as a page."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["Exports"]


class Exports:
    """A result that writes itself. Its class names the report, which is imported where it writes."""

    def _report(self) -> Any:
        """The module with `write_json(result, path)` and `write_html(result, path)`."""
        raise NotImplementedError

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `document` as JSON, as a whole or not at all.

        Parameters
        ----------
        path : str or path
            The file; '-' for standard output.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        self._report().write_json(self, os.fspath(path))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page that loads nothing from anywhere, as a whole or not at all.

        Parameters
        ----------
        path : str or path
            The file.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        self._report().write_html(self, os.fspath(path))
