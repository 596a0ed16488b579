"""The loop of asynchronous strategies: replies are used as they come, nobody waits for the others.

One round is one server step, and its record holds the replies since the last one. Replies that come
at the same moment are all taken, in the order in which their clients were asked, before those who
sent them are replaced: by clients drawn from all that are not in flight, who get the newest model.
"""

import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, cast

from flwr.app import Message
from flwr.serverapp import Grid

from fedsys.config.schema import Experiment
from fedsys.errors import ConfigError
from fedsys.middleware.envelope import piece_bytes_for, unsealed_reply
from fedsys.nodes import NodeCounts
from fedsys.partial import Partial
from fedsys.rng import rng_for
from fedsys.types import ClientReport, LinkSample, RoundPlan, RoundRecord
from fedsys.wire.schema import Array as Values
from strategies._aggregate import Mean
from strategies._base import Controller, Scene, is_asynchronous
from strategies._flight import Asked, asked_of, packed, unpacked
from strategies._flower import Evaluate, RoundBudget, now_s, sent_bytes
from strategies._round import (
    Outcome,
    Taking,
    cancel,
    measured,
    messages_for,
    missing_report,
    report_on,
    take,
)


class Asynchronous(Controller[Any], Protocol):
    """What a controller has beside the usual where ``is_asynchronous`` is true."""

    @property
    def max_staleness(self) -> int:
        """Server steps after which an update is of no use."""
        ...

    def in_flight(self, scene: Scene) -> int:
        """How many clients are at work at any time."""
        ...

    def updates_per_step(self, scene: Scene) -> int:
        """How many updates make a step of the server."""
        ...

    def weight(self, staleness: int) -> float:
        """What an example counts for in an update of that many server steps ago, at most 1.

        The step is the sum of what they count for over their number: old updates shorten it.
        """
        ...

    def ask(self, scene: Scene, round_number: int, nodes: Sequence[int]) -> RoundPlan:
        """What these nodes are to do."""
        ...


def budget_for(
    experiment: Experiment,
    controller: Controller[Any],
    examples: Mapping[int, int],
    arrays: Mapping[str, Values],
    evaluate: Evaluate | None = None,
) -> RoundBudget:
    """The loop that ``controller`` is made for."""
    kind = BufferedBudget if is_asynchronous(controller) else RoundBudget
    return kind(experiment, controller, examples, arrays, evaluate)


def require_rounds(experiment: Experiment, controller: Controller[Any]) -> None:
    """Raise ConfigError for a controller that can only be simulated."""
    if is_asynchronous(controller):
        raise ConfigError(
            f"strategy '{experiment.strategy.name}' is asynchronous and runs in simulations only; "
            "choose another one for real devices"
        )


@dataclass(frozen=True, slots=True)
class _Came:
    """A reply, or the news that there is none, that has not been used."""

    asked: Asked
    sample: LinkSample
    reply: Message | None


