"""When each exchange of a message and its reply happens: the events of virtual time.

An exchange is download, local compute, upload. A node has one at a time; the next one waits.
Knows sizes and seconds, no Flower. Events are ordered by (time, sequence), so the same exchanges
give the same times in any process.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedsys.errors import LinkError
from fedsys.rng import rng_for
from fedsys.types import LinkSample
from netem.fair import SharedLink
from netem.link import Link, Way
from netem.rate import RateCurve
from netem.transfer import Traffic, Transfer, plan_transfer

Outcome = tuple[Traffic, float]
"""What a reply puts on the link, and the seconds of local compute behind it."""
_NOTHING = Traffic(size_bytes=0)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One message to one node, and what became of it. Times are None until they have come."""

    key: int
    """Place in the order of sending."""
    node_id: int
    flow: tuple[str | int, ...]
    """Names the random draws of this exchange."""
    download: Traffic
    vanishes: bool
    """The device takes the message and is not heard of again."""
    sent_s: float
    begun_s: float | None = None
    downloaded_s: float | None = None
    outcome: Outcome | None = None
    trained_s: float | None = None
    ended_s: float | None = None
    """When the reply arrived, or the news that there will be none."""
    lost: bool = False

    @property
    def upload(self) -> Traffic:
        """The reply; nothing until its upload has begun."""
        return _NOTHING if self.outcome is None or self.trained_s is None else self.outcome[0]

    @property
    def downlink_bytes(self) -> int:
        """What has gone down for it: the message, once it has begun, and answers to the reply."""
        return (self.download.size_bytes if self.begun_s is not None else 0) + (
            self.upload.back_bytes
        )

    @property
    def uplink_bytes(self) -> int:
        """What has gone up for it: requests for the message, and the reply once it has begun."""
        return (self.download.back_bytes if self.begun_s is not None else 0) + (
            self.upload.size_bytes
        )


