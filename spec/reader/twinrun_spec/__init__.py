"""An independent reader of twinrun's formats, written from spec/digest.md, spec/metadata.md,
spec/record.md and spec/sub-files.md alone.

Slow and plain on purpose: big integers, exact fractions, one element at a time.
"""

from twinrun_spec.metadata import FormatError, Metadata, parse, verify

__all__ = ["FormatError", "Metadata", "parse", "verify"]
