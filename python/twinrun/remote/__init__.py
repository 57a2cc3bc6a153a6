"""Objects of stores (https, s3, gs), read by ranges through fsspec."""

from .objects import attach, detach, object_of
from .store import Copies, RemoteStore, below, enter_store, forget_store, store_of, top_level
from .stream import RemoteStream

__all__ = [
    "Copies",
    "RemoteStore",
    "RemoteStream",
    "attach",
    "below",
    "detach",
    "enter_store",
    "forget_store",
    "object_of",
    "store_of",
    "top_level",
]
