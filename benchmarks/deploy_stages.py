"""Where the time of an exchange goes on a device, by what its SuperNode logs."""

import datetime
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

STEPS = ("Receiving: ", "Received successfully", "Sending: ", "Sent successfully")
STAGES = ("fetched by the device", "process, data, training, result", "sent by the device")
"""What is between two of the steps."""
_STAMP = re.compile(r"(\S+ \S+) (.*)")


def stages_s(folder: Path, *, skip: int = 0) -> list[list[float]]:
    """Seconds of each stage of all exchanges but the first ``skip`` of each device of a folder."""
    found = []
    for file in folder.rglob("*supernode.log"):
        times = list(_times(file))
        for begin in range(skip * len(STEPS), len(times) - len(STEPS) + 1, len(STEPS)):
            exchange = times[begin : begin + len(STEPS)]
            found.append([(b - a).total_seconds() for a, b in pairwise(exchange)])
    return found


def _times(file: Path) -> Iterator[datetime.datetime]:
    for line in file.read_text().splitlines():
        match = _STAMP.match(line)
        if match and any(step in match[2] for step in STEPS):
            yield datetime.datetime.fromisoformat(match[1])
