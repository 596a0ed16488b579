"""AdaComm (Wang and Joshi, MLSys 2019): average rarely at first, and more often as the loss falls.

With tau local steps between exchanges, the error bound of periodic averaging after T seconds is

    2 (F0 - Finf) / (eta T) * (Y + D / tau) + eta L s^2 / m + eta^2 L^2 s^2 (tau - 1)

where a step takes Y and an exchange D. Its derivative in tau is zero at

    tau*^2 = 2 (F0 - Finf) D / (eta^3 L^2 s^2 T)

so that, with Finf = 0 and all else unknown but constant, tau_l / tau_0 = sqrt(F_l / F_0).
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_between, require_whole
from strategies._signals import received_loss

_LEAST_S = 1e-9
"""A round may take no time at all."""


@dataclass(frozen=True, slots=True)
class State:
    """The steps in force, and the losses since they were chosen."""

    steps: int
    first_loss: float | None = None
    losses: tuple[float, ...] = ()
    interval_s: float | None = None
    """None until the first round has shown it."""
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AdaComm:
    """Local steps follow the square root of the training loss, and are never raised.

    Every ``interval_s`` seconds tau = ceil(sqrt(F / F0) tau0); where that is no less than the last
    tau, it is halved instead. F is the mean training loss of the received models of that interval
    (our reading: the paper looks at the loss at its end). The learning rate does not change here,
    so the rule's factor for it is 1. Codecs are the experiment file's.
    """

    initial_steps: int = 20
    """tau0. The paper searches it for each task; 20 is ours."""
    interval_s: float = 60.0
    """T0, as published."""
    interval_rounds: int | None = None
    """T0 as so many times the length of the first round, in place of ``interval_s``: the published
    minute is some ten rounds of its task, and none or hundreds of another (ours)."""
    shrink: float = 0.5
    """Factor where the rule itself would not lower tau, as published."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "initial_steps", "interval_rounds")
        require_between(self, "interval_s", low=0)
        require_between(self, "shrink", low=0, high=0.99)

    def start(self, scene: Scene) -> State:
        """tau0, and a first decision after one interval."""
        if self.interval_rounds is not None:
            return State(self.initial_steps)
        return State(self.initial_steps, interval_s=self.interval_s, due_s=self.interval_s)

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The same steps for everyone."""
        return scene.plan(
            round_number,
            dict.fromkeys(scene.sample(round_number), state.steps),
            reason=f"adacomm: {state.steps} steps until {state.due_s:.0f} s",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Remember the loss; at the end of an interval, decide."""
        loss = received_loss(record)
        losses = state.losses if loss is None else (*state.losses, loss)
        first = state.first_loss if state.first_loss is not None or not losses else losses[0]
        interval_s = state.interval_s or (self.interval_rounds or 1) * max(record.end_s, _LEAST_S)
        known = replace(state, first_loss=first, losses=losses, interval_s=interval_s)
        if record.end_s < (state.due_s or interval_s):
            return replace(known, due_s=state.due_s or interval_s)
        due_s = interval_s * (math.floor(record.end_s / interval_s) + 1)
        if not losses or first is None:
            return replace(known, due_s=due_s)
        steps = self.next_steps(state.steps, first, sum(losses) / len(losses))
        return replace(known, steps=steps, losses=(), due_s=due_s)

    def next_steps(self, steps: int, first_loss: float, loss: float) -> int:
        """tau of the next interval after ``steps`` in this one."""
        # A loss that rose is halved for below, however much it rose.
        ratio = min(1.0, max(0.0, loss / first_loss)) if first_loss > 0 else 0.0
        wanted = max(1, whole(math.sqrt(ratio) * self.initial_steps))
        return wanted if wanted < steps else max(1, whole(self.shrink * steps))


Impl = AdaComm
