"""URLs of objects in stores, and what of them may be shown."""

from __future__ import annotations

import re

__all__ = ["is_url", "numbered", "without_secrets"]

_PROTOCOLS = "https?|s3a?|gs|gcs"
_URL = re.compile(rf"(?:{_PROTOCOLS})://", re.IGNORECASE)
# Also with one slash, as a path that was made absolute has it.
_IN_TEXT = re.compile(
    rf"(?P<begin>\b(?:{_PROTOCOLS}):/{{1,2}})(?P<user>[^\s/?#'\"]*@)?(?P<rest>[^\s?#'\"]*)(?P<query>[?#][^\s'\"]*)?",
    re.IGNORECASE,
)


def is_url(path: object) -> bool:
    """Whether this is a URL of a store that twinrun reads.

    >>> is_url("s3://bucket/x.npy"), is_url("runs/a")
    (True, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def without_secrets(text: str) -> str:
    """A text whose URLs have no user, password, query or fragment: presigned URLs carry their
    signature in the query.

    >>> without_secrets("https://me:pw@host/x.npy?X-Amz-Signature=1: gone")
    'https://host/x.npy: gone'
    """
    if ":/" not in text:
        return text

    def plain(found: re.Match[str]) -> str:
        query = found["query"] or ""
        return found["begin"] + found["rest"] + query[len(query.rstrip(":,;.")) :]

    return _IN_TEXT.sub(plain, text)


def numbered(name: str, number: int) -> str:
    """The name of a further object of this name. Its last part, which formats look at, stays.

    >>> numbered("https://host/a/x.npy", 2)
    'https://host/a/~2/x.npy'
    """
    above, mark, last = name.rpartition("/")
    return f"{above}{mark}~{number}/{last}"
