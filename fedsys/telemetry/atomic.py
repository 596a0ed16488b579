"""How a file is replaced so that a crash leaves the old one or the new one, never half of one."""

import os
from pathlib import Path

SUFFIX = ".tmp"
"""Ends the name of a file that is being written; what bears it after a crash is rubbish."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``; on return it is on the disk. Folders that lack are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + SUFFIX)
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
