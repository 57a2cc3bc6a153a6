"""Snapshots of GADGET, AREPO, GIZMO and SWIFT in HDF5: groups of particles, with ParticleIDs as their key.

A snapshot in several files is read file by file: `snap_010.3.hdf5` is file 3 of step 10.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile
from .attributes import PLAIN, add_constant
from .model import FileContent

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_GROUP = "PartType"
# Attributes of the header that become fields, as in `gadget`.
_OF_HEADER = ("MassTable", "Time", "Redshift", "BoxSize", "Omega0", "OmegaLambda", "HubbleParam")


def recognises(file: Any) -> bool:
    """Whether an HDF5 file is a snapshot of these programs."""
    return "Header" in file and "NumPart_ThisFile" in file["Header"].attrs


def apply(h5py: Any, file: Any, content: FileContent) -> None:
    """Gives particles their group and key, and the file its time and its box."""
    header = file["Header"].attrs
    counts = [int(n) for n in np.atleast_1d(header["NumPart_ThisFile"])]
    for name, field in content.fields.items():
        group, _, rest = name.partition("/")
        number = group.removeprefix(_GROUP)
        if not group.startswith(_GROUP) or not number.isdecimal() or "/" in rest or not field.shape:
            continue
        if int(number) < len(counts) and field.shape[0] != counts[int(number)]:
            message = (
                f"{name!r:.80} has {field.shape[0]} rows, and the header says {counts[int(number)]} particles"
            )
            raise DamagedFile(message, where=content.path, fix=PLAIN)
        ids = content.fields.get(group + "/ParticleIDs")
        field.group = group
        field.key = ids.name if ids is not None else None
    if "Time" in header:
        content.time = float(np.atleast_1d(header["Time"])[0])
    box = np.atleast_1d(header.get("BoxSize", 0)).astype(float)
    if box.size in (1, 3) and np.isfinite(box).all() and (box > 0).all():
        content.period = tuple(float(b) for b in np.broadcast_to(box, 3))
    files = int(np.atleast_1d(header.get("NumFilesPerSnapshot", 1))[0])
    # Masses of particles without an array of masses, the box, and so on. They are the same in all
    # files of a snapshot, so only the first file adds them.
    if files <= 1 or not re.search(r"\.0*[1-9]\d*\.\w+$", content.path):
        for name in _OF_HEADER:
            if name in header and f"Header/{name}" not in content.fields:
                if add_constant(content, f"Header/{name}", header[name]):
                    content.facts.pop(f"Header@{name}", None)  # as a field it may have a tolerance
    if files > 1:
        content.notes.append(f"one of the {files} files of its snapshot: name the folder to take all of them")
