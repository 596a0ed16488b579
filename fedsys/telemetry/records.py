"""``rounds.jsonl``: one RoundRecord a line, exact to the last bit, never half a line read."""

import dataclasses
import errno
import json
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedsys.errors import ConfigError
from fedsys.types import RoundRecord

_RECORD = TypeAdapter(RoundRecord)
_BEFORE, _AFTER = '{"record":', "}"


class _Line(BaseModel):
    """A record where pydantic can be told to show what is not finite; it writes JSON quickly."""

    model_config = ConfigDict(ser_json_inf_nan="constants")
    record: RoundRecord


def record_line(record: RoundRecord) -> bytes:
    """The line for ``record``, newline included; equal records give equal bytes.

    Raises ValueError for NaN or infinity, which JSON cannot hold and a figure must not be.
    """
    text = _Line.model_construct(record=record).model_dump_json()
    if "NaN" in text or "Infinity" in text:
        try:
            json.dumps(dataclasses.asdict(record), allow_nan=False)
        except ValueError as error:
            raise ValueError(f"round {record.round} holds a figure that is not finite") from error
    return text[len(_BEFORE) : -len(_AFTER)].encode() + b"\n"


def append_record(path: Path, record: RoundRecord) -> None:
    """Add a line in one write; it is on the disk after the next ``sync_records``.

    Raises OSError where it does not fit: half of it may be there, and the next line must not
    follow that.
    """
    line = record_line(record)
    with path.open("ab", buffering=0) as file:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def sync_records(path: Path) -> None:
    """Return once all lines are on the disk."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def read_records(path: Path) -> list[RoundRecord]:
    """All whole lines; none when there is no file. A last line without its end is left out.

    Raises ConfigError, naming the line, where a whole line is not a round record.
    """
    records = []
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            content = json.loads(line, parse_constant=_refuse)
            record = _RECORD.validate_python(content)
        except (ValueError, ValidationError) as error:
            raise ConfigError(f"{path}: line {number} is not a round record") from error
        if record.round != number:
            raise ConfigError(f"{path}: line {number} is round {record.round}")
        records.append(record)
    return records


def count_records(path: Path) -> int:
    """How many whole lines there are, whatever is in them."""
    return len(_whole_lines(path))


def keep_records(path: Path, rounds: int) -> None:
    """Cut the file back to its first ``rounds`` whole lines, on the disk."""
    lines = _whole_lines(path)
    if len(lines) < rounds:
        raise ConfigError(f"{path}: {len(lines)} rounds recorded where {rounds} are needed")
    if not path.exists():
        return
    with path.open("r+b") as file:
        file.truncate(sum(len(line) for line in lines[:rounds]))
        os.fsync(file.fileno())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no figure")


def _whole_lines(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]
