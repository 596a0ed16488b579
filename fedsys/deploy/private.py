"""Files and folders that only their owner may read, whatever the umask is."""

import os
import stat
from pathlib import Path

from fedsys.errors import ConfigError
from fedsys.telemetry.atomic import SUFFIX, sync_folder

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_private_folder(path: Path) -> None:
    """Make ``path`` for its owner alone; ConfigError where it cannot be made or is open to others.

    A folder that is there already is taken as it is, if nobody else may look into it.
    """
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be made: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"{path}: others may look into it (mode {mode:o}); chmod 700 {path}")


def write_private(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step; never readable for others, not even meanwhile.

    Raises ConfigError that says what the disk said.
    """
    draft = path.with_name(path.name + SUFFIX)
    try:
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def check_private(path: Path) -> None:
    """Raise ConfigError where others may read ``path``."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: holds a private key and others may read it (mode {mode:o}); chmod 600 {path}"
        )
