"""Clients at work beyond the round that asked them, and what is needed to use their replies.

Beside who was asked what and when, that is the model that each of them trains, where its update
cannot be read without. A checkpoint has their replies, too, so that a run that was resumed goes on
with them as an unbroken one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedsys._flwr_private import message_bytes, message_from_bytes
from fedsys.codecs._chain import parse
from fedsys.types import F32, ClientPlan
from fedsys.wire.schema import Array as Values


@dataclass(frozen=True, slots=True)
class Asked:
    """A client that is at work, or whose reply has not been used."""

    client: ClientPlan
    turn: int
    """Which of its requests it is, where these are counted; or 0."""
    version: int
    """Of the model that it was sent."""
    step: int
    """Server steps made before that."""
    sent_s: float


@dataclass(slots=True)
class Flight:
    """Those at work; owned by one run."""

    asked: dict[str, Asked] = field(default_factory=dict)
    """Message id to who is at work on it, in the order of asking."""
    bases: dict[int, F32] = field(default_factory=dict)
    """Version to the model as clients got it, where updates cannot be read without."""
    kept: dict[str, Message] = field(default_factory=dict)
    """Replies of a checkpoint to messages in flight, until the grid has taken them up."""

    @property
    def nodes(self) -> set[int]:
        """Who is at work."""
        return {asked.client.node_id for asked in self.asked.values()}

    def keep_base(self, version: int, model: F32) -> None:
        """Remember ``model`` float32 [n] where somebody in flight trains it, and forget others."""
        needed = {
            asked.version for asked in self.asked.values() if not parse(asked.client.uplink).stages
        }
        self.bases = {v: base for v, base in {**self.bases, version: model}.items() if v in needed}

    def take_up(self, grid: Grid) -> None:
        """Hand the replies of a checkpoint to the ``grid`` that they are to come from."""
        if self.kept:
            grid.take_up(self.kept.values())  # type: ignore[attr-defined]
            self.kept = {}

    def tensors(self, grid: Grid | None) -> dict[str, Values]:
        """Its arrays in a checkpoint; waits for what those in flight compute.

        On a real network nobody can: a run that is resumed there does without these replies.
        """
        if not _can_wait(grid):
            return {}
        found: dict[str, Values] = {f"model.{v}": base for v, base in self.bases.items()}
        for number, reply in enumerate(self._replies(grid)):
            found[f"reply.{number}"] = packed(reply)
        return found

    def state(self, grid: Grid | None) -> list[dict[str, Any]]:
        """The rest of it, JSON-able."""
        if not _can_wait(grid):
            return []
        return [{**asdict(asked), "id": name} for name, asked in self.asked.items()]

    def restore(self, tensors: Mapping[str, Values], state: Iterable[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint; KeyError, TypeError or ValueError where it is not one."""
        for number, saved in enumerate(state):
            self.asked[saved["id"]] = asked_of(saved)
            self.kept[saved["id"]] = unpacked(tensors[f"reply.{number}"])
        for name, array in tensors.items():
            if name.startswith("model."):
                self.bases[int(name.removeprefix("model."))] = array.copy()

    def _replies(self, grid: Grid | None) -> Iterator[Message]:
        for message_id in self.asked:
            if message_id in self.kept:
                yield self.kept[message_id]
            elif grid is not None:
                yield from grid.to_come([message_id])  # type: ignore[attr-defined]


def _can_wait(grid: Grid | None) -> bool:
    return grid is None or hasattr(grid, "to_come")


def packed(reply: Message) -> Values:
    """A reply as an array of a checkpoint."""
    return np.frombuffer(message_bytes(reply), np.uint8)


def unpacked(values: Values) -> Message:
    """The reply again; ValueError where it is none."""
    return message_from_bytes(values.tobytes())


def asked_of(saved: Mapping[str, Any]) -> Asked:
    """Who was asked, from ``asdict``."""
    return Asked(
        ClientPlan(**saved["client"]),
        saved["turn"],
        saved["version"],
        saved["step"],
        saved["sent_s"],
    )
