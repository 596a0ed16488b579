"""Large bytes of many messages, written once into memory that all worker processes read.

A model that goes to a whole cohort is one ``bytes`` object in all its messages. Pickling a message
leaves such bytes out and names the place in a shared segment instead.
"""

import io
import mmap
import os
import pickle
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIN_BYTES = 4096
"""Shorter ones are cheaper in the pickle."""
_SPARE_SEGMENTS = 2
_MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Segment:
    """Memory without a name: it is gone when the last process that maps it is."""

    key: int
    fd: int
    memory: mmap.mmap
    jobs: int = 0
    """Jobs that are still to read from it."""
    filling: int = 0
    """How many times it has been filled."""

    @property
    def size_bytes(self) -> int:
        """Bytes that fit."""
        return len(self.memory)

    def close(self) -> None:
        """Give this process's hold on it back."""
        self.memory.close()
        os.close(self.fd)


@dataclass(slots=True)
class Segments:
    """The segments of one parent process, used again when nobody reads them any more."""

    _free: list[Segment] = field(default_factory=list)
    _made: int = 0

    def holding(self, parts: list[bytes], jobs: int) -> tuple[Segment | None, list[Segment]]:
        """A segment with ``parts`` end to end for ``jobs`` readers, and those it made needless.

        None where there is nothing to hold.
        """
        size_bytes = sum(map(len, parts))
        if not size_bytes:
            return None, []
        fitting = [one for one in self._free if one.size_bytes >= size_bytes]
        dropped: list[Segment] = []
        if fitting:
            segment = min(fitting, key=lambda one: one.size_bytes)
            self._free.remove(segment)
        else:
            dropped, self._free = self._free, []
            segment = self._make(size_bytes)
        segment.memory.seek(0)
        for part in parts:
            segment.memory.write(part)
        segment.jobs = jobs
        segment.filling += 1
        return segment, dropped

    def done(self, segment: Segment) -> Segment | None:
        """One job has read ``segment``; returns it if it is of no use any more."""
        segment.jobs -= 1
        if segment.jobs:
            return None
        self._free.append(segment)
        return self._free.pop(0) if len(self._free) > _SPARE_SEGMENTS else None

    def close(self) -> None:
        """Give the memory back."""
        for segment in self._free:
            segment.close()
        self._free.clear()

    def _make(self, size_bytes: int) -> Segment:
        self._made += 1
        with tempfile.TemporaryFile(dir=_MEMORY if _MEMORY.is_dir() else None) as file:
            # Room to grow, so that a packet a little longer does not need a new one each round.
            file.truncate(size_bytes + size_bytes // 4 + mmap.PAGESIZE)
            fd = os.dup(file.fileno())
        return Segment(self._made, fd, mmap.mmap(fd, 0))


class Parts:
    """The large bytes met while pickling, each once."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0

    def place(self, data: bytes) -> tuple[int, int]:
        """Offset and length of ``data`` in the segment that is to hold all parts."""
        place = self._places.get(id(data))
        if place is None:
            place = self._places[id(data)] = (self._end, len(data))
            self.found.append(data)  # which also keeps its id from being used again
            self._end += len(data)
        return place


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: Parts) -> None:
        super().__init__(file, protocol=5)
        self._parts = parts

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        if type(value) is bytes and len(value) >= MIN_BYTES:
            return self._parts.place(value)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, view: "View") -> None:
        super().__init__(file)
        self._view = view

    def persistent_load(self, place: Any) -> bytes:
        return self._view.read(*place)


class View:
    """A worker's side of one segment; bytes that several jobs read are copied once."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self._filling = 0
        self._read: dict[tuple[int, int], bytes] = {}

    def turn(self, filling: int) -> None:
        """Forget what was read before the parent filled the segment for the ``filling`` time."""
        if filling != self._filling:
            self._filling = filling
            self._read.clear()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """The bytes at that place."""
        place = (offset, size_bytes)
        if place not in self._read:
            self._read[place] = self._memory[offset : offset + size_bytes]
        return self._read[place]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


def dump(value: object, parts: Parts) -> bytes:
    """``value`` pickled, without its large bytes, which go to ``parts``."""
    file = io.BytesIO()
    _Pickler(file, parts).dump(value)
    return file.getvalue()


def load(data: bytes, view: View | None) -> Any:
    """What ``dump`` was given; ``view`` is of the segment with its parts, None if it has none."""
    if view is None:
        return pickle.loads(data)
    return _Unpickler(io.BytesIO(data), view).load()
