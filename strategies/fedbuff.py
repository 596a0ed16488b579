"""FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, AISTATS 2022).

Always ``concurrency`` clients are in flight. Every update that arrives goes into a buffer, weighted
by examples / (1 + tau)^0.5, where tau is the number of server steps since its client was sent the
model. When ``buffer`` updates are in it, their sum over their examples is one step of the server's
optimizer: one round. Whoever has answered is replaced at once; nobody waits for a straggler.

As in the paper's algorithm, which divides by ``buffer`` and not by the sum of the weights, steps of
old updates are shorter ones. On digits with stragglers and all clients in flight that halves them,
and with steps of full length runs took longer or missed their target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.progress import stale_weight
from fedsys.types import RoundPlan, RoundRecord
from strategies._base import Scene, whole
from strategies._options import require_between, require_whole

MAX_EXPONENT = 2.0


@dataclass(frozen=True, slots=True)
class FedBuff:
    """Asynchronous: a server step for every ``buffer`` updates, whoever they come from."""

    buffer: int | None = None
    """Updates per server step; published: 10, of a thousand in flight."""
    buffer_fraction: float = 0.5
    """Where ``buffer`` is not given, so much of those in flight (ours: fewer make steps of updates
    that are mostly old where nearly all clients are at work, and half of such runs fell apart)."""
    concurrency: int | None = None
    """Clients in flight; the experiment's cohort unless given."""
    max_staleness: int = 20
    """Updates that are more server steps old are left out."""
    local_epochs: int = 1
    staleness_exponent: float = 0.5
    """0 counts old updates in full."""
    chooses_codecs: ClassVar[bool] = False
    fednova: ClassVar[bool] = False
    is_asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        require_whole(self, "buffer", "concurrency", "local_epochs")
        require_whole(self, "max_staleness", least=0)
        require_between(self, "buffer_fraction", low=0, high=1)
        if not 0 <= self.staleness_exponent <= MAX_EXPONENT:
            raise ConfigError(
                f"staleness_exponent must be 0 to {MAX_EXPONENT:g}, got {self.staleness_exponent}"
            )

    def check(self, experiment: Experiment) -> None:
        """Raise ConfigError for an experiment with fewer clients than are to be in flight."""
        clients = experiment.partition.clients
        if self.concurrency is not None and self.concurrency > clients:
            raise ConfigError(
                f"concurrency = {self.concurrency} clients in flight of partition.clients = "
                f"{clients}; at most all of them"
            )

    def in_flight(self, scene: Scene) -> int:
        """How many clients are at work at any time."""
        return min(self.concurrency or scene.cohort, len(scene.examples))

    def updates_per_step(self, scene: Scene) -> int:
        """How many updates make a step of the server."""
        return self.buffer or max(1, whole(self.buffer_fraction * self.in_flight(scene)))

    def weight(self, staleness: int) -> float:
        """What an example counts for in an update of that many server steps ago."""
        return stale_weight(staleness, self.staleness_exponent)

    def start(self, scene: Scene) -> None:
        """Nothing to remember."""

    def plan(self, scene: Scene, state: None, round_number: int) -> RoundPlan:
        """What is asked of those who begin; the loop replaces them one by one."""
        return self.ask(scene, round_number, scene.sample(round_number, self.in_flight(scene)))

    def ask(self, scene: Scene, round_number: int, nodes: Sequence[int]) -> RoundPlan:
        """The same work for these nodes as for all."""
        return scene.plan(
            round_number,
            scene.work(nodes, self.local_epochs),
            reason=(
                f"fedbuff: {self.updates_per_step(scene)} updates a step, "
                f"{self.in_flight(scene)} in flight"
            ),
        )

    def observe(self, scene: Scene, state: None, record: RoundRecord) -> None:
        """Nothing to learn."""


Impl = FedBuff