class Timeline:
    """All exchanges that have not ended, and a clock that only its owner moves."""

    def __init__(
        self,
        *,
        link_of: Callable[[int], Link],
        outcome_of: Callable[[Exchange], Outcome],
        seed: int,
        server_egress_bps: RateCurve | float | None,
        server_ingress_bps: RateCurve | float | None,
        heartbeat_s: float,
        now_s: float = 0.0,
    ) -> None:
        self.now_s = now_s
        self.downlink_bytes = 0
        self.uplink_bytes = 0
        self._link_of = link_of
        self._outcome_of = outcome_of
        self._seed = seed
        self._heartbeat_s = heartbeat_s
        self._shared: dict[Way, SharedLink] = {}
        if server_egress_bps is not None:
            self._shared["down"] = SharedLink(server_egress_bps, now_s)
        if server_ingress_bps is not None:
            self._shared["up"] = SharedLink(server_ingress_bps, now_s)
        self._open: dict[int, Exchange] = {}
        self._borrowed = False
        """Whether exchanges in ``_open`` may belong to the timeline that this is a copy of."""
        self._own: set[int] = set()
        """Those that do not."""
        self._waiting: dict[int, tuple[int, ...]] = {}
        """node -> keys of its exchanges; the first one is under way."""
        self._events: list[tuple[float, int, str]] = []
        self._next_s: float | None = None
        """``next_event_s``; None until it is asked for again."""
        self._phases: dict[int, tuple[Transfer, int]] = {}
        """key -> the transfer that crosses a shared link, and which phase it is in."""

    def send(self, exchange: Exchange) -> None:
        """Hand ``exchange`` to its node now; it begins when the node is free and asks for it."""
        self._open[exchange.key] = exchange
        busy_with = self._waiting.get(exchange.node_id, ())
        self._waiting[exchange.node_id] = (*busy_with, exchange.key)
        if not busy_with:
            self._fetch(exchange, idle=True)

    def withdraw(self, key: int) -> bool:
        """Take back an exchange that its node has not begun; False if it has."""
        exchange = self._open.get(key)
        if exchange is None or exchange.begun_s is not None:
            return False
        queue = self._waiting[exchange.node_id]
        self._waiting[exchange.node_id] = tuple(one for one in queue if one != key)
        del self._open[key]
        if queue[0] == key:
            self._go_on(exchange.node_id, idle=True)
        return True

    def under_way(self, key: int) -> Exchange:
        """The exchange of that key, which has not ended; KeyError where it has."""
        return self._open[key]

    def next_event_s(self) -> float:
        """When something happens next; inf when nothing is under way."""
        if self._next_s is None:
            next_s = self._events[0][0] if self._events else math.inf
            for link in self._shared.values():
                link_s = link.next_event_s()
                if link_s < next_s:
                    next_s = link_s
            self._next_s = next_s
        return self._next_s

    def step(self) -> list[Exchange]:
        """Move the clock to the next event; the exchanges that ended with it."""
        self.now_s = now_s = max(self.now_s, self.next_event_s())
        ended: list[Exchange] = []
        for link in self._shared.values():
            if link.next_event_s() <= now_s:
                for key in link.advance_to(now_s):
                    self._end_phase(key)
        events = self._events
        while events and events[0][0] <= now_s:
            _, key, event = heapq.heappop(events)
            if key not in self._open:  # it was lost while this event of it lay ahead
                continue
            exchange = self._own_exchange(key)
            _HANDLERS[event](self, exchange)
            if exchange.ended_s is not None:
                ended.append(exchange)
        self._next_s = None
        return ended

    def copy(self) -> "Timeline":
        """A timeline to look ahead on; of no more use once this one has moved.

        Costs a copy of some lists: an exchange is copied when something happens to it.
        """
        twin = Timeline.__new__(Timeline)
        twin.__dict__.update(self.__dict__)
        twin._shared = {way: link.copy() for way, link in self._shared.items()}
        twin._open, twin._borrowed, twin._own = self._open.copy(), True, set()
        twin._waiting = self._waiting.copy()
        twin._events = self._events.copy()
        twin._phases = self._phases.copy()
        return twin

    def state(self) -> dict[str, Any]:
        """All that later times depend on, JSON-able; waits for the outcome of what is under way."""
        for exchange in self._open.values():
            self._settle(exchange)
        return {
            "now_s": self.now_s,
            "downlink_bytes": self.downlink_bytes,
            "uplink_bytes": self.uplink_bytes,
            "open": [asdict(exchange) for exchange in self._open.values()],
            "waiting": [[node_id, *keys] for node_id, keys in self._waiting.items()],
            "events": sorted(self._events),
            "phases": [[key, phase] for key, (_, phase) in self._phases.items()],
            "shared": {way: link.state() for way, link in self._shared.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, to the same times as if nothing had been interrupted."""
        self.now_s, self._next_s = state["now_s"], None
        self.downlink_bytes, self.uplink_bytes = state["downlink_bytes"], state["uplink_bytes"]
        self._open = {saved["key"]: _exchange(saved) for saved in state["open"]}
        self._waiting = {node_id: tuple(keys) for node_id, *keys in state["waiting"]}
        self._events = [(time_s, key, event) for time_s, key, event in state["events"]]
        self._phases = {key: (self._transfer(self._open[key]), n) for key, n in state["phases"]}
        for way, link in self._shared.items():
            saved = state["shared"][way]
            phases = {key: self._phases[key] for key, *_ in saved["flows"]}
            link.restore(saved, {key: t.phases[n].curve for key, (t, n) in phases.items()})

    def _own_exchange(self, key: int) -> Exchange:
        """An open exchange that may be written to."""
        exchange = self._open[key]
        if self._borrowed and key not in self._own:
            exchange = self._open[key] = replace(exchange)
            self._own.add(key)
        return exchange

    def _fetch(self, exchange: Exchange, *, idle: bool) -> None:
        """Let the node begin: now, or when it takes part and has asked for messages.

        An idle node asks every ``poll_s``, and at once when its hours begin; one that was at work
        asks as soon as it is done.
        """
        link, start_s = self._link_of(exchange.node_id), self.now_s
        if link.availability is not None:
            start_s = link.availability.from_s(start_s)
        if link.poll_s > 0:
            if idle and start_s == self.now_s:
                rng = rng_for(self._seed, "link", *exchange.flow, "poll")
                start_s += float(rng.uniform(0.0, link.poll_s))
                if link.availability is not None:
                    start_s = link.availability.from_s(start_s)
            start_s += link.mean_rtt_s
        if start_s > self.now_s:
            self._push(start_s, exchange.key, "begun")
        else:
            self._on_begun(exchange)

    def _go_on(self, node_id: int, *, idle: bool) -> None:
        """Let the node fetch what waits for it, if anything does."""
        queue = self._waiting[node_id]
        if queue:
            self._fetch(self._own_exchange(queue[0]), idle=idle)
        else:
            del self._waiting[node_id]

    def _on_begun(self, exchange: Exchange) -> None:
        exchange.begun_s = self.now_s
        self._charge(exchange.download.size_bytes, exchange.download.back_bytes)
        self._start(exchange, "downloaded")

    def _start(self, exchange: Exchange, event: str) -> None:
        """Start a transfer that ends in ``event``, or with the way dead in the loss of the node."""
        transfer = self._transfer(exchange)
        given_up_s = transfer.dead_from_s() + self._heartbeat_s
        if _way(exchange) in self._shared:
            self._phases[exchange.key] = (transfer, 0)
            self._push(transfer.start_s + transfer.phases[0].wait_s, exchange.key, "phase")
            if given_up_s < math.inf:
                self._push(given_up_s, exchange.key, "stuck")
        elif (finish_s := transfer.finish_s()) < math.inf:
            self._push(finish_s, exchange.key, event)
        else:
            self._push(given_up_s, exchange.key, "lost")

    def _transfer(self, exchange: Exchange) -> Transfer:
        """The transfer that ``exchange`` is in; the same whenever it is asked for."""
        link = self._link_of(exchange.node_id)
        if exchange.trained_s is not None:
            traffic, start_s = exchange.upload, exchange.trained_s
        else:
            traffic, start_s = exchange.download, exchange.begun_s or 0.0
        return plan_transfer(
            link,
            _way(exchange),
            traffic.size_bytes,
            start_s,
            seed=self._seed,
            flow=exchange.flow,
            round_trips=traffic.round_trips,
        )

    def _charge(self, downlink_bytes: int, uplink_bytes: int) -> None:
        self.downlink_bytes += downlink_bytes
        self.uplink_bytes += uplink_bytes

    def _enter_phase(self, exchange: Exchange) -> None:
        transfer, phase = self._phases[exchange.key]
        part = transfer.phases[phase]
        self._shared[_way(exchange)].add(exchange.key, part.size_bits, part.curve, self.now_s)

    def _end_phase(self, key: int) -> None:
        transfer, phase = self._phases.pop(key)
        if phase + 1 < len(transfer.phases):
            self._phases[key] = (transfer, phase + 1)
            self._push(self.now_s + transfer.phases[phase + 1].wait_s, key, "phase")
        else:
            event = "uploaded" if _way(self._open[key]) == "up" else "downloaded"
            self._push(self.now_s + transfer.tail_s, key, event)

    def _on_downloaded(self, exchange: Exchange) -> None:
        exchange.downloaded_s = self.now_s
        if exchange.vanishes:
            self._push(self.now_s + self._heartbeat_s, exchange.key, "lost")
        else:
            _, compute_s = self._settle(exchange)
            self._push(self.now_s + compute_s, exchange.key, "trained")

    def _on_trained(self, exchange: Exchange) -> None:
        exchange.trained_s = self.now_s
        self._charge(exchange.upload.back_bytes, exchange.upload.size_bytes)
        self._start(exchange, "uploaded")

    def _on_uploaded(self, exchange: Exchange) -> None:
        exchange.ended_s = self.now_s
        del self._open[exchange.key]
        self._waiting[exchange.node_id] = self._waiting[exchange.node_id][1:]
        self._go_on(exchange.node_id, idle=False)

    def _on_lost(self, exchange: Exchange) -> None:
        exchange.lost = True
        self._on_uploaded(exchange)

    def _on_stuck(self, exchange: Exchange) -> None:
        """Give up a transfer over a way that died, unless it had got through before."""
        transfer, _ = self._phases.get(exchange.key, (None, 0))
        if transfer is not None and transfer.dead_from_s() + self._heartbeat_s <= self.now_s:
            del self._phases[exchange.key]
            self._shared[_way(exchange)].discard(exchange.key, self.now_s)
            self._on_lost(exchange)

    def _settle(self, exchange: Exchange) -> Outcome:
        """The outcome of the client's work; waits for the real computation if it has to."""
        if exchange.outcome is None:
            exchange.outcome = (_NOTHING, 0.0) if exchange.vanishes else self._outcome_of(exchange)
            if not 0 <= exchange.outcome[1] < math.inf:
                raise LinkError(
                    f"node {exchange.node_id}: compute must take 0 or more seconds, "
                    f"got {exchange.outcome[1]}"
                )
        return exchange.outcome

    def _push(self, time_s: float, key: int, event: str) -> None:
        heapq.heappush(self._events, (time_s, key, event))
        self._next_s = None


_HANDLERS: dict[str, Callable[[Timeline, Exchange], None]] = {
    "begun": Timeline._on_begun,
    "phase": Timeline._enter_phase,
    "downloaded": Timeline._on_downloaded,
    "trained": Timeline._on_trained,
    "uploaded": Timeline._on_uploaded,
    "lost": Timeline._on_lost,
    "stuck": Timeline._on_stuck,
}


def _way(exchange: Exchange) -> Way:
    return "up" if exchange.trained_s is not None else "down"


def _exchange(saved: dict[str, Any]) -> Exchange:
    outcome = saved["outcome"]
    saved = {
        **saved,
        "flow": tuple(saved["flow"]),
        "download": Traffic(**saved["download"]),
        "outcome": None if outcome is None else (Traffic(**outcome[0]), float(outcome[1])),
    }
    return Exchange(**saved)


def sample_of(exchange: Exchange) -> LinkSample:
    """What the server could have measured of it by now."""
    begun_s, downloaded_s = exchange.begun_s, exchange.downloaded_s
    trained_s, ended_s = exchange.trained_s, exchange.ended_s
    arrived = ended_s is not None and not exchange.lost
    return LinkSample(
        downlink_bytes=exchange.downlink_bytes,
        uplink_bytes=exchange.uplink_bytes,
        download_s=_between(begun_s, downloaded_s),
        train_s=_between(downloaded_s, trained_s),
        upload_s=_between(trained_s, ended_s) if arrived else None,
        arrival_s=ended_s if arrived else None,
    )


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else end_s - begin_s
