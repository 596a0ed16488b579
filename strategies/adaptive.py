"""Our controller: each round spends its seconds where they buy the most accuracy.

The rule is the product of rounds and seconds per round, as in NAC-FL (2023), taken over local steps
and both codecs together, with links and devices estimated from what replies took.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedsys.errors import ConfigError
from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._estimate import Estimates
from strategies._offers import BY_SPEC, LADDER, Offer
from strategies._search import WAIT_QUANTILE, Choice, Cohort, best, finer, gain, round_s

FIRST_OVERHEAD_BYTES = 9500.0
WINDOW = 8
"""Rounds whose losses are compared with the same number before them to see a stall."""
STALL_FRACTION = 0.01
"""A loss that fell by less than this from one window to the next has stalled ..."""
NOISE_FRACTION = 0.02
"""... if it is known this well; noisier losses cannot tell a stall from slow progress."""
LEARNING_ROUNDS = 4
"""Rounds in which any better choice is taken: the first estimates are poor."""
FIRST_EPOCHS = 4
"""Local work of the first round; later rounds at most double it, so that drift shows in time."""


@dataclass(frozen=True, slots=True)
class State:
    """What the controller has learned; rebuilt from the records when a run is resumed."""

    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    sizes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(direction, codec) to the bytes of an update, or of the difference of two versions."""
    answered: Mapping[int, int] = field(default_factory=dict)
    """Node to the last round whose model it is known to hold."""
    choice: Choice | None = None
    held_rounds: int = 0
    rounds: int = 0
    moved: tuple[int, ...] = ()
    """Nodes whose link changed in the last round."""
    losses: tuple[float, ...] = ()
    """Training loss of the model as received, since the last change of phase."""
    max_steps: int | None = None
    hardest: int = len(LADDER) - 1
    """Index of the hardest codec still allowed."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Choose local steps, codecs and deadline for the most expected loss decrease per second.

    It measures goodput, step time, message sizes and training loss; it is told nothing about the
    emulated links. Slow nodes get fewer steps and a harder codec so that the cohort arrives
    together. When the loss stalls, steps shrink and codecs get finer before the budget ends.
    """

    max_epochs: int = 8
    """Cap on local work: beyond it clients drift apart instead of making progress."""
    steps_exponent: float = 0.5
    """Gain of a round grows as local steps to this power (measured: four times the steps halve
    the rounds)."""
    hysteresis: float = 0.1
    """A new choice must promise this much more before it replaces the current one, unless it
    only compresses less and is as good."""
    choose_steps: bool = True
    """Off: every client trains one epoch."""
    choose_uplink: bool = True
    choose_downlink: bool = True
    equalise: bool = True
    """Give slow nodes less work, so that the others need not wait."""
    deadline: bool = True
    fednova: bool = True
    """Divide updates by their local steps, because these differ."""

    def __post_init__(self) -> None:
        if self.max_epochs < 1 or not 0 <= self.steps_exponent <= 1 or self.hysteresis < 0:
            raise ConfigError(
                "max_epochs must be 1 or more, steps_exponent in [0, 1], hysteresis 0 or more"
            )

    @property
    def chooses_codecs(self) -> bool:
        """Whether the switches leave it a codec to choose."""
        return self.choose_uplink or self.choose_downlink

    def start(self, scene: Scene) -> State:
        """Knows nothing."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """Keep the last choice unless another promises clearly more, then fit each node to it."""
        nodes = scene.sample(round_number)
        cohort = Cohort.of(state.estimates.of(nodes))
        choice, reason = self._choose(scene, state, nodes, cohort)
        steps, uplinks, reasons, last_s = self._fit(scene, state, nodes, cohort, choice)
        known = len(state.losses) > 1
        return scene.plan(
            round_number,
            steps,
            uplink=uplinks,
            downlink=choice.down.spec,
            deadline_s=3 * last_s + 1 if self.deadline and known else None,
            reason=reason,
            reasons=reasons,
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Learn links, sizes and losses; notice a stall."""
        estimates, moved = state.estimates.seen(record.reports)
        nodes = tuple(client.node_id for client in record.plan.clients)
        choice, _ = self._choose(scene, state, nodes, Cohort.of(state.estimates.of(nodes)))
        same = choice == state.choice
        losses = [(r.examples, r.first_loss) for r in record.reports if r.accepted]
        known = [(n, loss) for n, loss in losses if loss is not None]
        total = sum(n for n, _ in known)
        mean = (sum(n * loss for n, loss in known) / total,) if total else ()
        learned = replace(
            state,
            estimates=estimates,
            sizes=_sizes(state, record),
            answered={**state.answered, **dict.fromkeys(_accepted(record), record.round)},
            choice=choice,
            rounds=state.rounds + 1,
            held_rounds=state.held_rounds + 1 if same else 1,
            moved=tuple(moved),
            losses=(state.losses + mean)[-2 * WINDOW :],
        )
        return self._phase(learned, _epoch(scene, nodes))

    def _choose(
        self, scene: Scene, state: State, nodes: Sequence[int], cohort: Cohort
    ) -> tuple[Choice, str]:
        def up_bytes(offer: Offer) -> float:
            return _size(scene, state, "up", offer)

        def down_bytes(offer: Offer) -> float:
            return self._down_bytes(scene, state, offer)

        def score(choice: Choice) -> float:
            seconds = round_s(choice, cohort, up_bytes, down_bytes)
            return gain(choice, self.steps_exponent, feedback=scene.feedback) / seconds

        allowed = LADDER[: state.hardest + 1]
        ups = allowed if self.choose_uplink else (_offer(scene.uplink),)
        downs = allowed if self.choose_downlink else (_offer(scene.downlink),)
        choice = best(self._steps(scene, state, nodes), ups, downs, score)
        why = "best gain per second"
        old = state.choice
        if old is not None and choice != old and self._still_allows(state, old, ups, downs):
            ahead = max(0.0, score(choice) / score(old) - 1)
            learning = state.rounds < LEARNING_ROUNDS
            needed = 0.0 if learning or choice.is_lighter_than(old) else self.hysteresis
            settled = learning or state.held_rounds >= 2 or bool(state.moved)
            if ahead < needed or not settled:
                choice, why = old, f"kept: the best other promises {100 * ahead:.0f} % more"
            elif state.moved:
                why = f"link of {len(state.moved)} nodes changed"
        seconds = round_s(choice, cohort, up_bytes, down_bytes)
        upload_s = float(np.quantile(cohort.upload_s(up_bytes(choice.up)), WAIT_QUANTILE))
        raw_s = float(np.quantile(cohort.upload_s(up_bytes(LADDER[0])), WAIT_QUANTILE))
        lost = 1 - choice.up.gain(feedback=scene.feedback)
        return choice, (
            f"{why}: {choice.local_steps} steps, up {choice.up.spec}, down {choice.down.spec}; "
            f"{upload_s:.1f} s of {seconds:.1f} s is upload; {choice.up.spec} saves "
            f"{raw_s - upload_s:.1f} s for {100 * lost:.0f} % less gain"
        )

    def _still_allows(
        self, state: State, choice: Choice, ups: Sequence[Offer], downs: Sequence[Offer]
    ) -> bool:
        """False for a choice that a stall has ruled out since."""
        limit = state.max_steps if self.choose_steps else None
        few_enough = limit is None or choice.local_steps <= limit
        return choice.up in ups and choice.down in downs and few_enough

    def _steps(self, scene: Scene, state: State, nodes: Sequence[int]) -> list[int]:
        epoch = _epoch(scene, nodes)
        if not self.choose_steps:
            return [epoch]
        last = FIRST_EPOCHS * epoch if state.choice is None else 2 * state.choice.local_steps
        most = min(last, state.max_steps or last, self.max_epochs * epoch)
        return [e for e in (2**k for k in range(20)) if e < most] + [most]

    def _fit(
        self, scene: Scene, state: State, nodes: Sequence[int], cohort: Cohort, choice: Choice
    ) -> tuple[dict[int, int], dict[int, str], dict[int, str], float]:
        """Per node: steps, uplink codec and reason; and the seconds of the slowest."""
        down_s = cohort.download_s(self._down_bytes(scene, state, choice.down))
        up_s = cohort.upload_s(_size(scene, state, "up", choice.up))
        finish_s = down_s + choice.local_steps * cohort.step_s + up_s
        limit_s = float(np.quantile(finish_s, WAIT_QUANTILE))
        steps, uplinks, reasons, last_s = {}, {}, {}, 0.0
        for at, node in enumerate(nodes):
            epoch = scene.steps_per_epoch(node)
            most = min(choice.local_steps, self.max_epochs * epoch) if self.choose_steps else epoch
            offer, upload_s, why = choice.up, float(up_s[at]), ""
            if self.equalise and finish_s[at] > limit_s * 1.05:
                if self.choose_uplink:
                    offer = LADDER[min(state.hardest, LADDER.index(choice.up) + 2)]
                    upload_s = float(cohort.upload_s(_size(scene, state, "up", offer))[at])
                left_s = limit_s - float(down_s[at]) - upload_s
                most = max(1, -(-most // 4), min(most, int(left_s / cohort.step_s[at])))
                why = f"slow: {finish_s[at]:.1f} s expected, the cohort needs {limit_s:.1f} s"
            steps[node], uplinks[node], reasons[node] = most, offer.spec, why
            last_s = max(last_s, float(down_s[at]) + most * float(cohort.step_s[at]) + upload_s)
        return steps, uplinks, reasons, last_s

    def _down_bytes(self, scene: Scene, state: State, offer: Offer) -> float:
        """A node that sat out gets one difference per missed round, or the whole model."""
        whole = scene.model_bytes + FIRST_OVERHEAD_BYTES
        if state.choice is None or offer.spec == "none":
            return whole
        gap = len(scene.examples) / scene.cohort
        return min(whole, gap * _size(scene, state, "down", offer))

    def _phase(self, state: State, epoch: int) -> State:
        """After a stall: half the steps and finer codecs, and the losses count from here."""
        if state.choice is None or not _stalled(state.losses):
            return state
        lighter = LADDER.index(finer(state.choice.up)) if self.choose_uplink else state.hardest
        hardest = max(lighter, LADDER.index(BY_SPEC["int8"]))
        return replace(
            state,
            losses=(),
            max_steps=max(min(epoch, state.choice.local_steps), state.choice.local_steps // 2),
            hardest=min(state.hardest, hardest),
        )


def _epoch(scene: Scene, nodes: Sequence[int]) -> int:
    """Local steps of one epoch at the median node."""
    return int(np.median([scene.steps_per_epoch(node) for node in nodes]))


def _stalled(losses: Sequence[float]) -> bool:
    """Whether the later half of two windows is no better, and that is not just noise."""
    if len(losses) < 2 * WINDOW:
        return False
    before, after = np.array(losses[:WINDOW]), np.array(losses[WINDOW:])
    error = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / WINDOW)
    level = float(before.mean())
    known = error < NOISE_FRACTION * level
    return known and float(after.mean()) > (1 - STALL_FRACTION) * level


def _offer(spec: str) -> Offer:
    """The offer of a spec; one that is not on the ladder counts as exact and full size."""
    return BY_SPEC.get(spec, Offer(spec, 32.0, 0.0))


def _size(scene: Scene, state: State, way: str, offer: Offer) -> float:
    """Bytes of a message: as seen, or as the offer says plus the overhead seen on others."""
    if (way, offer.spec) in state.sizes:
        return state.sizes[way, offer.spec]
    extra = [
        size - BY_SPEC[spec].size_bytes(scene.parameters, 0)
        for (seen_way, spec), size in state.sizes.items()
        if seen_way == way and spec in BY_SPEC
    ]
    overhead = max(0.0, min(extra)) if extra else FIRST_OVERHEAD_BYTES
    return offer.size_bytes(scene.parameters, overhead)


def _accepted(record: RoundRecord) -> list[int]:
    return [report.node_id for report in record.reports if report.accepted]


def _sizes(state: State, record: RoundRecord) -> dict[tuple[str, str], float]:
    seen = dict(state.sizes)
    uplink = {client.node_id: client.uplink for client in record.plan.clients}
    for spec in set(uplink.values()):
        found = [r.uplink_bytes for r in record.reports if r.accepted and uplink[r.node_id] == spec]
        if found:
            seen["up", spec] = float(np.median(found))
    # A node gets one difference per version that it lacks; one that is new gets the whole model.
    down = [
        r.downlink_bytes / (record.round - state.answered[r.node_id])
        for r in record.reports
        if r.downlink_bytes and r.node_id in state.answered
    ]
    if down:
        seen["down", record.plan.downlink] = float(np.min(down))
    return seen


Impl = Adaptive
