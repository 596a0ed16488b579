"""Readers of recorded rates: each turns one file format into a rate curve that loops.

A problem in a file is a LinkError that names the file, the line and what was expected.
"""

import csv
import functools
from pathlib import Path
from typing import Literal

import numpy as np

from fedsys.errors import LinkError
from fedsys.types import F64
from netem.rate import RateCurve

MAHIMAHI_PACKET_BITS = 12000.0
"""One line of a Mahimahi trace lets one packet of 1500 bytes leave."""


@functools.lru_cache(maxsize=256)
def guess_format(path: str) -> Literal["mahimahi", "mbps", "csv"]:
    """The format of the file, from its first line that is not empty."""
    line = next((line for line in _lines(path) if line.strip()), "")
    fields = line.split()
    if len(fields) == 1 and fields[0].isdecimal():
        return "mahimahi"
    if len(fields) == 2 and all(_is_number(part) for part in fields):
        return "mbps"
    if "," in line:
        return "csv"
    raise LinkError(
        f"{path}: first line {line[:40]!r} is none of: a stamp in ms (mahimahi), "
        "'seconds Mbit/s' (mbps), a CSV header"
    )


@functools.lru_cache(maxsize=256)
def read_mahimahi(path: str, step_s: float) -> RateCurve:
    """One integer a line: the ms at which one packet may leave; loops at the last stamp.

    Opportunities are counted in bins of ``step_s``. One that nobody uses is lost, as there.
    """
    stamps: list[int] = []
    for number, line in enumerate(_lines(path), 1):
        text = line.strip()
        if not text:
            continue
        if not text.isdecimal() or (stamps and int(text) < stamps[-1]):
            raise LinkError(
                f"{path}:{number}: expected milliseconds in ascending order, got {text[:40]!r}"
            )
        stamps.append(int(text))
    if not stamps or stamps[-1] == 0:
        raise LinkError(f"{path}: a Mahimahi trace needs a stamp above 0 ms")
    period_s = stamps[-1] / 1000
    edge_s = np.arange(0.0, period_s, step_s)
    bins = np.searchsorted(edge_s, np.array(stamps) / 1000, side="right") - 1
    packets = np.bincount(bins, minlength=edge_s.size)
    width_s = np.diff(np.append(edge_s, period_s))
    return RateCurve(edge_s, MAHIMAHI_PACKET_BITS * packets / width_s, period_s)


@functools.lru_cache(maxsize=256)
def read_two_columns(path: str) -> RateCurve:
    """Seconds and Mbit/s a line; a value holds until the next stamp, the last one a mean step."""
    time_s: list[float] = []
    mbps: list[float] = []
    for number, line in enumerate(_lines(path), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or not all(_is_number(part) for part in fields):
            raise LinkError(
                f"{path}:{number}: expected 'seconds Mbit/s', got {line.strip()[:40]!r}"
            )
        time_s.append(float(fields[0]))
        mbps.append(float(fields[1]))
    return _held(path, np.array(time_s), 1e6 * np.array(mbps))


@functools.lru_cache(maxsize=256)
def read_csv(
    path: str, column: str, *, unit_bps: float, time_column: str, row_s: float, keep: str
) -> RateCurve:
    """A named column of a CSV file with a header, in units of ``unit_bps``.

    Rows follow each other by ``time_column`` (seconds; the last of equal stamps counts) or, if
    that is empty, ``row_s`` apart. ``keep = "COLUMN=VALUE"`` leaves other rows out.
    """
    rows = csv.DictReader(_lines(path))
    keep_column, _, keep_value = keep.partition("=")
    for name in filter(None, (column, time_column, keep_column)):
        if name not in (rows.fieldnames or []):
            raise LinkError(f"{path}: no column {name!r} among {', '.join(rows.fieldnames or [])}")
    if not column:
        raise LinkError(f"{path}: a CSV trace needs up_column or down_column")
    time_s: list[float] = []
    rate_bps: list[float] = []
    for row in rows:
        if keep and row[keep_column] != keep_value:
            continue
        stamp = row[time_column] if time_column else f"{len(time_s) * row_s}"
        if not (_is_number(row[column] or "") and _is_number(stamp or "")):
            raise LinkError(
                f"{path}:{rows.line_num}: expected numbers, got {row[column]!r} at {stamp!r}"
            )
        time_s.append(float(stamp))
        rate_bps.append(float(row[column]) * unit_bps)
    return _held(path, np.array(time_s), np.array(rate_bps))


def _held(path: str, time_s: F64, rate_bps: F64) -> RateCurve:
    """A looping curve from stamps, each value held until the next."""
    if time_s.size < 2:
        raise LinkError(f"{path}: a trace needs at least 2 rows, got {time_s.size}")
    last_of_stamp = np.append(np.diff(time_s) != 0, True)
    time_s, rate_bps = time_s[last_of_stamp] - time_s[0], rate_bps[last_of_stamp]
    if time_s.size < 2 or (np.diff(time_s) < 0).any():
        raise LinkError(f"{path}: stamps must ascend")
    if (rate_bps < 0).any():
        raise LinkError(f"{path}: rates must be 0 or more, got {rate_bps.min()} bit/s")
    return RateCurve(time_s, rate_bps, float(time_s[-1] * time_s.size / (time_s.size - 1)))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LinkError(f"{path}: cannot read this trace: {error}") from error


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
