"""What a Ray actor of Flower's is given to run: a job of the engine, as a ClientApp would get it.

A Flower actor takes a function that gives an app, a message and a context, and returns what the
app replied. Here the app is the engine's ``Service``, and a message carries a whole job: a block
of clients, or a call. So clients are trained, coded and summed as in the engine's own processes.
"""

import io
import pickle
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from threadpoolctl import threadpool_limits

from fedsys import __version__
from fedsys._flwr_private import message_with, reply_to
from fedsys.clock import WallClock
from fedsys.engine.serving import Service
from fedsys.errors import FedsysError
from fedsys.types import U8

_RECORD, _BODY = "job", "body"


@dataclass(frozen=True, slots=True)
class Facts:
    """What an actor says of the machine that it is on."""

    host: str
    versions: dict[str, str]
    """Of what must be the same everywhere for the same results."""
    sees_folder: bool
    """Whether the run folder is there too."""


@dataclass(frozen=True, slots=True)
class Look:
    """A job that gets everything ready; the answer is Facts, or one of our errors."""

    folder: Path
    """The run folder's experiment file."""


@dataclass(frozen=True, slots=True)
class RayApp:
    """The app, with the large bytes that the jobs of one turn share."""

    service: Service
    turn: tuple[int, int] = (0, 0)
    """Names what is shared, so that bytes which several jobs read are copied once."""
    shared: U8 | None = None

    def __call__(self) -> Callable[[Message, Context], Message]:
        """What Flower's actor calls to get its app."""
        return self.serve

    def serve(self, message: Message, context: Context) -> Message:
        """Do the job in ``message``; whatever goes wrong is told, not raised."""
        clock = WallClock()
        try:
            _desk.prepare(self.service)
            job = _Unpickler(io.BytesIO(body_of(message)), self).load()
            start_s = clock.now_s()
            outcome = facts(job.folder) if isinstance(job, Look) else self.service.serve(job)
            answer = pickle.dumps((True, (clock.now_s() - start_s, outcome)), protocol=5)
        except FedsysError as error:
            answer = pickle.dumps((False, (0.0, error)), protocol=5)
        except Exception:
            answer = pickle.dumps((False, (0.0, traceback.format_exc())), protocol=5)
        return reply_to(message, _content(answer))


def facts(folder: Path) -> Facts:
    """Of this process's machine."""
    return Facts(socket.gethostname(), versions(), folder.is_file())


def versions() -> dict[str, str]:
    """Of what results depend on."""
    return {"fedsys": __version__} | {name: version(name) for name in ("torch", "numpy", "flwr")}


def message_like(template: Message, body: bytes) -> Message:
    """A message that carries ``body``."""
    return message_with(dict(template.metadata.__dict__), _content(body))


def body_of(message: Message) -> bytes:
    """What ``message_like`` was given."""
    record = message.content[_RECORD]
    body = record[_BODY] if isinstance(record, ConfigRecord) else None
    if not isinstance(body, bytes):
        raise TypeError("a message without a job")
    return body


def _content(body: bytes) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_BODY: body})})


@dataclass(slots=True)
class _Desk:
    """What an actor's process keeps between jobs."""

    ready: Service | None = None
    turn: tuple[int, int] = (0, 0)
    read: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def prepare(self, service: Service) -> None:
        """Load app and data, once."""
        if self.ready != service:
            service.prepare()
            # Sums over several threads differ in the last bits from sums over one.
            threadpool_limits(1)
            self.ready = service

    def bytes_at(self, app: RayApp, offset: int, size_bytes: int) -> bytes:
        """Bytes of ``app.shared``; the same object for all jobs of one turn."""
        if app.shared is None:
            raise ValueError("a job refers to shared bytes, and none came")
        if app.turn != self.turn:
            self.turn = app.turn
            self.read.clear()
        place = (offset, size_bytes)
        if place not in self.read:
            self.read[place] = app.shared[offset : offset + size_bytes].tobytes()
        return self.read[place]


_desk = _Desk()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, app: RayApp) -> None:
        super().__init__(file)
        self._app = app

    def persistent_load(self, place: Any) -> bytes:
        return _desk.bytes_at(self._app, *place)
