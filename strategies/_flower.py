"""Any controller as a Flower Strategy: the loop over rounds, its budgets and its checkpoints."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsys.codecs._base import sum_of_squares
from fedsys.config.schema import Experiment, ServerOptimizer
from fedsys.errors import ConfigError, WireError
from fedsys.middleware.envelope import piece_bytes_for
from fedsys.middleware.server import ServerCodec
from fedsys.nodes import NodeCounts
from fedsys.types import ClientReport, RoundPlan, RoundRecord
from fedsys.wire.schema import Array as Values
from fedsys.wire.schema import Schema
from strategies._aggregate import Averaged, Mean, Optimizer
from strategies._base import Controller, Scene, check_plan, observed, replay, sees_tests
from strategies._flight import Flight
from strategies._moments import Moments
from strategies._round import Outcome, gather, messages_for
from strategies._signals import weighted

Evaluate = Callable[[Mapping[str, Values]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Ahead:
    """How a simulation begins a round before all is done about the one before it."""

    evaluate: Callable[[Mapping[str, Values]], Future[tuple[float, float]]]
    """Starts an evaluation of the model elsewhere."""
    before_next: Callable[[bool], bool]
    """Called after each round, when strategy and grid are as a checkpoint of it must be, with
    whether a budget ends the run there; says whether the next round may begin at once."""


class RoundBudget(Strategy):
    """Runs a controller's plans until the first budget is met.

    ``rounds`` yields one record after each round. Between two rounds ``tensors`` and ``state`` are
    a checkpoint: a new object to which they are restored goes on as this one would have.
    """

    def __init__(
        self,
        experiment: Experiment,
        controller: Controller[Any],
        examples: Mapping[int, int],
        arrays: Mapping[str, Values],
        evaluate: Evaluate | None = None,
    ) -> None:
        schema = Schema.of(arrays, experiment.codec.raw)
        holds = controller.chooses_codecs or experiment.codec.downlink != "none"
        self._experiment = experiment
        self._controller = controller
        self._evaluate = evaluate
        self._codec = ServerCodec(schema, experiment.codec, experiment.run.seed, holds)
        self._optimizer = _optimizer(experiment.server)
        self._flat, self._raw = schema.split(arrays)
        self._averaged: Averaged | None = None
        """What is evaluated and saved; None: the global model."""
        self._scene = _scene(experiment, examples, schema)
        self._controller_state = controller.start(self._scene)
        self._grid: Grid | None = None
        self._plan: RoundPlan | None = None
        self._messages: list[Message] = []
        self._ids: Iterable[str] | None = None
        self._flight = Flight()
        self._before = (0, 0)
        self._sent_s = 0.0
        self._outcome: Outcome | None = None
        self._step_norm: float | None = None
        self._loses = False
        """Whether the last round lacked updates: a sum without them would be made in vain."""
        self._key_frame = False
        """Whether one was made since the last record."""
        self._uplink_bytes = 0
        self._round = 0
        self.stopped_by = ""

    @property
    def clients_remember(self) -> bool:
        """Whether clients keep models or residuals from round to round."""
        return self._codec.holds or self._codec.leaves_residuals

    def arrays(self) -> dict[str, Values]:
        """The global model, tensor by tensor."""
        return self._codec.schema.join(self._flat, self._raw)

    def result(self) -> dict[str, Values]:
        """The model to evaluate and save: the global one, or a mean over rounds if planned so."""
        best = self._averaged
        return self.arrays() if best is None else self._codec.schema.join(best.flat, best.raw)

    def rounds(self, grid: Grid, ahead: Ahead | None = None) -> Iterator[RoundRecord]:
        """Run round after round; ``stopped_by`` says which budget ended it.

        With ``ahead`` the next round may be under way when a record comes. Records are the same:
        if the evaluation ends the run, nobody looks at what was begun.
        """
        begun = False
        while not self.stopped_by:
            number = self._round + 1
            if not begun:
                self._begin(grid, number)
            record = self._end(grid, number)
            evaluation = None
            if self._is_evaluated(record):
                start = self._evaluate_now if ahead is None else ahead.evaluate
                evaluation = start(self.result())
            is_last = bool(self._met(record))
            begun = ahead is not None and ahead.before_next(is_last) and self._may_begin(grid)
            begun = begun and not is_last
            if begun:
                self._observe(record)
                self._begin(grid, number + 1)
            if evaluation is not None:
                loss, metric = evaluation.result()
                record = replace(record, test_loss=_finite(loss), test_metric=_finite(metric))
            if not begun:
                self._observe(record)
            self._round, self.stopped_by = number, self._met(record)
            yield record

    def tensors(self) -> dict[str, Values]:
        """The arrays of a checkpoint."""
        tensors: dict[str, Values] = {
            "flat": self._flat,
            "model-raw": np.frombuffer(self._raw, np.uint8),
            **self._optimizer.tensors(),
        }
        tensors |= {} if self._averaged is None else self._averaged.tensors()
        for key, value in self._codec.downlink.tensors().items():
            tensors[f"down.{key}"] = value
        return tensors | self._flight.tensors(self._grid)

    def state(self) -> dict[str, Any]:
        """The rest of a checkpoint, JSON-able."""
        return {
            "version": self._codec.downlink.version,
            "held": list(self._codec.held.items()),
            "acked": list(self._codec.acked.items()),
            "flight": self._flight.state(self._grid),
        }

    def restore(
        self,
        tensors: Mapping[str, Values],
        state: Mapping[str, Any],
        records: Sequence[RoundRecord],
    ) -> None:
        """Continue after ``records``, from the checkpoint that was taken after the last of them."""
        try:
            self._flat, self._raw = tensors["flat"].copy(), tensors["model-raw"].tobytes()
            self._optimizer.restore(tensors)
            self._averaged = Averaged.of(tensors)
            down = {k.removeprefix("down."): v for k, v in tensors.items() if k[:5] == "down."}
            self._codec.downlink.restore(state["version"], down)
            self._codec.held, self._codec.acked = dict(state["held"]), dict(state["acked"])
            self._flight.restore(tensors, state["flight"])
            self.arrays()
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise ConfigError(f"the checkpoint is not one of this experiment: {error}") from error
        self._controller_state = replay(self._controller, self._scene, records)
        for record in records:
            self._uplink_bytes += record.uplink_bytes
        if records:
            self._round = records[-1].round
            self.stopped_by = self._met(records[-1])

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the controller for a plan, and write it as one message per client."""
        plan = self._controller.plan(self._scene, self._controller_state, server_round)
        check_plan(plan, self._experiment.strategy.name)
        if busy := self._flight.nodes:
            free = tuple(client for client in plan.clients if client.node_id not in busy)
            plan = replace(plan, clients=free)
        if not hasattr(grid, "receive"):
            plan = replace(plan, quorum=None)
        self._codec.piece_bytes = piece_bytes_for(grid)
        self._advance(plan, [client.node_id for client in plan.clients])
        self._grid, self._plan, self._sent_s = grid, plan, now_s(grid)
        loses = self._loses or plan.deadline_s is not None or plan.quorum is not None
        sums = None if loses else self._controller.fednova
        self._messages = messages_for(self._codec, plan, sums=sums)
        return self._messages

    def _advance(self, plan: RoundPlan, nodes: Sequence[int]) -> int:
        """Make the global model the one that goes out, to ``nodes``; its version."""
        before = self._codec.downlink.version
        version = self._codec.advance(self.arrays(), plan.downlink, nodes)
        self._key_frame |= before < version == self._codec.downlink.key
        return version

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the updates that arrived and step the global model."""
        self._step(replies)
        record = ArrayRecord({name: Array(array) for name, array in self.arrays().items()})
        return record, None

    def _step(self, replies: Iterable[Message]) -> None:
        if self._plan is None or self._grid is None:
            raise RuntimeError("aggregate_train before configure_train")
        self._outcome = gather(
            self._grid,
            self._codec,
            self._plan,
            self._messages,
            replies,
            sent_s=self._sent_s,
            fednova=self._controller.fednova,
            flight=self._flight,
        )
        self._loses = self._outcome.mean.count < len(self._outcome.reports)
        stretch = self._outcome.mean.stretch(self._plan.max_stretch)
        self._move(self._outcome.mean, stretch, self._plan.mean_weight)

    def _move(self, mean: Mean, stretch: float, weight: float) -> None:
        """Step the model by ``stretch`` times ``mean``; ``weight`` is for the mean over rounds."""
        before = self._averaged or Averaged(self._flat, self._raw)
        self._step_norm = None
        if mean.count:
            mean_step = mean.step()
            step = self._optimizer.step(
                mean_step if stretch == 1 else mean_step * np.float32(stretch)
            )
            self._step_norm = float(np.sqrt(sum_of_squares(step)))
            self._flat = self._flat + step
            means = mean.raw()
            if means:
                held = self.arrays().items()
                raw = {name: means.get(name, old).astype(old.dtype) for name, old in held}
                _, self._raw = self._codec.schema.split(raw)
        self._averaged = None
        if weight != 1:
            self._averaged = before.moved(self._codec.schema, self._flat, self._raw, weight)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: the server evaluates on its held-out set."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Nothing beyond the round records."""

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Run to the end of the budget; Flower's own arguments are in the experiment already."""
        result = Result()
        for record in self.rounds(grid):
            metrics = {"test-metric": record.test_metric, "test-loss": record.test_loss}
            known = MetricRecord()
            known.update({key: value for key, value in metrics.items() if value is not None})
            result.evaluate_metrics_serverapp[record.round] = known
        result.arrays = ArrayRecord({name: Array(array) for name, array in self.result().items()})
        return result

    def _begin(self, grid: Grid, number: int) -> None:
        """Send out a round, if the grid can be asked for the replies later."""
        self._flight.take_up(grid)
        self._before = sent_bytes(grid)
        self._messages = list(self.configure_train(number, ArrayRecord(), ConfigRecord(), grid))
        self._ids = grid.push_messages(self._messages) if hasattr(grid, "receive") else None

    def _end(self, grid: Grid, number: int) -> RoundRecord:
        """Wait for a round's replies and step the model; the record lacks the evaluation."""
        plan = self._plan
        if plan is None:
            raise RuntimeError("the controller made no plan")
        if self._ids is None:
            replies = grid.send_and_receive(self._messages, timeout=plan.deadline_s)
        else:
            replies = grid.receive(  # type: ignore[attr-defined]
                self._ids, timeout=plan.deadline_s, quorum=plan.quorum, late=self._flight.asked
            )
        self._step(replies)
        if self._outcome is None:
            raise RuntimeError("nothing was gathered")
        return self._recorded(grid, plan, self._outcome)

    def _recorded(self, grid: Grid, plan: RoundPlan, outcome: Outcome) -> RoundRecord:
        """The record of a round that ends now; it lacks the evaluation."""
        down, up = sent_bytes(grid)
        record = RoundRecord(
            round=plan.round,
            plan=plan,
            reports=outcome.reports,
            start_s=self._sent_s,
            end_s=now_s(grid),
            downlink_bytes=down - self._before[0],
            uplink_bytes=up - self._before[1],
            train_loss=_mean(outcome.reports, "train_loss"),
            step_norm=self._step_norm,
            agreement=outcome.mean.agreement() if outcome.mean.count else None,
            key_frame=self._key_frame,
        )
        self._key_frame = False
        self._uplink_bytes += record.uplink_bytes
        return record

    def _is_evaluated(self, record: RoundRecord) -> bool:
        is_due = record.round % self._experiment.run.evaluate_every_rounds == 0
        return self._evaluate is not None and (is_due or bool(self._met(record)))

    def _evaluate_now(self, arrays: Mapping[str, Values]) -> Future[tuple[float, float]]:
        done: Future[tuple[float, float]] = Future()
        if self._evaluate is not None:
            done.set_result(self._evaluate(arrays))
        return done

    def _may_begin(self, grid: Grid) -> bool:
        """Whether a round can begin without the evaluation of the one before."""
        return hasattr(grid, "receive") and not sees_tests(self._controller)

    def _observe(self, record: RoundRecord) -> None:
        self._controller_state = observed(
            self._controller, self._scene, self._controller_state, record
        )

    def _met(self, record: RoundRecord) -> str:
        """The budget that ``record`` meets first, or nothing."""
        run = self._experiment.run
        met = {
            "target": run.stop_at_target
            and run.target is not None
            and record.test_metric is not None
            and record.test_metric >= run.target,
            "seconds": run.budget.seconds is not None and record.end_s >= run.budget.seconds,
            "uplink_mb": run.budget.uplink_mb is not None
            and self._uplink_bytes >= run.budget.uplink_mb * 1e6,
            "rounds": record.round >= run.budget.rounds,
        }
        return next((name for name, is_met in met.items() if is_met), "")


