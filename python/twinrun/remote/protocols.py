"""Which store a URL names, and how its objects are read. Connections and credentials are fsspec's."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from ..errors import FormatError, MissingPackage
from ..urls import without_secrets
from .gs import Gs
from .https import Https
from .s3 import S3
from .transport import Transport, time_limit

__all__ = ["file_system", "transport"]

_BY_PROTOCOL: dict[str, tuple[type[Transport], str]] = {
    "http": (Https, "aiohttp"),
    "https": (Https, "aiohttp"),
    "s3": (S3, "s3fs"),
    "s3a": (S3, "s3fs"),
    "gs": (Gs, "gcsfs"),
    "gcs": (Gs, "gcsfs"),
}


def file_system(url: str) -> tuple[Any, str, type[Transport]]:
    """fsspec's file system of a URL, the path in it, and how objects there are read."""
    protocol, _, rest = url.partition("://")
    protocol = protocol.lower()
    kind, package = _BY_PROTOCOL[protocol]
    name = without_secrets(url)
    if re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")[2].partition(":")[0] == "":
        what = "host" if kind is Https else "bucket"
        raise FormatError(f"names no {what}", where=name, fix=f"write {protocol}://{what.upper()}/NAME")
    try:
        import fsspec
    except ImportError:
        raise MissingPackage.of("fsspec", "twinrun[remote]", where=name) from None
    if importlib.util.find_spec(package) is None:
        extra = "twinrun[remote]" if package != "gcsfs" else "gcsfs"
        raise MissingPackage.of(package, extra, where=name)
    try:
        fs, path = fsspec.core.url_to_fs(f"{protocol}://{rest}", **_options(kind, protocol))
    except Exception as error:
        raise FormatError(
            f"cannot be opened ({type(error).__name__})", where=name, fix="check the URL and the credentials"
        ) from None
    return fs, path, kind


def _options(kind: type[Transport], protocol: str) -> dict[str, Any]:
    """Limits of time for the requests of a library, and what its configuration says."""
    if kind is not S3:
        return {}
    import fsspec

    told = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
    return {"config_kwargs": {"connect_timeout": time_limit(), "read_timeout": time_limit(), **told}}


def transport(url: str, name: str) -> Transport:
    """How the object of a URL is read.

    Raises MissingPackage where fsspec or a package of the store is missing.
    """
    fs, path, kind = file_system(url)
    return kind(fs, path, name)
