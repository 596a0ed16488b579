"""Clients that train in Ray actors, through Flower's simulation backend: one machine or a cluster.

The parent keeps strategy, virtual clock and run folder, as it does with worker processes, and hands
the same jobs to the actors of Flower's backend. So what comes out is the same.
"""

import importlib.util
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedsys._flwr_private import set_task_identity
from fedsys.engine.crew import WorkerDied
from fedsys.engine.ray_app import Facts, Look, RayApp, body_of, message_like, versions
from fedsys.engine.serving import Service
from fedsys.engine.shared import Segment
from fedsys.errors import ConfigError, FedsysError

_LOOK_S = 0.5
"""Longest wait inside Ray, so that Ctrl-C is seen."""
_PLACE_S = 30.0
"""How long an actor may take to find room."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to Ray's makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def check_ray() -> None:
    """Raise ConfigError where Ray is not installed; imports nothing of it."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray: pip install 'fedsys[ray]'")


@dataclass(slots=True, eq=False)
class RayWorker:
    """One actor, and the keys of the jobs that it has not answered, in order."""

    actor: Any
    jobs: list[int] = field(default_factory=list)
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the actors are, and what they need there."""

    address: str | None
    """Of a Ray cluster that runs; None starts Ray on this machine."""
    workers: int | None
    """None takes all CPUs of the cluster."""
    folder: Path
    """The run folder."""
    shares_folder: bool
    """Clients keep files in it between rounds, so every machine must see it."""
    gpu: bool
    """Actors share the GPUs that there are."""


class RayCrew:
    """A workforce of Flower's actors."""

    def __init__(self, service: Service, cluster: Cluster) -> None:
        """Start Ray or join it, and place the actors; ConfigError where that cannot be."""
        check_ray()
        from fedsys.engine import _flwr_ray  # Imports Ray.

        self._cluster = cluster
        self._flower, self._ray = _flwr_ray, _flwr_ray.ray
        self._before = {name: os.environ.get(name) for name in ("PYTHONPATH", *_ENVIRONMENT)}
        os.environ.update({name: os.environ.get(name, x) for name, x in _ENVIRONMENT.items()})
        self._scratch = tempfile.mkdtemp(prefix="fedsys-ray-")
        try:
            with _refusals(cluster.address):
                self._backend = _flwr_ray.start_backend(
                    address=cluster.address,
                    workers=cluster.workers,
                    gpu=cluster.gpu,
                    scratch=self._scratch,
                )
        except BaseException:
            self._ray.shutdown()
            self._leave_nothing()
            raise
        self.workers = [RayWorker(actor) for actor in _flwr_ray.actors_of(self._backend)]
        set_task_identity(service.run_id)
        self._template = Message(RecordDict(), 0, "query")
        self._context = Context(service.run_id, 0, {"partition-id": 0}, RecordDict(), {})
        self._service = service
        self._app = self._ray.put(RayApp(service))
        self._turns: dict[int, tuple[int, Any]] = {}
        """Key of a segment to its filling, and the app with its bytes in Ray's memory."""
        self._futures: dict[Any, tuple[RayWorker, int]] = {}
        self._lost: list[RayWorker] = []

    def wait_ready(self) -> None:
        """Return once every actor has loaded app and data, and would give the same results.

        Raises our own errors of the preparation, and ConfigError for a machine that has other
        releases, or not the run folder where it is needed.
        """
        folder = self._cluster.folder.absolute()
        look = pickle.dumps(Look(folder / "experiment.toml"))
        asked = [self._run(worker, self._app, look) for worker in self.workers]
        for future in asked:
            is_well, (_, found) = self._answer(self._wait([future], None)[0])
            if isinstance(found, FedsysError):
                raise found
            if not is_well:
                raise WorkerDied(f"Ray's workers do not start: {found}")
            self._check(found, folder)

    def hire(self) -> None:
        """One more actor; WorkerDied where there is room for none and no other is left."""
        lost = self._lost.pop() if self._lost else None
        actor = self._flower.add_actor(self._backend, None if lost is None else lost.actor)
        if self._wait([actor.__ray_ready__.remote()], _PLACE_S):
            self.workers.append(RayWorker(actor))
            return
        self._ray.kill(actor)
        if not self.workers:
            raise WorkerDied(f"Ray has had no room for a worker for {_PLACE_S:.0f} s")

    def post(
        self, worker: RayWorker, key: int, segment: Segment | None, filling: int, body: bytes
    ) -> None:
        """Hand a job over. That the actor is gone shows in the next ``events``."""
        worker.jobs.append(key)
        app = self._app if segment is None else self._app_with(segment, filling)
        self._futures[self._run(worker, app, body)] = worker, key

    def drop(self, segment: Segment) -> None:
        """The segment is used no more."""
        self._turns.pop(segment.key, None)
        segment.close()

    def events(
        self, timeout_s: float | None
    ) -> tuple[list[tuple[RayWorker, int, bool, Any]], list[RayWorker]]:
        """Answers that have come, waiting for the first one, and actors that were lost."""
        answers: list[tuple[RayWorker, int, bool, Any]] = []
        dead: list[RayWorker] = []
        ready = set(self._wait(list(self._futures), timeout_s))
        for future in [one for one in self._futures if one in ready]:
            if future not in self._futures:
                continue  # of an actor found lost
            worker, key = self._futures.pop(future)
            try:
                is_well, outcome = self._answer(future)
            except self._ray.exceptions.RayError:
                self._lose(worker)
                dead.append(worker)
                continue
            worker.jobs.remove(key)
            answers.append((worker, key, is_well, outcome))
        return answers, dead

    def close(self) -> None:
        """End the actors, and Ray where it was started here."""
        for worker in self.workers:
            if worker.jobs:
                self._ray.kill(worker.actor)
        self.workers.clear()
        self._futures.clear()
        self._backend.terminate()
        self._leave_nothing()

    def _run(self, worker: RayWorker, app: Any, body: bytes) -> Any:
        message = message_like(self._template, body)
        return worker.actor.run.remote(app, message, "0", self._context)

    def _lose(self, worker: RayWorker) -> None:
        self.workers.remove(worker)
        self._lost.append(worker)
        for future, (owner, _) in list(self._futures.items()):
            if owner is worker:
                del self._futures[future]

    def _app_with(self, segment: Segment, filling: int) -> Any:
        """The app with the segment's bytes, which go into Ray's memory once."""
        found = self._turns.get(segment.key)
        if found is None or found[0] != filling:
            shared = np.frombuffer(segment.memory[:], np.uint8)
            app = self._ray.put(RayApp(self._service, (segment.key, filling), shared))
            found = self._turns[segment.key] = filling, app
        return found[1]

    def _wait(self, futures: list[Any], timeout_s: float | None) -> list[Any]:
        """Those that are done, at least one unless time is up first."""
        left_s = timeout_s
        ready: list[Any] = []
        while not ready and futures:
            look_s = _LOOK_S if left_s is None else min(_LOOK_S, left_s)
            ready, _ = self._ray.wait(futures, num_returns=1, timeout=look_s)
            if left_s is not None:
                left_s -= look_s
                if left_s <= 0:
                    break
        if ready and len(futures) > 1:
            ready, _ = self._ray.wait(futures, num_returns=len(futures), timeout=0)
        return ready

    def _answer(self, future: Any) -> tuple[bool, Any]:
        _, reply, _ = self._ray.get(future)
        answer: tuple[bool, Any] = pickle.loads(body_of(reply))
        return answer

    def _check(self, found: Facts, folder: Path) -> None:
        ours = versions()
        for name, release in found.versions.items():
            if release != ours[name]:
                raise ConfigError(
                    f"--ray-address: {name} is {release} on {found.host} and {ours[name]} here; "
                    "results would differ"
                )
        if self._cluster.shares_folder and not found.sees_folder:
            raise ConfigError(
                f"--out: {found.host} does not see {folder}; clients of this experiment keep files "
                "between rounds, so the folder must be on a file system that all machines share"
            )

    def _leave_nothing(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        for name, value in self._before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


@contextmanager
def _refusals(address: str | None) -> Iterator[None]:
    """What Ray says when it cannot start or be joined, in one line."""
    try:
        yield
    except FedsysError:
        raise
    except Exception as error:  # Ray raises that where it is too slow to start
        reason = next((line for line in str(error).splitlines() if line.strip()), "").strip()
        if address is None:
            raise WorkerDied(f"Ray does not start: {reason}") from error
        raise ConfigError(f"--ray-address {address}: {reason}") from error