class BufferedBudget(RoundBudget):
    """Runs an asynchronous controller until the first budget is met."""

    def __init__(
        self,
        experiment: Experiment,
        controller: Controller[Any],
        examples: Mapping[int, int],
        arrays: Mapping[str, Values],
        evaluate: Evaluate | None = None,
    ) -> None:
        super().__init__(experiment, controller, examples, arrays, evaluate)
        self._asynchronous = cast(Asynchronous, controller)
        self._came: deque[_Came] = deque()
        self._turns: dict[int, int] = {}
        """Node to the number of its requests."""
        self._failed: set[int] = set()
        """Nodes of whom nothing could be used since the last step."""
        self._draws = 0

    def tensors(self) -> dict[str, Values]:
        """The arrays of a checkpoint; waits for what clients in flight compute."""
        came = {f"came.{n}": packed(c.reply) for n, c in enumerate(self._came) if c.reply}
        return super().tensors() | came

    def state(self) -> dict[str, Any]:
        """The rest of a checkpoint, JSON-able."""
        came = [{**asdict(one.asked), "sample": asdict(one.sample)} for one in self._came]
        turns = list(self._turns.items())
        return super().state() | {"draws": self._draws, "turns": turns, "came": came}

    def restore(
        self,
        tensors: Mapping[str, Values],
        state: Mapping[str, Any],
        records: Sequence[RoundRecord],
    ) -> None:
        """Continue after ``records``, from the checkpoint that was taken after the last of them."""
        super().restore(tensors, state, records)
        try:
            self._draws, self._turns = int(state["draws"]), dict(state["turns"])
            for number, saved in enumerate(state["came"]):
                values = tensors.get(f"came.{number}")
                reply = None if values is None else unpacked(values)
                self._came.append(_Came(asked_of(saved), LinkSample(**saved["sample"]), reply))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the checkpoint is not one of this experiment: {error}") from error

    def _begin(self, grid: Grid, number: int) -> None:
        if not hasattr(grid, "receive_next"):
            require_rounds(self._experiment, self._controller)
        self._flight.take_up(grid)
        self._grid, self._sent_s, self._before = grid, now_s(grid), sent_bytes(grid)
        self._failed.clear()
        if not self._came:
            self._ask(grid, number)

    def _end(self, grid: Grid, number: int) -> RoundRecord:
        """Fill the buffer and step the model; the record lacks the evaluation.

        Who fails is not asked again before the next step, and where very many do, they are not
        replaced either: when nobody is left, the step is made of what has come.
        """
        partial = Partial(self._codec.schema.n, normalise=False)
        updates = self._asynchronous.updates_per_step(self._scene)
        used: list[Asked] = []
        reports: list[ClientReport] = []
        while partial.count < updates:
            if not self._came:
                self._ask(grid, number)
                if not self._flight.asked:
                    break
                self._wait(grid)
                continue
            came = self._came.popleft()
            report = self._take(came, partial, number)
            used.append(came.asked)
            reports.append(report)
            if not report.accepted and report.staleness <= self._asynchronous.max_staleness:
                self._failed.add(report.node_id)
        outcome = Outcome(tuple(reports), Mean(partial))
        examples = sum(report.examples for report in reports if report.accepted)
        plan = self._asynchronous.ask(self._scene, number, ())
        shorter = partial.weight / examples if examples else 1.0
        self._move(outcome.mean, shorter, plan.mean_weight)
        plan = replace(plan, clients=tuple(asked.client for asked in used))
        return self._recorded(grid, plan, outcome)

    def _ask(self, grid: Grid, number: int) -> None:
        """Send the current model until as many clients as there should be are in flight."""
        most = self._asynchronous.in_flight(self._scene)
        bearable = max(self._asynchronous.updates_per_step(self._scene), most)
        most -= max(0, len(self._failed) - bearable)
        nodes = self._drawn(most - len(self._flight.asked))
        if not nodes:
            return
        plan = self._asynchronous.ask(self._scene, number, nodes)
        self._codec.piece_bytes = piece_bytes_for(grid)
        version = self._advance(plan, nodes)
        for node in nodes:
            self._turns[node] = self._turns.get(node, 0) + 1
        messages: dict[int, Message] = {}
        for turn in {self._turns[node] for node in nodes}:
            alike = [c for c in plan.clients if self._turns[c.node_id] == turn]
            part = replace(plan, clients=tuple(alike))
            for message in messages_for(self._codec, part, turn=turn):
                messages[message.metadata.dst_node_id] = message
        ids = grid.push_messages([messages[client.node_id] for client in plan.clients])
        sent_s, step = now_s(grid), number - 1
        for message_id, client in zip(ids, plan.clients, strict=True):
            turn = self._turns[client.node_id]
            self._flight.asked[message_id] = Asked(client, turn, version, step, sent_s)
        self._flight.keep_base(version, self._codec.downlink.model())

    def _drawn(self, count: int) -> list[int]:
        """Up to ``count`` clients that are neither in flight nor have failed, in ascending order.

        The first are those of any strategy's first cohort.
        """
        if not self._turns:
            return list(self._scene.sample(1, count))
        examples = self._scene.examples
        nodes = examples.nodes if isinstance(examples, NodeCounts) else sorted(examples)
        taken = self._failed | self._flight.nodes
        busy = sorted(bisect.bisect_left(nodes, node) for node in taken)
        drawn = []
        for _ in range(min(count, len(nodes) - len(busy))):
            self._draws += 1
            rng = rng_for(self._scene.seed, "replacement", self._draws)
            place = int(rng.integers(len(nodes) - len(busy)))
            for other in busy:  # from the place among the free to the place among all
                if other > place:
                    break
                place += 1
            bisect.insort(busy, place)
            drawn.append(nodes[place])
        return sorted(drawn)

    def _wait(self, grid: Grid) -> None:
        """Let time pass until somebody has answered, or the first one in flight is too late."""
        oldest_s = next(iter(self._flight.asked.values())).sent_s
        deadline_s = self._scene.deadline_s
        left_s = None if deadline_s is None else max(0.0, oldest_s + deadline_s - now_s(grid))
        replies = grid.receive_next(timeout=left_s)  # type: ignore[attr-defined]
        for reply in replies:
            message_id = reply.metadata.reply_to_message_id
            if (answered := self._flight.asked.pop(message_id, None)) is not None:
                self._came.append(_Came(answered, measured(grid, message_id), reply))
        if replies:
            return
        # Without a deadline nothing will ever come again.
        late = [
            message_id
            for message_id, asked in self._flight.asked.items()
            if deadline_s is None or asked.sent_s == oldest_s
        ]
        for message_id in late:
            silent = self._flight.asked.pop(message_id)
            self._came.append(_Came(silent, measured(grid, message_id), None))
        cancel(grid, late)

    def _take(self, came: _Came, partial: Partial, number: int) -> ClientReport:
        """Put the update into the buffer, or say why not."""
        asked, sample = came.asked, came.sample
        client, sent_s = asked.client, asked.sent_s
        staleness, most = number - 1 - asked.step, self._asynchronous.max_staleness
        if came.reply is None:
            report = missing_report(client, sample, self._scene.deadline_s)
        elif staleness > most and not came.reply.has_error():
            self._codec.seen(client.node_id, asked.version)
            report = report_on(client, sample, sent_s, reason=f"more than {most} server steps old")
        else:
            base = self._flight.bases.get(asked.version)
            share = self._asynchronous.weight(staleness)
            taking = Taking(self._codec, partial, asked.version, base, share, asked.turn)
            report = take(unsealed_reply(came.reply), client, taking, sample, sent_s)
        return replace(report, staleness=staleness)
