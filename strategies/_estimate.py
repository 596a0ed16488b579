"""What a server learns about a node from its replies: two link lines and a step time.

A transfer of b bytes is taken to cost floor + b * slope seconds. Both are fitted per node and
direction to decayed sums of what was measured; a measurement that is off by more than a factor of
two starts the fit anew, because then the link itself has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedsys.types import ClientReport

FORGET = 0.7
"""Weight of the past against each new measurement."""
CHANGE_FACTOR = 2.0
FLOOR_SHARE = 0.3
"""Part of a transfer's time that is taken for its floor while only one size has been seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = floor + slope * bytes, from decayed sums over measurements."""

    weight: float = 0.0
    size: float = 0.0
    time: float = 0.0
    size_size: float = 0.0
    size_time: float = 0.0

    def seen(self, size_bytes: float, seconds: float) -> "Line":
        """The line after one more measurement."""
        if self.changed_by(size_bytes, seconds):
            return Line().seen(size_bytes, seconds)
        keep = FORGET if self.weight else 0.0
        return Line(
            keep * self.weight + 1,
            keep * self.size + size_bytes,
            keep * self.time + seconds,
            keep * self.size_size + size_bytes**2,
            keep * self.size_time + size_bytes * seconds,
        )

    def changed_by(self, size_bytes: float, seconds: float) -> bool:
        """Whether this measurement says that the link is no longer the one fitted."""
        if not self.weight:
            return False
        expected_s = self.seconds(size_bytes)
        return seconds > CHANGE_FACTOR * expected_s or CHANGE_FACTOR * seconds < expected_s

    def fit(self) -> tuple[float, float]:
        """(floor in seconds, slope in seconds per byte). Raises ValueError when nothing is known.

        With sizes that hardly differ the slope cannot be seen; the mean time is then split by
        ``FLOOR_SHARE``, the more so the less they differ.
        """
        if not self.weight:
            raise ValueError("no measurement yet")
        size, time = self.size / self.weight, self.time / self.weight
        variance = max(0.0, self.size_size / self.weight - size**2)
        covariance = self.size_time / self.weight - size * time
        guess = (1 - FLOOR_SHARE) * time / size
        trust = variance / (variance + (0.2 * size) ** 2)
        slope = trust * covariance / variance + (1 - trust) * guess if variance else guess
        slope = min(max(slope, 0.02 * time / size), time / size)
        return max(0.0, time - slope * size), slope

    def seconds(self, size_bytes: float) -> float:
        """Expected seconds of a transfer."""
        floor_s, slope = self.fit()
        return floor_s + slope * size_bytes

    def plus(self, other: "Line") -> "Line":
        """Both sets of measurements together."""
        return Line(
            self.weight + other.weight,
            self.size + other.size,
            self.time + other.time,
            self.size_size + other.size_size,
            self.size_time + other.size_time,
        )


PRIOR = Line().seen(100e3, 1.1).seen(10e3, 0.38)
"""About 1 Mbit/s behind 0.3 s, believed only until the first reply."""
PRIOR_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class NodeEstimate:
    """One node as its replies show it."""

    up: Line = Line()
    down: Line = Line()
    step_s: float | None = None

    def seen(self, report: ClientReport) -> tuple["NodeEstimate", bool]:
        """The estimate after a report, and whether a link turned out to have changed."""
        up, down, step_s, changed = self.up, self.down, self.step_s, False
        if report.upload_s is not None and report.uplink_bytes:
            changed |= up.changed_by(report.uplink_bytes, report.upload_s)
            up = up.seen(report.uplink_bytes, report.upload_s)
        if report.download_s is not None and report.downlink_bytes:
            changed |= down.changed_by(report.downlink_bytes, report.download_s)
            down = down.seen(report.downlink_bytes, report.download_s)
        if report.train_s is not None and report.local_steps:
            each_s = report.train_s / report.local_steps
            step_s = each_s if step_s is None else FORGET * step_s + (1 - FORGET) * each_s
        return replace(self, up=up, down=down, step_s=step_s), changed


@dataclass(frozen=True, slots=True)
class Estimates:
    """All nodes; one that never answered is taken for the average of the others."""

    nodes: Mapping[int, NodeEstimate]

    def seen(self, reports: Sequence[ClientReport]) -> tuple["Estimates", list[int]]:
        """The estimates after a round, and the nodes whose link has changed."""
        nodes, changed = dict(self.nodes), []
        for report in reports:
            nodes[report.node_id], moved = nodes.get(report.node_id, NodeEstimate()).seen(report)
            if moved:
                changed.append(report.node_id)
        return Estimates(nodes), changed

    def of(self, cohort: Sequence[int]) -> list[tuple[Line, Line, float]]:
        """(up, down, step_s) of each node in ``cohort``."""
        up, down, steps = Line(), Line(), []
        for node in self.nodes.values():
            up, down = up.plus(node.up), down.plus(node.down)
            steps += [node.step_s] if node.step_s is not None else []
        up, down = (line if line.weight else PRIOR for line in (up, down))
        step_s = sum(steps) / len(steps) if steps else PRIOR_STEP_S
        found = []
        for node_id in cohort:
            node = self.nodes.get(node_id, NodeEstimate())
            found.append(
                (
                    node.up if node.up.weight else up,
                    node.down if node.down.weight else down,
                    step_s if node.step_s is None else node.step_s,
                )
            )
        return found
