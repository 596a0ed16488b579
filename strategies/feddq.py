"""FedDQ (Qu, Song and Tsui, 2021): ever coarser quantization, as updates shrink.

A uniform quantizer of b bits over a range r errs by at most r / 2^b. The quantization error that
training can bear does not change, so the step is fixed and

    bits = ceil(log2(range(u) / step)),

which falls as updates get smaller: the opposite of AdaQuantFL.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_whole
from strategies._signals import mean_energy
from strategies._specs import quantizer

MAX_BITS = 16


@dataclass(frozen=True, slots=True)
class State:
    """The norm of each node's last update, and of the first round's."""

    norms: Mapping[int, float] = field(default_factory=dict)
    first_norm: float | None = None


@dataclass(frozen=True, slots=True)
class FedDq:
    """Bits fall with the range of a client's update, each client by its own.

    A server is told norms, not ranges: for values of one kind of distribution the range is
    proportional to the norm, so a client's bits are first_bits + log2(norm / first norm), rounded
    up, where the first norm is that of the first round (our reading: it sets the step that the
    paper leaves to the user). The quantizer of so many bits is ours, as in ``adaquant``.
    """

    first_bits: int = 8
    """Bits of an update as large as the first round's (ours)."""
    local_epochs: int = 1
    chooses_codecs: ClassVar[bool] = True
    fednova: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "first_bits", "local_epochs")

    def start(self, scene: Scene) -> State:
        """No update seen."""
        return State()

    def plan(self, scene: Scene, state: State, round_number: int) -> RoundPlan:
        """Each node's bits by its last update; one not seen yet by the mean of the others."""
        steps = scene.work(scene.sample(round_number), self.local_epochs)
        bits = {node: self.bits(state, node) for node in steps}
        return scene.plan(
            round_number,
            steps,
            uplink={node: quantizer(count, scene.feedback).spec for node, count in bits.items()},
            reason=f"feddq: {min(bits.values())} to {max(bits.values())} bits",
        )

    def observe(self, scene: Scene, state: State, record: RoundRecord) -> State:
        """Remember the norms."""
        seen = {r.node_id: r.update_norm for r in record.reports if r.accepted and r.update_norm}
        energy = mean_energy(record)
        first = state.first_norm
        if first is None and energy:
            first = math.sqrt(energy)
        return State({**state.norms, **seen}, first)

    def bits(self, state: State, node: int) -> int:
        """Bits per value of the node's next update."""
        if state.first_norm is None:
            return self.first_bits
        mean = sum(state.norms.values()) / len(state.norms) if state.norms else state.first_norm
        norm = state.norms.get(node, mean)
        wanted = whole(self.first_bits + math.log2(norm) - math.log2(state.first_norm))
        return min(MAX_BITS, max(1, wanted))


Impl = FedDq
