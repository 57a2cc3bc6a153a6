"""Removal of sub-files and their index, once one file is made of them: only what is proved to be theirs."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

from ..errors import TwinrunError
from .sub_index import Index, identity_of, index_path, still_there

__all__ = ["Made", "check_removal", "remove_joined"]


class Made:
    """The whole file, as it was written."""

    def __init__(self, path: str, about: os.stat_result) -> None:
        self.path = path
        self._was = (about.st_dev, *identity_of(about))

    def check_there(self) -> None:
        """Raises TwinrunError where the path leads to something else by now, or the file was changed."""
        what = "another file came to its place, or it was moved"
        with contextlib.suppress(OSError):
            now = os.lstat(self.path)
            if (now.st_dev, *identity_of(now)) == self._was:
                return
            if (now.st_dev, now.st_ino) == (self._was[0], self._was[2]):
                what = "it was changed since"
        raise TwinrunError(
            f"was made, but {what}; the sub-files that are there stay, and so does their index",
            where=self.path,
            fix="join again with --output and a name that nobody else uses, if all sub-files are there",
        )


def _is_written(index: Index, number: int) -> bool:
    """Whether a sub-file is the one that the index names, and no link to it."""
    with contextlib.suppress(OSError):
        return _is(os.lstat(index.name(number)), index.files[number])
    return False


def _is(about: os.stat_result, identity: tuple[int, int, int]) -> bool:
    return stat.S_ISREG(about.st_mode) and identity_of(about) == identity


def _put_back(private: str, name: str) -> None:
    """Gives a file its name again. What has the name by now stays."""
    try:
        os.link(private, name, follow_symlinks=False)
    except FileNotFoundError:
        return  # it was removed
    except OSError as e:
        if e.errno == errno.EEXIST or os.path.lexists(name):
            raise TwinrunError(
                f"is what had the name {name}, which another file has taken since",
                where=private,
                fix="look at both, and rename or remove this one yourself",
            ) from e
        os.rename(private, name)  # a folder, or a file system without links
    else:
        os.unlink(private)


def _remove_one(name: str, identity: tuple[int, int, int], made: Made, *, linked: bool = False) -> bool:
    """Removes a file if it is this one, and has no other name unless `linked`. False: it is another one.

    It gets a private name first. So what comes to its name after the last look at it stays.
    """

    def is_ours(path: str) -> bool:
        about = os.lstat(path)
        return _is(about, identity) and (linked or about.st_nlink == 1)

    private = f"{name}.twr-removed.{secrets.token_hex(8)}"
    try:
        if not is_ours(name):
            return False
        os.rename(name, private)
        try:
            made.check_there()
            if is_ours(private):
                os.unlink(private)
                return True
        except BaseException:
            _put_back(private, name)
            raise
        _put_back(private, name)
        return False
    except FileNotFoundError:
        return True  # somebody removed it
    except OSError as e:
        raise TwinrunError(
            f"cannot be removed: {e.strerror}; {made.path} is made, and whole",
            where=name,
            fix="remove what is left yourself",
        ) from e


def _remove_parts(index: Index, made: Made) -> tuple[list[str], bool]:
    """Removes the sub-files. Returns those that stay, and whether they do by second names only."""
    kept: list[str] = []
    numbers = range(len(index.files))
    for number in numbers:
        name = index.name(number)
        made.check_there()
        if _has_name(index) and _remove_one(name, index.files[number], made):
            continue
        if not _has_name(index) or not _is_written(index, number):  # a program writes the files again
            return [*kept, *filter(os.path.lexists, map(index.name, numbers[number:]))], False
        kept.append(name)
    return kept, True


def _has_name(index: Index) -> bool:
    """Whether the index is under its name, without a look into it."""
    with contextlib.suppress(OSError):
        return _is(os.lstat(index_path(index.path)), index.identity)
    return False


def remove_joined(index: Index, made: Made) -> list[str]:
    """Removes the sub-files, and then their index. Returns what stays: files with a second name; all where
    one of them is not the file that was read; and what is left where one changes meanwhile. Where the whole
    file has lost its name or was changed, nothing more is removed: the sub-files may be the last copy.
    """
    name = index_path(index.path)
    numbers = range(len(index.files))
    made.check_there()
    # A program wrote the files again since, or somebody moved them.
    if not still_there(index) or not all(_is_written(index, number) for number in numbers):
        return [name, *map(index.name, numbers)]
    kept, complete = _remove_parts(index, made)
    made.check_there()
    if complete and still_there(index) and _remove_one(name, index.identity, made, linked=True):
        return kept
    return [name, *kept]


def check_removal(index: Index) -> None:
    """Raises TwinrunError where the sub-files may not or should not be removed."""
    if not index.checked:
        raise TwinrunError(
            "has no checksum, as an earlier twinrun wrote it, so the sub-files are not removed by it",
            where=index_path(index.path),
            fix="join without --remove, look at the new file, and remove the sub-files yourself",
        )
    for number in range(len(index.files)):
        if not _is_written(index, number):
            raise TwinrunError(
                "is not the file that was written: it was changed, copied or replaced since; nothing was made "
                "or removed",
                where=index.name(number),
                fix="join without --remove, look at the new file, and remove the sub-files yourself",
            )
    folder = os.path.dirname(index.path) or "."
    about = os.stat(folder)
    own = os.geteuid()
    theirs = bool(about.st_mode & stat.S_ISVTX) and own not in (0, about.st_uid)
    names = [index_path(index.path), *(index.name(number) for number in range(len(index.files)))]
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids) or (
        theirs and any(os.lstat(name).st_uid != own for name in names)
    ):
        raise TwinrunError(
            "its files may not be removed by this user, and nothing was made",
            where=folder,
            fix="leave out --remove",
        )
