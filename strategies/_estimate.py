"""What a server learns about a node from its replies: two link lines and a step time.

A transfer of b bytes is taken to cost floor + b * slope seconds. Both are fitted, per node and
direction, to one remembered time for each kind of size; a time that no such line could explain
starts the fit anew, because then the link itself has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedsys.types import ClientReport

FORGET = 0.7
"""Weight of the past against each new measurement."""
CHANGE_FACTOR = 2.0
SAME_SIZE_FACTOR = 1.5
"""Sizes closer than this are one kind of size and share one remembered time."""
FLOOR_SHARE = 0.3
"""Part of a transfer's time that is taken for its floor while only one size has been seen."""
MIN_SLOPE_SHARE = 0.001
"""Part of a transfer's time that depends on its size even where nothing of that was seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = floor + slope * bytes, from measured points (bytes, seconds).

    Each kind of size keeps its point however long ago it was: were old points forgotten, a node
    that sends one size for long would no longer know what another size costs.
    """

    points: tuple[tuple[float, float], ...] = ()

    def seen(self, size_bytes: float, seconds: float) -> "Line":
        """The line after one more measurement."""
        if self.changed_by(size_bytes, seconds):
            return Line(((size_bytes, seconds),))
        point, others = (size_bytes, seconds), []
        for old in self.points:
            if _are_same_size(old[0], size_bytes):
                point = (_mixed(old[0], point[0]), _mixed(old[1], point[1]))
            else:
                others.append(old)
        return Line((*others, point))

    def changed_by(self, size_bytes: float, seconds: float) -> bool:
        """Whether no line through the point of the nearest size comes within a factor of two."""
        if not self.points:
            return False
        size, time = min(self.points, key=lambda p: max(p[0], size_bytes) / min(p[0], size_bytes))
        if _are_same_size(size, size_bytes):
            least_s = most_s = time
        else:
            least_s, most_s = sorted((time, time * size_bytes / size))
        return seconds > CHANGE_FACTOR * most_s or CHANGE_FACTOR * seconds < least_s

    def fit(self) -> tuple[float, float]:
        """(floor in seconds, slope in seconds per byte). Raises ValueError when nothing is known.

        Least squares of relative errors. From one kind of size the slope cannot be seen; its time
        is then split by ``FLOOR_SHARE``.
        """
        if not self.points:
            raise ValueError("no measurement yet")
        # In plain Python: for a few points numpy takes ten times as long.
        weighed = [(1 / max(time, 1e-9) ** 2, size, time) for size, time in self.points]
        total = sum(weight for weight, _, _ in weighed)
        size = sum(weight * size for weight, size, _ in weighed) / total
        time = sum(weight * time for weight, _, time in weighed) / total
        sizes = [size for size, _ in self.points]
        if _are_same_size(min(sizes), max(sizes)):
            slope = (1 - FLOOR_SHARE) * time / size
        else:
            variance = sum(weight * (s - size) ** 2 for weight, s, _ in weighed)
            slope = sum(w * (s - size) * (t - time) for w, s, t in weighed) / variance
        slope = min(max(slope, MIN_SLOPE_SHARE * time / size), time / size)
        return max(0.0, time - slope * size), slope

    def plus(self, other: "Line") -> "Line":
        """Both sets of measurements together."""
        return Line(self.points + other.points)


def _are_same_size(a_bytes: float, b_bytes: float) -> bool:
    return max(a_bytes, b_bytes) < SAME_SIZE_FACTOR * min(a_bytes, b_bytes)


def _mixed(old: float, new: float) -> float:
    return FORGET * old + (1 - FORGET) * new


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
            step_s = each_s if step_s is None else _mixed(step_s, each_s)
        return replace(self, up=up, down=down, step_s=step_s), changed


@dataclass(frozen=True, slots=True)
class Estimates:
    """All nodes; one that never answered is taken for the average of the others."""

    nodes: Mapping[int, NodeEstimate]

    def seen(self, reports: Sequence[ClientReport]) -> tuple["Estimates", list[int]]:
        """The estimates after a round, and the nodes whose link has changed."""
        nodes, changed = dict(self.nodes), []
        for report in reports:
            if report.at_work:  # the report that follows has its download, too
                continue
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
        up, down = (line if line.points else PRIOR for line in (up, down))
        step_s = sum(steps) / len(steps) if steps else PRIOR_STEP_S
        found = []
        for node_id in cohort:
            node = self.nodes.get(node_id, NodeEstimate())
            found.append(
                (
                    node.up if node.up.points else up,
                    node.down if node.down.points else down,
                    step_s if node.step_s is None else node.step_s,
                )
            )
        return found
