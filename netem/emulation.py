"""The emulated network and devices of one experiment, as a Grid."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from flwr.app import Message, MetricRecord

from fedsys.config.schema import Experiment
from fedsys.rng import rng_for
from netem.devices import Device, device_model
from netem.grid import VirtualGrid
from netem.profiles import link_model

Submit = Callable[[Sequence[Message]], list[Future[Message]]]

KEPT_NODES = 16384
"""Nodes whose devices are remembered; others are drawn again, with the same outcome."""


def virtual_grid(
    experiment: Experiment, nodes: range, submit: Submit, flops: float, *, run_id: int = 1
) -> VirtualGrid:
    """The emulated network with these nodes on it, at virtual second 0.

    ``flops`` are the operations that a training example takes; ``submit`` does the real work.
    ``run_id`` is Flower's number of the run, where Flower knows of it.
    """
    network, devices, seed = experiment.network, experiment.devices, experiment.run.seed

    link = link_model(network.link, network.options)
    device = device_model(devices.profile, devices.options)

    @lru_cache(KEPT_NODES)
    def device_of(node: int) -> Device:
        return device.build(seed, node)

    def compute_s(node: int, reply: Message) -> float:
        metrics = reply.content.get("metrics")
        steps, samples = (_count(metrics, key) for key in ("local-steps", "samples"))
        return steps * device_of(node).step_s(flops * samples / steps) if steps else 0.0

    def drop(node: int, turn: int) -> bool:
        return bool(rng_for(seed, "dropout", node, turn).random() < network.dropout_fraction)

    return VirtualGrid(
        node_ids=nodes,
        link_of=lambda node: link.build(seed, node),
        submit=submit,
        compute_s=compute_s,
        seed=seed,
        server_egress_bps=_bps(network.server_up_mbps),
        server_ingress_bps=_bps(network.server_down_mbps),
        drop=drop if network.dropout_fraction else None,
        run_id=run_id,
    )


def _count(metrics: Any, key: str) -> int:
    value = metrics.get(key, 0) if isinstance(metrics, MetricRecord) else 0
    return value if isinstance(value, int) and value > 0 else 0


def _bps(mbps: float | None) -> float | None:
    return None if mbps is None else mbps * 1e6
