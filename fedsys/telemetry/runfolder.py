"""The folder of one run, ``runs/<name>-<seed>/``: what is in it, and who may write there.

Everything in ``rounds.jsonl`` follows from the experiment and its seed; what the wall clock says
goes into ``result.json``.
"""

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy

from fedsys.config.load import dump_toml, parse_experiment
from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.telemetry import checkpoint
from fedsys.telemetry.atomic import SUFFIX, write_atomic
from fedsys.telemetry.checkpoint import Checkpoint, Tensors
from fedsys.telemetry.records import (
    append_record,
    count_records,
    keep_records,
    read_records,
    sync_records,
)
from fedsys.types import RoundRecord

EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
MODEL = "model.safetensors"
SPLIT = "split.json"
_FREE = "engine."
"""Keys that results do not depend on, so that a run may go on with others."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on the disk; one process at a time writes to it."""

    path: Path
    experiment: Experiment

    @classmethod
    def create(cls, path: Path, experiment: Experiment, *, resume: bool) -> "RunFolder":
        """The folder for ``experiment``, made where there is none; ConfigError as in ``check``."""
        cls.check(path, experiment, resume=resume)
        folder = cls(path, experiment)
        try:
            write_atomic(path / EXPERIMENT, dump_toml(experiment).encode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        folder.truncate(len(folder.records()))
        return folder

    @staticmethod
    def check(path: Path, experiment: Experiment, *, resume: bool) -> None:
        """Raise ConfigError, changing nothing, unless ``path`` may be used for ``experiment``.

        It may not when it holds something else or, without ``resume``, a run that has begun.
        """
        if path.exists():
            _check_ours(path, experiment, resume)
        _check_writable(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that exists, for reading; ConfigError when ``path`` holds none."""
        file = path / EXPERIMENT
        if not file.is_file():
            raise ConfigError(f"{path}: not a run folder, it has no {EXPERIMENT}")
        return cls(path, parse_experiment(_text(file), where=str(file)))

    @property
    def scratch(self) -> Path:
        """What clients keep between rounds; gone once the run is finished."""
        return self.path / "clients"

    def records(self) -> list[RoundRecord]:
        """The rounds so far; a last line that a crash tore is left out."""
        return read_records(self.path / ROUNDS)

    def append(self, record: RoundRecord) -> None:
        """Add a round; it is on the disk with the next checkpoint."""
        append_record(self.path / ROUNDS, record)

    def truncate(self, rounds: int) -> None:
        """Keep the first ``rounds`` rounds, and no torn line after them."""
        keep_records(self.path / ROUNDS, rounds)

    def save_checkpoint(
        self, round_number: int, tensors: Tensors, state: Mapping[str, Any]
    ) -> None:
        """Save what the run needs to go on after ``round_number``; the one before is kept."""
        sync_records(self.path / ROUNDS)
        checkpoint.save_checkpoint(self.path / "checkpoint", round_number, tensors, state)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint; ConfigError when there are some and all are torn."""
        return checkpoint.load_checkpoint(self.path / "checkpoint")

    def keep_checkpoint(self, round_number: int) -> None:
        """Keep the checkpoint just saved for good."""
        checkpoint.keep_checkpoint(self.path / "checkpoint", round_number)

    def roll_back(self, round_number: int) -> None:
        """Bring the run back to a round that was kept; ConfigError where it was not."""
        checkpoint.roll_back(self.path / "checkpoint", round_number)
        for name in (RESULT, MODEL):
            (self.path / name).unlink(missing_ok=True)
        self.truncate(round_number)

    def save_split(self, split: Mapping[str, Any]) -> None:
        """Write ``split.json``: who had which part of the data."""
        write_atomic(self.path / SPLIT, json.dumps(dict(split)).encode() + b"\n")

    def save_model(self, tensors: Tensors) -> str:
        """Write ``model.safetensors``; returns the file's SHA-256, equal for equal weights."""
        sync_records(self.path / ROUNDS)
        data = safetensors.numpy.save(dict(tensors))
        write_atomic(self.path / MODEL, data)
        return hashlib.sha256(data).hexdigest()

    def save_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json``: from now on the run counts as finished."""
        text = json.dumps(dict(result), indent=2, allow_nan=False)
        write_atomic(self.path / RESULT, text.encode() + b"\n")

    @property
    def has_result(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / RESULT).exists()

    def result(self) -> dict[str, Any] | None:
        """What the finished run said of itself; None while it is not finished.

        ConfigError where that is damaged, or rounds are missing that it speaks of.
        """
        file = self.path / RESULT
        if not file.exists():
            return None
        try:
            result = json.loads(_text(file))
        except ValueError as error:
            raise ConfigError(f"{file}: not valid JSON: {error}") from error
        if not isinstance(result, dict) or "stopped_by" not in result:
            raise ConfigError(f"{file}: not the result of a run")
        total = result.get("total")
        rounds, there = total and total.get("rounds"), count_records(self.path / ROUNDS)
        if rounds is not None and rounds != there:
            raise ConfigError(
                f"{self.path / ROUNDS}: {there} whole rounds where {RESULT} speaks of {rounds}; "
                "remove the folder to run it again"
            )
        return result

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Remove a folder in which nothing was recorded where a ConfigError is raised inside.

        Else the experiment, mended, could not go into the same folder.
        """
        try:
            yield
        except ConfigError:
            names = {entry.name for entry in self.path.iterdir()}
            if names <= {EXPERIMENT, SPLIT}:
                shutil.rmtree(self.path)
            raise

    def finish(self) -> None:
        """Remove what only a run that goes on needs; checkpoints stay."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def _check_ours(path: Path, experiment: Experiment, resume: bool) -> None:
    """Raise ConfigError unless ``path`` may be used for ``experiment``."""
    if not path.is_dir():
        raise ConfigError(f"{path}: is a file; choose another folder with --out")
    try:
        names = {entry.name for entry in path.iterdir() if not entry.name.endswith(SUFFIX)}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if not names:
        return
    if EXPERIMENT not in names:
        raise ConfigError(f"{path}: not empty and not a run folder; choose another name or --out")
    difference = _first_difference(path / EXPERIMENT, experiment)
    if difference:
        raise ConfigError(
            f"{path}: holds another experiment: {difference}; choose another run.name or --out"
        )
    if not resume and names & {ROUNDS, RESULT, "checkpoint"}:
        state = "a finished run" if RESULT in names else "a run that has begun"
        raise ConfigError(f"{path}: holds {state}; use --resume or another run.name")


def _check_writable(path: Path) -> None:
    """Raise ConfigError where ``path``, or the nearest folder above it, takes no new files."""
    absolute = path.absolute()
    there = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"{path}: cannot be written: {there} {why}; choose another --out")


def _first_difference(file: Path, experiment: Experiment) -> str:
    """The first key whose value in ``file`` is not that of ``experiment``; empty when equal."""
    try:
        there = dict(_leaves(tomllib.loads(_text(file))))
    except tomllib.TOMLDecodeError:
        return f"its {EXPERIMENT} is not valid TOML"
    here = dict(_leaves(tomllib.loads(dump_toml(experiment))))
    for key in [*here, *there]:
        if key.startswith(_FREE):
            continue
        if here.get(key) != there.get(key):
            return f"{key} is {_shown(there, key)} there and {_shown(here, key)} now"
    return ""


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "not set"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
