"""Our controller: each round spends its seconds where they buy the most progress.

The rule is the product of rounds and seconds per round, as in NAC-FL (2023), taken over local
steps and both codecs together. Links, devices and the task's own way of learning are
estimated from what replies took and said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._known import WINDOW, State, first_offer, median_epoch
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._options import require_whole
from strategies._search import Choice, Cohort
from strategies._signals import own_gain, received_loss
from strategies._ways import Limits, Ways

FIRST_STEPS = 64
"""Local steps of the first round, at most ..."""
GROWTH = 4
"""... and how many times the last number a later round may take, so that drift shows in time."""
STEPS = tuple(dict.fromkeys(round(2 ** (k / 2)) for k in range(2, 25)))
"""Local steps to choose from. Of a single one it cannot be seen how fast the loss falls."""
MAX_STRETCH = 2.0
MEAN_DECAY = 8.0
"""The mean over rounds is about the last ninth of them where chance moves a round's model as much
as the clients' common step does, and less where it moves it less."""
NEARLY_ALL = 0.8
"""Part of all clients whose losses are as good as everybody's."""
REMEMBER = 0.7
"""Weight of the past against what a round shows of who answers."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, the round's nodes, and when it should be done."""

    choice: Choice
    nodes: tuple[int, ...]
    closes_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Choose local steps and codecs for the least rounds times seconds, and wait for no straggler.

    It measures goodput, step time, message sizes, losses, codec errors and how far updates agree;
    it is told nothing about the emulated links.
    """

    max_epochs: int = 32
    """Cap on local work."""
    choose_steps: bool = True
    """Off: every client trains one epoch."""
    choose_uplink: bool = True
    choose_downlink: bool = True
    quorum: bool = True
    """Close a round when half have answered, and use what comes late in a later one."""
    stretch: bool = True
    """Lengthen the server's step where updates disagree (FedExP)."""
    average: bool = True
    """Evaluate and save a mean over rounds where each has a part of all clients only."""
    late_phase: bool = True
    """Halve the steps when clients drift apart."""

    fednova: ClassVar[bool] = False
    """Few clients have so few examples that they are asked for fewer steps than the others."""

    def __post_init__(self) -> None:
        require_whole(self, "max_epochs")

    @property
    def chooses_codecs(self) -> bool:
        """Whether the switches leave it a codec to choose."""
        return self.choose_uplink or self.choose_downlink

    def start(self, scene: Scene) -> State:
        """Knows nothing."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The choice that promises most, within each node's epochs."""
        found = self._decide(scene, state, round_number)
        steps = {}
        for node in found.nodes:
            most = self._most_steps(scene, node)
            steps[node] = min(found.choice.local_steps, most) if self.choose_steps else most
        return scene.plan(
            round_number,
            steps,
            uplink=found.choice.up.spec,
            downlink=found.choice.down.spec,
            reason=found.reason,
            max_stretch=self._stretch(scene, state),
            quorum=scene.quorum() if self.quorum else None,
            mean_weight=self._mean_weight(scene, state, round_number),
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn links, sizes, losses and how updates behave; notice a drift."""
        found = self._decide(scene, state, record.round)
        estimates, moved = state.estimates.seen(record.reports)
        loss, gain = received_loss(record), own_gain(record)
        accepted = [report for report in record.reports if report.accepted]
        held = {report.node_id: record.round - report.staleness for report in accepted}
        heard = {report.node_id for report in record.reports}
        at_work = {report.node_id for report in record.reports if report.at_work}
        extra_s = max(0.0, record.end_s - record.start_s - found.closes_s) if state.rounds else 0.0
        learned = State(
            estimates=estimates,
            progress=state.progress.seen(record),
            wait_s=extra_s if state.rounds < 2 else 0.5 * (state.wait_s + extra_s),
            answering=_mixed(state.answering, len(accepted) / scene.cohort, 1 / scene.cohort),
            sizes=state.sizes_after(record),
            answered={**state.answered, **held},
            key_round=record.round if record.key_frame else state.key_round,
            at_work=frozenset(at_work | (state.at_work - heard)),
            choice=found.choice,
            rounds=state.rounds + 1,
            moved=tuple(moved),
            losses=(state.losses + (() if loss is None else (loss,)))[-2 * WINDOW :],
            gains=(state.gains + (() if loss is None else (gain,)))[-2 * WINDOW :],
            max_steps=state.max_steps,
        )
        everyone = len(accepted) >= NEARLY_ALL * len(scene.examples)
        if not self.late_phase or not learned.has_drifted(everyone=everyone):
            return learned
        steps = found.choice.local_steps
        fewer = max(min(median_epoch(scene, found.nodes), steps), steps // 2)
        return replace(learned, losses=(), gains=(), max_steps=fewer)

    def _decide(self, scene: Scene, state: State, round_number: int) -> Decision:
        if round_number not in state.decided:
            state.decided[round_number] = self._decided(scene, state, round_number)
        found: Decision = state.decided[round_number]
        return found

    def _decided(self, scene: Scene, state: State, round_number: int) -> Decision:
        nodes = scene.sample(round_number)
        cohort = Cohort.of(state.estimates.of(nodes))
        ways = Ways(scene, state, cohort, self._limits(scene, state, nodes))
        old = state.choice if state.choice and ways.limits.allow(state.choice) else None
        choice = ways.best(old)
        asked = [node for node in nodes if node not in state.at_work] or nodes
        theirs = replace(ways, cohort=Cohort.of(state.estimates.of(asked)))
        closes_s = theirs.closes_s(choice, ways.sizes_for(asked, choice, round_number))
        why = "best progress per second"
        if state.moved and old not in (None, choice):
            why = f"link of {len(state.moved)} nodes changed"
        reason = f"{why}: {ways.reason(choice, closes_s)}"
        return Decision(choice, nodes, closes_s, reason)

    def _limits(self, scene: Scene, state: State, nodes: Sequence[int]) -> Limits:
        downs: tuple[Offer, ...] = LADDER
        if not self.choose_downlink:
            downs = (_offer(scene.downlink),)
        elif state.choice is None:
            downs = tuple(dict.fromkeys((LADDER[0], first_offer(scene))))
        return Limits(
            steps=self._steps(state, median_epoch(scene, nodes)),
            ups=LADDER if self.choose_uplink else (_offer(scene.uplink),),
            downs=downs,
            quorum=scene.quorum() if self.quorum else None,
        )

    def _steps(self, state: State, epoch: int) -> tuple[int, ...]:
        if not self.choose_steps:
            return (epoch,)
        last = FIRST_STEPS if state.choice is None else GROWTH * state.choice.local_steps
        most = max(1, min(last, state.max_steps or last, self.max_epochs * epoch))
        return (*(steps for steps in STEPS if steps < most), most)

    def _most_steps(self, scene: Scene, node: int) -> int:
        epoch = scene.steps_per_epoch(node)
        return self.max_epochs * epoch if self.choose_steps else epoch

    def _stretch(self, scene: Scene, state: State) -> float:
        """Less where few of all clients answer: what they disagree in is then mostly chance."""
        answering = scene.cohort * state.answering / len(scene.examples)
        if not self.stretch or state.rose(everyone=answering >= NEARLY_ALL):
            return 1.0
        return 1 + (MAX_STRETCH - 1) * math.sqrt(min(1.0, answering))

    def _mean_weight(self, scene: Scene, state: State, round_number: int) -> float:
        """Polynomial-decay averaging (Shamir & Zhang 2013), by the noise of who takes part."""
        clients = scene.cohort * state.answering
        noise = state.progress.disagreement / clients * (1 - clients / len(scene.examples))
        if not self.average or noise <= 0:
            return 1.0
        decay = MEAN_DECAY / noise
        return (decay + 1) / (decay + round_number)


def _mixed(share: float, new: float, least: float) -> float:
    """The share of answers after a round that brought ``new``."""
    return min(1.0, max(least, REMEMBER * share + (1 - REMEMBER) * new))


def _offer(spec: str) -> Offer:
    """The offer of a spec; one that is not on the ladder counts as exact and full size."""
    return BY_SPEC.get(spec, Offer(spec, 32.0, 0.0))


Impl = Adaptive
