"""Readable results: tables, JSON, pages, pictures. Reports know comparisons, and not how they are made."""

from ..comparison.words import verdict_line
from ..words import byte_size
from .document import document, write_json
from .text import print_comparison, print_provenance

__all__ = ["byte_size", "document", "print_comparison", "print_provenance", "verdict_line", "write_json"]
