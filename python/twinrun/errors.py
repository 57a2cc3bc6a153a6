"""Errors of twinrun: each message is one line that says where, what is wrong, and what to do.

    TwinrunError
    ├── FormatError          a file could not be read as what it claims to be, or at all
    │   ├── DamagedFile      its bytes contradict its format or its size
    │   ├── MissingFile      it is not there
    │   ├── Unsupported      it is valid, but holds something this version cannot read
    │   └── MissingPackage   an optional Python package is needed; the message names the pip command
    ├── Incomparable         two things that cannot be compared: shapes, types
    │   └── Unmatched        a step, rank or field that only one of them has
    │       └── Uncompared   something that is there and cannot be compared
    ├── Stale                metadata that is older than the data it describes
    └── StepLost             steps that were captured in the background and could not be committed

The command line turns every one of them into one line on stderr and exit status 2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from .urls import is_url, shown

__all__ = [
    "DamagedFile",
    "FormatError",
    "Incomparable",
    "MissingFile",
    "MissingPackage",
    "Stale",
    "StepLost",
    "TwinrunError",
    "Uncompared",
    "Unmatched",
    "Unsupported",
]

_LONGEST = 2000  # characters of a message: names come from files, and a file may be hostile


# What to do is written with the options of the command line; callers of the package read the
# parameters instead.
_PARAMETERS = {
    "--cast": "types='values'",
    "--common": "common=True",
    "--nan-differs": "equal_nan=False",
    "--no-metadata": "options=CompareOptions(use_metadata=False)",
    "--tolerate-integers": "tolerate_integers=True",
    "--format-option partial=true": "partial=True",
    "--key auto": "key='auto'",
    "--method direct": "options=CompareOptions(method='direct')",
    **{f"--format {name}": f"format='{name}'" for name in ("bytes", "raw", "table")},
    "--append": "append=True",
    "--update": "update=True",
    "--flat": "flat=True",
    "--field": "fields",
    "--leave-out": "leave_out",
    "--ignore-attribute": "ignore_attributes",
    "--format-option": "options",
    "--keep-values": "keep_values",
    **{
        f"--{name}": name
        for name in "steps ranks key period align atol rtol ulp method memory device".split()
    },
    **{f"--{name}": name for name in "format dtype shape offset rename threads tolerances".split()},
}
_COMMAND = re.compile(
    r"\btwinrun (?:accept|aggregate|compare|ensemble|flush|golden|index|noise|pack|restore|show|verify)\b"
)
_options = False  # whether messages name options: in the command line
# Of these, options of `twinrun compare` that the running verb does not have.
_of_compare: frozenset[str] = frozenset()


def name_options(show: bool) -> bool:
    """Sets whether messages name options of the command line, not parameters; returns what was set before."""
    global _options
    before, _options = _options, show
    return before


@contextlib.contextmanager
def options_of_compare(options: Iterable[str]) -> Iterator[None]:
    """Within it, messages of the command line name these options as those of `twinrun compare`: another verb
    runs, which compares and does not have them.
    """
    global _of_compare
    before, _of_compare = _of_compare, frozenset(options)
    try:
        yield
    finally:
        _of_compare = before


def in_words_of_the_caller(text: str) -> str:
    """`text`, in which `--common` is written as `common=True` where Python calls, and as
    `twinrun compare --common` where the running verb does not have it.
    """
    if "--" not in text or _COMMAND.search(text):  # a command line is one for everybody
        return text
    if _options:
        return re.sub(
            r"(?<![\w-])--[a-z][a-z-]*(?![\w-])",
            lambda found: f"twinrun compare {found[0]}" if found[0] in _of_compare else found[0],
            text,
        )
    return re.sub(
        r"(?<![\w-])(--method direct|--key auto|--format (?:bytes|raw|table)|--format-option partial=true|--[a-z][a-z-]*)(?![\w-])",
        lambda found: _PARAMETERS.get(found[0], found[0]),
        text,
    )


def one_line(text: str, longest: int = _LONGEST) -> str:
    """`text` with line breaks, terminal escapes and undecodable bytes written as escapes, cut to
    `longest`. URLs in it show no secrets, and copies of objects have their URLs.
    """
    text = shown(text)  # before a URL may be cut
    if len(text) > longest:
        text = text[: longest // 2] + "…" + text[-(longest // 2) :]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def in_short(value: object, longest: int = 60) -> str:
    """A value that a caller gave, as messages have it: a long one is cut in its middle."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return (
            f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a value without text"
        )
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-(longest // 2) :]}"


class TwinrunError(Exception):
    """The base of all errors that a user can cause or meet.

    >>> try:
    ...     twinrun.compare("runs/a", "runs/b")
    ... except twinrun.TwinrunError as error:
    ...     print(error)
    runs/a: no such file or folder; check the path

    Parameters
    ----------
    what : str
        What is wrong.
    where : str or path, default None
        The file, dataset or field.
    fix : str, default None
        What the user can do about it.

    Notes
    -----
    `str(error)` is one line: "where: what; fix". The command line prints it and ends with status 2. An error
    survives pickling, so that it can come back from a worker process; `where` and `fix` are then part of
    `what`.

    Examples
    --------
    >>> error = twinrun.TwinrunError("is a folder", where="runs/a", fix="name a file")
    >>> str(error), error.what, error.where, error.fix
    ('runs/a: is a folder; name a file', 'is a folder', 'runs/a', 'name a file')
    """

    def __init__(
        self, what: str, *, where: str | os.PathLike[str] | None = None, fix: str | None = None
    ) -> None:
        self.what = shown(what)
        self.where = None if where is None else shown(os.fspath(where))
        self.fix = None if fix is None else shown(fix)
        place = "" if self.where is None else f"{self.where}: "
        fix = None if fix is None else in_words_of_the_caller(fix)
        # One string in args: such an error survives pickling, so that it can come back from a
        # worker process.
        super().__init__(one_line(place + what + (f"; {fix}" if fix else "")))


class FormatError(TwinrunError):
    """A file could not be read as the format that it claims to be, or that the caller named.

    >>> from twinrun.formats import open_file
    >>> with open("data.xyz", "wb") as file:
    ...     _ = file.write(bytes(16))
    >>> open_file("data.xyz")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    twinrun.errors.FormatError: data.xyz: its format is not recognised; ...

    `DamagedFile`, `MissingFile`, `Unsupported` and `MissingPackage` are its kinds. Parameters: see
    `TwinrunError`.
    """

    @classmethod
    def of_system(cls, error: OSError, where: str | os.PathLike[str], part: str = "") -> FormatError:
        """Makes the error for one of the operating system.

        >>> import errno
        >>> str(twinrun.FormatError.of_system(PermissionError(errno.EACCES, "Permission denied"), "x.npy"))
        'x.npy: cannot be read: permission denied; check owner and permissions'

        Parameters
        ----------
        error : OSError
            What the system said; it has a number.
        where : str or path
            The file.
        part : str, default ""
            What of the file was read, to begin the message.

        Returns
        -------
        FormatError
            The error; it is not raised.
        """
        if error.errno == errno.ELOOP:
            return cls(f"{part}is a circle of symbolic links", where=where, fix="mend the links")
        # Libraries put sentences of their own into `strerror`. What a store said has no other
        # words.
        said = error.strerror if is_url(os.fspath(where)) or error.errno is None else os.strerror(error.errno)
        denied = isinstance(error, PermissionError)
        return cls(
            f"{part}cannot be read: {'permission denied' if denied else said}",
            where=where,
            fix="check owner and permissions" if denied else None,
        )


class DamagedFile(FormatError):
    r"""The bytes of a file contradict its format, a checksum, or the size of the file.

    >>> with open("x.npy", "wb") as file:
    ...     _ = file.write(b"\x93NUMPY")
    >>> twinrun.compare("x.npy", "x.npy")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    twinrun.errors.DamagedFile: x.npy: ...

    Restore the file from a copy. Parameters: see `TwinrunError`.
    """


class MissingFile(FormatError):
    """A file or folder does not exist, or a step, rank or field that the caller named is not in a record.

    >>> twinrun.verify("runs/a")
    Traceback (most recent call last):
    twinrun.errors.MissingFile: runs/a: no such file or folder; check the path

    Parameters: see `TwinrunError`.
    """

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> FormatError:
        """Makes the error for a path at which nothing can be found.

        >>> import os
        >>> os.symlink("gone.npy", "latest.npy")
        >>> str(twinrun.MissingFile.at("latest.npy"))
        'latest.npy: is a symbolic link to gone.npy, which is not there; mend the link'

        Parameters
        ----------
        path : str or path
            What the caller named.

        Returns
        -------
        FormatError
            The error; it is not raised. It is a MissingFile, unless the path cannot be looked at.
        """
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            with contextlib.suppress(OSError):
                to = os.fsdecode(os.readlink(path))
                kept = ".git/annex/objects/" in to
                return cls(
                    f"is a symbolic link to {to}, which is not there",
                    where=path,
                    fix="run: git annex get" if kept else "mend the link",
                )
        except OSError as error:
            return FormatError.of_system(error, path)
        except ValueError:  # a path with a byte 0
            pass
        return cls("no such file or folder", where=path, fix="check the path")


class Unsupported(FormatError):
    """A valid file, or a valid request, that this version or this machine does not support.

    >>> issubclass(twinrun.Unsupported, twinrun.FormatError)
    True

    Examples: a file of a later version, a GPU that cannot be used. Parameters: see `TwinrunError`.
    """


class MissingPackage(FormatError):
    """An optional Python package is needed and is not installed.

    >>> str(twinrun.MissingPackage.of("h5py", "twinrun[hdf5]", "x.h5"))
    "x.h5: needs the Python package h5py; run: pip install 'twinrun[hdf5]'"

    The message has the command that installs it. Parameters: see `TwinrunError`.
    """

    @classmethod
    def of(cls, package: str, install: str, where: str | os.PathLike[str] | None = None) -> MissingPackage:
        """Makes the error for one package.

        Parameters
        ----------
        package : str
            The name that Python imports.
        install : str
            What `pip install` takes.
        where : str or path, default None
            The file that needs the package.

        Returns
        -------
        MissingPackage
            The error; it is not raised.
        """
        target = f"'{install}'" if "[" in install else install
        return cls(f"needs the Python package {package}", where=where, fix=f"run: pip install {target}")


class Incomparable(TwinrunError):
    """Two things cannot be compared: shapes, types or sets of fields differ.

    >>> twinrun.compare({"x": np.zeros(3)}, {"x": np.zeros(4)})
    Traceback (most recent call last):
    twinrun.errors.Incomparable: field 'x': shape [3] in the first run, [4] in the second; shapes must agree

    A step, rank or field that only one run has is the subclass `twinrun.errors.Unmatched`. Parameters: see
    `TwinrunError`.
    """


class Unmatched(Incomparable):
    """A step, rank or field that only one of two runs has."""


class Uncompared(Unmatched):
    """A run has something that cannot be compared.

    `compare(..., common=True)` leaves it out and notes it, as it does with what only one run has.
    """

    @classmethod
    def of(cls, name: str, where: str, why: str, fix: str | None = None) -> Uncompared:
        """The words of all verbs for it: comparisons, golden checks, indexing and showing."""
        return cls(f"{name!r} cannot be compared: {why}", where=where, fix=fix)


class Stale(TwinrunError):
    """Metadata is older than the data that it describes.

    >>> np.save("x.npy", np.zeros(8))
    >>> _ = twinrun.index("x.npy")
    >>> np.save("x.npy", np.zeros(9))
    >>> twinrun.compare("x.npy.twm", "x.npy.twm")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    twinrun.errors.Stale: ...

    Run `twinrun index` again. Parameters: see `TwinrunError`.
    """


class StepLost(TwinrunError):
    """A run captured steps in the background and could not commit them: they are not part of its history.

    >>> error = twinrun.StepLost.of({4: "no space left on device"}, "runs/a")
    >>> str(error), error.steps
    ('runs/a: step 4 could not be committed: no space left on device', {4: 'no space left on device'})

    Attributes
    ----------
    steps : dict of int to str
        The lost steps, and why each one is lost.
    facts : CaptureFacts or None
        What `Run.capture` would have returned for the step that this call captured. None if another method
        raised the error.

    Parameters: see `TwinrunError`.
    """

    steps: Mapping[int, str] = {}
    facts: object = None

    @classmethod
    def of(cls, steps: Mapping[int, str], where: str, facts: object = None) -> StepLost:
        """Makes the error for lost steps.

        Parameters
        ----------
        steps : dict of int to str
            The lost steps, and why each one is lost.
        where : str
            The folder of the history.
        facts : CaptureFacts, default None
            What the call that reports the loss captured.

        Returns
        -------
        StepLost
            The error; it is not raised.
        """
        first, why = next(iter(steps.items()))
        more = f" (and {len(steps) - 1} more)" if len(steps) > 1 else ""
        error = cls(f"step {first}{more} could not be committed: {why}", where=where)
        error.steps, error.facts = dict(steps), facts
        return error
