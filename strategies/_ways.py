"""The ways to run the next rounds, and the time to the target that each promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsys.types import F64, Quorum
from strategies._base import Scene
from strategies._known import State, first_offer, received_first, received_whole, replaces
from strategies._offers import LADDER, Offer
from strategies._search import Choice, Cohort, climb, closes_s

LOOK_ROUNDS = 4
"""Rounds in which the search begins from the middle, too; later on only where a link changed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be chosen."""

    steps: tuple[int, ...]
    ups: tuple[Offer, ...]
    downs: tuple[Offer, ...]
    quorum: Quorum | None

    def allow(self, choice: Choice) -> bool:
        """Whether a choice is within them; its steps need not be one of those named."""
        few_enough = choice.local_steps <= self.steps[-1]
        return few_enough and choice.up in self.ups and choice.down in self.downs


@dataclass(frozen=True, slots=True)
class Ways:
    """Judges choices by what is known."""

    scene: Scene
    state: State
    cohort: Cohort
    limits: Limits
    sizes: dict[str, float] = field(default_factory=dict)
    """Uplink codec to bytes, filled as they are asked for."""

    def best(self, old: Choice | None) -> Choice:
        """The choice with the highest score that a climb from ``old``, or from the middle, finds.

        Knobs act on the score almost independently, so that one after the other is enough.
        """
        limits = self.limits
        knobs: Mapping[str, Sequence[object]] = {
            "local_steps": limits.steps,
            "up": limits.ups,
            "down": limits.downs,
        }
        steps, ups, downs = limits.steps, limits.ups, limits.downs
        middle = Choice(steps[len(steps) // 2], ups[len(ups) // 2], downs[len(downs) // 2])
        starts = [middle if old is None else old]
        if old is None or self.state.moved or self.state.rounds < LOOK_ROUNDS:
            starts = [middle, *starts]
        return max((climb(start, knobs, self.score) for start in starts), key=self.score)

    def score(self, choice: Choice) -> float:
        """One over the expected time to the target, in arbitrary units."""
        scene = self.scene
        clients = len(self.cohort.step_s) * self.state.answering
        rounds = self.state.progress.rounds(
            choice.local_steps,
            choice.up,
            first_offer(scene) if self._makes_key_frames(choice) else choice.down,
            clients=clients,
            gap=len(scene.examples) / clients,
            drawn=clients / len(scene.examples),
            feedback=scene.feedback,
        )
        return 1 / (rounds * (self.closes_s(choice) + self.state.wait_s))

    def closes_s(self, choice: Choice, sizes: F64 | None = None) -> float:
        """When a round ends by what is known; ``sizes`` are its downloads, where not the usual."""
        cohort = self.cohort
        down_s = cohort.download_s(self.down_bytes(choice) if sizes is None else sizes)
        up_s = cohort.upload_s(self.up_bytes(choice.up))
        return closes_s(down_s + choice.local_steps * cohort.step_s + up_s, self.limits.quorum)

    def reason(self, choice: Choice, closes_s: float) -> str:
        """The choice in words with figures."""
        cohort = self.cohort
        up_s = float(np.median(cohort.upload_s(self.up_bytes(choice.up))))
        raw_s = float(np.median(cohort.upload_s(self.up_bytes(LADDER[0]))))
        down_s = float(np.median(cohort.download_s(self.down_bytes(choice))))
        progress = self.state.progress
        return (
            f"{choice.local_steps} steps (half as good as endless ones at "
            f"{progress.reach_steps:.0f}), up {choice.up.spec}, down {self._sent(choice)}; "
            f"{down_s:.1f} s down and {up_s:.1f} s up of {closes_s:.1f} s; {choice.up.spec} "
            f"saves {raw_s - up_s:.1f} s and drops {100 * progress.nmse(choice.up):.0f} %"
        )

    def _sent(self, choice: Choice) -> str:
        """What goes down, in words."""
        if self._makes_key_frames(choice):
            return f"{first_offer(self.scene).spec} of the whole model"
        return choice.down.spec

    def up_bytes(self, offer: Offer) -> float:
        """Bytes of an update."""
        key = offer.spec
        if key not in self.sizes:
            self.sizes[key] = self.state.size(self.scene, "up", offer)
        return self.sizes[key]

    def down_bytes(self, choice: Choice) -> float:
        """Of a download in the long run: a difference per missed round, or the whole model."""
        whole, first = received_whole(self.scene), received_first(self.scene)
        if choice.down.spec == "none":
            return whole
        if self.state.choice is None or self._makes_key_frames(choice):
            return first
        return min(whole, self._gap * self.state.size(self.scene, "down", choice.down))

    def _makes_key_frames(self, choice: Choice) -> bool:
        """Whether clients miss so many differences that the model is sent whole in every round."""
        one = self.state.size(self.scene, "down", choice.down)
        return choice.down.spec != "none" and replaces(self.scene, one, self._gap * one)

    @property
    def _gap(self) -> float:
        """Rounds from one in which a node is asked to the next."""
        return len(self.scene.examples) / len(self.cohort.step_s)

    def sizes_for(self, nodes: Sequence[int], choice: Choice, round_number: int) -> F64:
        """Bytes of this round's downloads, float64 [c]."""
        if choice.down.spec == "none":
            return np.full(len(nodes), received_whole(self.scene))
        one = self.state.size(self.scene, "down", choice.down)
        return self.state.behind_bytes(self.scene, nodes, round_number, one)
