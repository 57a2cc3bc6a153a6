"""Golden files that lie in a store: copies of them for one check, each made when it is needed."""

from __future__ import annotations

from ..errors import MissingFile
from ..remote import Copies, below
from .manifest import MANIFEST

__all__ = ["copied"]


def copied(url: str) -> Copies:
    """A folder with the manifest of the golden files of a URL, which goes with what is returned.

    Raises MissingFile if there are none.
    """
    store = below(url)
    if store is None or store.attach(MANIFEST) is None:
        raise MissingFile(
            "no golden files there",
            where=url,
            fix="make them with: twinrun golden save RUN --output FOLDER, and copy the folder there",
        )
    copies = Copies(store)
    copies.bring([MANIFEST])
    return copies
