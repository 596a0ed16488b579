"""The same strategies in several scenes: what holds over all of them, and which scenes are lost.

Each scene is a comparison of its own with its own target. Over scenes, ratios are averaged
geometrically, one ratio a scene, and the interval is over scenes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedsys.telemetry.comparison import Comparison, Row, comparison_json, interval_json
from fedsys.telemetry.statistics import Bound, Interval, pooled_ratio

POOLED = ("seconds", "uplink_bytes")
"""The measures whose ratios are averaged over scenes."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One strategy over all scenes, against the baseline."""

    label: str
    ratios: dict[str, Interval | None]
    """Measure to the mean ratio over scenes; None where no scene tells anything."""
    over_oracle: dict[str, Interval | None]
    """Kind of hindsight to the mean ratio of seconds over it."""
    known: tuple[str, ...]
    """Scenes whose ratio of seconds is known."""
    lost: tuple[str, ...]
    """Scenes in which the mean ratio of seconds is above 1, or only the baseline got there ..."""
    lost_clearly: tuple[str, ...]
    """... and those of them in which that is significant."""
    missed: tuple[str, ...]
    """Scenes in which the baseline reached the target and it never did."""
    won_clearly: tuple[str, ...]

    @property
    def lost_fraction(self) -> float | None:
        """Share of the known scenes that are lost."""
        return len(self.lost) / len(self.known) if self.known else None


@dataclass(frozen=True)
class Scenes:
    """Comparisons of the same strategies, one a scene."""

    scenes: Sequence[Comparison]

    @property
    def labels(self) -> list[str]:
        """Every strategy, in the order of the first scene that has it."""
        return list(dict.fromkeys(row.label for scene in self.scenes for row in scene.rows))

    @property
    def kinds(self) -> list[str]:
        """The kinds of hindsight that any scene has."""
        return list(dict.fromkeys(kind for scene in self.scenes for kind in scene.oracles))

    @cached_property
    def standings(self) -> list[Standing]:
        """One for each strategy; the baseline's are all 1."""
        return [self._standing(label) for label in self.labels]

    def ratio(self, scene: Comparison, label: str, measure: str = "seconds") -> Interval | None:
        """The strategy's ratio in one scene; None where it has none or neither got there."""
        row = next((row for row in scene.rows if row.label == label), None)
        return None if row is None else _known(scene.ratio(row, measure))

    def _standing(self, label: str) -> Standing:
        rows = list(self._rows(label))
        seconds = {
            scene.name: ratio
            for scene, row in rows
            if (ratio := _known(scene.ratio(row, "seconds"))) is not None
        }
        pooled = {
            measure: _pooled([_known(scene.ratio(row, measure)) for scene, row in rows])
            for measure in POOLED
        }
        over_oracle = {
            kind: _pooled(
                [
                    _known(scene.ratio(row, "seconds", scene.oracles[kind]))
                    for scene, row in rows
                    if kind in scene.oracles
                ]
            )
            for kind in self.kinds
        }
        missed = tuple(
            scene.name for scene, row in rows if not row.reached and scene.rows[0].reached
        )
        lost = tuple(name for name, r in seconds.items() if r.mean > 1 or name in missed)
        clear = {name for name, ratio in seconds.items() if ratio.significant}
        won = (name for name in seconds if name in clear and name not in lost)
        return Standing(
            label=label,
            ratios=pooled,
            over_oracle=over_oracle,
            known=tuple(seconds),
            lost=lost,
            lost_clearly=tuple(name for name in lost if name in clear),
            missed=missed,
            won_clearly=tuple(won),
        )

    def _rows(self, label: str) -> Iterator[tuple[Comparison, Row]]:
        for scene in self.scenes:
            for row in scene.rows:
                if row.label == label:
                    yield scene, row


def scenes_json(scenes: Scenes, verdicts: Sequence[Sequence[str]], whole: Sequence[str]) -> Any:
    """What ``--json`` writes: each scene as it would be alone, then the standings."""
    return {
        "scenes": [
            comparison_json(scene, lines)
            for scene, lines in zip(scenes.scenes, verdicts, strict=True)
        ],
        "standings": [_standing_json(standing) for standing in scenes.standings],
        "verdict": list(whole),
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    return {
        "strategy": standing.label,
        "time_ratio": interval_json(standing.ratios["seconds"]),
        "uplink_ratio": interval_json(standing.ratios["uplink_bytes"]),
        "seconds_over_oracle": {
            kind: interval_json(ratio) for kind, ratio in standing.over_oracle.items()
        },
        "known_scenes": list(standing.known),
        "lost_scenes": list(standing.lost),
        "clearly_lost_scenes": list(standing.lost_clearly),
        "missed_scenes": list(standing.missed),
        "clearly_won_scenes": list(standing.won_clearly),
        "lost_fraction": standing.lost_fraction,
    }


def _known(ratio: Interval | None) -> Interval | None:
    return None if ratio is None or ratio.unknown else ratio


def _pooled(ratios: Sequence[Interval | None]) -> Interval | None:
    """The mean over scenes; a bound in one of them makes it a bound, too."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    bounds = {ratio.bound for ratio in known if ratio.bound}
    bound: Bound = bounds.pop() if len(bounds) == 1 else "~" if bounds else ""
    return replace(pooled_ratio([ratio.mean for ratio in known]), bound=bound)
