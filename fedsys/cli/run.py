"""One simulated run: puts task, links, devices, workers, strategy and run folder together."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from fedsys.cli.execution import INTERRUPTED
from fedsys.cli.saving import Saving
from fedsys.codecs._chain import parse
from fedsys.config.load import dump_toml
from fedsys.config.schema import Experiment
from fedsys.engine.garbage import rare_collections
from fedsys.engine.pool import Pool
from fedsys.engine.workforce import Hiring
from fedsys.errors import ConfigError
from fedsys.nodes import NodeCounts
from fedsys.telemetry.runfolder import RunFolder
from fedsys.types import NodeConfig, RoundRecord
from fedsys.wire.schema import Array
from netem.devices import device_for
from netem.emulation import virtual_grid
from netem.profiles import link_for
from strategies._buffered import budget_for, require_rounds
from strategies._flower import Ahead
from strategies._resumed import resume
from strategies.server_app import controller_for

CLIENT_APP = "clients.client_app:app"
EVALUATE, FACTS = "clients.server_side:evaluate_for", "clients.server_side:facts_for"
COHORT, WARM_UP = "clients.cohort_app:serve", "clients.cohort_app:warm_up"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    stopped_by: str
    """The budget that was met first: target, seconds, uplink_mb, rounds; or interrupt."""
    records: list[RoundRecord]
    model_sha256: str


def check_experiment(experiment: Experiment, *, data: bool = True) -> None:
    """Raise ConfigError for anything that would fail once the run has begun.

    Without ``data`` task and device are not looked at: worker processes do so when they start.
    """
    check_choices(experiment)
    network = experiment.network
    try:
        link_for(network.link, network.options, experiment.run.seed, 1)
    except ConfigError as error:
        raise ConfigError(f"network: {error}") from error
    device_for(experiment.devices.profile, experiment.devices.options, experiment.run.seed, 1)
    if data:
        # Imported here: a run with worker processes does without torch in this one.
        from clients.cohort_app import warm_up

        warm_up({"experiment": dump_toml(experiment)})


def check_choices(experiment: Experiment) -> None:
    """Raise ConfigError for codecs or a strategy that cannot be used; looks at nothing else."""
    for way in ("uplink", "downlink"):
        try:
            parse(getattr(experiment.codec, way))
        except ConfigError as error:
            raise ConfigError(f"codec.{way}: {error}") from error
    controller_for(experiment)


def check_deployable(experiment: Experiment) -> None:
    """Raise ConfigError for what ``check_experiment`` does, and for what can only be simulated."""
    check_experiment(experiment)
    require_rounds(experiment, controller_for(experiment))


def keeps_files(experiment: Experiment) -> bool:
    """Whether clients of this experiment keep models or residuals from round to round."""
    codec = experiment.codec
    leaves = codec.error_feedback and bool(parse(codec.uplink).stages)
    return leaves or codec.downlink != "none" or controller_for(experiment).chooses_codecs


def run_experiment(
    experiment: Experiment,
    folder: RunFolder,
    *,
    workers: int = 1,
    on_round: Callable[[RoundRecord], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    hiring: Hiring | None = None,
) -> RunResult:
    """Simulate the experiment to the end of its budget, from the folder's checkpoint if it has one.

    ``stop`` is asked after each round, and the run can go on from there. ``hiring`` starts other
    workers than processes of this machine. Raises ConfigError where task or device cannot be used.
    """
    text, nodes = dump_toml(experiment), range(1, experiment.partition.clients + 1)
    pool = Pool(
        CLIENT_APP,
        workers=workers,
        run_config={"experiment": text},
        node_config_of=lambda node: _node_config(node, len(nodes), folder),
        warm_up=WARM_UP,
        cohort=COHORT if experiment.engine.batch else None,
        hiring=hiring,
    )
    with closing(pool):
        return _run(experiment, folder, pool, nodes, on_round, stop)


def _run(
    experiment: Experiment,
    folder: RunFolder,
    pool: Pool,
    nodes: range,
    on_round: Callable[[RoundRecord], None] | None,
    stop: Callable[[], bool],
) -> RunResult:
    text = dump_toml(experiment)
    pool.wait_ready()
    facts = pool.call(FACTS, text).result()
    folder.save_split(facts.split)

    def evaluate(arrays: Mapping[str, Array]) -> Future[tuple[float, float]]:
        return pool.call(EVALUATE, text, dict(arrays))

    strategy = budget_for(
        experiment,
        controller_for(experiment),
        NodeCounts(nodes, facts.sizes),
        facts.arrays,
        lambda arrays: evaluate(arrays).result(),
    )
    # Sums over several threads differ in the last bits from sums over one.
    with threadpool_limits(1):
        grid = virtual_grid(experiment, nodes, pool.submit, facts.flops_per_sample)
        resume(folder, strategy, grid)
        saving = Saving(
            folder,
            snapshot=lambda: (
                strategy.tensors(),
                {"strategy": strategy.state(), "grid": grid.state()},
            ),
            every_round=strategy.clients_remember,
            overlap=experiment.engine.overlap,
            stop=stop,
        )
        with rare_collections():
            for record in strategy.rounds(grid, Ahead(evaluate, saving.may_go_on)):
                saving.after(record)
                if on_round is not None:
                    on_round(record)
                if saving.is_stopping and not strategy.stopped_by:
                    return RunResult(INTERRUPTED, folder.records(), "")
    model_sha256 = folder.save_model(strategy.result())
    return RunResult(strategy.stopped_by, folder.records(), model_sha256)


def _node_config(node: int, clients: int, folder: RunFolder) -> NodeConfig:
    return {
        "partition-id": node - 1,
        "num-partitions": clients,
        "state-dir": str(folder.scratch.absolute()),
        "durable": False,
        "threads": 1,
    }
