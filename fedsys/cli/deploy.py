"""``fedsys deploy``: server, devices and their emulated links on this machine, in real time."""

import contextlib
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedsys.cli.execute import as_interrupt, run_on, show_trial, trial_json
from fedsys.cli.execution import INTERRUPTED, stop_on_interrupt
from fedsys.cli.server import pace_of
from fedsys.cli.tables import check_writable, console, write_json
from fedsys.config.load import load_experiment, with_settings
from fedsys.config.schema import Experiment
from fedsys.deploy.enrolment import Enrolment
from fedsys.deploy.home import ServerHome
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import RoundRecord

if TYPE_CHECKING:
    from netem.proxy.server import ShapingProxy
    from netem.proxy.thread import ProxyThread

WAIT_S = 180.0


def deploy_command(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    local: Annotated[
        int | None, typer.Option(min=1, help="Devices; partition.clients unless given.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, overrides the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides run.seed.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    out: Annotated[Path, typer.Option(help="Folder that run folders go into.")] = Path("runs"),
    threads: Annotated[int, typer.Option(min=1, help="Threads of each device.")] = 1,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Also simulate it, and show both figures.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the result as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the final tables.")] = False,
) -> None:
    """Run the experiment on a real SuperLink and SuperNodes here, each behind its link."""
    settings = [*(set_ or []), *([] if seed is None else [f"run.seed={seed}"])]
    experiment = load_experiment(file, settings)
    if local is not None:
        experiment = with_settings(experiment, {"partition.clients": local}, "--local")
    check_writable(json, "--json")
    from fedsys.cli.run import check_deployable

    check_deployable(experiment)
    path = out / f"{experiment.run.name}-{experiment.run.seed}"
    folder = RunFolder.create(path, experiment, resume=resume)
    screen = console()
    watch = _Watch()
    with as_interrupt(), stop_on_interrupt() as stop, _scratch(folder.path) as scratch:
        home = ServerHome.create(scratch / "server", ["127.0.0.1"], _free_port())
        with _proxies(experiment, home) as proxies, _fleet(home, proxies, scratch, threads):
            watch.begin(proxies)
            trial = run_on(
                home,
                experiment,
                folder,
                screen=screen,
                wait_s=WAIT_S,
                min_nodes=None,
                quiet=quiet,
                stop=stop,
                on_round=watch.see,
            )
            watch.stop()
    show_trial(screen, experiment, folder, trial)
    figures = watch.figures(trial.records)
    screen.print(_table(figures))
    if simulated and trial.stopped_by != INTERRUPTED:
        figures["simulated_round_s"] = _simulated_round_s(experiment)
        screen.print(f"simulated: {figures['simulated_round_s']:.2f} s a round (median)")
    write_json(json, trial_json(experiment, trial) | {"deployment": figures})
    if trial.stopped_by == INTERRUPTED:
        raise typer.Exit(130)


class _Watch:
    """Bytes at the proxies from the first round on."""

    def __init__(self) -> None:
        self._proxies: ProxyThread | None = None
        self._begin = self._seen = (0, 0)
        self._rounds: dict[int, tuple[int, int]] = {}

    def begin(self, proxies: "ProxyThread") -> None:
        """Count from now on."""
        self._proxies = proxies
        self._begin = self._seen = self._count()

    def see(self, record: RoundRecord) -> None:
        """Remember what was counted by the end of a round, give or take what has begun since."""
        self.stop()
        self._rounds[record.round] = self._seen

    def stop(self) -> None:
        """Remember what was counted until now."""
        self._seen = self._count()

    def figures(self, records: Sequence[RoundRecord]) -> dict[str, Any]:
        """Measured, beside the ledger."""
        lengths_s = [record.end_s - record.start_s for record in records]
        return {
            "round_s": statistics.median(lengths_s) if lengths_s else None,
            "wire_uplink_bytes": self._seen[0] - self._begin[0],
            "wire_downlink_bytes": self._seen[1] - self._begin[1],
            "ledger_uplink_bytes": sum(record.uplink_bytes for record in records),
            "ledger_downlink_bytes": sum(record.downlink_bytes for record in records),
            "rounds": [
                {
                    "round": record.round,
                    "round_s": record.end_s - record.start_s,
                    "wire_bytes_until": self._since_begin(record.round),
                    "ledger_bytes": (record.uplink_bytes, record.downlink_bytes),
                }
                for record in records
            ],
        }

    def _since_begin(self, number: int) -> tuple[int, int] | None:
        """(up, down) by the end of a round; None where nobody looked."""
        if number not in self._rounds:
            return None
        up, down = self._rounds[number]
        return up - self._begin[0], down - self._begin[1]

    def _count(self) -> tuple[int, int]:
        def count(proxy: "ShapingProxy") -> tuple[int, int]:
            counts = [proxy.count(name) for name in proxy.ports]
            return sum(c.up.out_bytes for c in counts), sum(c.down.out_bytes for c in counts)

        return (0, 0) if self._proxies is None else self._proxies.call(count)


@contextlib.contextmanager
def _proxies(experiment: Experiment, home: ServerHome) -> Iterator["ProxyThread"]:
    """A port for each device, behind the link that it has in a simulation."""
    from netem.profiles import link_for
    from netem.proxy.address import Address
    from netem.proxy.server import NodePort, ShapingProxy
    from netem.proxy.thread import ProxyThread

    network, seed = experiment.network, experiment.run.seed
    ports = [
        NodePort(name=_name(part), link=link_for(network.link, network.options, seed, part + 1))
        for part in range(experiment.partition.clients)
    ]
    proxy = ShapingProxy(
        Address("127.0.0.1", home.port),
        ports,
        seed=seed,
        server_egress_bps=_bps(network.server_up_mbps),
        server_ingress_bps=_bps(network.server_down_mbps),
    )
    with ProxyThread(proxy) as thread:
        for port in ports:
            address = str(proxy.ports[port.name])
            enrolment = home.enrol(
                port.name, link=network.link, pace=pace_of(port.link), address=address
            )
            enrolment.save(home.path / f"{port.name}.enrolment")
        yield thread


@contextlib.contextmanager
def _fleet(home: ServerHome, proxies: "ProxyThread", scratch: Path, threads: int) -> Iterator[None]:
    from fedsys.deploy.local import LocalFleet

    enrolments = {
        name: Enrolment.load(home.path / f"{name}.enrolment") for name in proxies.proxy.ports
    }
    log = (scratch / "events.log").open("a", buffering=1)
    with (
        log,
        LocalFleet(
            home,
            enrolments,
            scratch,
            threads=threads,
            say=lambda line: print(line, file=log),
        ),
    ):
        yield


@contextlib.contextmanager
def _scratch(run: Path) -> Iterator[Path]:
    """A folder for keys and state, gone afterwards; its logs go into the run's folder."""
    with tempfile.TemporaryDirectory(prefix="fedsys-deploy-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            yield folder
        finally:
            logs = run / "logs"
            logs.mkdir(exist_ok=True)
            for file in (*folder.rglob("*.log"), *folder.rglob("*.log.1")):
                parts = file.relative_to(folder).parts
                shutil.copyfile(file, logs / "-".join(p for p in parts if p != "logs"))


def _simulated_round_s(experiment: Experiment) -> float:
    """The median round of the same experiment in virtual time."""
    from fedsys.cli.run import run_experiment

    with tempfile.TemporaryDirectory(prefix="fedsys-simulated-") as name:
        folder = RunFolder.create(Path(name) / "run", experiment, resume=False)
        records = run_experiment(experiment, folder).records
    return statistics.median(record.end_s - record.start_s for record in records)


def _table(figures: dict[str, Any]) -> Table:
    table = Table("", "measured", "ledger")
    for column in table.columns[1:]:
        column.justify = "right"
    round_s = figures["round_s"]
    table.add_row(
        "seconds a round (median)",
        "-" if round_s is None else f"{round_s:.2f}",
        "",
    )
    for way in ("uplink", "downlink"):
        wire, ledger = figures[f"wire_{way}_bytes"], figures[f"ledger_{way}_bytes"]
        table.add_row(f"{way} kB on the wire", f"{wire / 1e3:.1f}", f"{ledger / 1e3:.1f}")
    return table


def _name(part: int) -> str:
    return f"node-{part}"


def _free_port() -> int:
    from fedsys.deploy.children import free_port

    return free_port()


def _bps(mbps: float | None) -> float:
    return math.inf if mbps is None else mbps * 1e6
