"""Where a run can go on from: tensors and state of one round in one file that proves itself whole.

Two files are kept, because the machine may die while it replaces the newest. More may be, under
their rounds' numbers, to roll a run back to.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedsys.errors import ConfigError
from fedsys.telemetry.atomic import write_atomic

Tensors = Mapping[str, NDArray[Any]]

NEWEST = "round.safetensors"
PREVIOUS = "previous.safetensors"
_KEPT = "round-{:06}.safetensors"
_KEY = "fedsys"
"""One key only: safetensors writes several in an order that changes from process to process."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a run needs to go on after ``round``."""

    round: int
    tensors: dict[str, NDArray[Any]]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, round_number: int, tensors: Tensors, state: Mapping[str, Any]
) -> None:
    """Make ``round_number`` the newest checkpoint in ``folder``; the one before it is kept."""
    data = pack_checkpoint(round_number, tensors, state)
    newest = folder / NEWEST
    if newest.exists():
        newest.replace(folder / PREVIOUS)
    write_atomic(newest, data)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where none was ever saved.

    Raises ConfigError when there are files and none of them is whole.
    """
    fault = ""
    for name in (NEWEST, PREVIOUS):
        try:
            return unpack_checkpoint((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            fault = fault or f"{folder / name}: {error}"
    if fault:
        raise ConfigError(f"{fault}; delete the run's folder or use another name to start afresh")
    return None


def keep_checkpoint(folder: Path, round_number: int) -> None:
    """Keep the newest checkpoint, which is that of this round, under its number."""
    write_atomic(folder / _KEPT.format(round_number), (folder / NEWEST).read_bytes())


def roll_back(folder: Path, round_number: int) -> None:
    """Make a kept round the newest, and forget those after it; ConfigError where it is not kept."""
    files = {}
    for file in folder.glob("*.safetensors"):
        try:
            files[file] = unpack_checkpoint(data := file.read_bytes()).round
        except (OSError, ValueError):
            continue
        if files[file] == round_number:
            chosen = data
    if round_number not in files.values():
        kept = ", ".join(map(str, sorted(set(files.values())))) or "none"
        raise ConfigError(f"{folder}: round {round_number} was not kept; kept are: {kept}")
    write_atomic(folder / NEWEST, chosen)
    for file, found in files.items():
        if file.name == PREVIOUS or (file.name != NEWEST and found > round_number):
            file.unlink()


def pack_checkpoint(round_number: int, tensors: Tensors, state: Mapping[str, Any]) -> bytes:
    """The checkpoint as a safetensors file; state is JSON and may hold no NaN or infinity."""
    text = json.dumps({"round": round_number, "state": dict(state)}, allow_nan=False)
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    proof = json.dumps({"content": text, "blake2b": _digest(text, contiguous)})
    return safetensors.numpy.save(contiguous, metadata={_KEY: proof})


def unpack_checkpoint(data: bytes) -> Checkpoint:
    """Read a checkpoint back; raises ValueError when it is torn or not one."""
    try:
        loaded = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        proof = json.loads(header["__metadata__"][_KEY])
        text, expected = proof["content"], proof["blake2b"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError("checkpoint cannot be read") from error
    if _digest(text, loaded) != expected:
        raise ValueError("checkpoint does not match its checksum")
    content = json.loads(text)
    tensors = {name: np.array(value) for name, value in loaded.items()}
    return Checkpoint(content["round"], tensors, content["state"])


def _digest(text: str, tensors: Tensors) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
