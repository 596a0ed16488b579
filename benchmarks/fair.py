"""Does virtual time keep up with 10,000 clients? ``python -m benchmarks.fair [--quick]``.

Prints one row for each bar: what was measured and what must be reached. Rates are per second of
processor time, so other work on the machine blurs them but does not count. Exit status 1 when a
bar is missed.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from benchmarks.bars import Bar, finish, parser_for
from benchmarks.provenance import provenance
from fedsys._flwr_private import records_of, reply_to
from fedsys.rng import rng_for
from netem.fair import SharedLink
from netem.fair_flow import UNITS
from netem.grid import VirtualGrid
from netem.link import Direction, Link
from netem.rate import RateCurve, steps

FLOWS = 10_000
SHARE = 0.5
"""Capacity of the shared link, of what the access links could carry together."""
MODEL = Array(np.zeros(50_000, np.uint8))
RECORDING = steps(np.arange(600.0), 1e6 * rng_for(1, "recording").lognormal(0, 0.7, 600), 600.0)
"""A new rate every second."""


def events_per_s(curves: Sequence[RateCurve], events: int) -> float:
    """Begins, ends and access-rate changes a second; whoever ends begins anew at once.

    A replayed curve changes every second, so changes are counted by the virtual clock.
    """
    sizes = 8e6 * rng_for(1, "sizes").lognormal(0, 0.5, len(curves))
    capacity = SHARE * sum(curve.bits_between(0, 600) for curve in curves) / 600
    changes_per_s = sum(curve.next_change_s(0.0) < math.inf for curve in curves)
    link, done, now_s = SharedLink(capacity), 0, 0.0
    for key, part in enumerate(rng_for(1, "parts").random(len(curves))):
        link.add(key, float(part * sizes[key]), curves[key], 0.0)
    link.next_event_s()
    begun_s = time.process_time()
    while done + changes_per_s * now_s < events:
        now_s = link.next_event_s()
        for key in link.advance_to(now_s):
            link.add(key, float(sizes[key]), curves[key], now_s)
            done += 2
    return (done + changes_per_s * now_s) / (time.process_time() - begun_s)


def best(measure: Callable[[], float], repeats: int) -> float:
    """The fastest of several runs: what the machine's other work disturbed least."""
    return max(measure() for _ in range(repeats))


def drift(events: int) -> float:
    """Relative error of the clock of work after so many begins and ends, against fractions."""
    link, now_s, exact = SharedLink(1e9), 0.0, Fraction(0)
    free = RateCurve.constant(math.inf)
    link.add(0, 1e18, free, 0.0)
    for number in range(1, events + 1):
        before_s, now_s = now_s, now_s + 10 / (3 + number % 7)
        exact += Fraction(10**9, 2 - number % 2) * (Fraction(now_s) - Fraction(before_s))
        if number % 2:
            link.add(number, 1e12, free, now_s)
        else:
            link.discard(number - 1, now_s)
    work = link.state()["work"]
    return float(abs(Fraction(work) / Fraction(UNITS) / exact - 1))


