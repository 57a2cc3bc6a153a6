"""Other files that HDF5 files name: external files of elements, and sources of virtual datasets."""

from __future__ import annotations

import atexit
import gc
import os
import re
import traceback
import weakref
from typing import Any

from ..errors import DamagedFile
from ..remote import RemoteStream, object_of

MOST_SOURCES = 1_000_000
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_BLOCK = 512  # the least number of bytes in front of the signature, if there are any

# Files of streams that are open. HDF5 closes at exit what is still open. It would call streams of a
# Python that has ended, and the process would end by a signal. By id(): damaged files have no hash.
_of_streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def opened(h5py: Any, path: str) -> Any:
    """The HDF5 file of a path, or an object of a store, open for reading."""
    elsewhere = object_of(path)
    if elsewhere is None:
        return h5py.File(path, "r", locking="best-effort")
    stream = RemoteStream(elsewhere)
    if not _has_signature(stream, elsewhere.size):
        raise DamagedFile("is no HDF5 file: it has no HDF5 signature", where=path, fix="check the URL")
    try:
        file = h5py.File(stream, "r")
    except BaseException as error:
        _let_go(error)
        raise
    _of_streams[id(file)] = file
    return file


def _has_signature(stream: RemoteStream, size: int) -> bool:
    """Whether HDF5 finds its signature: at 0, 512, 1024, 2048, … (HDF5 file format, section II.A)."""
    at = 0
    while at + len(_SIGNATURE) <= size:
        if stream.read_at(at, len(_SIGNATURE)) == _SIGNATURE:
            return True
        at = 2 * at or _FIRST_BLOCK
    return False


def _let_go(error: BaseException | None) -> None:
    """Frees what h5py held when it failed: its access list refers to the stream, as an open file does."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def creation_list(h5py: Any, dataset: Any) -> Any:
    """How a dataset was created: its layout, filters, external files and sources (`h5py.h5p.PropDCID`).

    That of a virtual dataset must be gone before HDF5 ends: HDF5 2.0 crashes where it closes such a list
    itself. `twinrun`, the command, keeps Python from looking for garbage at the end, so this is taken back.
    """
    plist = dataset.id.get_create_plist()
    if plist.get_layout() == h5py.h5d.VIRTUAL:
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)
    return plist


@atexit.register
def _close_streams() -> None:
    for file in list(_of_streams.values()):
        if file:
            file.close()


def file_beside(name: str, path: str) -> str | None:
    """Path of the external file `name` of the HDF5 file `path`, None if there is none.

    It is looked for in HDF5_EXTFILE_PREFIX, then beside the HDF5 file, so that two runs do not
    share one, then as the path stands. An object of a store has none: files of this machine are not its own.
    """
    if object_of(path) is not None:
        return None
    own = os.path.dirname(path) or "."
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", own)
    for folder in (prefix, own):
        candidate = os.path.join(folder, name) if folder else name
        if folder and os.path.isfile(candidate):
            return candidate
    return name if os.path.isfile(name) else None


def misplaced_file(plist: Any, path: str) -> str | None:
    """The first external file that HDF5 itself would not find, or find in another place than `file_beside`.

    None if all agree.
    """
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", os.path.dirname(path) or ".")
    for number in range(plist.get_external_count()):
        name = os.fsdecode(plist.get_external(number)[0])
        found, opened = file_beside(name, path), os.path.join(prefix, name)
        if found is None or not os.path.isfile(opened) or not os.path.samefile(found, opened):
            return name
    return None


def virtual_place(name: str, path: str) -> str | None:
    """Path of the source `name` of a virtual dataset in file `path`, searched as HDF5 does.

    None if there is none, or if the file is an object of a store.
    """
    if object_of(path) is not None:
        return None
    prefixes = [
        p.replace("${ORIGIN}", os.path.dirname(path) or ".")
        for p in os.environ.get("HDF5_VDS_PREFIX", "").split(":")
        if p
    ]
    folders = [*prefixes, os.path.dirname(path) or ".", "", os.path.dirname(os.path.realpath(path))]
    if os.path.isabs(name):
        if os.path.isfile(name):
            return name
        name = os.path.basename(name)
    return next((p for p in (os.path.join(f, name) for f in folders) if os.path.isfile(p)), None)


def source_names(file: str, dataset: str, path: str) -> list[tuple[str, str]]:
    """The (file, dataset) sources of one mapping of a virtual dataset in file `path`.

    Without %b in the names there is one source. With it there is one for each block, numbered from 0, up to
    the first whose file does not exist (printf-style source names, H5Pset_virtual).
    """
    numbered = [re.search(r"(?<!%)(?:%%)*%b", text) is not None for text in (file, dataset)]

    def name(text: str, number: int) -> str:
        return re.sub(r"%[%b]", lambda m: "%" if m[0] == "%%" else str(number), text)

    if not any(numbered):
        return [(name(file, 0), name(dataset, 0))]
    found = []
    for number in range(MOST_SOURCES):
        entry = name(file, number), name(dataset, number)
        if number and numbered[0] and entry[0] != "." and virtual_place(entry[0], path) is None:
            break
        found.append(entry)
        if not numbered[0]:
            break  # all blocks are in the same file
    return found
