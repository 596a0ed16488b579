"""The experiment file as a tree of frozen models: every key, its unit, its bounds, its default.

A value is checked where it is declared; what needs two sections to judge is checked in
``Experiment``. Names of codecs, links, tasks and strategies are checked against the registries by
``fedsys.cli.run.check_experiment``, because this file imports nothing but the standard models.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Rate = Annotated[float, Field(ge=1e-3, allow_inf_nan=False)]
"""Of a server's link in Mbit/s: below a kilobit a second no round ever ends."""
Options = dict[str, Any]


class Section(BaseModel):
    """Frozen, and without room for a key that nobody reads."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class Budget(Section):
    """The run ends at the first of these that is met; the result says which."""

    rounds: Count = 200
    seconds: Positive | None = None
    """Seconds on the run's clock: virtual in a simulation, wall clock in a deployment."""
    uplink_mb: Positive | None = None
    """10^6 bytes from all clients together."""


class Run(Section):
    """What the run is called, where chance starts, and what ends it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    """Value of the task's metric (an accuracy in (0, 1]) that the run is after."""
    stop_at_target: bool = True
    evaluate_every_rounds: Count = 1
    budget: Budget = Budget()


class TaskConfig(Section):
    """Model, data and metric: a file in ``clients/tasks`` or ``package.module:Class``."""

    name: str = "digits"
    options: Options = {}
    """Fields of the task's class, e.g. ``model = "mlp"`` or ``folder = "..."``."""


class Partition(Section):
    """How the training examples are divided among the clients; no client is ever empty."""

    clients: Count = 20
    kind: Literal["iid", "dirichlet", "shards", "user"] = "dirichlet"
    alpha: Positive = 0.3
    """Dirichlet concentration: small means that each client sees few labels."""
    shards_per_client: Count = 2
    """Label shards that each client gets (kind = "shards")."""
    min_examples: Count = 2


class Training(Section):
    """What a client does between two exchanges, apart from how many steps."""

    batch_size: Count = 16
    lr: Positive = 0.1
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd; adamw has its own."""
    weight_decay: NonNegative = 0.0
    proximal_mu: NonNegative = 0.0
    """FedProx (Li et al. 2020): mu/2 |w - w_received|^2 is added to the loss; 0 switches it off."""
    accumulation_steps: Count = 1
    """Batches whose gradients are averaged into one local step."""
    clip_norm: Positive | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    stacked: Literal["auto", "off"] = "auto"
    """auto trains several clients at once where the model is a chain of linear layers."""
    fast_conv: Literal["auto", "on", "off"] = "auto"
    """Faster memory order and operator order of convolutional models; auto is on for a CPU."""
    prefetch: bool = True
    """On a GPU, the next client's examples travel while the current one trains."""
    augment: bool = True
    """Change inputs at random where the task says how."""
    stage_times: bool = False
    """Replies say how long loading, gathering and computing took; costs bytes."""

    @model_validator(mode="after")
    def _momentum_of_sgd(self) -> "Training":
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum is for optimizer = 'sgd'; {self.optimizer} has its own")
        return self


FirstModel = Literal["none", "fp16", "bf16", "int8", "int4"]
"""Codecs in which every value takes up bits."""
KEY_FRAME_CODECS: tuple[FirstModel, ...] = ("fp16", "bf16", "int8")
"""Those of them that are exact enough for the whole model in round after round."""


class CodecConfig(Section):
    """What is sent; a strategy that chooses codecs itself starts from these."""

    uplink: str = "none"
    downlink: str = "none"
    first_model: FirstModel = "int8"
    """Of the first model that is sent, and of key frames, if the downlink's codec is not ``none``.
    What it drops comes with the next difference. int4 is for the first model only."""
    key_frames: bool = True
    """Send the whole model again where that is less than all the differences that a round's clients
    missed, as where few of many are asked in each."""
    error_feedback: bool = True
    residual_decay: Fraction = 1.0
    """Factor on the residual for each round a client missed."""
    residual_decay_per_round: Fraction = 1.0
    """Factor on the residual whenever it is used: SparseLoCo's beta."""
    residual_max_age_versions: Count | None = None
    """A residual left more model versions ago is dropped; None keeps it."""
    residual_clip: Positive | None = None
    """Norm of the residual over that of the update, at most; None sets no limit."""
    raw: Literal["none", "stats", "small"] = "stats"
    """Tensors that always travel uncompressed: see ``fedsys.wire.schema``."""
    ring_versions: Count = 16
    """Model versions kept by the server; a client further behind gets the whole model."""