class Fleet:
    """Nodes that replay one recording, each from a point of its own, behind a shared server."""

    def __init__(self, nodes: int) -> None:
        self.nodes = range(1, nodes + 1)
        self.round = 0
        self.request = RecordDict(
            {"arrays": ArrayRecord({"w": MODEL}), "config": ConfigRecord({"lr": 0.1, "steps": 5})}
        )
        self.grid = VirtualGrid(
            node_ids=self.nodes,
            link_of=self._link,
            submit=self._submit,
            compute_s=lambda node, reply: 2.0 + node % 100 / 50,
            seed=1,
            server_egress_bps=SHARE * nodes * 2e6,
            server_ingress_bps=SHARE * nodes * 0.5e6,
        )

    def messages(self, nodes: Sequence[int]) -> list[Message]:
        """One for each node."""
        group = str(self.round)
        return [Message(self.request, node, "train", group_id=group) for node in nodes]

    def together_per_s(self) -> float:
        """Exchanges a second of a round in which all nodes take part."""
        self.round += 1
        messages = self.messages(self.nodes)
        begun_s = time.process_time()
        replies = self.grid.send_and_receive(messages)
        return len(replies) / (time.process_time() - begun_s)

    def in_turn_per_s(self, exchanges: int) -> float:
        """Exchanges a second when every node gets its next message as soon as it has answered."""
        self.round += 1
        self.grid.push_messages(self.messages(self.nodes))
        done, begun_s = 0, time.process_time()
        while done < exchanges:
            replies = self.grid.receive_next()
            done += len(replies)
            self.grid.push_messages(
                self.messages([reply.metadata.src_node_id for reply in replies])
            )
        return done / (time.process_time() - begun_s)

    def _link(self, node: int) -> Link:
        curve = RECORDING.shifted(37.123 * node)
        up, down = (Direction(curve=curve.limited(part), delay_ms=30.0) for part in (0.5, 2.0))
        return Link(up=up, down=down)

    def _submit(self, messages: Sequence[Message]) -> list[Future[Message]]:
        futures = []
        for message in messages:
            future: Future[Message] = Future()
            content = records_of({"arrays": {"w": MODEL}}, {"metrics": {"loss": 0.5, "samples": 5}})
            future.set_result(reply_to(message, content))
            futures.append(future)
        return futures


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    pages = Path("/proc/self/statm")
    return 4096 * int(pages.read_text().split()[1]) if pages.is_file() else 0


def grid_rows(quick: bool) -> list[Bar]:
    """Whole exchanges through the Grid, Flower's messages included, without any training."""
    fleet = Fleet(FLOWS)
    fleet.together_per_s()
    rows = [
        Bar(
            f"exchanges/s, {FLOWS} nodes at once, trace links, shared server",
            5000,
            best(fleet.together_per_s, 3 if quick else 6),
            at_least=True,
        )
    ]
    fleet = Fleet(FLOWS)
    in_turn = fleet.in_turn_per_s(FLOWS)
    rows.append(
        Bar(f"exchanges/s, {FLOWS} nodes one by one as they answer", 2000, in_turn, at_least=True)
    )
    if quick:
        return rows
    fleet = Fleet(2000)
    held = []
    for _ in range(80):  # the Grid remembers 65,536 exchanges and no more
        fleet.together_per_s()
        held.append(resident_bytes())
    return [
        *rows,
        Bar("memory after 160,000 exchanges / after 80,000", 1.02, held[-1] / held[39]),
    ]


def bars(quick: bool) -> list[Bar]:
    """Every bar, measured."""
    events, repeats = (10_000, 12) if quick else (50_000, 12)
    rng = rng_for(1, "access")
    constant = [RateCurve.constant(float(bps)) for bps in 1e6 * rng.lognormal(0, 1, FLOWS)]
    replayed = [RECORDING.shifted(float(by_s)) for by_s in rng.uniform(0, 600, FLOWS)]
    count = 100_000 if quick else 1_000_000
    return [
        Bar(
            f"events/s, {FLOWS} flows of constant access rates, half of them held back",
            100_000,
            best(lambda: events_per_s(constant, events), repeats),
            at_least=True,
        ),
        Bar(
            f"events/s, {FLOWS} flows with a new access rate every second",
            100_000,
            best(lambda: events_per_s(replayed, events), repeats),
            at_least=True,
        ),
        Bar(f"clock of work, error after {count} events", 1e-14, drift(count)),
        *grid_rows(quick),
    ]


def main() -> int:
    """Run everything, print the table, and say whether all bars are reached."""
    options = parser_for(__doc__, "shorter, within a minute").parse_args()
    rows = bars(options.quick)
    for row in rows:
        print(row.line())
    return finish(rows, {"source": provenance()}, options.json)


if __name__ == "__main__":
    sys.exit(main())
