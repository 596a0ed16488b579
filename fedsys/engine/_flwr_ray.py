"""Flower's Ray backend: all of it that is not public API, in one place; checked against flwr 1.42.

Importing this imports Ray, so only ``fedsys.engine.ray_crew`` does.
"""

import math
from importlib.metadata import version
from typing import Any

from fedsys.errors import ConfigError

FLOWER = "1.42."
"""Releases whose backend this file knows."""

if not version("flwr").startswith(FLOWER):
    raise ConfigError(f"--engine ray is made for Flower {FLOWER}x, this is {version('flwr')}")

import ray  # noqa: E402
from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend  # noqa: E402
from flwr.simulation.ray_transport.ray_actor import (  # noqa: E402
    BasicActorPool,
    ClientAppActor,
)

__all__ = ["actors_of", "add_actor", "ray", "start_backend"]


def start_backend(
    *, address: str | None, workers: int | None, gpu: bool, scratch: str
) -> RayBackend:
    """Ray, begun here with ``workers`` CPUs or joined at ``address``, and Flower's actors in it.

    Each has one CPU, and with ``gpu`` an equal share of the GPUs that there are. There are as many
    as there is room for, at most ``workers``. Raises ValueError where there is room for none. A Ray
    that begins here keeps sockets and logs in the folder ``scratch``.
    """
    start: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        start |= {"address": "local", "num_cpus": workers, "_temp_dir": scratch}
    else:
        start |= {"address": address}
    backend = RayBackend({"init_args": start, "client_resources": {"num_cpus": 1, "num_gpus": 0}})
    there = ray.cluster_resources()
    count = int(there.get("CPU", 0)) if workers is None else workers
    share = there.get("GPU", 0.0) / max(1, count) if gpu else 0.0
    resources: dict[str, int | float] = {"num_cpus": 1, "num_gpus": math.floor(1e3 * share) / 1e3}
    pool = backend.pool = BasicActorPool(ClientAppActor, resources, {})
    pool.add_actors_to_pool(min(count, pool.actors_capacity))
    return backend


def actors_of(backend: RayBackend) -> list[Any]:
    """Its actors; ``actor.run.remote(app_fn, message, cid, context)`` gives one a job."""
    actors: list[Any] = [] if backend.pool is None else backend.pool.pool
    return actors


def add_actor(backend: RayBackend, lost: Any) -> Any:
    """One more, in place of one that is lost."""
    if backend.pool is None:
        raise RuntimeError("the backend has ended")
    if lost in backend.pool.pool:
        backend.pool.pool.remove(lost)
    backend.pool.add_actors_to_pool(1)
    return backend.pool.pool[-1]