class Network(Section):
    """The links that the clients sit behind, and the server's own."""

    link: str = "lan"
    options: Options = {}
    server_up_mbps: Rate | None = None
    """Rate at which the server can send to all clients together; None is unlimited."""
    server_down_mbps: Rate | None = None
    dropout_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a client vanishes after it was asked to take part in a round."""


class Devices(Section):
    """How fast the clients compute."""

    profile: str = "raspberry-pi-4"
    options: Options = {}


class Cohort(Section):
    """Who takes part in a round."""

    fraction: Fraction | None = None
    size: Count | None = None
    """Clients per round; neither given means all of them."""
    deadline_s: Positive | None = None
    """A round closes this long after its start; None leaves it to the strategy. Where the strategy
    has a quorum, who is late goes on, and the update is used in a later round."""

    @model_validator(mode="after")
    def _one_of(self) -> "Cohort":
        if self.fraction is not None and self.size is not None:
            raise ValueError("give fraction or size, not both")
        return self

    def count(self, clients: int) -> int:
        """Clients per round out of ``clients``; at least one."""
        if self.size is not None:
            return self.size
        return max(1, round((self.fraction or 1.0) * clients))


class StrategyConfig(Section):
    """Who decides: a file in ``strategies`` or ``package.module:Class``, and its fields."""

    name: str = "fixed"
    options: Options = {}


class ServerOptimizer(Section):
    """How the mean update becomes a step of the global model."""

    optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = "sgd"
    """FedAvg and FedAvgM are sgd; the others are FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021),
    which want an lr of 0.1 or less."""
    lr: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd; 0.9 with nesterov and lr 0.7 is the outer optimizer of DiLoCo."""
    nesterov: bool = False
    beta_1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of adam and yogi, as ``beta_2`` is."""
    beta_2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tau: Positive = 1e-3
    """Added to the root of the second moment: smaller adapts more."""


class Engine(Section):
    """How a simulation uses this machine; what comes out does not depend on it."""

    batch: bool = True
    """Serve clients of a round together, and sum their updates where they were made."""
    overlap: bool = True
    """Evaluate, and write to the disk, while the next round is computed already."""


class Entry(Section):
    """One strategy of a comparison: the experiment with some keys set otherwise."""

    label: Annotated[str, Field(min_length=1, max_length=60)]
    set: Options = {}
    """Dotted keys, as with ``--set``."""


class Compare(Section):
    """What ``fedsys compare`` runs when the command line does not say."""

    seeds: Count = 3
    entries: tuple[Entry, ...] = ()
    """The first is the baseline that ratios refer to."""


class Experiment(Section):
    """One federated experiment: the same file for simulation, deployment and comparison."""

    run: Run = Run()
    task: TaskConfig = TaskConfig()
    partition: Partition = Partition()
    training: Training = Training()
    codec: CodecConfig = CodecConfig()
    network: Network = Network()
    devices: Devices = Devices()
    cohort: Cohort = Cohort()
    strategy: StrategyConfig = StrategyConfig()
    server: ServerOptimizer = ServerOptimizer()
    engine: Engine = Engine()
    compare: Compare = Compare()

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if self.cohort.size is not None and self.cohort.size > self.partition.clients:
            raise ValueError(
                f"cohort.size: {self.cohort.size} clients sampled of partition.clients = "
                f"{self.partition.clients}; at most all of them"
            )
        if self.server.nesterov and self.server.momentum == 0:
            raise ValueError("server.nesterov has no effect without server.momentum")
        if self.server.optimizer != "sgd" and self.server.momentum:
            raise ValueError("server.momentum is for server.optimizer = 'sgd'; others have beta_1")
        if (
            self.run.stop_at_target
            and self.run.target is None
            and "stop_at_target" in (self.run.model_fields_set)
        ):
            raise ValueError("run.stop_at_target has no effect without run.target")
        return self
