"""What a client must remember between two messages, on disk, so that a restart loses nothing.

One small file per node holds the error-feedback residual and says which model the node has; the
models themselves are stored by version and checksum, so that a thousand simulated clients in one
folder share them. A reader sees the old file or the new one, never a half. What cannot be read, or
is not what it says, counts as lost: the server then sends the model again.
"""

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedsys.codecs._base import all_finite
from fedsys.codecs._feedback import ResidualRule
from fedsys.errors import WireError
from fedsys.types import F32
from fedsys.wire.schema import Array, Schema

_BEFORE = ".before"
"""Ending of a file's name while a new one takes its place."""
_TURN = "before-"
"""Beginning of the names of ``NodeState.earlier`` in a node's file."""
_MODEL_FILE = re.compile(r"model-(\d+)-[0-9a-f]{8}\..*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An update that was sent and is not known to have been accepted."""

    version: int
    """Model version that it was trained from."""
    compensated: F32
    """Update plus old residual, float32 [n]: the next residual if the server never used it."""
    left: F32
    """What the codec dropped, float32 [n]: the next residual if the server did use it."""
    turn: int = 0
    """Of the request; 0 where requests have none, and the version tells updates apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What one node remembers."""

    residual: F32 | None = None
    """Error-feedback residual before the pending update, float32 [n]; None means zero."""
    pending: Pending | None = None
    held_version: int = 0
    """Model version that the node holds in full; 0 is none."""
    held_checksum: int = 0
    earlier: Mapping[int, F32 | None] = field(default_factory=dict)
    """Turn to the residual before it, for turns before the pending one that were about the same
    model: a server that goes back to its checkpoint may ask for any of these updates again."""

    def settled(
        self, *, version: int, acked_version: int, rule: ResidualRule, turn: int = 0
    ) -> "NodeState":
        """The state before an update from ``version``, knowing what the server has accepted.

        Where requests have a ``turn``, that stands for the version in what was sent and accepted.
        An update from this same version was sent before a crash: it is made again from the same
        residual, which gives the same bytes. An older one was accepted if the server says so;
        if not, all of it goes back into the residual. ``rule`` says what its age leaves of it.
        """
        if self.pending is None:
            return self
        sent, now = (self.pending.turn, turn) if turn else (self.pending.version, version)
        accepted = sent == acked_version
        if sent >= now and not accepted:
            residual = self.earlier.get(now, self.residual)
            earlier = {n: one for n, one in self.earlier.items() if n < now}
            return replace(self, residual=residual, pending=None, earlier=earlier)
        residual = self.pending.left if accepted else self.pending.compensated
        aged = rule.aged(residual, version - self.pending.version)
        is_same = turn > 0 and version == self.pending.version
        earlier = {**self.earlier, sent: self.residual} if is_same else {}
        return replace(self, residual=aged, pending=None, earlier=earlier)

    def of_size(self, n: int) -> "NodeState":
        """This state; without residuals if those are of another model than one of ``n`` values."""
        sizes = {one.size for one in (self.residual, *self.earlier.values()) if one is not None}
        if self.pending is not None:
            sizes |= {self.pending.compensated.size, self.pending.left.size}
        if sizes <= {n}:
            return self
        return replace(self, residual=None, pending=None, earlier={})


@dataclass(frozen=True)
class HeldModel:
    """A model as received: its coded and raw tensors in their own dtypes, and what they mean."""

    schema: Schema
    exact: bytes
    raw: bytes

    @classmethod
    def of(cls, schema: Schema, arrays: Mapping[str, Array]) -> "HeldModel":
        """The model that ``arrays`` make."""
        return cls(schema, *schema.split_exact(arrays))

    def arrays(self) -> dict[str, Array]:
        """All tensors, bit for bit."""
        return self.schema.join_exact(self.exact, self.raw)

    def flat(self) -> F32:
        """The coded values float32 [n], not to be changed."""
        return self._flat

    @cached_property
    def _flat(self) -> F32:
        flat = self.schema.split(self.arrays())[0]
        flat.setflags(write=False)
        return flat

    def checksum(self) -> int:
        """CRC-32 of the schema's digest and all tensors."""
        return self._checksum

    @cached_property
    def _checksum(self) -> int:
        return checksum_of(self.schema, self.exact, self.raw)


def checksum_of(schema: Schema, exact: bytes, raw: bytes) -> int:
    """What server and client compare to know that they hold the same model."""
    return zlib.crc32(raw, zlib.crc32(exact, zlib.crc32(schema.digest)))


class ClientStore:
    """The folder in which one device, or all simulated ones, keep their state."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        """``shared`` is for simulated nodes: models stay while any of them may need them.

        A device of its own keeps only the model that it holds, and survives a power cut, at the
        price of a disk flush per message.
        """
        self._folder = folder
        self._prefix = f"{folder}{os.sep}node-"
        self._nodes: bool | None = None
        self.shared = shared
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, node: int) -> NodeState:
        """The node's state; a new one where there is none or the file cannot be read."""
        if not self.remembers(node):
            return NodeState()
        path = self._node_path(node)
        try:
            with safe_open(path if os.path.exists(path) else path + _BEFORE, "numpy") as file:
                numbers = {key: int(value) for key, value in (file.metadata() or {}).items()}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if not all(a.dtype == np.float32 and all_finite(a) for a in arrays.values()):
                return NodeState()
            pending = None
            if "pending" in numbers:
                pending = Pending(
                    version=numbers["pending"],
                    compensated=arrays["compensated"],
                    left=arrays["left"],
                    turn=numbers.get("turn", 0),
                )
            return NodeState(
                residual=arrays.get("residual"),
                pending=pending,
                held_version=numbers["held"],
                held_checksum=numbers["checksum"],
                earlier={
                    turn: arrays.get(f"{_TURN}{turn}")
                    for name, turn in numbers.items()
                    if name.startswith(_TURN)
                },
            )
        except (FileNotFoundError, SafetensorError, KeyError, ValueError):
            return NodeState()

    def remembers(self, node: int) -> bool:
        """Whether there is a file of the node; most simulated nodes have none, which is seen fast.

        A folder without any file of a node is looked at once, until one is saved from here.
        """
        if self._nodes is None:
            with os.scandir(self._folder) as entries:
                self._nodes = any(entry.name.startswith("node-") for entry in entries)
        path = self._node_path(node)
        return self._nodes and (os.path.exists(path) or os.path.exists(path + _BEFORE))

    def save(self, node: int, state: NodeState) -> None:
        """Replace the node's state."""
        self._nodes = True
        arrays: dict[str, Array] = {}
        numbers = {"held": state.held_version, "checksum": state.held_checksum}
        if state.residual is not None:
            arrays["residual"] = state.residual
        if state.pending is not None:
            numbers["pending"] = state.pending.version
            if state.pending.turn:
                numbers["turn"] = state.pending.turn
            arrays |= {"compensated": state.pending.compensated, "left": state.pending.left}
        for turn, residual in state.earlier.items():
            numbers[f"{_TURN}{turn}"] = turn
            if residual is not None:
                arrays[f"{_TURN}{turn}"] = residual
        self._replace(Path(self._node_path(node)), arrays, {k: str(v) for k, v in numbers.items()})

    def load_model(self, version: int, checksum: int) -> HeldModel | None:
        """That model, or None if this folder does not have it whole; a damaged file is removed."""
        path = self._model_path(version, checksum)
        try:
            with safe_open(path, framework="numpy") as file:
                schema = Schema.from_bytes(file.get_tensor("schema").tobytes())
                exact, raw = (file.get_tensor(name).tobytes() for name in ("exact", "raw"))
            model = HeldModel(schema, exact, raw)
            if model.checksum() == checksum:
                return model
        except FileNotFoundError:
            return None
        except (SafetensorError, WireError):
            pass
        path.unlink(missing_ok=True)
        return None

    def save_model(self, version: int, model: HeldModel, *, oldest_version: int) -> None:
        """Keep the model, and forget those that nobody here will ever build upon again."""
        path = self._model_path(version, model.checksum())
        if not path.exists():
            parts = {"schema": model.schema.to_bytes(), "exact": model.exact, "raw": model.raw}
            arrays = {name: np.frombuffer(data, np.uint8) for name, data in parts.items()}
            self._replace(path, arrays, {})
            for old in self._folder.iterdir():
                match = _MODEL_FILE.fullmatch(old.name)
                needed = self.shared and match and int(match[1]) >= oldest_version
                if match and not needed and old != path:
                    old.unlink(missing_ok=True)

    def _replace(self, path: Path, arrays: Mapping[str, Array], metadata: dict[str, str]) -> None:
        part = path.with_suffix(f".{os.getpid()}.part")
        save_file(dict(arrays), part, metadata=metadata)
        if not self.shared:
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
            return
        # A file that takes another's place is written to the disk at once by some file systems
        # (ext4), which is most of the time that saving takes. So the other one goes out of the way.
        before = Path(f"{path}{_BEFORE}")
        with suppress(FileNotFoundError):
            path.rename(before)
        part.rename(path)
        before.unlink(missing_ok=True)

    def _node_path(self, node: int) -> str:
        return f"{self._prefix}{node}.safetensors"

    def _model_path(self, version: int, checksum: int) -> Path:
        return self._folder / f"model-{version}-{checksum:08x}.safetensors"
