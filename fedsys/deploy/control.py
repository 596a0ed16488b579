"""Orders to a SuperLink on this machine, and what it says of devices and runs."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from flwr.proto import control_pb2

from fedsys.deploy import _flower
from fedsys.deploy.handshake import bypass_loopback
from fedsys.deploy.home import ServerHome
from fedsys.errors import DeployError

FINISHED = "finished"
COMPLETED = "completed"


class NoAnswerError(DeployError):
    """The SuperLink is away, or cannot answer: it is being started again, or has ended."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One registered device."""

    node_id: int
    public_key: bytes
    """Flower's form; see ``_flower.key_bytes``."""
    is_online: bool


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run, as Flower sees it."""

    run_id: int
    status: str
    """pending, starting, running, finished."""
    sub_status: str
    """completed, failed, stopped; empty until it has finished."""
    details: str

    @property
    def is_finished(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self.status == FINISHED

    @property
    def is_completed(self) -> bool:
        """Whether the end is good."""
        return self.is_finished and self.sub_status == COMPLETED


class Control:
    """``with Control.of(home) as control``: talks to the server that runs on this folder.

    Every method raises DeployError where the SuperLink refuses, NoAnswerError where it is away.
    """

    def __init__(self, port: int, authority: bytes, token: str) -> None:
        bypass_loopback()
        self._client: Any = _flower.control_client(port, authority, token)

    @classmethod
    def of(cls, home: ServerHome) -> "Control":
        """The running server of ``home``; DeployError where none runs."""
        running = home.running()
        if running is None:
            raise DeployError(
                f"no server runs on {home.path}; start it with 'fedsys server start {home.path}'"
            )
        return cls(running.control_port, (home.path / "ca.crt").read_bytes(), home.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def register(self, name: str, public_key: str) -> int:
        """Let a device in; its number."""
        request = control_pb2.RegisterNodeRequest(
            public_key=_flower.key_bytes(public_key), name=name
        )
        return int(self._call("RegisterNode", request).node_id)

    def unregister(self, node_id: int) -> None:
        """Do not let a device in any more."""
        self._call("UnregisterNode", control_pb2.UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> list[NodeStatus]:
        """The devices that may come."""
        response = self._call("ListNodes", control_pb2.ListNodesRequest())
        return [
            NodeStatus(int(node.node_id), bytes(node.public_key), node.status == "online")
            for node in response.nodes_info
            if node.status != "unregistered"
        ]

    def runs(self) -> list[RunStatus]:
        """All runs."""
        response = self._call("ListRuns", control_pb2.ListRunsRequest())
        return [_run_status(int(run.run_id), run.status) for run in response.run_dict.values()]

    def run(self, run_id: int) -> RunStatus:
        """One run."""
        response = self._call("ListRuns", control_pb2.ListRunsRequest(run_id=run_id))
        for run in response.run_dict.values():
            return _run_status(int(run.run_id), run.status)
        raise DeployError(f"the SuperLink knows no run {run_id}")

    def start(self, app: Path, config: dict[str, Any]) -> int:
        """Start the app in folder ``app``; the run's number."""
        try:
            return _flower.start_run(self._client, app, config)
        except httpx.HTTPError as error:
            raise _fault("StartRun", error) from error

    def stop_run(self, run_id: int) -> None:
        """End a run, unless it has ended."""
        try:
            self._call("StopRun", control_pb2.StopRunRequest(run_id=run_id))
        except NoAnswerError:
            raise
        except DeployError:
            if not self.run(run_id).is_finished:
                raise

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._client, method)(request)
        except httpx.HTTPError as error:
            raise _fault(method, error) from error


def _run_status(run_id: int, status: Any) -> RunStatus:
    return RunStatus(run_id, status.status, status.sub_status, status.details)


def _fault(method: str, error: httpx.HTTPError) -> DeployError:
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
        text = error.response.text[:300] or error.response.reason_phrase
        return DeployError(f"the SuperLink refused {method}: {text}")
    return NoAnswerError(f"the SuperLink does not answer ({method}): {error}")
