"""URLs of objects in stores, and what of them may be shown."""

from __future__ import annotations

import re

__all__ = [
    "call_copies",
    "foreign_scheme",
    "forget_copies",
    "is_url",
    "looks_like_url",
    "numbered",
    "shown",
    "without_secrets",
]

_PROTOCOLS = "https?|s3a?|gs|gcs"
_URL = re.compile(rf"(?:{_PROTOCOLS})://", re.IGNORECASE)
_SCHEME = re.compile(r"(?!file:)([a-z][a-z0-9+.-]{0,30})://", re.IGNORECASE)
# Schemes of stores that twinrun does not read. Somebody may try them.
_OTHERS = (
    "s?ftps?|ssh|scp|(?:web)?davs?|(?:web)?hdfs|abfss?|adl|az|azure|wasbs?|oci|oss|swift|smb|git(?:hub)?"
)
# A quote belongs to a URL where a word goes on behind it: 'https://host/it's.npy'.
_SIGN, _NO_QUOTE = r"[^\s?#'\"]", r"['\"](?=[^\s'\",;:.)\]}])"
_ANY = re.compile(
    rf"[a-z][a-z0-9+.-]{{0,30}}:// | (?:{_PROTOCOLS}|{_OTHERS}|file|memory):/", re.IGNORECASE | re.VERBOSE
)
_IN_TEXT = re.compile(
    rf"""
    # Any scheme. Also one slash, as a path that was made absolute has it.
    (?P<begin> (?<![a-z0-9]) (?: (?!file:) [a-z][a-z0-9+.-]{{0,30}}:// | (?:{_PROTOCOLS}|{_OTHERS}):/ ) )
    (?P<user>
        [^\s/?#]*@
        # A password with a bare slash: what stands before the slash is no host with a port.
        | [^\s/?#\[\]:@]*: (?!\d*/) [^\s?#]*@
    )?
    (?P<rest> (?: {_SIGN} | {_NO_QUOTE} )* )
    (?P<query> [?#] (?: [^\s'"] | {_NO_QUOTE} )* )?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A user and a password behind `file://`, or behind a blank that came after the slashes.
_STRAY = re.compile(r"(?P<begin> [a-z][a-z0-9+.-]{0,30}:/{1,3}\s* ) [^\s/?#@:'\"]*:[^\s/?#]*@", re.I | re.X)
_QUERY = re.compile(r"\?[\w.~%-]{1,100}=[^\s'\"]*")  # of a URL with a space in its path


def is_url(path: object) -> bool:
    """Whether this is a URL of a store that twinrun reads.

    >>> is_url("s3://bucket/x.npy"), is_url("runs/a")
    (True, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def foreign_scheme(path: str) -> str:
    """The scheme of a URL that twinrun does not read; "": this is none.

    >>> foreign_scheme("ftp://host/x.npy"), foreign_scheme("s3://bucket/x.npy"), foreign_scheme("runs/a")
    ('ftp', '', '')
    """
    found = None if is_url(path) else _SCHEME.match(path)
    return found[1].lower() if found else ""


def looks_like_url(path: str) -> bool:
    """Whether a path that is written begins as a URL, of any store or mistyped.

    >>> looks_like_url("az://box/a"), looks_like_url("s3:/bucket/a"), looks_like_url("./az:/box/a")
    (True, True, False)
    """
    return _ANY.match(path) is not None


def without_secrets(text: str) -> str:
    """A text whose URLs have no user, password, query or fragment: presigned URLs carry their
    signature in the query.

    >>> without_secrets("https://me:pw@host/x.npy?X-Amz-Signature=1: gone")
    'https://host/x.npy: gone'
    """
    if ":/" not in text:
        return text

    shown, urls = _IN_TEXT.subn(
        lambda found: found["begin"] + found["rest"] + _behind(found["query"] or ""), text
    )
    shown = _STRAY.sub(lambda found: found["begin"], shown)
    return _QUERY.sub(lambda found: _behind(found[0]), shown) if urls else shown


def _behind(query: str) -> str:
    """The signs at its end that belong to the sentence."""
    return query[len(query.rstrip(":,;.")) :]


_copies: dict[str, str] = {}  # folders with copies of objects: what messages call them


def call_copies(folder: str, name: str) -> None:
    """Lets messages name the objects, and not the copies of them in a folder of this machine."""
    _copies[folder] = name


def forget_copies(folder: str) -> None:
    _copies.pop(folder, None)


def shown(text: str) -> str:
    """A text as messages have it: without secrets, and with URLs for copies of objects.

    >>> call_copies("/tmp/x", "s3://bucket/run")
    >>> shown("/tmp/x/manifest.jsonl: damaged, of https://me:pw@host/x?s=1")
    's3://bucket/run/manifest.jsonl: damaged, of https://host/x'
    >>> forget_copies("/tmp/x")
    """
    for folder, name in list(_copies.items()) if _copies else ():
        text = text.replace(folder, name)
    return without_secrets(text)


def numbered(name: str, number: int) -> str:
    """The name of a further object of this name. Its last part, which formats look at, stays.

    >>> numbered("https://host/a/x.npy", 2)
    'https://host/a/~2/x.npy'
    """
    above, mark, last = name.rpartition("/")
    return f"{above}{mark}~{number}/{last}"
