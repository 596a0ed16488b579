"""What crosses the layers: plans going down, reports coming up, and the record of a round.

Everything here is a frozen value without behaviour that reads a clock or draws a number, and
everything goes through JSON and back unchanged: ``rounds.jsonl`` is made of these, and a
controller resumes by looking at them again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

NodeConfig = dict[str, str | int | float | bool]
RunConfig = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """What one client is asked to do in one round."""

    node_id: int
    local_steps: int
    lr: float
    uplink: str
    """Codec spec of the update, e.g. ``topk(0.05)|int8``."""
    reason: str
    proximal_mu: float | None = None
    """Strength of FedProx's pull to the received model; None leaves the experiment's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTrial:
    """What a codec would have done to a client's update, as a sample of it tells."""

    spec: str
    bits: float
    """Bits per parameter."""
    nmse: float
    """Squared error over squared norm, residual included."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """When a round closes that does not wait for everyone, and what becomes of those who are late.

    A client that has not answered goes on, is not asked again meanwhile, and its update is used in
    the round in which it comes.
    """

    share: float
    """Part of those asked whose replies are needed, ..."""
    least: int
    """... and replies in all, those to earlier rounds counted."""
    factor: float
    """The round ends after this times as long as it took until both were there."""
    max_staleness: int
    """Rounds after which an update is of no use; error feedback brings it back with the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What the server decided for one round, and why."""

    round: int
    clients: tuple[ClientPlan, ...]
    downlink: str
    """Codec spec of what the server sends, the same for the whole cohort."""
    deadline_s: float | None
    """Seconds after the start of the round at which it closes; None waits for everyone."""
    reason: str
    trial_codecs: tuple[str, ...] = ()
    """Codecs that every client tries on a sample of its update, in about a millisecond each."""
    max_stretch: float = 1.0
    """The mean update may be multiplied by up to this factor where updates disagree (FedExP)."""
    quorum: Quorum | None = None
    """None: who is late is given up."""
    mean_weight: float = 1.0
    """Of this round's model in the mean of all so far, which is evaluated and saved. Clients
    go on from the model itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """What a server can know about one client's part in one round.

    Times are seconds, measured by the server or reported by the client, never read from an
    emulator's description of the link. A time is None when that stage never finished.
    """

    node_id: int
    accepted: bool
    reason: str
    """Why the update was left out; empty when it was accepted."""
    examples: int = 0
    local_steps: int = 0
    samples: int = 0
    """Examples processed, repetitions counted."""
    train_loss: float | None = None
    """Mean training loss over the local steps."""
    first_loss: float | None = None
    """Training loss of the received model, before the first local step's update."""
    update_norm: float | None = None
    """L2 norm of trained minus received weights."""
    nmse: float | None = None
    """Squared error of the coded update over its squared norm, residual included."""
    residual_norm: float | None = None
    """L2 norm of the error-feedback residual after this update was coded."""
    download_s: float | None = None
    train_s: float | None = None
    upload_s: float | None = None
    arrival_s: float | None = None
    """Seconds from when the server asked, which is the start of a synchronous round, to the arrival
    of the reply."""
    downlink_bytes: int = 0
    """All that went down for this client, answers to its requests included."""
    uplink_bytes: int = 0
    """All that went up, requests included."""
    packet_bytes: int = 0
    """Of ``uplink_bytes``, the coded update itself; 0 unless it was accepted."""
    trials: tuple[CodecTrial, ...] = ()
    """Of the plan's ``trial_codecs``, in their order; empty where the client did not say."""
    staleness: int = 0
    """Server steps made since the client was sent the model that it trained; 0 where it answered in
    the round that asked it."""
    at_work: bool = False
    """It goes on, and a later round has another report on what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One line of ``rounds.jsonl``: the plan, what came of it, and what it cost."""

    round: int
    plan: RoundPlan
    reports: tuple[ClientReport, ...]
    start_s: float
    end_s: float
    """Virtual (or wall) seconds since the start of the run."""
    downlink_bytes: int
    uplink_bytes: int
    train_loss: float | None
    """Mean of the accepted clients' training loss, weighted by examples."""
    step_norm: float | None
    """L2 norm of the change of the global model."""
    agreement: float | None
    """|sum p u|^2 / sum p |u|^2 over accepted updates: 1 aligned, sum p^2 orthogonal."""
    key_frame: bool = False
    """Whether the whole model went out in a codec, and not what has changed."""
    test_loss: float | None = None
    test_metric: float | None = None
    """The task's metric (accuracy unless the task says otherwise) on the server's held-out set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """What one exchange with one client took, as a server can measure it.

    A time is None when that stage never finished. ``arrival_s`` is on the grid's clock.
    """

    downlink_bytes: int
    uplink_bytes: int
    download_s: float | None = None
    train_s: float | None = None
    upload_s: float | None = None
    arrival_s: float | None = None
