"""A server and devices that stay for several experiments, with a proxy before each device."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from rich.console import Console

from benchmarks.deploy_rig import ROOT
from fedsys.cli.execute import run_on
from fedsys.cli.server import pace_of
from fedsys.config.load import parse_experiment
from fedsys.deploy.children import free_port
from fedsys.deploy.home import ServerHome
from fedsys.deploy.local import LocalFleet
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord
from netem.profiles import link_for
from netem.proxy.address import Address
from netem.proxy.server import NodePort, ShapingProxy
from netem.proxy.thread import ProxyThread

WAIT_S = 400.0
SEED = 1


@dataclass
class Federation:
    """Devices of a server of this machine."""

    home: ServerHome
    proxies: ProxyThread
    folder: Path
    _runs: int = field(default=0, init=False)

    def set_links(self, name: str, options: dict[str, object]) -> None:
        """Put each device behind the link that it has in a simulation, from its beginning."""
        links = {
            node: link_for(name, options, SEED, number)
            for number, node in enumerate(self.proxies.proxy.ports, 1)
        }

        def change(proxy: ShapingProxy) -> None:
            for node, link in links.items():
                proxy.set_link(node, link)

        self.proxies.call(change)

    def wire_bytes(self) -> tuple[int, int]:
        """(up, down) so far, of all devices."""

        def count(proxy: ShapingProxy) -> tuple[int, int]:
            counts = [proxy.count(name) for name in proxy.ports]
            return sum(c.up.out_bytes for c in counts), sum(c.down.out_bytes for c in counts)

        return self.proxies.call(count)

    def run(self, text: str) -> "Real":
        """An experiment to its end. DeployError where it fails."""
        experiment = parse_experiment(text, where="benchmark")
        self._runs += 1
        folder = RunFolder.create(self.folder / f"run-{self._runs}", experiment, resume=False)
        seen: list[tuple[int, int]] = []
        trial = run_on(
            self.home,
            experiment,
            folder,
            screen=Console(quiet=True),
            wait_s=WAIT_S,
            min_nodes=None,
            quiet=True,
            stop=lambda: False,
            on_round=lambda record: seen.append(self.wire_bytes()),
        )
        return Real(trial.records, seen)


@dataclass(frozen=True, slots=True)
class Real:
    """What became of an experiment on real devices."""

    records: list[RoundRecord]
    seen: Sequence[tuple[int, int]]
    """(up, down) bytes on the wire by the end of each round."""

    @property
    def lengths_s(self) -> list[float]:
        """Seconds of each round but the first, in which devices also get the app."""
        return [record.end_s - record.start_s for record in self.records[1:]]

    def bytes_a_round(self, place: int) -> tuple[float, float]:
        """(wire, ledger) bytes up or down, mean over all rounds but the first."""
        wire = [after[place] - before[place] for before, after in pairwise(self.seen)]
        ledger = [(r.uplink_bytes, r.downlink_bytes)[place] for r in self.records[1:]]
        return sum(wire) / len(wire), sum(ledger) / len(ledger)


@contextmanager
def federation(clients: int, *links: tuple[str, dict[str, object]]) -> Iterator[Federation]:
    """A server and its devices, behind the first of ``links``; pieces are sized for all of them."""
    # Tasks of the benchmarks are found by the processes that run them.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsys-fleet-")))
        home = ServerHome.create(folder / "server", ["127.0.0.1"], free_port())
        ports = [
            NodePort(name=f"node-{number}", link=link_for(*links[0], SEED, number))
            for number in range(1, clients + 1)
        ]
        proxy = ShapingProxy(Address("127.0.0.1", home.port), ports, seed=SEED)
        proxies = stack.enter_context(ProxyThread(proxy))
        enrolments = {
            port.name: home.enrol(
                port.name,
                link=links[0][0],
                pace=min(
                    (pace_of(link_for(*link, SEED, number)) for link in links),
                    key=attrgetter("chunk_bytes"),
                ),
                address=str(proxy.ports[port.name]),
            )
            for number, port in enumerate(ports, 1)
        }
        log = stack.enter_context((folder / "events.log").open("a", buffering=1))
        stack.enter_context(
            LocalFleet(home, enrolments, folder, say=lambda line: print(line, file=log))
        )
        yield Federation(home, proxies, folder)
