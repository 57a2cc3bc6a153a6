"""Objects of stores (https, s3, gs) through fsspec: read by ranges, and written into buckets."""

from .bucket import Bucket
from .objects import attach, detach, object_of
from .store import Copies, RemoteStore, below, enter_store, forget_store, store_of, top_level
from .stream import RemoteStream
from .transport import Taken
from .writes import Held, Mark

__all__ = [
    "Bucket",
    "Copies",
    "Held",
    "Mark",
    "RemoteStore",
    "RemoteStream",
    "Taken",
    "attach",
    "below",
    "detach",
    "enter_store",
    "forget_store",
    "object_of",
    "store_of",
    "top_level",
]
