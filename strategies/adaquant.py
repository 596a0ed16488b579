"""AdaQuantFL (Jhunjhunwala, Gadhikar, Joshi and Eldar, ICASSP 2021): ever finer quantization.

The bound on the error after a number of bits has a term that falls with the levels s of the
quantizer as 1/s^2 (its variance) and one that grows with the bits of a message. Balancing both
with the loss F that is left gives, relative to the start,

    s_k = ceil(s_0 sqrt(F_0 / F_k)),   bits per value = ceil(log2(s_k + 1)) + 1 with the sign.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_whole
from strategies._signals import received_loss
from strategies._specs import quantizer

MAX_RATIO = 1e12
"""Of losses: beyond it the levels are more than a float32 has."""


@dataclass(frozen=True, slots=True)
class State:
    """The first and the latest training loss."""

    first_loss: float | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class AdaQuant:
    """Quantization levels grow with the inverse root of the training loss, for all clients alike.

    F is the training loss of the received models over the round's cohort; the paper asks every
    client. The quantizer of so many bits is ours (``ecq``, or ``eden`` and stochastic ``int8``
    without error feedback) in place of QSGD's. Local work and the downlink are the file's.
    """

    initial_levels: int = 2
    """s_0, as published."""
    local_epochs: int = 1
    chooses_codecs: ClassVar[bool] = True
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "initial_levels", "local_epochs")

    def start(self, scene: Scene) -> State:
        """No loss seen."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """The same quantizer for everyone."""
        levels = self.levels(state)
        offer = quantizer(bits_of(levels), scene.feedback)
        return scene.plan(
            round_number,
            scene.work(scene.sample(round_number), self.local_epochs),
            uplink=offer.spec,
            reason=f"adaquant: {levels} levels, {bits_of(levels)} bits",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Remember the loss."""
        loss = received_loss(record)
        if loss is None:
            return state
        return State(loss if state.first_loss is None else state.first_loss, loss)

    def levels(self, state: State) -> int:
        """s_k; s_0 before any loss was seen, and no fewer levels than one."""
        if not state.first_loss or not state.loss:
            return self.initial_levels
        ratio = min(MAX_RATIO, max(0.0, state.first_loss / state.loss))
        return max(1, whole(self.initial_levels * math.sqrt(ratio)))


def bits_of(levels: int) -> int:
    """Bits of one value: its level and its sign."""
    return math.ceil(math.log2(levels + 1)) + 1


Impl = AdaQuant
