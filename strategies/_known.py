"""What the adaptive controller has learned; rebuilt from the records when a run is resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsys.types import F64, RoundRecord
from strategies._base import Scene
from strategies._estimate import Estimates
from strategies._offers import BY_SPEC, Offer
from strategies._progress import Progress
from strategies._search import Choice

FIRST_OVERHEAD_BYTES = 9500.0
"""What a message has beside the update, until one was seen."""
WINDOW = 8
"""Rounds whose losses are averaged where only a part of all clients answers in each."""
KNOWN_TO = 1.05
"""Sizes may be wrong by this factor."""
KEPT = 0.2
"""Clients have drifted apart where the common model keeps less than this of what they gain."""
ROSE = 1.05
"""A loss that rose by more than this means that the last step went too far."""


@dataclass(frozen=True, slots=True)
class State:
    """All of it, as a value."""

    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    progress: Progress = field(default_factory=Progress)
    wait_s: float = 0.0
    """What a round takes beyond what transfers and training foretell."""
    answering: float = 1.0
    """Updates that a round brings, over its cohort."""
    sizes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(direction, codec) to the bytes of an update, or of the difference of two versions."""
    answered: Mapping[int, int] = field(default_factory=dict)
    """Node to the last round whose model it is known to hold."""
    key_round: int = 1
    """The last round in which the whole model was sent in its codec."""
    at_work: frozenset[int] = frozenset()
    """Nodes from whom an update is to come that an earlier round asked for."""
    choice: Choice | None = None
    rounds: int = 0
    moved: tuple[int, ...] = ()
    """Nodes whose link changed in the last round."""
    losses: tuple[float, ...] = ()
    """Training loss of the model as received, since the last change of phase."""
    gains: tuple[float, ...] = ()
    """By how much clients were below these losses on their own, in the mean over their steps."""
    max_steps: int | None = None
    decided: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    """Round to what was decided for it in this state, so that it is worked out once."""

    def rose(self, *, everyone: bool) -> bool:
        """Whether the loss rose in the last round, or over many where not ``everyone`` answers."""
        mean = 1 if everyone else WINDOW
        before, after = self.losses[-2 * mean : -mean], self.losses[-mean:]
        return len(before) == mean and sum(after) > ROSE * sum(before)

    def has_drifted(self, *, everyone: bool) -> bool:
        """Whether the common model falls short of what its clients gain on their own data.

        Where not ``everyone`` answers, losses are of other clients' data each time, and only the
        mean over many rounds tells.
        """
        mean, apart = (1, 2) if everyone else (WINDOW, WINDOW)
        if len(self.losses) < mean + apart:
            return False
        losses, gained = self.losses[-mean - apart :], sum(self.gains[-mean - apart :][:apart])
        kept = (sum(losses[:mean]) - sum(losses[-mean:])) / mean
        return gained > 0 and kept < KEPT * gained

    def size(self, scene: Scene, way: str, offer: Offer) -> float:
        """Bytes of a message: as seen, or as the offer says plus the overhead seen on others."""
        if (way, offer.spec) in self.sizes:
            return self.sizes[way, offer.spec]
        extra = [
            size - BY_SPEC[spec].size_bytes(scene.parameters, 0)
            for (seen_way, spec), size in self.sizes.items()
            if seen_way == way and spec in BY_SPEC
        ]
        overhead = max(0.0, min(extra)) if extra else FIRST_OVERHEAD_BYTES
        return offer.size_bytes(scene.parameters, overhead)

    def sizes_after(self, record: RoundRecord) -> dict[tuple[str, str], float]:
        """``sizes`` with what a round has shown."""
        seen = dict(self.sizes)
        uplink = {client.node_id: client.uplink for client in record.plan.clients}
        accepted = [report for report in record.reports if report.accepted]
        for spec in set(uplink.values()):
            found = [r.uplink_bytes for r in accepted if uplink.get(r.node_id) == spec]
            if found:
                seen["up", spec] = float(np.median(found))
        # A node gets one difference per version that it lacks; one that is new the model, too.
        down = [
            r.downlink_bytes / (record.round - held)
            for r in record.reports
            if r.downlink_bytes and not r.staleness
            if (held := self.answered.get(r.node_id, 0)) >= self.key_round
        ]
        # Without a codec it is no difference but the model, whose size tells nothing of the others.
        if down and not record.key_frame and record.plan.downlink != "none":
            seen["down", record.plan.downlink] = float(np.min(down))
        return seen

    def behind_bytes(
        self, scene: Scene, nodes: Sequence[int], round_number: int, one: float
    ) -> F64:
        """Bytes of a round's downloads, float64 [c]: ``one`` for each difference that a node lacks.

        A node that lacks the last key frame gets that, too, and all get a new one where that is
        less than the differences that they missed.
        """
        first, whole = received_first(scene), received_whole(scene)
        held = np.array([self.answered.get(node, 0) for node in nodes])
        missed = one * (round_number - held)
        since_key = first + one * (round_number - self.key_round)
        sent: F64 = np.minimum(whole, np.where(held >= self.key_round, missed, since_key))
        if replaces(scene, one, float(np.minimum(sent, missed).mean())):
            return np.full(len(nodes), first)
        return sent


def replaces(scene: Scene, one: float, missed_bytes: float) -> bool:
    """Whether a key frame takes the place of ``missed_bytes``, of differences of ``one`` each.

    Not where a difference is larger, beyond what sizes are known to.
    """
    first = received_first(scene)
    return scene.makes_key_frames and one <= KNOWN_TO * first and first < missed_bytes


def received_whole(scene: Scene) -> float:
    """Bytes of a download that brings the whole model."""
    return scene.model_bytes + FIRST_OVERHEAD_BYTES


def received_first(scene: Scene) -> float:
    """The same of the first model, in its codec."""
    saved_bits = BY_SPEC["none"].bits - first_offer(scene).bits
    return received_whole(scene) - scene.parameters * saved_bits / 8


def first_offer(scene: Scene) -> Offer:
    """The codec of the first model; bf16 has the size of fp16."""
    return BY_SPEC.get(scene.first_model, BY_SPEC["fp16"])


def median_epoch(scene: Scene, nodes: Sequence[int]) -> int:
    """Local steps of one epoch at the median node."""
    return int(np.median([scene.steps_per_epoch(node) for node in nodes]))
