"""A world in which a controller can be watched: links of known rates, times worked out by hand."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings

from fedsys.types import ClientReport, RoundPlan, RoundRecord
from strategies._base import Scene
from strategies._offers import BY_SPEC
from strategies._search import closes_s
from strategies._specs import QUANTIZERS, sparsifier_bits

settings.register_profile("fedsys", deadline=None)
settings.load_profile("fedsys")

OVERHEAD_BYTES = 2000.0
PARAMETERS = 17_226


@dataclass(frozen=True)
class Node:
    """One device and its link."""

    up_bps: float = 1e6
    down_bps: float = 2e6
    floor_s: float = 0.1
    step_s: float = 0.01


def message_bytes(spec: str) -> float:
    """Of an update of all parameters in ``spec``, as the tables have it."""
    offers = {o.spec: o for known in QUANTIZERS.values() for o in known} | dict(BY_SPEC)
    if spec in offers:
        return offers[spec].size_bytes(PARAMETERS, OVERHEAD_BYTES)
    fraction = float(re.fullmatch(r"topk\((.+)\)\|int8", spec)[1])
    return PARAMETERS * sparsifier_bits(fraction) / 8 + OVERHEAD_BYTES


def scene_of(nodes: int = 6, *, examples: int = 160, **changes) -> Scene:
    fields = {
        "seed": 1,
        "examples": dict.fromkeys(range(1, nodes + 1), examples),
        "cohort": nodes,
        "batch_size": 16,
        "parameters": PARAMETERS,
        "model_bytes": 4 * PARAMETERS,
        "lr": 0.1,
        "uplink": "none",
        "downlink": "none",
        "deadline_s": None,
    }
    return Scene(**fields | changes)


def _late(report: ClientReport) -> ClientReport:
    """Of a client that the round did not wait for; it is never heard of again."""
    return ClientReport(node_id=report.node_id, accepted=False, reason="at work")


@dataclass
class World:
    """Runs a controller against nodes whose link and speed may be changed between rounds."""

    controller: object
    scene: Scene
    node: Node | Callable[[int], Node] = field(default_factory=Node)
    loss: Callable[[int], float] = lambda round_: 2.0 * 0.8**round_
    norm: Callable[[int, int], float] = lambda round_, node_id: 1.0
    """Of a node's update in a round."""
    fitted: float = 1.0
    """Part of a loss that clients have left on their own data, in the mean over their steps."""
    records: list[RoundRecord] = field(default_factory=list)
    plans: list[RoundPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.controller.start(self.scene)
        self.held: dict[int, int] = {}

    def run(self, rounds: int) -> RoundPlan:
        """The last plan of ``rounds`` more rounds."""
        for _ in range(rounds):
            number = len(self.plans) + 1
            plan = self.controller.plan(self.scene, self.state, number)
            record = self._record(plan)
            self.state = self.controller.observe(self.scene, self.state, record)
            self.plans.append(plan)
            self.records.append(record)
        return self.plans[-1]

    def _record(self, plan: RoundPlan) -> RoundRecord:
        reports = tuple(self._report(plan, client) for client in plan.clients)
        closed_s = closes_s(np.array([r.arrival_s for r in reports]), plan.quorum)
        reports = tuple(r if r.arrival_s <= closed_s else _late(r) for r in reports)
        start_s = self.records[-1].end_s if self.records else 0.0
        return RoundRecord(
            round=plan.round,
            plan=plan,
            reports=reports,
            start_s=start_s,
            end_s=start_s + closed_s,
            downlink_bytes=sum(r.downlink_bytes for r in reports),
            uplink_bytes=sum(r.uplink_bytes for r in reports),
            train_loss=self.loss(plan.round),
            step_norm=1.0,
            agreement=0.5,
        )

    def _report(self, plan: RoundPlan, client) -> ClientReport:
        node = self.node(client.node_id) if callable(self.node) else self.node
        up_bytes = round(message_bytes(client.uplink))
        whole = 4 * PARAMETERS + OVERHEAD_BYTES
        gap = plan.round - self.held.get(client.node_id, -1000)
        difference = gap * BY_SPEC[plan.downlink].size_bytes(PARAMETERS, OVERHEAD_BYTES)
        down_bytes = round(min(whole, difference))
        self.held[client.node_id] = plan.round
        download_s = node.floor_s + 8 * down_bytes / node.down_bps
        train_s = client.local_steps * node.step_s
        upload_s = node.floor_s + 8 * up_bytes / node.up_bps
        return ClientReport(
            node_id=client.node_id,
            accepted=True,
            reason="",
            examples=self.scene.examples[client.node_id],
            local_steps=client.local_steps,
            first_loss=self.loss(plan.round),
            train_loss=self.fitted * self.loss(plan.round),
            update_norm=self.norm(plan.round, client.node_id),
            download_s=download_s,
            train_s=train_s,
            upload_s=upload_s,
            arrival_s=download_s + train_s + upload_s,
            downlink_bytes=down_bytes,
            uplink_bytes=up_bytes,
        )


@pytest.fixture(scope="session")
def scene():
    return scene_of


@pytest.fixture(scope="session")
def world():
    return World


@pytest.fixture(scope="session")
def node():
    """A node, by default at 1 Mbit/s up; ``replace`` of it in short."""
    return lambda **changes: replace(Node(), **changes)
