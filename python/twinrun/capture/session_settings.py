"""The parameters of a run as settings of the core's session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import _core
from ..arguments import checked_path, own_folder
from ..errors import TwinrunError
from ..urls import without_secrets
from .record_options import RecordOptions

if TYPE_CHECKING:
    from .bucket_tier import BucketTier  # it needs what uploads need

__all__ = ["bucket_tier", "set_places", "set_record"]


def bucket_tier(url: str, chosen: _core.SessionSettings) -> BucketTier:
    """The last tier of a run that is a bucket. The session itself then knows no tiers."""
    from .bucket_tier import BucketTier

    if chosen.flusher == "process":
        raise TwinrunError("flusher='process' is for folders", where=without_secrets(url), fix="leave it out")
    if chosen.record_against:
        raise TwinrunError("record_against is for folders", where=without_secrets(url), fix="leave it out")
    plain = _core.SessionSettings()
    if chosen.record != plain.record and chosen.local_limit != plain.local_limit:
        raise TwinrunError(
            "local_limit is not for records: later steps need earlier ones", where=without_secrets(url)
        )
    tier = BucketTier(
        url, chosen.local or None, chosen.local_limit or None, chosen.existing, chosen.flusher != "none"
    )
    chosen.local, chosen.local_limit, chosen.flusher = plain.local, plain.local_limit, plain.flusher
    return tier


def set_record(
    chosen: _core.SessionSettings,
    record: str | RecordOptions | None,
    against: str | os.PathLike[str] | None,
    where: str | os.PathLike[str] | None,
) -> None:
    """Sets what a run's record needs."""
    if record is None:
        if against is not None:
            raise TwinrunError("record_against needs record", where=where, fix='give record="runs" too')
        return
    options = RecordOptions(record) if isinstance(record, str) else record
    if options.bounded or options.verify:
        raise TwinrunError(
            "bounded and verify are of twinrun.pack", where=where, fix="record exactly, and pack later"
        )
    settled = options.settled()
    chosen.record = settled.method
    chosen.record_chunk = settled.chunk_bytes
    chosen.record_compress = settled.codec
    chosen.record_level = settled.level
    chosen.record_xor = settled.xor
    chosen.record_table = options.table
    if against is not None:
        chosen.record_against = checked_path(against)


def set_places(
    chosen: _core.SessionSettings,
    local: str | os.PathLike[str] | None,
    local_limit: int | str | None,
    flusher: str | None,
    memory: int | str | None,
    device_memory: int | str | None,
    flush_threads: int | None,
) -> None:
    """Sets where steps may rest, and who brings them on; None leaves the default."""
    if local is not None:
        chosen.local = own_folder(checked_path(local))
    if local_limit is not None:
        chosen.local_limit = local_limit
    if flusher is not None:
        chosen.flusher = flusher
    if memory is not None:
        chosen.memory = memory
    if device_memory is not None:
        chosen.device_memory = device_memory
    if flush_threads is not None:
        chosen.flush_threads = flush_threads
