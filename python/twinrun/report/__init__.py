"""Results made readable: the verdict's line, the table, JSON, a picture. Knows comparisons, not how they are made."""

from .document import document, write_json
from .text import byte_size, print_comparison, print_provenance, verdict_line

__all__ = ["byte_size", "document", "print_comparison", "print_provenance", "verdict_line", "write_json"]
