"""What a round-budget strategy is: three pure functions over what a server knows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from fedsys.config.schema import KEY_FRAME_CODECS
from fedsys.errors import ConfigError
from fedsys.nodes import NodeCounts
from fedsys.rng import rng_for
from fedsys.types import ClientPlan, Quorum, RoundPlan, RoundRecord

SHARE, LEAST_SHARE = 0.5, 0.25
"""A round closes when so many of those asked have answered, and of a cohort with the late, ..."""
FACTOR = 1.15
"""... after this times as long as it took until then: those who are as fast are waited for."""
MAX_STALENESS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What does not change during a run, as far as a server knows it."""

    seed: int
    examples: Mapping[int, int]
    """Node to its number of training examples; its keys are the enrolled nodes."""
    cohort: int
    """Clients per round."""
    batch_size: int
    """Examples per local step, accumulated batches counted."""
    parameters: int
    """Coded values of the model."""
    model_bytes: int
    """Size of the whole model, uncompressed."""
    first_model: str = "none"
    """Codec in which it is sent the first time, unless that round's downlink is ``none``, ..."""
    key_frames: bool = False
    """... and again where that is less than the differences that a round's nodes lack."""
    lr: float
    uplink: str
    downlink: str
    """Codecs that the experiment file asks for."""
    deadline_s: float | None
    feedback: bool = True
    """Whether clients keep what the uplink codec dropped and add it to their next update."""
    rounds: int = 200
    budget_s: float | None = None
    """What the run may take; no seconds given means that only the rounds are counted."""

    @property
    def makes_key_frames(self) -> bool:
        """Whether the whole model may be sent again in its codec."""
        return self.key_frames and self.first_model in KEY_FRAME_CODECS

    def steps_per_epoch(self, node_id: int) -> int:
        """Local steps that go once through the node's examples; at least one."""
        return max(1, -(-self.examples[node_id] // self.batch_size))

    def sample(self, round_number: int, size: int | None = None) -> tuple[int, ...]:
        """The round's cohort, drawn uniformly without replacement, in ascending order.

        ``size`` takes the place of the experiment's cohort.
        """
        examples, count = self.examples, size or self.cohort
        nodes = examples.nodes if isinstance(examples, NodeCounts) else sorted(examples)
        if count >= len(nodes):
            return tuple(nodes)
        rng = rng_for(self.seed, "cohort", round_number)
        places = rng.choice(len(nodes), count, replace=False)
        return tuple(sorted(nodes[place] for place in places.tolist()))

    def work(self, nodes: Sequence[int], epochs: int) -> dict[int, int]:
        """Local steps that take each node ``epochs`` times through its examples."""
        return {node: epochs * self.steps_per_epoch(node) for node in nodes}

    def quorum(self) -> Quorum:
        """When a round closes that waits for no straggler; what is late is used when it comes."""
        return Quorum(SHARE, math.ceil(LEAST_SHARE * self.cohort), FACTOR, MAX_STALENESS)

    def plan(
        self,
        round_number: int,
        local_steps: Mapping[int, int],
        *,
        reason: str,
        uplink: str | Mapping[int, str] | None = None,
        downlink: str | None = None,
        deadline_s: float | None = None,
        reasons: Mapping[int, str] | None = None,
        proximal_mu: float | None = None,
        max_stretch: float = 1.0,
        quorum: Quorum | None = None,
        mean_weight: float = 1.0,
    ) -> RoundPlan:
        """A plan for the nodes in ``local_steps``; codecs that are not given are the experiment's.

        The experiment's deadline caps the given one.
        """
        up = self.uplink if uplink is None else uplink
        given = [limit for limit in (deadline_s, self.deadline_s) if limit is not None]
        clients = tuple(
            ClientPlan(
                node_id=node,
                local_steps=steps,
                lr=self.lr,
                uplink=up if isinstance(up, str) else up[node],
                reason=(reasons or {}).get(node, ""),
                proximal_mu=proximal_mu,
            )
            for node, steps in local_steps.items()
        )
        return RoundPlan(
            round=round_number,
            clients=clients,
            downlink=self.downlink if downlink is None else downlink,
            deadline_s=min(given, default=None),
            reason=reason,
            max_stretch=max_stretch,
            quorum=quorum,
            mean_weight=mean_weight,
        )


def whole(value: float) -> int:
    """The least whole number that is not below ``value``, but for a rounding error."""
    return math.ceil(round(value, 9))


S = TypeVar("S")


class Controller(Protocol[S]):
    """A strategy: a frozen dataclass whose fields are its options.

    The state is a value. A resumed run gets it back by observing the recorded rounds again, so
    ``observe`` must not depend on anything but its arguments.
    """

    @property
    def chooses_codecs(self) -> bool:
        """Whether plans may name other codecs than the experiment file's."""
        ...

    @property
    def fednova(self) -> bool:
        """Whether updates are divided by their local steps before they are averaged."""
        ...

    def start(self, scene: Scene) -> S:
        """The state before the first round."""
        ...

    def plan(self, scene: Scene, state: S, round_number: int) -> RoundPlan:
        """What to do in this round, with reasons."""
        ...

    def observe(self, scene: Scene, state: S, record: RoundRecord) -> S:
        """The state after this round."""
        ...


def sees_tests(controller: Controller[S]) -> bool:
    """Whether the controller is shown what the server's evaluations gave.

    It is if it has an attribute ``sees_tests`` that is true. Its next plan then waits for them.
    """
    return bool(getattr(controller, "sees_tests", False))


def is_asynchronous(controller: Controller[S]) -> bool:
    """Whether replies are used as they come, by the loop in ``strategies/_buffered.py``.

    They are if the controller has an attribute ``is_asynchronous`` that is true.
    """
    return bool(getattr(controller, "is_asynchronous", False))


def observed(controller: Controller[S], scene: Scene, state: S, record: RoundRecord) -> S:
    """The state after ``record``, without its test figures unless the controller sees tests."""
    if not sees_tests(controller):
        record = replace(record, test_loss=None, test_metric=None)
    return controller.observe(scene, state, record)


CONTROLLER_PARTS = ("chooses_codecs", "fednova", "start", "plan", "observe")
"""What a user's class must have to be a strategy."""


def replay(controller: Controller[S], scene: Scene, records: Sequence[RoundRecord]) -> S:
    """The state after ``records``, as if the run had never stopped."""
    state = controller.start(scene)
    for record in records:
        state = observed(controller, scene, state, record)
    return state


def check_plan(plan: RoundPlan, strategy: str) -> None:
    """Raise ConfigError for work that nobody can do: else every client would refuse it."""
    for client in plan.clients:
        steps = client.local_steps
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise ConfigError(
                f"strategy '{strategy}', round {plan.round}: node {client.node_id} is to make "
                f"{steps!r} local steps; must be a whole number of 1 or more"
            )
