"""Fewer local steps as training goes on (Mills, Hu and Min, 2023, "Faster Federated Learning with
Decaying Number of Local SGD Steps").

With K local steps, an exchange of D seconds and T seconds left, the bound on the gradient is, where
exchanges dominate,  F D / (eta K T) + c eta^2 K^2.  Its derivative in K is zero at
K^3 = F D / (2 c eta^3 T): K* grows as the cube root of the error F that is left, and, as F falls
like 1/r in round r (strongly convex), as r^(-1/3).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_between, require_whole
from strategies._signals import received_loss

PLATEAU_FRACTION = 0.01
"""A window's loss that is not this much below the last one's is a plateau (ours)."""


@dataclass(frozen=True, slots=True)
class State:
    """Losses of at most two windows, the first of all, and whether a plateau was met."""

    first_loss: float | None = None
    losses: tuple[float, ...] = ()
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class KDecay:
    """Local steps K_r decay from K0 by one of the paper's three rules.

    ``rounds``: K_r = ceil(K0 r^(-1/3)).  ``error``: K_r = ceil(K0 (F_r / F_0)^(1/3)) with F_r the
    mean training loss of the last ``window_rounds`` received models.  ``step``: K0 until the loss
    stops falling from one window to the next, then ``drop`` times K0. (The paper watches a
    validation error for the last; we watch the training loss.) Codecs are the experiment file's.
    """

    initial_steps: int = 20
    """K0. The paper sets it for each task; 20 is ours."""
    rule: Literal["rounds", "error", "step"] = "error"
    window_rounds: int = 10
    """Rounds that the loss is averaged over (ours: the paper's runs are far longer)."""
    drop: float = 0.1
    """What is left of K0 at a plateau (our reading)."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "initial_steps", "window_rounds")
        require_between(self, "drop", low=0, high=1)

    def start(self, scene: Scene) -> State:
        """Nothing seen."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The same steps for everyone."""
        steps = self.steps(state, round_number)
        return scene.plan(
            round_number,
            dict.fromkeys(scene.sample(round_number), steps),
            reason=f"k_decay by {self.rule}: {steps} of {self.initial_steps} steps",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Remember the loss of the received model, and a plateau for good."""
        loss = received_loss(record)
        if loss is None:
            return state
        size = self.window_rounds
        losses = (*state.losses, loss)[-2 * size :]
        before, after = sum(losses[:size]), sum(losses[size:])
        flat = len(losses) == 2 * size and after > (1 - PLATEAU_FRACTION) * before
        first = loss if state.first_loss is None else state.first_loss
        return replace(state, first_loss=first, losses=losses, dropped=state.dropped or flat)

    def steps(self, state: State, round_number: int) -> int:
        """K of this round."""
        factor = 1.0
        if self.rule == "rounds":
            factor = round_number ** (-1 / 3)
        elif self.rule == "step":
            factor = self.drop if state.dropped else 1.0
        elif state.first_loss:
            recent = state.losses[-self.window_rounds :]
            ratio = sum(recent) / len(recent) / state.first_loss
            factor = min(1.0, max(0.0, ratio)) ** (1 / 3)
        return max(1, whole(self.initial_steps * factor))


Impl = KDecay
