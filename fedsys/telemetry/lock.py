"""One process at a time writes into a run's folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsys.clock import WallClock
from fedsys.errors import ConfigError

_KILLED_S, _POLL_S = 5.0, 0.1
"""Workers of a process that was killed may need a moment to notice."""
_held: set[tuple[int, int]] = set()
"""Device and inode of the folders that this process has locked."""


@contextmanager
def sole_writer(
    path: Path, clock: WallClock | None = None, wait_s: float = _KILLED_S
) -> Iterator[None]:
    """Be the only process that writes into the folder ``path``, which is made, while in the block.

    ConfigError where another process stays for ``wait_s``. A block inside a block asks no further.
    """
    import fcntl  # there is none where nothing but reports is made

    try:
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    found = os.fstat(folder)
    key = (found.st_dev, found.st_ino)
    if key in _held:
        os.close(folder)
        yield
        return
    clock = clock or WallClock()
    until_s = clock.now_s() + wait_s
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.now_s() > until_s:
                    raise ConfigError(
                        f"{path}: another process is writing into it; wait for it, or stop it"
                    ) from None
                clock.sleep_s(_POLL_S)
            except OSError:
                break  # a file system without locks
        _held.add(key)
        yield
    finally:
        _held.discard(key)
        os.close(folder)