def _optimizer(server: ServerOptimizer) -> Optimizer | Moments:
    if server.optimizer == "sgd":
        return Optimizer(server.lr, server.momentum, server.nesterov)
    return Moments(server.optimizer, server.lr, server.beta_1, server.beta_2, server.tau)


def _scene(experiment: Experiment, examples: Mapping[int, int], schema: Schema) -> Scene:
    training, codec = experiment.training, experiment.codec
    return Scene(
        seed=experiment.run.seed,
        examples=examples if isinstance(examples, NodeCounts) else dict(examples),
        cohort=experiment.cohort.count(len(examples)),
        batch_size=training.batch_size * training.accumulation_steps,
        parameters=schema.n,
        model_bytes=4 * schema.n + schema.raw_n_bytes,
        first_model=codec.first_model,
        key_frames=codec.key_frames,
        lr=training.lr,
        uplink=codec.uplink,
        downlink=codec.downlink,
        deadline_s=experiment.cohort.deadline_s,
        feedback=codec.error_feedback,
        rounds=experiment.run.budget.rounds,
        budget_s=experiment.run.budget.seconds,
    )


def _mean(reports: Iterable[ClientReport], name: str) -> float | None:
    """Mean of a report's figure over the accepted clients that gave it, weighted by examples."""
    return weighted((r.examples, getattr(r, name)) for r in reports if r.accepted)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def now_s(grid: Grid) -> float:
    """Seconds on the grid's clock; 0 where it has none."""
    time_s: float = getattr(grid, "now_s", 0.0)
    return time_s


def sent_bytes(grid: Grid) -> tuple[int, int]:
    """Bytes down and up since the start; 0 where the grid does not count them."""
    sent: tuple[int, int] = getattr(grid, "sent_bytes", (0, 0))
    return sent
