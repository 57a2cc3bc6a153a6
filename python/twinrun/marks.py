"""What twinrun knows its own files by: names, suffixes, first bytes."""

from __future__ import annotations

import re

__all__ = ["GOLDEN_MANIFEST", "MANIFEST", "METADATA_MAGIC", "METADATA_SUFFIX", "STEP_MARK"]

MANIFEST = "manifest.jsonl"  # of a history
GOLDEN_MANIFEST = "golden.json"
METADATA_MAGIC = b"\x89TWM\r\n\x1a\n"  # spec/metadata.md
METADATA_SUFFIX = ".twm"
STEP_MARK = re.compile(r"\.twinrun-[0-9a-f]{32}")  # a file that says whose a step's folder is
